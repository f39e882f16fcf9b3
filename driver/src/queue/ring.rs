//! The ring protocol of one queue pair, over any memory of 64-bit words and any doorbell: the same code runs on DMA
//! memory, under loom and against a scripted device. `docs/rings.md` gives the rules by number.

use std::time::Duration;

use warprow_dma::order;
use warprow_spec::{Cqe, Sqe};

use super::anomaly::{Anomalies, Anomaly};
use super::completion::{CommandEnd, Completion, IssuedCommand};

/// Memory of one ring, shared with the device, as 64-bit words that are loaded and stored one by one.
pub trait RingWords {
    /// Loads word `index`, relaxed.
    fn load(&self, index: usize) -> u64;

    /// Stores `values` from word `index` on, relaxed, in order of address.
    fn store<const N: usize>(&self, index: usize, values: [u64; N]);
}

/// A doorbell register. The ring orders its stores before it calls this.
pub trait RingDoorbell {
    /// Stores `value`.
    fn ring(&self, value: u32);
}

/// Words of a submission queue entry.
const SQE_WORDS: usize = 8;
/// Words of a completion queue entry.
const CQE_WORDS: usize = 2;
/// A deadline that never comes (asynchronous event requests).
pub const NEVER: Duration = Duration::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not in use.
    Free,
    /// Pushed; no completion seen.
    Outstanding,
    /// Timed out: the device may still carry it out.
    Quarantined,
    /// Timed out, then answered. Its memory is still not trusted: the answer may be meant for another command.
    QuarantinedAnswered,
}

/// What is known of one CID.
#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u64,
    deadline: Duration,
    lba: u64,
    nsid: u32,
    cid: u16,
    opcode: u8,
    state: State,
}

/// The host's side of a submission queue and its completion queue.
///
/// Commands that are outstanding or quarantined never exceed `min(SQ, CQ) - 1`, which is the number of CIDs. A CID is
/// an index into the table of commands in its low bits and a count of that index's uses in the others, so that a
/// completion of an earlier use is told from one of this use. Free indices are given out in the order in which they
/// came back.
#[derive(Debug)]
pub struct Ring<M, B> {
    sq: M,
    cq: M,
    sq_bell: B,
    cq_bell: B,
    id: u16,
    sq_size: u32,
    cq_size: u32,
    /// The next submission slot to fill.
    tail: u32,
    /// The tail that the device was told.
    rung: u32,
    /// How many entries lie between `head` and `rung`: the device was told of them and may not have fetched them.
    unfetched: u32,
    /// The first submission slot that the device may not have fetched (SQHD).
    head: u32,
    cq_head: u32,
    /// The phase of a new entry at `cq_head`.
    phase: bool,
    /// Completions consumed since the CQ head doorbell was stored.
    consumed: u32,
    slots: Box<[Slot]>,
    /// A queue of the free indices; a power of two of places, counted by numbers that wrap.
    free: Box<[u16]>,
    free_first: u32,
    free_end: u32,
    index_mask: u16,
    /// One use of an index, as it is counted in the CID; 0 where all 16 bits are index.
    use_step: u16,
    outstanding: u32,
    quarantined: u32,
    doorbells: u64,
    anomalies: Anomalies,
}

impl<M: RingWords, B: RingDoorbell> Ring<M, B> {
    /// A ring over zeroed memory. `sq` holds `sq_size` entries of eight words and `cq` holds `cq_size` of two; both
    /// sizes are 2 to 65,536. `id` is the queue's identifier.
    pub fn new(id: u16, (sq, sq_size, sq_bell): (M, u32, B), (cq, cq_size, cq_bell): (M, u32, B)) -> Self {
        assert!((2..=1 << 16).contains(&sq_size) && (2..=1 << 16).contains(&cq_size), "rings hold 2 to 65,536 entries");
        let credit = (sq_size.min(cq_size) - 1) as u16;
        let index_bits = u16::BITS - credit.leading_zeros();
        let slot = |index| Slot { tag: 0, deadline: NEVER, lba: 0, nsid: 0, cid: index, opcode: 0, state: State::Free };
        Self {
            sq,
            cq,
            sq_bell,
            cq_bell,
            id,
            sq_size,
            cq_size,
            tail: 0,
            rung: 0,
            unfetched: 0,
            head: 0,
            cq_head: 0,
            phase: true,
            consumed: 0,
            slots: (0..credit).map(slot).collect(),
            free: (0..=u16::MAX).take(usize::from(credit).next_power_of_two()).collect(),
            free_first: 0,
            free_end: credit.into(),
            // The largest index is credit - 1, so an index is never all ones, and a CID never FFFFh.
            index_mask: (u32::MAX >> (u32::BITS - index_bits)) as u16,
            use_step: 1u16.checked_shl(index_bits).unwrap_or(0),
            outstanding: 0,
            quarantined: 0,
            doorbells: 0,
            anomalies: Anomalies::default(),
        }
    }

