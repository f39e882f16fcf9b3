//! Look-ups on the GPU for callers whose arrays are in this process: copied there, looked up, copied back.

use std::ptr;

use warprow_gpu_queues::DeviceMemory;
use zerocopy::IntoBytes;

use crate::batch::{BatchLen, GpuBatch, GpuOutput, IdType};
use crate::{GpuError, GpuReport, GpuSlot};
use warprow_lookup::executors::output_type;
use warprow_lookup::stage::Id;
use warprow_lookup::{Batch, Ids, Output, OutputRows};

/// A slot that copies ids to the GPU and rows back, for callers whose arrays are in host memory.
#[derive(Debug)]
pub struct CopyingSlot {
    slot: GpuSlot,
    ids: DeviceMemory,
    offsets: DeviceMemory,
    weights: Option<DeviceMemory>,
    rows: DeviceMemory,
    mask: DeviceMemory,
    /// Offsets as the GPU wants them.
    bags: Vec<i64>,
}

impl GpuSlot {
    /// Allocates arrays on the GPU for the largest batch of the plan, so that callers can look up with arrays in host
    /// memory.
    pub fn copied(self) -> Result<CopyingSlot, GpuError> {
        let plan = self.plan();
        let gpu = &plan.attached.gpu;
        let options = &plan.options;
        let ids = options.max_ids as u64;
        let batch = options.max_batch as u64;
        let out_rows = if plan.description.pooled { batch } else { ids };
        let room = |bytes: u64| DeviceMemory::new(gpu, bytes.max(1));
        let bags = batch * u64::from(plan.description.features) + 1;
        Ok(CopyingSlot {
            ids: room(ids * 8)?,
            offsets: room(bags * 8)?,
            weights: if plan.description.weighted { Some(room(ids * 4)?) } else { None },
            rows: room(
                out_rows.saturating_mul(plan.description.width as u64).saturating_mul(options.out.size().into()),
            )?,
            mask: room(ids)?,
            bags: Vec::with_capacity(bags as usize),
            slot: self,
        })
    }
}

impl CopyingSlot {
    /// As [`Slot::lookup`](warprow_lookup::Slot::lookup), by the GPU: copies ids there and rows back, and waits. What
    /// was wrong with a batch is found before anything is copied or by the GPU; then the output is as it was, or to be
    /// thrown away, as the error says. If ids are missing of a feature with
    /// [`MissingPolicy::Error`](warprow_lookup::MissingPolicy::Error), the output is as it was.
    pub fn lookup(&mut self, batch: &Batch<'_>, out: &mut Output<'_>) -> Result<GpuReport, GpuError> {
        let plan = self.slot.plan().clone();
        let count = batch.ids.len();
        let invalid = |what, why: String| Err(GpuError::Invalid { what, why });
        let element = plan.options.out.size() as usize;
        if out.rows.dtype() != output_type(plan.options.out) {
            let planned = output_type(plan.options.out);
            return invalid("the output", format!("{} elements, {planned} were planned", out.rows.dtype()));
        }
        let out_rows = if plan.description.pooled { batch.batch } else { count };
        let needed = out_rows.saturating_sub(1).saturating_mul(out.row_stride)
            + if out_rows == 0 { 0 } else { plan.description.width };
        if out.row_stride < plan.description.width || out.rows.len() < needed {
            let why = format!("{} elements, {} apart: {needed} are needed", out.rows.len(), out.row_stride);
            return invalid("the output", why);
        }
        if let OutputRows::Buffer(buffer) = &mut out.rows
            && let Err(error) = buffer.reclaim()
        {
            return invalid("the output", error.to_string());
        }
        if out.mask.as_ref().is_some_and(|mask| mask.len() < count) {
            return invalid("the mask", format!("{count} bytes are needed"));
        }
        if batch.weights.is_some_and(|weights| weights.len() != count) {
            return invalid("the weights", format!("{count} are needed"));
        }
        if count > plan.options.max_ids || batch.batch > plan.options.max_batch {
            let most = plan.options.max_ids;
            let bags = plan.options.max_batch;
            return invalid("the batch", format!("{most} ids and {bags} bags a feature were planned"));
        }
        let (bytes, id_type) = match batch.ids {
            Ids::I32(ids) => (ids.as_bytes(), IdType::I32),
            Ids::I64(ids) => (ids.as_bytes(), IdType::I64),
            Ids::U32(ids) => (ids.as_bytes(), IdType::U32),
            Ids::U64(ids) => (ids.as_bytes(), IdType::U64),
        };
        self.ids.write(0, bytes)?;
        // The plan has checked that this is below 2³².
        let bags = batch.batch as u32;
        let mut on_gpu = GpuBatch::new(self.ids.address(), BatchLen::Host(count), bags).with_id_type(id_type);
        if let Some(offsets) = batch.offsets {
            let bags = batch.batch * plan.description.features as usize;
            self.bags.clear();
            match offsets {
                Ids::I32(offsets) => self.bags.extend(offsets.iter().map(|offset| offset.raw() as i64)),
                Ids::I64(offsets) => self.bags.extend_from_slice(offsets),
                Ids::U32(offsets) => self.bags.extend(offsets.iter().map(|offset| offset.raw() as i64)),
                Ids::U64(offsets) => self.bags.extend(offsets.iter().map(|offset| offset.raw() as i64)),
            }
            if self.bags.len() == bags {
                self.bags.push(count as i64);
            }
            if self.bags.len() != bags + 1 {
                return invalid(
                    "the offsets",
                    format!("{} entries, {bags} bags have that many or one more", offsets.len()),
                );
            }
            self.offsets.write(0, self.bags.as_bytes())?;
            on_gpu = on_gpu.with_offsets(self.offsets.address(), IdType::I64);
        }
        if let (Some(weights), Some(room)) = (batch.weights, &self.weights) {
            room.write(0, weights.as_bytes())?;
            on_gpu = on_gpu.with_weights(room.address());
        }
        let output = GpuOutput::new(self.rows.address(), plan.description.width).with_mask(self.mask.address());
        #[allow(unsafe_code, reason = "the only other way to say that these are the GPU's own arrays")]
        // SAFETY: the arrays are this slot's. Nobody else has them, and nothing frees or reuses them before the ticket
        // has ended, but after an error of CUDA's own, which ends the whole context.
        let ticket = unsafe { self.slot.lookup(ptr::null_mut(), &on_gpu, &output) }?;
        let clock = plan.attached.store.clock();
        let mut turn = 0;
        let report = loop {
            match ticket.poll() {
                Some(report) => break report,
                // Every wait on the GPU is bounded; an error of CUDA's ends them all.
                None if turn % 4096 == 4095 => plan.attached.gpu.synchronize()?,
                None => clock.relax(turn % 128),
            }
            turn = turn.wrapping_add(1);
        };
        if let Err(error) = &report
            && !matches!(error, GpuError::RowsFailed { .. })
        {
            return report;
        }
        let stride = out.row_stride;
        let bytes =
            out.rows.bytes_mut().map_err(|error| GpuError::Invalid { what: "the output", why: error.to_string() })?;
        let row = plan.description.width * element;
        if stride == plan.description.width {
            self.rows.read(0, bytes.get_mut(..out_rows * row).unwrap_or_default())?;
        } else {
            let mut all = vec![0; out_rows * row];
            self.rows.read(0, &mut all)?;
            for (to, from) in bytes.chunks_mut(stride * element).zip(all.chunks(row.max(1))) {
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = from);
            }
        }
        if let Some(mask) = &mut out.mask {
            self.mask.read(0, mask.get_mut(..count).unwrap_or_default())?;
        }
        report
    }
}
