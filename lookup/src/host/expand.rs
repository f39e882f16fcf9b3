//! The stage *expand*: writes rows to the output, while drives still read others.

use std::ops::Range;

use half::{bf16, f16};
use warprow_dma::prefetch::prefetch;
use warprow_dma::{DmaMemory, PAGE};
use warprow_driver::prp::IovaRange;
use warprow_layout::{DType, row_crc};

use crate::feature::{FailedRows, MissingPolicy, Pooling};
use crate::host::memory::Memory;
use crate::host::prepared::Prepared;
use crate::host::read::Meanwhile;
use crate::host::rows_out::RowsOut;
use crate::resolve::{ResolvedFeature, ResolvedTable};
use crate::stage::{
    Accumulator, E4M3, E5M2, Element, Mxfp8, Nvfp4, OutputElement, Q4, Q8, ReadCommand, RowLocation, RowRead,
    ScaledE4M3, TABLE_SHIFT, pool, split,
};
use warprow_store::view::OverlaySnapshot;

/// How many ids are expanded between two looks at the drives' completion queues.
const BLOCK: usize = 256;
/// The end of a chain of ids.
const END: u32 = u32::MAX;
/// The most bytes of rows in DRAM that are brought towards the caches while other rows are copied or added up.
const AHEAD_BYTES: usize = 4096;
/// The most rows that are brought towards the caches ahead of their turn.
const AHEAD_ROWS: usize = 16;

/// How many output rows before its turn the memory of a row is brought towards the caches. A store to memory that lies
/// in no cache holds up those behind it, and the processor has room for a few rows' stores.
const OUTPUT_AHEAD: usize = 2;

/// Calls `$body` with `$element` standing for the element type that `$dtype` names.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        with_element!(@one_of $dtype, $element => $body;
            F32: f32, F16: f16, BF16: bf16, I8: i8, U8: u8, F8E4M3: E4M3, F8E5M2: E5M2, Q8: Q8, Q4: Q4,
            Mxfp8: Mxfp8, F8E4M3S: ScaledE4M3, Nvfp4: Nvfp4)
    };
    (@one_of $dtype:expr, $element:ident => $body:expr; $($name:ident: $type:ty),*) => {
        match $dtype {
            $(DType::$name => {
                type $element = $type;
                $body
            })*
        }
    };
}

pub(crate) use with_element;

/// The results of the stages before, which expansion is given.
pub(crate) struct Routed<'a> {
    pub plan: &'a Prepared,
    /// Updated rows, by overlay.
    pub snapshots: &'a [Option<OverlaySnapshot>],
    /// Where each bag begins, feature-major, and the end of the last.
    pub bags: &'a [u32],
    /// Bags of a feature.
    pub batch: usize,
    /// For each id, where its row lies; [`RowLocation::COLD`] for rows on drives.
    pub places: &'a mut [RowLocation],
    /// The positions of ids whose rows lie on drives, ascending.
    pub cold: &'a [u32],
    /// For each position in `cold`, the index of its row in `unique`.
    pub inverse: &'a [u32],
    /// Keys of the different rows on drives.
    pub unique: &'a [u64],
    /// For each row in `unique`, its number among the rows that are read, which is its place in staging, or that it
    /// failed.
    pub locations: &'a mut [RowLocation],
    pub reads: &'a [RowRead],
    pub commands: &'a [ReadCommand],
    pub weights: Option<&'a [f32]>,
    /// Copies of the rows that were found in the cache.
    pub hits: StagedRows<'a>,
    /// Room for one row of the table with the longest rows.
    pub scratch: &'a mut [u8],
    /// log₂ of the bytes in an LBA.
    pub lba_shift: u32,
    /// Whether any location is [`RowLocation::FAILED`].
    pub failed: bool,
    /// The first row whose checksum did not match.
    pub damaged: Option<Damaged>,
}

/// A row whose checksum does not match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Damaged {
    pub table: u16,
    pub rank: u64,
    pub drive: u16,
}

