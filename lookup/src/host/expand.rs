//! The stage *expand*: rows to the output, while drives still read others.

use std::ops::Range;
use std::time::Duration;

use half::{bf16, f16};
use warprow_dma::{Clock, DmaMemory, PAGE};
use warprow_driver::prp::Stretch;
use warprow_layout::{DType, row_crc};

use crate::feature::{Missing, Pooling};
use crate::host::memory::Memory;
use crate::host::prepared::Prepared;
use crate::host::read::Meanwhile;
use crate::host::rows_out::RowsOut;
use crate::resolve::{ResolvedFeature, ResolvedTable};
use crate::stage::{
    Acc, Command, Deduping, E4M3, E5M2, Element, KeyTable, Location, Out, Q4, Q8, RowRead, TABLE_SHIFT, begin, pool,
    split,
};
use warprow_store::view::Snapshot;

/// Ids that are expanded between two looks at the drives.
const BLOCK: usize = 256;
/// Keys that are counted between two looks at the drives.
const KEYS: usize = 1024;
/// The end of a chain of ids.
const END: u32 = u32::MAX;

/// Calls `$body` with `$element` standing for the element type that `$dtype` names.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $element = f32;
                $body
            }
            DType::F16 => {
                type $element = f16;
                $body
            }
            DType::BF16 => {
                type $element = bf16;
                $body
            }
            DType::I8 => {
                type $element = i8;
                $body
            }
            DType::U8 => {
                type $element = u8;
                $body
            }
            DType::F8E4M3 => {
                type $element = E4M3;
                $body
            }
            DType::F8E5M2 => {
                type $element = E5M2;
                $body
            }
            DType::Q8 => {
                type $element = Q8;
                $body
            }
            DType::Q4 => {
                type $element = Q4;
                $body
            }
        }
    };
}

pub(crate) use with_element;

/// What expansion is given: the results of the stages before.
pub(crate) struct Routed<'a> {
    pub plan: &'a Prepared,
    /// Updated rows, by overlay.
    pub snapshots: &'a [Option<Snapshot>],
    /// Where each bag begins, feature-major, and the end of the last.
    pub bags: &'a [u32],
    /// Bags of a feature.
    pub batch: usize,
    /// For each id where its row lies; [`Location::COLD`] for those on drives.
    pub places: &'a mut [Location],
    /// The positions of these, ascending, and for each the index of its row among the unique ones.
    pub cold: &'a [u32],
    pub inverse: &'a [u32],
    /// Keys of the unique rows on drives, and where these are: their number among the reads, or failed.
    pub unique: &'a [u64],
    pub locations: &'a mut [Location],
    pub reads: &'a [RowRead],
    pub commands: &'a [Command],
    pub weights: Option<&'a [f32]>,
    /// One row of the largest table.
    pub scratch: &'a mut [u8],
    /// log₂ of the bytes in an LBA.
    pub lba_shift: u32,
    /// Whether any location is [`Location::FAILED`].
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
        let failed = |unique: u32| self.locations[unique as usize] == Location::FAILED;
        cold.iter().zip(self.inverse).filter(move |&(_, &unique)| failed(unique)).map(|(&id, _)| id as usize)
    }

    /// Gives ids on drives the places of their rows.
    pub(crate) fn settle(&mut self) {
        for (&id, &unique) in self.cold.iter().zip(self.inverse) {
            self.places[id as usize] = self.locations[unique as usize];
        }
    }

    /// Copies the sound rows of a command to their places in `staging`, so many bytes apart.
    fn stage(&mut self, (staging, stride): (&mut Memory, usize), command: &Command, memory: &DmaMemory, place: usize) {
        for index in command.first..command.first + command.rows {
            let read = self.reads[index as usize];
            let at = row_at(&read, command, place, self.lba_shift);
            if !self.is_sound(&read, |row| memory.read(at, row)) {
                continue;
            }
            let row_bytes = self.table_of(read.unique).row_bytes;
            if let Some(staged) = self.locations[read.unique as usize].ssd_index() {
                memory.read(at, &mut staging.bytes_mut()[staged as usize * stride..][..row_bytes]);
            }
        }
    }

    /// The ids of a feature.
    fn ids_of(&self, feature: usize) -> Range<usize> {
        let begin = self.bags[feature * self.batch] as usize;
        begin..self.bags[(feature + 1) * self.batch] as usize
    }

    /// The row of a place in an overlay.
    fn updated(&self, place: Location) -> Option<&[u8]> {
        let (overlay, record) = place.updated_record()?;
        Some(self.snapshots.get(usize::from(overlay))?.as_ref()?.row(record))
    }

    fn fail(&mut self, command: &Command) {
        self.failed = true;
        for read in &self.reads[command.first as usize..][..command.rows as usize] {
            self.locations[read.unique as usize] = Location::FAILED;
        }
    }

    fn parts(&self, command: &Command) -> Vec<Command> {
        split(command, self.reads, |read| self.table_of(read.unique).row_lbas)
    }

    /// Whether a row that was read, and that `fetch` copies, is what was written, as far as that is to be checked. If not, it has failed.
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
        self.locations[read.unique as usize] = Location::FAILED;
        self.failed = true;
        self.damaged.get_or_insert(Damaged { table, rank, drive: read.drive() });
        false
    }
}

