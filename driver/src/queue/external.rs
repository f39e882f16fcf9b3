use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{Doorbell, Mapped};

use super::completion::{CommandName, Issued};
use super::device::DeviceQueue;
use super::registry::Submitter;
use super::ring_sizes::RingSizes;
use crate::controller::Controller;
use crate::error::DriverError;
use crate::failure::Blame;

/// A queue pair whose rings somebody else drives: a kernel on a GPU, say. This is what its host owns: the queue pair's
/// existence on the device.
///
/// The memory is the caller's: the rings lie in it as [`RingSizes`] says, anything may follow. The *submitter* writes the
/// submission queue, reads the completion queue and stores the doorbells, by the rules of `docs/rings.md`. It sends only
/// commands that leave the media alone: a write that it gave up on would not be held against the writes of others.
///
/// Whatever takes the queue from under the submitter (a reset of the controller, [`recreate`](Self::recreate),
/// [`delete`](Self::delete), dropping it) first closes the submitter and waits until it has left, for at most
/// [`Options::leave_timeout`](crate::Options). It is let in again when the queue has been recreated.
#[derive(Debug)]
pub struct ExternalQueue {
    memory: Arc<Mapped>,
    tail: Doorbell,
    head: Doorbell,
    device: DeviceQueue,
}

impl Controller {
    /// Makes a queue pair in `memory`, for `submitter` to drive. The rings are zeroed.
    ///
    /// Fails with [`DriverError::QueueMemory`] if the rings do not fit or the memory is not mapped for this controller, with
    /// [`DriverError::QueueSize`], [`DriverError::NoQueueLeft`], or as [`Controller::admin`] does.
    ///
    /// # Safety
    /// Whoever writes to the rings or stores their doorbells, the submitter or others, lets the device write only to
    /// `memory`, which the queue keeps mapped until the device has let go of it, or to memory of which
    /// [`QueuePair::push`](crate::QueuePair::push) tells, until the queue is deleted. `memory` is behind no Rust reference until then.
    /// Once [`Submitter::has_left`] has said so, the submitter does neither.
    #[allow(unsafe_code, reason = "a contract; the code is safe")]
    pub unsafe fn external_queue(
        self: &Arc<Self>,
        memory: Arc<Mapped>,
        sizes: RingSizes,
        submitter: Arc<dyn Submitter>,
    ) -> Result<ExternalQueue, DriverError> {
        sizes.check(self)?;
        let refuse = |why| Err(DriverError::QueueMemory { function: self.name().clone(), why });
        if !Arc::ptr_eq(memory.function(), self.function()) {
            return refuse(format!("it is mapped for {}", memory.function().name()));
        }
        if memory.memory().len() < sizes.bytes() {
            return refuse(format!("it has {} bytes, and the rings take {}", memory.memory().len(), sizes.bytes()));
        }
        let mut queues = self.lock_queues();
        let device = DeviceQueue::new(self, &mut queues, sizes, memory.iova(), Some(submitter))?;
        let (tail, head) = device.doorbells().inspect_err(|_| drop(queues.links.remove(&device.id())))?;
        let mut queue = ExternalQueue { memory, tail, head, device };
        queue.zero();
        let made = queue.device.create(&queues);
        // Dropping a queue takes the lock.
        drop(queues);
        match made {
            Ok(()) => Ok(queue),
            Err(error) => {
                let link = queue.device.link.clone();
                drop(queue);
                // It never came in, and may serve other queues.
                link.open();
                Err(error)
            }
        }
    }
}

impl ExternalQueue {
    /// Queue identifier, from 1.
    pub fn id(&self) -> u16 {
        self.device.id()
    }

