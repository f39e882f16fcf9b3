//! The rule that says which rows of a drive share a read command.

use warprow_store::ReadCurve;

/// The rule that says which rows of one drive share a read command. Rows of the same LBA always do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeRule {
    max_lbas: u32,
    rule: Rule,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Separate,
    Neighbours,
    /// By cost: what a command costs, by its number of LBAs, up to `max_lbas`.
    Costs(Box<[u64]>),
}

impl MergeRule {
    /// Rows of the same LBA share a command, and no others do.
    pub fn separate() -> Self {
        Self { max_lbas: u32::MAX, rule: Rule::Separate }
    }

    /// Rows of neighbouring LBAs share a command too, of up to `max_lbas` LBAs. No LBA between rows is read in vain.
    pub fn neighbours(max_lbas: u32) -> Self {
        Self { max_lbas, rule: Rule::Neighbours }
    }

    /// Rows share a command if, by the drive's read curve, one command reads them and the LBAs between them more
    /// cheaply than two commands would read them. Commands have up to `max_lbas` LBAs, and never more than 65,536.
    pub fn by_curve(curve: &ReadCurve, lba_bytes: u32, max_lbas: u32) -> Self {
        let max_lbas = max_lbas.min(1 << 16);
        let cost = |lbas: u32| curve.cost(u64::from(lbas) * u64::from(lba_bytes));
        Self { max_lbas, rule: Rule::Costs((0..=max_lbas).map(cost).collect()) }
    }

    /// The widest gap between two rows of `row_lbas` LBAs that one command reads in vain, because that is still cheaper
    /// than two commands; 0 if gaps are never read.
    pub fn widest_gap(&self, row_lbas: u32) -> u32 {
        let Rule::Costs(costs) = &self.rule else { return 0 };
        let cost = |lbas: u32| costs.get(lbas as usize).copied();
        let Some(apart) = cost(row_lbas).map(|one| one.saturating_mul(2)) else { return 0 };
        let fits = |gap: u32| cost(row_lbas.saturating_mul(2).saturating_add(gap)).is_some_and(|one| one < apart);
        (1..=self.max_lbas).take_while(|&gap| fits(gap)).last().unwrap_or(0)
    }

    /// The largest aligned window of LBAs in which all rows that are wanted may share one command, whichever these are.
    /// Rows have at least `row_lbas` LBAs, the window at most `most_lbas`. Returns log₂ of the window's LBAs, and the
    /// most LBAs between one row and the next. If the rule is by cost, no such command costs more than its rows would
    /// cost apart. (0, 0): rows of different LBAs share no command.
    pub fn window(&self, row_lbas: u32, most_lbas: u32) -> (u32, u32) {
        let two = row_lbas.saturating_mul(2);
        let most = most_lbas.min(self.max_lbas);
        let (lbas, gap) = match &self.rule {
            Rule::Separate => (0, 0),
            Rule::Neighbours => (most, 0),
            // One command that reads all the window's LBAs is cheaper than two commands for any two of its rows, and so
            // also cheaper than a command for each of more rows.
            Rule::Costs(_) if self.takes_in(row_lbas, row_lbas, two.into()) => {
                let gap = self.widest_gap(row_lbas);
                (two.saturating_add(gap).min(most), gap)
            }
            Rule::Costs(_) => (0, 0),
        };
        match lbas.checked_ilog2() {
            Some(shift) if shift > 0 && 1 << shift >= two => (shift, gap),
            _ => (0, 0),
        }
    }

