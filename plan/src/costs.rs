//! What look-ups cost besides drives: a processor, measured where they will run, and a GPU.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warprow_dma::{Clock, SystemClock};
use warprow_layout::{FormatOptions, TableSpec};
use warprow_soft_controller::{Namespace, Placement, Ram, SoftController, Timing};
use warprow_store::{
    Batch, DType, Device, Feature, HostOptions, LoadOptions, OpenOptions, Output, PlanOptions, Report, Rows, Slot,
    Stage, Store, TableLoad,
};
use warprow_workload::Random;

use crate::PlanError;
use crate::lookup::Work;

/// What a look-up asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Asked {
    /// Ids of rows in memory; on a GPU, in DRAM.
    pub ids_memory: f64,
    /// Of rows on drives.
    pub ids_ssd: f64,
    /// Different rows on drives.
    pub rows_ssd: f64,
    /// Read commands.
    pub commands: f64,
    /// All ids.
    pub ids: f64,
    /// Bytes of the rows of ids in DRAM.
    pub bytes_dram: f64,
    /// Bytes of the rows of all ids.
    pub bytes: f64,
}

impl Asked {
    /// One of so many parts.
    pub fn divided(&self, by: f64) -> Self {
        Self {
            ids_memory: self.ids_memory / by,
            ids_ssd: self.ids_ssd / by,
            rows_ssd: self.rows_ssd / by,
            commands: self.commands / by,
            ids: self.ids / by,
            bytes_dram: self.bytes_dram / by,
            bytes: self.bytes / by,
        }
    }
}

/// Seconds that a processor takes, of the host executor with one worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostCosts {
    /// For a look-up of nothing.
    pub lookup: f64,
    /// For an id in DRAM: before the first command leaves.
    pub dram_before: f64,
    /// Then: its row to the output.
    pub dram: f64,
    /// For an id on drives, before the first command leaves.
    pub ssd_before: f64,
    /// For a different row among these, before the first command leaves.
    pub row_before: f64,
    /// For a command, until it is on its way.
    pub send: f64,
    /// For a command, when it is done.
    pub complete: f64,
    /// For a row that a command brought: to the output.
    pub row: f64,
    /// For each further id of the same row.
    pub repeat: f64,
    /// For a command, the thread of an emulated drive.
    pub emulated: f64,
}

impl Default for HostCosts {
    /// As measured for rows of 512 B on one core of a virtual AMD EPYC.
    fn default() -> Self {
        Self {
            lookup: 1.5e-6,
            dram_before: 8e-9,
            dram: 45e-9,
            ssd_before: 25e-9,
            row_before: 60e-9,
            send: 40e-9,
            complete: 30e-9,
            row: 60e-9,
            repeat: 40e-9,
            emulated: 250e-9,
        }
    }
}

/// Turns, and which of them counts by how long it took: others may need the processor as well.
const TURNS: usize = 25;
const COUNTS: usize = TURNS / 3;
const BATCH: usize = 4096;
/// Commands on a queue at a time, of a host executor.
const DEPTH: usize = 1023;
/// Ids in DRAM between two looks at the drives.
const STEP: f64 = 256.0;

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// That of `of` which falls on one of `among`.
fn each(of: f64, among: f64) -> f64 {
    if among > 0.0 { of / among } else { 0.0 }
}

impl HostCosts {
    /// No time at all: what remains are the drives.
    pub const NONE: Self = Self {
        lookup: 0.0,
        dram_before: 0.0,
        dram: 0.0,
        ssd_before: 0.0,
        row_before: 0.0,
        send: 0.0,
        complete: 0.0,
        row: 0.0,
        repeat: 0.0,
        emulated: 0.0,
    };

    /// What the host executor does for a look-up on drives that are or are not `emulated` by threads of this machine.
    pub fn work(&self, asked: &Asked, emulated: bool) -> Work {
        let repeats = (asked.ids_ssd - asked.rows_ssd).max(0.0);
        let before =
            asked.ids_memory * self.dram_before + asked.ids_ssd * self.ssd_before + asked.rows_ssd * self.row_before;
        let rows = asked.rows_ssd * self.row + repeats * self.repeat;
        Work {
            before: duration(self.lookup + before),
            send: duration(self.send),
            land: duration(self.complete + each(rows, asked.commands)),
            meanwhile: duration(asked.ids_memory * self.dram),
            steps: (asked.ids_memory / STEP).ceil() as u32,
            after: Duration::ZERO,
            thread: if emulated { duration(self.emulated) } else { Duration::ZERO },
            depth: DEPTH,
        }
    }

