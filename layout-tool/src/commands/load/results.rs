//! Everything that a load, or a dry run, has to say in the end.

use warprow_store::TableInfo;

use super::prepare::Prepared;
use super::work::Ended;
use crate::columns::LookupTrace;
use crate::hotness::Hot;
use crate::lba::Choice;

/// Everything that a load, or a dry run, has to say in the end.
pub(super) struct Results<'a> {
    pub(super) prepared: &'a [Prepared<'a>],
    /// What told which rows are hot.
    pub(super) hotness: &'a [Hot],
    /// Why tables are not in the order of the version before.
    pub(super) notes: Vec<String>,
    /// Arrays of the files that are no tables, with the reasons.
    pub(super) skipped: Vec<&'a (String, String)>,
    /// Tables of these names that were there before.
    pub(super) replaced: Vec<TableInfo>,
    /// With `--lba auto`: the size that suits the tables.
    pub(super) lba: Option<Choice>,
    /// Bytes of an LBA of the store.
    pub(super) lba_bytes: u32,
    pub(super) ended: Ended,
}

impl Results<'_> {
    pub(super) fn logs(&self) -> impl Iterator<Item = &LookupTrace> {
        self.hotness.iter().filter_map(|hot| hot.log.as_ref())
    }

    /// Rows of all tables, and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        self.prepared.iter().fold((0, 0), |(rows, bytes), it| {
            let row_bytes: u64 = it.spec.dtype.row_bytes(it.spec.dim).unwrap_or(0).into();
            (rows.saturating_add(it.spec.rows), bytes.saturating_add(it.spec.rows.saturating_mul(row_bytes)))
        })
    }
}
