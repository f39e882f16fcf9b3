//! A controller that is driven, with what the members on its namespaces share: a reset reaches the queues of all.

use std::sync::{Arc, Mutex, Weak};

use warprow_driver::{Blame, BlockIo, Controller, ControllerOptions, DriverError, QueuePair};

use crate::StoreError;
use crate::device::Device;
use crate::drive_access::{DriveAccess, SharedPair, lock};
use crate::events::Watch;

/// A queue pair for metadata; made when needed, and given up when its queue is needed elsewhere.
pub(crate) type MetadataIo = Mutex<Option<BlockIo>>;

pub(crate) struct SharedController {
    controller: Arc<Controller>,
    /// What a reset needs to be let go.
    pairs: Mutex<Vec<Weak<Mutex<QueuePair>>>>,
    metadata: Mutex<Vec<Weak<MetadataIo>>>,
    watch: Watch,
}

/// Opens the controllers of `devices`: one for all namespaces of a function, since nobody can drive it beside another.
/// For each device what became of its own.
pub(crate) fn open(
    devices: &[Device],
    driving: &DriveAccess,
) -> Result<Vec<Result<Arc<SharedController>, DriverError>>, StoreError> {
    let mut all: Vec<Result<Arc<SharedController>, DriverError>> = Vec::with_capacity(devices.len());
    for device in devices {
        let mut same = devices.iter().zip(&all).filter(|(other, _)| Arc::ptr_eq(other.function(), device.function()));
        if same.clone().any(|(other, _)| other.namespace() == device.namespace()) {
            return Err(StoreError::OpenedTwice { drive: device.name() });
        }
        let driven = match same.next() {
            Some((_, driven)) => driven.clone(),
            None => SharedController::open(device, driving),
        };
        all.push(driven);
    }
    Ok(all)
}

impl SharedController {
    fn open(device: &Device, driving: &DriveAccess) -> Result<Arc<Self>, DriverError> {
        let options = ControllerOptions { admin_timeout: driving.admin_timeout, ..ControllerOptions::default() };
        let controller = Controller::open(device.function().clone(), driving.clock.clone(), options)?;
        let (pairs, metadata, watch) = Default::default();
        Ok(Arc::new(Self { controller, pairs, metadata, watch }))
    }

    pub(crate) fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// A number that changes whenever a namespace may have: it was reported, or a reset took events that nobody had seen.
    pub(crate) fn changes(&self) -> u64 {
        self.watch.namespace_notices() + self.controller.resets()
    }

    /// Puts a queue pair where a reset can reach it.
    pub(crate) fn share(&self, pair: QueuePair) -> SharedPair {
        let pair = Arc::new(Mutex::new(pair));
        keep(&self.pairs, &pair);
        pair
    }

    /// A place for a metadata queue pair, likewise.
    pub(crate) fn metadata_io(&self) -> Arc<MetadataIo> {
        let io = Arc::default();
        keep(&self.metadata, &io);
        io
    }

    /// Gives up a metadata queue pair that is not being used, if there is one.
    pub(crate) fn release_io(&self) -> bool {
        let ios = lock(&self.metadata);
        ios.iter().filter_map(Weak::upgrade).any(|io| io.try_lock().is_ok_and(|mut io| io.take().is_some()))
    }

    /// Brings a queue back by [`Controller::recover`]. Its owner has left it ([`QueuePair::leave`]).
    pub(crate) fn revive(
        &self,
        blame: Option<Blame>,
        recreate: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        self.controller.recover(blame, recreate, || self.leave_idle())
    }

    /// Tries a drive that was given up once more, by [`Controller::retry`].
    pub(crate) fn retry(&self) -> Result<(), DriverError> {
        self.leave_idle();
        self.controller.retry()
    }

    /// Lets go of every queue that nobody is using at this moment. Whoever is using one lets go at its next access.
    fn leave_idle(&self) {
        for pair in lock(&self.pairs).iter().filter_map(Weak::upgrade) {
            if let Ok(mut pair) = pair.try_lock() {
                pair.leave();
            }
        }
        for io in lock(&self.metadata).iter().filter_map(Weak::upgrade) {
            if let Ok(mut io) = io.try_lock()
                && let Some(io) = &mut *io
            {
                io.leave();
            }
        }
    }
}

fn keep<T>(list: &Mutex<Vec<Weak<T>>>, new: &Arc<T>) {
    let mut list = lock(list);
    list.retain(|kept| kept.strong_count() > 0);
    list.push(Arc::downgrade(new));
}
