//! What users call: a store on one or several drives, tables in it, and look-ups.
//!
//! `docs/store.md` gives the exact meaning of a look-up.

#![forbid(unsafe_code)]

mod batch;
mod bulk;
mod check;
mod drive;
mod error;
mod expand;
mod feature;
mod format;
mod host;
mod load;
mod member;
mod memory;
mod plan;
mod read;
mod report;
mod slot;
pub mod stage;
mod store;

pub use batch::{Batch, Ids, Output, Rows};
pub use drive::{Create, DriveAddress};
pub use error::{InvalidBatch, LookupError, RowError, StoreError};
pub use feature::{Feature, Missing, PlanOptions, Pooling};
pub use format::{Consent, Content, DriveFormat, FormatPlan, FormatSettings, LbaChoice};
pub use host::{Host, HostOptions};
pub use load::{LoadOptions, LoadProgress, LoadReport, TableLoad};
pub use member::Device;
pub use plan::Plan;
pub use report::{Metrics, Report, Stage};
pub use slot::Slot;
pub use store::{OpenOptions, Store, TableInfo, Verified};
// What the interface speaks of.
pub use warprow_driver::FormatProgress;
pub use warprow_layout::{Access, DType, Ranks, RowSource, Span, TableSpec};
pub use warprow_spec::admin::SecureErase;
