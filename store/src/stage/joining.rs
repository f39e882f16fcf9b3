//! Which reads of a drive become one command.

use crate::ReadCurve;

/// Which reads of one drive become one command. Rows of the same LBA always do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joining {
    max_lbas: u32,
    rule: Rule,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Separate,
    Neighbours,
    /// What commands cost, by LBAs, up to `max_lbas`.
    Costs(Box<[u64]>),
}

impl Joining {
    /// Rows of the same LBA, and no others.
    pub fn separate() -> Self {
        Self { max_lbas: u32::MAX, rule: Rule::Separate }
    }

    /// Neighbouring LBAs as well, in commands of up to `max_lbas`. Nothing between them is read for nothing.
    pub fn neighbours(max_lbas: u32) -> Self {
        Self { max_lbas, rule: Rule::Neighbours }
    }

    /// What one command reads more cheaply than two, by the drive's curve, with what lies between: in commands of up to `max_lbas`, which
    /// are 65,536 at most.
    pub fn by_curve(curve: &ReadCurve, lba_bytes: u32, max_lbas: u32) -> Self {
        let max_lbas = max_lbas.min(1 << 16);
        let cost = |lbas: u32| curve.cost(u64::from(lbas) * u64::from(lba_bytes));
        Self { max_lbas, rule: Rule::Costs((0..=max_lbas).map(cost).collect()) }
    }

    /// LBAs that one command reads for nothing beside a row of `row_lbas`, at most, that being cheaper than two commands.
    pub fn widest_gap(&self, row_lbas: u32) -> u32 {
        let Rule::Costs(costs) = &self.rule else { return 0 };
        let cost = |lbas: u32| costs.get(lbas as usize).copied();
        let Some(apart) = cost(row_lbas).map(|one| one.saturating_mul(2)) else { return 0 };
        let fits = |gap: u32| cost(row_lbas.saturating_mul(2).saturating_add(gap)).is_some_and(|one| one < apart);
        (1..=self.max_lbas).take_while(|&gap| fits(gap)).last().unwrap_or(0)
    }

    /// Whether a command of `lbas` LBAs takes in a read of `more`, which makes it one of `joined`. They overlap if `joined` is less than
    /// both together, and there is a gap if it is more.
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
                let (one, two) = (cost(joined), cost(lbas.into()).saturating_add(cost(more.into())));
                // Of two ways that cost the same, the one with fewer commands and no more bytes.
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
        assert_eq!(Joining::by_curve(&optane, 512, 256).widest_gap(1), 2);
        assert_eq!(Joining::by_curve(&flash, 512, 256).widest_gap(1), 14);
        assert_eq!(Joining::by_curve(&flash, 512, 8).widest_gap(1), 6, "a command has its bound");
        assert_eq!(Joining::by_curve(&flash, 4096, 256).widest_gap(1), 0);
        assert_eq!(Joining::by_curve(&flash, 512, 256).widest_gap(300), 0, "no such row");
        assert_eq!((Joining::separate().widest_gap(1), Joining::neighbours(8).widest_gap(1)), (0, 0));
    }
}
