//! The keys that say which row is whose.

use std::sync::Arc;

use warprow_layout::Ranks;

use crate::error::{FormatError, Kind};
use crate::input::Input;
use crate::table::{FileTable, Part, Place, TableFile, read_parts};

/// The type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// Four bytes without a sign.
    U32,
    /// Four bytes with a sign.
    I32,
    /// Eight bytes with a sign.
    I64,
    /// Eight bytes without a sign.
    U64,
}

impl KeyType {
    /// Bytes of a key.
    pub const fn size(self) -> u64 {
        match self {
            Self::U32 | Self::I32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether keys below zero are as such, rather than very large.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I32 | Self::I64)
    }

    /// A key as a number, from the 64 bits that stand for it.
    pub fn show(self, bits: u64) -> String {
        if self.is_signed() { (bits as i64).to_string() } else { bits.to_string() }
    }
}

/// The keys of a table, in the order of its rows: 64 bits each, of signed ones the two's complement.
pub struct Keys<'a> {
    next: Chunks<'a>,
    chunk: Vec<u64>,
    at: usize,
    left: u64,
}

/// Keys that come in their order, many at a time.
pub(crate) trait KeyStream {
    /// The next ones, at least one and at most `most`.
    fn next(&mut self, most: usize) -> Result<Vec<u64>, FormatError>;
}

enum Chunks<'a> {
    Flat {
        inputs: &'a [Arc<Input>],
        parts: &'a [Part],
        width: KeyType,
        row: u64,
    },
    #[cfg(feature = "parquet")]
    Stream(Box<dyn KeyStream>),
}

/// Keys read at once.
const CHUNK: usize = 1 << 15;

impl TableFile {
    /// The keys of `table`, one of this file's, in the order of its rows; `None` if it has none: row i is then that of id i.
    pub fn keys<'a>(&'a self, table: &'a FileTable) -> Result<Option<Keys<'a>>, FormatError> {
        let Some(width) = table.keys else { return Ok(None) };
        let next = match &table.place {
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) => match columns.key_reader(&self.inputs, table)? {
                Some(reader) => Chunks::Stream(reader),
                None => return Ok(None),
            },
            Place::Flat(_) | Place::Deflated(_) => {
                Chunks::Flat { inputs: &self.inputs, parts: &table.key_parts, width, row: 0 }
            }
        };
        Ok(Some(Keys { next, chunk: Vec::new(), at: 0, left: table.rows }))
    }

    /// Where the rows of `table` belong: entry i is the id of row i as it stands in the file. `None` if that is i for all.
    ///
    /// Ids are numbers from 0 to the rows less one, each once: keys that are anything else are refused, named.
    pub fn order(&self, table: &FileTable) -> Result<Option<Ranks>, FormatError> {
        let (Some(keys), Some(width)) = (self.keys(table)?, table.keys) else { return Ok(None) };
        let refuse = |kind, what: String, remedy: &str| FormatError::new(kind, &self.path, what, remedy);
        let rows = table.rows;
        let vast =
            || refuse(Kind::Unsupported, format!("table {:?} is too large for its keys", table.name), "split it");
        let mut seen = vec![0u64; usize::try_from(rows.div_ceil(64)).map_err(|_| vast())?];
        let mut order = Order::new(rows);
        let mut in_order = true;
        for (row, key) in (0..).zip(keys) {
            let key = key?;
            let word = usize::try_from(key / 64).ok().filter(|_| key < rows).and_then(|word| seen.get_mut(word));
            let Some(word) = word else {
                let key = width.show(key);
                let what = format!("table {:?} has {rows} rows, and row {row} has the key {key}", table.name);
                let remedy = "keys have to be the numbers from 0 to the rows less one, in any order; renumber them, \
                              and the ids that are looked up";
                return Err(refuse(Kind::Unsupported, what, remedy));
            };
            if *word >> (key % 64) & 1 == 1 {
                let earlier = order.iter().position(|earlier| earlier == key).unwrap_or_default();
                let key = width.show(key);
                let what = format!("table {:?} has the key {key} twice, in rows {earlier} and {row}", table.name);
                return Err(refuse(Kind::Duplicate, what, "leave one of the two rows out"));
            }
            *word |= 1 << (key % 64);
            in_order &= key == row;
            order.push(key);
        }
        if in_order { Ok(None) } else { Ok(Some(order.into())) }
    }
}

/// A permutation in the making.
enum Order {
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl Order {
    fn new(rows: u64) -> Self {
        if rows <= 1 << 32 { Self::U32(Vec::new()) } else { Self::U64(Vec::new()) }
    }

    fn push(&mut self, key: u64) {
        match self {
            Self::U32(order) => order.push(key as u32),
            Self::U64(order) => order.push(key),
        }
    }

    fn iter(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        match self {
            Self::U32(order) => Box::new(order.iter().map(|&key| key.into())),
            Self::U64(order) => Box::new(order.iter().copied()),
        }
    }
}

impl From<Order> for Ranks {
    /// The keys were found below the number of rows, each once.
    fn from(order: Order) -> Self {
        match order {
            Order::U32(order) => Self::U32(order),
            Order::U64(order) => Self::U64(order),
        }
    }
}

impl Keys<'_> {
    fn refill(&mut self) -> Result<(), FormatError> {
        let most = self.left.min(CHUNK as u64) as usize;
        self.chunk = match &mut self.next {
            Chunks::Flat { inputs, parts, width, row } => {
                let mut bytes = vec![0; most * width.size() as usize];
                read_parts(inputs, parts, *row, width.size() as usize, &mut bytes)?;
                *row += most as u64;
                numbers(&bytes, *width)
            }
            #[cfg(feature = "parquet")]
            Chunks::Stream(stream) => stream.next(most)?,
        };
        self.at = 0;
        Ok(())
    }
}

/// The keys in `bytes`.
fn numbers(bytes: &[u8], width: KeyType) -> Vec<u64> {
    match width {
        KeyType::U32 => bytes.as_chunks().0.iter().map(|&key| u32::from_le_bytes(key).into()).collect(),
        KeyType::I32 => bytes.as_chunks().0.iter().map(|&key| i64::from(i32::from_le_bytes(key)) as u64).collect(),
        KeyType::I64 | KeyType::U64 => bytes.as_chunks().0.iter().map(|&key| u64::from_le_bytes(key)).collect(),
    }
}

impl Iterator for Keys<'_> {
    type Item = Result<u64, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        if self.at >= self.chunk.len()
            && let Err(error) = self.refill()
        {
            self.left = 0;
            return Some(Err(error));
        }
        let key = self.chunk.get(self.at).copied()?;
        (self.at, self.left) = (self.at + 1, self.left - 1);
        Some(Ok(key))
    }
}
