//! The ring against a scripted device that keeps its own books.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_spec::cqe::StatusPhase;
use warprow_spec::{Cqe, NvmOpcode, Sqe, Status, StatusCode};

use super::ring::{NEVER, Ring, RingDoorbell, RingWords};
use super::{Anomaly, CommandEnd, Completion};

#[derive(Clone)]
struct Shared(Rc<RefCell<Vec<u64>>>);

impl RingWords for Shared {
    fn load(&self, index: usize) -> u64 {
        self.0.borrow()[index]
    }
    fn store<const N: usize>(&self, index: usize, values: [u64; N]) {
        self.0.borrow_mut()[index..index + N].copy_from_slice(&values);
    }
}

/// A doorbell: its value, and how often it was stored.
#[derive(Clone, Default)]
struct Register(Rc<Cell<(u32, u64)>>);

impl RingDoorbell for Register {
    fn ring(&self, value: u32) {
        self.0.set((value, self.0.get().1 + 1));
    }
}

const QID: u16 = 5;

/// The device's side, by the words of the specification.
struct Device {
    sq: Shared,
    cq: Shared,
    tail: Register,
    head: Register,
    sq_size: u32,
    cq_size: u32,
    sq_head: u32,
    cq_tail: u32,
    phase: bool,
}

impl Device {
    fn ring(sq_size: u32, cq_size: u32) -> (Device, Ring<Shared, Register>) {
        Self::ring_at(sq_size, cq_size, 0, 0, true)
    }

    /// Both sides agree to start at these indices.
    fn ring_at(sq_size: u32, cq_size: u32, sq: u32, cq: u32, phase: bool) -> (Device, Ring<Shared, Register>) {
        // Entries of an earlier turn carry the other phase.
        let old = Cqe { status_phase: StatusPhase::new().with_phase(!phase), cid: 0xdead, ..Cqe::default() };
        let older = Cqe { status_phase: StatusPhase::new().with_phase(phase), cid: 0xdead, ..Cqe::default() };
        let cq_words = (0..cq_size).flat_map(|i| if i < cq { older.as_words() } else { old.as_words() }).collect();
        let device = Device {
            sq: Shared(Rc::new(RefCell::new(vec![0xaaaa_aaaa_aaaa_aaaa; sq_size as usize * 8]))),
            cq: Shared(Rc::new(RefCell::new(cq_words))),
            tail: Register(Rc::new(Cell::new((sq, 0)))),
            head: Register(Rc::new(Cell::new((cq, 0)))),
            sq_size,
            cq_size,
            sq_head: sq,
            cq_tail: cq,
            phase,
        };
        let mut ring = Ring::new(
            QID,
            (device.sq.clone(), sq_size, device.tail.clone()),
            (device.cq.clone(), cq_size, device.head.clone()),
        );
        ring.start_at(sq, cq, phase);
        (device, ring)
    }

    fn fetch(&mut self) -> Option<Sqe> {
        if self.sq_head == self.tail.0.get().0 {
            return None;
        }
        let at = self.sq_head as usize * 8;
        let words: [u64; 8] = self.sq.0.borrow()[at..at + 8].try_into().unwrap();
        self.sq_head = (self.sq_head + 1) % self.sq_size;
        Some(Sqe::from_words(words))
    }

    fn post(&mut self, cid: u16) {
        self.post_entry(Cqe { sqhd: self.sq_head as u16, sqid: QID, cid, ..Cqe::default() });
    }

    fn post_entry(&mut self, cqe: Cqe) {
        let next = (self.cq_tail + 1) % self.cq_size;
        assert_ne!(next, self.head.0.get().0, "the completion queue overflows");
        let status = cqe.status();
        let cqe = Cqe { status_phase: StatusPhase::new().with_status(status).with_phase(self.phase), ..cqe };
        self.cq.store(self.cq_tail as usize * 2, cqe.as_words());
        self.cq_tail = next;
        self.phase ^= next == 0;
    }
}

fn command(tag: u64) -> Sqe {
    Sqe::read(7, tag * 3, 0, false).with_prps(tag * 4096, 0)
}

