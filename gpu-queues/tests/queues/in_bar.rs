//! A software controller whose doorbells look like registers of a BAR, as those of a drive behind VFIO do.

use std::ptr::NonNull;
use std::sync::Arc;

use warprow_dma::{DmaMemory, Doorbell, Function, FunctionError, Mmio};
use warprow_soft_controller::SoftController;

/// The controller, and how many bytes of its doorbells are mapped; 0: none. `None`: its memory space stays off.
#[derive(Debug)]
pub(crate) struct InBar(pub(crate) Arc<SoftController>, pub(crate) Option<usize>);

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
    fn doorbell_registers(&self) -> Result<Option<Mmio>, FunctionError> {
        let Some(mapped) = self.1 else {
            let (what, why) = ("changing the PCI command register", std::io::Error::other("the function refused it"));
            return Err(FunctionError::Os { function: self.name().to_owned(), what, source: why.into() });
        };
        // While this lives, the controller looks at its doorbells without being woken.
        let memory: DmaMemory = self.0.doorbell_memory();
        assert!(mapped <= memory.len());
        let base = NonNull::new(memory.as_ptr()).filter(|_| mapped > 0);
        // SAFETY: the memory is kept by the owner that is handed over, and is reached by single loads and stores alone.
        Ok(base.map(|base| unsafe { Mmio::new(base, mapped, Arc::new(memory)) }))
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
