//! Panics that are caught and told as errors: who prints panics need not print these.

use std::cell::Cell;
#[cfg(feature = "parquet")]
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// How many calls deep this thread catches panics.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
    /// Whether the hook was told of a panic that the innermost of them catches.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would be caught here and become an error: for a panic hook, which is called before that. A
/// second one while the first unwinds is not: it ends the process.
pub fn panic_is_caught() -> bool {
    let is_caught = CATCHING.try_with(Cell::get).is_ok_and(|depth| depth > 0);
    // A thread counts as panicking in the hook already.
    is_caught && !(std::thread::panicking() && TOLD.try_with(|told| told.replace(true)).unwrap_or(true))
}

/// Calls what may panic.
#[cfg(feature = "parquet")]
pub(crate) fn catching<T>(call: impl FnOnce() -> T) -> std::thread::Result<T> {
    let _ = CATCHING.try_with(|depth| depth.set(depth.get() + 1));
    // What is dropped while a panic unwinds may call here too.
    let told = TOLD.try_with(|told| told.replace(false)).unwrap_or_default();
    let result = catch_unwind(AssertUnwindSafe(call));
    let _ = TOLD.try_with(|cell| cell.set(told));
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

    /// What a hook prints that prints no panic that is caught.
    #[test]
    fn a_panic_that_ends_the_process_is_printed() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                // Caught within, it ends nothing.
                assert!(catching(|| panic!("within")).is_err());
                panic!("while the first unwinds");
            }
        }
        const CHILD: &str = "WARPROW_TEST_PANIC_TWICE";
        if std::env::var_os(CHILD).is_some() {
            std::panic::set_hook(Box::new(|panic| {
                if !panic_is_caught() {
                    eprintln!("hook: {panic}");
                }
            }));
            assert!(catching(|| panic!("an ordinary one")).is_err());
            let _ = catching(|| {
                let _panics = Panics;
                panic!("the first")
            });
            return;
        }
        let test = "caught::tests::a_panic_that_ends_the_process_is_printed";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("while the first unwinds"), "{said}");
        assert!(["ordinary", "the first\n", "within"].iter().all(|caught| !said.contains(caught)), "{said}");
    }
}
