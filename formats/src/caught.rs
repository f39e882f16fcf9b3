//! Panics that are caught and told as errors: who prints panics need not print these.

use std::cell::Cell;
#[cfg(feature = "parquet")]
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// How many calls deep this thread catches panics.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
}

/// Whether a panic of this thread would be caught here and become an error: for a panic hook, which is called before that.
pub fn panic_is_caught() -> bool {
    CATCHING.try_with(Cell::get).is_ok_and(|depth| depth > 0)
}

/// Calls what may panic.
#[cfg(feature = "parquet")]
pub(crate) fn catching<T>(call: impl FnOnce() -> T) -> std::thread::Result<T> {
    let _ = CATCHING.try_with(|depth| depth.set(depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(call));
    let _ = CATCHING.try_with(|depth| depth.set(depth.get() - 1));
    result
}

#[cfg(all(test, feature = "parquet"))]
mod tests {
    use super::*;

    #[test]
    fn only_panics_within_are_said_to_be_caught() {
        assert!(!panic_is_caught());
        let inner = catching(|| {
            assert!(panic_is_caught());
            assert!(catching(|| panic!("an inner one")).is_err());
            assert!(panic_is_caught(), "the outer call goes on");
            let other = std::thread::spawn(panic_is_caught).join();
            assert!(!other.unwrap(), "another thread catches its own");
        });
        assert!(inner.is_ok() && !panic_is_caught());
    }
}
