//! How long drives take for the reads of a look-up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warprow_soft_controller::{Profile, Rehearsal, Timing};

use warprow_workload::mix_all;

use crate::PlanError;

/// Alike drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drives {
    /// How many: 1 to 48.
    pub count: u32,
    /// What they are: a profile's name.
    pub profile: String,
    /// Bytes of each; with 0 they are as large as the tables need.
    pub bytes: u64,
    /// Bytes of an LBA.
    pub lba: u32,
}

impl Drives {
    /// Commands on a queue at a time: what the host executor does.
    const DEPTH: usize = 1023;

    /// The timing; `None`: nothing is known of these drives, and they take no time.
    pub fn timing(&self) -> Result<Option<Timing>, PlanError> {
        let refuse = |reason: &str| PlanError::Option { option: "drives", reason: reason.to_owned() };
        if self.count == 0 || self.count > 48 {
            return Err(refuse("a store has 1 to 48 drives"));
        }
        if !matches!(self.lba, 512 | 4096) {
            return Err(refuse("LBAs have 512 or 4096 bytes"));
        }
        let profile: Profile =
            self.profile.parse().map_err(|()| refuse("there are the profiles none, p5800x and gen5-tlc"))?;
        Ok(profile.timing())
    }

    /// Seconds from the first command to the last completion if all `reads` are there at once. Each drive is given those of its
    /// own in the order of their addresses, as look-ups do it: neighbours in time are neighbours in place.
    pub fn seconds(&self, timing: Option<&Timing>, reads: &mut [ReadAt], map: &ChunkMap, seed: u64) -> f64 {
        let Some(timing) = timing else { return 0.0 };
        reads.sort_unstable_by_key(|read| (read.drive, read.offset));
        let size = if self.bytes == 0 { map.drive_bytes() } else { self.bytes.max(map.drive_bytes()) };
        let last = reads.chunk_by(|a, b| a.drive == b.drive).map(|reads| {
            let seed = mix_all([seed, reads.first().map_or(0, |read| u64::from(read.drive))]);
            let mut drive = Rehearsal::new(timing.clone(), size, seed);
            let (mut flight, mut now, mut last) = (BinaryHeap::new(), Duration::ZERO, Duration::ZERO);
            for read in reads {
                if flight.len() == Self::DEPTH
                    && let Some(Reverse(done)) = flight.pop()
                {
                    now = now.max(done);
                }
                let done = drive.read(now, read.offset, read.len);
                last = last.max(done);
                flight.push(Reverse(done));
            }
            last
        });
        last.max().unwrap_or_default().as_secs_f64()
    }
}

/// A read of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAt {
    /// Which one.
    pub drive: u32,
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// Where the bytes of a generation will lie: stripe units in turn on chunks, which take turns on the drives, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkMap {
    drives: u64,
    chunks: u64,
    chunk: u64,
    stripe: u64,
}

impl ChunkMap {
    /// For `bytes` bytes in stripe units of `stripe` on drives of so many bytes each; 0: just as many as needed.
    pub fn new(bytes: u64, drives: &Drives, stripe: u64) -> Self {
        let count = u64::from(drives.count.max(1));
        let drive = if drives.bytes == 0 { bytes / count } else { drives.bytes };
        // As drives are formatted: a 4096th of one.
        let chunk = (drive >> 12).clamp(1 << 20, 64 << 20);
        let chunk = (1u64 << chunk.ilog2()).max(stripe);
        Self { drives: count, chunks: bytes.div_ceil(chunk).max(1).next_multiple_of(count), chunk, stripe }
    }

    /// Where byte `at` of the generation lies.
    pub fn locate(&self, at: u64) -> (u32, u64) {
        let (unit, within) = (at / self.stripe, at % self.stripe);
        let (row, column) = (unit / self.chunks, unit % self.chunks);
        let offset = column / self.drives * self.chunk + row * self.stripe + within;
        ((column % self.drives) as u32, offset)
    }

    /// Bytes that it takes of each drive.
    pub fn drive_bytes(&self) -> u64 {
        self.chunks / self.drives * self.chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drives(count: u32, profile: &str) -> Drives {
        Drives { count, profile: profile.to_owned(), bytes: 0, lba: 512 }
    }

    fn seconds(drives: &Drives, reads: u64, span: u64) -> f64 {
        let (timing, map) = (drives.timing().unwrap(), ChunkMap::new(span, drives, 32 << 10));
        let mut random = fastrand::Rng::with_seed(1);
        let mut reads: Vec<ReadAt> = (0..reads)
            .map(|_| {
                let (drive, offset) = map.locate(random.u64(0..span / 512) * 512);
                ReadAt { drive, offset, len: 512 }
            })
            .collect();
        drives.seconds(timing.as_ref(), &mut reads, &map, 1)
    }

    #[test]
    fn many_reads_take_as_long_as_the_drives_rates_say() {
        for (count, least) in [(1, 0.9), (4, 0.8)] {
            let got = 100_000.0 / seconds(&drives(count, "gen5-tlc"), 100_000, 64 << 30) / f64::from(count);
            assert!((least * 3.3e6..3.4e6).contains(&got), "{count}: {got:.3e}");
        }
        // In the order of addresses, a queue's depth covers a fraction of what is read, and so of where address is place.
        let few = 1e5 / seconds(&drives(1, "p5800x"), 100_000, 64 << 30);
        assert!((1.4e6..2.5e6).contains(&few), "{few:.3e}");
        assert_eq!(seconds(&drives(1, "none"), 1000, 1 << 30), 0.0);
        assert!(drives(0, "none").timing().is_err() && drives(1, "floppy").timing().is_err());
    }

    #[test]
    fn one_read_takes_the_drives_latency() {
        let seconds = seconds(&drives(1, "gen5-tlc"), 1, 1 << 30);
        assert!((55e-6..65e-6).contains(&seconds), "{seconds}");
    }

    #[test]
    fn every_byte_has_a_place_of_its_own() {
        let map = ChunkMap::new(10 << 20, &drives(3, "none"), 32 << 10);
        let places: std::collections::HashSet<_> = (0..12 << 5).map(|unit| map.locate(unit << 15)).collect();
        assert_eq!(places.len(), 12 << 5);
        assert!(places.iter().all(|&(drive, offset)| drive < 3 && offset < map.drive_bytes()));
        let (drive, offset) = map.locate((5 << 15) + 777);
        assert_eq!((drive, offset), (2, (1 << 20) + 777));
    }
}
