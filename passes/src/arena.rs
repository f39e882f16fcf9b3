//! Memory for rows: slots of one size, which several threads fill and read.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use memmap2::MmapMut;
use warprow_dma::nontemporal;

use crate::PassError;

/// Bytes of a slab, at least: behind one lock, on huge pages where the system has them.
const SLAB: usize = 32 << 20;
/// Slabs, at most.
const SLABS: usize = 4096;
/// Bytes that are copied by one thread rather than several.
const ALONE: usize = 4 << 20;
/// Bytes of a copy that no cache of a core holds: written past them.
const PAST: usize = 4 << 20;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of rows that are on their way while one is copied: scattered rows are no pattern that a processor would foresee.
const AHEAD: usize = 8 << 10;

/// Calls `$known` with the bytes of a row as a constant where they are few whole lines: a row is then copied by instructions in
/// a line, about twice as fast as by loops of as many turns. Else `$other`.
macro_rules! by_row_bytes {
    ($row_bytes:expr, $known:ident($($given:expr),*), $other:expr) => {
        match $row_bytes {
            64 => $known::<64>($($given),*),
            128 => $known::<128>($($given),*),
            192 => $known::<192>($($given),*),
            256 => $known::<256>($($given),*),
            320 => $known::<320>($($given),*),
            384 => $known::<384>($($given),*),
            448 => $known::<448>($($given),*),
            _ => $other,
        }
    };
}

/// Slots for rows. Memory that no row was put into costs nothing.
#[derive(Debug)]
pub(crate) struct Arena {
    slabs: Vec<RwLock<MmapMut>>,
    row_bytes: usize,
    /// Rows of a slab.
    rows: usize,
}

impl Arena {
    pub(crate) fn new(slots: usize, row_bytes: usize) -> Result<Self, PassError> {
        let mut arena = Self { slabs: Vec::new(), row_bytes, rows: 1 };
        let bytes = slots.saturating_mul(row_bytes);
        arena.rows = (SLAB.max(bytes / SLABS) / row_bytes).clamp(1, slots.max(1));
        arena.grow(slots)?;
        Ok(arena)
    }

    /// Has so many slots.
    pub(crate) fn grow(&mut self, slots: usize) -> Result<(), PassError> {
        let bytes = self
            .rows
            .checked_mul(self.row_bytes)
            .ok_or(PassError::Allocate { bytes: u64::MAX, source: std::io::ErrorKind::OutOfMemory.into() })?;
        while self.slabs.len() * self.rows < slots {
            let slab =
                MmapMut::map_anon(bytes).map_err(|source| PassError::Allocate { bytes: bytes as u64, source })?;
            #[cfg(target_os = "linux")]
            if bytes >= 2 << 20 {
                // A kindness of the kernel: fine without.
                let _ = slab.advise(memmap2::Advice::HugePage);
            }
            self.slabs.push(RwLock::new(slab));
        }
        Ok(())
    }

    fn place(&self, slot: u32) -> (usize, usize) {
        (slot as usize / self.rows, slot as usize % self.rows * self.row_bytes)
    }