fn drain(ring: &mut Ring<Shared, Register>) -> Vec<Completion> {
    let mut got = Vec::new();
    ring.poll(|completion| got.push(completion));
    got
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(Clone, Debug)]
enum Step {
    Push(u8),
    Ring,
    Fetch(u8),
    Complete(u16),
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1u8..20).prop_map(Step::Push),
        Just(Step::Ring),
        (1u8..20).prop_map(Step::Fetch),
        any::<u16>().prop_map(Step::Complete),
        any::<u16>().prop_map(Step::Complete),
        Just(Step::Poll),
    ];
    proptest::collection::vec(step, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    /// Whatever the order of submissions, fetches and completions: each command reaches the device once and as it was
    /// pushed, ends once, and neither queue ever overflows.
    #[test]
    fn every_command_ends_once(
        sq_size in 2u32..40, cq_size in 2u32..40, start in any::<(u16, u16, bool)>(), steps in steps(),
    ) {
        let (sq, cq) = (u32::from(start.0) % sq_size, u32::from(start.1) % cq_size);
        let (mut device, mut ring) = Device::ring_at(sq_size, cq_size, sq, cq, start.2);
        let credit = sq_size.min(cq_size) - 1;
        prop_assert_eq!(ring.credit() as u32, credit);
        let (mut next_tag, mut batches) = (0u64, 0u64);
        let mut pushed = VecDeque::new();
        let mut at_device: Vec<u16> = Vec::new();
        let mut outstanding = BTreeMap::new();
        for step in steps {
            match step {
                Step::Push(n) => for _ in 0..n {
                    let room = ring.has_room();
                    let Some(cid) = ring.push(command(next_tag), next_tag, NEVER) else {
                        prop_assert!(!room);
                        break;
                    };
                    prop_assert!(room && cid != 0xffff);
                    prop_assert_eq!(outstanding.insert(cid, next_tag), None, "a CID is in use once");
                    pushed.push_back((cid, next_tag));
                    next_tag += 1;
                    prop_assert!(outstanding.len() as u32 <= credit);
                },
                Step::Ring => {
                    batches += u64::from(ring.has_unrung());
                    ring.ring();
                    prop_assert_eq!(device.tail.0.get().1, batches, "one tail doorbell a batch");
                }
                Step::Fetch(n) => for _ in 0..n {
                    let Some(sqe) = device.fetch() else { break };
                    let (cid, tag) = pushed.pop_front().unwrap();
                    prop_assert_eq!(sqe, command(tag).with_cid(cid), "the device sees what was pushed");
                    at_device.push(cid);
                },
                Step::Complete(which) => if !at_device.is_empty() {
                    let cid = at_device.swap_remove(usize::from(which) % at_device.len());
                    device.post(cid);
                },
                Step::Poll => for completion in drain(&mut ring) {
                    let tag = outstanding.remove(&completion.issued.cid);
                    prop_assert_eq!(tag, Some(completion.tag));
                    prop_assert_eq!(completion.ended, CommandEnd::Answered(Status::SUCCESS));
                    prop_assert_eq!(completion.issued.lba, completion.tag * 3);
                },
            }
            prop_assert_eq!(ring.outstanding() as usize, outstanding.len());
        }
        // All that is left can be finished.
        ring.ring();
        while let Some(sqe) = device.fetch() {
            at_device.push(sqe.cid());
        }
        for cid in at_device {
            drain(&mut ring).iter().for_each(|c| assert!(outstanding.remove(&c.issued.cid).is_some()));
            device.post(cid);
        }
        drain(&mut ring).iter().for_each(|c| assert!(outstanding.remove(&c.issued.cid).is_some()));
        prop_assert!(outstanding.is_empty());
        prop_assert_eq!(ring.anomalies().total(), 0);
        prop_assert!(ring.has_room());
    }

    /// Any completion queue contents at all: no panic, no command ended twice, and books that add up.
    #[test]
    fn garbage_completions_end_nothing_twice(
        sq_size in 2u32..20, cq_size in 2u32..20,
        entries in proptest::collection::vec((any::<[u8; 2]>(), any::<u16>(), any::<u16>(), any::<u16>()), 1..200),
    ) {
        let (mut device, mut ring) = Device::ring(sq_size, cq_size);
        let mut outstanding = BTreeMap::new();
        let mut tag = 0;
        for ([how, size], a, b, c) in entries {
            while let Some(cid) = ring.push(command(tag), tag, NEVER) {
                outstanding.insert(cid, tag);
                tag += 1;
            }
            ring.ring();
            while device.fetch().is_some() {}
            // Mostly near the truth, so that every check is reached.
            let cid = if how & 1 == 0 { a % (4 * sq_size as u16) } else { a };
            let sqid = if how & 6 != 0 { QID } else { b };
            let sqhd = if how & 24 != 0 { device.sq_head as u16 } else { c % 64 };
            for _ in 0..size % 3 {
                let room = (device.cq_tail + 1) % device.cq_size != device.head.0.get().0;
                if room {
                    device.post_entry(Cqe { dw0: 0, dw1: 0, sqhd, sqid, cid, status_phase: StatusPhase::new() });
                }
            }
            for completion in drain(&mut ring) {
                prop_assert_eq!(outstanding.remove(&completion.issued.cid), Some(completion.tag));
            }
            prop_assert_eq!(ring.outstanding() as usize, outstanding.len());
        }
    }
}