    /// Most commands that can be outstanding, and the number of CIDs: `min(SQ, CQ) - 1`.
    #[inline]
    pub fn credit(&self) -> usize {
        self.slots.len()
    }

    /// Commands pushed and not yet ended.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Commands that timed out and whose CID, credit and memory are withheld.
    #[inline]
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// Doorbell stores so far.
    #[inline]
    pub fn doorbells(&self) -> u64 {
        self.doorbells
    }

    /// Whether commands have been pushed that the device was not told of.
    #[inline]
    pub fn has_unrung(&self) -> bool {
        self.tail != self.rung
    }

    /// Completion queue entries that fit no outstanding command, or report an impossible queue head.
    pub fn anomalies(&self) -> &Anomalies {
        &self.anomalies
    }

    /// Whether another command can be pushed now.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.free_first != self.free_end && next(self.tail, self.sq_size) != self.head
    }

    /// The index of the CID that the next push will take; its per-command memory may be written now. `None` when full.
    #[inline]
    pub fn next_index(&self) -> Option<usize> {
        if !self.has_room() {
            return None;
        }
        self.free.get(self.free_place(self.free_first)).map(|&index| usize::from(index))
    }

    /// The index in the table of commands that a CID of this ring stands for.
    #[inline]
    pub fn index_of(&self, cid: u16) -> usize {
        usize::from(cid & self.index_mask)
    }

    /// Writes `sqe` with a CID of the ring into the next submission slot; the device is told by [`ring`](Self::ring).
    /// `tag` comes back with the completion. `None` when there is no free slot or no credit: poll first.
    #[inline]
    pub fn push(&mut self, sqe: Sqe, tag: u64, deadline: Duration) -> Option<u16> {
        let index = self.next_index()?;
        let slot = self.slots.get_mut(index)?;
        let cid = slot.cid.wrapping_add(self.use_step);
        *slot = Slot {
            tag,
            deadline,
            lba: sqe.slba(),
            nsid: sqe.nsid,
            cid,
            opcode: sqe.opcode(),
            state: State::Outstanding,
        };
        self.sq.store::<SQE_WORDS>(self.tail as usize * SQE_WORDS, sqe.with_cid(cid).as_words());
        self.tail = next(self.tail, self.sq_size);
        self.free_first = self.free_first.wrapping_add(1);
        self.outstanding += 1;
        Some(cid)
    }

    /// Tells the device of everything pushed since the last time: at most one store of each doorbell.
    ///
    /// The CQ head goes first, where the completion queue could otherwise overflow: every command behind the new tail
    /// has a completion slot that the device knows to be free.
    #[inline]
    pub fn ring(&mut self) {
        if !self.has_unrung() {
            return;
        }
        if self.consumed + self.outstanding + self.quarantined >= self.cq_size {
            self.ring_cq();
        }
        order::before_doorbell();
        self.sq_bell.ring(self.tail);
        self.unfetched += distance(self.rung, self.tail, self.sq_size);
        self.rung = self.tail;
        self.doorbells += 1;
    }

    #[inline]
    fn ring_cq(&mut self) {
        order::before_doorbell();
        self.cq_bell.ring(self.cq_head);
        self.consumed = 0;
        self.doorbells += 1;
    }

    /// Whether `count` completions (1 up to the queue's entries) can be consumed. This looks only at the entry of the
    /// last of them, since controllers post entries one after another; so the cache line of an entry that the
    /// controller is writing stays with the controller.
    #[inline]
    pub fn has_posted(&self, count: u32) -> bool {
        let last = self.cq_head + count.clamp(1, self.cq_size) - 1;
        let (at, phase) = if last < self.cq_size { (last, self.phase) } else { (last - self.cq_size, !self.phase) };
        Cqe::phase_of_word(self.cq.load(at as usize * CQE_WORDS + 1)) == phase
    }

    /// Consumes every valid completion, at most one turn of the queue, and gives those of outstanding commands to `on`.
    /// Returns how many entries were consumed, of whatever kind.
    #[inline]
    pub fn poll(&mut self, mut on: impl FnMut(Completion)) -> u32 {
        let mut seen = 0;
        while seen < self.cq_size {
            let at = self.cq_head as usize * CQE_WORDS;
            if Cqe::phase_of_word(self.cq.load(at + 1)) != self.phase {
                break;
            }
            order::after_phase();
            let cqe = Cqe::from_words([self.cq.load(at), self.cq.load(at + 1)]);
            self.cq_head = next(self.cq_head, self.cq_size);
            self.phase ^= self.cq_head == 0;
            seen += 1;
            self.retire(cqe, &mut on);
        }
        if seen != 0 {
            self.consumed += seen;
            // A device that posts entries nobody asked for could find its queue full while nothing is submitted.
            if self.consumed * 2 >= self.cq_size {
                self.ring_cq();
            }
        }
        seen
    }

    #[inline]
    fn retire(&mut self, cqe: Cqe, on: &mut impl FnMut(Completion)) {
        if cqe.sqid != self.id {
            return self.anomalies.note(Anomaly::WrongQueue { sqid: cqe.sqid, cid: cqe.cid });
        }
        let sqhd = u32::from(cqe.sqhd);
        let fetched = distance(self.head, sqhd, self.sq_size);
        if sqhd < self.sq_size && fetched <= self.unfetched {
            self.head = sqhd;
            self.unfetched -= fetched;
        } else {
            self.anomalies.note(Anomaly::BadSqHead { sqhd: cqe.sqhd, cid: cqe.cid });
        }
        let index = cqe.cid & self.index_mask;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return self.anomalies.note(Anomaly::UnknownCid { cid: cqe.cid });
        };
        if slot.cid != cqe.cid || slot.state != State::Outstanding {
            let late = slot.cid == cqe.cid && slot.state == State::Quarantined;
            let anomaly = if late {
                slot.state = State::QuarantinedAnswered;
                Anomaly::Late { cid: cqe.cid, tag: slot.tag, status: cqe.status() }
            } else {
                Anomaly::NotOutstanding { cid: cqe.cid }
            };
            return self.anomalies.note(anomaly);
        }
        slot.state = State::Free;
        let completion = slot.completion(CommandEnd::Answered(cqe.status()), [cqe.dw0, cqe.dw1]);
        self.give_back(index);
        self.outstanding -= 1;
        on(completion);
    }

    #[inline]
    fn give_back(&mut self, index: u16) {
        let place = self.free_place(self.free_end);
        if let Some(place) = self.free.get_mut(place) {
            *place = index;
            self.free_end = self.free_end.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn free_place(&self, number: u32) -> usize {
        number as usize & (self.free.len() - 1)
    }

    /// Puts every command whose deadline is not after `now` into quarantine and gives it to `on` as timed out. Returns
    /// how many there were, and the earliest deadline among the others. Poll first, after `now` was taken.
    pub fn expire(&mut self, now: Duration, mut on: impl FnMut(Completion)) -> (u32, Duration) {
        let (mut expired, mut earliest) = (0, NEVER);
        for slot in &mut self.slots {
            if slot.state != State::Outstanding {
                continue;
            }
            if slot.deadline > now {
                earliest = earliest.min(slot.deadline);
                continue;
            }
            slot.state = State::Quarantined;
            expired += 1;
            on(slot.completion(CommandEnd::TimedOut, [0; 2]));
        }
        self.outstanding -= expired;
        self.quarantined += expired;
        (expired, earliest)
    }

    /// The commands that the device may still carry out: outstanding and in quarantine.
    pub fn unended(&self) -> impl Iterator<Item = IssuedCommand> {
        self.slots.iter().filter(|slot| slot.state != State::Free).map(Slot::issued)
    }

    /// The CIDs of commands that timed out and have not been answered since.
    pub fn unanswered(&self) -> impl Iterator<Item = u16> {
        self.slots.iter().filter(|slot| slot.state == State::Quarantined).map(|slot| slot.cid)
    }

    /// Starts again from empty rings, once the device has provably let go of both (queues deleted, or CC.EN = 0 and
    /// RDY = 0): zeroes the completion queue, and gives `on` every command that had not ended
    /// ([`CommandEnd::Lost`]) or was in quarantine ([`CommandEnd::Released`]).
    pub fn restart(&mut self, mut on: impl FnMut(Completion)) {
        for entry in 0..self.cq_size as usize {
            self.cq.store::<CQE_WORDS>(entry * CQE_WORDS, [0; CQE_WORDS]);
        }
        (self.tail, self.rung, self.unfetched, self.head, self.cq_head, self.consumed) = (0, 0, 0, 0, 0, 0);
        self.phase = true;
        (self.outstanding, self.quarantined) = (0, 0);
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(index) else { break };
            let ended = match slot.state {
                State::Free => continue,
                State::Outstanding => CommandEnd::Lost,
                State::Quarantined | State::QuarantinedAnswered => CommandEnd::Released,
            };
            slot.state = State::Free;
            let completion = slot.completion(ended, [0; 2]);
            self.give_back(index as u16);
            on(completion);
        }
    }

    /// Starts from other indices than 0, as after many turns of the rings. For scripted devices, which start from the
    /// same indices.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, sq: u32, cq: u32, phase: bool) {
        assert!(self.outstanding == 0 && self.quarantined == 0 && sq < self.sq_size && cq < self.cq_size);
        (self.tail, self.rung, self.unfetched, self.head, self.cq_head, self.phase) = (sq, sq, 0, sq, cq, phase);
    }
}

impl Slot {
    #[inline]
    fn completion(&self, ended: CommandEnd, result: [u32; 2]) -> Completion {
        Completion { tag: self.tag, ended, result, issued: self.issued() }
    }

    #[inline]
    fn issued(&self) -> IssuedCommand {
        IssuedCommand { opcode: self.opcode, cid: self.cid, nsid: self.nsid, lba: self.lba }
    }
}

#[inline(always)]
fn next(index: u32, size: u32) -> u32 {
    if index + 1 == size { 0 } else { index + 1 }
}

#[inline(always)]
fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { to + size - from }
}
