//! Values that a Python object holds until it is closed, in the process that made them.

use std::mem::ManuallyDrop;
use std::process;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::error::{self, Kind};

/// A value that can be closed once. In a child that was made by `fork` it is neither given nor dropped: its threads,
/// queues and locks belong to the parent.
pub(crate) struct Held<T: Send> {
    value: ManuallyDrop<Mutex<Option<T>>>,
    pid: u32,
    what: &'static str,
}

impl<T: Clone + Send> Held<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { value: ManuallyDrop::new(Mutex::new(Some(value))), pid: process::id(), what }
    }

    /// The value.
    pub(crate) fn get(&self) -> PyResult<T> {
        self.check_process()?;
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        value.clone().ok_or_else(|| error::raise(Kind::Closed, format!("the {} is closed: open it again", self.what)))
    }

    /// Takes the value out. Who drops it does so without the GIL.
    pub(crate) fn take(&self) -> PyResult<Option<T>> {
        self.check_process()?;
        Ok(self.value.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    fn check_process(&self) -> PyResult<()> {
        let (pid, what) = (self.pid, self.what);
        if pid == process::id() {
            return Ok(());
        }
        let text = format!(
            "the {what} was opened by process {pid}, of which this process is a fork: open the store in this process, \
             or start it by spawn (multiprocessing.set_start_method(\"spawn\"))"
        );
        Err(error::raise_with(Kind::Forked, text, |details| details.set_item("pid", pid)))
    }
}

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        if self.pid == process::id() {
            // SAFETY: it is taken here and nowhere else.
            let value = unsafe { ManuallyDrop::take(&mut self.value) };
            // Drives are closed, and launches waited for, without the GIL. Where the interpreter is gone, nobody waits for it.
            let _ = Python::try_attach(|py| py.detach(move || drop(value)));
        }
    }
}
