//! NVMe driver core: bring-up, admin commands, host-driven queue pairs, reset and recovery of one controller, over any
//! [`Function`](warprow_dma::Function).
//!
//! ```
//! use std::sync::Arc;
//! use warprow_driver::{BlockIo, Controller, FormatRequest, ControllerOptions, QueueOptions};
//! # use warprow_soft_controller::{Namespace, RamBacking, SoftController};
//! # let function = SoftController::builder().namespace(Namespace::new(RamBacking::new(16 << 20)?)).build()?;
//!
//! // `function` is any: of VFIO, of a vfio-user socket, or, as here, of a controller in this process.
//! let clock = Arc::new(warprow_dma::SystemClock::new());
//! let controller = Controller::open(function, clock, ControllerOptions::default())?;
//! let namespace = controller.format(&FormatRequest::new(1, 512), |progress| eprintln!("{progress:?}"))?;
//! let mut io = BlockIo::new(&controller, namespace, &QueueOptions::default())?;
//! io.write(8, &[7; 4096])?;
//! io.flush()?;
//! let mut found = [0; 4096];
//! io.read(8, &mut found)?;
//! assert_eq!(found, [7; 4096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admin;
mod admin_queue;
mod block_io;
mod controller;
mod enable;
mod error;
mod events;
mod failure;
mod features;
mod format;
mod host_memory;
mod identity;
mod late;
mod locking;
mod log;
mod loss;
mod namespace;
mod patience;
pub mod prp;
pub mod queue;
mod recovery;
mod registers;
mod reset;
mod reset_kind;

pub use admin::AdminAnswer;
pub use block_io::BlockIo;
pub use controller::{Controller, ControllerOptions};
pub use error::DriverError;
pub use events::{ControllerEvent, EventDetails, EventPoll};
pub use failure::{Blame, FailedStep, RecoveryFailure, RecoveryStep};
pub use format::{FORMAT_TIMEOUT, FormatProgress, FormatRequest};
pub use host_memory::HostMemory;
pub use locking::Locking;
pub use loss::FormatLoss;
pub use namespace::{Namespace, NamespaceIds};
pub use queue::{
    CommandEnd, Completion, ExternalMemory, ExternalQueue, IssuedCommand, PushError, QueueOptions, QueuePair,
    QueuePairMemory, RingPlace, RingSizes, Submitter,
};
pub use reset_kind::ResetKind;
