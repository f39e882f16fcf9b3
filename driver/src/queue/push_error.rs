//! Why a command was not pushed.

use crate::prp::PrpError;

/// Why a command was not pushed. The queue is as it was before the call.
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
    /// A data buffer in memory that the queue does not keep, so that the memory could be unmapped while the command
    /// names it.
    #[error(
        "the buffer ({len} bytes at {iova:#x}) lies in no memory that this queue keeps mapped: give it the memory first, by \
         QueuePair::keep"
    )]
    NotKept {
        /// IOVA of the first byte of the range.
        iova: u64,
        /// The buffer's length, bytes.
        len: u64,
    },
    /// A namespace that another controller described: how many bytes a command on it would move is not known.
    #[error("namespace {nsid} was not described by this queue's controller: ask that, by Controller::namespace")]
    Foreign {
        /// The namespace.
        nsid: u32,
    },
    /// A namespace that was described before or during a format, of it or of another namespace: how many bytes a
    /// command on it would move now is not known.
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
