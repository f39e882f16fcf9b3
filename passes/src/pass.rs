//! A pass under way.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::PassError;
use crate::arena::Arena;
use crate::bits::Bits;
use crate::finder::Listed;

/// Bytes of rows that are handed on at once.
const PART: usize = 1 << 20;

/// The rows of a keyset, in memory, for a trainer: each once, in an order that [`keys`](Self::keys) has.
///
/// The trainer copies them out, to memory of its own or the GPU's, and gives all of them back to
/// [`Passes::finish`](crate::Passes::finish).
#[derive(Debug)]
pub struct Pass {
    alive: Arc<()>,
    arena: Arc<Arena>,
    threads: usize,
    row_bytes: usize,
    ranks: Bits,
    slots: Vec<u32>,
    keys: Vec<u64>,
    report: StageReport,
}

/// How a pass was staged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageReport {
    /// Keys that were given.
    pub keys: u64,
    /// Keys that had come before.
    pub duplicates: u64,
    /// Different keys: rows.
    pub rows: u64,
    /// Rows that were in memory.
    pub hits: u64,
    /// Rows that were read ahead.
    pub prefetched: u64,
    /// Rows that were read now.
    pub read: u64,
    /// Keys that were created.
    pub created: u64,
    /// Rows that had to go from memory.
    pub evicted: u64,
    /// Whether the pass is kept as one of the cache's.
    pub inserted: bool,
}

impl StageReport {
    /// The share of rows that were in memory before anything was read for the pass.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.rows as f64).max(1.0)
    }
}

impl Pass {
    pub(crate) fn new(
        alive: Arc<()>,
        arena: Arc<Arena>,
        threads: usize,
        row_bytes: usize,
        ranks: Bits,
        (slots, keys): Listed,
        report: StageReport,
    ) -> Self {
        Self { alive, arena, threads, row_bytes, ranks, slots, keys, report }
    }

    pub(crate) fn is(&self, open: &Weak<()>) -> bool {
        Weak::ptr_eq(&Arc::downgrade(&self.alive), open)
    }

    pub(crate) fn ranks(&self) -> &Bits {
        &self.ranks
    }

    pub(crate) fn slots(&self) -> &[u32] {
        &self.slots
    }

    pub(crate) fn check_length(&self, given: usize) -> Result<(), PassError> {
        match given == self.bytes() {
            true => Ok(()),
            false => Err(PassError::Length { rows: self.len(), row_bytes: self.row_bytes, given }),
        }
    }

    /// The key of each row; of an `i64` its bits.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes of a row: vector, then state.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.len() * self.row_bytes
    }

    /// How it was staged.
    pub fn report(&self) -> StageReport {
        self.report
    }

    /// Key → row number, for a trainer that has nothing better: some 20 bytes a row.
    pub fn numbers(&self) -> HashMap<u64, u32> {
        self.keys.iter().copied().zip(0..).collect()
    }

    /// Copies all rows into `rows`, one after another.
    pub fn read(&self, rows: &mut [u8]) -> Result<(), PassError> {
        self.check_length(rows.len())?;
        self.arena.gather(&self.slots, rows, self.threads);
        Ok(())
    }

    /// Copies the rows from row number `first` on into `rows`, a whole number of them: for a trainer that takes them in parts.
    pub fn read_from(&self, first: usize, rows: &mut [u8]) -> Result<(), PassError> {
        let count = rows.len() / self.row_bytes;
        let slots = first.checked_add(count).and_then(|end| self.slots.get(first..end));
        match slots.filter(|_| rows.len().is_multiple_of(self.row_bytes)) {
            Some(slots) => {
                self.arena.gather(slots, rows, self.threads);
                Ok(())
            }
            None => Err(PassError::Length { rows: self.len(), row_bytes: self.row_bytes, given: rows.len() }),
        }
    }

    /// Gives all rows to `put`, in parts that stay in a core's cache: the byte at which each begins, and whole rows. For a trainer whose
    /// memory is not this process's. The first error ends it.
    pub fn read_parts<E: From<PassError>>(&self, mut put: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let part = (PART / self.row_bytes).max(1);
        let mut buffer = vec![0; part.min(self.len()) * self.row_bytes];
        for first in (0..self.len()).step_by(part) {
            let bytes = part.min(self.len() - first) * self.row_bytes;
            let rows = buffer.get_mut(..bytes).unwrap_or_default();
            self.read_from(first, rows)?;
            put((first * self.row_bytes) as u64, rows)?;
        }
        Ok(())
    }
}
