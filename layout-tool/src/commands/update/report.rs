//! What `warprow update` says in the end.

use std::time::Duration;

use serde_json::json;
use warprow_formats::ConversionLoss;
use warprow_layout::DType;
use warprow_store::TableInfo;
use warprow_workload::units;

use super::arguments::{Compact, UpdateArgs};
use super::work::Progress;
use crate::commands::CommandOutput;
use crate::failure::Failure;

/// What was updated.
pub(super) struct Updated<'a> {
    pub(super) info: &'a TableInfo,
    pub(super) rows: u64,
    /// Keys that were created.
    pub(super) created: u64,
    pub(super) took: Duration,
    pub(super) at: Progress,
    /// Why the last compaction that was to go on beside the updates did not come about.
    pub(super) compaction_failed: Option<String>,
    /// The type that rows were converted from, and what that has lost.
    pub(super) converted: Option<(DType, ConversionLoss)>,
}

pub(super) fn report(args: &UpdateArgs, updated: &Updated<'_>) -> Result<CommandOutput, Failure> {
    let Updated { info, rows, created, took, at, compaction_failed, converted } = updated;
    let rate = *rows as f64 / took.as_secs_f64().max(1e-9);
    let object = json!({
        "table": info.name,
        "rows": rows,
        "created": created,
        "batches": at.batches,
        "sequence": at.sequence,
        "seconds": took.as_secs_f64(),
        "rows_per_second": rate,
        "compactions": at.compactions,
        "compaction_failed": compaction_failed,
        "converted_from": converted.as_ref().map(|(from, _)| from.name()),
    });
    CommandOutput::new(text(args, updated, rate), object)
}

/// What was removed.
pub(super) struct Removed<'a> {
    pub(super) info: &'a TableInfo,
    /// Keys that were given.
    pub(super) keys: u64,
    pub(super) took: Duration,
    pub(super) at: Progress,
    /// Why the last compaction that was to go on beside the removals did not come about.
    pub(super) compaction_failed: Option<String>,
}

pub(super) fn removed(args: &UpdateArgs, done: &Removed<'_>) -> Result<CommandOutput, Failure> {
    let Removed { info, keys, took, at, compaction_failed } = done;
    let object = json!({
        "table": info.name,
        "keys": keys,
        "removed": at.removed,
        "batches": at.batches,
        "seconds": took.as_secs_f64(),
        "compactions": at.compactions,
        "compaction_failed": compaction_failed,
    });
    let mut text = format!(
        "Removed {} from table {:?} in {}, {}.",
        units::plural(at.removed, "key"),
        info.name,
        units::plural(at.batches, "batch"),
        units::time(*took)
    );
    let absent = keys.saturating_sub(at.removed);
    if absent > 0 {
        text += &format!(
            " {} of those given {} not there.",
            units::count(absent),
            if absent == 1 { "was" } else { "were" }
        );
    }
    text += &compactions(args, at, compaction_failed.as_deref());
    CommandOutput::new(text, object)
}

/// What is said of compactions that made room.
fn compactions(args: &UpdateArgs, at: &Progress, failed: Option<&str>) -> String {
    let mut text = String::new();
    if at.compactions > 0 {
        let why = if args.compact == Compact::Auto { "meanwhile" } else { "as memory or the log was full" };
        text += &format!(" Compacted {}, {why}.", units::plural(at.compactions, "time"));
    }
    if let Some(error) = failed {
        text += &format!("\nA compaction failed, and everything is in memory and in the log as before it: {error}");
    }
    text
}

fn text(args: &UpdateArgs, updated: &Updated<'_>, rate: f64) -> String {
    let Updated { info, rows, created, took, at, compaction_failed, converted } = updated;
    let mut text = format!(
        "Updated {} of table {:?} in {}, {} ({} rows/s).",
        units::plural(*rows, "row"),
        info.name,
        units::plural(at.batches, "batch"),
        units::time(*took),
        units::short(rate)
    );
    if *created > 0 {
        text += &format!(" {} were new.", units::count(*created));
    }
    text += &compactions(args, at, compaction_failed.as_deref());
    if let Some((from, lost)) = converted {
        let to = info.dtype;
        text += &match lost.max_abs == 0.0 {
            true => format!("\n{from} to {to} changed no number"),
            false => format!("\n{from} to {to} changed a number by {:.3e} at most", lost.max_abs),
        };
    }
    text
}

/// What is said of a tensor that has no rows.
pub(super) fn nothing(args: &UpdateArgs, info: &TableInfo, tensor: &str) -> Result<CommandOutput, Failure> {
    let text =
        format!("Nothing to update in table {:?}: {tensor:?} in {} has no rows.", info.name, args.rows().display());
    let object = json!({
        "table": info.name,
        "rows": 0,
        "created": 0,
        "batches": 0,
        "sequence": null,
        "seconds": 0.0,
        "rows_per_second": 0.0,
        "compactions": 0,
        "compaction_failed": null,
        "converted_from": null,
    });
    CommandOutput::new(text, object)
}
