use warprow_spec::async_event::AsyncEvent;
use warprow_spec::features::{AsyncEventConfig, FeatureId};
use warprow_spec::log::{ChangedNamespaceList, CriticalWarning, ErrorLogEntry, FirmwareSlotLog, LogPageId, SmartLog};
use warprow_spec::{FromBytes, NSID_ALL, Sqe};

use crate::controller::Controller;
use crate::error::DriverError;

/// Most asynchronous event requests kept outstanding.
const REQUESTS: u32 = 4;

/// Something the controller reported by itself, with the log page that tells more.
#[derive(Clone, Debug)]
pub struct ControllerEvent {
    /// What happened.
    pub event: AsyncEvent,
    /// The log page that the event names.
    pub details: EventDetails,
}

/// The log page that belongs to a [`ControllerEvent`].
#[derive(Clone, Debug)]
pub enum EventDetails {
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

/// The state after a call of [`Controller::poll_events`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPoll {
    /// The log page of an event is being read: call again soon.
    pub reading: bool,
    /// How often the controller has reported that attributes of a namespace changed. Events whose log page has not been
    /// read yet are included.
    pub namespace_notices: u64,
}

impl Controller {
    /// As [`take_events`](Self::take_events), without waiting for anything. One call asks for an event's log page; a
    /// later call finds it there and gives the event to `on` (with [`EventDetails::Unread`] if the controller does not
    /// answer within the time limit of admin commands). Allocates nothing while there is no event. Returns `None` if
    /// another thread has the admin queue locked.
    pub fn poll_events(&self, mut on: impl FnMut(ControllerEvent)) -> Option<EventPoll> {
        let (memory, now) = (self.admin_memory(), self.clock().now());
        let timeout = self.options().admin_timeout;
        let mut admin = self.try_lock_admin()?;
        admin.poll(memory);
        if let Some((event, tag)) = admin.reading {
            self.late.add(admin.expire(now));
            match admin.take(tag) {
                None => return Some(EventPoll { reading: true, namespace_notices: admin.namespace_notices }),
                Some((completion, data)) => {
                    admin.reading = None;
                    admin.arm(memory, self.event_requests());
                    let details = match self.answer(completion, data, timeout) {
                        Ok(answer) => EventDetails::of(event.log_page(), &answer.data),
                        Err(error) => EventDetails::Unread(error.to_string()),
                    };
                    on(ControllerEvent { event, details });
                }
            }
        }
        if admin.up
            && let Some(event) = admin.events.pop_front()
        {
            let dwords = (self.event_page_bytes(event) / 4 - 1) as u32;
            let sqe = Sqe::get_log_page(event.log_page(), NSID_ALL, dwords, 0, false);
            match admin.submit_awaited(memory, sqe, &[], now.saturating_add(timeout)) {
                Some(tag) => admin.reading = Some((event, tag)),
                None => admin.put_back_event(event),
            }
        }
        Some(EventPoll { reading: admin.reading.is_some(), namespace_notices: admin.namespace_notices })
    }

    /// The events that the controller has reported since the last call. For each event, the log page that it names is
    /// read, and then a new Asynchronous Event Request replaces the one that the event has answered. These requests
    /// have no deadline.
    pub fn take_events(&self) -> Result<Vec<ControllerEvent>, DriverError> {
        let mut events = Vec::new();
        // At most as many events as there are requests: a controller that reports without end must not hold the caller.
        for _ in 0..REQUESTS {
            let next = self.lock_admin().next_event(self.admin_memory());
            let Some(event) = next else { break };
            let details = match self.event_details(event) {
                Ok(details) => details,
                Err(error @ (DriverError::Command { .. } | DriverError::Unusable { .. })) => {
                    EventDetails::Unread(error.to_string())
                }
                Err(error) => {
                    self.lock_admin().put_back_event(event);
                    return Err(error);
                }
            };
            events.push(ControllerEvent { event, details });
            self.lock_admin().arm(self.admin_memory(), self.event_requests());
        }
        Ok(events)
    }

    fn event_details(&self, event: AsyncEvent) -> Result<EventDetails, DriverError> {
        let page = event.log_page();
        Ok(EventDetails::of(page, &self.log_page(page, NSID_ALL, self.event_page_bytes(event))?))
    }

    /// Bytes of the log page that an event names, as far as it is read.
    fn event_page_bytes(&self, event: AsyncEvent) -> usize {
        match event.log_page() {
            LogPageId::ERROR => (usize::from(self.info().elpe_z) + 1).min(64) * size_of::<ErrorLogEntry>(),
            LogPageId::CHANGED_NAMESPACES => size_of::<ChangedNamespaceList>(),
            _ => 512,
        }
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
            // A controller without the feature decides itself what it reports.
            Ok(_) | Err(DriverError::Command { .. }) => {}
            Err(error) => return Err(error),
        }
        self.lock_admin().arm(self.admin_memory(), self.event_requests());
        Ok(())
    }
}

impl EventDetails {
    /// The content of log page `page`.
    fn of(page: LogPageId, data: &[u8]) -> Self {
        fn read<T: FromBytes>(data: &[u8]) -> Option<Box<T>> {
            T::read_from_prefix(data).ok().map(|(page, _)| Box::new(page))
        }
        let details = match page {
            LogPageId::ERROR => {
                let entries = data.chunks_exact(size_of::<ErrorLogEntry>()).filter_map(read::<ErrorLogEntry>);
                Some(Self::Errors(entries.map(|entry| *entry).filter(ErrorLogEntry::is_valid).collect()))
            }
            LogPageId::SMART => read(data).map(Self::Health),
            LogPageId::CHANGED_NAMESPACES => read(data).map(Self::ChangedNamespaces),
            LogPageId::FIRMWARE_SLOT => read(data).map(Self::Firmware),
            _ => None,
        };
        details.unwrap_or_else(|| Self::Other(data.iter().copied().take(512).collect()))
    }
}
