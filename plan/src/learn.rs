//! Counting a trace's ids, and the orders that follow.

use crate::backtest::Backtest;
use crate::error::ProposalError;
use crate::options::TableShape;
use crate::order::{HotnessOrder, RowCounts};
use crate::progress::{ProposalWatch, Told};
use crate::propose::{BLOCK, Proposer};
use crate::trace::QueryTrace;

impl Proposer<'_> {
    /// Orders by the queries `range`, and what was found missing.
    pub(crate) fn orders(
        &self,
        trace: &mut QueryTrace<'_>,
        range: std::ops::Range<u64>,
        what: &'static str,
        backtest: &mut Backtest<'_>,
        watch: &mut ProposalWatch<'_>,
    ) -> Result<(Vec<HotnessOrder>, Found), ProposalError> {
        let share = self.options.memory / self.shapes.len() as u64;
        // Tables that need less than their share leave more for the others.
        let each = |shape: &TableShape| if shape.is_keyed() { RowCounts::KEY_BYTES } else { RowCounts::EXACT_BYTES };
        let exact = |shape: &TableShape| shape.rows.saturating_mul(each(shape));
        let total = self.shapes.iter().map(exact).fold(0, u64::saturating_add);
        let room = |shape: &TableShape| if total <= self.options.memory { exact(shape) } else { share };
        let mut counts: Vec<RowCounts> = self
            .shapes
            .iter()
            .map(|shape| match shape.is_keyed() {
                true => RowCounts::keyed(shape.rows, room(shape)),
                false => RowCounts::new(shape.rows, room(shape)),
            })
            .collect();
        let mut outside: Vec<Option<Outside>> = vec![None; counts.len()];
        let mut ids = vec![0u64; counts.len()];
        let mut told = Told::new(what, range.clone(), watch);
        trace.replay(range, backtest.block(BLOCK), &mut |first, bags| {
            backtest.look(first, &counts, bags);
            for ((counts, bags), (outside, ids)) in counts.iter_mut().zip(bags).zip(outside.iter_mut().zip(&mut ids)) {
                *ids += bags.ids.len() as u64;
                let missing = bags.ids.iter().enumerate().filter(|&(_, &id)| !counts.add(id));
                for (at, &id) in missing {
                    let found = outside.get_or_insert_with(|| {
                        let query = first + bags.ends.partition_point(|&end| end as usize <= at) as u64;
                        Outside { id, query, count: 0, largest: id }
                    });
                    found.count += 1;
                    found.largest = found.largest.max(id);
                }
            }
            told.at(first)
        })?;
        let first = outside.iter().enumerate().find_map(|(at, it)| Some((at, it.as_ref()?)));
        if let Some((at, outside_first)) = first.filter(|_| !self.options.allow_missing) {
            let (table, rows) =
                self.shapes.get(at).map_or((String::new(), 0), |shape| (shape.name.clone(), shape.rows));
            let Outside { id, query, count, .. } = *outside_first;
            let is_sparse = |(it, shape): &(&Option<Outside>, &TableShape)| {
                it.as_ref()
                    .is_some_and(|outside| u64::try_from(outside.largest).is_ok_and(|largest| largest >= shape.rows))
            };
            let sparse =
                outside.iter().zip(self.shapes).filter(is_sparse).map(|(_, shape)| shape.name.clone()).collect();
            return Err(ProposalError::IdsOutside {
                table,
                rows,
                count,
                ids: ids.get(at).copied().unwrap_or(0),
                id,
                query,
                sparse,
            });
        }
        for (counts, shape) in counts.iter().zip(self.shapes) {
            let different = counts.classes().last().map_or(0, |class| class.end);
            if different > shape.rows && !self.options.allow_missing {
                return Err(ProposalError::KeysOutside { table: shape.name.clone(), rows: shape.rows, different });
            }
        }
        let missing = outside.iter().flatten().map(|outside| outside.count).sum();
        let errors = counts.iter().map(RowCounts::error).collect();
        let orders: Vec<HotnessOrder> = counts.into_iter().map(HotnessOrder::new).collect();
        if orders.iter().all(|order| order.seen() == 0) {
            return Err(ProposalError::NothingInTables);
        }
        Ok((orders, Found { ids: ids.iter().sum(), missing, errors }))
    }
}

/// Ids that a table does not have.
#[derive(Debug, Clone)]
struct Outside {
    id: i64,
    query: u64,
    count: u64,
    largest: i64,
}

/// What counting found.
#[derive(Debug)]
pub(crate) struct Found {
    pub ids: u64,
    pub missing: u64,
    /// By how much counts may be too low, by table.
    pub errors: Vec<u64>,
}
