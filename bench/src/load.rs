//! Loading a table onto an emulated drive, against `dd` onto the same file system, and verifying it, against `dd` that reads as much.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use warprow_layout::{DType, FormatOptions, Ranks, RowSource};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad, TableSpec};
use warprow_workload::rival::PageCaching;
use warprow_workload::{ContentOracle, IdShuffle, PairedTimes, TableContent};

use crate::Scratch;

const TABLE: &str = "table";
/// Bytes of `dd`'s blocks.
const BLOCK: u64 = 1 << 20;

/// What is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadSetup {
    /// Bytes of rows, a multiple of 1 MiB.
    pub size: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// How the drive reaches its file.
    pub caching: PageCaching,
    /// Seed of content and permutation.
    pub seed: u64,
}

/// Bytes a second, in pairs: loading, then `dd`.
#[derive(Debug)]
pub struct LoadResult {
    /// Rows in the order of their ids.
    pub identity: PairedTimes,
    /// Rows put in the order of a random permutation; the source is read once, from the first row to the last.
    pub permuted: PairedTimes,
    /// Loading with each row taken from the source when its rank is due.
    pub picked: PairedTimes,
    /// Verifying every row by its checksum, against `dd` that reads as many bytes of the drive's file.
    pub verified: PairedTimes,
    /// Rows read back and compared, all equal.
    pub checked: u64,
    /// The type of the file system.
    pub filesystem: String,
    /// Bytes of an LBA.
    pub lba: u32,
}

impl LoadSetup {
    fn rows(&self) -> u64 {
        self.size / (u64::from(self.dim) * 4)
    }

    fn drive_bytes(&self) -> u64 {
        // A permuted table that does not fit in memory is written twice.
        (self.size * 2 + self.rows() * 4 + (self.size >> 4) + (64 << 20)).next_multiple_of(BLOCK)
    }
}

/// Measures `pairs` loads of each kind, each with a `dd` before or after it.
pub fn run(setup: &LoadSetup, directory: &Path, pairs: u32) -> anyhow::Result<LoadResult> {
    ensure!((1..=8192).contains(&setup.dim), "rows of {} elements: 1 to 8192 are possible", setup.dim);
    ensure!(
        setup.size >= BLOCK && setup.size.is_multiple_of(BLOCK) && setup.rows() > 0,
        "{} bytes of rows: a multiple of 1M is needed",
        setup.size
    );
    let content = ContentOracle::new(setup.seed, 0, setup.rows(), setup.dim, DType::F32);
    // In memory, as a mapped file is whose pages are cached.
    let mut source = vec![0; usize::try_from(setup.rows())? * content.row_bytes()];
    content.read(0, content.row_bytes(), &mut source)?;
    let source = &source[..];
    let shuffle = IdShuffle::new(setup.rows(), setup.seed);
    let ranks = shuffle.ranks();
    let mut checked = 0;
    let mut filesystem = String::new();
    let mut lba = 0;
    let mut load = |ranks: Option<&Ranks>, picked: bool| -> anyhow::Result<f64> {
        let scratch = Scratch::new(directory, setup.drive_bytes())?;
        scratch.filesystem().clone_into(&mut filesystem);
        lba = scratch.smallest_lba(setup.caching)?;
        let drive = scratch.drive(0, setup.caching, lba, None)?;
        let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &OpenOptions::default())?;
        let mut spec = TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32);
        spec.permuted = ranks.is_some();
        let mut table = TableLoad::new(&spec, &source);
        if let Some(ranks) = ranks {
            table = table.with_ranks(ranks);
        }
        if picked {
            table = table.with_random_access();
        }
        let start = Instant::now();
        store.load("bench", &[table], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
        let rate = setup.size as f64 / start.elapsed().as_secs_f64();
        checked += check(&store, &content, |rank| if ranks.is_some() { shuffle.id(rank) } else { rank })?;
        Ok(rate)
    };
    let dd = |_| write(directory, setup.size);
    let identity = PairedTimes::alternate(pairs, |_| load(None, false), dd)?;
    let permuted = PairedTimes::alternate(pairs, |_| load(Some(&ranks), false), dd)?;
    let picked = PairedTimes::alternate(pairs, |_| load(Some(&ranks), true), dd)?;
    let verified = verify(setup, directory, pairs, &source)?;
    Ok(LoadResult { identity, permuted, picked, verified, checked, filesystem, lba })
}

