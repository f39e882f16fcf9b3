//! What executors share, besides what their users speak of: for whoever writes one.

pub use crate::prepare::ReadPacer;
pub use crate::resolve::{Resolved, ResolvedFeature, ResolvedTable, output_type, resolve};
pub use crate::share::{TableShare, scaled, share};
