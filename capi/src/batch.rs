//! What a look-up takes and what it fills.

use std::ffi::c_void;
use std::ops::Range;

use half::{bf16, f16};
use warprow_gpu::{BatchLen, GpuBatch, GpuOutput};
use warprow_layout::DType;
use warprow_lookup::executors::output_type;
use warprow_lookup::{Batch, Output, OutputRows};

use crate::arguments::{slice, slice_mut};
use crate::error::Failure;
use crate::sized::{read, versioned};
use crate::types::{dtype, gpu_int_type, integers};

/// The ids of one look-up: B bags of each of F features, feature by feature. For the host everything lies in host memory; for a GPU in
/// its memory, or in host memory that CUDA has pinned. All of it stays the caller's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_batch {
    /// sizeof(warprow_batch).
    pub struct_size: usize,
    /// The ids of all bags, one after another: feature 0's bags 0 to B - 1, then feature 1's, and so on.
    pub ids: *const c_void,
    /// The number of ids. Not used if `counts` is set.
    pub id_count: usize,
    /// B: how many bags each feature has. If `counts` is set: the most that there may be.
    pub batch: usize,
    /// Where each bag begins in `ids`: F * B entries, or F * B + 1 with the end of the last bag. NULL: all bags have the same number
    /// of ids.
    pub offsets: *const c_void,
    /// The number of offsets.
    pub offset_count: usize,
    /// One weight for each id; NULL if and only if no feature of the plan is weighted.
    pub weights: *const f32,
    /// On a GPU alone: two numbers, ids and bags of each feature, that are read when the look-up runs. NULL: `id_count` and `batch`
    /// say it.
    pub counts: *const u64,
    /// The type of the ids: a WARPROW_INT_TYPE_ constant.
    pub id_type: i32,
    /// The type of the offsets: a WARPROW_INT_TYPE_ constant.
    pub offset_type: i32,
}

/// Where a look-up's result goes: memory of the caller's, where the batch lies too. Nothing of it overlaps with the batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_output {
    /// sizeof(warprow_output).
    pub struct_size: usize,
    /// The output rows. Pooled: row b has bag b of each feature side by side. Unpooled: row i is the row of id i.
    pub rows: *mut c_void,
    /// Elements that there is room for from `rows` on.
    pub elements: usize,
    /// Elements from one row to the next; 0: the plan's width. What lies between rows is left as it is.
    pub row_stride: usize,
    /// Gets one byte for each id, 1 or 0: the plan says what it tells, usually that the row was found and read. NULL: not wanted.
    pub mask: *mut u8,
    /// Bytes that there is room for in `mask`.
    pub mask_bytes: usize,
    /// The type of the elements: the plan's, a WARPROW_DTYPE_ constant.
    pub dtype: i32,
    /// 0.
    pub reserved: u32,
}

versioned! {
    warprow_batch: 72,
    warprow_output: 56,
}

/// The output of a plan.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) out: DType,
    pub(crate) pooled: bool,
}

/// Where something of the caller's lies.
fn range<T>(at: *const T, bytes: usize) -> Range<usize> {
    let first = at as usize;
    first..first.saturating_add(bytes)
}

fn int_bytes(int_type: i32) -> usize {
    if matches!(int_type, 1 | 3) { 4 } else { 8 }
}

impl warprow_batch {
    /// # Safety
    /// `at` is NULL, or points to a batch.
    pub(crate) unsafe fn read(at: *const Self) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { read(at) }
    }

    /// As the host executor takes it.
    ///
    /// # Safety
    /// What it points to is as large as it says, in host memory, and stays as it is for `'a`.
    pub(crate) unsafe fn on_host<'a>(&self) -> Result<Batch<'a>, Failure> {
        if !self.counts.is_null() {
            return Err(Failure::invalid("counts of a batch are for look-ups on a GPU: set id_count and batch"));
        }
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let mut batch = Batch::new(integers("ids", self.ids, self.id_count, self.id_type)?, self.batch);
            if !self.offsets.is_null() {
                let offsets = integers("offsets", self.offsets, self.offset_count, self.offset_type)?;
                batch = batch.with_offsets(offsets);
            } else if self.offset_count != 0 {
                return Err(Failure::invalid("offset_count is not 0, and offsets is NULL"));
            }
            if !self.weights.is_null() {
                batch = batch.with_weights(slice("weights", self.weights.cast(), self.id_count)?);
            }
            Ok(batch)
        }
    }

    /// As the GPU executor takes it.
    pub(crate) fn on_gpu(&self, features: usize) -> Result<GpuBatch, Failure> {
        let bags = u32::try_from(self.batch);
        let bags = bags.map_err(|_| Failure::invalid(format!("a batch of {} bags is too large", self.batch)))?;
        let len = match self.counts.is_null() {
            true => BatchLen::Host(self.id_count),
            false => BatchLen::Device(self.counts as u64),
        };
        let mut batch = GpuBatch::new(self.ids as u64, len, bags).with_id_type(gpu_int_type("ids", self.id_type)?);
        if !self.offsets.is_null() {
            let (given, starts) = (self.offset_count, self.batch.saturating_mul(features));
            batch = batch.with_offsets(self.offsets as u64, gpu_int_type("offsets", self.offset_type)?);
            match given.checked_sub(starts) {
                Some(0) => batch = batch.without_end(),
                Some(1) => {}
                _ => {
                    let what = format!("{given} offsets: {features} features × {bags} bags need {starts} or one more");
                    return Err(Failure::invalid(what));
                }
            }
        } else if self.offset_count != 0 {
            return Err(Failure::invalid("offset_count is not 0, and offsets is NULL"));
        }
        if !self.weights.is_null() {
            batch = batch.with_weights(self.weights as u64);
        }
        Ok(batch)
    }

    fn ranges(&self) -> [(&'static str, Range<usize>); 3] {
        let ids = self.id_count.saturating_mul(int_bytes(self.id_type));
        let offsets = self.offset_count.saturating_mul(int_bytes(self.offset_type));
        let weights = if self.weights.is_null() { 0 } else { self.id_count.saturating_mul(4) };
        [
            ("ids", range(self.ids, ids)),
            ("offsets", range(self.offsets, offsets)),
            ("weights", range(self.weights, weights)),
        ]
    }
}

