use anyhow::{Result, ensure};
use warprow_driver::{DriverError, QueueOptions};
use warprow_spec::admin::QueuePriority;
use warprow_spec::{Sqe, StatusCode};

use crate::fixture::{Fixture, admin, admin_refused, open};
use crate::subject::{Subject, Verdict};

pub(crate) fn unknown_opcode(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    for opcode in [0x2c, 0x78] {
        let codes = [StatusCode::InvalidCommandOpcode];
        admin_refused(&format!("opcode {opcode:02X}h"), &controller, Sqe::new(opcode, 0), &codes)?;
    }
    controller.check_health()?;
    Ok(Verdict::Passed)
}

/// Statuses by NVMe Base 2.0, 5.4 to 5.7; NVMe 1.4, 5.3 to 5.6.
pub(crate) fn impossible_queues(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let memory = controller.allocate(8192)?;
    let granted = controller.granted_queue_pairs();
    let max = controller.cap().max_queue_entries();
    let cq = |qid, size_z| Sqe::create_io_cq(qid, size_z).with_prps(memory.iova(), 0);
    let sq = |qid, size_z, cqid| {
        Sqe::create_io_sq(qid, size_z, cqid, QueuePriority::URGENT).with_prps(memory.iova() + 4096, 0)
    };
    let refused = |what, sqe, code| admin_refused(what, &controller, sqe, &[code]);
    use StatusCode::{CompletionQueueInvalid, InvalidQueueDeletion, InvalidQueueIdentifier, InvalidQueueSize};

    refused("a completion queue 0", cq(0, 7), InvalidQueueIdentifier)?;
    refused("a completion queue past those granted", cq(granted.max(128) + 1, 7), InvalidQueueIdentifier)?;
    refused("a completion queue of one entry", cq(1, 0), InvalidQueueSize)?;
    refused("a submission queue without a completion queue", sq(1, 7, 1), CompletionQueueInvalid)?;
    refused("deleting a submission queue that is not there", Sqe::delete_io_sq(1), InvalidQueueIdentifier)?;
    // Invalid Queue Identifier is due; QEMU's model answers Completion Queue Invalid.
    let codes = [InvalidQueueIdentifier, CompletionQueueInvalid];
    admin_refused("deleting a completion queue that is not there", &controller, Sqe::delete_io_cq(1), &codes)?;
    if max < 1 << 16 {
        refused("a completion queue past CAP.MQES", cq(1, max as u16), InvalidQueueSize)?;
    }
    let send = |sqe| admin(&controller, sqe);
    send(cq(1, 7))?;
    refused("a completion queue twice", cq(1, 7), InvalidQueueIdentifier)?;
    refused("a submission queue 0", sq(0, 7, 1), InvalidQueueIdentifier)?;
    refused("a submission queue of one entry", sq(1, 0, 1), InvalidQueueSize)?;
    send(sq(1, 7, 1))?;
    refused("a submission queue twice", sq(1, 7, 1), InvalidQueueIdentifier)?;
    refused("deleting a completion queue in use", Sqe::delete_io_cq(1), InvalidQueueDeletion)?;
    send(Sqe::delete_io_sq(1))?;
    send(Sqe::delete_io_cq(1))?;

    // The driver refuses by itself what the controller would.
    for entries in [0, 1, max.saturating_add(1)] {
        let options = QueueOptions { entries, completion_entries: entries, ..QueueOptions::default() };
        ensure!(matches!(controller.queue_pair(&options), Err(DriverError::QueueSize { .. })), "{entries} entries");
    }
    Ok(Verdict::Passed)
}

pub(crate) fn abort_of_nothing(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    for cid in [0, 0x1234] {
        ensure!(!fixture.controller.abort(fixture.pair.id(), cid)?, "CID {cid:#x} is said to be aborted");
    }
    fixture.write_pattern(3, 0, 4)?;
    fixture.check_pattern(3, 0, 4)?;
    Ok(Verdict::Passed)
}
