//! The slots of all keys that an index was built from.

use std::ops::ControlFlow;
use std::sync::Mutex;

use super::options::Options;
use super::read::BLOCK;
use super::worker_threads::WorkerThreads;
use crate::error::BuildError;
use crate::index::KeyIndex;
use crate::source::KeySource;

impl KeyIndex {
    /// The slot of each key of `source` in their order, which the index was built from: an array of its length, 4 or 8 bytes a
    /// key.
    pub fn place<S: KeySource + ?Sized, T: SlotNumber>(
        &self,
        source: &S,
        threads: usize,
    ) -> Result<Vec<T>, BuildError> {
        let keys = source.len();
        let mut all: Vec<T> = Vec::new();
        let bytes = keys.saturating_mul(size_of::<T>() as u64);
        let length = usize::try_from(keys).unwrap_or(usize::MAX);
        all.try_reserve_exact(length).map_err(|_| BuildError::Memory { what: "the slots of all keys", bytes })?;
        all.resize(length, T::default());
        let threads = Options { threads, ..Options::default() }.thread_count();
        let jobs = Mutex::new((0..).step_by(BLOCK as usize).zip(all.chunks_mut(BLOCK as usize)));
        WorkerThreads::new(threads.min(keys.div_ceil(BLOCK) as usize)).run(
            &mut |_| ControlFlow::Continue(()),
            &|workers, _| {
                let (mut keys, mut slots) = (vec![0; BLOCK as usize], vec![0; BLOCK as usize]);
                while let Some((first, out)) = workers.next(&jobs) {
                    let (keys, slots) = (&mut keys[..out.len()], &mut slots[..out.len()]);
                    source.read(first, keys).map_err(|source| BuildError::Source { first, source })?;
                    self.slots(keys, slots);
                    for (out, &slot) in out.iter_mut().zip(&*slots) {
                        *out = T::of(slot).ok_or(BuildError::Changed)?;
                    }
                }
                Ok::<_, BuildError>(())
            },
        )?;
        Ok(all)
    }
}

/// A number that slots are written as.
pub trait SlotNumber: Copy + Default + Send {
    /// `slot`, unless it is too large for this type, or no slot at all.
    fn of(slot: u64) -> Option<Self>;
}

impl SlotNumber for u32 {
    fn of(slot: u64) -> Option<Self> {
        slot.try_into().ok()
    }
}

impl SlotNumber for u64 {
    fn of(slot: u64) -> Option<Self> {
        Some(slot).filter(|&slot| slot != KeyIndex::ABSENT)
    }
}