    /// The controller it belongs to.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.device.controller
    }

    /// Entries of its rings, and where they lie in [`memory`](Self::memory).
    pub fn sizes(&self) -> RingSizes {
        self.device.sizes()
    }

    /// The memory of the rings, and of whatever the caller put behind them.
    pub fn memory(&self) -> &Arc<Mapped> {
        &self.memory
    }

    /// The SQ tail doorbell.
    pub fn tail(&self) -> &Doorbell {
        &self.tail
    }

    /// The CQ head doorbell.
    pub fn head(&self) -> &Doorbell {
        &self.head
    }

    /// Offsets of the SQ tail and CQ head doorbells in BAR0, bytes.
    pub fn doorbell_offsets(&self) -> (u64, u64) {
        self.device.doorbell_offsets()
    }

    /// Whether the queue is not on the device and has to be [recreated](Self::recreate): the controller was reset, or an
    /// earlier attempt failed.
    pub fn is_stale(&self) -> bool {
        self.device.is_stale()
    }

    /// Starts the queue again from nothing: deletes it from the device (unless a reset already has), zeroes both rings,
    /// creates it anew in the same memory and lets the submitter in. Every command has then ended, and lands nowhere. What
    /// the submitter knows of the queue must be as at the beginning before it comes in: where that takes a step of its own,
    /// close the submitter around this.
    ///
    /// Fails with [`DriverError::QueuesInUse`] if the submitter does not leave. If the device does not delete the queue, it may
    /// still write to its memory: reset the controller. [`DriverError::NoQueueLeft`] if a reset left the controller with fewer
    /// queues. After a failure the submitter stays out.
    pub fn recreate(&mut self) -> Result<(), DriverError> {
        let controller = self.device.controller.clone();
        let queues = controller.lock_queues();
        self.remove()?;
        self.zero();
        self.device.create(&queues)?;
        self.device.link.open();
        Ok(())
    }

    /// Blames the controller for a command that the submitter had no answer to: for [`Controller::recover`].
    pub fn blame_time_out(&self, issued: Issued, waited: Duration) -> Blame {
        let (controller, command) = (&self.device.controller, CommandName { queue: self.id(), issued });
        let (function, csts) = (controller.name().clone(), controller.registers().csts_or_absent());
        Blame { trial: self.device.trial, error: DriverError::TimedOut { function, command, waited, csts } }
    }

    /// Whether this queue keeps its submitter out: it is being deleted, or its controller was reset or given up.
    pub fn keeps_submitter_out(&self) -> bool {
        self.device.link.is_closed()
    }

    /// Lets the submitter in although the queue is not on the device, because its controller is given up and others of the
    /// submitter's queues are not. It must not touch this one until that has been [recreated](Self::recreate): until then the
    /// memory is the device's, as far as anybody knows.
    pub fn do_without(&self) {
        let _queues = self.device.controller.lock_queues();
        self.device.link.open();
    }

    /// Deletes the queue from the device, as dropping it does, but says whether that worked: then neither the device nor the
    /// submitter touches its memory any more. Fails as [`recreate`](Self::recreate), which also undoes this.
    pub fn delete(&mut self) -> Result<(), DriverError> {
        let controller = self.device.controller.clone();
        let _queues = controller.lock_queues();
        self.remove()
    }

    /// With the registry locked: the submitter leaves, then the device forgets the queue.
    fn remove(&mut self) -> Result<(), DriverError> {
        let controller = &self.device.controller;
        self.device.link.close();
        let mut patience = controller.patience(controller.options().leave_timeout);
        while !self.device.link.has_left() {
            if !patience.wait() && !self.device.link.has_left() {
                return Err(DriverError::QueuesInUse { function: controller.name().clone(), queues: vec![self.id()] });
            }
        }
        self.device.leave();
        self.device.forget_if_reset();
        self.device.delete_sq()?;
        self.device.delete_cq()
    }

    fn zero(&mut self) {
        self.memory.memory().fill(0, self.sizes().bytes(), 0);
    }
}

impl Drop for ExternalQueue {
    fn drop(&mut self) {
        let controller = self.device.controller.clone();
        let mut queues = controller.lock_queues();
        let deleted = self.remove();
        self.device.retire(&mut queues, deleted, || vec![self.memory.clone()]);
    }
}
