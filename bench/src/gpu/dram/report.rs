//! What `bench-dram` prints.

use std::fmt::Write;

use warprow_workload::units::bytes;

use super::{CachedDram, DramResult, Sweep};
use crate::output::{per_second, table};

fn us(time: f64) -> String {
    format!("{time:.1}")
}

fn maybe(time: Option<f64>) -> String {
    time.map_or_else(String::new, us)
}

fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

fn name(it: &DramResult) -> String {
    format!("{} / {} B / {} / {}", bytes(it.size), it.row_bytes, it.alpha, it.ids)
}

/// Device times, verdicts, and what the callers see.
pub fn show(results: &[DramResult]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let verdict = |over: f64| format!("{over:+.1} {}", if over <= 0.0 { "met" } else { "NOT met" });
    let lines = results.iter().map(|result| {
        [
            name(result),
            result.unique.to_string(),
            result.kernels.to_string(),
            us(result.us.lookup_graph),
            us(result.us.uva_graph),
            ratio(result.ratio_uva_graph),
            verdict(result.over_limit_graph_us),
            us(result.us.lookup_called),
            us(result.us.uva_launched),
            ratio(result.ratio_uva_called),
            verdict(result.over_limit_called_us),
            per_second(result.bytes_per_second),
        ]
    });
    let header = [
        "table / row / alpha / ids",
        "different",
        "kernels",
        "look-up, graph",
        "UVA, graph",
        "×",
        "over limit",
        "look-up, called",
        "UVA, launched",
        "×",
        "over limit",
        "B/s",
    ];
    writeln!(text, "By the GPU, launches hidden; median us. The limit is max(1.1 × UVA, UVA + 3 us).")?;
    writeln!(text, "{}\n", table(header, lines))?;
    let lines = results.iter().map(|result| {
        [
            name(result),
            us(result.us.lookup_graph_seen),
            us(result.us.uva_graph_seen),
            us(result.us.lookup_called_seen),
            us(result.us.uva_launched_seen),
            us(result.us.lookup_call),
            format!("{} + {} + {}", us(result.us.prepare), us(result.us.fetch), us(result.us.expand)),
            us(result.us.cpu),
            ratio(result.ratio_cpu),
            maybe(result.us.batch_copy),
            result.ratio_batch_copy.map_or_else(String::new, ratio),
            maybe(result.torch_embedding_us),
            maybe(result.torch_index_us),
            result.ratio_torch.map_or_else(String::new, ratio),
        ]
    });
    let header = [
        "table / row / alpha / ids",
        "look-up, graph",
        "UVA, graph",
        "look-up, called",
        "UVA, launched",
        "the call",
        "dedupe + rows + output",
        "CPU + copy",
        "×",
        "batch of copies",
        "×",
        "F.embedding + copy",
        "index_select + copy",
        "×",
    ];
    writeln!(
        text,
        "By the caller's clock, from the call until the end is seen; median us. × are to the look-up's graph."
    )?;
    writeln!(text, "{}", table(header, lines))?;
    let (checked, spots): (u64, u64) =
        results.iter().fold((0, 0), |(all, spots), it| (all + it.checked, spots + it.checked_by_cpu));
    writeln!(text, "{checked} rows compared, all of every answer, {spots} of them by the processor too.")?;
    let met = results.iter().filter(|result| result.met).count();
    writeln!(text, "The limit is met in {met} of {} lines.", results.len())?;
    Ok(text)
}

/// Look-ups without a cache, and with one.
pub fn show_cached(cached: &CachedDram) -> Result<String, std::fmt::Error> {
    let lines = cached.ways.iter().map(|way| {
        [
            way.way.clone(),
            if way.lines == 0 { String::new() } else { way.lines.to_string() },
            us(way.lookup_us),
            way.parts_us.map(us).join(" + "),
            format!("{:.1} %", way.hits * 100.0),
            way.rows_read.to_string(),
        ]
    });
    let header = ["way", "lines", "look-up us", "dedupe + rows + output", "ids in the cache", "rows read"];
    let CachedDram { size, row_bytes, alpha, ids, ways } = cached;
    let checked: u64 = ways.iter().map(|way| way.checked).sum();
    Ok(format!(
        "{}, rows of {row_bytes} B, alpha {alpha}, {ids} ids, as graphs, by the GPU, launches hidden\n{}\n\
         {checked} rows compared, all of every answer.\n",
        bytes(*size),
        table(header, lines)
    ))
}

/// Gathering blocks.
pub fn show_sweep(sweep: &Sweep) -> Result<String, std::fmt::Error> {
    let best = sweep.points.iter().map(|point| point.fetched_bytes_per_second).fold(f64::NAN, f64::max);
    let lines = sweep.points.iter().map(|point| {
        [
            point.gatherers.to_string(),
            us(point.lookup_us),
            us(point.fetch_us),
            per_second(point.bytes_per_second),
            per_second(point.fetched_bytes_per_second),
            format!("{:.0} %", point.fetched_bytes_per_second / best * 100.0),
        ]
    });
    let header = ["gathering blocks", "look-up us", "rows us", "output B/s", "rows B/s", "of the best"];
    let enough = sweep.enough.map_or_else(|| "none".to_owned(), |enough| enough.to_string());
    let Sweep { size, row_bytes, alpha, ids, checked, .. } = sweep;
    Ok(format!(
        "{}, rows of {row_bytes} B, alpha {alpha}, {ids} ids, by blocks that gather\n{}\n\
         Fewest that reach 90 % of the best: {enough} (aim: 16 or fewer). {checked} rows compared.\n",
        bytes(*size),
        table(header, lines)
    ))
}
