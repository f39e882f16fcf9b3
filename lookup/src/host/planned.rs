//! What a plan owns: its slots, and what their look-ups read at present.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use warprow_store::StoreError;
use warprow_store::view::lock;

use super::attached::Attached;
use super::prepared::{Prepared, Room};
use super::state::State;
use crate::feature::{Feature, PlanOptions};

/// What clones of a [`Plan`](super::plan::Plan) share: its slots, and what their look-ups read at present.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(super) source: Vec<Feature>,
    pub(super) options: PlanOptions,
    pub(super) current: RwLock<Arc<Prepared>>,
    pub(super) room: Room,
    /// Slots that nobody uses.
    pub(super) idle: Mutex<Vec<State>>,
}

impl Planned {
    /// What a look-up that begins now reads. Holding it pins its generations.
    #[inline]
    pub(crate) fn current(&self) -> Arc<Prepared> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What look-ups of this plan would read of the tables of `host`, if the slots have room for that.
    pub(crate) fn on(&self, host: Arc<Attached>) -> Result<Arc<Prepared>, StoreError> {
        let prepared = Prepared::new(host, &self.source, self.options.clone())?;
        match prepared.unfit(&self.current(), self.room) {
            None => Ok(Arc::new(prepared)),
            Some(why) => Err(StoreError::Unfit { why }),
        }
    }

    /// Makes look-ups that begin from now on read `next`. Returns what they read before.
    pub(crate) fn replace(&self, next: Arc<Prepared>) -> Arc<Prepared> {
        std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), next)
    }

    /// Takes back what a dropped slot owned.
    pub(crate) fn give_back(&self, state: State) {
        lock(&self.idle).push(state);
    }
}
