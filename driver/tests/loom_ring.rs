//! The ring's ordering rules under loom, which tries every interleaving and every value that a relaxed load may return:
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p warprow-driver --test loom_ring --release
//!
//! The host's side is the driver's own [`Ring`] with the driver's own fences (`warprow_dma::order`); the device's side
//! is written here with the same module's fences. Loom models the C++ memory model among threads. It sees neither
//! registers (that an MMIO store comes after earlier stores to memory is the promise of the fence's machine instruction
//! and of the uncached mapping) nor PTX scopes, nor accesses of mixed width, nor a load that is served after a later
//! store.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test")]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use loom::thread;
use warprow_dma::order;
use warprow_driver::queue::ring::{RingDoorbell, RingWords};
use warprow_driver::queue::{NEVER, Ring};
use warprow_spec::cqe::StatusPhase;
use warprow_spec::{Cqe, Sqe};

#[derive(Clone)]
struct Memory(Arc<Vec<AtomicU64>>);

impl Memory {
    fn new(words: usize) -> Self {
        Self(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl RingWords for Memory {
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Relaxed)
    }
    fn store<const N: usize>(&self, index: usize, values: [u64; N]) {
        for (word, value) in self.0[index..].iter().zip(values) {
            word.store(value, Relaxed);
        }
    }
}

#[derive(Clone)]
struct Register(Arc<AtomicU32>);

impl RingDoorbell for Register {
    fn ring(&self, value: u32) {
        self.0.store(value, Relaxed);
    }
}

const QID: u16 = 1;

/// Which of its fences the device keeps.
#[derive(Clone, Copy)]
struct Fences {
    after_doorbell: bool,
    before_phase: bool,
}

fn command(tag: u64) -> Sqe {
    Sqe::read(1, 0x5000 + tag, 0, false).with_prps(0x1000 * (tag + 1), 0)
}

fn answer(tag: u64) -> u64 {
    0xda7a_0000 + tag
}

/// Both queues have `entries`. The host keeps as many commands outstanding as it may until it has sent `commands`, and
/// checks the data of each; the device checks each command, and that its completion queue has a free entry for it.
fn run(entries: u32, commands: u64, fences: Fences) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let sq = Memory::new(entries as usize * 8);
        let cq = Memory::new(entries as usize * 2);
        let data = Memory::new(entries as usize);
        let tail = Register(Arc::new(AtomicU32::new(0)));
        let head = Register(Arc::new(AtomicU32::new(0)));

        let device = {
            let (sq, cq, data, tail, head) = (sq.clone(), cq.clone(), data.clone(), tail.clone(), head.clone());
            thread::spawn(move || {
                let (mut sq_head, mut cq_tail, mut phase) = (0u32, 0u32, true);
                for tag in 0..commands {
                    while tail.0.load(Relaxed) == sq_head {
                        thread::yield_now();
                    }
                    if fences.after_doorbell {
                        order::after_doorbell();
                    }
                    let at = sq_head as usize * 8;
                    let sqe = Sqe::from_words(std::array::from_fn(|i| sq.load(at + i)));
                    assert_eq!(sqe, command(tag).with_cid(sqe.cid()), "every word is there before the doorbell");
                    sq_head = (sq_head + 1) % entries;

                    let next = (cq_tail + 1) % entries;
                    assert_ne!(next, head.0.load(Relaxed), "credit comes back before the next command");
                    data.store(tag as usize % entries as usize, [answer(tag)]);
                    let cqe = Cqe {
                        dw0: tag as u32,
                        sqhd: sq_head as u16,
                        sqid: QID,
                        cid: sqe.cid(),
                        status_phase: StatusPhase::new().with_phase(phase),
                        ..Cqe::default()
                    };
                    let [first, last] = cqe.as_words();
                    cq.store(cq_tail as usize * 2, [first]);
                    if fences.before_phase {
                        order::before_phase();
                    }
                    cq.store(cq_tail as usize * 2 + 1, [last]);
                    cq_tail = next;
                    phase ^= next == 0;
                }
            })
        };

        let mut ring = Ring::new(QID, (sq, entries, tail), (cq, entries, head));
        let (mut sent, mut done) = (0, 0);
        while done < commands {
            while sent < commands && ring.push(command(sent), sent, NEVER).is_some() {
                sent += 1;
            }
            ring.ring();
            let before = done;
            while done == before {
                ring.poll(|completion| {
                    let tag = completion.tag;
                    assert_eq!((tag, completion.result[0]), (done, tag as u32), "the whole entry is there");
                    let data = data.load(tag as usize % entries as usize);
                    assert_eq!(data, answer(tag), "the data is there before its completion");
                    done += 1;
                });
                thread::yield_now();
            }
        }
        assert_eq!(ring.anomalies().total(), 0);
        device.join().unwrap();
    });
}

const ALL: Fences = Fences { after_doorbell: true, before_phase: true };

/// With three of four entries outstanding, the fourth command may be sent only with the completion queue's head before
/// it.
#[test]
fn the_completion_queue_never_overflows() {
    run(4, 4, ALL);
}

#[test]
fn commands_data_and_credit_are_seen_in_order() {
    run(2, 3, ALL);
}

#[test]
#[should_panic(expected = "before the doorbell")]
fn the_model_notices_a_missing_fence_after_the_doorbell() {
    run(2, 2, Fences { after_doorbell: false, ..ALL });
}

#[test]
#[should_panic(expected = "is there")]
fn the_model_notices_a_missing_fence_before_the_phase() {
    run(2, 2, Fences { before_phase: false, ..ALL });
}
