//! A queue pair as the controller knows it, whoever drives its rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warprow_dma::Doorbell;
use warprow_spec::Sqe;
use warprow_spec::admin::QueuePriority;
use warprow_spec::registers::{cq_head_doorbell, sq_tail_doorbell};

use super::external_memory::QueuePairMemory;
use super::registry::{Link, Queues, Submitter};
use super::ring_sizes::RingSizes;
use crate::controller::Controller;
use crate::error::DriverError;

impl RingSizes {
    /// Whether `controller` can have queues of these sizes; [`DriverError::QueueSize`] where it cannot.
    pub(super) fn check(&self, controller: &Controller) -> Result<(), DriverError> {
        let max = controller.cap().max_queue_entries();
        for asked in [self.entries, self.completion_entries] {
            if !(2..=max).contains(&asked) {
                return Err(DriverError::QueueSize { function: controller.name().clone(), asked, max });
            }
        }
        Ok(())
    }
}

/// Where the device sees the rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingIovas {
    pub(super) sq: u64,
    pub(super) cq: u64,
}

/// A gate value that never occurs.
const LEFT: u64 = u64::MAX;

/// A queue pair on the device: its identifier, which of its queues exist there, and what its owner and resets tell each
/// other. Methods that take the registry ([`Queues`]) are called with it locked, so that no reset comes between.
#[derive(Debug)]
pub(super) struct DeviceQueue {
    id: u16,
    sizes: RingSizes,
    iovas: RingIovas,
    pub(super) link: Arc<Link>,
    /// The gate when the queue was made on the device.
    made: u64,
    /// Equal to `made` while the owner may use the queue. Once the owner has left, this is [`LEFT`], which no gate's
    /// value equals.
    pass: u64,
    /// What exists on the device.
    has_sq: bool,
    has_cq: bool,
    /// Commands in quarantine that change the media: this queue's share of the controller's late writes.
    pub(super) late: u32,
    /// The controller's trial when the queue was made on the device.
    pub(super) trial: u64,
    pub(super) controller: Arc<Controller>,
}

impl DeviceQueue {
    /// Takes an identifier for a queue pair with these rings. It is not yet created, and is to be [retired](Self::retire).
    /// Fails with [`DriverError::NoQueueLeft`].
    pub(super) fn new(
        controller: &Arc<Controller>,
        queues: &mut Queues,
        sizes: RingSizes,
        iovas: RingIovas,
        submitter: Option<Arc<dyn Submitter>>,
    ) -> Result<Self, DriverError> {
        let Some((id, link)) = queues.take_id(submitter) else {
            return Err(DriverError::NoQueueLeft { function: controller.name().clone(), granted: queues.granted });
        };
        Ok(Self {
            id,
            sizes,
            iovas,
            link,
            made: controller.gate.now(),
            pass: LEFT,
            has_sq: false,
            has_cq: false,
            late: 0,
            trial: 0,
            controller: controller.clone(),
        })
    }

    pub(super) fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn sizes(&self) -> RingSizes {
        self.sizes
    }

    /// Offsets of the SQ tail and CQ head doorbells in BAR0.
    pub(super) fn doorbell_offsets(&self) -> (u64, u64) {
        let dstrd = self.controller.cap().dstrd();
        (sq_tail_doorbell(self.id, dstrd), cq_head_doorbell(self.id, dstrd))
    }

    /// The SQ tail and CQ head doorbells.
    pub(super) fn doorbells(&self) -> Result<(Doorbell, Doorbell), DriverError> {
        let (sq, cq) = self.doorbell_offsets();
        let function = self.controller.function();
        Ok((function.doorbell(sq)?, function.doorbell(cq)?))
    }

