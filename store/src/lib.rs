//! A store on one or several drives, with tables in it: formatting, opening, loading, updating, checking. Look-ups are
//! in `warprow-lookup`, which the example uses.
//!
//! ```
//! # use std::ops::ControlFlow;
//! # use warprow_lookup::*;
//! # use warprow_store::*;
//! let address: DriveAddress = "emulated:example?backing=ram&size=64M".parse()?;
//! let device = Device::open(&address, CreateDrive::IfMissing)?;
//! let store = FormatProposal::new(&[device], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
//!
//! let rows: Vec<u8> = (0..1000 * 16).flat_map(|i| (i as f32).to_le_bytes()).collect();
//! let (spec, source) = (TableSpec::new("user", 1000, 16, DType::F32), &rows[..]);
//! let load = TableLoad::new(&spec, &source);
//! store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//!
//! let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(100 * 64))?;
//! let plan = host.plan(&[Feature::new("user", "user").pooling(Pooling::Sum)], PlanOptions::default())?;
//! let mut sums = vec![0.0; 2 * plan.width()];
//! let batch = Batch::new(&[1i64, 2, 999], 2).with_offsets(&[0i64, 2]);
//! let report = plan.slot()?.lookup(&batch, &mut Output::new(OutputRows::F32(&mut sums), plan.width()))?;
//! assert_eq!(sums[0], 16.0 + 32.0);
//! assert_eq!(sums[16], 999.0 * 16.0);
//! assert_eq!((report.rows_dram, report.rows_ssd, report.commands), (2, 1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/store.md` gives the exact meaning of a look-up.

mod attach;
mod attach_error;
mod attached_choice;
mod attached_file;
mod attached_files;
mod attached_tensor;
mod bulk;
mod curve;
mod device;
mod dram_list;
mod drive;
mod drive_access;
mod error;
mod events;
mod format;
mod generations;
mod load;
mod measure;
mod member;
mod membership;
mod overlay;
mod pace;
mod parallel_read;
mod property;
mod scrub;
mod shards;
mod shared_controller;
mod skipped_tensor;
mod sparse_ids;
mod store;
mod table_check;
mod table_identity;
mod table_version;
mod touches;
mod update;
mod verified;
mod verify;
pub mod view;

pub use attach::{AttachOptions, AttachedTable};
pub use attach_error::AttachError;
pub use attached_file::AttachedFile;
pub use attached_files::ChangedFile;
pub use attached_tensor::{AttachedTensor, TensorScales};
pub use curve::{CurveError, ReadCurve};
pub use device::Device;
pub use dram_list::{DRAM_LISTS, ListedRows, RerankOptions, RerankReport};
pub use drive::{CreateDrive, DriveAddress};
pub use error::StoreError;
pub use events::{DriveEvents, NamespaceChanged};
pub use format::{DriveContent, DriveFormat, FormatConsent, FormatProposal, FormatSettings, LbaChoice, LostTable};
pub use generations::GenerationInfo;
pub use load::{LoadOptions, LoadProgress, LoadReport, TableLoad};

pub use membership::{MoveProgress, StoreWithNewDrive};
pub use pace::Pace;
pub use scrub::{ScrubOptions, ScrubPosition, ScrubProgress, ScrubReport};
pub use skipped_tensor::SkippedTensor;
pub use store::{DriveState, OpenOptions, Store, TableInfo};
pub use touches::{LastTouches, TouchesFileError};
pub use update::{
    CheckRows, CompactionNeeds, CompactionReport, Compactor, CompactorOptions, ExpireOptions, ExpireReport,
    ExpiredKeys, FillRow, PendingTable, PendingUpdates, TakeRow, UpdateOptions,
};
pub use verified::{DamageKind, DamagedUnit, MetadataReport, VerifyReport};
pub use verify::Verifier;
// What the interface speaks of.
pub use warprow_driver::{ControllerEvent, DriverError, EventDetails, FormatProgress};
pub use warprow_keys::{FingerprintWidth, IndexBuildError, KeyIndex, KeyKind, KeySource};
pub use warprow_layout::{
    ChunkSpread, DType, KeySpec, Ranks, RowOrder, RowSource, StoreAccess, TableKeys, TableKeysError, TableSpec,
};
pub use warprow_spec::admin::SecureErase;
