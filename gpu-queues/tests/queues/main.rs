//! Queue sets against software controllers, driven by threads that do what thread blocks do.

mod block;
mod in_bar;
mod places;
mod ring_test;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::{Block, Rows, launch};
use warprow_dma::SystemClock;
use warprow_driver::{BlockIo, Controller, ControllerOptions, DriverError, Namespace, QueueOptions, ResetKind};
use warprow_gpu_queues::abi::{FAULT_CLOSED, FAULT_TIMED_OUT};
use warprow_gpu_queues::{DoorbellAccess, Gate, GpuQueueError, MemoryPlacement, QueueSet, QueueSetOptions};
use warprow_soft_controller::{Fault, Namespace as Space, PowerCut, RamBacking, Rule, SoftController};
use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};

const LBAS: u64 = 4096;
const SEED: u64 = 0x6a7e;
/// Limits that no test should meet, however busy the machine is.
const LONG: Duration = Duration::from_secs(30);
/// Limits that a test is about.
const SHORT: Duration = Duration::from_millis(200);

struct Drive {
    soft: Arc<SoftController>,
    controller: Arc<Controller>,
    namespace: Namespace,
}

fn content(drive: usize, lba: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(SEED ^ (drive as u64) << 32 ^ lba);
    std::iter::repeat_with(|| rng.u8(..)).take(512).collect()
}

/// A drive whose every LBA has a content of its own.
fn drive(index: usize, leave_timeout: Duration) -> Drive {
    let ram = RamBacking::new(LBAS * 512).unwrap();
    let builder = SoftController::builder().name(format!("soft:{index}")).seed(SEED + index as u64);
    let soft = builder.permute().partial_fetch().namespace(Space::new(ram)).build().unwrap();
    let options = ControllerOptions { leave_timeout, ..ControllerOptions::default() };
    let controller = Controller::open(soft.clone(), Arc::new(SystemClock::new()), options).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut io = BlockIo::new(&controller, namespace.clone(), &QueueOptions::default()).unwrap();
    let all: Vec<u8> = (0..LBAS).flat_map(|lba| content(index, lba)).collect();
    io.write(0, &all).unwrap();
    Drive { soft, controller, namespace }
}

struct Fixture {
    set: QueueSet,
    gate: Arc<Gate>,
    blocks: Vec<Block>,
    drives: Vec<Drive>,
    launches: AtomicU64,
}

impl Fixture {
    fn new(drives: usize, batches: u32, forwarded: bool) -> Self {
        Self::with(drives, batches, forwarded, LONG, LONG)
    }

    /// With limits for commands and for leaving.
    fn with(drives: usize, batches: u32, forwarded: bool, timeout: Duration, leave: Duration) -> Self {
        let doorbells = if forwarded { DoorbellAccess::HostThread } else { DoorbellAccess::Memory };
        Self::of(drives, leave, &QueueSetOptions { doorbells, ..options(batches, timeout) })
    }

    fn of(drives: usize, leave: Duration, options: &QueueSetOptions) -> Self {
        let drives: Vec<Drive> = (0..drives).map(|index| drive(index, leave)).collect();
        let gate = Arc::new(Gate::on_host().unwrap());
        let set = set(&drives, &gate, options).unwrap();
        let blocks = set.descriptors().iter().copied().map(Block).collect();
        Self { set, gate, blocks, drives, launches: AtomicU64::new(0) }
    }

    fn launch(&self, lbas: &[u64]) -> Option<Vec<Rows>> {
        launch(&self.gate, self.launches.fetch_add(1, Ordering::Relaxed) + 1, &self.blocks, lbas)
    }

    /// A launch that must read everything right.
    fn assert_reads(&self, lbas: &[u64]) {
        let rows = self.launch(lbas).expect("the gate is open");
        assert!(!self.set.is_poisoned(), "{:?}", self.set.faults());
        assert_rows(&rows, true);
        assert!(rows.iter().all(|rows| rows.len() == lbas.len()));
    }
}

fn options(batches: u32, timeout: Duration) -> QueueSetOptions {
    QueueSetOptions {
        batches,
        landing_stride: 512,
        windows: Vec::new(),
        timeout,
        doorbells: DoorbellAccess::Memory,
        memory: MemoryPlacement::Best,
        host_doorbells: Vec::new(),
        writable: None,
    }
}