/// Where a row of a command lies in landing memory, given where the command's data does.
#[inline(always)]
fn row_at(read: &RowRead, command: &Command, place: usize, lba_shift: u32) -> usize {
    place + ((read.lba() - command.lba) << lba_shift) as usize + read.byte as usize
}

/// Counts the different rows in DRAM, which nobody waits for, before other work is done.
pub(crate) struct Counted<'a, M> {
    pub work: M,
    pub clock: &'a dyn Clock,
    pub table: &'a mut KeyTable,
    /// Keys that have not been counted.
    pub keys: &'a [u64],
    pub unique: &'a mut [u64],
    pub inverse: &'a mut [u32],
    pub deduping: Deduping,
    /// Time spent on it.
    pub time: Duration,
}

impl<'a, M> Counted<'a, M> {
    /// `unique` and `inverse` are as long as `keys`.
    pub(crate) fn new(
        work: M,
        clock: &'a dyn Clock,
        table: &'a mut KeyTable,
        keys: &'a [u64],
        unique: &'a mut [u64],
        inverse: &'a mut [u32],
    ) -> Self {
        let deduping = begin(table, keys.len());
        Self { work, clock, table, keys, unique, inverse, deduping, time: Duration::ZERO }
    }
}

impl<M: Meanwhile> Meanwhile for Counted<'_, M> {
    fn step(&mut self) -> bool {
        if self.keys.is_empty() {
            return self.work.step();
        }
        let began = self.clock.now();
        let (now, later) = self.keys.split_at(self.keys.len().min(KEYS));
        self.deduping.add(self.table, now, self.unique, self.inverse);
        self.keys = later;
        self.time += self.clock.now().saturating_sub(began);
        true
    }

    #[inline]
    fn land(&mut self, command: &Command, memory: &DmaMemory, place: usize) {
        self.work.land(command, memory, place);
    }

    #[inline]
    fn output(&self, command: &Command, stretches: &mut Vec<Stretch>) -> bool {
        self.work.output(command, stretches)
    }

    #[inline]
    fn landed(&mut self, command: &Command) {
        self.work.landed(command);
    }

    fn fail(&mut self, command: &Command) {
        self.work.fail(command);
    }

    fn parts(&self, command: &Command) -> Vec<Command> {
        self.work.parts(command)
    }
}

/// Expansion without pooling: row i follows id i.
pub(crate) struct Unpooled<'a, R> {
    routed: Routed<'a>,
    rows: R,
    /// Chains of the cold ids that want the same row: for each unique row the last of them, for each the one before it.
    heads: &'a mut [u32],
    before: &'a mut [u32],
    /// Rows from drives that were read before.
    staged: StagedRows<'a>,
    feature: usize,
    next: usize,
}

