//! Log pages (NVMe Base 2.0, 5.16; NVMe 1.4, 5.14).

use bitfield_struct::bitfield;
use core::fmt;
use zerocopy::little_endian::{U16, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii::Ascii;
use crate::cqe::StatusPhase;
use crate::identify::CommandSet;
use crate::open_enum::open_enum;

open_enum! {
    /// Log Page Identifier (NVMe Base 2.0, 5.16.1, figure "Get Log Page – Log Page Identifiers"; NVMe 1.4, 5.14.1).
    LogPageId {
        SUPPORTED_LOG_PAGES = 0x00 "Supported Log Pages",
        ERROR = 0x01 "Error Information",
        SMART = 0x02 "SMART / Health Information",
        FIRMWARE_SLOT = 0x03 "Firmware Slot Information",
        CHANGED_NAMESPACES = 0x04 "Changed Namespace List",
        COMMANDS_SUPPORTED = 0x05 "Commands Supported and Effects",
        DEVICE_SELF_TEST = 0x06 "Device Self-test",
        TELEMETRY_HOST = 0x07 "Telemetry Host-Initiated",
        TELEMETRY_CONTROLLER = 0x08 "Telemetry Controller-Initiated",
        ENDURANCE_GROUP = 0x09 "Endurance Group Information",
        PREDICTABLE_LATENCY_PER_SET = 0x0a "Predictable Latency Per NVM Set",
        PREDICTABLE_LATENCY_AGGREGATE = 0x0b "Predictable Latency Event Aggregate",
        ANA = 0x0c "Asymmetric Namespace Access",
        PERSISTENT_EVENT = 0x0d "Persistent Event",
        LBA_STATUS = 0x0e "LBA Status Information",
        ENDURANCE_GROUP_AGGREGATE = 0x0f "Endurance Group Event Aggregate",
        MEDIA_UNIT_STATUS = 0x10 "Media Unit Status",
        SUPPORTED_CAPACITY_CONFIGS = 0x11 "Supported Capacity Configuration List",
        FEATURES_SUPPORTED = 0x12 "Feature Identifiers Supported and Effects",
        MI_COMMANDS_SUPPORTED = 0x13 "NVMe-MI Commands Supported and Effects",
        LOCKDOWN = 0x14 "Command and Feature Lockdown",
        BOOT_PARTITION = 0x15 "Boot Partition",
        ROTATIONAL_MEDIA = 0x16 "Rotational Media Information",
        DISCOVERY = 0x70 "Discovery",
        RESERVATION_NOTIFICATION = 0x80 "Reservation Notification",
        SANITIZE_STATUS = 0x81 "Sanitize Status",
        CHANGED_ZONES = 0xbf "Changed Zone List",
    }
}

/// CDW10 of Get Log Page (NVMe Base 2.0, 5.16; NVMe 1.4, 5.14).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct GetLogPageCdw10 {
    /// Log Page Identifier.
    #[bits(8)]
    pub lid: LogPageId,
    /// Log Specific Field (seven bits in 2.0, four in 1.4).
    #[bits(7)]
    pub lsp: u8,
    /// Retain Asynchronous Event: do not re-arm the event that named this page.
    pub rae: bool,
    /// Number of Dwords Lower: low 16 bits of the 0's based count of dwords to return.
    pub numdl: u16,
}

/// CDW11 of Get Log Page (NVMe Base 2.0, 5.16; NVMe 1.4, 5.14).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct GetLogPageCdw11 {
    /// Number of Dwords Upper: high 16 bits of the 0's based count of dwords to return.
    pub numdu: u16,
    /// Log Specific Identifier.
    pub lsi: u16,
}

/// CDW14 of Get Log Page (NVMe Base 2.0, 5.16; NVMe 1.4, 5.14).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct GetLogPageCdw14 {
    /// UUID Index.
    #[bits(7)]
    pub uuid_index: u8,
    #[bits(16)]
    __: u16,
    /// Offset Type: the offset counts entries, not bytes (2.0).
    pub ot: bool,
    /// Command Set Identifier (2.0).
    #[bits(8)]
    pub csi: CommandSet,
}

