//! What `passes` prints.

use serde::Deserialize;

use super::quantities::bytes;
use super::section::Section;
use crate::report::chart::grouped;
use crate::report::{Bar, Bars, Chart, Group, Unit};

const RATE: Unit = Unit::PerSecond("B/s");

#[derive(Deserialize)]
pub(super) struct Passes {
    rows: u64,
    row_bytes: u64,
    drive: String,
    result: Found,
}

#[derive(Deserialize)]
struct Found {
    pass_rows: u64,
    distinct: u64,
    memcpy: Option<f64>,
    ways: Vec<Way>,
    #[serde(default)]
    left_out: Vec<String>,
    checked: u64,
}

#[derive(Deserialize)]
struct Way {
    way: String,
    hit_rate: f64,
    hit_rate_later: Option<f64>,
    read: f64,
    write: f64,
    both: f64,
    copy: f64,
    parts: f64,
    #[serde(default)]
    memcpy: Option<f64>,
}

pub(super) fn passes(it: Passes) -> Section {
    let Found { pass_rows, distinct, memcpy, ways, left_out, checked } = it.result;
    let uncached = ways.iter().find(|it| it.way == "uncached").map_or(f64::NAN, |way| way.both);
    let waited = ways.iter().map(|way| {
        let bars = [("staged and copied out", way.read), ("taken back", way.write), ("both", way.both)];
        Group { label: way.way.clone(), bars: bars.map(|(name, rate)| Bar::ours(name, rate)).to_vec() }
    });
    let copied = ways.iter().map(|way| {
        let mut bars = vec![Bar::ours("copied out of memory", way.copy), Bar::ours("the same in parts", way.parts)];
        bars.extend(way.memcpy.or(memcpy).map(|it| Bar::rival("memcpy", it, (way.copy > 0.0).then(|| it / way.copy))));
        Group { label: way.way.clone(), bars }
    });
    let chart = |title: &str, groups: Vec<Group>| Chart::Bars(Bars { title: title.to_owned(), unit: RATE, groups });
    let charts = match ways.is_empty() {
        true => Vec::new(),
        false => vec![
            chart("Bytes of rows by the time for which the trainer waits", waited.collect()),
            chart("Copying alone", copied.collect()),
        ],
    };
    let best = ways.iter().max_by(|a, b| a.both.total_cmp(&b.both));
    let headline = |way: &Way| {
        let times = if uncached > 0.0 { format!(", {:.1} times uncached", way.both / uncached) } else { String::new() };
        format!("{}: {}{times}", way.way, RATE.show(way.both))
    };
    let hits = |way: &Way| {
        let later = way
            .hit_rate_later
            .map_or(String::new(), |rate| format!(", {} in the second iteration", Unit::Share.show(rate)));
        format!("{}: {} of the rows were in memory{later}.", way.way, Unit::Share.show(way.hit_rate))
    };
    Section {
        title: "Training passes".to_owned(),
        about: format!(
            "Ten passes twice, of {} rows each, of {} that any has and {} in all ({}), shaped as those by which HugeCTR measures its \
             embedding training cache.",
            grouped(pass_rows),
            grouped(distinct),
            grouped(it.rows),
            bytes(it.rows as f64 * it.row_bytes as f64)
        ),
        emulated: vec![match it.drive.as_str() {
            "direct" => "The drive: a software controller on a file, past the page cache.".to_owned(),
            "cached" => "The drive: a software controller on a file, through the page cache.".to_owned(),
            other => format!("The drive: a software controller on memory, with the timing of {other}."),
        }],
        headlines: best.into_iter().map(headline).collect(),
        charts,
        notes: ways
            .iter()
            .map(hits)
            .chain(left_out.iter().map(|way| format!("{way}: left out, since no time was left.")))
            .collect(),
        checked,
        ..Section::default()
    }
}
