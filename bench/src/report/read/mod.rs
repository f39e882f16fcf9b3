//! What each program's result means: from JSON to plots.

mod any;
mod dedupe;
mod elements;
mod experiments;
mod gpu;
mod hbm;
mod host;
mod passes;
mod quantities;
mod resident;
mod section;
mod ssd;
mod switch;

pub use any::read;
pub use section::Section;
