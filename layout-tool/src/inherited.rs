//! The order of rows that a new version of a table takes over from the one that look-ups find.

use warprow_keys::KeyKind;
use warprow_layout::Ranks;
use warprow_plan::ranks_of;
use warprow_store::{Store, StoreError, TableInfo};

use crate::failure::Failure;
use crate::hotness::Rows;

/// Rows in the order of an earlier version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Row of the new version → rank.
    pub ranks: Ranks,
    /// How many of the first ranks are worth keeping in memory.
    pub hot_rows: u64,
    /// The generation that had them so.
    pub generation: u64,
}

/// The table of that name, if a new version of it may take over the order of its rows: it has one, and its rows are found again, by ids
/// because there are as many, or by keys.
pub fn ordered(store: &Store, name: &str, rows: u64) -> Option<TableInfo> {
    store.table(name).filter(|old| match old.keys {
        Some(keys) => keys.stored,
        None => old.permuted && old.rows == rows,
    })
}

/// The order that `old` has its rows in, for the `rows` of a new version; `None`: they are not looked up alike, or none is the same.
/// `Err` if the order cannot be read.
pub fn order(store: &Store, old: &TableInfo, rows: Rows<'_>) -> Result<Option<Inherited>, Failure> {
    let inherited =
        |ranks: Ranks, count: u64| Inherited { ranks, hot_rows: old.hot_rows.min(count), generation: old.generation };
    let fails = |error: StoreError| Failure::from(error);
    match (rows, old.keys) {
        (Rows::Ids(count), None) if count == old.rows => {
            let ranks = store.ranks(&old.name).map_err(fails)?;
            Ok(ranks.map(|ranks| inherited(ranks, count)))
        }
        (Rows::Keys(index, keys), Some(spec)) if is_signed(index.kind()) == is_signed(spec.kind) => {
            let Some(by_rank) = store.keys(&old.name).map_err(fails)? else { return Ok(None) };
            let first = Rows::Keys(index, keys).rows_of(&old.name, &by_rank)?;
            if first.is_empty() {
                return Ok(None);
            }
            let ranks = ranks_of(index.len(), first.into_iter()).ok();
            Ok(ranks.map(|ranks| inherited(ranks, index.len())))
        }
        _ => Ok(None),
    }
}

fn is_signed(kind: KeyKind) -> bool {
    kind == KeyKind::I64
}
