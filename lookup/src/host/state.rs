//! What a slot owns, and a look-up with it, stage by stage.

use std::ops::Range;
use std::time::Duration;

use half::{bf16, f16};
use warprow_dma::DmaBuffer;
use warprow_layout::{DType, Drive};
use zerocopy::{FromBytes, IntoBytes};

use crate::batch::{Batch, Ids, Output, OutputRows};
use crate::error::{InvalidBatch, LookupError, RowError};
use crate::feature::{BoundsCheck, MaskMeaning, MissingId, MissingPolicy};
use crate::host::check::check;
use crate::host::counted::Counted;
use crate::host::expand::{Damaged, Pooled, Routed, StagedRows, Unpooled};
use crate::host::kept::Kept;
use crate::host::memory::Memory;
use crate::host::prepared::{Prepared, Room, queue_error};
use crate::host::read::{Landings, Lane, Reading, lend, read, ready, take_back};
use crate::host::rows_out::{BufferRows, PlainRows, RowsOut};
use crate::output_buffer::OutputBuffer;
use crate::popularity::{RowCounters, Sampler};
use crate::report::{LookupReport, Stage};
use crate::stage::{
    Accumulator, CountBuffers, KeyCounts, KeyTable, OutputElement, ReadCommand, RowLocation, RowRead, TABLE_SHIFT,
    TierSplit, created, dedupe, keys, locate, mask, merge, order, removed, route, sparse_keys, sparse_mask,
    split_tiers, updated,
};
use warprow_store::StoreError;
use warprow_store::view::OverlaySnapshot;

/// The most bytes of landing memory that a queue pair has in each of its two halves.
const MAX_LANDING: usize = 8 << 20;

/// What a slot owns: queue pairs, and the buffers of all stages. They are allocated when the plan is made, and used
/// again by each look-up.
#[derive(Debug)]
pub(crate) struct State {
    lanes: Vec<Lane>,
    landings: Landings,
    table: KeyTable,
    pub(crate) bags: Vec<u32>,
    keys: Vec<u64>,
    /// For each id, where its row lies.
    places: Vec<RowLocation>,
    cold: Vec<u32>,
    cold_keys: Vec<u64>,
    hot_places: Vec<u64>,
    /// One bit for each place in the DRAM tier where a row can begin, for counting the different rows in DRAM. It is
    /// empty where it would take more than 64 bytes for each id of the largest batch: clearing it would then take
    /// longer than counting with `table`, which counts instead.
    bitmap: Vec<u64>,
    unique: Vec<u64>,
    inverse: Vec<u32>,
    locations: Vec<RowLocation>,
    reads: Vec<RowRead>,
    reads_scratch: Vec<RowRead>,
    commands: Vec<ReadCommand>,
    heads: Vec<u32>,
    before: Vec<u32>,
    staging: Memory,
    staged_bytes: usize,
    /// Copies of the rows that the look-up under way found in the cache, `staged_bytes` apart.
    cached: Memory,
    sum: Vec<Accumulator>,
    deferred: Vec<u32>,
    scratch: Vec<u8>,
    /// Room for an unpooled row of the output, of any of its types.
    row: Vec<u64>,
    /// Updated rows that the look-up under way reads, by overlay.
    pub(crate) snapshots: Vec<Option<OverlaySnapshot>>,
    /// Mask and weights of a batch whose rows are fetched ahead.
    pub(crate) kept: Kept,
    sampler: Sampler,
}

