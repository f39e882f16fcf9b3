//! Look-ups of a store's rows. The crate says what a look-up is (features, batches, outputs, what becomes of ids that a
//! table does not have), and has the executor on the host, which keeps the hottest rows in DRAM and reads the others
//! from drives.
//!
//! ```
//! # use std::ops::ControlFlow;
//! # use warprow_lookup::*;
//! # use warprow_store::*;
//! # let address: DriveAddress = "emulated:example?backing=ram&size=64M".parse()?;
//! # let device = Device::open(&address, CreateDrive::IfMissing)?;
//! # let store = FormatProposal::new(&[device], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
//! # let rows: Vec<u8> = (0..1000 * 16).flat_map(|i| (i as f32).to_le_bytes()).collect();
//! # let (spec, source) = (TableSpec::new("user", 1000, 16, DType::F32), &rows[..]);
//! # let load = TableLoad::new(&spec, &source);
//! # store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! // `store` has a table "user" of 1,000 rows of 16 `f32`, whose elements count up from 0. 100 rows (of 64 bytes) are kept in memory.
//! let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(100 * 64))?;
//! let plan = host.plan(&[Feature::new("user", "user").pooling(Pooling::Sum)], PlanOptions::default())?;
//! let mut sums = vec![0.0; 2 * plan.width()];
//! // Two bags: ids 1 and 2; id 999.
//! let batch = Batch::new(&[1i64, 2, 999], 2).with_offsets(&[0i64, 2]);
//! let report = plan.slot()?.lookup(&batch, &mut Output::new(OutputRows::F32(&mut sums), plan.width()))?;
//! assert_eq!(sums[0], 16.0 + 32.0);
//! assert_eq!(sums[16], 999.0 * 16.0);
//! assert_eq!((report.rows_dram, report.rows_ssd, report.commands), (2, 1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/store.md` gives the exact meaning of a look-up. `warprow-gpu` looks the same features and batches up on a GPU.

mod batch;
mod chosen_rows;
mod dedupe;
mod error;
pub mod executors;
mod feature;
mod host;
mod merging;
mod output_buffer;
mod popularity;
mod prepare;
mod report;
mod resolve;
mod share;
pub mod stage;
#[cfg(test)]
mod test_table;
mod touches;

pub use batch::{Batch, Ids, Output, OutputRows};
pub use dedupe::DedupeMethod;
pub use error::{InvalidBatch, LookupError, RowError};
pub use feature::{BoundsCheck, FailedRows, Feature, MaskMeaning, MissingId, MissingPolicy, PlanOptions, Pooling};
pub use host::{
    CacheStatistics, HostExecutor, HostOptions, Plan, PreparedTables, RerankRound, Reranker, RerankerOptions, Slot,
};
pub use merging::ReadMerging;
pub use output_buffer::{OutputBuffer, OutputBufferError};
pub use popularity::{CounterOptions, PopularRow, RowCounters};
pub use prepare::PrepareOptions;
pub use report::{LookupMetrics, LookupReport, Stage};
