//! `bench-hbm`.

use warprow_workload::units::{bytes, count};

use super::figures::{BYTES, bars, law};
use super::section::Section;
use crate::gpu::hbm::HbmResult;
use crate::report::{Bar, Group, Unit};
use crate::results::HbmLookups;

fn name(point: &HbmResult) -> String {
    format!("{}, {}", if point.pooled { "sums" } else { "rows" }, law(point.alpha))
}

pub(super) fn hbm(it: HbmLookups) -> Section {
    let mut section = Section {
        title: "Rows in GPU memory".to_owned(),
        about: format!(
            "Look-ups of {} × {} ids in {} of rows of {} B in memory of one {}, medians of {}; sums against \
             torch.nn.functional.embedding_bag, rows as they are against F.embedding, in the same run.",
            count(it.bags),
            count(it.hot),
            bytes(it.rows.saturating_mul(it.row_bytes)),
            it.row_bytes,
            it.gpu,
            it.runs
        ),
        emulated: vec![
            "Nothing of what was timed. The drive behind the table computes its rows while they are loaded.".to_owned(),
        ],
        notes: it.notes,
        ..Section::default()
    };
    let group = |point: &HbmResult| {
        let mut bars = vec![Bar::ours("Warprow, graph", point.us.graph), Bar::ours("Warprow, called", point.us.called)];
        if let Some(torch) = &point.torch {
            let ratio = |time: f64| (point.us.graph > 0.0).then(|| time / point.us.graph);
            bars.extend(torch.graph_us.map(|time| Bar::rival("PyTorch, graph", time, ratio(time))));
            bars.push(Bar::rival("PyTorch, called", torch.called_us, ratio(torch.called_us)));
        }
        bars.push(Bar::ours("Warprow, seen by its caller", point.us.called_seen));
        if let Some(torch) = &point.torch {
            bars.push(Bar::rival("PyTorch, seen by its caller", torch.called_seen_us, point.ratio_seen));
        }
        Group { label: name(point), bars }
    };
    let groups: Vec<Group> = it.results.iter().map(group).collect();
    if !groups.is_empty() {
        let title = "By the GPU with launches hidden, and as seen; shorter is better";
        section.charts.push(bars(title, Unit::Micros, groups));
        let group = |point: &HbmResult| {
            let bars = vec![
                Bar::ours("Warprow, each row as often as it is asked for", point.bytes_per_second),
                Bar::rival("a copy within GPU memory", it.copy_bytes_per_second, Some(point.share_of_copy)),
            ];
            Group { label: name(point), bars }
        };
        let groups = it.results.iter().map(group).collect();
        section.charts.push(bars("Bytes read and written a second", BYTES, groups));
    }
    for point in &it.results {
        let share = Unit::Share.show(point.share_of_copy);
        section.headlines.push(match point.ratio {
            Some(ratio) => format!("{}: {ratio:.2}× PyTorch, {share} of a copy's bytes", name(point)),
            None => format!("{}: {share} of a copy's bytes a second", name(point)),
        });
    }
    section.checked = it.results.iter().map(|point| point.checked).sum();
    section
}
