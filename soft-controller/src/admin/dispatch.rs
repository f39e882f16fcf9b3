//! Which command goes where, and what commands share.

use warprow_spec::admin::{AbortCdw10, AbortResult};
use warprow_spec::{AdminOpcode, Sqe, StatusCode};

use super::reply::Reply;
use crate::control::Control;
use crate::core::Core;
use crate::failure::Failure;
use crate::prp;

/// Admin commands that are carried out.
pub(crate) const SUPPORTED: [AdminOpcode; 11] = [
    AdminOpcode::DELETE_IO_SQ,
    AdminOpcode::CREATE_IO_SQ,
    AdminOpcode::GET_LOG_PAGE,
    AdminOpcode::DELETE_IO_CQ,
    AdminOpcode::CREATE_IO_CQ,
    AdminOpcode::IDENTIFY,
    AdminOpcode::ABORT,
    AdminOpcode::SET_FEATURES,
    AdminOpcode::GET_FEATURES,
    AdminOpcode::ASYNC_EVENT_REQUEST,
    AdminOpcode::FORMAT_NVM,
];

impl Control {
    /// Carries out an admin command.
    pub(crate) fn admin(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        self.segments.clear();
        let opcode = AdminOpcode(sqe.opcode());
        if !SUPPORTED.contains(&opcode) {
            return Err(Failure::at(StatusCode::InvalidCommandOpcode, 0));
        }
        // Admin commands use PRPs over PCIe, and are not fused.
        if sqe.cdw0.fuse().0 != 0 || sqe.cdw0.psdt().0 != 0 {
            return Err(Failure::field(1));
        }
        match opcode {
            AdminOpcode::DELETE_IO_SQ => self.delete_io_sq(core, sqe),
            AdminOpcode::CREATE_IO_SQ => self.create_io_sq(core, sqe),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(core, sqe),
            AdminOpcode::DELETE_IO_CQ => self.delete_io_cq(core, sqe),
            AdminOpcode::CREATE_IO_CQ => self.create_io_cq(core, sqe),
            AdminOpcode::IDENTIFY => self.identify(core, sqe),
            AdminOpcode::ABORT => self.abort(core, sqe),
            AdminOpcode::SET_FEATURES => self.set_features(core, sqe),
            AdminOpcode::GET_FEATURES => self.get_features(sqe),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.async_event_request(sqe),
            _ => self.format_nvm(core, sqe),
        }
    }

    /// Sends `data` to where a command's PRPs point.
    pub(super) fn send(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Reply, Failure> {
        let page = self.regs.cc.page_bytes();
        prp::walk(&mut self.dma, page, (sqe.prp1, sqe.prp2), data.len(), &mut self.segments)?;
        self.dma.check_writable(&self.segments)?;
        let mut rest = data;
        for &segment in &self.segments {
            let (part, later) = rest.split_at(segment.len.min(rest.len()));
            self.dma.memory(segment).write(segment.offset, part);
            rest = later;
        }
        self.dma.push(&self.segments)?;
        Ok(Reply::Done(0))
    }

    /// Abort: what a worker holds is aborted, everything else has completed or will at once.
    fn abort(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let what = AbortCdw10::from_bits(sqe.cdw10);
        let aborted =
            what.sqid() != 0 && core.lock_shards().iter_mut().any(|shard| shard.abort(core, what.sqid(), what.cid()));
        Ok(Reply::Done(AbortResult::new().with_not_aborted(!aborted).into_bits()))
    }
}
