//! Look-ups for the cache's sake: whatever they read from drives gets a line, and nobody has their output.

use std::sync::Arc;
use std::time::Duration;

use warprow_gpu_queues::{DeviceMemory, PinnedMemory};
use warprow_kernels::SMALL_IDS;
use warprow_layout::DType;
use warprow_lookup::{BoundsCheck, Feature, MissingPolicy, PlanOptions, Pooling};

use crate::attached::Attached;
use crate::batch::{BatchLen, GpuBatch, GpuOutput, IdType};
use crate::error::GpuError;
use crate::launch::Stream;
use crate::plan::GpuPlan;
use crate::report::GpuReport;
use crate::row_cache::GpuCache;
use crate::slot::GpuSlot;
use crate::table::GpuTable;

/// The most ids of a look-up, which one block finds the different rows of, whatever the size of the table; and bytes of its output.
const MOST_IDS: u64 = SMALL_IDS;
const MOST_BYTES: u64 = 64 << 20;

/// A plan over one table, with a slot of it.
pub(crate) struct Warming {
    slot: GpuSlot,
    stream: Stream,
    ids: PinnedMemory,
    output: DeviceMemory,
    width: usize,
    id_type: IdType,
    most_ids: usize,
}

impl Warming {
    pub(crate) fn new(
        attached: &Arc<Attached>,
        cache: &GpuCache,
        table: &GpuTable,
        id_type: IdType,
    ) -> Result<Self, GpuError> {
        let known = table.located.table();
        let out = match known.dtype {
            DType::I8 | DType::U8 => known.dtype,
            _ => DType::F16,
        };
        let row_bytes = u64::from(known.dim) * u64::from(out.size());
        // A batch wants a line of each set at most, on average.
        let sets = cache.lines_for(table.cache_lines()) / 8;
        let most_ids = MOST_IDS.min(MOST_BYTES / row_bytes.max(1)).min(sets).max(1) as usize;
        let options = PlanOptions::default().with_max(most_ids, most_ids).with_out(out);
        let mut options = options.with_missing(MissingPolicy::Zero).with_bounds(BoundsCheck::Count);
        options.adopt_room = attached.options.adopting;
        let feature = Feature::new("warm", &known.name).pooling(Pooling::None);
        let plan = GpuPlan::with(attached.clone(), &[feature], options, true, &[])?;
        let slot = plan.slot()?;
        let gpu = &attached.gpu;
        Ok(Self {
            slot,
            stream: Stream::new(gpu)?,
            ids: PinnedMemory::allocate(gpu, most_ids as u64 * 8)?,
            output: DeviceMemory::new(gpu, row_bytes * most_ids as u64)?,
            width: plan.width(),
            id_type,
            most_ids,
        })
    }

    /// The most ids of a look-up.
    pub(crate) fn most_ids(&self) -> usize {
        self.most_ids
    }

    /// Looks these ids up, and waits.
    pub(crate) fn look(&self, ids: &[u64]) -> Result<GpuReport, GpuError> {
        for (place, &id) in ids.iter().take(self.most_ids).enumerate() {
            self.ids.memory().store_u64(place * 8, id);
        }
        let batch = GpuBatch::new(self.ids.address(), BatchLen::Host(ids.len()), ids.len() as u32);
        let output = GpuOutput::new(self.output.address(), self.width);
        #[allow(unsafe_code, reason = "the only other way to say that these are the GPU's own arrays")]
        // SAFETY: the arrays are this one's, as long as a batch may be, and nobody writes to them before the ticket has ended.
        let ticket = unsafe { self.slot.lookup(self.stream.handle(), &batch.with_id_type(self.id_type), &output) }?;
        let mut turns = 0u32;
        loop {
            if let Some(report) = ticket.poll() {
                return report;
            }
            // Each wait on the GPU is bounded; an error of CUDA's ends them all.
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(512) {
                self.stream.check()?;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
