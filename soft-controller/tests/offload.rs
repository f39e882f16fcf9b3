//! Reads that an offload executes: which queues it is given, what is left to the worker, and what ends its turns.

mod common;
#[path = "common/offload.rs"]
mod desk;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Buffer, Host, Pair, pattern, stepped};
use desk::Desk;
use warprow_dma::{DmaMemory, Function, FunctionError, MemoryKind, PAGE, PeerMemory, PeerMemoryError};
use warprow_soft_controller::{
    ControllerBuilder, Fault, FaultRules, InterruptSink, Rule, SoftController, Timing, TimingProfile,
};
use warprow_spec::registers::sq_tail_doorbell;
use warprow_spec::{AdminOpcode, NvmOpcode, Sqe, StatusCode};

const BYTES: u64 = 4096;

/// A host whose LBAs 0 to 7 hold a pattern, with a page to read into.
fn host_of(desk: &Desk, queue: u16) -> (Host, Buffer) {
    prepare(Host::with_queue(desk.drive(stepped()), queue))
}

fn prepare(mut host: Host) -> (Host, Buffer) {
    let page = host.buffer(PAGE);
    page.memory.write(0, &pattern(1, PAGE));
    host.write(0, 8, page.iova);
    page.memory.fill(0, PAGE, 0);
    (host, page)
}

/// A host and its buffer, prepared with a controller that has a thread.
fn threaded(desk: &Desk) -> (Host, Buffer) {
    let mut host = Host::new(desk.drive(SoftController::builder()).build().unwrap(), false);
    host.enable();
    host.create_pair(1, 16);
    prepare(host)
}

fn read(page: &Buffer) -> Sqe {
    Host::rw(NvmOpcode::READ, 1, 0, 8, page.iova)
}

/// Commands of the offload and of the worker so far.
fn counts(host: &Host) -> (u64, u64) {
    let counts = host.drive.offload_counts().unwrap();
    (counts.offload_commands, counts.worker_commands)
}

fn read_on(host: &mut Host, queue: u16, page: &Buffer) {
    page.memory.fill(0, PAGE, 0);
    let cid = host.submit(queue, read(page));
    assert!(host.completion(queue, cid).status().is_success());
    assert_eq!(page.bytes(0, PAGE), pattern(1, PAGE));
}

#[test]
fn plain_reads_are_the_offloads_and_everything_else_is_the_workers() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 4);
    assert_eq!(counts(&host), (0, 1), "the write");
    for round in 0..30 {
        read_on(&mut host, 1, &page);
        page.memory.write(0, &pattern(1, PAGE));
        host.write(0, 8, page.iova);
        assert_eq!(counts(&host), (round + 1, round + 2));
    }
    let counted = host.drive.offload_counts().unwrap();
    assert_eq!((counted.offload_bytes, counted.worker_bytes), (30 * BYTES, 31 * BYTES));
    assert_eq!(counted.turns, 30, "a write is worth no turn");
    // What is not plain ends as on any drive, in its place in the queue.
    let beyond = host.push(1, Host::rw(NvmOpcode::READ, 1, 1 << 20, 8, page.iova));
    let well = host.push(1, read(&page));
    host.ring(1);
    assert_eq!(host.completion(1, beyond).status().code(), StatusCode::LbaOutOfRange);
    assert!(host.completion(1, well).status().is_success());
    assert_eq!(counts(&host), (31, 32));
    // The drive's own counters have both.
    let log = host.buffer(PAGE);
    let sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0, u32::MAX).with_prps(log.iova, 0);
    assert!(host.admin(Sqe { cdw10: 2 | 127 << 16, ..sqe }).status().is_success());
    assert_eq!((log.memory.load_u64(64), log.memory.load_u64(80)), (31, 31), "read and write commands");
}

