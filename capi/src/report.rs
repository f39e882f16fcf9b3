//! What look-ups did: counts and times.

use std::time::Duration;

use warprow_gpu::GpuReport;
use warprow_lookup::{LookupMetrics, LookupReport, MissingId};

use crate::sized::versioned;

/// What a look-up on the host did. The stages' times do not overlap, and add up to the look-up's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_report {
    /// sizeof(warprow_report).
    pub struct_size: usize,
    /// Ids of the batch.
    pub ids: u64,
    /// Padding ids that were not read, and missing ids that are ignored.
    pub padding: u64,
    /// Ids that their table does not have.
    pub missing: u64,
    /// Ids whose row could not be read.
    pub failed: u64,
    /// Different rows among the ids.
    pub unique: u64,
    /// Different rows that lay in DRAM.
    pub rows_dram: u64,
    /// Different rows that had to be read from drives.
    pub rows_ssd: u64,
    /// Ids served from DRAM.
    pub ids_dram: u64,
    /// Ids served from drives.
    pub ids_ssd: u64,
    /// Read commands.
    pub commands: u64,
    /// Rows that another row's command read too.
    pub merges: u64,
    /// Commands that were read again in parts, because of a bad block.
    pub split: u64,
    /// Different rows that drives wrote straight to the output.
    pub landed: u64,
    /// Stores to doorbells of submission queues.
    pub sq_doorbells: u64,
    /// Stores to doorbells of completion queues.
    pub cq_doorbells: u64,
    /// Bytes read from drives.
    pub bytes_read: u64,
    /// Bytes of the rows that had to be read.
    pub bytes_needed: u64,
    /// Nanoseconds of the stage that finds the different rows.
    pub dedupe_ns: u64,
    /// Nanoseconds of the stage that finds where each row lies.
    pub route_ns: u64,
    /// Nanoseconds of the stage that sorts rows by address.
    pub order_ns: u64,
    /// Nanoseconds of the stage that makes read commands.
    pub merge_ns: u64,
    /// Nanoseconds of the stage that submits commands and waits for them.
    pub read_ns: u64,
    /// Nanoseconds of the stage that writes rows to the output.
    pub expand_ns: u64,
    /// The latest generation that was read.
    pub generation: u64,
    /// Position of the first missing id, of features with WARPROW_BOUNDS_REPORT.
    pub first_missing_position: u64,
    /// The id that `first_missing_position` is the position of. A negative id is given by its bits.
    pub first_missing_id: u64,
    /// 1: there is one; else 0.
    pub has_first_missing: i32,
    /// 0.
    pub reserved: u32,
    /// Different rows that lay in the cache.
    pub rows_cached: u64,
    /// Ids served from the cache.
    pub ids_cached: u64,
}

/// Totals of all look-ups of a host executor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_metrics {
    /// sizeof(warprow_metrics).
    pub struct_size: usize,
    /// Look-ups that were carried out, whether rows failed or not.
    pub lookups: u64,
    /// Drives that serve nothing at this moment.
    pub drives_failed: u64,
    /// Ids of the batch.
    pub ids: u64,
    /// Padding ids that were not read, and missing ids that are ignored.
    pub padding: u64,
    /// Ids that their table does not have.
    pub missing: u64,
    /// Ids whose row could not be read.
    pub failed: u64,
    /// Different rows among the ids.
    pub unique: u64,
    /// Different rows that lay in DRAM.
    pub rows_dram: u64,
    /// Different rows that had to be read from drives.
    pub rows_ssd: u64,
    /// Ids served from DRAM.
    pub ids_dram: u64,
    /// Ids served from drives.
    pub ids_ssd: u64,
    /// Read commands.
    pub commands: u64,
    /// Rows that another row's command read too.
    pub merges: u64,
    /// Commands that were read again in parts, because of a bad block.
    pub split: u64,
    /// Different rows that drives wrote straight to the output.
    pub landed: u64,
    /// Stores to doorbells of submission queues.
    pub sq_doorbells: u64,
    /// Stores to doorbells of completion queues.
    pub cq_doorbells: u64,
    /// Bytes read from drives.
    pub bytes_read: u64,
    /// Bytes of the rows that had to be read.
    pub bytes_needed: u64,
    /// Nanoseconds of the stage that finds the different rows.
    pub dedupe_ns: u64,
    /// Nanoseconds of the stage that finds where each row lies.
    pub route_ns: u64,
    /// Nanoseconds of the stage that sorts rows by address.
    pub order_ns: u64,
    /// Nanoseconds of the stage that makes read commands.
    pub merge_ns: u64,
    /// Nanoseconds of the stage that submits commands and waits for them.
    pub read_ns: u64,
    /// Nanoseconds of the stage that writes rows to the output.
    pub expand_ns: u64,
    /// Different rows that lay in the cache.
    pub rows_cached: u64,
    /// Ids served from the cache.
    pub ids_cached: u64,
}