impl Routed<'_> {
    fn table_number(&self, unique: u32) -> u16 {
        (self.unique[unique as usize] >> TABLE_SHIFT) as u16
    }

    fn table_of(&self, unique: u32) -> &ResolvedTable {
        self.plan.table(self.table_number(unique))
    }

    /// The positions of ids whose row failed, ascending.
    fn failed(&self) -> impl Iterator<Item = usize> + '_ {
        let cold = if self.failed { self.cold } else { &[] };
        let failed = |unique: u32| self.locations[unique as usize] == RowLocation::FAILED;
        cold.iter().zip(self.inverse).filter(move |&(_, &unique)| failed(unique)).map(|(&id, _)| id as usize)
    }

    /// Replaces [`RowLocation::COLD`] in `places` by where each row on a drive was read to, or that it failed.
    pub(crate) fn settle(&mut self) {
        for (&id, &unique) in self.cold.iter().zip(self.inverse) {
            self.places[id as usize] = self.locations[unique as usize];
        }
    }

    /// Copies the rows of a command whose checksums match to `staging`, in which rows begin every `stride` bytes.
    fn stage(
        &mut self,
        (staging, stride): (&mut Memory, usize),
        command: &ReadCommand,
        memory: &DmaMemory,
        place: usize,
    ) {
        for index in command.first..command.first + command.rows {
            let read = self.reads[index as usize];
            let at = row_at(&read, command, place, self.lba_shift);
            if !self.is_sound(&read, |row| memory.read(at, row)) {
                continue;
            }
            let row_bytes = self.table_of(read.unique).row_bytes;
            if let Some(staged) = self.locations[read.unique as usize].ssd_index() {
                let row = &mut staging.bytes_mut()[staged as usize * stride..][..row_bytes];
                memory.read(at, row);
                self.keep(&read, |copy| copy.copy_from_slice(row));
            }
        }
    }

    /// The ids of a feature.
    fn ids_of(&self, feature: usize) -> Range<usize> {
        let begin = self.bags[feature * self.batch] as usize;
        begin..self.bags[(feature + 1) * self.batch] as usize
    }

    /// How many ids before its turn a row of `row_bytes` is brought towards the caches, by [`expect`](Self::expect).
    fn ahead(row_bytes: usize) -> usize {
        (AHEAD_BYTES / row_bytes.max(1)).clamp(1, AHEAD_ROWS)
    }

    /// Has the row of the id at position `id` brought towards the caches if it lies in DRAM. Rows are scattered over
    /// the tier, so the processor cannot foresee by itself where the next one lies.
    #[inline(always)]
    fn expect(&self, dram: &[u8], id: usize, row_bytes: usize) {
        if let Some(byte) = self.places.get(id).and_then(|place| place.dram_byte())
            && let Some(row) = dram.get(byte..byte + row_bytes.min(AHEAD_BYTES))
        {
            prefetch(row);
        }
    }

    /// The row of `row_bytes` bytes at `place`, if that is one in an overlay, or one that was found in the cache.
    fn elsewhere(&self, place: RowLocation, row_bytes: usize) -> Option<&[u8]> {
        if let Some(index) = place.cached_index() {
            return self.hits.get(index, row_bytes);
        }
        let (overlay, record) = place.updated_record()?;
        Some(self.snapshots.get(usize::from(overlay))?.as_ref()?.row(record))
    }

    /// Has the cache keep a row that was read and is sound. `fetch` copies the row.
    fn keep(&self, read: &RowRead, fetch: impl FnOnce(&mut [u8])) {
        let Some(cache) = &self.plan.host.cache else { return };
        let key = self.unique[read.unique as usize];
        let table = (key >> TABLE_SHIFT) as u16;
        let Some(cached) = &self.plan.host_table(table).cached else { return };
        cache.keep(cached, key & ((1 << TABLE_SHIFT) - 1), self.plan.table(table).row_bytes, fetch);
    }

    fn fail(&mut self, command: &ReadCommand) {
        self.failed = true;
        for read in &self.reads[command.first as usize..][..command.rows as usize] {
            self.locations[read.unique as usize] = RowLocation::FAILED;
        }
    }

    fn parts(&self, command: &ReadCommand) -> Vec<ReadCommand> {
        split(command, self.reads, |read| self.table_of(read.unique).row_lbas)
    }

    /// Whether a row that was read matches its checksum; always so if its table's rows are not checked. `fetch` copies
    /// the row. If the checksum does not match, the row is noted as failed.
    fn is_sound(&mut self, read: &RowRead, fetch: impl FnOnce(&mut [u8])) -> bool {
        let key = self.unique[read.unique as usize];
        let table = (key >> TABLE_SHIFT) as u16;
        let Some(crcs) = &self.plan.crcs[usize::from(table)] else { return true };
        let id = key & ((1 << TABLE_SHIFT) - 1);
        let ranks = &self.plan.routes[usize::from(table)].ranks;
        let rank = ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id)).unwrap_or(u64::MAX);
        let row = &mut self.scratch[..self.plan.table(table).row_bytes];
        fetch(row);
        if crcs.get(rank as usize) == Some(&row_crc(rank, row)) {
            return true;
        }
        self.locations[read.unique as usize] = RowLocation::FAILED;
        self.failed = true;
        self.damaged.get_or_insert(Damaged { table, rank, drive: read.drive() });
        false
    }
}

