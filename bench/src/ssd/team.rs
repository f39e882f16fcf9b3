//! Several threads: each looks up its part of a batch, by the host executor or by io_uring.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions, ReadMerging, Slot};
use warprow_store::Store;
use warprow_workload::rival::{EqualMeansRival, Rival, RivalTable, UringReads};
use zerocopy::IntoBytes;

/// How long a part may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Looks at a word between two times that others may have the processor.
const LOOKS: u32 = 2000;

/// Where the rows of a part go.
pub(crate) trait Landing: Send + 'static {
    /// All of it.
    fn rows(&mut self) -> &mut [f32];
}

impl Landing for Vec<f32> {
    fn rows(&mut self) -> &mut [f32] {
        self
    }
}

/// By what threads look up.
#[derive(Clone, Copy, Debug)]
pub enum Means<'a> {
    /// The host executor, each with a queue on every drive, with rows sharing commands like that.
    Host(&'a Store, Option<&'a ReadMerging>),
    /// io_uring on the drives' files, with all other means of the host executor.
    Uring(&'a RivalTable),
}

/// Someone who looks up the part of one thread.
trait Worker: Send {
    /// Writes the rows of `ids`, of `dim` elements each: commands that drives were given for it.
    fn look_up(&mut self, ids: &[i64], rows: &mut [f32], dim: usize) -> anyhow::Result<u64>;
}

impl Worker for Slot {
    fn look_up(&mut self, ids: &[i64], rows: &mut [f32], dim: usize) -> anyhow::Result<u64> {
        let batch = Batch::new(ids, ids.len());
        Ok(self.lookup(&batch, &mut Output::new(OutputRows::F32(rows), dim))?.commands)
    }
}

struct Reader {
    rival: EqualMeansRival<UringReads>,
    mask: Vec<u8>,
}

impl Worker for Reader {
    fn look_up(&mut self, ids: &[i64], rows: &mut [f32], _: usize) -> anyhow::Result<u64> {
        let mask = self.mask.get_mut(..ids.len()).context("more ids than there is room for")?;
        self.rival.lookup(ids, rows.as_mut_bytes(), mask)?;
        Ok(0)
    }
}

impl Means<'_> {
    /// One for each of `threads` threads, for up to `share` ids of `table`.
    fn workers(&self, table: &str, share: usize, threads: u32) -> anyhow::Result<Vec<Box<dyn Worker>>> {
        match self {
            Self::Host(store, merging) => {
                let options = HostOptions::default();
                let merging = merging.cloned().unwrap_or(options.merging.clone());
                let host = HostExecutor::attach(store, options.with_merging(merging))?;
                let options = PlanOptions::default().with_max(share, share).with_slots(threads);
                let plan = host.plan(&[Feature::new("f", table)], options)?;
                (0..threads).map(|_| Ok(Box::new(plan.slot()?) as Box<dyn Worker>)).collect()
            }
            Self::Uring(target) => {
                let depth = HostOptions::default().depth;
                let reader = |_| {
                    let rival = EqualMeansRival::uring((*target).clone(), share, depth)?;
                    Ok(Box::new(Reader { rival, mask: vec![0; share] }) as Box<dyn Worker>)
                };
                (0..threads).map(reader).collect()
            }
        }
    }
}

/// Threads that look up, the caller's among them: the first.
pub(crate) struct Team<L> {
    seats: Vec<Arc<Seat<L>>>,
    threads: Vec<JoinHandle<()>>,
    turn: u64,
}

/// One thread's.
struct Seat<L> {
    /// The look-up that it shall do, and the latest that it has done.
    due: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
    desk: Mutex<Desk<L>>,
}

struct Desk<L> {
    worker: Box<dyn Worker>,
    ids: Vec<i64>,
    landing: L,
    /// Commands of the latest look-up.
    commands: anyhow::Result<u64>,
}

impl<L: Landing> Desk<L> {
    fn look_up(&mut self, dim: usize) {
        let rows = self.landing.rows().get_mut(..self.ids.len() * dim);
        self.commands = match rows {
            None => Err(anyhow::anyhow!("{} rows have no room", self.ids.len())),
            Some(_) if self.ids.is_empty() => Ok(0),
            Some(rows) => self.worker.look_up(&self.ids, rows, dim),
        };
    }
}

