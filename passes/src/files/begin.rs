//! Rows to a file.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use warprow_formats::TableWriter;
use warprow_layout::{DType, row_crc};
use warprow_store::{KeyKind, Store, StoreError};

use super::origin::StagedOrigin;
use super::{PassProgress, PassWatch, WINDOW};
use crate::finder::Finder;
use crate::{Keyset, PassError};

/// Rows that one lock is for while they are read.
const SLAB: usize = 256;

/// A pass that was staged to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BeginReport {
    /// Rows in the file.
    pub rows: u64,
    /// Keys that had come before, and are in the file once.
    pub duplicates: u64,
    /// Elements of each row.
    pub dim: u32,
    /// The type of the elements.
    pub dtype: DType,
    /// Bytes of the rows.
    pub bytes: u64,
    /// Whether every row was compared with its checksum on the drives.
    pub checked: bool,
    /// Where the rows come from, as the file says.
    pub origin: StagedOrigin,
}

/// Writes the rows of `keyset` to `out`, a safetensors file, in the order of the keyset, each key once: tensors called as the table (rows), the
/// table and `.keys`, `.checksums` (of the rows as they are now) and `.pass` ([`StagedOrigin`]). Rows are compared with their checksums where the
/// table has any. Nothing is written to the drives. The file appears when it is whole; one that exists is refused, unless `force`.
///
/// Rows pass through memory in parts. Keys take 20 bytes each, and what finds them what it takes for [`Passes`](crate::Passes).
pub fn begin(
    store: &Store,
    table: &str,
    keyset: &Keyset,
    out: &Path,
    force: bool,
    watch: &mut PassWatch<'_>,
) -> Result<BeginReport, PassError> {
    if store.has_key_changes(table)? {
        return Err(PassError::Uncompacted { table: table.to_owned() });
    }
    // Held, so that nobody else is given its chunks.
    let (generation, index) = store.generation(table)?;
    let no_table = || StoreError::NoSuchTable { table: table.to_owned(), known: Vec::new() };
    let info = generation.tables.get(index).ok_or_else(no_table)?;
    let origin = StagedOrigin::now(store, table, generation.id, store.update_sequence(generation.id)?);
    let finder = Finder::of(store, info)?;
    let found = finder.find_in_order(keyset);
    refuse_unknown(table, keyset, &found)?;
    let rows = found.ranks.len() as u64;
    let row_bytes = info.row_bytes() as usize;
    let signed = keyset.is_signed() && finder.kind() != Some(KeyKind::U64) || finder.kind() == Some(KeyKind::I64);
    let note = origin.encode();
    let writer = TableWriter::create_staged(out, force, table, rows, info.dim, info.dtype, signed, note.len())?;
    writer.write_note(&note)?;
    let stored = store.row_crcs(table)?;
    let window = (WINDOW / row_bytes.max(1)).max(1);
    let mut first = 0;
    for (ranks, keys) in found.ranks.chunks(window).zip(found.keys.chunks(window)) {
        let slabs = read_window(store, generation.id, table, ranks, row_bytes)?;
        let mut checksums = Vec::with_capacity(ranks.len());
        for (slab, ranks) in slabs.iter().zip(ranks.chunks(SLAB)) {
            for (row, &rank) in slab.chunks_exact(row_bytes).zip(ranks) {
                let checksum = row_crc(rank.into(), row);
                if stored.as_ref().is_some_and(|stored| stored.get(rank as usize) != Some(&checksum)) {
                    let drive = generation
                        .row(index, rank.into())
                        .and_then(|at| store.drives().get(usize::from(at.drive)).cloned().flatten());
                    let drive = drive.unwrap_or_else(|| "unknown".to_owned());
                    return Err(StoreError::RowDamaged { table: table.to_owned(), rank: rank.into(), drive }.into());
                }
                checksums.push(checksum);
            }
            writer.write(first + checksums.len() as u64 - ranks.len() as u64, slab)?;
        }
        writer.write_keys(first, keys)?;
        writer.write_checksums(first, &checksums)?;
        first += ranks.len() as u64;
        if let ControlFlow::Break(()) = watch(PassProgress { what: "staging", done: first, total: rows }) {
            return Err(PassError::Stopped);
        }
    }
    writer.finish()?;
    Ok(BeginReport {
        rows,
        duplicates: found.duplicates,
        dim: info.dim,
        dtype: info.dtype,
        bytes: rows * row_bytes as u64,
        checked: stored.is_some(),
        origin,
    })
}

/// Keys that the table does not have.
pub(super) fn refuse_unknown(table: &str, keyset: &Keyset, found: &crate::finder::InOrder) -> Result<(), PassError> {
    if found.unknown == 0 {
        return Ok(());
    }
    let first = found.first_unknown.iter().map(|&key| keyset.show(key)).collect();
    Err(PassError::NewKeys { table: table.to_owned(), count: found.unknown, first })
}

/// The rows of `ranks`, which are in any order, one after another in slabs of [`SLAB`] rows.
pub(super) fn read_window(
    store: &Store,
    generation: u64,
    table: &str,
    ranks: &[u32],
    row_bytes: usize,
) -> Result<Vec<Vec<u8>>, PassError> {
    let mut order: Vec<u32> = (0..ranks.len() as u32).collect();
    order.sort_unstable_by_key(|&at| ranks.get(at as usize));
    let ascending: Vec<u64> = order.iter().filter_map(|&at| ranks.get(at as usize)).map(|&rank| rank.into()).collect();
    let slabs: Vec<Mutex<Vec<u8>>> =
        ranks.chunks(SLAB).map(|ranks| Mutex::new(vec![0; ranks.len() * row_bytes])).collect();
    store.read_rows(generation, table, &ascending, &|position, row| {
        let Some(&at) = order.get(position) else { return };
        let slab = at as usize / SLAB;
        let begin = at as usize % SLAB * row_bytes;
        let Some(slab) = slabs.get(slab) else { return };
        let mut slab = slab.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = slab.get_mut(begin..begin + row_bytes) {
            place.copy_from_slice(row);
        }
    })?;
    Ok(slabs.into_iter().map(|slab| slab.into_inner().unwrap_or_else(PoisonError::into_inner)).collect())
}
