//! `warprow update`.

mod arguments;
mod compactor;
pub mod expire;
mod ids;
mod report;
mod work;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warprow_formats::{ConvertedRows, FileRows, TableFile};
use warprow_layout::RowSource;
use warprow_store::{OpenOptions, Store, TableInfo, UpdateOptions};
use wildmatch::WildMatch;

pub use arguments::UpdateArgs;

use super::{CommandOutput, Context, load};
use crate::drives;
use crate::failure::Failure;
use crate::select::{Chosen, Selection};
use arguments::Compact;
use compactor::{Beside, compactor};
use ids::{behind, given, not_each};
use report::{Removed, Updated};
use work::{Progress, Work};

pub(crate) fn run(args: &UpdateArgs, context: &Context) -> Result<CommandOutput, Failure> {
    if let Some(keys) = &args.delete {
        return remove(args, keys, context);
    }
    let mut file = [TableFile::open_with(args.rows(), &args.reading.options())?];
    if let Some(tensor) = empty(args, &file[0]) {
        return nothing(args, tensor);
    }
    args.keys.iter().try_for_each(|keys| load::name_keys(&mut file, keys))?;
    let chosen = choose(args, &file)?;
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    let info = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let ids = ids::ids(args, &chosen, &info)?;
    refuse_unfit(args, &chosen, &info, ids.len() as u64)?;
    let rows = chosen.file.rows(chosen.table);
    let converted = converted(args, &rows, &chosen, &info)?;
    let source: &dyn RowSource = converted.as_ref().map_or(&rows, |converted| converted);
    // Before anything is written.
    let mut options = UpdateOptions::default();
    options.create = args.create;
    let left = ids.get(args.from as usize..).unwrap_or_default();
    let created = store.check_update_with(&info.name, left, &options)?;
    let work = Work { options, source: Some(source), ..work(args, (&store, &info), &ids, context) };
    let (at, took, compaction_failed) = change(args, &work)?;
    let updated = at.next as u64 - args.from;
    let converted = converted.as_ref().map(|converted| (chosen.table.dtype, converted.lost()));
    report::report(args, &Updated { info: &info, rows: updated, created, took, at, compaction_failed, converted })
}

/// Removes keys.
fn remove(args: &UpdateArgs, keys: &str, context: &Context) -> Result<CommandOutput, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    let info = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let ids = ids::removed(keys, &info)?;
    if args.from > ids.len() as u64 {
        return Err(behind(ids.len() as u64));
    }
    let work = work(args, (&store, &info), &ids, context);
    let (at, took, compaction_failed) = change(args, &work)?;
    report::removed(args, &Removed { info: &info, keys: at.next as u64 - args.from, took, at, compaction_failed })
}

/// The removal of `ids`.
fn work<'a>(
    args: &UpdateArgs,
    (store, info): (&'a Store, &'a TableInfo),
    ids: &'a [u64],
    context: &'a Context,
) -> Work<'a> {
    let (options, file) = (UpdateOptions::default(), args.file());
    Work { store, info, ids, options, source: None, file, batch: args.batch, context, compact: args.compact }
}

/// Does all of the work. How far it came, how long it took, and why the last compaction beside it failed.
fn change(args: &UpdateArgs, work: &Work<'_>) -> Result<(Progress, Duration, Option<String>), Failure> {
    let mut at = Progress { next: args.from as usize, ..Progress::default() };
    let began = Instant::now();
    let (ended, beside) = update(args, work, &mut at)?;
    let took = began.elapsed();
    let updated = at.next as u64 - args.from;
    ended.map_err(|failure| {
        let failure = failure.detail("updated", updated).detail("next", at.next as u64);
        with_way_on(beside.explain(failure), updated, at.next, args.delete.is_some())
    })?;
    Ok((at, took, beside.failed))
}

/// The one tensor that is meant.
fn choose<'a>(args: &UpdateArgs, file: &'a [TableFile]) -> Result<Chosen<'a>, Failure> {
    let selection = Selection { tensors: args.tensor.iter().cloned().collect(), ..Selection::default() };
    let mut chosen = selection.choose(file, &format!("warprow update {}", args.drives.pasteable()))?;
    match (chosen.pop(), chosen.len()) {
        (Some(only), 0) => Ok(only),
        (last, others) => {
            let what = format!("{} tensors match", others + usize::from(last.is_some()));
            Err(Failure::usage("--tensor", what).remedy("give a pattern that one tensor matches"))
        }
    }
}

