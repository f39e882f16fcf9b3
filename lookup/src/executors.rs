//! Helpers for implementing an executor. Users of executors do not need them.

pub use crate::prepare::ReadPacer;
pub use crate::resolve::{Resolved, ResolvedFeature, ResolvedTable, output_type, resolve};
pub use crate::share::{MemoryClaim, scaled, share};
