//! The commands of the NVM command set that the driver sends (NVM Command Set 1.0, 3.2; NVMe 1.4, 6).

use warprow_dma::MappedMemory;
use warprow_spec::nvm::DsmRange;
use warprow_spec::{IntoBytes, Sqe};

use super::memory::Places;
use super::pair::QueuePair;
use super::push_error::PushError;
use crate::namespace::Namespace;
use crate::prp::{self, Data, PrpList};

/// The list area of one CID.
struct ListArea<'a> {
    memory: &'a MappedMemory,
    at: usize,
    bytes: usize,
}

impl PrpList for ListArea<'_> {
    #[inline]
    fn iova(&self) -> u64 {
        self.memory.iova() + self.at as u64
    }

    #[inline]
    fn room(&self) -> u64 {
        (self.bytes / 8) as u64
    }

    #[inline]
    fn store(&self, index: u64, entry: u64) {
        self.memory.memory().store_u64(self.at + index as usize * 8, entry);
    }
}

impl QueuePair {
    /// The list area that belongs to the next CID.
    #[inline]
    fn next_list(&self) -> Result<ListArea<'_>, PushError> {
        let index = self.ring.next_index().ok_or(PushError::Full)?;
        let Places { lists, list, .. } = self.places;
        Ok(ListArea { memory: self.memory(), at: lists + index * list, bytes: list })
    }

    /// Checks blocks against the namespace. Returns their number as NVMe counts it (0's based).
    #[inline]
    fn blocks_z(&self, ns: &Namespace, lba: u64, blocks: u32) -> Result<u16, PushError> {
        ns.check_described(&self.identity)?;
        let nlb_z =
            blocks.checked_sub(1).and_then(|z| u16::try_from(z).ok()).ok_or(PushError::BlockCount { blocks })?;
        let lba_count = ns.lba_count();
        if lba.checked_add(blocks.into()).is_none_or(|end| end > lba_count) {
            return Err(PushError::OutOfRange { lba, blocks, lba_count });
        }
        match ns.metadata_bytes() {
            0 => Ok(nlb_z),
            bytes => Err(PushError::Metadata { nsid: ns.nsid(), bytes }),
        }
    }

    /// Checks a transfer and builds its PRPs.
    #[inline]
    fn transfer(&self, ns: &Namespace, lba: u64, blocks: u32, data: Data<'_>) -> Result<(u16, u64, u64), PushError> {
        let blocks_z = self.blocks_z(ns, lba, blocks)?;
        let bytes = u64::from(blocks) << ns.lba_shift();
        let max = self.max_transfer();
        if bytes > max {
            return Err(PushError::TooLong { bytes, max });
        }
        let len = data.len().unwrap_or(u64::MAX);
        if len != bytes {
            return Err(PushError::WrongLength { len, bytes });
        }
        self.check_kept(data)?;
        let (prp1, prp2) = match data.in_a_page() {
            // The most usual kind needs no list.
            Some(prp1) => (prp1, 0),
            None => prp::build(data, &self.next_list()?)?,
        };
        Ok((blocks_z, prp1, prp2))
    }

    /// Checks that the queue keeps all memory of `data`, so that no mapping ends while a command names it.
    #[inline]
    fn check_kept(&self, data: Data<'_>) -> Result<(), PushError> {
        let check = |iova, len| if self.keeps(iova, len) { Ok(()) } else { Err(PushError::NotKept { iova, len }) };
        match data {
            Data::Contiguous { iova, len } => check(iova, len),
            Data::Scattered(stretches) => stretches.iter().try_for_each(|stretch| check(stretch.iova, stretch.len)),
        }
    }

    /// Pushes a Read of `blocks` blocks from `lba` into `data`, in memory that the queue [keeps](Self::keep).
    #[inline]
    pub fn read(&mut self, ns: &Namespace, lba: u64, blocks: u32, data: Data<'_>, tag: u64) -> Result<u16, PushError> {
        let (blocks_z, prp1, prp2) = self.transfer(ns, lba, blocks, data)?;
        self.submit(Sqe::read(ns.nsid(), lba, blocks_z, false).with_prps(prp1, prp2), tag)
    }

    /// Pushes a Write of `data` to `blocks` blocks from `lba`. With `fua` it is durable when it completes, else after
    /// the next Flush.
    #[inline]
    pub fn write(
        &mut self,
        ns: &Namespace,
        lba: u64,
        blocks: u32,
        data: Data<'_>,
        fua: bool,
        tag: u64,
    ) -> Result<u16, PushError> {
        let (blocks_z, prp1, prp2) = self.transfer(ns, lba, blocks, data)?;
        self.submit(Sqe::write(ns.nsid(), lba, blocks_z, fua).with_prps(prp1, prp2), tag)
    }

    /// Pushes a Compare of `blocks` blocks from `lba` with `data`; it fails with Compare Failure where they differ.
    pub fn compare(
        &mut self,
        ns: &Namespace,
        lba: u64,
        blocks: u32,
        data: Data<'_>,
        tag: u64,
    ) -> Result<u16, PushError> {
        if !self.optional.compare {
            return Err(PushError::Unsupported { what: "Compare" });
        }
        let (blocks_z, prp1, prp2) = self.transfer(ns, lba, blocks, data)?;
        self.submit(Sqe::compare(ns.nsid(), lba, blocks_z).with_prps(prp1, prp2), tag)
    }

    /// Pushes a Flush: writes of this namespace that completed before it was pushed are durable when it completes.
    pub fn flush(&mut self, ns: &Namespace, tag: u64) -> Result<u16, PushError> {
        self.submit(Sqe::flush(ns.nsid()), tag)
    }

    /// Pushes a Write Zeroes of `blocks` blocks from `lba`, with `deallocate` freeing them where the controller can.
    pub fn write_zeroes(
        &mut self,
        ns: &Namespace,
        lba: u64,
        blocks: u32,
        deallocate: bool,
        tag: u64,
    ) -> Result<u16, PushError> {
        if !self.optional.write_zeroes {
            return Err(PushError::Unsupported { what: "Write Zeroes" });
        }
        let blocks_z = self.blocks_z(ns, lba, blocks)?;
        self.submit(Sqe::write_zeroes(ns.nsid(), lba, blocks_z, deallocate), tag)
    }

    /// Most ranges that one [`deallocate`](Self::deallocate) takes, 32 to 256.
    pub fn max_ranges(&self) -> usize {
        (self.places.list / size_of::<DsmRange>()).min(DsmRange::MAX_COUNT)
    }

    /// Pushes a Dataset Management that deallocates ranges of (first block, number of blocks).
    pub fn deallocate(&mut self, ns: &Namespace, ranges: &[(u64, u32)], tag: u64) -> Result<u16, PushError> {
        if !self.optional.deallocate {
            return Err(PushError::Unsupported { what: "Dataset Management" });
        }
        ns.check_described(&self.identity)?;
        let max = self.max_ranges();
        let count_z = ranges.len().checked_sub(1).filter(|_| ranges.len() <= max);
        let Some(count_z) = count_z.and_then(|z| u8::try_from(z).ok()) else {
            return Err(PushError::RangeCount { ranges: ranges.len(), max });
        };
        for &(lba, blocks) in ranges {
            let lba_count = ns.lba_count();
            if blocks == 0 {
                return Err(PushError::BlockCount { blocks });
            }
            if lba.checked_add(blocks.into()).is_none_or(|end| end > lba_count) {
                return Err(PushError::OutOfRange { lba, blocks, lba_count });
            }
        }
        // The area is at most a page long and crosses none, so PRP1 describes it.
        let area = self.next_list()?;
        for (i, &(lba, blocks)) in ranges.iter().enumerate() {
            let range = DsmRange::new(lba, blocks);
            area.memory.memory().write(area.at + i * size_of::<DsmRange>(), range.as_bytes());
        }
        let iova = area.iova();
        self.submit(Sqe::deallocate(ns.nsid(), count_z).with_prps(iova, 0), tag)
    }
}
