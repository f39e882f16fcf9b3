//! Identify Controller.

use bitfield_struct::bitfield;
use core::fmt;
use zerocopy::little_endian::U128;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii::Ascii;
use crate::open_enum::open_enum;
use crate::registers::Vs;

/// Controller Multi-path I/O and Namespace Sharing Capabilities, CMIC (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Cmic {
    /// The NVM subsystem may have more than one port.
    pub multiple_ports: bool,
    /// The NVM subsystem may have more than one controller.
    pub multiple_controllers: bool,
    /// The controller is of an SR-IOV virtual function.
    pub virtual_function: bool,
    /// Asymmetric Namespace Access reporting.
    pub ana: bool,
    #[bits(4)]
    __: u8,
}

/// Optional Asynchronous Events Supported, OAES (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Oaes {
    __: u8,
    /// Namespace Attribute Notices.
    pub namespace_attribute: bool,
    /// Firmware Activation Notices.
    pub firmware_activation: bool,
    __: bool,
    /// Asymmetric Namespace Access Change Notices.
    pub ana_change: bool,
    /// Predictable Latency Event Aggregate Log Change Notices.
    pub predictable_latency: bool,
    /// LBA Status Information Alert Notices.
    pub lba_status: bool,
    /// Endurance Group Event Aggregate Log Change Notices.
    pub endurance_group: bool,
    /// Normal NVM Subsystem Shutdown event (2.0).
    pub subsystem_shutdown: bool,
    #[bits(11)]
    __: u16,
    /// Zone Descriptor Changed Notices (2.0).
    pub zone_descriptor: bool,
    #[bits(3)]
    __: u8,
    /// Discovery Log Change Notices (2.0).
    pub discovery_log: bool,
}

/// Controller Attributes, CTRATT (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Ctratt {
    /// Host Identifier of 128 bits.
    pub hids: bool,
    /// Non-Operational Power State Permissive Mode.
    pub nopspm: bool,
    /// NVM Sets.
    pub nsets: bool,
    /// Read Recovery Levels.
    pub rrlvls: bool,
    /// Endurance Groups.
    pub egs: bool,
    /// Predictable Latency Mode.
    pub plm: bool,
    /// Traffic Based Keep Alive.
    pub tbkas: bool,
    /// Namespace Granularity.
    pub ng: bool,
    /// SQ Associations.
    pub sqa: bool,
    /// UUID List.
    pub ulist: bool,
    /// Multi-Domain Subsystem (2.0).
    pub mds: bool,
    /// Fixed Capacity Management (2.0).
    pub fcm: bool,
    /// Variable Capacity Management (2.0).
    pub vcm: bool,
    /// Delete Endurance Group (2.0).
    pub deg: bool,
    /// Delete NVM Set (2.0).
    pub dnvms: bool,
    /// Extended LBA Formats (2.0).
    pub elbas: bool,
    __: u16,
}

open_enum! {
    /// Controller Type, CNTRLTYPE (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
    ControllerType {
        NOT_REPORTED = 0 "not reported",
        IO = 1 "I/O controller",
        DISCOVERY = 2 "discovery controller",
        ADMINISTRATIVE = 3 "administrative controller",
    }
}

/// Optional Admin Command Support, OACS (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u16)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Oacs {
    /// Security Send and Security Receive.
    pub security: bool,
    /// Format NVM.
    pub format_nvm: bool,
    /// Firmware Commit and Firmware Image Download.
    pub firmware: bool,
    /// Namespace Management and Namespace Attachment.
    pub namespace_management: bool,
    /// Device Self-test.
    pub self_test: bool,
    /// Directives.
    pub directives: bool,
    /// NVMe-MI Send and NVMe-MI Receive.
    pub mi: bool,
    /// Virtualization Management.
    pub virtualization: bool,
    /// Doorbell Buffer Config.
    pub doorbell_buffer: bool,
    /// Get LBA Status.
    pub lba_status: bool,
    /// Command and Feature Lockdown (2.0).
    pub lockdown: bool,
    #[bits(5)]
    __: u8,
}

