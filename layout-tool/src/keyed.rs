//! Keys of tables in files that are not the numbers from 0 on: what an index is built of.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use warprow_formats::{FileError, FileTable, KeyOrder, KeyType, TableFile};
use warprow_keys::{FingerprintWidth, IndexBuildError, IndexOptions, KeyIndex, KeyKind, KeySource};
use warprow_layout::Ranks;

use crate::failure::{Class, Failure};

/// When keys get an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Index {
    /// When they are not the numbers from 0 to the rows less one.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: other keys are refused.
    Never,
}

/// Keys in a file, in the order of its rows.
pub struct FileKeys<'a> {
    file: &'a TableFile,
    table: &'a FileTable,
    width: KeyType,
    /// All of them, where they can only be read from the first to the last.
    held: Option<Vec<u64>>,
}

/// How the rows of a table in a file are found.
pub enum RowNames<'a> {
    /// By ids from 0 on: the order of its rows, if it is another.
    Ids(Option<Ranks>),
    /// By keys.
    Keys(FileKeys<'a>),
}

impl<'a> RowNames<'a> {
    /// How the rows of `table`, one of `file`'s, are found.
    pub fn of(file: &'a TableFile, table: &'a FileTable, index: Index) -> Result<Self, Failure> {
        let Some(width) = table.keys else {
            return match index {
                Index::Always => Err(Failure::input(&table.name, format!("{:?} has no keys", table.name))
                    .remedy("leave --key-index out, or name its keys with --keys")),
                _ => Ok(Self::Ids(None)),
            };
        };
        match index {
            Index::Never => return Ok(Self::Ids(file.order(table)?)),
            Index::Auto => match file.key_order(table)? {
                KeyOrder::InOrder => return Ok(Self::Ids(None)),
                KeyOrder::Dense(order) => return Ok(Self::Ids(Some(order))),
                KeyOrder::Sparse { .. } => {}
            },
            Index::Always => {}
        }
        FileKeys::new(file, table, width).map(Self::Keys)
    }
}

impl<'a> FileKeys<'a> {
    fn new(file: &'a TableFile, table: &'a FileTable, width: KeyType) -> Result<Self, Failure> {
        let mut keys = Self { file, table, width, held: None };
        if file.fill_keys(table, 0, &mut []).is_some() {
            return Ok(keys);
        }
        let mut held = Vec::new();
        let count = usize::try_from(table.rows).ok().filter(|&count| held.try_reserve_exact(count).is_ok());
        count.ok_or_else(|| {
            let what = format!("there is no memory for the {} keys of {:?}, 8 bytes each", table.rows, table.name);
            Failure::new(Class::Resources, &table.name, what).remedy("free some, or write them uncompressed")
        })?;
        for key in file.keys(table)?.into_iter().flatten() {
            held.push(key?);
        }
        keys.held = Some(held);
        Ok(keys)
    }

    /// The position of a key, which must fit the numbers that these are.
    pub fn position(&self, key: i128) -> Result<Option<u64>, FileError> {
        let bits = match self.kind() {
            KeyKind::I64 => i64::try_from(key).ok().map(|key| key as u64),
            _ => u64::try_from(key).ok(),
        };
        for (position, found) in (0..).zip(self.file.keys(self.table)?.into_iter().flatten()) {
            if Some(found?) == bits {
                return Ok(Some(position));
            }
        }
        Ok(None)
    }

    /// Builds their index. `told` hears how far it is, in thousandths, and may stop it.
    pub fn index(
        &self,
        fingerprint: FingerprintWidth,
        told: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<Arc<KeyIndex>, Failure> {
        let mut stopped = None;
        let built =
            KeyIndex::build(self, &IndexOptions::default().with_fingerprint(fingerprint), &mut |_| match told() {
                Ok(()) => ControlFlow::Continue(()),
                Err(failure) => {
                    stopped = Some(failure);
                    ControlFlow::Break(())
                }
            });
        let name = &self.table.name;
        match (built, stopped) {
            (_, Some(failure)) => Err(failure),
            (Ok(index), None) => Ok(Arc::new(index)),
            (Err(IndexBuildError::Duplicate { key, first, second, .. }), None) => {
                let key = self.width.show(key);
                let what = format!("table {name:?} has the key {key} twice, in rows {first} and {second}");
                Err(Failure::input(name, what).remedy("leave one of the two rows out"))
            }
            (Err(error), None) => Err(of_keys(name, &error)),
        }
    }
}

/// Keys that cannot be read, or of which no index can be built.
pub fn of_keys(table: &str, error: &IndexBuildError) -> Failure {
    let class = match error {
        IndexBuildError::Memory { .. } => Class::Resources,
        IndexBuildError::Unlucky { .. } => Class::Bug,
        _ => Class::Input,
    };
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::new(class, table, format!("the keys of table {table:?}: {error}{cause}"))
        .remedy("look at the file; nothing of it was loaded")
}

impl KeySource for FileKeys<'_> {
    fn len(&self) -> u64 {
        self.table.rows
    }

    fn kind(&self) -> KeyKind {
        if self.width.is_signed() { KeyKind::I64 } else { KeyKind::U64 }
    }

    fn read(&self, first: u64, keys: &mut [u64]) -> io::Result<()> {
        match &self.held {
            Some(held) => held.read(first, keys),
            None => Ok(self.file.fill_keys(self.table, first, keys).unwrap_or(Ok(()))?),
        }
    }
}

impl std::fmt::Debug for FileKeys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileKeys").field("table", &self.table.name).finish_non_exhaustive()
    }
}
