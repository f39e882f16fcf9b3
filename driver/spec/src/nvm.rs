//! Command dwords of the NVM command set (NVM Command Set 1.0, 3, and NVMe Base 2.0, 7; NVMe 1.4, 6).

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// CDW12 of Read, Write, Compare and Verify (NVM Command Set 1.0, 3.2.4, 3.2.6, 3.2.1 and 3.2.5; NVMe 1.4, 6.9, 6.15,
/// 6.6 and 6.14).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RwCdw12 {
    /// Number of Logical Blocks, 0's based.
    pub nlb_z: u16,
    #[bits(4)]
    __: u8,
    /// Directive Type, of Write only.
    #[bits(4)]
    pub dtype: u8,
    /// Storage Tag Check (2.0).
    pub stc: bool,
    __: bool,
    /// Protection Information Field: action and checks.
    #[bits(4)]
    pub prinfo: u8,
    /// Force Unit Access: a write is on the media when it completes, a read comes from there.
    pub fua: bool,
    /// Limited Retry.
    pub lr: bool,
}

/// CDW13 of Read and Write (NVM Command Set 1.0, 3.2.4 and 3.2.6; NVMe 1.4, 6.9 and 6.15).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RwCdw13 {
    /// Access Frequency.
    #[bits(4)]
    pub access_frequency: u8,
    /// Access Latency.
    #[bits(2)]
    pub access_latency: u8,
    /// Sequential Request.
    pub sequential: bool,
    /// Incompressible.
    pub incompressible: bool,
    __: u8,
    /// Directive Specific, of Write only.
    pub dspec: u16,
}

/// CDW12 of Write Zeroes (NVM Command Set 1.0, 3.2.8; NVMe 1.4, 6.17).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WriteZeroesCdw12 {
    /// Number of Logical Blocks, 0's based.
    pub nlb_z: u16,
    __: u8,
    /// Storage Tag Check (2.0).
    pub stc: bool,
    /// Deallocate the blocks where the controller can.
    pub deac: bool,
    /// Protection Information Field: action and checks.
    #[bits(4)]
    pub prinfo: u8,
    /// Force Unit Access.
    pub fua: bool,
    /// Limited Retry.
    pub lr: bool,
}

/// CDW10 of Dataset Management (NVM Command Set 1.0, 3.2.3; NVMe 1.4, 6.7).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DsmCdw10 {
    /// Number of Ranges, 0's based: 1 to 256 of [`DsmRange`].
    pub nr_z: u8,
    #[bits(24)]
    __: u32,
}

/// CDW11 of Dataset Management (NVM Command Set 1.0, 3.2.3; NVMe 1.4, 6.7).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DsmCdw11 {
    /// Attribute – Integral Dataset for Read.
    pub idr: bool,
    /// Attribute – Integral Dataset for Write.
    pub idw: bool,
    /// Attribute – Deallocate.
    pub ad: bool,
    #[bits(29)]
    __: u32,
}

/// A range of Dataset Management, 16 bytes (NVM Command Set 1.0, 3.2.3; NVMe 1.4, 6.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DsmRange {
    /// Context Attributes, 0 for none.
    pub context_attributes: u32,
    /// Length in logical blocks; *not* 0's based.
    pub nlb: u32,
    /// Starting LBA.
    pub slba: u64,
}

const _: () = assert!(size_of::<DsmRange>() == 16);

impl DsmRange {
    /// Most ranges that one command carries.
    pub const MAX_COUNT: usize = 256;

    /// A range without context attributes.
    pub const fn new(slba: u64, nlb: u32) -> Self {
        Self { context_attributes: 0, nlb, slba }
    }
}