fn set(drives: &[Drive], gate: &Arc<Gate>, options: &QueueSetOptions) -> Result<QueueSet, GpuQueueError> {
    let drives: Vec<_> = drives.iter().map(|it| (it.controller.clone(), it.namespace.clone())).collect();
    QueueSet::on_host(&drives, options, gate.clone())
}

/// Rings and landing areas in memory that the drives' threads reach by copies alone.
#[test]
fn queues_in_memory_of_whoever_drives_them_are_read_reset_and_recovered() {
    for memory in [MemoryPlacement::AMinus, MemoryPlacement::A] {
        let mut fixture = Fixture::of(2, LONG, &QueueSetOptions { memory, ..options(3, SHORT) });
        let mut rng = fastrand::Rng::with_seed(SEED);
        for count in [1, 257, 3000, 4096, 77] {
            fixture.assert_reads(&shuffled(&mut rng, count));
        }
        // A command that gets no answer, and then a reset.
        let all: Vec<u64> = (0..600).collect();
        fixture.drives[1].soft.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).lbas(70..71));
        assert_rows(&fixture.launch(&all).unwrap(), false);
        assert!(fixture.set.is_poisoned());
        fixture.set.recover().unwrap();
        fixture.assert_reads(&all);
        fixture.drives[0].controller.reset(ResetKind::Function).unwrap();
        fixture.set.recover().unwrap();
        fixture.assert_reads(&all);
        assert!(fixture.drives.iter().all(|drive| drive.soft.dma_faults() == 0));
    }
}

#[test]
fn host_threads_ring_for_queues_in_pinned_memory_alone() {
    let drives = [drive(0, LONG)];
    let gate = Arc::new(Gate::on_host().unwrap());
    let asked =
        QueueSetOptions { memory: MemoryPlacement::A, doorbells: DoorbellAccess::HostThread, ..options(1, LONG) };
    let refused = set(&drives, &gate, &asked).expect_err("refused").to_string();
    assert!(refused.contains("MemoryPlacement::Best"), "{refused}");
}

/// What is there is right; and everything is there, if `all`.
fn assert_rows(rows: &[Rows], all: bool) {
    for (drive, rows) in rows.iter().enumerate() {
        for (&lba, row) in rows {
            match row {
                Some(row) => assert!(*row == content(drive, lba), "LBA {lba} of drive {drive} has the wrong content"),
                None => assert!(!all, "LBA {lba} of drive {drive} was not read"),
            }
        }
    }
}

fn shuffled(rng: &mut fastrand::Rng, count: usize) -> Vec<u64> {
    let mut lbas: Vec<u64> = (0..LBAS).collect();
    rng.shuffle(&mut lbas);
    lbas.truncate(count);
    lbas
}

#[test]
fn launches_read_what_is_there() {
    for forwarded in [false, true] {
        let fixture = Fixture::new(2, 3, forwarded);
        let mut rng = fastrand::Rng::with_seed(SEED);
        let counts = [1, 255, 256, 257, 3000, 4096, 4096, 4096, 77];
        for count in counts {
            fixture.assert_reads(&shuffled(&mut rng, count));
        }
        // Far more than the rings hold: they have wrapped, tails and heads in step.
        let total = counts.iter().sum::<usize>() as u32;
        for (state, block) in fixture.set.states().unwrap().iter().zip(&fixture.blocks) {
            assert_eq!((state.tail, state.head), (total % block.0.sq_size, total % block.0.cq_size));
            assert_eq!((state.turn, state.poison, state.anomalies), (total / block.0.cq_size, 0, 0));
        }
        assert!(fixture.drives.iter().all(|drive| drive.soft.dma_faults() == 0));
    }
}

#[test]
fn counters_wrap() {
    for forwarded in [false, true] {
        let fixture = Fixture::new(2, 2, forwarded);
        fixture.set.age().unwrap();
        let mut rng = fastrand::Rng::with_seed(SEED);
        fixture.drives[0].soft.faults().inject(Rule::new(Fault::Duplicate).io(NvmOpcode::READ).times(3));
        for _ in 0..40 {
            let count = rng.usize(200..700);
            fixture.assert_reads(&shuffled(&mut rng, count));
        }
        for (state, anomalies) in fixture.set.states().unwrap().iter().zip([1, u32::MAX - 1]) {
            assert!(state.turn < 100 && state.generation[0] < 100, "{state:?}");
            assert_eq!(state.anomalies, anomalies);
        }
        assert!(fixture.set.age().is_err(), "they were driven");
    }
}

