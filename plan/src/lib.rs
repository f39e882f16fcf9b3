//! Which rows of each table go to GPU memory, DRAM and drives, and what look-ups then cost: proposed by a trace, and tested on the
//! part of it that nothing was learnt from. `docs/plan.md` has the model.
//!
//! ```
//! use std::ops::ControlFlow;
//! use warprow_plan::trace::{Bags, RecordedQueries, QueryTrace};
//! use warprow_plan::{MemoryBudgets, ProposalOptions, TableShape, propose};
//! use warprow_store::DType;
//!
//! // 2,000 queries of two ids each: one of the ten hottest rows, and one of all.
//! let mut bags = Bags::default();
//! for query in 0..2000 {
//!     bags.ids.extend([query % 10, query * 7919 % 5000]);
//!     bags.end_query();
//! }
//! let source = Box::new(RecordedQueries::new(&bags, 0..2000));
//! let mut trace = QueryTrace::new(vec![(vec!["user".to_owned()], source)])?;
//! let tables = [TableShape { name: "user".to_owned(), rows: 5000, dim: 16, dtype: DType::F32, index_bytes: None }];
//! // Memory for 100 rows of 64 bytes.
//! let options = ProposalOptions { budgets: MemoryBudgets { hbm: 0, dram: 6400 }, batch: 64, ..ProposalOptions::default() };
//! let proposal = propose(&tables, &mut trace, &options, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(proposal.tiers.tables[0].dram_rows, 100);
//! let in_memory = proposal.tiers.expected.dram;
//! assert!((0.5..0.6).contains(&in_memory), "half of the ids and a few more: {in_memory}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod backtest;
mod budget;
mod cache_comparison;
mod calibration;
mod costs;
mod drives;
mod error;
mod expect;
mod gpu_cache;
mod group;
mod grouped;
mod learn;
mod lookup;
mod memory_rates;
mod options;
mod order;
mod picture;
mod progress;
mod proposal_file;
mod propose;
mod replay;
mod tier_proposal;
pub mod trace;

pub use budget::{MemoryBudgets, TableHotness, TierAllocation, allocate};
pub use cache_comparison::{Ahead, CacheComparison, compare_cache};
pub use costs::{GpuCosts, HostCosts, LookupDemand};
pub use drives::{AlikeDrives, ChunkMap, DriveRead};
pub use error::ProposalError;
pub use gpu_cache::{GpuCacheComparison, compare_gpu_cache};
pub use group::RowPairs;
pub use lookup::{LookupTime, LookupWork, simulate_lookup};
pub use memory_rates::{MemoryRate, MemoryRates, memory_rates};
pub use options::{GroupRows, ProposalOptions, TableShape};
pub use order::{CountClass, HotnessOrder, RowCounts, ranks_of};
pub use picture::curves;
pub use progress::{ProposalProgress, ProposalWatch};
pub use proposal_file::ProposalFile;
pub use propose::propose;
pub use replay::{BatchCounts, KeptBatch, PlacedTable, TraceReplay};
pub use tier_proposal::{
    Bottleneck, BudgetPoint, DriveRate, ExpectedLookups, HitInterval, INTERVAL_COVERAGE, MEASURED_COVERAGE,
    OrderedProposal, RowGrouping, TableProposal, TierProposal, TraceSummary,
};