/// Parameter Error Location of an error log entry (NVMe Base 2.0, 5.16.1.2; NVMe 1.4, 5.14.1.1).
#[bitfield(u16)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ParameterErrorLocation {
    /// Byte of the submission queue entry that held the first bad parameter.
    pub byte: u8,
    /// Lowest bit of the parameter in that byte.
    #[bits(3)]
    pub bit: u8,
    #[bits(5)]
    __: u8,
}

impl ParameterErrorLocation {
    /// FFFFh: the error is not of a particular parameter.
    pub const NONE: Self = Self::from_bits(0xffff);
}

/// An entry of the Error Information log, 64 bytes (NVMe Base 2.0, 5.16.1.2; NVMe 1.4, 5.14.1.1). The newest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// Error Count: unique, growing; 0 for an entry that holds no error.
    pub error_count: u64,
    /// Submission Queue Identifier; FFFFh where no command is meant.
    pub sqid: u16,
    /// Command Identifier; FFFFh where no command is meant.
    pub cid: u16,
    /// Status Info: the command's status and phase tag.
    pub status_phase: StatusPhase,
    /// Parameter Error Location; FFFFh where no parameter is meant.
    pub parameter_error_location: ParameterErrorLocation,
    /// First LBA that met the error.
    pub lba: u64,
    /// Namespace Identifier.
    pub nsid: u32,
    /// Vendor Specific Information Available: log page of more information, or 0.
    pub vendor_log_page: u8,
    /// Transport Type.
    pub trtype: u8,
    #[doc(hidden)]
    pub reserved_30: [u8; 2],
    /// Command Specific Information.
    pub command_specific: u64,
    /// Transport Type Specific Information.
    pub transport_specific: u16,
    #[doc(hidden)]
    pub reserved_42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorLogEntry>() == 64);

impl ErrorLogEntry {
    /// Whether the entry holds an error.
    pub const fn is_valid(&self) -> bool {
        self.error_count != 0
    }
}

/// Critical Warning of the SMART log: conditions that are present now (NVMe Base 2.0, 5.16.1.3; NVMe 1.4, 5.14.1.2).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CriticalWarning {
    /// Available spare capacity is below its threshold.
    pub spare: bool,
    /// A temperature is past a threshold.
    pub temperature: bool,
    /// NVM subsystem reliability is degraded.
    pub reliability: bool,
    /// All media is read-only.
    pub read_only: bool,
    /// The volatile memory backup device has failed.
    pub volatile_memory_backup: bool,
    /// The Persistent Memory Region is read-only or unreliable.
    pub pmr: bool,
    #[bits(2)]
    __: u8,
}

/// SMART / Health Information log, 512 bytes (NVMe Base 2.0, 5.16.1.3; NVMe 1.4, 5.14.1.2).
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SmartLog {
    /// Critical Warning.
    pub critical_warning: CriticalWarning,
    /// Composite Temperature in kelvins.
    pub composite_temperature: U16,
    /// Available Spare, percent.
    pub available_spare: u8,
    /// Available Spare Threshold, percent.
    pub available_spare_threshold: u8,
    /// Percentage Used of the rated life; may pass 100, stops at 255.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    #[doc(hidden)]
    pub reserved_7: [u8; 25],
    /// Data Units Read: 1000 × 512 bytes each, rounded up.
    pub data_units_read: U128,
    /// Data Units Written: 1000 × 512 bytes each, rounded up.
    pub data_units_written: U128,
    /// Host Read Commands completed.
    pub host_read_commands: U128,
    /// Host Write Commands completed.
    pub host_write_commands: U128,
    /// Controller Busy Time in minutes.
    pub controller_busy_time: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries over the life of the controller.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time in minutes.
    pub warning_temperature_time: u32,
    /// Critical Composite Temperature Time in minutes.
    pub critical_temperature_time: u32,
    /// Temperature Sensors 1 to 8 in kelvins; 0 where there is none.
    pub temperature_sensors: [u16; 8],
    /// Thermal Management Temperature 1 and 2 Transition Count.
    pub thermal_transition_count: [u32; 2],
    /// Total Time For Thermal Management Temperature 1 and 2, in seconds.
    pub thermal_total_time: [u32; 2],
    #[doc(hidden)]
    pub reserved_232: [u8; 280],
}

const _: () = assert!(size_of::<SmartLog>() == 512);

