//! `bench-passes`.

use warprow_workload::units::{bytes, count};

use super::figures::{BYTES, bars};
use super::section::Section;
use crate::passes::{Measured, PassResult};
use crate::report::{Bar, Group, Unit};
use crate::results::TrainingPasses;

pub(super) fn passes(it: TrainingPasses) -> Section {
    let PassResult { pass_rows, distinct, ways, left_out, checked, .. } = it.result;
    let uncached = ways.iter().find(|way| way.way == "uncached").map_or(f64::NAN, |way| way.both);
    let waited = ways.iter().map(|way| {
        let bars = [("staged and copied out", way.read), ("taken back", way.write), ("both", way.both)];
        Group { label: way.way.clone(), bars: bars.map(|(name, rate)| Bar::ours(name, rate)).to_vec() }
    });
    let copied = ways.iter().map(|way| {
        let ratio = (way.copy > 0.0).then(|| way.memcpy / way.copy);
        let bars = vec![
            Bar::ours("copied out of memory", way.copy),
            Bar::ours("the same in parts", way.parts),
            Bar::rival("memcpy", way.memcpy, ratio),
        ];
        Group { label: way.way.clone(), bars }
    });
    let charts = match ways.is_empty() {
        true => Vec::new(),
        false => vec![
            bars("Bytes of rows by the time for which the trainer waits", BYTES, waited.collect()),
            bars("Copying alone", BYTES, copied.collect()),
        ],
    };
    let best = ways.iter().max_by(|a, b| a.both.total_cmp(&b.both));
    let headline = |way: &Measured| {
        let times = if uncached > 0.0 { format!(", {:.1} times uncached", way.both / uncached) } else { String::new() };
        format!("{}: {}{times}", way.way, BYTES.show(way.both))
    };
    let hits = |way: &Measured| {
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
            count(pass_rows),
            count(distinct),
            count(it.rows),
            bytes(it.rows.saturating_mul(it.row_bytes))
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
