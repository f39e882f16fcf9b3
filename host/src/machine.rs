use std::path::{Path, PathBuf};

use warprow_vfio::PciAddress;

use crate::files::{entries, text};
use crate::pci::PciFunction;

/// PCI class codes, without the programming interface (PCI Code and ID Assignment 1.11, 1.2 to 1.7).
pub(crate) const CLASS_NVME: u32 = 0x0108;
pub(crate) const CLASS_RAID: u32 = 0x0104;
pub(crate) const CLASS_BRIDGE: u32 = 0x0604;
const CLASS_VGA: u32 = 0x0300;
const CLASS_3D: u32 = 0x0302;
const VENDOR_NVIDIA: u16 = 0x10de;

/// A machine, by the folder under which its `/sys`, `/proc`, `/dev` and `/run` are.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine whose `/` is `root`: `/` for this one, else a copy or a made-up one.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the machine that the process runs on, rather than a copy.
    pub fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where a file of the machine is read: `path` is absolute, as the machine itself would write it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The file as the machine itself would write it.
    pub fn named(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).map_or_else(|_| path.to_owned(), |rest| Path::new("/").join(rest))
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        text(&self.path(path))
    }

    /// All PCI functions, by address.
    pub fn functions(&self) -> Vec<PciFunction> {
        let listed = entries(&self.path("/sys/bus/pci/devices"));
        let mut functions: Vec<_> =
            listed.iter().filter_map(|(_, name)| PciFunction::read(self, name.parse().ok()?)).collect();
        functions.sort_by_key(|function| function.address);
        functions
    }

    /// The PCI function at `address`.
    pub fn function(&self, address: PciAddress) -> Option<PciFunction> {
        PciFunction::read(self, address)
    }

    /// NVIDIA's GPUs.
    pub fn gpus(&self) -> Vec<PciFunction> {
        let is_gpu = |function: &PciFunction| {
            function.vendor == VENDOR_NVIDIA && [CLASS_VGA, CLASS_3D].contains(&(function.class >> 8))
        };
        self.functions().into_iter().filter(is_gpu).collect()
    }
}
