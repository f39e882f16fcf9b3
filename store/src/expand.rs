//! The stage *expand*: rows to the output, while drives still read others.

use half::{bf16, f16};
use warprow_dma::DmaMemory;
use warprow_layout::{DType, row_crc};
use zerocopy::IntoBytes;

use crate::feature::{Missing, Pooling};
use crate::memory::Memory;
use crate::plan::{PlannedFeature, PlannedTable, Prepared};
use crate::read::Meanwhile;
use crate::stage::{Acc, Command, Element, Location, MISSING, NONE, Out, PADDING, RowRead, TABLE_SHIFT, convert, pool};

/// Ids that are expanded between two looks at the drives.
const BLOCK: usize = 256;
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
        }
    };
}

/// What expansion is given: the results of the stages before.
pub(crate) struct Routed<'a> {
    pub plan: &'a Prepared,
    /// Where each bag begins, feature-major, and the end of the last.
    pub bags: &'a [u32],
    /// Bags of a feature.
    pub batch: usize,
    /// For each id the index of its key among the unique ones, or [`MISSING`] or [`PADDING`].
    pub inverse: &'a [u32],
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

/// Ids served from each tier.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    pub dram: u64,
    pub ssd: u64,
}

impl Routed<'_> {
    fn table_of(&self, unique: u32) -> &PlannedTable {
        self.plan.table((self.unique[unique as usize] >> TABLE_SHIFT) as u16)
    }

    /// The positions of ids whose row failed.
    fn failed(&self) -> impl Iterator<Item = usize> + '_ {
        let inverse = if self.failed { self.inverse } else { &[] };
        let failed = |unique: u32| unique < NONE && self.locations[unique as usize] == Location::FAILED;
        inverse.iter().enumerate().filter(move |&(_, &unique)| failed(unique)).map(|(id, _)| id)
    }

    /// The ids of a feature.
    fn ids_of(&self, feature: usize) -> std::ops::Range<usize> {
        let begin = self.bags[feature * self.batch] as usize;
        begin..self.bags[(feature + 1) * self.batch] as usize
    }

    fn fail(&mut self, command: usize) {
        let Some(command) = self.commands.get(command) else { return };
        self.failed = true;
        for read in &self.reads[command.first as usize..][..command.rows as usize] {
            self.locations[read.unique as usize] = Location::FAILED;
        }
    }

    /// Whether a row that was read is what was written, as far as that is to be checked. If not, it has failed.
    fn is_sound(&mut self, read: &RowRead, memory: &DmaMemory, at: usize) -> bool {
        let key = self.unique[read.unique as usize];
        let table = (key >> TABLE_SHIFT) as u16;
        let source = self.plan.host_table(table);
        let Some(crcs) = &source.crcs else { return true };
        let id = key & ((1 << TABLE_SHIFT) - 1);
        let rank = source.ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id)).unwrap_or(u64::MAX);
        let row = &mut self.scratch[..self.plan.table(table).row_bytes];
        memory.read(at, row);
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

/// Expansion without pooling: row i follows id i.
pub(crate) struct Unpooled<'a, O> {
    routed: Routed<'a>,
    rows: &'a mut [O],
    stride: usize,
    /// For each unique row the last id that wants it, and for each id the one before it: chains of the ids of rows on drives.
    heads: &'a mut [u32],
    before: &'a mut [u32],
    chained: bool,
    feature: usize,
    next: usize,
    served: Served,
}

impl<'a, O: Out> Unpooled<'a, O> {
    /// `heads` is as long as there are unique rows, `before` as there are ids.
    pub(crate) fn new(
        routed: Routed<'a>,
        rows: &'a mut [O],
        stride: usize,
        heads: &'a mut [u32],
        before: &'a mut [u32],
    ) -> Self {
        heads[..routed.unique.len()].fill(END);
        let (chained, feature, next, served) = (false, 0, 0, Served::default());
        Self { routed, rows, stride, heads, before, chained, feature, next, served }
    }

    /// Chains the ids of rows on drives.
    fn chain(&mut self) {
        let links = self.routed.inverse.iter().zip(&mut *self.before).enumerate();
        for (id, (&unique, before)) in links {
            if unique < NONE && self.routed.locations[unique as usize].dram_byte().is_none() {
                *before = std::mem::replace(&mut self.heads[unique as usize], id as u32);
                self.served.ssd += 1;
            }
        }
    }

    /// Zeroes the rows of ids whose row failed, and hands their positions to `failed`. To be called last.
    pub(crate) fn finish(mut self, mut failed: impl FnMut(usize)) -> (Served, Option<Damaged>) {
        let width = self.routed.plan.width;
        for id in self.routed.failed() {
            self.rows[id * self.stride..][..width].fill(O::default());
            self.served.ssd -= 1;
            failed(id);
        }
        (self.served, self.routed.damaged)
    }

    /// Rows of one feature, for a range of ids: those that need no drive.
    fn expand<E: Element>(&mut self, feature: &PlannedFeature, ids: std::ops::Range<usize>) {
        let plan = self.routed.plan;
        let (dram, table) = (plan.host.dram.bytes(), plan.table(feature.table));
        let (width, dim, row_bytes) = (plan.width, feature.dim, table.row_bytes);
        for id in ids {
            let unique = self.routed.inverse[id];
            let byte = match unique {
                MISSING if feature.missing == Missing::Default => Some(table.default_byte),
                NONE.. => None,
                _ => match self.routed.locations[unique as usize].dram_byte() {
                    Some(byte) => {
                        self.served.dram += 1;
                        Some(byte)
                    }
                    // It comes from a drive.
                    None => continue,
                },
            };
            let out = &mut self.rows[id * self.stride..][..width];
            let (row, tail) = out.split_at_mut(dim);
            match byte {
                Some(byte) => convert::<E, O>(&dram[byte..byte + row_bytes], row),
                None => row.fill(O::default()),
            }
            tail.fill(O::default());
        }
    }
}

