//! What `warprow lookup --trace` says in the end.

use std::time::Duration;

use serde_json::{Value, json};
use warprow_lookup::LookupReport;
use warprow_workload::units;

use super::results::{Asked, Results};
use crate::columns::LookupTrace;
use crate::commands::CommandOutput;
use crate::commands::lookup::arguments::LookupArgs;
use crate::failure::Failure;
use crate::report::{printable, table};

/// The share of ids, of those that their table has, that memory answered; `None` without any.
pub(in crate::commands::lookup) fn hit_rate(report: &LookupReport) -> Option<f64> {
    let in_memory = report.ids_dram + report.ids_cached;
    let ids = in_memory + report.ids_ssd;
    (ids > 0).then(|| in_memory as f64 / ids as f64)
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

fn counts(report: &LookupReport) -> Value {
    json!({
        "ids": report.ids,
        "padding": report.padding,
        "missing": report.missing,
        "ids_dram": report.ids_dram,
        "ids_cached": report.ids_cached,
        "ids_ssd": report.ids_ssd,
        "hit_rate": hit_rate(report),
        "unique": report.unique,
        "rows_dram": report.rows_dram,
        "rows_cached": report.rows_cached,
        "rows_ssd": report.rows_ssd,
        "commands": report.commands,
        "bytes_read": report.bytes_read,
        "seconds": seconds(report),
    })
}

fn seconds(report: &LookupReport) -> f64 {
    report.stages.iter().sum::<Duration>().as_secs_f64()
}

pub(super) fn report(args: &LookupArgs, results: &Results<'_>) -> Result<CommandOutput, Failure> {
    CommandOutput::new(text(results), json(args, results))
}

fn text(results: &Results<'_>) -> String {
    let Results { asked, left, logs, dram, queries, .. } = results;
    let total = results.total();
    let row = |name: &str, columns: String, rows: String, it: &LookupReport| {
        let ids = units::count(it.ids);
        let missing = units::count(it.missing);
        let unique = units::count(it.rows_ssd);
        let reads = units::count(it.commands);
        [name.to_owned(), columns, ids, missing, percent(hit_rate(it)), rows, unique, reads]
    };
    let of_table =
        |asked: &Asked| row(&asked.info.name, asked.columns.join(", "), units::count(asked.hot_rows), &asked.report);
    let hot_rows = asked.iter().map(|asked| asked.hot_rows).sum();
    let last = row("all", String::new(), units::count(hot_rows), &total);
    let mut text = table(
        ["table", "looked up by", ">ids", ">missing", ">from DRAM", ">rows in DRAM", ">rows read", ">commands"],
        asked.iter().map(of_table).chain((asked.len() > 1).then_some(last)),
    );
    let took = seconds(&total);
    text += &format!(
        "\n\n{} of {} in {}: {} from DRAM ({}), {} read; {} ids/s",
        units::plural(total.ids, "id"),
        units::plural(*queries, "query"),
        units::plural(asked.len() as u64, "table"),
        percent(hit_rate(&total)),
        units::bytes(*dram),
        units::bytes(total.bytes_read),
        units::short(total.ids as f64 / took.max(1e-9))
    );
    if let Some(cache) = results.cache {
        let ids = total.ids_dram + total.ids_cached + total.ids_ssd;
        text += &format!(
            "\ncache: {} of the ids from {}, of which {} are in use; {} different rows of batches found, {} read, {} evicted{}",
            percent((ids > 0).then(|| total.ids_cached as f64 / ids as f64)),
            units::plural(cache.lines, "line"),
            units::count(cache.used),
            units::count(cache.hits),
            units::count(cache.misses),
            units::count(cache.evictions),
            match cache.evictions {
                0 => String::new(),
                _ => format!(", {} rows after their last use", units::count(cache.eviction_age)),
            },
        );
    }
    if let Some((hit, error)) = results.planned() {
        text += &format!("\nplanned: {} from memory (± {})", percent(Some(hit)), percent(Some(error)));
    }
    for unused in logs.iter().filter_map(LookupTrace::unused_text) {
        text += &format!("\n{unused}");
    }
    if !left.is_empty() {
        let left: Vec<String> = left.iter().map(|name| printable(name)).collect();
        text += &format!("\nno column looks up {}", left.join(", "));
    }
    text
}

fn json(args: &LookupArgs, results: &Results<'_>) -> Value {
    let tables = results.asked.iter().map(|asked| {
        let mut of = json!({
            "table": asked.info.name, "columns": asked.columns, "rows": asked.info.rows, "rows_in_dram": asked.hot_rows,
            "checked": asked.info.row_crc && !args.no_check, "keys_checked": asked.info.keys.is_some() && args.check_keys,
        });
        merge(&mut of, counts(&asked.report));
        of
    });
    let mut object = json!({
        "tables": tables.collect::<Vec<_>>(),
        "traces": results.logs.iter().map(LookupTrace::json).collect::<Vec<_>>(),
        "not_looked_up": results.left,
        "queries": results.queries,
        "batch": args.batch,
        "dram_bytes": results.dram,
        "cache_bytes": args.cache.unwrap_or(0),
        "cache": results.cache.map(|cache| json!({
            "lines": cache.lines, "used": cache.used, "hits": cache.hits, "misses": cache.misses,
            "admissions": cache.admissions, "evictions": cache.evictions, "eviction_age": cache.eviction_age,
        })),
        "planned": results.planned().map(|(hit, error)| json!({ "hit_rate": hit, "error": error })),
    });
    merge(&mut object, counts(&results.total()));
    object
}

/// Adds the members of another object.
fn merge(object: &mut Value, other: Value) {
    if let (Value::Object(members), Value::Object(other)) = (object, other) {
        members.extend(other);
    }
}
