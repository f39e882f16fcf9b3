//! Rows, or keys, that stand one after another in a file, and reading them.

use std::ops::Range;
use std::sync::Arc;

use crate::error::FileError;
use crate::input::Input;

/// Rows, or keys, that stand one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The number of the input that they stand in.
    pub(crate) input: usize,
    /// Byte of the input at which they begin.
    pub(crate) at: u64,
    /// The number of the first row, or key.
    pub(crate) first: u64,
    /// How many rows, or keys, there are.
    pub(crate) rows: u64,
}

/// Where `count` rows, or keys, from `first` on stand: the input, the byte of it, and how many rows.
pub(crate) fn extents_of<'a>(
    inputs: &'a [Arc<Input>],
    extents: &'a [Extent],
    first: u64,
    count: u64,
    row_bytes: usize,
) -> impl Iterator<Item = (&'a Arc<Input>, u64, u64)> {
    let mut row = first;
    let end = first.saturating_add(count);
    let begin = extents.partition_point(|extent| extent.first + extent.rows <= first);
    extents.iter().skip(begin).map_while(move |extent| {
        let skip = row.checked_sub(extent.first)?;
        let rows = extent.rows.checked_sub(skip)?.min(end - row);
        row += rows;
        let at = extent.at + skip * row_bytes as u64;
        (rows > 0).then_some((inputs.get(extent.input)?, at, rows))
    })
}

/// Reads rows, or keys, from the extents that hold them.
pub(crate) fn read_extents(
    inputs: &[Arc<Input>],
    extents: &[Extent],
    first: u64,
    row_bytes: usize,
    mut rows: &mut [u8],
) -> Result<(), FileError> {
    let count = (rows.len() / row_bytes) as u64;
    for (input, at, count) in extents_of(inputs, extents, first, count, row_bytes) {
        let (now, rest) = rows.split_at_mut(count as usize * row_bytes);
        input.read(at, now)?;
        rows = rest;
    }
    Ok(())
}

/// Extents of the rows `rows`, numbered from 0.
pub(crate) fn cut(extents: &[Extent], rows: &Range<u64>, row_bytes: usize) -> Vec<Extent> {
    let part = |extent: &Extent| {
        let first = extent.first.max(rows.start);
        let end = (extent.first + extent.rows).min(rows.end);
        let rows_left = end.checked_sub(first).filter(|&left| left > 0)?;
        let at = extent.at + (first - extent.first) * row_bytes as u64;
        Some(Extent { input: extent.input, at, first: first - rows.start, rows: rows_left })
    };
    extents.iter().filter_map(part).collect()
}

/// Extents that follow `first` rows.
pub(crate) fn behind(extents: &[Extent], first: u64) -> impl Iterator<Item = Extent> {
    extents.iter().map(move |extent| Extent { first: extent.first + first, ..extent.clone() })
}
