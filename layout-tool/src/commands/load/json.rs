//! What `warprow load` says to programs.

use serde_json::{Value, json};
use warprow_keys::{KeyIndex, KeyKind};
use warprow_layout::TableKeys;
use warprow_store::TableInfo;

use super::arguments::LoadArgs;
use super::conversion::Loss;
use super::prepare::{Prepared, Ranked};
use super::results::Results;
use super::work::Ended;
use crate::columns::LookupTrace;

/// The object of `--json`.
pub(super) fn json(args: &LoadArgs, results: &Results<'_>) -> Value {
    let (rows, bytes) = results.size();
    let skipped = results.skipped.iter().map(|(name, reason)| json!({"name": name, "reason": reason}));
    let mut report = json!({
        "dry_run": args.dry_run,
        "traces": results.logs().map(LookupTrace::json).collect::<Vec<_>>(),
        "tables": results.prepared.iter().map(table).collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
        "rows": rows,
        "bytes": bytes,
        "replaced": results.replaced.iter().map(replaced).collect::<Vec<_>>(),
    });
    let Some(members) = report.as_object_mut() else { return report };
    if let Some(best) = &results.lba {
        members.insert("lba_choice".into(), best.json());
        members.insert("lba_bytes".into(), results.lba_bytes.into());
    }
    match &results.ended {
        Ended::DryRun { superseded } => {
            members.insert("replaced_generations".into(), superseded.clone().into());
        }
        Ended::Loaded { report, lost } => {
            members.insert("begun_anew".into(), report.begun_anew.into());
            members.insert("generation".into(), report.generation.into());
            members.insert("seconds".into(), report.elapsed.as_secs_f64().into());
            members.insert("bytes_written".into(), report.bytes.into());
            members.insert("bytes_resumed".into(), report.resumed.into());
            members.insert("converted".into(), lost.iter().map(loss).collect());
            members.insert("replaced_generations".into(), report.superseded.clone().into());
        }
    }
    report
}

fn table(prepared: &Prepared<'_>) -> Value {
    let Prepared { chosen, spec, keyed, ranked, trace, column, .. } = prepared;
    let index = keyed.as_ref().map(TableKeys::index);
    json!({
        "name": spec.name,
        "tensor": chosen.table.name,
        "file": chosen.file.path.display().to_string(),
        "format": chosen.file.format.name(),
        "keys": chosen.table.keys.is_some(),
        "rows": spec.rows,
        "dim": spec.dim,
        "dtype": spec.dtype.name(),
        "key_index": index.map(|index| key_index(index, prepared.spec.keys.is_some_and(|keys| keys.stored))),
        "hot_rows": spec.hot_rows,
        "order": match ranked {
            Some(Ranked::Plan) => "plan",
            Some(Ranked::Hotness) => "hotness",
            Some(Ranked::Inherited(_)) => "inherited",
            None => "identity",
        },
        "order_of_generation": match ranked {
            Some(Ranked::Inherited(generation)) => Some(generation),
            _ => None,
        },
        "column": column,
        "trace_ids": trace.map(|share| share.ids),
        "trace_ids_missing": trace.map(|share| share.missing),
        "row_crc": spec.row_crc,
        "default_row": spec.default_row.is_some(),
    })
}

fn key_index(index: &KeyIndex, stored: bool) -> Value {
    json!({
        "signed": index.kind() == KeyKind::I64,
        "bits_per_key": index.bits_per_key(),
        "fingerprint_bits": index.fingerprint().bits(),
        "bytes": index.as_bytes().len(),
        "stored": stored,
    })
}

fn replaced(old: &TableInfo) -> Value {
    json!({
        "name": old.name,
        "rows": old.rows,
        "dim": old.dim,
        "dtype": old.dtype.name(),
        "generation": old.generation,
    })
}

fn loss(loss: &Loss) -> Value {
    let Loss { table, from, to, lost } = loss;
    json!({
        "name": table,
        "from": from.name(),
        "to": to.name(),
        "elements": lost.elements,
        "overflowed": lost.overflowed,
        "infinities_lost": lost.infinities_lost,
        "max_abs": lost.max_abs,
        "mean_abs": lost.mean_abs(),
        "relative": lost.relative(),
    })
}
