//! `warprow update`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde_json::json;
use warprow_formats::{Converted, KeyType, TableFile};
use warprow_keys::KeyKind;
use warprow_layout::{RowSource, VolumeError};
use warprow_store::{Compactor, CompactorOptions, OpenOptions, Store, StoreError, TableInfo, UpdateOptions};
use warprow_workload::Keys;
use wildmatch::WildMatch;

use super::{Context, Done, load, lookup};
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use crate::reading::ReadingArgs;
use crate::screen::Unit;
use crate::select::{Chosen, Selection};
use crate::store_failure::{ROOM_TO_COMPACT, lacks_chunks, of_compaction};
use crate::units;

/// Bytes of rows in a batch, at most.
const BATCH_BYTES: usize = 64 << 20;

/// When what was updated is brought into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compact {
    /// Where memory for updated rows, or the log, is full; the next batch waits for that
    Full,
    /// At half of the memory, or of the log, too, while the next batches are written
    Auto,
    /// Never: an update for which there is no room ends the command
    Never,
}

/// Give rows of a table other content
///
/// The rows come from a file of any format that `load` reads; whose they are say its keys (--keys names them), or --ids or --ids-file. Rows of another type
/// are converted. Each batch is durable before the next is begun. After a power cut or a kill in a batch its rows are there up to one of
/// them; what comes twice has its last row then. So a command that was stopped may simply be run again, or go on with --from.
///
/// Nothing is changed if one of the ids or keys is not there; with --create, keys that are not there are created with their rows. These are
/// found like all others at once, and come into the table with the next `warprow compact`, which writes its generation anew. Ids do not grow.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow update items -d emulated:a.drive --ids 7,42 --rows two.npy
  warprow update items -d emulated:a.drive --ids-file changed.npy --rows changed_rows.npy --batch 4096
  warprow update items -d emulated:a.drive --rows delta.parquet
  warprow update users -d emulated:a.drive --rows delta.npz --tensor vectors --keys ids
  warprow update users -d emulated:a.drive --rows delta.parquet --create")]
pub struct UpdateArgs {
    /// The table
    table: String,
    #[command(flatten)]
    drives: DriveArgs,
    /// A file or folder of rows, with or without keys
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,
    /// The ids, or keys, of the rows, in their order
    #[arg(long, value_name = "ID,...", allow_hyphen_values = true, conflicts_with = "ids_file")]
    ids: Option<String>,
    /// A file of them: .npy, .csv with a column, or raw .i32, .i64, .u32, .u64
    #[arg(long, value_name = "FILE[:COLUMN]")]
    ids_file: Option<String>,
    /// The keys of the rows: a list of whole numbers of 32 or 64 bits in the same .npz or safetensors file, or a .npy file of them. TENSOR,
    /// where a file has several, is what the file calls the rows, not the table
    #[arg(long, value_name = "[TENSOR=]NAME", conflicts_with_all = ["ids", "ids_file"])]
    keys: Option<String>,
    /// Which tensor of the file, if it holds several
    #[arg(long, value_name = "GLOB")]
    tensor: Option<String>,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Create keys that the table does not have, rather than refuse them
    #[arg(long)]
    create: bool,
    /// Rows that are made durable at once
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// When what was updated is brought into the table, rather than kept in memory and in the log
    #[arg(long, value_name = "WHEN", default_value = "full")]
    compact: Compact,
    /// Begin with this row of the file: those before were updated
    #[arg(long, value_name = "ROW", default_value = "0", hide_default_value = true)]
    from: u64,
}

