//! The drives of a tier proposal, and where tables will lie on them.

use serde::{Deserialize, Serialize};
use warprow_layout::RankWidth;
use warprow_soft_controller::{Timing, TimingProfile};

use crate::error::ProposalError;

/// Alike drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlikeDrives {
    /// How many: 1 to 48.
    pub count: u32,
    /// What they are: a profile's name.
    pub profile: String,
    /// Bytes of each; with 0 they are as large as the tables need.
    pub bytes: u64,
    /// Bytes of an LBA.
    pub lba: u32,
    /// Whether the drives are emulated in this process: a thread serves each, and takes its own time for each command.
    #[serde(default)]
    pub emulated: bool,
}

impl AlikeDrives {
    /// The timing; `None`: nothing is known of these drives, and they take no time.
    pub fn timing(&self) -> Result<Option<Timing>, ProposalError> {
        let refuse = |reason: &str| ProposalError::Option { option: "drives", reason: reason.to_owned() };
        if self.count == 0 || self.count > 48 {
            return Err(refuse("a store has 1 to 48 drives"));
        }
        if !matches!(self.lba, 512 | 4096) {
            return Err(refuse("LBAs have 512 or 4096 bytes"));
        }
        let profile: TimingProfile =
            self.profile.parse().map_err(|()| refuse("there are the profiles none, p5800x, gen5-tlc and gen6"))?;
        Ok(profile.timing())
    }
}

/// A read of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveRead {
    /// The number of the drive.
    pub drive: u32,
    /// The first byte that is read.
    pub offset: u64,
    /// How many bytes are read.
    pub len: u64,
    /// Which of the pages of 4 KiB written to the drive its first one is, if a load writes them.
    pub written: u64,
}

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes that a load writes at a time to one place.
const EXTENT: u64 = 512 << 10;

/// Where the bytes of a generation will lie: stripe units in turn on chunks, which take turns on the drives, the lowest first.
#[derive(Debug, Clone)]
pub struct ChunkMap {
    drives: u64,
    /// Bytes of superblocks and catalogue before the first chunk of a drive.
    base: u64,
    chunks: u64,
    chunk: u64,
    stripe: u64,
    /// First and last but one unit of each table's rows, in their order.
    regions: Vec<std::ops::Range<u64>>,
}

impl ChunkMap {
    /// For tables that take so many bytes, with so many rows, in stripe units of `stripe` on drives of so many bytes each; 0: just as many as
    /// needed.
    pub fn new(tables: impl Iterator<Item = (u64, u64)>, drives: &AlikeDrives, stripe: u64) -> Self {
        let count = u64::from(drives.count.max(1));
        let mut units = 0u64;
        let mut regions = Vec::new();
        for (bytes, rows) in tables {
            let begin = units;
            units = units.saturating_add(bytes.div_ceil(stripe));
            regions.push(begin..units);
            // Behind the rows, which id has which rank.
            let ranks = rows.saturating_mul(RankWidth::for_rows(rows).bytes().into());
            units = units.saturating_add(ranks.div_ceil(stripe));
        }
        let bytes = units.saturating_mul(stripe);
        let drive = if drives.bytes == 0 { bytes / count } else { drives.bytes };
        // As drives are formatted: a 4096th of one.
        let chunk = (drive >> 12).clamp(1 << 20, 64 << 20);
        let chunk = (1u64 << chunk.ilog2()).max(stripe);
        let chunks = bytes.div_ceil(chunk).max(count);
        let catalogue = (drive >> 10).clamp(64 << 10, 1 << 20) + drive / chunk * count * 4;
        let base = ((64 << 10) + 2 * catalogue).next_multiple_of(1 << 20);
        Self { drives: count, base, chunks, chunk, stripe, regions }
    }

