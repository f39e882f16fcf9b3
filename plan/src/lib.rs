//! What of each table goes to GPU memory, DRAM and drives, and what look-ups then cost: planned by a trace, and tested on the
//! part of it that nothing was learnt from. `docs/plan.md` has the model.
#![forbid(unsafe_code)]

mod backtest;
mod bed;
mod budget;
mod costs;
mod drives;
mod error;
mod expect;
mod file;
mod frequent;
mod group;
mod grouped;
mod learn;
mod lookup;
mod options;
mod order;
mod plan;
mod planner;
mod progress;
mod replay;
mod svg;
pub mod trace;

pub use budget::{Allocation, Budgets, Heat, allocate};
pub use costs::{Asked, GpuCosts, HostCosts};
pub use drives::{ChunkMap, Drives, ReadAt};
pub use error::PlanError;
pub use file::PlanFile;
pub use frequent::Frequent;
pub use group::Pairs;
pub use lookup::{Took, Work, look_up};
pub use options::{GroupRows, Options, TableShape};
pub use order::{Class, Counts, Order, ranks_of};
pub use plan::{Bound, Expected, Grouping, Plan, Planned, Point, Rate, TablePlan, TraceSummary};
pub use planner::plan;
pub use progress::{Progress, Watch};
pub use replay::{Kept, Placed, Replay, Sample};
pub use svg::curves;
