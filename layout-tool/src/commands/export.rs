//! `warprow export`.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use warprow_formats::{FileError, TableWriter, directory, followed, widen};
use warprow_layout::{DType, Ranks, row_crc};
use warprow_store::{OpenOptions, Store, TableInfo};
use warprow_workload::units;

use super::{CommandOutput, Context, export_all};
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file;
use crate::screen::Unit;
use crate::store_failure::DAMAGED_ROWS;

/// Bytes of consecutive rows that are written at once.
const RUN: usize = 1 << 20;

/// Write a table to a safetensors or .npy file, in the order of its ids; or all tables to one safetensors file
///
/// With --all, each table is a tensor of its name, and the keys of a table that stores some are the list NAME.keys beside it: `load --all`
/// and `torch` read such a file as they do a model's.
///
/// The rows of a table that has keys are written in the order of their ranks, and the keys in the same order to another file; those
/// of keys that were created since it was loaded or compacted come last.
///
/// The rows keep their bits; those of types with a scale for each row, which these files do not have, become f32. If the table was
/// loaded with --row-crc, each is compared with its checksum; one that does not
/// match ends the export. The file appears under its name when it is whole, or not at all.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow export -d emulated:a.drive --table items --out items.safetensors
  warprow export -d emulated:a.drive --all --out model.safetensors")]
pub struct ExportArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// The table
    #[arg(long, value_name = "TABLE", required_unless_present = "all", conflicts_with = "all")]
    table: Option<String>,
    /// All tables that look-ups find, to one .safetensors file
    #[arg(long, conflicts_with = "keys_out")]
    pub(super) all: bool,
    /// The file to write, .safetensors or .npy
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// The file to write the keys to, .npy, of a table that has keys
    #[arg(long, value_name = "FILE")]
    keys_out: Option<PathBuf>,
    /// Replace the files if they exist
    #[arg(long)]
    pub(super) force: bool,
}

/// A table that is written to a file.
pub(super) struct Exported<'a> {
    store: &'a Store,
    pub(super) table: TableInfo,
    /// Keys that were created since it was loaded or compacted, with their rows.
    created: Vec<(u64, Vec<u8>)>,
    /// Ranks of keys that were removed since, ascending: their rows are left out.
    removed: Vec<u64>,
    /// Type of the elements in the file.
    pub(super) dtype: DType,
}

impl<'a> Exported<'a> {
    pub(super) fn new(store: &'a Store, table: TableInfo) -> Result<Self, Failure> {
        // Files have no types with a scale for each row.
        let dtype = if table.dtype.is_scaled() { DType::F32 } else { table.dtype };
        let (created, removed) = match table.keys {
            Some(_) => (store.created(&table.name)?, store.removed_ranks(&table.name)?),
            None => (Vec::new(), Vec::new()),
        };
        Ok(Self { store, table, created, removed, dtype })
    }

    /// Rows of the table, created ones among them, without removed ones.
    pub(super) fn rows(&self) -> u64 {
        self.table.rows + self.created.len() as u64 - self.removed.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.rows() * u64::from(self.dtype.row_bytes(self.table.dim).unwrap_or(0))
    }

    /// What the order of its rows in the file is.
    pub(super) fn order(&self) -> &'static str {
        if self.table.keys.is_some() { "rank" } else { "id" }
    }

    /// Keys of the table, in the order of the rows in the file; it stores some.
    pub(super) fn keys(&self) -> Result<Vec<u64>, Failure> {
        let stored = self.store.keys(&self.table.name)?.unwrap_or_default();
        let left = (0..).zip(stored).filter(|(rank, _)| self.removed.binary_search(rank).is_err());
        let mut keys: Vec<u64> = left.map(|(_, key)| key).collect();
        keys.extend(self.created.iter().map(|(key, _)| key));
        Ok(keys)
    }

    /// Hands all rows to `write`, runs of them with the number of the first. Returns whether they were compared with their checksums.
    pub(super) fn write(&self, write: &Writing<'_>, context: &Context) -> Result<bool, Failure> {
        let Self { store, table, created, removed, dtype } = self;
        let mut wide = vec![0.0; table.dim as usize];
        let mut widened = Vec::new();
        let ids = match table.keys {
            None => store.ranks(&table.name).map_err(Failure::from)?.as_ref().map(Ranks::inverse),
            Some(_) => None,
        };
        let crcs = store.row_crcs(&table.name)?;
        let bar = context.screen.bar(format!("exporting {}", table.name), self.rows(), Unit::Things);
        let mut run = Run { write, first: 0, next: 0, rows: Vec::with_capacity(RUN + table.row_bytes as usize) };
        let mut rows = 0u64;
        let mut failed = None;
        let mut export = |rank: u64, row: &[u8]| {
            let removed = match removed.binary_search(&rank) {
                Ok(_) => return ControlFlow::Continue(()),
                Err(before) => before as u64,
            };
            // Only tables with keys have removed ones, and only those without have another order of ids.
            let id = ids.as_ref().map_or(Some(rank), |ids| ids.get(rank)).unwrap_or(rank) - removed;
            rows += 1;
            let stored = crcs.as_ref().and_then(|crcs| crcs.get(rank as usize));
            let checked = match stored.is_none_or(|&stored| stored == row_crc(rank, row)) {
                true => Ok(()),
                false => Err(damaged(store, &table.name, rank)),
            };
            let written = checked
                .and_then(|()| {
                    if *dtype == table.dtype {
                        return run.push(id, row);
                    }
                    widen(table.dtype, row, &mut wide);
                    widened.clear();
                    widened.extend(wide.iter().flat_map(|value| value.to_le_bytes()));
                    run.push(id, &widened)
                })
                .and_then(|()| if rows.is_multiple_of(1 << 12) { context.interrupt.check() } else { Ok(()) });
            bar.set_position(rows);
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(failure) => {
                    failed = Some(failure);
                    ControlFlow::Break(())
                }
            }
        };
        let scanned = store.scan(&table.name, 0..u64::MAX, &mut export);
        if scanned.is_ok() {
            // They have no checksums: the log's units have.
            let _ = (table.rows..).zip(created).try_for_each(|(rank, (_, row))| export(rank, row));
        }
        bar.finish_and_clear();
        if let Some(failure) = failed {
            return Err(failure);
        }
        scanned.map_err(Failure::from)?;
        run.flush()?;
        Ok(crcs.is_some())
    }
}