#[test]
fn doorbells_in_memory_need_no_thread() {
    let fixture = Fixture::new(1, 1, false);
    // Long enough for the worker to fall asleep: nobody wakes it.
    for pause in [0, 1, 5, 20] {
        std::thread::sleep(Duration::from_millis(pause));
        fixture.assert_reads(&[17, 4095, pause]);
    }
}

#[test]
fn a_lost_command_poisons_its_queue_until_recovery() {
    for forwarded in [false, true] {
        let mut fixture = Fixture::with(2, 2, forwarded, SHORT, LONG);
        let all: Vec<u64> = (0..1500).collect();
        fixture.assert_reads(&all);
        fixture.drives[1].soft.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).lbas(700..701));
        let rows = fixture.launch(&all).unwrap();
        assert_rows(&rows, false);
        assert_rows(&rows[..1], true);
        assert_eq!(rows[1][&700], None);
        let faults = fixture.set.faults();
        let [fault] = faults[..] else { panic!("{faults:?}") };
        assert_eq!((fault.kind, fault.drive, fault.launch, fault.lba), (FAULT_TIMED_OUT, 1, 2, 700));
        assert_eq!(fault.queue, fixture.blocks[1].0.queue_id);
        assert!(
            fault.waited_ns >= SHORT.as_nanos() as u64 && fault.to_string().contains("no answer within"),
            "{fault}"
        );

        // It takes nothing more; the other drive's does.
        let rows = fixture.launch(&all[..300]).unwrap();
        assert_rows(&rows[..1], true);
        assert!(fixture.set.is_poisoned() && rows[1].values().all(Option::is_none));

        fixture.set.recover().unwrap();
        assert!(!fixture.set.is_poisoned() && fixture.set.faults().is_empty() && !fixture.gate.is_closed());
        assert_eq!(fixture.set.states().unwrap()[1], Default::default());
        fixture.assert_reads(&all);
        assert!(fixture.drives.iter().all(|drive| drive.controller.resets() == 0));
    }
}

#[test]
fn a_failed_command_fails_alone() {
    let fixture = Fixture::new(1, 2, false);
    let status = Status::from_code(StatusCode::UnrecoveredReadError);
    fixture.drives[0].soft.faults().inject(Rule::new(Fault::Status(status)).io(NvmOpcode::READ).lbas(5..6));
    let rows = fixture.launch(&(0..600).collect::<Vec<_>>()).unwrap();
    assert_rows(&rows, false);
    let failed: Vec<_> = rows[0].iter().filter(|(_, row)| row.is_none()).map(|(&lba, _)| lba).collect();
    assert_eq!(failed, [5]);
    assert!(!fixture.set.is_poisoned());
    let errors =
        |fixture: &Fixture| fixture.set.errors().map(|(queue, failed)| (queue.queue_id, failed)).collect::<Vec<_>>();
    let [(queue, failed)] = errors(&fixture)[..] else { panic!("{:?}", errors(&fixture)) };
    // LBA 5 is the sixth of the first batch, whose generation is the first.
    assert_eq!((queue, failed.cid, failed.lba, failed.launch), (fixture.blocks[0].0.queue_id, 5, 5, 1));
    assert_eq!(failed.status.code(), StatusCode::UnrecoveredReadError);
    fixture.assert_reads(&[5, 6]);
    assert_eq!(errors(&fixture)[..], [(queue, failed)], "until another fails");
    fixture.drives[0].soft.faults().inject(Rule::new(Fault::Status(status)).io(NvmOpcode::READ).lbas(90..92).times(2));
    fixture.launch(&(89..95).collect::<Vec<_>>()).unwrap();
    let [(_, failed)] = errors(&fixture)[..] else { panic!("{:?}", errors(&fixture)) };
    assert!((90..92).contains(&failed.lba) && failed.launch == 3, "{failed:?}");
}