    /// Measures them with rows of `row_bytes`, a multiple of 4 up to 64 KiB, on an emulated drive in memory, within a second or so.
    ///
    /// Processor and drive take turns on one thread, so that each can be timed by itself.
    pub fn measure(row_bytes: u32) -> Result<Self, PlanError> {
        let fail = |error: &dyn std::fmt::Display| PlanError::Timing(error.to_string());
        let dim = (row_bytes / 4).clamp(1, 1 << 14);
        // More rows than caches hold.
        let rows = ((64 << 20) / (u64::from(dim) * 4)).clamp(BATCH as u64 * 2, 1 << 19);
        let bytes = rows * u64::from(dim) * 4;
        // A drive that takes no time, by the same path as one that takes some.
        let timing = Timing {
            small_reads: 1e12,
            reads: 1e12,
            writes: 1e12,
            read_bytes: 1e15,
            write_bytes: 1e15,
            dies: 1,
            page_read: Duration::ZERO,
            page_write: Duration::ZERO,
            read_overhead: Duration::ZERO,
            write_latency: Duration::ZERO,
            flush: Duration::ZERO,
            slow_read: None,
            placement: Placement::Address { regions: 1 },
        };
        let namespace = Namespace::new(Ram::new(bytes * 5 / 4 + (64 << 20)).map_err(|error| fail(&error))?);
        let builder = SoftController::builder().name("timed").serial("timed").namespace(namespace).timing(timing);
        let drive = builder.stepped().build().map_err(|error| fail(&error))?;
        let clock = Arc::new(Turns { drive: drive.clone(), system: SystemClock::new(), stepped: AtomicU64::new(0) });
        let options = OpenOptions::default().with_clock(clock.clone());
        let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &options);
        let store = store.map_err(|error| fail(&error))?;
        let spec = TableSpec::new("t", rows, dim, DType::F32);
        let content = warprow_workload::Oracle::new(1, 0, rows, dim, DType::F32);
        let load = TableLoad::new(&spec, &content).with_random_access();
        let loaded = store.load("t", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
        loaded.map_err(|error| fail(&error))?;

        let mut random = Random::new(1);
        let mut rows_out = vec![0f32; BATCH * dim as usize];
        let mut timed = |dram: u64, ids: &mut dyn FnMut(&mut Random) -> Vec<i64>| -> Result<Timed, PlanError> {
            let host = store.attach_host(HostOptions::default().with_dram_bytes(dram)).map_err(|error| fail(&error))?;
            let options = PlanOptions::default().with_max(BATCH as u32, BATCH);
            let plan = host.plan(&[Feature::new("f", "t")], options).map_err(|error| fail(&error))?;
            let mut slot = plan.slot().map_err(|error| fail(&error))?;
            let mut turn = |slot: &mut Slot| -> Result<Timed, PlanError> {
                let ids = ids(&mut random);
                let mut out = Output::new(Rows::F32(&mut rows_out), dim as usize);
                let before = clock.stepped();
                let report =
                    slot.lookup(&Batch::new(&ids, ids.len() as u32), &mut out).map_err(|error| fail(&error))?;
                Ok(Timed { report, drive: (clock.stepped() - before).as_secs_f64() })
            };
            let _ = (turn(&mut slot)?, turn(&mut slot)?);
            let mut turns = (0..TURNS).map(|_| turn(&mut slot)).collect::<Result<Vec<_>, _>>()?;
            let mut drives: Vec<f64> = turns.iter().map(|timed| timed.drive).collect();
            drives.sort_by(f64::total_cmp);
            turns.sort_by_key(|timed| timed.report.stages.iter().sum::<Duration>());
            let chosen = turns.into_iter().nth(COUNTS).zip(drives.into_iter().nth(COUNTS));
            chosen.map(|(timed, drive)| Timed { drive, ..timed }).ok_or_else(|| fail(&"no turn"))
        };
        let any =
            |random: &mut Random, count: usize| -> Vec<i64> { (0..count).map(|_| random.below(rows) as i64).collect() };
        let one = timed(u64::MAX, &mut |random| any(random, 1))?;
        let dram = timed(u64::MAX, &mut |random| any(random, BATCH))?;
        let apart = timed(0, &mut |random| any(random, BATCH))?;
        let again = timed(0, &mut |random| {
            let mut ids = any(random, BATCH / 4).repeat(4);
            (1..ids.len()).rev().for_each(|at| ids.swap(at, random.below(at as u64 + 1) as usize));
            ids
        })?;
        let beside = timed(0, &mut |random| {
            let first = random.below(rows - BATCH as u64) as i64;
            (first..first + BATCH as i64).collect()
        })?;
        let lookup = one.before() + one.then();
        let (ids, apart_rows, again_rows) = (BATCH as f64, apart.rows(), again.rows());
        let row_before = each(apart.before() - again.before(), apart_rows - again_rows).max(0.0);
        let command = each(apart.then() - beside.then(), apart.commands() - beside.commands()).max(0.0);
        let send = each(apart.stage(Stage::Read), apart.commands().min(DEPTH as f64)).min(command);
        let row = each(apart.then() - apart.commands() * command, apart_rows).max(0.0);
        let rest = again.then() - again.commands() * command - again_rows * row;
        Ok(Self {
            lookup,
            dram_before: each(dram.before() - lookup, ids).max(0.0),
            dram: each(dram.then(), ids),
            ssd_before: each(apart.before() - lookup - apart_rows * row_before, ids).max(0.0),
            row_before,
            send,
            complete: command - send,
            row,
            repeat: each(rest, ids - again_rows).max(0.0),
            emulated: each(apart.drive, apart.commands()),
        })
    }
}

