//! `bench-ssd`.

use std::collections::BTreeMap;

use warprow_workload::units::{bytes, count};

use super::figures::line;
use super::section::Section;
use crate::report::{Chart, Lines, Unit};
use crate::results::SsdLookups;
use crate::ssd::{Measured, SsdResult, best};

pub(super) fn ssd(it: SsdLookups) -> Section {
    let by = it
        .gpu
        .as_ref()
        .map_or_else(|| "threads alone, without a GPU".to_owned(), |gpu| format!("one {gpu} and by threads"));
    let mut section = Section {
        title: "Rows on drives".to_owned(),
        about: format!(
            "Whole look-ups of {} ids in {} of rows of {} B, driven by {by}, on the same drives in turn; the best number of threads counts. \
             Beside drives: the look-up less the time from the first doorbell to the last completion by the drives' clocks.",
            if it.alpha == 0.0 { "uniform".to_owned() } else { format!("skewed (α = {})", it.alpha) },
            bytes(it.size),
            it.row_bytes
        ),
        emulated: vec![format!(
            "The drives: software controllers, {}.",
            match it.media.as_str() {
                "played" =>
                    "on memory that a GPU has a copy of, and whose kernel answers reads, with the rates of real ones",
                "ram" => "a thread of the processor each, on memory, with the timing of real ones",
                "cached" => "a thread of the processor each, on files, through the page cache",
                "direct" => "a thread of the processor each, on files, past the page cache",
                _ =>
                    "a thread of the processor each, on rows that are computed when they are read, with the timing of real ones",
            }
        )],
        ..Section::default()
    };
    // What was left out is a note, and why figures are not there or not to be trusted a warning.
    let warns = |note: &String| note.contains("were not run") || note.contains("do not trust");
    let (warnings, notes) = it.notes.into_iter().partition(warns);
    (section.warnings, section.notes) = (warnings, notes);
    let mut cases: BTreeMap<(&str, u32), Vec<&SsdResult>> = BTreeMap::new();
    for point in &it.results {
        cases.entry((&point.profile, point.drives)).or_default().push(point);
    }
    for ((profile, drives), points) in &cases {
        let of = |all: fn(&SsdResult) -> &[Measured], what: fn(&Measured) -> Option<f64>| {
            points.iter().filter_map(move |result| Some((result.ids as f64, what(best(all(result))?)?)))
        };
        let series = [
            line("Warprow, by the GPU", of(|result| &result.gpu, |measured| Some(measured.seen_us))),
            line("by threads and copies", of(|result| &result.cpu, |measured| Some(measured.seen_us))),
            line("by threads with io_uring", of(|result| &result.uring, |measured| Some(measured.seen_us))),
            line("Warprow, beside drives", of(|result| &result.gpu, |measured| measured.overhead_us)),
            line("by threads, beside drives", of(|result| &result.cpu, |measured| measured.overhead_us)),
            line("drives, while a GPU asks", of(|result| &result.gpu, |measured| measured.drives_us)),
        ];
        let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        let title = format!("Drives with the timing of {profile}: {drives}");
        section.charts.push(Chart::Lines(Lines { title, x: "ids", unit: Unit::Micros, log: true, series }));
        let Some(most) = points.iter().max_by_key(|point| point.ids) else { continue };
        let place = format!("{profile} × {drives}, {} ids", count(most.ids));
        match (most.throughput_ratio, most.overhead_ratio, best(&most.cpu)) {
            (Some(times), Some(beside), Some(cpu)) => section.headlines.push(format!(
                "{place}: {times:.2} times as fast as {} threads, beside drives {beside:.2} of their time",
                cpu.by
            )),
            (_, _, Some(cpu)) => {
                section.headlines.push(format!("{place}: {} by {} threads", Unit::Micros.show(cpu.seen_us), cpu.by));
            }
            _ => {}
        }
        if let Some(times) = most.uring_ratio {
            section.headlines.push(format!("{place}: {times:.2} times as fast as io_uring on the same files"));
        }
    }
    let met = |verdict: fn(&SsdResult) -> Option<bool>| {
        let known: Vec<bool> = it.results.iter().filter_map(verdict).collect();
        (known.iter().filter(|met| **met).count(), known.len())
    };
    let ((overhead, all), (caller, calls)) = (met(|result| result.overhead_met), met(|result| result.caller_met));
    if all > 0 {
        let words = "within 15 µs + 1 ns an id, and half of the threads' time beside drives,";
        section.headlines.push(format!("{words} in {overhead} of {all} lines"));
        section.headlines.push(format!("10 µs of the caller's processor in {caller} of {calls}"));
    }
    section.checked = it
        .results
        .iter()
        .flat_map(|result| result.gpu.iter().chain(&result.cpu).chain(&result.uring))
        .map(|measured| measured.checked)
        .sum();
    section
}