/// Active Firmware Info of the firmware slot log (NVMe Base 2.0, 5.16.1.4; NVMe 1.4, 5.14.1.3).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ActiveFirmwareInfo {
    /// Slot, 1 to 7, that the running firmware came from.
    #[bits(3)]
    pub active: u8,
    __: bool,
    /// Slot to be activated at the next controller level reset; 0 where none is named.
    #[bits(3)]
    pub next: u8,
    __: bool,
}

/// Firmware Slot Information log, 512 bytes (NVMe Base 2.0, 5.16.1.4; NVMe 1.4, 5.14.1.3).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Active Firmware Info.
    pub afi: ActiveFirmwareInfo,
    #[doc(hidden)]
    pub reserved_1: [u8; 7],
    /// Firmware Revision for Slots 1 to 7, ASCII; zeros for an empty slot.
    pub frs: [[u8; 8]; 7],
    #[doc(hidden)]
    pub reserved_64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareSlotLog>() == 512);

impl FirmwareSlotLog {
    /// Firmware revision in a slot, 1 to 7; `None` for any other number and for an empty slot.
    pub fn revision(&self, slot: u8) -> Option<Ascii<'_>> {
        let revision = self.frs.get(usize::from(slot).checked_sub(1)?)?;
        (*revision != [0; 8]).then_some(Ascii(revision))
    }
}

impl fmt::Debug for FirmwareSlotLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirmwareSlotLog")
            .field("afi", &self.afi)
            .field("frs", &self.frs.each_ref().map(|r| Ascii(r)))
            .finish()
    }
}

/// Changed Namespace List log, 4096 bytes: namespaces whose attributes changed since the page was last read (NVMe Base
/// 2.0, 5.16.1.5; NVMe 1.4, 5.14.1.4).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChangedNamespaceList(pub [u32; 1024]);

const _: () = assert!(size_of::<ChangedNamespaceList>() == 4096);

impl ChangedNamespaceList {
    /// Whether more than 1,024 namespaces changed, so that the list names none: all must be looked at.
    pub fn overflowed(&self) -> bool {
        self.0.first() == Some(&u32::MAX)
    }

    /// The namespaces that changed, up to the first unused entry; none where the list [overflowed](Self::overflowed).
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied().take_while(|&nsid| nsid != 0 && nsid != u32::MAX)
    }
}

impl fmt::Debug for ChangedNamespaceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Commands Supported and Effects Data Structure (NVMe Base 2.0, 5.16.1.6; NVMe 1.4, 5.14.1.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CommandEffects {
    /// Command Supported.
    pub csupp: bool,
    /// Logical Block Content Change: may change user data.
    pub lbcc: bool,
    /// Namespace Capability Change: may change the capabilities of one namespace.
    pub ncc: bool,
    /// Namespace Inventory Change: may change the number or capabilities of namespaces.
    pub nic: bool,
    /// Controller Capability Change.
    pub ccc: bool,
    #[bits(11)]
    __: u16,
    /// Command Submission and Execution: 0 no restriction; 1 no other command to the namespace outstanding; 2 no other
    /// command to any namespace outstanding.
    #[bits(3)]
    pub cse: u8,
    /// UUID Selection Supported.
    pub uss: bool,
    /// Command Scope, one bit a scope (2.0).
    #[bits(12)]
    pub csp: u16,
}

/// Commands Supported and Effects log, 4096 bytes (NVMe Base 2.0, 5.16.1.6; NVMe 1.4, 5.14.1.5).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandsSupportedLog {
    /// Admin Commands Supported, by opcode.
    pub acs: [CommandEffects; 256],
    /// I/O Commands Supported, by opcode.
    pub iocs: [CommandEffects; 256],
    #[doc(hidden)]
    pub reserved_2048: [u8; 2048],
}

const _: () = assert!(size_of::<CommandsSupportedLog>() == 4096);

impl fmt::Debug for CommandsSupportedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let supported = |list: &'static str, effects: &[CommandEffects; 256], f: &mut fmt::Formatter<'_>| {
            write!(f, "{list}:")?;
            let mut listed = effects.iter().zip(0u8..=255).filter(|(e, _)| e.csupp());
            listed.try_for_each(|(_, opcode)| write!(f, " {opcode:02X}h"))
        };
        supported("admin", &self.acs, f)?;
        supported(", I/O", &self.iocs, f)
    }
}
