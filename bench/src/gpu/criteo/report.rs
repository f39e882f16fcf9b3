//! What `bench-lookup --gpu` prints.

use std::fmt::Write;

use warprow_workload::units::bytes;

use super::tables::stage_names;
use super::{CallResult, CriteoResult, LatencyResult, Percentiles, SplitResult, Spread};
use crate::gpu::ahead::AheadResult;
use crate::output::{per_second, table};

fn us(time: f64) -> String {
    format!("{time:.1}")
}

fn both(it: &Percentiles) -> [String; 3] {
    [us(it.p50), us(it.p99), us(it.max)]
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "NOT met" }
}

/// Batches that are fetched ahead.
pub fn ahead(results: &[AheadResult]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for it in results {
        writeln!(text, "Batches of {} different ids, rows of 512 B on {} drives; us", it.ids, it.drives)?;
        let rows = [("look-up", &it.lookup), ("the same, prefetched", &it.prefetched), ("a prefetch's call", &it.call)];
        let rows = rows.map(|(name, times)| {
            let [p50, p99, max] = both(times);
            [name.to_owned(), p50, p99, max]
        });
        writeln!(text, "{}", table(["", "p50", "p99", "longest"], rows))?;
        let [ratio, least, most] = it.ratio.map(|ratio| format!("{ratio:.2}"));
        writeln!(
            text,
            "A step of a look-up and {} us of a model: {} us one after the other, {} us a step ahead ({ratio} times as many, {least} to {most})",
            us(it.work_us),
            us(it.in_turn_us),
            us(it.ahead_us)
        )?;
        writeln!(text, "{} rows compared.\n", it.checked)?;
    }
    Ok(text)
}

/// Batches over the tables of a shape.
pub fn tables(results: &[CriteoResult]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let Some(first) = results.first() else { return Ok(text) };
    writeln!(
        text,
        "{} of {}, rows of 128 f32, as published by {}; {:.1} % of rows in memory; median us",
        match first.shape.rows().len() {
            1 => "The table".to_owned(),
            tables => format!("The {tables} tables"),
        },
        first.shape.name(),
        first.scale,
        first.memory * 100.0
    )?;
    let lines = results.iter().map(|result| {
        let percent = |ids: f64| format!("{:.1}", ids / result.ids as f64 * 100.0);
        [
            format!(
                "{:.1} % / {} × {}{}",
                result.hbm * 100.0,
                result.batch,
                result.hot,
                if result.hot > 1 { " summed" } else { "" }
            ),
            result.ids.to_string(),
            format!("{} + {} + {}", percent(result.ids_hbm), percent(result.ids_dram), percent(result.ids_ssd)),
            format!("{:.0}", result.commands),
            us(result.graph_us),
            us(result.seen_us),
            format!("{} + {} + {}", us(result.prepare_us), us(result.fetch_us), us(result.expand_us)),
            per_second(result.ids_per_second),
            per_second(result.commands_per_second),
            us(result.host.all),
            format!("{:.2}", result.ratio_host),
            result.cpu_us.map_or_else(String::new, us),
            result.ratio_cpu.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        ]
    });
    let header = [
        "GPU memory / samples × ids",
        "ids",
        "% of ids by GPU memory + DRAM + drives",
        "commands",
        "graph",
        "called, seen",
        "dedupe + rows + output",
        "ids/s",
        "commands/s",
        "host + copy",
        "×",
        "all in DRAM: CPU + copy",
        "×",
    ];
    writeln!(text, "{}", table(header, lines))?;
    writeln!(
        text,
        "graph: by the GPU, launch hidden. × are by \"called, seen\". \"All in DRAM\" has no drive: an upper bound."
    )?;
    writeln!(text, "The host executor's stages ({}):", stage_names())?;
    for it in results {
        let stages = it.host.stages.map(us).join(" + ");
        writeln!(text, "  {} samples × {}, {:.1} % in GPU memory: {stages}", it.batch, it.hot, it.hbm * 100.0)?;
    }
    let checked: u64 = results.iter().map(|result| result.checked).sum();
    writeln!(text, "{checked} rows and sums compared, all of every answer.")?;
    results.iter().filter_map(CriteoResult::words).try_for_each(|words| writeln!(text, "{words}"))?;
    writeln!(text)?;
    Ok(text)
}

