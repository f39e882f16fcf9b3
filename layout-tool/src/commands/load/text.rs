//! What `warprow load` says to people.

use warprow_keys::KeyKind;
use warprow_store::LoadReport;
use warprow_workload::units;

use super::arguments::LoadArgs;
use super::conversion::Loss;
use super::prepare::{Prepared, Ranked};
use super::results::Results;
use super::work::Ended;
use crate::columns::LookupTrace;
use crate::report::{printable, table};

pub(super) fn text(args: &LoadArgs, results: &Results<'_>) -> String {
    let (mut text, lost) = match &results.ended {
        Ended::DryRun { .. } => {
            (format!("Nothing was changed. Would load {}, for which there is room:\n", size(results)), &[][..])
        }
        Ended::Loaded { report, lost } => (loaded(args, results, report), &lost[..]),
    };
    text += &tables(results.prepared);
    for loss in lost {
        text += &format!("\n{}", loss_text(loss));
    }
    if let Some(best) = &results.lba {
        text += &match best.lba_bytes == results.lba_bytes {
            true => format!("\n{}; the store has them", best.why),
            false => format!(
                "\n{}; the store has LBAs of {} B: to change that, make it anew with `warprow format --lba {}`",
                best.why, results.lba_bytes, best.lba_bytes
            ),
        };
    }
    for it in results.prepared {
        text += &keys(args, it);
    }
    for it in results.prepared {
        text += &missing_of_trace(it);
    }
    for line in results.logs().filter_map(LookupTrace::unused_text).chain(results.notes.iter().cloned()) {
        text += &format!("\n{line}");
    }
    for old in &results.replaced {
        text += &format!(
            "\n{}: {} of {} × {} {}, generation {}",
            if args.dry_run { "replaces" } else { "replaced" },
            printable(&old.name),
            units::count(old.rows),
            old.dim,
            old.dtype,
            old.generation
        );
    }
    for (name, reason) in results.skipped.iter().filter(|_| args.all) {
        text += &format!("\nskipped: {}: {reason}", printable(name));
    }
    if results.prepared.iter().any(|prepared| prepared.ranked.is_none()) {
        text += "\nidentity: hot tier = first ids; tell which rows are hot with --hotness";
    }
    text
}

/// How many tables, rows and bytes.
fn size(results: &Results<'_>) -> String {
    let (rows, bytes) = results.size();
    let tables = units::plural(results.prepared.len() as u64, "table");
    format!("{tables}, {}, {}", units::plural(rows, "row"), units::bytes(bytes))
}

fn loaded(args: &LoadArgs, results: &Results<'_>, report: &LoadReport) -> String {
    let (_, bytes) = results.size();
    let mut text = format!(
        "Loaded {} in {} ({}/s), as generation {}:\n",
        size(results),
        units::time(report.elapsed),
        units::bytes((bytes as f64 / report.elapsed.as_secs_f64().max(1e-9)) as u64),
        report.generation,
    );
    if report.resumed > 0 {
        text += &format!("{} had been written before, and were intact\n", units::bytes(report.resumed));
    }
    if let Some(journal) = args.resume.as_ref().filter(|_| report.begun_anew) {
        text += &format!(
            "{} noted nothing of this load (it was another's, or its content was lost), so it was begun anew\n",
            printable(&journal.display().to_string())
        );
    }
    text
}

fn tables(prepared: &[Prepared<'_>]) -> String {
    let hottest = |prepared: &Prepared<'_>| match (prepared.ranked, &prepared.column) {
        (Some(Ranked::Hotness), Some(column)) => format!("by --hotness, {column}"),
        (Some(Ranked::Hotness), None) => "by --hotness".to_owned(),
        (Some(Ranked::Plan), _) => "by --plan".to_owned(),
        (Some(Ranked::Inherited(generation)), _) => format!("as in generation {generation}"),
        (None, _) => "the first ids".to_owned(),
    };
    let line = |prepared: &Prepared<'_>| {
        let spec = &prepared.spec;
        [spec.name.clone(), units::count(spec.rows), spec.dim.to_string(), spec.dtype.to_string(), hottest(prepared)]
    };
    table(["table", ">rows", ">dim", "type", "hottest rows"], prepared.iter().map(line))
}

fn loss_text(loss: &Loss) -> String {
    let Loss { table, from, to, lost } = loss;
    let mut text = format!("{}: {from} to {to} changes ", printable(table));
    text += &match lost.max_abs == 0.0 {
        true if lost.overflowed + lost.infinities_lost > 0 => "none of the other numbers".to_owned(),
        true => "no number".to_owned(),
        false => format!(
            "a number by {:.3e} at most and {:.3e} on average, and {:.3e} of the whole",
            lost.max_abs,
            lost.mean_abs(),
            lost.relative()
        ),
    };
    if lost.overflowed > 0 {
        text += &format!("; {} WERE TOO LARGE for it", units::plural(lost.overflowed, "number"));
    }
    if lost.infinities_lost > 0 {
        text += &format!("; {} LOST: it has no infinity", units::plural(lost.infinities_lost, "infinite element"));
    }
    text
}

/// A line about the table's index of keys, if it has one.
fn keys(args: &LoadArgs, prepared: &Prepared<'_>) -> String {
    let Some(keyed) = &prepared.keyed else { return String::new() };
    let index = keyed.index();
    format!(
        "\n{}: looked up by {} keys{}, {:.2} bits each and {} of fingerprint: other keys are missing, but for one in {}",
        printable(&prepared.spec.name),
        if index.kind() == KeyKind::I64 { "i64" } else { "u64" },
        if args.forget_keys { ", not stored" } else { ", stored" },
        index.bits_per_key(),
        index.fingerprint().bits(),
        units::count(1 << index.fingerprint().bits())
    )
}

/// A line about the ids of the trace that the table does not have, if there are any.
fn missing_of_trace(prepared: &Prepared<'_>) -> String {
    let Some(share) = prepared.trace.filter(|share| share.missing > 0) else { return String::new() };
    format!(
        "\nhotness: {} of {} ({:.1}%) are not in {}",
        units::count(share.missing),
        units::plural(share.ids, "id"),
        100.0 * share.missing as f64 / share.ids as f64,
        printable(&prepared.spec.name)
    )
}
