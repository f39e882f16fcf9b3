//! `warprow load`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use warprow_layout::{DType, MAX_NAME, Ranks, RowSource, TableSpec};
use warprow_store::{LoadOptions, OpenOptions, Store, StoreError, TableInfo, TableLoad};
use warprow_workload::NpyHeader;

use super::{Context, Done};
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file::{TableFile, npy, refuse_special};
use crate::hotness::{HotnessFile, Share};
use crate::report::{printable, table};
use crate::screen::Unit;
use crate::select::{Chosen, Selection};
use crate::units;

/// Load tables from safetensors and .npy files, all of them or none
///
/// A table is a tensor [rows, dim] of F32, F16, BF16, I8 or U8; a .npy file is one table, called as the file. If a file holds
/// several, choose with --tensor or take --all. The rows keep their bits, NaN included.
///
/// Which rows are hot decides how fast look-ups are: the hottest are kept in memory. Tell with --hotness, either by a count for
/// each row, or by a trace of ids to be counted. Without it, the first ids count as the hottest.
///
/// Nothing is visible before everything is written, and an interrupted load leaves the store as it was.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow load -d emulated:a.drive items.npy
  warprow load -d emulated:a.drive model.safetensors --tensor 'emb.*' --strip-prefix emb.
  warprow load -d emulated:a.drive model.safetensors --tensor item=emb.items.weight \\
      --hotness trace:clicks.csv:item
  warprow load -d emulated:a.drive model.safetensors --all --dry-run")]
pub struct LoadArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Files to load from
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Load the tensors that match; with a name, the only one that matches, under that name
    #[arg(long, value_name = "[NAME=]GLOB", conflicts_with = "all")]
    tensor: Vec<String>,
    /// Load all tables there are
    #[arg(long)]
    all: bool,
    /// Cut this from the names of tables
    #[arg(long, value_name = "PREFIX")]
    strip_prefix: Option<String>,
    /// How hot each row is: a count a row (.npy, .csv, .u32, .u64), or ids to be counted with trace: before the file
    #[arg(long, value_name = "[TABLE=][trace:]FILE[:COLUMN]")]
    hotness: Vec<String>,
    /// The row that stands for ids a table does not have: zeros, a row of the table, or a file of one row
    #[arg(long, value_name = "zeros|id:N|FILE.npy", default_value = "zeros")]
    default: String,
    /// Store a checksum of every row, four bytes each, so that `verify` can tell whether rows are intact
    #[arg(long)]
    row_crc: bool,
    /// Replace tables that have these names; until the end both need room
    #[arg(long)]
    replace: bool,
    /// Load them beside those of these names: nothing finds them before `warprow switch`
    #[arg(long, conflicts_with = "replace")]
    beside: bool,
    /// What the model is called that these tables belong to [default: the first file's name]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only say what would be loaded and replaced, or why it could not be
    #[arg(long)]
    dry_run: bool,
}

struct Prepared<'a> {
    chosen: Chosen<'a>,
    spec: TableSpec,
    ranks: Option<Ranks>,
    /// How much of the trace that ranked it speaks of it.
    trace: Option<Share>,
}

