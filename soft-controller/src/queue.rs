//! Submission and completion queues as the controller sees them (NVMe Base 2.0, 3.3; NVMe 1.4, 4.1).

use std::collections::VecDeque;
use std::time::Duration;

use warprow_dma::{DmaMemory, order};
use warprow_spec::Status;

use crate::announce::Announcer;
use crate::iommu::{Dma, RingMemory};
use crate::offload::{OffloadQueue, SeenDoorbell};

pub(crate) const SQE_BYTES: usize = 64;
pub(crate) const CQE_BYTES: usize = 16;

/// Memory of a queue; `None` while its address is not mapped.
type Ring = Option<RingMemory>;

/// A submission queue.
#[derive(Debug)]
pub(crate) struct Sq {
    pub(crate) id: u16,
    iova: u64,
    size: u32,
    head: u32,
    tail: u32,
    /// Offset of the tail doorbell in the doorbells' memory.
    doorbell: usize,
    ring: Ring,
    /// Identifier of the completion queue.
    pub(crate) cqid: u16,
    /// Where that stands among the worker's completion queues.
    pub(crate) cq: usize,
    /// Commands that were fetched and whose completion was not posted.
    pub(crate) inflight: u32,
    /// Commands from the next one on that their backing was told of.
    announced: u32,
}

/// The value of a doorbell that its queue cannot have (NVMe Base 2.0, 5.2 "Invalid Doorbell Write Value"; NVMe 1.4,
/// 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidDoorbell;

impl Sq {
    pub(crate) fn new(id: u16, iova: u64, size: u32, doorbell: usize, cqid: u16) -> Self {
        Self { id, iova, size, head: 0, tail: 0, doorbell, ring: None, cqid, cq: 0, inflight: 0, announced: 0 }
    }

    /// Looks the ring's memory up again after mappings have changed.
    pub(crate) fn resolve(&mut self, dma: &mut Dma) {
        self.ring = dma.ring(self.iova, self.size as usize * SQE_BYTES).ok();
    }

    /// Reads the doorbell; the result is how many commands wait.
    #[inline]
    pub(crate) fn waiting(&mut self, doorbells: &DmaMemory) -> Result<u32, InvalidDoorbell> {
        let tail = u32::from_le(doorbells.load_u32(self.doorbell));
        if tail != self.tail {
            if tail >= self.size {
                // Ignored, and reported once.
                doorbells.store_u32(self.doorbell, self.tail.to_le());
                return Err(InvalidDoorbell);
            }
            order::after_doorbell();
            self.tail = tail;
        }
        Ok(if tail >= self.head { tail - self.head } else { tail + self.size - self.head })
    }

    /// Whether the doorbell has a value that its queue can have.
    pub(crate) fn is_doorbell_valid(&self, doorbells: &DmaMemory) -> bool {
        u32::from_le(doorbells.load_u32(self.doorbell)) < self.size
    }

    /// The tail doorbell, if no command waits or is under way.
    pub(crate) fn empty(&self, doorbells: &DmaMemory) -> Option<SeenDoorbell> {
        let seen = SeenDoorbell { offset: self.doorbell, value: doorbells.load_u32(self.doorbell) };
        (self.inflight == 0 && u32::from_le(seen.value) == self.head).then_some(seen)
    }

    /// Whether the doorbell tells of commands that were not fetched.
    pub(crate) fn has_work(&self, doorbells: &DmaMemory) -> bool {
        u32::from_le(doorbells.load_u32(self.doorbell)) != self.head
    }

    /// Fetches the next command, of which [`waiting`](Self::waiting) has told. `None` if the ring is not mapped.
    #[inline(always)]
    pub(crate) fn fetch(&mut self) -> Option<[u64; 8]> {
        let ring = self.ring.as_ref()?;
        let at = self.head as usize * SQE_BYTES;
        if !ring.pull(at, SQE_BYTES) {
            return None;
        }
        let words = ring.memory.load_words::<8>(ring.offset + at);
        self.head += 1;
        if self.head == self.size {
            self.head = 0;
        }
        Some(words.map(u64::from_le))
    }

