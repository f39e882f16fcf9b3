//! The log of a generation's updated rows: appended to, a batch at a time, and replayed. See `docs/updates.md`.

use std::sync::Arc;

use crate::block::{self, BlockId, Kind, PAYLOAD, UNIT};
use crate::codec::{Ended, Reader, Writer};
use crate::drive::Drive;
use crate::error::{BlockError, VolumeError};
use crate::generation::{Generation, LOG_ENTRY, LogChunk, MAX_LOG_CHUNKS};
use crate::placement::ChunkRef;
use crate::rewrite::Rewritten;
use crate::transaction::Rebuilt;
use crate::units;
use crate::volume::{LogClaim, Reserved, Volume};

/// Bytes of a unit's payload before its part of the stream: how many units were durable.
const LEAD: usize = 8;
/// Bytes of the stream in a unit.
const STREAM: usize = PAYLOAD - LEAD;
/// Bytes of a record before its row.
const RECORD: usize = 24;
/// Units that are read at once.
const READ: usize = 256;

/// A row that takes the place of the one with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// The table's index in its generation.
    pub table: u32,
    /// The row's id; in a table of sparse keys its key.
    pub key: u64,
    /// As many bytes as the table's rows have.
    pub row: &'a [u8],
}

/// The log of a generation, open for appending. There is one of each generation.
#[derive(Debug)]
pub struct Log {
    volume: Volume,
    generation: u64,
    _claim: LogClaim,
    /// The sequence number of the next record.
    next: u64,
    /// The chunk that has the last updates that count.
    last: Option<Last>,
    /// Something failed since: the catalogue may have units and chunks behind it that do not count.
    doubt: bool,
    /// Batches take a multiple of so many units.
    padding: usize,
}

/// The last chunk of a log.
#[derive(Debug, Clone, Copy)]
struct Last {
    chunk: LogChunk,
    /// Units that count: durable and acknowledged, or replayed.
    units: u32,
    /// Allotted here, and nothing has failed since: it may be appended to.
    fresh: bool,
}

