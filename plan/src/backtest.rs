//! How well the past would have been foreseen.
//!
//! What is learnt from part of a trace and tested on the next tells of one such step. The steps before it are there to be tested
//! as well, while the ids are counted: the rows that would have been in memory are noted, and looked for in what comes next, and in
//! what comes later. So each step tells what is lost at once, and by how much more as time goes by.

use crate::budget::{TableHotness, allocate};
use crate::order::{CountClass, RowCounts};
use crate::propose::Proposer;
use crate::replay::{BatchCounts, ratio};
use crate::tier_proposal::{HitInterval, INTERVAL_COVERAGE, MEASURED_COVERAGE};
use crate::trace::Bags;
use warprow_cache::FrequentKeys;

/// Steps, at most.
const STEPS: u64 = 5;
/// How likely it may be that a change of what is hot is larger than its part of the interval.
const UNLIKELY: f64 = 0.05;
/// Standard errors for that.
const ERRORS: f64 = 1.645;
/// By so much the 95% quantile of Student's distribution with 1, 2 and 3 degrees of freedom is larger than that with 3: steps that are fewer
/// tell less of how much they differ. With 3 and 4 is how the widths below were calibrated.
const FEW_STEPS: [f64; 3] = [2.683, 1.241, 1.0];
/// How far an interval reaches below and above its middle, in units of what the steps tell, so that of unseen traces [`INTERVAL_COVERAGE`] and more lie
/// inside: further below, for what is hot changes at once, and becomes known slowly. Measured by `plan/tests/coverage.rs`, for stretches as long
/// as the part held out, and for one as long as the trace.
const WIDTH: (f64, f64) = (1.6, 1.2);
const WIDTH_TRACE: (f64, f64) = (1.5, 1.1);

/// What becomes of the share of ids in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hit {
    /// The hit rate that is to be expected.
    pub rate: f64,
    /// By how much it may be another.
    pub error: f64,
    /// The part of the error that comes of changes in what is looked up.
    pub drift: f64,
    /// The intervals that the hit rates of the next stretches are expected in.
    pub intervals: Vec<HitInterval>,
}

/// Steps tested while ids are counted.
pub(crate) struct Backtest<'p> {
    proposer: &'p Proposer<'p>,
    /// Where steps begin, and the last ends.
    bounds: Vec<u64>,
    /// Queries of a step.
    each: u64,
    /// The steps so far.
    steps: Vec<Step>,
}

/// What was learnt before a step, and what happened in it and later.
struct Step {
    /// What is in memory.
    memory: Vec<Memory>,
    /// The share of ids that was expected there.
    foresight: f64,
    /// Ids, and those in memory, of this step and of each later one.
    found: Vec<(u64, f64)>,
}

impl Step {
    /// The share of ids that was expected in memory, and was not there: in this step, and in each later one.
    fn lost(&self) -> impl Iterator<Item = f64> + '_ {
        let found = self.found.iter().filter(|(ids, _)| *ids > 0);
        found.map(|&(ids, hits)| self.foresight - hits / ids as f64)
    }
}

impl<'p> Backtest<'p> {
    /// Steps of `each` queries, the last of which ends at `end`.
    pub(crate) fn new(proposer: &'p Proposer<'p>, end: u64, each: u64) -> Self {
        // What is learnt before the first has to be as long as a step.
        let steps = (end / each.max(1)).saturating_sub(1).min(STEPS);
        let bounds = (0..=steps).rev().map(|step| end - step * each).collect();
        Self { proposer, bounds, each, steps: Vec::new() }
    }

    /// No step.
    pub(crate) fn none(proposer: &'p Proposer<'p>) -> Self {
        Self { proposer, bounds: Vec::new(), each: 0, steps: Vec::new() }
    }

    /// Queries to be counted at a time: `most`, or as few as a step needs to begin about where it should.
    pub(crate) fn block(&self, most: usize) -> usize {
        let each = self.bounds.iter().zip(self.bounds.iter().skip(1)).map(|(begin, end)| end - begin).min();
        each.map_or(most, |each| most.min((each / 16) as usize + 1))
    }

