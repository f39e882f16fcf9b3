//! Who uses a block device: what the system says of mounts, swap, arrays, volumes and open files.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::Machine;
use crate::contents::{self, FoundContent};
use crate::files::{entries, link_name, listing, read, text};

/// The most devices stacked upon one drive that are followed.
const MOST_STACKED: usize = 4096;
/// The `by` of a use that only a signature tells of.
const LEFT: &str = "(found on it; not in use now)";
/// The mount points that a machine boots from.
const BOOT: [&str; 5] = ["/", "/boot", "/boot/efi", "/efi", "/usr"];

/// A use of a block device that forbids taking it away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceUse {
    /// The device, as `/dev/nvme0n1p1`.
    pub device: String,
    /// What kind of use it is.
    pub kind: DeviceUseKind,
    /// The mount point, array, volume or process.
    pub by: String,
}

/// Kinds of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceUseKind {
    /// Mounted where the running system lies.
    Boot,
    /// Mounted.
    Mount,
    /// Swap space in use.
    Swap,
    /// Member of an array of md or the firmware.
    Raid,
    /// Physical volume of LVM.
    Lvm,
    /// Below dm-crypt.
    Crypt,
    /// Below another device-mapper target.
    DeviceMapper,
    /// Part of a bcache.
    Bcache,
    /// Part of a ZFS pool.
    Zfs,
    /// Part of a mounted btrfs.
    Btrfs,
    /// Below a loop device.
    Loop,
    /// Exported over a network by nvmet.
    Export,
    /// Held by another device.
    Holder,
    /// The firmware may boot from it.
    Efi,
    /// Open in a process.
    Open,
}

impl DeviceUseKind {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Mount => "mount",
            Self::Swap => "swap",
            Self::Raid => "raid",
            Self::Lvm => "lvm",
            Self::Crypt => "crypt",
            Self::DeviceMapper => "device-mapper",
            Self::Bcache => "bcache",
            Self::Zfs => "zfs",
            Self::Btrfs => "btrfs",
            Self::Loop => "loop",
            Self::Export => "export",
            Self::Holder => "holder",
            Self::Efi => "efi",
            Self::Open => "open",
        }
    }
}

impl DeviceUse {
    /// Whether only a signature on the device tells of the use, and nothing uses the device now.
    pub fn is_left(&self) -> bool {
        self.by == LEFT
    }
}

impl fmt::Display for DeviceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, kind, by } = self;
        match kind {
            DeviceUseKind::Boot => write!(f, "{device} is mounted at {by}: the system runs from it"),
            DeviceUseKind::Mount => write!(f, "{device} is mounted at {by}"),
            DeviceUseKind::Swap => write!(f, "{device} is swap space"),
            DeviceUseKind::Raid => write!(f, "{device} belongs to RAID {by}"),
            DeviceUseKind::Lvm => write!(f, "{device} belongs to LVM {by}"),
            DeviceUseKind::Crypt => write!(f, "{device} is encrypted and open as {by}"),
            DeviceUseKind::DeviceMapper | DeviceUseKind::Holder => write!(f, "{device} belongs to {by}"),
            DeviceUseKind::Bcache => write!(f, "{device} belongs to bcache {by}"),
            DeviceUseKind::Zfs => write!(f, "{device} belongs to ZFS {by}"),
            DeviceUseKind::Btrfs => write!(f, "{device} belongs to the mounted btrfs {by}"),
            DeviceUseKind::Loop => write!(f, "{device} is open as {by}"),
            DeviceUseKind::Export => write!(f, "{device} is exported by nvmet as {by}"),
            DeviceUseKind::Efi => write!(f, "{device} is an EFI system partition: the machine may boot from it"),
            DeviceUseKind::Open => write!(f, "{device} is open in {by}"),
        }
    }
}

/// What procfs and sysfs say of all block devices, read once.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    mounts: Vec<Mount>,
    swaps: Vec<String>,
    /// Device files that processes have open, with the processes.
    open: BTreeMap<String, Vec<String>>,
    loops: Vec<(String, String)>,
    exports: Vec<(String, String)>,
    /// Pools of ZFS that are imported.
    pools: Vec<String>,
    /// What could not be read, though a drive's safety hangs on it.
    pub(crate) unread: Vec<String>,
}

#[derive(Debug)]
struct Mount {
    device: String,
    source: Option<String>,
    point: String,
}

/// What was found out about one drive's block devices.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) uses: Vec<DeviceUse>,
    pub(crate) contents: Vec<FoundContent>,
    pub(crate) unread: Vec<String>,
}