#[test]
fn an_invalid_doorbell_after_a_turn_brings_no_old_command_back() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    for _ in 0..3 {
        host.push(1, read(&page));
    }
    // Rung in one turn, and then wrongly: the worker never sees the valid tail.
    let at = (sq_tail_doorbell(1, 0) - 0x1000) as usize;
    let rings = [u32::from(host.pairs[1].tail), 99].map(|tail| (host.drive.doorbell_memory(), at, tail));
    desk.script().rings.extend(rings);
    host.drive.wake();
    host.turns(1);
    assert_eq!(host.poll(1).len(), 3);
    host.turns(9);
    assert_eq!(host.poll(1), [], "old commands were executed again");
    assert_eq!(counts(&host).0, 3);
    host.ring(1);
    read_on(&mut host, 1, &page);
}

/// The offload goes past the tail that the worker knows, and the ring wraps around several times in a turn.
#[test]
fn a_turn_that_goes_round_the_ring_leaves_the_queue_in_step() {
    let desk = Desk::default();
    let (mut host, page) = threaded(&desk);
    desk.script().wait = Some(Duration::ZERO);
    for _ in 0..100 {
        let cid = host.submit(1, read(&page));
        assert!(host.completion(1, cid).status().is_success());
    }
    assert!(desk.script().turns.len() < 10, "{} turns", desk.script().turns.len());
    host.drive.doorbell(sq_tail_doorbell(1, 0)).unwrap().ring(99);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!desk.serving.load(Ordering::SeqCst), "the doorbell is the worker's");
    assert_eq!(host.poll(1), [], "old commands were executed again");
    host.ring(1);
    read_on(&mut host, 1, &page);
}

#[test]
fn a_queue_out_of_reach_is_the_workers_and_the_others_are_not() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    host.create_pair(2, 8);
    desk.script().unreached = vec![1];
    let (_, before) = counts(&host);
    for _ in 0..3 {
        read_on(&mut host, 1, &page);
        read_on(&mut host, 2, &page);
    }
    assert_eq!(counts(&host), (3, before + 3));
    assert!(desk.script().turns.iter().all(|turn| turn.0 == [2] && turn.2 == Duration::from_millis(5)));
    // While the other queue holds commands, it is not to wait for long.
    let cids = [1, 2].map(|queue| (queue, host.push(queue, read(&page))));
    cids.iter().for_each(|&(queue, _)| host.ring(queue));
    assert!(cids.iter().all(|&(queue, cid)| host.completion(queue, cid).status().is_success()));
    assert_eq!(desk.script().turns.last().unwrap().2, Duration::from_micros(250));
    assert_eq!(counts(&host), (4, before + 4));
    desk.script().no_doorbells = true;
    read_on(&mut host, 2, &page);
    assert_eq!(counts(&host), (4, before + 5), "the doorbells are out of reach");
}

/// A store has such a queue on each drive, for what it keeps of itself.
#[test]
fn a_command_on_a_queue_of_the_workers_ends_a_turn() {
    let desk = Desk::default();
    let (mut host, page) = threaded(&desk);
    host.create_pair(2, 8);
    desk.script().unreached = vec![1];
    desk.script().wait = Some(Duration::ZERO);
    for round in 0..5 {
        read_on(&mut host, 2, &page);
        assert!(desk.serving.load(Ordering::SeqCst), "the turn waits for commands, for 20 s");
        let start = Instant::now();
        read_on(&mut host, 1, &page);
        assert!(start.elapsed() < Duration::from_secs(5), "round {round}: {:?}", start.elapsed());
        assert!(!desk.serving.load(Ordering::SeqCst), "the turn goes on");
    }
}

#[test]
fn queues_that_share_their_completions_are_the_workers() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    host.create_pair(2, 8);
    let ring = host.buffer(8 * 64);
    assert!(host.create_sq(3, ring.iova, 8, 1).status().is_success());
    let (_, before) = counts(&host);
    read_on(&mut host, 1, &page);
    read_on(&mut host, 2, &page);
    assert_eq!(counts(&host), (1, before + 1));
    let gone = host.admin(Sqe { cdw10: 3, ..Sqe::new(AdminOpcode::DELETE_IO_SQ.0, 0) });
    assert!(gone.status().is_success());
    read_on(&mut host, 1, &page);
    assert_eq!(counts(&host), (2, before + 1));
}

