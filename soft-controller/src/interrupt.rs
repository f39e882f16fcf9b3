//! Message-signalled interrupts, for hosts that do not poll (NVMe Base 2.0, 3.1.3 and 3.3.3.2; PCIe Transport 1.0, 3.5).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Where a controller's interrupts go. Whoever implements this handles masking and pending interrupts, since the MSI-X
/// table belongs to the transport.
pub trait InterruptSink: Send + Sync + fmt::Debug {
    /// A completion queue with this interrupt vector has new entries. Called by the workers: it must neither wait nor call the
    /// controller.
    fn raise(&self, vector: u16);
}

/// The sink, while there is one.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    wanted: AtomicBool,
    sink: RwLock<Option<Arc<dyn InterruptSink>>>,
}

impl Interrupts {
    /// Afterwards the sink that was there before is not called any more.
    pub(crate) fn set(&self, sink: Option<Arc<dyn InterruptSink>>) {
        let mut place = self.sink.write().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(sink.is_some(), Ordering::Relaxed);
        *place = sink;
    }

    #[inline]
    pub(crate) fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn raise(&self, vector: u16) {
        if let Some(sink) = &*self.sink.read().unwrap_or_else(PoisonError::into_inner) {
            sink.raise(vector);
        }
    }
}