/// Rows that are not the table's: too many or too few for their ids, too wide or too narrow, or fewer than were updated before.
fn refuse_unfit(args: &UpdateArgs, chosen: &Chosen<'_>, info: &TableInfo, ids: u64) -> Result<(), Failure> {
    let table = chosen.table;
    if ids != table.rows {
        return Err(not_each(args, ids, table.rows));
    }
    if table.dim != info.dim {
        let what = format!("its rows have {} elements, those of table {:?} {}", table.dim, info.name, info.dim);
        return Err(Failure::input(args.file(), what).remedy("give rows of the table's width"));
    }
    if args.from > table.rows { Err(behind(table.rows)) } else { Ok(()) }
}

/// The rows as ones of the table's type, if the file's is another.
fn converted<'a>(
    args: &UpdateArgs,
    rows: &'a FileRows<'a>,
    chosen: &Chosen<'_>,
    info: &TableInfo,
) -> Result<Option<ConvertedRows<'a>>, Failure> {
    let from = chosen.table.dtype;
    let to = info.dtype;
    if from == to {
        return Ok(None);
    }
    ConvertedRows::new(rows, info.dim, from, to).map(Some).ok_or_else(|| {
        let what = format!("rows of {from} cannot become {to}, as table {:?} has", info.name);
        Failure::input(args.file(), what).remedy("give rows of the table's type")
    })
}

/// Makes the updates, with a compactor beside them if that is asked for. Returns how they ended, and what was compacted meanwhile.
fn update(args: &UpdateArgs, work: &Work<'_>, at: &mut Progress) -> Result<(Result<(), Failure>, Beside), Failure> {
    let beside = Arc::new(Mutex::new(Beside::default()));
    let compactor = if args.compact == Compact::Auto { Some(compactor(work.store, &beside)?) } else { None };
    let ended = work.shorten_log(at).and_then(|()| work.run(at));
    // One that runs is ended.
    drop(compactor);
    let beside = std::mem::take(&mut *beside.lock().unwrap_or_else(PoisonError::into_inner));
    at.compactions += beside.compactions;
    Ok((ended, beside))
}

/// A failure with how to go on.
fn with_way_on(failure: Failure, updated: u64, next: usize, removes: bool) -> Failure {
    let remedy = match removes {
        true => format!("the keys before key {next} are removed: go on with --from {next}"),
        false => format!("the rows before row {next} are updated: go on with --from {next}"),
    };
    match (updated, &*failure.remedy) {
        (0, _) => failure,
        (_, "") => failure.remedy(remedy),
        (_, first) => {
            let both = format!("{first}; {remedy}");
            failure.remedy(both)
        }
    }
}

/// The tensor that is meant, if it has no rows: an incremental model of passes that changed none.
fn empty<'a>(args: &UpdateArgs, file: &'a TableFile) -> Option<&'a str> {
    let glob = args.tensor.as_deref().map(WildMatch::new);
    let meant = |name: &str| glob.as_ref().is_none_or(|glob| glob.matches(name));
    // One that cannot be read may be the one that is meant: choosing says why.
    let is_known =
        |name: &String| file.empty.contains(name) || file.key_arrays.iter().any(|key_array| key_array.name == *name);
    let mut skipped = file.skipped.iter().map(|(name, _)| name).filter(|name| !is_known(name));
    if file.tables.iter().any(|table| meant(&table.name)) || skipped.any(|name| meant(name)) {
        return None;
    }
    file.empty.iter().map(|name| &**name).find(|name| meant(name))
}

fn nothing(args: &UpdateArgs, tensor: &str) -> Result<CommandOutput, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let info = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let given = given(args)?.map_or(0, |ids| ids.len());
    if given > 0 {
        return Err(not_each(args, given as u64, 0));
    }
    if args.from > 0 {
        return Err(behind(0));
    }
    report::nothing(args, &info, tensor)
}
