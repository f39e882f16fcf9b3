//! Doorbells that are ordinary memory, pinned once for all queues of a controller.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warprow_dma::{DmaMemory, Function};
use warprow_spec::registers::offset::DOORBELLS;

use crate::GpuQueueError;
use crate::address_space::{AddressSpace, SharedMemory};

/// Doorbell memory that is pinned, by its address in this process, with the number of its users. It is shared because
/// CUDA registers a piece of memory only once at a time.
static PINNED: Mutex<BTreeMap<usize, (SharedMemory, usize)>> = Mutex::new(BTreeMap::new());

fn pinned() -> MutexGuard<'static, BTreeMap<usize, (SharedMemory, usize)>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The doorbells of one controller, where they are memory: one use of a pinned piece of memory.
#[derive(Debug)]
pub(crate) struct DoorbellMemory {
    address: u64,
    memory: DmaMemory,
    /// Whether this is counted as a user in [`PINNED`].
    pinned: bool,
}

impl DoorbellMemory {
    /// `None` if the doorbells are registers.
    pub(crate) fn of(function: &dyn Function, side: &AddressSpace) -> Result<Option<Self>, GpuQueueError> {
        let Some(memory) = function.doorbell_memory() else { return Ok(None) };
        if let AddressSpace::Host = side {
            return Ok(Some(Self { address: memory.as_ptr() as u64, memory, pinned: false }));
        }
        let mut pinned = pinned();
        let key = memory.as_ptr() as usize;
        let address = match pinned.get_mut(&key) {
            Some((shared, users)) => {
                *users += 1;
                shared.address()
            }
            None => {
                let shared = side.share(memory.clone())?;
                let address = shared.address();
                pinned.insert(key, (shared, 1));
                address
            }
        };
        Ok(Some(Self { address, memory, pinned: true }))
    }

    /// The address, for whoever drives the queues, of the doorbell at `offset` of BAR0; `None` if that lies outside.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let at = offset.checked_sub(DOORBELLS)?;
        self.memory.contains(usize::try_from(at).ok()?, 4).then_some(self.address + at)
    }
}

impl Drop for DoorbellMemory {
    fn drop(&mut self) {
        if !self.pinned {
            return;
        }
        let mut pinned = pinned();
        let key = self.memory.as_ptr() as usize;
        if let Some((_, users)) = pinned.get_mut(&key) {
            *users -= 1;
            if *users == 0 {
                // With the lock held: whoever pins it next finds it unpinned.
                pinned.remove(&key);
            }
        }
    }
}
