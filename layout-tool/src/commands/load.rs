//! `warprow load`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use warprow_formats::{Converted, FileRows, FormatError, Lost, TableFile, npy, refuse_special};
use warprow_keys::{Fingerprint, KeyIndex, KeyKind, KeySource};
use warprow_layout::{DType, Keyed, KeyedError, MAX_NAME, Ranks, RowOrder, RowSource, TableSpec};
use warprow_plan::{ProposalFile, ranks_of};
use warprow_store::{LoadOptions, OpenOptions, ReadCurve, Store, StoreError, TableInfo, TableLoad};
use warprow_workload::NpyHeader;

use super::ordering::{Indexed, count, followed, index, inherit, refuse_strangers, refuse_two};
use super::{Context, Done};
use crate::columns::Log;
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use crate::file;
use crate::hotness::{Hot, Hotness, HotnessFile, Rows, Share};
use crate::inherited::Inherited;
use crate::keyed::{FileKeys, Index, Whose, of_keys};
use crate::lba::{self, Choice};
use crate::reading::ReadingArgs;
use crate::report::{printable, table};
use crate::screen::Unit;
use crate::select::{Chosen, Selection};
use crate::units;

/// Load tables from files, all of them or none
///
/// A table is a tensor [rows, dim] of F32, F16, BF16, F8_E4M3, F8_E5M2, I8 or U8 in a safetensors file (also sharded: give
/// its folder or model.safetensors.index.json), a .npy file, an array of a .npz file, a HugeCTR sparse model or
/// embedding-collection dump or a DynamicEmb dump (give the folder), a column of vectors in a Parquet file, or raw rows
/// (--shape). If a file holds several, choose with --tensor or take --all. The rows keep their bits, NaN included, unless
/// --to says otherwise.
///
/// Where a format has keys, or --keys names them, row i of the file is that of key i. Keys that are the numbers from 0 on, in any
/// order, become ids; any other 64-bit keys get an index, by which they are looked up (--key-index). Each key comes once.
///
/// Which rows are hot decides how fast look-ups are: the hottest are kept in memory. Tell with --hotness, by a count for
/// each row, by recorded look-ups to be counted (several add up), or by the scores of a HugeCTR dump. A click log is for all tables
/// that its columns are called like: column `user_id` for `user_id` or `embeddings.user_id.weight`. Without it, --replace and --beside
/// keep the order of the table that they follow, and else the first rows count as the hottest.
///
/// Nothing is visible before everything is written, and an interrupted load leaves the store as it was.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow load -d emulated:a.drive items.npy
  warprow load -d emulated:a.drive model.safetensors --tensor 'emb.*' --strip-prefix emb.
  warprow load -d emulated:a.drive model.safetensors --tensor item=emb.items.weight \\
      --hotness trace:clicks.csv:item
  warprow load -d emulated:a.drive model.safetensors --tensor 'embeddings.*' --hotness trace:clicks.parquet
  warprow load -d emulated:a.drive users/ --hotness norm:train/file_list.txt:i64,slot=3
  warprow load -d emulated:a.drive users.npz --tensor vectors --keys ids
  warprow load -d emulated:a.drive model.safetensors --all --dry-run
  warprow load -d emulated:a.drive dump/ --all --to f16
  warprow load -d emulated:a.drive rows.bin --shape 1000000x64:f32")]
