//! A table as one generation has it.

use std::sync::Arc;

use warprow_layout::{Generation, Table};

/// A table as it is in a generation, which it pins.
#[derive(Debug, Clone)]
pub struct TableVersion {
    /// The generation.
    pub generation: Arc<Generation>,
    /// The index of the table among those of the generation.
    pub index: usize,
}

impl TableVersion {
    /// The table.
    #[inline]
    pub fn table(&self) -> &Table {
        &self.generation.tables[self.index]
    }
}

/// Every table that counts: of each name the one of the generation shown last, in the order of generations.
pub(crate) fn latest_tables(generations: Vec<Arc<Generation>>) -> Vec<TableVersion> {
    latest_tables_by(generations, |generation| generation.shown)
}

/// Every table that would count if `shown` said when each generation was shown: of each name the one of the generation shown
/// last, in the order of generations.
pub(crate) fn latest_tables_by(
    generations: Vec<Arc<Generation>>,
    shown: impl Fn(&Generation) -> u64,
) -> Vec<TableVersion> {
    let mut seen = std::collections::HashSet::new();
    let mut tables = Vec::new();
    let mut generations: Vec<_> =
        generations.into_iter().map(|generation| (shown(&generation), generation.id, generation)).collect();
    generations.retain(|(shown, ..)| *shown != 0);
    generations.sort_by_key(|&(shown, id, _)| (shown, id));
    for (_, _, generation) in generations.into_iter().rev() {
        for (index, table) in generation.tables.iter().enumerate() {
            if seen.insert(table.name.clone()) {
                tables.push(TableVersion { generation: generation.clone(), index });
            }
        }
    }
    tables.sort_by_key(|located| (located.generation.id, located.index));
    tables
}
