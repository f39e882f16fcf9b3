//! What verification found.

use serde::{Deserialize, Serialize};

use crate::table_version::TableVersion;

/// Bad units that are listed of one table, at most; more are counted.
pub(crate) const LISTED: usize = 1000;

/// What a bad unit is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DamageKind {
    /// A superblock, of which another copy is whole.
    Superblock,
    /// A copy of the catalogue.
    Catalogue,
    /// The log of updated rows.
    Log,
    /// The id → rank permutation of a table.
    Ranks,
    /// The index of a table's keys, or the keys.
    Keys,
    /// The checksums of rows, which the drive could not read.
    Checksums,
    /// Rows.
    Rows,
    /// The list of rows in DRAM of a table.
    DramList,
    /// The file of an attached table's list of rows in DRAM, which could not be read: nothing says that it is damaged.
    DramListFile,
}

/// A part of a drive that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DamagedUnit {
    /// What it is part of.
    pub what: DamageKind,
    /// The drive; `None`: one checksum covers a whole array, which lies on several.
    pub drive: Option<String>,
    /// First LBA there.
    pub lba: Option<u64>,
    /// How many.
    pub lbas: u64,
    /// The generation.
    pub generation: Option<u64>,
    /// The table.
    pub table: Option<String>,
    /// The ranks of the rows in it that are bad.
    pub ranks: Vec<u64>,
    /// Whether the drive could not read it; else it did, and the content is another.
    pub unreadable: bool,
    /// What is wrong.
    pub detail: String,
}

impl DamagedUnit {
    pub(crate) fn new(what: DamageKind, detail: impl Into<String>) -> Self {
        let drive = None;
        let lba = None;
        let lbas = 0;
        let generation = None;
        let table = None;
        let ranks = Vec::new();
        let unreadable = false;
        let detail = detail.into();
        Self { what, drive, lba, lbas, generation, table, ranks, unreadable, detail }
    }

    pub(crate) fn of(self, located: &TableVersion) -> Self {
        let generation = Some(located.generation.id);
        let table = Some(located.table().name.clone());
        Self { generation, table, ..self }
    }
}

/// The result of [`Store::verify`](crate::Store::verify).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Rows read.
    pub rows: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether their content could be checked: the table was loaded with row checksums.
    pub checked: bool,
    /// Rows that the drives could not read, or whose checksum does not match.
    pub damaged: u64,
    /// The ranks of the first of them, at most 100.
    pub first_damaged: Vec<u64>,
    /// Why the id → rank permutation cannot be believed, if so. Which row is whose is lost then; ranks have theirs.
    pub damaged_ranks: Option<String>,
    /// Why the index of keys, or the keys, cannot be believed, if so. Which row is whose may be lost then.
    pub damaged_keys: Option<String>,
    /// Keys that were compared with the row that they lead to: all, where keys are stored.
    pub checked_keys: u64,
    /// The units that are damaged: at most 1000, in the order of drives and LBAs.
    pub bad: Vec<DamagedUnit>,
    /// Rows that were read wrong once, and right when they were read again.
    pub transient: u64,
}

impl VerifyReport {
    /// Whether nothing that could be checked is damaged.
    pub fn is_sound(&self) -> bool {
        self.damaged == 0 && self.damaged_ranks.is_none() && self.damaged_keys.is_none() && self.bad.is_empty()
    }
}

/// The result of [`Store::verify_metadata`](crate::Store::verify_metadata).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetadataReport {
    /// What is damaged.
    pub bad: Vec<DamagedUnit>,
    /// Copies that a commit which was cut off left as they were, or torn. The store is whole: opening it for writing, or the next commit,
    /// writes them.
    pub unfinished: Vec<DamagedUnit>,
}