#[test]
fn a_queue_that_is_not_deleted_costs_a_reset() {
    let mut fixture = Fixture::with(2, 1, false, SHORT, LONG);
    let soft = &fixture.drives[0].soft;
    soft.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ));
    let status = Status::from_code(StatusCode::InternalError);
    let refusal = soft.faults().inject(Rule::new(Fault::Status(status)).admin(AdminOpcode::DELETE_IO_SQ));
    let rows = fixture.launch(&[1, 2, 3]).unwrap();
    assert_rows(&rows, false);
    assert!(rows[1].values().all(Option::is_some) && fixture.set.is_poisoned());
    fixture.set.recover().unwrap();
    assert_eq!(fixture.drives[0].soft.faults().fired(refusal), 1);
    assert_eq!([0, 1].map(|drive: usize| fixture.drives[drive].controller.resets()), [1, 0]);
    fixture.assert_reads(&[1, 2, 3]);
}

/// One of two controllers sets CSTS.CFS, or is gone, with many commands under way.
#[test]
fn a_dead_controller_fails_its_rows_and_comes_back() {
    let cases =
        [false, true].into_iter().flat_map(|forwarded| [Fault::Fatal, Fault::Disappear].map(|it| (forwarded, it)));
    for (forwarded, fault) in cases {
        let mut fixture = Fixture::with(2, 2, forwarded, SHORT, LONG);
        let all: Vec<u64> = (0..1500).collect();
        fixture.assert_reads(&all);
        fixture.drives[1].soft.faults().inject(Rule::new(fault).io(NvmOpcode::READ).nth(300));
        let began = Instant::now();
        let rows = fixture.launch(&all).unwrap();
        assert!(began.elapsed() < SHORT * 20, "{:?}", began.elapsed());
        assert_rows(&rows, false);
        assert_rows(&rows[..1], true);
        assert!(rows[1].values().filter(|row| row.is_none()).count() > 1200);
        let faults = fixture.set.faults();
        let [told] = faults[..] else { panic!("{faults:?}") };
        assert!((told.kind, told.drive, told.launch) == (FAULT_TIMED_OUT, 1, 2) && told.outstanding > 1, "{told:?}");
        assert_eq!(rows[1][&told.lba], None);
        if fault == Fault::Disappear {
            for _ in 0..2 {
                let error = fixture.set.recover().expect_err("it is gone").to_string();
                assert!(error.contains("soft:1") && error.contains("gone"), "{error}");
                assert!(fixture.set.is_poisoned() && fixture.launch(&all).is_none(), "the gate stays closed");
            }
            fixture.drives[1].soft.power_cut(PowerCut::KeepAll).unwrap();
        }
        fixture.set.recover().unwrap();
        for _ in 0..2 {
            fixture.assert_reads(&all);
        }
        assert_eq!([0, 1].map(|drive: usize| fixture.drives[drive].controller.resets() > 0), [false, true]);
    }
}

