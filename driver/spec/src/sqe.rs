//! Submission queue entries (NVMe Base 2.0, 3.3.3.1; NVMe 1.4, 4.2).

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::open_enum::open_enum;

open_enum! {
    /// Fused Operation, CDW0.FUSE (NVMe Base 2.0, 3.3.3.1; NVMe 1.4, 4.2).
    Fuse {
        NORMAL = 0 "normal operation",
        FIRST = 1 "fused operation, first command",
        SECOND = 2 "fused operation, second command",
    }
}

open_enum! {
    /// PRP or SGL for Data Transfer, CDW0.PSDT (NVMe Base 2.0, 3.3.3.1; NVMe 1.4, 4.2).
    Psdt {
        PRP = 0 "PRPs",
        SGL_CONTIGUOUS_METADATA = 1 "SGLs, metadata in one contiguous buffer",
        SGL_SEGMENT_METADATA = 2 "SGLs, metadata in an SGL segment",
    }
}

/// Command Dword 0 (NVMe Base 2.0, 3.3.3.1, figure "Command Dword 0"; NVMe 1.4, 4.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cdw0 {
    /// Opcode, of the admin or the I/O command set as the queue tells.
    pub opcode: u8,
    /// Fused Operation.
    #[bits(2)]
    pub fuse: Fuse,
    #[bits(4)]
    __: u8,
    /// PRP or SGL for Data Transfer.
    #[bits(2)]
    pub psdt: Psdt,
    /// Command Identifier, unique among the outstanding commands of one submission queue. FFFFh should not be used: the
    /// error log has it for "no particular command".
    pub cid: u16,
}

/// A submission queue entry, 64 bytes, in the common command format (NVMe Base 2.0, 3.3.3.1; NVMe 1.4, 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sqe {
    /// Command Dword 0: opcode, flags, command identifier.
    pub cdw0: Cdw0,
    /// Namespace Identifier; 0 where the command has none, [`NSID_ALL`](crate::NSID_ALL) for all.
    pub nsid: u32,
    /// Command Dword 2, specific to the command.
    pub cdw2: u32,
    /// Command Dword 3, specific to the command.
    pub cdw3: u32,
    /// Metadata Pointer.
    pub mptr: u64,
    /// PRP Entry 1: the first data page, with any dword-aligned offset.
    pub prp1: u64,
    /// PRP Entry 2: the second data page or a PRP list, as the length demands.
    pub prp2: u64,
    /// Command Dword 10, specific to the command.
    pub cdw10: u32,
    /// Command Dword 11, specific to the command.
    pub cdw11: u32,
    /// Command Dword 12, specific to the command.
    pub cdw12: u32,
    /// Command Dword 13, specific to the command.
    pub cdw13: u32,
    /// Command Dword 14, specific to the command.
    pub cdw14: u32,
    /// Command Dword 15, specific to the command.
    pub cdw15: u32,
}

const _: () = assert!(size_of::<Sqe>() == 64);

impl Sqe {
    /// Size as CC.IOSQES has it: a power of two.
    pub const SIZE_LOG2: u8 = 6;

    /// An entry of zeros but for the opcode and namespace.
    #[inline]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self { cdw0: Cdw0::new().with_opcode(opcode), nsid, ..Self::default() }
    }

    /// The entry as eight words in memory order, to be stored one by one in device-visible memory.
    #[inline]
    pub fn as_words(&self) -> [u64; 8] {
        zerocopy::transmute!(*self)
    }

    /// The entry from eight words in memory order.
    #[inline]
    pub fn from_words(words: [u64; 8]) -> Self {
        zerocopy::transmute!(words)
    }

    /// The opcode byte.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.cdw0.opcode()
    }

    /// The command identifier.
    #[inline]
    pub fn cid(&self) -> u16 {
        self.cdw0.cid()
    }

    /// Sets the command identifier.
    #[inline]
    pub fn with_cid(mut self, cid: u16) -> Self {
        self.cdw0.set_cid(cid);
        self
    }

    /// Sets the PRP entries.
    #[inline]
    pub fn with_prps(mut self, prp1: u64, prp2: u64) -> Self {
        self.prp1 = prp1;
        self.prp2 = prp2;
        self
    }

    /// CDW10 and CDW11 as one number: the starting LBA of I/O commands.
    #[inline]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw10) | u64::from(self.cdw11) << 32
    }

    /// Sets the starting LBA, in CDW10 and CDW11.
    #[inline]
    pub fn with_slba(mut self, slba: u64) -> Self {
        self.cdw10 = slba as u32;
        self.cdw11 = (slba >> 32) as u32;
        self
    }
}