pub struct LoadArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Files or folders to load from
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    reading: ReadingArgs,
    /// The keys of the rows: a list of whole numbers of 32 or 64 bits in the same .npz or safetensors file, or a .npy file of them. TENSOR,
    /// where a file has several, is what the file calls the rows, not the table
    #[arg(long, value_name = "[TENSOR=]NAME")]
    keys: Vec<String>,
    /// Whether keys get an index, or become ids; ids are the numbers from 0 on
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    key_index: Index,
    /// Bits by which the index tells other keys: one in 2^BITS gets a row of the table, rather than the default
    #[arg(long, value_name = "8|16|32", default_value = "16", value_parser = fingerprint)]
    fingerprint: Fingerprint,
    /// Store the index of keys alone, which takes 8 bytes a row less: keys can then not be exported, nor compared in look-ups
    #[arg(long)]
    forget_keys: bool,
    /// Convert the rows to this type, and say what that loses: f32, f16, bf16, f8e4m3, f8e5m2, or q8 or q4,
    /// bytes or halves of bytes with a scale and a bias for each row, in the layout of FBGEMM
    #[arg(long, value_name = "TYPE", value_parser = target_type)]
    to: Option<DType>,
    /// Load the tensors that match; with a name, the only one that matches, under that name
    #[arg(long, value_name = "[NAME=]GLOB", conflicts_with = "all")]
    tensor: Vec<String>,
    /// Load all tables there are
    #[arg(long)]
    all: bool,
    /// Cut this from the names of tables
    #[arg(long, value_name = "PREFIX")]
    strip_prefix: Option<String>,
    /// How hot each row is: a count a row (.npy, .csv, .u32, .u64). Or recorded look-ups to be counted, with trace: before the
    /// file, or one of ids:, keyset:, npy:, csv:, norm:, raw:, parquet:, and behind it settings such as COLUMN, i64, slot=NAME,
    /// labels=1,dense=13,slots=26, sizes=A/B/... Or scores:FOLDER of a HugeCTR dump. TABLE may be a pattern such as emb.*; without, look-ups
    /// are of the tables that columns are called like
    #[arg(long, value_name = "[TABLE=][KIND:]FILE[:SETTINGS]")]
    hotness: Vec<String>,
    /// Order the rows as this plan says, which `warprow plan --out` made, and keep as many in memory
    #[arg(long, value_name = "FILE", conflicts_with = "hotness")]
    plan: Option<PathBuf>,
    /// The row that stands for ids a table does not have: zeros, a row of the table, or a file of one row
    #[arg(long, value_name = "zeros|id:N|FILE.npy", default_value = "zeros")]
    default: String,
    /// Store a checksum of every row, four bytes each, so that `verify` can tell whether rows are intact
    #[arg(long)]
    row_crc: bool,
    /// Replace tables that have these names; until the end both need room
    #[arg(long)]
    replace: bool,
    /// Do not keep the order of the tables that are replaced, or followed with --beside: the first rows count as the hottest
    #[arg(long)]
    forget_order: bool,
    /// Load them beside those of these names: nothing finds them before `warprow switch`
    #[arg(long, conflicts_with = "replace")]
    beside: bool,
    /// Say which LBA size look-ups of these tables want, and why, and whether the store has it: only `format` can change it
    #[arg(long, value_name = "auto", value_parser = ["auto"])]
    lba: Option<String>,
    /// What the model is called that these tables belong to [default: the first file's name]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Note in this file what is written, so that the same command goes on where it was killed or stopped; it goes when all is
    /// loaded. Of tables above 1 GiB that are put in order, by --hotness or keys, whole GiB are found
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    resume: Option<PathBuf>,
    /// Only say what would be loaded and replaced, or why it could not be
    #[arg(long)]
    dry_run: bool,
}

struct Prepared<'a> {
    chosen: Chosen<'a>,
    spec: TableSpec,
    /// The ids that the file's rows belong to, if not the ids in their order.
    order: Option<Ranks>,
    ranks: Option<Ranks>,
    /// The table's keys, if it is looked up by keys.
    keyed: Option<Keyed<'a>>,
    /// What told its hotness.
    ranked: Option<Ranked>,
    /// How much of the trace that ranked it speaks of it.
    trace: Option<Share>,
    /// The column of that trace.
    column: Option<String>,
}

/// What told which rows are hot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ranked {
    Hotness,
    Plan,
    /// The version before, of this generation.
    Inherited(u64),
}

/// What tells the order of a table's rows.
#[derive(Default)]
struct Telling<'a> {
    counted: Option<Hotness>,
    proposal: Option<&'a ProposalFile>,
    inherited: Option<Inherited>,
}

