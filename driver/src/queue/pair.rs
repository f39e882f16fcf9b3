use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{Doorbell, MappedMemory, PAGE};
use warprow_spec::Sqe;

use super::anomaly::Anomalies;
use super::completion::{CommandEnd, CommandName, Completion};
use super::device::{DeviceQueue, RingIovas};
use super::external_memory::QueuePairMemory;
use super::memory::{Places, RingMemory};
use super::push_error::PushError;
use super::ring::{NEVER, Ring};
use super::ring_sizes::RingSizes;
use crate::admin::HEALTH_INTERVAL;
use crate::controller::Controller;
use crate::error::DriverError;
use crate::failure::Blame;
use crate::identity::Identity;
use crate::late::changes_media;

/// How to make a queue pair.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Entries of the submission queue, 2 to what the controller can have (CAP.MQES, at most 65,536); one less is the most
    /// that can be outstanding.
    pub entries: u32,
    /// Entries of the completion queue, at least 2; fewer where the controller cannot have so many. One larger than the
    /// submission queue needs fewer doorbell stores: its head is told only when the queue could otherwise fill.
    pub completion_entries: u32,
    /// Most bytes that one command moves; MDTS may set a lower limit. Memory for PRP lists is set aside for it.
    pub max_transfer: u64,
    /// How long a command may take, from the first push of its batch.
    pub timeout: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { entries: 128, completion_entries: 512, max_transfer: 1 << 20, timeout: Duration::from_secs(10) }
    }
}

/// How often a waiting loop polls between two looks at the clock.
const TURNS: u32 = 64;
/// How often a wait for several completions looks for the last of them before it takes those that there are.
const MOMENT: u32 = 512;
/// How long a wait spins and yields before it sleeps between looks.
const SPIN: Duration = Duration::from_millis(20);
/// Commands that the device is asked to abort one by one before their queue is deleted.
const MOST_ABORTS: usize = 16;

/// A submission queue with its completion queue, driven by one thread at a time (`&mut self`): no locks, no atomic
/// read-modify-write. `docs/rings.md` gives the rules.
///
/// Commands are *pushed*, then the device is told of a batch of them by one [`ring`](Self::ring), then
/// [`poll`](Self::poll) or [`wait`](Self::wait) brings completions, in any order, each with the tag of its command.
///
/// **The memory that a command names** belongs to the device until the command has ended in any way but
/// [`CommandEnd::TimedOut`]: whoever reads it meanwhile may read anything, and what is written there meanwhile may be
/// lost. The memory also stays mapped, and no Rust reference covers it: the queue pair [keeps](Self::keep) it until the
/// device can provably not reach it any more (queue deleted, or CC.EN = 0 and RDY = 0). Only [`push`](Self::push) takes
/// commands that name other memory, and is `unsafe` for that.
///
/// The methods that push a command fail with a [`PushError`], and then have done nothing. All others fail with
/// [`DriverError::Stale`] once the controller was reset, until [`recreate`](Self::recreate).
#[derive(Debug)]
pub struct QueuePair {
    // Before `device`, so that a queue pair's memory goes before the last reference to its controller.
    pub(super) ring: Ring<RingMemory, Doorbell>,
    /// Rings, then the list areas of the CIDs.
    memory: Arc<MappedMemory>,
    pub(super) places: Places,
    kept: Vec<Arc<MappedMemory>>,
    /// The addresses of what is kept and mapped for this controller.
    reach: Vec<Range<u64>>,
    options: QueueOptions,
    /// When the batch that is being pushed ends at the latest.
    batch_deadline: Duration,
    /// No outstanding command's deadline is earlier.
    earliest: Duration,
    /// The clock at the start of the latest batch.
    now: Duration,
    pub(super) optional: Optional,
    /// The controller's identity, kept here so that each command reaches it quickly.
    pub(super) identity: Arc<Identity>,
    device: DeviceQueue,
}

/// Commands that the controller says it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Optional {
    pub(super) compare: bool,
    pub(super) deallocate: bool,
    pub(super) write_zeroes: bool,
}

