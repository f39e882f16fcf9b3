//! Who has a file locked.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Characters of a command line that are kept, at most.
const COMMAND: usize = 200;

/// A process that has a file locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The process's number.
    pub pid: u32,
    /// The process's command line, as far as it can be read; cut where it is long.
    pub command: String,
    /// Whether the process shares the lock with others: it only reads.
    pub shares: bool,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid == std::process::id(), &*self.command) {
            (true, _) => write!(f, "this process ({})", self.pid),
            (false, "") => write!(f, "process {}", self.pid),
            (false, command) => write!(f, "process {} ({command})", self.pid),
        }
    }
}

impl LockHolder {
    /// Who has the file locked with flock(2), as procfs tells it, once for each lock. Those that cannot be seen from here, such as
    /// processes of other containers, are left out.
    pub(super) fn all_of(file: &fs::Metadata) -> Vec<Self> {
        let locks = Lock::all_of(file).into_iter();
        locks.map(|lock| Self { pid: lock.pid, command: command(lock.pid), shares: lock.shares }).collect()
    }

    /// How many locks of flock(2) the file has, as far as procfs tells.
    pub(super) fn count(file: &fs::Metadata) -> usize {
        Lock::all_of(file).len()
    }
}

/// A drive, or whatever else has locked a file that it depends on, is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveInUse {
    /// The file that is locked: the drive's, where it is its sidecar that was asked for.
    pub path: PathBuf,
    /// The processes that have it, as far as that can be told.
    pub holders: Vec<LockHolder>,
    /// Whether it was wanted for reading alone, beside others that read.
    pub for_reading: bool,
}

/// Holders that are named, at most: a command line each.
const NAMED: usize = 4;

impl DriveInUse {
    /// A lock of the file at `path`, whose metadata these are, that keeps others out.
    pub(super) fn new(path: &Path, file: &fs::Metadata, for_reading: bool) -> Self {
        Self { path: path.to_owned(), holders: LockHolder::all_of(file), for_reading }
    }

    /// Who has it, in words.
    pub fn who(&self) -> String {
        let named: Vec<String> = self.holders.iter().take(NAMED).map(LockHolder::to_string).collect();
        match (self.holders.len().saturating_sub(NAMED), named.split_last()) {
            (_, None) => "another process or this one".to_owned(),
            (0, Some((last, []))) => last.clone(),
            (0, Some((last, others))) => format!("{} and {last}", others.join(", ")),
            (more, _) => format!("{} and {more} more", named.join(", ")),
        }
    }

    /// Who has it, how, and what to do, in words.
    pub(super) fn remedy(&self) -> String {
        let (who, has) = (self.who(), if self.holders.len() > 1 { "have" } else { "has" });
        match self.for_reading {
            true => format!("{who} {has} it open for writing; close it there first, or open it there for reading too"),
            false if !self.holders.is_empty() && self.holders.iter().all(|holder| holder.shares) => {
                format!("{who} {has} it open for reading, and whoever writes needs it alone; close it there first")
            }
            false => format!("{who} {has} it open as a drive; close it there first"),
        }
    }
}

/// A line of `/proc/locks`.
struct Lock {
    pid: u32,
    shares: bool,
    device: (u64, u64),
    inode: u64,
}

impl Lock {
    /// The locks of a file that processes have, as procfs tells them. It may tell of a lock whose process has ended, while the kernel
    /// has not yet given the process's files up: that one is left out.
    fn all_of(file: &fs::Metadata) -> Vec<Self> {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let locks = locks.lines().filter_map(Self::parse).filter(|lock| lock.is_of(file));
        locks.filter(|lock| Path::new("/proc").join(lock.pid.to_string()).exists()).collect()
    }

    /// `1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF`. Behind an arrow stands who waits for the lock before.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().skip(1);
        if fields.next()? != "FLOCK" {
            return None;
        }
        let shares = fields.nth(1)? == "READ";
        let pid = fields.next()?;
        let place = fields.next()?;
        let mut place = place.split(':');
        let mut device = || u64::from_str_radix(place.next()?, 16).ok();
        let device = (device()?, device()?);
        Some(Self { pid: pid.parse().ok()?, shares, device, inode: place.next()?.parse().ok()? })
    }

    /// Some file systems show another device in their files' metadata than there is in that list: then what the process has open
    /// tells.
    fn is_of(&self, file: &fs::Metadata) -> bool {
        let device = (nix::sys::stat::major(file.dev()), nix::sys::stat::minor(file.dev()));
        self.inode == file.ino() && (self.device == device || self.has_open(file))
    }

    fn has_open(&self, file: &fs::Metadata) -> bool {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{}/fd", self.pid)) else { return false };
        let same = |found: fs::Metadata| (found.dev(), found.ino()) == (file.dev(), file.ino());
        descriptors.flatten().any(|descriptor| fs::metadata(descriptor.path()).is_ok_and(same))
    }
}

fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = line
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let line = words.join(" ");
    match line.char_indices().nth(COMMAND) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_of_locks_are_read() {
        let lock = Lock::parse("7: FLOCK  ADVISORY  WRITE 23511 fe:10:5481168 0 EOF").unwrap();
        assert_eq!((lock.pid, lock.device, lock.inode), (23511, (0xfe, 0x10), 5_481_168));
        assert!(!lock.shares && Lock::parse("8: FLOCK  ADVISORY  READ 1 08:01:131 0 EOF").unwrap().shares);
        for line in [
            "",
            "1: POSIX  ADVISORY  WRITE 1 08:01:131 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 1 08:01:131 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 08:01:131 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 1 <none>:0 0 EOF",
            "1: FLOCK  ADVISORY",
        ] {
            assert!(Lock::parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn command_lines_are_cut() {
        assert!(command(std::process::id()).chars().count() <= COMMAND + 1);
        assert_eq!(command(u32::MAX), "");
        assert_eq!(holder(u32::MAX).to_string(), "process 4294967295 (a b)");
    }

    fn holder(pid: u32) -> LockHolder {
        LockHolder { pid, command: "a b".into(), shares: true }
    }

    #[test]
    fn all_holders_are_named_or_counted() {
        let refused = |holders: u32, for_reading| {
            let holders = (0..holders).map(|at| holder(u32::MAX - at)).collect();
            DriveInUse { path: "d".into(), holders, for_reading }.remedy()
        };
        let one = "process 4294967295 (a b)";
        assert!(refused(0, false).starts_with("another process or this one has it open as a drive;"));
        assert!(refused(1, false).starts_with(&format!("{one} has it open for reading, and whoever writes")));
        assert!(
            refused(2, false).starts_with(&format!("{one} and process 4294967294 (a b) have it open for reading,"))
        );
        assert!(refused(9, false).contains("process 4294967292 (a b) and 5 more have it"));
        assert!(refused(1, true).starts_with(&format!("{one} has it open for writing;")));
    }
}
