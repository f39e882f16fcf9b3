//! The transport over Linux VFIO: an NVMe controller bound to `vfio-pci`, behind an IOMMU, driven from this process.
//!
//! Groups and a type 1 container (`Documentation/driver-api/vfio.rst` in the kernel's sources). No interrupts: the driver
//! polls. Functions of one IOMMU group share one container; every other function has its own.

mod address;
mod bar;
mod error;
mod function;
mod iova;
mod map_error;
mod space;
mod sysfs;

pub use address::{AddressError, PciAddress};
pub use error::OpenError;
pub use function::VfioFunction;
