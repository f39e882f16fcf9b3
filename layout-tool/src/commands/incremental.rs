//! `warprow incremental`.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use warprow_passes::{CacheOptions, ExportedElements, PassOptions, Passes};
use warprow_store::OpenOptions;
use warprow_workload::units;

use super::{CommandOutput, Context};
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file;

/// Write the rows that training passes changed, and their keys
///
/// The journal that the passes kept says which these are: all since the mark, or those of passes behind --since. The rows are as the
/// drives have them now. A safetensors file has both, the keys as a tensor called as the table and `.keys`; with --keys-out they are a file of
/// their own. `update --rows FILE --keys TABLE.keys` brings them into another store.
///
/// Nothing is written to the drives. --mark lets the journal forget what was written.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow incremental -d emulated:a.drive --table user --journal user.journal --out delta.safetensors --vector 64 --mark
  warprow incremental -d emulated:a.drive --table user --journal user.journal --since 12 --out d.npy --keys-out k.npy
  warprow update user -d emulated:b.drive --rows delta.safetensors --tensor user --keys user.keys")]
pub struct IncrementalArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// The table
    #[arg(long, value_name = "TABLE")]
    table: String,
    /// The journal of its passes
    #[arg(long, value_name = "FILE")]
    journal: PathBuf,
    /// The file to write, .safetensors; with --keys-out also .npy
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The file to write the keys to, .npy
    #[arg(long, value_name = "FILE")]
    keys_out: Option<PathBuf>,
    /// What passes behind this one changed, rather than all since the mark; passes count from 1 on
    #[arg(long, value_name = "PASS")]
    since: Option<u64>,
    /// The first elements of each row, without the optimizer's state behind them
    #[arg(long, value_name = "ELEMENTS")]
    vector: Option<u32>,
    /// When the files are there, forget what was touched up to now
    #[arg(long, conflicts_with = "since")]
    mark: bool,
    /// Replace the files if they exist
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &IncrementalArgs, _: &Context) -> Result<CommandOutput, Failure> {
    if args.keys_out.as_ref() == Some(&args.out) {
        let what = format!("{} is where the rows are written to", args.out.display());
        return Err(Failure::usage("--keys-out", what).remedy("give the keys a file of their own"));
    }
    if !args.journal.is_file() {
        let subject = args.journal.display().to_string();
        return Err(Failure::input(subject, "there is no such journal").remedy("name the file that the passes kept"));
    }
    for path in [Some(&args.out), args.keys_out.as_ref()].into_iter().flatten() {
        file::refuse_in_use(path)?;
        file::refuse_own(path, &args.drives.addresses())?;
    }
    // It is not to be replaced by what is read by it.
    let journal = fs::canonicalize(&args.journal).ok();
    for (option, path) in [("--out", Some(&args.out)), ("--keys-out", args.keys_out.as_ref())] {
        if path.is_some_and(|path| journal.is_some() && fs::canonicalize(path).ok() == journal) {
            let what = format!("{} is the journal", args.journal.display());
            return Err(Failure::usage(option, what).remedy("name another file"));
        }
    }
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let table = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    if store.has_key_changes(&table.name)? {
        let what = "it has keys that were created or removed since it was written";
        return Err(Failure::new(Class::Refused, table.name, what).remedy("run `warprow compact` first"));
    }
    // Rows are read from the drives: none is staged.
    let nothing = CacheOptions { num_blocks: 0, target_hit_rate: 0.0, max_num_evict: 0 };
    let mut options = PassOptions::cached(0, nothing).with_journal(&args.journal);
    options.vector = args.vector;
    let mut passes = Passes::open(&store, &table.name, options)?;
    let out = &args.out;
    let keys = args.keys_out.as_deref();
    let part = if args.vector.is_some() { ExportedElements::Vector } else { ExportedElements::Whole };
    let done = match args.since {
        Some(pass) => passes.incremental_since(pass, out, keys, part, args.force)?,
        None => passes.incremental(out, keys, part, args.force)?,
    };
    if args.mark {
        passes.mark()?;
    }
    let text = format!(
        "{} of {} of {:?} changed{}; with {} elements each they are in {}{}.",
        units::plural(done.rows, "row"),
        units::count(table.rows),
        table.name,
        args.since.map_or_else(String::new, |pass| format!(" behind pass {pass}")),
        done.dim,
        out.display(),
        keys.map_or_else(|| ", with their keys".to_owned(), |keys| format!(", and their keys in {}", keys.display())),
    );
    let text = match passes.dropped_keys() {
        0 => text,
        keys => format!(
            "{text}\nThe journal's last pass did not come about, and was left out: {} of it {} not in the table.",
            units::plural(keys as u64, "key"),
            if keys == 1 { "is" } else { "are" }
        ),
    };
    CommandOutput::new(
        text,
        json!({
            "dropped_keys": passes.dropped_keys(),
            "table": table.name,
            "rows": done.rows,
            "dim": done.dim,
            "since": args.since,
            "last_pass": passes.finished(),
            "marked": args.mark,
            "out": out,
            "keys_out": keys,
        }),
    )
}