/// What a look-up took.
struct Timed {
    report: Report,
    /// Seconds of the drive's.
    drive: f64,
}

impl Timed {
    fn stage(&self, stage: Stage) -> f64 {
        self.report.stages.get(stage as usize).map_or(0.0, Duration::as_secs_f64)
    }

    /// Seconds before the first command leaves.
    fn before(&self) -> f64 {
        [Stage::Dedupe, Stage::Route, Stage::Order, Stage::Merge].map(|stage| self.stage(stage)).iter().sum()
    }

    /// Seconds from then on.
    fn then(&self) -> f64 {
        self.stage(Stage::Read) + self.stage(Stage::Expand)
    }

    fn rows(&self) -> f64 {
        self.report.rows_ssd as f64
    }

    fn commands(&self) -> f64 {
        self.report.commands as f64
    }
}

/// A clock that stands still while the drive works, which it does when the host waits.
struct Turns {
    drive: Arc<SoftController>,
    system: SystemClock,
    /// Nanoseconds that the drive has worked for.
    stepped: AtomicU64,
}

impl Turns {
    fn stepped(&self) -> Duration {
        Duration::from_nanos(self.stepped.load(Ordering::Relaxed))
    }
}

impl Clock for Turns {
    fn now(&self) -> Duration {
        self.system.now().saturating_sub(self.stepped())
    }

    fn relax(&self, _turn: u32) {
        let began = self.system.now();
        self.drive.step(began.saturating_sub(self.stepped()));
        let took = self.system.now().saturating_sub(began);
        self.stepped.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn sleep(&self, duration: Duration) {
        let until = self.now() + duration;
        while self.now() < until {
            self.relax(0);
            // What it did not count as the drive's passes.
            std::hint::spin_loop();
        }
    }

    fn is_concurrent(&self) -> bool {
        false
    }
}

/// Seconds that a GPU takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GpuCosts {
    /// For a look-up of few ids in GPU memory.
    pub lookup: f64,
    /// For each id: to deduplicate.
    pub id: f64,
    /// For the first row in DRAM: its latency.
    pub dram_first: f64,
    /// For each row in DRAM.
    pub dram: f64,
    /// Bytes a second from DRAM.
    pub dram_bytes: f64,
    /// Bytes a second to the output.
    pub output_bytes: f64,
}

