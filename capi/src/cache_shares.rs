//! Shares of an executor's cache that tables have to themselves.

use std::ffi::c_char;

use crate::arguments::text;
use crate::error::Failure;
use crate::sized::{array, versioned};

/// Bytes of an executor's cache that one table has to itself, of the `cache_bytes` of its options. Since 1.8.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_cache_share {
    /// sizeof(warprow_cache_share).
    pub struct_size: usize,
    /// The name of the table, some of whose rows may be cached.
    pub table: *const c_char,
    /// Bytes of its rows in the cache, with what leads to them.
    pub bytes: u64,
}

versioned! {
    warprow_cache_share: 24,
}

/// Reads shares of a cache.
///
/// # Safety
/// `first` points to `count` shares; it may be NULL if there are none.
pub(crate) unsafe fn cache_shares(
    first: *const warprow_cache_share,
    count: usize,
) -> Result<Vec<(String, u64)>, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { array(first, count) }?;
    // SAFETY: as above.
    let name = |table: *const c_char| unsafe { text("a cache share's table", table) };
    given.iter().map(|share| Ok((name(share.table)?.to_owned(), share.bytes))).collect()
}
