//! What was found out about a table.

use warprow_store::{DamagedUnit, StoreError, TableInfo};

use crate::commands::Context;
use crate::failure::Failure;

/// What was found out about a table.
pub(super) struct Finding {
    pub(super) table: TableInfo,
    /// Against what the rows were compared; `None`: nothing.
    pub(super) against: Option<String>,
    pub(super) against_file: bool,
    /// Stored keys that lead to their rows.
    pub(super) keys: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) differing: u64,
    /// The first ranks, or ids, that differ.
    pub(super) first: Vec<u64>,
    /// What is wrong with the table, other than rows that differ.
    pub(super) damage: Option<Failure>,
    /// The units that are damaged.
    pub(super) bad: Vec<DamagedUnit>,
    /// Whether it stands by.
    pub(super) standby: bool,
}

impl Finding {
    /// The finding of a table of which nothing was read yet.
    pub(super) fn new(table: TableInfo) -> Self {
        Self {
            table,
            against: None,
            against_file: false,
            keys: 0,
            rows: 0,
            bytes: 0,
            differing: 0,
            first: Vec::new(),
            damage: None,
            bad: Vec::new(),
            standby: false,
        }
    }

    /// The finding of a table that could not be checked to the end.
    pub(super) fn failed(table: TableInfo, failure: Failure) -> Self {
        Self { damage: Some(failure), ..Self::new(table) }
    }

    /// What `first` are.
    pub(super) fn kind(&self) -> &'static str {
        if self.against_file && self.table.keys.is_none() { "ids" } else { "ranks" }
    }
}

/// A failure to read a table; one that the user asked for is not the store's.
pub(super) fn interrupted(error: StoreError, context: &Context) -> Failure {
    match error {
        StoreError::Interrupted => context.interrupt.failure(),
        error => error.into(),
    }
}
