//! The keys of a table's rows.

use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use warprow_layout::Ranks;

use crate::error::{FileError, FileErrorKind};
use crate::extent::{Extent, read_extents};
use crate::file_table::FileTable;
use crate::input::{Input, no_memory, room};
use crate::input_reader::InputReader;
use crate::key_array::KeyArray;
use crate::key_type::KeyType;
use crate::npy;
use crate::place::KeyPlace;
#[cfg(feature = "parquet")]
use crate::place::Place;
use crate::seen::Seen;
use crate::streams::{KeyStream, RowStream};
use crate::table_file::TableFile;

/// What the keys of a table are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyOrder {
    /// The keys are the numbers from 0 to the number of rows less one, in this order; or there are no keys.
    InOrder,
    /// The keys are these numbers in another order: entry i is the key of row i.
    Dense(Ranks),
    /// There are other keys. This names the first key that is none of these numbers.
    Sparse {
        /// The row of the key.
        row: u64,
        /// The key, of a signed one its two's complement.
        key: u64,
    },
}

/// Reads the keys of a table in the order of its rows: 64 bits each, signed ones in two's complement.
pub struct KeyReader<'a> {
    next: Chunks<'a>,
    chunk: Vec<u64>,
    at: usize,
    left: u64,
}

enum Chunks<'a> {
    Flat { inputs: &'a [Arc<Input>], extents: &'a [Extent], width: KeyType, row: u64 },
    Stream(Box<dyn KeyStream + 'a>),
}

/// Keys read at once.
const CHUNK: usize = 1 << 15;

impl TableFile {
    /// The keys of `table`, a table of this file, in the order of its rows; `None` if it has no keys: row i is then
    /// that of id i.
    pub fn keys<'a>(&'a self, table: &'a FileTable) -> Result<Option<KeyReader<'a>>, FileError> {
        let Some(width) = table.keys else { return Ok(None) };
        let next = match &table.place {
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) if table.key_place == KeyPlace::Nowhere => match columns.key_reader(width) {
                Some(reader) => Chunks::Stream(reader),
                None => return Ok(None),
            },
            _ => match &table.key_place {
                KeyPlace::Nowhere => return Ok(None),
                KeyPlace::Flat(extents) => Chunks::Flat { inputs: &self.inputs, extents, width, row: 0 },
                KeyPlace::Deflated(place) => {
                    Chunks::Stream(Box::new(Unpacked { rows: place.reader(&self.inputs)?, width }))
                }
            },
        };
        Ok(Some(KeyReader { next, chunk: Vec::new(), at: 0, left: table.rows }))
    }

    /// Declares that the list called `keys` in these files, or the `.npy` file of that name, has the keys of the table
    /// `table`.
    pub fn with_keys(&mut self, table: &str, keys: &str) -> Result<(), FileError> {
        let array = match self.key_arrays.iter().find(|array| array.name == keys) {
            Some(array) => array.clone(),
            None => self.key_file(keys)?,
        };
        let path = self.path.clone();
        let Some(found) = self.tables.iter_mut().find(|other| other.name == table) else {
            let why = self.skipped.iter().find(|(name, _)| name == table).map(|(_, why)| format!(": {why}"));
            let what = format!("it has no table {table:?}{}", why.unwrap_or_default());
            return Err(FileError::new(FileErrorKind::Unclear, &path, what, "name one of its tables"));
        };
        if array.rows != found.rows {
            let what = format!("{keys} has {} keys, table {table:?} has {} rows", array.rows, found.rows);
            return Err(FileError::new(FileErrorKind::Disagree, &path, what, "name the keys of these rows"));
        }
        // It is read several times, and here once more.
        if let (Some(member), Some(input)) = (&array.stored, self.inputs.first()) {
            let _ = Seen::default().compare(input, member, &mut |_| ControlFlow::Continue(()))?;
        }
        (found.keys, found.key_place) = (Some(array.keys), array.place);
        Ok(())
    }

    /// The keys in a file of their own.
    fn key_file(&mut self, name: &str) -> Result<KeyArray, FileError> {
        let path = Path::new(name);
        if !path.exists() {
            let lists = self.key_arrays.iter().map(|array| &*array.name).collect::<Vec<_>>().join(", ");
            let lists = if lists.is_empty() { "none" } else { &lists };
            let what = format!(
                "it has no list of whole numbers {name:?}, of 32 or 64 bits, and there is no such file; its lists: {lists}"
            );
            let remedy = match name.split_once('=') {
                None => "name one of its lists, or a .npy file of keys".to_owned(),
                // Whoever gives the name of the new table is told which is meant.
                Some((before, _)) => {
                    let tables = self.tables.iter().map(|table| &*table.name).collect::<Vec<_>>().join(", ");
                    format!(
                        "before the equals sign stands a tensor of the file, and {before:?} is none: it has {tables}"
                    )
                }
            };
            return Err(FileError::new(FileErrorKind::Missing, &self.path, what, &remedy));
        }
        let input = Input::open(path)?;
        let reader = BufReader::with_capacity(4096, InputReader { input: &input, at: 0 });
        let Some((rows, keys, at)) = npy::list(reader, input.len) else {
            let what = "is no whole .npy file of a list of <i8, <u8, <i4 or <u4";
            return Err(input.error(
                FileErrorKind::Unsupported,
                what,
                "keys are whole numbers of 32 or 64 bits: save them with numpy.save, as int64",
            ));
        };
        let place = KeyPlace::Flat(vec![Extent { input: self.inputs.len(), at, first: 0, rows }]);
        self.inputs.push(Arc::new(input));
        Ok(KeyArray { name: name.to_owned(), rows, keys, place, stored: None })
    }

    /// Fills `out` with the keys of the rows of `table` from `first` on, if they stand where each can be read; `None` if they
    /// can only be read from the first to the last.
    pub fn fill_keys(&self, table: &FileTable, first: u64, out: &mut [u64]) -> Option<Result<(), FileError>> {
        let (KeyPlace::Flat(extents), Some(width)) = (&table.key_place, table.keys) else { return None };
        let mut bytes = vec![0; out.len() * width.size() as usize];
        let read = read_extents(&self.inputs, extents, first, width.size() as usize, &mut bytes);
        out.iter_mut().zip(numbers(&bytes, width)).for_each(|(out, key)| *out = key);
        Some(read)
    }

    /// The ids of the rows of `table`: entry i is the id of the i-th row of the file. `None` if that is i for all rows.
    ///
    /// Ids are numbers from 0 to the rows less one, each once: keys that are anything else are refused, named.
    pub fn order(&self, table: &FileTable) -> Result<Option<Ranks>, FileError> {
        match self.key_order(table)? {
            KeyOrder::InOrder => Ok(None),
            KeyOrder::Dense(order) => Ok(Some(order)),
            KeyOrder::Sparse { row, key } => {
                let key = table.keys.map_or_else(String::new, |width| width.show(key));
                let what = format!("table {:?} has {} rows, and row {row} has the key {key}", table.name, table.rows);
                let remedy = "keys have to be the numbers from 0 to the rows less one, in any order; renumber them, \
                              and the ids that are looked up";
                Err(FileError::new(FileErrorKind::Unsupported, &self.path, what, remedy))
            }
        }
    }

    /// Whether the keys of `table` are the numbers from 0 to the number of rows less one, each once, and in which
    /// order. If they are, but one occurs twice, this fails and names it; if there are other keys, a key that occurs
    /// twice may go unnoticed here.
    pub fn key_order(&self, table: &FileTable) -> Result<KeyOrder, FileError> {
        let (Some(keys), Some(width)) = (self.keys(table)?, table.keys) else { return Ok(KeyOrder::InOrder) };
        let refuse = |kind, what: String, remedy: &str| FileError::new(kind, &self.path, what, remedy);
        let rows = table.rows;
        let mut seen: Vec<u64> = room(&self.path, rows.div_ceil(64))?;
        let mut order = Order::new(rows).ok_or_else(|| no_memory(&self.path))?;
        let mut in_order = true;
        for (row, key) in (0..).zip(keys) {
            let key = key?;
            let word = usize::try_from(key / 64).ok().filter(|_| key < rows).and_then(|word| seen.get_mut(word));
            let Some(word) = word else { return Ok(KeyOrder::Sparse { row, key }) };
            if *word >> (key % 64) & 1 == 1 {
                let earlier = order.iter().position(|earlier| earlier == key).unwrap_or_default();
                let key = width.show(key);
                let what = format!("table {:?} has the key {key} twice, in rows {earlier} and {row}", table.name);
                return Err(refuse(FileErrorKind::Duplicate, what, "leave one of the two rows out"));
            }
            *word |= 1 << (key % 64);
            in_order &= key == row;
            order.push(key);
        }
        Ok(if in_order { KeyOrder::InOrder } else { KeyOrder::Dense(order.into()) })
    }
}