pub(crate) fn run(args: &LoadArgs, context: &Context) -> Result<Done, Failure> {
    let files = args.files.iter().map(|path| TableFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let selection = Selection { tensors: args.tensor.clone(), all: args.all, strip_prefix: args.strip_prefix.clone() };
    let command = format!("warprow load {}", args.drives.pasteable());
    let chosen = selection.choose(&files, &command)?;
    let names: Vec<&str> = chosen.iter().map(|chosen| &*chosen.name).collect();
    if let Some(name) = names.iter().find(|name| name.len() > MAX_NAME) {
        let what = format!("its name has {} bytes, the most are {MAX_NAME}", name.len());
        return Err(Failure::input(*name, what).remedy("give it another: --tensor NAME=GLOB"));
    }
    let hotness: Vec<HotnessFile> = args.hotness.iter().map(|argument| HotnessFile::parse(argument, &names)).collect();
    check_hotness(&hotness, &names)?;

    let options = OpenOptions::default();
    let store = drives::open(&args.drives, &if args.dry_run { options.with_read_only() } else { options })?;
    refuse_existing(&store, &names, args.replace || args.beside)?;
    context.interrupt.check()?;
    let mut prepared = Vec::with_capacity(chosen.len());
    for chosen in chosen {
        prepared.push(prepare(args, chosen, &hotness, context)?);
    }
    let (rows, bytes) = prepared.iter().fold((0u64, 0u64), |(rows, bytes), it| {
        (
            rows.saturating_add(it.spec.rows),
            bytes.saturating_add(it.spec.rows.saturating_mul(it.chosen.table.row_bytes() as u64)),
        )
    });
    let described: Vec<_> = prepared.iter().map(describe).collect();
    let skipped: Vec<_> = files.iter().flat_map(|file| &file.skipped).collect();
    let mut text = String::new();
    let replaced: Vec<TableInfo> = match args.beside {
        true => Vec::new(),
        false => prepared.iter().filter_map(|it| store.table(&it.spec.name)).collect(),
    };
    let mut report = json!({
        "dry_run": args.dry_run,
        "tables": described,
        "skipped": skipped.iter().map(|(name, reason)| json!({"name": name, "reason": reason})).collect::<Vec<_>>(),
        "rows": rows,
        "bytes": bytes,
        "replaced": replaced.iter().map(replaced_json).collect::<Vec<_>>(),
    });
    let model = args.model.clone().or_else(|| Some(args.files.first()?.file_stem()?.to_str()?.to_owned()));
    let model = model.as_deref().unwrap_or("tables");
    let options = LoadOptions::default();
    let options = if args.replace { options.with_replace() } else { options };
    let options = if args.beside { options.with_beside() } else { options };
    if args.dry_run {
        let specs = prepared.iter().map(|it| it.spec.clone()).collect();
        let superseded = store.check_load(model, specs, &options)?;
        text += &format!(
            "Nothing was changed. Would load {}, {}, {}, for which there is room:\n",
            units::plural(prepared.len() as u64, "table"),
            units::plural(rows, "row"),
            units::bytes(bytes)
        );
        if let Some(report) = report.as_object_mut() {
            report.insert("replaced_generations".into(), superseded.into());
        }
    } else {
        let loaded = load(&store, model, &prepared, &options, context)?;
        let seconds = loaded.elapsed.as_secs_f64();
        text += &format!(
            "Loaded {}, {}, {} in {} ({}/s), as generation {}:\n",
            units::plural(prepared.len() as u64, "table"),
            units::plural(rows, "row"),
            units::bytes(bytes),
            units::time(loaded.elapsed),
            units::bytes((bytes as f64 / seconds.max(1e-9)) as u64),
            loaded.generation,
        );
        if let Some(report) = report.as_object_mut() {
            report.insert("generation".into(), loaded.generation.into());
            report.insert("seconds".into(), seconds.into());
            report.insert("bytes_written".into(), loaded.bytes.into());
            report.insert("replaced_generations".into(), loaded.superseded.into());
        }
    }
    text += &table(
        ["table", ">rows", ">dim", "type", "hottest rows"],
        prepared.iter().map(|it| {
            [
                it.spec.name.clone(),
                units::count(it.spec.rows),
                it.spec.dim.to_string(),
                it.spec.dtype.to_string(),
                if it.ranks.is_some() { "by --hotness" } else { "the first ids" }.to_owned(),
            ]
        }),
    );
    for (it, share) in prepared.iter().filter_map(|it| Some((it, it.trace?))).filter(|(_, share)| share.missing > 0) {
        text += &format!(
            "\nhotness: {} of {} of the trace ({:.1}%) are not in {}",
            units::count(share.missing),
            units::plural(share.ids, "id"),
            100.0 * share.missing as f64 / share.ids as f64,
            printable(&it.spec.name)
        );
    }
    for old in &replaced {
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
    for (name, reason) in skipped.iter().filter(|_| args.all) {
        text += &format!("\nskipped: {}: {reason}", printable(name));
    }
    if prepared.iter().any(|it| it.ranks.is_none()) {
        text += "\nidentity: hot tier = first ids; tell which rows are hot with --hotness";
    }
    Done::new(text, report)
}

fn check_hotness(hotness: &[HotnessFile], names: &[&str]) -> Result<(), Failure> {
    for (index, file) in hotness.iter().enumerate() {
        let subject = || file.file.path.display().to_string();
        if let Some(name) = file.stranger() {
            let what = format!("there is no such file, and no table {name:?} is loaded");
            return Err(Failure::input(subject(), what).remedy(format!("the tables are {}", names.join(", "))));
        }
        if file.table.is_none() && names.len() > 1 {
            return Err(Failure::usage(
                subject(),
                format!("{} tables are loaded: which is the hotness of?", names.len()),
            )
            .remedy(format!("name it: --hotness {}=...", names.first().unwrap_or(&"TABLE"))));
        }
        let of = |file: &HotnessFile| file.table.clone().or_else(|| names.first().map(|&name| name.to_owned()));
        if hotness.iter().take(index).any(|other| of(other) == of(file)) {
            return Err(Failure::usage(
                subject(),
                format!("table {:?} is given two hotnesses", of(file).unwrap_or_default()),
            )
            .remedy("leave one of them out"));
        }
    }
    Ok(())
}

/// Better now than after minutes of counting.
fn refuse_existing(store: &Store, names: &[&str], replace: bool) -> Result<(), Failure> {
    match names.iter().find(|name| !replace && store.table(name).is_some()) {
        Some(&name) => Err(StoreError::TableExists { table: name.to_owned() }.into()),
        None => Ok(()),
    }
}

fn prepare<'a>(
    args: &LoadArgs,
    chosen: Chosen<'a>,
    hotness: &[HotnessFile],
    context: &Context,
) -> Result<Prepared<'a>, Failure> {
    let table = chosen.table;
    let file = hotness.iter().find(|file| file.table.as_ref().is_none_or(|it| *it == chosen.name));
    let (ranks, trace) = match file {
        Some(file) => {
            let spinner = context.screen.spinner(format!("ranking {}", chosen.name));
            let hotness = file.ranks(table.rows)?;
            spinner.finish_and_clear();
            (Some(hotness.ranks), hotness.trace)
        }
        None => (None, None),
    };
    context.interrupt.check()?;
    let spec = TableSpec {
        permuted: ranks.is_some(),
        default_row: default_row(&args.default, &chosen)?,
        row_crc: args.row_crc,
        ..TableSpec::new(&chosen.name, table.rows, table.dim, table.dtype)
    };
    Ok(Prepared { chosen, spec, ranks, trace })
}

