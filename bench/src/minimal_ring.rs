//! The yardstick of `bench-ring`: NVMe's rings and nothing else.
//!
//! Submission entries of 64 bytes, completion entries of 16 with phase bits, doorbells in memory; one thread fetches commands
//! in order, copies the block from memory and posts the completion. It believes everything: no errors, no time-outs, no
//! checks of identifiers, addresses or credit, no registers, no admin queue, one size of transfer, one queue.
//!
//! One thing can be added: fetching data to the cache ahead of its command, which the software controller does. A memory
//! that is larger than the caches answers much faster then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use warprow_dma::{AllocateError, DmaMemory, MemoryKind, order};
use warprow_spec::{Cqe, NvmOpcode, Sqe};

const SQE: usize = 64;
const CQE: usize = 16;
/// Where the doorbells lie: each on a cache line of its own, away from the other's prefetcher.
const SQ_TAIL: usize = 0;
const CQ_HEAD: usize = 256;
/// Where an entry has its starting LBA.
const SLBA: usize = 40;
/// Fruitless looks for a completion before the submitter looks whether the other thread still runs.
const PATIENCE: u32 = 1 << 24;

/// The minimal ring could not be set up, or its thread has ended.
#[derive(Debug, thiserror::Error)]
pub enum MinimalRingError {
    /// No memory.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// No thread.
    #[error("cannot start the answering thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The answering thread is gone: a block lies outside the media, or there is a bug.
    #[error("the answering thread has ended; is a block outside of the media?")]
    Ended,
}

/// What both sides share.
#[derive(Clone, Debug)]
struct Shared {
    sq: DmaMemory,
    cq: DmaMemory,
    doorbells: DmaMemory,
    landing: DmaMemory,
    /// What is read; `None` for a drive that moves no data.
    media: Option<DmaMemory>,
    block: usize,
    /// Commands whose data is fetched to the cache together; 0 to leave it to the copy.
    ahead: u32,
    /// Entries of both rings minus one; the entries are a power of two.
    mask: u32,
    /// The answering thread polls rather than sleeps.
    awake: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

/// The submitting side, and the thread that answers it.
#[derive(Debug)]
pub struct MinimalRing {
    shared: Shared,
    depth: usize,
    tail: u32,
    head: u32,
    phase: bool,
    thread: Option<JoinHandle<()>>,
}

impl MinimalRing {
    /// A ring that keeps `depth` commands (1 to 65,535) in flight. Command `i` of a round reads `block` bytes (a multiple of 8)
    /// into `landing` at `i * block`, from `media` at its block number times `block`, or from nowhere. Data is fetched to the
    /// cache `ahead` commands before it is copied, or only then if that is 0.
    pub fn new(
        depth: u16,
        block: usize,
        landing: DmaMemory,
        media: Option<DmaMemory>,
        ahead: u32,
    ) -> Result<Self, MinimalRingError> {
        let entries = (usize::from(depth) + 1).next_power_of_two();
        let memory = |len| DmaMemory::allocate(len, MemoryKind::Anonymous);
        let shared = Shared {
            sq: memory(entries * SQE)?,
            cq: memory(entries * CQE)?,
            doorbells: memory(CQ_HEAD + 4)?,
            landing,
            media,
            block,
            ahead,
            mask: entries as u32 - 1,
            awake: Arc::default(),
            stop: Arc::default(),
        };
        let thread = std::thread::Builder::new().name("minimal-ring".into()).spawn({
            let shared = shared.clone();
            move || serve(&shared)
        })?;
        Ok(Self { shared, depth: usize::from(depth.max(1)), tail: 0, head: 0, phase: true, thread: Some(thread) })
    }

    /// Reads `blocks`, all of them, and returns when the last completion has been consumed.
    pub fn round(&mut self, blocks: &[u64]) -> Result<(), MinimalRingError> {
        let Shared { sq, cq, doorbells, block, mask, .. } = &self.shared;
        let mut submitted = 0;
        let mut completed = 0;
        let mut idle = 0u32;
        while completed < blocks.len() {
            let until = blocks.len().min(completed + self.depth);
            if submitted < until {
                for (i, &lba) in (submitted..).zip(&blocks[submitted..until]) {
                    let mut sqe = Sqe::new(NvmOpcode::READ.0, 1).with_cid(i as u16).with_slba(lba);
                    sqe.prp1 = (i * block) as u64;
                    sq.store_words::<8>(self.tail as usize * SQE, sqe.as_words());
                    self.tail = (self.tail + 1) & mask;
                }
                submitted = until;
                order::before_doorbell();
                doorbells.store_u32(SQ_TAIL, self.tail);
            }
            let before = completed;
            while Cqe::phase_of_word(cq.load_u64(self.head as usize * CQE + 8)) == self.phase {
                self.head = (self.head + 1) & mask;
                self.phase ^= self.head == 0;
                completed += 1;
            }
            if completed == before {
                idle += 1;
                if idle.is_multiple_of(PATIENCE) && self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                    return Err(MinimalRingError::Ended);
                }
                std::hint::spin_loop();
                continue;
            }
            order::after_phase();
            order::before_doorbell();
            doorbells.store_u32(CQ_HEAD, self.head);
        }
        Ok(())
    }

