//! The positions of all keys that an index was built from.

use std::ops::ControlFlow;
use std::sync::Mutex;

use super::options::IndexOptions;
use super::read::BLOCK;
use super::worker_threads::WorkerThreads;
use crate::error::IndexBuildError;
use crate::index::KeyIndex;
use crate::source::KeySource;

impl KeyIndex {
    /// The position of each key of `source`, in the order of `source`, from which the index was built: an array of 4 or
    /// 8 bytes a key.
    pub fn place<S: KeySource + ?Sized, T: KeyPosition>(
        &self,
        source: &S,
        threads: usize,
    ) -> Result<Vec<T>, IndexBuildError> {
        let keys = source.len();
        let mut all: Vec<T> = Vec::new();
        let bytes = keys.saturating_mul(size_of::<T>() as u64);
        let length = usize::try_from(keys).unwrap_or(usize::MAX);
        all.try_reserve_exact(length).map_err(|_| IndexBuildError::Memory { what: "the slots of all keys", bytes })?;
        all.resize(length, T::default());
        let threads = IndexOptions { threads, ..IndexOptions::default() }.thread_count();
        let jobs = Mutex::new((0..).step_by(BLOCK as usize).zip(all.chunks_mut(BLOCK as usize)));
        WorkerThreads::new(threads.min(keys.div_ceil(BLOCK) as usize)).run(
            &mut |_| ControlFlow::Continue(()),
            &|workers, _| {
                let mut keys = vec![0; BLOCK as usize];
                let mut slots = vec![0; BLOCK as usize];
                while let Some((first, out)) = workers.next(&jobs) {
                    let keys = &mut keys[..out.len()];
                    let slots = &mut slots[..out.len()];
                    source.read(first, keys).map_err(|source| IndexBuildError::Source { first, source })?;
                    self.positions(keys, slots);
                    for (out, &slot) in out.iter_mut().zip(&*slots) {
                        *out = T::of(slot).ok_or(IndexBuildError::Changed)?;
                    }
                }
                Ok::<_, IndexBuildError>(())
            },
        )?;
        Ok(all)
    }
}

/// An integer type that [`KeyIndex::place`] writes positions as.
pub trait KeyPosition: Copy + Default + Send {
    /// `slot` as this type; `None` if it is too large, or no position at all ([`KeyIndex::ABSENT`]).
    fn of(slot: u64) -> Option<Self>;
}

impl KeyPosition for u32 {
    fn of(slot: u64) -> Option<Self> {
        slot.try_into().ok()
    }
}

impl KeyPosition for u64 {
    fn of(slot: u64) -> Option<Self> {
        Some(slot).filter(|&slot| slot != KeyIndex::ABSENT)
    }
}
