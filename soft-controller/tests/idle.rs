//! What a controller's threads cost when nothing happens, and how soon they are back.

mod common;

use std::fs;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{Host, pattern, ram};
use warprow_dma::{Function, PAGE, PeerMemory};
use warprow_soft_controller::{Leave, Mapping, Offload, OffloadFailure, OffloadQueue, SoftController, Turn};
use warprow_spec::async_event::{AsyncEvent, AsyncEventKind, ErrorEvent};
use warprow_spec::registers::{cq_head_doorbell, sq_tail_doorbell};
use warprow_spec::{AdminOpcode, Cqe, NvmOpcode, Sqe};

/// The tests count what all of the process's controller threads do: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processor time of this process's controller threads, in ticks of 10 ms.
fn ticks() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok())
        .filter(|stat| stat.contains("(nvme-"))
        .map(|stat| {
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        })
        .sum()
}

#[test]
fn idle_threads_sleep_and_wake() {
    let _alone = alone();
    let mut host = Host::new(SoftController::builder().namespace(ram(1 << 20)).workers(2).build().unwrap(), false);
    host.enable();
    for id in 1..=4 {
        host.create_pair(id, 16);
    }
    let page = host.buffer(PAGE);
    for silent in [false, true] {
        let doorbells = silent.then(|| host.drive.doorbell_memory());
        std::thread::sleep(Duration::from_millis(20));
        let before = ticks();
        std::thread::sleep(Duration::from_millis(400));
        let spent = ticks() - before;
        // Two threads that polled would have spent 80.
        assert!(spent <= 8, "{spent} ticks in 400 ms without work");
        page.memory.write(0, &pattern(5, PAGE));
        host.write(8, 8, page.iova);
        page.memory.fill(0, PAGE, 0);
        match doorbells {
            None => host.read(8, 8, page.iova),
            // A submitter that wakes nobody is served within a nap.
            Some(doorbells) => {
                std::thread::sleep(Duration::from_millis(5));
                let cid = host.push(1, Host::rw(NvmOpcode::READ, 1, 8, 8, page.iova));
                let tail = host.pairs[1].tail;
                warprow_dma::order::before_doorbell();
                doorbells.store_u32((sq_tail_doorbell(1, 0) - 0x1000) as usize, tail.into());
                assert!(host.completion(1, cid).status().is_success());
            }
        }
        assert_eq!(page.bytes(0, PAGE), pattern(5, PAGE));
    }
}

/// How often this process's controller threads have gone to sleep.
fn naps() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.contains("Name:\tnvme-"))
        .filter_map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        })
        .sum()
}

fn naps_in_400_ms() -> u64 {
    // Whatever was done last is over then.
    std::thread::sleep(Duration::from_millis(20));
    let before = naps();
    std::thread::sleep(Duration::from_millis(400));
    naps() - before
}

#[test]
fn threads_stop_glancing_when_nobody_is_left_who_does_not_wake_them() {
    let _alone = alone();
    let mut host = Host::new(SoftController::builder().namespace(ram(1 << 20)).build().unwrap(), false);
    host.enable();
    host.create_pair(1, 16);
    let page = host.buffer(PAGE);
    // Once in 50 ms, or once in a millisecond.
    let quiet = 0..=30;
    let awake = 60..=1000;
    let assert_naps = |due: &RangeInclusive<u64>, what: &str| {
        let naps = naps_in_400_ms();
        assert!(due.contains(&naps), "{what}: {naps} naps in 400 ms");
    };
    assert_naps(&quiet, "before");
    let memory = host.drive.doorbell_memory();
    let clone = memory.clone();
    assert_naps(&awake, "held twice");
    drop(memory);
    assert_naps(&awake, "held once");
    drop(clone);
    assert_naps(&quiet, "held no more");
    // Who rings and wakes is served all the same, and so is another who does not wake.
    host.read(0, 8, page.iova);
    let again = host.drive.doorbell_memory();
    assert_naps(&awake, "held again");
    drop(again);
    assert_naps(&quiet, "after all");
}

#[test]
fn threads_glance_often_for_a_while_after_work() {
    let _alone = alone();
    let mut host = Host::new(SoftController::builder().namespace(ram(1 << 20)).build().unwrap(), false);
    host.enable();
    host.create_pair(1, 16);
    let page = host.buffer(PAGE);
    let _memory = host.drive.doorbell_memory();
    let naps_in_35_ms = || {
        let before = naps();
        std::thread::sleep(Duration::from_millis(35));
        naps() - before
    };
    // Naps of a millisecond each would be 35.
    let after_work = (0..5).map(|_| {
        host.read(0, 8, page.iova);
        std::thread::sleep(Duration::from_millis(8));
        naps_in_35_ms()
    });
    let after_work = after_work.max().unwrap();
    assert!(after_work > 60, "{after_work} naps in 35 ms after work");
    std::thread::sleep(Duration::from_millis(80));
    let later = (0..3).map(|_| naps_in_35_ms()).min().unwrap();
    assert!(later < 60, "{later} naps in 35 ms long after work");
}

