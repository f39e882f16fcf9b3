//! The structures that the host and the answering kernel share: `cuda/answer.cu` has the same, field by field.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Steps of a drive's clock in a nanosecond.
pub(crate) const TICKS: f64 = 8.0;
/// Threads of a block.
pub(crate) const THREADS: u32 = 384;
/// Bytes of shared memory of a block, a `Desk`, whose size `cuda/answer.cu` holds to this one.
pub(crate) const SHARED_BYTES: u32 = 90_384;

/// A queue pair as its controller has it: the kernel reads the first part when a turn begins, and writes from `seen_head` on when it
/// ends.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Queue {
    pub(crate) sq: u64,
    pub(crate) cq: u64,
    pub(crate) sq_tail: u64,
    pub(crate) cq_head: u64,
    pub(crate) sq_size: u32,
    pub(crate) cq_size: u32,
    pub(crate) id: u32,
    pub(crate) seen_head: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) phase: u32,
    pub(crate) stopped: u32,
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
}

/// Memory that is mapped for the drive and that the GPU reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Mapping {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) address: u64,
    pub(crate) writable: u64,
}

/// Offsets of words in pinned memory, numbers of launches: the latest of which a block has come, the latest that has ended, the latest that the
/// host has called off.
pub(crate) mod words {
    pub(crate) const BEGUN: usize = 0;
    pub(crate) const ENDED: usize = 8;
    pub(crate) const CALLED_OFF: usize = 64;
}

/// Bytes of what all blocks of a turn share.
pub(crate) const COMMON_BYTES: u64 = 24;

/// What a turn is about.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Turn {
    pub(crate) queues: u64,
    pub(crate) mappings: u64,
    pub(crate) common: u64,
    pub(crate) clock: u64,
    pub(crate) image: u64,
    pub(crate) lbas: u64,
    pub(crate) leave: u64,
    pub(crate) admin: u64,
    pub(crate) words: u64,
    pub(crate) linger_ns: u64,
    pub(crate) linger_after_ns: u64,
    pub(crate) limit_ns: u64,
    pub(crate) latency_ns: u64,
    pub(crate) ticks: u64,
    pub(crate) ticks_per_4k: u64,
    pub(crate) mapping_count: u32,
    pub(crate) leave_count: u32,
    pub(crate) admin_seen: u32,
    pub(crate) nsid: u32,
    pub(crate) lba_shift: u32,
    pub(crate) page_shift: u32,
    pub(crate) number: u32,
    pub(crate) unused: u32,
}

const _: () = assert!(size_of::<Queue>() == 96 && size_of::<Mapping>() == 32);
// The kernel has 152 bytes: 15 words of 64 bits and 8 of 32.
const _: () = assert!(size_of::<Turn>() == 152);
