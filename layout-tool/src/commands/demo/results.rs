//! Everything that the demo measures.

use std::time::Duration;

use warprow_lookup::LookupReport;
use warprow_store::LoadReport;

use super::cold::Cold;
use super::replay::Outcome;
use super::rivals::Rival;

/// Everything that was measured.
pub(crate) struct Results {
    pub ours: Outcome,
    pub total: LookupReport,
    pub load: LoadReport,
    pub dram_rows: u64,
    pub rivals: Vec<(Rival, Result<Outcome, String>)>,
    /// The cold race, or why there was none; `None`: without rivals.
    pub cold: Option<Result<Cold, String>>,
    /// Commands that were made to go wrong, if that was asked for.
    pub injected: Option<u64>,
    pub elapsed: Duration,
}
