//! From tables, a trace and budgets to a plan.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use warprow_layout::{DType, RowPacking};
use warprow_store::gpu_row_bytes;
use warprow_workload::mix_all;

use crate::PlanError;
use crate::budget::{Allocation, Budgets, allocate};
use crate::costs::HostCosts;
use crate::drives::{ChunkMap, Drives, ReadAt};
use crate::group::Pairs;
use crate::order::{Counts, Order};
use crate::replay::{Kept, Placed, Replay, Sample, ratio};
use crate::trace::{Bags, Trace};

/// A table that is planned for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableShape {
    /// Its name.
    pub name: String,
    /// Its rows; at least one.
    pub rows: u64,
    /// Elements in a row; at least one.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
}

/// Whether rows that are looked up together shall share LBAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupRows {
    /// Where it saves reads on the part of the trace that it was not learnt from.
    #[default]
    Auto,
    /// In any case.
    On,
    /// No.
    Off,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory for rows.
    pub budgets: Budgets,
    /// Where the others lie.
    pub drives: Drives,
    /// Queries of a look-up.
    pub batch: u32,
    /// The last part of the trace, on which the plan is tested: a share above 0 and up to a half.
    pub held_out: f64,
    /// Bytes that counting may take. More rows than fit are counted by a sketch.
    pub memory: u64,
    /// Grouping.
    pub group: GroupRows,
    /// Whether ids that their table does not have are counted rather than refused.
    pub allow_missing: bool,
    /// What look-ups cost the host.
    pub costs: HostCosts,
    /// Seed of what is drawn.
    pub seed: u64,
}

impl Default for Options {
    /// No memory for rows, one drive of which nothing is known, look-ups of 4,096 queries, a fifth held out, 2 GiB for
    /// counting.
    fn default() -> Self {
        Self {
            budgets: Budgets::default(),
            drives: Drives { count: 1, profile: "none".to_owned(), bytes: 0, lba: 512 },
            batch: 4096,
            held_out: 0.2,
            memory: 2 << 30,
            group: GroupRows::Auto,
            allow_missing: false,
            costs: HostCosts::default(),
            seed: 1,
        }
    }
}

/// What goes where, and what is to be expected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Memory for rows.
    pub budgets: Budgets,
    /// Where the others lie.
    pub drives: Drives,
    /// Of each table in turn.
    pub tables: Vec<TablePlan>,
    /// What was learnt from.
    pub trace: TraceSummary,
    /// What look-ups will do.
    pub expected: Expected,
    /// What they would do with other budgets, the smallest first.
    pub curve: Vec<Point>,
}

/// A table in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TablePlan {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements, by name.
    pub dtype: String,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// The hottest rows, which lie in GPU memory.
    pub hbm_rows: u64,
    /// The next ones, which lie in DRAM.
    pub dram_rows: u64,
    /// Rows that the trace speaks of, as far as counted.
    pub seen_rows: u64,
    /// By how much the count of a row may be too low: 0 where counting was exact.
    pub count_error: u64,
    /// What sharing of LBAs does, if it was tried.
    pub grouping: Option<Grouping>,
}

/// Rows that share LBAs because they are looked up together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Grouping {
    /// Whether the plan does so.
    pub applied: bool,
    /// Groups of two rows and more.
    pub groups: u64,
    /// Rows in them.
    pub rows: u64,
    /// The share of read commands that it saved on the part held out.
    pub commands_saved: f64,
    /// The standard error of that.
    pub error: f64,
    /// The share of bytes read that it saved.
    pub bytes_saved: f64,
}

/// The trace that a plan was made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Queries.
    pub queries: u64,
    /// Of these, held out.
    pub held_out: u64,
    /// Ids of all tables.
    pub ids: u64,
    /// Ids that their table does not have.
    pub missing: u64,
    /// Queries of a look-up.
    pub batch: u64,
}

