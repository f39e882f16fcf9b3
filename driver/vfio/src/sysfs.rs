//! What sysfs and procfs say about a PCI function, before anything is opened.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{OpenError, PciAddress};

/// PCI class code of an NVMe I/O controller (NVMe over PCIe Transport 1.0, 3.1.1).
const CLASS_NVME: u32 = 0x01_0802;
const CLASS_BRIDGE: u32 = 0x06_0000;

/// Where sysfs and procfs are mounted.
pub(crate) struct System {
    pub(crate) sys: PathBuf,
    pub(crate) proc: PathBuf,
}

impl System {
    pub(crate) fn host() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into() }
    }

    fn devices(&self) -> PathBuf {
        self.sys.join("bus/pci/devices")
    }

    pub(crate) fn device(&self, address: PciAddress) -> PathBuf {
        self.devices().join(address.to_string())
    }

    /// Checks that VFIO can have the function to itself; returns the number of its IOMMU group.
    pub(crate) fn check(&self, address: PciAddress) -> Result<u32, OpenError> {
        let device = self.device(address);
        if !device.exists() {
            return Err(OpenError::NotFound { address, controllers: self.controllers() });
        }
        let class = class(&device)?;
        if class != CLASS_NVME {
            return Err(OpenError::NotNvme { address, class });
        }
        let driver = link_name(&device.join("driver"));
        if driver.as_deref() != Some("vfio-pci") {
            let uses = self.uses(&device)?;
            return Err(if uses.is_empty() {
                OpenError::WrongDriver { address, driver }
            } else {
                OpenError::InUse { address, uses }
            });
        }
        let group_link = device.join("iommu_group");
        let group = link_name(&group_link).ok_or(OpenError::NoIommu { address })?;
        let malformed = || OpenError::Malformed { address, what: format!("IOMMU group {group:?} is not a number") };
        let group = group.parse().map_err(|_| malformed())?;
        if fs::read_to_string(group_link.join("name")).is_ok_and(|name| name.trim() == "vfio-noiommu") {
            return Err(OpenError::NoIommuMode { address });
        }
        let others = self.foreign_members(address)?;
        if !others.is_empty() {
            return Err(OpenError::GroupNotViable { address, group, others });
        }
        Ok(group)
    }

    /// The character device of this function alone (`/dev/vfio/devices/vfioN`), in kernels that make one.
    pub(crate) fn own_file(&self, address: PciAddress) -> Result<PathBuf, OpenError> {
        let folder = self.device(address).join("vfio-dev");
        match entries(&folder).into_iter().find(|(_, name)| name.starts_with("vfio")) {
            Some((_, name)) => Ok(Path::new("/dev/vfio/devices").join(name)),
            None => Err(OpenError::NoIommufd { address, path: folder, source: std::io::ErrorKind::NotFound.into() }),
        }
    }

    fn controllers(&self) -> Vec<String> {
        entries(&self.devices())
            .into_iter()
            .filter(|(path, _)| class(path).ok() == Some(CLASS_NVME))
            .map(|e| e.1)
            .collect()
    }

    /// Members of the function's IOMMU group that belong to a driver with which VFIO does not share the group.
    pub(crate) fn foreign_members(&self, address: PciAddress) -> Result<Vec<String>, OpenError> {
        let mut others = Vec::new();
        for (path, name) in entries(&self.device(address).join("iommu_group/devices")) {
            let Some(driver) = link_name(&path.join("driver")) else { continue };
            let bridge = class(&path)? & 0xff_0000 == CLASS_BRIDGE;
            let harmless = matches!(driver.as_str(), "vfio-pci" | "pci-stub") || bridge && driver == "pcieport";
            if name != address.to_string() && !harmless {
                others.push(format!("{name} ({driver})"));
            }
        }
        Ok(others)
    }

    /// Other members of the function's group that belong to VFIO.
    pub(crate) fn vfio_members(&self, address: PciAddress) -> Vec<String> {
        let members = entries(&self.device(address).join("iommu_group/devices")).into_iter();
        let ours = |(path, name): (PathBuf, String)| {
            let vfio = link_name(&path.join("driver")).as_deref() == Some("vfio-pci");
            (vfio && name != address.to_string()).then_some(name)
        };
        members.filter_map(ours).collect()
    }

    /// Bus addresses that PCI functions and bridges answer to: first and last byte of each. Without access control on
    /// the way, DMA to such an address may reach the peer and never the IOMMU.
    pub(crate) fn pci_windows(&self) -> Vec<(u64, u64)> {
        const IORESOURCE_MEM: u64 = 0x200;
        let mut windows = Vec::new();
        for (path, _) in entries(&self.devices()) {
            let Ok(text) = fs::read_to_string(path.join("resource")) else { continue };
            for line in text.lines() {
                let mut fields = line.split_whitespace().map(|f| u64::from_str_radix(f.trim_start_matches("0x"), 16));
                if let (Some(Ok(start)), Some(Ok(end)), Some(Ok(flags))) = (fields.next(), fields.next(), fields.next())
                    && flags & IORESOURCE_MEM != 0
                    && start <= end
                {
                    windows.push((start, end));
                }
            }
        }
        windows
    }

    /// What the system does with the namespaces of a controller that Linux's own driver holds.
    fn uses(&self, device: &Path) -> Result<Vec<String>, OpenError> {
        let mounts = read(&self.proc.join("self/mountinfo"))?;
        let swaps = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        let mut uses = Vec::new();
        for (controller, _) in entries(&device.join("nvme")) {
            for (path, name) in entries(&controller) {
                let Some(head) = namespace_head(&name) else { continue };
                // With multipathing the block device is not the path's (nvme0c1n1) but the subsystem's (nvme0n1).
                let block = if head == name { path } else { self.sys.join("class/block").join(&head) };
                block_uses(&block, &head, &mounts, &swaps, &mut uses);
                for (partition, name) in entries(&block) {
                    if partition.join("partition").exists() {
                        block_uses(&partition, &name, &mounts, &swaps, &mut uses);
                    }
                }
            }
        }
        Ok(uses)
    }
}

