use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warprow_driver::{CommandEnd, DriverError, ResetKind};
use warprow_spec::registers::Csts;
use warprow_spec::{AdminOpcode, StatusCode};

use crate::assert_error;
use crate::device::Reply;
use crate::io::Fixture;

#[test]
fn a_reset_loses_commands_and_releases_quarantine() {
    let (fixture, mut pair) = Fixture::new();
    let cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 1).unwrap();
    pair.wait(|_| {}).unwrap();
    pair.read(&fixture.namespace, 2, 1, fixture.block(1), 2).unwrap();
    pair.ring().unwrap();
    pair.leave();
    fixture.controller.reset(ResetKind::Controller).unwrap();
    assert_error!(pair.poll(|_| {}), DriverError::Stale { queue: 1, .. }, "recreate");
    let mut ended = Vec::new();
    pair.recreate(|completion| ended.push((completion.tag, completion.ended))).unwrap();
    ended.sort_by_key(|&(tag, _)| tag);
    assert_eq!(ended, [(1, CommandEnd::Released), (2, CommandEnd::Lost)]);
    // Completions of before the reset come to nothing.
    for cid in cids.try_iter() {
        fixture.device.answer(1, cid, 0, StatusCode::Success);
    }
    assert_eq!(pair.poll(|_| panic!("nothing is outstanding")).unwrap(), 2);
    fixture.device.obey();
    pair.read(&fixture.namespace, 3, 1, fixture.block(0), 3).unwrap();
    pair.wait(|completion| assert!(completion.is_success())).unwrap();
}

#[test]
fn a_reset_waits_for_owners() {
    let (fixture, mut pair) = Fixture::new();
    assert_error!(fixture.controller.reset(ResetKind::Controller), DriverError::QueuesInUse { .. }, "[1]", "leave");
    assert_eq!(fixture.controller.resets(), 0);
    // Nothing was reset, and the owner noticed nothing.
    pair.read(&fixture.namespace, 3, 1, fixture.block(0), 3).unwrap();
    pair.wait(|completion| assert!(completion.is_success())).unwrap();

    // An owner in a thread of its own leaves by itself at its next call.
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let owner = std::thread::spawn(move || {
        let error = loop {
            if let Err(error) = pair.poll(|_| {}) {
                break error;
            }
            std::thread::yield_now();
        };
        assert!(!stopped.load(Ordering::SeqCst), "it leaves before the reset, not after");
        (pair, error)
    });
    // The clock of the test turns fast: the owner may need more than one try.
    while fixture.controller.reset(ResetKind::Controller).is_err() {}
    assert_eq!(fixture.controller.resets(), 1);
    stop.store(true, Ordering::SeqCst);
    let (mut pair, error) = owner.join().unwrap();
    assert_error!(Err::<(), _>(error), DriverError::Stale { .. }, "stale");
    pair.recreate(|_| panic!("nothing was outstanding")).unwrap();
    pair.read(&fixture.namespace, 3, 1, fixture.block(0), 3).unwrap();
    pair.wait(|completion| assert!(completion.is_success())).unwrap();
}

#[test]
fn a_failed_controller_comes_back() {
    let (fixture, mut pair) = Fixture::new();
    let _cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 1).unwrap();
    fixture.device.state().csts.set_cfs(true);
    assert_error!(pair.wait(|_| {}), DriverError::Fatal { .. }, "reset it");
    pair.leave();
    fixture.device.obey();
    fixture.controller.reset(ResetKind::Controller).unwrap();
    let mut lost = 0;
    pair.recreate(|completion| lost += u32::from(completion.ended == CommandEnd::Lost)).unwrap();
    assert_eq!(lost, 1);
    fixture.controller.check_health().unwrap();
}

