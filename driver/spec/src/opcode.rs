//! Opcodes (NVMe Base 2.0, 5 and 7, and NVM Command Set 1.0, 3; NVMe 1.4, 5 and 6).

use crate::open_enum::open_enum;

open_enum! {
    /// Opcodes of admin commands (NVMe Base 2.0, 5, figure "Opcodes for Admin Commands"; NVMe 1.4, 5).
    AdminOpcode {
        DELETE_IO_SQ = 0x00 "Delete I/O Submission Queue",
        CREATE_IO_SQ = 0x01 "Create I/O Submission Queue",
        GET_LOG_PAGE = 0x02 "Get Log Page",
        DELETE_IO_CQ = 0x04 "Delete I/O Completion Queue",
        CREATE_IO_CQ = 0x05 "Create I/O Completion Queue",
        IDENTIFY = 0x06 "Identify",
        ABORT = 0x08 "Abort",
        SET_FEATURES = 0x09 "Set Features",
        GET_FEATURES = 0x0a "Get Features",
        ASYNC_EVENT_REQUEST = 0x0c "Asynchronous Event Request",
        NAMESPACE_MANAGEMENT = 0x0d "Namespace Management",
        FIRMWARE_COMMIT = 0x10 "Firmware Commit",
        FIRMWARE_IMAGE_DOWNLOAD = 0x11 "Firmware Image Download",
        DEVICE_SELF_TEST = 0x14 "Device Self-test",
        NAMESPACE_ATTACHMENT = 0x15 "Namespace Attachment",
        KEEP_ALIVE = 0x18 "Keep Alive",
        DIRECTIVE_SEND = 0x19 "Directive Send",
        DIRECTIVE_RECEIVE = 0x1a "Directive Receive",
        VIRTUALIZATION_MANAGEMENT = 0x1c "Virtualization Management",
        MI_SEND = 0x1d "NVMe-MI Send",
        MI_RECEIVE = 0x1e "NVMe-MI Receive",
        CAPACITY_MANAGEMENT = 0x20 "Capacity Management",
        LOCKDOWN = 0x24 "Lockdown",
        DOORBELL_BUFFER_CONFIG = 0x7c "Doorbell Buffer Config",
        FABRICS = 0x7f "Fabrics Commands",
        FORMAT_NVM = 0x80 "Format NVM",
        SECURITY_SEND = 0x81 "Security Send",
        SECURITY_RECEIVE = 0x82 "Security Receive",
        SANITIZE = 0x84 "Sanitize",
        GET_LBA_STATUS = 0x86 "Get LBA Status",
    }
}

open_enum! {
    /// Opcodes of the NVM command set (NVM Command Set 1.0, 3, figure "Opcodes for NVM Commands", with the I/O
    /// commands of NVMe Base 2.0, 7; NVMe 1.4, 6).
    NvmOpcode {
        FLUSH = 0x00 "Flush",
        WRITE = 0x01 "Write",
        READ = 0x02 "Read",
        WRITE_UNCORRECTABLE = 0x04 "Write Uncorrectable",
        COMPARE = 0x05 "Compare",
        WRITE_ZEROES = 0x08 "Write Zeroes",
        DATASET_MANAGEMENT = 0x09 "Dataset Management",
        VERIFY = 0x0c "Verify",
        RESERVATION_REGISTER = 0x0d "Reservation Register",
        RESERVATION_REPORT = 0x0e "Reservation Report",
        RESERVATION_ACQUIRE = 0x11 "Reservation Acquire",
        RESERVATION_RELEASE = 0x15 "Reservation Release",
        COPY = 0x19 "Copy",
    }
}

/// Which way a command moves data: bits 1:0 of its opcode (NVMe Base 2.0, 5 and 7; NVMe 1.4, 5 and 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataTransfer {
    /// 00b: no data.
    None,
    /// 01b: the controller reads host memory.
    HostToController,
    /// 10b: the controller writes host memory.
    ControllerToHost,
    /// 11b: both.
    Bidirectional,
}

impl DataTransfer {
    /// The direction that an opcode, admin or I/O, stands for.
    pub const fn of_opcode(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}
