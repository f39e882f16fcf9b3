//! The log of a generation's updated rows: appended to, a batch at a time, and replayed. See `docs/updates.md`.

mod repack;

use std::sync::Arc;

use crate::block::{self, BlockError, BlockId, Kind, PAYLOAD, UNIT};
use crate::codec::{Ended, Reader, Writer};
use crate::drive::Drive;
use crate::error::VolumeError;
use crate::generation::{Generation, LOG_ENTRY, LogChunk, MAX_LOG_CHUNKS};
use crate::placement::ChunkRef;
use crate::rewrite::RewrittenChunks;
use crate::table::Table;
use crate::transaction::RebuiltGeneration;
use crate::units;
use crate::volume::{LogClaim, Reserved, Volume};

/// Bytes of a unit's payload before its part of the record stream; they say how many units were durable.
const LEAD: usize = 8;
/// Bytes of the stream in a unit.
const STREAM: usize = PAYLOAD - LEAD;
/// Bytes of a record before its row.
const RECORD: usize = 24;
/// Units that are read at once.
const READ: usize = 256;
/// Units of a chunk that hold no records: the last is for the end unit.
const KEPT: u64 = 1;

/// An update: a row that takes the place of the present row of its key, or the removal of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogUpdate<'a> {
    /// The table's index in its generation.
    pub table: u32,
    /// The row's id, or its key in a table of sparse keys.
    pub key: u64,
    /// As many bytes as the table's rows have; none: the key is removed, with its row.
    pub row: &'a [u8],
}

impl LogUpdate<'_> {
    /// Whether a key is removed.
    pub fn is_removal(&self) -> bool {
        self.row.is_empty()
    }

    /// Whether it can be one of a row or key of `table`. Tables of ids have all ids below their rows: none of these is removed.
    fn fits(&self, table: &Table) -> bool {
        match self.is_removal() {
            true => table.keys.is_some(),
            false => table.row_bytes() as usize == self.row.len(),
        }
    }
}

/// The log of a generation, open for appending. A generation's log can be open once at a time.
#[derive(Debug)]
pub struct Log {
    volume: Volume,
    generation: u64,
    _claim: LogClaim,
    /// The sequence number of the next record.
    next: u64,
    /// The chunk with the last updates that count.
    last: Option<Last>,
    /// Whether something failed since: behind the last chunk, the catalogue may list chunks, and the chunk may have
    /// units, that do not count.
    doubt: bool,
    /// Sequence numbers at which compactions that have not ended sealed the last chunk: while there are any, nothing is appended to it.
    sealed: Vec<u64>,
    /// The member to which an end unit was written that is not yet durable.
    unflushed: Option<u16>,
    /// What another process left behind the units of the last chunk that count: it is cleared before anything is
    /// appended.
    inherited: Option<Tail>,
    /// Each batch takes a multiple of so many units.
    padding: usize,
}

/// How full the log of a generation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogUsage {
    /// Chunks of the log.
    pub chunks: u64,
    /// Bytes in these chunks that count, which are replayed when the log is opened.
    pub bytes: u64,
    /// Bytes that the log could have without a compaction: in its own chunks and in the free ones that are not kept for
    /// compaction, 256 chunks at most.
    pub capacity: u64,
}

/// The last chunk of a log.
#[derive(Debug, Clone, Copy)]
struct Last {
    chunk: LogChunk,
    /// Units that count: durable and acknowledged, or replayed.
    units: u32,
    /// Whether the chunk may be appended to: nothing has failed since it was allotted or taken over, and nothing stands
    /// behind the units that count.
    fresh: bool,
}

/// What the log of a generation holds.
struct Replayed {
    /// The sequence number that the next update gets.
    next: u64,
    /// What lies in the last chunk; `None`: the log has none.
    last: Option<Tail>,
}

/// The end of the last chunk of a log.
#[derive(Debug)]
struct Tail {
    /// Units that count.
    units: u32,
    /// Whether the last of them end within a record, because a batch was torn there.
    cut: bool,
    /// The last unit behind those that count that was written, at least in part, under this allotment of the chunk.
    behind: Option<u32>,
    /// Whether a unit cannot be read, so that nobody knows what it holds.
    unreadable: bool,
}

