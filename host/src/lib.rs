//! The machine as Linux shows it in sysfs and procfs: NVMe controllers, what uses them, how far they are from each GPU,
//! and what stands in the way of driving them; and the few writes that give a drive to `vfio-pci` and back.
//!
//! Everything is read below a root folder ([`Machine::at`]), so that tests read made-up machines, and people a copy of
//! another one's `/sys` and `/proc`. Files may be missing, unreadable or garbage: what cannot be known is `None`, and
//! where not knowing could lose data, a refusal.
#![forbid(unsafe_code)]

mod acs;
mod bind;
mod block;
mod contents;
pub mod doctor;
mod drive;
mod files;
mod gpu_rings;
mod machine;
mod pci;
mod rights;
mod topology;
mod usage;

pub use acs::Acs;
pub use bind::{BindError, BindSteps, KernelFiles, SysfsWrite, SysfsWriter};
pub use block::BlockNamespace;
pub use contents::FoundContent;
pub use drive::HostDrive;
pub use machine::Machine;
pub use pci::{IommuGroup, IommuGroupMember, PciFunction};
pub use topology::Distance;
pub use usage::{DeviceUse, DeviceUseKind};
pub use warprow_vfio::PciAddress;
