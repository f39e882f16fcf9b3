//! `warprow expire`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use warprow_store::{ExpiredKeys, LastTouches, OpenOptions, StoreError, UpdateOptions};
use warprow_workload::units;

use super::arguments::Compact;
use super::work::{Progress, Work};
use crate::commands::{CommandOutput, Context};
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use crate::report::printable;

/// Remove the keys of a table that were not touched for long
///
/// Executors that are attached with an epoch of last touches note it for each key that they look up, and save what they have noted. Of
/// several such files each key gets the latest of its epochs. Keys that were last touched before the epoch that is given are removed, as
/// `update --delete` does, in batches, each of which is durable before the next is begun. The command may be stopped and run again.
///
/// Keys stay that no file has, and keys whose rows were created or updated since the table was loaded or compacted. The next
/// `warprow compact` gives back the room.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow expire users -d emulated:a.drive --touches serving1.touches --touches serving2.touches --before 20600 --dry-run
  warprow expire users -d emulated:a.drive --touches serving1.touches --touches serving2.touches --before 20600")]
pub struct ExpireArgs {
    /// The table
    table: String,
    #[command(flatten)]
    drives: DriveArgs,
    /// A file of last touches that an executor has saved; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    touches: Vec<PathBuf>,
    /// Keys that were last touched before this epoch are removed
    #[arg(long, value_name = "EPOCH")]
    before: u16,
    /// Say how many keys would be removed, and remove none
    #[arg(long)]
    dry_run: bool,
    /// Removals that are made durable at once
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
}

pub(crate) fn run(args: &ExpireArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let mut touches = LastTouches::default();
    args.touches.iter().try_for_each(|path| read(path).map(|read| touches.merge(&read)))?;
    let options = OpenOptions::default();
    let options = if args.dry_run { options.with_read_only() } else { options };
    let store = drives::open(&args.drives, &options)?;
    let info = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let expired = store.expired_keys(&info.name, &touches, args.before)?;
    let mut at = Progress::default();
    let began = Instant::now();
    if !args.dry_run {
        let work = Work {
            store: &store,
            info: &info,
            ids: &expired.keys,
            options: UpdateOptions::default(),
            source: None,
            file: String::new(),
            batch: args.batch,
            context,
            compact: Compact::Full,
        };
        work.shorten_log(&mut at).and_then(|()| work.run(&mut at)).map_err(|failure| {
            let removed = units::plural(at.removed, "key");
            let remedy = format!("{removed} are removed: mend that, and run the command again");
            let failure = failure.detail("removed", at.removed);
            if at.removed == 0 { failure } else { failure.remedy(remedy) }
        })?;
    }
    let object = json!({
        "table": info.name,
        "before": args.before,
        "keys": expired.present,
        "expired": expired.keys.len(),
        "unknown": expired.unknown,
        "updated": expired.updated,
        "latest": touches.latest(),
        "dry_run": args.dry_run,
        "removed": at.removed,
        "batches": at.batches,
        "compactions": at.compactions,
        "seconds": began.elapsed().as_secs_f64(),
    });
    CommandOutput::new(text(args, &expired, &at, &touches), object)
}

fn read(path: &Path) -> Result<LastTouches, Failure> {
    let failed = |source| StoreError::TouchesFile { path: path.to_owned(), source };
    let absent = || {
        Failure::input(path.display().to_string(), "there is no such file")
            .remedy("name a file that an executor has saved")
    };
    LastTouches::read(path).map_err(failed)?.ok_or_else(absent)
}

fn text(args: &ExpireArgs, expired: &ExpiredKeys, at: &Progress, touches: &LastTouches) -> String {
    let name = printable(&args.table);
    let of = format!(
        "of {} of table {name}, last touched before epoch {}",
        units::plural(expired.present, "key"),
        args.before
    );
    let mut text = match args.dry_run {
        true => format!("Would remove {} {of}.", units::count(expired.keys.len() as u64)),
        false => {
            format!("Removed {} {of}, in {}.", units::count(at.removed), units::plural(at.batches, "batch"))
        }
    };
    text += &format!(" The latest touch is of epoch {}.", touches.latest());
    if expired.unknown > 0 {
        text += &format!(
            "\n{} stay because no file has them, or because they were created lately.",
            units::count(expired.unknown)
        );
    }
    if expired.updated > 0 {
        text +=
            &format!("\n{} stay because their rows were updated, until a compaction.", units::count(expired.updated));
    }
    if at.compactions > 0 {
        text += &format!("\nCompacted {}, as memory or the log was full.", units::plural(at.compactions, "time"));
    }
    if at.removed > 0 {
        text += "\n`warprow compact` gives back the room.";
    }
    text
}
