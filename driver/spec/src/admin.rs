//! Command dwords of admin commands (NVMe Base 2.0, 5; NVMe 1.4, 5). Identify data, features and log pages have modules
//! of their own.

use bitfield_struct::bitfield;

use crate::identify::{Cns, CommandSet};
use crate::open_enum::open_enum;

/// CDW10 of Create I/O Completion Queue and Create I/O Submission Queue (NVMe Base 2.0, 5.4 and 5.5; NVMe 1.4, 5.3 and
/// 5.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CreateIoQueueCdw10 {
    /// Queue Identifier, from 1.
    pub qid: u16,
    /// Queue Size in entries, 0's based (1 to CAP.MQES).
    pub qsize_z: u16,
}

/// CDW11 of Create I/O Completion Queue (NVMe Base 2.0, 5.4; NVMe 1.4, 5.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CreateIoCqCdw11 {
    /// Physically Contiguous: PRP1 is the queue's address, not a list of its pages.
    pub pc: bool,
    /// Interrupts Enabled.
    pub ien: bool,
    #[bits(14)]
    __: u16,
    /// Interrupt Vector.
    pub iv: u16,
}

open_enum! {
    /// Queue Priority of a submission queue under weighted round robin, QPRIO (NVMe Base 2.0, 5.5; NVMe 1.4, 5.4).
    QueuePriority {
        URGENT = 0 "urgent",
        HIGH = 1 "high",
        MEDIUM = 2 "medium",
        LOW = 3 "low",
    }
}

/// CDW11 of Create I/O Submission Queue (NVMe Base 2.0, 5.5; NVMe 1.4, 5.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CreateIoSqCdw11 {
    /// Physically Contiguous: PRP1 is the queue's address, not a list of its pages.
    pub pc: bool,
    /// Queue Priority.
    #[bits(2)]
    pub qprio: QueuePriority,
    #[bits(13)]
    __: u16,
    /// Completion Queue Identifier that the queue's commands complete to.
    pub cqid: u16,
}

/// CDW10 of Delete I/O Completion Queue and Delete I/O Submission Queue (NVMe Base 2.0, 5.6 and 5.7; NVMe 1.4, 5.5 and
/// 5.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DeleteIoQueueCdw10 {
    /// Queue Identifier, from 1.
    pub qid: u16,
    __: u16,
}

/// CDW10 of Abort (NVMe Base 2.0, 5.1; NVMe 1.4, 5.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AbortCdw10 {
    /// Submission Queue Identifier of the command to abort.
    pub sqid: u16,
    /// Command Identifier of the command to abort.
    pub cid: u16,
}

/// Dword 0 of Abort's completion (NVMe Base 2.0, 5.1.1; NVMe 1.4, 5.1.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AbortResult {
    /// The command was *not* aborted.
    pub not_aborted: bool,
    #[bits(31)]
    __: u32,
}

/// CDW10 of Identify (NVMe Base 2.0, 5.17; NVMe 1.4, 5.15).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct IdentifyCdw10 {
    /// Controller or Namespace Structure: which data to return.
    #[bits(8)]
    pub cns: Cns,
    __: u8,
    /// Controller Identifier, for the CNS values that take one.
    pub cntid: u16,
}

/// CDW11 of Identify (NVMe Base 2.0, 5.17; NVMe 1.4, 5.15).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct IdentifyCdw11 {
    /// CNS Specific Identifier (2.0); NVM Set Identifier (1.4).
    pub cnssid: u16,
    __: u8,
    /// Command Set Identifier, for the CNS values that take one (2.0).
    #[bits(8)]
    pub csi: CommandSet,
}

open_enum! {
    /// Secure Erase Settings, SES (NVMe Base 2.0, 5.14; NVMe 1.4, 5.23).
    SecureErase {
        NONE = 0 "no secure erase",
        USER_DATA = 1 "user data erase",
        CRYPTOGRAPHIC = 2 "cryptographic erase",
    }
}

/// CDW10 of Format NVM (NVMe Base 2.0, 5.14; NVMe 1.4, 5.23).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FormatCdw10 {
    /// LBA Format Lower: bits 3:0 of the format index.
    #[bits(4)]
    pub lbafl: u8,
    /// Metadata Settings: metadata at the end of each LBA rather than in a buffer of its own.
    pub mset: bool,
    /// Protection Information type, 0 for none.
    #[bits(3)]
    pub pi: u8,
    /// Protection Information Location: first bytes of the metadata rather than last.
    pub pil: bool,
    /// Secure Erase Settings.
    #[bits(3)]
    pub ses: SecureErase,
    /// LBA Format Upper: bits 5:4 of the format index (2.0).
    #[bits(2)]
    pub lbafu: u8,
    #[bits(18)]
    __: u32,
}

impl FormatCdw10 {
    /// Index of the LBA format, 0 to 63.
    pub const fn format_index(self) -> u8 {
        self.lbafu() << 4 | self.lbafl()
    }

    /// Sets the LBA format: `index`, 0 to 63 (the low six bits count).
    pub const fn with_format_index(self, index: u8) -> Self {
        self.with_lbafl(index & 0xf).with_lbafu(index >> 4 & 3)
    }
}

/// CDW10 of Set Features (NVMe Base 2.0, 5.27; NVMe 1.4, 5.21).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SetFeaturesCdw10 {
    /// Feature Identifier.
    #[bits(8)]
    pub fid: crate::features::FeatureId,
    #[bits(23)]
    __: u32,
    /// Save: keep the value through power cycles and resets.
    pub sv: bool,
}

open_enum! {
    /// Which value Get Features returns, SEL (NVMe Base 2.0, 5.15; NVMe 1.4, 5.13).
    FeatureSelect {
        CURRENT = 0 "current",
        DEFAULT = 1 "default",
        SAVED = 2 "saved",
        SUPPORTED_CAPABILITIES = 3 "supported capabilities",
    }
}

/// CDW10 of Get Features (NVMe Base 2.0, 5.15; NVMe 1.4, 5.13).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct GetFeaturesCdw10 {
    /// Feature Identifier.
    #[bits(8)]
    pub fid: crate::features::FeatureId,
    /// Select.
    #[bits(3)]
    pub sel: FeatureSelect,
    #[bits(21)]
    __: u32,
}