fn default_row(argument: &str, chosen: &Chosen<'_>) -> Result<Option<Vec<u8>>, Failure> {
    let (file, table) = (chosen.file, chosen.table);
    if argument == "zeros" {
        return Ok(None);
    }
    if let Some(id) = argument.strip_prefix("id:") {
        let id: u64 = id
            .parse()
            .map_err(|_| Failure::usage(argument, format!("{id:?} is no id")).remedy("give zeros, id:N or FILE.npy"))?;
        if id >= table.rows {
            let what = format!("{} has {}; there is no row {id}", chosen.name, units::plural(table.rows, "row"));
            return Err(Failure::input(argument, what).remedy("give an id that the table has"));
        }
        let mut row = vec![0; table.row_bytes()];
        let read = file.rows(table).read(id, table.row_bytes(), &mut row);
        read.map_err(|error| Failure::io(file.path.display().to_string(), "cannot be read", &error))?;
        return Ok(Some(row));
    }
    refuse_special(Path::new(argument))?;
    let bytes = std::fs::read(argument).map_err(|error| {
        Failure::io(argument, "cannot be read", &error).remedy("give zeros, id:N or FILE.npy as the default row")
    })?;
    let header = NpyHeader::read(&mut &bytes[..])
        .map_err(|error| Failure::input(argument, error.to_string()).remedy("give zeros, id:N or FILE.npy"))?;
    let row = bytes.get(header.data_at as usize..).unwrap_or_default();
    let dtype: Option<DType> = npy::dtype_of(&header.descr);
    if dtype != Some(table.dtype) || header.elements() != table.dim.into() || row.len() != table.row_bytes() {
        let what = format!(
            "{argument} holds {:?} elements of {}, a row of {} is {} elements of {}",
            header.shape, header.descr, chosen.name, table.dim, table.dtype
        );
        return Err(Failure::input(argument, what).remedy("give one row of the table's type and width"));
    }
    Ok(Some(row.to_vec()))
}

fn describe(prepared: &Prepared<'_>) -> serde_json::Value {
    let Prepared { chosen, spec, ranks, trace } = prepared;
    json!({
        "name": spec.name,
        "tensor": chosen.table.name,
        "file": chosen.file.path.display().to_string(),
        "rows": spec.rows,
        "dim": spec.dim,
        "dtype": spec.dtype.name(),
        "order": if ranks.is_some() { "hotness" } else { "identity" },
        "trace_ids": trace.map(|share| share.ids),
        "trace_ids_missing": trace.map(|share| share.missing),
        "row_crc": spec.row_crc,
        "default_row": spec.default_row.is_some(),
    })
}

fn replaced_json(old: &TableInfo) -> serde_json::Value {
    json!({
        "name": old.name,
        "rows": old.rows,
        "dim": old.dim,
        "dtype": old.dtype.name(),
        "generation": old.generation,
    })
}

fn load(
    store: &Store,
    model: &str,
    prepared: &[Prepared<'_>],
    options: &LoadOptions,
    context: &Context,
) -> Result<warprow_store::LoadReport, Failure> {
    let sources: Vec<_> = prepared.iter().map(|it| it.chosen.file.rows(it.chosen.table)).collect();
    let loads: Vec<TableLoad<'_>> = prepared
        .iter()
        .zip(&sources)
        .map(|(it, source)| {
            let load = TableLoad::new(&it.spec, source);
            match &it.ranks {
                Some(ranks) => load.with_ranks(ranks),
                None => load,
            }
        })
        .collect();
    let bar = context.screen.bar("loading", 0, Unit::Bytes);
    let loaded = store.load(model, &loads, options, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.written);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    loaded.map_err(|error| match error {
        StoreError::Interrupted => context.interrupt.failure(),
        StoreError::TableExists { ref table } => Failure::new(Class::Refused, table.clone(), error.to_string()),
        error => error.into(),
    })
}
