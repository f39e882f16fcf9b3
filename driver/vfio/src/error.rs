use std::path::PathBuf;

use vfio_ioctls::VfioError;
use warprow_dma::FunctionError;

use crate::{AddressError, PciAddress};

/// Why a PCI function could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text is not a PCI address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// There is no such function.
    #[error("{address}: no such PCI function; NVMe controllers here: {}", list(.controllers))]
    NotFound {
        /// The function asked for.
        address: PciAddress,
        /// The NVMe controllers of this machine.
        controllers: Vec<String>,
    },
    /// The function is something else than an NVMe controller.
    #[error("{address}: PCI class {class:#08x} is not an NVMe controller (class 0x010802)")]
    NotNvme {
        /// The function asked for.
        address: PciAddress,
        /// The function's class code.
        class: u32,
    },
    /// Linux uses the drive.
    #[error("{address}: the drive is in use: {}; refusing to take it. Release it first, or choose another drive", .uses.join("; "))]
    InUse {
        /// The function asked for.
        address: PciAddress,
        /// What uses the drive: mounts, swap, device-mapper and RAID members.
        uses: Vec<String>,
    },
    /// The function is bound to another driver than vfio-pci, or to none.
    #[error(
        "{address}: bound to {}, not to vfio-pci. As root (the drive then disappears from the system): `warprow bind {address}`, \
         or by hand\n  {}",
        .driver.as_deref().unwrap_or("no driver"),
        bind_command(*.address, .driver.as_deref())
    )]
    WrongDriver {
        /// The function asked for.
        address: PciAddress,
        /// The driver that holds it.
        driver: Option<String>,
    },
    /// The function is behind no IOMMU.
    #[error(
        "{address}: behind no IOMMU, so its DMA could not be confined to our memory. Enable the IOMMU in the firmware and \
         boot with intel_iommu=on (AMD: on by default)"
    )]
    NoIommu {
        /// The function asked for.
        address: PciAddress,
    },
    /// VFIO runs in its mode without an IOMMU, in which a device may write anywhere.
    #[error(
        "{address}: bound in VFIO's no-IOMMU mode, in which the drive could write to any memory: refused. Enable the IOMMU in \
         the firmware and boot with intel_iommu=on (AMD: on by default)"
    )]
    NoIommuMode {
        /// The function asked for.
        address: PciAddress,
    },
    /// Other members of the function's IOMMU group belong to other drivers.
    #[error(
        "{address}: its IOMMU group {group} also holds {}; devices of one group share their address space, so each must \
         be bound to vfio-pci or to no driver. Unbind them, or move the drive to another slot",
        .others.join(", ")
    )]
    GroupNotViable {
        /// The function asked for.
        address: PciAddress,
        /// Number of the group.
        group: u32,
        /// The other members and their drivers.
        others: Vec<String>,
    },
    /// This user may not open the group.
    #[error("{address}: no permission to open {}; as root: chown $USER {0}", .path.display())]
    Permission {
        /// The function asked for.
        address: PciAddress,
        /// The device file.
        path: PathBuf,
    },
    /// Another process, or this one, has it open.
    #[error("{address}: {} is open already, in another process or in this one", .path.display())]
    Busy {
        /// The function asked for.
        address: PciAddress,
        /// The device file.
        path: PathBuf,
    },
    /// Another process has a function of the same IOMMU group, or the IOMMU does not isolate interrupts: through iommufd the
    /// kernel answers both alike, and nothing tells them apart for certain.
    #[error(
        "{address}: an IOMMU group has one owner, and another process seems to have {} of this one. End that process, or open all \
         of them in one. Where nobody has any, the IOMMU does not isolate interrupts: enable interrupt remapping (VT-d and x2APIC in \
         the firmware)",
        .members.join(", ")
    )]
    GroupOwned {
        /// The function asked for.
        address: PciAddress,
        /// The other members of its group that belong to VFIO.
        members: Vec<String>,
    },
    /// The kernel has no VFIO.
    #[error("{address}: cannot open /dev/vfio/vfio: {source}; as root: modprobe vfio-pci")]
    NoVfio {
        /// The function asked for.
        address: PciAddress,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The kernel has no iommufd, or no file of its own for the function.
    #[error(
        "{address}: cannot open {}: {source}; this way needs Linux 6.6 or later with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV; \
         as root: modprobe iommufd, or go through the group (WARPROW_VFIO=type1)",
        .path.display()
    )]
    NoIommufd {
        /// The function asked for.
        address: PciAddress,
        /// The file that is missing.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The IOMMU does not remap interrupts, and the kernel therefore refuses.
    #[error(
        "{address}: the IOMMU does not isolate interrupts, so that a drive could forge them; the kernel refuses. Enable \
         interrupt remapping (VT-d and x2APIC in the firmware; no intremap=off or nointremap on the kernel's command line). Where \
         every device is trusted, as root: echo 1 > /sys/module/{module}/parameters/allow_unsafe_interrupts"
    )]
    UnsafeInterrupts {
        /// The function asked for.
        address: PciAddress,
        /// The kernel module that refuses.
        module: &'static str,
    },
    /// The environment variable `WARPROW_VFIO` has a value that names no interface.
    #[error("WARPROW_VFIO is {text:?}: it may be auto, type1 or iommufd")]
    Interface {
        /// The value of the variable.
        text: String,
    },
    /// A call of the system failed.
    #[error("{address}: {what}: {source}")]
    Os {
        /// The function asked for.
        address: PciAddress,
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// VFIO answered with an error.
    #[error("{address}: {source}")]
    Vfio {
        /// The function asked for.
        address: PciAddress,
        /// VFIO's answer.
        source: VfioError,
    },
    /// The function does not look like an NVMe controller.
    #[error("{address}: {what}")]
    Malformed {
        /// The function asked for.
        address: PciAddress,
        /// What is wrong with it.
        what: String,
    },
    /// A file of sysfs or procfs could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The function was opened and then did not answer.
    #[error(transparent)]
    Function(#[from] FunctionError),
}

fn list(controllers: &[String]) -> String {
    if controllers.is_empty() { "none".to_owned() } else { controllers.join(", ") }
}

fn bind_command(address: PciAddress, driver: Option<&str>) -> String {
    let device = format!("/sys/bus/pci/devices/{address}");
    let unbind = driver.map(|_| format!("echo {address} > {device}/driver/unbind && ")).unwrap_or_default();
    format!(
        "modprobe vfio-pci && {unbind}echo vfio-pci > {device}/driver_override && echo {address} > \
         /sys/bus/pci/drivers_probe"
    )
}
