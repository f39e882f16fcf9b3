//! Files that the page cache has forgotten, and rows of theirs that nobody has read since.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::stat::{major, minor};
use warprow_dma::FileMapping;

use crate::SeededRandom;

/// What a page of the page cache has.
const PAGE: u64 = 4096;
/// Bytes that are read at a time.
const PART: usize = 1 << 20;
/// The share of a file that may stay in the page cache though it was asked to forget it: pages that somebody has mapped and read.
const KEPT: u64 = 16;
/// How long a disk goes on with what nobody waits for.
const MOMENT: Duration = Duration::from_millis(20);
/// Ids that are tried until one lies in a page that nobody has read.
const TRIES: u32 = 1000;

/// Has the page cache forget a file, which is written to the disk first. What a process has mapped and read since it mapped it is not forgotten. An
/// error if more than one byte in 16 stays, as on a file system in memory. What lies below the page cache, such as a disk's own
/// cache, or ZFS's, is not asked.
pub fn forget(file: &File) -> io::Result<()> {
    file.sync_all()?;
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let found = file.metadata()?;
    let mapped = found.len() / 8 * 8;
    let there = if mapped > 0 { FileMapping::new(file, mapped)?.resident()? } else { 0 };
    // Blocks of 512 bytes, whatever the file system has.
    let allocated = found.blocks() * 512;
    if there > allocated / KEPT {
        let why = format!("the page cache does not forget it: {there} of {allocated} bytes stay in memory");
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(())
}

/// Has the page cache hold what it can of a file: reads all of it, unless all that was written of it is there.
pub fn warm(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    // A mapping of ours has whole words. Blocks have 512 bytes, whatever the file system has.
    let mapped = found.len() / 8 * 8;
    if mapped > 0 && FileMapping::new(file, mapped)?.resident()? >= found.blocks() * 512 {
        return Ok(());
    }
    let mut part = vec![0; PART];
    let mut at = 0;
    loop {
        match file.read_at(&mut part, at)? {
            0 => return Ok(()),
            read => at += read as u64,
        }
    }
}

/// Waits a moment for what a disk still reads and nobody waits for any more, such as pages around the last rows, so that it does not fall
/// into the time of whoever reads next.
pub fn settle() {
    std::thread::sleep(MOMENT);
}

/// How many bytes around a byte the kernel reads from a file's disk where a mapping's pages are missed one by one, unless it was
/// told that they are (MADV_RANDOM): the disk's read-ahead. `None` where `/sys` does not tell.
pub fn read_around(file: &File) -> Option<u64> {
    let device = file.metadata().ok()?.dev();
    read_around_of(Path::new("/sys"), major(device), minor(device))
}

fn read_around_of(sys: &Path, major: u64, minor: u64) -> Option<u64> {
    let places = [
        format!("class/bdi/{major}:{minor}/read_ahead_kb"),
        // Of a disk, or of a partition.
        format!("dev/block/{major}:{minor}/queue/read_ahead_kb"),
        format!("dev/block/{major}:{minor}/../queue/read_ahead_kb"),
    ];
    let text = places.iter().find_map(|place| fs::read_to_string(sys.join(place)).ok())?;
    text.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Deals out ids at random whose rows lie in pages of a file that no row dealt before lies in.
#[derive(Clone, Debug)]
pub struct FreshPages {
    /// A bit for each page.
    dealt: Vec<u64>,
    rows: u64,
    random: SeededRandom,
}

/// No page is left that nobody has read, or hardly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hardly a page of the file is left that nobody has read")]
pub struct NoFreshPage;

impl FreshPages {
    /// Of a file of `bytes` bytes that holds a table of `rows` rows; no row was dealt.
    pub fn new(rows: u64, bytes: u64, seed: u64) -> Self {
        let words = bytes.div_ceil(PAGE).div_ceil(64);
        Self { dealt: vec![0; words as usize], rows, random: SeededRandom::new(seed) }
    }

    /// How many rows of a table of `rows` rows of `row_bytes` bytes, one after another, can be dealt at least, before it takes
    /// many tries to find another.
    pub fn room(rows: u64, row_bytes: u64) -> u64 {
        let pages = rows.saturating_mul(row_bytes) / PAGE;
        // Some rows lie in a page more than others.
        let alone = match row_bytes {
            0 => return 0,
            _ if PAGE.is_multiple_of(row_bytes) => pages,
            _ => (u128::from(pages * PAGE) / u128::from(PAGE + row_bytes - 1)) as u64,
        };
        alone.min(rows) / 4 * 3
    }

    /// Fills `ids`. `bytes_of` says where in the file the row of an id lies; one that lies nowhere is not dealt.
    pub fn deal(&mut self, ids: &mut [i64], bytes_of: impl Fn(i64) -> Option<Range<u64>>) -> Result<(), NoFreshPage> {
        for id in ids {
            let mut tries = 0..TRIES;
            *id = loop {
                tries.next().ok_or(NoFreshPage)?;
                let id = self.random.below(self.rows) as i64;
                if bytes_of(id).is_some_and(|bytes| self.take(bytes)) {
                    break id;
                }
            };
        }
        Ok(())
    }

    /// Whether all pages of these bytes are in the file and fresh, which they no longer are.
    fn take(&mut self, bytes: Range<u64>) -> bool {
        let pages = (bytes.start / PAGE) as usize..bytes.end.div_ceil(PAGE) as usize;
        let fresh = |page: usize| self.dealt.get(page / 64).is_some_and(|word| word & 1 << (page % 64) == 0);
        let taken = !pages.is_empty() && pages.clone().all(fresh);
        if taken {
            pages.for_each(|page| self.dealt[page / 64] |= 1 << (page % 64));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Write;

    use super::*;

    #[test]
    fn no_page_is_dealt_twice() {
        // Some rows lie in two pages.
        for row_bytes in [512, 400, 3000, 4096, 5000] {
            let rows = (1 << 20) / row_bytes;
            let bytes_of = |id: i64| Some(id as u64 * row_bytes..(id as u64 + 1) * row_bytes);
            let mut pages = FreshPages::new(rows, 1 << 20, 1);
            let mut ids = [0; 25];
            let mut seen = HashSet::new();
            for _ in 0..2 {
                pages.deal(&mut ids, bytes_of).unwrap();
                for bytes in ids.map(|id| bytes_of(id).unwrap()) {
                    for page in bytes.start / 4096..=(bytes.end - 1) / 4096 {
                        assert!(page < 256 && seen.insert(page), "rows of {row_bytes}: page {page} came twice");
                    }
                }
            }
            assert!(seen.len() >= 50);
            let room = FreshPages::room(rows, row_bytes);
            assert!((50..=192).contains(&room), "{room}");
            FreshPages::new(rows, 1 << 20, 2).deal(&mut vec![0; room as usize], bytes_of).unwrap();
            assert_eq!(pages.deal(&mut [0; 256], bytes_of), Err(NoFreshPage));
        }
        let mut pages = FreshPages::new(10, 1 << 20, 1);
        assert_eq!(pages.deal(&mut [0], |_| None), Err(NoFreshPage));
        assert_eq!(pages.deal(&mut [0], |_| Some(1 << 20..(1 << 20) + 512)), Err(NoFreshPage), "not in the file");
        assert_eq!(FreshPages::new(0, 0, 1).deal(&mut [0], |_| Some(0..512)), Err(NoFreshPage));
    }

    #[test]
    fn what_is_forgotten_is_no_longer_in_memory() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![7; 4 << 20]).unwrap();
        let mapping = FileMapping::new(&file, 4 << 20).unwrap();
        assert_eq!(mapping.resident().unwrap(), 4 << 20);
        match forget(&file) {
            Ok(()) => assert_eq!(mapping.resident().unwrap(), 0),
            Err(error) => return eprintln!("skipped: {error}"),
        }
        let mut byte = [0];
        mapping.read(1 << 20, &mut byte).unwrap();
        let there = mapping.resident().unwrap();
        assert!(byte[0] == 7 && (4096..=64 << 10).contains(&there), "{there}");
        // A page that is mapped and read stays, and is few.
        forget(&file).unwrap();
        let mut all = vec![0; 4 << 20];
        mapping.read(0, &mut all).unwrap();
        let error = forget(&file).unwrap_err();
        assert!(error.kind() == io::ErrorKind::Unsupported && error.to_string().contains("stay in memory"), "{error}");
        drop(mapping);
        forget(&file).unwrap();
        // Read once, all of it is there again; and where it is there already, nothing is read.
        warm(&file).unwrap();
        let mapping = FileMapping::new(&file, 4 << 20).unwrap();
        assert_eq!(mapping.resident().unwrap(), 4 << 20);
        warm(&file).unwrap();
    }

    #[test]
    fn disks_and_partitions_tell_their_read_ahead() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/disk");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("disk1")).unwrap();
        fs::write(disk.join("queue/read_ahead_kb"), "8192\n").unwrap();
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        std::os::unix::fs::symlink(&disk, sys.path().join("dev/block/254:0")).unwrap();
        std::os::unix::fs::symlink(disk.join("disk1"), sys.path().join("dev/block/254:1")).unwrap();
        for (minor, bytes) in [(0, Some(8 << 20)), (1, Some(8 << 20)), (2, None)] {
            assert_eq!(read_around_of(sys.path(), 254, minor), bytes, "254:{minor}");
        }
        fs::create_dir_all(sys.path().join("class/bdi/0:40")).unwrap();
        fs::write(sys.path().join("class/bdi/0:40/read_ahead_kb"), "128\n").unwrap();
        assert_eq!(read_around_of(sys.path(), 0, 40), Some(128 << 10));
    }

    #[test]
    fn memory_cannot_forget() {
        let file = nix::sys::memfd::memfd_create(c"rows", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let mut file = File::from(file);
        forget(&file).unwrap();
        file.write_all(&[7; 8192]).unwrap();
        assert_eq!(forget(&file).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