fn block_uses(block: &Path, name: &str, mounts: &str, swaps: &str, uses: &mut Vec<String>) {
    let (file, number) = (format!("/dev/{name}"), fs::read_to_string(block.join("dev")).unwrap_or_default());
    for line in mounts.lines() {
        // proc(5), mountinfo: the third field is the device's number, the fifth the mount point; behind a dash stand
        // type and source. File systems that span devices (btrfs) have a number of their own and only the source.
        let fields: Vec<&str> = line.split(' ').collect();
        let source = fields.iter().position(|&f| f == "-").and_then(|dash| fields.get(dash + 2));
        if let [_, _, device, _, point, ..] = fields[..]
            && (device == number.trim() || source == Some(&file.as_str()))
        {
            uses.push(format!("{file} is mounted at {point}"));
        }
    }
    if swaps.lines().any(|line| line.split_whitespace().next() == Some(&file)) {
        uses.push(format!("/dev/{name} is swap space"));
    }
    for (_, holder) in entries(&block.join("holders")) {
        uses.push(format!("/dev/{name} belongs to {holder}"));
    }
}

/// The block device of a namespace's path: `nvme0n1` of `nvme0c1n1` and of itself; `None` for what is no namespace.
fn namespace_head(name: &str) -> Option<String> {
    let rest = name.strip_prefix("nvme")?;
    let (controller, namespace) = rest.split_once('n')?;
    let subsystem = controller.split_once('c').map_or(controller, |(subsystem, _)| subsystem);
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (number(subsystem) && number(namespace)).then(|| format!("nvme{subsystem}n{namespace}"))
}

fn class(device: &Path) -> Result<u32, OpenError> {
    let path = device.join("class");
    let text = read(&path)?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16)
        .map_err(|e| OpenError::Read { path, source: std::io::Error::new(std::io::ErrorKind::InvalidData, e) })
}