impl Usage {
    pub(crate) fn read(machine: &Machine) -> Self {
        let mut usage = Self::default();
        let own = machine.path("/proc/self/mountinfo");
        match read(&own) {
            Ok(text) => usage.mounts = mounts(&text),
            Err(error) => usage.unread.push(format!("{}: {error}", machine.named(&own).display())),
        }
        let swaps = machine.path("/proc/swaps");
        match read(&swaps) {
            Ok(text) => {
                let first = |line: &str| line.split_whitespace().next().map(unescape);
                usage.swaps = text.lines().filter_map(first).collect();
            }
            // A kernel without swap has no such file.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => usage.unread.push(format!("{}: {error}", machine.named(&swaps).display())),
        }
        usage.processes(machine);
        for (path, name) in entries(&machine.path("/sys/block")) {
            if let Some(file) = text(&path.join("loop/backing_file")) {
                usage.loops.push((file, format!("/dev/{name}")));
            }
        }
        for (subsystem, name) in entries(&machine.path("/sys/kernel/config/nvmet/subsystems")) {
            for (namespace, _) in entries(&subsystem.join("namespaces")) {
                usage.exports.extend(text(&namespace.join("device_path")).map(|path| (path, name.clone())));
            }
        }
        let pools = entries(&machine.path("/proc/spl/kstat/zfs"));
        usage.pools = pools.into_iter().filter(|(path, _)| path.is_dir()).map(|(_, name)| name).collect();
        usage
    }

    /// Open device files, and mounts of other mount namespaces, as far as this user may see them.
    fn processes(&mut self, machine: &Machine) {
        let own = link_name(&machine.path("/proc/self/ns/mnt"));
        let mut seen: HashSet<String> = own.into_iter().collect();
        let me = std::process::id().to_string();
        for (process, id) in entries(&machine.path("/proc")) {
            if !id.bytes().all(|b| b.is_ascii_digit()) || machine.is_this() && id == me {
                continue;
            }
            if let Some(namespace) = link_name(&process.join("ns/mnt"))
                && seen.insert(namespace)
                && let Ok(text) = read(&process.join("mountinfo"))
            {
                self.mounts.extend(mounts(&text));
            }
            for (descriptor, _) in entries(&process.join("fd")) {
                let Some(file) =
                    std::fs::read_link(descriptor).ok().and_then(|file| file.into_os_string().into_string().ok())
                else {
                    continue;
                };
                if file.starts_with("/dev/") {
                    let name = text(&process.join("comm")).unwrap_or_default();
                    let by = format!("process {id} ({name})");
                    let users = self.open.entry(file).or_default();
                    if !users.contains(&by) {
                        users.push(by);
                    }
                }
            }
        }
    }

    /// Who has a device file open.
    pub(crate) fn openers(&self, file: &str) -> &[String] {
        self.open.get(file).map_or(&[], Vec::as_slice)
    }

    /// Notes all uses of a drive's block device, of its partitions, and of what is stacked upon them.
    pub(crate) fn of(&self, machine: &Machine, name: &str) -> Found {
        let mut found = Found { unread: self.unread.clone(), ..Found::default() };
        let mut visited = HashSet::new();
        let mut next = vec![(name.to_owned(), true)];
        while let Some((name, own)) = next.pop() {
            if visited.len() >= MOST_STACKED || !visited.insert(name.clone()) {
                continue;
            }
            let folder = folder(machine, &name);
            self.device(machine, &name, &folder, own, &mut found);
            match listing(&folder.join("holders")) {
                Ok(holders) => {
                    for (_, holder) in holders {
                        found.uses.push(held(machine, &name, &holder));
                        next.push((holder, false));
                    }
                }
                Err(error) => found.unread.push(format!("holders of /dev/{name}: {error}")),
            }
            match listing(&folder) {
                Ok(parts) => {
                    let parts = parts.into_iter().filter(|(path, _)| path.join("partition").exists());
                    next.extend(parts.map(|(_, part)| (part, own)));
                }
                Err(error) => found.unread.push(format!("partitions of /dev/{name}: {error}")),
            }
        }
        found.uses.sort();
        found.uses.dedup();
        let live: HashSet<_> = found
            .uses
            .iter()
            .filter(|device_use| !device_use.is_left())
            .map(|device_use| (device_use.device.clone(), device_use.kind))
            .collect();
        found.uses.retain(|device_use| {
            !device_use.is_left() || !live.contains(&(device_use.device.clone(), device_use.kind))
        });
        found.unread.sort();
        found.unread.dedup();
        found.contents.sort();
        found.contents.dedup();
        found
    }