/// Firmware Updates, FRMW (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Frmw {
    /// Slot 1 is read only.
    pub slot1_read_only: bool,
    /// Number of slots, 1 to 7.
    #[bits(3)]
    pub slots: u8,
    /// Firmware is activated without a reset.
    pub activate_without_reset: bool,
    /// Overlapping firmware updates are detected (2.0).
    pub overlap_detection: bool,
    #[bits(2)]
    __: u8,
}

/// Log Page Attributes, LPA (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Lpa {
    /// SMART / Health Information per namespace.
    pub smart_per_namespace: bool,
    /// Commands Supported and Effects log page.
    pub commands_supported: bool,
    /// Extended data for Get Log Page: a dword count of 32 bits, and an offset.
    pub extended: bool,
    /// Telemetry log pages and notices.
    pub telemetry: bool,
    /// Persistent Event log.
    pub persistent_event: bool,
    /// Supported Log Pages, features and NVMe-MI effects logs (2.0).
    pub effects: bool,
    /// Telemetry Data Area 4 (2.0).
    pub telemetry_area_4: bool,
    __: bool,
}

/// Sanitize Capabilities, SANICAP (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Sanicap {
    /// Crypto Erase Support.
    pub ces: bool,
    /// Block Erase Support.
    pub bes: bool,
    /// Overwrite Support.
    pub ows: bool,
    #[bits(26)]
    __: u32,
    /// No-Deallocate Inhibited.
    pub ndi: bool,
    /// No-Deallocate Modifies Media After Sanitize.
    #[bits(2)]
    pub nodmmas: u8,
}

/// Submission or Completion Queue Entry Size, SQES and CQES (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct EntrySize {
    /// Required (least) entry size as a power of two.
    #[bits(4)]
    pub required: u8,
    /// Maximum entry size as a power of two.
    #[bits(4)]
    pub maximum: u8,
}

/// Optional NVM Command Support, ONCS (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u16)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Oncs {
    /// Compare.
    pub compare: bool,
    /// Write Uncorrectable.
    pub write_uncorrectable: bool,
    /// Dataset Management.
    pub dataset_management: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// Save of Set Features and Select of Get Features.
    pub save_select: bool,
    /// Reservations.
    pub reservations: bool,
    /// Timestamp feature.
    pub timestamp: bool,
    /// Verify.
    pub verify: bool,
    /// Copy (2.0).
    pub copy: bool,
    #[bits(7)]
    __: u8,
}

/// Fused Operation Support, FUSES (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u16)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Fuses {
    /// Compare and Write as a fused operation.
    pub compare_and_write: bool,
    #[bits(15)]
    __: u16,
}

/// Format NVM Attributes, FNA (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Fna {
    /// A format, other than a secure erase, reaches all namespaces rather than the one named.
    pub format_all: bool,
    /// A secure erase reaches all namespaces rather than the one named.
    pub erase_all: bool,
    /// Cryptographic erase is supported.
    pub crypto_erase: bool,
    /// Format NVM does *not* take the NSID of all namespaces (2.0).
    pub no_broadcast: bool,
    #[bits(4)]
    __: u8,
}

impl Fna {
    /// Whether a Format NVM that names one namespace reaches every namespace; `erase` where it asks for a secure erase.
    pub const fn reaches_all(self, erase: bool) -> bool {
        if erase { self.erase_all() } else { self.format_all() }
    }
}

open_enum! {
    /// What Flush does with the NSID of all namespaces, VWC bits 2:1 (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
    FlushBroadcast {
        NOT_INDICATED = 0 "not indicated",
        NOT_SUPPORTED = 2 "not supported",
        SUPPORTED = 3 "supported",
    }
}

/// Volatile Write Cache, VWC (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Vwc {
    /// A volatile write cache is present.
    pub present: bool,
    /// What Flush does with the NSID of all namespaces.
    #[bits(2)]
    pub broadcast: FlushBroadcast,
    #[bits(5)]
    __: u8,
}

