//! `warprow pass`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde_json::json;
use warprow_formats::followed;
use warprow_passes::{CommitOptions, Keyset, PassError, PassProgress, begin, commit};
use warprow_store::OpenOptions;
use warprow_traces::TraceSpec;
use warprow_workload::units;

use super::{CommandOutput, Context};
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file;
use crate::screen::Unit;

/// Train a table that is larger than memory, a part of the training data at a time, in any language
///
/// A pass is a part of the training data; its keyset is a file of the keys that it looks up. `begin` writes the rows of these keys to a
/// safetensors file, which a trainer reads, trains and writes; `commit` makes the rows of that file durable in the table, all or none.
/// Between the two the store is free for others, also to be served.
#[derive(Debug, Args)]
#[command(after_long_help = SESSION)]
pub struct PassArgs {
    #[command(subcommand)]
    step: Step,
}

#[derive(Debug, Subcommand)]
enum Step {
    Begin(BeginArgs),
    Commit(CommitArgs),
}

const SESSION: &str = "\
A session, of two passes over a table \"user\" whose rows are 64 numbers and 64 sums of Adagrad:
  export WARPROW_DRIVES=emulated:a.drive
  warprow pass begin --table user --keys day1.npy --out rows.safetensors
  python3 train.py day1 rows.safetensors
  warprow pass commit --table user --rows rows.safetensors --journal user.journal
  warprow pass begin --table user --keys day2.npy --out rows.safetensors --force
  python3 train.py day2 rows.safetensors
  warprow pass commit --table user --rows rows.safetensors --journal user.journal
  warprow incremental --table user --journal user.journal --out delta.safetensors --vector 64

train.py reads all tensors, changes the rows, and writes all tensors:
  tensors = safetensors.numpy.load_file(path)
  rows, keys = tensors[\"user\"], tensors[\"user.keys\"]        # row i is that of keys[i]
  rows[...] = trained(rows, keys)
  safetensors.numpy.save_file(tensors, path)";

/// Write the rows of a keyset to a file, for a trainer
///
/// The safetensors file has four tensors: TABLE has the rows, in the order of the keyset, each key once; TABLE.keys has the keys; TABLE.checksums and
/// TABLE.pass say what the rows were and where they came from, which `commit` compares. A trainer writes them along as they are.
///
/// Every row is compared with its checksum, if the table was loaded with --row-crc. The file appears under its name when it is whole. Nothing is
/// written to the drives. Rows pass through memory in parts of 64 MiB.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow pass begin -d emulated:a.drive --table user --keys day1.npy --out rows.safetensors
  warprow pass begin -d emulated:a.drive --table user --keys keyset:day1:i64 --out rows.safetensors --force")]
struct BeginArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// The table
    #[arg(long, value_name = "TABLE")]
    table: String,
    /// The keys, or ids, of the pass, in any order; those that come twice count once
    ///
    /// [KIND:]PATH[:SETTINGS]: .npy, .u32, .i64, .., .csv with a column, parquet, a keyset file of HugeCTR (keyset:PATH:i64), or the training
    /// data itself, as `warprow plan --trace` takes it.
    #[arg(long, value_name = "KEYSET")]
    keys: String,
    /// The file to write, .safetensors
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Make the rows of a file durable in the table, all or none
///
/// The file has the tensors TABLE and TABLE.keys, whatever rows of the table in whatever order, and those by which `begin` says where they came
/// from. One commit brings all rows: after a kill the table has all of them or none, and the same command can be run again.
///
/// Refused, with nothing changed: rows that were staged from another store or table, or that do not say so (--allow-foreign); rows of which one
/// was changed by somebody else since it was staged, be it by `update`, `load` or another pass (--allow-stale); keys that the table does not have,
/// or that come twice; rows of another type or width.
///
/// It copies the chunks of the table that have any of the rows, and needs as many free ones.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow pass commit -d emulated:a.drive --table user --rows rows.safetensors --journal user.journal
  warprow pass commit -d emulated:a.drive --table user --rows trained.safetensors --staged rows.safetensors")]
struct CommitArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// The table
    #[arg(long, value_name = "TABLE")]
    table: String,
    /// The file of rows and keys, .safetensors
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,
    /// The file as `begin` wrote it, where that of the rows lacks TABLE.checksums and TABLE.pass
    #[arg(long, value_name = "FILE")]
    staged: Option<PathBuf>,
    /// Note the keys in the journal of the table's passes, for `warprow incremental`; made if it is not there
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Overwrite what others changed since the rows were staged
    #[arg(long)]
    allow_stale: bool,
    /// Take rows that were staged from another store or table, or that do not say from which
    #[arg(long)]
    allow_foreign: bool,
}

