//! `bench-ring --gpu`, answered by threads.

use super::figures::{COMMANDS, GPU_DRIVES, line};
use super::section::Section;
use crate::gpu::ring::GpuRingResult;
use crate::report::{Chart, Lines};
use crate::results::GpuRing;

pub(super) fn ring_gpu(it: GpuRing) -> Section {
    let of =
        |what: fn(&GpuRingResult) -> f64| it.results.iter().map(move |point| (f64::from(point.threads), what(point)));
    let mut section = Section {
        title: "Queues that a GPU drives".to_owned(),
        about: format!(
            "Random reads of 512 B in look-ups of {} ids on one {}: one thread block a drive submits, one thread of the processor answers \
             each drive, completions in disorder. QueuePlacement {}.",
            it.ids, it.gpu, it.placement
        ),
        emulated: vec![GPU_DRIVES.to_owned()],
        ..Section::default()
    };
    let mut series = vec![
        line("while commands are under way", of(|result| result.commands_per_second)),
        line("over whole look-ups", of(|result| result.commands_per_second_of_lookups)),
    ];
    if let Some(first) = it.results.first() {
        let each = first.commands_per_second / f64::from(first.threads.max(1));
        series.push(line("linear", of(|result| f64::from(result.threads)).map(|(x, threads)| (x, threads * each))));
    }
    let title = "Commands a second".to_owned();
    section.charts.push(Chart::Lines(Lines { title, x: "drives and threads", unit: COMMANDS, log: false, series }));
    for point in it.results.first().into_iter().chain(it.results.last().filter(|_| it.results.len() > 1)) {
        let words = format!("{} threads: {}", point.threads, COMMANDS.show(point.commands_per_second));
        section.headlines.push(format!("{words}, {:.0} % of linear", point.share_of_linear * 100.0));
    }
    if let Some(soak) = &it.soak {
        let rate = COMMANDS.show(soak.commands_per_second);
        section.notes.push(format!("{} commands in a row in {:.0} s, {rate}.", soak.commands, soak.seconds));
    }
    let all = || it.results.iter().chain(&it.soak);
    let anomalies: u64 = all().map(|point| point.anomalies).sum();
    if anomalies > 0 {
        section.warnings.push(format!("{anomalies} completions that nobody waited for."));
    }
    section.checked = all().map(|point| point.checked).sum();
    section
}
