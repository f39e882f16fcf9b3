//! Creation and deletion of I/O queues (NVMe Base 2.0, 5.4 to 5.7; NVMe 1.4, 5.3 to 5.6).

use warprow_spec::admin::{CreateIoCqCdw11, CreateIoQueueCdw10, CreateIoSqCdw11, DeleteIoQueueCdw10};
use warprow_spec::{Cqe, Sqe, StatusCode};

use super::reply::Reply;
use crate::control::{Control, NO_QUEUE};
use crate::core::Core;
use crate::failure::Failure;
use crate::queue::{Cq, Sq};

impl Control {
    pub(super) fn create_io_cq(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let how = CreateIoCqCdw11::from_bits(sqe.cdw11);
        let (qid, size) = self.new_queue(core, sqe, how.pc(), self.regs.cc.iocqes() == Cqe::SIZE_LOG2)?;
        // A vector for every queue pair and one for the admin queue.
        if how.ien() && how.iv() > core.config.queue_pairs {
            return Err(Failure::at(StatusCode::InvalidInterruptVector, 46));
        }
        let mut shards = core.lock_shards();
        if shards.iter().any(|shard| shard.cqs.iter().any(|cq| cq.id == qid)) {
            return Err(Failure::at(StatusCode::InvalidQueueIdentifier, 40));
        }
        core.doorbells.store_u32(core.cq_doorbell(qid), 0);
        let shard = &mut *shards[core.seat_of(qid)];
        let mut cq = Cq::new(qid, sqe.prp1, size, core.cq_doorbell(qid), how.ien().then_some(how.iv()));
        cq.resolve(&mut shard.io.dma);
        shard.cqs.push(cq);
        self.queues[usize::from(qid) * 2 + 1] = true;
        self.features.queues_exist = true;
        Ok(Reply::Done(0))
    }

    pub(super) fn create_io_sq(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let how = CreateIoSqCdw11::from_bits(sqe.cdw11);
        let cqid = how.cqid();
        if cqid == 0 || cqid > self.features.queue_pairs() {
            return Err(Failure::at(StatusCode::InvalidQueueIdentifier, 46));
        }
        let (qid, size) = self.new_queue(core, sqe, how.pc(), self.regs.cc.iosqes() == Sqe::SIZE_LOG2)?;
        let mut shards = core.lock_shards();
        if shards.iter().any(|shard| shard.sqs.iter().any(|sq| sq.id == qid)) {
            return Err(Failure::at(StatusCode::InvalidQueueIdentifier, 40));
        }
        let shard = &mut *shards[core.seat_of(cqid)];
        if !shard.cqs.iter().any(|cq| cq.id == cqid) {
            return Err(Failure::at(StatusCode::CompletionQueueInvalid, 46));
        }
        core.doorbells.store_u32(core.sq_doorbell(qid), 0);
        let mut sq = Sq::new(qid, sqe.prp1, size, core.sq_doorbell(qid), cqid);
        sq.resolve(&mut shard.io.dma);
        shard.sqs.push(sq);
        self.queues[usize::from(qid) * 2] = true;
        shard.link();
        Ok(Reply::Done(0))
    }

    /// What both kinds of queue have in common: identifier and size in entries.
    fn new_queue(&self, core: &Core, sqe: &Sqe, contiguous: bool, entry_size: bool) -> Result<(u16, u32), Failure> {
        let what = CreateIoQueueCdw10::from_bits(sqe.cdw10);
        let size = u32::from(what.qsize_z()) + 1;
        if what.qid() == 0 || what.qid() > self.features.queue_pairs() {
            return Err(Failure::at(StatusCode::InvalidQueueIdentifier, 40));
        }
        if size < 2 || size > core.config.queue_entries {
            return Err(Failure::at(StatusCode::InvalidQueueSize, 42));
        }
        // CC.IOSQES and CC.IOCQES are set before any queue is created. CAP.CQR: queues are contiguous.
        if !entry_size || !contiguous {
            return Err(Failure::field(44));
        }
        if !sqe.prp1.is_multiple_of(self.regs.cc.page_bytes()) {
            return Err(Failure::at(StatusCode::PrpOffsetInvalid, 24));
        }
        Ok((what.qid(), size))
    }

    pub(super) fn delete_io_sq(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let qid = DeleteIoQueueCdw10::from_bits(sqe.cdw10).qid();
        for shard in &mut core.lock_shards() {
            if let Some(index) = shard.sqs.iter().position(|sq| sq.id == qid) {
                shard.abort_queue(core, qid);
                shard.sqs.remove(index);
                self.queues[usize::from(qid) * 2] = false;
                shard.link();
                core.doorbells.store_u32(core.sq_doorbell(qid), NO_QUEUE);
                return Ok(Reply::Done(0));
            }
        }
        Err(Failure::at(StatusCode::InvalidQueueIdentifier, 40))
    }

    pub(super) fn delete_io_cq(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let qid = DeleteIoQueueCdw10::from_bits(sqe.cdw10).qid();
        for shard in &mut core.lock_shards() {
            if let Some(index) = shard.cqs.iter().position(|cq| cq.id == qid) {
                if shard.cqs[index].users > 0 {
                    return Err(Failure::at(StatusCode::InvalidQueueDeletion, 40));
                }
                shard.cqs.remove(index);
                self.queues[usize::from(qid) * 2 + 1] = false;
                shard.link();
                core.doorbells.store_u32(core.cq_doorbell(qid), NO_QUEUE);
                return Ok(Reply::Done(0));
            }
        }
        Err(Failure::at(StatusCode::InvalidQueueIdentifier, 40))
    }
}