#[derive(Debug)]
struct Nobody;

impl InterruptSink for Nobody {
    fn raise(&self, _: u16) {}
}

#[test]
fn a_queue_that_raises_interrupts_is_the_workers() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    let ring = host.buffer(8 * 64);
    let entries = host.buffer(8 * 16);
    // With a vector, unlike queue 1.
    let cq =
        Sqe { prp1: entries.iova, cdw10: 2 | 7 << 16, cdw11: 3 | 2 << 16, ..Sqe::new(AdminOpcode::CREATE_IO_CQ.0, 0) };
    assert!(host.admin(cq).status().is_success());
    assert!(host.create_sq(2, ring.iova, 8, 2).status().is_success());
    let (ours, before) = counts(&host);
    host.drive.set_interrupts(Some(Arc::new(Nobody)));
    read_on(&mut host, 1, &page);
    ring.memory.store_words(0, read(&page).with_cid(77).as_words());
    host.drive.doorbell(sq_tail_doorbell(2, 0)).unwrap().ring(1);
    host.wait("the read", |host| {
        let done = entries.memory.load_u64(8) >> 48 == 1;
        done && host.drive.offload_counts().is_some()
    });
    assert_eq!(counts(&host), (ours + 1, before + 1));
    // Nobody listens any more.
    host.drive.set_interrupts(None);
    ring.memory.store_words(64, read(&page).with_cid(78).as_words());
    host.drive.doorbell(sq_tail_doorbell(2, 0)).unwrap().ring(2);
    host.wait("the read", |_| entries.memory.load_u64(24) >> 48 == 1);
    assert_eq!(counts(&host), (ours + 2, before + 1));
}

#[test]
fn a_command_that_is_held_back_ends_in_time_and_holds_back_no_other_queue() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    host.create_pair(2, 8);
    let late = Duration::from_micros(100);
    host.drive.faults().inject(Rule::new(Fault::Delay(late)).io(NvmOpcode::READ));
    let cid = host.submit(1, read(&page));
    host.turns(2);
    let submitted = host.now;
    let before = counts(&host).0;
    for _ in 0..10 {
        read_on(&mut host, 2, &page);
    }
    assert_eq!(counts(&host).0, before + 10, "the other queue is the offload's");
    assert!(host.completion(1, cid).status().is_success());
    assert!(host.now - submitted <= late, "{:?}", host.now - submitted);
    read_on(&mut host, 1, &page);
    assert_eq!(counts(&host).0, before + 11);
}

#[test]
fn no_command_escapes_a_rule_that_was_added_before_it() {
    let desk = Desk::default();
    let (mut host, page) = threaded(&desk);
    desk.script().wait = Some(Duration::from_millis(20));
    for _ in 0..5 {
        read_on(&mut host, 1, &page);
        assert!(desk.serving.load(Ordering::SeqCst), "the turn waits for commands");
        let rule = Rule::new(Fault::Status(StatusCode::UnrecoveredReadError.into())).io(NvmOpcode::READ);
        let id = host.drive.faults().inject(rule);
        assert!(!desk.serving.load(Ordering::SeqCst), "the turn goes on");
        let cqe = host.io(read(&page));
        assert_eq!(cqe.status().code(), StatusCode::UnrecoveredReadError);
        assert_eq!(host.drive.faults().fired(id), 1);
    }
    // Nor does anything that changes under the offload.
    read_on(&mut host, 1, &page);
    assert!(desk.serving.load(Ordering::SeqCst));
    let memory = DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap();
    let iova = host.drive.map(&memory).unwrap();
    let cid = host.submit(1, Host::rw(NvmOpcode::READ, 1, 0, 8, iova));
    assert!(host.completion(1, cid).status().is_success());
    host.drive.unmap(iova).unwrap();
    assert_eq!(counts(&host).0, 7, "into the new mapping too");
    assert!(!host.io(Host::rw(NvmOpcode::READ, 1, 0, 8, iova)).status().is_success());
    // And whoever ends the controller does not wait for commands that will not come.
    read_on(&mut host, 1, &page);
    assert!(desk.serving.load(Ordering::SeqCst));
    let start = Instant::now();
    drop(host);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_rule_that_the_worker_adds_in_a_turn_waits_for_nothing() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    let rules = host.drive.faults().clone();
    desk.script().inject = Some((rules, Rule::new(Fault::Drop).io(NvmOpcode::FLUSH)));
    let cid = host.submit(1, read(&page));
    host.turns(2);
    assert!(host.drive.faults().is_active());
    assert!(host.completion(1, cid).status().is_success());
    assert_eq!(counts(&host).0, 0, "the turn ended before its first command");
}

