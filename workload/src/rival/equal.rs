use warprow_lookup::stage::{
    KeyTable, MISSING, MergeRule, NONE, ReadCommand, RowLocation, RowRead, dedupe, keys, mask, merge, order, route,
};

use super::engine::{Engine, PreadReads, Reads, UringReads};
use super::error::RivalError;
use super::interface::Rival;
use super::target::{Extent, RivalTable};

/// Bytes that neighbouring rows are merged up to, unless a single row is longer.
const MERGED: usize = 32 << 10;
/// The end of a chain of ids.
const END: u32 = u32::MAX;

/// The stages of Warprow's host executor, with other reads.
#[derive(Debug)]
pub struct EqualMeansRival<E> {
    target: RivalTable,
    engine: E,
    /// By drive.
    merge_rules: Vec<MergeRule>,
    buffers: Buffers,
}

#[derive(Debug)]
struct Buffers {
    table: KeyTable,
    keys: Vec<u64>,
    unique: Vec<u64>,
    inverse: Vec<u32>,
    locations: Vec<RowLocation>,
    reads: Vec<RowRead>,
    scratch: Vec<RowRead>,
    commands: Vec<ReadCommand>,
    /// For each unique row the last id that wants it, and for each id the one before it.
    heads: Vec<u32>,
    before: Vec<u32>,
}

impl EqualMeansRival<PreadReads> {
    /// For batches of up to `max_ids` ids, of which each read is one `pread`.
    pub fn pread(target: RivalTable, max_ids: usize) -> Result<Self, RivalError> {
        let engine = PreadReads::new(&target, max_lbas(&target))?;
        Ok(Self::new(target, engine, max_ids))
    }
}

impl EqualMeansRival<UringReads> {
    /// For batches of up to `max_ids` ids, with up to `depth` reads (1 to 32,768) under way.
    pub fn uring(target: RivalTable, max_ids: usize, depth: u32) -> Result<Self, RivalError> {
        let engine = UringReads::new(&target, depth, max_lbas(&target))?;
        Ok(Self::new(target, engine, max_ids))
    }
}

fn max_lbas(target: &RivalTable) -> u32 {
    ((MERGED >> target.lba_shift) as u32).max(target.row_lbas)
}

impl<E> EqualMeansRival<E> {
    fn new(target: RivalTable, engine: E, max_ids: usize) -> Self {
        let buffers = Buffers {
            table: KeyTable::new(max_ids),
            keys: vec![0; max_ids],
            unique: vec![0; max_ids],
            inverse: vec![0; max_ids],
            locations: vec![RowLocation::FAILED; max_ids],
            reads: vec![RowRead::default(); max_ids],
            scratch: vec![RowRead::default(); max_ids],
            commands: vec![ReadCommand::default(); max_ids],
            heads: vec![END; max_ids],
            before: vec![END; max_ids],
        };
        Self {
            merge_rules: vec![MergeRule::neighbours(max_lbas(&target)); target.files.len()],
            target,
            engine,
            buffers,
        }
    }
}

struct Rows<'a> {
    target: &'a RivalTable,
    inverse: &'a [u32],
    locations: &'a [RowLocation],
    reads: &'a [RowRead],
    commands: &'a [ReadCommand],
    heads: &'a [u32],
    before: &'a [u32],
    rows: &'a mut [u8],
}

impl Rows<'_> {
    fn row(&mut self, id: u32) -> &mut [u8] {
        let row_bytes = self.target.row_bytes;
        &mut self.rows[id as usize * row_bytes..][..row_bytes]
    }

    /// The only row of a command, if it has but one.
    fn only(&self, index: usize) -> Option<&RowRead> {
        let command = &self.commands[index];
        if command.rows == 1 { self.reads.get(command.first as usize) } else { None }
    }
}