fn read(path: &Path) -> Result<String, OpenError> {
    fs::read_to_string(path).map_err(|source| OpenError::Read { path: path.to_owned(), source })
}

fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// Entries of a folder with their names, sorted; none where there is no folder.
fn entries(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some((entry.as_ref().ok()?.path(), entry.ok()?.file_name().into_string().ok()?)))
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A made-up machine: a drive with Linux, one with VFIO, a network card.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.write("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
            machine.function("0000:01:00.0", "0x010802", Some("nvme"), Some("7"));
            machine.function("0000:02:00.0", "0x010802", Some("vfio-pci"), Some("8"));
            machine.function("0000:03:00.0", "0x020000", Some("e1000e"), Some("9"));
            machine.write("sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/dev", "259:0\n");
            machine.write("sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n");
            machine.write("sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p1/dev", "259:1\n");
            machine
        }

        fn path(&self, path: &str) -> PathBuf {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.path(path), text).unwrap();
        }

        fn function(&self, address: &str, class: &str, driver: Option<&str>, group: Option<&str>) {
            self.write(&format!("sys/bus/pci/devices/{address}/class"), &format!("{class}\n"));
            let device = self.path(&format!("sys/bus/pci/devices/{address}/"));
            if let Some(driver) = driver {
                symlink(self.path(&format!("sys/bus/pci/drivers/{driver}")), device.join("driver")).unwrap();
            }
            if let Some(group) = group {
                let folder = self.path(&format!("sys/kernel/iommu_groups/{group}/devices/{address}"));
                symlink(&device, folder).unwrap();
                symlink(self.path(&format!("sys/kernel/iommu_groups/{group}")), device.join("iommu_group")).unwrap();
            }
        }

        fn system(&self) -> System {
            System { sys: self.0.path().join("sys"), proc: self.0.path().join("proc") }
        }

        fn check(&self, address: &str) -> Result<u32, OpenError> {
            self.system().check(address.parse().unwrap())
        }

        fn refusal(&self, address: &str) -> String {
            self.check(address).unwrap_err().to_string()
        }
    }

    #[test]
    fn a_free_drive_gives_its_group() {
        assert_eq!(Machine::new().check("02:00.0").unwrap(), 8);
    }

    #[test]
    fn a_missing_function_names_those_there_are() {
        let text = Machine::new().refusal("05:00.0");
        assert!(text.contains("0000:05:00.0") && text.contains("0000:01:00.0, 0000:02:00.0"), "{text}");
    }

    #[test]
    fn a_network_card_is_refused() {
        assert!(matches!(Machine::new().check("03:00.0"), Err(OpenError::NotNvme { class: 0x020000, .. })));
    }

    #[test]
    fn another_driver_is_named_with_the_command_that_fixes_it() {
        let text = Machine::new().refusal("01:00.0");
        assert!(text.contains("bound to nvme") && text.contains("0000:01:00.0/driver/unbind"), "{text}");
        let machine = Machine::new();
        machine.function("0000:04:00.0", "0x010802", None, Some("10"));
        let text = machine.refusal("04:00.0");
        assert!(text.contains("no driver") && !text.contains("unbind") && text.contains("drivers_probe"), "{text}");
    }

    #[test]
    fn a_drive_in_use_is_named_with_its_use() {
        let drive = "sys/bus/pci/devices/0000:01:00.0/nvme/nvme0";
        let machine = Machine::new();
        machine.write("proc/self/mountinfo", "21 1 259:1 / /srv/data rw - ext4 /dev/nvme0n1p1 rw\n");
        let text = machine.refusal("01:00.0");
        assert!(text.contains("/dev/nvme0n1p1 is mounted at /srv/data") && !text.contains("unbind"), "{text}");

        let machine = Machine::new();
        machine.write("proc/self/mountinfo", "21 1 0:40 / /pool rw shared:1 - btrfs /dev/nvme0n1 rw\n");
        assert!(machine.refusal("01:00.0").contains("/dev/nvme0n1 is mounted at /pool"));

        let machine = Machine::new();
        machine.write("proc/swaps", "Filename Type Size\n/dev/nvme0n1 partition 100\n");
        assert!(machine.refusal("01:00.0").contains("/dev/nvme0n1 is swap space"));

        let machine = Machine::new();
        machine.write(&format!("{drive}/nvme0n1/nvme0n1p1/holders/dm-0/x"), "");
        assert!(machine.refusal("01:00.0").contains("/dev/nvme0n1p1 belongs to dm-0"));

        // The path of a multipath namespace: the head is elsewhere.
        let machine = Machine::new();
        machine.write(&format!("{drive}/nvme0c3n2/size"), "");
        machine.write("sys/class/block/nvme0n2/dev", "259:9\n");
        machine.write("proc/self/mountinfo", "21 1 259:9 / /mnt rw - ext4 /dev/nvme0n2 rw\n");
        assert!(machine.refusal("01:00.0").contains("/dev/nvme0n2 is mounted at /mnt"));
    }

    #[test]
    fn no_iommu_is_refused_in_both_its_forms() {
        let machine = Machine::new();
        machine.function("0000:04:00.0", "0x010802", Some("vfio-pci"), None);
        assert!(matches!(machine.check("04:00.0"), Err(OpenError::NoIommu { .. })));
        machine.write("sys/kernel/iommu_groups/8/name", "vfio-noiommu\n");
        assert!(matches!(machine.check("02:00.0"), Err(OpenError::NoIommuMode { .. })));
    }

    #[test]
    fn a_shared_group_names_the_others() {
        let machine = Machine::new();
        machine.function("0000:02:00.1", "0x010802", Some("vfio-pci"), Some("8"));
        machine.function("0000:00:1c.0", "0x060400", Some("pcieport"), Some("8"));
        machine.function("0000:02:00.2", "0x010601", None, Some("8"));
        assert_eq!(machine.check("02:00.0").unwrap(), 8);
        machine.function("0000:02:00.3", "0x0c0330", Some("xhci_hcd"), Some("8"));
        let text = machine.refusal("02:00.0");
        assert!(text.contains("group 8") && text.contains("0000:02:00.3 (xhci_hcd)"), "{text}");
        assert!(!text.contains("02:00.1") && !text.contains("00:1c.0") && !text.contains("02:00.2"), "{text}");
        assert_eq!(machine.system().vfio_members("02:00.0".parse().unwrap()), ["0000:02:00.1"]);
    }

    #[test]
    fn the_own_file_of_a_function() {
        let machine = Machine::new();
        let system = machine.system();
        let address: PciAddress = "02:00.0".parse().unwrap();
        let text = system.own_file(address).unwrap_err().to_string();
        assert!(text.contains("0000:02:00.0/vfio-dev") && text.contains("CONFIG_VFIO_DEVICE_CDEV"), "{text}");
        machine.write("sys/bus/pci/devices/0000:02:00.0/vfio-dev/vfio4/dev", "511:4\n");
        assert_eq!(system.own_file(address).unwrap(), Path::new("/dev/vfio/devices/vfio4"));
    }

    #[test]
    fn windows_are_the_memory_resources() {
        let machine = Machine::new();
        let lines = "0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n0x0000000000000000 0x0000000000000000 \
                     0x0000000000000000\n0x000000000000c000 0x000000000000c0ff 0x0000000000040101\nnonsense\n";
        machine.write("sys/bus/pci/devices/0000:01:00.0/resource", lines);
        let system = machine.system();
        assert_eq!(system.pci_windows(), [(0xfe00_0000, 0xfe00_3fff)]);
    }

    #[test]
    fn namespace_names() {
        assert_eq!(namespace_head("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(namespace_head("nvme10c2n13").as_deref(), Some("nvme10n13"));
        for other in ["nvme0", "power", "ng0n1", "nvmen1", "nvme0n1p1", "hwmon1"] {
            assert_eq!(namespace_head(other), None, "{other}");
        }
    }
}
