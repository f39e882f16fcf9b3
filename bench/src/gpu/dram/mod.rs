//! Rows in DRAM, read by the GPU: the whole look-up against rivals that only gather.

mod cached;
mod measure;
mod presets;
pub mod report;
mod rivals;
mod setup;
mod sweep;
mod table;
mod torch;

pub use super::python::Asked;
pub use cached::{CachedDram, CachedWay, cached};
pub use measure::{DramResult, Times, measure};
pub use presets::{Case, Preset, duration, everything};
pub use rivals::{MOST_COPIES, gather_and_copy};
pub use setup::DramSetup;
pub use sweep::{Sweep, SweepPoint, sweep};
pub use torch::{Torch, TorchLine};
