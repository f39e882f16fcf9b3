//! Identify data (NVMe Base 2.0, 5.17.2, and NVM Command Set 1.0, 4.1.5; NVMe 1.4, 5.15.2).

mod controller;
mod descriptor;
mod namespace;

pub use controller::*;
pub use descriptor::*;
pub use namespace::*;

use crate::open_enum::open_enum;

open_enum! {
    /// Controller or Namespace Structure: which data Identify returns (NVMe Base 2.0, 5.17.1, figure "Identify – CNS
    /// Values"; NVMe 1.4, 5.15.1).
    Cns {
        NAMESPACE = 0x00 "Identify Namespace",
        CONTROLLER = 0x01 "Identify Controller",
        ACTIVE_NAMESPACES = 0x02 "Active Namespace ID list",
        NAMESPACE_DESCRIPTORS = 0x03 "Namespace Identification Descriptor list",
        NVM_SETS = 0x04 "NVM Set List",
        COMMAND_SET_NAMESPACE = 0x05 "I/O Command Set specific Identify Namespace",
        COMMAND_SET_CONTROLLER = 0x06 "I/O Command Set specific Identify Controller",
        COMMAND_SET_ACTIVE_NAMESPACES = 0x07 "I/O Command Set specific Active Namespace ID list",
        INDEPENDENT_NAMESPACE = 0x08 "I/O Command Set Independent Identify Namespace",
        ALLOCATED_NAMESPACES = 0x10 "Allocated Namespace ID list",
        ALLOCATED_NAMESPACE = 0x11 "Identify Namespace for an allocated namespace",
        NAMESPACE_CONTROLLERS = 0x12 "Controller list of a namespace",
        CONTROLLERS = 0x13 "Controller list",
        PRIMARY_CONTROLLER_CAPABILITIES = 0x14 "Primary Controller Capabilities",
        SECONDARY_CONTROLLERS = 0x15 "Secondary Controller list",
        NAMESPACE_GRANULARITY = 0x16 "Namespace Granularity List",
        UUIDS = 0x17 "UUID List",
        DOMAINS = 0x18 "Domain List",
        ENDURANCE_GROUPS = 0x19 "Endurance Group List",
        COMMAND_SET_ALLOCATED_NAMESPACES = 0x1a "I/O Command Set specific Allocated Namespace ID list",
        COMMAND_SET_ALLOCATED_NAMESPACE = 0x1b "I/O Command Set specific Identify Namespace for an allocated namespace",
        COMMAND_SETS = 0x1c "Identify I/O Command Set",
    }
}

open_enum! {
    /// Command Set Identifier, CSI (NVMe Base 2.0, 5.17.1, figure "Command Set Identifiers"; not in NVMe 1.4).
    CommandSet {
        NVM = 0 "NVM command set",
        KEY_VALUE = 1 "Key Value command set",
        ZONED = 2 "Zoned Namespace command set",
    }
}
