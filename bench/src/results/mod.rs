//! What the benchmarks print with `--json`, and what `bench-report` reads: one type of both.
//!
//! Each program fills the struct in the file of its name. A [`Record`] is that struct with what all results have in common: the
//! schema's number, the benchmark's name, by which it is read back, and the machine.

mod dedupe;
mod dram;
mod elements;
mod hbm;
mod load;
mod lookup;
mod lookup_gpu;
mod passes;
mod plan;
mod record;
mod ring;
mod ssd;
mod switch;

pub use dedupe::Dedupes;
pub use dram::DramLookups;
pub use elements::ElementsAndChecksums;
pub use hbm::HbmLookups;
pub use load::{LoadedTable, Loads, VerifyRates};
pub use lookup::{
    AheadCalls, AheadSteps, CallPercentiles, CurvePoint, HostCacheLine, HostCacheShares, HostLookups, LandingRates,
    LandingTeam, LandingTeams, MergingWay, MergingWays, Race, RerankWindows, RivalResult,
};
pub use lookup_gpu::GpuLookups;
pub use passes::TrainingPasses;
pub use plan::{PlanCase, PlanRates, PlanSpeed};
pub use record::{BenchmarkResult, Record, machine_of};
pub use ring::{DriveRing, GpuRing, HostRing, ResidentRing, Submitter};
pub use ssd::SsdLookups;
pub use switch::{SwitchTimes, Switches};