/// Rows, so many bytes apart.
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
    /// `heads` and `before` are as long as there are cold ids.
    pub(crate) fn new(routed: Routed<'a>, rows: R, heads: &'a mut [u32], before: &'a mut [u32]) -> Self {
        heads[..routed.unique.len()].fill(END);
        for (cold, (&unique, before)) in routed.inverse.iter().zip(&mut *before).enumerate() {
            *before = std::mem::replace(&mut heads[unique as usize], cold as u32);
        }
        Self { routed, rows, heads, before, staged: StagedRows::default(), feature: 0, next: 0 }
    }

    /// With all rows from drives in `staged`, and [settled](Routed::settle): nothing will land.
    pub(crate) fn of_staged(routed: Routed<'a>, rows: R, staged: StagedRows<'a>) -> Self {
        Self { routed, rows, heads: &mut [], before: &mut [], staged, feature: 0, next: 0 }
    }

    /// Zeroes the rows of ids whose row failed, and hands their positions to `failed`. To be called last.
    pub(crate) fn finish(mut self, mut failed: impl FnMut(usize)) -> Option<Damaged> {
        for id in self.routed.failed() {
            self.rows.zero(id);
            failed(id);
        }
        self.routed.damaged
    }

    /// Rows of one feature, for a range of ids: those that need no drive.
    fn expand<E: Element>(&mut self, feature: &ResolvedFeature, ids: Range<usize>) {
        let plan = self.routed.plan;
        let (dram, table) = (plan.host.dram.bytes(), plan.table(feature.table));
        let (dim, row_bytes) = (feature.dim, table.row_bytes);
        for (id, &place) in ids.clone().zip(&self.routed.places[ids]) {
            let byte = match place {
                Location::COLD => continue,
                Location::MISSING if feature.missing == Missing::Default => Some(table.default_byte),
                _ => place.dram_byte(),
            };
            let stored = match byte {
                Some(byte) => dram.get(byte..byte + row_bytes),
                None => match place.ssd_index() {
                    Some(index) => self.staged.get(index, row_bytes),
                    None => self.routed.updated(place),
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
    fn land(&mut self, command: &Command, memory: &DmaMemory, place: usize) {
        for index in command.first..command.first + command.rows {
            let read = self.routed.reads[index as usize];
            let at = row_at(&read, command, place, self.routed.lba_shift);
            if !self.routed.is_sound(&read, |row| memory.read(at, row)) {
                continue;
            }
            let table = self.routed.plan.table(self.routed.table_number(read.unique));
            let mut cold = self.heads[read.unique as usize];
            while cold != END {
                let id = self.routed.cold[cold as usize] as usize;
                self.rows.land(id, table, memory, at, self.routed.scratch);
                cold = self.before[cold as usize];
            }
        }
    }

    fn output(&self, command: &Command, stretches: &mut Vec<Stretch>) -> bool {
        stretches.clear();
        let mut lba = command.lba;
        for read in &self.routed.reads[command.first as usize..][..command.rows as usize] {
            let table = self.routed.table_of(read.unique);
            let lbas = u64::from(table.row_lbas);
            let bytes = lbas << self.routed.lba_shift;
            // Nothing but whole LBAs of the row, as they come to be.
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
                // As PRPs have it: what is not one stretch meets at pages.
                Some(last) if !((last.iova + last.len) | at).is_multiple_of(PAGE as u64) => return false,
                None if !at.is_multiple_of(4) => return false,
                _ => stretches.push(Stretch { iova: at, len: bytes }),
            }
        }
        lba == command.lba + u64::from(command.lbas)
    }

    fn landed(&mut self, command: &Command) {
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

    fn fail(&mut self, command: &Command) {
        self.routed.fail(command);
    }

    fn parts(&self, command: &Command) -> Vec<Command> {
        self.routed.parts(command)
    }
}

/// Expansion with pooling: row b holds the pooled bags b of all features. Rows from drives are gathered in `staging` first,
/// since a bag is added up in its order, whatever order its rows arrive in.
pub(crate) struct Pooled<'a, O> {
    routed: Routed<'a>,
    rows: &'a mut [O],
    stride: usize,
    staging: &'a mut Memory,
    /// Bytes from one row in `staging` to the next.
    staged_bytes: usize,
    sum: &'a mut [Acc],
    /// Bags that wait for drives.
    deferred: &'a mut Vec<u32>,
    next: usize,
}

impl<'a, O: Out> Pooled<'a, O> {
    pub(crate) fn new(
        routed: Routed<'a>,
        rows: &'a mut [O],
        stride: usize,
        staging: &'a mut Memory,
        staged_bytes: usize,
        sum: &'a mut [Acc],
        deferred: &'a mut Vec<u32>,
    ) -> Self {
        deferred.clear();
        Self { routed, rows, stride, staging, staged_bytes, sum, deferred, next: 0 }
    }

    /// Pools the bags that waited, and hands the positions of ids whose row failed to `failed`. To be called last.
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
        for (id, &place) in ids.clone().zip(&self.routed.places[ids]) {
            let row = match (place, feature.missing) {
                (Location::PADDING, _) | (Location::MISSING, Missing::Skip | Missing::Error) => continue,
                (Location::MISSING, Missing::Zero) => {
                    count += 1;
                    continue;
                }
                (Location::MISSING, Missing::Default) => &dram[table.default_byte..][..row_bytes],
                _ => match (place.dram_byte(), place.ssd_index()) {
                    (Some(byte), _) => &dram[byte..][..row_bytes],
                    (None, Some(index)) => &staging[index as usize * self.staged_bytes..][..row_bytes],
                    (None, None) => match self.routed.updated(place) {
                        Some(row) => row,
                        None => {
                            // A row failed: the whole bag is zeros.
                            sum.fill(0.0);
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

impl<O: Out> Meanwhile for Pooled<'_, O> {
    fn step(&mut self) -> bool {
        let bags = self.routed.bags.len() - 1;
        let mut done = 0;
        while self.next < bags && done < BLOCK {
            let (bag, ids) = (self.next, self.ids(self.next));
            self.next += 1;
            done += ids.len() + 1;
            if self.routed.places[ids].contains(&Location::COLD) {
                self.deferred.push(bag as u32);
            } else {
                self.pool(bag);
            }
        }
        self.next < bags
    }

    #[inline]
    fn land(&mut self, command: &Command, memory: &DmaMemory, place: usize) {
        self.routed.stage((self.staging, self.staged_bytes), command, memory, place);
    }

    fn fail(&mut self, command: &Command) {
        self.routed.fail(command);
    }

    fn parts(&self, command: &Command) -> Vec<Command> {
        self.routed.parts(command)
    }
}

/// Nothing but reading: rows go to `staging`, to be expanded later.
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
    fn land(&mut self, command: &Command, memory: &DmaMemory, place: usize) {
        self.routed.stage((self.staging, self.staged_bytes), command, memory, place);
    }

    fn fail(&mut self, command: &Command) {
        self.routed.fail(command);
    }

    fn parts(&self, command: &Command) -> Vec<Command> {
        self.routed.parts(command)
    }
}
