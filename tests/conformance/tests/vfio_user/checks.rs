//! Every check, through the socket.

use std::sync::Arc;

use warprow_conformance::{CHECKS, Subject, Verdict};
use warprow_dma::SystemClock;
use warprow_soft_controller::ControllerBuilder;
use warprow_spec::registers::Vs;

use crate::fixture::{Served, drive};

fn passes(builder: ControllerBuilder) {
    passes_on(&Served::new(builder), &[]);
}

fn passes_on(served: &Served, not: &[&str]) {
    let function = served.connect();
    let subject = Subject { function, clock: Arc::new(SystemClock::new()) };
    let mut wrong = Vec::new();
    for check in CHECKS.iter().filter(|check| !not.contains(&check.name)) {
        match check.run(&subject) {
            Ok(Verdict::Passed) => {}
            Ok(Verdict::Skipped(_)) if check.name == "the volatile write cache is switched" => {}
            Ok(Verdict::Skipped(why)) => wrong.push(format!("{}: skipped: {why}", check.name)),
            Err(error) => wrong.push(format!("{}: {error:#}", check.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {} checks:\n{}", wrong.len(), CHECKS.len(), wrong.join("\n"));
}

#[test]
fn plain() {
    passes(drive());
}

#[test]
fn two_workers_in_disorder() {
    passes(drive().workers(2).seed(11).permute().partial_fetch());
}

#[test]
fn of_version_1_4_with_wide_doorbells() {
    passes(drive().version(Vs::V1_4).doorbell_stride(3).queue_pairs(16));
}

/// As SPDK's server: memory is given in large pieces, which outlive the mappings of their parts. So what is unmapped can be reached
/// still, and a command that names it is no error.
#[test]
fn with_few_dma_regions() {
    let served = Served::with_regions(drive().queue_pairs(64), 4);
    let unmapped = [
        "DMA reaches no unmapped memory",
        "an unreachable queue is fatal, and a reset helps",
        "an unreachable completion queue is fatal as well",
    ];
    passes_on(&served, &unmapped);
    assert_eq!(served.drive.dma_faults(), 0);
}
