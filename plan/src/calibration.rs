//! What look-ups cost a processor, measured.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warprow_dma::{Clock, SystemClock};
use warprow_layout::{FormatOptions, TableSpec};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, LookupReport, Output, OutputRows, PlanOptions, Slot, Stage};
use warprow_soft_controller::{DiePlacement, Namespace, RamBacking, SoftController, Timing};
use warprow_store::{DType, Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_workload::SeededRandom;

use crate::costs::{DEPTH, HostCosts, LookupDemand, each};
use crate::drives::DriveRead;
use crate::error::ProposalError;
use crate::lookup::simulate_lookup;

/// Turns, and which of them counts by how long it took: others may need the processor as well.
const TURNS: usize = 25;
const COUNTS: usize = TURNS / 3;
/// Turns of look-ups in threads, and which of these counts: in it, both threads must have had a processor.
const THREAD_TURNS: usize = 200;
const THREAD_COUNTS: usize = THREAD_TURNS / 20;
/// How long commands wait in a drive, about: its thread has a queue to look after then, as where the drive is what look-ups wait for.
const QUEUED: Duration = Duration::from_micros(300);
/// Ids of a look-up.
const BATCH: usize = 4096;

impl HostCosts {
    /// Measures them with rows of `row_bytes`, a multiple of 4 up to 64 KiB, on an emulated drive in memory, within a second or two.
    ///
    /// Processor and drive take turns on one thread, so that each can be timed by itself. For `emulated` drives, which have threads of
    /// their own, it is then measured what threads cost each other: lines travel between their caches, and they may share a core.
    pub fn measure(row_bytes: u32, emulated: bool) -> Result<Self, ProposalError> {
        let dim = (row_bytes / 4).clamp(1, 1 << 14);
        // More rows than caches hold.
        let rows = ((64 << 20) / (u64::from(dim) * 4)).clamp(BATCH as u64 * 2, 1 << 19);
        let calibration = Calibration { dim, rows };
        let costs = calibration.taking_turns()?;
        match emulated && std::thread::available_parallelism().is_ok_and(|threads| threads.get() > 1) {
            true => calibration.in_threads(costs),
            false => Ok(costs),
        }
    }
}

fn fail(error: &dyn std::fmt::Display) -> ProposalError {
    ProposalError::Timing(error.to_string())
}

/// Measures on a table of rows of `dim` elements of four bytes.
struct Calibration {
    dim: u32,
    rows: u64,
}

impl Calibration {
    /// A drive on which as many commands as there can be are read in `read`, by the same path as from one that is slower.
    fn timing(read: Duration) -> Timing {
        Timing {
            small_reads: 1e12,
            reads: 1e12,
            writes: 1e12,
            read_bytes: 1e15,
            write_bytes: 1e15,
            dies: 1,
            page_read: Duration::ZERO,
            page_write: Duration::ZERO,
            read_overhead: read,
            write_latency: Duration::ZERO,
            flush: Duration::ZERO,
            slow_read: None,
            placement: DiePlacement::Address { regions: 1 },
        }
    }

    fn drive(&self, timing: Timing, stepped: bool) -> Result<Arc<SoftController>, ProposalError> {
        let bytes = self.rows * u64::from(self.dim) * 4;
        let namespace = Namespace::new(
            RamBacking::new((bytes * 5 / 4 + (64 << 20)).next_multiple_of(1 << 20)).map_err(|error| fail(&error))?,
        );
        let builder = SoftController::builder().name("timed").serial("timed").namespace(namespace).timing(timing);
        let builder = if stepped { builder.stepped() } else { builder };
        builder.build().map_err(|error| fail(&error))
    }

    fn store(&self, drive: Arc<SoftController>, options: &OpenOptions) -> Result<Store, ProposalError> {
        let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), options);
        let store = store.map_err(|error| fail(&error))?;
        let spec = TableSpec::new("t", self.rows, self.dim, DType::F32);
        let content = warprow_workload::ContentOracle::new(1, 0, self.rows, self.dim, DType::F32);
        let load = TableLoad::new(&spec, &content).with_random_access();
        let loaded = store.load("t", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
        loaded.map_err(|error| fail(&error))?;
        Ok(store)
    }

    /// Prepares look-ups with so many bytes of rows in DRAM.
    fn slot(&self, store: &Store, dram: u64) -> Result<Slot, ProposalError> {
        let host =
            HostExecutor::attach(store, HostOptions::default().with_dram_bytes(dram)).map_err(|error| fail(&error))?;
        let options = PlanOptions::default().with_max(BATCH, BATCH);
        let plan = host.plan(&[Feature::new("f", "t")], options).map_err(|error| fail(&error))?;
        plan.slot().map_err(|error| fail(&error))
    }

    fn look_up(&self, slot: &mut Slot, ids: &[i64], rows: &mut [f32]) -> Result<LookupReport, ProposalError> {
        let mut out = Output::new(OutputRows::F32(rows), self.dim as usize);
        slot.lookup(&Batch::new(ids, ids.len()), &mut out).map_err(|error| fail(&error))
    }

    fn output(&self) -> Vec<f32> {
        vec![0f32; BATCH * self.dim as usize]
    }

    fn any(&self, random: &mut SeededRandom, count: usize) -> Vec<i64> {
        (0..count).map(|_| random.below(self.rows) as i64).collect()
    }

    /// Everything by itself: the drive works when the host waits, on its thread.
    fn taking_turns(&self) -> Result<HostCosts, ProposalError> {
        let drive = self.drive(Self::timing(Duration::ZERO), true)?;
        let clock = Arc::new(Turns { drive: drive.clone(), system: SystemClock::new(), stepped: AtomicU64::new(0) });
        let store = self.store(drive, &OpenOptions::default().with_clock(clock.clone()))?;
        let mut random = SeededRandom::new(1);
        let mut rows = self.output();
        let mut timed =
            |dram: u64, ids: &mut dyn FnMut(&mut SeededRandom) -> Vec<i64>| -> Result<Timed, ProposalError> {
                let mut slot = self.slot(&store, dram)?;
                let mut turn = || -> Result<Timed, ProposalError> {
                    let ids = ids(&mut random);
                    let before = clock.stepped();
                    let report = self.look_up(&mut slot, &ids, &mut rows)?;
                    Ok(Timed { report, drive: (clock.stepped() - before).as_secs_f64() })
                };
                let _ = (turn()?, turn()?);
                let mut turns = (0..TURNS).map(|_| turn()).collect::<Result<Vec<_>, _>>()?;
                let mut drives: Vec<f64> = turns.iter().map(|timed| timed.drive).collect();
                drives.sort_by(f64::total_cmp);
                turns.sort_by_key(|timed| timed.report.stages.iter().sum::<Duration>());
                let chosen = turns.into_iter().nth(COUNTS).zip(drives.into_iter().nth(COUNTS));
                chosen.map(|(timed, drive)| Timed { drive, ..timed }).ok_or_else(|| fail(&"no turn"))
            };
        let one = timed(u64::MAX, &mut |random| self.any(random, 1))?;
        let dram = timed(u64::MAX, &mut |random| self.any(random, BATCH))?;
        let apart = timed(0, &mut |random| self.any(random, BATCH))?;
        let again = timed(0, &mut |random| {
            let mut ids = self.any(random, BATCH / 4).repeat(4);
            (1..ids.len()).rev().for_each(|at| ids.swap(at, random.below(at as u64 + 1) as usize));
            ids
        })?;
        let beside = timed(0, &mut |random| {
            let first = random.below(self.rows - BATCH as u64) as i64;
            (first..first + BATCH as i64).collect()
        })?;

        let lookup = one.before() + one.then();
        let ids = BATCH as f64;
        let apart_rows = apart.rows();
        let again_rows = again.rows();
        let row_before = each(apart.before() - again.before(), apart_rows - again_rows).max(0.0);
        let command = each(apart.then() - beside.then(), apart.commands() - beside.commands()).max(0.0);
        let send = each(apart.stage(Stage::Read), apart.commands().min(DEPTH as f64)).min(command);
        let row = each(apart.then() - apart.commands() * command, apart_rows).max(0.0);
        let rest = again.then() - again.commands() * command - again_rows * row;
        Ok(HostCosts {
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

    /// `costs`, with what a command costs the drive's thread while the host works as well.
    fn in_threads(&self, costs: HostCosts) -> Result<HostCosts, ProposalError> {
        let timing = Self::timing(QUEUED);
        let store = self.store(self.drive(timing.clone(), false)?, &OpenOptions::default())?;
        let mut slot = self.slot(&store, 0)?;
        let mut rows = self.output();
        let mut random = SeededRandom::new(2);
        let mut turn = || -> Result<(Duration, LookupReport), ProposalError> {
            let ids = self.any(&mut random, BATCH / 2);
            let began = Instant::now();
            let report = self.look_up(&mut slot, &ids, &mut rows)?;
            Ok((began.elapsed(), report))
        };
        let _ = (turn()?, turn()?);
        let mut turns = (0..THREAD_TURNS).map(|_| turn()).collect::<Result<Vec<_>, _>>()?;
        turns.sort_by_key(|turn| turn.0);
        let (took, report) = turns.into_iter().nth(THREAD_COUNTS).ok_or_else(|| fail(&"no turn"))?;
        let asked = LookupDemand {
            ids_ssd: report.ids as f64,
            rows_ssd: report.rows_ssd as f64,
            commands: report.commands as f64,
            ids: report.ids as f64,
            ..LookupDemand::default()
        };
        let place = |at: u64| DriveRead { drive: 0, offset: at * 512, len: 512, written: at };
        let mut reads: Vec<DriveRead> = (0..report.commands).map(place).collect();
        // With what of the thread's a look-up takes as long as it did.
        let mut least = 0.0;
        let mut most = took.as_secs_f64() / asked.commands.max(1.0);
        for _ in 0..24 {
            let emulated = (least + most) / 2.0;
            let work = HostCosts { emulated, ..costs }.work(&asked, true);
            let longer = simulate_lookup(&work, Some(&timing), 1 << 30, &mut reads, 1).time > took;
            (least, most) = if longer { (least, emulated) } else { (emulated, most) };
        }
        Ok(HostCosts { emulated: (least + most) / 2.0, ..costs })
    }
}

/// What a look-up took.
struct Timed {
    report: LookupReport,
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