    fn reading(&self, slab: usize) -> Option<RwLockReadGuard<'_, MmapMut>> {
        Some(self.slabs.get(slab)?.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn writing(&self, slab: usize) -> Option<RwLockWriteGuard<'_, MmapMut>> {
        Some(self.slabs.get(slab)?.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a row in.
    pub(crate) fn put(&self, slot: u32, row: &[u8]) {
        let (slab, begin) = self.place(slot);
        if let Some(mut slab) = self.writing(slab)
            && let Some(place) = slab.get_mut(begin..begin + row.len())
        {
            place.copy_from_slice(row);
        }
    }

    /// Copies a row out.
    pub(crate) fn get(&self, slot: u32, row: &mut [u8]) {
        let (slab, begin) = self.place(slot);
        if let Some(slab) = self.reading(slab)
            && let Some(place) = slab.get(begin..begin + row.len())
        {
            row.copy_from_slice(place);
        }
    }

    /// Copies the rows of `slots`, ascending, into `out`, one after another.
    pub(crate) fn gather(&self, slots: &[u32], out: &mut [u8], threads: usize) {
        let share = self.share(slots.len(), threads);
        let parts = slots.chunks(share).zip(out.chunks_mut(share * self.row_bytes));
        let past = slots.len() * self.row_bytes >= PAST;
        at_once(parts.map(|(slots, out)| move || self.gather_part(slots, out, past)));
    }

    /// The other way round.
    pub(crate) fn scatter(&self, slots: &[u32], rows: &[u8], threads: usize) {
        let share = self.share(slots.len(), threads);
        let parts = slots.chunks(share).zip(rows.chunks(share * self.row_bytes));
        // Lines of which others have a part would be read all the same.
        let past = slots.len() * self.row_bytes >= PAST && self.row_bytes.is_multiple_of(LINE);
        at_once(parts.map(|(slots, rows)| move || self.scatter_part(slots, rows, past)));
    }

    /// Slots for each of so many threads.
    fn share(&self, slots: usize, threads: usize) -> usize {
        let threads = if slots * self.row_bytes < ALONE { 1 } else { threads };
        slots.div_ceil(threads.max(1)).max(1)
    }

    fn gather_part(&self, slots: &[u32], out: &mut [u8], past: bool) {
        let mut out = out;
        for (slab, run) in self.runs(slots) {
            let first = slab * self.rows;
            let held = self.reading(slab);
            let Some((mine, later)) = std::mem::take(&mut out).split_at_mut_checked(run.len() * self.row_bytes) else {
                break;
            };
            out = later;
            let Some(held) = held else { continue };
            by_row_bytes!(
                self.row_bytes,
                copy_out(&held, (first, run), mine, past),
                copy_any_out(&held, (first, run), mine, self.row_bytes, past)
            );
        }
        nontemporal::fence();
    }

    fn scatter_part(&self, slots: &[u32], rows: &[u8], past: bool) {
        let mut rows = rows;
        for (slab, run) in self.runs(slots) {
            let first = slab * self.rows;
            let held = self.writing(slab);
            let Some((mine, later)) = rows.split_at_checked(run.len() * self.row_bytes) else { break };
            rows = later;
            let Some(mut held) = held else { continue };
            by_row_bytes!(
                self.row_bytes,
                copy_in(&mut held, (first, run), mine, past),
                copy_any_in(&mut held, (first, run), mine, self.row_bytes, past)
            );
            // Before the lock is given back.
            nontemporal::fence();
        }
    }

    /// Ascending slots by slab.
    fn runs<'a>(&self, slots: &'a [u32]) -> impl Iterator<Item = (usize, &'a [u32])> {
        let rows = self.rows;
        slots
            .chunk_by(move |a, b| *a as usize / rows == *b as usize / rows)
            .filter_map(move |run| Some((*run.first()? as usize / rows, run)))
    }
}

/// Copies the rows of `run`, slots of a slab that begins with slot `first`, out of it.
fn copy_out<const ROW: usize>(slab: &[u8], (first, run): (usize, &[u32]), out: &mut [u8], past: bool) {
    let rows = slab.as_chunks::<ROW>().0;
    let row = |slot: u32| rows.get(slot as usize - first);
    for ((at, &slot), to) in run.iter().enumerate().zip(out.as_chunks_mut::<ROW>().0) {
        if let Some(next) = run.get(at + AHEAD / ROW).and_then(|&slot| row(slot)) {
            nontemporal::prefetch(next);
        }
        if let Some(row) = row(slot) {
            put(to, row, past);
        }
    }
}

fn copy_any_out(slab: &[u8], (first, run): (usize, &[u32]), out: &mut [u8], row_bytes: usize, past: bool) {
    let ahead = (AHEAD / row_bytes).max(1);
    let foreseen = row_bytes >= LINE;
    let row = |slot: u32| {
        let begin = (slot as usize - first) * row_bytes;
        slab.get(begin..begin + row_bytes)
    };
    for ((at, &slot), to) in run.iter().enumerate().zip(out.chunks_exact_mut(row_bytes)) {
        if foreseen && let Some(next) = run.get(at + ahead).and_then(|&slot| row(slot)) {
            nontemporal::prefetch(next.get(..AHEAD).unwrap_or(next));
        }
        if let Some(row) = row(slot) {
            put(to, row, past);
        }
    }
}

/// The other way round.
fn copy_in<const ROW: usize>(slab: &mut [u8], (first, run): (usize, &[u32]), rows: &[u8], past: bool) {
    let places = slab.as_chunks_mut::<ROW>().0;
    for (&slot, row) in run.iter().zip(rows.as_chunks::<ROW>().0) {
        if let Some(place) = places.get_mut(slot as usize - first) {
            put(place, row, past);
        }
    }
}

fn copy_any_in(slab: &mut [u8], (first, run): (usize, &[u32]), rows: &[u8], row_bytes: usize, past: bool) {
    for (&slot, row) in run.iter().zip(rows.chunks_exact(row_bytes)) {
        let begin = (slot as usize - first) * row_bytes;
        if let Some(place) = slab.get_mut(begin..begin + row_bytes) {
            put(place, row, past);
        }
    }
}

/// Copies a row: past the caches if nobody reads it soon.
#[inline]
fn put(to: &mut [u8], from: &[u8], past: bool) {
    if past {
        nontemporal::copy(to, from);
    } else {
        to.copy_from_slice(from);
    }
}

/// Runs the last here, and each of the others on a thread of its own.
fn at_once<F: FnOnce() + Send>(parts: impl Iterator<Item = F>) {
    let mut parts = parts.peekable();
    std::thread::scope(|scope| {
        while let Some(part) = parts.next() {
            match parts.peek() {
                Some(_) => drop(scope.spawn(part)),
                None => part(),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_put() {
        let mut random = fastrand::Rng::with_seed(7);
        for row_bytes in [4, 64, 80, 100, 128, 192, 256, 320, 384, 448, 512, 4096, 8192] {
            let slots = (36 << 20) / row_bytes;
            let arena = Arena::new(slots, row_bytes).unwrap();
            assert!(arena.slabs.len() > 1);
            let chosen: Vec<u32> = (0..slots as u32).filter(|_| random.u8(..) < 20).collect();
            let mut rows = vec![0; chosen.len() * row_bytes];
            random.fill(&mut rows);
            arena.scatter(&chosen, &rows, 3);
            let mut back = vec![0; rows.len()];
            arena.gather(&chosen, &mut back, 2);
            assert!(rows == back, "rows of {row_bytes}");
            let mut row = vec![0; row_bytes];
            for _ in 0..100 {
                let nth = random.usize(..chosen.len());
                arena.get(chosen[nth], &mut row);
                assert_eq!(row, rows[nth * row_bytes..][..row_bytes]);
            }
            arena.put(chosen[5], &vec![9; row_bytes]);
            arena.get(chosen[5], &mut row);
            assert_eq!(row, vec![9; row_bytes]);
        }
    }
}
