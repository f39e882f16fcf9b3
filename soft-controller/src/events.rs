//! Asynchronous events (NVMe Base 2.0, 5.2; NVMe 1.4, 5.2): what waits to be reported.

use std::collections::VecDeque;

use warprow_spec::async_event::{AsyncEvent, AsyncEventKind, EventType};
use warprow_spec::log::LogPageId;

/// Asynchronous Event Requests that may be outstanding.
pub(crate) const REQUEST_LIMIT: usize = 4;
/// Events kept for want of a request.
const KEPT: usize = 32;

/// Requests without an event, and events without a request.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) requests: VecDeque<u16>,
    raised: VecDeque<AsyncEvent>,
    /// Types, a bit each, that are masked because the log page of the last event was not read.
    masked: u8,
}

impl Events {
    /// An event has happened. One like it that still waits stands for both.
    pub(crate) fn raise(&mut self, kind: AsyncEventKind, page: LogPageId) {
        let event = AsyncEvent::from_kind(kind, page);
        if !self.raised.contains(&event) && self.raised.len() < KEPT {
            self.raised.push_back(event);
        }
    }

    /// The log page was read without Retain Asynchronous Event: events that name it may be reported again.
    pub(crate) fn page_was_read(&mut self, page: LogPageId) {
        let types = match page {
            LogPageId::ERROR => 1 << EventType::ERROR.0,
            LogPageId::SMART => 1 << EventType::HEALTH.0,
            LogPageId::CHANGED_NAMESPACES | LogPageId::FIRMWARE_SLOT => 1 << EventType::NOTICE.0,
            _ => 0,
        };
        self.masked &= !types;
    }

    /// A controller reset aborts the requests and clears the events.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The next event with the request that reports it.
    pub(crate) fn next(&mut self) -> Option<(u16, AsyncEvent)> {
        let index = self.raised.iter().position(|event| self.masked >> event.event_type().0 & 1 == 0)?;
        let request = self.requests.pop_front()?;
        let event = self.raised.remove(index)?;
        self.masked |= 1 << event.event_type().0;
        Some((request, event))
    }
}