/// What look-ups will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// The share of ids (of those that their table has) whose rows are in GPU memory.
    pub hbm: f64,
    /// In DRAM.
    pub dram: f64,
    /// On drives.
    pub ssd: f64,
    /// Twice the standard error of the share in memory, by how much parts of what was held out differ.
    pub error: f64,
    /// Ids of a look-up.
    pub ids: f64,
    /// Different rows of a look-up on drives.
    pub rows_ssd: f64,
    /// Read commands of a look-up.
    pub commands: f64,
    /// Bytes that a look-up reads from drives.
    pub bytes: f64,
    /// Bytes read for each byte of a row that was asked for, repeats in a look-up not counted. 0: nothing is read.
    pub amplification: f64,
    /// Look-ups a second of one slot, one after another.
    pub lookups_per_second: f64,
    /// Ids a second.
    pub ids_per_second: f64,
    /// Reads a second on each drive, at that rate.
    pub iops_per_drive: f64,
    /// What the rate follows from.
    pub bound: Bound,
}

/// What look-ups wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Reads from drives.
    Drives,
    /// The processor.
    Host,
    /// It is not known: on a GPU nothing is read from drives, or nothing is known of them.
    Unknown,
}

/// What another budget would give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes of memory for rows, GPU memory and DRAM together.
    pub bytes: u64,
    /// The share of ids in memory.
    pub hit: f64,
    /// Read commands of a look-up.
    pub commands: f64,
    /// Ids a second with so many drives.
    pub rates: Vec<Rate>,
}

/// A rate with a number of drives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Drives.
    pub drives: u32,
    /// Ids a second; 0 if it is not known.
    pub ids_per_second: f64,
}

/// How far planning has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub what: &'static str,
    /// Queries read in this pass.
    pub done: u64,
    /// Queries of this pass.
    pub total: u64,
}

/// A plan, with the orders that its tables are to be loaded in.
#[derive(Debug)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// In the order of its tables.
    pub orders: Vec<Order>,
}

/// The least queries of a trace.
const LEAST: u64 = 10;
/// Queries read at a time where batches do not matter.
const BLOCK: usize = 1 << 13;
/// Bytes of a stripe unit.
const STRIPE: u64 = 32 << 10;
/// The least share of reads that makes grouping worth its while.
const WORTH: f64 = 0.01;
/// Reads that a rate of a curve is made of.
const REHEARSED: u64 = 1 << 14;
/// Points of a curve.
const POINTS: i32 = 24;

/// Called with the progress, and says whether to go on.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

struct Planner<'a> {
    shapes: &'a [TableShape],
    options: &'a Options,
    packings: Vec<RowPacking>,
    stripe_lbas: u64,
    /// Bytes of a row in memory.
    in_memory: Vec<u64>,
}

