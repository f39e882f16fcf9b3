//! The host executor: hot rows in DRAM, the others read from drives by the CPU.
//!
//! `attached.rs` has tables with their tiers, which a host reads; `current.rs` the tables that it reads at present;
//! `prepared.rs` a plan's features resolved against these; `planned.rs` a plan with its slots; `state.rs` what a slot
//! owns, and the order of a look-up's stages; `read.rs` and `expand.rs` the two stages that run side by side;
//! `row_cache.rs` rows from drives that are kept for later look-ups; `reranker.rs` a DRAM tier that follows what is looked up;
//! `last_touches.rs` when keys were last touched (`../touches.rs`).

mod adopt;
mod attached;
mod check;
mod counted;
mod current;
mod ending;
mod executor;
mod expand;
mod kept;
mod last_touches;
mod memory;
mod options;
mod plan;
mod planned;
mod prefetch;
mod prepared;
mod read;
mod reranker;
mod row_cache;
mod rows_out;
mod slot;
mod state;

pub use adopt::PreparedTables;
pub use executor::HostExecutor;
pub use options::HostOptions;
pub use plan::Plan;
pub use reranker::{RerankRound, Reranker, RerankerOptions};
pub use row_cache::CacheStatistics;
pub use slot::Slot;