/// SGL Support, SGLS (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Sgls {
    /// 0: SGLs are not supported; 1: supported; 2: supported with dword alignment and granularity.
    #[bits(2)]
    pub support: u8,
    /// Keyed SGL Data Block descriptor.
    pub keyed: bool,
    #[bits(13)]
    __: u16,
    /// SGL Bit Bucket descriptor.
    pub bit_bucket: bool,
    /// A byte-aligned contiguous physical buffer of metadata.
    pub byte_aligned_metadata: bool,
    /// An SGL longer than the data to transfer.
    pub oversized: bool,
    /// A Metadata Pointer that holds the address of an SGL segment.
    pub metadata_segment: bool,
    /// Address as an offset in data block, segment and last segment descriptors.
    pub offset: bool,
    /// Transport SGL Data Block descriptor.
    pub transport: bool,
    #[bits(10)]
    __: u16,
}

/// Flags of a power state: bits 31:24 of its descriptor (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct PowerStateFlags {
    /// Max Power Scale: Maximum Power counts 0.0001 W rather than 0.01 W.
    pub mxps: bool,
    /// Non-Operational State: no I/O is processed.
    pub nops: bool,
    #[bits(6)]
    __: u8,
}

/// Power State Descriptor, 32 bytes (NVMe Base 2.0, 5.17.2.1, figure "Power State Descriptor Data Structure"; NVMe 1.4,
/// 5.15.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PowerState {
    /// Maximum Power, in the unit of [`PowerStateFlags::mxps`]; 0 where not reported.
    pub mp: u16,
    #[doc(hidden)]
    pub reserved_2: u8,
    /// Max Power Scale and Non-Operational State.
    pub flags: PowerStateFlags,
    /// Entry Latency in µs.
    pub enlat: u32,
    /// Exit Latency in µs.
    pub exlat: u32,
    /// Relative Read Throughput, bits 4:0.
    pub rrt: u8,
    /// Relative Read Latency, bits 4:0.
    pub rrl: u8,
    /// Relative Write Throughput, bits 4:0.
    pub rwt: u8,
    /// Relative Write Latency, bits 4:0.
    pub rwl: u8,
    /// Idle Power, in the unit of `ips`.
    pub idlp: u16,
    /// Idle Power Scale, bits 7:6: 1 for 0.0001 W, 2 for 0.01 W.
    pub ips: u8,
    #[doc(hidden)]
    pub reserved_19: u8,
    /// Active Power, in the unit of `apw_aps`.
    pub actp: u16,
    /// Active Power Workload, bits 2:0, and Active Power Scale, bits 7:6.
    pub apw_aps: u8,
    #[doc(hidden)]
    pub reserved_23: [u8; 9],
}

const _: () = assert!(size_of::<PowerState>() == 32);

impl PowerState {
    /// Maximum power in units of 0.1 mW; `None` where not reported.
    pub const fn max_power_tenth_mw(&self) -> Option<u32> {
        match (self.mp, self.flags.mxps()) {
            (0, _) => None,
            (mp, true) => Some(mp as u32),
            (mp, false) => Some(mp as u32 * 100),
        }
    }
}

