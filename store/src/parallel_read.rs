//! Reading a lot of extents at the bandwidth of all drives together: several threads, each with queues and buffers of its own.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warprow_dma::Clock;
use warprow_driver::DriverError;
use warprow_layout::Extent;

use crate::StoreError;
use crate::bulk::{Bulk, Job, Purpose};
use crate::drive_access::{DriveAccess, lock};
use crate::member::MemberDrive;
use crate::pace::Pace;

/// Threads at most: what they read passes through caches that they share.
const MOST: usize = 16;
/// Threads for one drive at most.
const PER_DRIVE: usize = 4;
/// Time between two looks at whether to stop.
const TICK: Duration = Duration::from_millis(20);

/// Takes the content of an extent, on any thread.
pub(crate) type Take<'a> = dyn Fn(&Extent, &[u8]) -> Result<(), StoreError> + Sync + 'a;
/// Is told of an extent that a drive answered with an error, on any thread.
pub(crate) type Failed<'a> = dyn Fn(&Extent, DriverError) -> Result<(), StoreError> + Sync + 'a;
/// Asked again and again whether to stop, on the caller's thread.
pub(crate) type Tick<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// Threads' worth of queues. After a failure it is good only for being dropped.
pub(crate) struct ParallelRead {
    workers: Vec<Bulk>,
    /// By member: who reads its extents, in turns.
    owners: Vec<Vec<usize>>,
    extent_bytes: usize,
    clock: Arc<dyn Clock>,
    pacer: Option<Pacer>,
}

