//! The messages as they lie on the wire, little-endian. Those derived from VFIO's have its names (`linux/vfio.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What every message begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MessageHeader {
    /// Chosen by who asks, repeated by who answers.
    pub id: u16,
    /// One of [`command`].
    pub command: u16,
    /// Bytes of the whole message, this header included.
    pub size: u32,
    /// See [`header_flags`].
    pub flags: u32,
    /// In a reply that says so, why the command failed: a UNIX errno, or 0.
    pub error: u32,
}

/// Bits of [`MessageHeader::flags`].
pub mod header_flags {
    /// The kind of message: 0 is a command.
    pub const TYPE: u32 = 0xf;
    /// The kind of a reply.
    pub const REPLY: u32 = 1;
    /// In a command: no reply is wanted.
    pub const NO_REPLY: u32 = 1 << 4;
    /// In a reply: the command failed.
    pub const ERROR: u32 = 1 << 5;
}

/// Values of [`MessageHeader::command`].
#[allow(missing_docs, reason = "named after the specification's")]
pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DMA_READ: u16 = 11;
    pub const DMA_WRITE: u16 = 12;
    pub const DEVICE_RESET: u16 = 13;
    pub const DIRTY_PAGES: u16 = 14;
    pub const REGION_WRITE_MULTI: u16 = 15;
    pub const DEVICE_FEATURE: u16 = 16;
}

/// Version: followed by JSON and a NUL, or by nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VersionHeader {
    /// Equal on both sides.
    pub major: u16,
    /// The lower of the two counts.
    pub minor: u16,
}

/// DMA Map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: u32,
    /// See [`dma_flags`].
    pub flags: u32,
    /// Offset in the file that comes with the message, bytes.
    pub offset: u64,
    /// First I/O virtual address.
    pub addr: u64,
    /// Length, bytes.
    pub size: u64,
}

/// Bits of [`DmaMap::flags`].
pub mod dma_flags {
    /// The device may read.
    pub const READ: u32 = 1;
    /// The device may write.
    pub const WRITE: u32 = 2;
}

/// DMA Unmap; dirty bitmaps are not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of this structure.
    pub argsz: u32,
    /// See [`unmap_flags`].
    pub flags: u32,
    /// First I/O virtual address.
    pub addr: u64,
    /// Length, bytes.
    pub size: u64,
}

/// Bits of [`DmaUnmap::flags`].
pub mod unmap_flags {
    /// A bitmap of the pages that the device wrote is wanted.
    pub const GET_DIRTY_BITMAP: u32 = 1;
    /// Everything; address and size are zero.
    pub const ALL: u32 = 2;
}

/// Get Info.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// See [`device_flags`].
    pub flags: u32,
    /// Regions there are.
    pub num_regions: u32,
    /// Interrupt types there are.
    pub num_irqs: u32,
}

/// Bits of [`DeviceInfo::flags`].
pub mod device_flags {
    /// Device Reset is supported.
    pub const RESET: u32 = 1;
    /// The device is a PCI device.
    pub const PCI: u32 = 2;
}

/// Get Region Info; in an answer, capabilities may follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionInfo {
    /// In a request, the most bytes that the answer may have, from here on; in an answer, those that all of it needs.
    pub argsz: u32,
    /// See [`region_flags`].
    pub flags: u32,
    /// Which region, see [`region`].
    pub index: u32,
    /// Where the first capability begins, from the beginning of this structure; 0 for none.
    pub cap_offset: u32,
    /// Length of the region, bytes.
    pub size: u64,
    /// Where the region begins in the file that comes with the answer, bytes.
    pub offset: u64,
}

/// Bits of [`RegionInfo::flags`].
pub mod region_flags {
    /// The region can be read.
    pub const READ: u32 = 1;
    /// The region can be written.
    pub const WRITE: u32 = 2;
    /// The region can be mapped, in part if a capability says so.
    pub const MMAP: u32 = 4;
    /// There are capabilities.
    pub const CAPS: u32 = 8;
}