fn verify(setup: &LoadSetup, directory: &Path, pairs: u32, source: &dyn RowSource) -> anyhow::Result<PairedTimes> {
    let scratch = Scratch::new(directory, setup.drive_bytes())?;
    let drive = scratch.drive(0, setup.caching, scratch.smallest_lba(setup.caching)?, None)?;
    let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &OpenOptions::default())?;
    let spec = TableSpec { row_crc: true, ..TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32) };
    let table = TableLoad::new(&spec, source);
    store.load("bench", &[table], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    let verify = || store.verify(TABLE, &mut |_| ControlFlow::Continue(()));
    let verified = |_| {
        let start = Instant::now();
        let found = verify()?;
        let took = start.elapsed();
        ensure!(found.is_sound() && found.checked && found.rows == setup.rows(), "verify has found {found:?}");
        Ok(setup.size as f64 / took.as_secs_f64())
    };
    let pairs = PairedTimes::alternate(pairs, verified, |_| read(&scratch, setup))?;
    // Who does not see damage has read nothing.
    let file = File::options().write(true).open(scratch.path())?;
    file.write_all_at(&vec![0xA5; BLOCK as usize], setup.size / 2)?;
    file.sync_all()?;
    let found = verify()?;
    ensure!(found.damaged > 0, "verify has not seen that rows were written over");
    Ok(pairs)
}

/// Reads everything back; the number of rows, all of which are right.
fn check(store: &Store, content: &ContentOracle, id: impl Fn(u64) -> u64) -> anyhow::Result<u64> {
    let mut wanted = vec![0; content.row_bytes()];
    let mut rows = 0;
    let mut wrong = None;
    store.scan(TABLE, 0..u64::MAX, &mut |rank, row| {
        content.fill(id(rank), &mut wanted);
        if row != wanted {
            wrong = Some(rank);
            return ControlFlow::Break(());
        }
        rows += 1;
        ControlFlow::Continue(())
    })?;
    match wrong {
        Some(rank) => bail!("the row of rank {rank} is not what was loaded"),
        None if rows != content.rows() => bail!("{rows} of {} rows came back", content.rows()),
        None => Ok(rows),
    }
}

/// `dd` of zeros with `oflag=direct conv=fsync`: bytes a second.
fn write(directory: &Path, size: u64) -> anyhow::Result<f64> {
    let file = tempfile::tempfile_in(directory)?;
    let path = format!("of=/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let rate = dd(&["if=/dev/zero", &path, "oflag=direct", "conv=fsync"], size)?;
    let written = file.metadata()?.len();
    ensure!(written == size, "dd wrote {written} of {size} bytes");
    Ok(rate)
}

/// `dd` of the drive's file, as the drive reaches it, to nowhere: bytes a second.
fn read(scratch: &Scratch, setup: &LoadSetup) -> anyhow::Result<f64> {
    let path = format!("if={}", scratch.path_for_others().display());
    let direct = (setup.caching == PageCaching::Direct).then_some("iflag=direct");
    dd(&[&path, "of=/dev/null"].into_iter().chain(direct).collect::<Vec<_>>(), setup.size)
}

/// `dd bs=1M` of so many bytes: bytes a second.
fn dd(arguments: &[&str], size: u64) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut dd = Command::new("dd");
    dd.args(arguments).args(["bs=1M", &format!("count={}", size / BLOCK)]).stdin(Stdio::null());
    let done = dd.output().context("dd cannot be run")?;
    let took = start.elapsed();
    ensure!(done.status.success(), "dd has failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(size as f64 / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        for caching in [PageCaching::Cached, PageCaching::Direct] {
            let setup = LoadSetup { size: 4 << 20, dim: 100, caching, seed: 4 };
            match run(&setup, directory.path(), 2) {
                Ok(result) => {
                    assert_eq!(result.checked, 6 * ((4 << 20) / 400));
                    let all = [&result.identity, &result.permuted, &result.picked, &result.verified];
                    assert!(all.iter().all(|pairs| pairs.ratio() > 0.0));
                }
                // tmpfs may refuse O_DIRECT, which dd needs as well.
                Err(error) => eprintln!("skipped: {error:#}"),
            }
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_wrong_row_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(directory.path(), 16 << 20).unwrap();
        let drive = scratch.drive(0, PageCaching::Cached, 512, None).unwrap();
        let store =
            Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &OpenOptions::default()).unwrap();
        let content = ContentOracle::new(1, 0, 1000, 16, DType::F32);
        let mut rows = vec![0; 64_000];
        content.read(0, 64, &mut rows).unwrap();
        rows[700 * 64 + 9] ^= 1;
        let rows = &rows[..];
        let spec = TableSpec::new(TABLE, 1000, 16, DType::F32);
        let load = TableLoad::new(&spec, &rows);
        store.load("bench", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(check(&store, &content, |rank| rank).unwrap_err().to_string().contains("rank 700"));
    }

    #[test]
    fn impossible_setups_are_refused() {
        let good = LoadSetup { size: 1 << 20, dim: 128, caching: PageCaching::Cached, seed: 4 };
        for bad in [LoadSetup { size: 1000, ..good }, LoadSetup { dim: 0, ..good }, LoadSetup { size: 0, ..good }] {
            assert!(run(&bad, &std::env::temp_dir(), 1).is_err());
        }
    }
}
