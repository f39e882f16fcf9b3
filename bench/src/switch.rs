//! Look-ups of the host executor while generations are switched under them, against look-ups while nothing is.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_layout::{DType, FormatOptions, TableSpec};
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, Plan, PlanOptions, PrepareOptions,
};
use warprow_soft_controller::{Namespace, RamBacking, SoftController};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_workload::{BatchSource, ContentOracle, IdShuffle, Latencies, PowerLaw, RowsAnswer, verify};
use zerocopy::IntoBytes;

use crate::lookup::TABLE;

/// By how much p99.9 of look-ups may grow.
pub const LIMIT_US: f64 = 10_000.0;
/// What rows are overwritten with before each look-up.
const POISON: u8 = 0xa5;
/// How long an adoption waits for look-ups that read what was before.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is switched, and under what.
#[derive(Clone, Copy, Debug)]
pub struct SwitchSetup {
    /// Bytes of rows of a generation.
    pub size: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Ids in a batch.
    pub batch: u32,
    /// The share of rows that lie in DRAM, from 0 to 1: each switch reads them anew.
    pub hot: f64,
    /// Threads that look up.
    pub readers: u32,
    /// Switches.
    pub switches: u32,
    /// Bytes a second that filling the DRAM tier reads at most.
    pub rate: Option<u64>,
    /// Drives.
    pub drives: u32,
    /// Seed of ids and contents.
    pub seed: u64,
}

/// What was found.
#[derive(Debug)]
pub struct SwitchResult {
    /// Of look-ups while nothing was switched.
    pub before: Latencies,
    /// Of look-ups that overlap the time from a preparation's begin to its adoption's end.
    pub during: Latencies,
    /// From the begin of a preparation to the end of its adoption.
    pub switches: Latencies,
    /// Of these, `switch` and `adopt` alone.
    pub adoptions: Latencies,
    /// Rows compared, of the first generation and of the second.
    pub checked: [u64; 2],
}

impl SwitchResult {
    /// By how many microseconds p99.9 is longer while generations are switched.
    pub fn growth_us(&self) -> f64 {
        self.during.percentile_us(99.9) - self.before.percentile_us(99.9)
    }

    /// Whether it grows by less than it may.
    pub fn is_met(&self) -> bool {
        self.growth_us() < LIMIT_US
    }
}

impl SwitchSetup {
    fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=8192).contains(&self.dim), "rows of {} elements: 1 to 8192 are possible", self.dim);
        ensure!(self.rows() > 0, "{} bytes are not a row of {} elements", self.size, self.dim);
        ensure!((1..=1 << 20).contains(&self.batch), "batches of {} ids: 1 to 1048576 are possible", self.batch);
        ensure!((0.0..=1.0).contains(&self.hot), "{} of the rows in DRAM: 0 to 1 are possible", self.hot);
        ensure!((1..=64).contains(&self.readers), "{} threads that look up: 1 to 64 are possible", self.readers);
        ensure!((1..=64).contains(&self.drives), "{} drives: 1 to 64 are possible", self.drives);
        ensure!(self.switches > 0, "no switch leaves nothing to measure");
        ensure!(self.rate != Some(0), "a rate of 0 bytes a second never ends");
        Ok(())
    }

    fn rows(&self) -> u64 {
        self.size / (u64::from(self.dim) * 4)
    }

    /// The content of one of the two generations.
    fn content(&self, generation: usize) -> ContentOracle {
        ContentOracle::new(self.seed, generation as u64, self.rows(), self.dim, DType::F32)
    }

    fn batches(&self, reader: u32) -> anyhow::Result<BatchSource> {
        let law = PowerLaw::new(self.rows(), self.alpha);
        let law = law.with_context(|| format!("an exponent of {}: 0 or more is possible", self.alpha))?;
        Ok(BatchSource::PowerLaw { law, shuffle: IdShuffle::new(0, self.seed), seed: self.seed + u64::from(reader) })
    }

    /// A store with both generations, of which the first is shown, and their ids.
    fn store(&self) -> anyhow::Result<(Store, [u64; 2])> {
        let all = 2 * (self.size + self.size / 8);
        let each = (all / u64::from(self.drives) + (64 << 20)).next_multiple_of(1 << 20);
        let drive = |index: u32| {
            let name = format!("emulated:drive{index}");
            let ram = RamBacking::new(each)?;
            let builder = SoftController::builder().name(&name).serial(&name).namespace(Namespace::new(ram));
            Ok(Device::new(builder.build()?, 1))
        };
        let drives = (0..self.drives).map(drive).collect::<anyhow::Result<Vec<_>>>()?;
        let store = Store::create(&drives, &FormatOptions::default(), &OpenOptions::default())?;
        let mut spec = TableSpec::new(TABLE, self.rows(), self.dim, DType::F32);
        spec.hot_rows = (self.rows() as f64 * self.hot) as u64;
        let load = |generation: usize| -> anyhow::Result<u64> {
            let content = self.content(generation);
            let loads = [TableLoad::new(&spec, &content).with_random_access()];
            let options = LoadOptions::default();
            let options = if generation == 0 { options } else { options.with_standby() };
            Ok(store.load("bench", &loads, &options, &mut |_| ControlFlow::Continue(()))?.generation)
        };
        let generations = [load(0)?, load(1)?];
        Ok((store, generations))
    }
}

