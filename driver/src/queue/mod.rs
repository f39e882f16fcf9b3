//! I/O queue pairs: those that a host thread drives ([`QueuePair`]), and those whose rings another party drives, such
//! as a kernel on a GPU ([`ExternalQueue`]).

mod anomaly;
mod commands;
mod completion;
mod device;
mod external;
mod external_memory;
mod memory;
mod pair;
mod push_error;
mod registry;
pub mod ring;
mod ring_sizes;
#[cfg(test)]
mod ring_tests;

pub use anomaly::{Anomalies, Anomaly};
pub use completion::{CommandEnd, CommandName, Completion, IssuedCommand};
pub use external::ExternalQueue;
pub use external_memory::{ExternalMemory, QueuePairMemory, RingPlace};
pub use memory::RingMemory;
pub use pair::{QueueOptions, QueuePair};
pub use push_error::PushError;
pub use registry::Submitter;
pub(crate) use registry::{Link, Queues};
pub use ring::{NEVER, Ring};
pub use ring_sizes::RingSizes;