impl Reads for Rows<'_> {
    fn count(&self) -> usize {
        self.commands.len()
    }

    #[inline]
    fn extent(&self, index: usize) -> Result<Extent, RivalError> {
        let command = &self.commands[index];
        let shift = self.target.lba_shift;
        let (offset, len) = match self.only(index) {
            Some(read) => ((read.lba() << shift) + u64::from(read.byte), self.target.row_bytes),
            None => (command.lba << shift, (command.lbas as usize) << shift),
        };
        let drive = usize::from(command.drive);
        match drive < self.target.files.len() {
            true => Ok(self.target.around(drive, offset, len)),
            false => Err(RivalError::Misplaced { rank: 0, drive: Some(drive), files: self.target.files.len() }),
        }
    }

    #[inline]
    fn place(&mut self, index: usize) -> Option<&mut [u8]> {
        let unique = self.only(index).filter(|_| self.target.is_exact())?.unique;
        let id = self.heads[unique as usize];
        Some(self.row(id))
    }

    #[inline]
    fn landed(&mut self, index: usize) {
        let Some(unique) = self.only(index).map(|read| read.unique) else { return };
        let first = self.heads[unique as usize];
        let mut id = self.before[first as usize];
        while id != END {
            let from = first as usize * self.target.row_bytes;
            let row_bytes = self.target.row_bytes;
            self.rows.copy_within(from..from + row_bytes, id as usize * row_bytes);
            id = self.before[id as usize];
        }
    }

    #[inline]
    fn land(&mut self, index: usize, copy: impl Fn(usize, &mut [u8])) {
        let command = self.commands[index];
        let alone = self.only(index).is_some();
        for at in command.first..command.first + command.rows {
            let read = self.reads[at as usize];
            let begin = match alone {
                true => 0,
                false => ((read.lba() - command.lba) << self.target.lba_shift) as usize + read.byte as usize,
            };
            let mut id = self.heads[read.unique as usize];
            while id != END {
                copy(begin, self.row(id));
                id = self.before[id as usize];
            }
        }
    }

    fn meanwhile(&mut self) {
        let row_bytes = self.target.row_bytes;
        for (&unique, row) in self.inverse.iter().zip(self.rows.chunks_exact_mut(row_bytes)) {
            if unique == MISSING {
                row.copy_from_slice(&self.target.default_row);
            } else if let Some(byte) = self.locations[unique as usize].dram_byte() {
                row.copy_from_slice(&self.target.dram[byte..byte + row_bytes]);
            }
        }
    }
}

impl<E: Engine> Rival for EqualMeansRival<E> {
    fn name(&self) -> String {
        format!("{}, equal means", E::NAME)
    }

    fn lookup(&mut self, ids: &[i64], rows: &mut [u8], flags: &mut [u8]) -> Result<(), RivalError> {
        let Self { target, engine, merge_rules, buffers } = self;
        target.check(ids, rows, flags, buffers.keys.len())?;
        let count = ids.len();
        let all_keys = &mut buffers.keys[..count];
        let inverse = &mut buffers.inverse[..count];
        keys(ids, 0, target.rows, None, true, all_keys);
        let unique = dedupe(&mut buffers.table, all_keys, &mut buffers.unique, inverse);
        let unique = &buffers.unique[..unique];
        let locations = &mut buffers.locations[..unique.len()];
        let routed = route(std::slice::from_ref(&target.route), unique, locations, &mut buffers.reads);
        if routed.lost != 0 {
            return Err(RivalError::Misplaced { rank: 0, drive: None, files: target.files.len() });
        }
        let reads = &mut buffers.reads[..routed.ssd];
        order(reads, &mut buffers.scratch);
        let commands = merge(reads, |_| target.row_lbas, merge_rules, &mut buffers.commands);
        mask(ids, target.rows, None, flags);

        let heads = &mut buffers.heads[..unique.len()];
        let before = &mut buffers.before[..count];
        heads.fill(END);
        for ((id, &unique), before) in (0..).zip(&*inverse).zip(&mut *before) {
            if unique < NONE && locations[unique as usize].dram_byte().is_none() {
                *before = std::mem::replace(&mut heads[unique as usize], id);
            }
        }
        let commands = &buffers.commands[..commands];
        engine.run(target, &mut Rows { target, inverse, locations, reads, commands, heads, before, rows })
    }
}