pub(crate) fn run(args: &LoadArgs, context: &Context) -> Result<Done, Failure> {
    let reading = args.reading.options();
    let files = args.files.iter().map(|path| TableFile::open_with(path, &reading));
    let mut files = files.collect::<Result<Vec<_>, FormatError>>()?;
    args.keys.iter().try_for_each(|argument| name_keys(&mut files, argument))?;
    let files = files;
    let selection = Selection { tensors: args.tensor.clone(), all: args.all, strip_prefix: args.strip_prefix.clone() };
    let command = format!("warprow load {}", args.drives.pasteable());
    let chosen = selection.choose(&files, &command)?;
    let names: Vec<&str> = chosen.iter().map(|chosen| &*chosen.name).collect();
    if let Some(name) = names.iter().find(|name| name.len() > MAX_NAME) {
        let what = format!("its name has {} bytes, the most are {MAX_NAME}", name.len());
        return Err(Failure::input(*name, what).remedy("give it another: --tensor NAME=GLOB"));
    }
    let hotness = args.hotness.iter().map(|argument| HotnessFile::parse(argument, &names));
    let hotness = hotness.collect::<Result<Vec<_>, _>>()?;
    refuse_strangers(&hotness, &names)?;
    let hotness = hotness.into_iter().map(|file| file.bind(&names)).collect::<Result<Vec<_>, _>>()?;
    refuse_two(&hotness)?;
    let proposal = args.plan.as_deref().map(ProposalFile::read).transpose()?;
    for (proposal, chosen) in proposal.iter().flat_map(|it| chosen.iter().map(move |chosen| (it, chosen))) {
        refuse_foreign(proposal, args, chosen)?;
    }

    let options = OpenOptions::default();
    let store = drives::open(&args.drives, &if args.dry_run { options.with_read_only() } else { options })?;
    refuse_existing(&store, &names, args.replace || args.beside)?;
    let model = args.model.clone().or_else(|| Some(args.files.first()?.file_stem()?.to_str()?.to_owned()));
    let model = model.as_deref().unwrap_or("tables");
    let options = LoadOptions::default();
    let options = if args.replace { options.with_replace() } else { options };
    let options = if args.beside { options.with_beside() } else { options };
    // Tables whose order another may take over.
    let followed: Vec<Option<TableInfo>> =
        match (args.replace || args.beside) && !args.forget_order && proposal.is_none() {
            true => chosen.iter().map(|it| followed(it, &hotness, &store)).collect(),
            false => chosen.iter().map(|_| None).collect(),
        };
    let orders = followed.iter().flatten().map(|old| format!("{:?} as in generation {}", old.name, old.generation));
    let sources = || files.iter().map(TableFile::identity).chain(orders).collect::<Vec<_>>().join("\n");
    let options = match &args.resume {
        Some(path) => {
            refuse_special(path)?;
            file::refuse_in_use(path)?;
            options.with_journal(path, format!("{}\n{args:?}", sources()))
        }
        None => options,
    };
    // Whether there is room is said before keys are read and ids counted, which may take minutes.
    let permuted = |it: &Chosen<'_>, followed: &Option<TableInfo>| {
        proposal.is_some() || followed.is_some() || hotness.iter().any(|hot| hot.is_of(&it.name))
    };
    let outlines = chosen.iter().zip(&followed).map(|(it, old)| outline(args, it, permuted(it, old)));
    store.check_load(model, outlines.collect::<Result<_, _>>()?, &options)?;
    context.interrupt.check()?;
    let mut whose = Vec::with_capacity(chosen.len());
    for chosen in &chosen {
        whose.push(read_keys(args, chosen, context)?);
        context.interrupt.check()?;
    }
    // Now it is known which tables have an index besides. That is said before it is built, and ids are counted.
    let outlines = chosen.iter().zip(&followed).zip(&whose);
    let outlines =
        outlines.map(|((it, old), whose)| Ok(with_index(args, whose, outline(args, it, permuted(it, old))?)));
    store.check_load(model, outlines.collect::<Result<_, Failure>>()?, &options)?;
    let all = chosen.iter().zip(&whose).map(|(it, whose)| index(args.fingerprint, it, whose, context));
    let indexed = all.collect::<Result<Vec<_>, Failure>>()?;
    let mut counted = count(&hotness, &chosen, &indexed, context)?.into_iter();
    let (mut prepared, mut notes) = (Vec::with_capacity(chosen.len()), Vec::new());
    for (((chosen, whose), indexed), old) in chosen.into_iter().zip(&whose).zip(indexed).zip(&followed) {
        let counted = counted.next().flatten();
        let inherited = old.as_ref().and_then(|old| inherit(&store, old, indexed.rows(&chosen), &mut notes));
        let told = Telling { counted, proposal: proposal.as_ref(), inherited };
        let mut made = prepare(args, chosen, whose, indexed, told, context)?;
        let column = |hot: &Hot| Some(hot.log.as_ref()?.column_of(&made.spec.name)?.name.clone());
        made.column = hotness.iter().find_map(column);
        prepared.push(made);
    }
    let (rows, bytes) = prepared.iter().fold((0u64, 0u64), |(rows, bytes), it| {
        (
            rows.saturating_add(it.spec.rows),
            bytes.saturating_add(it.spec.rows.saturating_mul(it.spec.dtype.row_bytes(it.spec.dim).unwrap_or(0).into())),
        )
    });
    let described: Vec<_> = prepared.iter().map(describe).collect();
    let skipped: Vec<_> = files.iter().flat_map(|file| &file.skipped).collect();
    let mut text = String::new();
    let replaced: Vec<TableInfo> = match args.beside {
        true => Vec::new(),
        false => prepared.iter().filter_map(|it| store.table(&it.spec.name)).collect(),
    };
    let logs = || hotness.iter().filter_map(|hot| hot.log.as_ref());
    let mut report = json!({
        "dry_run": args.dry_run,
        "traces": logs().map(Log::json).collect::<Vec<_>>(),
        "tables": described,
        "skipped": skipped.iter().map(|(name, reason)| json!({"name": name, "reason": reason})).collect::<Vec<_>>(),
        "rows": rows,
        "bytes": bytes,
        "replaced": replaced.iter().map(replaced_json).collect::<Vec<_>>(),
    });
    let best = match args.lba {
        Some(_) => best_lba(&prepared, &store.measure_reads()?.into_iter().flatten().collect::<Vec<_>>()),
        None => None,
    };
    let has = store.inspect().0.lba_size;
    if let (Some(best), Some(report)) = (&best, report.as_object_mut()) {
        report.insert("lba_choice".into(), best.json());
        report.insert("lba_bytes".into(), has.into());
    }
    let mut lost = Vec::new();
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
        let loaded = load(&store, model, &prepared, &options, &mut lost, context)?;
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
        if loaded.resumed > 0 {
            text += &format!("{} had been written before, and were intact\n", units::bytes(loaded.resumed));
        }
        if let Some(journal) = args.resume.as_ref().filter(|_| loaded.begun_anew) {
            text += &format!(
                "{} noted nothing of this load (it was another's, or its content was lost), so it was begun anew\n",
                printable(&journal.display().to_string())
            );
        }
        if let Some(report) = report.as_object_mut() {
            report.insert("begun_anew".into(), loaded.begun_anew.into());
            report.insert("generation".into(), loaded.generation.into());
            report.insert("seconds".into(), seconds.into());
            report.insert("bytes_written".into(), loaded.bytes.into());
            report.insert("bytes_resumed".into(), loaded.resumed.into());
            report.insert("converted".into(), lost.iter().map(lost_json).collect::<Vec<_>>().into());
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
                match (it.ranked, &it.column) {
                    (Some(Ranked::Hotness), Some(column)) => format!("by --hotness, {column}"),
                    (Some(Ranked::Hotness), None) => "by --hotness".to_owned(),
                    (Some(Ranked::Plan), _) => "by --plan".to_owned(),
                    (Some(Ranked::Inherited(generation)), _) => format!("as in generation {generation}"),
                    (None, _) => "the first ids".to_owned(),
                },
            ]
        }),
    );
    for (name, from, to, lost) in &lost {
        text += &format!("\n{}: {from} to {to} changes ", printable(name));
        text += &match lost.max_abs == 0.0 {
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
    }
    if let Some(best) = &best {
        text += &match best.lba_bytes == has {
            true => format!("\n{}; the store has them", best.why),
            false => format!(
                "\n{}; the store has LBAs of {has} B: to change that, make it anew with `warprow format --lba {}`",
                best.why, best.lba_bytes
            ),
        };
    }
    for (it, keyed) in prepared.iter().filter_map(|it| Some((it, it.keyed.as_ref()?))) {
        let index = keyed.index();
        text += &format!(
            "\n{}: looked up by {} keys{}, {:.2} bits each and {} of fingerprint: other keys are missing, but for one in {}",
            printable(&it.spec.name),
            if index.kind() == KeyKind::I64 { "i64" } else { "u64" },
            if args.forget_keys { ", not stored" } else { ", stored" },
            index.bits_per_key(),
            index.fingerprint().bits(),
            units::count(1 << index.fingerprint().bits())
        );
    }
    for (it, share) in prepared.iter().filter_map(|it| Some((it, it.trace?))).filter(|(_, share)| share.missing > 0) {
        text += &format!(
            "\nhotness: {} of {} ({:.1}%) are not in {}",
            units::count(share.missing),
            units::plural(share.ids, "id"),
            100.0 * share.missing as f64 / share.ids as f64,
            printable(&it.spec.name)
        );
    }
    for unused in logs().filter_map(Log::unused_text) {
        text += &format!("\n{unused}");
    }
    for note in &notes {
        text += &format!("\n{note}");
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
    if prepared.iter().any(|it| it.ranked.is_none()) {
        text += "\nidentity: hot tier = first ids; tell which rows are hot with --hotness";
    }
    Done::new(text, report)
}

/// A tier proposal is for rows of certain sizes: with others, other rows belong in memory.
fn refuse_foreign(proposal: &ProposalFile, args: &LoadArgs, chosen: &Chosen<'_>) -> Result<(), Failure> {
    let refuse = |what: String| {
        let subject = args.plan.as_ref().map_or_else(String::new, |path| path.display().to_string());
        Err(Failure::input(subject, what).remedy("make a plan for all tables that are loaded, as they are"))
    };
    let Some(table) = proposal.table(&chosen.name) else {
        let known = proposal.tiers.tables.iter().map(|it| &*it.name).collect::<Vec<_>>().join(", ");
        return refuse(format!("it has no table {:?}; its tables are {known}", chosen.name));
    };
    let spec = outline(args, chosen, true)?;
    let shape = format!("{} × {} {}", spec.rows, spec.dim, spec.dtype);
    let planned = format!("{} × {} {}", table.rows, table.dim, table.dtype);
    match shape == planned {
        true => Ok(()),
        false => refuse(format!("it is for a table {:?} of {planned}; this one is {shape}", chosen.name)),
    }
}

/// Better now than after minutes of counting.
fn refuse_existing(store: &Store, names: &[&str], replace: bool) -> Result<(), Failure> {
    match names.iter().find(|name| !replace && store.table(name).is_some()) {
        Some(&name) => Err(StoreError::TableExists { table: name.to_owned() }.into()),
        None => Ok(()),
    }
}

fn fingerprint(bits: &str) -> Result<Fingerprint, String> {
    match bits {
        "8" => Ok(Fingerprint::Bits8),
        "16" => Ok(Fingerprint::Bits16),
        "32" => Ok(Fingerprint::Bits32),
        _ => Err("fingerprints have 8, 16 or 32 bits".to_owned()),
    }
}

/// Says which keys a table has: `[TENSOR=]NAME`.
pub(crate) fn name_keys(files: &mut [TableFile], argument: &str) -> Result<(), Failure> {
    // Both names may contain an equals sign.
    let splits = argument.match_indices('=').filter_map(|(at, _)| argument.split_at_checked(at));
    let mut named = splits.map(|(table, rest)| (table, rest.strip_prefix('=').unwrap_or(rest)));
    let has = |file: &TableFile, name: &str| file.tables.iter().any(|table| table.name == name);
    let found = named.find(|(table, _)| files.iter().any(|file| has(file, table)));
    if let Some((table, keys)) = found {
        for file in files.iter_mut().filter(|file| has(file, table)) {
            file.with_keys(table, keys)?;
        }
        return Ok(());
    }
    // Without a name they are those of all tables that have as many rows.
    let mut rows = 0;
    for file in files.iter_mut() {
        let only: Vec<String> = match &file.tables[..] {
            [table] => vec![table.name.clone()],
            tables => {
                let count = file.key_arrays.iter().find(|array| array.name == argument).map(|array| array.rows);
                tables.iter().filter(|table| Some(table.rows) == count).map(|table| table.name.clone()).collect()
            }
        };
        rows += only.len();
        only.iter().try_for_each(|table| file.with_keys(table, argument))?;
    }
    if rows == 0 {
        // What is no table for a reason of its own, such as an array in Fortran order, has rows that these may be the keys of.
        let names =
            |list: &str| argument == list || argument.strip_suffix(list).is_some_and(|rest| rest.ends_with('='));
        let listed = |file: &&TableFile| file.key_arrays.iter().any(|array| names(&array.name));
        let others = files.iter().filter(listed).flat_map(|file| file.skipped.iter().map(move |it| (file, it)));
        let others = others.filter(|(file, (name, _))| !file.key_arrays.iter().any(|array| array.name == *name));
        let others: Vec<_> = others.map(|(_, (name, why))| format!("{} ({why})", printable(name))).collect();
        let others = if others.is_empty() { String::new() } else { format!("; no table is {}", others.join(", ")) };
        let what = format!("{argument:?} is no list of keys for any table{others}");
        let remedy = match others.is_empty() {
            true => "name the rows too, as the file calls them: --keys TENSOR=NAME",
            false => "write the rows again, as a table; or name others, as the file calls them: --keys TENSOR=NAME",
        };
        return Err(Failure::input("--keys", what).remedy(remedy));
    }
    Ok(())
}

/// How the rows of a table are found.
fn read_keys<'a>(args: &LoadArgs, chosen: &Chosen<'a>, context: &Context) -> Result<Whose<'a>, Failure> {
    let spinner = chosen.table.keys.map(|_| context.screen.spinner(format!("reading the keys of {}", chosen.name)));
    let whose = Whose::of(chosen.file, chosen.table, args.key_index);
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    whose
}

