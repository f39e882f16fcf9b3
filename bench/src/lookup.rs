//! Whole look-ups: the host executor on an emulated drive against rivals that read the drive's file.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_layout::{DType, FormatOptions, Ranks};
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, Feature, HostOptions, LookupMetrics, Output, OutputRows, Plan, PlanOptions, ReadMerging, Slot,
};
use warprow_soft_controller::SoftController;
use warprow_store::{Device, LoadOptions, OpenOptions, ReadCurve, Store, TableLoad, TableSpec};
use warprow_workload::rival::{
    EqualMeansRival, MappedPlainFile, NumpyMemmap, NumpyProcess, PageCaching, PerIdRival, PlainFile, Rival, RivalError,
    RivalTable,
};
use warprow_workload::{
    BatchSource, ContentOracle, IdShuffle, Latencies, PairedTimes, PowerLaw, RowsAnswer, TableContent, median, verify,
};
use zerocopy::IntoBytes;

use crate::{Cores, Scratch};

/// The table's name.
pub(crate) const TABLE: &str = "table";
/// What rows are overwritten with before each look-up, so that none is taken for the last one's.
const POISON: u8 = 0xa5;

/// What is looked up.
#[derive(Clone, Copy, Debug)]
pub struct LookupSetup {
    /// Bytes of rows.
    pub size: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Ids in a batch.
    pub batch: u32,
    /// The share of rows that lie in DRAM, from 0 to 1: the hottest.
    pub hot: f64,
    /// Seed of ids and content.
    pub seed: u64,
}

impl LookupSetup {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=8192).contains(&self.dim), "rows of {} elements: 1 to 8192 are possible", self.dim);
        ensure!(self.rows() > 0, "{} bytes are not a row of {} elements", self.size, self.dim);
        ensure!((1..=1 << 22).contains(&self.batch), "batches of {} ids: 1 to 4194304 are possible", self.batch);
        ensure!((0.0..=1.0).contains(&self.hot), "{} of the rows in DRAM: 0 to 1 are possible", self.hot);
        Ok(())
    }

    pub(crate) fn rows(&self) -> u64 {
        self.size / (u64::from(self.dim) * 4)
    }

    pub(crate) fn hot_rows(&self) -> u64 {
        (self.rows() as f64 * self.hot) as u64
    }

    pub(crate) fn content(&self) -> ContentOracle {
        ContentOracle::new(self.seed, 0, self.rows(), self.dim, DType::F32)
    }

    /// Batches; the ids are a shuffle of the ranks, or the ranks themselves.
    pub(crate) fn batches(&self, shuffled: bool) -> anyhow::Result<BatchSource> {
        let law = PowerLaw::new(self.rows(), self.alpha);
        let law = law.with_context(|| format!("an exponent of {}: 0 or more is possible", self.alpha))?;
        let shuffle = IdShuffle::new(if shuffled { self.rows() } else { 0 }, self.seed);
        Ok(BatchSource::PowerLaw { law, shuffle, seed: self.seed })
    }

    /// Bytes of a drive that holds the table, with its permutation and metadata.
    pub(crate) fn drive_bytes(&self) -> u64 {
        (self.size + self.rows() * 4 + (self.size >> 4) + (64 << 20)).next_multiple_of(1 << 20)
    }
}

/// Someone who answers batches.
pub(crate) trait Contender {
    fn answer(&mut self, ids: &[i64], rows: &mut [f32], mask: &mut [u8]) -> anyhow::Result<()>;

    /// How long the last answer took, of those that know it better than the caller's clock.
    fn took(&self) -> Option<Duration> {
        None
    }
}

impl<C: Contender + ?Sized> Contender for Box<C> {
    fn answer(&mut self, ids: &[i64], rows: &mut [f32], mask: &mut [u8]) -> anyhow::Result<()> {
        (**self).answer(ids, rows, mask)
    }

    fn took(&self) -> Option<Duration> {
        (**self).took()
    }
}

/// A rival that reads a file.
pub(crate) struct OfFile<R>(pub R);

impl<R: Rival> Contender for OfFile<R> {
    fn answer(&mut self, ids: &[i64], rows: &mut [f32], mask: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.0.lookup(ids, rows.as_mut_bytes(), mask)?)
    }

    fn took(&self) -> Option<Duration> {
        self.0.took()
    }
}

/// The host executor.
pub(crate) struct Ours {
    host: HostExecutor,
    slot: Slot,
    width: usize,
    batch: u32,
}