impl Volume {
    /// Opens a generation's log: hands every update that it has to `update`, with its sequence number, in order. When this returns
    /// they are durable, of a volume that is open for writing; if it fails, those that were handed over are not to be shown.
    ///
    /// [`VolumeError::LogDamaged`] where the log is not what was written: the rows of its tables cannot be told then.
    pub fn log(&self, generation: u64, mut update: impl FnMut(u64, Update<'_>)) -> Result<Log, VolumeError> {
        let claim = self.claim_log(generation)?;
        let writing = if self.read_only().is_none() { Some(self.writing()?) } else { None };
        let found = self.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let (next, units) = self.replay(&found, &mut update)?;
        let last = found.log.last().map(|&chunk| Last { chunk, units, fresh: false });
        // A batch whose flush failed, before this log was closed, may be in the drive's cache only.
        if let (Some(writing), Some(last)) = (writing, last.filter(|last| last.chunk.units.is_none() && units > 0)) {
            writing.flush(last.chunk.chunk.drive())?;
        }
        Ok(Log { volume: self.clone(), generation, _claim: claim, next, last, doubt: false, padding: 1 })
    }

    /// As [`log`](Self::log), for a volume that is open for reading: what it hands over may be in the drives' caches only. The
    /// sequence number of the last update.
    pub fn read_log(
        &self,
        generation: &Generation,
        mut update: impl FnMut(u64, Update<'_>),
    ) -> Result<u64, VolumeError> {
        Ok(self.replay(generation, &mut update)?.0 - 1)
    }

    /// The sequence number that the next update would get, and the units that count in the last chunk.
    fn replay(
        &self,
        generation: &Generation,
        update: &mut dyn FnMut(u64, Update<'_>),
    ) -> Result<(u64, u32), VolumeError> {
        let (mut next, mut counting) = (generation.base_sequence + 1, 0);
        for log in &generation.log {
            let stream = self.read_stream(generation, log)?;
            counting = stream.units;
            let damaged = |what| stream.damaged(generation, counting, what);
            // What a failed batch was numbered is given again.
            if log.first != next {
                return Err(damaged("its sequence has a gap"));
            }
            let mut input = Reader::new(&stream.bytes);
            while let Ok((sequence, record)) = decode(&mut input) {
                let table = generation.tables.get(record.table as usize);
                if table.is_none_or(|table| table.row_bytes() as usize != record.row.len()) || sequence != next {
                    return Err(damaged("a record is of no table, of another size or out of sequence"));
                }
                update(sequence, record);
                next += 1;
            }
        }
        Ok((next, counting))
    }

    /// The bytes of a chunk's units that count.
    pub(crate) fn read_stream(&self, generation: &Generation, log: &LogChunk) -> Result<Stream, VolumeError> {
        let drive = self.present(log.chunk.drive())?;
        let most = self.geometry().chunk_units();
        let wanted = log.units.map_or(most, u64::from);
        let mut stream = Stream { drive: drive.name().to_owned(), units: 0, bytes: Vec::new() };
        let mut torn = None;
        for first in (0..wanted).step_by(READ) {
            let count = (wanted - first).min(READ as u64) as usize;
            let id = self.log_id(log, first as u32);
            let found = units::read_each(&**drive, id.address, count)?;
            for (position, unit) in (first as u32..).zip(&found) {
                // What a power cut tore may be unreadable as well.
                let payload = unit.as_ref().ok_or(BlockError::Unreadable);
                match payload.and_then(|unit| block::open_expecting(unit, &self.log_id(log, position))) {
                    Ok(payload) if torn.is_none() => {
                        stream.bytes.extend_from_slice(payload.get(LEAD..).unwrap_or_default());
                        stream.units = position + 1;
                    }
                    // It was written when what is torn was durable.
                    Ok(payload) => {
                        let durable = Reader::new(payload).u32().unwrap_or(0);
                        if durable > stream.units {
                            return Err(stream.damaged(generation, stream.units, "later ones are intact"));
                        }
                    }
                    Err(_) if log.units.is_some() => {
                        return Err(stream.damaged(generation, position, "it counts, and is not intact"));
                    }
                    Err(_) => torn = Some(position),
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
}

impl Stream {
    fn damaged(&self, generation: &Generation, unit: u32, what: &'static str) -> VolumeError {
        VolumeError::LogDamaged { generation: generation.id, drive: self.drive.clone(), unit, what }
    }
}

fn decode<'a>(input: &mut Reader<'a>) -> Result<(u64, Update<'a>), Ended> {
    let (table, bytes) = (input.u32()?, input.u32()?);
    let (sequence, key) = (input.u64()?, input.u64()?);
    Ok((sequence, Update { table, key, row: input.bytes(bytes as usize)? }))
}

fn encode(out: &mut Writer, sequence: u64, update: &Update<'_>) {
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

    /// The generation that it belongs to.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Has every batch take a multiple of `bytes`, cut to 4 KiB … 64 KiB: for drives that may spoil, against what NVMe
    /// promises, what stands around a write that a power cut tears, within units of this size.
    pub fn pad_batches(&mut self, bytes: usize) {
        self.padding = (bytes / UNIT).clamp(1, 16).next_power_of_two();
    }

    /// Makes updates durable, in order; when it returns, they are. The sequence number of the last.
    ///
    /// Rows that do not fit their table, and more of them than the volume has room for, are refused before anything is written. If
    /// a drive fails, none of them counts, and all are in doubt ([`VolumeError::UpdateInDoubt`]): a crash may bring the first so
    /// many of them, the next update that succeeds ends them.
    pub fn append(&mut self, updates: &[Update<'_>]) -> Result<u64, VolumeError> {
        // Its chunks, and those that are reserved for it, are nobody else's while this writes, even if it is dropped meanwhile.
        let generation = self.found()?;
        updates.iter().try_for_each(|update| self.check(&generation, update))?;
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
    fn divide<'a, 'u>(&self, updates: &'a [Update<'u>]) -> Vec<(&'a [Update<'u>], usize)> {
        let chunk = self.volume.geometry().chunk_units() as usize * STREAM;
        let (mut parts, mut left, mut room) = (Vec::new(), updates, self.room());
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

    /// Takes so many chunks for the log, if it can have them.
    fn reserve(&self, generation: &Generation, count: usize) -> Result<Reserved, VolumeError> {
        let counting =
            generation.log.len() - usize::from(self.last.is_some_and(|last| last.units == 0)).min(generation.log.len());
        if counting + count > MAX_LOG_CHUNKS {
            return Err(VolumeError::LogFull { generation: generation.id, chunks: MAX_LOG_CHUNKS });
        }
        let needed = self.volume.catalogue_bytes() + count as u64 * LOG_ENTRY;
        let capacity = self.volume.geometry().catalogue_capacity();
        if count > 0 && needed > capacity {
            return Err(VolumeError::CatalogueFull { needed, capacity });
        }
        self.volume.reserve_for_log(count as u64)
    }

    /// Ends the last chunk here: the next update begins another. The sequence number up to which the chunks so far have updates,
    /// for [`compact`](Self::compact).
    pub fn seal(&mut self) -> u64 {
        self.last = self.last.map(|last| Last { fresh: false, ..last });
        self.sequence()
    }

    /// Takes up the chunks that were rewritten with all updates up to `sequence`, as [`seal`](Self::seal) gave it, and drops these
    /// from the log, in one commit. What was appended since stays.
    ///
    /// Who holds the generation as it was still reads its old chunks, and needs the updates that were dropped.
    pub fn compact(&mut self, sequence: u64, rewritten: Rewritten) -> Result<Arc<Generation>, VolumeError> {
        let id = rewritten.generation.id;
        self.drop_to(sequence, id, |change| rewritten.commit(change))
    }

    /// As [`compact`](Self::compact), where the generation was written anew with all updates up to `sequence`: its tables are others from
    /// now on, and what was appended since is of these.
    pub fn replace(&mut self, sequence: u64, rebuilt: Rebuilt) -> Result<Arc<Generation>, VolumeError> {
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
        let (last, doubt) = (self.last, self.doubt);
        let compacted = commit(&mut |generation| {
            if doubt {
                settle(&mut generation.log, last);
            }
            generation.log.retain(|chunk| chunk.first > sequence);
            generation.base_sequence = sequence;
        })?;
        self.doubt = false;
        self.last = self.last.filter(|_| !compacted.log.is_empty());
        Ok(compacted)
    }

    fn found(&self) -> Result<Arc<Generation>, VolumeError> {
        let id = self.generation;
        self.volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })
    }

    fn check(&self, generation: &Generation, update: &Update<'_>) -> Result<(), VolumeError> {
        let index = update.table as usize;
        let table = generation
            .tables
            .get(index)
            .ok_or_else(|| VolumeError::NoSuchTable { generation: generation.name.clone(), table: index })?;
        let (expected, given) = (u64::from(table.row_bytes()), update.row.len() as u64);
        if expected != given {
            return Err(VolumeError::Length { what: "an updated row", expected, given });
        }
        let most = self.volume.geometry().chunk_units() * STREAM as u64;
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

    /// Bytes of the stream that the last chunk still takes.
    fn room(&self) -> usize {
        let units = self.volume.geometry().chunk_units();
        let left = self.last.filter(|last| last.fresh).map_or(0, |last| units.saturating_sub(last.units.into()));
        left as usize * STREAM
    }

    /// Writes one batch into the last chunk, which has room for it, and makes it durable.
    fn write(&mut self, updates: &[Update<'_>], bytes: usize) -> Result<(), VolumeError> {
        let Some(last) = self.last.filter(|_| !updates.is_empty()) else { return Ok(()) };
        let mut stream = Writer(Vec::with_capacity(bytes));
        (self.next..).zip(updates).for_each(|(sequence, update)| encode(&mut stream, sequence, update));
        let mut blocks: Vec<[u8; UNIT]> = Vec::new();
        let mut parts = stream.0.chunks(STREAM);
        let most = self.volume.geometry().chunk_units() as usize - last.units as usize;
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
        self.last = Some(Last { units: last.units + count as u32, ..last });
        self.next += updates.len() as u64;
        Ok(())
    }

    /// Seals the last chunk at the units that count, and allots another, which was reserved, in one commit.
    fn allot(&mut self, chunk: ChunkRef) -> Result<(), VolumeError> {
        let (id, last, first) = (self.generation, self.last, self.next);
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
        Ok(())
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

/// How many of `updates` fit into `room` bytes, and the bytes that they take.
fn fitting(updates: &[Update<'_>], room: usize) -> (usize, usize) {
    let mut bytes = 0;
    let fit = |update: &&Update<'_>| {
        let more = bytes + RECORD + update.row.len();
        let fits = more <= room;
        bytes = if fits { more } else { bytes };
        fits
    };
    let count = updates.iter().take_while(fit).count();
    (count, bytes)
}
