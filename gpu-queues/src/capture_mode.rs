//! Calls of CUDA beside captures of other threads.

use cudarc::driver::sys::{self, CUstreamCaptureMode_enum as CaptureMode};

/// While this lives, this thread may allocate, free and copy without ending the captures of other threads' streams.
pub(crate) struct Relaxed(CaptureMode);

impl Relaxed {
    /// The caller has made a context current on this thread.
    pub(crate) fn new() -> Self {
        let mut mode = CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it exchanges a number with this thread's. Without, the calls behind say what is wrong.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Self(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as before; the mode is the one that was found.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}
