//! The host executor on several threads: each looks up its part of a batch.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use warprow_store::{Batch, Feature, HostOptions, Output, Plan, PlanOptions, Report, Rows, Slot, Store};

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

/// Threads with a slot each, the caller's among them: the first.
pub(crate) struct Team<L> {
    seats: Vec<Arc<Seat<L>>>,
    threads: Vec<JoinHandle<()>>,
    turn: u64,
    _plan: Plan,
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
    slot: Slot,
    ids: Vec<i64>,
    landing: L,
    report: anyhow::Result<Report>,
}

impl<L: Landing> Desk<L> {
    fn look_up(&mut self, dim: usize) {
        let bags = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        let rows = self.landing.rows().get_mut(..self.ids.len() * dim);
        self.report = match rows {
            None => Err(anyhow::anyhow!("{bags} rows have no room")),
            Some(_) if self.ids.is_empty() => Ok(Report::default()),
            Some(rows) => {
                let looked_up = self.slot.lookup(&Batch::new(&self.ids, bags), &mut Output::new(Rows::F32(rows), dim));
                looked_up.map_err(Into::into)
            }
        };
    }
}

impl<L: Landing> Seat<L> {
    fn desk(&self) -> MutexGuard<'_, Desk<L>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Look-ups until it is stopped.
    fn serve(&self, dim: usize) {
        let (mut done, mut looks) = (0, 0u32);
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
    /// `threads` threads for look-ups of `ids` ids of `table`, whose rows have `dim` elements and lie on drives. `landing` makes a place
    /// for so many rows.
    pub(crate) fn new(
        store: &Store,
        table: &str,
        dim: usize,
        ids: u64,
        threads: u32,
        landing: impl Fn(usize) -> anyhow::Result<L>,
    ) -> anyhow::Result<Self> {
        ensure!((1..=64).contains(&threads), "{threads} threads: 1 to 64 are possible");
        let share = usize::try_from(ids.div_ceil(threads.into()))?;
        let host = store.attach_host(HostOptions::default())?;
        let options = PlanOptions::default().with_max(u32::try_from(share)?, share).with_slots(threads);
        let plan = host.plan(&[Feature::new("f", table)], options)?;
        let seat = |_| {
            let desk = Desk {
                slot: plan.slot()?,
                ids: Vec::with_capacity(share),
                landing: landing(share)?,
                report: Ok(Report::default()),
            };
            let (due, done, stop) = Default::default();
            anyhow::Ok(Arc::new(Seat { due, done, stop, desk: Mutex::new(desk) }))
        };
        let seats = (0..threads).map(seat).collect::<anyhow::Result<Vec<_>>>()?;
        let mut team = Self { seats, threads: Vec::new(), turn: 0, _plan: plan };
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
    /// result is commands in all.
    pub(crate) fn look_up(
        &mut self,
        dim: usize,
        mut landed: impl FnMut(usize, usize, &mut L) -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        self.turn += 1;
        self.seats.iter().skip(1).for_each(|seat| seat.due.store(self.turn, Ordering::Release));
        let (mut first, mut commands) = (0, 0);
        for (number, seat) in self.seats.iter().enumerate() {
            match number {
                0 => seat.desk().look_up(dim),
                _ => self.wait(seat)?,
            }
            let mut desk = seat.desk();
            let report = std::mem::replace(&mut desk.report, Ok(Report::default()))?;
            let (count, Desk { landing, .. }) = (desk.ids.len(), &mut *desk);
            landed(first, count, landing)?;
            first += count;
            commands += report.commands;
        }
        Ok(commands)
    }

    fn wait(&self, seat: &Seat<L>) -> anyhow::Result<()> {
        let (began, mut looks) = (Instant::now(), 0u32);
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