impl State {
    /// Allocates the buffers of slot number `made`, and takes its queue pairs.
    pub(crate) fn new(plan: &Prepared, room: Room, made: u32) -> Result<Self, StoreError> {
        let store = &plan.host.store;
        let ids = plan.options.max_ids;
        let bags = plan.options.max_batch * plan.features.len();
        let Room { row_bytes, cold } = room;
        let staged_bytes = row_bytes.next_multiple_of(64);
        let prefetch = plan.options.prefetch;
        let staged = if plan.pooled || prefetch { (cold as u64).saturating_mul(staged_bytes as u64) } else { 0 };

        let kept = if plan.host.cache.is_some() { (cold as u64).saturating_mul(staged_bytes as u64) } else { 0 };

        let options = &plan.host.options;
        let lba = store.lba_size() as usize;
        // Landing memory for a command of its own for each row, with the LBAs that such a command reads beside the row.
        let gap = |row_lbas| plan.host.merge_rules.iter().map(|it| it.widest_gap(row_lbas)).max().unwrap_or(0);
        let of_row = |row_lbas: u32| row_lbas.saturating_add(gap(row_lbas)) as usize * lba;
        let landing = plan.tables.iter().map(|table| of_row(table.row_lbas)).max().unwrap_or(lba);
        let landing = landing.saturating_mul(cold).min(MAX_LANDING);
        let timeout = options.timeout.unwrap_or(store.timeout());
        let transfer =
            store.drives().iter().flatten().map(|member| member.transfer_limit()).max().unwrap_or(0) as usize;
        let mut lanes = Vec::new();
        for (drive, member) in (0u16..).zip(store.drives()) {
            let Some(member) = member else { continue };
            for pair in 0..options.queue_pairs {
                let had = made * options.queue_pairs + pair;
                let lane = Lane::new(drive, member, options.depth, timeout, landing);
                lanes.push(lane.map_err(|error| queue_error(error, plan, &**member, had))?);
            }
        }
        let unpooled = if plan.pooled { 0 } else { ids };
        Ok(Self {
            lanes,
            landings: Landings::new(cold, transfer),
            table: KeyTable::new(ids),
            bags: vec![0; bags + 1],
            keys: vec![0; ids],
            places: vec![RowLocation::PADDING; ids],
            cold: vec![0; ids],
            cold_keys: vec![0; ids],
            hot_places: vec![0; ids],
            bitmap: vec![0; plan.row_bits.words_for(ids)],
            unique: vec![0; ids],
            inverse: vec![0; ids],
            locations: vec![RowLocation::FAILED; cold],
            reads: vec![RowRead::default(); cold],
            reads_scratch: vec![RowRead::default(); cold],
            commands: vec![ReadCommand::default(); cold],
            heads: vec![0; unpooled],
            before: vec![0; unpooled],
            staging: Memory::new(staged, "staging")?,
            staged_bytes,
            cached: Memory::new(kept, "rows from the cache")?,
            sum: vec![0.0; if plan.pooled { plan.features.iter().map(|it| it.dim).max().unwrap_or(0) } else { 0 }],
            deferred: Vec::with_capacity(if plan.pooled { bags } else { 0 }),
            scratch: vec![0; row_bytes],
            row: vec![0; if plan.pooled { 0 } else { (plan.width * size_of::<f32>()).div_ceil(size_of::<u64>()) }],
            // A plan has at most as many overlays as tables, and at most as many tables as features.
            snapshots: Vec::with_capacity(plan.features.len()),
            kept: Kept::new(if prefetch { ids } else { 0 }, prefetch && plan.weighted),
            sampler: Sampler::new(made, plan.host.counters.is_some()),
        })
    }
}

/// Calls a function generic over the type of ids.
macro_rules! with_ids {
    ($ids:expr, $slice:ident => $body:expr) => {
        match $ids {
            Ids::I32($slice) => $body,
            Ids::I64($slice) => $body,
            Ids::U32($slice) => $body,
            Ids::U64($slice) => $body,
        }
    };
}

/// Calls a function generic over the type of elements.
macro_rules! with_rows {
    ($rows:expr, $slice:ident => $body:expr) => {
        match $rows {
            $crate::batch::Slices::F32($slice) => $body,
            $crate::batch::Slices::F16($slice) => $body,
            $crate::batch::Slices::Bf16($slice) => $body,
            $crate::batch::Slices::I8($slice) => $body,
            $crate::batch::Slices::U8($slice) => $body,
        }
    };
}
pub(crate) use with_rows;

/// Adds what a look-up did to the host's totals.
pub(crate) fn count(plan: &Prepared, result: &Result<LookupReport, LookupError>) {
    let totals = &plan.host.totals;
    match result {
        Ok(report) => totals.add(report),
        Err(LookupError::MissingIds { report, .. } | LookupError::RowsFailed { report, .. }) => totals.add(report),
        Err(_) => {}
    }
}

/// A stop-watch, which takes the time of one stage after another.
pub(crate) struct Watch<'a> {
    clock: &'a dyn warprow_dma::Clock,
    pub(crate) last: Duration,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(plan: &'a Prepared) -> Self {
        let clock = plan.host.store.clock();
        Self { clock, last: clock.now() }
    }

    pub(crate) fn lap(&mut self) -> Duration {
        let now = self.clock.now();
        now.saturating_sub(std::mem::replace(&mut self.last, now))
    }
}

