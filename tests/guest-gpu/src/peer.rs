//! A peer's memory in the place of a GPU's: the BAR of a device whose BAR is memory, for completion queues and landing areas.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use warprow_dma::{DmaMemory, Function, PAGE};
use warprow_gpu_queues::{DriveWritable, DriveWritableBlock, GpuQueueError};

/// What lies between two blocks, and behind the last.
const CANARY: u8 = 0xc7;

/// The BAR that init has lent to the tester, with a page of canaries before each block that was given out and behind the last.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    bar: DmaMemory,
    /// Where each block begins, and its bytes.
    given: Mutex<Vec<(usize, usize)>>,
}

impl PeerMemory {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let path = std::env::var("PEER_BAR").context("PEER_BAR")?;
        let file = File::options().read(true).write(true).open(&path).with_context(|| path.clone())?;
        let len = file.metadata()?.len();
        let bar = DmaMemory::import(file.into(), 0, len, true).with_context(|| path)?;
        bar.fill(0, bar.len(), CANARY);
        Ok(Arc::new(Self { bar, given: Mutex::default() }))
    }

    /// Whether every byte outside of the blocks is as it was.
    pub(crate) fn assert_canaries(&self) -> Result<()> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let mut begin = 0;
        for (start, len) in given.iter().copied().chain([(self.bar.len(), 0)]) {
            let mut bytes = vec![0; start - begin];
            self.bar.read(begin, &mut bytes);
            let touched = bytes.iter().position(|&byte| byte != CANARY);
            ensure!(touched.is_none(), "byte {:?} of the peer's BAR was written, outside of what it gave out", touched);
            begin = start + len;
        }
        Ok(())
    }

    /// Whether any byte of the blocks has been written: else nothing ever came here.
    pub(crate) fn is_used(&self) -> bool {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let used = |&(start, len): &(usize, usize)| {
            let mut bytes = vec![0; len];
            self.bar.read(start, &mut bytes);
            bytes.iter().any(|&byte| byte != CANARY && byte != 0)
        };
        given.iter().all(used) && !given.is_empty()
    }
}

impl DriveWritable for PeerMemory {
    fn allocate(&self, _: &Arc<dyn Function>, bytes: usize) -> Result<DriveWritableBlock, GpuQueueError> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, len) = (given.last().map_or(0, |(start, len)| start + len) + PAGE, bytes.next_multiple_of(PAGE));
        if !self.bar.contains(start, len + PAGE) {
            return Err(GpuQueueError::Unsupported(format!("the peer's BAR has no room for {bytes} bytes")));
        }
        given.push((start, len));
        let memory = self.bar.part(start, len);
        Ok(DriveWritableBlock { address: memory.as_ptr() as u64, memory, hold: None, owner: Arc::new(()) })
    }
}
