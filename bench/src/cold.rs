//! Rows of a file that the page cache does not hold: drives on it by default and past the cache, attached tables, and those who read
//! the file themselves.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use warprow_layout::{DType, FormatOptions};
use warprow_lookup::HostOptions;
use warprow_store::{AttachOptions, AttachedTable, Device, LoadOptions, OpenOptions, Store, TableLoad, TableSpec};
use warprow_workload::rival::{MappedPlainFile, PageCaching, PerIdRival, RivalTable, ThreadedRival};
use warprow_workload::{FreshPages, PairedTimes, RowsAnswer, TableContent, forget, median, settle, verify};
use zerocopy::IntoBytes;

use crate::Scratch;
use crate::lookup::{Contender, Entry, LookupSetup, OfFile, Ours, TABLE, named, numpy, plain_file};

/// Ids of a batch, at most.
const BATCH: u32 = 1024;
/// Threads of the rival that reads with many.
const THREADS: usize = 16;

/// How somebody did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ColdLine {
    /// Who.
    pub who: String,
    /// The median of a batch's milliseconds.
    pub median_ms: Option<f64>,
    /// Milliseconds of each batch, in the order of rounds.
    pub ms: Option<Vec<f64>>,
    /// How many times as long as the first line's a batch takes: the median of the rounds' ratios.
    pub to_ours: Option<f64>,
    /// Why there are no times.
    pub unavailable: Option<String>,
}

impl ColdLine {
    /// The times of somebody, beside those of the first line.
    fn new(who: &str, ms: &Result<Vec<f64>, String>, ours: &Result<Vec<f64>, String>) -> Self {
        let times = ms.as_ref().ok();
        let first = ours.as_ref().ok();
        let ratio = |(theirs, ours): (&Vec<f64>, &Vec<f64>)| {
            theirs.iter().copied().zip(ours.iter().copied()).collect::<PairedTimes>().ratio()
        };
        Self {
            who: who.to_owned(),
            median_ms: times.map(|ms| median(ms.iter().copied())),
            ms: times.cloned(),
            to_ours: times.zip(first).map(ratio),
            unavailable: ms.as_ref().err().cloned(),
        }
    }
}

/// How all did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ColdResult {
    /// The type of the file system.
    pub filesystem: String,
    /// Ids of a batch, each of another page.
    pub batch: u32,
    /// Batches of each.
    pub rounds: u32,
    /// The first is ours, an emulated drive as it is by default.
    pub lines: Vec<ColdLine>,
    /// Rows compared.
    pub rows_checked: u64,
}