/// Identify Controller, 4096 bytes (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2). Fields marked (2.0) read as zero from a
/// 1.4 controller.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI Vendor ID.
    pub vid: u16,
    /// PCI Subsystem Vendor ID.
    pub ssvid: u16,
    /// Serial Number, ASCII; see [`serial`](Self::serial).
    pub sn: [u8; 20],
    /// Model Number, ASCII; see [`model`](Self::model).
    pub mn: [u8; 40],
    /// Firmware Revision, ASCII; see [`firmware`](Self::firmware).
    pub fr: [u8; 8],
    /// Recommended Arbitration Burst, as a power of two.
    pub rab: u8,
    /// IEEE OUI Identifier, least significant byte first.
    pub ieee: [u8; 3],
    /// Controller Multi-path I/O and Namespace Sharing Capabilities.
    pub cmic: Cmic,
    /// Maximum Data Transfer Size: 2^MDTS pages of CAP.MPSMIN; 0 for no limit.
    pub mdts: u8,
    /// Controller ID.
    pub cntlid: u16,
    /// Version.
    pub ver: Vs,
    /// RTD3 Resume Latency in µs; 0 where not reported.
    pub rtd3r: u32,
    /// RTD3 Entry Latency in µs: how long a normal shutdown may take; 0 where not reported.
    pub rtd3e: u32,
    /// Optional Asynchronous Events Supported.
    pub oaes: Oaes,
    /// Controller Attributes.
    pub ctratt: Ctratt,
    /// Read Recovery Levels Supported, a bit a level.
    pub rrls: u16,
    #[doc(hidden)]
    pub reserved_102: [u8; 9],
    /// Controller Type.
    pub cntrltype: ControllerType,
    /// FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// Command Retry Delay Times 1 to 3, in 100 ms.
    pub crdt: [u16; 3],
    #[doc(hidden)]
    pub reserved_134: [u8; 119],
    /// NVM Subsystem Report (NVMe Management Interface).
    pub nvmsr: u8,
    /// VPD Write Cycle Information (NVMe Management Interface).
    pub vwci: u8,
    /// Management Endpoint Capabilities (NVMe Management Interface).
    pub mec: u8,
    /// Optional Admin Command Support.
    pub oacs: Oacs,
    /// Abort Command Limit, 0's based.
    pub acl_z: u8,
    /// Asynchronous Event Request Limit, 0's based.
    pub aerl_z: u8,
    /// Firmware Updates.
    pub frmw: Frmw,
    /// Log Page Attributes.
    pub lpa: Lpa,
    /// Error Log Page Entries, 0's based.
    pub elpe_z: u8,
    /// Number of Power States Support, 0's based.
    pub npss_z: u8,
    /// Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// Warning Composite Temperature Threshold in kelvins; 0 where not reported.
    pub wctemp: u16,
    /// Critical Composite Temperature Threshold in kelvins; 0 where not reported.
    pub cctemp: u16,
    /// Maximum Time for Firmware Activation in 100 ms; 0 for undefined.
    pub mtfa: u16,
    /// Host Memory Buffer Preferred Size in 4 KiB.
    pub hmpre: u32,
    /// Host Memory Buffer Minimum Size in 4 KiB.
    pub hmmin: u32,
    /// Total NVM Capacity in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM Capacity in bytes.
    pub unvmcap: U128,
    /// Replay Protected Memory Block Support.
    pub rpmbs: u32,
    /// Extended Device Self-test Time in minutes.
    pub edstt: u16,
    /// Device Self-test Options.
    pub dsto: u8,
    /// Firmware Update Granularity in 4 KiB; 0 for no information, FFh for no restriction.
    pub fwug: u8,
    /// Keep Alive Support: granularity of the timer in 100 ms; 0 where not supported.
    pub kas: u16,
    /// Host Controlled Thermal Management Attributes.
    pub hctma: u16,
    /// Minimum Thermal Management Temperature in kelvins.
    pub mntmt: u16,
    /// Maximum Thermal Management Temperature in kelvins.
    pub mxtmt: u16,
    /// Sanitize Capabilities.
    pub sanicap: Sanicap,
    /// Host Memory Buffer Minimum Descriptor Entry Size in 4 KiB.
    pub hmminds: u32,
    /// Host Memory Maximum Descriptors Entries.
    pub hmmaxd: u16,
    /// NVM Set Identifier Maximum.
    pub nsetidmax: u16,
    /// Endurance Group Identifier Maximum.
    pub endgidmax: u16,
    /// ANA Transition Time in seconds.
    pub anatt: u8,
    /// Asymmetric Namespace Access Capabilities.
    pub anacap: u8,
    /// ANA Group Identifier Maximum.
    pub anagrpmax: u32,
    /// Number of ANA Group Identifiers.
    pub nanagrpid: u32,
    /// Persistent Event Log Size in 64 KiB.
    pub pels: u32,
    /// Domain Identifier (2.0).
    pub domainid: u16,
    #[doc(hidden)]
    pub reserved_358: [u8; 10],
    /// Max Endurance Group Capacity in bytes (2.0).
    pub megcap: U128,
    #[doc(hidden)]
    pub reserved_384: [u8; 128],
    /// Submission Queue Entry Size.
    pub sqes: EntrySize,
    /// Completion Queue Entry Size.
    pub cqes: EntrySize,
    /// Maximum Outstanding Commands of one queue; 0 where not reported.
    pub maxcmd: u16,
    /// Number of Namespaces: the greatest valid NSID.
    pub nn: u32,
    /// Optional NVM Command Support.
    pub oncs: Oncs,
    /// Fused Operation Support.
    pub fuses: Fuses,
    /// Format NVM Attributes.
    pub fna: Fna,
    /// Volatile Write Cache.
    pub vwc: Vwc,
    /// Atomic Write Unit Normal in logical blocks, 0's based.
    pub awun_z: u16,
    /// Atomic Write Unit Power Fail in logical blocks, 0's based.
    pub awupf_z: u16,
    /// I/O Command Set Vendor Specific Command Configuration (1.4: NVSCC).
    pub icsvscc: u8,
    /// Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// Atomic Compare & Write Unit in logical blocks, 0's based.
    pub acwu_z: u16,
    /// Optional Copy Formats Supported, a bit a format (2.0).
    pub ocfs: u16,
    /// SGL Support.
    pub sgls: Sgls,
    /// Maximum Number of Allowed Namespaces; 0 where NN is that number.
    pub mnan: u32,
    /// Maximum Domain Namespace Attachments (2.0).
    pub maxdna: U128,
    /// Maximum I/O Controller Namespace Attachments (2.0).
    pub maxcna: u32,
    #[doc(hidden)]
    pub reserved_564: [u8; 204],
    /// NVM Subsystem NVMe Qualified Name, UTF-8 ended by NUL; see [`subsystem_nqn`](Self::subsystem_nqn).
    pub subnqn: [u8; 256],
    #[doc(hidden)]
    pub reserved_1024: [u8; 768],
    /// Fields of NVMe over Fabrics, all zero over PCIe.
    pub fabrics: [u8; 256],
    /// Power State Descriptors 0 to 31; those past [`npss_z`](Self::npss_z) are zero.
    pub psd: [PowerState; 32],
    /// Vendor Specific.
    pub vendor: [u8; 1024],
}

