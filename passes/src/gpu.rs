//! Rows of a pass into GPU memory, and back.

use warprow_gpu_queues::DeviceMemory;

use crate::{Pass, PassError, Passes};

impl Pass {
    /// Copies all rows into GPU memory, one after another from byte `offset` on, and waits until they are there. Refused, with nothing
    /// copied, if they do not fit.
    pub fn read_to_gpu(&self, to: &DeviceMemory, offset: u64) -> Result<(), PassError> {
        self.check_device(to, offset)?;
        self.read_parts(|at, rows| Ok(to.write(offset + at, rows)?))
    }

    fn check_device(&self, memory: &DeviceMemory, offset: u64) -> Result<(), PassError> {
        let room = memory.bytes().saturating_sub(offset);
        match self.bytes() as u64 <= room {
            true => Ok(()),
            false => Err(PassError::GpuRoom { rows: self.len(), bytes: self.bytes() as u64, room }),
        }
    }
}

impl Passes {
    /// As [`finish`](Self::finish), with the rows from GPU memory, from byte `offset` on: after everything launched before on the default
    /// stream. They are copied into memory of this process first, all of them, so that a GPU that fails has changed no row.
    pub fn finish_from_gpu(&mut self, pass: Pass, from: &DeviceMemory, offset: u64) -> Result<(), PassError> {
        pass.check_device(from, offset)?;
        let mut rows = vec![0; pass.bytes()];
        from.read(offset, &mut rows)?;
        self.finish(pass, &rows)
    }
}
