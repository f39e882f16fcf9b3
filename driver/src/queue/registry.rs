use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warprow_dma::Mapped;

/// Whoever drives the rings of an [`ExternalQueue`](super::ExternalQueue) and may have to be kept out of them: a kernel on a
/// GPU behind its gate, or a thread.
pub trait Submitter: Send + Sync + fmt::Debug {
    /// Asks it to leave the rings and doorbells, and to stay out. Returns at once. Calls are counted: one submitter may serve
    /// several queues, and stays out until each call was matched by one of [`open`](Self::open).
    fn close(&self);

    /// Whether it is out, after [`close`](Self::close). Then everything it stored is visible to the caller, and it will touch
    /// neither rings nor doorbells until it is let in again.
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
    pub(crate) retained: Vec<Vec<Arc<Mapped>>>,
}

/// What the controller and the owner of a queue pair tell each other.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// The owner no longer touches the doorbells.
    pub(crate) left: AtomicBool,
    /// The queue pair no longer exists, but may still exist on the device.
    pub(crate) dropped: AtomicBool,
    /// Who touches the doorbells, if not the owner.
    submitter: Option<Arc<dyn Submitter>>,
    /// This queue keeps its submitter out. Changes with the registry locked.
    closed: AtomicBool,
}

impl Link {
    /// Keeps the submitter out; false if this queue did already, or has none.
    pub(crate) fn close(&self) -> bool {
        let Some(submitter) = &self.submitter else { return false };
        let closes = !self.closed.swap(true, Ordering::SeqCst);
        if closes {
            submitter.close();
        }
        closes
    }

    /// Lets the submitter in, as far as this queue is concerned.
    pub(crate) fn open(&self) {
        if let Some(submitter) = &self.submitter
            && self.closed.swap(false, Ordering::SeqCst)
        {
            submitter.open();
        }
    }

    /// Whether this queue keeps its submitter out.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Whether nobody touches the doorbells any more.
    pub(crate) fn has_left(&self) -> bool {
        match &self.submitter {
            None => self.left.load(Ordering::Acquire),
            Some(submitter) => self.closed.load(Ordering::SeqCst) && submitter.has_left(),
        }
    }
}

impl Queues {
    /// Takes the lowest free queue identifier, if there is one.
    pub(crate) fn take_id(&mut self, submitter: Option<Arc<dyn Submitter>>) -> Option<(u16, Arc<Link>)> {
        let id = (1..=self.granted).find(|id| !self.links.contains_key(id))?;
        let link = Arc::new(Link { submitter, ..Link::default() });
        self.links.insert(id, link.clone());
        Some((id, link))
    }

    /// After a reset: the identifiers of queue pairs that no longer exist are free.
    pub(crate) fn forget_dropped(&mut self) {
        self.links.retain(|_, link| !link.dropped.load(Ordering::Acquire));
    }
}