/// Loads a table onto a drive in `directory`, has the page cache forget it, and has everybody answer batches, in turns, `rounds` of them at
/// most: as many as there are pages that nobody has read. No thread is bound to a processor: whoever waits for a disk is woken wherever there
/// is room.
pub fn run(setup: &LookupSetup, directory: &Path, rounds: u32) -> anyhow::Result<ColdResult> {
    let setup = LookupSetup { batch: setup.batch.min(BATCH), alpha: 0.0, hot: 0.0, ..*setup };
    setup.check()?;
    let content = setup.content();
    let scratch = Scratch::new(directory, setup.drive_bytes())?;
    let lba = scratch.smallest_lba(PageCaching::Direct)?;
    let store = {
        let device = Device::new(scratch.drive(0, PageCaching::Cached, lba, None)?, 1);
        let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default())?;
        let spec = TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32);
        let table = TableLoad::new(&spec, &content).with_random_access();
        store.load("bench", &[table], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
        store
    };
    let read_only = OpenOptions::default().with_read_only();
    let past = |device: anyhow::Result<Device>| -> Result<Box<dyn Contender>, String> {
        let opened = device.and_then(|device| Ok(Store::open(&[device], &read_only)?));
        let ours = opened.and_then(|store| Ours::new(&store, &setup, 0));
        ours.map(|our| Box::new(our) as _).map_err(|error| format!("{error:#}"))
    };
    let plain = Arc::new(plain_file(directory, &setup)?);
    let attach = |direct| -> anyhow::Result<Device> {
        let spec = TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32);
        let table = AttachedTable { spec, source: plain.clone() };
        Ok(Device::attached_with("attached:plain", vec![table], &AttachOptions::default().with_direct(direct))?)
    };
    let (generation, table) = store.generation(TABLE)?;
    let target = RivalTable::new(&generation, table, None, &[scratch.path()], PageCaching::Cached)?;
    let threads = ThreadedRival::new(THREADS, || PerIdRival::pread(target.clone()))?;
    let direct = scratch.drive(1, PageCaching::Direct, lba, None).map(|drive| Device::new(drive, 1));
    // Those who read the drive's file, and those who read the plain one.
    let mut contenders: Vec<(String, Entry, bool)> = vec![
        ("Warprow, emulated:".to_owned(), Ok(Box::new(Ours::new(&store, &setup, 0)?)), true),
        ("Warprow, emulated: direct=1".to_owned(), past(direct), true),
        ("Warprow, attached:".to_owned(), past(attach(false)), false),
        ("Warprow, attached: direct=1".to_owned(), past(attach(true)), false),
        (format!("pread, {THREADS} threads"), Ok(Box::new(OfFile(threads))), true),
    ];
    let per_id = [
        named("pread", PerIdRival::pread(target.clone()))?,
        named("io_uring", PerIdRival::uring(target.clone(), HostOptions::default().depth))?,
        named("mmap", PerIdRival::mapped(target.clone()))?,
    ];
    contenders.extend(per_id.into_iter().map(|(name, entry)| (name, entry, true)));
    let of_plain = [
        named("mmap of a plain file", MappedPlainFile::new(&plain))?,
        named("numpy.memmap of a plain file", numpy(&plain, true))?,
    ];
    contenders.extend(of_plain.into_iter().map(|(name, entry)| (name, entry, false)));

    let mut pages_of_drive = FreshPages::new(setup.rows(), scratch.size(), setup.seed);
    let mut pages_of_plain = FreshPages::new(setup.rows(), plain.bytes(), setup.seed + 1);
    let sharing = |of_drive| {
        contenders.iter().filter(|contender| contender.2 == of_drive && contender.1.is_ok()).count().max(1) as u64
    };
    let there = FreshPages::room(setup.rows(), content.row_bytes() as u64);
    let most = there / u64::from(setup.batch) / sharing(true).max(sharing(false));
    let rounds = rounds.min(most as u32);
    ensure!(
        rounds > 0,
        "a table of {} bytes is too small for a batch of other pages for each: take a larger --size",
        setup.size
    );
    forget(&File::open(scratch.path())?)?;
    forget(plain.file())?;
    let batch = setup.batch as usize;
    let mut ids = vec![0; batch];
    let mut rows = vec![0f32; batch * setup.dim as usize];
    let mut mask = vec![0; batch];
    let mut times: Vec<Result<Vec<f64>, String>> =
        contenders.iter().map(|(_, entry, _)| entry.as_ref().map(|_| Vec::new()).map_err(Clone::clone)).collect();
    let mut checked = 0;
    for round in 0..rounds as usize {
        // Whoever goes first changes.
        for turn in 0..contenders.len() {
            let at = (turn + round) % contenders.len();
            let ((name, Ok(contender), of_drive), Ok(ms)) = (&mut contenders[at], &mut times[at]) else { continue };
            match *of_drive {
                true => pages_of_drive.deal(&mut ids, |id| Some(target.bytes_of(id)?.1))?,
                false => pages_of_plain.deal(&mut ids, |id| plain.bytes_of(id))?,
            }
            rows.as_mut_bytes().fill(0xa5);
            settle();
            let start = Instant::now();
            contender.answer(&ids, &mut rows, &mut mask).with_context(|| name.clone())?;
            let took: Duration = start.elapsed();
            ms.push(contender.took().unwrap_or(took).as_secs_f64() * 1e3);
            let answer = RowsAnswer { rows: rows.as_bytes(), stride: content.row_bytes(), mask: Some(&mask) };
            checked += verify(&content, &ids, answer).with_context(|| format!("{name}: a wrong row"))?.rows;
        }
    }
    let lines = contenders.iter().zip(&times).map(|((name, ..), ms)| ColdLine::new(name, ms, &times[0])).collect();
    let filesystem = scratch.filesystem().to_owned();
    Ok(ColdResult { filesystem, batch: setup.batch, rounds, lines, rows_checked: checked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_reads_other_pages_and_is_checked() {
        let setup = LookupSetup { size: 8 << 20, dim: 40, alpha: 0.0, batch: 64, hot: 0.0, seed: 5 };
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let result = run(&setup, directory.path(), 2).unwrap();
        assert_eq!(result.lines.len(), 10);
        let took_part = result.lines.iter().filter(|line| line.ms.is_some());
        assert_eq!(result.rows_checked, took_part.count() as u64 * u64::from(result.rounds * result.batch));
        for line in &result.lines {
            match (&line.ms, &line.unavailable) {
                (Some(ms), None) => assert!(ms.len() == 2 && ms.iter().all(|&ms| ms > 0.0), "{line:?}"),
                (None, Some(reason)) => eprintln!("skipped: {}: {reason}", line.who),
                _ => panic!("{line:?}"),
            }
        }
        assert_eq!(result.lines[0].to_ours, Some(1.0));
        assert!(run(&LookupSetup { size: 16 << 10, ..setup }, directory.path(), 2).is_err());
    }
}
