//! What executors share, besides what their users speak of: for whoever writes one.

pub use crate::prepare::Pace;
pub use crate::resolve::{Resolved, ResolvedFeature, ResolvedTable, handed_out, resolve};
pub use crate::share::{Part, scaled, share};