impl ParallelRead {
    /// Of `members`, for extents of `least` bytes at least, with so many threads, or as many as there are processors and queues
    /// for.
    pub(crate) fn new(
        members: &[Option<Arc<MemberDrive>>],
        least: usize,
        threads: Option<usize>,
        pace: Option<Pace>,
        driving: &DriveAccess,
    ) -> Result<Self, StoreError> {
        let present: Vec<usize> =
            members.iter().enumerate().filter(|(_, member)| member.is_some()).map(|(index, _)| index).collect();
        let processors = || std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let threads = if driving.clock.is_concurrent() { threads } else { Some(1) };
        let wanted = threads.unwrap_or_else(processors).clamp(1, (present.len() * PER_DRIVE).max(1));
        let mut sweep = Self {
            workers: Vec::new(),
            owners: vec![Vec::new(); members.len()],
            extent_bytes: usize::MAX,
            clock: driving.clock.clone(),
            pacer: pace.map(|pace| Pacer { pace, free_at: Mutex::new(Duration::ZERO) }),
        };
        let base = wanted.min(present.len()).max(1);
        for worker in 0..wanted {
            let own = |nth: usize| if worker < base { nth % base == worker } else { nth == worker % present.len() };
            let mine: Vec<usize> =
                present.iter().enumerate().filter(|(nth, _)| own(*nth)).map(|(_, member)| *member).collect();
            let subset: Vec<Option<Arc<MemberDrive>>> = (0..members.len())
                .map(|number| members.get(number).cloned().flatten().filter(|_| mine.contains(&number)))
                .collect();
            match Bulk::new(Purpose::Read, &subset, least, driving) {
                Ok(bulk) => {
                    sweep.extent_bytes = sweep.extent_bytes.min(bulk.extent_bytes());
                    sweep.workers.push(bulk);
                    let owners = sweep.owners.iter_mut().enumerate().filter(|(member, _)| mine.contains(member));
                    owners.for_each(|(_, owners)| owners.push(worker));
                }
                // It goes with fewer.
                Err(StoreError::Driver(DriverError::NoQueueLeft { .. })) if worker >= base => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sweep)
    }

    /// Bytes that extents should have, at most.
    pub(crate) fn extent_bytes(&self) -> usize {
        self.extent_bytes
    }

    /// Reads `extents`, in any order; returns when all have ended, or at the first failure. `tick` is asked before the first
    /// read, and a `Break` from it always ends in [`StoreError::Interrupted`], however little there was to read.
    pub(crate) fn run(
        &mut self,
        extents: impl Iterator<Item = Extent>,
        take: &Take<'_>,
        failed: &Failed<'_>,
        tick: Tick<'_>,
    ) -> Result<(), StoreError> {
        if tick().is_break() {
            return Err(StoreError::Interrupted);
        }
        let mut lists: Vec<Vec<Extent>> = vec![Vec::new(); self.workers.len()];
        let mut turns = vec![0usize; self.owners.len()];
        for extent in extents {
            let member = usize::from(extent.drive);
            let owners = self.owners.get(member).filter(|owners| !owners.is_empty());
            let (Some(owners), Some(turn)) = (owners, turns.get_mut(member)) else {
                return Err(warprow_layout::VolumeError::NoSuchMember { index: extent.drive }.into());
            };
            if let Some(list) = owners.get(*turn % owners.len()).and_then(|&worker| lists.get_mut(worker)) {
                list.push(extent);
            }
            *turn += 1;
        }
        let clock = &*self.clock;
        let pacer = self.pacer.as_ref();
        if let [alone] = &mut self.workers[..] {
            let tick = Mutex::new(tick);
            let stop = || (*lock(&tick))().is_break();
            return work(alone, lists.into_iter().flatten(), take, failed, pacer, clock, &stop);
        }
        let stopped = AtomicBool::new(false);
        let stop = || stopped.load(Ordering::Relaxed);
        let mut result = Ok(());
        std::thread::scope(|scope| {
            let (done, ends) = sync_channel(self.workers.len());
            for (bulk, list) in self.workers.iter_mut().zip(lists) {
                let done = done.clone();
                let stop = &stop;
                scope.spawn(move || {
                    let ended = work(bulk, list.into_iter(), take, failed, pacer, clock, stop);
                    // Nobody listens only after a panic.
                    let _ = done.send(ended);
                });
            }
            drop(done);
            loop {
                match ends.recv_timeout(TICK) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        stopped.store(true, Ordering::Relaxed);
                        if matches!(result, Ok(()) | Err(StoreError::Interrupted)) {
                            result = Err(error);
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if tick().is_break() {
                    stopped.store(true, Ordering::Relaxed);
                    // The threads may have read everything by now; the caller is told the same either way.
                    if result.is_ok() {
                        result = Err(StoreError::Interrupted);
                    }
                }
            }
        });
        result
    }
}

/// One thread's part.
fn work(
    bulk: &mut Bulk,
    extents: impl Iterator<Item = Extent>,
    take: &Take<'_>,
    failed: &Failed<'_>,
    pacer: Option<&Pacer>,
    clock: &dyn Clock,
    stop: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    let mut take = |extent: &Extent, bytes: &[u8]| take(extent, bytes);
    let mut failed = |extent: &Extent, error| failed(extent, error);
    let mut job = Job::Check(&mut take, &mut failed);
    let mut began = clock.now();
    let mut batch = 0;
    for extent in extents {
        if stop() {
            return Err(StoreError::Interrupted);
        }
        match pacer {
            None => {}
            Some(Pacer { pace: Pace::BytesPerSecond(rate), free_at }) => {
                let at = reserve(free_at, clock.now(), extent.bytes, *rate);
                // What is under way is not left to its time-out.
                if at > clock.now() + TICK {
                    bulk.finish(&mut job)?;
                }
                pause(clock, at, stop)?;
            }
            Some(Pacer { pace: Pace::Share(share), .. }) if batch == 8 => {
                bulk.finish(&mut job)?;
                let busy = clock.now().saturating_sub(began);
                let idle = busy.mul_f64((1.0 / share - 1.0).clamp(0.0, 1e4));
                pause(clock, clock.now() + idle, stop)?;
                (began, batch) = (clock.now(), 0);
            }
            Some(_) => {}
        }
        batch += 1;
        bulk.submit(extent, &mut job)?;
    }
    bulk.finish(&mut job)
}

struct Pacer {
    pace: Pace,
    /// When the next extent may be read.
    free_at: Mutex<Duration>,
}

/// When so many bytes may be read, at `rate` a second of all threads together.
fn reserve(free_at: &Mutex<Duration>, now: Duration, bytes: usize, rate: u64) -> Duration {
    let mut free_at = lock(free_at);
    let at = now.max(*free_at);
    *free_at = at + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
    at
}

fn pause(clock: &dyn Clock, until: Duration, stop: &dyn Fn() -> bool) -> Result<(), StoreError> {
    loop {
        let left = until.saturating_sub(clock.now());
        if left.is_zero() {
            return Ok(());
        }
        if stop() {
            return Err(StoreError::Interrupted);
        }
        clock.sleep(left.min(TICK));
    }
}
