//! Who has a file locked.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Characters of a command line that are kept, at most.
const COMMAND: usize = 200;

/// A process that has a file locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The process's number.
    pub pid: u32,
    /// The process's command line, as far as it can be read; cut where it is long.
    pub command: String,
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
    /// Who has the file locked with flock(2), as procfs tells it; `None`: nobody any more, or a process that cannot be seen from
    /// here, such as one of another container.
    pub(super) fn of(file: &fs::Metadata) -> Option<Self> {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let pid = locks.lines().filter_map(Lock::parse).find(|lock| lock.is_of(file))?.pid;
        Some(Self { pid, command: command(pid) })
    }
}

/// A drive, or whatever else has locked a file that it depends on, is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveInUse {
    /// The file that is locked: the drive's, where it is its sidecar that was asked for.
    pub path: PathBuf,
    /// The process that has it, if that can be told.
    pub holder: Option<LockHolder>,
}

impl DriveInUse {
    /// Who has it, in words.
    pub fn who(&self) -> String {
        self.holder.as_ref().map_or_else(|| "another process or this one".to_owned(), LockHolder::to_string)
    }
}

/// A line of `/proc/locks`.
struct Lock {
    pid: u32,
    device: (u64, u64),
    inode: u64,
}

impl Lock {
    /// `1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF`. Behind an arrow stands who waits for the lock before.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().skip(1);
        if fields.next()? != "FLOCK" {
            return None;
        }
        let pid = fields.nth(2)?;
        let place = fields.next()?;
        let mut place = place.split(':');
        let mut device = || u64::from_str_radix(place.next()?, 16).ok();
        let device = (device()?, device()?);
        Some(Self { pid: pid.parse().ok()?, device, inode: place.next()?.parse().ok()? })
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
        assert_eq!(LockHolder { pid: u32::MAX, command: "a b".into() }.to_string(), "process 4294967295 (a b)");
    }
}
