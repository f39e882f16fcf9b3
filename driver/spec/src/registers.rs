//! Controller registers (properties), mapped by BAR0 (NVMe Base 2.0, 3.1.3; NVMe 1.4, 3.1).

use bitfield_struct::bitfield;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::open_enum::open_enum;

/// Byte offsets of the registers in BAR0 (NVMe Base 2.0, 3.1.3, figure "Property Definition"; NVMe 1.4, 3.1).
pub mod offset {
    /// Controller Capabilities, 8 bytes, [`Cap`](super::Cap).
    pub const CAP: u64 = 0x00;
    /// Version, 4 bytes, [`Vs`](super::Vs).
    pub const VS: u64 = 0x08;
    /// Interrupt Mask Set, 4 bytes.
    pub const INTMS: u64 = 0x0c;
    /// Interrupt Mask Clear, 4 bytes.
    pub const INTMC: u64 = 0x10;
    /// Controller Configuration, 4 bytes, [`Cc`](super::Cc).
    pub const CC: u64 = 0x14;
    /// Controller Status, 4 bytes, [`Csts`](super::Csts).
    pub const CSTS: u64 = 0x1c;
    /// NVM Subsystem Reset, 4 bytes, [`Nssr`](super::Nssr).
    pub const NSSR: u64 = 0x20;
    /// Admin Queue Attributes, 4 bytes, [`Aqa`](super::Aqa).
    pub const AQA: u64 = 0x24;
    /// Admin Submission Queue Base Address, 8 bytes.
    pub const ASQ: u64 = 0x28;
    /// Admin Completion Queue Base Address, 8 bytes.
    pub const ACQ: u64 = 0x30;
    /// Controller Memory Buffer Location, 4 bytes, [`Cmbloc`](super::Cmbloc).
    pub const CMBLOC: u64 = 0x38;
    /// Controller Memory Buffer Size, 4 bytes, [`Cmbsz`](super::Cmbsz).
    pub const CMBSZ: u64 = 0x3c;
    /// Boot Partition Information, 4 bytes.
    pub const BPINFO: u64 = 0x40;
    /// Boot Partition Read Select, 4 bytes.
    pub const BPRSEL: u64 = 0x44;
    /// Boot Partition Memory Buffer Location, 8 bytes.
    pub const BPMBL: u64 = 0x48;
    /// Controller Memory Buffer Memory Space Control, 8 bytes, [`Cmbmsc`](super::Cmbmsc).
    pub const CMBMSC: u64 = 0x50;
    /// Controller Memory Buffer Status, 4 bytes.
    pub const CMBSTS: u64 = 0x58;
    /// Controller Memory Buffer Elasticity Buffer Size, 4 bytes (2.0).
    pub const CMBEBS: u64 = 0x5c;
    /// Controller Memory Buffer Sustained Write Throughput, 4 bytes (2.0).
    pub const CMBSWTP: u64 = 0x60;
    /// NVM Subsystem Shutdown, 4 bytes (2.0).
    pub const NSSD: u64 = 0x64;
    /// Controller Ready Timeouts, 4 bytes, [`Crto`](super::Crto) (2.0).
    pub const CRTO: u64 = 0x68;
    /// Persistent Memory Region Capabilities, 4 bytes.
    pub const PMRCAP: u64 = 0xe00;
    /// Persistent Memory Region Control, 4 bytes.
    pub const PMRCTL: u64 = 0xe04;
    /// Persistent Memory Region Status, 4 bytes.
    pub const PMRSTS: u64 = 0xe08;
    /// Persistent Memory Region Elasticity Buffer Size, 4 bytes.
    pub const PMREBS: u64 = 0xe0c;
    /// Persistent Memory Region Sustained Write Throughput, 4 bytes.
    pub const PMRSWTP: u64 = 0xe10;
    /// Persistent Memory Region Memory Space Control, lower 4 bytes.
    pub const PMRMSCL: u64 = 0xe14;
    /// Persistent Memory Region Memory Space Control, upper 4 bytes.
    pub const PMRMSCU: u64 = 0xe18;
    /// The first doorbell: the tail of the admin submission queue.
    pub const DOORBELLS: u64 = 0x1000;
}