    /// Notes the uses of one block device; `own`: the device is the drive's own, not stacked upon it.
    fn device(&self, machine: &Machine, name: &str, folder: &Path, own: bool, found: &mut Found) {
        let file = format!("/dev/{name}");
        let mut push = |kind, by: &str| found.uses.push(DeviceUse { device: file.clone(), kind, by: by.to_owned() });
        let number = text(&folder.join("dev"));
        for mount in &self.mounts {
            if number.as_ref() == Some(&mount.device) || mount.source.as_deref() == Some(&file) {
                let kind =
                    if BOOT.contains(&mount.point.as_str()) { DeviceUseKind::Boot } else { DeviceUseKind::Mount };
                push(kind, &mount.point);
            }
        }
        if self.swaps.contains(&file) {
            push(DeviceUseKind::Swap, "");
        }
        for (volume, id) in entries(&machine.path("/sys/fs/btrfs")) {
            if volume.join("devices").join(name).exists() {
                push(DeviceUseKind::Btrfs, &id);
            }
        }
        self.loops.iter().filter(|(below, _)| *below == file).for_each(|(_, by)| push(DeviceUseKind::Loop, by));
        self.exports.iter().filter(|(below, _)| *below == file).for_each(|(_, by)| push(DeviceUseKind::Export, by));
        let generic = file.replace("/dev/nvme", "/dev/ng");
        for by in self.openers(&file).iter().chain(self.openers(&generic).iter().filter(|_| generic != file)) {
            push(DeviceUseKind::Open, by);
        }
        if !own {
            return;
        }
        match contents::read(machine, name, folder, number.as_deref()) {
            Ok(contents) => {
                for content in contents {
                    match content.kind {
                        Some(DeviceUseKind::Zfs) if !self.pools.is_empty() => {
                            push(DeviceUseKind::Zfs, &format!("(pools imported here: {})", self.pools.join(", ")));
                        }
                        Some(kind) => push(kind, LEFT),
                        None => {}
                    }
                    found.contents.push(content);
                }
            }
            Err(error) => found.unread.push(format!("contents of {file}: {error}")),
        }
    }
}

fn folder(machine: &Machine, name: &str) -> PathBuf {
    machine.path(&format!("/sys/class/block/{name}"))
}

/// The use that it means when `holder` holds a device.
fn held(machine: &Machine, name: &str, holder: &str) -> DeviceUse {
    let folder = folder(machine, holder);
    let mapped = || text(&folder.join("dm/name")).unwrap_or_else(|| holder.to_owned());
    let id = text(&folder.join("dm/uuid")).unwrap_or_default();
    let (kind, by) = if holder.starts_with("md") {
        (DeviceUseKind::Raid, holder.to_owned())
    } else if holder.starts_with("bcache") {
        (DeviceUseKind::Bcache, holder.to_owned())
    } else if id.starts_with("LVM-") {
        (DeviceUseKind::Lvm, mapped())
    } else if id.starts_with("CRYPT-") {
        (DeviceUseKind::Crypt, mapped())
    } else if id.starts_with("DMRAID-") {
        (DeviceUseKind::Raid, mapped())
    } else if holder.starts_with("dm-") {
        (DeviceUseKind::DeviceMapper, mapped())
    } else {
        (DeviceUseKind::Holder, holder.to_owned())
    };
    DeviceUse { device: format!("/dev/{name}"), kind, by }
}

/// proc(5), mountinfo: the third field is the device's number, the fifth the mount point; behind a dash stand type and
/// source. File systems that span devices (btrfs) have a number of their own and only the source.
fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let source = fields.iter().position(|&field| field == "-").and_then(|dash| fields.get(dash + 2));
        Some(Mount {
            device: (*fields.get(2)?).to_owned(),
            point: unescape(fields.get(4)?),
            source: source.map(|source| unescape(source)),
        })
    };
    text.lines().filter_map(mount).collect()
}

/// Blanks and the like are written as `\040`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) => {
                bytes.push(value);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_mountinfo() {
        assert_eq!(unescape(r"/srv/my\040data\134x"), r"/srv/my data\x");
        assert_eq!([unescape(r"\04"), unescape(r"\999x"), unescape("\\")], [r"\04", r"\999x", "\\"].map(str::to_owned));
        let parsed = mounts("21 1 0:40 / /my\\040pool rw shared:1 - btrfs /dev/nvme0n1 rw\nnonsense\n1 2 3 4 5\n");
        assert_eq!(parsed.len(), 2);
        assert_eq!((parsed[0].point.as_str(), parsed[0].source.as_deref()), ("/my pool", Some("/dev/nvme0n1")));
        assert_eq!(parsed[1].source, None);
    }
}