    /// The command `ahead` places after the next, of those that wait.
    #[inline]
    pub(crate) fn peek(&self, ahead: u32) -> Option<[u64; 8]> {
        // Of a copy it is not known before it is fetched.
        let ring = self.ring.as_ref().filter(|ring| ring.remote.is_none())?;
        let index = self.head + ahead;
        let index = if index < self.size { index } else { index - self.size };
        Some(ring.memory.load_words::<8>(ring.offset + index as usize * SQE_BYTES).map(u64::from_le))
    }

    /// Calls `tell` with those of the next `depth` waiting commands that it has not heard of, in their order.
    pub(crate) fn announce(&mut self, doorbells: &DmaMemory, depth: u32, mut tell: impl FnMut(&[u64; 8])) {
        // Of an invalid doorbell whoever fetches tells.
        let until = self.waiting(doorbells).unwrap_or(0).min(depth);
        (self.announced..until).filter_map(|ahead| self.peek(ahead)).for_each(|sqe| tell(&sqe));
        self.announced = self.announced.max(until);
    }

    /// Some commands were fetched since they were announced.
    #[inline]
    pub(crate) fn fetched(&mut self, commands: u32) {
        self.announced = self.announced.saturating_sub(commands);
    }

    #[inline]
    pub(crate) fn head(&self) -> u16 {
        self.head as u16
    }

    /// Whether the ring is mapped, in memory that an offload may reach.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.ring.as_ref().is_some_and(RingMemory::is_at_hand)
    }

    /// Whether the ring is in memory of another device, so that what waits in it is known only when it is fetched.
    pub(crate) fn is_in_peer_memory(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.is_peer)
    }

    /// Tells an offload where the queue stands.
    pub(crate) fn describe(&self, queue: &mut OffloadQueue) {
        (queue.id, queue.sq_iova, queue.sq_size) = (self.id, self.iova, self.size);
        (queue.sq_head, queue.sq_doorbell) = (self.head, self.doorbell);
    }

    /// Takes over how far an offload has come in a turn; false if its figures do not fit.
    pub(crate) fn fetched_to(&mut self, queue: &OffloadQueue) -> bool {
        let head = u64::from(self.head);
        let size = u64::from(self.size);
        if u64::from(queue.sq_head) != (head + queue.reads % size) % size {
            return false;
        }
        // Commands of which a doorbell has told here still wait; where the offload went past them, its head is the last valid tail.
        let told = if self.tail >= self.head { self.tail - self.head } else { self.tail + self.size - self.head };
        if queue.reads >= u64::from(told) {
            self.tail = queue.sq_head;
        }
        self.head = queue.sq_head;
        self.announced = 0;
        true
    }
}

/// A completion as it waits for a place in its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) dw0: u32,
    pub(crate) sqhd: u16,
    pub(crate) sqid: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) id: u16,
    iova: u64,
    size: u32,
    head: u32,
    tail: u32,
    phase: bool,
    /// Offset of the head doorbell in the doorbells' memory.
    doorbell: usize,
    ring: Ring,
    /// Entries that are promised to commands in flight.
    pub(crate) reserved: u32,
    /// Completions that found the queue full: those that nobody was promised a place for.
    overflow: VecDeque<Completion>,
    /// Submission queues that complete here.
    pub(crate) users: u32,
    /// The interrupt that tells of new entries.
    pub(crate) vector: Option<u16>,
    announcer: Announcer,
}

impl Cq {
    pub(crate) fn new(id: u16, iova: u64, size: u32, doorbell: usize, vector: Option<u16>) -> Self {
        Self {
            id,
            iova,
            size,
            head: 0,
            tail: 0,
            phase: true,
            doorbell,
            ring: None,
            reserved: 0,
            overflow: VecDeque::new(),
            users: 0,
            vector,
            announcer: Announcer::default(),
        }
    }

    /// As for submission queues.
    pub(crate) fn resolve(&mut self, dma: &mut Dma) {
        let len = self.size as usize * CQE_BYTES;
        let writable = dma.find(self.iova, len).and_then(|segment| dma.check_writable(&[segment]));
        self.ring = writable.and_then(|()| dma.ring(self.iova, len)).ok();
    }

    /// Reads the head doorbell.
    #[inline]
    pub(crate) fn update_head(&mut self, doorbells: &DmaMemory) -> Result<(), InvalidDoorbell> {
        let head = u32::from_le(doorbells.load_u32(self.doorbell));
        if head != self.head {
            let distance = |from: u32, to: u32| if to >= from { to - from } else { to + self.size - from };
            if head >= self.size || distance(self.head, head) > distance(self.head, self.tail) {
                doorbells.store_u32(self.doorbell, self.head.to_le());
                return Err(InvalidDoorbell);
            }
            order::after_doorbell();
            self.head = head;
        }
        Ok(())
    }

