//! Times of commands, by the controller's clock.

mod common;

use std::time::Duration;

use common::{Host, ram, stepped};
use warprow_dma::PAGE;
use warprow_soft_controller::{CommandTimes, SoftController, Timing};
use warprow_spec::NvmOpcode;

/// A drive that takes exactly 30 us for a page, and one at a time.
fn slow() -> Timing {
    let page_read = Duration::from_micros(30);
    let timing = warprow_soft_controller::TimingProfile::P5800x.timing().unwrap();
    Timing {
        dies: 1,
        page_read,
        read_overhead: Duration::ZERO,
        small_reads: 1e12,
        reads: 1e12,
        read_bytes: 1e15,
        ..timing
    }
}

#[test]
fn the_first_doorbell_and_the_last_completion_are_told() {
    let mut host = Host::with_queue(stepped().namespace(ram(1 << 20)).timing(slow()), 16);
    let page = host.buffer(PAGE);
    let read = Host::rw(NvmOpcode::READ, 1, 0, 1, page.iova);
    host.io(read);
    assert_eq!(host.drive.watched(), CommandTimes::default(), "nobody watched");
    host.drive.watch();
    assert_eq!(host.drive.watched(), CommandTimes::default());
    // An entry without its doorbell is no command.
    let first = host.push(1, read);
    host.turns(5);
    assert_eq!(host.drive.watched(), CommandTimes::default());
    let second = host.push(1, read);
    host.ring(1);
    let begun = host.now + host.tick;
    assert!(host.completion(1, first).status().is_success());
    assert_eq!(host.drive.watched().completions, 1);
    assert!(host.completion(1, second).status().is_success());
    host.turns(9);
    let watched = host.drive.watched();
    assert_eq!(watched.first_doorbell, Some(begun));
    assert_eq!(watched.last_completion, Some(begun + Duration::from_micros(60)));
    assert_eq!((watched.completions, host.drive.clock_began()), (2, None));
    host.drive.watch();
    assert_eq!(host.drive.watched(), CommandTimes::default(), "it begins anew");
}

#[test]
fn threads_of_a_controller_tell_together() {
    let drive = SoftController::builder().namespace(ram(1 << 20)).workers(2).build().unwrap();
    let mut host = Host::new(drive, false);
    host.enable();
    host.create_pair(1, 16);
    host.create_pair(2, 16);
    let page = host.buffer(PAGE);
    let began = host.drive.clock_began().unwrap();
    host.drive.watch();
    let before = began.elapsed();
    let read = Host::rw(NvmOpcode::READ, 1, 0, 1, page.iova);
    for queue in [1, 2, 1] {
        let cid = host.submit(queue, read);
        assert!(host.completion(queue, cid).status().is_success());
    }
    let watched = host.drive.watched();
    let after = began.elapsed();
    let first = watched.first_doorbell.unwrap();
    let last = watched.last_completion.unwrap();
    assert!(before <= first && first <= last && last <= after, "{before:?} {watched:?} {after:?}");
    assert_eq!(watched.completions, 3);
}
