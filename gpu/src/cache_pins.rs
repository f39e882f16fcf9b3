//! Rows that stay in a cache in GPU memory, by a bit in their lines' words. `docs/cache.md` has the contract.

use std::time::{Duration, Instant};

use warprow_gpu_queues::PinnedMemory;
use warprow_kernels::{CacheLines, NoRoomForPins, abi};
use warprow_store::view::lock;

use crate::error::GpuError;
use crate::row_cache::{CacheState, GRACE, GpuCache};

/// Rows that one kernel pins.
const ROWS: usize = 16_384;

impl GpuCache {
    /// Which of these different ranks are not pinned yet, if sets have room for all of them.
    pub(crate) fn to_pin(&self, range: u32, ranks: &[u64]) -> Result<Vec<u64>, NoRoomForPins> {
        let state = lock(&self.state);
        state.pins.new_ones(&state.map, range, ranks)
    }

    /// Launches for which a line that was used is held.
    pub(crate) fn hold(&self) -> u64 {
        lock(&self.state).map.hold()
    }

    /// How many lines these are.
    pub(crate) fn lines_for(&self, lines: CacheLines) -> u64 {
        lock(&self.state).map.lines_for(lines).unwrap_or(0)
    }

    /// The pinned ranks of a range.
    pub(crate) fn pinned(&self, range: u32) -> Vec<u64> {
        lock(&self.state).pins.of(range)
    }

    /// Pins those of these rows that have a line, and tells which.
    pub(crate) fn pin(&self, range: u32, ranks: &[u64]) -> Result<Vec<bool>, GpuError> {
        let mut state = lock(&self.state);
        let found = self.mark(&mut state, range, ranks, true)?;
        let CacheState { map, pins, .. } = &mut *state;
        let pinned = ranks.iter().zip(&found).filter(|(_, found)| **found);
        pinned.for_each(|(&rank, _)| pins.add(map, range, rank));
        Ok(found)
    }

    /// Lets rows go that were pinned; how many.
    pub(crate) fn unpin(&self, range: u32, ranks: &[u64]) -> Result<u64, GpuError> {
        self.let_go(&mut lock(&self.state), range, ranks)
    }

    fn let_go(&self, state: &mut CacheState, range: u32, ranks: &[u64]) -> Result<u64, GpuError> {
        self.mark(state, range, ranks, false)?;
        let CacheState { map, pins, .. } = state;
        Ok(ranks.iter().filter(|&&rank| pins.remove(map, range, rank)).count() as u64)
    }

    /// Lets rows of tables go that nobody reads any more.
    pub(crate) fn let_retired_go(&self, state: &mut CacheState) -> Result<(), GpuError> {
        for range in state.pins.retired(&state.map) {
            let ranks = state.pins.of(range);
            self.let_go(state, range, &ranks)?;
        }
        Ok(())
    }

    /// Sets or clears the bit of each row that has a line; which these are.
    #[allow(unsafe_code, reason = "the kernel writes to the cache's words")]
    fn mark(&self, state: &mut CacheState, range: u32, ranks: &[u64], pins: bool) -> Result<Vec<bool>, GpuError> {
        let late = || GpuError::Busy("the GPU does not come to pinning rows: call it again");
        let room = match state.pin_room.take() {
            Some(room) => state.pin_room.insert(room),
            None => state.pin_room.insert(PinnedMemory::allocate(self.stream.gpu(), ROWS as u64 * 9)?),
        };
        let mut found = Vec::with_capacity(ranks.len());
        for ranks in ranks.chunks(ROWS) {
            // One that nobody waited for may still read what was written for it.
            if !self.stream.is_done()? {
                return Err(late());
            }
            for (place, &rank) in ranks.iter().enumerate() {
                room.memory().store_u64(place * 8, rank);
            }
            let pin = abi::CachePin {
                cache: self.address(),
                ranks: room.address(),
                found: room.address() + ROWS as u64 * 8,
                count: ranks.len() as u64,
                range,
                pins: pins.into(),
            };
            // SAFETY: the addresses are those of this cache and of its room, which are freed behind the stream's last work.
            unsafe { self.stream.pin_cache(&self.kernels, &pin)? };
            let began = Instant::now();
            while !self.stream.is_done()? {
                if began.elapsed() > GRACE {
                    return Err(late());
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            let mut bytes = vec![0; ranks.len()];
            room.memory().read(ROWS * 8, &mut bytes);
            found.extend(bytes.iter().map(|&byte| byte != 0));
        }
        Ok(found)
    }
}
