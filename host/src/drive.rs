use warprow_vfio::PciAddress;

use crate::block::{self, BlockNamespace};
use crate::contents::FoundContent;
use crate::files::text;
use crate::machine::CLASS_NVME;
use crate::usage::{Found, Usage};
use crate::{DeviceUse, DeviceUseKind, Distance, Machine, PciFunction};

/// An NVMe controller, with what the system knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDrive {
    /// The PCI function of the controller.
    pub function: PciFunction,
    /// Model, as Linux's own driver shows it. This field and the following ones are known only while that driver has
    /// the drive.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Firmware revision.
    pub firmware: Option<String>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<i64>,
    /// Whether the kernel has lent the drive host memory; `None` where the drive asks for none, or the kernel does not
    /// say.
    pub host_memory: Option<bool>,
    /// The namespaces of the controller.
    pub namespaces: Vec<BlockNamespace>,
    /// What uses the namespaces, and processes that have the drive open through VFIO.
    pub uses: Vec<DeviceUse>,
    /// What lies on the namespaces.
    pub contents: Vec<FoundContent>,
    /// What could not be read, so that uses may be missing.
    pub unread: Vec<String>,
    /// The VMD that the controller is behind.
    pub vmd: Option<PciAddress>,
    /// GPUs, by address, and how far each is from the drive.
    pub gpus: Vec<(PciAddress, Distance)>,
}

/// The text in [`HostDrive::unread`] where Linux's own driver has the drive and shows no controller.
const NO_CONTROLLER: &str = "the nvme driver has it, and sysfs shows no controller";

impl HostDrive {
    /// Whether Linux's own driver has the drive and shows no controller: the driver is still starting it, or has
    /// failed.
    pub fn is_without_controller(&self) -> bool {
        self.unread.iter().any(|other| other == NO_CONTROLLER)
    }

    /// Whether nothing that could be read uses the drive.
    pub fn is_free(&self) -> bool {
        self.uses.is_empty() && self.unread.is_empty()
    }

    /// Whether the running system lies on the drive.
    pub fn is_boot(&self) -> bool {
        self.uses.iter().any(|device_use| device_use.kind == DeviceUseKind::Boot)
    }

    /// Bytes of the drive's namespaces together, where Linux's own driver has the drive.
    pub fn bytes(&self) -> Option<u64> {
        let sizes: Option<Vec<u64>> = self.namespaces.iter().map(|namespace| namespace.bytes).collect();
        sizes.filter(|sizes| !sizes.is_empty()).map(|sizes| sizes.into_iter().fold(0, u64::saturating_add))
    }
}

impl Machine {
    /// All NVMe controllers, by address.
    pub fn drives(&self) -> Vec<HostDrive> {
        let usage = Usage::read(self);
        let functions = self.functions();
        let gpus = self.gpus();
        let nvme = functions.into_iter().filter(|function| function.class >> 8 == CLASS_NVME);
        nvme.map(|function| self.drive_of(function, &usage, &gpus)).collect()
    }

    /// The NVMe controller at `address`; `None` where there is no such function, or the function is no NVMe controller.
    pub fn drive(&self, address: PciAddress) -> Option<HostDrive> {
        let function = self.function(address)?;
        function.is_nvme().then(|| self.drive_of(function, &Usage::read(self), &self.gpus()))
    }

    fn drive_of(&self, function: PciFunction, usage: &Usage, gpus: &[PciFunction]) -> HostDrive {
        let folder = PciFunction::folder(self, function.address);
        let controller = block::controller(&folder);
        let attribute = |name| controller.as_ref().and_then(|folder| text(&folder.join(name)));
        let mut all = Found::default();
        let namespaces = match &controller {
            Some(controller) => BlockNamespace::of(self, controller).unwrap_or_else(|error| {
                all.unread.push(format!("{}: {error}", self.named(controller).display()));
                Vec::new()
            }),
            None => Vec::new(),
        };
        if controller.is_none() && function.driver.as_deref() == Some("nvme") {
            all.unread.push(NO_CONTROLLER.to_owned());
        }
        for namespace in &namespaces {
            let found = usage.of(self, &namespace.name);
            all.uses.extend(found.uses);
            all.contents.extend(found.contents);
            all.unread.extend(found.unread);
        }
        if function.driver.as_deref() == Some("vfio-pci") {
            let group = function.group.as_ref().map(|group| format!("/dev/vfio/{}", group.number));
            let cdev = block::vfio_cdev(&folder).map(|name| format!("/dev/vfio/devices/{name}"));
            for file in group.into_iter().chain(cdev) {
                let opened = usage.openers(&file).iter();
                all.uses.extend(opened.map(|by| DeviceUse {
                    device: file.clone(),
                    kind: DeviceUseKind::Open,
                    by: by.clone(),
                }));
            }
        }
        all.uses.sort();
        all.uses.dedup();
        all.unread.sort();
        all.unread.dedup();
        HostDrive {
            model: attribute("model"),
            serial: attribute("serial"),
            firmware: attribute("firmware_rev"),
            temperature: controller.as_ref().and_then(|path| block::temperature(path)),
            host_memory: controller.as_ref().and_then(|path| block::host_memory(path)),
            namespaces,
            uses: all.uses,
            contents: all.contents,
            unread: all.unread,
            vmd: function.vmd(self),
            gpus: gpus.iter().map(|gpu| (gpu.address, Distance::between(&function, gpu))).collect(),
            function,
        }
    }
}
