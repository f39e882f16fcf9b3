//! Completion queue entries (NVMe Base 2.0, 3.3.3.2; NVMe 1.4, 4.6).

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::status::Status;

/// The last 16 bits of a completion queue entry: phase tag and status (NVMe Base 2.0, 3.3.3.2; NVMe 1.4, 4.6).
#[bitfield(u16)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct StatusPhase {
    /// Phase Tag: inverted on each pass through the queue; tells a new entry from an old one.
    pub phase: bool,
    /// Status of the command.
    #[bits(15)]
    pub status: Status,
}

/// A completion queue entry, 16 bytes (NVMe Base 2.0, 3.3.3.2; NVMe 1.4, 4.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe {
    /// Dword 0, specific to the command.
    pub dw0: u32,
    /// Dword 1, specific to the command (2.0; reserved in 1.4).
    pub dw1: u32,
    /// Submission Queue Head Pointer: entries before it may be reused.
    pub sqhd: u16,
    /// Submission Queue Identifier of the command.
    pub sqid: u16,
    /// Command Identifier of the command.
    pub cid: u16,
    /// Phase tag and status.
    pub status_phase: StatusPhase,
}

const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    /// Size as CC.IOCQES has it: a power of two.
    pub const SIZE_LOG2: u8 = 4;

    /// The entry from its two words in memory order.
    #[inline]
    pub fn from_words(words: [u64; 2]) -> Self {
        zerocopy::transmute!(words)
    }

    /// The entry as two words in memory order. The second holds the phase tag and must be stored last.
    #[inline]
    pub fn as_words(&self) -> [u64; 2] {
        zerocopy::transmute!(*self)
    }

    /// The phase tag in the second word of an entry, for polling without reading the first.
    #[inline]
    pub const fn phase_of_word(word1: u64) -> bool {
        word1 >> 48 & 1 == 1
    }

    /// The phase tag.
    #[inline]
    pub fn phase(&self) -> bool {
        self.status_phase.phase()
    }

    /// The status.
    #[inline]
    pub fn status(&self) -> Status {
        self.status_phase.status()
    }
}