/// Where the rows of a batch's ids were found.
#[derive(Debug)]
pub(crate) struct Found {
    /// The report as far as it is known by then: ids, missing ids, padding.
    pub report: LookupReport,
    /// Ids whose rows lie in DRAM.
    hot_ids: usize,
    /// Ids whose rows lie on drives.
    cold_ids: usize,
}

/// What became of a batch's ids before anything was read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sorted {
    /// Ids whose rows lie in DRAM.
    hot_ids: usize,
    /// Ids whose rows have to be read from drives.
    cold_ids: usize,
    /// Different rows to be read from drives.
    unique: usize,
    /// The rows among `unique` that are to be read.
    reads: usize,
    commands: usize,
    /// Whether a row can already not be read, because its place is not known or its drive is missing.
    pub failed: bool,
}

impl Sampler {
    /// Leaves a sample of a batch's ids to be counted. Rows of all tiers are counted, or those in DRAM would seem to be looked up no
    /// more.
    fn draw_from(
        &mut self,
        plan: &Prepared,
        batch: &Batch<'_>,
        bags: &[u32],
        places: &[RowLocation],
        counters: &RowCounters,
    ) {
        for (index, feature) in plan.features.iter().enumerate() {
            let Some(table) = plan.host_table(feature.table).counted else { continue };
            let range = ids_of(bags, batch.batch, index);
            let places = &places[range.clone()];
            let has_row = |at: usize| places[at] != RowLocation::MISSING && places[at] != RowLocation::PADDING;
            with_ids!(batch.ids, ids => {
                let ids = &ids[range];
                self.sample(counters, table, ids.len(), |at| has_row(at).then(|| i128::from(ids[at]) as u64));
            });
        }
        self.leave(counters);
    }
}

/// The positions of the ids of feature number `feature`. Each feature has `batch` bags.
fn ids_of(bags: &[u32], batch: usize, feature: usize) -> Range<usize> {
    bags[feature * batch] as usize..bags[(feature + 1) * batch] as usize
}

impl State {
    pub(crate) fn lookup(
        &mut self,
        plan: &Prepared,
        snapshots: &[Option<OverlaySnapshot>],
        batch: &Batch<'_>,
        out: &mut Output<'_>,
    ) -> Result<LookupReport, LookupError> {
        let mut watch = Watch::new(plan);
        check(plan, batch, out, &mut self.bags)?;
        self.ready(&watch)?;
        if let OutputRows::Buffer(buffer) = &mut out.rows {
            // The buffer may have been in quarantine, and bringing queues back may just have ended that.
            buffer.reclaim().map_err(InvalidBatch::from)?;
        }
        let mut found = self.find(plan, snapshots, batch, &mut watch)?;
        let sorted = self.sort(plan, &mut found, &mut watch);
        let mut report = found.report;
        if let Some(mask) = &mut out.mask {
            self.mask(plan, batch, mask);
        }
        let (routed, buffers) = self.split(plan, snapshots, batch.batch, &sorted);
        let routed = Routed { weights: batch.weights, ..routed };
        let stride = out.row_stride;
        let done = match &mut out.rows {
            // Where no drive writes to it, a buffer is memory as any other.
            OutputRows::Buffer(buffer) if !plan.pooled && sorted.commands > 0 => {
                expand_into(routed, buffers, buffer, stride)
            }
            rows => {
                let slices = rows.slices().map_err(InvalidBatch::from)?;
                with_rows!(slices, rows => expand(routed, buffers, rows, stride))
            }
        };
        let read = done.reading.time + done.counting;
        report.stages[Stage::Expand as usize] = watch.lap().saturating_sub(read);
        done.report(plan, &sorted, report, out.mask.as_deref_mut())
    }

    /// Brings back the slot's queues that failed. That may reset a controller whose other queues are in use.
    pub(crate) fn ready(&mut self, watch: &Watch<'_>) -> Result<(), LookupError> {
        Ok(ready(&mut self.lanes, watch.last)?)
    }