/// Plans `tables` by `trace`, whose columns are theirs in the same order.
pub fn plan(
    tables: &[TableShape],
    trace: &mut Trace<'_>,
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<Planned, PlanError> {
    Planner::new(tables, trace, options)?.plan(trace, watch)
}

impl<'a> Planner<'a> {
    fn new(shapes: &'a [TableShape], trace: &Trace<'_>, options: &'a Options) -> Result<Self, PlanError> {
        let refuse = |option, reason: String| Err(PlanError::Option { option, reason });
        if shapes.is_empty() {
            return Err(PlanError::NoTables);
        }
        if !shapes.iter().map(|it| &*it.name).eq(trace.tables()) {
            return refuse("trace", "its tables are not the plan's, in their order".to_owned());
        }
        if options.batch == 0 {
            return refuse("batch", "a look-up has one query at least".to_owned());
        }
        if !(options.held_out > 0.0 && options.held_out <= 0.5) {
            return refuse("held-out", format!("{} of the trace: above 0 and up to 0.5 is possible", options.held_out));
        }
        if trace.queries() < LEAST {
            return Err(PlanError::TooShort { queries: trace.queries(), least: LEAST });
        }
        options.drives.timing()?;
        let table = |shape: &TableShape, reason: &str| PlanError::Table {
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
            let packing = u32::try_from(stripe_lbas).ok().and_then(|it| RowPacking::new(bytes, options.drives.lba, it));
            packing.ok_or_else(|| table(shape, "its rows are too large"))
        };
        let packings = shapes.iter().zip(&row_bytes).map(packing).collect::<Result<Vec<_>, _>>()?;
        let on_gpu = options.budgets.hbm > 0;
        let in_memory = |&bytes: &u32| u64::from(if on_gpu { gpu_row_bytes(bytes) } else { bytes });
        let planner =
            Self { shapes, options, packings, stripe_lbas, in_memory: row_bytes.iter().map(in_memory).collect() };
        let (needed, drives) = (planner.on_drives(), &options.drives);
        let room = drives.bytes.saturating_mul(drives.count.into());
        match room != 0 && needed > room {
            true => Err(PlanError::Drives { needed, room }),
            false => Ok(planner),
        }
    }

    /// Bytes that the tables take on drives.
    fn on_drives(&self) -> u64 {
        let lba = u64::from(self.options.drives.lba);
        let table = |(shape, packing): (&TableShape, &RowPacking)| {
            packing.lbas(shape.rows).map_or(u64::MAX, |lbas| lbas.saturating_mul(lba))
        };
        self.shapes.iter().zip(&self.packings).map(table).fold(0, u64::saturating_add)
    }

    fn plan(&self, trace: &mut Trace<'_>, watch: &mut Watch<'_>) -> Result<Planned, PlanError> {
        let (queries, options) = (trace.queries(), self.options);
        let held_out = ((queries as f64 * options.held_out) as u64).clamp(1, queries - 1);
        let (learnt, held) = (0..queries - held_out, queries - held_out..queries);
        let batch = u64::from(options.batch).min(held_out);

        let (orders, _) = self.orders(trace, learnt.clone(), "learning", watch)?;
        let allocation = self.allocate(&orders)?;
        let grouped = self.group(&orders, &allocation, trace, learnt, watch)?;

        let mut plain = Replay::new(self.placed(&orders, &allocation), held_out / batch);
        let grouped_orders: Vec<Order> = match &grouped {
            Some(grouped) => grouped.iter().zip(&orders).map(|(it, order)| it.order(order)).collect(),
            None => Vec::new(),
        };
        let mut together = grouped.as_ref().map(|_| {
            // Table by table, so that each is judged by itself.
            (0..orders.len())
                .map(|at| {
                    let mix = orders.iter().zip(&grouped_orders).enumerate();
                    let mix: Vec<&Order> = mix.map(|(i, (plain, it))| if i == at { it } else { plain }).collect();
                    Replay::new(self.placed_by(&mix, &allocation), held_out / batch)
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
        let judged: Vec<Option<Grouping>> = match (&grouped, &together) {
            (Some(grouped), Some(replays)) => {
                grouped.iter().zip(replays).map(|(it, replay)| it.judge(&plain, replay, options.group)).collect()
            }
            _ => vec![None; orders.len()],
        };
        let applied: Vec<bool> = judged.iter().map(|it| it.is_some_and(|it| it.applied)).collect();

        // What is loaded is learnt from all of the trace.
        let (all, missing) = self.orders(trace, 0..queries, "counting", watch)?;
        let final_allocation = self.allocate(&all)?;
        let more_data = self.foresight(&all) - self.foresight(&orders);
        let mut final_orders = all;
        if applied.contains(&true)
            && let Some(grouped) = self.group(&final_orders, &final_allocation, trace, 0..queries, watch)?
        {
            let order = |((order, it), &applied): ((&Order, &Grouped), &bool)| match applied {
                true => it.order(order),
                false => order.clone(),
            };
            final_orders = final_orders.iter().zip(&grouped).zip(&applied).map(order).collect();
        }
        let mut chosen = plain;
        if applied.contains(&true) {
            // The tables that are grouped, all together: one more look at what was held out.
            let mix: Vec<&Order> = orders
                .iter()
                .zip(&grouped_orders)
                .zip(&applied)
                .map(|((plain, grouped), &applied)| if applied { grouped } else { plain })
                .collect();
            let mut replay = Replay::new(self.placed_by(&mix, &allocation), held_out / batch);
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
            return Err(PlanError::NothingInTables);
        }
        let expected = self.expect(&chosen, &allocation.hot, more_data);
        let curve = self.curve(&chosen, &orders, &expected);
        let tables = (self.shapes.iter().zip(&final_orders).zip(&missing.errors).zip(judged).enumerate())
            .map(|(at, (((shape, order), &count_error), grouping))| {
                let of = |rows: &[u64]| rows.get(at).copied().unwrap_or(0);
                let (hbm_rows, hot) = (of(&final_allocation.hbm), of(&final_allocation.hot));
                TablePlan {
                    name: shape.name.clone(),
                    rows: shape.rows,
                    dim: shape.dim,
                    dtype: shape.dtype.name().to_owned(),
                    row_bytes: self.packings.get(at).map_or(0, RowPacking::row_bytes),
                    hbm_rows,
                    dram_rows: hot - hbm_rows,
                    seen_rows: order.seen(),
                    count_error,
                    grouping,
                }
            })
            .collect();
        let trace = TraceSummary { queries, held_out, ids: missing.ids, missing: missing.missing, batch };
        let plan = Plan { budgets: options.budgets, drives: options.drives.clone(), tables, trace, expected, curve };
        Ok(Planned { plan, orders: final_orders })
    }

    /// Orders by the queries `range`, and what was found missing.
    fn orders(
        &self,
        trace: &mut Trace<'_>,
        range: std::ops::Range<u64>,
        what: &'static str,
        watch: &mut Watch<'_>,
    ) -> Result<(Vec<Order>, Found), PlanError> {
        let share = self.options.memory / self.shapes.len() as u64;
        // Tables that need less than their share leave more for the others.
        let exact = |shape: &TableShape| shape.rows.saturating_mul(Counts::EXACT_BYTES);
        let total = self.shapes.iter().map(exact).fold(0, u64::saturating_add);
        let room = |shape: &TableShape| if total <= self.options.memory { exact(shape) } else { share };
        let mut counts: Vec<Counts> = self.shapes.iter().map(|shape| Counts::new(shape.rows, room(shape))).collect();
        let mut outside: Vec<Option<Outside>> = vec![None; counts.len()];
        let mut ids = vec![0u64; counts.len()];
        let mut told = Told::new(what, range.clone(), watch);
        trace.replay(range, BLOCK, &mut |first, bags| {
            for ((counts, bags), (outside, ids)) in counts.iter_mut().zip(bags).zip(outside.iter_mut().zip(&mut ids)) {
                *ids += bags.ids.len() as u64;
                let missing = bags.ids.iter().enumerate().filter(|&(_, &id)| !counts.add(id));
                for (at, &id) in missing {
                    let found = outside.get_or_insert_with(|| {
                        let query = first + bags.ends.partition_point(|&end| end as usize <= at) as u64;
                        Outside { id, query, count: 0 }
                    });
                    found.count += 1;
                }
            }
            told.at(first)
        })?;
        let first = outside.iter().enumerate().find_map(|(at, it)| Some((at, it.as_ref()?)));
        if let Some((at, outside)) = first.filter(|_| !self.options.allow_missing) {
            let (table, rows) = self.shapes.get(at).map_or((String::new(), 0), |it| (it.name.clone(), it.rows));
            let Outside { id, query, count } = *outside;
            return Err(PlanError::IdsOutside {
                table,
                rows,
                count,
                ids: ids.get(at).copied().unwrap_or(0),
                id,
                query,
            });
        }
        let missing = outside.iter().flatten().map(|it| it.count).sum();
        let errors = counts.iter().map(Counts::error).collect();
        let orders: Vec<Order> = counts.into_iter().map(Order::new).collect();
        if orders.iter().all(|order| order.seen() == 0) {
            return Err(PlanError::NothingInTables);
        }
        Ok((orders, Found { ids: ids.iter().sum(), missing, errors }))
    }

    fn with_bytes<'o>(&self, orders: &'o [Order]) -> Vec<(&'o Order, u64)> {
        orders.iter().zip(self.in_memory.iter().copied()).collect()
    }

    fn allocate(&self, orders: &[Order]) -> Result<Allocation, PlanError> {
        let budgets = self.options.budgets;
        let hottest = (orders.iter().zip(self.shapes).zip(&self.in_memory))
            .max_by_key(|((order, _), bytes)| (order.count(0), std::cmp::Reverse(**bytes)));
        if let Some(((_, shape), &row_bytes)) = hottest {
            for (budget, bytes) in [("GPU memory", budgets.hbm), ("DRAM", budgets.dram)] {
                if bytes != 0 && bytes < row_bytes {
                    return Err(PlanError::Budget { budget, bytes, table: shape.name.clone(), row_bytes });
                }
            }
        }
        Ok(allocate(&self.with_bytes(orders), budgets))
    }

    fn placed<'o>(&self, orders: &'o [Order], allocation: &Allocation) -> Vec<Placed<'o>> {
        self.placed_by(&orders.iter().collect::<Vec<_>>(), allocation)
    }

    fn placed_by<'o>(&self, orders: &[&'o Order], allocation: &Allocation) -> Vec<Placed<'o>> {
        let rows = allocation.hbm.iter().zip(&allocation.hot);
        let placed = orders.iter().zip(&self.packings).zip(rows);
        let stripe_lbas = self.stripe_lbas;
        placed.map(|((&order, &packing), (&hbm, &hot))| Placed { order, packing, stripe_lbas, hbm, hot }).collect()
    }

    /// Groups rows behind those in memory by the queries `range`; `None` where nothing can be grouped.
    fn group(
        &self,
        orders: &[Order],
        allocation: &Allocation,
        trace: &mut Trace<'_>,
        range: std::ops::Range<u64>,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Grouped>>, PlanError> {
        if self.options.group == GroupRows::Off {
            return Ok(None);
        }
        let bytes = (self.options.memory / 4 / orders.len() as u64).min(256 << 20);
        let mut pairs: Vec<Option<Pairs<'_>>> = orders
            .iter()
            .zip(&allocation.hot)
            .zip(&self.packings)
            .map(|((order, &hot), packing)| {
                let size = u64::from(packing.rows_per_lba());
                let first = hot.next_multiple_of(size);
                (size > 1).then(|| Pairs::new(order, first, bytes, self.options.seed)).flatten()
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
        let group = |(pairs, packing): (Option<Pairs<'_>>, &RowPacking)| {
            let size = packing.rows_per_lba();
            let Some((pairs, groups)) = pairs.map(|pairs| {
                let groups = pairs.groups(size);
                (pairs, groups)
            }) else {
                return Grouped::default();
            };
            let (count, rows) = (groups.len() as u64, groups.iter().map(Vec::len).sum::<usize>() as u64);
            let order = (count > 0).then(|| pairs.arrange(groups, size));
            Grouped { order, groups: count, rows }
        };
        let grouped: Vec<Grouped> = pairs.into_iter().zip(&self.packings).map(group).collect();
        Ok(grouped.iter().any(|it| it.order.is_some()).then_some(grouped))
    }

    /// The share of ids in memory of a look-up that is not among those counted but like them: what remains if each counted id
    /// is taken away once before it is looked up (leave one out).
    fn foresight(&self, orders: &[Order]) -> f64 {
        let hot = allocate(&self.with_bytes(orders), self.options.budgets).hot;
        let (mut hits, mut ids) = (0.0, 0.0);
        for (order, hot) in orders.iter().zip(hot) {
            // The class that the last row in memory is of, and how much of it is.
            let at = order.classes().partition_point(|class| class.end <= hot);
            let limit = order.classes().get(at).map_or(0, |class| class.count);
            let mut begin = 0;
            let mut part = 0.0;
            for class in order.classes() {
                let rows = (class.end - begin) as f64;
                if class.count == limit {
                    part = hot.saturating_sub(begin) as f64 / rows;
                }
                begin = class.end;
            }
            let mut begin = 0;
            for class in order.classes() {
                let asked = (class.end - begin) as f64 * f64::from(class.count);
                begin = class.end;
                ids += asked;
                let without = class.count - 1;
                hits += match () {
                    () if hot >= order.rows() || without > limit => asked,
                    () if without == limit && limit > 0 => asked * part,
                    () => 0.0,
                };
            }
        }
        if ids > 0.0 { hits / ids } else { 0.0 }
    }

    fn expect(&self, replay: &Replay<'_>, hot: &[u64], more_data: f64) -> Expected {
        let total = replay.total();
        let of = |count: u64| count as f64 / replay.batches().max(1) as f64;
        let share = |count: u64| count as f64 / total.ids.max(1) as f64;
        let parts = replay.parts().iter().map(|part| ((part.ids - part.ids_ssd) as f64, part.ids as f64));
        let (hit, error) = ratio(parts);
        // More of the trace than was learnt from in the test will be learnt from.
        let better = (hit + more_data).clamp(hit.min(1.0), 1.0);
        let hbm = share(total.ids_hbm) * if hit > 0.0 { better / hit } else { 1.0 };
        let cold = if hit < 1.0 { (1.0 - better) / (1.0 - hit) } else { 1.0 };
        let samples = replay.samples();
        let drives_at_hand = self.options.drives.count;
        let (mut seconds, mut drives, mut ids) = (0.0, 0.0, 0.0);
        let commands: u64 = samples.iter().map(|kept| kept.sample.commands).sum();
        let turns = (4 * REHEARSED / commands.max(1)).clamp(1, 16);
        for (first, kept) in (0..).step_by(turns as usize).zip(samples) {
            let sample = &kept.sample;
            let of_turn = |turn| self.drive_seconds(replay, kept, hot, drives_at_hand, turn);
            let of_drives = cold * (first..first + turns).map(of_turn).sum::<f64>() / turns as f64;
            seconds += self.seconds(sample, cold, of_drives);
            drives += of_drives;
            ids += sample.ids as f64;
        }
        let on_gpu = self.options.budgets.hbm > 0;
        let bound = match () {
            () if seconds <= 0.0 => Bound::Unknown,
            () if on_gpu || drives > seconds / 2.0 => Bound::Drives,
            () => Bound::Host,
        };
        let lookups_per_second = if seconds > 0.0 { samples.len() as f64 / seconds } else { 0.0 };
        let commands = of(total.commands) * cold;
        Expected {
            hbm,
            dram: better - hbm,
            ssd: 1.0 - better,
            error: 2.0 * error,
            ids: of(total.ids),
            rows_ssd: of(total.rows_ssd) * cold,
            commands,
            bytes: of(total.bytes) * cold,
            amplification: if total.bytes_needed > 0 { total.bytes as f64 / total.bytes_needed as f64 } else { 0.0 },
            lookups_per_second,
            ids_per_second: if seconds > 0.0 { ids / seconds } else { 0.0 },
            iops_per_drive: lookups_per_second * commands / f64::from(self.options.drives.count),
            bound,
        }
    }

    /// Seconds that `count` drives take for a batch; `turn` decides which reads are slow ones.
    fn drive_seconds(&self, replay: &Replay<'_>, kept: &Kept, hot: &[u64], count: u32, turn: u64) -> f64 {
        let drives = Drives { count, ..self.options.drives.clone() };
        let Some(timing) = drives.timing().ok().flatten() else { return 0.0 };
        let map = ChunkMap::new(self.on_drives(), &drives, self.stripe_lbas * u64::from(drives.lba));
        let lba = u64::from(drives.lba);
        // Tables lie one behind the other, each from a stripe unit on.
        let mut first = 0;
        let firsts: Vec<u64> = (0..self.shapes.len())
            .map(|table| {
                let begin = first;
                first += replay.table_lbas(table).next_multiple_of(self.stripe_lbas);
                begin
            })
            .collect();
        let read = |(table, at, lbas): (usize, u64, u64)| {
            let begin = firsts.get(table).copied().unwrap_or(0);
            let (drive, offset) = map.locate((begin + at) * lba);
            ReadAt { drive, offset, len: lbas * lba }
        };
        let mut reads: Vec<ReadAt> = replay.commands(kept, hot).map(read).collect();
        drives.seconds(Some(&timing), &mut reads, &map, mix_all([self.options.seed, turn]))
    }

    /// Seconds of a look-up whose drives take `of_drives`; of what is cold a share `cold` counts.
    fn seconds(&self, sample: &Sample, cold: f64, of_drives: f64) -> f64 {
        let (ids, ids_ssd) = (sample.ids as f64, sample.ids_ssd as f64 * cold);
        match self.options.budgets.hbm > 0 {
            // What the GPU does meanwhile is little beside what drives take.
            true => of_drives,
            false => self.options.costs.seconds(ids - ids_ssd, ids_ssd, sample.rows_ssd as f64 * cold, of_drives),
        }
    }

    fn curve(&self, replay: &Replay<'_>, orders: &[Order], expected: &Expected) -> Vec<Point> {
        let (budgets, tables) = (self.options.budgets, self.with_bytes(orders));
        let chosen = budgets.hbm.saturating_add(budgets.dram);
        let all = tables.iter().map(|(order, bytes)| order.rows().saturating_mul(*bytes)).fold(0, u64::saturating_add);
        // From 0.1% up, and the budget itself.
        let mut sizes: Vec<u64> =
            (0..=POINTS).map(|at| (all as f64 * 2f64.powf(f64::from(at - POINTS) / 2.4)) as u64).collect();
        sizes.extend([0, chosen.min(all)]);
        sizes.sort_unstable();
        sizes.dedup();
        let count = self.options.drives.count;
        let mut drives: Vec<u32> =
            [count / 2, count, count * 2, count * 4].into_iter().filter(|it| (1..=48).contains(it)).collect();
        drives.dedup();
        let batches = replay.batches().max(1);
        let mean = |count: u64| (count as f64 / batches as f64).round() as u64;
        let point = |bytes: u64| {
            let hot =
                allocate(&tables, Budgets { hbm: budgets.hbm.min(bytes), dram: bytes.saturating_sub(budgets.hbm) }).hot;
            let cold = replay.cold(&hot);
            let lookup = Sample {
                ids: mean(cold.ids),
                ids_hbm: 0,
                ids_ssd: mean(cold.ids_ssd),
                rows_ssd: mean(cold.rows_ssd),
                commands: mean(cold.commands),
                bytes: mean(cold.bytes),
                bytes_needed: mean(cold.bytes_needed),
            };
            let rate = |&drives: &u32| {
                // Enough reads to meet the slow ones as often as they come.
                let turns = (REHEARSED / lookup.commands.max(1)).clamp(2, 64) as usize;
                let step = replay.samples().len().div_ceil(turns).max(1);
                let kept = (0..).zip(replay.samples()).step_by(step);
                let (sum, turns) = kept.fold((0.0, 0.0), |(sum, turns), (turn, kept)| {
                    (sum + self.drive_seconds(replay, kept, &hot, drives, turn), turns + 1.0)
                });
                let seconds = self.seconds(&lookup, 1.0, sum / f64::max(turns, 1.0));
                Rate { drives, ids_per_second: if seconds > 0.0 { lookup.ids as f64 / seconds } else { 0.0 } }
            };
            let rates = drives.iter().map(rate).collect();
            let hit = 1.0 - cold.ids_ssd as f64 / cold.ids.max(1) as f64;
            let mut point = Point { bytes, hit, commands: cold.commands as f64 / batches as f64, rates };
            if bytes == chosen.min(all) {
                (point.hit, point.commands) = (1.0 - expected.ssd, expected.commands);
                point
                    .rates
                    .iter_mut()
                    .filter(|it| it.drives == count)
                    .for_each(|it| it.ids_per_second = expected.ids_per_second);
            }
            point
        };
        sizes.into_iter().map(point).collect()
    }
}

/// Ids that a table does not have.
#[derive(Debug, Clone)]
struct Outside {
    id: i64,
    query: u64,
    count: u64,
}

/// What counting found.
#[derive(Debug)]
struct Found {
    ids: u64,
    missing: u64,
    /// By how much counts may be too low, by table.
    errors: Vec<u64>,
}

/// A table's rows, grouped.
#[derive(Debug, Default)]
struct Grouped {
    /// `None`: nothing is.
    order: Option<Order>,
    groups: u64,
    rows: u64,
}

impl Grouped {
    fn order(&self, otherwise: &Order) -> Order {
        self.order.as_ref().unwrap_or(otherwise).clone()
    }

    /// Whether it pays, by what was held out.
    fn judge(&self, plain: &Replay<'_>, grouped: &Replay<'_>, wish: GroupRows) -> Option<Grouping> {
        self.order.as_ref()?;
        let parts = plain.parts().iter().zip(grouped.parts());
        let saved =
            parts.map(|(plain, grouped)| (plain.commands as f64 - grouped.commands as f64, plain.commands as f64));
        let (commands_saved, error) = ratio(saved);
        let bytes = plain.total().bytes as f64;
        let bytes_saved = if bytes > 0.0 { 1.0 - grouped.total().bytes as f64 / bytes } else { 0.0 };
        let pays = commands_saved > WORTH.max(2.0 * error);
        let applied = pays || wish == GroupRows::On;
        Some(Grouping { applied, groups: self.groups, rows: self.rows, commands_saved, error, bytes_saved })
    }
}

/// Tells of progress in queries `range`.
struct Told<'a, 'w> {
    what: &'static str,
    range: std::ops::Range<u64>,
    watch: &'a mut Watch<'w>,
}

impl<'a, 'w> Told<'a, 'w> {
    fn new(what: &'static str, range: std::ops::Range<u64>, watch: &'a mut Watch<'w>) -> Self {
        Self { what, range, watch }
    }

    fn at(&mut self, query: u64) -> Result<(), PlanError> {
        let (begin, end) = (self.range.start, self.range.end);
        let progress = Progress { what: self.what, done: query.saturating_sub(begin), total: end - begin };
        match (self.watch)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(PlanError::Stopped),
        }
    }
}