    /// How many more commands may be begun: a queue is full when one entry is free.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.free().saturating_sub(self.overflow.len() as u32)
    }

    /// Entries that are neither used nor promised.
    #[inline]
    fn free(&self) -> u32 {
        (self.size - 1).saturating_sub(self.used() + self.reserved)
    }

    /// Entries that the host has not given back.
    #[inline]
    fn used(&self) -> u32 {
        if self.tail >= self.head { self.tail - self.head } else { self.tail + self.size - self.head }
    }

    /// Posts a completion for which there is room. False if the ring is not mapped.
    #[inline(always)]
    pub(crate) fn post(&mut self, completion: Completion) -> bool {
        let Some(ring) = &self.ring else { return false };
        let memory = &ring.memory;
        let place = self.tail as usize * CQE_BYTES;
        let at = ring.offset + place;
        let status = u64::from(completion.status.into_bits()) << 1 | u64::from(self.phase);
        let word1 = u64::from(completion.sqhd)
            | u64::from(completion.sqid) << 16
            | u64::from(completion.cid) << 32
            | status << 48;
        memory.store_u64(at, u64::from(completion.dw0).to_le());
        order::before_phase();
        memory.store_u64(at + 8, word1.to_le());
        if !ring.push(place, CQE_BYTES) {
            return false;
        }
        self.tail += 1;
        if self.tail == self.size {
            self.tail = 0;
            self.phase = !self.phase;
        }
        true
    }

    /// Posts a completion that no place was kept for, now or when there is one. False if the ring is not mapped.
    pub(crate) fn post_extra(&mut self, completion: Completion) -> bool {
        self.overflow.push_back(completion);
        self.drain()
    }

    /// Posts what waits for a place. False if the ring is not mapped.
    pub(crate) fn drain(&mut self) -> bool {
        while self.free() > 0 {
            let Some(completion) = self.overflow.pop_front() else { break };
            if !self.post(completion) {
                return false;
            }
        }
        true
    }

    /// Whether there may be an interrupt to raise, now or soon.
    #[inline]
    pub(crate) fn is_to_announce(&self) -> bool {
        self.vector.is_some() && self.announcer.is_concerned(self.tail)
    }

    /// The interrupt for what was posted since this was asked last.
    pub(crate) fn take_interrupt(&mut self) -> Option<u16> {
        self.vector.filter(|_| self.announcer.take(self.tail))
    }

    /// The interrupt to be raised now, by what the head doorbell says.
    pub(crate) fn announce(
        &mut self,
        doorbells: &DmaMemory,
        now: Duration,
    ) -> (Option<u16>, Result<(), InvalidDoorbell>) {
        let updated = self.update_head(doorbells);
        let raise = self.announcer.look(now, (self.head, self.tail, self.used()));
        (self.vector.filter(|_| raise), updated)
    }

    pub(crate) fn has_overflow(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Whether an offload can post here: the ring is mapped, in memory that it may reach, and no place is promised to anybody.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.ring.as_ref().is_some_and(RingMemory::is_at_hand) && self.reserved == 0 && self.overflow.is_empty()
    }

    /// Tells an offload where the queue stands.
    pub(crate) fn describe(&self, queue: &mut OffloadQueue) {
        (queue.cq_iova, queue.cq_size) = (self.iova, self.size);
        (queue.cq_tail, queue.cq_phase) = (self.tail, self.phase);
        (queue.cq_head, queue.cq_doorbell) = (self.head, self.doorbell);
    }

    /// Takes over what an offload has posted in a turn; false if its figures do not fit.
    pub(crate) fn posted_to(&mut self, queue: &OffloadQueue) -> bool {
        let size = u64::from(self.size);
        let end = u64::from(self.tail) + queue.reads % (2 * size);
        let phase = self.phase ^ (end / size % 2 == 1);
        if (u64::from(queue.cq_tail), queue.cq_phase) != (end % size, phase) || queue.cq_head >= self.size {
            return false;
        }
        (self.tail, self.phase, self.head) = (queue.cq_tail, phase, queue.cq_head);
        true
    }
}
