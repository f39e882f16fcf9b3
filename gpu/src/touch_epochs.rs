//! The epochs that an executor's look-ups note: raised, read, and saved.

use std::path::Path;

use warprow_lookup::executors::TouchRecord;
use warprow_store::{LastTouches, StoreError};

use crate::error::GpuError;
use crate::executor::GpuExecutor;
use crate::touches::{GpuTouches, OPTION};

impl GpuExecutor {
    /// The epoch that look-ups note as that of the last touch. `None`: they note none
    /// ([`GpuOptions::touch_epoch`](crate::GpuOptions::touch_epoch)).
    pub fn touch_epoch(&self) -> Option<u16> {
        self.inner.touches.as_ref().map(|touches| touches.record().epoch())
    }

    /// Has look-ups note another epoch: those whose kernels begin after this has returned, in graphs that were captured before too.
    /// Streams may be being captured meanwhile.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if look-ups note no epochs, or if `epoch` is lower than the one that they note: rows would seem to
    /// have been touched before they were; what CUDA says.
    pub fn set_touch_epoch(&self, epoch: u16) -> Result<(), GpuError> {
        self.touches()?.set_epoch(epoch)
    }

    /// When each key of the executor's tables was last touched, put together with `touches`, as
    /// [`HostExecutor::last_touches`](warprow_lookup::HostExecutor::last_touches) does it. Look-ups that run meanwhile may be missing:
    /// wait for their tickets, or for the streams, first. Streams may be being captured meanwhile.
    ///
    /// It takes as much memory as that of a host, and copies 2 B for each key from the GPU.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if look-ups note no epochs; errors of reading; what CUDA says.
    pub fn last_touches(&self, touches: LastTouches) -> Result<LastTouches, GpuError> {
        let (noting, attached) = (self.touches()?, &self.inner);
        let view = attached.view();
        noting.absorb()?;
        Ok(noting.record().last_touches(&attached.store, &view.noted(), touches)?)
    }

    /// Puts [`last_touches`](Self::last_touches) into a file, together with what the file has: after a crash the file before is there, or
    /// the new one. Each executor has a file of its own; [`LastTouches::merge`] puts several together.
    ///
    /// # Errors
    /// [`StoreError::TouchesFile`] if the file cannot be read, is no such record, or cannot be written; those of
    /// [`last_touches`](Self::last_touches).
    pub fn save_touches(&self, path: &Path) -> Result<(), GpuError> {
        let (noting, attached) = (self.touches()?, &self.inner);
        let view = attached.view();
        noting.absorb()?;
        Ok(noting.record().save(&attached.store, &view.noted(), path)?)
    }

    fn touches(&self) -> Result<&GpuTouches, StoreError> {
        self.inner.touches.as_ref().ok_or_else(|| TouchRecord::absent(OPTION))
    }
}