    /// Looks at queries, of which the first has number `first`, before they are counted.
    pub(crate) fn look(&mut self, first: u64, counts: &[RowCounts], bags: &[Bags]) {
        if self.bounds.first().is_some_and(|&bound| first >= bound) && self.bounds.len() > 1 {
            self.bounds.remove(0);
            let classes: Vec<Vec<CountClass>> = counts.iter().map(RowCounts::classes).collect();
            let heats = classes.iter().zip(self.proposer.shapes).zip(&self.proposer.in_memory);
            let heats: Vec<TableHotness<'_>> = heats
                .map(|((classes, shape), &row_bytes)| TableHotness { classes, rows: shape.rows, row_bytes })
                .collect();
            let foresight = self.proposer.foresight(&heats);
            let hot = allocate(&heats, self.proposer.budgets).hot;
            let memory = counts.iter().zip(&heats).zip(hot).map(|((counts, heat), hot)| Memory::new(counts, heat, hot));
            self.steps.push(Step { memory: memory.collect(), foresight, found: Vec::new() });
            self.steps.iter_mut().for_each(|step| step.found.push((0, 0.0)));
        }
        for Step { memory, found, .. } in &mut self.steps {
            let Some(found) = found.last_mut() else { continue };
            for (memory, bags) in memory.iter().zip(bags) {
                for &id in &bags.ids {
                    if let Some(share) = memory.share(id) {
                        *found = (found.0 + 1, found.1 + share);
                    }
                }
            }
        }
    }

