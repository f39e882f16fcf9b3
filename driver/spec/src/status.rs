//! Status of a completed command (NVMe Base 2.0, 3.3.3.2.1; NVMe 1.4, 4.6.1).

use bitfield_struct::bitfield;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Status Field of a completion queue entry: its upper 15 bits, shifted down so that the phase tag is no part of it
/// (NVMe Base 2.0, 3.3.3.2.1; NVMe 1.4, 4.6.1).
#[bitfield(u16, debug = false)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Status {
    /// Status Code.
    pub sc: u8,
    /// Status Code Type.
    #[bits(3)]
    pub sct: u8,
    /// Command Retry Delay: 0 for none, else which of CRDT1 to CRDT3 of Identify Controller to wait before a retry.
    #[bits(2)]
    pub crd: u8,
    /// More: the Error Information log has an entry on this command.
    pub more: bool,
    /// Do Not Retry: the same command would fail again.
    pub dnr: bool,
    __: bool,
}

impl Status {
    /// Successful completion.
    pub const SUCCESS: Self = Self::new();

    /// Whether the command succeeded: status code type and status code are zero.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.into_bits() & 0x7ff == 0
    }

    /// Whether it is a media or data integrity error (status code type 2h): of some of the command's blocks, and not of the command.
    #[inline]
    pub const fn is_media_error(self) -> bool {
        self.sct() == 2
    }

    /// The status code and its type as one readable value.
    pub const fn code(self) -> StatusCode {
        StatusCode::from_parts(self.sct(), self.sc())
    }

    /// A status with this code, no retry delay, and DNR and More clear.
    pub const fn from_code(code: StatusCode) -> Self {
        let (sct, sc) = code.parts();
        Self::new().with_sct(sct & 7).with_sc(sc)
    }
}

impl From<StatusCode> for Status {
    fn from(code: StatusCode) -> Self {
        Self::from_code(code)
    }
}

impl From<Status> for StatusCode {
    fn from(status: Status) -> Self {
        status.code()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.code(), f)?;
        if self.crd() != 0 {
            write!(f, ", retry delay {}", self.crd())?;
        }
        if self.more() {
            f.write_str(", more in the error log")?;
        }
        if self.dnr() {
            f.write_str(", do not retry")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status[{self}]")
    }
}

/// Defines the enumeration and its two conversions from one table, so that they cannot disagree.
macro_rules! status_codes {
    ($($sct:literal { $($sc:literal $variant:ident $text:literal,)+ })+) => {
        /// What became of a command: Status Code Type and Status Code, by the names of the specification (NVMe Base
        /// 2.0, 3.3.3.2.1.2, with the codes of NVM Command Set 1.0, Key Value 1.0 and Zoned Namespace 1.1; NVMe 1.4,
        /// 4.6.1.2).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StatusCode {
            $($(
                #[doc = concat!($text, " (SCT ", stringify!($sct), ", SC ", stringify!($sc), ").")]
                $variant,
            )+)+
            /// A code that the specification does not name: reserved, or vendor specific (SCT 7h, or SC C0h to FFh of SCT 0h to 3h).
            /// [`StatusCode::from_parts`] makes it of unnamed codes only.
            Unknown {
                /// Status Code Type, 0 to 7.
                sct: u8,
                /// Status Code.
                sc: u8,
            },
        }

        impl StatusCode {
            /// Every code that has a name.
            pub const NAMED: &'static [Self] = &[$($(Self::$variant,)+)+];

            /// The code of a status code type (its low three bits) and status code.
            pub const fn from_parts(sct: u8, sc: u8) -> Self {
                match (sct & 7, sc) {
                    $($(($sct, $sc) => Self::$variant,)+)+
                    (sct, sc) => Self::Unknown { sct, sc },
                }
            }

            /// Status Code Type and Status Code, in this order.
            pub const fn parts(self) -> (u8, u8) {
                match self {
                    $($(Self::$variant => ($sct, $sc),)+)+
                    Self::Unknown { sct, sc } => (sct, sc),
                }
            }

            /// The specification's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $text,)+)+
                    Self::Unknown { sct: 7, .. } | Self::Unknown { sct: 0..=3, sc: 0xc0.. } => "Vendor Specific",
                    Self::Unknown { .. } => "Unknown Status",
                }
            }
        }
    };
}