/// What a look-up on a GPU did.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_gpu_report {
    /// sizeof(warprow_gpu_report).
    pub struct_size: usize,
    /// Launches of the ticket's look-up that have ended: of a captured one, as often as its graph ran.
    pub runs: u64,
    /// Ids of the batch.
    pub ids: u64,
    /// Padding ids that were not read, and missing ids that are ignored.
    pub padding: u64,
    /// Ids that their table does not have.
    pub missing: u64,
    /// Ids whose row could not be read.
    pub failed: u64,
    /// Ids served from GPU memory.
    pub ids_hbm: u64,
    /// Ids served from DRAM.
    pub ids_dram: u64,
    /// Ids served from drives.
    pub ids_ssd: u64,
    /// Different rows that lay in DRAM.
    pub rows_dram: u64,
    /// Different rows that had to be read from drives.
    pub rows_ssd: u64,
    /// Read commands.
    pub commands: u64,
    /// Stores to doorbells.
    pub doorbells: u64,
    /// Bytes read from drives.
    pub bytes_read: u64,
    /// Completions that answered no command.
    pub anomalies: u64,
    /// Rows that did not match their checksums.
    pub damaged: u64,
    /// Commands that were read again row by row, because of a bad block.
    pub split: u64,
    /// Nanoseconds by the GPU's clock until the different rows were known.
    pub prepare_ns: u64,
    /// Nanoseconds from then until all rows were in GPU memory.
    pub fetch_ns: u64,
    /// Nanoseconds from then until the look-up ended.
    pub expand_ns: u64,
    /// The latest generation that was read.
    pub generation: u64,
    /// Position of the first missing id, of features with WARPROW_BOUNDS_REPORT.
    pub first_missing_position: u64,
    /// The id that `first_missing_position` is the position of. A negative id is given by its bits.
    pub first_missing_id: u64,
    /// 1: there is one; else 0.
    pub has_first_missing: i32,
    /// 0.
    pub reserved: u32,
    /// Ids served from the cache in GPU memory.
    pub ids_cached: u64,
}

versioned! {
    warprow_report: 224 => 240,
    warprow_metrics: 208 => 224,
    warprow_gpu_report: 192 => 200,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Position and id of the first missing id, and whether there is one.
fn first(missing: Option<MissingId>) -> (u64, u64, i32) {
    missing.map_or((0, 0, 0), |missing| (missing.position, missing.id as u64, 1))
}

impl From<&LookupReport> for warprow_report {
    fn from(it: &LookupReport) -> Self {
        let (first_missing_position, first_missing_id, has_first_missing) = first(it.first_missing);
        let [dedupe_ns, route_ns, order_ns, merge_ns, read_ns, expand_ns] = it.stages.map(nanos);
        Self {
            struct_size: 0,
            ids: it.ids,
            padding: it.padding,
            missing: it.missing,
            failed: it.failed,
            unique: it.unique,
            rows_dram: it.rows_dram,
            rows_ssd: it.rows_ssd,
            ids_dram: it.ids_dram,
            ids_ssd: it.ids_ssd,
            commands: it.commands,
            merges: it.merges,
            split: it.split,
            landed: it.landed,
            sq_doorbells: it.sq_doorbells,
            cq_doorbells: it.cq_doorbells,
            bytes_read: it.bytes_read,
            bytes_needed: it.bytes_needed,
            dedupe_ns,
            route_ns,
            order_ns,
            merge_ns,
            read_ns,
            expand_ns,
            generation: it.generation,
            first_missing_position,
            first_missing_id,
            has_first_missing,
            reserved: 0,
            rows_cached: it.rows_cached,
            ids_cached: it.ids_cached,
        }
    }
}

impl From<&LookupMetrics> for warprow_metrics {
    fn from(it: &LookupMetrics) -> Self {
        let [dedupe_ns, route_ns, order_ns, merge_ns, read_ns, expand_ns] = it.stages.map(nanos);
        Self {
            struct_size: 0,
            lookups: it.lookups,
            drives_failed: it.drives_failed,
            ids: it.ids,
            padding: it.padding,
            missing: it.missing,
            failed: it.failed,
            unique: it.unique,
            rows_dram: it.rows_dram,
            rows_ssd: it.rows_ssd,
            ids_dram: it.ids_dram,
            ids_ssd: it.ids_ssd,
            commands: it.commands,
            merges: it.merges,
            split: it.split,
            landed: it.landed,
            sq_doorbells: it.sq_doorbells,
            cq_doorbells: it.cq_doorbells,
            bytes_read: it.bytes_read,
            bytes_needed: it.bytes_needed,
            dedupe_ns,
            route_ns,
            order_ns,
            merge_ns,
            read_ns,
            expand_ns,
            rows_cached: it.rows_cached,
            ids_cached: it.ids_cached,
        }
    }
}

impl From<&GpuReport> for warprow_gpu_report {
    fn from(it: &GpuReport) -> Self {
        let (first_missing_position, first_missing_id, has_first_missing) = first(it.first_missing);
        Self {
            struct_size: 0,
            runs: it.runs,
            ids: it.ids,
            padding: it.padding,
            missing: it.missing,
            failed: it.failed,
            ids_hbm: it.ids_hbm,
            ids_dram: it.ids_dram,
            ids_ssd: it.ids_ssd,
            rows_dram: it.rows_dram,
            rows_ssd: it.rows_ssd,
            commands: it.commands,
            doorbells: it.doorbells,
            bytes_read: it.bytes_read,
            anomalies: it.anomalies,
            damaged: it.damaged,
            split: it.split,
            prepare_ns: nanos(it.prepare),
            fetch_ns: nanos(it.fetch),
            expand_ns: nanos(it.expand),
            generation: it.generation,
            first_missing_position,
            first_missing_id,
            has_first_missing,
            reserved: 0,
            ids_cached: it.ids_cached,
        }
    }
}
