//! Structures that may grow: each begins with its size, as the program was compiled.

use crate::error::Failure;

/// A structure of the header.
///
/// # Safety
/// The type is `repr(C)`, begins with its size as a `usize`, and any bytes make a valid value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// The name in the header.
    const NAME: &'static str;
    /// Bytes that it had in the first version of the interface.
    const FIRST: usize;
}

/// Declares structures as [`Versioned`], each with the bytes that it had in version 1.0, and `=>` those that it has now if fields were
/// added since.
macro_rules! versioned {
    ($($type:ident: $first:expr $(=> $now:expr)?),* $(,)?) => {$(
        // SAFETY: it is `repr(C)`, begins with `struct_size: usize`, and has numbers, raw pointers and nullable functions alone.
        unsafe impl crate::sized::Versioned for $type {
            const NAME: &'static str = stringify!($type);
            const FIRST: usize = $first;
        }

        // The latest of the sizes.
        const _: () = {
            let sizes: &[usize] = &[$first $(, $now)?];
            assert!(size_of::<$type>() == sizes[sizes.len() - 1] && $first <= size_of::<$type>());
            assert!(std::mem::offset_of!($type, struct_size) == 0);
        };
    )*};
}
pub(crate) use versioned;

/// The size that a structure of the caller's says it has.
///
/// # Safety
/// `at` is NULL, or points to a structure that begins with its size.
unsafe fn checked<T: Versioned>(at: *const T) -> Result<usize, Failure> {
    if at.is_null() {
        return Err(Failure::invalid(format!("a {} is NULL", T::NAME)));
    }
    if !at.is_aligned() {
        return Err(Failure::invalid(format!("the {} at {at:p} is not aligned", T::NAME)));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { at.cast::<usize>().read() };
    if size < T::FIRST || size > isize::MAX as usize {
        let what = format!("struct_size of a {0} is {size}: set it to sizeof({0}), {1} or more", T::NAME, T::FIRST);
        return Err(Failure::invalid(what));
    }
    Ok(size)
}

/// Reads a structure of the caller's. What it lacks at its end is zero; what it has beyond what this library knows has to be.
///
/// # Safety
/// `at` is NULL, or points to a structure that begins with its size.
pub(crate) unsafe fn read<T: Versioned>(at: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { checked(at) }?;
    // SAFETY: any bytes are a `T`.
    let mut value: T = unsafe { std::mem::zeroed() };
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's structure has `size` bytes, this one no fewer than `known`.
    unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), std::ptr::from_mut(&mut value).cast(), known) };
    // SAFETY: the rest of the caller's structure.
    let beyond = unsafe { std::slice::from_raw_parts(at.cast::<u8>().add(known), size - known) };
    if beyond.iter().any(|&byte| byte != 0) {
        let what = format!("a {} sets fields that this library does not know: use a newer one", T::NAME);
        return Err(Failure::new(crate::status::warprow_status::Unsupported, what));
    }
    Ok(value)
}

/// Reads options; NULL means that all are zero.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn options<T: Versioned>(at: *const T) -> Result<T, Failure> {
    if at.is_null() {
        // SAFETY: any bytes are a `T`.
        return Ok(unsafe { std::mem::zeroed() });
    }
    // SAFETY: the caller's promise.
    unsafe { read(at) }
}

/// Reads an array of structures, all of one size.
///
/// # Safety
/// `first` points to `count` structures of the size that the first one says; it may be NULL if there are none.
pub(crate) unsafe fn array<T: Versioned>(first: *const T, count: usize) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise.
    let size = unsafe { checked(first) }?;
    if !size.is_multiple_of(align_of::<T>()) || size.checked_mul(count).is_none_or(|all| all > isize::MAX as usize) {
        return Err(Failure::invalid(format!("{count} structures {} of {size} bytes are no array", T::NAME)));
    }
    let each = (0..count).map(|index| {
        // SAFETY: within the caller's array.
        let at = unsafe { first.byte_add(index * size) };
        // SAFETY: as above.
        if unsafe { checked(at) }? != size {
            let what = format!("struct_size of {} number {index} differs from that of the first", T::NAME);
            return Err(Failure::invalid(what));
        }
        // SAFETY: as above.
        unsafe { read(at) }
    });
    each.collect()
}

/// Fills a structure of the caller's, as far as it reaches; its size stays. NULL is left alone.
///
/// # Safety
/// `at` is NULL, or points to a structure that begins with its size and may be written to.
pub(crate) unsafe fn fill<T: Versioned>(at: *mut T, value: &T) -> Result<(), Failure> {
    if at.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let (size, head) = (unsafe { checked(at) }?, size_of::<usize>());
    let known = size.min(size_of::<T>()) - head;
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: both structures have so many bytes behind their size.
    unsafe { std::ptr::copy_nonoverlapping(from.add(head), at.cast::<u8>().add(head), known) };
    // SAFETY: what the caller's structure has beyond this library's.
    unsafe { at.cast::<u8>().add(head + known).write_bytes(0, size - head - known) };
    Ok(())
}

/// Whether [`fill`] would work: asked before anything is done.
///
/// # Safety
/// As [`fill`].
pub(crate) unsafe fn check<T: Versioned>(at: *const T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    if at.is_null() { Ok(()) } else { unsafe { checked(at) }.map(drop) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::warprow_status;

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    struct Grown {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: as of any other.
    unsafe impl Versioned for Grown {
        const NAME: &'static str = "Grown";
        const FIRST: usize = 16;
    }

    #[test]
    fn older_programs_lack_fields_and_newer_ones_may_not_use_theirs() {
        let whole = [16usize, 5, 99, 0];
        let at = whole.as_ptr().cast::<Grown>();
        // SAFETY: they begin with their sizes.
        unsafe {
            let older = read(at).unwrap();
            assert_eq!((older.old, older.new), (5, 0));
            let newer = [32usize, 5, 6, 0];
            assert_eq!(read(newer.as_ptr().cast::<Grown>()).unwrap().new, 6);
            let newer = [32usize, 5, 6, 7];
            let failure = read(newer.as_ptr().cast::<Grown>()).unwrap_err();
            assert_eq!(failure.status, warprow_status::Unsupported);
            for size in [0, 15, usize::MAX] {
                let wrong = [size, 0, 0, 0];
                let failure = read(wrong.as_ptr().cast::<Grown>()).unwrap_err();
                assert_eq!(failure.status, warprow_status::InvalidArgument);
            }
            let failure = read(at.byte_add(1)).unwrap_err();
            assert_eq!(failure.status, warprow_status::InvalidArgument);
            let mut out = [16usize, 0, 77, 78];
            fill(out.as_mut_ptr().cast(), &Grown { struct_size: 24, old: 1, new: 2 }).unwrap();
            assert_eq!(out, [16, 1, 77, 78]);
            let mut out = [32usize, 0, 77, 78];
            fill(out.as_mut_ptr().cast(), &Grown { struct_size: 24, old: 1, new: 2 }).unwrap();
            assert_eq!(out, [32, 1, 2, 0]);
            let two = [16usize, 1, 16, 2];
            assert_eq!(array(two.as_ptr().cast::<Grown>(), 2).unwrap()[1].old, 2);
            let two = [16usize, 1, 24, 2, 0];
            assert_eq!(array(two.as_ptr().cast::<Grown>(), 2).unwrap_err().status, warprow_status::InvalidArgument);
        }
    }
}