pub(crate) fn run(args: &UpdateArgs, context: &Context) -> Result<Done, Failure> {
    let mut file = [TableFile::open_with(&args.rows, &args.reading.options())?];
    if let Some(tensor) = empty(args, &file[0]) {
        return nothing(args, tensor);
    }
    args.keys.iter().try_for_each(|keys| load::name_keys(&mut file, keys))?;
    let selection = Selection { tensors: args.tensor.iter().cloned().collect(), ..Selection::default() };
    let chosen = selection.choose(&file, &format!("warprow update {}", args.drives.pasteable()))?;
    let [chosen] = &chosen[..] else {
        let what = format!("{} tensors match", chosen.len());
        return Err(Failure::usage("--tensor", what).remedy("give a pattern that one tensor matches"));
    };
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    let info = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let ids = ids(args, chosen, &info)?;
    let subject = || args.rows.display().to_string();
    if ids.len() as u64 != chosen.table.rows {
        return Err(not_each(args, ids.len() as u64, chosen.table.rows));
    }
    if chosen.table.dim != info.dim {
        let what = format!("its rows have {} elements, those of table {:?} {}", chosen.table.dim, info.name, info.dim);
        return Err(Failure::input(subject(), what).remedy("give rows of the table's width"));
    }
    if args.from > chosen.table.rows {
        return Err(behind(chosen.table.rows));
    }
    let rows = chosen.file.rows(chosen.table);
    let converted = match chosen.table.dtype == info.dtype {
        true => None,
        false => Some(Converted::new(&rows, info.dim, chosen.table.dtype, info.dtype).ok_or_else(|| {
            let what =
                format!("rows of {} cannot become {}, as table {:?} has", chosen.table.dtype, info.dtype, info.name);
            Failure::input(subject(), what).remedy("give rows of the table's type")
        })?),
    };
    let source: &dyn RowSource = converted.as_ref().map_or(&rows, |converted| converted);
    // Before anything is written.
    let mut options = UpdateOptions::default();
    options.create = args.create;
    let left = ids.get(args.from as usize..).unwrap_or_default();
    let created = store.check_update_with(&info.name, left, &options)?;
    let work = Work { store: &store, info: &info, ids: &ids, options, source, context, compact: args.compact };
    let mut at = Progress { next: args.from as usize, ..Progress::default() };
    let began = Instant::now();
    let beside = Arc::new(Mutex::new(Beside::default()));
    let compactor = if args.compact == Compact::Auto { Some(compactor(&store, &beside)?) } else { None };
    let ended = work.shorten_log(&mut at).and_then(|()| work.run(args, &mut at));
    // One that runs is ended.
    drop(compactor);
    let beside = std::mem::take(&mut *beside.lock().unwrap_or_else(PoisonError::into_inner));
    at.compactions += beside.compactions;
    let (took, updated) = (began.elapsed(), at.next as u64 - args.from);
    ended.map_err(|failure| {
        let remedy = format!("the rows before row {0} are updated: go on with --from {0}", at.next);
        let failure = failure.detail("updated", updated).detail("next", at.next as u64);
        // It was to make room, and says why there is none.
        let failure = match (&beside.failed, beside.lacks_chunks) {
            (Some(why), true) => failure.detail("compaction_failed", why.clone()).remedy(ROOM_TO_COMPACT),
            (Some(why), false) => failure
                .detail("compaction_failed", why.clone())
                .remedy(format!("mend what kept a compaction from making room: {why}")),
            (None, _) => failure,
        };
        match (updated, &*failure.remedy) {
            (0, _) => failure,
            (_, "") => failure.remedy(remedy),
            (_, first) => {
                let both = format!("{first}; {remedy}");
                failure.remedy(both)
            }
        }
    })?;
    let rate = updated as f64 / took.as_secs_f64().max(1e-9);
    let mut text = format!(
        "Updated {} of table {:?} in {}, {} ({} rows/s).",
        units::plural(updated, "row"),
        info.name,
        if at.batches == 1 { "1 batch".to_owned() } else { format!("{} batches", units::count(at.batches)) },
        units::time(took),
        units::short(rate)
    );
    if created > 0 {
        text += &format!(" {} were new.", units::count(created));
    }
    if at.compactions > 0 {
        let why = if args.compact == Compact::Auto { "meanwhile" } else { "as memory or the log was full" };
        text += &format!(" Compacted {}, {why}.", units::plural(at.compactions, "time"));
    }
    if let Some(error) = &beside.failed {
        text += &format!("\nA compaction failed, and everything is in memory and in the log as before it: {error}");
    }
    let lost = converted.as_ref().map(Converted::lost);
    if let Some(lost) = &lost {
        let (from, to) = (chosen.table.dtype, info.dtype);
        text += &match lost.max_abs == 0.0 {
            true => format!("\n{from} to {to} changed no number"),
            false => format!("\n{from} to {to} changed a number by {:.3e} at most", lost.max_abs),
        };
    }
    Done::new(
        text,
        json!({
            "table": info.name, "rows": updated, "created": created, "batches": at.batches, "sequence": at.sequence, "seconds": took.as_secs_f64(),
            "rows_per_second": rate, "compactions": at.compactions, "compaction_failed": beside.failed, "converted_from": lost.map(|_| chosen.table.dtype.name()),
        }),
    )
}

