//! Identify Namespace of the NVM command set.

use bitfield_struct::bitfield;
use core::fmt;
use zerocopy::little_endian::U128;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Namespace Features, NSFEAT (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nsfeat {
    /// Thin provisioning.
    pub thinp: bool,
    /// NAWUN, NAWUPF and NACWU are this namespace's own.
    pub nsabp: bool,
    /// Deallocated or Unwritten Logical Block error is supported.
    pub dae: bool,
    /// NGUID and EUI64 are never used again.
    pub uidreuse: bool,
    /// NPWG, NPWA, NPDG, NPDA and NOWS hold.
    pub optperf: bool,
    #[bits(3)]
    __: u8,
}

/// Formatted LBA Size, FLBAS (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Flbas {
    /// Bits 3:0 of the format index.
    #[bits(4)]
    pub index_lower: u8,
    /// Metadata is transferred at the end of each LBA rather than in a buffer of its own.
    pub extended: bool,
    /// Bits 5:4 of the format index; counts only where there are more than 16 formats (2.0).
    #[bits(2)]
    pub index_upper: u8,
    __: bool,
}

/// Metadata Capabilities, MC (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Mc {
    /// Metadata may be transferred at the end of each LBA.
    pub extended: bool,
    /// Metadata may be transferred in a buffer of its own.
    pub separate: bool,
    #[bits(6)]
    __: u8,
}

/// End-to-end Data Protection Capabilities, DPC (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Dpc {
    /// Protection Information Type 1.
    pub pi1: bool,
    /// Protection Information Type 2.
    pub pi2: bool,
    /// Protection Information Type 3.
    pub pi3: bool,
    /// Protection information may be the first bytes of the metadata.
    pub first: bool,
    /// Protection information may be the last bytes of the metadata.
    pub last: bool,
    #[bits(3)]
    __: u8,
}

/// End-to-end Data Protection Type Settings, DPS (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Dps {
    /// Protection Information Type in force, 0 for none.
    #[bits(3)]
    pub pit: u8,
    /// Protection information is the first bytes of the metadata.
    pub first: bool,
    #[bits(4)]
    __: u8,
}

/// Namespace Multi-path I/O and Namespace Sharing Capabilities, NMIC (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nmic {
    /// Two or more controllers may have the namespace attached.
    pub shared: bool,
    #[bits(7)]
    __: u8,
}

/// Format Progress Indicator, FPI (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Fpi {
    /// Percentage of the namespace that remains to be formatted; 0 where no format is in progress.
    #[bits(7)]
    pub remaining: u8,
    /// The indicator is supported.
    pub supported: bool,
}

/// Deallocate Logical Block Features, DLFEAT (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Dlfeat {
    /// What a deallocated block reads as: 0 not reported, 1 all 00h, 2 all FFh.
    #[bits(3)]
    pub read_value: u8,
    /// Write Zeroes supports its Deallocate bit.
    pub write_zeroes_deallocate: bool,
    /// The guard field of a deallocated block is the CRC of its value rather than FFFFh.
    pub guard_crc: bool,
    #[bits(3)]
    __: u8,
}

/// Namespace Attributes, NSATTR (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nsattr {
    /// The namespace is write protected.
    pub write_protected: bool,
    #[bits(7)]
    __: u8,
}

/// LBA Format, 4 bytes (NVM Command Set 1.0, 4.1.5.1, figure "LBA Format Data Structure"; NVMe 1.4, 5.15.2.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LbaFormat {
    /// Metadata Size in bytes per LBA.
    pub ms: u16,
    /// LBA Data Size as a power of two; below 9 is not supported, 0 marks a format that is not available.
    pub lbads: u8,
    /// Relative Performance: 0 best, 1 better, 2 good, 3 degraded.
    #[bits(2)]
    pub rp: u8,
    #[bits(6)]
    __: u8,
}

impl LbaFormat {
    /// Data bytes of an LBA, 512 to 2^31; `None` for a format that is not available or that no device can mean.
    pub const fn lba_bytes(self) -> Option<u32> {
        match self.lbads() {
            9..=31 => Some(1 << self.lbads()),
            _ => None,
        }
    }
}

impl fmt::Display for LbaFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lba_bytes() {
            Some(bytes) if self.ms() == 0 => write!(f, "{bytes} B"),
            Some(bytes) => write!(f, "{bytes} B + {} B metadata", self.ms()),
            None => write!(f, "not available (LBADS {})", self.lbads()),
        }
    }
}

