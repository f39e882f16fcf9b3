//! What a host reads at present, and the plans that read it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use warprow_store::view::lock;

use super::attached::Attached;
use super::ending::Ending;
use super::planned::Planned;
use super::prepared::Prepared;

/// What a host reads at present, and the plans that read it.
#[derive(Debug)]
pub(crate) struct Hosting {
    pub(super) current: RwLock<Arc<Attached>>,
    pub(super) plans: Mutex<Vec<Weak<Planned>>>,
    /// What plans read before the host adopted other tables, for as long as look-ups may still read it.
    pub(super) retired: Mutex<Vec<Arc<Prepared>>>,
    /// The thread by which its DRAM tier follows what is looked up, if there is one.
    pub(super) reranking: Mutex<Weak<Ending>>,
}

impl Hosting {
    pub(crate) fn new(attached: Arc<Attached>) -> Self {
        Self {
            current: RwLock::new(attached),
            plans: Mutex::default(),
            retired: Mutex::default(),
            reranking: Mutex::default(),
        }
    }

    pub(crate) fn current(&self) -> Arc<Attached> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The plans, locked, if `attached` is what the host reads at present. While the lock is held, the host reads
    /// nothing else.
    pub(crate) fn plans_of(&self, attached: &Arc<Attached>) -> Option<MutexGuard<'_, Vec<Weak<Planned>>>> {
        let mut plans = lock(&self.plans);
        plans.retain(|plan| plan.strong_count() > 0);
        Arc::ptr_eq(attached, &self.current()).then_some(plans)
    }

    /// Frees what was retired and is read by no look-up any more. Returns how many of the retired are left.
    pub(super) fn let_go(&self) -> usize {
        let mut retired = lock(&self.retired);
        // A look-up takes only what is current. So nothing can become a new holder of what was retired: one holder is
        // this list itself.
        retired.retain(|prepared| Arc::strong_count(prepared) > 1);
        retired.len()
    }
}