/// Regions of a PCI device.
pub mod region {
    /// BAR0; the other BARs follow it.
    pub const BAR0: u32 = 0;
    /// BAR4.
    pub const BAR4: u32 = 4;
    /// The expansion ROM.
    pub const ROM: u32 = 6;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// How many there are, legacy VGA included.
    pub const COUNT: u32 = 9;
}

/// Interrupt types of a PCI device.
pub mod irq {
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// Errors of the device.
    pub const ERRORS: u32 = 3;
    /// How many there are: INTx, MSI, MSI-X, errors, requests.
    pub const COUNT: u32 = 5;
}

/// What a capability begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CapabilityHeader {
    /// Which; 1 lists the areas that can be mapped.
    pub id: u16,
    /// Version of its layout.
    pub version: u16,
    /// Where the next begins, as [`RegionInfo::cap_offset`]; 0 for none.
    pub next: u32,
}

/// [`CapabilityHeader::id`] of the list of areas that can be mapped.
pub const CAP_SPARSE_MMAP: u16 = 1;

/// After its header, what that capability begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SparseAreasHeader {
    /// Areas that follow.
    pub nr_areas: u32,
    /// Zero.
    pub reserved: u32,
}

/// Part of a region that can be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MappableArea {
    /// Where the area begins in the region, in bytes. In the file it begins [`RegionInfo::offset`] further.
    pub offset: u64,
    /// Length, bytes.
    pub size: u64,
}

/// Get IRQ Info.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// See [`irq_flags`].
    pub flags: u32,
    /// Which type, see [`irq`].
    pub index: u32,
    /// Vectors there are.
    pub count: u32,
}

/// Bits of [`IrqInfo::flags`].
pub mod irq_flags {
    /// Signalled through eventfds.
    pub const EVENTFD: u32 = 1;
    /// Can be masked by Set IRQs.
    pub const MASKABLE: u32 = 2;
}

/// Set IRQs; a byte for each vector may follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSet {
    /// Bytes of this structure and what follows.
    pub argsz: u32,
    /// See [`irq_set_flags`].
    pub flags: u32,
    /// Which type, see [`irq`].
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Vectors.
    pub count: u32,
}

/// Bits of [`IrqSet::flags`]: one of the first three, and one of the others.
#[allow(missing_docs, reason = "named after the specification's")]
pub mod irq_set_flags {
    pub const DATA_NONE: u32 = 1;
    pub const DATA_BOOL: u32 = 2;
    pub const DATA_EVENTFD: u32 = 4;
    pub const ACTION_MASK: u32 = 8;
    pub const ACTION_UNMASK: u32 = 16;
    pub const ACTION_TRIGGER: u32 = 32;
}

/// Region Read and Region Write: data follows in the answer to the one, and in the request of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    /// Offset in the region, bytes.
    pub offset: u64,
    /// Which, see [`region`].
    pub region: u32,
    /// Bytes.
    pub count: u32,
}

/// DMA Read and DMA Write, from the server: data follows in the answer to the one, and in the request of the other. (QEMU 11's client
/// has the data of its answers 4 bytes further ahead.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaAccess {
    /// I/O virtual address.
    pub addr: u64,
    /// Bytes.
    pub count: u64,
}

const _: () = {
    assert!(size_of::<DmaAccess>() == 16);
    assert!(size_of::<MessageHeader>() == 16 && size_of::<DmaMap>() == 32 && size_of::<DmaUnmap>() == 24);
    assert!(size_of::<DeviceInfo>() == 16 && size_of::<RegionInfo>() == 32 && size_of::<IrqInfo>() == 16);
    assert!(size_of::<IrqSet>() == 20 && size_of::<RegionAccess>() == 16 && size_of::<CapabilityHeader>() == 8);
};
