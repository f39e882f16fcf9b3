//! What is compared.

use warprow_cache::{Admission, Batch, Cache, Eviction, HitRate, Policy, SetCache, SetEviction, StaticTier, belady};

/// The hit rate of one contender.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What it is.
    pub name: String,
    /// Hits of the contender, in the batches that count.
    pub rate: HitRate,
}

/// Serves all batches by every contender of which `wanted` is true, with `lines` lines each; the batches before number
/// `past` do not count. `period`: batches after which a static tier is counted anew, on the period before. `hold`: how
/// many batches the sets of a GPU keep a line.
pub fn compare(
    batches: &[Batch],
    lines: usize,
    past: usize,
    period: Option<usize>,
    hold: u64,
    wanted: &mut dyn FnMut(&str) -> bool,
) -> Vec<Compared> {
    let mut compared = Vec::new();
    let mut add = |name: String, rate: &mut dyn FnMut() -> HitRate| {
        if wanted(&name) {
            compared.push(Compared { name, rate: rate() });
        }
    };
    let counted = |policy: &mut dyn Policy| {
        HitRate::of(policy, &batches[..past]);
        HitRate::of(policy, &batches[past..])
    };
    add("Belady's bound".to_owned(), &mut || belady::hit_rate(batches, lines, past));
    add("static, counted on the past".to_owned(), &mut || {
        HitRate::of(&mut StaticTier::counted(&batches[..past], lines), &batches[past..])
    });
    if let Some(period) = period.filter(|&period| period != 0) {
        add("static, counted anew".to_owned(), &mut || {
            let mut rate = HitRate::default();
            for begin in (past..batches.len()).step_by(period) {
                let mut tier = StaticTier::counted(&batches[begin.saturating_sub(period)..begin], lines);
                let end = batches.len().min(begin + period);
                batches[begin..end].iter().for_each(|batch| rate.add(&mut tier, batch));
            }
            rate
        });
    }
    let admissions =
        [("", Admission::Always), (", one in 4", Admission::Probability(0.25)), (", sketch", Admission::Sketch)];
    let evictions =
        [("LRU", Eviction::Lru), ("LFU", Eviction::Lfu), ("CLOCK", Eviction::Clock), ("S3-FIFO", Eviction::S3Fifo)];
    for (name, eviction) in evictions {
        for (how, admission) in admissions {
            if eviction != Eviction::S3Fifo || admission == Admission::Always {
                add(format!("{name}{how}"), &mut || counted(&mut Cache::new(lines, eviction, admission)));
            }
        }
    }
    let evictions = [
        ("LRU", SetEviction::Lru),
        ("LFU", SetEviction::Lfu),
        ("sketch of the set", SetEviction::Sketch),
        ("S3-FIFO", SetEviction::S3Fifo),
    ];
    for ways in [8, 16] {
        for (name, eviction) in evictions {
            for (how, admission) in admissions {
                if matches!(eviction, SetEviction::Lru | SetEviction::Lfu) || admission == Admission::Always {
                    add(format!("sets of {ways}: {name}{how}"), &mut || {
                        counted(&mut SetCache::new(lines, ways, eviction, admission, hold))
                    });
                }
            }
        }
    }
    compared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Source, batches_of};

    #[test]
    fn no_contender_beats_the_bound_and_all_serve_the_same() {
        let source =
            Source::Law { rows: 20_000, alpha: 1.05, ids: 60_000, period: Some(20_000), hottest: 1000, seed: 5 };
        let batches = batches_of(&source.ids().unwrap().0, 500);
        let compared = compare(&batches, 1000, 40, Some(40), 1, &mut |_| true);
        let bound = compared[0].rate;
        assert!(compared.len() > 20);
        for it in &compared {
            assert_eq!((it.rate.ids, it.rate.rows), (bound.ids, bound.rows), "{}", it.name);
            assert!(it.rate.row_hits <= bound.row_hits, "{} beats the bound", it.name);
            assert!(it.rate.of_ids() > 0.4, "{}: {:.3}", it.name, it.rate.of_ids());
        }
    }
}
