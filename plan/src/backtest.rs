//! How well the past would have been foreseen.
//!
//! What is learnt from part of a trace and tested on the next tells of one such step. The steps before it are there to be tested
//! as well, while the ids are counted: the rows that would have been in memory are noted, and looked for in what comes next.

use crate::budget::{Heat, allocate};
use crate::frequent::Frequent;
use crate::order::{Class, Counts};
use crate::planner::Planner;
use crate::replay::{Sample, ratio};
use crate::trace::Bags;

/// Steps before the last, at most.
const STEPS: u64 = 4;
/// How likely it may be that a change of what is hot is larger than stated.
const UNLIKELY: f64 = 0.01;
/// Standard errors for that.
const ERRORS: f64 = 2.58;

/// What becomes of the share of ids in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hit {
    /// As it is to be expected.
    pub rate: f64,
    /// By how much it may be another.
    pub error: f64,
    /// Of that, by how much because what is looked up changes.
    pub drift: f64,
}

/// Steps tested while ids are counted.
pub(crate) struct Backtest<'p> {
    planner: &'p Planner<'p>,
    /// Where steps begin, and the last ends.
    bounds: Vec<u64>,
    /// The step under way: what is in memory.
    memory: Option<Vec<Memory>>,
    step: Step,
    done: Vec<Step>,
}

/// What was expected of a step, and what happened.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    foresight: f64,
    ids: u64,
    hits: f64,
}

impl Step {
    /// The share of ids that was expected in memory, and was not there.
    fn lost(&self) -> f64 {
        self.foresight - self.hits / self.ids.max(1) as f64
    }
}

impl<'p> Backtest<'p> {
    /// Steps of `each` queries, the last of which ends at `end`.
    pub(crate) fn new(planner: &'p Planner<'p>, end: u64, each: u64) -> Self {
        // What is learnt before the first has to be as long as a step.
        let steps = (end / each.max(1)).saturating_sub(1).min(STEPS);
        let bounds = (0..=steps).rev().map(|step| end - step * each).collect();
        Self { planner, bounds, memory: None, step: Step::default(), done: Vec::new() }
    }

    /// No step.
    pub(crate) fn none(planner: &'p Planner<'p>) -> Self {
        Self { planner, bounds: Vec::new(), memory: None, step: Step::default(), done: Vec::new() }
    }

    /// Queries to be counted at a time: `most`, or as few as a step needs to begin about where it should.
    pub(crate) fn block(&self, most: usize) -> usize {
        let each = self.bounds.iter().zip(self.bounds.iter().skip(1)).map(|(begin, end)| end - begin).min();
        each.map_or(most, |each| most.min((each / 16) as usize + 1))
    }

    /// Looks at queries, of which the first has number `first`, before they are counted.
    pub(crate) fn look(&mut self, first: u64, counts: &[Counts], bags: &[Bags]) {
        if self.bounds.first().is_some_and(|&bound| first >= bound) && self.bounds.len() > 1 {
            self.bounds.remove(0);
            self.end();
            let classes: Vec<Vec<Class>> = counts.iter().map(Counts::classes).collect();
            let heats = classes.iter().zip(self.planner.shapes).zip(&self.planner.in_memory);
            let heats: Vec<Heat<'_>> =
                heats.map(|((classes, shape), &row_bytes)| Heat { classes, rows: shape.rows, row_bytes }).collect();
            self.step.foresight = self.planner.foresight(&heats);
            let hot = allocate(&heats, self.planner.budgets).hot;
            let memory = counts.iter().zip(&heats).zip(hot).map(|((counts, heat), hot)| Memory::new(counts, heat, hot));
            self.memory = Some(memory.collect());
        }
        for (memory, bags) in self.memory.iter().flatten().zip(bags) {
            for &id in &bags.ids {
                if let Some(share) = memory.share(id) {
                    self.step.ids += 1;
                    self.step.hits += share;
                }
            }
        }
    }

    fn end(&mut self) {
        let step = std::mem::take(&mut self.step);
        self.done.extend((self.memory.take().is_some() && step.ids > 0).then_some(step));
    }

    /// What to expect after all, of which leaving one out says `later`, where rows are as hot as `heats` say: by the steps, and by `parts` of
    /// the last one, of which it said `foresight`.
    pub(crate) fn judge(mut self, foresight: f64, later: f64, heats: &[Heat<'_>], parts: &[Sample]) -> Hit {
        self.end();
        let of_parts = parts.iter().map(|part| ((part.ids - part.ids_ssd) as f64, part.ids as f64));
        let (last, sampling) = ratio(of_parts);
        let lost: Vec<f64> = self.done.iter().map(Step::lost).chain([foresight - last]).collect();
        let count = lost.len() as f64;
        let mean = lost.iter().sum::<f64>() / count;
        let variance = lost.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        // The next step is one more of the kind.
        let steps = 2.0 * (variance * (1.0 + 1.0 / count)).sqrt();
        let hot = allocate(heats, self.planner.budgets).hot;
        let drift = steps.max(turnover(heats, &hot, mean));
        // More to learn from does no harm.
        let rate = (last + (later - foresight).max(0.0)).min(1.0);
        Hit { rate, error: drift.max(2.0 * sampling), drift }
    }
}

/// By how much the share in memory may fall if rows cease to be hot at any time, each as likely, so that in a step a share `lost` of ids is
/// lost on the average. Where few rows take much of what is asked for, it is rarely the average: all depends on these.
fn turnover(heats: &[Heat<'_>], hot: &[u64], lost: f64) -> f64 {
    // The rows in memory: how many take which share.
    let ids = |class: &Class, begin: u64| (class.end - begin) as f64 * f64::from(class.count);
    let (mut all, mut rows) = (0.0, Vec::new());
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
    let (mut least, mut most) = (0.0, shares().map(|it| it.1).fold(0.0, f64::max));
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
    /// Those that were counted, and the share of the others.
    Listed { rows: Frequent, others: f64, of: u64, keyed: bool },
}

impl Memory {
    /// The first `hot` ranks of the order by `counts`.
    fn new(counts: &Counts, heat: &Heat<'_>, hot: u64) -> Self {
        let at = heat.classes.partition_point(|class| class.end <= hot);
        let begin = at.checked_sub(1).and_then(|at| heat.classes.get(at)).map_or(0, |class| class.end);
        // Of this count, the first so many.
        let (limit, mut some) = (heat.classes.get(at).map_or(0, |class| class.count), hot - begin);
        let mut is_hot = |count: u32| {
            let by_place = count == limit && some > 0;
            some -= u64::from(by_place);
            count > limit || by_place
        };
        match counts {
            Counts::Exact(counts) => {
                let words = counts.chunks(64).map(|counts| {
                    (0..).zip(counts).fold(0u64, |word, (bit, &count)| word | u64::from(is_hot(count)) << bit)
                });
                Self::Bits(words.collect())
            }
            Counts::Sketch { frequent, rows, keyed } => {
                let mut kept: Vec<u64> = frequent.iter().filter(|&(_, count)| is_hot(count)).map(|it| it.0).collect();
                kept.sort_unstable();
                // Room enough that none is dropped.
                let mut hot = Frequent::new(kept.len() as u64 * 36);
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

impl Planner<'_> {
    /// The share of ids in memory of a look-up that is not among those counted but like them: what remains if each counted id
    /// is taken away once before it is looked up (leave one out).
    pub(crate) fn foresight(&self, heats: &[Heat<'_>]) -> f64 {
        let hot = allocate(heats, self.budgets).hot;
        let (mut hits, mut ids) = (0.0, 0.0);
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
