//! `bench-ring --gpu` with `--controller gpu` or `peer`.

use std::collections::BTreeMap;

use warprow_workload::units::bytes;

use super::figures::{BYTES, COMMANDS, line};
use super::section::Section;
use crate::gpu::resident::ResidentResult;
use crate::report::{Chart, Lines};
use crate::results::ResidentRing;

fn name(point: &ResidentResult) -> String {
    let data = if point.data { "with data" } else { "no data" };
    let profile = if point.profile == "none" { String::new() } else { format!(", timing of {}", point.profile) };
    format!("{data}, batches of {}, rings of {}{profile}", point.batch, point.depth)
}

pub(super) fn resident(it: ResidentRing) -> Section {
    let mut section = Section {
        title: format!("Queues that a GPU drives, answered by {}", it.controller),
        about: format!(
            "Random reads of {} B by the ring code of look-ups on one {}: a thread block a queue submits, one answers it, out of an image of {}. \
             Completions are permuted, one in 10⁴ is late, identifiers are checked for reuse.",
            it.block,
            it.gpu,
            bytes(it.size)
        ),
        emulated: vec![format!("{}.", it.emulated)],
        ..Section::default()
    };
    let mut kinds: BTreeMap<String, Vec<&ResidentResult>> = BTreeMap::new();
    for point in &it.results {
        kinds.entry(name(point)).or_default().push(point);
    }
    let lines = |what: fn(&ResidentResult) -> f64| {
        let of = |points: &[&ResidentResult]| {
            points.iter().map(|point| (f64::from(point.queues), what(point))).collect::<Vec<_>>()
        };
        kinds.iter().map(|(name, points)| line(name, of(points).into_iter())).collect::<Vec<_>>()
    };
    for (title, unit, series) in [
        ("Commands a second", COMMANDS, lines(|result| result.commands_per_second)),
        ("Bytes a second", BYTES, lines(|result| result.bytes_per_second)),
    ] {
        let series: Vec<_> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        if !series.is_empty() {
            section.charts.push(Chart::Lines(Lines { title: title.to_owned(), x: "queues", unit, log: true, series }));
        }
    }
    for (name, points) in &kinds {
        if let Some(most) = points.iter().max_by(|a, b| a.commands_per_second.total_cmp(&b.commands_per_second)) {
            let rate = COMMANDS.show(most.commands_per_second);
            section.headlines.push(format!("{name}: {rate} on {} queues", most.queues));
        }
    }
    let late: u64 = it.results.iter().map(|point| point.late).sum();
    section.notes.push(format!("{late} completions were late, on purpose."));
    section.checked = it.results.iter().map(|point| point.checked).sum();
    section
}
