//! Commands as submission queue entries. Command identifier and PRP entries are left zero: whoever owns the queue fills
//! them in with [`Sqe::with_cid`] and [`Sqe::with_prps`].

use crate::NSID_ALL;
use crate::admin::{
    AbortCdw10, CreateIoCqCdw11, CreateIoQueueCdw10, CreateIoSqCdw11, DeleteIoQueueCdw10, FeatureSelect, FormatCdw10,
    GetFeaturesCdw10, IdentifyCdw10, QueuePriority, SetFeaturesCdw10,
};
use crate::features::{FeatureId, HostMemoryBuffer};
use crate::identify::Cns;
use crate::log::{GetLogPageCdw10, GetLogPageCdw11, LogPageId};
use crate::nvm::{DsmCdw10, DsmCdw11, RwCdw12, WriteZeroesCdw12};
use crate::opcode::{AdminOpcode, NvmOpcode};
use crate::sqe::Sqe;

/// Admin commands.
impl Sqe {
    /// Identify of 4,096 bytes (NVMe Base 2.0, 5.17; NVMe 1.4, 5.15). `nsid` is 0 where `cns` takes none.
    pub fn identify(cns: Cns, nsid: u32) -> Self {
        Self { cdw10: IdentifyCdw10::new().with_cns(cns).into_bits(), ..Self::new(AdminOpcode::IDENTIFY.0, nsid) }
    }

    /// Create I/O Completion Queue, physically contiguous, without interrupts (NVMe Base 2.0, 5.4; NVMe 1.4, 5.3).
    pub fn create_io_cq(qid: u16, entries_z: u16) -> Self {
        Self {
            cdw10: CreateIoQueueCdw10::new().with_qid(qid).with_qsize_z(entries_z).into_bits(),
            cdw11: CreateIoCqCdw11::new().with_pc(true).into_bits(),
            ..Self::new(AdminOpcode::CREATE_IO_CQ.0, 0)
        }
    }

    /// Create I/O Submission Queue, physically contiguous, that completes to `cqid` (NVMe Base 2.0, 5.5; NVMe 1.4, 5.4).
    /// The priority counts under weighted round robin arbitration only.
    pub fn create_io_sq(qid: u16, entries_z: u16, cqid: u16, priority: QueuePriority) -> Self {
        let cdw11 = CreateIoSqCdw11::new().with_pc(true).with_qprio(priority).with_cqid(cqid);
        Self {
            cdw10: CreateIoQueueCdw10::new().with_qid(qid).with_qsize_z(entries_z).into_bits(),
            cdw11: cdw11.into_bits(),
            ..Self::new(AdminOpcode::CREATE_IO_SQ.0, 0)
        }
    }

    /// Delete I/O Submission Queue (NVMe Base 2.0, 5.7; NVMe 1.4, 5.6). Comes before that of its completion queue.
    pub fn delete_io_sq(qid: u16) -> Self {
        let cdw10 = DeleteIoQueueCdw10::new().with_qid(qid).into_bits();
        Self { cdw10, ..Self::new(AdminOpcode::DELETE_IO_SQ.0, 0) }
    }

    /// Delete I/O Completion Queue (NVMe Base 2.0, 5.6; NVMe 1.4, 5.5).
    pub fn delete_io_cq(qid: u16) -> Self {
        let cdw10 = DeleteIoQueueCdw10::new().with_qid(qid).into_bits();
        Self { cdw10, ..Self::new(AdminOpcode::DELETE_IO_CQ.0, 0) }
    }

    /// Abort the command `cid` of submission queue `sqid` (NVMe Base 2.0, 5.1; NVMe 1.4, 5.1).
    pub fn abort(sqid: u16, cid: u16) -> Self {
        let cdw10 = AbortCdw10::new().with_sqid(sqid).with_cid(cid).into_bits();
        Self { cdw10, ..Self::new(AdminOpcode::ABORT.0, 0) }
    }

