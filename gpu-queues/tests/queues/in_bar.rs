//! A software controller whose doorbells look like registers of a BAR, as those of a drive behind VFIO do.

use std::ptr::NonNull;
use std::sync::Arc;

use warprow_dma::{DmaMemory, Doorbell, Function, FunctionError, Mmio};
use warprow_soft_controller::SoftController;

/// The controller, and how many bytes of its doorbells are mapped; 0: none.
#[derive(Debug)]
pub(crate) struct InBar(pub(crate) Arc<SoftController>, pub(crate) usize);

impl Function for InBar {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.0.read_u32(offset)
    }
    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.0.read_u64(offset)
    }
    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.0.write_u32(offset, value)
    }
    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.0.write_u64(offset, value)
    }
    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        self.0.doorbell(offset)
    }
    fn doorbell_registers(&self) -> Option<Mmio> {
        // While this lives, the controller looks at its doorbells without being woken.
        let memory: DmaMemory = self.0.doorbell_memory();
        let base = NonNull::new(memory.as_ptr())?;
        assert!(self.1 <= memory.len());
        // SAFETY: the memory is kept by the owner that is handed over, and is reached by single loads and stores alone.
        (self.1 > 0).then(|| unsafe { Mmio::new(base, self.1, Arc::new(memory)) })
    }
    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        self.0.map(memory)
    }
    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        self.0.unmap(iova)
    }
    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        self.0.set_bus_master(enabled)
    }
    fn reset(&self) -> Result<(), FunctionError> {
        self.0.reset()
    }
}