    /// Where blocks land.
    pub fn landing(&self) -> &DmaMemory {
        &self.shared.landing
    }

    /// Lets the answering thread poll.
    pub fn wake(&self) {
        self.shared.awake.store(true, Ordering::Relaxed);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }

    /// Lets the answering thread sleep until [`wake`](Self::wake), so that it takes no core from others. Between rounds
    /// only.
    pub fn rest(&self) {
        self.shared.awake.store(false, Ordering::Relaxed);
    }
}

impl Drop for MinimalRing {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.rest();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If it panicked, a round has said so.
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    let Shared { sq, cq, doorbells, landing, media, block, ahead, mask, awake, stop } = shared;
    let mut head = 0;
    let mut phase = true;
    loop {
        let tail = doorbells.load_u32(SQ_TAIL);
        if tail == head {
            if !awake.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::park();
            }
            std::hint::spin_loop();
            continue;
        }
        order::after_doorbell();
        let mut fetched = head;
        while head != tail {
            if let Some(media) = media {
                let until = (tail.wrapping_sub(head) & mask).min(*ahead);
                while fetched.wrapping_sub(head) & mask < until {
                    let lba = sq.load_u64(fetched as usize * SQE + SLBA) as usize;
                    media.prefetch(lba * block, *block);
                    fetched = (fetched + 1) & mask;
                }
            }
            let sqe = Sqe::from_words(sq.load_words::<8>(head as usize * SQE));
            if let Some(media) = media {
                media.copy_to(sqe.slba() as usize * block, landing, sqe.prp1 as usize, *block);
            }
            let at = head as usize * CQE;
            head = (head + 1) & mask;
            let mut cqe = Cqe { sqhd: head as u16, sqid: 1, cid: sqe.cid(), ..Cqe::default() };
            cqe.status_phase.set_phase(phase);
            phase ^= head == 0;
            let [word0, word1] = cqe.as_words();
            cq.store_u64(at, word0);
            order::before_phase();
            cq.store_u64(at + 8, word1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_workload::SeededRandom;

    #[test]
    fn every_block_arrives() {
        const BLOCKS: usize = 1000;
        let media = DmaMemory::allocate(BLOCKS * 512, MemoryKind::Anonymous).unwrap();
        (0..BLOCKS * 64).for_each(|word| media.store_u64(word * 8, word as u64));
        for depth in [1, 3, 128] {
            let landing = DmaMemory::allocate(300 * 512, MemoryKind::Anonymous).unwrap();
            let mut ring = MinimalRing::new(depth, 512, landing.clone(), Some(media.clone()), depth.into()).unwrap();
            let mut random = SeededRandom::new(depth.into());
            for round in 0..20 {
                let blocks: Vec<u64> = (0..300).map(|_| random.below(BLOCKS as u64)).collect();
                ring.wake();
                ring.round(&blocks).unwrap();
                ring.rest();
                for (i, &block) in blocks.iter().enumerate() {
                    for word in 0..64 {
                        let got = landing.load_u64(i * 512 + word as usize * 8);
                        assert_eq!(got, block * 64 + word, "depth {depth}, round {round}, command {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn without_media_nothing_is_written() {
        let landing = DmaMemory::allocate(4096, MemoryKind::Anonymous).unwrap();
        landing.fill(0, 4096, 0xa5);
        let mut ring = MinimalRing::new(4, 512, landing.clone(), None, 0).unwrap();
        ring.wake();
        ring.round(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert!((0..4096).all(|at| landing.load_u8(at) == 0xa5));
    }

    #[test]
    fn a_dead_thread_ends_the_wait() {
        let memory = || DmaMemory::allocate(4096, MemoryKind::Anonymous).unwrap();
        let mut ring = MinimalRing::new(4, 512, memory(), Some(memory()), 0).unwrap();
        ring.wake();
        assert!(matches!(ring.round(&[1 << 40]), Err(MinimalRingError::Ended)));
    }
}