    /// What to expect after all, of which leaving one out says `later`, where rows are as hot as `heats` say: by the steps, and by `parts` of
    /// the last one. The trace has `queries` queries.
    pub(crate) fn judge(&self, later: f64, queries: u64, heats: &[TableHotness<'_>], parts: &[BatchCounts]) -> Hit {
        let of_parts = parts.iter().map(|part| ((part.ids - part.ids_ssd) as f64, part.ids as f64));
        let sampling = ratio(of_parts).1;
        // At once, and from one step to the next.
        let lost: Vec<f64> = self.steps.iter().filter_map(|step| step.lost().next()).collect();
        let more: Vec<f64> =
            self.steps.iter().flat_map(|step| step.lost().zip(step.lost().skip(1))).map(|(a, b)| b - a).collect();
        let mean = |of: &[f64]| of.iter().sum::<f64>() / (of.len() as f64).max(1.0);
        let average = mean(&lost);
        let slope = mean(&more);
        let count = lost.len() as f64;
        // The last is the likest, all together are the surest.
        let at_once = (average + lost.last().copied().unwrap_or(average)) / 2.0;
        let variance = lost.iter().map(|number| (number - average).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        let few = FEW_STEPS.get(lost.len().saturating_sub(2)).or(FEW_STEPS.last()).copied().unwrap_or(1.0);
        let steps = match lost.len() {
            // Nothing to compare with: what was lost may as well not be, or twice.
            0 | 1 => few * at_once.abs(),
            _ => few * variance.sqrt(),
        };
        // The next step is one more of the kind.
        let again = 1.0 + 1.0 / count.max(1.0);
        let hot = allocate(heats, self.proposer.budgets).hot;
        let interval = |ahead: u64, (below, above): (f64, f64), measured: f64| {
            // On the average of so many steps.
            let behind = (ahead as f64 / self.each.max(1) as f64 - 1.0).max(0.0) / 2.0;
            let lost = at_once + slope.max(0.0) * behind;
            let turnover = turnover(heats, &hot, lost.max(average)) / 2.0;
            let parts = [steps * again.sqrt(), turnover, slope.abs() * behind, lost.abs() / 10.0];
            let drift = parts.iter().map(|part| part * part).sum::<f64>();
            let unit = (drift + sampling * sampling * again).sqrt();
            let rate = (later - lost).clamp(0.0, 1.0);
            let low = (rate - below * unit).max(0.0);
            let high = (rate + above * unit).min(1.0);
            let interval = HitInterval { queries: ahead, coverage: INTERVAL_COVERAGE, measured, low, high };
            let width = (below + above) / 2.0;
            (rate, width * unit, width * drift.sqrt(), interval)
        };
        let (rate, error, drift, next) = interval(self.each, WIDTH, MEASURED_COVERAGE[0]);
        let (.., trace) = interval(queries, WIDTH_TRACE, MEASURED_COVERAGE[1]);
        Hit { rate, error, drift, intervals: vec![next, trace] }
    }
}

/// By how much the share in memory may fall if rows cease to be hot at any time, each as likely, so that in a step a share `lost` of ids is
/// lost on the average. Where few rows take much of what is asked for, it is rarely the average: all depends on these.
fn turnover(heats: &[TableHotness<'_>], hot: &[u64], lost: f64) -> f64 {
    // The rows in memory: how many take which share.
    let ids = |class: &CountClass, begin: u64| (class.end - begin) as f64 * f64::from(class.count);
    let mut all = 0.0;
    let mut rows = Vec::new();
    for (heat, &hot) in heats.iter().zip(hot) {
        let mut begin = 0;
        for class in heat.classes {
            all += ids(class, begin);
            let of_class = class.end.min(hot).saturating_sub(begin);
            rows.extend((of_class > 0).then(|| (of_class as f64, f64::from(class.count))));
            begin = class.end;
        }
    }
    let shares = || rows.iter().map(|&(rows, count)| (rows, count / all));
    let held: f64 = shares().map(|(rows, share)| rows * share).sum();
    if held <= 0.0 || lost <= 0.0 {
        return 0.0;
    }
    // One that ceases takes half of its share along on the average, and a third of the square.
    let ceasing = (2.0 * lost / held).min(1.0);
    let squares: f64 = shares().map(|(rows, share)| rows * share * share).sum();
    let many = ERRORS * (ceasing * squares / 3.0).sqrt();
    // So much that a single row takes more along with it is unlikely.
    let likely = |loss: f64| shares().map(|(rows, share)| rows * ceasing * (1.0 - loss / share).max(0.0)).sum::<f64>();
    let mut least = 0.0;
    let mut most = shares().map(|share| share.1).fold(0.0, f64::max);
    for _ in 0..40 {
        let middle = (least + most) / 2.0;
        (least, most) = if likely(middle) > UNLIKELY { (middle, most) } else { (least, middle) };
    }
    // It may come besides the others.
    many + most
}

/// The rows of a table that would have been in memory.
enum Memory {
    /// A bit for each row.
    Bits(Vec<u64>),
    /// The rows that were counted and lie in memory, and the share of the uncounted rows that does.
    Listed { rows: FrequentKeys, others: f64, of: u64, keyed: bool },
}

impl Memory {
    /// The first `hot` ranks of the order by `counts`.
    fn new(counts: &RowCounts, heat: &TableHotness<'_>, hot: u64) -> Self {
        let at = heat.classes.partition_point(|class| class.end <= hot);
        let begin = at.checked_sub(1).and_then(|at| heat.classes.get(at)).map_or(0, |class| class.end);
        // Of this count, the first so many.
        let limit = heat.classes.get(at).map_or(0, |class| class.count);
        let mut some = hot - begin;
        let mut is_hot = |count: u32| {
            let by_place = count == limit && some > 0;
            some -= u64::from(by_place);
            count > limit || by_place
        };
        match counts {
            RowCounts::Exact(counts) => {
                let words = counts.chunks(64).map(|counts| {
                    (0..).zip(counts).fold(0u64, |word, (bit, &count)| word | u64::from(is_hot(count)) << bit)
                });
                Self::Bits(words.collect())
            }
            RowCounts::Sketch { frequent, rows, keyed } => {
                let mut kept: Vec<u64> =
                    frequent.iter().filter(|&(_, count)| is_hot(count)).map(|pair| pair.0).collect();
                kept.sort_unstable();
                // Room enough that none is dropped.
                let mut hot = FrequentKeys::new(kept.len() as u64 * 36);
                kept.iter().for_each(|&id| hot.add(id));
                let others = if limit == 0 { some as f64 / (*rows as f64 - kept.len() as f64).max(1.0) } else { 0.0 };
                Self::Listed { rows: hot, others, of: *rows, keyed: *keyed }
            }
        }
    }

    /// The share of row `id` that is in memory; `None`: there is no such row.
    #[inline]
    fn share(&self, id: i64) -> Option<f64> {
        let is_id = id >= 0;
        let id = id as u64;
        match self {
            Self::Bits(words) => words.get((id / 64) as usize).map(|word| f64::from((word >> (id % 64)) as u32 & 1)),
            Self::Listed { rows, others, of, keyed } => {
                (*keyed || (is_id && id < *of)).then(|| if rows.count(id) > 0 { 1.0 } else { *others })
            }
        }
    }
}

impl Proposer<'_> {
    /// The share of ids in memory of a look-up that is not among those counted but like them: what remains if each counted id
    /// is taken away once before it is looked up (leave one out).
    pub(crate) fn foresight(&self, heats: &[TableHotness<'_>]) -> f64 {
        let hot = allocate(heats, self.budgets).hot;
        let mut hits = 0.0;
        let mut ids = 0.0;
        for (heat, hot) in heats.iter().zip(hot) {
            // The class that the last row in memory is of, and how much of it is.
            let at = heat.classes.partition_point(|class| class.end <= hot);
            let limit = heat.classes.get(at).map_or(0, |class| class.count);
            let before = at.checked_sub(1).and_then(|at| heat.classes.get(at)).map_or(0, |class| class.end);
            let part = heat.classes.get(at).map_or(0.0, |class| (hot - before) as f64 / (class.end - before) as f64);
            let mut begin = 0;
            for class in heat.classes {
                let asked = (class.end - begin) as f64 * f64::from(class.count);
                begin = class.end;
                ids += asked;
                let without = class.count - 1;
                hits += match () {
                    () if hot >= heat.rows || without > limit => asked,
                    () if without == limit && limit > 0 => asked * part,
                    () => 0.0,
                };
            }
        }
        if ids > 0.0 { hits / ids } else { 0.0 }
    }
}