fn target_type(name: &str) -> Result<DType, String> {
    let integers = |dtype: &DType| matches!(dtype, DType::I8 | DType::U8);
    let types = || DType::ALL.into_iter().filter(|dtype| !integers(dtype));
    let known = || types().map(DType::name).collect::<Vec<_>>().join(", ");
    types().find(|dtype| dtype.name() == name).ok_or_else(|| format!("the types are {}", known()))
}

/// The table as it will be, without its default row.
fn outline(args: &LoadArgs, chosen: &Chosen<'_>, permuted: bool) -> Result<TableSpec, Failure> {
    let table = chosen.table;
    let spec = TableSpec::new(&chosen.name, table.rows, table.dim, args.to.unwrap_or(table.dtype));
    Ok(TableSpec { permuted, row_crc: args.row_crc, ..spec })
}

/// With the index that it gets if it is looked up by keys, as small as that can be, and with what lies beside it.
fn with_index(args: &LoadArgs, whose: &Whose<'_>, spec: TableSpec) -> TableSpec {
    let Whose::Keys(keys) = whose else { return spec };
    // Slots of keys have ranks.
    TableSpec { permuted: true, ..spec }.with_least_keys(keys.kind(), args.fingerprint, !args.forget_keys)
}

/// The type that rows are converted to, if they are.
fn converted<'a>(
    rows: &'a FileRows<'a>,
    chosen: &Chosen<'_>,
    spec: &TableSpec,
) -> Result<Option<Converted<'a>>, Failure> {
    let (from, to) = (chosen.table.dtype, spec.dtype);
    if from == to {
        return Ok(None);
    }
    let refuse = || Failure::usage("--to", format!("rows of {from} cannot become {to}")).remedy("leave --to out");
    Converted::new(rows, spec.dim, from, to).map(Some).ok_or_else(refuse)
}