/// Launches go on in a thread while the host resets a controller again and again.
#[test]
fn a_reset_meets_launches_at_work() {
    for forwarded in [false, true] {
        let mut fixture = Fixture::new(2, 2, forwarded);
        let all: Vec<u64> = (0..2000).collect();
        for round in 1..=8 {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let submitter = scope.spawn(|| {
                    let mut read = 0;
                    while !stop.load(Ordering::Relaxed) {
                        match fixture.launch(&all) {
                            Some(rows) => {
                                assert_rows(&rows, false);
                                read += rows.iter().flat_map(|rows| rows.values()).flatten().count();
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                    read
                });
                std::thread::sleep(Duration::from_millis(round));
                fixture.drives[0].controller.reset(ResetKind::Controller).unwrap();
                stop.store(true, Ordering::Relaxed);
                submitter.join().unwrap();
            });
            assert!(fixture.set.is_poisoned() && fixture.gate.is_closed());
            assert!(fixture.launch(&all).is_none(), "launches fail fast until the queue is there again");
            assert!(fixture.set.faults().iter().all(|fault| fault.kind == FAULT_CLOSED), "{:?}", fixture.set.faults());
            fixture.set.recover().unwrap();
            fixture.assert_reads(&all);
        }
        assert_eq!(fixture.drives[0].controller.resets(), 8);
        assert!(fixture.drives.iter().all(|drive| drive.soft.dma_faults() == 0));
    }
}

fn assert_in_use<T: std::fmt::Debug>(result: Result<T, GpuQueueError>) {
    assert!(matches!(result, Err(GpuQueueError::Driver(DriverError::QueuesInUse { .. }))), "{result:?}");
}

#[test]
fn a_launch_that_never_leaves_is_a_typed_error() {
    let mut fixture = Fixture::with(1, 1, false, LONG, SHORT);
    fixture.assert_reads(&[1]);
    assert!(fixture.gate.enter(99));
    assert_in_use(fixture.drives[0].controller.reset(ResetKind::Controller).map_err(GpuQueueError::from));
    assert!(!fixture.gate.is_closed() && !fixture.set.is_poisoned(), "nothing was reset");
    assert_in_use(fixture.set.recover());
    fixture.gate.exit();
    fixture.set.recover().unwrap();
    fixture.assert_reads(&[1, 2]);
}

#[test]
fn memory_is_kept_from_a_launch_that_never_leaves() {
    let fixture = Fixture::with(1, 1, false, LONG, SHORT);
    let Fixture { set, gate, blocks, drives, .. } = fixture;
    assert!(gate.enter(7));
    drop(set);
    // Whoever is still inside finds memory, and what was in it.
    assert!(gate.is_closed());
    let id = blocks[0].0.queue_id;
    assert!(matches!(
        drives[0].controller.reset(ResetKind::Controller),
        Err(DriverError::QueuesInUse { queues, .. }) if queues == [id as u16]
    ));
    assert!(blocks[0].read(&gate, 7, &[3]).values().all(Option::is_none), "it is told to leave");
    gate.exit();
    drives[0].controller.reset(ResetKind::Controller).unwrap();
    let gate = Arc::new(Gate::on_host().unwrap());
    let set = self::set(&drives, &gate, &options(1, LONG)).unwrap();
    assert_eq!(set.descriptors()[0].queue_id, id);
    let blocks = [Block(set.descriptors()[0])];
    assert_rows(&launch(&gate, 1, &blocks, &[3, 4]).unwrap(), true);
}

#[test]
fn several_sets_behind_one_gate() {
    let mut fixture = Fixture::new(2, 1, false);
    let by_thread = QueueSetOptions { doorbells: DoorbellAccess::HostThread, ..options(1, LONG) };
    let mut second = set(&fixture.drives, &fixture.gate, &by_thread).unwrap();
    fixture.blocks.extend(second.descriptors().iter().copied().map(Block));
    let ids: Vec<_> = fixture.blocks.iter().map(|block| block.0.queue_id).collect();
    // From the highest that was granted down.
    assert_eq!(ids, [128, 128, 127, 127]);
    let both = |fixture: &Fixture| {
        let rows = fixture.launch(&(0..500).collect::<Vec<_>>()).expect("the gate is open");
        assert_rows(&rows[..2], true);
        assert_rows(&rows[2..], true);
    };
    both(&fixture);
    fixture.drives[1].controller.reset(ResetKind::Controller).unwrap();
    fixture.set.recover().unwrap();
    assert!(fixture.gate.is_closed(), "the other set is not there yet");
    second.recover().unwrap();
    both(&fixture);
}

/// Whoever knows how to bring the drive back fails before the queue has been touched: it is on the device still, with
/// its old indices.
#[test]
fn a_queue_stays_poisoned_until_it_was_recreated() {
    for forwarded in [false, true] {
        let mut fixture = Fixture::with(2, 2, forwarded, SHORT, LONG);
        let all: Vec<u64> = (0..700).collect();
        fixture.assert_reads(&all);
        fixture.drives[1].soft.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).lbas(70..71));
        assert_rows(&fixture.launch(&all).unwrap(), false);
        let function = fixture.drives[1].controller.name().clone();
        assert_in_use(fixture.set.recover_with(|drive, blame, _| {
            assert!(drive == 1 && blame.is_some());
            Err(DriverError::QueuesInUse { function: function.clone(), queues: vec![9] })
        }));
        assert_eq!(poisons(&fixture), [0, FAULT_TIMED_OUT]);
        assert!(fixture.set.is_poisoned() && !fixture.gate.is_closed());
        let rows = fixture.launch(&all).expect("the gate is open for the other drive");
        assert_rows(&rows[..1], true);
        assert!(rows[1].values().all(Option::is_none), "it takes nothing");
        fixture.set.recover().unwrap();
        fixture.assert_reads(&all);
    }
}

