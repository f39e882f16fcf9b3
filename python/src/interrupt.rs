//! Ctrl-C, and what callbacks of Python raise, while the GIL is released.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often signals are looked for.
const EVERY: Duration = Duration::from_millis(50);

/// Looks for signals now and then, calls a function of Python's now and then, and keeps what either raised.
pub(crate) struct Interrupt {
    callback: Option<Py<PyAny>>,
    next: Instant,
    raised: Option<PyErr>,
}

impl Interrupt {
    pub(crate) fn new(callback: Option<Py<PyAny>>) -> Self {
        Self { callback, next: Instant::now(), raised: None }
    }

    /// Breaks once something was raised. Tells the function `done` of `total`, at most every 50 ms, and when they are equal.
    pub(crate) fn flow(&mut self, done: u64, total: u64) -> ControlFlow<()> {
        let now = Instant::now();
        if now < self.next && done != total {
            return ControlFlow::Continue(());
        }
        self.next = now + EVERY;
        let called = Python::attach(|py| {
            py.check_signals()?;
            match &self.callback {
                Some(callback) => callback.call1(py, (done, total)).map(drop),
                None => Ok(()),
            }
        });
        match called {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// What was raised, or else what `otherwise` makes.
    pub(crate) fn or(self, otherwise: impl FnOnce() -> PyErr) -> PyErr {
        self.raised.unwrap_or_else(otherwise)
    }
}

thread_local! {
    /// What Python raised in this thread while a call of Rust's waited for it.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Keeps what Python raised, for [`take_raised`] by the same thread.
pub(crate) fn note_raised(error: PyErr) {
    RAISED.set(Some(error));
}

/// Takes what Python raised.
pub(crate) fn take_raised() -> Option<PyErr> {
    RAISED.take()
}

/// Whether the handler of a signal has raised; what it raised is kept.
pub(crate) fn is_interrupted() -> bool {
    Python::attach(|py| py.check_signals()).map_err(note_raised).is_err()
}