fn prepare<'a>(
    args: &LoadArgs,
    chosen: Chosen<'a>,
    whose: &'a Whose<'a>,
    indexed: Indexed<'a>,
    told: Telling<'_>,
    context: &Context,
) -> Result<Prepared<'a>, Failure> {
    let table = chosen.table;
    let Indexed { index, order } = indexed;
    let planned = told.proposal.map(|proposal| match &index {
        None => Ok::<_, Failure>(proposal.ranks(&chosen.name, table.rows)?),
        Some((index, keys)) => {
            let (hottest, hot_rows) = proposal.keys(&chosen.name, table.rows)?;
            let rows = Rows::Keys(index, *keys).rows_of(&chosen.name, &hottest)?;
            let ranks = ranks_of(table.rows, rows.into_iter()).map_err(|error| {
                Failure::input(&chosen.name, format!("the plan is damaged: {error}")).remedy("make it again")
            })?;
            Ok((ranks, hot_rows))
        }
    });
    let (ranked, ranks, hot_rows, trace) = match (planned.transpose()?, told.counted, told.inherited) {
        (Some((ranks, hot_rows)), ..) => (Some(Ranked::Plan), Some(ranks), hot_rows, None),
        (None, Some(hotness), _) => (Some(Ranked::Hotness), Some(hotness.ranks), 0, hotness.trace),
        (None, None, Some(it)) => (Some(Ranked::Inherited(it.generation)), Some(it.ranks), it.hot_rows, None),
        (None, None, None) => (None, None, 0, None),
    };
    context.interrupt.check()?;
    let spec = outline(args, &chosen, ranked.is_some() && index.is_none())?;
    let spec = TableSpec { hot_rows, ..spec };
    let place = |id: &str| match whose {
        Whose::Keys(keys) => keyed_place(keys, id, &chosen),
        Whose::Ids(order) => dense_place(order.as_ref(), id, &chosen),
    };
    let spec = TableSpec { default_row: default_row(&args.default, &chosen, &spec, &place)?, ..spec };
    let (spec, keyed, ranks) = match index {
        None => (spec, None, ranks),
        Some((index, keys)) => {
            let order = ranks.map_or(RowOrder::Given, RowOrder::Ranks);
            let keyed = Keyed::new(index, keys, order, !args.forget_keys).map_err(|error| match error {
                KeyedError::Build(error) => of_keys(&chosen.name, &error),
                error => Failure::input(&chosen.name, error.to_string())
                    .remedy("the file changed while it was read: let nobody write to it, and try again"),
            })?;
            (spec.keyed(&keyed), Some(keyed), None)
        }
    };
    context.interrupt.check()?;
    Ok(Prepared { chosen, spec, order, ranks, keyed, ranked, trace, column: None })
}

