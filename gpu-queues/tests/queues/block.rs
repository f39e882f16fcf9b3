//! A thread that does what a thread block does (`docs/gpu-rings.md`, "A batch of commands"): 256 lanes, one after the
//! other.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use std::time::{Duration, Instant};

use warprow_gpu_queues::Gate;
use warprow_gpu_queues::abi::*;
use warprow_spec::{Cqe, NvmOpcode, Sqe};

/// What a launch got for each LBA; `None`: nothing.
pub(crate) type Rows = BTreeMap<u64, Option<Vec<u8>>>;

/// The block of one queue.
#[derive(Clone, Copy)]
pub(crate) struct Block(pub(crate) QueueDescriptor);

fn u32_at(address: u64) -> &'static AtomicU32 {
    // SAFETY: descriptors of a set on the host hold addresses of this process, of memory that stays while launches may
    // be inside.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

fn u64_at(address: u64) -> &'static AtomicU64 {
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

macro_rules! field {
    ($base:expr, $t:ident . $field:ident) => {
        u32_at($base + offset_of!($t, $field) as u64)
    };
}

struct Batch {
    lbas: Vec<u64>,
    outstanding: Vec<bool>,
    failed: Vec<bool>,
    launch: u64,
    began: Instant,
}

impl Block {
    fn generation(&self, slot: u32) -> &'static AtomicU32 {
        u32_at(self.0.state + offset_of!(QueueState, generation) as u64 + u64::from(slot) * 4)
    }

    fn place(&self, slot: u32, lane: usize) -> u32 {
        slot * LANES + lane as u32
    }

    fn submit(&self, slot: u32, launch: u64, lbas: &[u64]) -> Batch {
        let q = &self.0;
        let tail = field!(q.state, QueueState.tail);
        let mut at = tail.load(Relaxed);
        for (lane, &lba) in lbas.iter().enumerate() {
            let place = self.place(slot, lane);
            let cid = (self.generation(slot).load(Relaxed) << q.cid_shift | place) as u16;
            assert_ne!(cid, 0xffff);
            let landing = q.landing_iova + u64::from(place * q.landing_stride);
            let sqe = Sqe::new(NvmOpcode::READ.0, q.nsid).with_slba(lba).with_prps(landing, 0).with_cid(cid);
            for (i, word) in sqe.as_words().into_iter().enumerate() {
                u64_at(q.sq + u64::from(at) * 64 + i as u64 * 8).store(word, Relaxed);
            }
            at = (at + 1) % q.sq_size;
        }
        fence(Release);
        u32_at(q.sq_tail).store(at, Relaxed);
        tail.store(at, Relaxed);
        let count = lbas.len();
        let (outstanding, failed) = (vec![true; count], vec![false; count]);
        Batch { lbas: lbas.to_vec(), outstanding, failed, launch, began: Instant::now() }
    }

    /// Consumes what has come; how many entries.
    fn poll(&self, batches: &mut BTreeMap<u32, Batch>) -> u32 {
        let q = &self.0;
        let (head, turn) = (field!(q.state, QueueState.head), field!(q.state, QueueState.turn));
        let mut found = 0;
        let left: usize = batches.values().map(|it| it.outstanding.iter().filter(|&&out| out).count()).sum();
        while (found as usize) < left {
            let at = head.load(Relaxed);
            let word = u64_at(q.cq + u64::from(at) * 16 + 8).load(Relaxed);
            if Cqe::phase_of_word(word) != (turn.load(Relaxed).is_multiple_of(2)) {
                break;
            }
            fence(Acquire);
            let cqe = Cqe::from_words([u64_at(q.cq + u64::from(at) * 16).load(Relaxed), word]);
            found += 1;
            head.store((at + 1) % q.cq_size, Relaxed);
            if at + 1 == q.cq_size {
                turn.fetch_add(1, Relaxed);
            }
            let index = u32::from(cqe.cid) & ((1 << q.cid_shift) - 1);
            let (slot, lane) = (index / LANES, (index % LANES) as usize);
            let known = u32::from(cqe.cid) >> q.cid_shift == self.generation(slot.min(7)).load(Relaxed);
            match batches.get_mut(&slot).filter(|it| known && it.outstanding.get(lane) == Some(&true)) {
                Some(batch) => {
                    batch.outstanding[lane] = false;
                    batch.failed[lane] = !cqe.status().is_success();
                    if !batch.failed[lane] {
                        u64_at(q.fault + offset_of!(Fault, answered) as u64).store(batch.launch, Relaxed);
                    } else {
                        let (fault, launch) = (q.fault, u64_at(q.fault + offset_of!(Fault, failed_launch) as u64));
                        // The first of a launch.
                        if launch.load(Relaxed) != batch.launch {
                            field!(fault, Fault.status).store(0, Relaxed);
                            fence(Release);
                            launch.store(batch.launch, Relaxed);
                            u64_at(fault + offset_of!(Fault, failed_lba) as u64).store(batch.lbas[lane], Relaxed);
                            field!(fault, Fault.failed_cid).store(cqe.cid.into(), Relaxed);
                            fence(Release);
                            field!(fault, Fault.status).store(cqe.status().into_bits().into(), Relaxed);
                        }
                    }
                }
                None => {
                    field!(q.state, QueueState.anomalies).fetch_add(1, Relaxed);
                }
            }
        }
        if found != 0 {
            fence(Release);
            u32_at(q.cq_head).store(head.load(Relaxed), Relaxed);
        }
        found
    }

    fn take(&self, slot: u32, batch: &Batch, rows: &mut Rows) {
        let q = &self.0;
        for (lane, &lba) in batch.lbas.iter().enumerate().filter(|&(lane, _)| !batch.failed[lane]) {
            let from = q.landing + u64::from(self.place(slot, lane) * q.landing_stride);
            let words = (0..1u64 << (q.lba_shift - 3)).map(|i| u64_at(from + i * 8).load(Relaxed));
            rows.insert(lba, Some(words.flat_map(u64::to_le_bytes).collect()));
        }
        let generation = self.generation(slot);
        generation.store((generation.load(Relaxed) + 1) % q.generations, Relaxed);
    }

    fn poison(&self, kind: u32, launch: u64, batches: &BTreeMap<u32, Batch>) {
        let (q, (slot, batch)) = (&self.0, batches.iter().next().expect("something is outstanding"));
        u64_at(q.state + offset_of!(QueueState, poisoned_by) as u64).store(launch, Relaxed);
        fence(Release);
        field!(q.state, QueueState.poison).store(kind, Relaxed);
        let lane = batch.outstanding.iter().position(|&out| out).unwrap_or(0);
        let cid = self.generation(*slot).load(Relaxed) << q.cid_shift | self.place(*slot, lane);
        let left: usize = batches.values().map(|it| it.outstanding.iter().filter(|&&out| out).count()).sum();
        field!(q.fault, Fault.drive).store(q.drive, Relaxed);
        field!(q.fault, Fault.queue).store(q.queue_id, Relaxed);
        field!(q.fault, Fault.cid).store(cid, Relaxed);
        field!(q.fault, Fault.outstanding).store(left as u32, Relaxed);
        u64_at(q.fault + offset_of!(Fault, lba) as u64).store(batch.lbas[lane], Relaxed);
        u64_at(q.fault + offset_of!(Fault, launch) as u64).store(launch, Relaxed);
        let waited = batch.began.elapsed().as_nanos() as u64;
        u64_at(q.fault + offset_of!(Fault, waited_ns) as u64).store(waited, Relaxed);
        fence(Release);
        field!(q.fault, Fault.kind).store(kind, Relaxed);
    }

    /// Reads `lbas`, different ones, as a launch that is inside the gate.
    pub(crate) fn read(&self, gate: &Gate, launch: u64, lbas: &[u64]) -> Rows {
        self.read_while_open(&|| gate.is_closed(), launch, lbas)
    }

    fn read_while_open(&self, is_closed: &dyn Fn() -> bool, launch: u64, lbas: &[u64]) -> Rows {
        let q = &self.0;
        let mut rows: Rows = lbas.iter().map(|&lba| (lba, None)).collect();
        if field!(q.state, QueueState.poison).load(Relaxed) != FAULT_NONE {
            return rows;
        }
        let mut waiting = lbas.chunks(LANES as usize).peekable();
        let mut batches: BTreeMap<u32, Batch> = BTreeMap::new();
        let mut overdue = false;
        loop {
            for slot in 0..q.batches {
                if !batches.contains_key(&slot)
                    && let Some(chunk) = waiting.next()
                {
                    batches.insert(slot, self.submit(slot, launch, chunk));
                }
            }
            if batches.is_empty() {
                return rows;
            }
            let found = self.poll(&mut batches);
            batches.retain(|&slot, batch| {
                let done = !batch.outstanding.contains(&true);
                if done {
                    self.take(slot, batch, &mut rows);
                }
                !done
            });
            if found != 0 {
                overdue = false;
                continue;
            }
            if is_closed() || overdue {
                self.poison(if overdue { FAULT_TIMED_OUT } else { FAULT_CLOSED }, launch, &batches);
                return rows;
            }
            overdue = batches.values().any(|it| it.began.elapsed() > Duration::from_nanos(q.timeout_ns));
            std::thread::yield_now();
        }
    }
}