/// A permutation in the making.
enum Order {
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl Order {
    /// `None` if there is no memory for so many.
    fn new(rows: u64) -> Option<Self> {
        let count = usize::try_from(rows).ok()?;
        let mut narrow = Vec::new();
        let mut wide = Vec::new();
        if rows <= 1 << 32 {
            narrow.try_reserve_exact(count).ok()?;
            return Some(Self::U32(narrow));
        }
        wide.try_reserve_exact(count).ok()?;
        Some(Self::U64(wide))
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

impl KeyReader<'_> {
    fn refill(&mut self) -> Result<(), FileError> {
        let most = self.left.min(CHUNK as u64) as usize;
        self.chunk = match &mut self.next {
            Chunks::Flat { inputs, extents, width, row } => {
                let mut bytes = vec![0; most * width.size() as usize];
                read_extents(inputs, extents, *row, width.size() as usize, &mut bytes)?;
                *row += most as u64;
                numbers(&bytes, *width)
            }
            Chunks::Stream(stream) => stream.next(most)?,
        };
        self.at = 0;
        Ok(())
    }
}

/// Keys that are compressed.
struct Unpacked {
    rows: Box<dyn RowStream>,
    width: KeyType,
}

impl KeyStream for Unpacked {
    fn next(&mut self, most: usize) -> Result<Vec<u64>, FileError> {
        let mut bytes = vec![0; most * self.width.size() as usize];
        self.rows.next(&mut bytes)?;
        Ok(numbers(&bytes, self.width))
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

impl Iterator for KeyReader<'_> {
    type Item = Result<u64, FileError>;

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