/// Byte offset in BAR0 of the tail doorbell of submission queue `qid`; `dstrd` is [`Cap::dstrd`] (NVMe PCIe Transport
/// 1.0, 3.1.2.1; NVMe 1.4, 3.1.24).
pub const fn sq_tail_doorbell(qid: u16, dstrd: u8) -> u64 {
    offset::DOORBELLS + 2 * qid as u64 * doorbell_stride(dstrd)
}

/// Byte offset in BAR0 of the head doorbell of completion queue `qid`; `dstrd` is [`Cap::dstrd`] (NVMe PCIe Transport
/// 1.0, 3.1.2.2; NVMe 1.4, 3.1.25).
pub const fn cq_head_doorbell(qid: u16, dstrd: u8) -> u64 {
    offset::DOORBELLS + (2 * qid as u64 + 1) * doorbell_stride(dstrd)
}

/// Bytes from one doorbell to the next: 2^(2 + DSTRD), with DSTRD of 4 bits.
const fn doorbell_stride(dstrd: u8) -> u64 {
    4 << (dstrd & 0xf)
}

/// Controller Capabilities (NVMe Base 2.0, 3.1.3.1; NVMe 1.4, 3.1.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cap {
    /// Maximum Queue Entries Supported by an I/O queue, 0's based (1 to 65,535: at least two entries).
    pub mqes_z: u16,
    /// Contiguous Queues Required.
    pub cqr: bool,
    /// Arbitration Mechanism Supported: weighted round robin with urgent priority class.
    pub ams_wrr: bool,
    /// Arbitration Mechanism Supported: vendor specific.
    pub ams_vendor: bool,
    #[bits(5)]
    __: u8,
    /// Timeout: worst-case wait for CSTS.RDY to follow CC.EN, in 500 ms.
    pub to: u8,
    /// Doorbell Stride: doorbells stand 2^(2 + DSTRD) bytes apart.
    #[bits(4)]
    pub dstrd: u8,
    /// NVM Subsystem Reset Supported.
    pub nssrs: bool,
    /// Command Sets Supported: the NVM command set.
    pub css_nvm: bool,
    #[bits(5)]
    __: u8,
    /// Command Sets Supported: one or more I/O command sets, chosen by CC.CSS = 110b (2.0).
    pub css_iocs: bool,
    /// Command Sets Supported: no I/O command set, only the admin command set.
    pub css_noio: bool,
    /// Boot Partition Support.
    pub bps: bool,
    /// Controller Power Scope (2.0).
    #[bits(2)]
    pub cps: u8,
    /// Memory Page Size Minimum: 2^(12 + MPSMIN) bytes.
    #[bits(4)]
    pub mpsmin: u8,
    /// Memory Page Size Maximum: 2^(12 + MPSMAX) bytes.
    #[bits(4)]
    pub mpsmax: u8,
    /// Persistent Memory Region Supported.
    pub pmrs: bool,
    /// Controller Memory Buffer Supported.
    pub cmbs: bool,
    /// NVM Subsystem Shutdown Supported (2.0).
    pub nsss: bool,
    /// Controller Ready With Media Support: CRTO.CRWMT holds (2.0).
    pub crwms: bool,
    /// Controller Ready Independent of Media Support: CC.CRIME and CRTO.CRIMT hold (2.0).
    pub crims: bool,
    #[bits(3)]
    __: u8,
}

impl Cap {
    /// Entries the largest I/O queue may have, 1 to 65,536 (a device that says 1 is out of spec).
    pub const fn max_queue_entries(self) -> u32 {
        self.mqes_z() as u32 + 1
    }

    /// Bytes from one doorbell to the next: 4 to 128 Ki.
    pub const fn doorbell_stride(self) -> u64 {
        doorbell_stride(self.dstrd())
    }

    /// Smallest memory page in bytes: 4 KiB to 128 MiB.
    pub const fn min_page_bytes(self) -> u64 {
        1 << (12 + self.mpsmin())
    }

    /// Largest memory page in bytes: 4 KiB to 128 MiB.
    pub const fn max_page_bytes(self) -> u64 {
        1 << (12 + self.mpsmax())
    }

    /// How long CSTS.RDY may take to become 0 after CC.EN was cleared, in ms (NVMe Base 2.0, 3.1.3.5; NVMe 1.4, 3.1.5).
    pub const fn disable_timeout_ms(self) -> u32 {
        self.to() as u32 * 500
    }