/// The value of elements of rows that could not be read.
fn failed_value(plan: &Prepared) -> f32 {
    match plan.options.failed_rows {
        FailedRows::Zeros => 0.0,
        FailedRows::Nan => f32::NAN,
    }
}

/// The byte of landing memory at which a row of a command begins, if the command's data begins at `place`.
#[inline(always)]
fn row_at(read: &RowRead, command: &ReadCommand, place: usize, lba_shift: u32) -> usize {
    place + ((read.lba() - command.lba) << lba_shift) as usize + read.byte as usize
}

/// Expansion without pooling: row i follows id i.
pub(crate) struct Unpooled<'a, R> {
    routed: Routed<'a>,
    rows: R,
    /// Ids on drives that want the same row form a chain. `heads` has the last of them for each row in `unique`.
    heads: &'a mut [u32],
    /// For each id on a drive, the one before it in its chain, or [`END`].
    before: &'a mut [u32],
    /// Rows from drives that a prefetch has read; empty in other look-ups.
    staged: StagedRows<'a>,
    feature: usize,
    next: usize,
}

/// Rows in staging, which begin every `stride` bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StagedRows<'a> {
    pub bytes: &'a [u8],
    pub stride: usize,
}

impl<'a> StagedRows<'a> {
    fn get(&self, index: u32, bytes: usize) -> Option<&'a [u8]> {
        self.bytes.get(index as usize * self.stride..)?.get(..bytes)
    }
}

impl<'a, R: RowsOut> Unpooled<'a, R> {
    /// Expansion while drives read. `heads` and `before` are at least as long as the list of ids on drives.
    pub(crate) fn new(routed: Routed<'a>, rows: R, heads: &'a mut [u32], before: &'a mut [u32]) -> Self {
        heads[..routed.unique.len()].fill(END);
        for (cold, (&unique, before)) in routed.inverse.iter().zip(&mut *before).enumerate() {
            *before = std::mem::replace(&mut heads[unique as usize], cold as u32);
        }
        Self { routed, rows, heads, before, staged: StagedRows::default(), feature: 0, next: 0 }
    }

    /// Expansion when all rows from drives are in `staged`, and `routed` was [settled](Routed::settle): no row will
    /// land any more.
    pub(crate) fn of_staged(routed: Routed<'a>, rows: R, staged: StagedRows<'a>) -> Self {
        Self { routed, rows, heads: &mut [], before: &mut [], staged, feature: 0, next: 0 }
    }

    /// Ends the expansion: fills the output rows of ids whose row failed, and calls `failed` with their positions.
    pub(crate) fn finish(mut self, mut failed: impl FnMut(usize)) -> Option<Damaged> {
        let value = failed_value(self.routed.plan);
        for id in self.routed.failed() {
            self.rows.fill(id, value);
            failed(id);
        }
        self.routed.damaged
    }

    /// Writes the rows of a range of ids of one feature, except those that are still to come from drives.
    fn expand<E: Element>(&mut self, feature: &ResolvedFeature, ids: Range<usize>) {
        let plan = self.routed.plan;
        let (dram, table) = (plan.host.dram.bytes(), plan.table(feature.table));
        let (dim, row_bytes) = (feature.dim, table.row_bytes);
        let ahead = Routed::ahead(row_bytes);
        for (id, &place) in ids.clone().zip(&self.routed.places[ids]) {
            self.routed.expect(dram, id + ahead, row_bytes);
            self.rows.expect(id + OUTPUT_AHEAD);
            let byte = match place {
                RowLocation::COLD => continue,
                RowLocation::MISSING if feature.missing == MissingPolicy::Default => Some(table.default_byte),
                _ => place.dram_byte(),
            };
            let stored = match byte {
                Some(byte) => dram.get(byte..byte + row_bytes),
                None => match place.ssd_index() {
                    Some(index) => self.staged.get(index, row_bytes),
                    None => self.routed.elsewhere(place, row_bytes),
                },
            };
            self.rows.put::<E>(id, stored, dim);
        }
    }
}