/// Small look-ups.
pub fn latencies(results: &[LatencyResult]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let Some(first) = results.first() else { return Ok(text) };
    writeln!(
        text,
        "Small look-ups: {} different ids, rows of 512 B in a table of {}, graph, {} fresh batches; us",
        first.ids,
        bytes(first.size),
        first.batches
    )?;
    let lines = results.iter().flat_map(|result| {
        let name = |what: &str| format!("{}, {what}", result.tier.name());
        let aim = format!("{:.1}: p50 {}, p99 {}", result.aim_us, verdict(result.met[0]), verdict(result.met[1]));
        let line = |name: String, times: &Percentiles, aim: String| {
            let [p50, p99, max] = both(times);
            [name, result.kernels.to_string(), p50, p99, max, aim]
        };
        let mut lines = vec![
            line(name("by the GPU, launch hidden"), &result.graph, aim),
            line(name("from launch to end seen"), &result.graph_seen, String::new()),
        ];
        lines.extend(result.uva_graph.map(|times| {
            let [p50, p99, max] = both(&times);
            [name("plain UVA, launch hidden"), "1".to_owned(), p50, p99, max, String::new()]
        }));
        lines
    });
    writeln!(text, "{}", table(["rows in", "kernels", "p50", "p99", "longest", "aim"], lines))?;
    for it in results {
        writeln!(text, "Rows in {}, by the GPU:", it.tier.name())?;
        let most = it.histogram.iter().map(|bar| bar.count).max().unwrap_or(1).max(1);
        for bar in &it.histogram {
            let width = (bar.count * 60).div_ceil(most) as usize;
            writeln!(text, "{:>8.2} to {:>8.2} {:>6} {}", bar.from_us, bar.to_us, bar.count, "#".repeat(width))?;
        }
    }
    let checked: u64 = results.iter().map(|result| result.checked).sum();
    writeln!(text, "{checked} rows compared.\n")?;
    Ok(text)
}

/// One table and 26.
pub fn split(results: &[SplitResult]) -> Result<String, std::fmt::Error> {
    let mut text =
        "The same number of ids of one table by itself and of 26, spread over them or all in one of them (graph, by \
                    the GPU, launch hidden; us)\n"
            .to_owned();
    let lines = results.iter().map(|result| {
        [
            format!(
                "{}, {} ids, {}",
                result.tier.name(),
                result.ids,
                if result.spread == Spread::Over { "spread" } else { "in one" }
            ),
            format!("{}, {}", result.kernels[0], result.kernels[1]),
            us(result.one.p50),
            us(result.one.p99),
            us(result.parts.p50),
            us(result.parts.p99),
            format!("{:+.1} {}", result.penalty_us, verdict(result.met)),
        ]
    });
    let header = ["rows in", "kernels", "one p50", "one p99", "26 p50", "26 p99", "penalty (aim: 3)"];
    writeln!(text, "{}\n", table(header, lines))?;
    Ok(text)
}

/// What calls cost.
pub fn calls(results: &[CallResult]) -> Result<String, std::fmt::Error> {
    let mut text = "What a look-up costs its caller; us\n".to_owned();
    let lines = results.iter().map(|result| {
        [
            format!("{}, {} ids", result.what, result.ids),
            result.kernels.to_string(),
            format!("{:.2} {}", result.call_cpu_us, verdict(result.met)),
            us(result.call.p50),
            us(result.call.p99),
            format!("{:.2}", result.graph_cpu_us),
            us(result.graph.p50),
            us(result.graph.p99),
        ]
    });
    let header = [
        "what",
        "kernels",
        "call, processor time, mean (aim: 10)",
        "call p50",
        "call p99",
        "graph launch, processor time, mean",
        "launch p50",
        "launch p99",
    ];
    writeln!(text, "{}", table(header, lines))?;
    if let Some(first) = results.first() {
        writeln!(
            text,
            "{} calls each. Processor times include reading the clock ({:.2} us).\n",
            first.calls, first.clock_us
        )?;
    }
    Ok(text)
}
