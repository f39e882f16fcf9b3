//! The admin queue: synchronous commands of any thread, with asynchronous event requests outstanding beside them.

use std::collections::VecDeque;
use std::time::Duration;

use warprow_dma::{Doorbell, Interrupt, Mapped, PAGE};
use warprow_spec::async_event::{AsyncEvent, AsyncEventKind, NoticeEvent};
use warprow_spec::{AdminOpcode, DataTransfer, Sqe, Status};

use crate::DriverError;
use crate::controller::Controller;
use crate::late::admin_changes_media;
use crate::patience::Patience;
use crate::queue::{CommandName, Completion, Ended, NEVER, Ring, RingMemory};

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
pub(crate) struct Admin {
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

/// The answer to an admin command.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Dwords 0 and 1 of the completion.
    pub result: [u32; 2],
    /// The 4,096 bytes of the data page, as the device left them (zeros where it wrote nothing); empty for commands
    /// that return no data.
    pub data: Vec<u8>,
}

impl Admin {
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
            if completion.ended == Ended::Lost && awaited.contains(&completion.tag) {
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
    fn submit(&mut self, memory: &Mapped, sqe: Sqe, payload: &[u8], tag: u64, deadline: Duration) -> Option<u16> {
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
    pub(crate) fn poll(&mut self, memory: &Mapped) {
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
        memory: &Mapped,
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
    fn abandon(&mut self, tag: u64) {
        self.awaited.retain(|&other| other != tag);
        self.ended.retain(|(completion, _)| completion.tag != tag);
    }

    /// Keeps `wanted` asynchronous event requests outstanding.
    pub(crate) fn arm(&mut self, memory: &Mapped, wanted: u32) {
        while self.up && !self.refused && self.armed < wanted {
            let tag = EVENT_TAG | u64::from(self.armed);
            if self.submit(memory, Sqe::async_event_request(), &[], tag, NEVER).is_none() {
                return;
            }
            self.armed += 1;
        }
    }

    /// The oldest event that the device has reported and nobody fetched.
    pub(crate) fn next_event(&mut self, memory: &Mapped) -> Option<AsyncEvent> {
        self.poll(memory);
        self.events.pop_front()
    }

    /// An event whose log page could not be read now.
    pub(crate) fn put_back_event(&mut self, event: AsyncEvent) {
        self.events.push_front(event);
    }
}

impl Controller {
    /// Sends an admin command and waits for its answer, at most `timeout`. Commands that take data get `payload` (at
    /// most 4,096 bytes); those that return data bring up to 4,096 bytes. For tests and for commands that the driver does not know:
    /// the methods named after commands are safe.
    ///
    /// Fails with [`DriverError::Command`] where the device answers with another status than success,
    /// [`DriverError::TimedOut`] where it does not answer, [`DriverError::Lost`] where a reset ended the command,
    /// [`DriverError::Gone`] or [`DriverError::Fatal`] where the controller has gone or failed meanwhile,
    /// [`DriverError::AdminQueueFull`], [`DriverError::Down`] and [`DriverError::GivenUp`].
    ///
    /// # Safety
    /// The command moves at most 4,096 bytes of data. Where it has the device write to other memory than the data page, as a
    /// completion queue's or memory lent for good, that memory is [mapped](Mapped) for the controller and behind no Rust reference
    /// ([`DmaBuffer`](warprow_dma::DmaBuffer)) until the device has provably let go of it: the queue deleted, the memory taken
    /// back, or CC.EN = 0 and RDY = 0; or nothing is mapped there meanwhile. It does not delete or shift what others own: queues of a
    /// [`QueuePair`](crate::QueuePair), the LBA format of a [`Namespace`](crate::Namespace) in use, lent host memory. Commands
    /// sent through a queue that it creates keep the contract of [`QueuePair::push`](crate::QueuePair::push).
    #[allow(unsafe_code, reason = "a contract; the code is safe")]
    pub unsafe fn admin(&self, sqe: Sqe, payload: &[u8], timeout: Duration) -> Result<Answer, DriverError> {
        self.send(sqe, payload, timeout)
    }

    /// As [`admin`](Self::admin), whose contract holds of the commands that this crate builds.
    pub(crate) fn send(&self, sqe: Sqe, payload: &[u8], timeout: Duration) -> Result<Answer, DriverError> {
        self.send_meanwhile(sqe, payload, timeout, |_| {})
    }

    /// As [`send`](Self::send), calling `meanwhile` with the time waited about once a second.
    pub(crate) fn send_meanwhile(
        &self,
        sqe: Sqe,
        payload: &[u8],
        timeout: Duration,
        mut meanwhile: impl FnMut(Duration),
    ) -> Result<Answer, DriverError> {
        let clock = self.clock();
        let tag = self.submit_admin(sqe, payload, timeout)?;
        let interrupt = self.admin_interrupt(timeout);
        let mut patience = Patience::new(clock, timeout);
        let mut looked = Duration::ZERO;
        let mut told = Duration::ZERO;
        loop {
            let more = patience.wait_for(interrupt);
            {
                let mut admin = self.lock_admin();
                admin.poll(self.admin_memory());
                if !more {
                    self.late.add(admin.expire(clock.now()));
                }
                if let Some((completion, data)) = admin.take(tag) {
                    drop(admin);
                    return self.answer(completion, data, patience.waited());
                }
            }
            let waited = patience.waited();
            if waited >= looked + HEALTH_INTERVAL {
                looked = waited;
                if let Err(error) = self.registers().health("an admin command") {
                    self.lock_admin().abandon(tag);
                    return Err(error);
                }
            }
            if waited >= told + Duration::from_secs(1) {
                told = waited;
                meanwhile(waited);
            }
        }
    }

    /// What to sleep on for a command that may take so long.
    fn admin_interrupt(&self, timeout: Duration) -> Option<&dyn Interrupt> {
        if timeout < LONG && !self.options().admin_interrupts {
            return None;
        }
        let interrupt = self.interrupt.get_or_init(|| {
            let on = self.function().interrupt();
            on.inspect_err(|error| tracing::debug!(%error, "admin commands are polled for")).ok()
        });
        interrupt.as_deref()
    }

    fn submit_admin(&self, sqe: Sqe, payload: &[u8], timeout: Duration) -> Result<u64, DriverError> {
        let clock = self.clock();
        let mut patience = Patience::new(clock, timeout);
        loop {
            let mut admin = self.lock_admin();
            if !admin.up {
                return Err(self.down());
            }
            admin.poll(self.admin_memory());
            let deadline = clock.now().saturating_add(timeout);
            if let Some(tag) = admin.submit_awaited(self.admin_memory(), sqe, payload, deadline) {
                return Ok(tag);
            }
            drop(admin);
            if !patience.wait() {
                self.registers().health("an admin command")?;
                return Err(DriverError::AdminQueueFull { function: self.name().clone(), waited: patience.waited() });
            }
        }
    }

    pub(crate) fn answer(
        &self,
        completion: Completion,
        data: Vec<u8>,
        waited: Duration,
    ) -> Result<Answer, DriverError> {
        let function = self.name().clone();
        let command = CommandName { queue: 0, issued: completion.issued };
        match completion.ended {
            Ended::Answered(status) if status.is_success() => Ok(Answer { result: completion.result, data }),
            Ended::Answered(status) => Err(DriverError::Command { function, command, status }),
            Ended::TimedOut => {
                let csts = self.registers().csts_or_absent();
                Err(DriverError::TimedOut { function, command, waited, csts })
            }
            Ended::Lost | Ended::Released => Err(DriverError::Lost { function, command }),
        }
    }

    /// Asks the controller to abort a command of an I/O queue (NVMe Base 2.0, 5.1; NVMe 1.4, 5.1). `true` when it says
    /// that it did. That proves nothing about the command's memory: the command still ends by its completion, or by the
    /// deletion of its queue.
    pub fn abort(&self, queue: u16, cid: u16) -> Result<bool, DriverError> {
        let answer = self.send(Sqe::abort(queue, cid), &[], self.options().admin_timeout)?;
        Ok(!warprow_spec::admin::AbortResult::from_bits(answer.result[0]).not_aborted())
    }
}

/// Admin commands that may take so long are slept for on an interrupt, where there is one.
const LONG: Duration = Duration::from_secs(60);

/// How often a wait looks whether the device is still there.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// Whether an error is the device's answer with this very status.
pub(crate) fn has_status(error: &DriverError, code: warprow_spec::StatusCode) -> bool {
    matches!(error, DriverError::Command { status, .. } if Status::code(*status) == code)
}