const _: () = {
    const fn is_send<T: Send>() {}
    const fn is_shared<T: Send + Sync>() {}
    is_send::<QueuePair>();
    is_shared::<Controller>();
};

impl Controller {
    /// Makes a queue pair: memory, Create I/O Completion Queue, Create I/O Submission Queue (physically contiguous,
    /// without interrupts; NVMe Base 2.0, 5.4 and 5.5; NVMe 1.4, 5.3 and 5.4).
    ///
    /// Fails with [`DriverError::QueueSize`], [`DriverError::NoQueueLeft`], [`DriverError::Allocate`], if the transport
    /// cannot map the memory ([`DriverError::Function`]), or as [`Controller::admin`] does.
    pub fn queue_pair(self: &Arc<Self>, options: &QueueOptions) -> Result<QueuePair, DriverError> {
        let completion_entries = options.completion_entries.min(self.cap().max_queue_entries());
        let sizes = RingSizes { entries: options.entries, completion_entries };
        sizes.check(self)?;
        let max_transfer =
            options.max_transfer.min(self.max_transfer_bytes().unwrap_or(u64::MAX)).clamp(PAGE as u64, 1 << 28);
        let places = Places::new(sizes, max_transfer);
        let memory = self.allocate(places.len)?;

        let mut queues = self.lock_queues();
        let iovas = RingIovas { sq: memory.iova(), cq: memory.iova() + sizes.cq_offset() as u64 };
        let device = DeviceQueue::new(self, &mut queues, sizes, iovas, None)?;
        let (tail, head) = device.doorbells().inspect_err(|_| drop(queues.links.remove(&device.id())))?;
        let words = |at| RingMemory::new(memory.memory().clone(), at);
        let ring = Ring::new(
            device.id(),
            (words(0), sizes.entries, tail),
            (words(sizes.cq_offset()), sizes.completion_entries, head),
        );
        let oncs = self.info().oncs;
        let mut pair = QueuePair {
            ring,
            memory,
            places,
            kept: Vec::new(),
            reach: Vec::new(),
            options: QueueOptions { max_transfer, completion_entries, ..options.clone() },
            batch_deadline: NEVER,
            earliest: NEVER,
            now: Duration::ZERO,
            optional: Optional {
                compare: oncs.compare(),
                deallocate: oncs.dataset_management(),
                write_zeroes: oncs.write_zeroes(),
            },
            identity: self.identity().clone(),
            device,
        };
        let made = pair.device.create(&queues);
        // Dropping a queue pair takes the lock.
        drop(queues);
        made.map(|()| pair)
    }
}

impl QueuePair {
    /// Queue identifier, from 1.
    pub fn id(&self) -> u16 {
        self.device.id()
    }