#[test]
fn rules_keep_no_offload_alive() {
    let desk = Desk::default();
    let rules = FaultRules::default();
    let drive = desk.drive(stepped()).faults(rules.clone()).build().unwrap();
    let before = Arc::strong_count(&desk.leave);
    assert!(before > 1);
    drop(drive);
    assert_eq!(Arc::strong_count(&desk.leave), 1);
    rules.inject(Rule::new(Fault::Drop));
}

#[test]
fn an_offload_that_fails_ends_once_and_the_worker_goes_on() {
    for miscount in [false, true] {
        let desk = Desk::default();
        let (mut host, page) = host_of(&desk, 8);
        read_on(&mut host, 1, &page);
        assert!(host.drive.offload_failure().is_none() && !host.csts().cfs());
        (desk.script().fail, desk.script().miscount) = (!miscount, miscount);
        host.submit(1, read(&page));
        host.turns(3);
        assert!(host.csts().cfs());
        let failure = host.drive.offload_failure().unwrap().to_string();
        let why = if miscount { "queue 1 does not fit: 2 commands" } else { "the test wants it so" };
        assert!(failure.contains(why), "{failure}");
        assert_eq!(Arc::strong_count(&desk.leave), 1, "it was dropped");
        host.disable();
        host.enable();
        host.create_pair(1, 8);
        let before = counts(&host);
        for _ in 0..20 {
            read_on(&mut host, 1, &page);
        }
        assert!(!host.csts().cfs());
        assert_eq!(counts(&host), (before.0, before.1 + 20));
        assert!(host.drive.offload_failure().is_some());
        host.drive.wake();
        host.turns(3);
        assert_eq!(desk.script().turns.len(), 2);
    }
}

#[test]
fn a_turn_begins_for_a_read_or_once_when_commands_are_announced() {
    let short = Duration::from_micros(20);
    let long = Duration::from_millis(1);
    let limit = Duration::from_millis(5);
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    let _silent = host.drive.doorbell_memory();
    host.turns(50);
    host.write(8, 8, page.iova);
    assert_eq!(desk.script().turns, []);
    host.drive.wake();
    host.turns(50);
    assert_eq!(desk.script().turns, [(vec![1], long, limit)], "one turn for each wake");
    read_on(&mut host, 1, &page);
    host.turns(50);
    assert_eq!(desk.script().turns[1..], [(vec![1], short, limit)]);
    // A format and faults are the worker's, and so is what comes meanwhile.
    let rule = host.drive.faults().inject(Rule::new(Fault::Drop).io(NvmOpcode::FLUSH));
    read_on(&mut host, 1, &page);
    assert_eq!(desk.script().turns.len(), 2);
    host.drive.faults().remove(rule);
    read_on(&mut host, 1, &page);
    assert_eq!(desk.script().turns.len(), 3);
}