impl warprow_output {
    /// # Safety
    /// `at` is NULL, or points to an output.
    pub(crate) unsafe fn read(at: *const Self) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let given = unsafe { read(at) }?;
        crate::store::reserved("warprow_output", given.reserved)?;
        if given.mask.is_null() && given.mask_bytes != 0 {
            return Err(Failure::invalid("mask_bytes is not 0, and mask is NULL"));
        }
        Ok(given)
    }

    /// Refuses another type than the plan's. Returns the type.
    fn check_type(&self, shape: &Shape) -> Result<DType, Failure> {
        let (given, planned) = (output_type(dtype("dtype of the output", self.dtype)?), output_type(shape.out));
        if given != planned {
            let what = format!("the output has elements of type {given}, the plan yields {planned}");
            return Err(Failure::invalid(what));
        }
        Ok(given)
    }

    fn stride(&self, shape: &Shape) -> usize {
        if self.row_stride == 0 { shape.width } else { self.row_stride }
    }

    /// Refuses memory that is written to and is something else as well.
    pub(crate) fn check_apart(&self, batch: Option<&warprow_batch>, shape: &Shape) -> Result<(), Failure> {
        let rows = range(self.rows, self.elements.saturating_mul(shape.out.size() as usize));
        let mask = range(self.mask, self.mask_bytes);
        let overlap = |one: &Range<usize>, other: &Range<usize>| {
            !one.is_empty() && !other.is_empty() && one.start < other.end && other.start < one.end
        };
        if overlap(&rows, &mask) {
            return Err(Failure::invalid("the rows and the mask of the output overlap"));
        }
        for (what, given) in batch.iter().flat_map(|batch| batch.ranges()) {
            if overlap(&rows, &given) || overlap(&mask, &given) {
                return Err(Failure::invalid(format!("the output overlaps with the {what}")));
            }
        }
        Ok(())
    }

    /// As the host executor takes it.
    ///
    /// # Safety
    /// What it points to is as large as it says, in host memory, and nobody else uses it for `'a`.
    pub(crate) unsafe fn on_host<'a>(&self, shape: &Shape) -> Result<Output<'a>, Failure> {
        let (at, elements) = (self.rows, self.elements);
        let dtype = self.check_type(shape)?;
        // SAFETY: the caller's promise, in each case.
        unsafe {
            let rows = match dtype {
                DType::F16 => OutputRows::F16(slice_mut::<f16>("rows", at, elements)?),
                DType::BF16 => OutputRows::Bf16(slice_mut::<bf16>("rows", at, elements)?),
                DType::I8 => OutputRows::I8(slice_mut("rows", at, elements)?),
                DType::U8 => OutputRows::U8(slice_mut("rows", at, elements)?),
                _ => OutputRows::F32(slice_mut("rows", at, elements)?),
            };
            let output = Output::new(rows, self.stride(shape));
            match self.mask.is_null() {
                true => Ok(output),
                false => Ok(output.with_mask(slice_mut("mask", self.mask.cast(), self.mask_bytes)?)),
            }
        }
    }

    /// As the GPU executor takes it, for `rows` output rows and `ids` ids.
    pub(crate) fn on_gpu(&self, shape: &Shape, (ids, bags): (usize, usize)) -> Result<GpuOutput, Failure> {
        self.check_type(shape)?;
        let (rows, stride) = (if shape.pooled { bags } else { ids }, self.stride(shape));
        let needed = match rows.checked_sub(1) {
            Some(before) => before.saturating_mul(stride).saturating_add(shape.width),
            None => 0,
        };
        if self.elements < needed {
            let what = format!("the output has {} elements, {needed} are needed", self.elements);
            return Err(Failure::invalid(what));
        }
        let output = GpuOutput::new(self.rows as u64, stride);
        if self.mask.is_null() {
            return Ok(output);
        }
        if self.mask_bytes < ids {
            let what = format!("the mask has {} bytes, {ids} are needed: one an id", self.mask_bytes);
            return Err(Failure::invalid(what));
        }
        Ok(output.with_mask(self.mask as u64))
    }
}