    /// The controller it belongs to.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.device.controller
    }

    /// Most commands that can be outstanding.
    pub fn depth(&self) -> usize {
        self.ring.credit()
    }

    /// Commands pushed and not ended.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.ring.outstanding()
    }

    /// Commands in quarantine: timed out, with their memory withheld until [`recreate`](Self::recreate) or a reset.
    pub fn quarantined(&self) -> u32 {
        self.ring.quarantined()
    }

    /// Doorbell stores so far.
    pub fn doorbells(&self) -> u64 {
        self.ring.doorbells()
    }

    /// Completion queue entries that fit no outstanding command, or report an impossible queue head.
    pub fn anomalies(&self) -> &Anomalies {
        self.ring.anomalies()
    }

    /// Most bytes that one command moves.
    #[inline]
    pub fn max_transfer(&self) -> u64 {
        self.options.max_transfer
    }

    /// How long a command may take.
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Keeps `memory` mapped for as long as a command of this queue could reach it: until the queue pair is gone from
    /// the device, even if it is dropped while the device does not answer. Commands with data name such memory only
    /// ([`PushError::NotKept`]).
    pub fn keep(&mut self, memory: Arc<MappedMemory>) {
        if Arc::ptr_eq(memory.function(), self.device.controller.function()) {
            let begin = memory.iova();
            self.reach.push(begin..begin.saturating_add(memory.memory().len() as u64));
        }
        self.kept.push(memory);
    }

    /// Stops [keeping](Self::keep) `memory`, if no command of this queue is outstanding or in quarantine. Returns
    /// whether that was so; if not, the queue still keeps the memory.
    pub fn release(&mut self, memory: &Arc<MappedMemory>) -> bool {
        if self.ring.outstanding() != 0 || self.ring.quarantined() != 0 {
            return false;
        }
        if let Some(index) = self.kept.iter().position(|kept| Arc::ptr_eq(kept, memory)) {
            self.kept.swap_remove(index);
            let ours = Arc::ptr_eq(memory.function(), self.device.controller.function());
            if let Some(index) = self.reach.iter().position(|reach| ours && reach.start == memory.iova()) {
                self.reach.swap_remove(index);
            }
        }
        true
    }

    /// Whether all of a buffer lies in memory that is kept.
    #[inline]
    pub(super) fn keeps(&self, iova: u64, len: u64) -> bool {
        let Some(end) = iova.checked_add(len) else { return false };
        self.reach.iter().any(|kept| kept.start <= iova && end <= kept.end)
    }

    /// Lets go of the queue, so that the controller can be reset: this queue pair rings no doorbell any more. Every
    /// other call that can fail with [`DriverError::Stale`] does so until [`recreate`](Self::recreate).
    pub fn leave(&mut self) {
        self.device.leave();
    }

    #[cold]
    fn stale(&mut self) -> DriverError {
        self.leave();
        DriverError::Stale { function: self.device.controller.name().clone(), queue: self.id() }
    }

    /// The [`Blame`] for `error`, with which a command of this queue failed, to be given to [`Controller::recover`].
    pub fn blame(&self, error: DriverError) -> Blame {
        Blame { trial: self.device.trial, error }
    }

    /// Starts the queue again from nothing: asks the device to abort commands that timed out (16 at most), deletes the
    /// queue from the device (unless a reset already has), gives the end of every command to `on`
    /// ([`CommandEnd::Lost`], [`CommandEnd::Released`], or the device's answer if one was still in the queue), and
    /// creates the queue anew in the same memory. This is what a queue with commands in quarantine needs, and every
    /// queue after a reset of the controller.
    ///
    /// If the device does not answer an Abort, or does not delete the queue, this fails: no command has ended except
    /// those that the device answered, and the quarantine stays. The controller then needs a reset. Fails with
    /// [`DriverError::NoQueueLeft`] if a reset left the controller with fewer queues.
    pub fn recreate(&mut self, mut on: impl FnMut(Completion)) -> Result<(), DriverError> {
        self.leave();
        let controller = self.device.controller.clone();
        let queues = controller.lock_queues();
        self.device.forget_if_reset();
        self.abort_quarantined()?;
        self.device.delete_sq()?;
        if self.device.has_cq() {
            // Polled while the completion queue still exists, since polling may ring its doorbell.
            self.ring.poll(&mut on);
        }
        self.device.delete_cq()?;
        self.ring.restart(on);
        self.earliest = NEVER;
        self.device.create(&queues)
    }

    /// Asks the device to abort commands that timed out. Whether it aborts them does not matter: the queue is deleted
    /// next, and only the deletion proves anything. But a device that does not even answer an Abort will not delete a
    /// queue either, so that is an error.
    fn abort_quarantined(&mut self) -> Result<(), DriverError> {
        if !self.device.has_sq() {
            return Ok(());
        }
        let (id, controller) = (self.id(), &self.device.controller);
        for cid in self.ring.unanswered().take(MOST_ABORTS) {
            match controller.abort(id, cid) {
                Ok(aborted) => tracing::debug!(function = %controller.name(), queue = id, cid, aborted, "abort"),
                Err(DriverError::Command { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes a command into the queue, unchanged except for its CID; [`ring`](Self::ring) tells the device. `tag`
    /// comes back with the completion. This is for tests and for commands that the driver does not know: the methods
    /// named after commands are safe.
    ///
    /// A queue without room refuses it ([`PushError::Full`]). Commands that change the media are refused while an earlier
    /// one may still be carried out late ([`PushError::LateWrites`]).
    ///
    /// # Safety
    /// Until the command has ended in any way but [`CommandEnd::TimedOut`] (if it is refused: not at all), wherever it lets the device
    /// write, by its PRP entries, the lists that they point to and its metadata pointer,
    /// - there is memory that is [mapped](MappedMemory) for the controller and that no Rust reference covers: a handle of it is held,
    ///   best by the queue ([`keep`](Self::keep)), so that a [`DmaBuffer`](warprow_dma::DmaBuffer) that lent it is not plain
    ///   bytes meanwhile;
    /// - or there is nothing mapped, and what is mapped there next is no such buffer's either.
    ///
    /// Where lists lie stays mapped as well, and nobody writes there.
    #[inline]
    #[allow(unsafe_code, reason = "a contract; the code is safe")]
    pub unsafe fn push(&mut self, sqe: Sqe, tag: u64) -> Result<u16, PushError> {
        self.submit(sqe, tag)
    }

    /// As [`push`](Self::push), but safe: the commands that this module builds have no data, or data in memory that the
    /// queue keeps, so they meet the contract of `push`.
    #[inline]
    pub(super) fn submit(&mut self, sqe: Sqe, tag: u64) -> Result<u16, PushError> {
        if changes_media(sqe.opcode()) {
            let count = self.device.controller.late.count();
            if count != 0 {
                return Err(PushError::LateWrites { count });
            }
        }
        if !self.ring.has_unrung() {
            self.begin_batch();
        }
        self.ring.push(sqe, tag, self.batch_deadline).ok_or(PushError::Full)
    }

    #[inline]
    fn begin_batch(&mut self) {
        self.now = self.device.controller.clock().now();
        self.batch_deadline = self.now.saturating_add(self.options.timeout);
        self.earliest = self.earliest.min(self.batch_deadline);
    }

    /// Whether another command can be pushed now.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ring.has_room()
    }

    /// Tells the device of everything that was pushed, with one store of the tail doorbell.
    #[inline]
    pub fn ring(&mut self) -> Result<(), DriverError> {
        if self.device.is_stale() {
            return Err(self.stale());
        }
        self.ring.ring();
        Ok(())
    }

    /// Gives every completion that has arrived to `on`; returns how many entries were consumed. Does not wait, and does
    /// not look at deadlines: call [`expire`](Self::expire) now and then, or [`wait`](Self::wait).
    #[inline]
    pub fn poll(&mut self, on: impl FnMut(Completion)) -> Result<u32, DriverError> {
        if self.device.is_stale() {
            return Err(self.stale());
        }
        Ok(self.ring.poll(on))
    }

    /// Puts the commands whose time is up into quarantine and gives them to `on` as [`CommandEnd::TimedOut`]; completions
    /// that have arrived in the meantime come first. Returns how many timed out.
    pub fn expire(&mut self, mut on: impl FnMut(Completion)) -> Result<u32, DriverError> {
        self.now = self.device.controller.clock().now();
        if self.now < self.earliest {
            return Ok(0);
        }
        self.poll(&mut on)?;
        let (late, controller) = (&mut self.device.late, &self.device.controller);
        let (expired, earliest) = self.ring.expire(self.now, |completion| {
            if changes_media(completion.issued.opcode) {
                *late += 1;
                controller.late.add(1);
            }
            on(completion);
        });
        self.earliest = earliest;
        Ok(expired)
    }

    /// Waits until at least one command ends, in whatever way, and gives it and all others that have ended to `on`;
    /// returns how many. Rings for what was pushed. With nothing outstanding it returns 0 at once. Bounded by the
    /// commands' deadlines.
    ///
    /// Fails with [`DriverError::Stuck`] if nothing is outstanding and the queue can never take a command again, and with
    /// [`DriverError::Gone`] or [`DriverError::Fatal`] as soon as the controller does not answer or has failed; commands
    /// are then still outstanding.
    pub fn wait(&mut self, mut on: impl FnMut(Completion)) -> Result<u32, DriverError> {
        self.ring()?;
        if self.now >= self.earliest {
            let mut ended = 0;
            self.expire(|completion| {
                ended += 1;
                on(completion);
            })?;
            if ended != 0 {
                return Ok(ended);
            }
        }
        let mut began = None;
        let mut looked = Duration::ZERO;
        let mut turn = 0u32;
        loop {
            let mut ended = 0;
            self.poll(|completion| {
                ended += 1;
                on(completion);
            })?;
            if ended != 0 {
                return Ok(ended);
            }
            if self.ring.outstanding() == 0 {
                return if self.ring.has_room() { Ok(0) } else { Err(self.stuck()) };
            }
            if turn % TURNS == TURNS - 1 {
                self.expire(|completion| {
                    ended += 1;
                    on(completion);
                })?;
                if ended != 0 {
                    return Ok(ended);
                }
                let waited = self.now.saturating_sub(*began.get_or_insert(self.now));
                if waited >= looked + HEALTH_INTERVAL {
                    looked = waited;
                    self.device.controller.registers().health("an I/O command")?;
                }
                if waited >= SPIN {
                    self.device.controller.clock().sleep(Duration::from_micros(100));
                }
            }
            self.device.controller.clock().relax(turn);
            turn = turn.wrapping_add(1);
        }
    }

    /// As [`wait`](Self::wait), but first waits a moment for `count` completions, or for all outstanding commands if
    /// those are fewer. Completions that are taken together cost less, and the controller posts them faster, since
    /// nobody looks at each of its entries while it writes them.
    pub fn wait_for(&mut self, count: u32, on: impl FnMut(Completion)) -> Result<u32, DriverError> {
        self.ring()?;
        let count = count.min(self.ring.outstanding());
        for _ in 0..MOMENT {
            if self.ring.has_posted(count) {
                break;
            }
            self.device.controller.clock().relax(0);
        }
        self.wait(on)
    }

    pub(crate) fn stuck(&self) -> DriverError {
        DriverError::Stuck {
            function: self.device.controller.name().clone(),
            queue: self.id(),
            quarantined: self.ring.quarantined(),
            outstanding: self.ring.outstanding(),
        }
    }

    /// The error that a completion stands for; `None` for success and for [`CommandEnd::Released`].
    pub fn error(&self, completion: &Completion) -> Option<DriverError> {
        let function = self.device.controller.name().clone();
        let command = CommandName { queue: self.id(), issued: completion.issued };
        match completion.ended {
            CommandEnd::Answered(status) if status.is_success() => None,
            CommandEnd::Answered(status) => Some(DriverError::Command { function, command, status }),
            CommandEnd::TimedOut => {
                let (waited, csts) = (self.options.timeout, self.device.controller.registers().csts_or_absent());
                Some(DriverError::TimedOut { function, command, waited, csts })
            }
            CommandEnd::Lost => Some(DriverError::Lost { function, command }),
            CommandEnd::Released => None,
        }
    }

    /// The error for a refused command: `source` with the names of the function and the queue.
    pub fn refused(&self, source: PushError) -> DriverError {
        DriverError::Push { function: self.device.controller.name().clone(), queue: self.id(), source }
    }

    pub(super) fn memory(&self) -> &MappedMemory {
        &self.memory
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.leave();
        let controller = self.device.controller.clone();
        let mut queues = controller.lock_queues();
        self.device.forget_if_reset();
        let deleted = self.device.delete_sq().and_then(|()| self.device.delete_cq());
        if self.device.has_sq() {
            // Nobody is left to wait for what is outstanding.
            let writes = self.ring.unended().filter(|issued| changes_media(issued.opcode)).count() as u32;
            controller.late.add(writes.saturating_sub(self.device.late));
        }
        let kept = &mut self.kept;
        self.device.retire(&mut queues, deleted, || {
            let mut retained = std::mem::take(kept);
            retained.push(self.memory.clone());
            retained.into_iter().map(QueuePairMemory::Host).collect()
        });
    }
}
