//! Ring tests: of drives in good health, and of everything that one is there to notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use warprow_dma::SystemClock;
use warprow_driver::{Controller, ControllerOptions, DriverError, ResetKind};
use warprow_gpu_queues::{DoorbellAccess, GpuQueueError, RingLaunchError, RingTest, RingTestError, RingTestReport};
use warprow_soft_controller::{Fault, Namespace as Space, QueueMatch, RamBacking, Rule, SoftController};
use warprow_spec::{NvmOpcode, Status, StatusCode};

use crate::block::{carry_out, is_closed};
use crate::in_bar::InBar;
use crate::{Drive, LONG, SHORT, drive};

/// Launches, and LBAs of each.
const ROUNDS: u64 = 3;
const READS: u64 = 256;
/// The first queue that a GPU drives has the highest identifier of these drives.
const QUEUE: u16 = 128;

fn test(drive: &Drive) -> RingTest {
    RingTest::new((drive.controller.clone(), drive.namespace.clone()), DoorbellAccess::Memory)
}

/// A test whose kernel is right.
fn run(test: &RingTest) -> Result<RingTestReport, RingTestError> {
    test.on_host(|reads| {
        carry_out(reads, |_| ());
        Ok(())
    })
}

#[test]
fn a_good_drive_passes_by_either_kind_of_doorbell() {
    let drive = drive(0, LONG);
    for doorbells in [DoorbellAccess::Memory, DoorbellAccess::HostThread, DoorbellAccess::Registers] {
        let report = run(&RingTest { doorbells, ..test(&drive) }).unwrap();
        let expected =
            RingTestReport { lbas: ROUNDS * READS, contents: ROUNDS * READS, doorbells: ROUNDS, in_registers: false };
        assert_eq!(report, expected, "{doorbells:?}");
    }
    // It leaves nothing behind.
    drive.controller.reset(ResetKind::Controller).unwrap();
    run(&test(&drive)).unwrap();
    assert_eq!(drive.soft.dma_faults(), 0);
}

/// A drive of few LBAs, all of them zero: each is read several times, and what a drive does not write shows
/// nevertheless.
#[test]
fn a_blank_drive_passes_and_says_that_it_is_blank() {
    let ram = RamBacking::new(64 * 512).unwrap();
    let soft = SoftController::builder().name("soft:blank").namespace(Space::new(ram)).build().unwrap();
    let controller = Controller::open(soft, Arc::new(SystemClock::new()), ControllerOptions::default()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let test = RingTest::new((controller, namespace), DoorbellAccess::Memory);
    let report = run(&test).unwrap();
    assert_eq!((report.lbas, report.contents), (ROUNDS * READS, 1));
    let error = test
        .on_host(|reads| {
            carry_out(reads, |_| ());
            // As if nothing had arrived.
            // SAFETY: inside the memory for what was read.
            unsafe { std::ptr::write_bytes((reads.landed + 7 * 512) as *mut u8, 0xb5, 512) };
            Ok(())
        })
        .expect_err("nothing was written");
    let RingTestError::Content { byte: 0, untouched: true, .. } = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("nothing was written there"), "{error}");
}

#[test]
fn doorbells_that_are_lost_are_noticed() {
    let drive = drive(0, LONG);
    let nowhere = AtomicU32::new(0);
    let error = RingTest { timeout: SHORT, ..test(&drive) }
        .on_host(|reads| {
            carry_out(reads, |queue| queue.sq_tail = nowhere.as_ptr() as u64);
            Ok(())
        })
        .expect_err("nobody has told the drive");
    let RingTestError::Silent { outstanding, commands, waited, in_registers: false, .. } = error else {
        panic!("{error:?}")
    };
    assert!(nowhere.load(Ordering::Relaxed) != 0 && (outstanding, commands) == (READS, READS) && waited >= SHORT);
    // The drive is as before.
    run(&test(&drive)).unwrap();
}

#[test]
fn rows_in_the_wrong_place_are_noticed() {
    let drive = drive(0, LONG);
    let error = test(&drive)
        .on_host(|reads| {
            // Before the landing area lies the completion queue; behind it, perhaps, nothing that may be read.
            carry_out(reads, |queue| queue.landing -= 512);
            Ok(())
        })
        .expect_err("every place is one off");
    assert!(matches!(error, RingTestError::Content { untouched: false, .. }), "{error:?}");
}

