//! Which LBA size suits rows: what a look-up of them reads with LBAs of 512 and of 4096 bytes, and what that costs drives by their
//! read curves.
//!
//! What a read costs is the store's [`ReadCurve`]. What is reckoned here is how many reads there are and how long they are, before
//! there is a store or a trace: `format --lba auto` knows the tables' rows alone, and `load --lba auto` counts no look-ups. The
//! executors' merging of reads and the replay of `warprow plan` need the ids themselves, so neither can answer that.
//! [`LbaChoice::ForRows`](warprow_store::LbaChoice) knows one length of rows, and none of rows that share an LBA.
//!
//! Blocks that random rows touch are reckoned as by Cardenas ("Analysis and performance of inverted data base structures",
//! Communications of the ACM 18(5), 1975; Yao, 20(4), 1977, has the exact form for draws without repetition, from which this differs
//! by less than the test below allows). The test compares blocks and commands with counts of ids that were drawn.

use serde_json::{Value, json};
use warprow_layout::DEFAULT_STRIPE_UNIT;
use warprow_store::ReadCurve;
use warprow_workload::units;

/// The sizes that a store can have.
pub const SIZES: [u32; 2] = [512, 4096];

/// Different rows of a table that a look-up reads from drives, if nobody says.
pub const IDS: u64 = 4096;

/// Bytes of a command, at most.
const COMMAND_BYTES: f64 = 131_072.0;
/// Bytes of a stripe unit: neighbours beyond it lie elsewhere.
const STRIPE: f64 = DEFAULT_STRIPE_UNIT as f64;
/// Times, and numbers of bytes, that differ by less are the same: a measured curve is no better.
const SAME: f64 = 1.05;

/// Rows that are to be looked up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rows {
    /// Bytes of one.
    pub bytes: u32,
    /// How many there are.
    pub count: u64,
    /// How many different ones of them a look-up reads from drives.
    pub ids: u64,
}

/// What drives say of an LBA size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The size.
    pub lba_bytes: u32,
    /// The relative performance that the drive with the worst states (NVM Command Set, LBA Format Data Structure): 0, the best, to 3.
    pub performance: u8,
}

/// What a look-up costs with LBAs of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The size, and how well drives do with it.
    pub offer: Offer,
    /// Commands.
    pub commands: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes of the rows among them.
    pub used: f64,
    /// Bytes that all rows take on drives.
    pub stored: f64,
    /// Seconds that one drive takes, the slowest, by its read curve; `None`: no curve is known.
    pub seconds: Option<f64>,
}

/// A choice, and what it was made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The size.
    pub lba_bytes: u32,
    /// What a look-up costs with each LBA size that the drives offer.
    pub costs: Vec<Cost>,
    /// Why, in a line.
    pub why: String,
}

impl Cost {
    /// The cost of look-ups that read the rows of all tables.
    fn of(rows: &[Rows], offer: Offer, curves: &[ReadCurve]) -> Self {
        let mut cost = Self { offer, commands: 0.0, read: 0.0, used: 0.0, stored: 0.0, seconds: None };
        let mut reads = Vec::with_capacity(rows.len());
        for rows in rows {
            let before = (cost.commands, cost.read);
            cost.add(rows);
            reads.push((cost.commands - before.0, cost.read - before.1));
        }
        // Short and long reads do not make up for each other: each table's are by their own length.
        let seconds = |curve: &ReadCurve| {
            let of_table =
                |&(commands, bytes): &(f64, f64)| commands / curve.reads_per_second((bytes / commands).ceil() as u64);
            reads.iter().map(of_table).sum::<f64>()
        };
        cost.seconds = curves.iter().map(seconds).max_by(f64::total_cmp);
        cost
    }

    fn add(&mut self, rows: &Rows) {
        let lba = f64::from(self.offer.lba_bytes);
        let bytes = f64::from(rows.bytes);
        let count = rows.count as f64;
        let ids = (rows.ids as f64).min(rows.count as f64);
        // A *block* is what is read for a row: an LBA that several rows share, or the LBAs that one takes.
        let per_block = (lba / bytes).floor().max(1.0);
        let block = (bytes / lba).ceil() * lba;
        let blocks = (count / per_block).ceil();
        // Ids that memory does not have are spread evenly: a block has none of them with that chance.
        let touched = 1.0 - (1.0 - ids / count).powf(per_block.min(count));
        let read = blocks * touched;
        // A command begins with each block whose neighbour in front is not read, or lies in another stripe unit.
        let neighbour = touched * (1.0 - (block / STRIPE).min(1.0));
        let commands = (read * (1.0 - neighbour)).max(read * block / COMMAND_BYTES).max(1.0);
        self.commands += commands;
        self.read += read * block;
        self.used += ids * bytes;
        self.stored += blocks * block;
    }

    fn json(&self) -> Value {
        json!({
            "lba_bytes": self.offer.lba_bytes,
            "relative_performance": self.offer.performance,
            "commands": self.commands,
            "bytes_read": self.read,
            "bytes_used": self.used,
            "bytes_stored": self.stored,
            "seconds": self.seconds,
        })
    }
}

