use std::fs;
use std::path::PathBuf;

use warprow_vfio::PciAddress;

use crate::Machine;
use crate::acs::Acs;
use crate::files::{entries, hex, link_name, number, text};
use crate::machine::{CLASS_NVME, CLASS_RAID};

const VENDOR_INTEL: u16 = 0x8086;
/// Intel's Volume Management Devices: from Skylake servers to today's laptops.
const VMD_DEVICES: [u16; 10] = [0x201d, 0x28c0, 0x467f, 0x4c3d, 0x7d0b, 0x9a0b, 0xa77f, 0xad0b, 0xb06f, 0xb60b];

/// A PCI function as sysfs has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// The function's PCI address.
    pub address: PciAddress,
    /// Class, subclass and programming interface, 24 bits.
    pub class: u32,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// The driver that has the function.
    pub driver: Option<String>,
    /// NUMA node; `None` where the firmware does not say.
    pub numa_node: Option<u32>,
    /// The function's IOMMU group; `None` without an IOMMU.
    pub group: Option<IommuGroup>,
    /// The way to the function: host bridge first, then bridges and switches, the function itself last. Empty where
    /// sysfs does not tell.
    pub way: Vec<String>,
}

/// Functions that an IOMMU cannot tell apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuGroup {
    /// The group's number, which is the name of its file under `/dev/vfio`.
    pub number: u32,
    /// Whether VFIO made the group up because there is no IOMMU.
    pub without_iommu: bool,
    /// The group's other functions.
    pub others: Vec<IommuGroupMember>,
}

/// Another function of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuGroupMember {
    /// The function's address, as sysfs writes it.
    pub name: String,
    /// The function's class code, if it can be read.
    pub class: Option<u32>,
    /// The function's driver.
    pub driver: Option<String>,
}

impl IommuGroupMember {
    /// Whether VFIO would refuse the group because of this function: its driver is neither VFIO's nor a bridge's.
    pub fn stands_in_the_way(&self) -> bool {
        let bridge = self.class.is_some_and(|class| class >> 16 == 0x06);
        match self.driver.as_deref() {
            None | Some("vfio-pci" | "pci-stub") => false,
            Some("pcieport") => !bridge,
            Some(_) => true,
        }
    }
}

impl PciFunction {
    pub(crate) fn folder(machine: &Machine, address: PciAddress) -> PathBuf {
        machine.path(&format!("/sys/bus/pci/devices/{address}"))
    }

    /// `None` where there is no such function.
    pub(crate) fn read(machine: &Machine, address: PciAddress) -> Option<Self> {
        let folder = Self::folder(machine, address);
        let id = |name: &str| hex(&folder.join(name)).and_then(|id| u16::try_from(id).ok()).unwrap_or(u16::MAX);
        Some(Self {
            address,
            class: u32::try_from(hex(&folder.join("class"))?).ok()?,
            vendor: id("vendor"),
            device: id("device"),
            driver: link_name(&folder.join("driver")),
            // -1 where it is not known.
            numa_node: number(&folder.join("numa_node")),
            group: group(&folder, address),
            way: way(machine, &folder),
        })
    }

    /// An NVMe controller, with the programming interface of the I/O command set.
    pub fn is_nvme(&self) -> bool {
        self.class == CLASS_NVME << 8 | 2
    }

    /// A controller that hides drives behind itself: Intel's VMD, or a disk controller in RAID mode.
    pub fn is_raid(&self) -> bool {
        self.class >> 8 == CLASS_RAID || self.is_vmd()
    }

    /// Intel's Volume Management Device.
    pub fn is_vmd(&self) -> bool {
        self.vendor == VENDOR_INTEL && VMD_DEVICES.contains(&self.device) || self.driver.as_deref() == Some("vmd")
    }

    /// Access Control Services of this function, which matter of bridges.
    pub fn acs(&self, machine: &Machine) -> Acs {
        Acs::read(&Self::folder(machine, self.address).join("config"))
    }

    /// The VMD that the function sits behind, if any.
    pub fn vmd(&self, machine: &Machine) -> Option<PciAddress> {
        let above = self.way.iter().rev().skip(1).filter_map(|name| name.parse().ok());
        above.filter_map(|address| machine.function(address)).find(Self::is_vmd).map(|vmd| vmd.address)
    }
}

fn group(folder: &std::path::Path, address: PciAddress) -> Option<IommuGroup> {
    let link = folder.join("iommu_group");
    let number = link_name(&link)?.parse().ok()?;
    let own = address.to_string();
    let member = |(path, name): (PathBuf, String)| IommuGroupMember {
        class: hex(&path.join("class")).and_then(|class| u32::try_from(class).ok()),
        driver: link_name(&path.join("driver")),
        name,
    };
    let others = entries(&link.join("devices")).into_iter().filter(|(_, name)| *name != own).map(member).collect();
    let without_iommu = text(&link.join("name")).is_some_and(|name| name == "vfio-noiommu");
    Some(IommuGroup { number, without_iommu, others })
}

/// The names between `/sys/devices` and the function.
fn way(machine: &Machine, folder: &std::path::Path) -> Vec<String> {
    let within = || {
        let devices = fs::canonicalize(machine.path("/sys/devices")).ok()?;
        let function = fs::canonicalize(folder).ok()?;
        let way = function.strip_prefix(devices).ok()?;
        Some(way.iter().map(|name| name.to_string_lossy().into_owned()).collect())
    };
    within().unwrap_or_default()
}
