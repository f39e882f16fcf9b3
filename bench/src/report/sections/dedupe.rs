//! `bench-dedupe`.

use warprow_workload::units::count;

use super::figures::{law, line};
use super::section::Section;
use crate::gpu::dedupe::DedupeResult;
use crate::report::{Chart, Lines, Unit};
use crate::results::Dedupes;

pub(super) fn dedupe(it: Dedupes) -> Section {
    let mut section = Section {
        title: "Different rows among ids".to_owned(),
        about: format!(
            "Look-ups of rows of 16 B on one {}, by every way to find the different rows among a batch's ids, medians of {}; up to 8,192 ids \
             are of rows on drives, of which there are none, so that nothing but finding them takes time.",
            it.gpu, it.runs
        ),
        emulated: vec!["The drives of small batches: there are none, and each row fails at once.".to_owned()],
        notes: it.notes,
        ..Section::default()
    };
    let mut kinds: Vec<(u64, f64)> = Vec::new();
    for point in &it.results {
        if !kinds.contains(&(point.rows, point.alpha)) {
            kinds.push((point.rows, point.alpha));
        }
        section.checked += point.compared + point.rows_compared;
    }
    for (rows, alpha) in kinds {
        let points: Vec<&DedupeResult> =
            it.results.iter().filter(|result| (result.rows, result.alpha) == (rows, alpha)).collect();
        let time = |point: &DedupeResult, name: &str| {
            let way = point.ways.iter().find(|way| way.way == name)?;
            Some((point.ids as f64, way.us))
        };
        let chosen = line("what a plan takes", points.iter().filter_map(|point| time(point, &point.chosen)));
        let ways = ["block", "bitmap", "hash", "radix"];
        let ways = ways.map(|name| line(name, points.iter().filter_map(|point| time(point, name))));
        let series = std::iter::once(chosen).chain(ways).filter(|series| !series.points.is_empty()).collect();
        let title = format!("{} rows, {}", count(rows), law(alpha));
        section.charts.push(Chart::Lines(Lines { title, x: "ids", unit: Unit::Micros, log: true, series }));
    }
    let worst = it.results.iter().filter(|result| result.over_best.is_finite());
    if let Some(worst) = worst.max_by(|a, b| a.over_best.total_cmp(&b.over_best)) {
        section.headlines.push(format!(
            "what a plan takes is at most {:.2} times the best: {} instead of {} for {} ids of {} rows, {}",
            worst.over_best,
            worst.chosen,
            worst.best,
            count(worst.ids),
            count(worst.rows),
            law(worst.alpha)
        ));
    }
    section
}
