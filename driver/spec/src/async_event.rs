//! Asynchronous events (NVMe Base 2.0, 5.2; NVMe 1.4, 5.2).

use bitfield_struct::bitfield;
use core::fmt;

use crate::log::LogPageId;
use crate::open_enum::open_enum;

open_enum! {
    /// Asynchronous Event Type (NVMe Base 2.0, 5.2.1; NVMe 1.4, 5.2.1).
    EventType {
        ERROR = 0 "error status",
        HEALTH = 1 "SMART / health status",
        NOTICE = 2 "notice",
        COMMAND_SET = 6 "I/O command set specific status",
        VENDOR = 7 "vendor specific",
    }
}

open_enum! {
    /// Asynchronous Event Information of an error event (NVMe Base 2.0, 5.2.1; NVMe 1.4, 5.2.1).
    ErrorEvent {
        INVALID_DOORBELL = 0 "write to invalid doorbell register",
        INVALID_DOORBELL_VALUE = 1 "invalid doorbell write value",
        DIAGNOSTIC_FAILURE = 2 "diagnostic failure",
        PERSISTENT_INTERNAL = 3 "persistent internal error",
        TRANSIENT_INTERNAL = 4 "transient internal error",
        FIRMWARE_IMAGE_LOAD = 5 "firmware image load error",
    }
}

open_enum! {
    /// Asynchronous Event Information of a SMART / health event (NVMe Base 2.0, 5.2.1; NVMe 1.4, 5.2.1).
    HealthEvent {
        RELIABILITY = 0 "NVM subsystem reliability",
        TEMPERATURE = 1 "temperature threshold",
        SPARE = 2 "spare below threshold",
    }
}

open_enum! {
    /// Asynchronous Event Information of a notice (NVMe Base 2.0, 5.2.1; NVMe 1.4, 5.2.1).
    NoticeEvent {
        NAMESPACE_ATTRIBUTE = 0 "namespace attribute changed",
        FIRMWARE_ACTIVATION = 1 "firmware activation starting",
        TELEMETRY_LOG = 2 "telemetry log changed",
        ANA_CHANGE = 3 "asymmetric namespace access change",
        PREDICTABLE_LATENCY = 4 "predictable latency event aggregate log change",
        LBA_STATUS = 5 "LBA status information alert",
        ENDURANCE_GROUP = 6 "endurance group event aggregate log change",
        ZONE_DESCRIPTOR = 0xef "zone descriptor changed",
        DISCOVERY_LOG = 0xf0 "discovery log page change",
    }
}

open_enum! {
    /// Asynchronous Event Information of an I/O command set event (NVMe Base 2.0, 5.2.1; NVMe 1.4, 5.2.1).
    CommandSetEvent {
        RESERVATION_LOG = 0 "reservation log page available",
        SANITIZE_COMPLETED = 1 "sanitize operation completed",
        SANITIZE_UNEXPECTED_DEALLOCATION = 2 "sanitize operation completed with unexpected deallocation",
    }
}

/// Dword 0 of the completion of an Asynchronous Event Request (NVMe Base 2.0, 5.2.1; NVMe 1.4, 5.2.1). Reading the log
/// page that it names, with RAE clear, lets the controller report events of that type again.
#[bitfield(u32, debug = false)]
#[derive(PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type.
    #[bits(3)]
    pub event_type: EventType,
    #[bits(5)]
    __: u8,
    /// Asynchronous Event Information; what it means depends on the type.
    pub info: u8,
    /// Log Page Identifier of the page to read.
    #[bits(8)]
    pub log_page: LogPageId,
    __: u8,
}

/// An asynchronous event with its information read by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEventKind {
    /// Error status.
    Error(ErrorEvent),
    /// SMART / health status.
    Health(HealthEvent),
    /// Notice.
    Notice(NoticeEvent),
    /// I/O command set specific status.
    CommandSet(CommandSetEvent),
    /// Vendor specific or reserved type, with its information.
    Other(EventType, u8),
}

impl AsyncEvent {
    /// The event with its information read by its type.
    pub const fn kind(self) -> AsyncEventKind {
        let info = self.info();
        match self.event_type() {
            EventType::ERROR => AsyncEventKind::Error(ErrorEvent(info)),
            EventType::HEALTH => AsyncEventKind::Health(HealthEvent(info)),
            EventType::NOTICE => AsyncEventKind::Notice(NoticeEvent(info)),
            EventType::COMMAND_SET => AsyncEventKind::CommandSet(CommandSetEvent(info)),
            other => AsyncEventKind::Other(other, info),
        }
    }

    /// The event of this kind whose log page is `log_page`.
    pub const fn from_kind(kind: AsyncEventKind, log_page: LogPageId) -> Self {
        let (event_type, info) = match kind {
            AsyncEventKind::Error(e) => (EventType::ERROR, e.0),
            AsyncEventKind::Health(e) => (EventType::HEALTH, e.0),
            AsyncEventKind::Notice(e) => (EventType::NOTICE, e.0),
            AsyncEventKind::CommandSet(e) => (EventType::COMMAND_SET, e.0),
            AsyncEventKind::Other(t, info) => (EventType(t.0 & 7), info),
        };
        Self::new().with_event_type(event_type).with_info(info).with_log_page(log_page)
    }
}

impl fmt::Display for AsyncEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(e) => write!(f, "error: {e}"),
            Self::Health(e) => write!(f, "health: {e}"),
            Self::Notice(e) => write!(f, "notice: {e}"),
            Self::CommandSet(e) => write!(f, "I/O command set: {e}"),
            Self::Other(t, info) => write!(f, "type {t}, information {info:02X}h"),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; log page {}", self.kind(), self.log_page())
    }
}

impl fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEvent[{self}]")
    }
}
