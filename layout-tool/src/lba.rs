//! Which LBA size suits rows, by arithmetic: what a look-up of them costs a drive with LBAs of 512 and of 4096 bytes.

use serde_json::{Value, json};

use crate::units;

/// The sizes that a store can have.
pub const SIZES: [u32; 2] = [512, 4096];

/// Different rows of a table that a look-up reads from drives, if nobody says.
pub const IDS: u64 = 4096;

/// Commands that a drive ends in a second, at best: what drives of 2022 to 2025 state for random reads of 4 KiB or less.
const COMMANDS: f64 = 1.0e6;
/// Bytes that it transfers in a second: four lanes of PCIe 4.
const BYTES: f64 = 6.5e9;
/// Bytes of a command, at most.
const COMMAND_BYTES: f64 = 131_072.0;
/// Bytes of a stripe unit: neighbours beyond it lie elsewhere.
const STRIPE: f64 = 32_768.0;
/// What is left of the commands where a drive says of an LBA format that its relative performance is best, better, good or
/// degraded (NVM Command Set, LBA Format Data Structure). The words are the specification's, the numbers a guess.
const PERFORMANCE: [f64; 4] = [1.0, 0.8, 0.6, 0.35];
/// Times that differ by less are the same: the numbers above are no better.
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
    /// The relative performance that the drive with the worst states: 0, the best, to 3.
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
    /// Seconds for one drive.
    pub seconds: f64,
}

/// A choice, and what it was made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The size.
    pub lba_bytes: u32,
    /// Of each size that can be had, what it costs.
    pub costs: Vec<Cost>,
    /// Why, in a line.
    pub why: String,
}

impl Cost {
    /// Of look-ups that read the rows of all tables.
    fn of(rows: &[Rows], offer: Offer) -> Self {
        let mut cost = Self { offer, commands: 0.0, read: 0.0, used: 0.0, stored: 0.0, seconds: 0.0 };
        rows.iter().for_each(|rows| cost.add(rows));
        let commands = COMMANDS * PERFORMANCE.get(usize::from(offer.performance)).copied().unwrap_or(0.35);
        cost.seconds = (cost.commands / commands).max(cost.read / BYTES);
        cost
    }

    fn add(&mut self, rows: &Rows) {
        let (lba, bytes) = (f64::from(self.offer.lba_bytes), f64::from(rows.bytes));
        let (count, ids) = (rows.count as f64, (rows.ids as f64).min(rows.count as f64));
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
    /// The size with which a look-up of `rows` takes the least time; of two that take the same, the one that reads the fewest
    /// bytes; 4096 if they are as good there too. `None` where nothing is offered, or there are no rows.
    pub fn new(rows: &[Rows], offers: &[Offer]) -> Option<Self> {
        let rows: Vec<Rows> = rows.iter().copied().filter(|it| it.bytes > 0 && it.count > 0 && it.ids > 0).collect();
        let mut costs: Vec<Cost> = offers.iter().map(|&offer| Cost::of(&rows, offer)).collect();
        costs.sort_by_key(|cost| std::cmp::Reverse(cost.offer.lba_bytes));
        let mut best = *costs.first().filter(|_| !rows.is_empty())?;
        let mut because = "no other size is offered";
        for &other in costs.iter().skip(1) {
            let (faster, slower) = (other.seconds * SAME < best.seconds, best.seconds * SAME < other.seconds);
            let less = other.read * SAME < best.read;
            because = match (faster, slower) {
                (true, _) | (_, true) => "it takes the least time",
                _ if less || best.read * SAME < other.read => "it reads the fewest bytes in the same time",
                _ => "both do as well, and it is what flash has inside",
            };
            if faster || (!slower && less) {
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
            format!(
                "{} B: {} of {}, {:.1} bytes for each used, {} stored{worse}",
                cost.offer.lba_bytes,
                units::plural(cost.commands.ceil() as u64, "command"),
                units::bytes((cost.read / cost.commands.max(1.0)) as u64),
                cost.read / cost.used,
                units::bytes(cost.stored as u64)
            )
        });
        let why = format!("LBAs of {} B: {because} ({})", best.offer.lba_bytes, each.collect::<Vec<_>>().join("; "));
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

    fn choose(all: &[Rows]) -> u32 {
        Choice::new(all, &BOTH).unwrap().lba_bytes
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
        let choose = |offers: &[Offer]| Choice::new(&[rows(128, 1 << 30, 4096)], offers).unwrap();
        assert_eq!(choose(&offer(0, 0)).lba_bytes, 512);
        let degraded = choose(&offer(3, 0));
        assert_eq!(degraded.lba_bytes, 4096);
        assert!(degraded.why.contains("degraded performance"), "{}", degraded.why);
        assert_eq!(choose(&offer(2, 2)).lba_bytes, 512);
        assert_eq!(choose(&offer(0, 3)).lba_bytes, 512);
        assert_eq!(choose(&[Offer { lba_bytes: 4096, performance: 3 }]).lba_bytes, 4096);
        assert!(Choice::new(&[rows(128, 9, 9)], &[]).is_none() && Choice::new(&[], &BOTH).is_none());
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
            let cost = Cost::of(&[rows(bytes, count, ids)], Offer { lba_bytes: lba, performance: 0 });
            let per_lba = u64::from(lba / bytes).max(1);
            let lbas_of_row = u64::from(bytes.div_ceil(lba));
            let (mut state, mut drawn) = (7u64, std::collections::BTreeSet::new());
            while (drawn.len() as u64) < ids {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                drawn.insert((state >> 33) % count);
            }
            let blocks: std::collections::BTreeSet<u64> = drawn.iter().map(|id| id / per_lba).collect();
            let stripe = u64::from(32768 / (lba * lbas_of_row as u32));
            let begins = |block: &&u64| block.is_multiple_of(stripe) || !blocks.contains(&(**block).wrapping_sub(1));
            let (read, commands) =
                (blocks.len() as f64 * lbas_of_row as f64 * f64::from(lba), blocks.iter().filter(begins).count());
            assert!((cost.read / read - 1.0).abs() < 0.05, "{bytes} {ids} {lba}: {} {read}", cost.read);
            let off = cost.commands / commands as f64;
            assert!((off - 1.0).abs() < 0.12, "{bytes} {ids} {lba}: {} {commands}", cost.commands);
        }
    }
}
