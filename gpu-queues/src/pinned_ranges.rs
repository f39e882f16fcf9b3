//! Which memory of this process is pinned for CUDA, by address. Code that gets a piece of memory, but not the object
//! that pinned it, finds the address for kernels here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warprow_dma::DmaMemory;

/// The pinned pieces of memory: their lengths and their addresses for kernels, by their addresses in this process. CUDA
/// registers a piece of memory once at a time, so that pieces do not overlap.
static RANGES: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());
/// Counts the changes of [`RANGES`].
static CHANGES: AtomicU64 = AtomicU64::new(0);

fn ranges() -> MutexGuard<'static, BTreeMap<usize, (usize, u64)>> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often memory has been pinned or given up by [`PinnedMemory`](crate::PinnedMemory). As long as this number stays
/// as it is, [`pinned_address`] gives the same answers.
pub fn pinned_changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// The address at which kernels of every context reach `memory`, if all of it is part of one
/// [`PinnedMemory`](crate::PinnedMemory). The address is valid for as long as that `PinnedMemory` lives.
pub fn pinned_address(memory: &DmaMemory) -> Option<u64> {
    let start = memory.as_ptr() as usize;
    let ranges = ranges();
    let (&first, &(len, address)) = ranges.range(..=start).next_back()?;
    let within = start - first;
    (memory.len() <= len.checked_sub(within)?).then_some(address + within as u64)
}

pub(crate) fn note(memory: &DmaMemory, address: u64) {
    ranges().insert(memory.as_ptr() as usize, (memory.len(), address));
    CHANGES.fetch_add(1, Ordering::Release);
}

pub(crate) fn forget(memory: &DmaMemory) {
    ranges().remove(&(memory.as_ptr() as usize));
    CHANGES.fetch_add(1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_dma::MemoryKind;

    #[test]
    fn addresses_are_those_of_pinned_memory_and_of_no_other() {
        let memory = DmaMemory::allocate(8192, MemoryKind::Anonymous).unwrap();
        let other = DmaMemory::allocate(4096, MemoryKind::Anonymous).unwrap();
        let before = pinned_changes();
        assert_eq!(pinned_address(&memory), None);
        note(&memory, 0x1000_0000);
        assert_eq!((pinned_address(&memory), pinned_address(&other)), (Some(0x1000_0000), None));
        forget(&memory);
        assert_eq!(pinned_address(&memory), None);
        assert!(pinned_changes() >= before + 2);
    }
}
