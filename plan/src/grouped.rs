//! Grouping of a proposal's tables, and whether it pays.

use warprow_layout::RowPacking;

use crate::budget::TierAllocation;
use crate::error::ProposalError;
use crate::group::RowPairs;
use crate::options::GroupRows;
use crate::order::HotnessOrder;
use crate::progress::{ProposalWatch, Told};
use crate::propose::{BLOCK, Proposer};
use crate::replay::{TraceReplay, ratio};
use crate::tier_proposal::RowGrouping;
use crate::trace::{Bags, QueryTrace};

/// The least share of reads that makes grouping worth its while.
const WORTH: f64 = 0.01;

impl Proposer<'_> {
    /// Groups rows behind those in memory by the queries `range`; `None` where nothing can be grouped.
    pub(crate) fn group(
        &self,
        orders: &[HotnessOrder],
        allocation: &TierAllocation,
        trace: &mut QueryTrace<'_>,
        range: std::ops::Range<u64>,
        watch: &mut ProposalWatch<'_>,
    ) -> Result<Option<Vec<Grouped>>, ProposalError> {
        if self.options.group == GroupRows::Off {
            return Ok(None);
        }
        let bytes = (self.options.memory / 4 / orders.len() as u64).min(256 << 20);
        let mut pairs: Vec<Option<RowPairs<'_>>> = orders
            .iter()
            .zip(&allocation.hot)
            .zip(&self.packings)
            .map(|((order, &hot), packing)| {
                let size = u64::from(packing.rows_per_lba());
                let first = hot.next_multiple_of(size);
                (size > 1).then(|| RowPairs::new(order, first, bytes, self.options.seed)).flatten()
            })
            .collect();
        if pairs.iter().all(Option::is_none) {
            return Ok(None);
        }
        let mut told = Told::new("grouping", range.clone(), watch);
        trace.replay(range, BLOCK, &mut |first, bags: &[Bags]| {
            for (pairs, bags) in pairs.iter_mut().zip(bags) {
                if let Some(pairs) = pairs {
                    (first..).zip(bags.queries()).for_each(|(number, ids)| pairs.query(number, ids));
                }
            }
            told.at(first)
        })?;
        let group = |(pairs, packing): (Option<RowPairs<'_>>, &RowPacking)| {
            let size = packing.rows_per_lba();
            let Some((pairs, groups)) = pairs.map(|pairs| {
                let groups = pairs.groups(size);
                (pairs, groups)
            }) else {
                return Grouped::default();
            };
            let count = groups.len() as u64;
            let rows = groups.iter().map(Vec::len).sum::<usize>() as u64;
            let order = (count > 0).then(|| pairs.arrange(groups, size));
            Grouped { order, groups: count, rows }
        };
        let grouped: Vec<Grouped> = pairs.into_iter().zip(&self.packings).map(group).collect();
        Ok(grouped.iter().any(|grouped| grouped.order.is_some()).then_some(grouped))
    }
}

/// A table's rows, grouped.
#[derive(Debug, Default)]
pub(crate) struct Grouped {
    /// `None`: nothing is.
    order: Option<HotnessOrder>,
    groups: u64,
    rows: u64,
}

impl Grouped {
    pub(crate) fn order(&self, otherwise: &HotnessOrder) -> HotnessOrder {
        self.order.as_ref().unwrap_or(otherwise).clone()
    }

    /// Whether it pays, by what was held out.
    pub(crate) fn judge(
        &self,
        plain: &TraceReplay<'_>,
        grouped: &TraceReplay<'_>,
        wish: GroupRows,
    ) -> Option<RowGrouping> {
        self.order.as_ref()?;
        let parts = plain.parts().iter().zip(grouped.parts());
        let saved =
            parts.map(|(plain, grouped)| (plain.commands as f64 - grouped.commands as f64, plain.commands as f64));
        let (commands_saved, error) = ratio(saved);
        let bytes = plain.total().bytes as f64;
        let bytes_saved = if bytes > 0.0 { 1.0 - grouped.total().bytes as f64 / bytes } else { 0.0 };
        let pays = commands_saved > WORTH.max(2.0 * error);
        let applied = pays || wish == GroupRows::On;
        Some(RowGrouping { applied, groups: self.groups, rows: self.rows, commands_saved, error, bytes_saved })
    }
}
