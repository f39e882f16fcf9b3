//! A complete NVMe controller model: registers, admin and NVM command sets, several namespaces, faults and power cuts.
//!
//! [`SoftController`] implements [`warprow_dma::Function`], so a driver cannot tell it from a drive. It is a state
//! machine that is stepped: by worker threads that sleep when nothing happens, or by whoever calls
//! [`SoftController::step`] with a time of its own, for simulations that a seed repeats.
//!
//! ```
//! use warprow_dma::Function;
//! use warprow_soft_controller::{Namespace, RamBacking, SoftController};
//!
//! let drive = SoftController::builder().namespace(Namespace::new(RamBacking::new(64 << 20)?).lba(4096)).build()?;
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
mod interrupt;
mod iommu;
mod namespace;
mod nvm;
mod offload;
mod offload_maker;
mod parker;
mod plan;
mod progress;
mod prp;
mod queue;
mod registers;
mod regular;
mod shard;
mod smart_history;
mod timing;
mod turn;
mod turn_gate;
mod uri;
mod waiting;
mod watch;
mod workers;
mod write_cache;

pub use backing::{
    Backing, BackingEngine, BackingOperation, ContentBlock, DirectBacking, FileBacking, MediaError, NullBacking, Piece,
    ProceduralBacking, RamBacking, will_need,
};
pub use builder::{ControllerBuildError, ControllerBuilder};
pub use controller::SoftController;
pub use fault::{Fault, FaultRules, QueueMatch, Rule, RuleId, StopSwitch};
pub use interrupt::InterruptSink;
pub use iommu::RemoteMemory;
pub use namespace::{FormatHook, FormatStep, Namespace};
pub use offload::{
    Leave, MOST_BYTES as MOST_OFFLOADED_BYTES, MappedPlace, Mapping, Offload, OffloadFailure, OffloadQueue,
    SeenDoorbell, Turn,
};
pub use offload_maker::{
    OffloadLack, OffloadLackKind, OffloadMaker, OffloadRate, OffloadRequest, Offloaded, register_offloads,
};
pub use progress::StepProgress;
pub use regular::open_regular;
pub use timing::{DiePlacement, Timing, TimingModel, TimingProfile};
pub use turn_gate::OffloadCounts;
pub use uri::{
    BackingKind, DriveInUse, DriveUri, FileLock, LockHolder, NewDrive, ReadRate, SizeError, UriError, in_use,
    lock_file, parse_size,
};
pub use watch::CommandTimes;
pub use write_cache::PowerCut;
// What rules and faults speak of.
pub use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};
