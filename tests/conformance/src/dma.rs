use std::time::Duration;

use anyhow::{Result, bail, ensure};
use warprow_dma::MappedMemory;
use warprow_driver::{DriverError, ResetKind};
use warprow_spec::Sqe;
use warprow_spec::admin::QueuePriority;
use warprow_spec::registers::sq_tail_doorbell;
use zerocopy::IntoBytes;

use crate::fixture::{Fixture, admin};
use crate::subject::{Subject, Verdict};

/// A read into memory that is no longer mapped: whatever the controller answers, the memory keeps its content.
pub(crate) fn unmapped_data(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    fixture.write_pattern(80, 0, 8)?;
    let memory = subject.function.allocate(8192)?;
    let mapped = MappedMemory::new(subject.function.clone(), memory.clone())?;
    let iova = mapped.iova();
    // Sent as it is: the driver itself names no memory that could be taken from under a command.
    let read = Sqe::read(fixture.ns.nsid(), 0, 0, false).with_prps(iova, 0);
    ensure!(fixture.raw(read)?.is_success());
    ensure!(memory.load_u64(0) != 0, "the read did nothing while the memory was mapped");
    drop(mapped);
    memory.fill(0, memory.len(), 0x5a);
    // The status does not tell: models are known to answer with success.
    fixture.raw(read)?;
    let mut got = vec![0; memory.len()];
    memory.read(0, &mut got);
    ensure!(got.iter().all(|&byte| byte == 0x5a), "the device wrote memory that is not mapped");
    fixture.check_pattern(80, 0, 8)?;
    Ok(Verdict::Passed)
}

/// A submission queue that cannot be fetched sets CSTS.CFS (NVMe Base 2.0, 3.1.3.6; NVMe 1.4, 3.1.6).
pub(crate) fn unmapped_submission_queue(subject: &Subject) -> Result<Verdict> {
    unmapped_queue(subject, true)
}

/// So does a completion that cannot be written.
pub(crate) fn unmapped_completion_queue(subject: &Subject) -> Result<Verdict> {
    unmapped_queue(subject, false)
}

fn unmapped_queue(subject: &Subject, submission: bool) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    fixture.write_pattern(81, 0, 8)?;
    let controller = fixture.controller.clone();
    let queue = controller.granted_queue_pairs();
    if queue == fixture.pair.id() {
        return Ok(Verdict::Skipped("there is one queue pair".into()));
    }
    let sq = controller.allocate(4096)?;
    let cq = controller.allocate(4096)?;
    let send = |sqe: Sqe| admin(&controller, sqe);
    send(Sqe::create_io_cq(queue, 7).with_prps(cq.iova(), 0))?;
    send(Sqe::create_io_sq(queue, 7, queue, QueuePriority::URGENT).with_prps(sq.iova(), 0))?;
    sq.memory().write(0, Sqe::read(fixture.ns.nsid(), 0, 0, false).as_bytes());
    let (gone, _kept) = if submission { (sq, cq) } else { (cq, sq) };
    ensure!(std::sync::Arc::strong_count(&gone) == 1);
    drop(gone);
    subject.function.doorbell(sq_tail_doorbell(queue, controller.cap().dstrd()))?.ring(1);
    let deadline = subject.clock.now() + Duration::from_secs(2);
    let error = loop {
        if let Err(error) = controller.check_health() {
            break error;
        }
        if subject.clock.now() > deadline {
            return Ok(Verdict::Skipped("the controller survives a queue that it cannot fetch".into()));
        }
        subject.clock.sleep(Duration::from_millis(1));
    };
    match error {
        DriverError::Fatal { csts, .. } if csts.cfs() => {}
        other => bail!("{other}"),
    }
    // A command sent now is answered, or fails soon and by its name.
    if let Err(error) = controller.smart_log() {
        ensure!(matches!(error, DriverError::Fatal { .. }), "an admin command after a fatal error: {error}");
    }
    fixture.pair.leave();
    controller.reset(ResetKind::Controller)?;
    controller.check_health()?;
    fixture.pair.recreate(|_| {})?;
    fixture.check_pattern(81, 0, 8)?;
    Ok(Verdict::Passed)
}
