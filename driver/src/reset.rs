//! Reset and shutdown of a controller (NVMe Base 2.0, 3.6 and 3.7; NVMe 1.4, 7.3 and 7.6.2).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use warprow_dma::FunctionError;

use crate::controller::Controller;
use crate::enable;
use crate::error::DriverError;
use crate::queue::{Link, Queues};
use crate::reset_kind::ResetKind;

/// The most that a drive's RTD3E can lengthen a shutdown to; RTD3E can say more than an hour.
const MOST_SHUTDOWN: Duration = Duration::from_secs(300);

impl Controller {
    /// Resets the controller and enables it again. Every command is lost; everything in quarantine is released.
    ///
    /// First the owners of queue pairs must let go of them: an owner lets go at its next call of `ring`, `poll` or
    /// `wait` (which fails with [`DriverError::Stale`]), by [`QueuePair::leave`](crate::QueuePair::leave), or by
    /// dropping the queue pair. If an owner does not let go within
    /// [`ControllerOptions::leave_timeout`](crate::ControllerOptions), this fails with [`DriverError::QueuesInUse`],
    /// and nothing is reset. The submitters of [external queues](crate::ExternalQueue) are closed, and have to leave
    /// within the same time. After the reset each owner calls [`QueuePair::recreate`](crate::QueuePair::recreate). Any
    /// other error leaves the controller down ([`DriverError::Down`]), and quarantined memory stays out of use; another
    /// reset, of this kind or a deeper one, may bring the controller back.
    pub fn reset(&self, kind: ResetKind) -> Result<(), DriverError> {
        if kind == ResetKind::Subsystem && !self.cap().nssrs() {
            return Err(DriverError::Unsupported { function: self.name().clone(), what: "NVM subsystem reset" });
        }
        let mut queues = self.lock_queues();
        self.gate.close();
        let closed = queues.close_submitters();
        if let Err(error) = self.await_owners(&queues, self.options().leave_timeout) {
            // The gate of a controller that is given up stays closed.
            if self.failure().is_none() {
                self.gate.reopen();
            }
            closed.iter().for_each(|link| link.open());
            return Err(error);
        }

        let mut admin = self.lock_admin();
        admin.up = false;
        let registers = self.registers();
        match kind {
            ResetKind::Controller => {}
            ResetKind::Function => self.reset_function()?,
            ResetKind::Subsystem => self.reset_subsystem()?,
        }
        enable::disable_or_reset(registers, self.clock(), self.cap())?;
        // RDY = 0: no command of before touches memory any more.
        admin.restart();
        self.late.end_all();
        self.identity().end_formats();
        drop(admin);
        queues.retained.clear();
        queues.forget_dropped();
        self.gate.advance();
        tracing::info!(function = %self.name(), ?kind, "controller reset");

        queues.granted = self.start().inspect_err(|_| self.lock_admin().up = false)?;
        self.recovery.end_failure();
        Ok(())
    }

    fn reset_subsystem(&self) -> Result<(), DriverError> {
        let registers = self.registers();
        registers.reset_subsystem()?;
        // The link may go down meanwhile, and registers read as all ones.
        let mut patience = self.patience(enable::disable_limit(self.cap()));
        while patience.wait() {
            let csts = registers.csts_or_absent();
            if !csts.is_absent() && csts.nssro() {
                registers.clear_nssro("an NVM subsystem reset")?;
                break;
            }
        }
        // Configuration space is as after power on: the function's reset sets it up.
        self.reset_function()
    }

    /// Resets the function if the transport can. If it cannot, this is no error: every reset then clears CC.EN, which
    /// stops the controller.
    fn reset_function(&self) -> Result<(), DriverError> {
        match self.registers().function.reset() {
            Ok(()) => Ok(()),
            Err(error @ FunctionError::Unsupported { .. }) => {
                tracing::warn!(%error, "the controller alone is reset");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until no owner of a queue pair can touch its doorbells.
    fn await_owners(&self, queues: &Queues, limit: Duration) -> Result<(), DriverError> {
        let mut patience = self.patience(limit);
        loop {
            let more = patience.wait();
            let staying: Vec<u16> = queues.staying().collect();
            if staying.is_empty() {
                return Ok(());
            }
            if !more {
                return Err(DriverError::QueuesInUse { function: self.name().clone(), queues: staying });
            }
        }
    }

    /// Shuts the controller down for power off: its caches are flushed, its metadata saved. All queue pairs must have
    /// been dropped ([`DriverError::QueuesInUse`]). The controller is left disabled; [`reset`](Self::reset) brings it back.
    ///
    /// Fails with [`DriverError::ShutdownTimeout`] where the drive takes longer than RTD3E says, and with
    /// [`DriverError::Fatal`], [`DriverError::NotReady`] or [`DriverError::Gone`]: data in its volatile cache may then be
    /// lost. [`DriverError::Down`] where it is disabled already.
    pub fn shutdown(&self) -> Result<(), DriverError> {
        let queues = self.lock_queues();
        let live: Vec<u16> = queues.live().collect();
        if !live.is_empty() {
            return Err(DriverError::QueuesInUse { function: self.name().clone(), queues: live });
        }
        if !self.lock_admin().up {
            return Err(self.down());
        }
        if let Err(error) = self.reclaim_host_memory() {
            tracing::warn!(%error, "the drive did not give host memory back before its shutdown");
        }
        let mut admin = self.lock_admin();
        if !admin.up {
            return Err(self.down());
        }
        let least = self.options().shutdown_timeout;
        let limit = Duration::from_micros(self.info().rtd3e.into()).clamp(least, MOST_SHUTDOWN.max(least));
        admin.up = false;
        let told = enable::notify_shutdown(self.registers(), self.clock(), limit);
        enable::disable(self.registers(), self.clock(), self.cap())?;
        admin.restart();
        self.late.end_all();
        self.identity().end_formats();
        told?;
        self.registers().set_bus_master(false, "shutting it down")
    }
}

impl Queues {
    /// Queue pairs that exist.
    pub(crate) fn live(&self) -> impl Iterator<Item = u16> {
        self.links.iter().filter(|(_, link)| !link.dropped.load(Ordering::Acquire)).map(|(&id, _)| id)
    }

    /// Queue pairs whose doorbells may still be rung.
    fn staying(&self) -> impl Iterator<Item = u16> {
        self.links.iter().filter(|(_, link)| !link.has_left()).map(|(&id, _)| id)
    }

    /// Closes the submitters of external queues, until their queues are made anew.
    pub(crate) fn keep_submitters_out(&self) {
        self.close_submitters();
    }

    /// Closes the submitters of external queues. Returns the links whose submitters this call closed.
    fn close_submitters(&self) -> Vec<Arc<Link>> {
        self.links.values().filter(|link| link.close()).cloned().collect()
    }
}
