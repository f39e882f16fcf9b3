//! What the demo says to programs.

use std::time::Duration;

use serde_json::{Map, Value, json};
use warprow_lookup::Stage;
use warprow_workload::TableContent;

use super::cold::cold_json;
use super::figures::{CACHE, mapping_name, percentile, ratio};
use super::measured::Measured;
use crate::commands::demo::cold::Cold;
use crate::commands::demo::replay::Outcome;
use crate::commands::demo::results::Results;
use crate::commands::demo::rivals::Rival;
use crate::commands::demo::warprow;

pub(super) fn json(measured: &Measured<'_>) -> Value {
    let Measured { workload, results, .. } = measured;
    let right = |outcome: &Result<Outcome, String>| {
        outcome.as_ref().map_or(true, |outcome| outcome.verified() || outcome.batches == 0)
    };
    let mut object = figures(results);
    let Some(members) = object.as_object_mut() else { return object };
    let cold_right = !matches!(&results.cold, Some(Ok(Cold { mismatch: Some(_), .. })));
    let all_right = results.ours.verified() && results.rivals.iter().all(|(_, it)| right(it)) && cold_right;
    members.insert("verified".into(), all_right.into());
    members.insert("cold".into(), results.cold.as_ref().map_or(Value::Null, cold_json));
    members.insert("batch".into(), workload.batch.into());
    if let Value::Object(surroundings) = surroundings(measured) {
        members.extend(surroundings);
    }
    if let Some((mapping, share)) = workload.mapped {
        members.insert("map".into(), mapping_name(mapping).into());
        members.insert("missing_share".into(), share.part().into());
        members.insert("distinct_keys".into(), share.distinct.into());
    }
    let reasons = rivals(results, members);
    members.insert("rivals_absent".into(), reasons.into());
    object
}

/// Adds the figures of each rival to `members`; returns the reasons of those that have none.
fn rivals(results: &Results, members: &mut Map<String, Value>) -> Map<String, Value> {
    let ours = &results.ours;
    let mut reasons = Map::new();
    for rival in Rival::ALL {
        let outcome = results.rivals.iter().find(|(it, _)| *it == rival).map(|(_, outcome)| outcome);
        let rate = match outcome {
            Some(Ok(outcome)) if outcome.batches > 0 => {
                members.insert(format!("{}_p50_us", rival.key()), percentile(outcome, 50.0).into());
                members.insert(format!("{}_p99_us", rival.key()), percentile(outcome, 99.0).into());
                let times = ours.ids_per_second() / outcome.ids_per_second().max(1e-9);
                members.insert(format!("times_{}", rival.key()), times.into());
                members.insert(format!("{}_seconds", rival.key()), outcome.time.as_secs_f64().into());
                Value::from(outcome.ids_per_second())
            }
            Some(Err(reason)) => {
                reasons.insert(rival.key().to_owned(), reason.clone().into());
                Value::Null
            }
            _ => {
                reasons.insert(rival.key().to_owned(), "did not run".into());
                Value::Null
            }
        };
        members.insert(format!("{}_ids_per_second", rival.key()), rate);
    }
    reasons
}

/// What was measured of us.
fn figures(results: &Results) -> Value {
    let ours = &results.ours;
    let total = &results.total;
    let stage = |(stage, time): (&Stage, Duration)| (stage.name().to_owned(), Value::from(time.as_secs_f64()));
    json!({
        "ids": ours.ids,
        "rows_checked": ours.checked,
        "batches": ours.batches,
        "seconds": ours.time.as_secs_f64(),
        "ids_per_second": ours.ids_per_second(),
        "p50_us": percentile(ours, 50.0),
        "p99_us": percentile(ours, 99.0),
        "p999_us": percentile(ours, 99.9),
        "unique": total.unique,
        "rows_dram": total.rows_dram,
        "rows_ssd": total.rows_ssd,
        "ids_dram": total.ids_dram,
        "ids_ssd": total.ids_ssd,
        "missing": total.missing,
        "commands": total.commands,
        "merges": total.merges,
        "rows_per_command": ratio(total.rows_ssd, total.commands),
        "doorbells": total.sq_doorbells,
        "doorbells_per_command": ratio(total.sq_doorbells, total.commands),
        "bytes_read": total.bytes_read,
        "bytes_needed": total.bytes_needed,
        "generation": total.generation,
        "stages_seconds": Stage::ALL.iter().zip(total.stages).map(stage).collect::<Map<_, _>>(),
        "interrupted": ours.interrupted,
        "load_bytes": results.load.bytes,
        "load_seconds": results.load.elapsed.as_secs_f64(),
        "injected": results.injected,
        "elapsed_seconds": results.elapsed.as_secs_f64(),
        "rows_in_dram": results.dram_rows,
    })
}

/// What it was measured with.
fn surroundings(measured: &Measured<'_>) -> Value {
    let Measured { args, workload, place, results, machine } = measured;
    let truth = &workload.truth;
    let threads = results.rivals.iter().map(|(rival, _)| (rival.key().to_owned(), Value::from(rival.threads())));
    json!({
        "table": {
            "description": workload.table,
            "rows": truth.rows(),
            "dim": truth.dim(),
            "dtype": truth.dtype().name(),
            "bytes": truth.rows().saturating_mul(truth.row_bytes() as u64),
        },
        "trace": workload.trace,
        "alpha": args.trace.is_none().then_some(args.alpha),
        "seed": args.seed,
        "drive": place.shown,
        "filesystem": place.filesystem,
        "cache": CACHE,
        "cpu": machine.cpu,
        "cores": machine.cores,
        "kernel": machine.kernel,
        "load_average": machine.load,
        "threads": std::iter::once(("warprow".to_owned(), Value::from(warprow::THREADS))).chain(threads).collect::<Map<_, _>>(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}