/// Identify Namespace of the NVM command set, 4096 bytes (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1). Fields that
/// 1.4 reserves read as zero from a 1.4 controller. An inactive namespace is all zeros.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size in logical blocks.
    pub nsze: u64,
    /// Namespace Capacity: most logical blocks that may be allocated at a time.
    pub ncap: u64,
    /// Namespace Utilization: logical blocks allocated now.
    pub nuse: u64,
    /// Namespace Features.
    pub nsfeat: Nsfeat,
    /// Number of LBA Formats, 0's based: at most 15 in 1.4, 63 in 2.0.
    pub nlbaf_z: u8,
    /// Formatted LBA Size.
    pub flbas: Flbas,
    /// Metadata Capabilities.
    pub mc: Mc,
    /// End-to-end Data Protection Capabilities.
    pub dpc: Dpc,
    /// End-to-end Data Protection Type Settings.
    pub dps: Dps,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities.
    pub nmic: Nmic,
    /// Reservation Capabilities.
    pub rescap: u8,
    /// Format Progress Indicator.
    pub fpi: Fpi,
    /// Deallocate Logical Block Features.
    pub dlfeat: Dlfeat,
    /// Namespace Atomic Write Unit Normal in logical blocks, 0's based.
    pub nawun_z: u16,
    /// Namespace Atomic Write Unit Power Fail in logical blocks, 0's based.
    pub nawupf_z: u16,
    /// Namespace Atomic Compare & Write Unit in logical blocks, 0's based.
    pub nacwu_z: u16,
    /// Namespace Atomic Boundary Size Normal in logical blocks, 0's based; 0 for no boundaries.
    pub nabsn_z: u16,
    /// Namespace Atomic Boundary Offset: the LBA where boundaries start.
    pub nabo: u16,
    /// Namespace Atomic Boundary Size Power Fail in logical blocks, 0's based; 0 for no boundaries.
    pub nabspf_z: u16,
    /// Namespace Optimal I/O Boundary in logical blocks; 0 where not reported.
    pub noiob: u16,
    /// NVM Capacity in bytes.
    pub nvmcap: U128,
    /// Namespace Preferred Write Granularity in logical blocks, 0's based.
    pub npwg_z: u16,
    /// Namespace Preferred Write Alignment in logical blocks, 0's based.
    pub npwa_z: u16,
    /// Namespace Preferred Deallocate Granularity in logical blocks, 0's based.
    pub npdg_z: u16,
    /// Namespace Preferred Deallocate Alignment in logical blocks, 0's based.
    pub npda_z: u16,
    /// Namespace Optimal Write Size in logical blocks, 0's based.
    pub nows_z: u16,
    /// Maximum Single Source Range Length of Copy in logical blocks (2.0).
    pub mssrl: u16,
    /// Maximum Copy Length in logical blocks (2.0).
    pub mcl: u32,
    /// Maximum Source Range Count of Copy, 0's based (2.0).
    pub msrc_z: u8,
    #[doc(hidden)]
    pub reserved_81: [u8; 11],
    /// ANA Group Identifier.
    pub anagrpid: u32,
    #[doc(hidden)]
    pub reserved_96: [u8; 3],
    /// Namespace Attributes.
    pub nsattr: Nsattr,
    /// NVM Set Identifier.
    pub nvmsetid: u16,
    /// Endurance Group Identifier.
    pub endgid: u16,
    /// Namespace Globally Unique Identifier, big endian; zeros where there is none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, big endian; zeros where there is none.
    pub eui64: [u8; 8],
    /// LBA Formats. Those past [`nlbaf_z`](Self::nlbaf_z) do not hold; 1.4 has the first 16.
    pub lbaf: [LbaFormat; 64],
    /// Vendor Specific (1.4 also reserves bytes 192 to 383, which the later LBA formats took).
    pub vendor: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == 4096);

impl IdentifyNamespace {
    /// Index of the LBA format that the namespace is formatted with, 0 to 63.
    pub const fn format_index(&self) -> u8 {
        let lower = self.flbas.index_lower();
        if self.nlbaf_z < 16 { lower } else { self.flbas.index_upper() << 4 | lower }
    }

    /// The LBA format that the namespace is formatted with; `None` where the device names one that it does not offer.
    pub fn format(&self) -> Option<LbaFormat> {
        let index = self.format_index();
        (index <= self.nlbaf_z).then(|| self.lbaf.get(usize::from(index)).copied()).flatten()
    }

    /// The LBA formats that can be chosen, each with its index: those the device counts and calls available.
    pub fn formats(&self) -> impl Iterator<Item = (u8, LbaFormat)> + '_ {
        (0..=self.nlbaf_z).zip(self.lbaf.iter().copied()).filter(|(_, format)| format.lba_bytes().is_some())
    }

    /// Bytes of user data that the namespace holds; `None` where its format is not valid or the product passes 64 bits.
    pub fn size_bytes(&self) -> Option<u64> {
        self.nsze.checked_mul(self.format()?.lba_bytes()?.into())
    }

    /// Whether the namespace exists and is attached: an inactive one is all zeros.
    pub const fn is_active(&self) -> bool {
        self.nsze != 0
    }
}

impl fmt::Debug for IdentifyNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyNamespace")
            .field("nsze", &self.nsze)
            .field("ncap", &self.ncap)
            .field("nuse", &self.nuse)
            .field("nlbaf_z", &self.nlbaf_z)
            .field("flbas", &self.flbas)
            .field("format", &self.format())
            .field("fpi", &self.fpi)
            .finish_non_exhaustive()
    }
}
