//! I/O queue pairs: those that a host thread drives, and those whose rings somebody else drives.

mod anomaly;
mod commands;
mod completion;
mod device;
mod external;
mod memory;
mod pair;
mod registry;
pub mod ring;
#[cfg(test)]
mod ring_tests;

pub use anomaly::{Anomalies, Anomaly};
pub use commands::PushError;
pub use completion::{CommandName, Completion, Ended, Issued};
pub use device::RingSizes;
pub use external::ExternalQueue;
pub(crate) use memory::Places;
pub use memory::RingMemory;
pub use pair::{QueueOptions, QueuePair};
pub use registry::Submitter;
pub(crate) use registry::{Link, Queues};
pub use ring::{NEVER, Ring};
