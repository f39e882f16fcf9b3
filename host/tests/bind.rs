//! Binding and unbinding on made-up machines, under a kernel that obeys, refuses, or fails half-way.

mod machines;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use machines::{FREE, Fixture, RAID, SYSTEM, laptop, probe, server, vmd};
use warprow_host::{BindError, BindSteps, Machine, PciAddress, SysfsWriter};

const SHORT: Duration = Duration::from_millis(50);

/// What happens to the machine below a folder.
type Happens = fn(&Path);

/// A kernel, with the writes that it saw and what it does not do.
struct Kernel {
    root: PathBuf,
    seen: Mutex<Vec<String>>,
    /// The number of the write that fails, and how.
    fails: Option<(usize, io::ErrorKind)>,
    /// Drivers whose probe fails.
    unwilling: Vec<&'static str>,
    /// What happens to the function just before a write, by its number.
    before: Option<(usize, Happens)>,
}

impl Kernel {
    fn of(fixture: &Fixture) -> Self {
        let (seen, fails, unwilling, before) = Default::default();
        Self { root: fixture.root().to_owned(), seen, fails, unwilling, before }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl SysfsWriter for Kernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(format!("{}={}", path.strip_prefix(&self.root).unwrap().display(), text.trim_end()));
            seen.len() - 1
        };
        if let Some((_, then)) = self.before.filter(|(at, _)| *at == number) {
            then(&self.root);
        }
        if let Some((_, kind)) = self.fails.filter(|(at, _)| *at == number) {
            return Err(kind.into());
        }
        assert!(text.ends_with('\n'), "one line");
        if path.ends_with("driver_override") {
            assert!(path.exists());
            return fs::write(path, text);
        }
        if path.ends_with("driver/unbind") {
            assert!(path.parent().unwrap().ends_with(Path::new(text.trim()).join("driver")));
            return fs::remove_file(path.parent().unwrap());
        }
        assert!(path.ends_with("sys/bus/pci/drivers_probe"), "{path:?}");
        probe(&self.root, text.trim(), &self.unwilling);
        Ok(())
    }
}

fn at(fixture: &Fixture) -> Machine {
    Machine::at(fixture.root())
}

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn bind(fixture: &Fixture, text: &str) -> Result<BindSteps, BindError> {
    at(fixture).bind_steps(address(text), &[])
}

fn unbind(fixture: &Fixture, text: &str) -> Result<BindSteps, BindError> {
    at(fixture).unbind_steps(address(text))
}

fn driver(fixture: &Fixture, text: &str) -> Option<String> {
    at(fixture).function(address(text)).unwrap().driver
}

/// Fails, with a message that holds all these words and with a remedy; and nothing was written.
fn refused(result: Result<BindSteps, BindError>, words: &[&str]) {
    let error = result.expect_err("it should be refused");
    let text = format!("{error} | {}", error.remedy(false));
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    assert!(!error.remedy(false).is_empty() && !error.remedy(true).contains("as root"), "{}", error.remedy(true));
}

#[test]
fn a_free_drive_goes_to_vfio_and_back() {
    let machine = server();
    let kernel = Kernel::of(&machine);
    let plan = bind(&machine, FREE).unwrap();
    let device = "/sys/bus/pci/devices/0000:04:00.0";
    let printed: Vec<_> = plan.writes.iter().map(ToString::to_string).collect();
    assert_eq!(
        printed,
        [
            format!("echo vfio-pci > {device}/driver_override"),
            format!("echo {FREE} > {device}/driver/unbind"),
            format!("echo {FREE} > /sys/bus/pci/drivers_probe"),
        ]
    );
    assert!(kernel.seen().is_empty(), "a plan writes nothing");
    plan.run(&at(&machine), &kernel, SHORT).unwrap();
    assert_eq!(driver(&machine, FREE).as_deref(), Some("vfio-pci"));
    let done = kernel.seen();
    let told: Vec<_> = plan
        .writes
        .iter()
        .map(|write| format!("{}={}", write.path.trim_start_matches('/'), write.text.trim_end()))
        .collect();
    assert_eq!(done, told, "what was announced, and nothing else");

    // Again: nothing to do.
    let again = bind(&machine, FREE).unwrap();
    assert!(again.is_done());
    again.run(&at(&machine), &kernel, SHORT).unwrap();
    assert_eq!(kernel.seen().len(), 3);

    let back = unbind(&machine, FREE).unwrap();
    assert_eq!(back.writes[0].to_string(), format!("echo > {device}/driver_override"));
    back.run(&at(&machine), &kernel, SHORT).unwrap();
    assert_eq!(driver(&machine, FREE).as_deref(), Some("nvme"));
    assert!(unbind(&machine, FREE).unwrap().is_done());
    assert_eq!(fs::read_to_string(machine.path("sys/bus/pci/devices/0000:04:00.0/driver_override")).unwrap(), "\n");
}

