//! Rows of a file that the page cache does not hold: drives on it by default and past the cache, attached tables, and those who read
//! the file themselves.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_layout::{DType, FormatOptions, RowSource};
use warprow_lookup::HostOptions;
use warprow_store::{AttachOptions, AttachedTable, Device, LoadOptions, OpenOptions, Store, TableLoad, TableSpec};
use warprow_workload::rival::{Caching, PerId, Pread, Rival, RivalError, Target};
use warprow_workload::{Answer, Content, Random, median, verify};
use zerocopy::IntoBytes;

use crate::Scratch;
use crate::lookup::{Contender, Entry, LookupSetup, Ours, TABLE, named};
use crate::mapped::{Loop, Numpy, PlainFile, evict};

/// Ids of a batch, at most.
const BATCH: u32 = 1024;
/// What a page of the page cache has.
const PAGE: usize = 4096;
/// Threads of the rival that reads with many.
const THREADS: usize = 16;

/// How somebody did.
#[derive(Debug)]
pub struct ColdLine {
    /// Who.
    pub name: String,
    /// Milliseconds of each batch, in the order of rounds; or why there are none.
    pub ms: Result<Vec<f64>, String>,
}

impl ColdLine {
    /// The median of a batch's milliseconds.
    pub fn median_ms(&self) -> Option<f64> {
        self.ms.as_ref().ok().map(|ms| median(ms.iter().copied()))
    }
}

/// How all did.
#[derive(Debug)]
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
    pub checked: u64,
}

impl ColdResult {
    /// How many times as long as our own default somebody takes: the median of the rounds' ratios.
    pub fn ratio(&self, line: &ColdLine) -> Option<f64> {
        let (ours, theirs) = (self.lines.first()?.ms.as_ref().ok()?, line.ms.as_ref().ok()?);
        Some(median(theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours)))
    }
}

/// Pages of a file, each of which is given out once: nobody finds in memory what another has read.
struct Pages {
    order: Vec<u32>,
    /// Rows that begin in a page, about.
    rows_each: u64,
    rows: u64,
    random: Random,
}

impl Pages {
    fn new(setup: &LookupSetup, seed: u64) -> Self {
        let rows_each = (PAGE / (setup.dim as usize * 4)).max(1) as u64;
        let mut order: Vec<u32> = (0..(setup.rows() / rows_each) as u32).collect();
        let mut random = Random::new(seed);
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self { order, rows_each, rows: setup.rows(), random }
    }

    fn deal(&mut self, ids: &mut [i64]) -> anyhow::Result<()> {
        for id in ids {
            let page = self.order.pop().context("no page is left that was not read")?;
            let row = u64::from(page) * self.rows_each + self.random.below(self.rows_each);
            *id = row.min(self.rows - 1) as i64;
        }
        Ok(())
    }
}

/// The plain file's rows, as a table to attach.
struct Source(Arc<PlainFile>);

impl RowSource for Source {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        self.0.read(first, row_bytes, rows)
    }

    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        each(self.0.file(), first * row_bytes as u64, count * row_bytes as u64);
    }
}

/// A `pread` for each id, by many threads.
struct Threads(Vec<PerId<Pread>>);

impl Contender for Threads {
    fn answer(&mut self, ids: &[i64], rows: &mut [f32], mask: &mut [u8]) -> anyhow::Result<()> {
        let share = ids.len().div_ceil(self.0.len());
        let width = rows.len() / ids.len();
        let shares = ids.chunks(share).zip(rows.chunks_mut(share * width)).zip(mask.chunks_mut(share));
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (rival, ((ids, rows), mask)) in self.0.iter_mut().zip(shares) {
                threads.push(scope.spawn(move || rival.lookup(ids, rows.as_mut_bytes(), mask)));
            }
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(done) => Ok(done?),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }
}

