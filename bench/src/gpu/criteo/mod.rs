//! Look-ups shaped like those of the Criteo 1 TB click logs: 26 tables from 3 to 40 million rows, power-law ids, some rows in GPU
//! memory, some in DRAM, the others on drives; and like those that peers publish.

mod call;
mod features;
mod ids;
mod latency;
mod percentiles;
pub mod report;
mod rivals;
mod shapes;
mod split;
mod tables;

pub use call::{CallResult, calls};
pub(super) use ids::different;
pub use latency::{LatencyResult, LatencySetup, Tier, latencies};
pub use percentiles::Percentiles;
pub use shapes::{Defaults, Shape};
pub use split::{SplitResult, Spread, split};
pub use tables::{CriteoResult, CriteoSetup, HostTimes, run};
