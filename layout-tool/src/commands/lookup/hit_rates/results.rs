//! What the look-ups of a trace come to.

use warprow_lookup::{CacheStatistics, LookupReport};
use warprow_plan::ProposalFile;
use warprow_store::TableInfo;

use crate::columns::LookupTrace;
use crate::tally;

/// A table, and what its look-ups come to.
pub(super) struct Asked {
    pub(super) info: TableInfo,
    /// The columns that look it up, by name.
    pub(super) columns: Vec<String>,
    /// By their numbers in the trace.
    pub(super) slots: Vec<usize>,
    /// Rows of it in DRAM.
    pub(super) hot_rows: u64,
    pub(super) report: LookupReport,
}

/// What is said in the end.
pub(super) struct Results<'a> {
    pub(super) asked: Vec<Asked>,
    /// Tables that no column looks up.
    pub(super) left: Vec<&'a str>,
    pub(super) logs: &'a [LookupTrace],
    /// Bytes of DRAM for rows.
    pub(super) dram: u64,
    pub(super) queries: u64,
    pub(super) proposal: Option<ProposalFile>,
    /// What the cache of rows from drives did, if there was one.
    pub(super) cache: Option<CacheStatistics>,
}

impl Results<'_> {
    /// The counts of all tables together.
    pub(super) fn total(&self) -> LookupReport {
        let mut total = LookupReport::default();
        self.asked.iter().for_each(|asked| tally::add(&mut total, &asked.report));
        total
    }

    /// The share of ids that the tier proposal expects from memory, and the error of that.
    pub(super) fn planned(&self) -> Option<(f64, f64)> {
        let expected = &self.proposal.as_ref()?.tiers.expected;
        Some((expected.hbm + expected.dram, expected.error))
    }
}