    /// Where `len` bytes from byte `at` of a table on lie, in one stripe unit; `None`: there is no such table.
    pub fn locate(&self, table: usize, at: u64, len: u64) -> Option<DriveRead> {
        let region = self.regions.get(table)?;
        let unit = region.start + at / self.stripe;
        let within = at % self.stripe;
        let row = unit / self.chunks;
        let column = unit % self.chunks;
        let offset = self.base + column / self.drives * self.chunk + row * self.stripe + within;
        let written = self.before(region, row, column) * (self.stripe / PAGE).max(1) + within / PAGE;
        Some(DriveRead { drive: (column % self.drives) as u32, offset, len, written })
    }

    /// Units of a region that a load writes to a drive before the one at that row and column. It goes through bands of rows, and in each
    /// from column to column. What it wrote before the region is left out: the same for all.
    fn before(&self, region: &std::ops::Range<u64>, row: u64, column: u64) -> u64 {
        let depth = (EXTENT / self.stripe).max(1);
        let first = region.start / self.chunks;
        let end = region.end.div_ceil(self.chunks);
        let band = first + (row - first) / depth * depth;
        let drive = column % self.drives;
        // Columns of this drive below `column`.
        let below = |column: u64| (column + self.drives - 1 - drive) / self.drives;
        let all = (band - first) * below(self.chunks);
        let in_row = |row: u64, to: u64| {
            let begin = region.start.saturating_sub(row * self.chunks).min(to);
            let end = region.end.saturating_sub(row * self.chunks).min(to);
            below(end).saturating_sub(below(begin))
        };
        let columns_before: u64 = (band..end.min(band + depth)).map(|row| in_row(row, column)).sum();
        let rows_before = (band..row).filter(|&row| in_row(row, column + 1) > in_row(row, column)).count();
        all + columns_before + rows_before as u64
    }

    /// Bytes that it takes of each drive.
    pub fn drive_bytes(&self) -> u64 {
        self.base + self.chunks.div_ceil(self.drives) * self.chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_place_of_its_own() {
        let drives = AlikeDrives { count: 3, profile: "none".to_owned(), bytes: 0, lba: 512, emulated: false };
        // The second table's rows begin behind the ranks of the first.
        let map = ChunkMap::new([(6 << 20, 1 << 16), (3 << 20, 1000)].into_iter(), &drives, 32 << 10);
        let units = (0..6 << 5).map(|unit| (0, unit)).chain((0..3 << 5).map(|unit| (1, unit)));
        let reads: Vec<DriveRead> = units.filter_map(|(table, unit)| map.locate(table, unit << 15, 512)).collect();
        let places: std::collections::HashSet<_> = reads.iter().map(|read| (read.drive, read.offset)).collect();
        assert_eq!(places.len(), 9 << 5);
        assert!(places.iter().all(|&(drive, offset)| drive < 3 && offset < map.drive_bytes()));
        let read = map.locate(0, (5 << 15) + 777, 512).unwrap();
        assert_eq!((read.drive, read.offset), (2, (2 << 20) + 777));
        assert_eq!(map.locate(2, 0, 512), None);
        // Pages of a table on a drive have numbers of their own, with no gaps.
        for (table, drive) in [(0, 0), (0, 2), (1, 1)] {
            let units = (if table == 0 { 6 } else { 3 }) << 5;
            let reads = (0..units).filter_map(|unit| map.locate(table, unit << 15, 512));
            let mut pages: Vec<u64> = reads.filter(|read| read.drive == drive).map(|read| read.written / 8).collect();
            pages.sort_unstable();
            assert!(pages.len() > 20 && pages.iter().zip(pages.iter().skip(1)).all(|(a, b)| a + 1 == *b), "{pages:?}");
        }
    }

    #[test]
    fn drives_that_are_none_are_refused() {
        let drives = |count, profile: &str| AlikeDrives {
            count,
            profile: profile.to_owned(),
            bytes: 0,
            lba: 512,
            emulated: false,
        };
        assert!(drives(0, "none").timing().is_err() && drives(1, "floppy").timing().is_err());
        assert!(drives(1, "none").timing().unwrap().is_none());
    }
}
