use std::sync::Arc;
use std::time::Duration;

use warprow_dma::Doorbell;
use warprow_spec::{Cqe, Sqe};

use super::completion::{CommandName, IssuedCommand};
use super::device::{DeviceQueue, RingIovas};
use super::external_memory::ExternalMemory;
use super::registry::Submitter;
use super::ring_sizes::RingSizes;
use crate::controller::Controller;
use crate::error::DriverError;
use crate::failure::Blame;

/// The first eight bytes of an SQ entry that nobody has written yet. A device sees it only if a tail doorbell was stored that nobody of
/// this queue's stored. The entry has a reserved opcode without data (NVMe Base 2.0, 3.1.4), so the device fails the command and
/// transfers nothing; and it has CID FFFFh, which is no submitter's, so the completion is an anomaly.
const UNWRITTEN: u64 = 0xffff_007c;

/// A queue pair whose rings another party drives, such as a kernel on a GPU. This value is the host's part: it creates
/// the queue pair on the device and deletes it.
///
/// The caller gives the memory ([`ExternalMemory`]). The *submitter* writes
/// the submission queue, reads the completion queue and stores the doorbells, by the rules of `docs/rings.md`. It sends
/// only commands that leave the media alone: a write of this queue that timed out would not make the controller's other
/// queues refuse writes.
///
/// A reset of the controller, [`recreate`](Self::recreate), [`delete`](Self::delete) and dropping the queue first close
/// the submitter and wait until it has left, for at most
/// [`ControllerOptions::leave_timeout`](crate::ControllerOptions). The submitter is opened again when the queue has
/// been recreated.
#[derive(Debug)]
pub struct ExternalQueue {
    memory: ExternalMemory,
    tail: Doorbell,
    head: Doorbell,
    device: DeviceQueue,
}