    /// Finds where the row of each id lies: in DRAM, in an overlay, on a drive, or nowhere.
    pub(crate) fn find(
        &mut self,
        plan: &Prepared,
        snapshots: &[Option<OverlaySnapshot>],
        batch: &Batch<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Found, LookupError> {
        let ids = batch.ids.len();
        let mut report = LookupReport { ids: ids as u64, generation: plan.generation, ..LookupReport::default() };
        let per_feature = batch.batch;
        let features =
            || plan.features.iter().enumerate().map(|(index, it)| (it, ids_of(&self.bags, per_feature, index)));
        let (all_keys, all_places) = (&mut self.keys[..ids], &mut self.places[..ids]);
        let mut tiers = TierSplit {
            cold: &mut self.cold,
            cold_keys: &mut self.cold_keys,
            cold_count: 0,
            hot_places: &mut self.hot_places,
            hot_count: 0,
        };
        let (mut counts, mut refused) = (KeyCounts::default(), false);
        for (feature, range) in features() {
            let (table, padding, read_padding) = (feature.table, feature.padding, !plan.pooled);
            let (places, first) = (&mut all_places[range.clone()], range.start as u32);
            let (route, sparse) = (&plan.routes[usize::from(table)], &plan.sparse[usize::from(table)]);
            let (overlay, index) = plan.table(table).overlay;
            let snapshot = snapshots.get(usize::from(overlay)).and_then(Option::as_ref);
            let rows = (table, plan.table(table).rows);
            let found = match (sparse, snapshot) {
                (None, None) => {
                    let padding = (padding, read_padding);
                    with_ids!(batch.ids, ids => locate(&ids[range.clone()], first, rows, route, padding, places, &mut tiers))
                }
                _ => {
                    let keys_out = &mut all_keys[range.clone()];
                    let mut found = with_ids!(batch.ids, ids => match sparse {
                        None => keys(&ids[range.clone()], table, rows.1, padding, read_padding, keys_out),
                        Some(sparse) => sparse_keys(&ids[range.clone()], table, sparse, padding, read_padding, keys_out),
                    });
                    // By what the index says: of a key that was removed and created again, too.
                    if let (Some(touches), Some(touched)) = (&plan.host.touches, &plan.host_table(table).touched) {
                        touched.touch(keys_out, touches.epoch());
                    }
                    if let (Some(sparse), Some(snapshot)) = (sparse, snapshot)
                        && snapshot.creates()
                    {
                        let of = (table, index, sparse.index.kind());
                        with_ids!(batch.ids, ids => created(&ids[range.clone()], of, snapshot, padding, read_padding, keys_out, &mut found));
                    }
                    if let (Some(_), Some(snapshot)) = (sparse, snapshot)
                        && snapshot.removes()
                    {
                        with_ids!(batch.ids, ids => removed(&ids[range.clone()], index, snapshot, padding, keys_out, &mut found));
                    }
                    // `mask` wants the keys of sparse ids as they are now.
                    if let Some(snapshot) = snapshot {
                        updated(snapshot, (overlay, index), sparse.is_some(), keys_out, places, &mut tiers);
                    }
                    split_tiers(route, first, keys_out, places, &mut tiers);
                    found
                }
            };
            match feature.bounds {
                BoundsCheck::Ignore => counts.padding += found.missing,
                BoundsCheck::Count | BoundsCheck::Report => counts.missing += found.missing,
            }
            counts.padding += found.padding;
            if feature.bounds == BoundsCheck::Report && found.missing != 0 && report.first_missing.is_none() {
                // Features come in the order of their ids, so the first one found is the first in the batch.
                let position = range.clone().find(|&id| all_places[id] == RowLocation::MISSING);
                report.first_missing = position.map(|position| MissingId {
                    position: position as u64,
                    id: with_ids!(batch.ids, ids => ids[position].into()),
                });
            }
            refused |= found.missing != 0 && feature.missing == MissingPolicy::Error;
        }
        report.padding = counts.padding as u64;
        report.missing = counts.missing as u64;
        if refused {
            let of_errors = features().filter(|(feature, _)| feature.missing == MissingPolicy::Error);
            let positions =
                of_errors.flat_map(|(_, range)| range).filter(|&id| all_places[id] == RowLocation::MISSING).collect();
            return Err(LookupError::MissingIds { report: Box::new(report), positions });
        }
        let (hot_ids, cold_ids) = (tiers.hot_count, tiers.cold_count);
        if let Some(counters) = &plan.host.counters {
            self.sampler.draw_from(plan, batch, &self.bags, &self.places[..ids], counters);
        }
        report.stages[Stage::Route as usize] = watch.lap();
        Ok(Found { report, hot_ids, cold_ids })
    }

    /// Makes read commands of the ids on drives: the stages from *dedupe* to *merge*.
    pub(crate) fn sort(&mut self, plan: &Prepared, found: &mut Found, watch: &mut Watch<'_>) -> Sorted {
        let Found { report, hot_ids, cold_ids } = found;
        let (hot_ids, cold_ids) = (*hot_ids, *cold_ids);
        let inverse = &mut self.inverse[..cold_ids];
        let unique = dedupe(&mut self.table, &self.cold_keys[..cold_ids], &mut self.unique, inverse);
        report.stages[Stage::Dedupe as usize] = watch.lap();
        let (unique, cached_rows, cold_ids) = self.take_cached(plan, unique, cold_ids);
        let cached_ids = found.cold_ids - cold_ids;
        let unique = &self.unique[..unique];

        let locations = &mut self.locations[..unique.len()];
        let routed = route(&plan.routes, unique, locations, &mut self.reads);
        report.rows_ssd = unique.len() as u64;
        (report.rows_cached, report.ids_cached) = (cached_rows as u64, cached_ids as u64);
        report.stages[Stage::Route as usize] += watch.lap();

        let reads = &mut self.reads[..routed.ssd];
        order(reads, &mut self.reads_scratch);
        report.stages[Stage::Order as usize] = watch.lap();

        let table_of = |read: &RowRead| plan.table((unique[read.unique as usize] >> TABLE_SHIFT) as u16);
        let count = merge(reads, |read| table_of(read).row_lbas, &plan.host.merge_rules, &mut self.commands);
        report.commands = count as u64;
        report.merges = (routed.ssd - count) as u64;
        report.bytes_needed = reads.iter().map(|read| table_of(read).row_bytes as u64).sum();
        report.stages[Stage::Merge as usize] = watch.lap();
        let (unique, reads, failed) = (unique.len(), routed.ssd, routed.lost > 0);
        Sorted { hot_ids, cold_ids, unique, reads, commands: count, failed }
    }

    /// Copies the rows that the cache has out of it, and takes their ids off the list of ids on drives. Of `unique`
    /// different rows and `cold_ids` ids it returns how many rows are left, how many were found, and how many ids are
    /// left.
    fn take_cached(&mut self, plan: &Prepared, unique: usize, cold_ids: usize) -> (usize, usize, usize) {
        let Some(cache) = &plan.host.cache else { return (unique, 0, cold_ids) };
        let (copies, stride) = (self.cached.bytes_mut(), self.staged_bytes);
        let (mut left, mut found) = (0, 0);
        for at in 0..unique {
            let key = self.unique[at];
            let table = (key >> TABLE_SHIFT) as u16;
            let copy = copies.get_mut(found * stride..).and_then(|it| it.get_mut(..plan.table(table).row_bytes));
            let is_found = match (&plan.host_table(table).cached, copy) {
                (Some(cached), Some(copy)) => cache.find(cached, key & ((1 << TABLE_SHIFT) - 1), copy),
                _ => false,
            };
            self.locations[at] = match is_found {
                true => {
                    found += 1;
                    RowLocation::cached(found as u32 - 1)
                }
                false => {
                    self.unique[left] = key;
                    left += 1;
                    RowLocation::ssd(left as u32 - 1)
                }
            };
        }
        cache.count(found, left);
        let mut ids_left = 0;
        for at in 0..cold_ids {
            let (id, location) = (self.cold[at], self.locations[self.inverse[at] as usize]);
            match location.ssd_index() {
                Some(index) => {
                    (self.cold[ids_left], self.inverse[ids_left]) = (id, index);
                    ids_left += 1;
                }
                None => self.places[id as usize] = location,
            }
        }
        (left, found, ids_left)
    }

    /// Writes the mask as it is if no row fails: 1 to `out` for each id that its table has and that is no padding, else
    /// 0; of a plan whose masks tell failed rows, only zeros.
    pub(crate) fn mask(&self, plan: &Prepared, batch: &Batch<'_>, out: &mut [u8]) {
        if plan.options.mask == MaskMeaning::Failed {
            out.iter_mut().take(batch.ids.len()).for_each(|mask| *mask = 0);
            return;
        }
        for (number, feature) in plan.features.iter().enumerate() {
            let range = ids_of(&self.bags, batch.batch, number);
            let (out, keys) = (&mut out[range.clone()], &self.keys[range.clone()]);
            with_ids!(batch.ids, ids => match plan.sparse[usize::from(feature.table)] {
                None => mask(&ids[range], plan.table(feature.table).rows, feature.padding, out),
                Some(_) => sparse_mask(&ids[range], keys, feature.padding, out),
            });
        }
    }

    /// Splits the slot's buffers into the results of the stages so far (without weights), and what the stages *read*
    /// and *expand* work with.
    pub(crate) fn split<'a>(
        &'a mut self,
        plan: &'a Prepared,
        snapshots: &'a [Option<OverlaySnapshot>],
        batch: usize,
        sorted: &Sorted,
    ) -> (Routed<'a>, Buffers<'a>) {
        let bags = &self.bags[..=plan.features.len() * batch];
        let ids = bags.last().map_or(0, |&end| end as usize);
        let (inverse, inverse_scratch) = self.inverse[..ids].split_at_mut(sorted.cold_ids);
        let (unique, unique_scratch) = self.unique.split_at_mut(sorted.unique);
        let routed = Routed {
            plan,
            snapshots,
            bags,
            batch,
            places: &mut self.places[..ids],
            cold: &self.cold[..sorted.cold_ids],
            inverse,
            unique,
            locations: &mut self.locations[..sorted.unique],
            reads: &self.reads[..sorted.reads],
            commands: &self.commands[..sorted.commands],
            weights: None,
            scratch: &mut self.scratch,
            hits: StagedRows { bytes: self.cached.bytes(), stride: self.staged_bytes },
            lba_shift: plan.host.store.lba_size().trailing_zeros(),
            failed: sorted.failed,
            damaged: None,
        };
        let buffers = Buffers {
            lanes: &mut self.lanes,
            landings: &mut self.landings,
            hot_places: &self.hot_places[..sorted.hot_ids],
            counting: CountBuffers {
                bitmap: &mut self.bitmap,
                table: &mut self.table,
                unique: unique_scratch,
                inverse: inverse_scratch,
            },
            heads: &mut self.heads,
            before: &mut self.before,
            staging: &mut self.staging,
            staged_bytes: self.staged_bytes,
            sum: &mut self.sum,
            deferred: &mut self.deferred,
            row: &mut self.row,
            positions: Vec::new(),
        };
        (routed, buffers)
    }
}