impl Choice {
    /// The size with which a look-up of `rows` takes the least time on drives that read as `curves` say; of two that take the same, or
    /// if there is no curve, the one that reads the fewest bytes; 4096 if they are as good there too. What drives themselves say of
    /// their LBA formats comes first, where it differs: a curve is of one format. `None` where nothing is offered, or there are no rows.
    pub fn new(rows: &[Rows], offers: &[Offer], curves: &[ReadCurve]) -> Option<Self> {
        let rows: Vec<Rows> =
            rows.iter().copied().filter(|row| row.bytes > 0 && row.count > 0 && row.ids > 0).collect();
        let mut costs: Vec<Cost> = offers.iter().map(|&offer| Cost::of(&rows, offer, curves)).collect();
        costs.sort_by_key(|cost| std::cmp::Reverse(cost.offer.lba_bytes));
        let mut best = *costs.first().filter(|_| !rows.is_empty())?;
        let mut because = "no other size is offered";
        for &other in costs.iter().skip(1) {
            let states = other.offer.performance;
            let wants = best.offer.performance;
            let less = |a: f64, b: f64| a * SAME < b;
            let faster = |a: &Cost, b: &Cost| a.seconds.zip(b.seconds).is_some_and(|(a, b)| less(a, b));
            let takes = if states != wants {
                because = "the drives say that they do better with them";
                states < wants
            } else if faster(&other, &best) || faster(&best, &other) {
                because = "by the read curve, a look-up takes the least time";
                faster(&other, &best)
            } else if less(other.read, best.read) || less(best.read, other.read) {
                because = match best.seconds {
                    Some(_) => "by the read curve both take the same time, and it reads the fewest bytes",
                    None => "it reads the fewest bytes; no drive is there yet, or could be measured in that time",
                };
                less(other.read, best.read)
            } else {
                because = "both do as well, and it is what flash has inside";
                false
            };
            if takes {
                best = other;
            }
        }
        costs.reverse();
        let each = costs.iter().map(|cost| {
            let worse = match cost.offer.performance {
                0 => "",
                1 => ", \"better\" performance",
                2 => ", \"good\" performance",
                _ => ", degraded performance",
            };
            let time = cost.seconds.map(|seconds| format!(", {:.0} µs of a drive", seconds * 1e6)).unwrap_or_default();
            format!(
                "{} B: {} of {}, {:.1} bytes for each used{time}, {} stored{worse}",
                cost.offer.lba_bytes,
                units::plural(cost.commands.ceil() as u64, "command"),
                units::bytes((cost.read / cost.commands.max(1.0)) as u64),
                cost.read / cost.used,
                units::bytes(cost.stored as u64)
            )
        });
        let curves: String = curves.iter().map(|curve| format!("; read curve {curve}")).collect();
        let each = each.collect::<Vec<_>>().join("; ");
        let why = format!("LBAs of {} B: {because} ({each}{curves})", best.offer.lba_bytes);
        Some(Self { lba_bytes: best.offer.lba_bytes, costs, why })
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "lba_bytes": self.lba_bytes,
            "why": self.why,
            "costs": self.costs.iter().map(Cost::json).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Offer; 2] = [Offer { lba_bytes: 512, performance: 0 }, Offer { lba_bytes: 4096, performance: 0 }];

    fn rows(bytes: u32, count: u64, ids: u64) -> Rows {
        Rows { bytes, count, ids }
    }

    /// A drive whose commands of up to so many bytes cost the same, and longer ones as much a byte.
    fn flash() -> ReadCurve {
        ReadCurve::of_limits(1.0e6, 6.5e9).unwrap()
    }

    /// A drive that reads 512 bytes more often than 4096, as Optane does.
    fn optane() -> ReadCurve {
        ReadCurve::new(&[(512, 5e6), (1024, 5e6), (4096, 1.5e6), (8192, 7.2e9 / 8192.0)]).unwrap()
    }

    fn choose(all: &[Rows]) -> u32 {
        let choices = [vec![], vec![flash()], vec![optane()], vec![flash(), optane()]];
        let choices = choices.map(|curves| Choice::new(all, &BOTH, &curves).unwrap().lba_bytes);
        assert!(choices.iter().all(|&choice| choice == choices[0]), "{all:?}: {choices:?}");
        choices[0]
    }

    #[test]
    fn few_rows_of_many_want_what_reads_the_fewest_bytes() {
        let many = 1 << 30;
        for (bytes, lba) in [
            (128, 512),
            (512, 512),
            (513, 512),
            (3584, 512),
            // Eight small ones or one large are the same bytes in one command.
            (3585, 4096),
            (4096, 4096),
            // 10 or 16 of 512 bytes.
            (5000, 512),
            (8192, 4096),
            (1 << 20, 4096),
        ] {
            assert_eq!(choose(&[rows(bytes, many, 4096)]), lba, "{bytes}");
        }
    }

