//! NVMe driver core: bring-up, admin commands, host-driven queue pairs, reset and recovery of one controller, over any
//! [`Function`](warprow_dma::Function).
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use warprow_driver::{BlockIo, Controller, DriverError, FormatRequest, Options, QueueOptions};
//! # fn example(function: Arc<dyn warprow_dma::Function>) -> Result<(), DriverError> {
//! let clock = Arc::new(warprow_dma::SystemClock::new());
//! let controller = Controller::open(function, clock, Options::default())?;
//! let namespace = controller.format(&FormatRequest::new(1, 512), |progress| eprintln!("{progress:?}"))?;
//! let mut io = BlockIo::new(&controller, namespace, &QueueOptions::default())?;
//! io.write(0, &[7; 4096])?;
//! io.flush()?;
//! # Ok(())
//! # }
//! ```

mod admin;
mod block_io;
mod controller;
mod enable;
mod error;
mod events;
mod features;
mod format;
mod host_memory;
mod identity;
mod late;
mod locking;
mod log;
mod namespace;
mod patience;
pub mod prp;
pub mod queue;
mod recovery;
mod registers;
mod reset;

pub use admin::Answer;
pub use block_io::BlockIo;
pub use controller::{Controller, Options};
pub use error::DriverError;
pub use events::{Details, Event, Polled};
pub use format::{FORMAT_TIMEOUT, FormatProgress, FormatRequest, Loss};
pub use host_memory::HostMemory;
pub use locking::Locking;
pub use namespace::{Namespace, NamespaceIds};
pub use queue::{Completion, Ended, ExternalQueue, Issued, PushError, QueueOptions, QueuePair, RingSizes, Submitter};
pub use recovery::{Blame, Failure, Rung, Step};
pub use reset::ResetKind;
