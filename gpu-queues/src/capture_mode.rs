//! Calls of CUDA beside captures of other threads.

use std::marker::PhantomData;

use cudarc::driver::sys::{self, CUstreamCaptureMode_enum as CaptureMode};

/// While this lives, this thread may allocate, free, copy, and make graphs without ending the captures of streams.
#[derive(Debug)]
pub struct RelaxedCapture {
    before: CaptureMode,
    /// The type is a raw pointer's, so that the value stays on its thread.
    _here: PhantomData<*mut ()>,
}

impl RelaxedCapture {
    /// The caller has made a context current on this thread.
    #[must_use]
    pub fn new() -> Self {
        let mut mode = CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it exchanges a number with this thread's. Without, the calls behind say what is wrong.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Self { before: mode, _here: PhantomData }
    }
}

impl Default for RelaxedCapture {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as before; the mode is the one that was found.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.before) };
    }
}
