//! A trace played against an order of rows: what a store would do, counted for every budget at once.
//!
//! Rows in memory are always the first ranks. So one pass that counts ids, rows and commands by rank tells of every
//! budget: what lies behind its last rank comes from drives.

use warprow_layout::RowPacking;

use crate::order::HotnessOrder;
use crate::trace::Bags;

/// A table as it would lie.
#[derive(Debug, Clone, Copy)]
pub struct PlacedTable<'a> {
    /// The order of the rows.
    pub order: &'a HotnessOrder,
    /// How its rows share LBAs.
    pub packing: RowPacking,
    /// LBAs of a stripe unit.
    pub stripe_lbas: u64,
    /// Ranks below this lie in GPU memory.
    pub hbm: u64,
    /// Ranks below this lie in GPU memory or DRAM.
    pub hot: u64,
}

/// Ranks in buckets, each about a sixteenth wider than the one before; the first 16 stand alone.
pub(crate) fn bucket(rank: u64) -> usize {
    match rank {
        0..16 => rank as usize,
        _ => {
            let exponent = 63 - rank.leading_zeros();
            (((exponent - 3) as usize) << 4) + (rank >> (exponent - 4) & 15) as usize
        }
    }
}

/// The first rank of a bucket.
pub(crate) fn bucket_start(bucket: usize) -> u64 {
    match bucket {
        0..16 => bucket as u64,
        _ => ((16 + (bucket & 15)) as u64).checked_shl((bucket >> 4) as u32 - 1).unwrap_or(u64::MAX),
    }
}

/// What look-ups asked of the ranks of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Asked {
    ids: u64,
    /// Different ones in each batch.
    rows: u64,
    commands: u64,
    lbas: u64,
}

/// One batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Ids that their table has.
    pub ids: u64,
    /// Ids of rows in GPU memory.
    pub ids_hbm: u64,
    /// Ids of rows on drives.
    pub ids_ssd: u64,
    /// Different rows on drives.
    pub rows_ssd: u64,
    /// Read commands.
    pub commands: u64,
    /// Bytes that they read.
    pub bytes: u64,
    /// Bytes of the different rows among them.
    pub bytes_needed: u64,
    /// Bytes of the rows of all ids.
    pub bytes_asked: u64,
    /// Bytes of the rows of ids in DRAM.
    pub bytes_dram: u64,
}

impl BatchCounts {
    fn add(&mut self, other: &Self) {
        self.ids += other.ids;
        self.ids_hbm += other.ids_hbm;
        self.ids_ssd += other.ids_ssd;
        self.rows_ssd += other.rows_ssd;
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.bytes_needed += other.bytes_needed;
        self.bytes_asked += other.bytes_asked;
        self.bytes_dram += other.bytes_dram;
    }
}

/// Parts that a replay is cut into, to see how much they differ.
const PARTS: usize = 32;
/// Batches that are kept one by one, at most, and ids that they have in all.
const SAMPLES: u64 = 64;
const SAMPLED: u64 = 1 << 21;

/// A replay under way, and what it has counted.
#[derive(Debug)]
pub struct TraceReplay<'a> {
    tables: Vec<PlacedTable<'a>>,
    asked: Vec<Vec<Asked>>,
    batches: u64,
    expected: u64,
    missing: u64,
    total: BatchCounts,
    parts: Vec<BatchCounts>,
    samples: Vec<KeptBatch>,
    /// From one batch kept to the next.
    every: u64,
    ranks: Vec<u64>,
}

/// A batch that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBatch {
    /// The counts of the batch.
    pub sample: BatchCounts,
    /// The different ranks that it asked for, ascending, by table.
    ranks: Vec<Vec<u64>>,
}

impl<'a> TraceReplay<'a> {
    /// A replay of about `batches` batches.
    pub fn new(tables: Vec<PlacedTable<'a>>, batches: u64) -> Self {
        let asked = tables.iter().map(|table| vec![Asked::default(); bucket(table.order.rows()) + 1]).collect();
        Self {
            tables,
            asked,
            batches: 0,
            expected: batches.max(1),
            missing: 0,
            total: BatchCounts::default(),
            parts: vec![BatchCounts::default(); PARTS],
            samples: Vec::new(),
            every: 0,
            ranks: Vec::new(),
        }
    }

    /// One look-up of a batch: the ids of each table.
    pub fn batch(&mut self, bags: &[Bags]) {
        let ids: usize = bags.iter().map(|bags| bags.ids.len()).sum();
        if self.every == 0 {
            let count = (SAMPLED / (ids as u64).max(1)).clamp(4, SAMPLES);
            self.every = self.expected.div_ceil(count).max(1);
        }
        let mut kept = self.batches.is_multiple_of(self.every).then(Vec::new);
        let mut sample = BatchCounts::default();
        for ((table, asked), bags) in self.tables.iter().zip(&mut self.asked).zip(bags) {
            self.ranks.clear();
            self.ranks.extend(bags.ids.iter().filter_map(|&id| table.order.rank(id)));
            self.missing += (bags.ids.len() - self.ranks.len()) as u64;
            self.ranks.sort_unstable();
            table.count(&self.ranks, asked, &mut sample);
            if let Some(kept) = &mut kept {
                self.ranks.dedup();
                kept.push(self.ranks.clone());
            }
        }
        self.total.add(&sample);
        let part = (u128::from(self.batches) * PARTS as u128 / u128::from(self.expected)) as usize;
        if let Some(part) = self.parts.get_mut(part.min(PARTS - 1)) {
            part.add(&sample);
        }
        self.samples.extend(kept.map(|ranks| KeptBatch { sample, ranks }));
        self.batches += 1;
    }