/// Whether the gate before these reads is closed.
pub(crate) fn is_closed(reads: &RingReads) -> bool {
    u32_at(reads.gate + GATE_CLOSED as u64).load(Acquire) != 0
}

/// What the kernel of a ring test does, on the queue that `change` makes of the test's own.
pub(crate) fn carry_out(reads: &RingReads, change: impl FnOnce(&mut QueueDescriptor)) {
    let (gate, inside) = (u32_at(reads.gate + GATE_CLOSED as u64), u64_at(reads.gate + GATE_INSIDE as u64));
    inside.store(reads.launch, Relaxed);
    fence(SeqCst);
    // SAFETY: the test keeps the descriptor, in memory of this process, until the launch has ended.
    let mut queue = unsafe { (reads.queue as *const QueueDescriptor).read() };
    change(&mut queue);
    if gate.load(Acquire) == 0 {
        let lbas: Vec<u64> = (0..reads.count).map(|i| u64_at(reads.lbas + i * 8).load(Relaxed)).collect();
        let rows = Block(queue).read_while_open(&|| gate.load(Relaxed) != 0, reads.launch, &lbas);
        for (i, lba) in (0u64..).zip(&lbas) {
            let Some(row) = &rows[lba] else { continue };
            for (at, word) in (0u64..).zip(row.as_chunks::<8>().0) {
                u64_at(reads.landed + i * row.len() as u64 + at * 8).store(u64::from_le_bytes(*word), Relaxed);
            }
            u32_at(reads.is_read + i * 4).store(1, Relaxed);
        }
        let (state, bells) = (queue.state + offset_of!(QueueState, doorbells) as u64, reads.count.min(1));
        u64_at(state).fetch_add(bells, Relaxed);
    }
    fence(Release);
    inside.store(0, Relaxed);
}

/// A launch: every block reads its LBAs. `None` if the gate is closed.
pub(crate) fn launch(gate: &Gate, number: u64, blocks: &[Block], lbas: &[u64]) -> Option<Vec<Rows>> {
    if !gate.enter(number) {
        return None;
    }
    let rows = std::thread::scope(|scope| {
        let threads: Vec<_> = blocks.iter().map(|block| scope.spawn(|| block.read(gate, number, lbas))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the block ends well")).collect()
    });
    gate.exit();
    Some(rows)
}