/// Takes rows of consecutive numbers, and that of the first.
type Writing<'a> = dyn Fn(u64, &[u8]) -> Result<(), FileError> + 'a;

pub(crate) fn run(args: &ExportArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    if args.all {
        return export_all::run(args, &store, context);
    }
    let name = args.table.as_deref().unwrap_or_default();
    let table = store.table(name).ok_or_else(|| drives::no_such_table(&store, name))?;
    refuse_same_file(args)?;
    let exported = Exported::new(&store, table)?;
    let table = &exported.table;
    let dtype = exported.dtype;
    let rows = exported.rows();
    let writer = file::create(&args.out, args.force, &table.name, rows, table.dim, dtype)?;
    let keys = export_keys(args, &exported)?;
    let checked = exported.write(&|first, rows| writer.write(first, rows), context)?;
    // Who sees the rows under their name may take it that the keys are there.
    if let Some(keys) = keys {
        keys.finish()?;
    }
    writer.finish()?;
    let keys_out = args.keys_out.as_ref().map(|path| path.display().to_string());
    let path = args.out.display().to_string();
    let bytes = exported.bytes();
    let order = exported.order();
    let text = format!(
        "Wrote {} of table {:?}, {}, to {path}, {}",
        units::plural(rows, "row"),
        table.name,
        units::bytes(bytes),
        match &keys_out {
            Some(keys) => format!("in the order of their ranks, and their keys in the same order to {keys}"),
            None => format!("in the order of their {order}s"),
        }
    );
    let object = json!({
        "table": table.name, "out": path, "rows": rows, "dim": table.dim, "dtype": dtype.name(), "bytes": bytes,
        "keys_out": keys_out, "order": order, "checked": checked,
    });
    CommandOutput::new(text, object)
}

/// One of the two would replace the other.
fn refuse_same_file(args: &ExportArgs) -> Result<(), Failure> {
    let Some(keys) = &args.keys_out else { return Ok(()) };
    let place = |path: &Path| {
        let path = followed(path);
        (directory(&path).canonicalize().ok(), path.file_name().map(OsStr::to_owned))
    };
    if place(keys) == place(&args.out) {
        let what = format!("{} is where the rows are written to", keys.display());
        return Err(Failure::usage("--keys-out", what).remedy("give the keys a file of their own"));
    }
    Ok(())
}

/// The file of keys, written but not there yet; `None`: there are none.
fn export_keys(args: &ExportArgs, exported: &Exported<'_>) -> Result<Option<TableWriter>, Failure> {
    let table = &exported.table;
    let (path, spec) = match (&args.keys_out, table.keys) {
        (None, None) => return Ok(None),
        (None, Some(spec)) if !spec.stored => return Ok(None),
        (Some(path), Some(spec)) if spec.stored => (path, spec),
        (None, Some(_)) => {
            let what = format!("table {:?} has keys: without them nobody knows whose row is whose", table.name);
            return Err(Failure::usage("--keys-out", what).remedy("say where to write them, with --keys-out FILE.npy"));
        }
        (Some(_), Some(_)) => {
            let what = format!("the keys of table {:?} are not stored, only their index", table.name);
            return Err(
                Failure::input("--keys-out", what).remedy("leave it out: rows are written in the order of ranks")
            );
        }
        (Some(_), None) => {
            let what = format!("table {:?} has no keys: its ids are the numbers of its rows", table.name);
            return Err(Failure::usage("--keys-out", what).remedy("leave it out"));
        }
    };
    let writer = file::create_keys(path, args.force, exported.rows(), spec.kind)?;
    let keys = exported.keys()?;
    for (first, keys) in (0..).step_by(RUN / 8).zip(keys.chunks(RUN / 8)) {
        writer.write(first, keys.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<_>>().as_slice())?;
    }
    Ok(Some(writer))
}

/// A row that is not what was loaded.
fn damaged(store: &Store, table: &str, rank: u64) -> Failure {
    let address = store.generation(table).ok().and_then(|(generation, index)| generation.row(index, rank));
    let drive = address.and_then(|address| store.drives().get(usize::from(address.drive)).cloned().flatten());
    let drive = drive.unwrap_or_else(|| "unknown".to_owned());
    let what = format!("table {table:?}, rank {rank}: the row that drive {drive} returned does not match its checksum");
    Failure::new(Class::Store, table, what).remedy(DAMAGED_ROWS).detail("rank", rank).detail("drive", drive)
}

/// Rows of consecutive ids on their way to the file.
struct Run<'a> {
    write: &'a Writing<'a>,
    first: u64,
    /// The id that would continue the run.
    next: u64,
    rows: Vec<u8>,
}

impl Run<'_> {
    fn push(&mut self, id: u64, row: &[u8]) -> Result<(), Failure> {
        if id != self.next || self.rows.len() >= RUN {
            self.flush()?;
            self.first = id;
        }
        self.rows.extend_from_slice(row);
        self.next = id + 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if !self.rows.is_empty() {
            (self.write)(self.first, &self.rows)?;
            self.rows.clear();
        }
        Ok(())
    }
}