impl From<PassError> for Failure {
    fn from(error: PassError) -> Self {
        let message = error.to_string();
        match error {
            PassError::Store(error) => error.into(),
            PassError::File(error) => (*error).into(),
            PassError::Journal { path, .. } => Self::input(path, message),
            PassError::Options { .. } => Self::usage("", message),
            PassError::Changed { table, .. } => Self::new(Class::Refused, table, message),
            PassError::Foreign { path, what, remedy } => Self::new(Class::Refused, path, what).remedy(match remedy {
                "" => "--allow-foreign takes it all the same".to_owned(),
                remedy => format!("{remedy} (--allow-foreign)"),
            }),
            PassError::Stale { path, what } => Self::new(Class::Refused, path, format!("is stale: {what}"))
                .remedy("stage the rows anew with `warprow pass begin`; --allow-stale overwrites what came since"),
            PassError::Uncompacted { table } => {
                let what = "it has keys that were created or removed since it was written";
                Self::new(Class::Refused, table, what).remedy("run `warprow compact` first, then begin the pass anew")
            }
            PassError::NewKeys { table, .. } | PassError::Uncreatable { table, .. } => Self::input(table, message),
            PassError::NotDurable { .. } => Self::new(Class::Drive, "", message),
            PassError::TooLarge { .. }
            | PassError::GpuRoom { .. }
            | PassError::Thread(_)
            | PassError::Allocate { .. } => Self::new(Class::Resources, "", message),
            _ => Self::new(Class::Bug, "", message),
        }
    }
}

pub(crate) fn run(args: &PassArgs, context: &Context) -> Result<CommandOutput, Failure> {
    match &args.step {
        Step::Begin(args) => run_begin(args, context),
        Step::Commit(args) => run_commit(args, context),
    }
}

fn run_begin(args: &BeginArgs, context: &Context) -> Result<CommandOutput, Failure> {
    file::refuse_in_use(&args.out)?;
    let spec: TraceSpec = args.keys.parse().map_err(|error| {
        Failure::usage(&args.keys, format!("{error}")).remedy("look at `warprow pass begin --help`")
    })?;
    refuse_same(&[("--out", &args.out), ("--keys", &spec.path)])?;
    let keyset = Keyset::read(&spec)?;
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let table = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    if table.dtype.is_scaled() {
        let what = format!("rows of {} have a scale each, which a safetensors file cannot hold", table.dtype);
        return Err(Failure::input(&table.name, what).remedy("train a table of f32, f16 or bf16"));
    }
    let bar = Bar::new(context, &table.name, keyset.len() as u64);
    let begun = begin(&store, &table.name, &keyset, &args.out, args.force, &mut |progress| bar.tell(progress));
    let begun = bar.end(begun).map_err(|failure| with_create(failure, &table.name))?;
    let out = args.out.display().to_string();
    let mut text = format!(
        "Staged {} of table {:?}, {}, to {out}, in the order of the keys",
        units::plural(begun.rows, "row"),
        table.name,
        units::bytes(begun.bytes)
    );
    if begun.duplicates > 0 {
        text += &format!("; {} came again, and count once", units::plural(begun.duplicates, "key"));
    }
    text += if begun.checked { "; all matched their checksums." } else { "; the table has no row checksums." };
    text += &format!(
        "\nTrain them, then: warprow pass commit {} --table {} --rows {}",
        args.drives.pasteable_without_properties(),
        drives::shell(&table.name),
        drives::shell(&out)
    );
    let origin = begun.origin;
    CommandOutput::new(
        text,
        json!({
            "step": "begin", "table": table.name, "out": out, "rows": begun.rows, "duplicates": begun.duplicates, "dim": begun.dim,
            "dtype": begun.dtype.name(), "bytes": begun.bytes, "checked": begun.checked, "store": origin.store, "generation": origin.generation,
            "epoch": origin.epoch, "sequence": origin.sequence,
        }),
    )
}

