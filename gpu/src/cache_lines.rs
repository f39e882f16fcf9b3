//! How a cache in GPU memory would be cut into lines, without a GPU.

use warprow_kernels::abi::CACHE_WAYS;
use warprow_kernels::{CacheClaim, CacheLines, CacheMap};

use crate::arrange::gpu_row_bytes;
use crate::error::GpuError;
use crate::options::GpuOptions;
use crate::row_cache::shape_of;

/// Lines that an executor's cache would have for tables whose rows all lie on drives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCacheLines {
    /// Lines by the bytes that a row takes in one: tables whose rows take equally many share them.
    pub pools: Vec<(u32, u64)>,
    /// Lines of a set: a row may lie in one set alone.
    pub ways: u64,
    /// For how many launches a line is held that a launch has used.
    pub hold: u64,
}

impl GpuCacheLines {
    /// Of the cache that `options` ask for, and tables of rows of so many bytes, so many rows each. It needs no GPU.
    /// The tables have no names here, so shares of tables among the options do not count.
    ///
    /// # Errors
    /// [`GpuError::CacheTooSmall`], as [`GpuExecutor::attach`](crate::GpuExecutor::attach).
    pub fn of(options: &GpuOptions, tables: &[(u32, u64)]) -> Result<Self, GpuError> {
        let claim = |&(row_bytes, rows): &(u32, u64)| {
            let stride = gpu_row_bytes(row_bytes);
            CacheClaim { stride, rows, cached: rows, share: None }
        };
        let claims: Vec<CacheClaim> = tables.iter().map(claim).collect();
        let map = CacheMap::new(0, shape_of(options), &claims)
            .map_err(|it| GpuError::CacheTooSmall { bytes: it.bytes, needed: it.needed })?;
        let mut strides: Vec<u32> = claims.iter().map(|claim| claim.stride).collect();
        strides.sort_unstable();
        strides.dedup();
        let pools = strides
            .into_iter()
            .filter_map(|stride| Some((stride, map.lines_for(CacheLines::shared(stride))?)))
            .collect();
        Ok(Self { pools, ways: CACHE_WAYS, hold: map.hold() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CacheAdmission;

    #[test]
    fn lines_fill_what_is_given() {
        let options = GpuOptions::default().with_cache_bytes(1 << 30).with_cache_batch_rows(1000);
        let lines = GpuCacheLines::of(&options, &[(512, 1 << 20), (500, 1 << 20), (100, 1 << 20)]).unwrap();
        assert_eq!(lines.pools.iter().map(|pool| pool.0).collect::<Vec<_>>(), [128, 512]);
        let bytes: u64 = lines.pools.iter().map(|&(stride, lines)| lines * (u64::from(stride) + 8)).sum();
        assert!(bytes <= 1 << 30 && bytes > (1 << 30) - (1 << 20), "{lines:?}");
        assert_eq!((lines.ways, lines.hold), (8, 64));
        // Counters take memory too.
        let counting = options.clone().with_cache_admission(CacheAdmission::Sketch);
        let counted = GpuCacheLines::of(&counting, &[(512, 1 << 20)]).unwrap();
        assert!(counted.pools[0].1 * (512 + 16) <= 1 << 30);
        let none = GpuCacheLines::of(&options.with_cache_bytes(1000), &[(512, 1 << 20)]).unwrap_err();
        assert!(matches!(none, GpuError::CacheTooSmall { bytes: 1000, .. }), "{none:?}");
    }
}
