//! Features (NVMe Base 2.0, 5.27.1, and NVM Command Set 1.0, 4.1.3; NVMe 1.4, 5.21.1). Each bit field is CDW11 of Set
//! Features and dword 0 of the completion of Get Features.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::log::CriticalWarning;
use crate::open_enum::open_enum;

open_enum! {
    /// Feature Identifier (NVMe Base 2.0, 5.27.1, figure "Feature Identifiers"; NVMe 1.4, 5.21.1).
    FeatureId {
        ARBITRATION = 0x01 "Arbitration",
        POWER_MANAGEMENT = 0x02 "Power Management",
        LBA_RANGE_TYPE = 0x03 "LBA Range Type",
        TEMPERATURE_THRESHOLD = 0x04 "Temperature Threshold",
        ERROR_RECOVERY = 0x05 "Error Recovery",
        VOLATILE_WRITE_CACHE = 0x06 "Volatile Write Cache",
        NUMBER_OF_QUEUES = 0x07 "Number of Queues",
        INTERRUPT_COALESCING = 0x08 "Interrupt Coalescing",
        INTERRUPT_VECTOR_CONFIG = 0x09 "Interrupt Vector Configuration",
        WRITE_ATOMICITY_NORMAL = 0x0a "Write Atomicity Normal",
        ASYNC_EVENT_CONFIG = 0x0b "Asynchronous Event Configuration",
        AUTONOMOUS_POWER_STATE_TRANSITION = 0x0c "Autonomous Power State Transition",
        HOST_MEMORY_BUFFER = 0x0d "Host Memory Buffer",
        TIMESTAMP = 0x0e "Timestamp",
        KEEP_ALIVE_TIMER = 0x0f "Keep Alive Timer",
        HOST_CONTROLLED_THERMAL_MANAGEMENT = 0x10 "Host Controlled Thermal Management",
        NON_OPERATIONAL_POWER_STATE_CONFIG = 0x11 "Non-Operational Power State Config",
        READ_RECOVERY_LEVEL_CONFIG = 0x12 "Read Recovery Level Config",
        PREDICTABLE_LATENCY_MODE_CONFIG = 0x13 "Predictable Latency Mode Config",
        PREDICTABLE_LATENCY_MODE_WINDOW = 0x14 "Predictable Latency Mode Window",
        LBA_STATUS_INFORMATION_ATTRIBUTES = 0x15 "LBA Status Information Attributes",
        HOST_BEHAVIOR_SUPPORT = 0x16 "Host Behavior Support",
        SANITIZE_CONFIG = 0x17 "Sanitize Config",
        ENDURANCE_GROUP_EVENT_CONFIG = 0x18 "Endurance Group Event Configuration",
        COMMAND_SET_PROFILE = 0x19 "I/O Command Set Profile",
        SPINUP_CONTROL = 0x1a "Spinup Control",
        ENHANCED_CONTROLLER_METADATA = 0x7d "Enhanced Controller Metadata",
        CONTROLLER_METADATA = 0x7e "Controller Metadata",
        NAMESPACE_METADATA = 0x7f "Namespace Metadata",
        SOFTWARE_PROGRESS_MARKER = 0x80 "Software Progress Marker",
        HOST_IDENTIFIER = 0x81 "Host Identifier",
        RESERVATION_NOTIFICATION_MASK = 0x82 "Reservation Notification Mask",
        RESERVATION_PERSISTENCE = 0x83 "Reservation Persistence",
        NAMESPACE_WRITE_PROTECTION_CONFIG = 0x84 "Namespace Write Protection Config",
    }
}

/// Arbitration, 01h (NVMe Base 2.0, 5.27.1.1; NVMe 1.4, 5.21.1.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ArbitrationFeature {
    /// Arbitration Burst: up to 2^AB commands from one queue at a time; 111b for no limit.
    #[bits(3)]
    pub ab: u8,
    #[bits(5)]
    __: u8,
    /// Low Priority Weight in commands, 0's based.
    pub lpw_z: u8,
    /// Medium Priority Weight in commands, 0's based.
    pub mpw_z: u8,
    /// High Priority Weight in commands, 0's based.
    pub hpw_z: u8,
}

/// Power Management, 02h (NVMe Base 2.0, 5.27.1.2; NVMe 1.4, 5.21.1.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PowerManagement {
    /// Power State to enter, or that the controller is in.
    #[bits(5)]
    pub ps: u8,
    /// Workload Hint.
    #[bits(3)]
    pub wh: u8,
    #[bits(24)]
    __: u32,
}

open_enum! {
    /// Threshold Type Select, THSEL (NVMe Base 2.0, 5.27.1.3; NVMe 1.4, 5.21.1.4).
    ThresholdType {
        OVER = 0 "over temperature threshold",
        UNDER = 1 "under temperature threshold",
    }
}

/// Temperature Threshold, 04h (NVMe Base 2.0, 5.27.1.3; NVMe 1.4, 5.21.1.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// Temperature Threshold in kelvins.
    pub tmpth: u16,
    /// Threshold Temperature Select: 0 the composite temperature, 1 to 8 a sensor, 15 all of them.
    #[bits(4)]
    pub tmpsel: u8,
    /// Threshold Type Select.
    #[bits(2)]
    pub thsel: ThresholdType,
    #[bits(10)]
    __: u16,
}