/// The tensor that is meant, if it has no rows: an incremental model of passes that changed none.
fn empty<'a>(args: &UpdateArgs, file: &'a TableFile) -> Option<&'a str> {
    let glob = args.tensor.as_deref().map(WildMatch::new);
    let meant = |name: &str| glob.as_ref().is_none_or(|glob| glob.matches(name));
    // One that cannot be read may be the one that is meant: choosing says why.
    let is_known = |name: &String| file.empty.contains(name) || file.key_arrays.iter().any(|it| it.name == *name);
    let mut skipped = file.skipped.iter().map(|(name, _)| name).filter(|name| !is_known(name));
    if file.tables.iter().any(|table| meant(&table.name)) || skipped.any(|name| meant(name)) {
        return None;
    }
    file.empty.iter().map(|name| &**name).find(|name| meant(name))
}

fn nothing(args: &UpdateArgs, tensor: &str) -> Result<Done, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let info = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let given = given(args)?.map_or(0, |ids| ids.len());
    if given > 0 {
        return Err(not_each(args, given as u64, 0));
    }
    if args.from > 0 {
        return Err(behind(0));
    }
    let text =
        format!("Nothing to update in table {:?}: {tensor:?} in {} has no rows.", info.name, args.rows.display());
    Done::new(
        text,
        json!({
            "table": info.name, "rows": 0, "created": 0, "batches": 0, "sequence": null, "seconds": 0.0, "rows_per_second": 0.0,
            "compactions": 0, "compaction_failed": null, "converted_from": null,
        }),
    )
}

fn not_each(args: &UpdateArgs, ids: u64, rows: u64) -> Failure {
    let (given, rows) = (units::plural(ids, "id"), units::plural(rows, "row"));
    Failure::input(args.rows.display().to_string(), format!("there are {given} for {rows}"))
        .remedy("give one for each row")
}

/// Of `--from`.
fn behind(rows: u64) -> Failure {
    Failure::usage("--from", format!("the file has {}", units::plural(rows, "row")))
        .remedy("give the row to go on with")
}

/// What was compacted beside the updates.
#[derive(Debug, Default)]
struct Beside {
    compactions: u64,
    /// Why the last that did not come about did not, if none has since.
    failed: Option<String>,
    /// Whether that was for lack of free chunks.
    lacks_chunks: bool,
}

/// Compacts while the updates go on, and keeps account of it.
fn compactor(store: &Store, beside: &Arc<Mutex<Beside>>) -> Result<Compactor, Failure> {
    let beside = beside.clone();
    let compactor = store.keep_compacted(&CompactorOptions::default(), move |_, done| {
        let mut beside = beside.lock().unwrap_or_else(PoisonError::into_inner);
        match done.chunks {
            Ok(_) => (beside.compactions, beside.failed) = (beside.compactions + 1, None),
            Err(error) => (beside.failed, beside.lacks_chunks) = (Some(error.to_string()), lacks_chunks(&error)),
        }
    });
    Ok(compactor?)
}

/// The ids that the command line names.
fn given(args: &UpdateArgs) -> Result<Option<Keys>, Failure> {
    match (&args.ids, &args.ids_file) {
        (Some(list), _) => lookup::parse_ids(list).map(Some),
        (None, Some(file)) => lookup::read_file(file).map(Some),
        (None, None) => Ok(None),
    }
}

/// What the rows belong to: ids, or keys by their bits.
fn ids(args: &UpdateArgs, chosen: &Chosen<'_>, info: &TableInfo) -> Result<Vec<u64>, Failure> {
    let given = given(args)?;
    let (bits, signed): (Vec<u64>, bool) = match (given, chosen.table.keys) {
        (Some(Keys::Signed(ids)), _) => (ids.into_iter().map(|id| id as u64).collect(), true),
        (Some(Keys::Unsigned(ids)), _) => (ids, false),
        (None, Some(kind)) => {
            let keys = chosen.file.keys(chosen.table)?.into_iter().flatten();
            (keys.collect::<Result<_, _>>()?, KeyType::is_signed(kind))
        }
        (None, None) => {
            let what = format!("{} has no keys: whose are its rows?", args.rows.display());
            return Err(Failure::usage("--ids", what).remedy("say it with --keys, --ids or --ids-file"));
        }
    };
    // A number that the other kind cannot hold has the upper bit; ids are never below zero.
    let table_signed = info.keys.is_some_and(|keys| keys.kind == KeyKind::I64);
    let foreign = (signed != table_signed).then(|| bits.iter().find(|&&id| id >> 63 == 1)).flatten();
    match foreign {
        None => Ok(bits),
        Some(&id) => {
            let id = if signed { (id as i64).to_string() } else { id.to_string() };
            let (what, remedy) = match (info.keys.is_some(), table_signed) {
                (false, _) => {
                    (format!("table {:?} has no row {id}", info.name), "look at the ids; nothing was updated")
                }
                (true, false) => (
                    format!("{id} is no key of table {:?}: its keys are u64, numbers from 0 on", info.name),
                    "look at the keys; nothing was updated",
                ),
                (true, true) => (
                    format!("{id} is no key of table {:?}: its keys are i64, numbers below 2⁶³", info.name),
                    "look at the keys; nothing was updated",
                ),
            };
            Err(Failure::input(&info.name, what).remedy(remedy))
        }
    }
}