    #[test]
    fn rows_that_share_an_lba_and_are_read_together_want_large_ones() {
        // A third of all rows: nearly each LBA of 4096 bytes is read, in long commands.
        let dense = rows(64, 30_000, 10_000);
        assert_eq!(choose(&[dense]), 4096);
        assert_eq!(choose(&[rows(64, 1 << 30, 10_000)]), 512);
        // A little table beside a vast one does not count.
        assert_eq!(choose(&[rows(64, 300, 100), rows(128, 1 << 30, 10_000)]), 512);
    }

    #[test]
    fn what_drives_say_of_a_format_counts() {
        let offer = |small, large| {
            [Offer { lba_bytes: 512, performance: small }, Offer { lba_bytes: 4096, performance: large }]
        };
        let choose = |offers: &[Offer]| Choice::new(&[rows(128, 1 << 30, 4096)], offers, &[flash()]).unwrap();
        assert_eq!(choose(&offer(0, 0)).lba_bytes, 512);
        let degraded = choose(&offer(3, 0));
        assert_eq!(degraded.lba_bytes, 4096);
        assert!(degraded.why.contains("degraded performance"), "{}", degraded.why);
        assert_eq!(choose(&offer(2, 2)).lba_bytes, 512);
        assert_eq!(choose(&offer(0, 3)).lba_bytes, 512);
        assert_eq!(choose(&[Offer { lba_bytes: 4096, performance: 3 }]).lba_bytes, 4096);
        assert!(Choice::new(&[rows(128, 9, 9)], &[], &[]).is_none() && Choice::new(&[], &BOTH, &[]).is_none());
    }

    /// Tables of very different sizes, as click logs have them: with LBAs of 4096 bytes those of a few thousand rows need fewer commands,
    /// and for a few large ones many times the bytes are read.
    #[test]
    fn tables_of_all_sizes_are_decided_by_the_read_curve() {
        let sizes = [20_000_000, 5_000_000, 20_000, 18_000, 15_000, 12_000, 10_000, 9_000, 8_000, 7_000];
        let all = sizes.map(|count| rows(160, count, 4096));
        let choose = |curves: &[ReadCurve]| Choice::new(&all, &BOTH, curves).unwrap();
        let [small, large] = choose(&[]).costs[..] else { panic!() };
        assert!(large.commands * SAME < small.commands && small.read * 3.0 < large.read, "{small:?} {large:?}");
        // Where a read of 4096 bytes costs no more than one of 512, fewer commands are what counts; elsewhere bytes are.
        assert_eq!(choose(&[flash()]).lba_bytes, 4096);
        for curves in [vec![optane()], vec![], vec![ReadCurve::new(&[(512, 4e6), (4096, 2e6)]).unwrap()]] {
            let choice = choose(&curves);
            assert_eq!(choice.lba_bytes, 512, "{}", choice.why);
            let by_curve = choice.why.contains("by the read curve") && choice.why.contains("read curve 512 B");
            assert_eq!(by_curve, !curves.is_empty(), "{}", choice.why);
        }
        // With several drives, the look-up waits for the slowest.
        let both = choose(&[flash(), optane()]);
        assert_eq!(both.costs[0].seconds, small_seconds(&all, &flash()));
    }

    fn small_seconds(all: &[Rows], curve: &ReadCurve) -> Option<f64> {
        Cost::of(all, BOTH[0], std::slice::from_ref(curve)).seconds
    }

    /// Against a count of what evenly spread ids touch.
    #[test]
    fn costs_are_those_of_ids_drawn_at_random() {
        for (bytes, count, ids, lba) in [
            (128u32, 40_000u64, 2000u64, 4096u32),
            (128, 40_000, 20_000, 512),
            (700, 5000, 3000, 512),
            (64, 9000, 900, 512),
        ] {
            let cost = Cost::of(&[rows(bytes, count, ids)], Offer { lba_bytes: lba, performance: 0 }, &[]);
            let per_lba = u64::from(lba / bytes).max(1);
            let lbas_of_row = u64::from(bytes.div_ceil(lba));
            let mut state = 7u64;
            let mut drawn = std::collections::BTreeSet::new();
            while (drawn.len() as u64) < ids {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                drawn.insert((state >> 33) % count);
            }
            let blocks: std::collections::BTreeSet<u64> = drawn.iter().map(|id| id / per_lba).collect();
            let stripe = u64::from(32768 / (lba * lbas_of_row as u32));
            let begins = |block: &&u64| block.is_multiple_of(stripe) || !blocks.contains(&(**block).wrapping_sub(1));
            let read = blocks.len() as f64 * lbas_of_row as f64 * f64::from(lba);
            let commands = blocks.iter().filter(begins).count();
            assert!((cost.read / read - 1.0).abs() < 0.05, "{bytes} {ids} {lba}: {} {read}", cost.read);
            let off = cost.commands / commands as f64;
            assert!((off - 1.0).abs() < 0.12, "{bytes} {ids} {lba}: {} {commands}", cost.commands);
        }
    }
}
