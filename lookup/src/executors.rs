//! What executors share, besides what their users speak of: for whoever writes one.

pub use crate::prepare::ReadRateLimit;
pub use crate::resolve::{ResolvedFeature, ResolvedFeatures, ResolvedTable, output_type, resolve};
pub use crate::share::{MemoryClaim, scaled, share};