struct Work<'a> {
    store: &'a Store,
    info: &'a TableInfo,
    ids: &'a [u64],
    options: UpdateOptions,
    source: &'a dyn RowSource,
    context: &'a Context,
    compact: Compact,
}

#[derive(Debug, Default)]
struct Progress {
    /// The row that comes next: those before are durable.
    next: usize,
    batches: u64,
    compactions: u64,
    sequence: Option<u64>,
}

impl Work<'_> {
    fn run(&self, args: &UpdateArgs, at: &mut Progress) -> Result<(), Failure> {
        let row_bytes = self.info.row_bytes as usize;
        let most = (args.batch as usize).min((BATCH_BYTES / row_bytes.max(1)).max(1));
        let bar = self.context.screen.bar(format!("updating {}", self.info.name), self.ids.len() as u64, Unit::Things);
        let mut rows = Vec::new();
        while let Some(ids) = self.ids.get(at.next..).filter(|ids| !ids.is_empty()) {
            self.context.interrupt.check()?;
            let ids = ids.get(..most).unwrap_or(ids);
            rows.resize(ids.len() * row_bytes, 0);
            self.source.read(at.next as u64, row_bytes, &mut rows).map_err(|error| {
                Failure::input(args.rows.display().to_string(), error.to_string()).remedy("look at the file")
            })?;
            at.sequence = Some(self.update(ids, &rows, at)?);
            (at.next, at.batches) = (at.next + ids.len(), at.batches + 1);
            bar.set_position(at.next as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Compacts first where the log is long: all of it was read just now, and is by each command that follows.
    fn shorten_log(&self, at: &mut Progress) -> Result<(), Failure> {
        if self.compact == Compact::Never || !self.store.is_log_long(self.info.generation)? {
            return Ok(());
        }
        // Where it does not come about, the updates may have room all the same, and say so if they have none.
        at.compactions += u64::from(self.store.compact(self.info.generation).is_ok());
        Ok(())
    }

    /// One batch; where memory or the log is full, what is in them is brought into the table first.
    fn update(&self, ids: &[u64], rows: &[u8], at: &mut Progress) -> Result<u64, Failure> {
        match self.store.update_with(&self.info.name, ids, rows, &self.options) {
            // A compactor has waited for what it could do.
            Err(error) if self.compact == Compact::Full && is_full(&error) => {
                let full = Failure::from(error);
                self.store.compact(self.info.generation).map_err(|error| {
                    let failure = of_compaction(error);
                    let message =
                        format!("{}; a compaction, which would make room, failed: {}", full.message, failure.message);
                    Failure { message, ..failure }
                })?;
                at.compactions += 1;
                let again = self.store.update_with(&self.info.name, ids, rows, &self.options);
                again.map_err(|error| match &error {
                    StoreError::OverlayFull { .. } if ids.len() > 1 => {
                        Failure::from(error).remedy("give a smaller --batch")
                    }
                    StoreError::Volume(VolumeError::NoLogSpace { needed: 2.., .. }) if ids.len() > 1 => {
                        Failure::from(error).remedy("give a smaller --batch, drop a generation, or add a drive")
                    }
                    _ => error.into(),
                })
            }
            other => Ok(other?),
        }
    }
}

/// Whether a compaction would help.
fn is_full(error: &StoreError) -> bool {
    let is_log_full =
        |error: &VolumeError| matches!(error, VolumeError::LogFull { .. } | VolumeError::NoLogSpace { .. });
    match error {
        StoreError::Volume(error) => is_log_full(error),
        error => matches!(error, StoreError::OverlayFull { .. }),
    }
}