fn run_commit(args: &CommitArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let journal = args.journal.as_ref().map(|path| ("--journal", path));
    let staged = args.staged.as_ref().map(|path| ("--staged", path));
    let files: Vec<_> = [("--rows", &args.rows)].into_iter().chain(journal).chain(staged).collect();
    refuse_same(&files)?;
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    let table = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let mut options = CommitOptions::default();
    (options.journal, options.staged) = (args.journal.clone(), args.staged.clone());
    (options.allow_stale, options.allow_foreign) = (args.allow_stale, args.allow_foreign);
    let bar = Bar::new(context, &table.name, 0);
    let committed = commit(&store, &table.name, &args.rows, &options, &mut |progress| bar.tell(progress));
    let committed = bar.end(committed).map_err(|failure| with_create(failure, &table.name))?;
    let rows = args.rows.display().to_string();
    let mut text = match committed.rows {
        0 => format!("{rows} has no rows: table {:?} is as it was", table.name),
        all => format!(
            "{} of {rows} are durable in table {:?}; {} copied",
            units::plural(all, "row"),
            table.name,
            units::plural(committed.chunks as u64, "chunk")
        ),
    };
    if committed.unchanged > 0 {
        text += &format!("; {} of them were so before", units::count(committed.unchanged));
    }
    if let (Some(pass), Some(journal)) = (committed.pass, &args.journal) {
        text += &format!("; pass {pass} in {}", journal.display());
    }
    CommandOutput::new(
        text + ".",
        json!({
            "step": "commit", "table": table.name, "rows_file": rows, "rows": committed.rows, "unchanged": committed.unchanged,
            "chunks": committed.chunks, "pass": committed.pass, "journal": args.journal, "staged_from": committed.origin,
        }),
    )
}

/// Keys are created by another command.
fn with_create(failure: Failure, table: &str) -> Failure {
    match failure.class == Class::Input && failure.subject == table && failure.remedy.is_empty() {
        true => {
            failure.remedy("create keys with `warprow update --create`, and `warprow compact`; then begin the pass")
        }
        false => failure,
    }
}

/// Refuses options that name one file.
fn refuse_same(files: &[(&str, &PathBuf)]) -> Result<(), Failure> {
    let place = |path: &Path| followed(path).canonicalize().ok();
    for (at, (option, path)) in files.iter().enumerate() {
        let same = files
            .iter()
            .take(at)
            .find(|(_, other)| place(other).is_some_and(|place_of_other| Some(place_of_other) == place(path)));
        if let Some((other, _)) = same {
            let what = format!("{} is the file of {other} as well", path.display());
            return Err(Failure::usage(*option, what).remedy("name another file"));
        }
    }
    Ok(())
}

/// A bar that tells what is being done.
struct Bar<'a> {
    bar: ProgressBar,
    context: &'a Context,
}

impl<'a> Bar<'a> {
    fn new(context: &'a Context, table: &str, rows: u64) -> Self {
        Self { bar: context.screen.bar(format!("pass of {table}"), rows, Unit::Things), context }
    }

    fn tell(&self, progress: PassProgress) -> ControlFlow<()> {
        self.bar.set_message(progress.what);
        self.bar.set_length(progress.total);
        self.bar.set_position(progress.done);
        self.context.interrupt.flow()
    }

    fn end<T>(&self, result: Result<T, PassError>) -> Result<T, Failure> {
        self.bar.finish_and_clear();
        result.map_err(|error| match error {
            PassError::Stopped => self.context.interrupt.failure(),
            error => error.into(),
        })
    }
}