impl Ours {
    /// Look-ups in the table of `store`, with `hot_rows` rows in DRAM.
    pub(crate) fn new(store: &Store, setup: &LookupSetup, hot_rows: u64) -> anyhow::Result<Self> {
        Self::merging(store, setup, hot_rows, ReadMerging::default()).map(|(ours, _)| ours)
    }

    /// A look-up with rows sharing commands like that, and the first drive's read curve, if that says which.
    pub(crate) fn merging(
        store: &Store,
        setup: &LookupSetup,
        hot_rows: u64,
        merging: ReadMerging,
    ) -> anyhow::Result<(Self, Option<ReadCurve>)> {
        let dram = hot_rows * u64::from(setup.dim) * 4;
        let ours = Self::attach(store, setup, HostOptions::default().with_dram_bytes(dram).with_merging(merging))?;
        let curve = ours.host.read_curves().into_iter().next().and_then(|(_, curve)| curve);
        Ok((ours, curve))
    }

    /// Look-ups in the table of `store` by a host with `options`.
    pub(crate) fn attach(store: &Store, setup: &LookupSetup, options: HostOptions) -> anyhow::Result<Self> {
        let host = HostExecutor::attach(store, options)?;
        let feature = Feature::new("f", TABLE);
        let plan: Plan =
            host.plan(&[feature], PlanOptions::default().with_max(setup.batch as usize, setup.batch as usize))?;
        Ok(Self { width: plan.width(), slot: plan.slot()?, batch: setup.batch, host })
    }

    /// The host that looks up.
    pub(crate) fn host(&self) -> &HostExecutor {
        &self.host
    }

    /// Totals over all its look-ups.
    pub(crate) fn metrics(&self) -> LookupMetrics {
        self.host.metrics()
    }
}

impl Contender for Ours {
    fn answer(&mut self, ids: &[i64], rows: &mut [f32], mask: &mut [u8]) -> anyhow::Result<()> {
        let mut output = Output::new(OutputRows::F32(rows), self.width).with_mask(mask);
        self.slot.lookup(&Batch::new(ids, self.batch as usize), &mut output)?;
        Ok(())
    }
}

/// Gives batches to contenders, and compares every row and mask byte of their answers.
pub(crate) struct Race {
    batches: BatchSource,
    content: ContentOracle,
    ids: Vec<i64>,
    rows: Vec<f32>,
    mask: Vec<u8>,
    /// Rows compared.
    pub(crate) checked: u64,
}

impl Race {
    pub(crate) fn new(setup: &LookupSetup, shuffled: bool) -> anyhow::Result<Self> {
        let batch = setup.batch as usize;
        Ok(Self {
            batches: setup.batches(shuffled)?,
            content: setup.content(),
            ids: vec![0; batch],
            rows: vec![0.0; batch * setup.dim as usize],
            mask: vec![0; batch],
            checked: 0,
        })
    }

    /// The batches from number `first` on: ids a second, in look-ups alone.
    pub(crate) fn turn(
        &mut self,
        contender: &mut impl Contender,
        first: u64,
        count: u64,
        latencies: &mut Latencies,
    ) -> anyhow::Result<f64> {
        let batches = self.batches.clone();
        self.turn_of(&|number, ids| batches.fill(number, ids), contender, first, count, latencies)
    }

    /// As [`turn`](Self::turn), with batches that `fill` makes by their number.
    pub(crate) fn turn_of(
        &mut self,
        fill: &dyn Fn(u64, &mut [i64]),
        contender: &mut impl Contender,
        first: u64,
        count: u64,
        latencies: &mut Latencies,
    ) -> anyhow::Result<f64> {
        let mut time = Duration::ZERO;
        for number in first..first + count {
            fill(number, &mut self.ids);
            self.rows.as_mut_bytes().fill(POISON);
            self.mask.fill(POISON);
            let start = Instant::now();
            contender.answer(&self.ids, &mut self.rows, &mut self.mask)?;
            let took = start.elapsed();
            let took = contender.took().unwrap_or(took);
            time += took;
            latencies.record(took);
            let stride = self.content.row_bytes();
            let answer = RowsAnswer { rows: self.rows.as_bytes(), stride, mask: Some(&self.mask) };
            self.checked += verify(&self.content, &self.ids, answer).context("a wrong row was returned")?.rows;
        }
        Ok((count * self.ids.len() as u64) as f64 / time.as_secs_f64())
    }