#[test]
fn a_drive_without_a_driver_is_bound_as_well() {
    let machine = server();
    fs::remove_file(machine.path("sys/bus/pci/devices/0000:04:00.0/driver")).unwrap();
    let plan = bind(&machine, FREE).unwrap();
    assert_eq!(plan.writes.len(), 2, "there is nothing to unbind: {plan:?}");
    plan.run(&at(&machine), &Kernel::of(&machine), SHORT).unwrap();
    assert_eq!(driver(&machine, FREE).as_deref(), Some("vfio-pci"));
}

#[test]
fn what_is_used_is_refused_by_name() {
    let machine = server();
    refused(bind(&machine, SYSTEM), &[SYSTEM, "/dev/nvme1n1p2", "mounted at /", "the system runs from it", "swap"]);
    refused(bind(&machine, RAID), &[RAID, "RAID md0", "LVM vg-data", "/srv/my data", "mdadm --stop"]);
    machine.write("run/udev/data/b259:0", "E:ID_FS_TYPE=zfs_member\n");
    refused(bind(&machine, FREE), &["ZFS", "wipefs -a /dev/nvme0n1"]);
    machine.write("run/udev/data/b259:0", "E:ID_FS_TYPE=ext4\n");
    let plan = bind(&machine, FREE).unwrap();
    assert_eq!(plan.drive.contents[0].what, "ext4", "a file system that nobody mounts is told, and no reason");
}

#[test]
fn what_is_none_is_refused() {
    let machine = server();
    refused(bind(&machine, "0000:55:00.0"), &["no such PCI function", FREE, SYSTEM, RAID]);
    refused(bind(&machine, "0000:03:00.0"), &["0x030200", "not an NVMe controller"]);
    refused(unbind(&machine, "0000:03:00.0"), &["not an NVMe controller"]);
    machine.bind(FREE, "uio_pci_generic");
    refused(bind(&machine, FREE), &["uio_pci_generic", "unbind"]);
    refused(unbind(&machine, FREE), &["uio_pci_generic"]);
}

#[test]
fn without_iommu_or_vfio_it_is_refused() {
    let machine = server();
    fs::remove_file(machine.path("sys/bus/pci/devices/0000:04:00.0/iommu_group")).unwrap();
    refused(bind(&machine, FREE), &["no IOMMU", "intel_iommu=on"]);
    let machine = server();
    machine.write("sys/kernel/iommu_groups/6/name", "vfio-noiommu\n");
    refused(bind(&machine, FREE), &["no IOMMU"]);
    let machine = server();
    fs::remove_dir(machine.path("sys/bus/pci/drivers/vfio-pci")).unwrap();
    refused(bind(&machine, FREE), &["vfio-pci", "sudo modprobe vfio-pci"]);
    // What uses it is said first.
    refused(bind(&laptop(), "0000:02:00.0"), &["luks-root"]);
    refused(bind(&vmd(), "10000:e1:00.0"), &["Intel VMD 0000:00:0e.0", "firmware"]);
}

#[test]
fn others_of_the_group_are_named() {
    let machine = server();
    let sound = "pci0000:00/0000:05:00.0";
    machine.function(sound, ("0x040300", "0x8086", "0x1"), Some("snd_hda_intel"), 0, Some(6));
    refused(bind(&machine, FREE), &["group 6", "0000:05:00.0 (snd_hda_intel)"]);
    machine.bind("0000:05:00.0", "vfio-pci");
    bind(&machine, FREE).unwrap();

    // Another drive that is given at the same time is no hindrance.
    let block = machines::Block { name: "nvme7n1", dev: "259:70", parts: &[] };
    machine.nvme("pci0000:00/0000:06:00.0", 7, 0, Some(6), &block);
    refused(bind(&machine, FREE), &["0000:06:00.0 (nvme)"]);
    let both = [address(FREE), address("0000:06:00.0")];
    for one in both {
        let plan = at(&machine).bind_steps(one, &both).unwrap();
        plan.run(&at(&machine), &Kernel::of(&machine), SHORT).unwrap();
    }
    assert_eq!(driver(&machine, "0000:06:00.0").as_deref(), Some("vfio-pci"));
}

#[test]
fn what_cannot_be_known_is_refused() {
    let unknown = |change: &dyn Fn(&Fixture), word: &str| {
        let machine = server();
        change(&machine);
        refused(bind(&machine, FREE), &["cannot tell", word]);
    };
    unknown(&|fixture| fs::remove_file(fixture.path("proc/self/mountinfo")).unwrap(), "mountinfo");
    unknown(&|fixture| fs::remove_file(fixture.path("run/udev/data/b259:0")).unwrap(), "contents of /dev/nvme0n1");
    unknown(&|fixture| fs::remove_file(fixture.path("sys/class/block/nvme0n1")).unwrap(), "/dev/nvme0n1");
    let holders = "sys/class/block/nvme0n1/holders";
    let not_a_folder = |fixture: &Fixture| {
        fs::remove_dir(fixture.path(holders)).unwrap();
        fixture.write(holders, "");
    };
    unknown(&not_a_folder, "holders of /dev/nvme0n1");
    let nvme = |fixture: &Fixture| fs::remove_dir_all(fixture.path("sys/bus/pci/devices/0000:04:00.0/nvme")).unwrap();
    let machine = server();
    nvme(&machine);
    refused(bind(&machine, FREE), &["shows no controller", "dmesg", "driver/unbind"]);
}