#[test]
fn wraps_many_times_out_of_order() {
    let (mut device, mut ring) = Device::ring_at(7, 5, 6, 4, false);
    let mut tag = 0;
    for round in 0..1000 {
        let mut cids = Vec::new();
        for _ in 0..=round % 4 {
            cids.push(ring.push(command(tag), tag, NEVER).unwrap());
            tag += 1;
        }
        ring.ring();
        while device.fetch().is_some() {}
        for (before, &cid) in cids.iter().rev().enumerate() {
            (1..=6).for_each(|count| assert_eq!(ring.has_posted(count), count as usize <= before, "round {round}"));
            device.post(cid);
        }
        assert!(ring.has_posted(cids.len() as u32) && !ring.has_posted(cids.len() as u32 + 1));
        let got: Vec<u16> = drain(&mut ring).iter().map(|c| c.issued.cid).collect();
        assert!(got.iter().eq(cids.iter().rev()));
    }
}

#[test]
fn a_cid_tells_its_uses_apart() {
    let (mut device, mut ring) = Device::ring(2, 2);
    let mut seen = Vec::new();
    for tag in 0..100 {
        let cid = ring.push(command(tag), tag, NEVER).unwrap();
        assert!(!seen.contains(&cid), "the only index has thousands of CIDs");
        ring.ring();
        device.fetch().unwrap();
        if let Some(&earlier) = seen.last() {
            // The answer to the use before comes once more: it must not end this one.
            device.post(earlier);
            assert!(drain(&mut ring).is_empty());
        }
        device.post(cid);
        assert_eq!(drain(&mut ring)[0].tag, tag);
        seen.push(cid);
    }
    assert_eq!(ring.anomalies().not_outstanding, 99);
}

#[test]
fn the_largest_ring_never_gives_out_ffff() {
    let (mut device, mut ring) = Device::ring(1 << 16, 1 << 16);
    for _ in 0..2 {
        let mut cids = vec![false; 1 << 16];
        for tag in 0..65535 {
            let cid = ring.push(command(tag), tag, NEVER).unwrap();
            assert!(!std::mem::replace(&mut cids[usize::from(cid)], true));
        }
        assert!(!cids[0xffff]);
        assert_eq!(ring.push(command(0), 0, NEVER), None);
        ring.ring();
        while let Some(sqe) = device.fetch() {
            device.post(sqe.cid());
        }
        assert_eq!(drain(&mut ring).len(), 65535);
    }
    assert_eq!(ring.anomalies().total(), 0);
}

#[test]
fn unexpected_completions_free_nothing() {
    let (mut device, mut ring) = Device::ring(8, 16);
    let cid = ring.push(command(1), 1, NEVER).unwrap();
    ring.ring();
    device.fetch().unwrap();
    device.post(7);
    device.post(cid.wrapping_add(8));
    device.post_entry(Cqe { sqhd: 1, sqid: QID + 1, cid, ..Cqe::default() });
    assert!(drain(&mut ring).is_empty());
    let unexpected: Vec<_> = ring.anomalies().recent().copied().collect();
    let wrong = Anomaly::WrongQueue { sqid: QID + 1, cid };
    assert_eq!(
        unexpected,
        [Anomaly::UnknownCid { cid: 7 }, Anomaly::NotOutstanding { cid: cid.wrapping_add(8) }, wrong]
    );
    device.post_entry(Cqe { sqhd: 5, sqid: QID, cid, ..Cqe::default() });
    assert_eq!(drain(&mut ring).len(), 1, "an impossible head does not lose the answer");
    assert_eq!(ring.anomalies().bad_sq_head, 1);
    device.post(cid);
    assert!(drain(&mut ring).is_empty());
    assert_eq!((ring.anomalies().not_outstanding, ring.anomalies().total()), (2, 5));
}

#[test]
fn a_status_reaches_the_submitter() {
    let (mut device, mut ring) = Device::ring(4, 4);
    let cid = ring.push(command(9), 9, NEVER).unwrap();
    ring.ring();
    device.fetch().unwrap();
    let status = Status::from_code(StatusCode::UnrecoveredReadError).with_dnr(true);
    let status_phase = StatusPhase::new().with_status(status);
    device.post_entry(Cqe { dw0: 11, dw1: 12, sqhd: 1, sqid: QID, cid, status_phase });
    let completion = drain(&mut ring)[0];
    assert_eq!(completion.ended, CommandEnd::Answered(status));
    assert_eq!(
        (completion.result, completion.issued.opcode, completion.is_success()),
        ([11, 12], NvmOpcode::READ.0, false)
    );
}