#[test]
fn turns_follow_each_other_until_the_linger_of_the_drive_is_over() {
    let linger = Duration::from_millis(2);
    let desk = Desk::default();
    let (mut host, page) = prepare(Host::with_queue(desk.drive(stepped()).offload_linger(linger), 8));
    host.drive.wake();
    host.turns(1);
    assert_eq!(desk.script().turns.pop().unwrap().1, linger, "it is longer than after a wake elsewhere");
    host.turns(3);
    assert!(desk.script().turns.is_empty(), "no command came");
    let last = host.now;
    desk.script().times = Some((last, last));
    read_on(&mut host, 1, &page);
    assert_eq!(desk.script().turns.remove(0).1, linger);
    // The turn ended early, and the others have what is left.
    host.turns(3);
    let left: Vec<_> = desk.script().turns.drain(..).map(|turn| turn.1).collect();
    assert!(left.len() >= 3 && left.is_sorted_by(|before, then| before >= then) && left[0] < linger, "{left:?}");
    // A turn of the host's comes a tick later.
    host.now = last + linger - 2 * host.tick;
    host.turns(1);
    assert_eq!(desk.script().turns.pop().map(|turn| turn.1), Some(host.tick));
    host.turns(5);
    assert!(desk.script().turns.is_empty(), "{:?}", desk.script().turns);
    // What waits for the worker is served between turns.
    desk.script().times = Some((host.now, host.now));
    read_on(&mut host, 1, &page);
    host.write(8, 8, page.iova);
    assert_eq!(counts(&host).1, 2);
}

#[test]
fn a_drive_that_lingers_shortly_waits_no_longer() {
    let linger = Duration::from_micros(2);
    let desk = Desk::default();
    let (mut host, page) = prepare(Host::with_queue(desk.drive(stepped()).offload_linger(linger), 8));
    read_on(&mut host, 1, &page);
    host.turns(5);
    assert_eq!(desk.script().turns.iter().map(|turn| turn.1).collect::<Vec<_>>(), [linger]);
}

#[test]
fn drives_whose_commands_are_held_or_cached_are_the_workers() {
    let timing = TimingProfile::Gen6.timing().unwrap();
    let drives: [fn(ControllerBuilder, Timing) -> ControllerBuilder; 3] = [
        |builder, _| builder.write_cache(1 << 16),
        |builder, timing| builder.timing(timing),
        |builder, _| builder.permute(),
    ];
    for of in drives {
        let desk = Desk::default();
        let (mut host, page) = prepare(Host::with_queue(of(desk.drive(stepped()), timing.clone()), 8));
        host.drive.wake();
        read_on(&mut host, 1, &page);
        assert_eq!(counts(&host), (0, 2));
    }
    // Nothing is read while a format is under way.
    let desk = Desk::default();
    let (mut host, page) = prepare(Host::with_queue(desk.drive(stepped()).format_time(Duration::from_micros(50)), 8));
    let format = host.submit(0, Sqe::new(AdminOpcode::FORMAT_NVM.0, 1));
    host.turns(2);
    let early = host.io(read(&page));
    assert_eq!(early.status().code(), StatusCode::FormatInProgress);
    assert_eq!(counts(&host).0, 0);
    assert!(host.completion(0, format).status().is_success());
    page.memory.fill(0, PAGE, 0xee);
    host.read(0, 8, page.iova);
    assert_eq!((counts(&host).0, page.bytes(0, PAGE)), (1, vec![0; PAGE]));
}

#[test]
fn times_are_the_offloads_where_it_takes_them() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    host.drive.watch();
    read_on(&mut host, 1, &page);
    let watched = host.drive.watched();
    assert!(watched.first_doorbell.is_some() && watched.first_doorbell <= watched.last_completion);
    assert_eq!((watched.last_completion, watched.completions), (Some(host.now), 1));
    let first = host.now + Duration::from_nanos(3);
    let last = host.now + Duration::from_nanos(9);
    desk.script().times = Some((first, last));
    host.drive.watch();
    read_on(&mut host, 1, &page);
    let watched = host.drive.watched();
    assert_eq!((watched.first_doorbell, watched.last_completion), (Some(first), Some(last)));
    assert_eq!(watched.completions, 1);
}

#[test]
fn gaps_between_looks_count_while_submitters_wake_nobody() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    host.tick = Duration::from_micros(300);
    read_on(&mut host, 1, &page);
    host.turns(5);
    assert_eq!(host.drive.offload_counts().unwrap().longest_gap, Duration::ZERO);
    let silent = host.drive.doorbell_memory();
    host.turns(5);
    host.tick = Duration::from_micros(1);
    host.turns(5);
    assert_eq!(host.drive.offload_counts().unwrap().longest_gap, Duration::from_micros(300));
    drop(silent);
    let plain = Host::with_queue(stepped().namespace(common::ram(1 << 20)), 8);
    assert!(plain.drive.offload_counts().is_none() && plain.drive.offload_failure().is_none());
}

