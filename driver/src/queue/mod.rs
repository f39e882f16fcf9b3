//! I/O queue pairs that a host thread drives.

mod anomaly;
mod commands;
mod completion;
mod memory;
mod pair;
mod registry;
pub mod ring;
#[cfg(test)]
mod ring_tests;

pub use anomaly::{Anomalies, Anomaly};
pub use commands::PushError;
pub use completion::{CommandName, Completion, Ended, Issued};
pub(crate) use memory::Places;
pub use memory::RingMemory;
pub use pair::{QueueOptions, QueuePair};
pub(crate) use registry::Queues;
pub use ring::{NEVER, Ring};