#[test]
fn a_reset_that_fails_releases_nothing() {
    let (fixture, mut pair) = Fixture::new();
    let _cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 1).unwrap();
    pair.wait(|_| {}).unwrap();
    pair.leave();
    fixture.device.state().disable_time = None;
    fixture.device.state().obeys_reset = false;
    assert_error!(
        fixture.controller.reset(ResetKind::Controller),
        DriverError::NotReady { ready: false, .. },
        "disabled"
    );
    assert_error!(pair.recreate(|_| panic!("nothing may be released")), DriverError::Down { .. }, "not enabled");
    let before = fixture.device.mapped();
    drop(pair);
    assert_eq!(fixture.device.mapped(), before);

    fixture.device.state().disable_time = Some(std::time::Duration::ZERO);
    fixture.device.state().obeys_reset = true;
    fixture.device.state().csts = Csts::new().with_rdy(true);
    fixture.device.obey();
    fixture.controller.reset(ResetKind::Function).unwrap();
    assert_eq!(fixture.device.mapped(), before - 1, "the rings go; the test still holds the buffer");
    assert_eq!(fixture.controller.queue_pair(&Default::default()).unwrap().id(), 1);
}

#[test]
fn a_reset_that_does_not_come_up_leaves_the_controller_down() {
    let (fixture, pair) = Fixture::new();
    drop(pair);
    fixture.device.script(|_, sqe| {
        let refused = sqe.opcode() == AdminOpcode::IDENTIFY.0;
        if refused { Reply::Fail(StatusCode::InternalError) } else { Reply::Default }
    });
    assert_error!(fixture.controller.reset(ResetKind::Controller), DriverError::Command { .. }, "Identify");
    assert_error!(fixture.controller.smart_log(), DriverError::Down { .. }, "not enabled");
    fixture.device.obey();
    fixture.controller.reset(ResetKind::Controller).unwrap();
    fixture.controller.smart_log().unwrap();
}

#[test]
fn kinds_of_reset() {
    let (fixture, pair) = Fixture::new();
    drop(pair);
    fixture.controller.reset(ResetKind::Function).unwrap();
    assert_eq!(fixture.device.state().resets, 1);
    assert_error!(
        fixture.controller.reset(ResetKind::Subsystem),
        DriverError::Unsupported { .. },
        "NVM subsystem reset"
    );
    assert!(fixture.device.state().bus_master);
    fixture.controller.check_health().unwrap();
}

#[test]
fn a_function_that_cannot_be_reset_has_its_controller_reset() {
    let (fixture, mut pair) = Fixture::new();
    let cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 1).unwrap();
    pair.ring().unwrap();
    pair.leave();
    fixture.device.state().obeys_reset = false;
    fixture.device.state().log.clear();
    fixture.controller.reset(ResetKind::Function).unwrap();
    assert_eq!(fixture.device.state().log, ["reset", "disable", "bus master on", "enable"]);
    let mut lost = Vec::new();
    pair.recreate(|completion| lost.push((completion.tag, completion.ended == CommandEnd::Lost))).unwrap();
    assert_eq!(lost, [(1, true)], "{cids:?}");
    fixture.controller.check_health().unwrap();
}

#[test]
fn a_retry_that_finds_queues_in_use_lets_nobody_in() {
    let (fixture, mut pair) = Fixture::new();
    fixture.device.state().gone = true;
    assert!(fixture.controller.give_up_if_gone());
    fixture.device.state().gone = false;
    // The owner has not noticed yet.
    assert_error!(fixture.controller.retry(), DriverError::QueuesInUse { .. }, "[1]");
    assert_error!(fixture.controller.check_health(), DriverError::GivenUp { .. }, "given up");
    assert_error!(pair.poll(|_| {}), DriverError::GivenUp { .. } | DriverError::Stale { .. }, "");
    assert!(pair.ring().is_err(), "nothing is sent to it");
    fixture.controller.retry().unwrap();
    pair.recreate(|_| {}).unwrap();
    pair.read(&fixture.namespace, 3, 1, fixture.block(0), 3).unwrap();
    pair.wait(|completion| assert!(completion.is_success())).unwrap();
}