    /// Ids a second of our own over `time`, in turns: the median, and the latencies of batches.
    pub(crate) fn alone(&mut self, ours: &mut Ours, time: Duration) -> anyhow::Result<(f64, Latencies)> {
        self.turn(ours, u64::MAX - 8, 4, &mut Latencies::new())?;
        let mut rates = Vec::new();
        let mut latencies = Latencies::new();
        let start = Instant::now();
        while rates.len() < 3 || start.elapsed() < time {
            rates.push(self.turn(ours, rates.len() as u64 * 4, 4, &mut latencies)?);
        }
        Ok((median(rates), latencies))
    }
}

/// A rival, or why it cannot be one.
pub(crate) type Entry = Result<Box<dyn Contender>, String>;

/// How we did against one rival, in pairs of turns.
#[derive(Debug)]
pub struct Duel {
    /// The rival.
    pub rival: String,
    /// Ids a second, ours first; or why the rival could not take part.
    pub outcome: Result<PairedTimes, String>,
    /// Latencies of the rival's batches.
    pub latencies: Latencies,
}

/// How we did against all rivals on one drive.
#[derive(Debug)]
pub struct LookupResult {
    /// How the drive reaches its file.
    pub caching: PageCaching,
    /// The type of the file system.
    pub filesystem: String,
    /// Bytes of an LBA.
    pub lba: u32,
    /// Median ids a second of ours, over all duels.
    pub ids_per_second: f64,
    /// Latencies of our batches.
    pub latencies: Latencies,
    /// The duels.
    pub duels: Vec<Duel>,
    /// Rows compared, ours and theirs.
    pub checked: u64,
    /// Rows in DRAM.
    pub hot_rows: u64,
    /// Whether our two threads had a processor each.
    pub pinned: bool,
}

/// Loads a table onto a drive in `directory` and races against the rivals, `time` for each. With [`PageCaching::Cached`] the page
/// cache is warm, and there are seven rivals, of which two have a plain file of the rows; with [`PageCaching::Direct`] there are those
/// with equal means.
pub fn run(
    setup: &LookupSetup,
    caching: PageCaching,
    directory: &Path,
    time: Duration,
) -> anyhow::Result<LookupResult> {
    setup.check()?;
    let scratch = Scratch::new(directory, setup.drive_bytes())?;
    let lba = scratch.smallest_lba(caching)?;
    let cores = Cores::two();
    let ranks = IdShuffle::new(setup.rows(), setup.seed).ranks();
    let store = load(scratch.drive(0, caching, lba, cores.as_ref())?, setup, &ranks)?;
    let hot_rows = setup.hot_rows();
    let mut ours = Ours::new(&store, setup, hot_rows)?;
    let depth = HostOptions::default().depth;
    let (generation, table) = store.generation(TABLE)?;
    let target = RivalTable::new(&generation, table, Some(Arc::new(ranks)), &[scratch.path()], caching)?;
    if caching == PageCaching::Cached {
        target.warm()?;
    }
    let equal = target.clone().with_dram(hot_rows)?;
    let batch = setup.batch as usize;
    let mut rivals: Vec<(String, Entry)> = Vec::new();
    if caching == PageCaching::Cached {
        rivals.push(named("pread", PerIdRival::pread(target.clone()))?);
        rivals.push(named("io_uring", PerIdRival::uring(target.clone(), depth))?);
        rivals.push(named("mmap", PerIdRival::mapped(target))?);
        let plain = plain_file(directory, setup)?;
        plain.warm()?;
        rivals.push(named("mmap of a plain file", MappedPlainFile::new(&plain))?);
        rivals.push(named("numpy.memmap of a plain file", numpy(&plain, false))?);
    }
    rivals.push(named("pread, equal means", EqualMeansRival::pread(equal.clone(), batch))?);
    rivals.push(named("io_uring, equal means", EqualMeansRival::uring(equal, batch, depth))?);

    let mut race = Race::new(setup, true)?;
    // A turn takes some tens of milliseconds: a disk is slower than the page cache.
    let turn = if caching == PageCaching::Cached { 16 } else { 4 };
    let mut latencies = Latencies::new();
    let mut rates = Vec::new();
    let mut duels = Vec::new();
    for ((rival, contender), duel) in rivals.into_iter().zip(0u64..) {
        let mut theirs = Latencies::new();
        let outcome = match contender {
            Err(reason) => Err(reason),
            Ok(mut contender) => {
                let first = |pair: u32| (duel << 32 | u64::from(pair)) * turn;
                race.turn(&mut ours, first(u32::MAX), turn, &mut Latencies::new())?;
                race.turn(&mut contender, first(u32::MAX), turn, &mut Latencies::new())?;
                // Never used at once.
                let shared = std::cell::RefCell::new(&mut race);
                let pairs = PairedTimes::alternate_for(
                    time,
                    3,
                    |pair| shared.borrow_mut().turn(&mut ours, first(pair), turn, &mut latencies),
                    |pair| shared.borrow_mut().turn(&mut contender, first(pair), turn, &mut theirs),
                )?;
                rates.extend(pairs.pairs().iter().map(|pair| pair.0));
                Ok(pairs)
            }
        };
        duels.push(Duel { rival, outcome, latencies: theirs });
    }
    Ok(LookupResult {
        caching,
        filesystem: scratch.filesystem().to_owned(),
        lba,
        ids_per_second: median(rates),
        latencies,
        duels,
        checked: race.checked,
        hot_rows,
        pinned: cores.is_some(),
    })
}

