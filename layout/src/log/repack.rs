//! Packing a log into fewer chunks, where no chunk is free and compaction needs one.

use super::{LEAD, Last, Log, RECORD, STREAM, decode};
use crate::block;
use crate::codec::{Reader, Writer};
use crate::error::VolumeError;
use crate::generation::{Generation, LogChunk};
use crate::rewrite::RewritePermit;
use crate::units;
use crate::volume::Volume;

/// The first chunks of a log, as they will be when their records are packed.
struct Packing {
    /// The records of the updates, one after another.
    records: Vec<u8>,
    /// How many chunks are packed, with the places behind the last chunk of a drive.
    count: usize,
    /// How many of them are chunks, and not such places; these chunks would then be free.
    won: usize,
}

impl Volume {
    /// How many chunks [`Log::repack`] would give back of the log that `generation` has, if nobody else reads the generation; 0 if no
    /// drive has room for it. The log is read, and nothing written: a volume that is open for reading will do.
    pub fn chunks_to_repack(&self, generation: &Generation) -> Result<u64, VolumeError> {
        match self.remainder() {
            Some((_, room)) => Ok(self.packing(generation, room)?.won as u64),
            None => Ok(0),
        }
    }

    /// Packs as many of a log's first chunks as then fit into `room` units.
    fn packing(&self, generation: &Generation, room: u64) -> Result<Packing, VolumeError> {
        let mut records = Vec::new();
        let mut count = 0;
        for log in &generation.log {
            let stream = self.read_stream(generation, log)?;
            let whole = stream.bytes.get(..whole_records(&stream.bytes)).unwrap_or_default();
            if (records.len() + whole.len()).div_ceil(STREAM) as u64 > room {
                break;
            }
            records.extend_from_slice(whole);
            count += 1;
        }
        let is_chunk = |log: &&LogChunk| self.geometry().is_chunk(log.chunk);
        let won = generation.log.iter().take(count).filter(is_chunk).count();
        Ok(Packing { records, count, won })
    }
}

impl Log {
    /// Writes the records of the first chunks once more, close together, into what is left of a drive behind its last
    /// chunk, and has the log begin there: in one commit. Returns how many chunks that gives back; 0 if no drive has
    /// enough space there.
    ///
    /// Earlier versions gave a log every chunk that was free, one for each process: a log of many chunks with few records in
    /// each, and no chunk for its compaction. The place is no chunk: versions before 2.1 refuse the catalogue that names it, until the
    /// compaction for which this is done has committed.
    pub fn repack(&mut self, rewriting: &RewritePermit) -> Result<usize, VolumeError> {
        if self.doubt || rewriting.generation() != self.generation {
            return Ok(0);
        }
        let writing = self.volume.writing()?;
        let found = self.found()?;
        let Some((reserved, room)) = self.volume.reserve_remainder() else { return Ok(0) };
        let (Some(&place), Some(&first)) = (reserved.first(), found.log.first()) else { return Ok(0) };
        let Packing { records, count, won } = self.volume.packing(&found, room)?;
        if won == 0 {
            return Ok(0);
        }
        let units = records.len().div_ceil(STREAM) as u32;
        let packed = LogChunk { chunk: place, units: Some(units), ..first };
        let blocks: Vec<_> = (0..units)
            .zip(records.chunks(STREAM))
            .map(|(position, part)| {
                let mut payload = Writer(vec![0; LEAD]);
                payload.bytes(part);
                block::seal(&self.volume.log_id(&packed, position), &payload.0)
            })
            .collect();
        let address = self.volume.log_id(&packed, 0).address;
        units::write(&**self.volume.present(place.drive())?, address, &blocks)?;
        writing.commit(true, None, |catalogue, _| {
            catalogue.change(self.generation, |generation| {
                generation.log.splice(..count, (units > 0).then_some(packed));
                Ok(())
            })
        })?;
        if count == found.log.len() {
            self.last = (units > 0).then_some(Last { chunk: packed, units, fresh: false });
            self.inherited = None;
        }
        Ok(won)
    }
}

/// Bytes of the records that are whole.
fn whole_records(stream: &[u8]) -> usize {
    let mut input = Reader::new(stream);
    let mut whole = 0;
    while let Ok((_, record)) = decode(&mut input) {
        whole += RECORD + record.row.len();
    }
    whole
}
