//! Whether reads of a file wait for its disk.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

/// Time that some reads take together, from which on it is asked whether one of them waited for a disk. Reads from memory take
/// less, and a disk that answers faster is not waited for.
const SLOW: Duration = Duration::from_micros(20);
/// Reads in a row of which none waited, after which they are no longer announced.
const WARM: u32 = 256;

/// What one worker knows of the file that it reads: where reads come from memory, announcing each is a system call too many; where
/// they wait for a disk, those that are announced are waited for together.
#[derive(Debug)]
pub(crate) struct Cold {
    is_cold: bool,
    /// Reads since one last was found to come from a disk.
    since: u32,
    /// What the thread had read from disks when it was last asked.
    seen: (i64, i64),
}

impl Default for Cold {
    /// Nothing is known: the first reads are announced.
    fn default() -> Self {
        Self { is_cold: true, since: 0, seen: (0, 0) }
    }
}

impl Cold {
    /// Whether reads are to be announced.
    #[inline]
    pub(crate) fn is_cold(&self) -> bool {
        self.is_cold
    }

    /// Some reads were executed, and took so long. The caller's thread has announced them, if they were.
    #[inline]
    pub(crate) fn executed(&mut self, reads: u32, took: Duration) {
        if reads == 0 {
            return;
        }
        if self.is_cold {
            self.since = self.since.saturating_add(reads);
            if self.since >= WARM {
                self.is_cold = self.has_read();
                self.since = 0;
            }
        } else if took >= SLOW {
            self.is_cold = self.has_read();
            self.since = 0;
        }
    }

    /// Whether the thread has read from a disk since the last call: blocks that it asked for, or pages that it had to wait for.
    #[cold]
    fn has_read(&mut self) -> bool {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return false };
        let now = (usage.block_reads(), usage.major_page_faults());
        std::mem::replace(&mut self.seen, now) != now
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

    use super::*;

    #[test]
    fn a_thread_that_waits_for_a_disk_is_noticed_and_one_that_does_not_is() {
        let file = tempfile::tempfile_in("/var/tmp").or_else(|_| tempfile::tempfile()).unwrap();
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        let look = move || {
            let mut cold = Cold::default();
            cold.executed(WARM - 1, Duration::ZERO);
            assert!(cold.is_cold(), "too few to know");
            cold.executed(1, Duration::ZERO);
            assert!(!cold.is_cold(), "nothing was read from a disk");
            cold.executed(1, SLOW);
            assert!(!cold.is_cold(), "slow, but not for a disk");
            file.sync_all().unwrap();
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
            let before = getrusage(UsageWho::RUSAGE_THREAD).unwrap().block_reads();
            file.read_exact_at(&mut [0; 4096], 512 << 10).unwrap();
            if getrusage(UsageWho::RUSAGE_THREAD).unwrap().block_reads() == before {
                return eprintln!(
                    "skipped: this file system keeps what it was told to forget, or does not count reads"
                );
            }
            cold.executed(1, SLOW / 2);
            assert!(!cold.is_cold(), "too fast to ask");
            cold.executed(1, SLOW);
            assert!(cold.is_cold());
        };
        std::thread::spawn(look).join().unwrap();
    }
}