#[test]
fn a_failure_at_any_write_puts_the_drive_back() {
    for at_write in 0..3 {
        let machine = server();
        let kernel = Kernel { fails: Some((at_write, io::ErrorKind::Other)), ..Kernel::of(&machine) };
        let error = bind(&machine, FREE).unwrap().run(&at(&machine), &kernel, SHORT).unwrap_err();
        assert!(matches!(&error, BindError::Write { undo: None, .. }), "{at_write}: {error:?}");
        assert!(error.to_string().contains("as it was"), "{error}");
        assert_eq!(driver(&machine, FREE).as_deref(), Some("nvme"), "write {at_write}");
        let over = fs::read_to_string(machine.path("sys/bus/pci/devices/0000:04:00.0/driver_override")).unwrap();
        assert_ne!(over.trim(), "vfio-pci", "write {at_write}: {:?}", kernel.seen());

        machine.bind(FREE, "vfio-pci");
        machine.write("sys/bus/pci/devices/0000:04:00.0/driver_override", "vfio-pci\n");
        let kernel = Kernel { fails: Some((at_write, io::ErrorKind::Other)), ..Kernel::of(&machine) };
        let error = unbind(&machine, FREE).unwrap().run(&at(&machine), &kernel, SHORT).unwrap_err();
        assert!(matches!(&error, BindError::Write { undo: None, .. }), "{at_write}: {error:?}");
        assert_eq!(driver(&machine, FREE).as_deref(), Some("vfio-pci"), "write {at_write}");
    }
}

#[test]
fn a_driver_that_does_not_take_the_drive_loses_it_again() {
    let machine = server();
    let kernel = Kernel { unwilling: vec!["vfio-pci"], ..Kernel::of(&machine) };
    let error = bind(&machine, FREE).unwrap().run(&at(&machine), &kernel, SHORT).unwrap_err();
    assert!(matches!(&error, BindError::NotTaken { undo: None, found: None, .. }), "{error:?}");
    assert_eq!(driver(&machine, FREE).as_deref(), Some("nvme"));

    // Nobody takes it: the error says so.
    let kernel = Kernel { unwilling: vec!["vfio-pci", "nvme"], ..Kernel::of(&machine) };
    let error = bind(&machine, FREE).unwrap().run(&at(&machine), &kernel, SHORT).unwrap_err();
    assert!(error.to_string().contains("could not be put back: it has no driver now"), "{error}");
}

#[test]
fn permission_denied_says_sudo() {
    let machine = server();
    let kernel = Kernel { fails: Some((0, io::ErrorKind::PermissionDenied)), ..Kernel::of(&machine) };
    let error = bind(&machine, FREE).unwrap().run(&at(&machine), &kernel, SHORT).unwrap_err();
    assert!(error.remedy(false).contains("sudo"), "{error}: {}", error.remedy(false));
    // Whom that does not help.
    assert!(error.remedy(true).contains("dmesg"), "{error}: {}", error.remedy(true));
}

#[test]
fn a_drive_that_goes_meanwhile_is_an_error_in_time() {
    let machine = server();
    let gone = |root: &Path| {
        let _ = fs::remove_file(root.join("sys/bus/pci/devices/0000:04:00.0"));
        let _ = fs::create_dir_all(root.join("sys/bus/pci/devices"));
    };
    let kernel = Kernel { before: Some((2, gone)), fails: Some((2, io::ErrorKind::NotFound)), ..Kernel::of(&machine) };
    let began = Instant::now();
    let failing = Failing(kernel);
    let error = bind(&machine, FREE).unwrap().run(&at(&machine), &failing, SHORT).unwrap_err();
    assert!(error.to_string().contains("could not be put back"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Writes to what is no longer there fail, as the kernel's do.
struct Failing(Kernel);

impl SysfsWriter for Failing {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        if self.0.seen().len() > 2 {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.0.write(path, text)
    }
}

#[test]
fn a_drive_that_a_process_drives_is_not_pulled_from_under_it() {
    let machine = server();
    machine.bind(FREE, "vfio-pci");
    machine.dangling("proc/77/fd/5", "/dev/vfio/6");
    machine.write("proc/77/comm", "trainer\n");
    refused(unbind(&machine, FREE), &["/dev/vfio/6", "process 77 (trainer)"]);
}

#[test]
fn the_real_writes_do_not_make_files() {
    let machine = server();
    let absent = machine.path("sys/bus/pci/absent");
    let error = warprow_host::KernelFiles.write(&absent, "x\n").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(!absent.exists());
    warprow_host::KernelFiles.write(&machine.path("sys/bus/pci/drivers_probe"), "x\n").unwrap();
    assert_eq!(fs::read_to_string(machine.path("sys/bus/pci/drivers_probe")).unwrap(), "x\n");
}
