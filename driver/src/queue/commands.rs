//! The commands of the NVM command set that the driver sends (NVM Command Set 1.0, 3.2; NVMe 1.4, 6).

use warprow_dma::Mapped;
use warprow_spec::nvm::DsmRange;
use warprow_spec::{IntoBytes, Sqe};

use super::Places;
use super::pair::QueuePair;
use crate::namespace::Namespace;
use crate::prp::{self, Data, PrpError, PrpList};

/// Why a command was not pushed. Nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No free slot or no credit: poll first.
    #[error("the queue is full: poll or wait, then push again")]
    Full,
    /// Blocks that the namespace does not have.
    #[error("{blocks} blocks from LBA {lba} are not all inside a namespace of {lba_count} blocks")]
    OutOfRange {
        /// First block.
        lba: u64,
        /// Number of blocks.
        blocks: u32,
        /// Blocks of the namespace.
        lba_count: u64,
    },
    /// No blocks, or more than one command can name.
    #[error("{blocks} blocks in one command: 1 to 65,536 are possible")]
    BlockCount {
        /// Number of blocks.
        blocks: u32,
    },
    /// More data than one command may move.
    #[error(
        "{bytes} bytes in one command: this queue moves at most {max} (MDTS, QueueOptions::max_transfer); split it"
    )]
    TooLong {
        /// Bytes to be moved.
        bytes: u64,
        /// Most bytes of one command.
        max: u64,
    },
    /// A data buffer of another length than the blocks.
    #[error("the buffer has {len} bytes, the blocks have {bytes}")]
    WrongLength {
        /// Length of the buffer.
        len: u64,
        /// Bytes of the blocks.
        bytes: u64,
    },
    /// A buffer that PRPs cannot describe.
    #[error(transparent)]
    Prp(#[from] PrpError),
    /// A data buffer in memory that could be taken from the device while the command names it.
    #[error(
        "the buffer ({len} bytes at {iova:#x}) lies in no memory that this queue keeps mapped: give it the memory first, by \
         QueuePair::keep"
    )]
    NotKept {
        /// Where it starts.
        iova: u64,
        /// Its length, bytes.
        len: u64,
    },
    /// A namespace that the queue's controller has not described: how much it moves is not known.
    #[error("namespace {nsid} was not described by this queue's controller: ask that, by Controller::namespace")]
    Foreign {
        /// The namespace.
        nsid: u32,
    },
    /// A namespace that was described before a format of it, or of another, or during one: how much it moves now is not known.
    #[error(
        "namespace {nsid} was described before a format of the drive, or during one: when that has ended (if it timed out: after a \
         reset of the controller), ask for it again, by Controller::namespace"
    )]
    Outdated {
        /// The namespace.
        nsid: u32,
    },
    /// A namespace with metadata.
    #[error("namespace {nsid} has {bytes} B of metadata in each block; format it to an LBA format without")]
    Metadata {
        /// The namespace.
        nsid: u32,
        /// Metadata bytes of a block.
        bytes: u16,
    },
    /// No ranges, or more than fit.
    #[error("{ranges} ranges in one command: 1 to {max} are possible")]
    RangeCount {
        /// Number of ranges.
        ranges: usize,
        /// Most ranges of one command.
        max: usize,
    },
    /// Commands that change the media timed out, on this queue or another, and may still be carried out.
    #[error(
        "{count} writes or formats timed out and may still be carried out, over what is written now: recreate their queues, \
         or reset the controller"
    )]
    LateWrites {
        /// How many.
        count: u32,
    },
    /// The controller does not have the command (ONCS).
    #[error("the controller does not support {what}")]
    Unsupported {
        /// The command.
        what: &'static str,
    },
}

/// The list area of one CID.
struct ListArea<'a> {
    memory: &'a Mapped,
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

    /// Checks blocks against the namespace; their number, 0's based.
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

    /// A mapping cannot end while a command names it: all that commands name is kept until they can reach it no more.
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