status_codes! {
    // Generic command status.
    0x0 {
        0x00 Success "Successful Completion",
        0x01 InvalidCommandOpcode "Invalid Command Opcode",
        0x02 InvalidField "Invalid Field in Command",
        0x03 CommandIdConflict "Command ID Conflict",
        0x04 DataTransferError "Data Transfer Error",
        0x05 AbortedPowerLoss "Commands Aborted due to Power Loss Notification",
        0x06 InternalError "Internal Error",
        0x07 AbortRequested "Command Abort Requested",
        0x08 AbortedSqDeletion "Command Aborted due to SQ Deletion",
        0x09 AbortedFailedFused "Command Aborted due to Failed Fused Command",
        0x0a AbortedMissingFused "Command Aborted due to Missing Fused Command",
        0x0b InvalidNamespaceOrFormat "Invalid Namespace or Format",
        0x0c CommandSequenceError "Command Sequence Error",
        0x0d InvalidSglSegmentDescriptor "Invalid SGL Segment Descriptor",
        0x0e InvalidSglDescriptorCount "Invalid Number of SGL Descriptors",
        0x0f DataSglLengthInvalid "Data SGL Length Invalid",
        0x10 MetadataSglLengthInvalid "Metadata SGL Length Invalid",
        0x11 SglDescriptorTypeInvalid "SGL Descriptor Type Invalid",
        0x12 InvalidUseOfCmb "Invalid Use of Controller Memory Buffer",
        0x13 PrpOffsetInvalid "PRP Offset Invalid",
        0x14 AtomicWriteUnitExceeded "Atomic Write Unit Exceeded",
        0x15 OperationDenied "Operation Denied",
        0x16 SglOffsetInvalid "SGL Offset Invalid",
        0x18 HostIdInconsistentFormat "Host Identifier Inconsistent Format",
        0x19 KeepAliveExpired "Keep Alive Timer Expired",
        0x1a KeepAliveInvalid "Keep Alive Timeout Invalid",
        0x1b AbortedPreempt "Command Aborted due to Preempt and Abort",
        0x1c SanitizeFailed "Sanitize Failed",
        0x1d SanitizeInProgress "Sanitize In Progress",
        0x1e SglGranularityInvalid "SGL Data Block Granularity Invalid",
        0x1f CommandNotSupportedInCmb "Command Not Supported for Queue in CMB",
        0x20 NamespaceWriteProtected "Namespace is Write Protected",
        0x21 CommandInterrupted "Command Interrupted",
        0x22 TransientTransportError "Transient Transport Error",
        0x23 ProhibitedByLockdown "Command Prohibited by Command and Feature Lockdown",
        0x24 AdminMediaNotReady "Admin Command Media Not Ready",
        0x80 LbaOutOfRange "LBA Out of Range",
        0x81 CapacityExceeded "Capacity Exceeded",
        0x82 NamespaceNotReady "Namespace Not Ready",
        0x83 ReservationConflict "Reservation Conflict",
        0x84 FormatInProgress "Format In Progress",
        0x85 InvalidValueSize "Invalid Value Size",
        0x86 InvalidKeySize "Invalid Key Size",
        0x87 KeyDoesNotExist "KV Key Does Not Exist",
        0x88 UnrecoveredError "Unrecovered Error",
        0x89 KeyExists "Key Exists",
    }
    // Command specific status.
    0x1 {
        0x00 CompletionQueueInvalid "Completion Queue Invalid",
        0x01 InvalidQueueIdentifier "Invalid Queue Identifier",
        0x02 InvalidQueueSize "Invalid Queue Size",
        0x03 AbortLimitExceeded "Abort Command Limit Exceeded",
        0x05 AsyncEventLimitExceeded "Asynchronous Event Request Limit Exceeded",
        0x06 InvalidFirmwareSlot "Invalid Firmware Slot",
        0x07 InvalidFirmwareImage "Invalid Firmware Image",
        0x08 InvalidInterruptVector "Invalid Interrupt Vector",
        0x09 InvalidLogPage "Invalid Log Page",
        0x0a InvalidFormat "Invalid Format",
        0x0b FirmwareNeedsConventionalReset "Firmware Activation Requires Conventional Reset",
        0x0c InvalidQueueDeletion "Invalid Queue Deletion",
        0x0d FeatureNotSaveable "Feature Identifier Not Saveable",
        0x0e FeatureNotChangeable "Feature Not Changeable",
        0x0f FeatureNotNamespaceSpecific "Feature Not Namespace Specific",
        0x10 FirmwareNeedsSubsystemReset "Firmware Activation Requires NVM Subsystem Reset",
        0x11 FirmwareNeedsControllerReset "Firmware Activation Requires Controller Level Reset",
        0x12 FirmwareNeedsMaximumTime "Firmware Activation Requires Maximum Time Violation",
        0x13 FirmwareActivationProhibited "Firmware Activation Prohibited",
        0x14 OverlappingRange "Overlapping Range",
        0x15 NamespaceInsufficientCapacity "Namespace Insufficient Capacity",
        0x16 NamespaceIdentifierUnavailable "Namespace Identifier Unavailable",
        0x18 NamespaceAlreadyAttached "Namespace Already Attached",
        0x19 NamespaceIsPrivate "Namespace Is Private",
        0x1a NamespaceNotAttached "Namespace Not Attached",
        0x1b ThinProvisioningNotSupported "Thin Provisioning Not Supported",
        0x1c ControllerListInvalid "Controller List Invalid",
        0x1d SelfTestInProgress "Device Self-test In Progress",
        0x1e BootPartitionWriteProhibited "Boot Partition Write Prohibited",
        0x1f InvalidControllerIdentifier "Invalid Controller Identifier",
        0x20 InvalidSecondaryControllerState "Invalid Secondary Controller State",
        0x21 InvalidControllerResourceCount "Invalid Number of Controller Resources",
        0x22 InvalidResourceIdentifier "Invalid Resource Identifier",
        0x23 SanitizeProhibitedByPmr "Sanitize Prohibited While Persistent Memory Region is Enabled",
        0x24 AnaGroupIdentifierInvalid "ANA Group Identifier Invalid",
        0x25 AnaAttachFailed "ANA Attach Failed",
        0x26 InsufficientCapacity "Insufficient Capacity",
        0x27 NamespaceAttachmentLimitExceeded "Namespace Attachment Limit Exceeded",
        0x28 ProhibitionNotSupported "Prohibition of Command Execution Not Supported",
        0x29 CommandSetNotSupported "I/O Command Set Not Supported",
        0x2a CommandSetNotEnabled "I/O Command Set Not Enabled",
        0x2b CommandSetCombinationRejected "I/O Command Set Combination Rejected",
        0x2c InvalidCommandSet "Invalid I/O Command Set",
        0x2d IdentifierUnavailable "Identifier Unavailable",
        0x7f StreamResourceAllocationFailed "Stream Resource Allocation Failed",
        0x80 ConflictingAttributes "Conflicting Attributes",
        0x81 InvalidProtectionInformation "Invalid Protection Information",
        0x82 WriteToReadOnlyRange "Attempted Write to Read Only Range",
        0x83 CommandSizeLimitExceeded "Command Size Limit Exceeded",
        0xb8 ZonedBoundaryError "Zoned Boundary Error",
        0xb9 ZoneIsFull "Zone Is Full",
        0xba ZoneIsReadOnly "Zone Is Read Only",
        0xbb ZoneIsOffline "Zone Is Offline",
        0xbc ZoneInvalidWrite "Zone Invalid Write",
        0xbd TooManyActiveZones "Too Many Active Zones",
        0xbe TooManyOpenZones "Too Many Open Zones",
        0xbf InvalidZoneStateTransition "Invalid Zone State Transition",
    }
    // Media and data integrity errors.
    0x2 {
        0x80 WriteFault "Write Fault",
        0x81 UnrecoveredReadError "Unrecovered Read Error",
        0x82 GuardCheckError "End-to-end Guard Check Error",
        0x83 ApplicationTagCheckError "End-to-end Application Tag Check Error",
        0x84 ReferenceTagCheckError "End-to-end Reference Tag Check Error",
        0x85 CompareFailure "Compare Failure",
        0x86 AccessDenied "Access Denied",
        0x87 DeallocatedOrUnwrittenBlock "Deallocated or Unwritten Logical Block",
        0x88 StorageTagCheckError "End-to-End Storage Tag Check Error",
    }
    // Path related status.
    0x3 {
        0x00 InternalPathError "Internal Path Error",
        0x01 AsymmetricAccessPersistentLoss "Asymmetric Access Persistent Loss",
        0x02 AsymmetricAccessInaccessible "Asymmetric Access Inaccessible",
        0x03 AsymmetricAccessTransition "Asymmetric Access Transition",
        0x60 ControllerPathingError "Controller Pathing Error",
        0x70 HostPathingError "Host Pathing Error",
        0x71 AbortedByHost "Command Aborted By Host",
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sct, sc) = self.parts();
        write!(f, "{} (SCT {sct:X}h, SC {sc:02X}h)", self.name())
    }
}