    /// Sums over all batches.
    pub fn total(&self) -> &BatchCounts {
        &self.total
    }

    /// Ids that their table does not have.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Batches so far.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Batches taken at equal distances.
    pub fn samples(&self) -> &[KeptBatch] {
        &self.samples
    }

    /// The commands of a batch if the first `hot` ranks of each table lay in memory: for each the table, its first LBA in the
    /// table, and its LBAs.
    pub fn commands<'s>(&'s self, kept: &'s KeptBatch, hot: &'s [u64]) -> impl Iterator<Item = (usize, u64, u64)> + 's {
        let tables = self.tables.iter().zip(&kept.ranks).zip(hot).enumerate();
        tables.flat_map(|(index, ((table, ranks), &hot))| {
            let cold = ranks.get(ranks.partition_point(|&rank| rank < hot)..).unwrap_or_default();
            let row_lbas = u64::from(table.packing.row_lbas());
            let mut commands: Vec<(usize, u64, u64)> = Vec::new();
            for &rank in cold {
                let lba = table.packing.locate(rank).0;
                match commands.last_mut() {
                    Some((_, first, lbas)) if lba < *first + *lbas => {}
                    Some((_, first, lbas)) if lba == *first + *lbas && !lba.is_multiple_of(table.stripe_lbas) => {
                        *lbas += row_lbas;
                    }
                    _ => commands.push((index, lba, row_lbas)),
                }
            }
            commands
        })
    }

    /// The sums of each part of the replay in turn.
    pub fn parts(&self) -> &[BatchCounts] {
        &self.parts
    }

    /// What would have been asked if the first `hot` ranks of each table lay in memory, of these the first `hbm` in GPU memory, in the
    /// table's order, by interpolation inside of buckets.
    pub fn cold(&self, hot: &[u64], hbm: &[u64]) -> BatchCounts {
        let mut sum = [0.0f64; 4];
        let mut in_hbm = 0.0f64;
        let mut bytes = 0.0;
        let mut needed = 0.0;
        let mut asked_bytes = 0.0;
        let mut dram_bytes = 0.0;
        for (((table, asked), &hot), &hbm) in self.tables.iter().zip(&self.asked).zip(hot).zip(hbm) {
            let mut of_table = [0.0f64; 4];
            let mut of_hbm = 0.0;
            let mut all = 0.0;
            for (index, asked) in asked.iter().enumerate() {
                let begin = bucket_start(index);
                let end = bucket_start(index + 1).min(table.order.rows());
                let behind =
                    |rank: u64| end.saturating_sub(rank.max(begin)) as f64 / end.saturating_sub(begin).max(1) as f64;
                let counts = [asked.ids, asked.rows, asked.commands, asked.lbas];
                of_table.iter_mut().zip(counts).for_each(|(sum, count)| *sum += behind(hot) * count as f64);
                of_hbm += (1.0 - behind(hbm)) * asked.ids as f64;
                all += asked.ids as f64;
            }
            sum.iter_mut().zip(of_table).for_each(|(sum, of_table)| *sum += of_table);
            let row_bytes = f64::from(table.packing.row_bytes());
            bytes += of_table[3] * f64::from(table.packing.lba_size());
            needed += of_table[1] * row_bytes;
            asked_bytes += all * row_bytes;
            dram_bytes += (all - of_table[0] - of_hbm).max(0.0) * row_bytes;
            in_hbm += of_hbm;
        }
        let [ids, rows, commands, _] = sum.map(|number| number.round() as u64);
        BatchCounts {
            ids: self.total.ids,
            ids_hbm: in_hbm.round() as u64,
            ids_ssd: ids,
            rows_ssd: rows,
            commands,
            bytes: bytes as u64,
            bytes_needed: needed as u64,
            bytes_asked: asked_bytes as u64,
            bytes_dram: dram_bytes as u64,
        }
    }
}

