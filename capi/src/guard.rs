//! The border between C and Rust: no panic crosses it.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::error::{Failure, warprow_error};
use crate::status::warprow_status;

thread_local! {
    /// Whether this thread is in a call of the program's, which catches panics.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    /// Where and why the latest of them came.
    static WHY: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics that are caught here noted instead of printed. All others are told to the hook that was there before.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if INSIDE.try_with(Cell::get).is_ok_and(|inside| inside > 0) {
                let _ = WHY.try_with(|why| {
                    if let Ok(mut why) = why.try_borrow_mut() {
                        *why = Some(panic.to_string());
                    }
                });
            } else {
                before(panic);
            }
        }));
    });
}

/// Does the work of a call from C: tells its outcome by code, and stores an error, or NULL, in `error`, if that is not NULL.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
pub(crate) unsafe fn call(
    error: *mut *mut warprow_error,
    work: impl FnOnce() -> Result<(), Failure>,
) -> warprow_status {
    let failure = run(work).err();
    let status = failure.as_ref().map_or(warprow_status::Ok, |failure| failure.status);
    if !error.is_null() && error.is_aligned() {
        let told = failure.map_or(std::ptr::null_mut(), Failure::tell);
        // SAFETY: the caller's promise.
        unsafe { error.write(told) };
    }
    status
}

/// Does work that may panic.
pub(crate) fn run<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    note_panics();
    let _ = INSIDE.try_with(|inside| inside.set(inside.get() + 1));
    let done = catch_unwind(AssertUnwindSafe(work));
    let _ = INSIDE.try_with(|inside| inside.set(inside.get() - 1));
    done.unwrap_or_else(|payload| {
        // To drop it could panic again.
        std::mem::forget(payload);
        let why = WHY.try_with(|why| why.try_borrow_mut().ok().and_then(|mut why| why.take())).ok().flatten();
        Err(Failure::bug(why.unwrap_or_else(|| "the library panicked".to_owned())))
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::ptr::null_mut;

    use super::*;
    use crate::error::{warprow_error_free, warprow_error_message, warprow_error_status};

    #[test]
    fn a_panic_becomes_an_error() {
        struct Again;
        impl Drop for Again {
            fn drop(&mut self) {
                panic!("the payload's own");
            }
        }
        let mut error = null_mut();
        // SAFETY: `error` is a place for a pointer.
        let status = unsafe { call(&mut error, || panic!("row {} fell over", 7)) };
        assert_eq!(status, warprow_status::Bug);
        assert_eq!(warprow_error_status(error), warprow_status::Bug);
        // SAFETY: the text is the error's, which is not freed yet.
        let message = unsafe { CStr::from_ptr(warprow_error_message(error)) }.to_str().unwrap().to_owned();
        assert!(message.contains("row 7 fell over") && message.contains("guard.rs"), "{message}");
        warprow_error_free(error);
        assert_eq!(warprow_error_status(error), warprow_status::InvalidHandle);
        // SAFETY: no error is asked for.
        assert_eq!(unsafe { call(null_mut(), || std::panic::panic_any(Again)) }, warprow_status::Bug);
        // SAFETY: as above.
        assert_eq!(unsafe { call(null_mut(), || Ok(())) }, warprow_status::Ok);
    }
}