/// The row of an id.
fn dense_place(order: Option<&Ranks>, id: &str, chosen: &Chosen<'_>) -> Result<u64, Failure> {
    let argument = format!("id:{id}");
    let id: u64 = id
        .parse()
        .map_err(|_| Failure::usage(&argument, format!("{id:?} is no id")).remedy("give zeros, id:N or FILE.npy"))?;
    let rows = chosen.table.rows;
    let place = order.map_or(Some(id), |order| (0..rows).find(|&row| order.get(row) == Some(id)));
    place.filter(|_| id < rows).ok_or_else(|| {
        let what = format!("{} has {}; there is no row {id}", chosen.name, units::plural(rows, "row"));
        Failure::input(&argument, what).remedy("give an id that the table has")
    })
}

/// The row of a key.
fn keyed_place(keys: &FileKeys<'_>, key: &str, chosen: &Chosen<'_>) -> Result<u64, Failure> {
    let argument = format!("id:{key}");
    let number: i128 = key.parse().map_err(|_| {
        Failure::usage(&argument, format!("{key:?} is no key")).remedy("give zeros, id:KEY or FILE.npy")
    })?;
    keys.position(number)?.ok_or_else(|| {
        let what = format!("{} has no key {number}", chosen.name);
        Failure::input(&argument, what).remedy("give a key that the table has")
    })
}

