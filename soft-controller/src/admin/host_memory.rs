//! The host memory buffer (feature 0Dh; NVMe Base 2.0, 5.27.1.10; NVMe 1.4, 5.21.1.13). The model needs none: it leaves a
//! mark in every page that it is lent, and looks for them when it gives them back.

use std::mem::size_of;

use warprow_dma::PAGE;
use warprow_spec::features::{FeatureId, HostMemoryDescriptor};
use warprow_spec::{FromBytes, Sqe, StatusCode};

use super::reply::Reply;
use crate::control::Control;
use crate::core::Core;
use crate::failure::Failure;

/// Longest list of descriptors.
const MOST_DESCRIPTORS: u32 = 4096;

fn mark(iova: u64) -> u64 {
    iova.rotate_left(17) ^ 0x5741_5250_524f_5721
}

impl Control {
    pub(super) fn set_host_memory(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let enable = sqe.cdw11 & 1 != 0;
        if enable != self.borrowed.is_empty() {
            return if enable { Err(StatusCode::CommandSequenceError.into()) } else { Ok(Reply::Done(0)) };
        }
        if enable {
            self.borrowed = self.offered(core, sqe)?;
            for &page in &self.borrowed {
                let (memory, offset) = self.dma.resolve(page, PAGE)?;
                memory.store_u64(offset, mark(page));
            }
        } else {
            for page in std::mem::take(&mut self.borrowed) {
                let (memory, offset) = self.dma.resolve(page, PAGE)?;
                if memory.load_u64(offset) != mark(page) {
                    return Err(StatusCode::InternalError.into());
                }
            }
        }
        self.features.set_value(FeatureId::HOST_MEMORY_BUFFER, u32::from(enable));
        Ok(Reply::Done(0))
    }

    /// The pages that a command offers, all of them mapped and writable.
    fn offered(&mut self, core: &Core, sqe: &Sqe) -> Result<Vec<u64>, Failure> {
        let (preferred, least) = core.config.host_memory;
        let wanted = sqe.cdw12;
        let entries = sqe.cdw15;
        let list = u64::from(sqe.cdw14) << 32 | u64::from(sqe.cdw13);
        if wanted < least.max(1) || wanted > preferred {
            return Err(Failure::field(48));
        }
        if !list.is_multiple_of(size_of::<HostMemoryDescriptor>() as u64) || entries > MOST_DESCRIPTORS {
            return Err(Failure::field(52));
        }
        let mut pages = Vec::new();
        for index in 0..u64::from(entries) {
            let mut bytes = [0; size_of::<HostMemoryDescriptor>()];
            let at = list.checked_add(index * bytes.len() as u64).ok_or(Failure::field(52))?;
            let (memory, offset) = self.dma.resolve(at, bytes.len())?;
            memory.read(offset, &mut bytes);
            let Ok(HostMemoryDescriptor { badd, bsize, .. }) = HostMemoryDescriptor::read_from_bytes(&bytes) else {
                return Err(Failure::field(52));
            };
            if !badd.is_multiple_of(PAGE as u64) || pages.len() as u64 + u64::from(bsize) > u64::from(wanted) {
                return Err(Failure::field(52));
            }
            for page in 0..u64::from(bsize) {
                let page = badd.checked_add(page * PAGE as u64).ok_or(Failure::field(52))?;
                let segment = self.dma.find(page, PAGE)?;
                self.dma.check_writable(&[segment])?;
                pages.push(page);
            }
        }
        if pages.len() as u64 == u64::from(wanted) { Ok(pages) } else { Err(Failure::field(48)) }
    }
}