fn drive_name(plan: &Prepared, drive: u16) -> String {
    let member = plan.host.store.drives().get(usize::from(drive)).and_then(Option::as_ref);
    member.map_or_else(|| format!("{drive}"), |member| member.name().to_owned())
}

/// The buffers that the stages *read* and *expand* work with.
pub(crate) struct Buffers<'a> {
    pub lanes: &'a mut [Lane],
    pub landings: &'a mut Landings,
    /// Where rows in memory lie, as numbers of their places.
    pub hot_places: &'a [u64],
    /// What counting the different rows among these works in.
    pub counting: CountBuffers<'a>,
    pub heads: &'a mut [u32],
    pub before: &'a mut [u32],
    pub staging: &'a mut Memory,
    pub staged_bytes: usize,
    pub sum: &'a mut [Accumulator],
    pub deferred: &'a mut Vec<u32>,
    pub row: &'a mut [u64],
    /// Positions of ids whose row failed. It begins empty, and so unallocated.
    pub positions: Vec<usize>,
}

/// What the stages *read* and *expand* did.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub reading: Reading,
    /// Different rows in DRAM.
    pub hot_rows: usize,
    /// The time that counting the different rows in DRAM took.
    pub counting: Duration,
    pub damaged: Option<Damaged>,
    /// Positions of ids whose row failed.
    pub positions: Vec<usize>,
}