/// The rows as a plain file in `directory`.
pub(crate) fn plain_file(directory: &Path, setup: &LookupSetup) -> anyhow::Result<PlainFile> {
    let content = setup.content();
    let written =
        PlainFile::new(directory, setup.rows(), content.row_bytes(), &content, &mut |_| ControlFlow::Continue(()));
    written.with_context(|| format!("a plain file of the rows cannot be written to {}", directory.display()))
}

/// `numpy.memmap` of the plain file.
pub(crate) fn numpy(plain: &PlainFile, cold: bool) -> Result<NumpyMemmap, RivalError> {
    NumpyProcess::start(|| false)?.map(plain, DType::F32, cold)
}

/// A rival, if what it is made of is available.
pub(crate) fn named<R: Rival + 'static>(name: &str, rival: Result<R, RivalError>) -> anyhow::Result<(String, Entry)> {
    let entry: Entry = match rival {
        Ok(rival) => Ok(Box::new(OfFile(rival))),
        Err(error @ RivalError::Unavailable { .. }) => Err(error.to_string()),
        Err(error) => return Err(error.into()),
    };
    Ok((name.to_owned(), entry))
}

fn load(drive: Arc<SoftController>, setup: &LookupSetup, ranks: &Ranks) -> anyhow::Result<Store> {
    let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &OpenOptions::default())?;
    let mut spec = TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32);
    (spec.permuted, spec.hot_rows) = (true, setup.hot_rows());
    let content = setup.content();
    let table = TableLoad::new(&spec, &content).with_ranks(ranks).with_random_access();
    store.load("bench", &[table], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: LookupSetup = LookupSetup { size: 4 << 20, dim: 128, alpha: 1.05, batch: 500, hot: 0.05, seed: 2 };

    #[test]
    fn everyone_answers_and_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        for (caching, rivals) in [(PageCaching::Cached, 7), (PageCaching::Direct, 2)] {
            let result = match run(&SMALL, caching, directory.path(), Duration::ZERO) {
                Ok(result) => result,
                Err(error) if caching == PageCaching::Direct => {
                    eprintln!("skipped: {error:#}");
                    continue;
                }
                Err(error) => panic!("{error:#}"),
            };
            assert_eq!(result.duels.len(), rivals);
            assert!(result.ids_per_second > 0.0);
            assert!(result.checked >= 2 * 4 * 4 * 500, "{}", result.checked);
            for duel in &result.duels {
                match &duel.outcome {
                    Ok(pairs) => assert!(pairs.pairs().len() == 3 && pairs.ratio() > 0.0),
                    Err(reason) => eprintln!("skipped: {reason}"),
                }
            }
        }
    }

    #[test]
    fn impossible_setups_are_refused() {
        let directory = std::env::temp_dir();
        for bad in [
            LookupSetup { dim: 0, ..SMALL },
            LookupSetup { size: 511, ..SMALL },
            LookupSetup { batch: 0, ..SMALL },
            LookupSetup { hot: 1.1, ..SMALL },
            LookupSetup { alpha: f64::NAN, ..SMALL },
        ] {
            assert!(run(&bad, PageCaching::Cached, &directory, Duration::ZERO).is_err(), "{bad:?}");
        }
    }
}
