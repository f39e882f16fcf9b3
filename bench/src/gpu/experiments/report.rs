//! What `dram --experiments` prints.

use std::fmt::Write;

use super::{Experiments, Gathered};
use crate::output::{per_second, table};

/// By kind of pages, and by length of rows.
pub fn show(found: &Experiments) -> Result<String, std::fmt::Error> {
    let us = |time: f64| format!("{time:.1}");
    let both = |it: &Gathered| format!("{} / {}B/s", us(it.us), per_second(it.bytes_per_second));
    let mut text = "Gathering alone, by the GPU, launches hidden; median us / bytes of rows a second.\n".to_owned();
    let lines = found.pages.iter().map(|it| {
        [
            it.pages.to_string(),
            it.share.map_or_else(|| "not known".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            it.row_bytes.to_string(),
            it.ids.to_string(),
            it.unique.to_string(),
            both(&it.lookup),
            both(&it.uva),
            format!("{:.1}", it.register_seconds),
        ]
    });
    let header = [
        "table on",
        "so much of it",
        "row B",
        "ids",
        "different",
        "the look-up's gather",
        "UVA, as asked",
        "registering s",
    ];
    writeln!(text, "{}\n", table(header, lines))?;
    let lines = found.bulk.iter().map(|it| {
        [
            it.row_bytes.to_string(),
            it.ids.to_string(),
            it.unique.to_string(),
            format!("{}, {} blocks", both(&it.lookup), it.gatherers),
            both(&it.bulk),
            format!("{} blocks, {} rows each", it.best.blocks, it.best.in_flight),
            format!("{:.2}", it.ratio),
            both(&it.sorted),
            both(&it.uva),
        ]
    });
    let header = [
        "row B",
        "ids",
        "different",
        "the look-up's gather",
        "cp.async.bulk",
        "best by",
        "times as fast",
        "UVA, ascending",
        "UVA, as asked",
    ];
    writeln!(text, "{}\n", table(header, lines))?;
    let lines = found.bulk.iter().flat_map(|it| {
        it.tried.iter().map(|way| {
            let rate = it.unique as f64 * f64::from(it.row_bytes) / way.us * 1e6;
            [
                it.row_bytes.to_string(),
                way.blocks.to_string(),
                way.each.to_string(),
                way.in_flight.to_string(),
                format!("{} KiB", way.shared >> 10),
                us(way.us),
                format!("{}B/s", per_second(rate)),
            ]
        })
    });
    let header =
        ["row B", "blocks", "rows of a stage", "rows on their way", "shared memory", "us", "bytes of rows a second"];
    writeln!(text, "Bulk copies in every way that was tried; medians of a few.\n{}", table(header, lines))?;
    let checked: u64 = found.pages.iter().map(|it| it.checked).chain(found.bulk.iter().map(|it| it.checked)).sum();
    writeln!(text, "{checked} rows compared, all of every answer.")?;
    Ok(text)
}