const _: () = assert!(size_of::<IdentifyController>() == 4096);

impl IdentifyController {
    /// Serial number, without its padding.
    pub const fn serial(&self) -> Ascii<'_> {
        Ascii(&self.sn)
    }

    /// Model number, without its padding.
    pub const fn model(&self) -> Ascii<'_> {
        Ascii(&self.mn)
    }

    /// Firmware revision, without its padding.
    pub const fn firmware(&self) -> Ascii<'_> {
        Ascii(&self.fr)
    }

    /// NVM subsystem qualified name, up to its NUL. Names are UTF-8 in the spec and ASCII in the field.
    pub fn subsystem_nqn(&self) -> Ascii<'_> {
        Ascii(self.subnqn.split(|&b| b == 0).next().unwrap_or_default())
    }

    /// Most bytes of data that one command moves, where `min_page_bytes` is that of CAP.MPSMIN; `None` for no limit
    /// (MDTS 0, or more than 64 bits can say).
    pub fn max_transfer_bytes(&self, min_page_bytes: u64) -> Option<u64> {
        match self.mdts {
            0 => None,
            mdts => 1u64.checked_shl(mdts.into())?.checked_mul(min_page_bytes),
        }
    }

    /// The power states that the controller has.
    pub fn power_states(&self) -> impl Iterator<Item = &PowerState> {
        self.psd.iter().take(usize::from(self.npss_z) + 1)
    }
}

impl fmt::Debug for IdentifyController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyController")
            .field("vid", &format_args!("{:#06x}", self.vid))
            .field("serial", &self.serial())
            .field("model", &self.model())
            .field("firmware", &self.firmware())
            .field("ver", &format_args!("{}", self.ver))
            .field("mdts", &self.mdts)
            .field("nn", &self.nn)
            .field("oacs", &self.oacs)
            .field("oncs", &self.oncs)
            .field("fna", &self.fna)
            .field("vwc", &self.vwc)
            .finish_non_exhaustive()
    }
}
