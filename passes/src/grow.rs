//! Keys that are created: the table with their rows, written anew in one commit, beside what it was.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, PoisonError};

use warprow_keys::{IndexOptions, KeyList};
use warprow_store::{KeyIndex, LoadOptions, Ranks, RowOrder, RowSource, TableKeys, TableLoad, TableSpec};

use crate::finder::Finder;
use crate::{PassError, Passes};

/// Bytes of rows that are read at once.
const WINDOW: usize = 16 << 20;
/// Bytes of memory for a table that is put in order.
const MEMORY: u64 = 256 << 20;

impl Passes {
    /// Writes the table anew, with all that was finished and all keys that were created, and has it take the old one's place: one
    /// commit, for all of it. Ranks stay.
    pub(crate) fn grow(&mut self) -> Result<(), PassError> {
        let rows = self.finder.rows();
        let mut spec = TableSpec::new(&self.table.name, rows.into(), self.table.dim, self.table.dtype);
        spec.default_row = self.table.default_row.as_ref().map(|row| row.to_vec());
        (spec.hot_rows, spec.row_crc) = (self.table.hot_rows, self.table.crc_region.is_some());
        let order = Ranks::from_u32((0..rows).collect()).map_err(|_| self.options_error("its ranks"))?;
        // Of rows in the order of ids rather than of ranks, where that is another.
        let ids = self.finder.ids().map(Ranks::from_u64).transpose().map_err(|_| self.options_error("its ids"))?;
        let ranks = ids.as_ref().map(Ranks::inverse);
        let keys = match self.finder.kind() {
            None => None,
            Some(kind) => Some(KeyList { keys: self.finder.keys(), kind }),
        };
        let keyed = keys.as_ref().map(|keys| self.keyed(keys)).transpose()?;
        let source = Grown { passes: self, window: Mutex::default() };
        let loaded = {
            let spec = match (&keyed, &ranks) {
                (Some(keyed), _) => spec.keyed(keyed),
                (None, ranks) => TableSpec { permuted: ranks.is_some(), ..spec },
            };
            let load = TableLoad::new(&spec, &source).with_order(ids.as_ref().unwrap_or(&order));
            let load = match (&keyed, &ranks) {
                (Some(keyed), _) => load.with_keys(keyed),
                (None, Some(ranks)) => load.with_ranks(ranks),
                (None, None) => load,
            };
            let options = LoadOptions::default().with_replace().with_memory(MEMORY);
            self.store.load(&self.model, &[load], &options, &mut |_| ControlFlow::Continue(()))
        };
        let report = loaded.map_err(|source| PassError::NotDurable { rows: self.dirty.len(), source })?;
        let (generation, index) = self.store.generation(&self.table.name)?;
        let table = generation.tables.get(index).cloned();
        drop(generation);
        let table = table.ok_or_else(|| self.options_error("its rows"))?;
        let finder = Finder::of(&self.store, &table)?;
        self.grown(report.generation, table, finder)
    }

    fn keyed<'a>(&self, keys: &'a KeyList) -> Result<TableKeys<'a>, PassError> {
        let fingerprint = self.finder.index().map(KeyIndex::fingerprint).unwrap_or_default();
        let options = IndexOptions::default().with_fingerprint(fingerprint);
        let index = KeyIndex::build(keys, &options, &mut |_| ControlFlow::Continue(()));
        let failed = |what: String| PassError::Options { what };
        let index = index.map_err(|error| failed(format!("the keys cannot be indexed: {error}")))?;
        TableKeys::new(Arc::new(index), keys, RowOrder::Given, true).map_err(|error| failed(error.to_string()))
    }

    fn options_error(&self, what: &str) -> PassError {
        PassError::Options {
            what: format!("table {:?}: {what} do not fit together: verify the store", self.table.name),
        }
    }
}

/// All rows by rank, read in their order.
struct Grown<'a> {
    passes: &'a Passes,
    window: Mutex<(Range<u64>, Vec<u8>)>,
}

impl RowSource for Grown<'_> {
    fn read(&self, first: u64, row_bytes: usize, mut rows: &mut [u8]) -> io::Result<()> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (range, held) = &mut *window;
        let mut next = first;
        while !rows.is_empty() {
            if !range.contains(&next) {
                let last = u64::from(self.passes.finder.rows()).min(next + (WINDOW / row_bytes).max(1) as u64);
                let ranks: Vec<u32> = (next..last).filter_map(|rank| u32::try_from(rank).ok()).collect();
                *held = self.passes.rows_of(&ranks).map_err(io::Error::other)?;
                *range = next..last;
            }
            let begin = (next - range.start) as usize * row_bytes;
            let from = held.get(begin..).unwrap_or_default();
            let bytes = from.len().min(rows.len());
            if bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (now, later) = std::mem::take(&mut rows).split_at_mut(bytes);
            now.copy_from_slice(from.get(..bytes).unwrap_or_default());
            (rows, next) = (later, next + (bytes / row_bytes) as u64);
        }
        Ok(())
    }
}