impl<L: Landing> Seat<L> {
    fn desk(&self) -> MutexGuard<'_, Desk<L>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Look-ups until it is stopped.
    fn serve(&self, dim: usize) {
        let mut done = 0;
        let mut looks = 0u32;
        while !self.stop.load(Ordering::Relaxed) {
            let due = self.due.load(Ordering::Acquire);
            if due != done {
                self.desk().look_up(dim);
                done = due;
                self.done.store(done, Ordering::Release);
                looks = 0;
            } else if looks < LOOKS {
                looks += 1;
                spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl<L: Landing> Team<L> {
    /// `threads` threads for look-ups of `ids` ids of `table`, whose rows have `dim` elements. `landing` makes a place for so many rows.
    pub(crate) fn new(
        means: Means<'_>,
        table: &str,
        dim: usize,
        ids: u64,
        threads: u32,
        landing: impl Fn(usize) -> anyhow::Result<L>,
    ) -> anyhow::Result<Self> {
        ensure!((1..=64).contains(&threads), "{threads} threads: 1 to 64 are possible");
        let share = usize::try_from(ids.div_ceil(threads.into()))?;
        let seat = |worker| {
            let desk = Desk { worker, ids: Vec::with_capacity(share), landing: landing(share)?, commands: Ok(0) };
            let (due, done, stop) = Default::default();
            anyhow::Ok(Arc::new(Seat { due, done, stop, desk: Mutex::new(desk) }))
        };
        let workers = means.workers(table, share, threads)?;
        let seats = workers.into_iter().map(seat).collect::<anyhow::Result<Vec<_>>>()?;
        let mut team = Self { seats, threads: Vec::new(), turn: 0 };
        for seat in team.seats.iter().skip(1) {
            let seat = seat.clone();
            let thread = Builder::new().name("bench-lookup".to_owned()).spawn(move || seat.serve(dim));
            team.threads.push(thread.context("a thread that looks up")?);
        }
        Ok(team)
    }

    /// Gives each its part of `ids`. What is there of other ids' rows is right for none of these.
    pub(crate) fn deal(&mut self, ids: &[i64]) {
        let share = ids.len().div_ceil(self.seats.len()).max(1);
        let mut parts = ids.chunks(share);
        for seat in &self.seats {
            let mut desk = seat.desk();
            desk.ids.clear();
            desk.ids.extend_from_slice(parts.next().unwrap_or_default());
        }
    }

    /// Shows all parts of the last look-up, in their order: first position, ids, rows.
    pub(crate) fn each(&self, mut show: impl FnMut(usize, usize, &mut L) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut first = 0;
        for seat in &self.seats {
            let mut desk = seat.desk();
            let count = desk.ids.len();
            show(first, count, &mut desk.landing)?;
            first += count;
        }
        Ok(())
    }

    /// Looks up what was dealt. Of each part, in their order, `landed` is told when it is there: its first position, and its rows. The
    /// result is commands to drives in all.
    pub(crate) fn look_up(
        &mut self,
        dim: usize,
        mut landed: impl FnMut(usize, usize, &mut L) -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        self.turn += 1;
        self.seats.iter().skip(1).for_each(|seat| seat.due.store(self.turn, Ordering::Release));
        let mut first = 0;
        let mut commands = 0;
        for (number, seat) in self.seats.iter().enumerate() {
            match number {
                0 => seat.desk().look_up(dim),
                _ => self.wait(seat)?,
            }
            let mut desk = seat.desk();
            commands += std::mem::replace(&mut desk.commands, Ok(0))?;
            let (count, Desk { landing, .. }) = (desk.ids.len(), &mut *desk);
            landed(first, count, landing)?;
            first += count;
        }
        Ok(commands)
    }

    fn wait(&self, seat: &Seat<L>) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut looks = 0u32;
        while seat.done.load(Ordering::Acquire) != self.turn {
            looks += 1;
            if looks < LOOKS {
                spin_loop();
                continue;
            }
            std::thread::yield_now();
            if self.threads.iter().any(JoinHandle::is_finished) {
                bail!("a thread that looks up has ended");
            }
            ensure!(began.elapsed() < PATIENCE, "a part of a look-up has taken longer than {PATIENCE:?}");
        }
        Ok(())
    }
}

impl<L> Drop for Team<L> {
    fn drop(&mut self) {
        self.seats.iter().for_each(|seat| seat.stop.store(true, Ordering::Relaxed));
        // One that panicked has said so.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