    /// Asynchronous Event Request; completes when there is an event (NVMe Base 2.0, 5.2; NVMe 1.4, 5.2).
    pub fn async_event_request() -> Self {
        Self::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0)
    }

    /// Set Features, not saved, with the feature's value `cdw11` (NVMe Base 2.0, 5.27; NVMe 1.4, 5.21). `nsid` is 0 where
    /// the feature belongs to no namespace.
    pub fn set_features(fid: FeatureId, nsid: u32, cdw11: u32) -> Self {
        let cdw10 = SetFeaturesCdw10::new().with_fid(fid).into_bits();
        Self { cdw10, cdw11, ..Self::new(AdminOpcode::SET_FEATURES.0, nsid) }
    }

    /// Set Features, Host Memory Buffer: `pages` of CC.MPS in all, in ranges that the list of `entries` descriptors at
    /// `list`, aligned to 16 bytes, names (NVMe Base 2.0, 5.27.1.10; NVMe 1.4, 5.21.1.13).
    pub fn lend_host_memory(pages: u32, list: u64, entries: u32) -> Self {
        let enable = HostMemoryBuffer::new().with_ehm(true).into_bits();
        Self {
            cdw12: pages,
            cdw13: list as u32,
            cdw14: (list >> 32) as u32,
            cdw15: entries,
            ..Self::set_features(FeatureId::HOST_MEMORY_BUFFER, 0, enable)
        }
    }

    /// Security Receive of `bytes` at most, by security protocol `secp` and what `spsp` means in it (NVMe Base 2.0, 5.23;
    /// NVMe 1.4, 5.19).
    pub fn security_receive(secp: u8, spsp: u16, bytes: u32) -> Self {
        let cdw10 = u32::from(secp) << 24 | u32::from(spsp) << 8;
        Self { cdw10, cdw11: bytes, ..Self::new(AdminOpcode::SECURITY_RECEIVE.0, 0) }
    }

    /// Get Features (NVMe Base 2.0, 5.15; NVMe 1.4, 5.13). `nsid` is 0 where the feature belongs to no namespace.
    pub fn get_features(fid: FeatureId, nsid: u32, select: FeatureSelect) -> Self {
        let cdw10 = GetFeaturesCdw10::new().with_fid(fid).with_sel(select).into_bits();
        Self { cdw10, ..Self::new(AdminOpcode::GET_FEATURES.0, nsid) }
    }

    /// Get Log Page of `dwords_z` + 1 dwords from byte `offset`, a multiple of four (NVMe Base 2.0, 5.16; NVMe 1.4,
    /// 5.14). An offset other than 0 needs LPA.LPEDS. With `retain`, the event that named the page is not re-armed.
    pub fn get_log_page(lid: LogPageId, nsid: u32, dwords_z: u32, offset: u64, retain: bool) -> Self {
        let cdw10 = GetLogPageCdw10::new().with_lid(lid).with_rae(retain).with_numdl(dwords_z as u16);
        Self {
            cdw10: cdw10.into_bits(),
            cdw11: GetLogPageCdw11::new().with_numdu((dwords_z >> 16) as u16).into_bits(),
            cdw12: offset as u32,
            cdw13: (offset >> 32) as u32,
            ..Self::new(AdminOpcode::GET_LOG_PAGE.0, nsid)
        }
    }

    /// Format NVM (NVMe Base 2.0, 5.14; NVMe 1.4, 5.23). FNA of Identify Controller may widen it to every namespace.
    pub fn format_nvm(nsid: u32, format: FormatCdw10) -> Self {
        Self { cdw10: format.into_bits(), ..Self::new(AdminOpcode::FORMAT_NVM.0, nsid) }
    }
}

/// Commands of the NVM command set.
impl Sqe {
    /// Flush (NVMe Base 2.0, 7.1; NVMe 1.4, 6.8).
    #[inline]
    pub fn flush(nsid: u32) -> Self {
        Self::new(NvmOpcode::FLUSH.0, nsid)
    }

    /// Flush of every namespace, where VWC of Identify Controller allows it (NVMe Base 2.0, 7.1; NVMe 1.4, 6.8).
    #[inline]
    pub fn flush_all() -> Self {
        Self::flush(NSID_ALL)
    }

    /// Read of `blocks_z` + 1 logical blocks from `slba` (NVM Command Set 1.0, 3.2.4; NVMe 1.4, 6.9).
    #[inline]
    pub fn read(nsid: u32, slba: u64, blocks_z: u16, fua: bool) -> Self {
        Self::transfer(NvmOpcode::READ, nsid, slba, blocks_z, fua)
    }

    /// Write of `blocks_z` + 1 logical blocks from `slba` (NVM Command Set 1.0, 3.2.6; NVMe 1.4, 6.15).
    #[inline]
    pub fn write(nsid: u32, slba: u64, blocks_z: u16, fua: bool) -> Self {
        Self::transfer(NvmOpcode::WRITE, nsid, slba, blocks_z, fua)
    }

    /// Compare of `blocks_z` + 1 logical blocks from `slba` with host memory (NVM Command Set 1.0, 3.2.1; NVMe 1.4, 6.6).
    pub fn compare(nsid: u32, slba: u64, blocks_z: u16) -> Self {
        Self::transfer(NvmOpcode::COMPARE, nsid, slba, blocks_z, false)
    }

    /// Write Zeroes to `blocks_z` + 1 logical blocks from `slba`, with `deallocate` freeing them where the controller can
    /// (NVM Command Set 1.0, 3.2.8; NVMe 1.4, 6.17).
    pub fn write_zeroes(nsid: u32, slba: u64, blocks_z: u16, deallocate: bool) -> Self {
        let cdw12 = WriteZeroesCdw12::new().with_nlb_z(blocks_z).with_deac(deallocate).into_bits();
        Self { cdw12, ..Self::new(NvmOpcode::WRITE_ZEROES.0, nsid) }.with_slba(slba)
    }

    /// Dataset Management that deallocates `ranges_z` + 1 ranges of [`DsmRange`](crate::nvm::DsmRange) (NVM Command Set
    /// 1.0, 3.2.3; NVMe 1.4, 6.7).
    pub fn deallocate(nsid: u32, ranges_z: u8) -> Self {
        Self {
            cdw10: DsmCdw10::new().with_nr_z(ranges_z).into_bits(),
            cdw11: DsmCdw11::new().with_ad(true).into_bits(),
            ..Self::new(NvmOpcode::DATASET_MANAGEMENT.0, nsid)
        }
    }

    #[inline]
    fn transfer(opcode: NvmOpcode, nsid: u32, slba: u64, blocks_z: u16, fua: bool) -> Self {
        let cdw12 = RwCdw12::new().with_nlb_z(blocks_z).with_fua(fua).into_bits();
        Self { cdw12, ..Self::new(opcode.0, nsid) }.with_slba(slba)
    }
}