fn default_row(
    argument: &str,
    chosen: &Chosen<'_>,
    spec: &TableSpec,
    place: &dyn Fn(&str) -> Result<u64, Failure>,
) -> Result<Option<Vec<u8>>, Failure> {
    let (file, table) = (chosen.file, chosen.table);
    if argument == "zeros" {
        return Ok(None);
    }
    let rows = file.rows(table);
    let convert = |row: Vec<u8>| {
        Ok::<_, Failure>(match converted(&rows, chosen, spec)? {
            Some(converted) => converted
                .row(&row)
                .map_err(|error| Failure::input(argument, error.to_string()).remedy("choose another row"))?,
            None => row,
        })
    };
    if let Some(id) = argument.strip_prefix("id:") {
        let place = place(id)?;
        let mut row = vec![0; table.row_bytes()];
        rows.fill(place, &mut row)?;
        return convert(row).map(Some);
    }
    refuse_special(Path::new(argument))?;
    let bytes = std::fs::read(argument).map_err(|error| {
        Failure::io(argument, "cannot be read", &error).remedy("give zeros, id:N or FILE.npy as the default row")
    })?;
    let header = NpyHeader::read(&mut &bytes[..])
        .map_err(|error| Failure::input(argument, error.to_string()).remedy("give zeros, id:N or FILE.npy"))?;
    let row = bytes.get(header.data_at as usize..).unwrap_or_default();
    let dtype: Option<DType> = npy::dtype_of(&header.descr);
    let fits = |wanted: DType| {
        dtype == Some(wanted)
            && header.elements() == table.dim.into()
            && Some(row.len()) == wanted.row_bytes(table.dim).map(|bytes| bytes as usize)
    };
    if fits(spec.dtype) {
        Ok(Some(row.to_vec()))
    } else if fits(table.dtype) {
        convert(row.to_vec()).map(Some)
    } else {
        let what = format!(
            "{argument} holds {:?} elements of {}, a row of {} is {} elements of {}",
            header.shape, header.descr, chosen.name, table.dim, spec.dtype
        );
        Err(Failure::input(argument, what).remedy("give one row of the table's type and width"))
    }
}

