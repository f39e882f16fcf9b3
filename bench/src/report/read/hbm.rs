//! What `hbm` prints.

use serde::Deserialize;

use super::quantities::bytes;
use super::section::Section;
use crate::report::chart::grouped;
use crate::report::{Bar, Bars, Chart, Group, Unit};

#[derive(Deserialize)]
pub(super) struct Hbm {
    gpu: String,
    rows: u64,
    row_bytes: u64,
    bags: u64,
    hot: u64,
    runs: u32,
    copy_bytes_per_second: f64,
    results: Vec<Point>,
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct Point {
    pooled: bool,
    alpha: f64,
    us: Times,
    bytes_per_second: f64,
    share_of_copy: f64,
    torch: Option<Torch>,
    ratio: Option<f64>,
    ratio_seen: Option<f64>,
    checked: u64,
}

#[derive(Deserialize)]
struct Times {
    graph: f64,
    called: f64,
    called_seen: f64,
}

#[derive(Deserialize)]
struct Torch {
    graph_us: Option<f64>,
    called_us: f64,
    called_seen_us: f64,
}

impl Point {
    fn name(&self) -> String {
        let what = if self.pooled { "sums" } else { "rows" };
        if self.alpha == 0.0 { format!("{what}, uniform ids") } else { format!("{what}, α = {}", self.alpha) }
    }
}

pub(super) fn hbm(it: Hbm) -> Section {
    let mut section = Section {
        title: "Rows in GPU memory".to_owned(),
        about: format!(
            "Look-ups of {} × {} ids in {} of rows of {} B in memory of one {}, medians of {}; sums against \
             torch.nn.functional.embedding_bag, rows as they are against F.embedding, in the same run.",
            grouped(it.bags),
            grouped(it.hot),
            bytes(it.rows as f64 * it.row_bytes as f64),
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
    let group = |point: &Point| {
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
        Group { label: point.name(), bars }
    };
    let groups: Vec<Group> = it.results.iter().map(group).collect();
    if !groups.is_empty() {
        let title = "By the GPU with launches hidden, and as seen; shorter is better".to_owned();
        section.charts.push(Chart::Bars(Bars { title, unit: Unit::Micros, groups }));
        let rate = Unit::PerSecond("B/s");
        let group = |point: &Point| {
            let bars = vec![
                Bar::ours("Warprow, each row as often as it is asked for", point.bytes_per_second),
                Bar::rival("a copy within GPU memory", it.copy_bytes_per_second, Some(point.share_of_copy)),
            ];
            Group { label: point.name(), bars }
        };
        let title = "Bytes read and written a second".to_owned();
        section.charts.push(Chart::Bars(Bars { title, unit: rate, groups: it.results.iter().map(group).collect() }));
    }
    for point in &it.results {
        let share = Unit::Share.show(point.share_of_copy);
        section.headlines.push(match point.ratio {
            Some(ratio) => format!("{}: {ratio:.2}× PyTorch, {share} of a copy's bytes", point.name()),
            None => format!("{}: {share} of a copy's bytes a second", point.name()),
        });
    }
    section.checked = it.results.iter().map(|point| point.checked).sum();
    section
}