impl Volume {
    /// Opens a generation's log: calls `update` with every update of the log and its sequence number, in order. If the
    /// volume is open for writing, these updates are durable when this returns. If it fails, the caller must not show
    /// the updates that it was given.
    ///
    /// Fails with [`VolumeError::LogDamaged`] where the log is not what was written: then nobody can tell which rows of
    /// the generation's tables are current.
    pub fn log(&self, generation: u64, mut update: impl FnMut(u64, LogUpdate<'_>)) -> Result<Log, VolumeError> {
        let claim = self.claim_log(generation)?;
        let writing = if self.read_only().is_none() { Some(self.writing()?) } else { None };
        let found = self.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let is_first = self.is_first_log(generation);
        let Replayed { next, last: tail } = self.replay(&found, &mut update)?;
        let mut log = Log {
            volume: self.clone(),
            generation,
            _claim: claim,
            next,
            last: None,
            doubt: false,
            sealed: Vec::new(),
            unflushed: None,
            inherited: None,
            padding: 1,
        };
        if let (Some(&chunk), Some(tail)) = (found.log.last(), tail) {
            log.last = Some(Last { chunk, units: tail.units, fresh: false });
            if let Some(writing) = writing.filter(|_| chunk.units.is_none()) {
                // A batch whose flush failed, before this log was closed, may be in the drive's cache only.
                if tail.units > 0 {
                    writing.flush(chunk.chunk.drive())?;
                }
                // What this process wrote there before, and may have sealed or failed to write, is not gone on with.
                log.inherited = Some(tail).filter(|_| is_first);
            }
        }
        Ok(log)
    }

    /// As [`log`](Self::log), for a volume that is open for reading: updates may so far be in the drives' caches only.
    /// Returns the sequence number of the last update.
    pub fn read_log(
        &self,
        generation: &Generation,
        mut update: impl FnMut(u64, LogUpdate<'_>),
    ) -> Result<u64, VolumeError> {
        Ok(self.replay(generation, &mut update)?.next - 1)
    }

    fn replay(
        &self,
        generation: &Generation,
        update: &mut dyn FnMut(u64, LogUpdate<'_>),
    ) -> Result<Replayed, VolumeError> {
        let mut next = generation.base_sequence + 1;
        let mut last = None;
        for log in &generation.log {
            let stream = self.read_stream(generation, log)?;
            let damaged = |what| stream.damaged(generation, stream.units, what);
            // What a failed batch was numbered is given again.
            if log.first != next {
                return Err(damaged("its sequence has a gap"));
            }
            let mut input = Reader::new(&stream.bytes);
            let mut left = input.left();
            while let Ok((sequence, record)) = decode(&mut input) {
                left = input.left();
                let table = generation.tables.get(record.table as usize);
                if table.is_none_or(|table| !record.fits(table)) || sequence != next {
                    return Err(damaged("a record is of no table, of another size or out of sequence"));
                }
                update(sequence, record);
                next += 1;
            }
            last =
                Some(Tail { units: stream.units, cut: left > 0, behind: stream.behind, unreadable: stream.unreadable });
        }
        Ok(Replayed { next, last })
    }

    /// The bytes of a chunk's units that count.
    pub(crate) fn read_stream(&self, generation: &Generation, log: &LogChunk) -> Result<Stream, VolumeError> {
        let drive = self.present(log.chunk.drive())?;
        let most = self.geometry().chunk_units();
        let wanted = log.units.map_or(most, u64::from);
        let mut stream =
            Stream { drive: drive.name().to_owned(), units: 0, bytes: Vec::new(), behind: None, unreadable: false };
        let mut torn = false;
        for first in (0..wanted).step_by(READ) {
            let count = (wanted - first).min(READ as u64) as usize;
            let id = self.log_id(log, first as u32);
            let found = units::read_each(&**drive, id.address, count)?;
            for (position, unit) in (first as u32..).zip(&found) {
                // What a power cut tore may be unreadable as well.
                let payload = unit.as_ref().ok_or(BlockError::Unreadable);
                match payload.and_then(|unit| block::open_expecting(unit, &self.log_id(log, position))) {
                    Ok(payload) if !torn && log.units.is_none() && is_end(payload, position) => {
                        torn = true;
                    }
                    Ok(payload) if !torn => {
                        stream.bytes.extend_from_slice(payload.get(LEAD..).unwrap_or_default());
                        stream.units = position + 1;
                    }
                    // It was written when what is torn was durable.
                    Ok(payload) => {
                        if durable(payload) > stream.units {
                            return Err(stream.damaged(generation, stream.units, "later ones are intact"));
                        }
                        stream.behind = Some(position);
                    }
                    Err(_) if log.units.is_some() => {
                        return Err(stream.damaged(generation, position, "it counts, and is not intact"));
                    }
                    Err(error) => {
                        torn = true;
                        stream.unreadable |= error == BlockError::Unreadable;
                        // Some of its LBAs may be old ones, and what is written there next may leave others of them.
                        let id = self.log_id(log, position);
                        if unit.as_ref().is_some_and(|unit| block::claims_to_be(unit, &id)) {
                            stream.behind = Some(position);
                        }
                    }
                }
            }
        }
        Ok(stream)
    }

    /// What the header of a log's unit says.
    pub(crate) fn log_id(&self, log: &LogChunk, position: u32) -> BlockId {
        let geometry = self.geometry();
        let member = geometry.members.get(usize::from(log.chunk.drive()));
        BlockId {
            kind: Kind::Log,
            address: geometry.chunk_unit(log.chunk) + u64::from(position),
            epoch: log.epoch,
            index: position,
            store: self.store(),
            member: member.map_or(uuid::Uuid::nil(), |member| member.uuid),
            commit: log.commit,
        }
    }
}

/// What lies in a chunk of a log.
pub(crate) struct Stream {
    drive: String,
    pub(crate) units: u32,
    bytes: Vec<u8>,
    /// The last unit behind those that count that was written, at least in part, under this allotment of the chunk.
    behind: Option<u32>,
    /// Whether a unit cannot be read.
    unreadable: bool,
}

impl Stream {
    fn damaged(&self, generation: &Generation, unit: u32, what: &'static str) -> VolumeError {
        VolumeError::LogDamaged { generation: generation.id, drive: self.drive.clone(), unit, what }
    }
}

/// How many units of its chunk were durable when a unit with this payload was written.
fn durable(payload: &[u8]) -> u32 {
    Reader::new(payload).u32().unwrap_or(0)
}

/// Whether a payload is that of an end unit, which holds no records and says that all units before it are durable.
fn is_end(payload: &[u8], position: u32) -> bool {
    payload.len() == LEAD && durable(payload) == position
}

fn decode<'a>(input: &mut Reader<'a>) -> Result<(u64, LogUpdate<'a>), Ended> {
    let table = input.u32()?;
    let bytes = input.u32()?;
    let sequence = input.u64()?;
    let key = input.u64()?;
    Ok((sequence, LogUpdate { table, key, row: input.bytes(bytes as usize)? }))
}

fn encode(out: &mut Writer, sequence: u64, update: &LogUpdate<'_>) {
    out.u32(update.table);
    out.u32(update.row.len() as u32);
    out.u64(sequence);
    out.u64(update.key);
    out.bytes(update.row);
}

impl Log {
    /// The sequence number of the last update.
    pub fn sequence(&self) -> u64 {
        self.next - 1
    }

    /// The generation that the log belongs to.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How much of its chunks it has used.
    pub fn usage(&self) -> Result<LogUsage, VolumeError> {
        let generation = self.found()?;
        let last = self.last.map_or(0, |last| u64::from(last.units));
        let sealed: u64 = generation.log.iter().filter_map(|chunk| chunk.units).map(u64::from).sum();
        let units = sealed + if generation.log.last().is_some_and(|chunk| chunk.units.is_none()) { last } else { 0 };
        let free: u64 = self.volume.free_chunks().iter().sum();
        let chunks = generation.log.len() as u64;
        let room = free.saturating_sub(self.volume.kept_for_compaction());
        let most = (chunks + room).min(MAX_LOG_CHUNKS as u64);
        Ok(LogUsage { chunks, bytes: units * UNIT as u64, capacity: most * self.record_units() * UNIT as u64 })
    }

    /// Makes every batch take a multiple of `bytes`, which is rounded up to a power of two from 4 KiB to 64 KiB. This
    /// is for drives that, against what NVMe promises, may spoil data around a write that a power cut tears, within
    /// units of this size.
    pub fn pad_batches(&mut self, bytes: usize) {
        self.padding = (bytes / UNIT).clamp(1, 16).next_power_of_two();
    }

    /// Writes updates in order, and returns when they are durable, with the sequence number of the last.
    ///
    /// Rows that do not fit their table, and more rows than the volume has room for, are refused before anything is
    /// written. If a drive fails, none of the updates counts, and all are in doubt ([`VolumeError::UpdateInDoubt`]):
    /// after a crash, opening the store may show a first part of them; the next update that succeeds discards them.
    pub fn append(&mut self, updates: &[LogUpdate<'_>]) -> Result<u64, VolumeError> {
        // The log's chunks, and those that are reserved for it, are nobody else's while this writes, even if it is dropped meanwhile.
        let generation = self.found()?;
        updates.iter().try_for_each(|update| self.check(&generation, update))?;
        if updates.iter().any(LogUpdate::is_removal) {
            self.volume.upgrade()?;
        }
        if let (Some(tail), Some(last)) = (self.inherited.take(), self.last) {
            // Where the drive does not take this, the log is as sound as before, and this begins another chunk.
            self.last = Some(Last { fresh: self.take_over(last, &tail).unwrap_or(false), ..last });
        }
        let parts = self.divide(updates);
        let reserved = self.reserve(&generation, parts.len() - 1)?;
        let before = (self.last, self.next);
        let chunks = std::iter::once(None).chain(reserved.iter().copied().map(Some));
        for (chunk, (part, bytes)) in chunks.zip(parts) {
            let allotted = chunk.map_or(Ok(()), |chunk| self.allot(chunk));
            if let Err(error) = allotted.and_then(|()| self.write(part, bytes)) {
                // What stands behind the units that count is not known: nothing is ever appended there.
                (self.last, self.next) = (before.0.map(|last| Last { fresh: false, ..last }), before.1);
                self.doubt = true;
                return Err(error);
            }
        }
        Ok(self.sequence())
    }

    /// Updates that go into what is left of the last chunk, maybe none, and into each of others that follow, with their bytes.
    fn divide<'a, 'u>(&self, updates: &'a [LogUpdate<'u>]) -> Vec<(&'a [LogUpdate<'u>], usize)> {
        let chunk = self.record_units() as usize * STREAM;
        let mut parts = Vec::new();
        let mut left = updates;
        let mut room = self.room();
        loop {
            let (count, bytes) = fitting(left, room);
            let (now, later) = left.split_at(count);
            parts.push((now, bytes));
            if later.is_empty() || count == 0 && room == chunk {
                return parts;
            }
            (left, room) = (later, chunk);
        }
    }

    /// Reserves `count` chunks for the log, if it can have them.
    fn reserve(&self, generation: &Generation, count: usize) -> Result<Reserved, VolumeError> {
        let counting =
            generation.log.len() - usize::from(self.last.is_some_and(|last| last.units == 0)).min(generation.log.len());
        // The last is for updates that come while it is compacted.
        let most = MAX_LOG_CHUNKS - usize::from(self.sealed.is_empty());
        if count > 0 && counting + count > most {
            return Err(VolumeError::LogFull { generation: generation.id, chunks: MAX_LOG_CHUNKS });
        }
        let needed = self.volume.catalogue_bytes() + count as u64 * LOG_ENTRY;
        let capacity = self.volume.geometry().catalogue_capacity();
        if count > 0 && needed > capacity {
            return Err(VolumeError::CatalogueFull { needed, capacity });
        }
        self.volume.reserve_for_log(self.generation, count as u64)
    }

    /// Ends the last chunk here: the next update begins another. Returns the sequence number up to which the chunks so
    /// far have updates, for [`compact`](Self::compact). If no compaction follows, call [`unseal`](Self::unseal).
    pub fn seal(&mut self) -> u64 {
        self.sealed.push(self.sequence());
        self.sequence()
    }

    /// Lets updates go into the last chunk again: the compaction for which [`seal`](Self::seal) gave `sequence` did not
    /// come about.
    pub fn unseal(&mut self, sequence: u64) {
        if let Some(at) = self.sealed.iter().position(|&sealed| sealed == sequence) {
            self.sealed.swap_remove(at);
        }
    }

    /// Gives the generation the chunks that were rewritten with all updates up to `sequence`, which
    /// [`seal`](Self::seal) gave, and drops these updates from the log, in one commit. Updates that were appended since
    /// stay in the log.
    ///
    /// Whoever holds the generation as it was still reads the chunks of before, and needs the updates that were
    /// dropped.
    pub fn compact(&mut self, sequence: u64, rewritten: RewrittenChunks) -> Result<Arc<Generation>, VolumeError> {
        let id = rewritten.generation.id;
        self.drop_to(sequence, id, |change| rewritten.commit(change))
    }

    /// As [`compact`](Self::compact), where the whole generation was written anew with all updates up to `sequence`: it
    /// has the new tables from then on, and updates that were appended since belong to these.
    pub fn replace(&mut self, sequence: u64, rebuilt: RebuiltGeneration) -> Result<Arc<Generation>, VolumeError> {
        // Moved chunks are no matter: the rows in them were the same.
        if rebuilt.before().base_sequence != self.found()?.base_sequence {
            return Err(VolumeError::Rewriting { generation: self.generation });
        }
        let id = rebuilt.id();
        self.drop_to(sequence, id, |change| rebuilt.commit(change))
    }

    /// Commits generation `id`, with its log without the chunks up to `sequence`.
    fn drop_to(
        &mut self,
        sequence: u64,
        id: u64,
        commit: impl FnOnce(&mut dyn FnMut(&mut Generation)) -> Result<Arc<Generation>, VolumeError>,
    ) -> Result<Arc<Generation>, VolumeError> {
        if id != self.generation {
            return Err(VolumeError::NoSuchGeneration { id });
        }
        // Another compaction overtook this one: these rows are older than those in the chunks.
        if sequence < self.found()?.base_sequence {
            return Err(VolumeError::Rewriting { generation: self.generation });
        }
        // What was appended since lies in chunks that stay.
        let since = |chunk: &LogChunk| chunk.first == sequence + 1;
        if self.sequence() > sequence && !self.found()?.log.iter().any(since) {
            return Err(VolumeError::Rewriting { generation: self.generation });
        }
        let last = self.last;
        let doubt = self.doubt;
        let compacted = commit(&mut |generation| {
            if doubt {
                settle(&mut generation.log, last);
            }
            generation.log.retain(|chunk| chunk.first > sequence);
            generation.base_sequence = sequence;
        })?;
        self.doubt = false;
        self.last = self.last.filter(|_| !compacted.log.is_empty());
        self.unseal(sequence);
        Ok(compacted)
    }

    fn found(&self) -> Result<Arc<Generation>, VolumeError> {
        let id = self.generation;
        self.volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })
    }

    fn check(&self, generation: &Generation, update: &LogUpdate<'_>) -> Result<(), VolumeError> {
        let index = update.table as usize;
        let table = generation
            .tables
            .get(index)
            .ok_or_else(|| VolumeError::NoSuchTable { generation: generation.name.clone(), table: index })?;
        let expected = u64::from(table.row_bytes());
        let given = update.row.len() as u64;
        if !update.fits(table) {
            return Err(VolumeError::Length { what: "an updated row", expected, given });
        }
        let most = self.record_units() * STREAM as u64;
        if RECORD as u64 + given > most {
            return Err(VolumeError::InvalidTable {
                table: table.name.clone(),
                reason: format!(
                    "a row of {given} bytes does not fit a chunk of the log: load the table anew to change it"
                ),
            });
        }
        Ok(())
    }

    /// Units of a chunk that may hold records.
    fn record_units(&self) -> u64 {
        // A drive that spoils what stands around a torn write spoils nothing else at the end unit.
        self.volume.geometry().chunk_units() - KEPT.max(self.padding as u64)
    }

    /// Bytes of the stream that the last chunk still takes.
    fn room(&self) -> usize {
        let last = self.last.filter(|last| last.fresh && self.sealed.is_empty());
        let left = last.map_or(0, |last| self.record_units().saturating_sub(last.units.into()));
        left as usize * STREAM
    }

    /// Clears what stands behind the units that count, so that nothing can follow them but what is appended. Returns
    /// whether the chunk may be appended to.
    ///
    /// What stands there was left by a batch that was cut off: its first units are lost, and later ones may be there. Once they are
    /// overwritten, and that is durable, no power cut brings them back.
    fn take_over(&self, last: Last, tail: &Tail) -> Result<bool, VolumeError> {
        if tail.cut || tail.unreadable || !(last.units as usize).is_multiple_of(self.padding) {
            return Ok(false);
        }
        if let Some(behind) = tail.behind {
            let writing = self.volume.writing()?;
            let member = last.chunk.chunk.drive();
            let count = behind.saturating_sub(last.units) as usize + 1;
            let first = self.volume.log_id(&last.chunk, last.units).address;
            units::write(&**self.volume.present(member)?, first, &vec![[0; UNIT]; count])?;
            writing.flush(member)?;
        }
        Ok(true)
    }

    /// Writes the end unit: it says that all units before it are durable, so that damage of one of them is no torn batch. It need not be
    /// durable itself for what is before it to be acknowledged, and the next batch overwrites it.
    fn end(&mut self, last: Last) -> Result<(), VolumeError> {
        let mut payload = Writer::default();
        payload.u32(last.units);
        payload.u32(0);
        let id = self.volume.log_id(&last.chunk, last.units);
        let member = last.chunk.chunk.drive();
        units::write(&**self.volume.present(member)?, id.address, &[block::seal(&id, &payload.0)])?;
        self.unflushed = Some(member);
        Ok(())
    }

    /// Writes one batch into the last chunk, which has room for it, and makes it durable.
    fn write(&mut self, updates: &[LogUpdate<'_>], bytes: usize) -> Result<(), VolumeError> {
        let Some(last) = self.last.filter(|_| !updates.is_empty()) else { return Ok(()) };
        let mut stream = Writer(Vec::with_capacity(bytes));
        (self.next..).zip(updates).for_each(|(sequence, update)| encode(&mut stream, sequence, update));
        let mut blocks: Vec<[u8; UNIT]> = Vec::new();
        let mut parts = stream.0.chunks(STREAM);
        let most = (self.record_units() as usize).saturating_sub(last.units as usize);
        let count = bytes.div_ceil(STREAM).next_multiple_of(self.padding).min(most);
        for position in (last.units..).take(count) {
            let mut payload = Writer::default();
            payload.u32(last.units);
            payload.u32(0);
            payload.bytes(parts.next().unwrap_or_default());
            blocks.push(block::seal(&self.volume.log_id(&last.chunk, position), &payload.0));
        }
        let member = last.chunk.chunk.drive();
        let first = self.volume.log_id(&last.chunk, last.units).address;
        let writing = self.volume.writing()?;
        let drive = self.volume.present(member)?;
        units::write(&**drive, first, &blocks)
            .and_then(|()| writing.flush(member))
            .map_err(|source| VolumeError::UpdateInDoubt { sequence: self.next, source })?;
        let last = Last { units: last.units + count as u32, ..last };
        self.last = Some(last);
        self.next += updates.len() as u64;
        // They are durable without it; but what failed may yet land there, so that nothing else may.
        if self.end(last).is_err() {
            self.last = Some(Last { fresh: false, ..last });
        }
        Ok(())
    }

    /// Seals the last chunk at the units that count, and allots another, which was reserved, in one commit.
    fn allot(&mut self, chunk: ChunkRef) -> Result<(), VolumeError> {
        let id = self.generation;
        let last = self.last;
        let first = self.next;
        let allotted = self.volume.writing()?.commit(false, None, |catalogue, commit| {
            catalogue.change(id, |generation| {
                settle(&mut generation.log, last);
                let chunk = LogChunk { chunk, units: None, epoch: commit.epoch, commit: commit.id, first };
                generation.log.push(chunk);
                Ok(chunk)
            })
        })?;
        self.last = Some(Last { chunk: allotted, units: 0, fresh: true });
        self.doubt = false;
        self.sealed.clear();
        Ok(())
    }
}