    /// How long CSTS.RDY may take to become 1 after CC.EN was set, in ms. A controller with a CRTO register may need
    /// longer than CAP.TO can say; `crto` is ignored where the controller has none, and `crime` is the value written to
    /// CC.CRIME (NVMe Base 2.0, 3.1.3.1 and 3.1.3.21).
    pub const fn enable_timeout_ms(self, crto: Crto, crime: bool) -> u32 {
        let units = if self.crims() && crime {
            crto.crimt()
        } else if self.crwms() {
            crto.crwmt()
        } else {
            0
        };
        let to = self.to() as u32;
        500 * if units as u32 > to { units as u32 } else { to }
    }
}

/// Version (NVMe Base 2.0, 3.1.3.2; NVMe 1.4, 3.1.2). Ordered as versions are.
#[bitfield(u32)]
#[derive(PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Vs {
    /// Tertiary version number.
    pub ter: u8,
    /// Minor version number.
    pub mnr: u8,
    /// Major version number.
    pub mjr: u16,
}

impl Vs {
    /// NVM Express 1.4.
    pub const V1_4: Self = Self::new().with_mjr(1).with_mnr(4);
    /// NVM Express Base 2.0.
    pub const V2_0: Self = Self::new().with_mjr(2);
}

impl fmt::Display for Vs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.mjr(), self.mnr(), self.ter())
    }
}

open_enum! {
    /// I/O Command Set Selected, CC.CSS (NVMe Base 2.0, 3.1.3.5; NVMe 1.4, 3.1.5).
    CommandSetSelected {
        NVM = 0 "NVM command set",
        ALL_SUPPORTED = 6 "all supported I/O command sets",
        ADMIN_ONLY = 7 "admin command set only",
    }
}

open_enum! {
    /// Arbitration Mechanism Selected, CC.AMS (NVMe Base 2.0, 3.1.3.5 and 3.4.4; NVMe 1.4, 3.1.5 and 4.13).
    Arbitration {
        ROUND_ROBIN = 0 "round robin",
        WEIGHTED_ROUND_ROBIN = 1 "weighted round robin with urgent priority class",
        VENDOR = 7 "vendor specific",
    }
}

open_enum! {
    /// Shutdown Notification, CC.SHN (NVMe Base 2.0, 3.1.3.5; NVMe 1.4, 3.1.5).
    ShutdownNotification {
        NONE = 0 "no notification",
        NORMAL = 1 "normal shutdown",
        ABRUPT = 2 "abrupt shutdown",
    }
}

open_enum! {
    /// Shutdown Status, CSTS.SHST (NVMe Base 2.0, 3.1.3.6; NVMe 1.4, 3.1.6).
    ShutdownStatus {
        NORMAL = 0 "normal operation",
        OCCURRING = 1 "shutdown processing occurring",
        COMPLETE = 2 "shutdown processing complete",
    }
}

/// Controller Configuration (NVMe Base 2.0, 3.1.3.5; NVMe 1.4, 3.1.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cc {
    /// Enable.
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// I/O Command Set Selected.
    #[bits(3)]
    pub css: CommandSetSelected,
    /// Memory Page Size: 2^(12 + MPS) bytes.
    #[bits(4)]
    pub mps: u8,
    /// Arbitration Mechanism Selected.
    #[bits(3)]
    pub ams: Arbitration,
    /// Shutdown Notification.
    #[bits(2)]
    pub shn: ShutdownNotification,
    /// I/O Submission Queue Entry Size, as a power of two (6: 64 bytes).
    #[bits(4)]
    pub iosqes: u8,
    /// I/O Completion Queue Entry Size, as a power of two (4: 16 bytes).
    #[bits(4)]
    pub iocqes: u8,
    /// Controller Ready Independent of Media Enable (2.0).
    pub crime: bool,
    #[bits(7)]
    __: u8,
}

impl Cc {
    /// Memory page in bytes: 4 KiB to 128 MiB.
    pub const fn page_bytes(self) -> u64 {
        1 << (12 + self.mps())
    }
}

/// Controller Status (NVMe Base 2.0, 3.1.3.6; NVMe 1.4, 3.1.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Csts {
    /// Ready.
    pub rdy: bool,
    /// Controller Fatal Status.
    pub cfs: bool,
    /// Shutdown Status.
    #[bits(2)]
    pub shst: ShutdownStatus,
    /// NVM Subsystem Reset Occurred; written 1 to clear.
    pub nssro: bool,
    /// Processing Paused.
    pub pp: bool,
    /// Shutdown Type: the shutdown that SHST tells of is one of the whole NVM subsystem (2.0).
    pub st: bool,
    #[bits(25)]
    __: u32,
}

