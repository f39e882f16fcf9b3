//! The admin queue: commands that somebody waits for, with asynchronous event requests outstanding beside them.

use std::collections::VecDeque;
use std::time::Duration;

use warprow_dma::{Doorbell, MappedMemory, PAGE};
use warprow_spec::async_event::{AsyncEvent, AsyncEventKind, NoticeEvent};
use warprow_spec::{AdminOpcode, DataTransfer, Sqe};

use crate::late::admin_changes_media;
use crate::queue::{CommandEnd, Completion, NEVER, Ring, RingMemory};

/// Entries of the admin queues: few commands are ever outstanding, and each has a data page.
pub(crate) const ENTRIES: u16 = 32;
/// Where the completion queue, and then the data pages, lie in the admin memory.
pub(crate) const CQ_AT: usize = PAGE;
const DATA_AT: usize = 2 * PAGE;
/// Bytes of the admin memory: both queues, and a page for each CID.
pub(crate) const MEMORY_BYTES: usize = DATA_AT + (ENTRIES as usize - 1) * PAGE;
/// Tags from here on are asynchronous event requests.
const EVENT_TAG: u64 = 1 << 63;

/// The state of the admin queue, behind the controller's lock.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    ring: Ring<RingMemory, Doorbell>,
    /// The controller is enabled and the queues are live.
    pub(crate) up: bool,
    next_ticket: u64,
    /// Tags of the commands that somebody waits for.
    awaited: Vec<u64>,
    /// Ended commands that their waiters have not fetched yet, with the data page if the device wrote one.
    ended: Vec<(Completion, Vec<u8>)>,
    /// Completed asynchronous event requests that nobody has looked at yet.
    pub(crate) events: VecDeque<AsyncEvent>,
    /// The event whose log page is being read while nobody waits for it, and the tag of that command.
    pub(crate) reading: Option<(AsyncEvent, u64)>,
    /// Events that said that attributes of a namespace changed.
    pub(crate) namespace_notices: u64,
    /// Asynchronous event requests outstanding.
    armed: u32,
    /// The device refused the last asynchronous event request; no more are sent until a reset.
    refused: bool,
}

impl AdminQueue {
    pub(crate) fn new(ring: Ring<RingMemory, Doorbell>) -> Self {
        Self {
            ring,
            up: false,
            next_ticket: 0,
            awaited: Vec::new(),
            ended: Vec::new(),
            events: VecDeque::new(),
            reading: None,
            namespace_notices: 0,
            armed: 0,
            refused: false,
        }
    }

    /// Everything is forgotten after CC.EN = 0 reached RDY = 0; waiters find their commands lost.
    pub(crate) fn restart(&mut self) {
        let (awaited, ended) = (&self.awaited, &mut self.ended);
        self.ring.restart(|completion| {
            if completion.ended == CommandEnd::Lost && awaited.contains(&completion.tag) {
                ended.push((completion, Vec::new()));
            }
        });
        self.events.clear();
        self.armed = 0;
        self.refused = false;
    }

    fn page_of(&self, cid: u16) -> usize {
        DATA_AT + self.ring.index_of(cid) * PAGE
    }

    /// Pushes and rings a command; `None` when there is no free slot.
    fn submit(&mut self, memory: &MappedMemory, sqe: Sqe, payload: &[u8], tag: u64, deadline: Duration) -> Option<u16> {
        let page = DATA_AT + self.ring.next_index()? * PAGE;
        let direction = DataTransfer::of_opcode(sqe.opcode());
        let has_data = match AdminOpcode(sqe.opcode()) {
            // The queue commands use PRP1 for the queue, and features by and large for nothing.
            AdminOpcode::CREATE_IO_CQ | AdminOpcode::CREATE_IO_SQ => false,
            _ => direction != DataTransfer::None,
        };
        let sqe = if has_data {
            // Zeroes, so that what the device does not write is told from what it does.
            memory.memory().fill(page, PAGE, 0);
            memory.memory().write(page, payload.get(..PAGE.min(payload.len())).unwrap_or_default());
            sqe.with_prps(memory.iova() + page as u64, 0)
        } else {
            sqe
        };
        let cid = self.ring.push(sqe, tag, deadline)?;
        self.ring.ring();
        Some(cid)
    }

    /// Consumes what the device answered. Data is copied out before its page can be given to another command.
    pub(crate) fn poll(&mut self, memory: &MappedMemory) {
        let mut answered = Vec::new();
        self.ring.poll(|completion| answered.push(completion));
        for completion in answered {
            if completion.tag >= EVENT_TAG {
                self.armed = self.armed.saturating_sub(1);
                if completion.is_success() {
                    let event = AsyncEvent::from_bits(completion.result[0]);
                    let changed = AsyncEventKind::Notice(NoticeEvent::NAMESPACE_ATTRIBUTE);
                    self.namespace_notices += u64::from(event.kind() == changed);
                    self.events.push_back(event);
                } else {
                    self.refused = true;
                }
                continue;
            }
            if !self.awaited.contains(&completion.tag) {
                continue;
            }
            let mut data = Vec::new();
            if DataTransfer::of_opcode(completion.issued.opcode) == DataTransfer::ControllerToHost {
                data.resize(PAGE, 0);
                memory.memory().read(self.page_of(completion.issued.cid), &mut data);
            }
            self.ended.push((completion, data));
        }
    }

    /// Returns how many of the commands that timed out change the media.
    pub(crate) fn expire(&mut self, now: Duration) -> u32 {
        let (awaited, ended) = (&self.awaited, &mut self.ended);
        let mut late = 0;
        self.ring.expire(now, |completion| {
            late += u32::from(admin_changes_media(completion.issued.opcode));
            if awaited.contains(&completion.tag) {
                ended.push((completion, Vec::new()));
            }
        });
        late
    }

    pub(crate) fn take(&mut self, tag: u64) -> Option<(Completion, Vec<u8>)> {
        let at = self.ended.iter().position(|(completion, _)| completion.tag == tag)?;
        self.awaited.retain(|&other| other != tag);
        Some(self.ended.swap_remove(at))
    }

    /// Submits a command that [`take`](Self::take) asks for by the tag returned; `None` when there is no free slot.
    pub(crate) fn submit_awaited(
        &mut self,
        memory: &MappedMemory,
        sqe: Sqe,
        payload: &[u8],
        deadline: Duration,
    ) -> Option<u64> {
        let tag = self.next_ticket;
        self.submit(memory, sqe, payload, tag, deadline)?;
        self.next_ticket += 1;
        self.awaited.push(tag);
        Some(tag)
    }

    /// Nobody waits for the command any more.
    pub(crate) fn abandon(&mut self, tag: u64) {
        self.awaited.retain(|&other| other != tag);
        self.ended.retain(|(completion, _)| completion.tag != tag);
    }

    /// Keeps `wanted` asynchronous event requests outstanding.
    pub(crate) fn arm(&mut self, memory: &MappedMemory, wanted: u32) {
        while self.up && !self.refused && self.armed < wanted {
            let tag = EVENT_TAG | u64::from(self.armed);
            if self.submit(memory, Sqe::async_event_request(), &[], tag, NEVER).is_none() {
                return;
            }
            self.armed += 1;
        }
    }

    /// The oldest event that the device has reported and nobody fetched.
    pub(crate) fn next_event(&mut self, memory: &MappedMemory) -> Option<AsyncEvent> {
        self.poll(memory);
        self.events.pop_front()
    }

    /// An event whose log page could not be read now.
    pub(crate) fn put_back_event(&mut self, event: AsyncEvent) {
        self.events.push_front(event);
    }
}