impl Controller {
    /// Makes a queue pair in `memory`, for `submitter` to drive. Its identifier is the highest that is free, its CQ is zero, and its SQ
    /// holds entries that a device fails without transferring data, until the submitter writes them.
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
        memory: ExternalMemory,
        sizes: RingSizes,
        submitter: Arc<dyn Submitter>,
    ) -> Result<ExternalQueue, DriverError> {
        sizes.check(self)?;
        if let Err(why) = memory.check(sizes, self.function()) {
            return Err(DriverError::QueueMemory { function: self.name().clone(), why });
        }
        let mut queues = self.lock_queues();
        let iovas = RingIovas { sq: memory.sq.iova(), cq: memory.cq.iova() };
        let device = DeviceQueue::new(self, &mut queues, sizes, iovas, Some(submitter))?;
        let (tail, head) = device.doorbells().inspect_err(|_| drop(queues.links.remove(&device.id())))?;
        let mut queue = ExternalQueue { memory, tail, head, device };
        let made = queue.clear().and_then(|()| queue.device.create(&queues));
        // Dropping a queue takes the lock.
        drop(queues);
        match made {
            Ok(()) => Ok(queue),
            Err(error) => {
                let link = queue.device.link.clone();
                drop(queue);
                // The submitter never used this queue, and may serve others.
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

    /// Entries of its rings.
    pub fn sizes(&self) -> RingSizes {
        self.device.sizes()
    }

    /// Where the rings lie, and what commands name.
    pub fn memory(&self) -> &ExternalMemory {
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

    /// Starts the queue again from nothing: deletes it from the device (unless a reset already has), clears both rings,
    /// creates it anew in the same memory and opens the submitter. Every earlier command has then ended, and none of
    /// its data lands any more. Before the submitter uses the queue again, the submitter's own state (indices, phase)
    /// must be as at the beginning. If that takes a step of its own, close the submitter before this call, and open it
    /// after that step.
    ///
    /// Fails with [`DriverError::QueuesInUse`] if the submitter does not leave. If the device does not delete the queue, it may
    /// still write to its memory: reset the controller. [`DriverError::NoQueueLeft`] if a reset left the controller with fewer
    /// queues. After a failure the submitter stays out.
    pub fn recreate(&mut self) -> Result<(), DriverError> {
        let controller = self.device.controller.clone();
        let queues = controller.lock_queues();
        self.remove()?;
        self.clear()?;
        self.device.create(&queues)?;
        self.device.link.open();
        Ok(())
    }

    /// The [`Blame`] for a command to which the submitter got no answer within `waited`, to be given to
    /// [`Controller::recover`].
    pub fn blame_time_out(&self, issued: IssuedCommand, waited: Duration) -> Blame {
        let (controller, command) = (&self.device.controller, CommandName { queue: self.id(), issued });
        let (function, csts) = (controller.name().clone(), controller.registers().csts_or_absent());
        Blame { trial: self.device.trial, error: DriverError::TimedOut { function, command, waited, csts } }
    }

    /// Whether this queue has closed its submitter: because the queue is being deleted, or because its controller was
    /// reset or given up.
    pub fn keeps_submitter_out(&self) -> bool {
        self.device.link.is_closed()
    }

    /// Opens the submitter although this queue is not on the device: for a submitter that has other queues too, when
    /// the controller of this queue is given up and theirs are not. The submitter must not touch this queue until it
    /// has been [recreated](Self::recreate): until then the device may still write to the queue's memory.
    pub fn let_submitter_in(&self) {
        let _queues = self.device.controller.lock_queues();
        self.device.link.open();
    }

    /// Deletes the queue from the device, as dropping it does, but says whether that worked. After success neither the
    /// device nor the submitter touches the queue's memory any more. Fails as [`recreate`](Self::recreate) does;
    /// `recreate` also brings a deleted queue back.
    pub fn delete(&mut self) -> Result<(), DriverError> {
        let controller = self.device.controller.clone();
        let _queues = controller.lock_queues();
        self.remove()
    }

    /// Closes the submitter, waits until it has left, and deletes the queue from the device. The caller has the
    /// registry locked.
    fn remove(&mut self) -> Result<(), DriverError> {
        let controller = &self.device.controller;
        self.device.link.close();
        let mut patience = controller.patience(controller.options().leave_timeout);
        while !self.device.link.has_left() {
            if !patience.wait() && !self.device.link.has_left() {
                return Err(DriverError::QueuesInUse { function: controller.name().clone(), queues: vec![self.id()] });
            }
        }
        // What the submitter stored to registers of the device is posted: a load that the same part of the way carries comes behind it.
        // (Of a device that is gone nothing arrives: the commands below fail then.)
        let _ = self.device.controller.registers().csts_or_absent();
        self.device.leave();
        self.device.forget_if_reset();
        self.device.delete_sq()?;
        self.device.delete_cq()
    }

    /// Makes the rings as for a new queue: the CQ is zero, and the SQ holds entries that do nothing. Fails with
    /// [`DriverError::QueueMemory`] where they lie in memory of another device, which may be lost.
    fn clear(&mut self) -> Result<(), DriverError> {
        let (ExternalMemory { sq, cq, .. }, sizes) = (&self.memory, self.sizes());
        let mut entries = vec![0; sizes.entries as usize * size_of::<Sqe>()];
        for entry in entries.chunks_exact_mut(size_of::<Sqe>()) {
            entry[..size_of::<u64>()].copy_from_slice(&UNWRITTEN.to_le_bytes());
        }
        let zeros = vec![0; sizes.completion_entries as usize * size_of::<Cqe>()];
        sq.memory.write(sq.offset, &entries).and_then(|()| cq.memory.write(cq.offset, &zeros)).map_err(|error| {
            DriverError::QueueMemory { function: self.controller().name().clone(), why: error.to_string() }
        })
    }
}

impl Drop for ExternalQueue {
    fn drop(&mut self) {
        let controller = self.device.controller.clone();
        let mut queues = controller.lock_queues();
        let deleted = self.remove();
        self.device.retire(&mut queues, deleted, || self.memory.all());
    }
}
