use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warprow_dma::Mapped;

/// What the controller knows of the queue pairs made for it.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Queue pairs that the controller granted.
    pub(crate) granted: u16,
    pub(crate) links: BTreeMap<u16, Arc<Link>>,
    /// Memory of queue pairs that were dropped while the device could not be made to let go of them. Kept until a
    /// reset.
    pub(crate) retained: Vec<Vec<Arc<Mapped>>>,
}

/// What the controller and the owner of a queue pair tell each other.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// The owner no longer touches the doorbells.
    pub(crate) left: AtomicBool,
    /// The queue pair no longer exists, but may still exist on the device.
    pub(crate) dropped: AtomicBool,
}

impl Queues {
    /// Takes the lowest free queue identifier, if there is one.
    pub(crate) fn take_id(&mut self) -> Option<(u16, Arc<Link>)> {
        let id = (1..=self.granted).find(|id| !self.links.contains_key(id))?;
        let link = Arc::new(Link::default());
        self.links.insert(id, link.clone());
        Some((id, link))
    }

    /// After a reset: the identifiers of queue pairs that no longer exist are free.
    pub(crate) fn forget_dropped(&mut self) {
        self.links.retain(|_, link| !link.dropped.load(Ordering::Acquire));
    }
}
