//! What users call: a store on one or several drives, tables in it, and look-ups.
//!
//! ```
//! # use std::ops::ControlFlow;
//! # use warprow_store::*;
//! let address: DriveAddress = "emulated:example?backing=ram&size=64M".parse()?;
//! let device = Device::open(&address, Create::IfMissing)?;
//! let store = FormatPlan::new(&[device], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
//!
//! let rows: Vec<u8> = (0..1000 * 16).flat_map(|i| (i as f32).to_le_bytes()).collect();
//! let (spec, source) = (TableSpec::new("user", 1000, 16, DType::F32), &rows[..]);
//! let load = TableLoad::new(&spec, &source);
//! store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//!
//! let host = store.attach_host(HostOptions::default().with_dram_bytes(100 * 64))?;
//! let plan = host.plan(&[Feature::new("user", "user").pooling(Pooling::Sum)], PlanOptions::default())?;
//! let mut sums = vec![0.0; 2 * plan.width()];
//! let batch = Batch::new(&[1i64, 2, 999], 2).with_offsets(&[0i64, 2]);
//! let report = plan.slot()?.lookup(&batch, &mut Output::new(Rows::F32(&mut sums), plan.width()))?;
//! assert_eq!(sums[0], 16.0 + 32.0);
//! assert_eq!(sums[16], 999.0 * 16.0);
//! assert_eq!((report.rows_dram, report.rows_ssd, report.commands), (2, 1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/store.md` gives the exact meaning of a look-up.

// Denied by the workspace; `gpu/launch.rs` and the signatures of `GpuSlot::lookup` and what takes addresses as it does are the exceptions.

mod attach;
mod attached_file;
mod batch;
mod bulk;
mod check;
mod checking;
mod curve;
mod drive;
mod driven;
mod error;
mod events;
mod expand;
mod feature;
mod format;
mod generations;
mod gpu;
mod host;
mod hosting;
mod load;
mod measure;
mod member;
mod membership;
mod memory;
mod merging;
mod output_buffer;
mod overlay;
mod plan;
mod prefetch;
mod property;
mod read;
mod report;
mod rows_out;
mod scrub;
mod slot;
pub mod stage;
mod store;
mod sweep;
mod update;
mod verify;

pub use attach::{AttachOptions, AttachedTable};
pub use attached_file::{AttachError, AttachedFile, SkippedTensor};
pub use batch::{Batch, Ids, Output, Rows};
pub use curve::{CurveError, ReadCurve};
pub use drive::{Create, DriveAddress};
pub use error::{InvalidBatch, LookupError, RowError, StoreError};
pub use events::{DriveEvents, NamespaceChanged};
pub use feature::{Bounds, Feature, Missing, MissingId, PlanOptions, Pooling};
pub use format::{Consent, Content, DriveFormat, FormatPlan, FormatSettings, LbaChoice, LostTable};
pub use generations::GenerationInfo;
pub use gpu::{
    CopiedSlot, Dedupe, DramRows, GpuBatch, GpuError, GpuExecutor, GpuOptions, GpuOutput, GpuPlacement, GpuPlan,
    GpuReport, GpuSlot, GpuUpcoming, IdType, Len, Prefetched, QueueFault, TablePlacement, Ticket, gpu_row_bytes,
};
pub use host::{Host, HostOptions};
pub use hosting::{PrepareOptions, Upcoming};
pub use load::{LoadOptions, LoadProgress, LoadReport, TableLoad};
pub use member::Device;
pub use membership::{Joined, Moved};
pub use merging::Merging;
pub use output_buffer::{OutputBuffer, OutputBufferError};
pub use plan::Plan;
pub use report::{Metrics, Report, Stage};
pub use scrub::{Pace, ScrubOptions, ScrubPosition, ScrubProgress, Scrubbed};
pub use slot::Slot;
pub use store::{DriveState, OpenOptions, Store, TableInfo};
pub use update::{
    CheckRows, Compacted, CompactionNeeds, Compactor, CompactorOptions, FillRow, PendingTable, PendingUpdates, TakeRow,
    UpdateOptions,
};
pub use verify::{BadKind, BadUnit, Verified, VerifiedMetadata, Verifier};
pub use warprow_gpu_queues::{Gpu, Ladder, Rung};
// What the interface speaks of.
pub use warprow_driver::{Details, Event, FormatProgress};
pub use warprow_keys::{BuildError, Fingerprint, KeyIndex, KeyKind, KeySource};
pub use warprow_layout::{Access, DType, KeySpec, Keyed, KeyedError, Ranks, RowOrder, RowSource, Span, TableSpec};
pub use warprow_spec::admin::SecureErase;