impl PlacedTable<'_> {
    /// Counts the ascending `ranks` of a batch.
    fn count(&self, ranks: &[u64], asked: &mut [Asked], sample: &mut BatchCounts) {
        let row_lbas = u64::from(self.packing.row_lbas());
        let lba_size = u64::from(self.packing.lba_size());
        let row_bytes = u64::from(self.packing.row_bytes());
        // The end of the last LBA read, of all rows and of those on drives; `u64::MAX`: of none.
        let mut end_any = u64::MAX;
        let mut end_cold = u64::MAX;
        let mut last = None;
        for &rank in ranks {
            let cold = rank >= self.hot;
            let Some(asked) = asked.get_mut(bucket(rank)) else { continue };
            asked.ids += 1;
            sample.ids += 1;
            sample.ids_ssd += u64::from(cold);
            sample.ids_hbm += u64::from(rank < self.hbm);
            sample.bytes_asked += row_bytes;
            sample.bytes_dram += if rank >= self.hbm && !cold { row_bytes } else { 0 };
            if last.replace(rank) == Some(rank) {
                continue;
            }
            asked.rows += 1;
            let lba = self.packing.locate(rank).0;
            let read = |end: &mut u64| {
                let (commands, lbas) = match *end {
                    end if end != u64::MAX && lba < end => (0, 0),
                    end if end == lba && !lba.is_multiple_of(self.stripe_lbas) => (0, row_lbas),
                    _ => (1, row_lbas),
                };
                *end = lba + row_lbas;
                (commands, lbas)
            };
            let (commands, lbas) = read(&mut end_any);
            asked.commands += commands;
            asked.lbas += lbas;
            if cold {
                let (commands, lbas) = read(&mut end_cold);
                sample.rows_ssd += 1;
                sample.commands += commands;
                sample.bytes += lbas * lba_size;
                sample.bytes_needed += row_bytes;
            }
        }
    }
}

/// The mean of a ratio over parts of unequal size, and its standard error.
pub(crate) fn ratio(parts: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let (above, below) = parts.clone().fold((0.0, 0.0), |(a, b), (above, below)| (a + above, b + below));
    if below <= 0.0 {
        return (0.0, 0.0);
    }
    let mean = above / below;
    let count = parts.clone().filter(|part| part.1 > 0.0).count() as f64;
    let squares: f64 = parts.map(|(above, below)| (above - mean * below).powi(2)).sum();
    (mean, (squares * count / (count - 1.0).max(1.0)).sqrt() / below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::RowCounts;

    #[test]
    fn buckets_cover_the_ranks() {
        for rank in (0..5000).chain([1 << 20, (1 << 40) + 12345, u64::MAX >> 1]) {
            let bucket = bucket(rank);
            assert!(bucket_start(bucket) <= rank && rank < bucket_start(bucket + 1), "{rank}");
        }
    }

    #[test]
    fn rows_of_an_lba_are_read_once_and_neighbours_by_one_command() {
        // 100 rows of 128 B, four in an LBA, looked up in the order of their ids; ranks below 6 lie in memory.
        let counts: Vec<u32> = (0..100).map(|id| 200 - id).collect();
        let order = HotnessOrder::new(RowCounts::Exact(counts));
        let packing = RowPacking::new(128, 512, 64).unwrap();
        let placed = PlacedTable { order: &order, packing, stripe_lbas: 64, hbm: 2, hot: 6 };
        let mut replay = TraceReplay::new(vec![placed], 2);
        let bags = |ids: &[i64]| [Bags { ids: ids.to_vec(), ends: vec![ids.len() as u32] }];
        // LBAs: 0; 1 (6 is cold, 5 is not); 2; 4.
        replay.batch(&bags(&[16, 0, 5, 6, 6, 9, -1, 100, 17]));
        let want = BatchCounts {
            ids: 7,
            ids_hbm: 1,
            ids_ssd: 5,
            rows_ssd: 4,
            commands: 2,
            bytes: 3 * 512,
            bytes_needed: 4 * 128,
            bytes_asked: 7 * 128,
            bytes_dram: 128,
        };
        assert_eq!((replay.total(), replay.missing()), (&want, 2));
        let [kept] = replay.samples() else { panic!("one batch, and it is kept") };
        assert_eq!(kept.sample, want);
        assert_eq!(replay.commands(kept, &[6]).collect::<Vec<_>>(), [(0, 1, 2), (0, 4, 1)]);
        // Of the first ranks every budget is known exactly, but for the command that row 5 began.
        assert_eq!(replay.cold(&[6], &[2]), BatchCounts { commands: 1, bytes: 2 * 512, ..want });
        assert_eq!(replay.cold(&[0], &[0]).commands, 2);
        assert_eq!(replay.cold(&[16], &[0]).rows_ssd, 2);
        assert_eq!(replay.cold(&[100], &[0]).ids_ssd, 0);
        assert_eq!(replay.cold(&[0], &[0]).ids_ssd, 7);
    }

    #[test]
    fn ratios_have_errors() {
        let (mean, error) = ratio([(1.0, 2.0), (3.0, 6.0)].into_iter());
        assert_eq!((mean, error), (0.5, 0.0));
        // Two parts of 0 and 1: the mean of two such draws has a standard error of a half.
        let (mean, error) = ratio([(0.0, 1.0), (1.0, 1.0)].into_iter());
        assert_eq!((mean, error), (0.5, 0.5));
    }
}