impl Csts {
    /// What a read returns when the device is gone or does not decode memory: all ones, which no controller reports.
    pub const ABSENT: Self = Self::from_bits(u32::MAX);

    /// Whether this is the all-ones value of a device that does not answer.
    pub const fn is_absent(self) -> bool {
        self.into_bits() == u32::MAX
    }
}

/// NVM Subsystem Reset (NVMe Base 2.0, 3.1.3.7; NVMe 1.4, 3.1.7). Reads as zero.
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Nssr {
    /// NVM Subsystem Reset Control: 4E564D65h starts a reset, anything else does nothing.
    pub nssrc: u32,
}

impl Nssr {
    /// "NVMe": the value that starts an NVM subsystem reset.
    pub const RESET: Self = Self::from_bits(0x4e56_4d65);
}

/// Admin Queue Attributes (NVMe Base 2.0, 3.1.3.8; NVMe 1.4, 3.1.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Aqa {
    /// Admin Submission Queue Size in entries, 0's based (1 to 4,095: at least two entries).
    #[bits(12)]
    pub asqs_z: u16,
    #[bits(4)]
    __: u8,
    /// Admin Completion Queue Size in entries, 0's based (1 to 4,095: at least two entries).
    #[bits(12)]
    pub acqs_z: u16,
    #[bits(4)]
    __: u8,
}

/// Controller Memory Buffer Location (NVMe Base 2.0, 3.1.3.11; NVMe 1.4, 3.1.11).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cmbloc {
    /// Base Indicator Register: the BAR that holds the buffer.
    #[bits(3)]
    pub bir: u8,
    /// CMB Queue Mixed Memory Support.
    pub cqmms: bool,
    /// CMB Queue Physically Discontiguous Support.
    pub cqpds: bool,
    /// CMB Data Pointer Mixed Locations Support.
    pub cdpmls: bool,
    /// CMB Data Pointer and Command Independent Locations Support.
    pub cdpcils: bool,
    /// CMB Data Metadata Mixed Memory Support.
    pub cdmmms: bool,
    /// CMB Queue Dword Alignment.
    pub cqda: bool,
    #[bits(3)]
    __: u8,
    /// Offset of the buffer in the BAR, in the units of [`Cmbsz::unit_bytes`].
    #[bits(20)]
    pub ofst: u32,
}

/// Controller Memory Buffer Size (NVMe Base 2.0, 3.1.3.12; NVMe 1.4, 3.1.12).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cmbsz {
    /// Submission Queue Support.
    pub sqs: bool,
    /// Completion Queue Support.
    pub cqs: bool,
    /// PRP SGL List Support.
    pub lists: bool,
    /// Read Data Support.
    pub rds: bool,
    /// Write Data Support.
    pub wds: bool,
    #[bits(3)]
    __: u8,
    /// Size Units: 4 KiB × 16^SZU; 7 and above are reserved.
    #[bits(4)]
    pub szu: u8,
    /// Size of the buffer in size units.
    #[bits(20)]
    pub sz: u32,
}

impl Cmbsz {
    /// Bytes of one size unit, 4 KiB to 64 GiB; `None` where SZU is reserved.
    pub const fn unit_bytes(self) -> Option<u64> {
        if self.szu() <= 6 { Some(4096 << (4 * self.szu() as u32)) } else { None }
    }
}

/// Controller Memory Buffer Memory Space Control (NVMe Base 2.0, 3.1.3.16; NVMe 1.4, 3.1.16).
#[bitfield(u64)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cmbmsc {
    /// Capabilities Registers Enabled: CMBLOC and CMBSZ hold.
    pub cre: bool,
    /// Controller Memory Space Enable.
    pub cmse: bool,
    #[bits(10)]
    __: u16,
    /// Controller Base Address, bits 63 to 12.
    #[bits(52)]
    pub cba: u64,
}

/// Controller Ready Timeouts (NVMe Base 2.0, 3.1.3.21; not in NVMe 1.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Crto {
    /// Controller Ready With Media Timeout, in 500 ms.
    pub crwmt: u16,
    /// Controller Ready Independent of Media Timeout, in 500 ms.
    pub crimt: u16,
}
