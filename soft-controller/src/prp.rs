//! Physical Region Pages: from the two entries of a command to the memory they name (NVMe Base 2.0, 4.1.1; NVMe 1.4,
//! 4.3).

use warprow_spec::StatusCode;

use crate::iommu::{Dma, DmaFault, Segment};

/// Why a command's data pointer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrpError {
    /// An entry is misaligned, or has an offset where none is allowed.
    Offset,
    /// An entry, or a list, lies where nothing is mapped.
    Fault,
}

impl PrpError {
    pub(crate) fn code(self) -> StatusCode {
        match self {
            Self::Offset => StatusCode::PrpOffsetInvalid,
            Self::Fault => StatusCode::DataTransferError,
        }
    }
}

impl From<DmaFault> for PrpError {
    fn from(_: DmaFault) -> Self {
        Self::Fault
    }
}

/// Replaces `segments` by the memory of a transfer of `len` bytes, in order, adjacent pages merged. `page` is the
/// memory page size, CC.MPS, in bytes: a power of two. Nothing is read but PRP lists.
pub(crate) fn walk(
    dma: &mut Dma,
    page: u64,
    (prp1, prp2): (u64, u64),
    len: usize,
    segments: &mut Vec<Segment>,
) -> Result<(), PrpError> {
    segments.clear();
    if prp1 & 3 != 0 {
        return Err(PrpError::Offset);
    }
    let first = len.min((page - (prp1 & (page - 1))) as usize);
    segments.push(dma.find(prp1, first)?);
    let mut left = len - first;
    if left == 0 {
        return Ok(());
    }
    if left as u64 <= page {
        return push(dma, page, prp2, left, segments);
    }
    // PRP2 points to a list: aligned to its entries, with any offset; the pages of further lists start at their first
    // byte.
    if prp2 & 7 != 0 {
        return Err(PrpError::Offset);
    }
    let mut list = prp2;
    loop {
        let entries = ((page - (list & (page - 1))) / 8) as usize;
        let needed = left.div_ceil(page as usize);
        let chained = needed > entries;
        let here = needed.min(entries);
        let at = dma.find(list, here * 8)?;
        dma.pull(&[at])?;
        for i in 0..here - usize::from(chained) {
            let entry = u64::from_le(dma.memory(at).load_u64(at.offset + i * 8));
            let part = left.min(page as usize);
            push(dma, page, entry, part, segments)?;
            left -= part;
        }
        if !chained {
            return Ok(());
        }
        list = u64::from_le(dma.memory(at).load_u64(at.offset + (here - 1) * 8));
        if list & (page - 1) != 0 {
            return Err(PrpError::Offset);
        }
    }
}

fn push(dma: &mut Dma, page: u64, entry: u64, len: usize, segments: &mut Vec<Segment>) -> Result<(), PrpError> {
    if entry & (page - 1) != 0 {
        return Err(PrpError::Offset);
    }
    let next = dma.find(entry, len)?;
    match segments.last_mut() {
        Some(last) if last.region == next.region && last.offset + last.len == next.offset => last.len += len,
        _ => segments.push(next),
    }
    Ok(())
}
