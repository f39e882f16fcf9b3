//! What `warprow lookup` says in the end.

use std::time::Duration;

use serde_json::{Value, json};
use warprow_store::TableInfo;
use warprow_workload::units;

use super::arguments::LookupArgs;
use super::hit_rates::hit_rate;
use super::limits::{JSON_NUMBERS, SHOWN};
use super::request::Request;
use super::shown::Shown;
use super::work::Found;
use crate::commands::CommandOutput;
use crate::failure::Failure;
use crate::report::{json_float, table};

pub(super) fn report(
    args: &LookupArgs,
    info: &TableInfo,
    request: &Request,
    found: &Found,
) -> Result<CommandOutput, Failure> {
    let summary = format!(
        "{} of table {:?}: {}, {} missing; {} in {}",
        units::plural(request.rows(), "row"),
        info.name,
        units::plural(found.report.ids, "id"),
        units::count(found.report.missing),
        units::plural(found.report.commands, "command"),
        units::time(elapsed(found)),
    );
    let text = match &args.out {
        Some(path) => format!("{summary}\nwritten to {}", path.display()),
        None => format!("{}\n{summary}", rows(info, request, &found.shown)),
    };
    CommandOutput::new(text, json(args, info, request, found))
}

fn elapsed(found: &Found) -> Duration {
    found.report.stages.iter().sum()
}

fn json(args: &LookupArgs, info: &TableInfo, request: &Request, found: &Found) -> Value {
    let Found { shown, report, dtype } = found;
    let mut object = json!({
        "table": info.name,
        "dim": info.dim,
        "dtype": dtype.name(),
        "pooling": args.pooling.name(),
        "generation": report.generation,
        "checked": info.row_crc && !args.no_check && !args.degraded,
        "dram_bytes": args.dram.unwrap_or(0),
        "cache_bytes": args.cache.unwrap_or(0),
        "keys_checked": info.keys.is_some() && args.check_keys,
        "ids": report.ids,
        "padding": report.padding,
        "missing": report.missing,
        "unique": report.unique,
        "rows_dram": report.rows_dram,
        "rows_cached": report.rows_cached,
        "rows_ssd": report.rows_ssd,
        "ids_dram": report.ids_dram,
        "ids_cached": report.ids_cached,
        "ids_ssd": report.ids_ssd,
        "hit_rate": hit_rate(report),
        "commands": report.commands,
        "doorbells": report.sq_doorbells,
        "bytes_read": report.bytes_read,
        "seconds": elapsed(found).as_secs_f64(),
    });
    let Some(members) = object.as_object_mut() else { return object };
    if let Some(path) = &args.out {
        members.insert("out".into(), path.display().to_string().into());
        return object;
    }
    let values = |(index, row): (usize, &Vec<f32>)| match shown.is_lost(index) {
        true => Value::Null,
        false => row.iter().map(|&v| json_float(v)).collect(),
    };
    members.insert("rows".into(), shown.rows.iter().enumerate().map(values).collect());
    if request.bags.is_none() {
        members.insert("found".into(), shown.mask.iter().map(|&found| Value::from(found == 1)).collect());
    }
    object
}

/// The first rows and elements, and how many more there are.
fn rows(info: &TableInfo, request: &Request, shown: &Shown) -> String {
    let lines = shown.rows.iter().take(SHOWN.0).enumerate().map(|(i, row)| {
        let mut text = row.iter().take(SHOWN.1).map(|&v| number(v)).collect::<Vec<_>>().join("  ");
        if row.len() > SHOWN.1 {
            text += &format!("  … {} more", row.len() - SHOWN.1);
        }
        let (what, found) = match request.bags {
            None if shown.is_lost(i) => {
                text.clear();
                (request.id(i).to_string(), "LOST".to_owned())
            }
            Some(_) => (i.to_string(), String::new()),
            None => (request.id(i).to_string(), if shown.mask.get(i) == Some(&1) { "yes" } else { "no" }.to_owned()),
        };
        [what, found, text]
    });
    let head = if request.bags.is_some() { [">bag", "", "sum or mean"] } else { [">id", "found", "row"] };
    let mut text = table(head, lines);
    let rows = request.rows();
    let more = rows.saturating_sub(SHOWN.0 as u64);
    if more > 0 {
        let numbers = rows.saturating_mul(info.dim.into());
        let json = if numbers <= JSON_NUMBERS { "print them with --json, or " } else { "" };
        text += &format!("\n… and {} more: {json}write them with --out", units::count(more));
    }
    text
}

/// A number for people, with as many digits as tell it from its neighbours.
fn number(value: f32) -> String {
    match value.abs() {
        0.0 | 1e-5..1e16 => value.to_string(),
        v if v.is_finite() => format!("{value:e}"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, -0.0, 7.0, -0.5, 1e-5, 1e-20, 3e37, f32::NAN, f32::NEG_INFINITY].map(number);
        assert_eq!(shown, ["0", "-0", "7", "-0.5", "0.00001", "1e-20", "3e37", "NaN", "-inf"]);
    }
}