/// A drive that is given up is tried once more, in vain: that closes the gate, and the next recovery opens it for the
/// others again.
#[test]
fn a_retry_that_fails_keeps_launches_out_only_until_the_next_recovery() {
    for forwarded in [false, true] {
        let mut fixture = Fixture::with(2, 2, forwarded, SHORT, LONG);
        let all: Vec<u64> = (0..700).collect();
        fixture.assert_reads(&all);
        fixture.drives[1].soft.faults().inject(Rule::new(Fault::Disappear).io(NvmOpcode::READ).nth(100));
        assert_rows(&fixture.launch(&all).unwrap(), false);
        assert!(fixture.drives[1].controller.give_up_if_gone());
        let does_without = |fixture: &mut Fixture| {
            assert!(fixture.set.is_poisoned(), "its gate may be closed");
            fixture.set.recover().unwrap();
            assert!(!fixture.set.is_poisoned());
            let rows = fixture.launch(&all).expect("the gate is open for the other drive");
            assert_rows(&rows[..1], true);
            assert!(rows[1].values().all(Option::is_none));
        };
        does_without(&mut fixture);
        for _ in 0..2 {
            fixture.drives[1].controller.retry().expect_err("it is gone still");
            does_without(&mut fixture);
        }
        fixture.drives[1].soft.power_cut(PowerCut::KeepAll).unwrap();
        fixture.drives[1].controller.retry().unwrap();
        fixture.set.recover().unwrap();
        fixture.assert_reads(&all);
    }
}

fn poisons(fixture: &Fixture) -> Vec<u32> {
    fixture.set.states().unwrap().iter().map(|state| state.poison).collect()
}

/// The context dies with a launch inside the gate and commands in flight: drives are reset nevertheless, and serve
/// others.
#[test]
fn drives_outlive_the_context_of_a_launch() {
    for forwarded in [false, true] {
        let mut fixture = Fixture::with(2, 1, forwarded, LONG, SHORT);
        fixture.assert_reads(&[1, 2, 3]);
        assert!(fixture.gate.enter(99));
        assert_in_use(fixture.drives[0].controller.reset(ResetKind::Controller).map_err(GpuQueueError::from));
        fixture.gate.lose_context();
        fixture.drives[0].controller.reset(ResetKind::Controller).unwrap();
        let read = |fixture: &Fixture, drive: usize| {
            let it = &fixture.drives[drive];
            let mut io = BlockIo::new(&it.controller, it.namespace.clone(), &QueueOptions::default()).unwrap();
            let mut row = vec![0; 512];
            io.read(7, &mut row).unwrap();
            assert!(row == content(drive, 7));
        };
        read(&fixture, 0);
        fixture.set.recover().unwrap();
        (0..2).for_each(|drive| read(&fixture, drive));
        // Their queues are given back.
        let Fixture { set, drives, .. } = fixture;
        let ids: Vec<_> = set.descriptors().iter().map(|queue| queue.queue_id).collect();
        drop(set);
        let gate = Arc::new(Gate::on_host().unwrap());
        let doorbells = if forwarded { DoorbellAccess::HostThread } else { DoorbellAccess::Memory };
        let set = self::set(&drives, &gate, &QueueSetOptions { doorbells, ..options(1, LONG) }).unwrap();
        assert_eq!(set.descriptors().iter().map(|queue| queue.queue_id).collect::<Vec<_>>(), ids);
    }
}

#[test]
fn a_queue_tells_who_was_answered_last() {
    let mut fixture = Fixture::with(2, 1, false, SHORT, LONG);
    assert_eq!([0, 1, 2].map(|drive| fixture.set.answered(drive)), [0, 0, 0]);
    fixture.assert_reads(&[1, 2, 3]);
    assert_eq!([0, 1].map(|drive| fixture.set.answered(drive)), [1, 1]);
    fixture.drives[1].soft.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ));
    fixture.launch(&[5]).unwrap();
    assert_eq!([0, 1].map(|drive| fixture.set.answered(drive)), [2, 1]);
    fixture.set.recover().unwrap();
    assert_eq!([0, 1].map(|drive| fixture.set.answered(drive)), [2, 0], "it is a new queue");
    fixture.assert_reads(&[1]);
    assert_eq!([0, 1].map(|drive| fixture.set.answered(drive)), [3, 3]);
    // What a drive answered before it was reset says nothing of it now.
    fixture.drives[0].controller.reset(ResetKind::Controller).unwrap();
    assert_eq!([0, 1].map(|drive| fixture.set.answered(drive)), [0, 3], "nobody has asked it since");
    fixture.set.recover().unwrap();
    assert_eq!(fixture.set.answered(0), 0);
    fixture.assert_reads(&[2]);
    assert_eq!([0, 1].map(|drive| fixture.set.answered(drive)), [4, 4]);
}