    /// Create I/O Completion Queue, Create I/O Submission Queue (physically contiguous, without interrupts; NVMe Base 2.0,
    /// 5.4 and 5.5; NVMe 1.4, 5.3 and 5.4). [`DriverError::NoQueueLeft`] if a reset left the controller with fewer queues.
    pub(super) fn create(&mut self, queues: &Queues) -> Result<(), DriverError> {
        if self.id > queues.granted {
            return Err(DriverError::NoQueueLeft { function: self.controller.name().clone(), granted: queues.granted });
        }
        self.made = self.controller.gate.now();
        self.trial = self.controller.recovery.trial();
        let size_z = |entries: u32| (entries - 1) as u16;
        let cq = Sqe::create_io_cq(self.id, size_z(self.sizes.completion_entries)).with_prps(self.iovas.cq, 0);
        // A Create command without an answer may still be carried out, so the queue counts as existing.
        self.has_cq = true;
        self.admin(cq).inspect_err(|error| self.has_cq = !is_refusal(error))?;
        let sq = Sqe::create_io_sq(self.id, size_z(self.sizes.entries), self.id, QueuePriority::URGENT);
        self.has_sq = true;
        self.admin(sq.with_prps(self.iovas.sq, 0)).inspect_err(|error| self.has_sq = !is_refusal(error))?;
        self.pass = self.made;
        self.link.left.store(false, Ordering::Release);
        Ok(())
    }

    /// Deletes the submission queue from the device, which completes or aborts its commands. After success it no longer
    /// touches the queue's memory, nor that of the commands, nor carries any of them out.
    pub(super) fn delete_sq(&mut self) -> Result<(), DriverError> {
        if self.has_sq {
            self.admin(Sqe::delete_io_sq(self.id))?;
            self.has_sq = false;
        }
        self.controller.late.end(std::mem::take(&mut self.late));
        Ok(())
    }

    /// Deletes the completion queue, after the submission queue.
    pub(super) fn delete_cq(&mut self) -> Result<(), DriverError> {
        if self.has_cq {
            self.admin(Sqe::delete_io_cq(self.id))?;
            self.has_cq = false;
        }
        Ok(())
    }

    fn admin(&self, sqe: Sqe) -> Result<(), DriverError> {
        self.controller.send(sqe, &[], self.controller.options().admin_timeout).map(drop)
    }

    pub(super) fn has_sq(&self) -> bool {
        self.has_sq
    }

    pub(super) fn has_cq(&self) -> bool {
        self.has_cq
    }

    /// Notes that the owner has let go of the queue.
    pub(super) fn leave(&mut self) {
        self.pass = LEFT;
        self.link.left.store(true, Ordering::Release);
    }

    /// Whether the owner has left, or has to because a reset closed the gate.
    #[inline(always)]
    pub(super) fn is_stale(&self) -> bool {
        self.pass != self.controller.gate.now()
    }

    /// If the controller was reset since the queue was created, notes that nothing of it exists on the device.
    pub(super) fn forget_if_reset(&mut self) {
        if self.controller.gate.now() & !1 != self.made {
            (self.has_sq, self.has_cq, self.late) = (false, false, 0);
        }
    }

    /// Gives the identifier back when the queue has been `deleted`; else `memory` stays with the controller until a reset.
    pub(super) fn retire(
        &mut self,
        queues: &mut Queues,
        deleted: Result<(), DriverError>,
        memory: impl FnOnce() -> Vec<QueuePairMemory>,
    ) {
        match deleted {
            Ok(()) => {
                queues.links.remove(&self.id);
            }
            Err(error) => {
                tracing::warn!(%error, queue = self.id, "queue not deleted; its memory is kept until a reset");
                self.link.dropped.store(true, Ordering::Release);
                queues.retained.push(memory());
            }
        }
    }
}

/// Whether the device refused the command or it was never sent, so that the command certainly had no effect.
fn is_refusal(error: &DriverError) -> bool {
    matches!(
        error,
        DriverError::Command { .. }
            | DriverError::Down { .. }
            | DriverError::GivenUp { .. }
            | DriverError::AdminQueueFull { .. }
    )
}
