//! `bench-elements`.

use warprow_workload::units::count;

use super::figures::{bars, line};
use super::section::Section;
use crate::gpu::elements::ElementResult;
use crate::report::{Bar, Chart, Group, Lines, Unit};
use crate::results::ElementsAndChecksums;

pub(super) fn elements(it: ElementsAndChecksums) -> Section {
    let mut section = Section {
        title: "Elements and checksums of rows".to_owned(),
        about: format!(
            "Look-ups of {} ids to f32 on one {}, in tables of {} rows of {} elements, as they are and in sums of {}; and of f32 rows on drives, \
             compared with their CRC32C as they arrive or not, by turns. Medians of {}.",
            count(it.bags * it.hot),
            it.gpu,
            count(it.rows),
            it.dim,
            it.hot,
            it.runs
        ),
        emulated: match it.checksums.is_empty() {
            true => Vec::new(),
            false => vec!["Drives: threads that answer out of memory, as fast as they can, in disorder.".to_owned()],
        },
        notes: it.notes,
        ..Section::default()
    };
    let kinds = [("hbm", false), ("hbm", true), ("dram", false), ("dram", true)];
    let groups = kinds.map(|(tier, pooled)| {
        let points = it.elements.iter().filter(|point| point.tier == tier && point.pooled == pooled);
        let bars =
            points.map(|point| Bar::ours(format!("{}, {} B", point.elements, point.row_bytes), point.us)).collect();
        let tier = if tier == "hbm" { "GPU memory" } else { "DRAM" };
        Group { label: format!("{} in {tier}", if pooled { "sums of rows" } else { "rows" }), bars }
    });
    let groups: Vec<Group> = groups.into_iter().filter(|group| !group.bars.is_empty()).collect();
    if !groups.is_empty() {
        let title = "By elements, by the GPU, launch hidden; shorter is better";
        section.charts.push(bars(title, Unit::Micros, groups));
    }
    for (tier, pooled) in kinds {
        let of = |point: &&ElementResult| point.tier == tier && point.pooled == pooled && point.elements != "f32";
        let ratios = it.elements.iter().filter(of).filter_map(|point| Some((point, point.of_f32?)));
        let words: Vec<String> = ratios.map(|(point, ratio)| format!("{} {ratio:.2}", point.elements)).collect();
        if !words.is_empty() {
            let tier = if tier == "hbm" { "GPU memory" } else { "DRAM" };
            let what = if pooled { "sums" } else { "rows" };
            section.headlines.push(format!("{what} in {tier}, times f32's time: {}", words.join(", ")));
        }
    }
    let mut lengths: Vec<u32> = it.checksums.iter().map(|point| point.row_bytes).collect();
    lengths.dedup();
    for row_bytes in lengths {
        let points = || it.checksums.iter().filter(move |point| point.row_bytes == row_bytes);
        let series = [("unchecked", 0), ("checked", 1)]
            .map(|(name, at)| line(name, points().map(move |point| (point.ids as f64, point.seen_us[at]))));
        let drives = points().map(|point| point.drives).max().unwrap_or(0);
        let title = format!("Rows of {row_bytes} B on {drives} drives");
        let series = series.to_vec();
        let unit = Unit::Micros;
        section.charts.push(Chart::Lines(Lines { title, x: "ids", unit, log: true, series }));
        if let Some(most) = points().max_by_key(|point| point.ids) {
            let ids = count(most.ids);
            let ratio = most.ratio;
            section
                .headlines
                .push(format!("{ids} rows of {row_bytes} B on drives, checked: {ratio:.3} of the time unchecked"));
        }
    }
    let checked = it.elements.iter().map(|point| point.checked).chain(it.checksums.iter().map(|point| point.checked));
    section.checked = checked.sum();
    section
}
