//! What a machine lacks to drive its NVMe drives from this process and its GPUs, and the command that helps.

mod drives;
mod examine;
mod finding;
mod gpu;
mod iommu;
mod memory;
mod system;

pub use finding::{Finding, Verdict};
pub(crate) use system::release;