/// The LBA size that suits the tables as they will be stored, on drives that read so.
fn best_lba(prepared: &[Prepared<'_>], curves: &[ReadCurve]) -> Option<Choice> {
    let row = |it: &Prepared<'_>| Some((it.spec.dtype.row_bytes(it.spec.dim)?, it.spec.rows));
    let rows = prepared.iter().filter_map(row).map(|(bytes, count)| lba::Rows { bytes, count, ids: lba::IDS });
    let offers = lba::SIZES.map(|lba_bytes| lba::Offer { lba_bytes, performance: 0 });
    Choice::new(&rows.collect::<Vec<_>>(), &offers, curves)
}

fn describe(prepared: &Prepared<'_>) -> serde_json::Value {
    let Prepared { chosen, spec, keyed, ranked, trace, column, .. } = prepared;
    let index = keyed.as_ref().map(Keyed::index);
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

fn key_index(index: &KeyIndex, stored: bool) -> serde_json::Value {
    json!({
        "signed": index.kind() == KeyKind::I64,
        "bits_per_key": index.bits_per_key(),
        "fingerprint_bits": index.fingerprint().bits(),
        "bytes": index.as_bytes().len(),
        "stored": stored,
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

/// A table's name, the types before and after, and what conversion has lost.
type Loss = (String, DType, DType, Lost);

fn lost_json((name, from, to, lost): &Loss) -> serde_json::Value {
    json!({
        "name": name,
        "from": from.name(),
        "to": to.name(),
        "elements": lost.elements,
        "overflowed": lost.overflowed,
        "max_abs": lost.max_abs,
        "mean_abs": lost.mean_abs(),
        "relative": lost.relative(),
    })
}

fn load(
    store: &Store,
    model: &str,
    prepared: &[Prepared<'_>],
    options: &LoadOptions,
    lost: &mut Vec<Loss>,
    context: &Context,
) -> Result<warprow_store::LoadReport, Failure> {
    let rows: Vec<_> = prepared.iter().map(|it| it.chosen.file.rows(it.chosen.table)).collect();
    let converted = prepared.iter().zip(&rows).map(|(it, rows)| converted(rows, &it.chosen, &it.spec));
    let converted = converted.collect::<Result<Vec<_>, _>>()?;
    let loads: Vec<TableLoad<'_>> = prepared
        .iter()
        .zip(rows.iter().zip(&converted))
        .map(|(it, (rows, converted))| {
            let source: &dyn RowSource = match converted {
                Some(converted) => converted,
                None => rows,
            };
            let load = TableLoad::new(&it.spec, source);
            let load = it.ranks.iter().fold(load, TableLoad::with_ranks);
            let load = it.keyed.iter().fold(load, TableLoad::with_keys);
            let load = if it.chosen.table.is_sequential() { load.with_sequential_rows() } else { load };
            it.order.iter().fold(load, TableLoad::with_order)
        })
        .collect();
    let bar = context.screen.bar("loading", 0, Unit::Bytes);
    let loaded = store.load(model, &loads, options, &mut |progress| {
        // How much there is to compare is known once it was.
        bar.set_length(progress.total + progress.compared);
        bar.set_position(progress.written + progress.compared);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    for (it, converted) in prepared.iter().zip(&converted) {
        let loss = |it: &Converted<'_>| it.lost();
        lost.extend(
            converted.as_ref().map(loss).map(|lost| (it.spec.name.clone(), it.chosen.table.dtype, it.spec.dtype, lost)),
        );
    }
    loaded.map_err(|error| match error {
        StoreError::Interrupted => context.interrupt.failure(),
        error => error.into(),
    })
}
