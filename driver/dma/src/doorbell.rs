use std::fmt;
use std::sync::Arc;

use crate::{DmaMemory, Mmio, order};

/// The reader of a doorbell that lies in ordinary memory: a controller, whose thread may be asleep.
pub trait Wake: Send + Sync {
    /// Wakes the reader if it sleeps. Called after the doorbell's store, with the order that
    /// [`order::between_doorbell_and_sleep`] makes. Returns quickly when the reader is awake.
    fn wake(&self);
}

/// Carries doorbell stores to a device whose doorbells are neither mapped registers nor shared memory: by a message for
/// each store.
pub trait RemoteDoorbell: Send + Sync {
    /// Stores `value` to the doorbell at `offset` of BAR0. A failure shows at the next access of a register.
    fn ring(&self, offset: u64, value: u32);
}

/// One doorbell register (NVMe PCIe Transport 1.0, 3.1.2; NVMe 1.4, 3.1.24): write-only, 32 bits.
#[derive(Clone)]
pub struct Doorbell(Place);

#[derive(Clone)]
enum Place {
    Mmio { region: Mmio, offset: usize },
    Memory { memory: DmaMemory, offset: usize, reader: Option<Arc<dyn Wake>> },
    Carried { by: Arc<dyn RemoteDoorbell>, offset: u64 },
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Mmio { offset, .. } => write!(f, "Doorbell(BAR0 + {offset:#x})"),
            Place::Memory { offset, .. } => write!(f, "Doorbell(memory + {offset:#x})"),
            Place::Carried { offset, .. } => write!(f, "Doorbell(message, BAR0 + {offset:#x})"),
        }
    }
}

impl Doorbell {
    /// A doorbell in a device's BAR. `None` if `offset` is misaligned or outside the region.
    pub fn mmio(region: Mmio, offset: usize) -> Option<Self> {
        region.holds(offset, 4).then_some(Self(Place::Mmio { region, offset }))
    }

    /// A doorbell in ordinary memory, as of a controller in this process or behind a vfio-user socket; `reader` is told
    /// after each store. `None` if `offset` is misaligned or outside the memory.
    pub fn memory(memory: DmaMemory, offset: usize, reader: Option<Arc<dyn Wake>>) -> Option<Self> {
        (offset.is_multiple_of(4) && offset.checked_add(4)? <= memory.len()).then_some(Self(Place::Memory {
            memory,
            offset,
            reader,
        }))
    }

    /// The doorbell at `offset` of BAR0; `by` carries each store to the device.
    pub fn carried(by: Arc<dyn RemoteDoorbell>, offset: u64) -> Self {
        Self(Place::Carried { by, offset })
    }

    /// Makes all earlier stores visible to the device, then stores `value`.
    #[inline]
    pub fn ring(&self, value: u32) {
        order::before_doorbell();
        match &self.0 {
            Place::Mmio { region, offset } => region.write_u32(*offset, value),
            Place::Memory { memory, offset, reader } => {
                memory.store_u32(*offset, value.to_le());
                if let Some(reader) = reader {
                    order::between_doorbell_and_sleep();
                    reader.wake();
                }
            }
            Place::Carried { by, offset } => by.ring(*offset, value),
        }
    }
}