impl<O: Out> Meanwhile for Unpooled<'_, O> {
    fn step(&mut self) -> bool {
        if !std::mem::replace(&mut self.chained, true) {
            self.chain();
            return true;
        }
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
    fn land(&mut self, index: usize, memory: &DmaMemory, place: usize) {
        let command = self.routed.commands[index];
        let width = self.routed.plan.width;
        for index in command.first..command.first + command.rows {
            let read = self.routed.reads[index as usize];
            let at = row_at(&read, &command, place, self.routed.lba_shift);
            if !self.routed.is_sound(&read, memory, at) {
                continue;
            }
            let table = self.routed.table_of(read.unique);
            let (dtype, row_bytes, dim) = (table.dtype, table.row_bytes, table.dim);
            let mut id = self.heads[read.unique as usize];
            while id != END {
                let out = &mut self.rows[id as usize * self.stride..][..width];
                let (row, tail) = out.split_at_mut(dim);
                if dtype == O::DTYPE {
                    memory.read(at, row.as_mut_bytes());
                } else {
                    let scratch = &mut self.routed.scratch[..row_bytes];
                    memory.read(at, scratch);
                    with_element!(dtype, E => convert::<E, O>(scratch, row));
                }
                tail.fill(O::default());
                id = self.before[id as usize];
            }
        }
    }

    fn fail(&mut self, index: usize) {
        self.routed.fail(index);
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
    served: Served,
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
        let served = Served::default();
        Self { routed, rows, stride, staging, staged_bytes, sum, deferred, next: 0, served }
    }

    /// Pools the bags that waited, and hands the positions of ids whose row failed to `failed`. To be called last.
    pub(crate) fn finish(mut self, mut failed: impl FnMut(usize)) -> (Served, Option<Damaged>) {
        let deferred = std::mem::take(self.deferred);
        deferred.iter().for_each(|&bag| self.pool(bag as usize));
        *self.deferred = deferred;
        for id in self.routed.failed() {
            self.served.ssd -= 1;
            failed(id);
        }
        (self.served, self.routed.damaged)
    }

    fn ids(&self, bag: usize) -> std::ops::Range<usize> {
        self.routed.bags[bag] as usize..self.routed.bags[bag + 1] as usize
    }

    /// Counts a bag's ids by tier; whether any is on a drive.
    fn count(&mut self, bag: usize) -> bool {
        let before = self.served.ssd;
        for &unique in &self.routed.inverse[self.ids(bag)] {
            if unique < NONE {
                match self.routed.locations[unique as usize].dram_byte() {
                    Some(_) => self.served.dram += 1,
                    None => self.served.ssd += 1,
                }
            }
        }
        self.served.ssd != before
    }

    fn pool(&mut self, bag: usize) {
        let plan = self.routed.plan;
        let feature = &plan.features[bag / self.routed.batch];
        with_element!(plan.table(feature.table).dtype, E => self.pool_as::<E>(feature, bag));
    }

    fn pool_as<E: Element>(&mut self, feature: &PlannedFeature, bag: usize) {
        let plan = self.routed.plan;
        let table = plan.table(feature.table);
        let (dram, staging, row_bytes) = (plan.host.dram.bytes(), self.staging.bytes(), table.row_bytes);
        let sum = &mut self.sum[..feature.dim];
        sum.fill(0.0);
        let mut count = 0u32;
        let begin = self.routed.bags[bag] as usize;
        let end = self.routed.bags[bag + 1] as usize;
        for id in begin..end {
            let unique = self.routed.inverse[id];
            let row = match (unique, feature.missing) {
                (PADDING, _) | (MISSING, Missing::Skip | Missing::Error) => continue,
                (MISSING, Missing::Zero) => {
                    count += 1;
                    continue;
                }
                (MISSING, Missing::Default) => &dram[table.default_byte..][..row_bytes],
                _ => {
                    let location = self.routed.locations[unique as usize];
                    match (location.dram_byte(), location.ssd_index()) {
                        (Some(byte), _) => &dram[byte..][..row_bytes],
                        (None, Some(index)) => &staging[index as usize * self.staged_bytes..][..row_bytes],
                        (None, None) => {
                            // A row failed: the whole bag is zeros.
                            sum.fill(0.0);
                            count = 0;
                            break;
                        }
                    }
                }
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
        let mut ids = 0;
        while self.next < bags && ids < BLOCK {
            let bag = self.next;
            self.next += 1;
            ids += self.ids(bag).len() + 1;
            if self.count(bag) {
                self.deferred.push(bag as u32);
            } else {
                self.pool(bag);
            }
        }
        self.next < bags
    }

    #[inline]
    fn land(&mut self, index: usize, memory: &DmaMemory, place: usize) {
        let command = self.routed.commands[index];
        for index in command.first..command.first + command.rows {
            let read = self.routed.reads[index as usize];
            let at = row_at(&read, &command, place, self.routed.lba_shift);
            if !self.routed.is_sound(&read, memory, at) {
                continue;
            }
            let row_bytes = self.routed.table_of(read.unique).row_bytes;
            if let Some(staged) = self.routed.locations[read.unique as usize].ssd_index() {
                memory.read(at, &mut self.staging.bytes_mut()[staged as usize * self.staged_bytes..][..row_bytes]);
            }
        }
    }

    fn fail(&mut self, index: usize) {
        self.routed.fail(index);
    }
}
