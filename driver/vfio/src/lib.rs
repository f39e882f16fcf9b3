//! The transport over Linux VFIO: an NVMe controller bound to `vfio-pci`, behind an IOMMU, driven from this process.
//!
//! A function is opened through its IOMMU group and a type 1 container, or through its own file and `/dev/iommu`
//! ([`VfioInterface`]; `Documentation/driver-api/vfio.rst` in the kernel's sources). Of interrupts only MSI-X vector 0
//! is used, for waits for long admin commands; everything else is polled. Functions of one IOMMU group share one
//! address space; every other function has its own.

mod address;
mod answer;
mod bar;
mod error;
mod function;
mod interface;
mod iommufd;
mod iova;
mod irq;
mod keeper;
mod map_error;
mod region;
mod space;
mod sysfs;
mod type1;

pub use address::{AddressError, PciAddress};
pub use error::OpenError;
pub use function::VfioFunction;
pub use interface::VfioInterface;
pub use keeper::{Hold, Keeper, KeeperError, keep};
