//! How the keys of a table differ from those that its index has.

use std::collections::HashMap;

use warprow_layout::Generation;

use crate::overlay::{CREATED, OverlaySnapshot};

/// Keys that a compaction brings into a table and takes out of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeyChanges {
    /// Keys with rows that the table's index does not have.
    pub created: u64,
    /// Keys of the table's index that were removed.
    pub removed: u64,
}

impl KeyChanges {
    /// The changes of table number `table`.
    pub(crate) fn of(snapshot: &OverlaySnapshot, table: u32) -> Self {
        let created = if snapshot.creates() { snapshot.rows(table | CREATED).count() as u64 } else { 0 };
        Self { created, removed: snapshot.removed(table).count() as u64 }
    }

    /// The changes of all tables of a generation whose keys differ, by the tables' numbers.
    pub(crate) fn of_all(snapshot: Option<&OverlaySnapshot>, generation: &Generation) -> HashMap<u32, Self> {
        let Some(snapshot) = snapshot.filter(|snapshot| snapshot.creates() || snapshot.removes()) else {
            return HashMap::new();
        };
        let all = (0u32..).take(generation.tables.len()).map(|table| (table, Self::of(snapshot, table)));
        all.filter(|(_, changes)| changes.any()).collect()
    }

    /// Whether there are any: then a compaction writes the generation anew.
    pub(crate) fn any(self) -> bool {
        self.created > 0 || self.removed > 0
    }

    /// Rows of a table that has `rows` now.
    pub(crate) fn applied_to(self, rows: u64) -> u64 {
        rows.saturating_add(self.created).saturating_sub(self.removed)
    }
}