/// What is going on.
#[derive(Debug, Default)]
struct Course {
    /// Odd while generations are switched; it counts up by one at each begin and end.
    turns: AtomicU64,
    over: AtomicBool,
}

#[derive(Debug)]
struct Read {
    before: Latencies,
    during: Latencies,
    checked: [u64; 2],
}

/// Looks up until it is over, and compares every row with what the generation has that the report names.
fn read(setup: &SwitchSetup, plan: &Plan, ids_of: [u64; 2], course: &Course, reader: u32) -> anyhow::Result<Read> {
    let mut slot = plan.slot()?;
    let batches = setup.batches(reader)?;
    let contents = [0, 1].map(|generation| setup.content(generation));
    let count = setup.batch as usize;
    let width = plan.width();
    let mut ids = vec![0; count];
    let mut rows = vec![0.0f32; count * width];
    let mut mask = vec![0; count];
    let mut read = Read { before: Latencies::new(), during: Latencies::new(), checked: [0; 2] };
    for number in 0.. {
        if course.over.load(Ordering::Acquire) {
            break;
        }
        batches.fill(number, &mut ids);
        rows.as_mut_bytes().fill(POISON);
        mask.fill(POISON);
        let begun = course.turns.load(Ordering::Acquire);
        let start = Instant::now();
        let mut output = Output::new(OutputRows::F32(&mut rows), width).with_mask(&mut mask);
        let report = slot.lookup(&Batch::new(&ids, count), &mut output)?;
        let took = start.elapsed();
        let ended = course.turns.load(Ordering::Acquire);
        // Calm from its begin to its end, or not.
        match begun == ended && begun.is_multiple_of(2) {
            true => read.before.record(took),
            false => read.during.record(took),
        }
        let generation = ids_of.iter().position(|&id| id == report.generation);
        let generation = generation.with_context(|| format!("generation {} was read", report.generation))?;
        let answer = RowsAnswer { rows: rows.as_bytes(), stride: width * 4, mask: Some(&mask) };
        let verified = verify(&contents[generation], &ids, answer);
        read.checked[generation] += verified.with_context(|| format!("of generation {}", report.generation))?.rows;
    }
    Ok(read)
}