/// An offload that reaches nothing.
#[derive(Debug)]
struct Aloof;

impl Leave for Aloof {
    fn count(&self) -> u32 {
        0
    }

    fn leave(&self) {}
}

impl Offload for Aloof {
    fn remap(&mut self, _: &[Mapping]) {}

    fn admit(&mut self, _: &dyn PeerMemory) -> Result<(), String> {
        Ok(())
    }

    fn reaches(&mut self, _: &Turn<'_>, _: &mut [OffloadQueue]) -> bool {
        false
    }

    fn serve(&mut self, _: &Turn<'_>, _: &mut [OffloadQueue]) -> Result<(), OffloadFailure> {
        unreachable!("no queue is reached")
    }

    fn leave(&self) -> Arc<dyn Leave> {
        Arc::new(Aloof)
    }
}

#[test]
fn a_thread_with_an_offload_goes_on_looking_while_submitters_wake_nobody() {
    let _alone = alone();
    let builder = SoftController::builder().namespace(ram(1 << 20)).offload(Box::new(Aloof));
    let mut host = Host::new(builder.build().unwrap(), false);
    host.enable();
    let spent = |host: &Host| {
        let memory = host.drive.doorbell_memory();
        std::thread::sleep(Duration::from_millis(20));
        let before = ticks();
        std::thread::sleep(Duration::from_millis(400));
        drop(memory);
        ticks() - before
    };
    let without = spent(&host);
    host.create_pair(1, 16);
    let with = spent(&host);
    std::thread::sleep(Duration::from_millis(20));
    let naps = naps_in_400_ms();
    // One that looks all the time spends 40 ticks, where it has a core to itself.
    assert!(without <= 4 && with >= 8, "{without} ticks without queues, {with} with one");
    assert!(naps <= 30, "{naps} naps in 400 ms after the submitter has gone");
    let page = host.buffer(PAGE);
    host.read(0, 8, page.iova);
}

/// The first worker serves the admin queue, the second finds what is to be reported there.
#[test]
fn an_event_of_another_worker_does_not_wait_for_the_first_to_wake_by_itself() {
    let _alone = alone();
    let after = (0..5).map(|_| {
        let builder = SoftController::builder().namespace(ram(1 << 20)).workers(2);
        let mut host = Host::new(builder.build().unwrap(), false);
        host.enable();
        host.create_pair(1, 4);
        host.create_pair(2, 4);
        let request = host.submit(0, Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0));
        // A completion queue that is full, and a command that waits for it, keep the second worker awake.
        for _ in 0..3 {
            host.submit(2, Sqe::new(NvmOpcode::FLUSH.0, 1));
        }
        host.wait("three completions", |host| Cqe::phase_of_word(host.pairs[2].cq.load_u64(2 * 16 + 8)));
        host.submit(2, Sqe::new(NvmOpcode::FLUSH.0, 1));
        std::thread::sleep(Duration::from_millis(5));
        // A head that the queue cannot have. Heads wake nobody.
        let start = Instant::now();
        host.drive.doorbell(cq_head_doorbell(2, 0)).unwrap().ring(9);
        let event = AsyncEvent::from_bits(host.completion(0, request).dw0);
        assert_eq!(event.kind(), AsyncEventKind::Error(ErrorEvent::INVALID_DOORBELL_VALUE));
        start.elapsed()
    });
    let best = after.min().unwrap();
    assert!(best < Duration::from_millis(20), "{best:?}");
}

#[test]
fn many_queues_on_many_workers_are_all_served() {
    let _alone = alone();
    for workers in [1, 3] {
        let builder = SoftController::builder().namespace(ram(1 << 20)).workers(workers);
        let mut host = Host::new(builder.build().unwrap(), false);
        host.enable();
        for id in 1..=32 {
            host.create_pair(id, 8);
        }
        for round in 0..20 {
            let cids: Vec<(u16, u16)> =
                (1..=32).map(|id| (id, host.submit(id, Sqe::new(NvmOpcode::FLUSH.0, 1)))).collect();
            for (id, cid) in cids {
                assert!(host.completion(id, cid).status().is_success(), "round {round}");
            }
        }
    }
}
