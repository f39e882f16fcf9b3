//! A backing that keeps the copy in GPU memory as it is itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warprow_dma::{DmaMemory, MemoryKind};
use warprow_soft_controller::{Backing, MediaError};

use crate::image::Image;
use crate::player::PlayerError;

/// What lasts is `inner`, which all reads of the host are served from. A write completes when both have it.
#[derive(Debug)]
pub(crate) struct MirroredBacking {
    inner: Arc<dyn Backing>,
    image: Arc<Image>,
    stale: Arc<AtomicBool>,
}

impl MirroredBacking {
    /// `stale` becomes true when the copy may differ from `inner`, and stays so: nobody may read the copy then.
    pub(crate) fn new(inner: Arc<dyn Backing>, image: Arc<Image>, stale: Arc<AtomicBool>) -> Self {
        Self { inner, image, stale }
    }

    /// After a change of `inner`: the copy has it too, or is never read again.
    fn follow(
        &self,
        done: Result<(), MediaError>,
        offset: u64,
        len: u64,
        copy: impl FnOnce() -> Result<(), PlayerError>,
    ) -> Result<(), MediaError> {
        let copied = match &done {
            Ok(()) => copy(),
            // Only `inner` knows how much of the write it has.
            Err(_) => return done.inspect_err(|_| self.read_back(offset, len)),
        };
        if let Err(error) = copied {
            self.give_up(&error.to_string());
        }
        done
    }

    fn read_back(&self, offset: u64, len: u64) {
        let copied = (|| {
            let mut done = 0;
            let room = DmaMemory::allocate(1 << 20, MemoryKind::Anonymous).map_err(|error| error.to_string())?;
            while done < len {
                let piece = (len - done).min(room.len() as u64) as usize;
                self.inner.read(offset + done, &room, 0, piece).map_err(|error| error.to_string())?;
                self.image.write(offset + done, &room, 0, piece).map_err(|error| error.to_string())?;
                done += piece as u64;
            }
            Ok::<_, String>(())
        })();
        if let Err(error) = copied {
            self.give_up(&error);
        }
    }

    fn give_up(&self, why: &str) {
        tracing::error!(why, "the GPU's copy of a drive cannot follow a write; the host answers all reads from now on");
        self.stale.store(true, Ordering::SeqCst);
    }
}

impl Backing for MirroredBacking {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.inner.read(offset, to, at, len)
    }

    fn prefetch(&self, offset: u64, len: usize) {
        self.inner.prefetch(offset, len);
    }

    fn prefetches(&self) -> bool {
        self.inner.prefetches()
    }

    fn will_need(&self, offset: u64, len: usize) {
        self.inner.will_need(offset, len);
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        let done = self.inner.write(offset, from, at, len);
        self.follow(done, offset, len as u64, || self.image.write(offset, from, at, len))
    }

    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError> {
        let done = self.inner.zero(offset, len, deallocate);
        if self.inner.deallocated_reads_zero() || !deallocate {
            return self.follow(done, offset, len, || self.image.zero(offset, len));
        }
        self.read_back(offset, len);
        done
    }

    fn flush(&self) -> Result<(), MediaError> {
        self.inner.flush()
    }

    fn persist(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.inner.persist(offset, len)
    }

    fn deallocated_reads_zero(&self) -> bool {
        self.inner.deallocated_reads_zero()
    }

    fn wants_whole_commands(&self) -> bool {
        self.inner.wants_whole_commands()
    }

    fn smallest_lba(&self) -> u32 {
        self.inner.smallest_lba()
    }

    // No engine: an engine would write past the copy.

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }
}
