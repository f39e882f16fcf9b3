//! From tables, a trace and budgets to a tier proposal.

use warprow_gpu::gpu_row_bytes;
use warprow_layout::RowPacking;

use crate::backtest::Backtest;
use crate::budget::{MemoryBudgets, TableHotness, TierAllocation, allocate};
use crate::error::ProposalError;
use crate::grouped::Grouped;
use crate::options::{ProposalOptions, TableShape};
use crate::order::HotnessOrder;
use crate::progress::{ProposalWatch, Told};
use crate::replay::{PlacedTable, TraceReplay};
use crate::tier_proposal::{OrderedProposal, RowGrouping, TableProposal, TierProposal, TraceSummary};
use crate::trace::QueryTrace;

/// The least queries of a trace.
const LEAST: u64 = 10;
/// Queries read at a time where batches do not matter.
pub(crate) const BLOCK: usize = 1 << 13;
/// Bytes of all tables on drives, at most: more than any drives have, and few enough to reckon with.
const MOST: u64 = 1 << 60;
/// Bytes of a stripe unit.
const STRIPE: u64 = 32 << 10;

pub(crate) struct Proposer<'a> {
    pub shapes: &'a [TableShape],
    pub options: &'a ProposalOptions,
    pub packings: Vec<RowPacking>,
    pub stripe_lbas: u64,
    /// Bytes of a row in memory.
    pub in_memory: Vec<u64>,
    /// Memory for rows: what indices of keys leave.
    pub budgets: MemoryBudgets,
}

/// Proposes tiers for the rows of `tables` by `trace`, whose columns are theirs in the same order.
pub fn propose(
    tables: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    watch: &mut ProposalWatch<'_>,
) -> Result<OrderedProposal, ProposalError> {
    Proposer::new(tables, trace, options)?.propose(trace, watch)
}

impl<'a> Proposer<'a> {
    pub(crate) fn new(
        shapes: &'a [TableShape],
        trace: &QueryTrace<'_>,
        options: &'a ProposalOptions,
    ) -> Result<Self, ProposalError> {
        let refuse = |option, reason: String| Err(ProposalError::Option { option, reason });
        let Some(first) = shapes.first() else { return Err(ProposalError::NoTables) };
        if !shapes.iter().map(|shape| &*shape.name).eq(trace.tables()) {
            return refuse("trace", "its tables are not the plan's, in their order".to_owned());
        }
        if options.batch == 0 {
            return refuse("batch", "a look-up has one query at least".to_owned());
        }
        if !(options.held_out > 0.0 && options.held_out <= 0.5) {
            return refuse("held-out", format!("{} of the trace: above 0 and up to 0.5 is possible", options.held_out));
        }
        if trace.queries() < LEAST {
            return Err(ProposalError::TooShort { queries: trace.queries(), least: LEAST });
        }
        options.drives.timing()?;
        let table = |shape: &TableShape, reason: &str| ProposalError::Table {
            table: shape.name.clone(),
            reason: reason.to_owned(),
        };
        let row_bytes = |shape: &TableShape| {
            let bytes = shape.dtype.row_bytes(shape.dim).filter(|&bytes| bytes > 0 && shape.rows > 0);
            bytes.ok_or_else(|| table(shape, "it has no rows, or these no bytes"))
        };
        let row_bytes = shapes.iter().map(row_bytes).collect::<Result<Vec<_>, _>>()?;
        let largest = row_bytes.iter().copied().max().unwrap_or(0);
        let stripe = STRIPE.max(u64::from(largest).next_power_of_two());
        let stripe_lbas = stripe / u64::from(options.drives.lba);
        let packing = |(shape, &bytes): (&TableShape, &u32)| {
            let packing =
                u32::try_from(stripe_lbas).ok().and_then(|number| RowPacking::new(bytes, options.drives.lba, number));
            packing.ok_or_else(|| table(shape, "its rows are too large"))
        };
        let packings = shapes.iter().zip(&row_bytes).map(packing).collect::<Result<Vec<_>, _>>()?;
        let on_gpu = options.budgets.hbm > 0;
        let in_memory = |&bytes: &u32| u64::from(if on_gpu { gpu_row_bytes(bytes) } else { bytes });
        let in_memory = row_bytes.iter().map(in_memory).collect();
        // Indices of keys lie where look-ups run.
        let index_bytes = shapes.iter().filter_map(|shape| shape.index_bytes).fold(0, u64::saturating_add);
        let mut budgets = options.budgets;
        let (budget, bytes) = match on_gpu {
            true => ("GPU memory", &mut budgets.hbm),
            false => ("DRAM", &mut budgets.dram),
        };
        if *bytes != 0 && *bytes < index_bytes {
            return Err(ProposalError::Index { budget, bytes: *bytes, index_bytes });
        }
        *bytes = bytes.saturating_sub(index_bytes);
        let proposer = Self { shapes, options, packings, stripe_lbas, in_memory, budgets };
        let needed = proposer.tables_on_drives().fold(0, |sum: u64, it| sum.saturating_add(it.0));
        let drives = &options.drives;
        if needed > MOST {
            let largest = proposer.tables_on_drives().zip(shapes).max_by_key(|(it, _)| it.0);
            return Err(table(largest.map_or(first, |pair| pair.1), "its rows take more bytes than any drives have"));
        }
        let room = drives.bytes.saturating_mul(drives.count.into());
        match room != 0 && needed > room {
            true => Err(ProposalError::Drives { needed, room }),
            false => Ok(proposer),
        }
    }

