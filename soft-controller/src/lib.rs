//! A complete NVMe controller model: registers, admin and NVM command sets, several namespaces, faults and power cuts.
//!
//! [`SoftController`] implements [`warprow_dma::Function`], so a driver cannot tell it from a drive. It is a state
//! machine that is stepped: by worker threads that sleep when nothing happens, or by whoever calls
//! [`SoftController::step`] with a time of its own, for simulations that a seed repeats.
//!
//! ```
//! use warprow_dma::Function;
//! use warprow_soft_controller::{Namespace, Ram, SoftController};
//!
//! let drive = SoftController::builder().namespace(Namespace::new(Ram::new(64 << 20)?).lba(4096)).build()?;
//! assert_eq!(drive.read_u32(0x08)?, 0x0002_0000, "VS: NVM Express 2.0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod admin;
mod announce;
mod backing;
mod builder;
mod cold;
mod config;
mod control;
mod controller;
mod core;
mod error_log;
mod events;
mod failure;
mod fault;
mod features;
mod format_job;
mod held;
mod interrupt;
mod iommu;
mod namespace;
mod nvm;
mod parker;
mod progress;
mod prp;
mod queue;
mod registers;
mod regular;
mod shard;
mod smart_history;
mod timing;
mod uri;
mod watch;
mod workers;
mod write_cache;

pub use backing::{
    Backing, Block, Direct, Engine, File, MediaError, Null, Operation, Piece, Procedural, Ram, will_need,
};
pub use builder::{BuildError, Builder};
pub use controller::SoftController;
pub use fault::{Fault, FaultPlan, Queues, Rule, RuleId, Switch};
pub use interrupt::InterruptSink;
pub use iommu::RemoteMemory;
pub use namespace::{FormatStep, Namespace, OnFormat};
pub use progress::Progress;
pub use regular::open_regular;
pub use timing::{Placement, Profile, Rehearsal, Timing};
pub use uri::{DriveUri, Held, Holder, InUse, Store, UriError, hold, in_use};
pub use watch::Watched;
pub use write_cache::Cut;
