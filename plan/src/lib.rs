//! What of each table goes to GPU memory, DRAM and drives, and what look-ups then cost: planned by a trace, and tested on the
//! part of it that nothing was learnt from. `docs/plan.md` has the model.
#![forbid(unsafe_code)]

mod budget;
mod costs;
mod drives;
mod error;
mod file;
mod frequent;
mod group;
mod order;
mod planner;
mod replay;
mod svg;
pub mod trace;

pub use budget::{Allocation, Budgets, allocate};
pub use costs::HostCosts;
pub use drives::{ChunkMap, Drives, ReadAt};
pub use error::PlanError;
pub use file::PlanFile;
pub use frequent::Frequent;
pub use group::Pairs;
pub use order::{Class, Counts, Order, ranks_of};
pub use planner::{
    Bound, Expected, GroupRows, Grouping, Options, Plan, Planned, Point, Progress, Rate, TablePlan, TableShape,
    TraceSummary, Watch, plan,
};
pub use replay::{Kept, Placed, Replay, Sample};
pub use svg::curves;