    /// How many of so many queries are held out.
    pub(crate) fn held_out(&self, queries: u64) -> u64 {
        ((queries as f64 * self.options.held_out) as u64).clamp(1, queries - 1)
    }

    /// Bytes of a row, by table.
    pub(crate) fn row_bytes(&self) -> impl Iterator<Item = u32> + '_ {
        self.packings.iter().map(RowPacking::row_bytes)
    }

    /// Bytes that each table's rows take on drives, and how many these are.
    pub(crate) fn tables_on_drives(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let lba = u64::from(self.options.drives.lba);
        self.shapes.iter().zip(&self.packings).map(move |(shape, packing)| {
            (packing.lbas(shape.rows).map_or(u64::MAX, |lbas| lbas.saturating_mul(lba)), shape.rows)
        })
    }

    fn propose(
        &self,
        trace: &mut QueryTrace<'_>,
        watch: &mut ProposalWatch<'_>,
    ) -> Result<OrderedProposal, ProposalError> {
        let queries = trace.queries();
        let options = self.options;
        let held_out = self.held_out(queries);
        let learnt = 0..queries - held_out;
        let held = queries - held_out..queries;
        let batch = u64::from(options.batch).min(held_out);

        let (orders, _) = self.orders(trace, learnt.clone(), "learning", &mut Backtest::none(self), watch)?;
        let allocation = self.allocate(&orders)?;
        let grouped = self.group(&orders, &allocation, trace, learnt, watch)?;

        let mut plain = TraceReplay::new(self.placed(&orders, &allocation), held_out / batch);
        let grouped_orders: Vec<HotnessOrder> = match &grouped {
            Some(grouped) => grouped.iter().zip(&orders).map(|(it, order)| it.order(order)).collect(),
            None => Vec::new(),
        };
        let mut together = grouped.as_ref().map(|_| {
            // Table by table, so that each is judged by itself.
            (0..orders.len())
                .map(|at| {
                    let mix = orders.iter().zip(&grouped_orders).enumerate();
                    let mix: Vec<&HotnessOrder> =
                        mix.map(|(i, (plain, it))| if i == at { it } else { plain }).collect();
                    TraceReplay::new(self.placed_by(&mix, &allocation), held_out / batch)
                })
                .collect::<Vec<_>>()
        });
        let mut told = Told::new("testing", held.clone(), watch);
        trace.replay(held.clone(), batch as usize, &mut |at, bags| {
            // What is left behind the last whole batch is too short for one.
            if bags.iter().any(|bags| bags.ends.len() as u64 == batch) {
                plain.batch(bags);
                together.iter_mut().flatten().for_each(|replay| replay.batch(bags));
            }
            told.at(at)
        })?;
        let judged: Vec<Option<RowGrouping>> = match (&grouped, &together) {
            (Some(grouped), Some(replays)) => {
                grouped.iter().zip(replays).map(|(it, replay)| it.judge(&plain, replay, options.group)).collect()
            }
            _ => vec![None; orders.len()],
        };
        let applied: Vec<bool> =
            judged.iter().map(|grouping| grouping.is_some_and(|grouping| grouping.applied)).collect();

        // What is loaded is learnt from all of the trace.
        let mut backtest = Backtest::new(self, queries, held_out);
        let (all, missing) = self.orders(trace, 0..queries, "counting", &mut backtest, watch)?;
        let final_allocation = self.allocate(&all)?;
        let later = self.foresight(&self.heats(&all));
        let mut final_orders = all;
        if applied.contains(&true)
            && let Some(grouped) = self.group(&final_orders, &final_allocation, trace, 0..queries, watch)?
        {
            let order = |((order, it), &applied): ((&HotnessOrder, &Grouped), &bool)| match applied {
                true => it.order(order),
                false => order.clone(),
            };
            final_orders = final_orders.iter().zip(&grouped).zip(&applied).map(order).collect();
        }
        let mut chosen = plain;
        if applied.contains(&true) {
            // The tables that are grouped, all together: one more look at what was held out.
            let mix: Vec<&HotnessOrder> = orders
                .iter()
                .zip(&grouped_orders)
                .zip(&applied)
                .map(|((plain, grouped), &applied)| if applied { grouped } else { plain })
                .collect();
            let mut replay = TraceReplay::new(self.placed_by(&mix, &allocation), held_out / batch);
            let mut told = Told::new("testing", held.clone(), watch);
            trace.replay(held, batch as usize, &mut |at, bags| {
                if bags.iter().any(|bags| bags.ends.len() as u64 == batch) {
                    replay.batch(bags);
                }
                told.at(at)
            })?;
            chosen = replay;
        }
        if chosen.total().ids == 0 {
            return Err(ProposalError::NothingInTables);
        }
        let hit = backtest.judge(later, queries, &self.heats(&final_orders), chosen.parts());
        let expected = self.expect(&chosen, &allocation.hot, &hit);
        let curve = self.curve(&chosen, &orders, &expected);
        let tables = (self.shapes.iter().zip(&final_orders).zip(&missing.errors).zip(judged).enumerate())
            .map(|(at, (((shape, order), &count_error), grouping))| {
                let of = |rows: &[u64]| rows.get(at).copied().unwrap_or(0);
                let hbm_rows = of(&final_allocation.hbm);
                let hot = of(&final_allocation.hot);
                let dram_rows = hot - hbm_rows;
                let in_memory = of(&self.in_memory);
                TableProposal {
                    name: shape.name.clone(),
                    rows: shape.rows,
                    dim: shape.dim,
                    dtype: shape.dtype.name().to_owned(),
                    row_bytes: self.packings.get(at).map_or(0, RowPacking::row_bytes),
                    hbm_rows,
                    dram_rows,
                    hbm_bytes: hbm_rows * in_memory,
                    dram_bytes: dram_rows * in_memory,
                    seen_rows: order.seen(),
                    count_error,
                    index_bytes: shape.index_bytes,
                    grouping,
                }
            })
            .collect();
        let trace = TraceSummary { queries, held_out, ids: missing.ids, missing: missing.missing, batch };
        let tiers =
            TierProposal { budgets: options.budgets, drives: options.drives.clone(), tables, trace, expected, curve };
        Ok(OrderedProposal { tiers, orders: final_orders })
    }

    pub(crate) fn heats<'o>(&self, orders: &'o [HotnessOrder]) -> Vec<TableHotness<'o>> {
        orders.iter().zip(&self.in_memory).map(|(order, &row_bytes)| TableHotness::new(order, row_bytes)).collect()
    }

    fn allocate(&self, orders: &[HotnessOrder]) -> Result<TierAllocation, ProposalError> {
        let budgets = self.budgets;
        let hottest = (orders.iter().zip(self.shapes).zip(&self.in_memory))
            .max_by_key(|((order, _), bytes)| (order.count(0), std::cmp::Reverse(**bytes)));
        if let Some(((_, shape), &row_bytes)) = hottest {
            for (budget, bytes) in [("GPU memory", budgets.hbm), ("DRAM", budgets.dram)] {
                if bytes != 0 && bytes < row_bytes {
                    return Err(ProposalError::Budget { budget, bytes, table: shape.name.clone(), row_bytes });
                }
            }
        }
        Ok(allocate(&self.heats(orders), budgets))
    }

    fn placed<'o>(&self, orders: &'o [HotnessOrder], allocation: &TierAllocation) -> Vec<PlacedTable<'o>> {
        self.placed_by(&orders.iter().collect::<Vec<_>>(), allocation)
    }

    fn placed_by<'o>(&self, orders: &[&'o HotnessOrder], allocation: &TierAllocation) -> Vec<PlacedTable<'o>> {
        let rows = allocation.hbm.iter().zip(&allocation.hot);
        let placed = orders.iter().zip(&self.packings).zip(rows);
        let stripe_lbas = self.stripe_lbas;
        placed.map(|((&order, &packing), (&hbm, &hot))| PlacedTable { order, packing, stripe_lbas, hbm, hot }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warprow_layout::DType;

    use super::*;
    use crate::trace::{Bags, RecordedQueries};
    use crate::{AlikeDrives, HostCosts};

    /// Proposes by a trace of a single id.
    fn proposed(rows: u64, budgets: MemoryBudgets, drives: AlikeDrives) -> Result<OrderedProposal, ProposalError> {
        let bags = Bags { ids: vec![0; 40], ends: (1..=40).collect() };
        let shape = TableShape { name: "t".to_owned(), rows, dim: 16, dtype: DType::F32, index_bytes: None };
        let mut trace =
            QueryTrace::new(vec![(vec!["t".to_owned()], Box::new(RecordedQueries::new(&bags, 0..40)) as _)])?;
        let options = ProposalOptions {
            budgets,
            drives,
            batch: 4,
            memory: 1 << 20,
            costs: HostCosts::NONE,
            ..ProposalOptions::default()
        };
        propose(&[shape], &mut trace, &options, &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn no_sizes_are_too_strange_to_be_proposed_for_or_refused() {
        const SIZES: [u64; 4] = [0, 64, 1 << 40, u64::MAX];
        let mut made = 0;
        let mut refused = 0;
        for rows in [1, 1000, 1 << 40, 1 << 53, 1 << 55, u64::MAX] {
            for (hbm, dram, bytes) in SIZES.into_iter().flat_map(|hbm| {
                SIZES.into_iter().flat_map(move |dram| [0, 1 << 24, u64::MAX].map(|bytes| (hbm, dram, bytes)))
            }) {
                for profile in ["none", "p5800x", "gen5-tlc", "gen6"] {
                    let drives =
                        AlikeDrives { count: 3, profile: profile.to_owned(), bytes, lba: 512, emulated: false };
                    let what = format!("{rows} rows, {hbm} and {dram} bytes, {profile} of {bytes}");
                    match proposed(rows, MemoryBudgets { hbm, dram }, drives) {
                        Ok(proposal) => {
                            made += 1;
                            let expected = &proposal.tiers.expected;
                            let table = &proposal.tiers.tables[0];
                            let sum = expected.hbm + expected.dram + expected.ssd;
                            assert!((sum - 1.0).abs() < 1e-9 && expected.error.is_finite(), "{what}: {expected:?}");
                            assert!(table.hbm_rows + table.dram_rows <= rows, "{what}: {table:?}");
                            // The only row that is asked for is where there is memory.
                            assert_eq!(expected.ssd > 0.5, hbm == 0 && dram == 0, "{what}: {expected:?}");
                        }
                        Err(error) => {
                            refused += 1;
                            let fits = bytes == 0 || bytes == u64::MAX || rows <= 1000;
                            assert!(!fits || rows > 1 << 53, "{what}: {error}");
                        }
                    }
                }
            }
        }
        assert!(made > 200 && refused > 200, "{made} made, {refused} refused");
    }
}
