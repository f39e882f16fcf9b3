//! Keys read from their source, a block at a time.

use std::ops::Range;

use crate::error::IndexBuildError;
use crate::source::KeySource;

/// Keys asked of a source at once.
pub(super) const BLOCK: u64 = 1 << 13;

/// Gives the keys of `range` to `take`, in order.
pub(super) fn read(
    source: &dyn KeySource,
    range: Range<u64>,
    mut take: impl FnMut(&[u64]) -> Result<(), IndexBuildError>,
) -> Result<(), IndexBuildError> {
    let mut keys = vec![0; BLOCK as usize];
    let mut first = range.start;
    while first < range.end {
        let keys = &mut keys[..(range.end - first).min(BLOCK) as usize];
        source.read(first, keys).map_err(|source| IndexBuildError::Source { first, source })?;
        take(keys)?;
        first += keys.len() as u64;
    }
    Ok(())
}