impl Done {
    /// Ends a look-up: completes the report, and returns it, or the error that names the rows that failed.
    pub(crate) fn report(
        self,
        plan: &Prepared,
        sorted: &Sorted,
        mut report: LookupReport,
        mask: Option<&mut [u8]>,
    ) -> Result<LookupReport, LookupError> {
        let Self { reading, hot_rows, counting, damaged, positions } = self;
        report.rows_dram = hot_rows as u64;
        report.unique = report.rows_dram + report.rows_cached + report.rows_ssd;
        report.failed = positions.len() as u64;
        (report.ids_dram, report.ids_ssd) = (sorted.hot_ids as u64, sorted.cold_ids as u64 - report.failed);
        (report.sq_doorbells, report.cq_doorbells) = (reading.sq_doorbells, reading.cq_doorbells);
        (report.bytes_read, report.split, report.landed) = (reading.bytes, reading.split, reading.landed);
        report.stages[Stage::Dedupe as usize] += counting;
        report.stages[Stage::Read as usize] = reading.time;
        if positions.is_empty() {
            return Ok(report);
        }
        if let Some(mask) = mask {
            let failed = u8::from(plan.options.mask == MaskMeaning::Failed);
            positions.iter().for_each(|&id| mask[id] = failed);
        }
        let source = match (reading.failure, damaged) {
            (Some(error), _) => {
                match plan.host.store.drives().iter().flatten().find_map(|drive| drive.changed_file()) {
                    Some(changed) => changed.clone().into(),
                    None => error.into(),
                }
            }
            (None, Some(Damaged { table, rank, drive })) => RowError::Checksum {
                table: plan.host_table(table).located.table().name.clone(),
                rank,
                drive: drive_name(plan, drive),
            },
            (None, None) => RowError::MemberMissing { drives: plan.host.store.missing_drives() },
        };
        Err(LookupError::RowsFailed { report: Box::new(report), positions, source })
    }
}

