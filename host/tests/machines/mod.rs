//! Made-up machines: trees of the files that Linux would show, in a folder that goes in the end.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

pub(crate) struct Fixture {
    dir: TempDir,
}

/// A namespace's block device, and its partitions with their numbers.
pub(crate) struct Block<'a> {
    pub(crate) name: &'a str,
    pub(crate) dev: &'a str,
    pub(crate) parts: &'a [(&'a str, &'a str)],
}

impl Fixture {
    /// A machine with a kernel and a processor, and nothing else.
    pub(crate) fn new() -> Self {
        // In memory where there is such a folder: it is hundreds of small files.
        let machine = Self { dir: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap() };
        machine.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Made-up Xeon\n");
        machine.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
        machine.write("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        machine.write("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
        machine.write("proc/self/status", "Name:\twarprow\nCapEff:\t0000000000000000\n");
        machine
            .write("proc/self/limits", "Max locked memory         8388608              8388608              bytes\n");
        machine.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n");
        for (kib, free, all) in [(2048, 512, 1024), (1 << 20, 0, 0)] {
            let folder = format!("sys/kernel/mm/hugepages/hugepages-{kib}kB");
            machine.write(&format!("{folder}/free_hugepages"), format!("{free}\n"));
            machine.write(&format!("{folder}/nr_hugepages"), format!("{all}\n"));
        }
        machine.write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
        for driver in ["nvme", "pcieport"] {
            machine.folder(&format!("sys/bus/pci/drivers/{driver}"));
        }
        machine.write("sys/bus/pci/drivers_probe", "");
        machine.folder("sys/bus/pci/devices");
        machine.folder("sys/class/block");
        machine
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn folder(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn append(&self, path: &str, text: &str) {
        let before = fs::read_to_string(self.path(path)).unwrap();
        self.write(path, before + text);
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        let target = self.path(target);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    /// A link whose text is what the machine would show, though nothing is there.
    pub(crate) fn dangling(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// IOMMU and VFIO, as on a server that is set up.
    pub(crate) fn with_vfio(self) -> Self {
        self.write("sys/class/iommu/dmar0/intel-iommu/cap", "8d2078c106f0466\n");
        self.folder("sys/bus/pci/drivers/vfio-pci");
        self.folder("sys/module/vfio");
        self.folder("sys/module/vfio_iommu_type1");
        self.write("dev/vfio/vfio", "");
        self
    }

    /// A PCI function at the end of a way below `sys/devices`; returns nothing, for its address names it.
    pub(crate) fn function(
        &self,
        way: &str,
        ids: (&str, &str, &str),
        driver: Option<&str>,
        node: i32,
        group: Option<u32>,
    ) {
        let address = way.rsplit('/').next().unwrap();
        let folder = format!("sys/devices/{way}");
        for (name, text) in [("class", ids.0), ("vendor", ids.1), ("device", ids.2)] {
            self.write(&format!("{folder}/{name}"), format!("{text}\n"));
        }
        self.write(&format!("{folder}/numa_node"), format!("{node}\n"));
        self.write(&format!("{folder}/driver_override"), "(null)\n");
        self.link(&format!("sys/bus/pci/devices/{address}"), &folder);
        if let Some(driver) = driver {
            self.bind(address, driver);
        }
        if let Some(group) = group {
            let members = format!("sys/kernel/iommu_groups/{group}");
            self.link(&format!("{members}/devices/{address}"), &folder);
            self.link(&format!("{folder}/iommu_group"), &members);
        }
    }

    pub(crate) fn bind(&self, address: &str, driver: &str) {
        let folder = format!("sys/bus/pci/drivers/{driver}");
        self.write(&format!("{folder}/unbind"), "");
        self.link(&format!("sys/bus/pci/devices/{address}/driver"), &folder);
    }

    pub(crate) fn bridge(&self, way: &str, node: i32, group: u32) {
        self.function(way, ("0x060400", "0x8086", "0x347a"), Some("pcieport"), node, Some(group));
    }

    pub(crate) fn gpu(&self, way: &str, node: i32, group: u32) {
        self.function(way, ("0x030200", "0x10de", "0x2336"), Some("nvidia"), node, Some(group));
    }

    /// An NVMe controller that Linux's own driver has, with one namespace.
    pub(crate) fn nvme(&self, way: &str, number: u32, node: i32, group: Option<u32>, block: &Block) {
        self.function(way, ("0x010802", "0x144d", "0xa80a"), Some("nvme"), node, group);
        let folder = format!("sys/devices/{way}/nvme/nvme{number}");
        for (name, text) in [
            ("model", "MADE-UP DRIVE 3.84TB                    ".to_owned()),
            ("serial", format!("S{number:0>4}")),
            ("firmware_rev", "FW12".to_owned()),
        ] {
            self.write(&format!("{folder}/{name}"), text + "\n");
        }
        self.write(&format!("{folder}/hwmon{number}/temp1_input"), "41850\n");
        let below = format!("{folder}/{}", block.name);
        self.block(&below, block.name, block.dev, 7_501_476_528);
        for (name, text) in [("nsid", "1"), ("metadata_bytes", "0"), ("queue/logical_block_size", "512")] {
            self.write(&format!("{below}/{name}"), format!("{text}\n"));
        }
        self.write(&format!("{below}/queue/write_cache"), "write through\n");
        for (part, dev) in block.parts {
            self.block(&format!("{below}/{part}"), part, dev, 1 << 20);
            self.write(&format!("{below}/{part}/partition"), "1\n");
        }
    }

    /// A block device at a path below the root, with udev's record of it.
    pub(crate) fn block(&self, folder: &str, name: &str, dev: &str, sectors: u64) {
        self.write(&format!("{folder}/dev"), format!("{dev}\n"));
        self.write(&format!("{folder}/size"), format!("{sectors}\n"));
        self.folder(&format!("{folder}/holders"));
        self.link(&format!("sys/class/block/{name}"), folder);
        self.write(&format!("run/udev/data/b{dev}"), "E:ID_MODEL=MADE-UP\n");
    }

    /// `below` (as `nvme0n1p1`) is held by `holder`, a device of its own.
    pub(crate) fn hold(&self, below: &str, holder: &str, dev: &str) {
        let folder = format!("sys/devices/virtual/block/{holder}");
        self.block(&folder, holder, dev, 1 << 20);
        self.link(&format!("sys/class/block/{below}/holders/{holder}"), &folder);
    }

    /// What a kernel does when its files are written: until the result is dropped, drivers come and go.
    pub(crate) fn kernel(&self) -> Kernel {
        let root = self.dir.path().to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let taken = |path: PathBuf| {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    let address = text.strip_suffix('\n').map(str::to_owned);
                    if address.is_some() {
                        fs::write(path, "").unwrap();
                    }
                    address
                };
                for driver in ["nvme", "vfio-pci"] {
                    if let Some(address) = taken(root.join(format!("sys/bus/pci/drivers/{driver}/unbind"))) {
                        let _ = fs::remove_file(root.join(format!("sys/bus/pci/devices/{address}/driver")));
                    }
                }
                if let Some(address) = taken(root.join("sys/bus/pci/drivers_probe")) {
                    probe(&root, &address, &[]);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Kernel { stop, thread: Some(thread) }
    }
}

/// A driver for a function that has none: the one it is to have, else nvme; not one of `unwilling`.
pub(crate) fn probe(root: &Path, address: &str, unwilling: &[&str]) {
    let device = root.join(format!("sys/bus/pci/devices/{address}"));
    let over = fs::read_to_string(device.join("driver_override")).unwrap_or_default();
    let driver = match over.trim() {
        "" | "(null)" => "nvme",
        driver => driver,
    };
    let folder = root.join(format!("sys/bus/pci/drivers/{driver}"));
    if !device.join("driver").exists() && folder.is_dir() && !unwilling.contains(&driver) {
        let file = folder.join("unbind");
        if !file.exists() {
            fs::write(file, "").unwrap();
        }
        symlink(folder, device.join("driver")).unwrap();
    }
}

pub(crate) struct Kernel {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub(crate) const FREE: &str = "0000:04:00.0";
pub(crate) const SYSTEM: &str = "0000:41:00.0";
pub(crate) const RAID: &str = "0000:82:00.0";

/// Two sockets, two GPUs, three drives: one free, below a switch with a GPU; the system's; and a member of a RAID with
/// LVM on it.
pub(crate) fn server() -> Fixture {
    let machine = Fixture::new().with_vfio();
    let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
    machine.bridge("pci0000:00/0000:00:01.0", 0, 1);
    machine.bridge(switch, 0, 2);
    machine.bridge(&format!("{switch}/0000:02:00.0"), 0, 3);
    machine.bridge(&format!("{switch}/0000:02:01.0"), 0, 4);
    machine.gpu(&format!("{switch}/0000:02:00.0/0000:03:00.0"), 0, 5);
    let free = Block { name: "nvme0n1", dev: "259:0", parts: &[] };
    machine.nvme(&format!("{switch}/0000:02:01.0/{FREE}"), 0, 0, Some(6), &free);

    machine.bridge("pci0000:40/0000:40:01.0", 0, 7);
    let parts = &[("nvme1n1p1", "259:2"), ("nvme1n1p2", "259:3"), ("nvme1n1p3", "259:4")];
    let system = Block { name: "nvme1n1", dev: "259:1", parts };
    machine.nvme(&format!("pci0000:40/0000:40:01.0/{SYSTEM}"), 1, 0, Some(8), &system);
    machine.write(
        "run/udev/data/b259:2",
        "E:ID_FS_TYPE=vfat\nE:ID_PART_ENTRY_TYPE=c12a7328-f81f-11d2-ba4b-00a0c93ec93b\n",
    );
    machine.write(
        "proc/self/mountinfo",
        "21 1 259:3 / / rw - ext4 /dev/nvme1n1p2 rw\n22 21 259:2 / /boot/efi rw - vfat /dev/nvme1n1p1 rw\n\
         23 21 253:0 / /srv/my\\040data rw - xfs /dev/mapper/vg-data rw\n",
    );
    machine.append("proc/swaps", "/dev/nvme1n1p3 partition 100 0 -2\n");

    machine.bridge("pci0000:80/0000:80:01.0", 1, 9);
    machine.gpu("pci0000:80/0000:80:01.0/0000:81:00.0", 1, 10);
    machine.bridge("pci0000:80/0000:80:03.0", 1, 11);
    let raid = Block { name: "nvme2n1", dev: "259:5", parts: &[("nvme2n1p1", "259:6")] };
    machine.nvme(&format!("pci0000:80/0000:80:03.0/{RAID}"), 2, 1, Some(12), &raid);
    machine.write("run/udev/data/b259:6", "E:ID_FS_TYPE=linux_raid_member\n");
    machine.hold("nvme2n1p1", "md0", "9:0");
    machine.hold("md0", "dm-0", "253:0");
    machine.write("sys/class/block/dm-0/dm/name", "vg-data\n");
    machine.write("sys/class/block/dm-0/dm/uuid", "LVM-abcdef\n");
    machine
}

/// One drive, with the system on it, and no IOMMU.
pub(crate) fn laptop() -> Fixture {
    let machine = Fixture::new();
    let system = Block { name: "nvme0n1", dev: "259:0", parts: &[("nvme0n1p1", "259:1")] };
    machine.function("pci0000:00/0000:00:06.0", ("0x060400", "0x8086", "0x09ab"), Some("pcieport"), -1, None);
    machine.nvme("pci0000:00/0000:00:06.0/0000:02:00.0", 0, -1, None, &system);
    machine.hold("nvme0n1p1", "dm-0", "253:0");
    machine.write("sys/class/block/dm-0/dm/name", "luks-root\n");
    machine.write("sys/class/block/dm-0/dm/uuid", "CRYPT-LUKS2-x\n");
    machine.write("proc/self/mountinfo", "21 1 253:0 / / rw - ext4 /dev/mapper/luks-root rw\n");
    machine
}

/// A machine whose drive sits behind Intel's VMD.
pub(crate) fn vmd() -> Fixture {
    let machine = Fixture::new().with_vfio();
    machine.function("pci0000:00/0000:00:0e.0", ("0x010400", "0x8086", "0x467f"), Some("vmd"), 0, Some(1));
    let below = "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0";
    machine.function(below, ("0x060400", "0x8086", "0x464d"), Some("pcieport"), 0, Some(1));
    let drive = Block { name: "nvme0n1", dev: "259:0", parts: &[] };
    machine.nvme(&format!("{below}/10000:e1:00.0"), 0, 0, Some(1), &drive);
    machine
}