    /// Whether a read of `more` LBAs is joined to a command of `lbas` LBAs, which makes a command of `joined` LBAs. The
    /// two overlap if `joined` is less than their sum, and there is a gap between them if it is more.
    #[inline(always)]
    pub(super) fn takes_in(&self, lbas: u32, more: u32, joined: u64) -> bool {
        let apart = u64::from(lbas) + u64::from(more);
        if joined > u64::from(self.max_lbas) {
            return false;
        }
        match &self.rule {
            _ if joined < apart => true,
            Rule::Separate => false,
            Rule::Neighbours => joined == apart,
            Rule::Costs(costs) => {
                let cost = |lbas: u64| costs.get(lbas as usize).copied().unwrap_or(u64::MAX);
                let one = cost(joined);
                let two = cost(lbas.into()).saturating_add(cost(more.into()));
                // If both ways cost the same, one command is better, as long as it reads no more bytes.
                one < two || one == two && joined == apart
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_as_wide_as_they_pay() {
        // A P5800X, as the software controller has it, and a drive that takes 3.3 M commands and 14 GB a second.
        let optane = ReadCurve::new(&[(512, 5e6), (1024, 5e6), (4096, 1.5e6), (8192, 7.2e9 / 8192.0)]).unwrap();
        let flash = ReadCurve::of_limits(3.3e6, 14e9).unwrap();
        assert_eq!(MergeRule::by_curve(&optane, 512, 256).widest_gap(1), 2);
        assert_eq!(MergeRule::by_curve(&flash, 512, 256).widest_gap(1), 14);
        assert_eq!(MergeRule::by_curve(&flash, 512, 8).widest_gap(1), 6, "a command has its bound");
        assert_eq!(MergeRule::by_curve(&flash, 4096, 256).widest_gap(1), 0);
        assert_eq!(MergeRule::by_curve(&flash, 512, 256).widest_gap(300), 0, "no such row");
        assert_eq!((MergeRule::separate().widest_gap(1), MergeRule::neighbours(8).widest_gap(1)), (0, 0));
    }

    #[test]
    fn windows_are_as_long_as_two_rows_pay() {
        let optane = ReadCurve::new(&[(512, 5e6), (1024, 5e6), (4096, 1.5e6), (8192, 7.2e9 / 8192.0)]).unwrap();
        let flash = ReadCurve::of_limits(3.3e6, 14e9).unwrap();
        assert_eq!(MergeRule::by_curve(&optane, 512, 256).window(1, 32), (2, 2));
        assert_eq!(MergeRule::by_curve(&flash, 512, 256).window(1, 32), (4, 14));
        assert_eq!(MergeRule::by_curve(&flash, 512, 256).window(1, 8), (3, 14), "a command has its bound");
        assert_eq!(MergeRule::by_curve(&flash, 4096, 256).window(1, 16), (1, 0));
        assert_eq!(MergeRule::by_curve(&flash, 512, 1).window(1, 32), (0, 0), "two rows are beyond MDTS");
        assert_eq!(MergeRule::by_curve(&flash, 512, 256).window(8, 8), (0, 0), "two rows are beyond a window");
        assert_eq!(MergeRule::neighbours(256).window(1, 32), (5, 0));
        assert_eq!(MergeRule::neighbours(4).window(1, 32), (2, 0));
        assert_eq!(MergeRule::separate().window(1, 32), (0, 0));
        // Two reads of 512 B are cheaper than one of 1 KiB.
        let odd = ReadCurve::new(&[(512, 5e6), (1024, 1e6)]).unwrap();
        assert_eq!(MergeRule::by_curve(&odd, 512, 256).window(1, 32), (0, 0));
    }

    /// Whatever rows of a window are wanted, one command for them costs no more than one for each.
    #[test]
    fn no_window_costs_more_than_its_rows() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let reads = random.f64() * 5e6 + 1e5;
            let bytes = random.f64() * 2e10 + 1e8;
            let curve = ReadCurve::of_limits(reads, bytes).unwrap();
            let lba = [512, 4096][random.usize(0..2)];
            let row = random.u32(1..4);
            let (shift, gap) = MergeRule::by_curve(&curve, lba, 256).window(row, 128);
            let cost = |lbas: u32| curve.cost(u64::from(lbas) * u64::from(lba));
            for _ in 0..50 {
                let mut behind = 0;
                let mut rows = 0u32;
                let first = random.u32(0..1 << shift);
                let mut at = first;
                while at + row <= 1 << shift {
                    (rows, behind) = (rows + 1, at + row);
                    at += row + random.u32(0..=gap);
                }
                let apart = u64::from(rows).saturating_mul(cost(row));
                assert!(rows < 2 || cost(behind - first) <= apart, "{curve}: {rows} rows of {row} in 1 << {shift}");
            }
        }
    }
}
