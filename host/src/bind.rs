//! Giving a drive to `vfio-pci`, and back to Linux's own driver (Documentation/ABI/testing/sysfs-bus-pci in the
//! kernel's sources: driver_override, unbind, drivers_probe).

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use warprow_vfio::PciAddress;

use crate::files::{link_name, text};
use crate::{DeviceUse, DeviceUseKind, HostDrive, IommuGroupMember, Machine, PciFunction};

const VFIO: &str = "vfio-pci";
const NVME: &str = "nvme";
/// The longest wait for one write to sysfs: a write that unbinds a driver ends when the driver has let go.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// A text written to a file of sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysfsWrite {
    /// The file, as the machine names it.
    pub path: String,
    /// What is written.
    pub text: String,
}

impl SysfsWrite {
    fn new(path: String, text: &str) -> Self {
        Self { path, text: format!("{text}\n") }
    }

    /// Writes `driver_override`: only the driver of this name may take the function; an empty line lets any driver take
    /// it.
    fn over(address: PciAddress, driver: Option<&str>) -> Self {
        Self::new(format!("/sys/bus/pci/devices/{address}/driver_override"), driver.unwrap_or_default())
    }

    fn unbind(address: PciAddress) -> Self {
        Self::new(format!("/sys/bus/pci/devices/{address}/driver/unbind"), &address.to_string())
    }

    fn probe(address: PciAddress) -> Self {
        Self::new("/sys/bus/pci/drivers_probe".to_owned(), &address.to_string())
    }
}

impl std::fmt::Display for SysfsWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.text.trim_end() {
            "" => write!(f, "echo > {}", self.path),
            text => write!(f, "echo {text} > {}", self.path),
        }
    }
}

/// Who writes to sysfs.
pub trait SysfsWriter: Sync {
    /// Writes `text` to `path` in one write.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;
}

/// The kernel's own sysfs. A write that the kernel does not take in time is given up; it may still have its effect.
#[derive(Clone, Copy, Debug)]
pub struct KernelFiles;

impl SysfsWriter for KernelFiles {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let (answer, answered) = mpsc::channel();
        let path = path.to_owned();
        let text = text.to_owned();
        thread::spawn(move || {
            // Truncated as by a shell's `>`: sysfs takes no notice, a file in a copy of a machine does.
            let file = File::options().write(true).truncate(true).open(&path);
            // Whoever waited may have gone.
            let _ = answer.send(file.and_then(|mut file| file.write_all(text.as_bytes())));
        });
        let late = || {
            let text = format!(
                "no answer from the kernel within {} s; something still uses the drive",
                WRITE_TIMEOUT.as_secs()
            );
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        answered.recv_timeout(WRITE_TIMEOUT).unwrap_or_else(|_| Err(late()))
    }
}

/// The steps that give a drive to another driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindSteps {
    /// The drive as it is now.
    pub drive: HostDrive,
    /// The driver that is to have it.
    pub driver: &'static str,
    /// What is written, in order; nothing where the drive has that driver already.
    pub writes: Vec<SysfsWrite>,
    /// What `driver_override` says now.
    pub overridden: Option<String>,
}

