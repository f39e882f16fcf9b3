//! Arguments of calls from C: pointers become references where they can be checked, and errors where they cannot be valid.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::error::Failure;

/// Text that ends with NUL.
///
/// # Safety
/// `text` is NULL, or points to bytes of which one is 0, that stay as they are for `'a`.
unsafe fn bytes<'a>(what: &str, text: *const c_char) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Text in UTF-8.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(what, text) }?;
    std::str::from_utf8(bytes).map_err(|error| Failure::invalid(format!("{what} is not in UTF-8: {error}")))
}

/// A path, of any bytes.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn path<'a>(what: &str, text: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(what, text) }?;
    if bytes.is_empty() {
        return Err(Failure::invalid(format!("{what} is empty")));
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// A list of texts.
///
/// # Safety
/// `list` points to `count` pointers, each as of [`bytes`]; it may be NULL if there are none.
pub(crate) unsafe fn texts<'a>(what: &str, list: *const *const c_char, count: usize) -> Result<Vec<&'a str>, Failure> {
    // SAFETY: the caller's promise.
    let list = unsafe { slice(what, list.cast::<c_void>(), count) }?;
    // SAFETY: as above.
    list.iter().enumerate().map(|(index, &one)| unsafe { text(&format!("{what}[{index}]"), one) }).collect()
}

/// Refuses what no array of `count` elements can be. Returns its bytes.
fn check_array<T>(what: &str, at: *const c_void, count: usize) -> Result<usize, Failure> {
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
    let bytes = bytes.ok_or_else(|| Failure::invalid(format!("{what}: {count} elements are too many")))?;
    if at.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL, and has {count} elements")));
    }
    if !at.cast::<T>().is_aligned() {
        let align = align_of::<T>();
        return Err(Failure::invalid(format!("{what} at {at:p} is not aligned to {align} bytes, as its elements are")));
    }
    Ok(bytes)
}

/// An array of the caller's. NULL is an array without elements.
///
/// # Safety
/// `at` points to `count` elements that stay as they are for `'a`. Any bytes are a `T`.
pub(crate) unsafe fn slice<'a, T>(what: &str, at: *const c_void, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_array::<T>(what, at, count)?;
    // SAFETY: the caller's promise; alignment and length are checked.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), count) })
}

/// An array of the caller's to write to.
///
/// # Safety
/// `at` points to `count` elements that nobody else uses for `'a`. Any bytes are a `T`.
pub(crate) unsafe fn slice_mut<'a, T>(what: &str, at: *mut c_void, count: usize) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_array::<T>(what, at, count)?;
    // SAFETY: the caller's promise; alignment and length are checked.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), count) })
}

/// Whether there is a place for a result; called before anything is done.
pub(crate) fn check_place<T>(what: &str, at: *const T) -> Result<(), Failure> {
    match (at.is_null(), at.is_aligned()) {
        (true, _) => Err(Failure::invalid(format!("{what}, where a result goes, is NULL"))),
        (_, false) => Err(Failure::invalid(format!("{what} at {at:p} is not aligned"))),
        _ => Ok(()),
    }
}

/// Stores a result where [`check_place`] found a place, or the caller wants none.
///
/// # Safety
/// `at` is NULL, or points to a place for a `T`.
pub(crate) unsafe fn store<T>(at: *mut T, value: T) {
    if !at.is_null() && at.is_aligned() {
        // SAFETY: the caller's promise.
        unsafe { at.write(value) };
    }
}

/// A time in milliseconds; 0: none was given.
pub(crate) fn millis(millis: u64) -> Option<Duration> {
    (millis != 0).then(|| Duration::from_millis(millis))
}