/// Memory of another device, by whose side the test sits.
#[derive(Debug)]
struct Far(DmaMemory);

impl PeerMemory for Far {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        self.0.read(offset, into);
        Ok(())
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), PeerMemoryError> {
        self.0.write(offset, from);
        Ok(())
    }
}

/// Maps memory of another device, which the offload is told of.
fn far(host: &Host, desk: &Desk, bytes: usize) -> Buffer {
    let memory = DmaMemory::allocate(bytes, MemoryKind::Anonymous).unwrap();
    let peer: Arc<dyn PeerMemory> = Arc::new(Far(memory.clone()));
    let iova = host.drive.map_peer(&peer).unwrap();
    desk.script().peers.push((peer.address(), memory.clone()));
    Buffer { memory, iova }
}

#[test]
fn queues_in_memory_of_another_device_are_the_offloads_and_at_need_the_workers() {
    let desk = Desk::default();
    let (mut host, page) = host_of(&desk, 8);
    let (sq, cq, size) = (far(&host, &desk, 8 * 64), far(&host, &desk, 8 * 16), 8);
    assert!(host.create_cq(2, cq.iova, size).status().is_success());
    assert!(host.create_sq(2, sq.iova, size, 2).status().is_success());
    let (sq_iova, cq_iova) = (sq.iova, cq.iova);
    let pair =
        Pair { id: 2, sq: sq.memory, cq: cq.memory, sq_iova, cq_iova, size, tail: 0, head: 0, phase: true, sqhd: 0 };
    host.pairs.push(pair);
    let there = far(&host, &desk, 2 * PAGE);
    let (_, before) = counts(&host);
    for round in 0..20 {
        read_on(&mut host, 2, &there);
        assert_eq!(counts(&host), (round + 1, before), "the worker cannot look at what waits");
    }
    // What is not plain: the worker fetches it from there, takes its data from there, and completes it there.
    let beyond = host.submit(2, Host::rw(NvmOpcode::READ, 1, 1 << 20, 8, there.iova));
    assert_eq!(host.completion(2, beyond).status().code(), StatusCode::LbaOutOfRange);
    there.memory.write(100, &pattern(7, PAGE));
    let written = host.submit(2, Host::rw(NvmOpcode::WRITE, 1, 16, 8, there.iova + 100));
    assert!(host.completion(2, written).status().is_success());
    assert_eq!(counts(&host), (20, before + 2));
    // Neither is where the offload does not serve the queue.
    desk.script().unreached = vec![2];
    for _ in 0..20 {
        read_on(&mut host, 2, &there);
        let cid = host.submit(2, Host::rw(NvmOpcode::READ, 1, 16, 8, there.iova + 40));
        assert!(host.completion(2, cid).status().is_success());
        assert_eq!(there.bytes(40, PAGE), pattern(7, PAGE));
    }
    assert_eq!((counts(&host), host.drive.dma_faults()), ((20, before + 42), 0));
    // Queues of the host go on as before, also into that memory.
    read_on(&mut host, 1, &there);
    read_on(&mut host, 1, &page);
}

#[test]
fn memory_that_the_offload_does_not_reach_is_refused() {
    let desk = Desk::default();
    let (host, _) = host_of(&desk, 8);
    desk.script().no_peers = true;
    let peer: Arc<dyn PeerMemory> = Arc::new(Far(DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap()));
    let refused = host.drive.map_peer(&peer);
    assert!(matches!(&refused, Err(FunctionError::Map { len: PAGE, why, .. }) if why == "the test wants it so"));
    desk.script().no_peers = false;
    let iova = host.drive.map_peer(&peer).unwrap();
    assert!(host.drive.favours_peer_memory());
    host.drive.unmap(iova).unwrap();
    assert_eq!(Arc::strong_count(&peer), 1, "nobody else has it any more");
}
