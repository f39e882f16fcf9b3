//! What `dram --experiments` prints.

use serde::Deserialize;

use super::quantities::bytes;
use super::section::Section;
use crate::report::chart::grouped;
use crate::report::{Bar, Bars, Chart, Group, Unit};

#[derive(Deserialize)]
pub(super) struct Experiments {
    gpu: String,
    size: u64,
    runs: u32,
    pages: Vec<OnPages>,
    bulk: Vec<ByBulk>,
    notes: Vec<String>,
}

#[derive(Clone, Copy, Deserialize)]
struct Gathered {
    bytes_per_second: f64,
}

#[derive(Deserialize)]
struct OnPages {
    pages: String,
    share: Option<f64>,
    row_bytes: u32,
    lookup: Gathered,
    uva: Gathered,
    checked: u64,
}

#[derive(Deserialize)]
struct ByBulk {
    row_bytes: u32,
    ids: u64,
    lookup: Gathered,
    gatherers: u32,
    sorted: Gathered,
    uva: Gathered,
    bulk: Gathered,
    best: Way,
    ratio: f64,
    checked: u64,
}

#[derive(Deserialize)]
struct Way {
    blocks: u32,
    in_flight: u32,
}

fn pages_name(pages: &str) -> &str {
    match pages {
        "small" => "pages of 4 KiB",
        "giant" => "pages of 1 GiB",
        "huge" => "reserved pages of 2 MiB",
        "transparent" => "transparent pages of 2 MiB",
        other => other,
    }
}

pub(super) fn experiments(it: Experiments) -> Section {
    let mut section = Section {
        title: "Rows in DRAM: bulk copies, and pages".to_owned(),
        about: format!(
            "Gathering alone, on one {}, of uniform ids' rows out of {} of pinned memory, medians of {}: by the look-up's own kernel code, by \
             cp.async.bulk through shared memory, and by plain loads (UVA).",
            it.gpu,
            bytes(it.size as f64),
            it.runs
        ),
        emulated: vec!["Nothing of what was timed. The GPU writes the tables.".to_owned()],
        notes: it.notes,
        ..Section::default()
    };
    let rate = Unit::PerSecond("B/s");
    let by_bulk = |it: &ByBulk| {
        let ratio = |other: Gathered| {
            (other.bytes_per_second > 0.0).then(|| it.lookup.bytes_per_second / other.bytes_per_second)
        };
        let blocks = format!("the look-up's gather, {} blocks", it.gatherers);
        let bars = vec![
            Bar::ours(blocks, it.lookup.bytes_per_second),
            Bar::rival("cp.async.bulk", it.bulk.bytes_per_second, ratio(it.bulk)),
            Bar::rival("UVA, ascending", it.sorted.bytes_per_second, ratio(it.sorted)),
            Bar::rival("UVA, as asked", it.uva.bytes_per_second, ratio(it.uva)),
        ];
        Group { label: format!("rows of {} B, {} ids", it.row_bytes, grouped(it.ids)), bars }
    };
    let on_pages = |it: &OnPages| {
        let bars = vec![
            Bar::ours("the look-up's gather", it.lookup.bytes_per_second),
            Bar::rival("UVA, as asked", it.uva.bytes_per_second, None),
        ];
        let share = it.share.map_or_else(String::new, |share| format!(", {} of it", Unit::Share.show(share)));
        Group { label: format!("{}{share}, rows of {} B", pages_name(&it.pages), it.row_bytes), bars }
    };
    for (title, groups) in [
        ("By bulk copies and others: bytes of rows a second", it.bulk.iter().map(by_bulk).collect::<Vec<_>>()),
        ("By pages of the table: bytes of rows a second", it.pages.iter().map(on_pages).collect()),
    ] {
        if !groups.is_empty() {
            section.charts.push(Chart::Bars(Bars { title: title.to_owned(), unit: rate, groups }));
        }
    }
    for it in &it.bulk {
        section.headlines.push(format!(
            "rows of {} B: bulk copies {:.2} times as fast as the look-up's gather, at best by {} blocks with {} rows on their way each",
            it.row_bytes, it.ratio, it.best.blocks, it.best.in_flight
        ));
    }
    for it in &it.pages {
        let rate = rate.show(it.lookup.bytes_per_second);
        section.headlines.push(format!("{}: {rate} by the look-up's gather", pages_name(&it.pages)));
    }
    section.checked = it.bulk.iter().map(|it| it.checked).chain(it.pages.iter().map(|it| it.checked)).sum();
    section
}
