//! What a measurement ran on.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The machine, as far as it tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Name of the processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Runnable threads over the last minute; above half of the cores, a measurement is not to be trusted.
    pub load: f64,
}

impl MachineInfo {
    /// Reads `/proc`; what is not there is `unknown`, or 0.
    pub fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        Self {
            cpu: or_unknown(cpu.map_or("", |(_, name)| name.trim())),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: or_unknown(read("/proc/sys/kernel/osrelease").trim()),
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }

    /// Whether other work disturbs what is measured here.
    pub fn is_busy(&self) -> bool {
        self.load > self.cores as f64 / 2.0
    }
}

impl std::fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} cores, Linux {}, load {:.2}", self.cpu, self.cores, self.kernel, self.load)
    }
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The file system's type: `ext4`, `tmpfs`.
    pub kind: String,
    /// Where the file system is mounted.
    pub mounted_on: PathBuf,
    /// What it lies on: a device, as the kernel names it.
    pub source: String,
}

impl FileSystem {
    /// The file system that holds `path`, which exists. `None` where `/proc` does not tell.
    pub fn of(path: &Path) -> Option<Self> {
        Self::find(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path.canonicalize().ok()?)
    }

    fn find(mounts: &str, path: &Path) -> Option<Self> {
        let mount = |line: &str| {
            // 36 35 98:0 /root /mount/point options [optional ...] - type source options (proc_pid_mountinfo(5))
            let (front, back) = line.split_once(" - ")?;
            let mut front = front.split(' ');
            let mut back = back.split(' ');
            Some(Self {
                mounted_on: unescape(front.nth(4)?).into(),
                kind: back.next()?.to_owned(),
                source: unescape(back.next()?),
            })
        };
        // Of mounts on one place, the last one hides the others.
        let holders = mounts.lines().filter_map(mount).filter(|mount| path.starts_with(&mount.mounted_on));
        holders.max_by_key(|mount| mount.mounted_on.components().count())
    }
}

/// Blanks in names stand as `\040`, a backslash as `\134`.
fn unescape(name: &str) -> String {
    ["\\040 ", "\\011\t", "\\012\n", "\\134\\"]
        .iter()
        .fold(name.to_owned(), |name, pair| name.replace(&pair[..4], &pair[4..]))
}

/// The most memory that this process has had resident so far, bytes. `None` where `/proc` does not tell.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of memory that can be had without swapping, what the page cache could give back included: by the system, and by the limit
/// of this process's group. `None` where the system does not tell.
pub fn available_memory() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix("kB")?;
    let free = kib.trim().parse::<u64>().ok()?.checked_mul(1024)?;
    Some(left_of_group(Path::new("/sys/fs/cgroup")).map_or(free, |left| left.min(free)))
}

/// Available memory by the files of a group with a limit.
fn left_of_group(folder: &Path) -> Option<u64> {
    let read = |name| fs::read_to_string(folder.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    let max = number("memory.max")?;
    let current = number("memory.current")?;
    let of_files: u64 = read("memory.stat")
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| matches!(*name, "active_file" | "inactive_file"))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .sum();
    Some(max.saturating_sub(current.saturating_sub(of_files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /tmp rw,nosuid - tmpfs tmpfs rw
24 22 0:22 / /tmp/two\\040words rw master:3 propagate_from:2 - xfs /dev/sdb rw
25 22 0:23 / /tmp rw - btrfs /dev/sdc rw
broken line";

    #[test]
    fn the_innermost_last_mount_holds_a_path() {
        let find = |path| FileSystem::find(MOUNTS, Path::new(path)).map(|found| found.kind);
        assert_eq!(find("/home/me").as_deref(), Some("ext4"));
        assert_eq!(find("/tmp/two words/x").as_deref(), Some("xfs"));
        assert_eq!(find("/tmp/two").as_deref(), Some("btrfs"));
        assert_eq!(find("relative"), None);
    }

    #[test]
    fn there_is_memory_but_no_more_than_addresses() {
        let Some(available) = available_memory() else { return eprintln!("skipped: no MemAvailable in /proc/meminfo") };
        assert!((1 << 20..1 << 52).contains(&available), "{available}");
    }

    #[test]
    fn a_group_has_its_limit_less_what_is_no_page_cache() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        assert_eq!(left_of_group(group.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "3000\n");
        assert_eq!(left_of_group(group.path()), None);
        write("memory.max", "4000\n");
        assert_eq!(left_of_group(group.path()), Some(1000));
        write("memory.stat", "anon 500\nfile 2600\nactive_file 500\ninactive_file 2000\n");
        assert_eq!(left_of_group(group.path()), Some(3500));
    }

    #[test]
    fn memory_once_used_is_counted() {
        let Some(before) = peak_resident_bytes() else { return eprintln!("skipped: no VmHWM in /proc/self/status") };
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = peak_resident_bytes().unwrap();
        assert!(after >= before && after >= block.len() as u64, "{before} {after}");
    }
}