impl Default for GpuCosts {
    /// An H200 by `docs/performance.md`: 7 µs for a thousand ids in GPU memory and 29 for them in DRAM; 33.5 GB/s of rows of 128 B and 49.7 of
    /// 512 B; of 1.7 million ids 90 µs to deduplicate, and 0.5 ms to write 872 MB.
    fn default() -> Self {
        Self { lookup: 7e-6, id: 0.053e-9, dram_first: 12e-6, dram: 1.6e-9, dram_bytes: 59e9, output_bytes: 1.7e12 }
    }
}

impl GpuCosts {
    /// What the GPU executor with one queue set does for a look-up on drives that are or are not `emulated` by threads, which take so many
    /// seconds a command.
    pub fn work(&self, asked: &Asked, emulated: Option<f64>) -> Work {
        let dram = match asked.ids_memory > 0.0 {
            true => self.dram_first + asked.ids_memory * self.dram + each(asked.bytes_dram, self.dram_bytes),
            false => 0.0,
        };
        Work {
            before: duration(self.lookup + asked.ids * self.id),
            send: Duration::ZERO,
            land: Duration::ZERO,
            meanwhile: duration(dram),
            steps: 16,
            after: duration(each(asked.bytes, self.output_bytes)),
            thread: duration(emulated.unwrap_or(0.0)),
            depth: 768,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_work() {
        let costs = HostCosts {
            lookup: 1.0,
            dram_before: 2.0,
            dram: 3.0,
            ssd_before: 5.0,
            row_before: 7.0,
            send: 11.0,
            complete: 13.0,
            row: 17.0,
            repeat: 19.0,
            emulated: 23.0,
        };
        // Four ids of three rows on drives, which two commands bring.
        let asked = Asked { ids_memory: 10.0, ids_ssd: 4.0, rows_ssd: 3.0, commands: 2.0, ..Asked::default() };
        let seconds = Duration::from_secs_f64;
        let want = Work {
            before: seconds(1.0 + 20.0 + 20.0 + 21.0),
            send: seconds(11.0),
            land: seconds(13.0 + (51.0 + 19.0) / 2.0),
            meanwhile: seconds(30.0),
            steps: 1,
            after: Duration::ZERO,
            thread: seconds(23.0),
            depth: 1023,
        };
        assert_eq!(costs.work(&asked, true), want);
        assert_eq!(costs.work(&asked, false), Work { thread: Duration::ZERO, ..want });
        assert_eq!(HostCosts::NONE.work(&asked, true), Work { steps: 1, depth: 1023, ..Work::default() });
    }

    #[test]
    fn a_gpu_takes_what_was_measured() {
        let gpu = GpuCosts::default();
        let time = |ids: f64, row_bytes: f64, dram: bool| {
            let bytes = ids * row_bytes;
            let (ids_memory, bytes_dram) = if dram { (ids, bytes) } else { (0.0, 0.0) };
            let work = gpu.work(&Asked { ids, bytes, ids_memory, bytes_dram, ..Asked::default() }, None);
            (work.before + work.meanwhile + work.after).as_secs_f64()
        };
        for (got, want) in [
            (time(1e3, 512.0, false), 7e-6),
            (time(1e3, 512.0, true), 29e-6),
            (2e6 * 128.0 / time(2e6, 128.0, true), 33.5e9),
            (2e6 * 512.0 / time(2e6, 512.0, true), 49.7e9),
        ] {
            assert!((0.9..1.1).contains(&(got / want)), "{got:.3e}, not {want:.3e}");
        }
    }

    #[test]
    fn costs_are_measured() {
        let costs = HostCosts::measure(128).unwrap();
        println!("{costs:?}");
        let all = [costs.lookup, costs.dram_before, costs.dram, costs.ssd_before, costs.emulated];
        assert!(all.iter().all(|&it| it > 0.0 && it < 1.0), "{costs:?}");
        let ssd = costs.ssd_before + costs.row_before + costs.send + costs.complete + costs.row;
        assert!(ssd > costs.dram_before + costs.dram, "{costs:?}");
    }
}