/// Why a drive stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// There is no such function.
    #[error("{address}: no such PCI function; NVMe controllers here: {}", list(.controllers))]
    NotFound {
        /// The function asked for.
        address: PciAddress,
        /// The NVMe controllers of this machine.
        controllers: Vec<PciAddress>,
    },
    /// The device is something else than an NVMe controller.
    #[error("{address}: PCI class {class:#08x} is not an NVMe controller (class 0x010802)")]
    NotNvme {
        /// The function asked for.
        address: PciAddress,
        /// The function's class code.
        class: u32,
    },
    /// Something uses the drive.
    #[error("{address} is in use: {}", uses.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    InUse {
        /// The drive.
        address: PciAddress,
        /// What uses it.
        uses: Vec<DeviceUse>,
    },
    /// Linux's own driver has the drive and shows no controller: the driver is still starting it, or has failed.
    #[error("{address}: the nvme driver has it and shows no controller: it has failed, or is not done yet")]
    NoController {
        /// The drive.
        address: PciAddress,
    },
    /// Whether something uses the device cannot be known.
    #[error("{address}: cannot tell whether something uses it: {}", unread.join("; "))]
    Unread {
        /// The drive.
        address: PciAddress,
        /// What could not be read.
        unread: Vec<String>,
    },
    /// The device is behind Intel's VMD.
    #[error("{address} is behind the Intel VMD {vmd}, which hides it from the IOMMU")]
    BehindVmd {
        /// The drive.
        address: PciAddress,
        /// The VMD.
        vmd: PciAddress,
    },
    /// There is no IOMMU.
    #[error("{address} is behind no IOMMU: its DMA could not be confined to our memory")]
    NoIommu {
        /// The drive.
        address: PciAddress,
    },
    /// Other functions share the drive's IOMMU group.
    #[error("{address}: its IOMMU group {group} also holds {}, and a group has one address space", members(.others))]
    GroupNotViable {
        /// The drive.
        address: PciAddress,
        /// Number of the group.
        group: u32,
        /// The members that stand in the way.
        others: Vec<IommuGroupMember>,
    },
    /// The kernel has no such driver.
    #[error("the kernel has no driver {driver}")]
    NoDriver {
        /// The driver's name.
        driver: &'static str,
    },
    /// A driver that is neither Linux's own nor VFIO's has the drive.
    #[error("{address} belongs to the driver {driver}, not to nvme or vfio-pci")]
    OtherDriver {
        /// The drive.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// A write failed. What was done before was undone, unless `undo` says otherwise.
    #[error("{address}: `{write}` failed: {source}; {}", undone(.undo))]
    Write {
        /// The drive.
        address: PciAddress,
        /// The write.
        write: SysfsWrite,
        /// The kernel's answer.
        source: io::Error,
        /// Why the drive could not be put back.
        undo: Option<String>,
    },
    /// Everything was written, and the driver did not take the drive.
    #[error("{address}: {driver} did not take the drive, which has {} now; {}", found.as_deref().unwrap_or("no driver"), undone(.undo))]
    NotTaken {
        /// The drive.
        address: PciAddress,
        /// The driver that was to have it.
        driver: &'static str,
        /// The driver that has it.
        found: Option<String>,
        /// Why the drive could not be put back.
        undo: Option<String>,
    },
}

