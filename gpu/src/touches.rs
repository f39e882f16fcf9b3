//! When keys were last touched by look-ups on the GPU: kernels note epochs in its memory, and the record of the host has them from there.

use std::sync::{Arc, Mutex, Weak};

use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_layout::Table;
use warprow_lookup::executors::{NotedTable, TouchRecord, TouchedTable};
use warprow_store::view::lock;

use crate::error::GpuError;

/// What gives the first epoch, as errors name it.
pub(crate) const OPTION: &str = "GpuOptions::touch_epoch";
/// Bytes that are copied from the GPU at once.
const CHUNK: usize = 4 << 20;

/// The epoch that look-ups of an executor note, and what they have noted.
#[derive(Debug)]
pub(crate) struct GpuTouches {
    gpu: Arc<Gpu>,
    record: TouchRecord,
    /// The epoch as kernels read it, a u32. Held while it is raised, so that the record and the GPU follow one order.
    epoch: Mutex<DeviceMemory>,
    /// The address of that.
    epoch_at: u64,
    /// All that kernels may write to.
    tables: Mutex<Vec<Weak<GpuTouched>>>,
}

/// Where kernels note the touches of one table's keys.
#[derive(Debug)]
pub(crate) struct GpuTouched {
    /// What was noted, as far as it was copied from the GPU.
    pub touched: Arc<TouchedTable>,
    /// By position, u16 each.
    memory: DeviceMemory,
}

impl GpuTouched {
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Takes over what kernels have noted.
    fn absorb(&self) -> Result<(), GpuError> {
        let all = self.memory.bytes() as usize;
        let mut bytes = vec![0; all.min(CHUNK)];
        for begin in (0..all).step_by(CHUNK) {
            let bytes = bytes.get_mut(..CHUNK.min(all - begin)).unwrap_or_default();
            self.memory.read_beside(begin as u64, bytes)?;
            let epochs = bytes.as_chunks().0.iter().map(|&epoch| u16::from_le_bytes(epoch));
            epochs.enumerate().for_each(|(at, epoch)| self.touched.note(begin / 2 + at, epoch));
        }
        Ok(())
    }
}

impl Drop for GpuTouched {
    /// No kernel writes to it any more; the record may still want what was written.
    fn drop(&mut self) {
        if Arc::strong_count(&self.touched) > 1
            && let Err(error) = self.absorb()
        {
            tracing::warn!(%error, "what look-ups of a table that is read no more have touched is lost since it was last recorded");
        }
    }
}

impl GpuTouches {
    pub(crate) fn new(gpu: &Arc<Gpu>, epoch: u16) -> Result<Self, GpuError> {
        let record = TouchRecord::new(epoch, OPTION)?;
        let memory = DeviceMemory::holding(gpu, &u32::from(epoch).to_le_bytes())?;
        let epoch_at = memory.address();
        Ok(Self { gpu: gpu.clone(), record, epoch: Mutex::new(memory), epoch_at, tables: Mutex::default() })
    }

    pub(crate) fn epoch_at(&self) -> u64 {
        self.epoch_at
    }

    /// Bytes of GPU memory for the touches of a table; `None`: they are not noted.
    pub(crate) fn bytes_of(table: &Table) -> Option<u64> {
        table.keys.filter(|keys| keys.keys.is_some()).map(|_| table.rows * 2)
    }

    /// Where the touches of a table are noted, as [`TouchRecord::of_table`]; `before` are the tables before, with what is noted of them.
    pub(crate) fn of_table(
        &self,
        table: &Table,
        before: &[(NotedTable<'_>, Option<&Arc<GpuTouched>>)],
    ) -> Result<Option<Arc<GpuTouched>>, GpuError> {
        let noted: Vec<NotedTable<'_>> = before.iter().map(|(noted, _)| *noted).collect();
        let Some(touched) = self.record.of_table(table, &noted)? else { return Ok(None) };
        let known = before.iter().filter_map(|(_, known)| *known).find(|known| Arc::ptr_eq(&known.touched, &touched));
        if let Some(known) = known {
            return Ok(Some(known.clone()));
        }
        let memory = DeviceMemory::new(&self.gpu, touched.keys() as u64 * 2)?;
        let noted = Arc::new(GpuTouched { touched, memory });
        let mut tables = lock(&self.tables);
        tables.retain(|table| table.strong_count() > 0);
        tables.push(Arc::downgrade(&noted));
        Ok(Some(noted))
    }

    pub(crate) fn record(&self) -> &TouchRecord {
        &self.record
    }

    pub(crate) fn set_epoch(&self, epoch: u16) -> Result<(), GpuError> {
        let memory = lock(&self.epoch);
        self.record.raise(epoch)?;
        Ok(memory.write_beside(0, &u32::from(epoch).to_le_bytes())?)
    }

    /// Has the record know what look-ups that have ended have touched.
    pub(crate) fn absorb(&self) -> Result<(), GpuError> {
        let tables: Vec<_> = lock(&self.tables).iter().filter_map(Weak::upgrade).collect();
        tables.iter().try_for_each(|table| table.absorb())
    }
}
