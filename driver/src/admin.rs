//! Admin commands: any thread may send one, and waits for the answer.

use std::time::Duration;

use warprow_dma::Interrupt;
use warprow_spec::{Sqe, Status};

use crate::controller::Controller;
use crate::error::DriverError;
use crate::patience::Patience;
use crate::queue::{CommandEnd, CommandName, Completion};

/// The answer to an admin command.
#[derive(Clone, Debug)]
pub struct AdminAnswer {
    /// Dwords 0 and 1 of the completion.
    pub result: [u32; 2],
    /// The 4,096 bytes of the data page, as the device left them (zeros where it wrote nothing); empty for commands
    /// that return no data.
    pub data: Vec<u8>,
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
    /// completion queue's or memory lent for good, that memory is [mapped](warprow_dma::MappedMemory) for the controller and behind no Rust
    /// reference ([`DmaBuffer`](warprow_dma::DmaBuffer)) until the device has provably let go of it: the queue deleted, the memory taken
    /// back, or CC.EN = 0 and RDY = 0; or nothing is mapped there meanwhile. It does not delete or shift what others own: queues of a
    /// [`QueuePair`](crate::QueuePair), the LBA format of a [`Namespace`](crate::Namespace) in use, lent host memory. Commands
    /// sent through a queue that it creates keep the contract of [`QueuePair::push`](crate::QueuePair::push).
    #[allow(unsafe_code, reason = "a contract; the code is safe")]
    pub unsafe fn admin(&self, sqe: Sqe, payload: &[u8], timeout: Duration) -> Result<AdminAnswer, DriverError> {
        self.send(sqe, payload, timeout)
    }

    /// As [`admin`](Self::admin), whose contract holds of the commands that this crate builds.
    pub(crate) fn send(&self, sqe: Sqe, payload: &[u8], timeout: Duration) -> Result<AdminAnswer, DriverError> {
        self.send_meanwhile(sqe, payload, timeout, |_| {})
    }

    /// As [`send`](Self::send), calling `meanwhile` with the time waited about once a second.
    pub(crate) fn send_meanwhile(
        &self,
        sqe: Sqe,
        payload: &[u8],
        timeout: Duration,
        mut meanwhile: impl FnMut(Duration),
    ) -> Result<AdminAnswer, DriverError> {
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

    /// The interrupt to sleep on for a command with this time limit; `None` if the command is polled for.
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
    ) -> Result<AdminAnswer, DriverError> {
        let function = self.name().clone();
        let command = CommandName { queue: 0, issued: completion.issued };
        match completion.ended {
            CommandEnd::Answered(status) if status.is_success() => Ok(AdminAnswer { result: completion.result, data }),
            CommandEnd::Answered(status) => Err(DriverError::Command { function, command, status }),
            CommandEnd::TimedOut => {
                let csts = self.registers().csts_or_absent();
                Err(DriverError::TimedOut { function, command, waited, csts })
            }
            CommandEnd::Lost | CommandEnd::Released => Err(DriverError::Lost { function, command }),
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

/// Waits for admin commands whose time limit is at least this sleep until an interrupt comes, where the transport has
/// one.
const LONG: Duration = Duration::from_secs(60);

/// How often a wait checks whether the device is still there.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// Whether an error is the device's answer with this very status.
pub(crate) fn has_status(error: &DriverError, code: warprow_spec::StatusCode) -> bool {
    matches!(error, DriverError::Command { status, .. } if Status::code(*status) == code)
}
