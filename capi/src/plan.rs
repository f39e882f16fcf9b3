//! What a plan is made of: features and options, of either executor.

use std::ffi::{c_char, c_void};

use warprow_gpu::ResidentScales;
use warprow_lookup::{Feature, PlanOptions};

use crate::arguments::text;
use crate::error::Failure;
use crate::sized::{array, options, versioned};
use crate::status::warprow_status;
use crate::types::{bounds, dedupe, dtype, failed_rows, mask, missing, padding, pooling};

/// A name under which ids of one table are looked up. Several features may share a table. Either all features of a plan are pooled,
/// or none is. It stays the caller's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_feature {
    /// sizeof(warprow_feature).
    pub struct_size: usize,
    /// The name by which errors call the feature; NULL: the table's name.
    pub name: *const c_char,
    /// The name of the table.
    pub table: *const c_char,
    /// An id that stands for no row; `padding_kind` says whether there is one.
    pub padding: i64,
    /// A WARPROW_PADDING_ constant.
    pub padding_kind: i32,
    /// How the rows of a bag become one: a WARPROW_POOLING_ constant.
    pub pooling: i32,
    /// Not 0: each row is multiplied by its id's weight. Of sums alone.
    pub weighted: i32,
    /// Which row an id gets that the table does not have: a WARPROW_MISSING_ constant.
    pub missing: i32,
    /// What a report says of such an id: a WARPROW_BOUNDS_ constant.
    pub bounds: i32,
    /// 0.
    pub reserved: u32,
}

/// Options of a plan: how large its look-ups may be. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_plan_options {
    /// sizeof(warprow_plan_options).
    pub struct_size: usize,
    /// Most bags of each feature in one batch; 0: 4,096.
    pub max_batch: usize,
    /// Most ids in one batch, of all features; 0: 65,536.
    pub max_ids: usize,
    /// Look-ups that can be under way at once; 0: 1.
    pub slots: u32,
    /// The type of the output's elements: a WARPROW_DTYPE_ constant.
    pub out_dtype: i32,
    /// Which row an id gets that its table does not have: a WARPROW_MISSING_ constant.
    pub missing: i32,
    /// What a report says of such an id: a WARPROW_BOUNDS_ constant.
    pub bounds: i32,
    /// Not 0: buffers have room for batches whose rows are fetched ahead.
    pub prefetch: i32,
    /// Not 0: buffers have room for other tables, which the executor may adopt.
    pub adopt_room: i32,
    /// How a GPU finds different rows: a WARPROW_DEDUPE_ constant. The host ignores it.
    pub dedupe: i32,
    /// What the output has for rows that could not be read: a WARPROW_FAILED_ROWS_ constant.
    pub failed_rows: i32,
    /// What masks tell: a WARPROW_MASK_ constant.
    pub mask: i32,
    /// 0.
    pub reserved: u32,
    /// On a GPU alone: tables whose scales lie in memory. The array and its texts stay the caller's; the scales themselves stay where
    /// they are for as long as the plan, its slots, and graphs with look-ups of these live.
    pub scales: *const warprow_resident_scales,
    /// How many tables have such scales.
    pub scale_count: usize,
}

/// The scales of a table's rows in memory of the caller's, where the table itself has rows of codes alone, of type
/// WARPROW_DTYPE_F8E4M3 (docs/ngram.md). Look-ups give what they would give of a table of type WARPROW_DTYPE_MXFP8.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_resident_scales {
    /// sizeof(warprow_resident_scales).
    pub struct_size: usize,
    /// The name of the table, whose rows have a multiple of 32 elements.
    pub table: *const c_char,
    /// E8M0 scales of blocks of 32 elements, dim / 32 bytes for each row, by id: in GPU memory, or in host memory that CUDA has pinned.
    pub scales: *const c_void,
    /// How many bytes there are: rows * dim / 32.
    pub bytes: u64,
}

versioned! {
    warprow_feature: 56,
    warprow_plan_options: 64 => 80,
    warprow_resident_scales: 32,
}

/// Reads features.
///
/// # Safety
/// `features` points to `count` features.
pub(crate) unsafe fn features(features: *const warprow_feature, count: usize) -> Result<Vec<Feature>, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { array(features, count) }?;
    let each = given.iter().map(|given| {
        crate::store::reserved("warprow_feature", given.reserved)?;
        // SAFETY: as above.
        let table = unsafe { text("a feature's table", given.table) }?;
        let name = match given.name.is_null() {
            true => table,
            // SAFETY: as above.
            false => unsafe { text("a feature's name", given.name) }?,
        };
        let mut feature = Feature::new(name, table).pooling(pooling(given.pooling)?);
        if given.weighted != 0 {
            feature = feature.weighted();
        }
        if let Some(id) = padding(given.padding_kind, given.padding)? {
            feature = feature.padding(id);
        }
        if let Some(row) = missing(given.missing)? {
            feature = feature.missing(row);
        }
        if let Some(tells) = bounds(given.bounds)? {
            feature = feature.bounds(tells);
        }
        Ok(feature)
    });
    each.collect()
}

/// Reads the scales in memory that a plan's options name.
///
/// # Safety
/// `at` is NULL, or points to options whose pointers are valid.
pub(crate) unsafe fn resident_scales(at: *const warprow_plan_options) -> Result<Vec<ResidentScales>, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { options(at) }?;
    // SAFETY: as above.
    let each = unsafe { array(given.scales, given.scale_count) }?;
    let read = each.iter().map(|given| {
        // SAFETY: as above.
        let table = unsafe { text("a table with scales", given.table) }?;
        Ok(ResidentScales { table: table.to_owned(), address: given.scales as u64, bytes: given.bytes })
    });
    read.collect()
}

/// Fails if a plan's options name scales in memory, which plans of the host do not read.
///
/// # Safety
/// As of [`resident_scales`].
pub(crate) unsafe fn no_scales(at: *const warprow_plan_options) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    match unsafe { options(at) }?.scale_count {
        0 => Ok(()),
        _ => Err(Failure::new(
            warprow_status::Unsupported,
            "plans of the host take no scales in memory: attach the checkpoint with resident=1, which reads them into DRAM",
        )),
    }
}

/// Reads a plan's options.
///
/// # Safety
/// `at` is NULL, or points to options.
pub(crate) unsafe fn plan_options(at: *const warprow_plan_options) -> Result<PlanOptions, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { options(at) }?;
    crate::store::reserved("warprow_plan_options", given.reserved)?;
    let usual = PlanOptions::default();
    let max_batch = if given.max_batch == 0 { usual.max_batch } else { given.max_batch };
    let max_ids = if given.max_ids == 0 { usual.max_ids } else { given.max_ids };
    let mut chosen = usual.with_max(max_batch, max_ids).with_out(dtype("out_dtype", given.out_dtype)?);
    chosen = chosen.with_slots(given.slots.max(1));
    chosen = chosen.with_failed_rows(failed_rows(given.failed_rows)?).with_mask(mask(given.mask)?);
    if let Some(row) = missing(given.missing)? {
        chosen = chosen.with_missing(row);
    }
    if let Some(tells) = bounds(given.bounds)? {
        chosen = chosen.with_bounds(tells);
    }
    if given.prefetch != 0 {
        chosen = chosen.with_prefetch();
    }
    if given.adopt_room != 0 {
        chosen = chosen.with_adopt_room();
    }
    if let Some(way) = dedupe(given.dedupe)? {
        chosen = chosen.with_dedupe(way);
    }
    Ok(chosen)
}