/// Error Recovery, 05h (NVM Command Set 1.0, 4.1.3.2; NVMe 1.4, 5.21.1.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ErrorRecovery {
    /// Time Limited Error Recovery in 100 ms; 0 for no limit.
    pub tler: u16,
    /// Deallocated or Unwritten Logical Block Error Enable: reads of such blocks fail.
    pub dulbe: bool,
    #[bits(15)]
    __: u16,
}

/// Volatile Write Cache, 06h (NVMe Base 2.0, 5.27.1.4; NVMe 1.4, 5.21.1.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct VolatileWriteCacheFeature {
    /// Volatile Write Cache Enable.
    pub wce: bool,
    #[bits(31)]
    __: u32,
}

/// Number of Queues, 07h (NVMe Base 2.0, 5.27.1.5; NVMe 1.4, 5.21.1.7): in CDW11 the I/O queues asked for, in the
/// completion's dword 0 the I/O queues granted, which may be fewer or more. Set once, before any I/O queue is created.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NumberOfQueues {
    /// I/O Submission Queues requested (NSQR) or allocated (NSQA), 0's based; 65,535 is invalid.
    pub nsq_z: u16,
    /// I/O Completion Queues requested (NCQR) or allocated (NCQA), 0's based; 65,535 is invalid.
    pub ncq_z: u16,
}

impl NumberOfQueues {
    /// Queue pairs that these numbers allow, 1 to 65,536.
    pub const fn pairs(self) -> u32 {
        let (sq, cq) = (self.nsq_z() as u32, self.ncq_z() as u32);
        1 + if sq < cq { sq } else { cq }
    }

    /// A request for as many submission as completion queues: 1 to 65,535, the nearest of them for other numbers.
    pub const fn request(pairs: u32) -> Self {
        let z = match pairs {
            0 => 0,
            1..=0xffff => (pairs - 1) as u16,
            _ => 0xfffe,
        };
        Self::new().with_nsq_z(z).with_ncq_z(z)
    }
}

/// Interrupt Coalescing, 08h (NVMe Base 2.0, 5.27.1.6; NVMe 1.4, 5.21.1.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptCoalescing {
    /// Aggregation Threshold in completion queue entries, 0's based.
    pub thr_z: u8,
    /// Aggregation Time in 100 µs; 0 for no delay.
    pub time: u8,
    __: u16,
}

/// Interrupt Vector Configuration, 09h (NVMe Base 2.0, 5.27.1.7; NVMe 1.4, 5.21.1.9).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptVectorConfig {
    /// Interrupt Vector.
    pub iv: u16,
    /// Coalescing Disable.
    pub cd: bool,
    #[bits(15)]
    __: u16,
}

/// Write Atomicity Normal, 0Ah (NVM Command Set 1.0, 4.1.3.3; NVMe 1.4, 5.21.1.10).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WriteAtomicity {
    /// Disable Normal: only AWUPF and NAWUPF are kept, not AWUN and NAWUN.
    pub dn: bool,
    #[bits(31)]
    __: u32,
}

/// Asynchronous Event Configuration, 0Bh: the events that may be reported (NVMe Base 2.0, 5.27.1.8; NVMe 1.4,
/// 5.21.1.11).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfig {
    /// SMART / Health Critical Warnings that are reported.
    #[bits(8)]
    pub critical_warnings: CriticalWarning,
    /// Namespace Attribute Notices.
    pub namespace_attribute: bool,
    /// Firmware Activation Notices.
    pub firmware_activation: bool,
    /// Telemetry Log Notices.
    pub telemetry_log: bool,
    /// Asymmetric Namespace Access Change Notices.
    pub ana_change: bool,
    /// Predictable Latency Event Aggregate Log Change Notices.
    pub predictable_latency: bool,
    /// LBA Status Information Alert Notices.
    pub lba_status: bool,
    /// Endurance Group Event Aggregate Log Change Notices.
    pub endurance_group: bool,
    /// Normal NVM Subsystem Shutdown (2.0).
    pub subsystem_shutdown: bool,
    #[bits(11)]
    __: u16,
    /// Zone Descriptor Changed Notices (2.0).
    pub zone_descriptor: bool,
    #[bits(4)]
    __: u8,
}

/// Autonomous Power State Transition, 0Ch (NVMe Base 2.0, 5.27.1.9; NVMe 1.4, 5.21.1.12). The command takes a table of 256
/// bytes, also where it turns the transitions off.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AutonomousPowerStateTransition {
    /// Autonomous Power State Transition Enable.
    pub apste: bool,
    #[bits(31)]
    __: u32,
}

/// Host Memory Buffer, 0Dh (NVMe Base 2.0, 5.27.1.10; NVMe 1.4, 5.21.1.13).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostMemoryBuffer {
    /// Enable Host Memory. Once a command that clears it has completed, the controller no longer touches the memory.
    pub ehm: bool,
    /// Memory Return: this is the memory that the controller had before, with the same contents.
    pub mr: bool,
    #[bits(30)]
    __: u32,
}

/// An entry of the Host Memory Descriptor List, 16 bytes (NVMe Base 2.0, 5.27.1.10; NVMe 1.4, 5.21.1.13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostMemoryDescriptor {
    /// Buffer Address, aligned to the memory page size of CC.MPS.
    pub badd: u64,
    /// Buffer Size in pages of CC.MPS.
    pub bsize: u32,
    #[doc(hidden)]
    pub reserved_12: u32,
}

const _: () = assert!(size_of::<HostMemoryDescriptor>() == 16);