impl<R: RowsOut> Meanwhile for Unpooled<'_, R> {
    fn step(&mut self) -> bool {
        let plan = self.routed.plan;
        let Some(feature) = plan.features.get(self.feature) else { return false };
        let end = self.routed.ids_of(self.feature).end;
        let ids = self.next..(self.next + BLOCK).min(end);
        self.next = ids.end;
        if ids.end == end {
            self.feature += 1;
        }
        with_element!(plan.table(feature.table).dtype, E => self.expand::<E>(feature, ids));
        true
    }

    #[inline]
    fn land(&mut self, command: &ReadCommand, memory: &DmaMemory, place: usize) {
        for index in command.first..command.first + command.rows {
            let read = self.routed.reads[index as usize];
            let at = row_at(&read, command, place, self.routed.lba_shift);
            if !self.routed.is_sound(&read, |row| memory.read(at, row)) {
                continue;
            }
            self.routed.keep(&read, |row| memory.read(at, row));
            let table = self.routed.plan.table(self.routed.table_number(read.unique));
            let mut cold = self.heads[read.unique as usize];
            while cold != END {
                let id = self.routed.cold[cold as usize] as usize;
                self.rows.land(id, table, memory, at, self.routed.scratch);
                cold = self.before[cold as usize];
            }
        }
    }

    fn output(&self, command: &ReadCommand, stretches: &mut Vec<IovaRange>) -> bool {
        stretches.clear();
        let mut lba = command.lba;
        for read in &self.routed.reads[command.first as usize..][..command.rows as usize] {
            let table = self.routed.table_of(read.unique);
            let lbas = u64::from(table.row_lbas);
            let bytes = lbas << self.routed.lba_shift;
            // The command must read whole rows of whole LBAs, one after another, in the output's own type.
            if table.dtype != R::Element::DTYPE
                || table.row_bytes as u64 != bytes
                || read.byte != 0
                || read.lba() != lba
            {
                return false;
            }
            lba += lbas;
            let wanted = self.routed.cold.get(self.heads[read.unique as usize] as usize);
            let Some(at) = wanted.and_then(|&id| self.rows.place(id as usize)) else { return false };
            let at = at as u64;
            match stretches.last_mut() {
                Some(last) if last.iova + last.len == at => last.len += bytes,
                // PRPs can name two stretches only if one ends and the other begins at a page boundary.
                Some(last) if !((last.iova + last.len) | at).is_multiple_of(PAGE as u64) => return false,
                None if !at.is_multiple_of(4) => return false,
                _ => stretches.push(IovaRange { iova: at, len: bytes }),
            }
        }
        lba == command.lba + u64::from(command.lbas)
    }

    fn landed(&mut self, command: &ReadCommand) {
        for index in command.first..command.first + command.rows {
            let read = self.routed.reads[index as usize];
            let mut cold = self.heads[read.unique as usize];
            if cold == END {
                continue;
            }
            let first = self.routed.cold[cold as usize] as usize;
            if !self.routed.is_sound(&read, |row| self.rows.read(first, row)) {
                continue;
            }
            self.routed.keep(&read, |row| self.rows.read(first, row));
            self.rows.landed(first, self.routed.plan.table(self.routed.table_number(read.unique)));
            loop {
                cold = self.before[cold as usize];
                if cold == END {
                    break;
                }
                self.rows.repeat(first, self.routed.cold[cold as usize] as usize);
            }
        }
    }

    fn fail(&mut self, command: &ReadCommand) {
        self.routed.fail(command);
    }

    fn parts(&self, command: &ReadCommand) -> Vec<ReadCommand> {
        self.routed.parts(command)
    }
}

/// Expansion with pooling: output row b holds the pooled bag b of every feature. Rows from drives are copied to
/// `staging` first, because a bag is summed in its own order, in whatever order its rows arrive.
pub(crate) struct Pooled<'a, O> {
    routed: Routed<'a>,
    rows: &'a mut [O],
    stride: usize,
    staging: &'a mut Memory,
    /// Bytes from one row in `staging` to the next.
    staged_bytes: usize,
    sum: &'a mut [Accumulator],
    /// Bags that have rows on drives, and are pooled when all rows have arrived.
    deferred: &'a mut Vec<u32>,
    next: usize,
}

impl<'a, O: OutputElement> Pooled<'a, O> {
    pub(crate) fn new(
        routed: Routed<'a>,
        rows: &'a mut [O],
        stride: usize,
        staging: &'a mut Memory,
        staged_bytes: usize,
        sum: &'a mut [Accumulator],
        deferred: &'a mut Vec<u32>,
    ) -> Self {
        deferred.clear();
        Self { routed, rows, stride, staging, staged_bytes, sum, deferred, next: 0 }
    }

