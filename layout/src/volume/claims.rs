//! Rights that a volume gives to one at a time, each until it is dropped.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::Volume;
use crate::error::VolumeError;

impl Volume {
    /// The right to append to the log of a generation.
    pub(crate) fn claim_log(&self, generation: u64) -> Result<LogClaim, VolumeError> {
        let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        match state.logs.insert(generation) {
            true => Ok(LogClaim { volume: self.clone(), generation }),
            false => Err(VolumeError::LogBusy { generation }),
        }
    }

    /// The right to give a generation other chunks.
    pub(crate) fn claim_rewrite(&self, generation: u64) -> Result<RewriteClaim, VolumeError> {
        let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        match state.rewriting.insert(generation) {
            true => Ok(RewriteClaim { volume: self.clone(), generation }),
            false => Err(VolumeError::Rewriting { generation }),
        }
    }

    /// The right to add a generation, or to write one anew.
    pub(crate) fn claim(&self) -> Result<Claim, VolumeError> {
        match self.shared.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Claim(self.clone())),
            Err(_) => Err(VolumeError::Busy),
        }
    }

    /// From now on no chunk of `member` is given to anybody.
    pub(crate) fn drain(&self, member: u16) -> Draining<'_> {
        self.state_mut().draining = Some(member);
        Draining(self)
    }

    /// Keeps everybody from beginning to write. Does not wait: fails if anybody is writing now.
    pub(crate) fn close(&self) -> Result<Closing<'_>, VolumeError> {
        drop((self.writing()?, self.claim()?));
        let mut state = self.state_mut();
        if state.closed || state.succeeded {
            return Err(VolumeError::MembersChanged);
        }
        if let Some(&generation) = state.logs.iter().next() {
            return Err(VolumeError::LogBusy { generation });
        }
        if let Some(&generation) = state.rewriting.iter().next() {
            return Err(VolumeError::Rewriting { generation });
        }
        if self.shared.claimed.load(Ordering::Acquire) {
            return Err(VolumeError::Busy);
        }
        state.closed = true;
        Ok(Closing(self))
    }
}

/// The right to append to the log of a generation: one at a time has it.
#[derive(Debug)]
pub(crate) struct LogClaim {
    volume: Volume,
    generation: u64,
}

impl Drop for LogClaim {
    fn drop(&mut self) {
        let mut state = self.volume.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        state.logs.remove(&self.generation);
    }
}

/// The right to give a generation other chunks: one at a time has it.
pub(crate) struct RewriteClaim {
    volume: Volume,
    generation: u64,
}

impl RewriteClaim {
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for RewriteClaim {
    fn drop(&mut self) {
        let mut state = self.volume.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        state.rewriting.remove(&self.generation);
    }
}

/// The right to add a generation, or to write one anew: a volume gives it to one at a time.
pub(crate) struct Claim(Volume);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.shared.claimed.store(false, Ordering::Release);
    }
}

/// While a `Draining` lives, no chunk of its member is given to anybody.
pub(crate) struct Draining<'a>(&'a Volume);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.state_mut().draining = None;
    }
}

/// While a `Closing` lives, nobody begins to write; if the members were changed meanwhile, nobody ever does again on
/// this volume.
pub(crate) struct Closing<'a>(&'a Volume);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state_mut();
        state.closed = state.succeeded;
    }
}
