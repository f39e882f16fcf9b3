//! What of each table goes to GPU memory, DRAM and drives, and what look-ups then cost: proposed by a trace, and tested on the
//! part of it that nothing was learnt from. `docs/plan.md` has the model.
//!
//! ```
//! use std::ops::ControlFlow;
//! use warprow_plan::trace::{Bags, Recorded, Trace};
//! use warprow_plan::{Budgets, Options, TableShape, propose};
//! use warprow_store::DType;
//!
//! // 2,000 queries of two ids each: one of the ten hottest rows, and one of all.
//! let mut bags = Bags::default();
//! for query in 0..2000 {
//!     bags.ids.extend([query % 10, query * 7919 % 5000]);
//!     bags.end_query();
//! }
//! let source = Box::new(Recorded::new(&bags, 0..2000));
//! let mut trace = Trace::new(vec![(vec!["user".to_owned()], source)])?;
//! let tables = [TableShape { name: "user".to_owned(), rows: 5000, dim: 16, dtype: DType::F32, index_bytes: None }];
//! // Memory for 100 rows of 64 bytes.
//! let options = Options { budgets: Budgets { hbm: 0, dram: 6400 }, batch: 64, ..Options::default() };
//! let proposal = propose(&tables, &mut trace, &options, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(proposal.tiers.tables[0].dram_rows, 100);
//! let in_memory = proposal.tiers.expected.dram;
//! assert!((0.5..0.6).contains(&in_memory), "half of the ids and a few more: {in_memory}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod backtest;
mod budget;
mod calibration;
mod costs;
mod drives;
mod error;
mod expect;
mod frequent;
mod group;
mod grouped;
mod learn;
mod lookup;
mod options;
mod order;
mod progress;
mod proposal_file;
mod propose;
mod replay;
mod svg;
mod tier_proposal;
pub mod trace;

pub use budget::{Allocation, Budgets, Heat, allocate};
pub use costs::{Asked, GpuCosts, HostCosts};
pub use drives::{ChunkMap, Drives, ReadAt};
pub use error::ProposalError;
pub use frequent::Frequent;
pub use group::Pairs;
pub use lookup::{Took, Work, look_up};
pub use options::{GroupRows, Options, TableShape};
pub use order::{Class, Counts, Order, ranks_of};
pub use progress::{Progress, Watch};
pub use proposal_file::ProposalFile;
pub use propose::propose;
pub use replay::{Kept, Placed, Replay, Sample};
pub use svg::curves;
pub use tier_proposal::{
    Bound, COVERAGE, Expected, Grouping, Interval, MEASURED, Point, Proposal, Rate, TableProposal, TierProposal,
    TraceSummary,
};