    /// Ends the expansion: pools the bags that waited for drives, and calls `failed` with the positions of ids whose
    /// row failed.
    pub(crate) fn finish(mut self, failed: impl FnMut(usize)) -> Option<Damaged> {
        self.routed.settle();
        let deferred = std::mem::take(self.deferred);
        deferred.iter().for_each(|&bag| self.pool(bag as usize));
        *self.deferred = deferred;
        self.routed.failed().for_each(failed);
        self.routed.damaged
    }

    fn ids(&self, bag: usize) -> Range<usize> {
        self.routed.bags[bag] as usize..self.routed.bags[bag + 1] as usize
    }

    fn pool(&mut self, bag: usize) {
        let plan = self.routed.plan;
        let feature = &plan.features[bag / self.routed.batch];
        with_element!(plan.table(feature.table).dtype, E => self.pool_as::<E>(feature, bag));
    }

    fn pool_as<E: Element>(&mut self, feature: &ResolvedFeature, bag: usize) {
        let ids = self.ids(bag);
        let plan = self.routed.plan;
        let table = plan.table(feature.table);
        let (dram, staging, row_bytes) = (plan.host.dram.bytes(), self.staging.bytes(), table.row_bytes);
        let sum = &mut self.sum[..feature.dim];
        sum.fill(0.0);
        let mut count = 0u32;
        let ahead = Routed::ahead(row_bytes);
        for (id, &place) in ids.clone().zip(&self.routed.places[ids]) {
            self.routed.expect(dram, id + ahead, row_bytes);
            let row = match (place, feature.missing) {
                (RowLocation::PADDING, _) | (RowLocation::MISSING, MissingPolicy::Skip | MissingPolicy::Error) => {
                    continue;
                }
                (RowLocation::MISSING, MissingPolicy::Zero) => {
                    count += 1;
                    continue;
                }
                (RowLocation::MISSING, MissingPolicy::Default) => &dram[table.default_byte..][..row_bytes],
                _ => match (place.dram_byte(), place.ssd_index()) {
                    (Some(byte), _) => &dram[byte..][..row_bytes],
                    (None, Some(index)) => &staging[index as usize * self.staged_bytes..][..row_bytes],
                    (None, None) => match self.routed.elsewhere(place, row_bytes) {
                        Some(row) => row,
                        None => {
                            // A row failed, and with it the whole bag.
                            sum.fill(failed_value(plan));
                            count = 0;
                            break;
                        }
                    },
                },
            };
            count += 1;
            let weight = self.routed.weights.filter(|_| feature.weighted).map(|weights| weights[id]);
            pool::<E>(row, weight, sum);
        }
        if feature.pooling == Pooling::Mean && count > 1 {
            let count = count as f32;
            sum.iter_mut().for_each(|sum| *sum /= count);
        }
        let row = bag % self.routed.batch;
        O::narrow(sum, &mut self.rows[row * self.stride + feature.column..][..feature.dim]);
    }
}

impl<O: OutputElement> Meanwhile for Pooled<'_, O> {
    fn step(&mut self) -> bool {
        let bags = self.routed.bags.len() - 1;
        let mut done = 0;
        while self.next < bags && done < BLOCK {
            let (bag, ids) = (self.next, self.ids(self.next));
            self.next += 1;
            done += ids.len() + 1;
            if self.routed.places[ids].contains(&RowLocation::COLD) {
                self.deferred.push(bag as u32);
            } else {
                self.pool(bag);
            }
        }
        self.next < bags
    }

    #[inline]
    fn land(&mut self, command: &ReadCommand, memory: &DmaMemory, place: usize) {
        self.routed.stage((self.staging, self.staged_bytes), command, memory, place);
    }

    fn fail(&mut self, command: &ReadCommand) {
        self.routed.fail(command);
    }

    fn parts(&self, command: &ReadCommand) -> Vec<ReadCommand> {
        self.routed.parts(command)
    }
}

/// Reading without expansion, for a prefetch: rows from drives are copied to `staging`, to be expanded later.
pub(crate) struct Staged<'a> {
    pub routed: Routed<'a>,
    pub staging: &'a mut Memory,
    /// Bytes from one row in `staging` to the next.
    pub staged_bytes: usize,
}

impl Meanwhile for Staged<'_> {
    fn step(&mut self) -> bool {
        false
    }

    #[inline]
    fn land(&mut self, command: &ReadCommand, memory: &DmaMemory, place: usize) {
        self.routed.stage((self.staging, self.staged_bytes), command, memory, place);
    }

    fn fail(&mut self, command: &ReadCommand) {
        self.routed.fail(command);
    }

    fn parts(&self, command: &ReadCommand) -> Vec<ReadCommand> {
        self.routed.parts(command)
    }
}