#[test]
fn a_time_out_withholds_cid_and_credit_until_the_restart() {
    let (mut device, mut ring) = Device::ring(4, 16);
    let slow = ring.push(command(1), 1, at(10)).unwrap();
    ring.push(command(2), 2, at(20)).unwrap();
    ring.ring();
    device.fetch().unwrap();
    device.fetch().unwrap();

    let mut expired = Vec::new();
    assert_eq!(ring.expire(at(9), |c| expired.push(c)), (0, at(10)));
    assert_eq!(ring.expire(at(10), |c| expired.push(c)), (1, at(20)));
    assert_eq!((expired[0].tag, expired[0].ended), (1, CommandEnd::TimedOut));
    assert_eq!((ring.outstanding(), ring.quarantined()), (1, 1));
    assert_eq!(ring.expire(at(15), |_| panic!("it ends once")), (0, at(20)));

    // The answer comes late, and then again.
    device.post(slow);
    device.post(slow);
    assert!(drain(&mut ring).is_empty());
    let late = Anomaly::Late { cid: slow, tag: 1, status: Status::SUCCESS };
    let recent: Vec<_> = ring.anomalies().recent().copied().collect();
    assert_eq!(recent, [late, Anomaly::NotOutstanding { cid: slow }]);

    // Of three credits one stays withheld.
    assert!(ring.push(command(3), 3, at(30)).is_some_and(|cid| cid != slow));
    assert_eq!(ring.push(command(4), 4, at(30)), None);

    let mut ended = Vec::new();
    ring.restart(|c| ended.push((c.tag, c.ended)));
    ended.sort_by_key(|&(tag, _)| tag);
    assert_eq!(ended, [(1, CommandEnd::Released), (2, CommandEnd::Lost), (3, CommandEnd::Lost)]);
    assert_eq!((ring.outstanding(), ring.quarantined()), (0, 0));
    assert!(device.cq.0.borrow().iter().all(|&word| word == 0), "no completion of before is taken for a new one");

    // Both sides start anew.
    (device.sq_head, device.cq_tail, device.phase) = (0, 0, true);
    device.head.ring(0);
    for tag in 10..13 {
        ring.push(command(tag), tag, NEVER).unwrap();
    }
    ring.ring();
    for _ in 0..3 {
        let cid = device.fetch().unwrap().cid();
        device.post(cid);
    }
    assert_eq!(drain(&mut ring).iter().map(|c| c.tag).collect::<Vec<_>>(), [10, 11, 12]);
}

#[test]
fn slots_are_free_when_the_device_says_so() {
    let (mut device, mut ring) = Device::ring(3, 8);
    let first = ring.push(command(1), 1, NEVER).unwrap();
    ring.push(command(2), 2, NEVER).unwrap();
    ring.ring();
    device.fetch().unwrap();
    // The answer to the first, with a head that has not moved: its slot is not free yet.
    device.post_entry(Cqe { sqhd: 0, sqid: QID, cid: first, ..Cqe::default() });
    assert_eq!(drain(&mut ring).len(), 1);
    assert_eq!(ring.push(command(3), 3, NEVER), None);
    let second = device.fetch().unwrap().cid();
    device.post(second);
    drain(&mut ring);
    assert!(ring.push(command(3), 3, NEVER).is_some());
}

#[test]
fn a_large_completion_queue_saves_doorbells() {
    let stores = |cq_size| {
        let (mut device, mut ring) = Device::ring(16, cq_size);
        for tag in 0..640 {
            ring.push(command(tag), tag, NEVER).unwrap();
            ring.ring();
            let cid = device.fetch().unwrap().cid();
            device.post(cid);
            assert_eq!(drain(&mut ring).len(), 1);
        }
        assert_eq!(ring.doorbells(), device.tail.0.get().1 + device.head.0.get().1);
        device.head.0.get().1
    };
    assert_eq!((stores(16), stores(64)), (640 / 8, 640 / 32));
}

#[test]
fn a_flood_of_doubles_does_not_stop_the_queue() {
    let (mut device, mut ring) = Device::ring(4, 4);
    let cid = ring.push(command(1), 1, NEVER).unwrap();
    ring.ring();
    device.fetch().unwrap();
    for _ in 0..100 {
        device.post(cid ^ 0x8000);
        assert!(drain(&mut ring).is_empty());
    }
    device.post(cid);
    assert_eq!(drain(&mut ring).len(), 1);
}
