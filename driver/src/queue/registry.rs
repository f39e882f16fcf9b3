use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::external_memory::QueuePairMemory;

/// The host's hold on the party that drives the rings of an [`ExternalQueue`](super::ExternalQueue), such as a kernel
/// on a GPU or another thread. A reset *closes* the submitter: the party must then *leave*, which means that it touches
/// neither rings nor doorbells until the submitter is *opened* again.
pub trait Submitter: Send + Sync + fmt::Debug {
    /// Asks the party to leave the rings and doorbells, and not to return. Returns at once. Calls are counted: one
    /// submitter may serve several queues, and stays closed until each call was matched by one of [`open`](Self::open).
    fn close(&self);

    /// Whether the party has left, after [`close`](Self::close). If it has, everything that it stored is visible to the
    /// caller, and it will touch neither rings nor doorbells before [`open`](Self::open).
    fn has_left(&self) -> bool;

    /// Takes one [`close`](Self::close) back.
    fn open(&self);
}

/// What the controller knows of the queue pairs made for it.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Queue pairs that the controller granted.
    pub(crate) granted: u16,
    pub(crate) links: BTreeMap<u16, Arc<Link>>,
    /// Memory of queue pairs that were dropped while the device could not be made to let go of them. Kept until a
    /// reset.
    pub(crate) retained: Vec<Vec<QueuePairMemory>>,
}

/// What the controller and the owner or submitter of one queue pair tell each other.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// The owner no longer touches the doorbells.
    pub(crate) left: AtomicBool,
    /// The queue pair no longer exists, but may still exist on the device.
    pub(crate) dropped: AtomicBool,
    /// The submitter of an external queue; `None` where the owner itself rings the doorbells.
    submitter: Option<Arc<dyn Submitter>>,
    /// Whether this queue has closed its submitter. Changes only with the registry ([`Queues`]) locked.
    closed: AtomicBool,
}

impl Link {
    /// Closes the submitter. `false` if this queue has closed it already, or has none.
    pub(crate) fn close(&self) -> bool {
        let Some(submitter) = &self.submitter else { return false };
        let closes = !self.closed.swap(true, Ordering::SeqCst);
        if closes {
            submitter.close();
        }
        closes
    }

    /// Opens the submitter, if this queue has closed it.
    pub(crate) fn open(&self) {
        if let Some(submitter) = &self.submitter
            && self.closed.swap(false, Ordering::SeqCst)
        {
            submitter.open();
        }
    }

    /// Whether this queue has closed its submitter.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Whether neither the owner nor a submitter touches the doorbells any more.
    pub(crate) fn has_left(&self) -> bool {
        match &self.submitter {
            None => self.left.load(Ordering::Acquire),
            Some(submitter) => self.closed.load(Ordering::SeqCst) && submitter.has_left(),
        }
    }
}

impl Queues {
    /// Takes a free queue identifier, if there is one: the lowest, or for a queue with a submitter the highest. A submitter may store to
    /// its doorbells after this process has died (a GPU does, until its context is gone), when the device may have another owner.
    /// Queues that write have low identifiers in either process, so such a store never reaches one.
    pub(crate) fn take_id(&mut self, submitter: Option<Arc<dyn Submitter>>) -> Option<(u16, Arc<Link>)> {
        let mut free = (1..=self.granted).filter(|id| !self.links.contains_key(id));
        let id = if submitter.is_some() { free.next_back() } else { free.next() }?;
        let link = Arc::new(Link { submitter, ..Link::default() });
        self.links.insert(id, link.clone());
        Some((id, link))
    }

    /// After a reset: the identifiers of queue pairs that no longer exist are free.
    pub(crate) fn forget_dropped(&mut self) {
        self.links.retain(|_, link| !link.dropped.load(Ordering::Acquire));
    }
}
