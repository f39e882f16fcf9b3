use warprow_spec::NSID_ALL;
use warprow_spec::async_event::AsyncEvent;
use warprow_spec::features::{AsyncEventConfig, FeatureId};
use warprow_spec::log::{ChangedNamespaceList, CriticalWarning, ErrorLogEntry, FirmwareSlotLog, LogPageId, SmartLog};

use crate::DriverError;
use crate::controller::Controller;

/// Most asynchronous event requests kept outstanding.
const REQUESTS: u32 = 4;

/// Something the controller reported by itself, with the log page that tells more.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub event: AsyncEvent,
    /// The log page that the event names.
    pub details: Details,
}

/// The log page that belongs to an [`Event`].
#[derive(Clone, Debug)]
pub enum Details {
    /// The latest entries of the error log, newest first.
    Errors(Vec<ErrorLogEntry>),
    /// SMART / Health Information.
    Health(Box<SmartLog>),
    /// Namespaces whose attributes changed.
    ChangedNamespaces(Box<ChangedNamespaceList>),
    /// Firmware slots.
    Firmware(Box<FirmwareSlotLog>),
    /// The first 512 bytes of another log page.
    Other(Vec<u8>),
    /// The log page could not be read; the controller may not report events of this type again.
    Unread(String),
}

impl Controller {
    /// The events that the controller has reported since the last call. For each, its log page is read and then a new
    /// request sent in its place. Requests stay outstanding without a deadline.
    pub fn take_events(&self) -> Result<Vec<Event>, DriverError> {
        let mut events = Vec::new();
        // No more than are outstanding at a time: a controller that reports without end must not hold the caller.
        for _ in 0..REQUESTS {
            let next = self.lock_admin().next_event(self.admin_memory());
            let Some(event) = next else { break };
            let details = match self.event_details(event) {
                Ok(details) => details,
                Err(error @ (DriverError::Command { .. } | DriverError::Unusable { .. })) => {
                    Details::Unread(error.to_string())
                }
                Err(error) => {
                    self.lock_admin().put_back_event(event);
                    return Err(error);
                }
            };
            events.push(Event { event, details });
            self.lock_admin().arm(self.admin_memory(), self.event_requests());
        }
        Ok(events)
    }

    fn event_details(&self, event: AsyncEvent) -> Result<Details, DriverError> {
        Ok(match event.log_page() {
            LogPageId::ERROR => Details::Errors(self.error_log(64)?),
            LogPageId::SMART => Details::Health(self.smart_log()?.into()),
            LogPageId::CHANGED_NAMESPACES => Details::ChangedNamespaces(self.changed_namespaces()?.into()),
            LogPageId::FIRMWARE_SLOT => Details::Firmware(self.firmware_slots()?.into()),
            other => Details::Other(self.log_page(other, NSID_ALL, 512)?),
        })
    }

    fn event_requests(&self) -> u32 {
        REQUESTS.min(u32::from(self.info().aerl_z) + 1)
    }

    /// Says which events are wanted, and sends the requests.
    pub(crate) fn enable_events(&self) -> Result<(), DriverError> {
        let offered = self.info().oaes;
        let config = AsyncEventConfig::new()
            .with_critical_warnings(
                CriticalWarning::new()
                    .with_spare(true)
                    .with_temperature(true)
                    .with_reliability(true)
                    .with_read_only(true),
            )
            .with_namespace_attribute(offered.namespace_attribute())
            .with_firmware_activation(offered.firmware_activation());
        match self.set_feature(FeatureId::ASYNC_EVENT_CONFIG, 0, config.into_bits()) {
            // Without the feature the controller reports what it likes.
            Ok(_) | Err(DriverError::Command { .. }) => {}
            Err(error) => return Err(error),
        }
        self.lock_admin().arm(self.admin_memory(), self.event_requests());
        Ok(())
    }
}
