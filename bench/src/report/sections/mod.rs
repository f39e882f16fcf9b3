//! What each benchmark's result means: from its fields to plots and words.

mod any;
mod dedupe;
mod dram;
mod elements;
mod figures;
mod hbm;
mod load;
mod lookup;
mod lookup_gpu;
mod passes;
mod plan;
mod resident;
mod ring;
mod ring_gpu;
mod section;
mod ssd;
mod switch;

pub use any::read;
pub use section::Section;