/// Loads a table onto a drive in `directory`, has the page cache forget it, and has everybody answer batches, in turns, `rounds` of them at
/// most: as many as there are pages that nobody has read. No thread is bound to a processor: whoever waits for a disk is woken wherever there
/// is room.
pub fn run(setup: &LookupSetup, directory: &Path, rounds: u32) -> anyhow::Result<ColdResult> {
    let setup = LookupSetup { batch: setup.batch.min(BATCH), alpha: 0.0, hot: 0.0, ..*setup };
    setup.check()?;
    let content = setup.content();
    let scratch = Scratch::new(directory, setup.drive_bytes())?;
    let lba = scratch.smallest_lba(Caching::Direct)?;
    let store = {
        let device = Device::new(scratch.drive(0, Caching::Cached, lba, None)?, 1);
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
        ours.map(|it| Box::new(it) as _).map_err(|error| format!("{error:#}"))
    };
    let plain = Arc::new(PlainFile::new(directory, &content)?);
    let attach = |direct| -> anyhow::Result<Device> {
        let spec = TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32);
        let table = AttachedTable { spec, source: Arc::new(Source(plain.clone())) };
        Ok(Device::attached_with("attached:plain", vec![table], &AttachOptions::default().with_direct(direct))?)
    };
    let (generation, table) = store.generation(TABLE)?;
    let target = Target::new(&generation, table, None, &[scratch.path()], Caching::Cached)?;
    let threads: Result<Vec<_>, RivalError> = (0..THREADS).map(|_| PerId::pread(target.clone())).collect();
    let numpy = Numpy::new(&plain, true)?.map(|it| Box::new(it) as _);
    let direct = scratch.drive(1, Caching::Direct, lba, None).map(|drive| Device::new(drive, 1));
    // Those who read the drive's file, and those who read the plain one.
    let mut contenders: Vec<(String, Entry, bool)> = vec![
        ("Warprow, emulated:".to_owned(), Ok(Box::new(Ours::new(&store, &setup, 0)?)), true),
        ("Warprow, emulated: direct=1".to_owned(), past(direct), true),
        ("Warprow, attached:".to_owned(), past(attach(false)), false),
        ("Warprow, attached: direct=1".to_owned(), past(attach(true)), false),
        (format!("pread, {THREADS} threads"), Ok(Box::new(Threads(threads?))), true),
    ];
    let per_id = [
        named("pread", PerId::pread(target.clone()))?,
        named("io_uring", PerId::uring(target.clone(), HostOptions::default().depth))?,
        named("mmap", PerId::mapped(target))?,
    ];
    contenders.extend(per_id.into_iter().map(|(name, entry)| (name, entry, true)));
    contenders.push(("mmap of a plain file".to_owned(), Ok(Box::new(Loop::new(&plain)?)), false));
    contenders.push(("numpy.memmap of a plain file".to_owned(), numpy, false));

    let mut pages = [Pages::new(&setup, setup.seed), Pages::new(&setup, setup.seed + 1)];
    let sharing = |of_drive| contenders.iter().filter(|it| it.2 == of_drive && it.1.is_ok()).count().max(1);
    let there = pages[0].order.len() / setup.batch as usize;
    let most = there / sharing(true).max(sharing(false));
    let rounds = rounds.min(most as u32);
    ensure!(
        rounds > 0,
        "a table of {} bytes is too small for a batch of other pages for each: take a larger --size",
        setup.size
    );
    evict(&File::open(scratch.path())?)?;
    plain.evict()?;
    let batch = setup.batch as usize;
    let (mut ids, mut rows, mut mask) = (vec![0; batch], vec![0f32; batch * setup.dim as usize], vec![0; batch]);
    let mut lines: Vec<ColdLine> = contenders
        .iter()
        .map(|(name, entry, _)| ColdLine {
            name: name.clone(),
            ms: entry.as_ref().map(|_| Vec::new()).map_err(Clone::clone),
        })
        .collect();
    let mut checked = 0;
    for round in 0..rounds as usize {
        // Whoever goes first changes.
        for turn in 0..contenders.len() {
            let at = (turn + round) % contenders.len();
            let ((name, Ok(contender), of_drive), Ok(ms)) = (&mut contenders[at], &mut lines[at].ms) else { continue };
            pages[usize::from(!*of_drive)].deal(&mut ids)?;
            rows.as_mut_bytes().fill(0xa5);
            let start = Instant::now();
            contender.answer(&ids, &mut rows, &mut mask).with_context(|| name.clone())?;
            let took: Duration = start.elapsed();
            ms.push(contender.took().unwrap_or(took).as_secs_f64() * 1e3);
            let answer = Answer { rows: rows.as_bytes(), stride: content.row_bytes(), mask: Some(&mask) };
            checked += verify(&content, &ids, answer).with_context(|| format!("{name}: a wrong row"))?.rows;
        }
    }
    Ok(ColdResult { filesystem: scratch.filesystem().to_owned(), batch: setup.batch, rounds, lines, checked })
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
        let took_part = result.lines.iter().filter(|line| line.ms.is_ok());
        assert_eq!(result.checked, took_part.count() as u64 * u64::from(result.rounds * result.batch));
        for line in &result.lines {
            match &line.ms {
                Ok(ms) => assert!(ms.len() == 2 && ms.iter().all(|&ms| ms > 0.0), "{line:?}"),
                Err(reason) => eprintln!("skipped: {}: {reason}", line.name),
            }
        }
        assert_eq!(result.ratio(&result.lines[0]), Some(1.0));
        assert!(run(&LookupSetup { size: 16 << 10, ..setup }, directory.path(), 2).is_err());
    }

    #[test]
    fn no_page_is_dealt_twice() {
        let setup = LookupSetup { size: 1 << 20, dim: 128, alpha: 0.0, batch: 64, hot: 0.0, seed: 5 };
        let (mut pages, mut ids) = (Pages::new(&setup, 1), [0; 256]);
        pages.deal(&mut ids).unwrap();
        let mut dealt: Vec<i64> = ids.iter().map(|id| id / 8).collect();
        dealt.sort_unstable();
        assert_eq!(dealt, (0..256).collect::<Vec<_>>());
        assert!(pages.deal(&mut ids[..1]).is_err());
    }
}
