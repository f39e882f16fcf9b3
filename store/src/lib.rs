//! What users call: a store on one or several drives, tables in it, and look-ups.
//!
//! `docs/store.md` gives the exact meaning of a look-up.

#![forbid(unsafe_code)]

mod batch;
mod error;
mod feature;
mod report;
pub mod stage;

pub use batch::{Batch, Ids, Output, Rows};
pub use error::{InvalidBatch, LookupError, RowError, StoreError};
pub use feature::{Feature, Missing, PlanOptions, Pooling};
pub use report::{Metrics, Report, Stage};
