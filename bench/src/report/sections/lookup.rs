//! `bench-lookup` by the host executor.

use warprow_workload::units::{bytes, count};

use super::figures::{IDS, bars, law, timing_of};
use super::section::Section;
use crate::growth::GrowthSize;
use crate::report::{Bar, Chart, Group, Lines, Series, Unit};
use crate::results::{HostLookups, Race, RivalResult};

impl Race {
    fn groups(&self, how: &str) -> (Group, Group) {
        let rates = std::iter::once(Bar::ours("Warprow", self.ids_per_second));
        let rate = |result: &RivalResult| {
            let reason = || result.unavailable.clone().unwrap_or_else(|| "no reason is given".to_owned());
            Bar { value: result.ids_per_second.ok_or_else(reason), ..Bar::rival(&result.rival, 0.0, result.ratio) }
        };
        let times = std::iter::once(Bar::ours("Warprow", self.p50_us));
        let time = |result: &RivalResult| result.ids_per_second.map(|_| Bar::rival(&result.rival, result.p50_us, None));
        let label = format!("{how} (file on {}, {} rows in DRAM)", self.filesystem, count(self.rows_in_dram));
        (
            Group { label, bars: rates.chain(self.rivals.iter().map(rate)).collect() },
            Group { label: how.to_owned(), bars: times.chain(self.rivals.iter().filter_map(time)).collect() },
        )
    }

    fn headline(&self, how: &str) -> String {
        let best = self.rivals.iter().filter_map(|rival| Some((rival.ratio?, &rival.rival)));
        let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
        let against = best.map_or_else(String::new, |(ratio, rival)| format!(", {ratio:.2}× the best rival ({rival})"));
        format!("{how}: {}{against}", IDS.show(self.ids_per_second))
    }
}

pub(super) fn lookup(it: HostLookups) -> Section {
    let mut section = Section {
        title: "Look-ups by the host".to_owned(),
        about: format!(
            "Batches of {} ids (power law, α = {}) in a table of {} of rows of {} B, against programs that read the same file. “Equal means” \
             have the same deduplication, the same rows in DRAM, the same order and merging of reads and the same depth.",
            count(it.batch.into()),
            it.alpha,
            bytes(it.size),
            it.row_bytes
        ),
        ..Section::default()
    };
    let mut rates = Vec::new();
    let mut times = Vec::new();
    for (how, raced) in [("Page cache, warm", &it.cached), ("Past the page cache, O_DIRECT", &it.direct)] {
        let Some(raced) = raced else {
            section.warnings.push(format!("{how}: not measured."));
            continue;
        };
        let (rate, time) = raced.groups(how);
        rates.push(rate);
        times.push(time);
        section.headlines.push(raced.headline(how));
        section
            .notes
            .push(format!("{how}: 99 of 100 batches of Warprow's end within {}.", Unit::Micros.show(raced.p99_us)));
        section.checked += raced.rows_checked;
        if !raced.pinned {
            section.warnings.push(format!("{how}: the threads could not be given a processor each."));
        }
    }
    if !rates.is_empty() {
        let words = "The drive of “page cache” and “O_DIRECT”: the software controller on a file; what the file lies on is the machine's.";
        section.emulated.push(words.to_owned());
        section.charts.push(bars("Ids looked up", IDS, rates));
        section.charts.push(bars("Median time of a batch; shorter is better", Unit::Micros, times));
    }
    for growth in it.growth.iter().flatten() {
        let point = |of: fn(&GrowthSize) -> f64| {
            let points =
                growth.sizes.iter().filter_map(|size| Some((size.size? as f64 / f64::from(1 << 30), of(size))));
            points.collect::<Vec<_>>()
        };
        let ids = law(growth.alpha);
        let series = vec![
            Series { name: "ids".to_owned(), points: point(|size| size.ids_per_second) },
            Series { name: "commands to the drive".to_owned(), points: point(|size| size.commands_per_second) },
        ];
        let title = format!("Growing tables: {ids}, {} in DRAM", bytes(growth.dram_bytes));
        let unit = Unit::PerSecond("a second");
        section.charts.push(Chart::Lines(Lines { title, x: "GiB of rows", unit, log: false, series }));
        let ratio = growth
            .ratio
            .map(|ratio| format!("growing, {ids}: the largest at {:.0} % of the smallest's rate", ratio * 100.0));
        section.headlines.extend(ratio);
        section.checked += growth.sizes.iter().map(|size| size.rows_checked).sum::<u64>();
    }
    match &it.growth {
        Some(_) => {
            let words = "The drive of growing tables: a software controller with the timing of";
            section
                .emulated
                .push(format!("{words} {}; its rows are computed when they are read.", timing_of(&it.profile)));
        }
        None => section.warnings.push("Growing tables: not measured.".to_owned()),
    }
    section
}