/// Ends readers, whatever happens.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Switches to and fro under readers, in ten portions, each after a calm time as long as the portion before took.
pub fn run(setup: &SwitchSetup) -> anyhow::Result<SwitchResult> {
    setup.check()?;
    let (store, generations) = setup.store()?;
    let dram = (setup.rows() as f64 * setup.hot) as u64 * u64::from(setup.dim) * 4;
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(dram))?;
    let options = PlanOptions::default().with_max(setup.batch as usize, setup.batch as usize).with_slots(setup.readers);
    let plan = host.plan(&[Feature::new("f", TABLE)], options)?;
    let course = Course::default();
    let mut switches = Latencies::new();
    let mut adoptions = Latencies::new();
    let reads = std::thread::scope(|scope| {
        let plan = &plan;
        let course = &course;
        let start = |reader| scope.spawn(move || read(setup, plan, generations, course, reader));
        let readers: Vec<_> = (0..setup.readers).map(start).collect();
        let over = Over(&course.over);
        let portions = setup.switches.min(10);
        let mut calm = Duration::from_millis(500);
        let mut next = 1;
        for portion in 0..portions {
            std::thread::sleep(calm.clamp(Duration::from_millis(100), Duration::from_secs(20)));
            if readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
            let begun = Instant::now();
            let of = |portion: u32| u64::from(setup.switches) * u64::from(portion) / u64::from(portions);
            course.turns.fetch_add(1, Ordering::AcqRel);
            for _ in of(portion)..of(portion + 1) {
                let (whole, adopted) = switch(setup, &store, &host, generations[next])?;
                switches.record(whole);
                adoptions.record(adopted);
                next = 1 - next;
            }
            course.turns.fetch_add(1, Ordering::AcqRel);
            calm = begun.elapsed();
        }
        drop(over);
        let joined = readers.into_iter().map(|reader| match reader.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect::<anyhow::Result<Vec<Read>>>()
    })?;
    let mut result =
        SwitchResult { before: Latencies::new(), during: Latencies::new(), switches, adoptions, checked: [0; 2] };
    for read in reads {
        result.before.add(&read.before);
        result.during.add(&read.during);
        result.checked.iter_mut().zip(read.checked).for_each(|(sum, own)| *sum += own);
    }
    Ok(result)
}

/// One switch: how long all of it took, and the switch and adoption alone.
fn switch(
    setup: &SwitchSetup,
    store: &Store,
    host: &HostExecutor,
    generation: u64,
) -> anyhow::Result<(Duration, Duration)> {
    let begun = Instant::now();
    let options = PrepareOptions::default().with_generation(generation);
    let options = match setup.rate {
        Some(rate) => options.with_rate(rate),
        None => options,
    };
    let upcoming = host.prepare(&options)?;
    let prepared = Instant::now();
    store.switch(generation, false)?;
    ensure!(host.adopt(upcoming, PATIENCE)?, "look-ups did not let go of the generation before in {PATIENCE:?}");
    Ok((begun.elapsed(), prepared.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: SwitchSetup = SwitchSetup {
        size: 2 << 20,
        dim: 32,
        alpha: 0.5,
        batch: 50,
        hot: 0.2,
        readers: 2,
        switches: 12,
        rate: None,
        drives: 2,
        seed: 3,
    };

    #[test]
    fn both_generations_are_read_and_checked_calm_and_not() {
        let result = run(&SMALL).unwrap();
        assert!(result.before.count() > 0 && result.during.count() > 0);
        assert!(result.checked.iter().all(|&rows| rows > 0), "{:?}", result.checked);
        assert_eq!((result.switches.count(), result.adoptions.count()), (12, 12));
        assert_eq!(result.is_met(), result.growth_us() < 10_000.0);
    }

    #[test]
    fn impossible_setups_are_refused() {
        for bad in [
            SwitchSetup { dim: 0, ..SMALL },
            SwitchSetup { size: 100, ..SMALL },
            SwitchSetup { batch: 0, ..SMALL },
            SwitchSetup { hot: 1.5, ..SMALL },
            SwitchSetup { readers: 0, ..SMALL },
            SwitchSetup { switches: 0, ..SMALL },
            SwitchSetup { drives: 0, ..SMALL },
            SwitchSetup { rate: Some(0), ..SMALL },
            SwitchSetup { alpha: f64::NAN, ..SMALL },
        ] {
            assert!(run(&bad).is_err(), "{bad:?}");
        }
    }
}