impl Drop for Log {
    /// Makes the end unit durable, so that damage in a log that was closed cleanly is not taken for a torn batch.
    fn drop(&mut self) {
        if let Some(drive) = self.unflushed.and_then(|member| self.volume.drive(member)) {
            // The batch before the end unit is durable, whether or not this flush succeeds.
            let _ = drive.flush();
        }
    }
}

/// Ends a log at the last unit that counts: what failed behind it is gone.
fn settle(log: &mut Vec<LogChunk>, last: Option<Last>) {
    let at = |last: Last| log.iter().position(|entry| entry.commit == last.chunk.commit);
    log.truncate(last.and_then(at).map_or(0, |at| at + 1));
    if let (Some(last), Some(entry)) = (last, log.last_mut()) {
        entry.units = Some(last.units);
    }
    log.retain(|entry| entry.units != Some(0));
}

/// How many of the first `updates` fit into `room` bytes, and the bytes that these take.
fn fitting(updates: &[LogUpdate<'_>], room: usize) -> (usize, usize) {
    let mut bytes = 0;
    let fit = |update: &&LogUpdate<'_>| {
        let more = bytes + RECORD + update.row.len();
        let fits = more <= room;
        bytes = if fits { more } else { bytes };
        fits
    };
    let count = updates.iter().take_while(fit).count();
    (count, bytes)
}