/// The stages *read* and *expand*, which run side by side.
fn expand<O: OutputElement>(routed: Routed<'_>, buffers: Buffers<'_>, rows: &mut [O], stride: usize) -> Done {
    let (plan, commands) = (routed.plan, routed.commands);
    if !plan.pooled {
        return expand_unpooled(routed, buffers, PlainRows { rows, stride, width: plan.width });
    }
    let clock = plan.host.store.clock();
    let Buffers { lanes, landings, hot_places, counting, mut positions, .. } = buffers;
    let Buffers { staging, staged_bytes, sum, deferred, .. } = buffers;
    let pooled = Pooled::new(routed, rows, stride, staging, staged_bytes, sum, deferred);
    let mut work = Counted::new(pooled, clock, hot_places, plan.row_bits, counting);
    let reading = read(lanes, commands, landings, clock, &mut work);
    let (hot_rows, counting) = (work.count(), work.time);
    let damaged = work.work.finish(|id| positions.push(id));
    Done { reading, hot_rows, counting, damaged, positions }
}

/// As [`expand`], for unpooled rows in memory that drives can write to.
fn expand_into(routed: Routed<'_>, buffers: Buffers<'_>, output: &mut OutputBuffer, stride: usize) -> Done {
    fn to<O: OutputElement>(
        routed: Routed<'_>,
        mut buffers: Buffers<'_>,
        memory: &mut DmaBuffer,
        stride: usize,
    ) -> Done {
        let width = routed.plan.width;
        lend(buffers.lanes, memory);
        let row = <[O]>::mut_from_bytes(std::mem::take(&mut buffers.row).as_mut_bytes()).unwrap_or_default();
        let done = expand_unpooled(routed, buffers, BufferRows { memory: &mut *memory, stride, width, row });
        memory.reclaim();
        done
    }
    let (dtype, memory) = (output.dtype(), output.memory());
    match dtype {
        DType::F16 => to::<f16>(routed, buffers, memory, stride),
        DType::BF16 => to::<bf16>(routed, buffers, memory, stride),
        DType::I8 => to::<i8>(routed, buffers, memory, stride),
        DType::U8 => to::<u8>(routed, buffers, memory, stride),
        // Output buffers have no other types.
        _ => to::<f32>(routed, buffers, memory, stride),
    }
}

fn expand_unpooled(routed: Routed<'_>, buffers: Buffers<'_>, rows: impl RowsOut) -> Done {
    let (plan, commands) = (routed.plan, routed.commands);
    let clock = plan.host.store.clock();
    let Buffers { lanes, landings, hot_places, counting, heads, before, mut positions, .. } = buffers;
    let unpooled = Unpooled::new(routed, rows, heads, before);
    let mut work = Counted::new(unpooled, clock, hot_places, plan.row_bits, counting);
    let reading = read(lanes, commands, landings, clock, &mut work);
    let (hot_rows, counting) = (work.count(), work.time);
    // Rows that failed are zeroed by `finish`, after no drive writes to the output any more.
    take_back(lanes, clock.now());
    let damaged = work.work.finish(|id| positions.push(id));
    Done { reading, hot_rows, counting, damaged, positions }
}