fn list(controllers: &[PciAddress]) -> String {
    match controllers {
        [] => "none".to_owned(),
        _ => controllers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn members(others: &[IommuGroupMember]) -> String {
    let one =
        |member: &IommuGroupMember| format!("{} ({})", member.name, member.driver.as_deref().unwrap_or("no driver"));
    others.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn undone(undo: &Option<String>) -> String {
    match undo {
        None => "the drive is as it was".to_owned(),
        Some(why) => format!("and it could not be put back: {why}"),
    }
}

impl BindError {
    /// The remedy; `as_root`: whether root has tried.
    pub fn remedy(&self, as_root: bool) -> String {
        match self {
            Self::NotFound { .. } | Self::NotNvme { .. } => "`warprow devices` lists the drives".to_owned(),
            Self::InUse { uses, .. } => {
                let left = uses.iter().find(|device_use| device_use.is_left());
                match left {
                    Some(it) => format!(
                        "choose another drive; or, if nobody wants what lies there any more, `wipefs -a {}` makes it free",
                        it.device
                    ),
                    None => "release it first (umount, swapoff, mdadm --stop, vgchange -an, zpool export, or end the \
                             process), or choose another drive"
                        .to_owned(),
                }
            }
            Self::NoController { address } => {
                format!(
                    "try again if it has come just now; `dmesg | grep {address}` has the driver's reasons; if nothing uses it: \
                     echo {address} | sudo tee /sys/bus/pci/devices/{address}/driver/unbind"
                )
            }
            Self::Unread { .. } if as_root => {
                "run it where /sys, /proc and /run/udev are the machine's own, outside of containers".to_owned()
            }
            Self::Unread { .. } => "run it as root".to_owned(),
            Self::BehindVmd { .. } => {
                "turn VMD (also called RST or RAID mode) off for this slot in the firmware; a system \
                                       that boots from a VMD volume must be prepared for that first"
                    .to_owned()
            }
            Self::NoIommu { .. } => {
                "turn the IOMMU on: VT-d or AMD-Vi in the firmware, and intel_iommu=on on the kernel's \
                                     command line for Intel; `warprow doctor` says what lacks"
                    .to_owned()
            }
            Self::GroupNotViable { .. } => {
                "give those that are NVMe drives in the same command, unbind the others from \
                                            their drivers, or move the drive to a slot behind another root port"
                    .to_owned()
            }
            Self::NoDriver { driver: VFIO } => "sudo modprobe vfio-pci".to_owned(),
            Self::NoDriver { driver } => format!("sudo modprobe {driver}"),
            Self::OtherDriver { address, .. } => {
                format!("if nothing uses it: echo {address} | sudo tee /sys/bus/pci/devices/{address}/driver/unbind")
            }
            Self::Write { source, .. } if !as_root && source.kind() == io::ErrorKind::PermissionDenied => {
                "run it as root, with sudo".to_owned()
            }
            Self::Write { .. } | Self::NotTaken { .. } => "`dmesg | tail` has the kernel's reasons".to_owned(),
        }
    }
}

impl Machine {
    /// The steps that give a drive to `vfio-pci`. Members of its IOMMU group among `also`, which are to be given as
    /// well, do not stand in its way.
    ///
    /// Fails where the function is no NVMe controller, is or may be in use, cannot be confined by an IOMMU, or has an
    /// unknown driver.
    pub fn bind_steps(&self, address: PciAddress, also: &[PciAddress]) -> Result<BindSteps, BindError> {
        let drive = self.nvme(address)?;
        if drive.function.driver.as_deref() == Some(VFIO) {
            return Ok(self.plan(drive, VFIO));
        }
        if let Some(driver) = drive.function.driver.clone().filter(|driver| driver != NVME) {
            return Err(BindError::OtherDriver { address, driver });
        }
        let hidden = || self.held_unseen(&drive).map(|device_use| vec![device_use]);
        if let Some(uses) = Some(&drive.uses).filter(|uses| !uses.is_empty()).cloned().or_else(hidden) {
            return Err(BindError::InUse { address, uses });
        }
        if drive.is_without_controller() {
            return Err(BindError::NoController { address });
        }
        if !drive.unread.is_empty() {
            return Err(BindError::Unread { address, unread: drive.unread });
        }
        if let Some(vmd) = drive.vmd {
            return Err(BindError::BehindVmd { address, vmd });
        }
        let group = drive.function.group.as_ref().filter(|group| !group.without_iommu);
        let group = group.ok_or(BindError::NoIommu { address })?;
        let given = |member: &IommuGroupMember| {
            member.class.is_some_and(|class| class >> 8 == crate::machine::CLASS_NVME)
                && member.name.parse().is_ok_and(|address| also.contains(&address))
        };
        let others: Vec<_> =
            group.others.iter().filter(|member| member.stands_in_the_way() && !given(member)).cloned().collect();
        if !others.is_empty() {
            return Err(BindError::GroupNotViable { address, group: group.number, others });
        }
        self.has_driver(VFIO)?;
        Ok(self.plan(drive, VFIO))
    }

    /// The steps that give a drive back to Linux's own driver. Fails where the function is no drive, a process has it,
    /// or it has a driver that nobody knows.
    pub fn unbind_steps(&self, address: PciAddress) -> Result<BindSteps, BindError> {
        let drive = self.nvme(address)?;
        match drive.function.driver.as_deref() {
            Some(NVME) => return Ok(self.plan(drive, NVME)),
            None | Some(VFIO) => {}
            Some(driver) => return Err(BindError::OtherDriver { address, driver: driver.to_owned() }),
        }
        if !drive.uses.is_empty() {
            return Err(BindError::InUse { address, uses: drive.uses });
        }
        self.has_driver(NVME)?;
        Ok(self.plan(drive, NVME))
    }

    fn plan(&self, drive: HostDrive, driver: &'static str) -> BindSteps {
        let address = drive.function.address;
        let over = text(&PciFunction::folder(self, address).join("driver_override")).filter(|text| text != "(null)");
        let mut writes = Vec::new();
        if drive.function.driver.as_deref() != Some(driver) {
            writes.push(SysfsWrite::over(address, (driver == VFIO).then_some(VFIO)));
            writes.extend(drive.function.driver.is_some().then(|| SysfsWrite::unbind(address)));
            writes.push(SysfsWrite::probe(address));
        }
        BindSteps { drive, driver, writes, overridden: over }
    }

    /// Finds a use that sysfs and procfs do not show, such as a mount of the host seen from a container. The kernel
    /// lets nobody open the device exclusively (open(2), O_EXCL) while it, or one of its partitions, is held.
    fn held_unseen(&self, drive: &HostDrive) -> Option<DeviceUse> {
        let busy = |name: &str| {
            let path = self.path(&format!("/dev/{name}"));
            let block = std::fs::metadata(&path).is_ok_and(|file| file.file_type().is_block_device());
            let flags = (OFlag::O_EXCL | OFlag::O_NONBLOCK).bits();
            let opened = || File::options().read(true).custom_flags(flags).open(&path);
            block && opened().is_err_and(|error| error.raw_os_error() == Some(Errno::EBUSY as i32))
        };
        let held = drive.namespaces.iter().find(|namespace| busy(&namespace.name))?;
        let by = "somebody who cannot be seen from here: the kernel says that it is busy".to_owned();
        Some(DeviceUse { device: format!("/dev/{}", held.name), kind: DeviceUseKind::Holder, by })
    }

    fn nvme(&self, address: PciAddress) -> Result<HostDrive, BindError> {
        self.drive(address).ok_or_else(|| match self.function(address) {
            Some(function) => BindError::NotNvme { address, class: function.class },
            None => {
                let nvme = self.functions().into_iter().filter(PciFunction::is_nvme);
                BindError::NotFound { address, controllers: nvme.map(|function| function.address).collect() }
            }
        })
    }

    fn has_driver(&self, driver: &'static str) -> Result<(), BindError> {
        match self.path(&format!("/sys/bus/pci/drivers/{driver}")).is_dir() {
            true => Ok(()),
            false => Err(BindError::NoDriver { driver }),
        }
    }

    fn driver_of(&self, address: PciAddress) -> Option<String> {
        link_name(&PciFunction::folder(self, address).join("driver"))
    }
}

impl BindSteps {
    /// Whether no step is needed: the drive has the driver already.
    pub fn is_done(&self) -> bool {
        self.writes.is_empty()
    }

    /// Carries the steps out. If a write fails, or the driver does not take the drive, what was done is undone, and the
    /// error says whether that worked. A driver gets as long as `patience` to take the drive after the kernel was told
    /// to look for one.
    pub fn run(&self, machine: &Machine, sysfs: &dyn SysfsWriter, patience: Duration) -> Result<(), BindError> {
        let address = self.drive.function.address;
        if self.is_done() {
            return Ok(());
        }
        for write in &self.writes {
            if let Err(source) = self.write(machine, sysfs, write) {
                let undo = self.put_back(machine, sysfs, patience).err();
                return Err(BindError::Write { address, write: write.clone(), source, undo });
            }
        }
        let found = await_driver(machine, address, Some(self.driver), patience);
        if found.as_deref() == Some(self.driver) {
            return Ok(());
        }
        let undo = self.put_back(machine, sysfs, patience).err();
        Err(BindError::NotTaken { address, driver: self.driver, found, undo })
    }

    fn write(&self, machine: &Machine, sysfs: &dyn SysfsWriter, write: &SysfsWrite) -> io::Result<()> {
        let path: PathBuf = machine.path(&write.path);
        sysfs.write(&path, &write.text)
    }

    /// Gives the drive back to the driver that it had.
    fn put_back(&self, machine: &Machine, sysfs: &dyn SysfsWriter, patience: Duration) -> Result<(), String> {
        let address = self.drive.function.address;
        let before = self.drive.function.driver.as_deref();
        let write = |write: SysfsWrite| {
            let done = self.write(machine, sysfs, &write);
            done.map_err(|error| format!("`{write}` failed: {error}"))
        };
        write(SysfsWrite::over(address, self.overridden.as_deref()))?;
        let now = machine.driver_of(address);
        if now.as_deref() == before {
            return Ok(());
        }
        if now.is_some() {
            write(SysfsWrite::unbind(address))?;
        }
        if before.is_some() {
            write(SysfsWrite::probe(address))?;
        }
        match await_driver(machine, address, before, patience) {
            now if now.as_deref() == before => Ok(()),
            now => Err(format!("it has {} now", now.as_deref().unwrap_or("no driver"))),
        }
    }
}

/// The driver that the function has, after a wait for `wanted`.
fn await_driver(machine: &Machine, address: PciAddress, wanted: Option<&str>, patience: Duration) -> Option<String> {
    let began = Instant::now();
    loop {
        let now = machine.driver_of(address);
        if now.as_deref() == wanted || began.elapsed() >= patience {
            return now;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
