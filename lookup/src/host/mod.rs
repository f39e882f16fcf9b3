//! The host executor: hot rows in DRAM, the others read from drives by the CPU.

mod adopt;
mod attached;
mod check;
mod current;
mod executor;
mod expand;
mod kept;
mod memory;
mod options;
mod plan;
mod planned;
mod prefetch;
mod prepared;
mod read;
mod rows_out;
mod slot;
mod state;

pub use adopt::Upcoming;
pub use executor::Host;
pub use options::HostOptions;
pub use plan::Plan;
pub use slot::Slot;