#[test]
fn commands_that_fail_for_the_gpu_alone_are_noticed_and_unreadable_lbas_left_out() {
    let drive = drive(0, LONG);
    let status = Status::from_code(StatusCode::UnrecoveredReadError);
    let unreadable = drive.soft.faults().inject(Rule::new(Fault::Status(status)).io(NvmOpcode::READ).lbas(0..1));
    assert_eq!(run(&test(&drive)).unwrap().lbas, ROUNDS * READS - 1);
    drive.soft.faults().remove(unreadable);
    let rule = Rule::new(Fault::Status(status)).on(QueueMatch::Id(QUEUE)).io(NvmOpcode::READ).nth(300);
    let rule = drive.soft.faults().inject(rule);
    let error = run(&test(&drive)).expect_err("one fails");
    assert!(matches!(error, RingTestError::Status { status, .. } if status.code() == StatusCode::UnrecoveredReadError));
    drive.soft.faults().remove(rule);
    drive.soft.faults().inject(Rule::new(Fault::Status(status)).io(NvmOpcode::READ).times(ROUNDS * READS));
    let error = run(&test(&drive)).expect_err("the host reads nothing");
    assert!(matches!(error, RingTestError::Nothing { .. }), "{error:?}");
}

#[test]
fn completions_that_nobody_waits_for_are_noticed() {
    let drive = drive(0, LONG);
    drive.soft.faults().inject(Rule::new(Fault::Duplicate).on(QueueMatch::Id(QUEUE)).io(NvmOpcode::READ).times(2));
    let error = run(&test(&drive)).expect_err("two came twice");
    assert!(matches!(error, RingTestError::Anomalies { anomalies: 1.., .. }), "{error:?}");
}

/// Whoever resets the drive meanwhile closes the gate, and gives up, because the host's queue of the test is in use.
#[test]
fn a_reset_in_the_middle_is_told_as_one() {
    let drive = drive(0, SHORT);
    let error = test(&drive)
        .on_host(|reads| {
            if reads.launch != 2 {
                carry_out(reads, |_| ());
                return Ok(());
            }
            std::thread::scope(|scope| {
                let reset = scope.spawn(|| drive.controller.reset(ResetKind::Controller));
                while !is_closed(reads) {
                    std::thread::yield_now();
                }
                carry_out(reads, |_| ());
                let reset = reset.join().expect("the thread ends well");
                assert!(matches!(reset, Err(DriverError::QueuesInUse { .. })), "{reset:?}");
            });
            Ok(())
        })
        .expect_err("the gate was closed");
    assert!(matches!(error, RingTestError::Reset { .. }), "{error:?}");
    run(&test(&drive)).unwrap();
}

/// A kernel that never comes, or comes when the test is over: it finds memory, and a closed gate.
#[test]
fn a_launch_that_has_not_ended_finds_its_memory() {
    let drive = drive(0, LONG);
    let mut late = None;
    let error = test(&drive)
        .on_host(|reads| {
            late = Some(*reads);
            Err(RingLaunchError::Running(SHORT))
        })
        .expect_err("it has not ended");
    assert!(matches!(error, RingTestError::Running(SHORT)), "{error:?}");
    carry_out(&late.unwrap(), |_| ());
    drive.controller.reset(ResetKind::Controller).unwrap();
    run(&test(&drive)).unwrap();
    let failed = |_: &_| Err(RingLaunchError::Failed("no".to_owned()));
    assert!(matches!(test(&drive).on_host(failed), Err(RingTestError::Launch(why)) if why == "no"));
}

/// Doorbells that are registers: stored to as registers where they are mapped far enough, and refused by name where
/// they are not.
#[test]
fn doorbells_in_a_bar_are_rung_or_refused_by_name() {
    let page = 4096;
    for (mapped, refusal) in [
        (Some(page), None),
        (Some(0), Some("not in a BAR")),
        (Some(page / 4), Some("1024 bytes of them are mapped")),
        (None, Some("memory space is off")),
    ] {
        let soft = drive(0, LONG).soft;
        let function = Arc::new(InBar(soft, mapped));
        let controller =
            Controller::open(function, Arc::new(SystemClock::new()), ControllerOptions::default()).unwrap();
        let drive = (controller.clone(), controller.namespace(1).unwrap());
        let by = |doorbells| RingTest::new(drive.clone(), doorbells);
        match (run(&by(DoorbellAccess::Registers)), refusal) {
            (Ok(report), None) => {
                assert_eq!((report.lbas, report.contents), (ROUNDS * READS, ROUNDS * READS));
                assert!(report.in_registers && report.doorbells == ROUNDS);
            }
            (Err(error @ RingTestError::Queues(GpuQueueError::DoorbellRegisters { .. })), Some(words)) => {
                let text = error.to_string();
                assert!(text.contains(words) && text.contains("placement B′"), "{text}");
            }
            (other, _) => panic!("{mapped:?} bytes mapped: {other:?}"),
        }
        // The next rung is there in either case.
        for doorbells in [DoorbellAccess::Memory, DoorbellAccess::HostThread] {
            assert!(!run(&by(doorbells)).unwrap().in_registers);
        }
    }
}
