//! `warprow plan`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde_json::json;
use warprow_formats::RawShape;
use warprow_plan::trace::{QuerySource, Read, Trace};
use warprow_plan::{
    Bound, Budgets, Drives, GpuCosts, GroupRows, HostCosts, Interval, Options, Point, Proposal, ProposalError,
    ProposalFile, TableShape, TierProposal, curves,
};
use warprow_store::OpenOptions;
use warprow_traces::{Trace as Recorded, TraceSpec};

use super::{Context, Done};
use crate::columns::Log;
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file;
use crate::report::{printable, table};
use crate::screen::Unit;
use crate::{named, units};

/// Say what of each table belongs in GPU memory, in DRAM and on drives, and what look-ups will then cost
///
/// A trace of past look-ups tells which rows are hot. The plan is learnt from its first part and tested on the rest (--held-out):
/// what is printed as expected is what the rest would have met, with the intervals that 90% of unseen traces are in: of the queries
/// that follow, as many as were held out, and as many as the trace has. `load --plan` applies the file that --out writes.
///
/// Nothing is written to drives. The trace is read as a stream, up to four times; counting takes --memory at most, and
/// where rows are too many for exact counts, the most frequent are counted, with the error stated.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow plan --table 100000000x64:f16 --trace clicks.npy --dram 4G --on 2*gen5-tlc:6.4T --out plan.safetensors
  warprow plan -d emulated:a.drive --trace item=ratings.csv:movieId,query=userId --batch 64 --dram 1M
  warprow plan --table user=5000000x32:f32 --table item=80000x128:f32 --trace user,item=clicks.parquet:user_id,item_id \\
      --hbm 256M --dram 1G --on 4*p5800x --svg budgets.svg
  warprow load -d emulated:a.drive model.safetensors --all --plan plan.safetensors")]
pub struct PlanArgs {
    /// The shape of a table; without NAME if it is the only one. TYPE is one of those of `load`
    #[arg(long = "table", value_name = "[NAME=]ROWSxDIM:TYPE", required_unless_present = "drives")]
    tables: Vec<String>,
    /// This table is looked up by keys, any numbers of 64 bits; their index counts as memory. Repeat it for each
    #[arg(long = "keyed", value_name = "NAME", requires = "tables")]
    keyed: Vec<String>,
    /// Take the shapes from the store on this drive, of the tables that traces are given of; repeat it for each drive
    #[arg(short, long = "drive", value_name = "DRIVE", id = "drives", conflicts_with = "tables")]
    drives: Vec<String>,
    /// What was looked up, and in which tables: one for each slot of the trace, or each column is of the table that it is called
    /// like (`user_id` of `user_id` or `embeddings.user_id.weight`); of several traces, each query of one is that of the others
    ///
    /// [KIND:]PATH[:SETTINGS]: ids or keyset (.u32, .i64, ..), npy, csv (its columns; query=COLUMN makes a query of lines
    /// that follow each other), norm, raw (labels=, dense=, slots= or hotness=), parquet; ids=N: so many ids a query.
    #[arg(long = "trace", value_name = "[TABLE,..=]TRACE", required = true)]
    traces: Vec<String>,
    /// Queries of a look-up
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    batch: u32,
    /// GPU memory for rows; with any, look-ups run on the GPU
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = units::parse_bytes)]
    hbm: u64,
    /// DRAM for rows
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = units::parse_bytes)]
    dram: u64,
    /// The drives, as emulated drives can be timed: none, p5800x or gen5-tlc; with SIZE, whether the tables fit is checked
    #[arg(long = "on", value_name = "[N*]KIND[:SIZE]", default_value = "gen5-tlc")]
    kind: DriveKind,
    /// These drives are emulated: a thread of this machine serves each, and takes its own time
    #[arg(long)]
    emulated: bool,
    /// Bytes of an LBA
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    lba: u32,
    /// The share of the trace, at its end, that the plan is tested on: above 0, up to 0.5
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    held_out: f64,
    /// Whether rows that are looked up together share LBAs: auto does so where it pays on the part held out
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    group: Group,
    /// Memory for counting
    #[arg(long, value_name = "BYTES", default_value = "2G", value_parser = units::parse_bytes)]
    memory: u64,
    /// Count ids that their table does not have, rather than refuse them
    #[arg(long)]
    allow_missing: bool,
    /// Take the processor's costs as they are on a typical machine, rather than measure this one
    #[arg(long)]
    typical_host: bool,
    /// Write the plan to this file, for `load --plan`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draw what other budgets would give
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
    /// Seed of what is drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// When rows share LBAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Where it pays
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// `[N*]KIND[:SIZE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DriveKind {
    count: u32,
    kind: String,
    bytes: u64,
}

impl FromStr for DriveKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, rest) = text.split_once('*').unwrap_or(("1", text));
        let count = count.parse().map_err(|_| format!("{count:?} is no number of drives"))?;
        let (kind, bytes) = match rest.split_once(':') {
            // Drives are sold by powers of 1000, with fractions.
            Some((kind, size)) => (kind, drive_bytes(size)?),
            None => (rest, 0),
        };
        Ok(Self { count, kind: kind.to_owned(), bytes })
    }
}

fn drive_bytes(text: &str) -> Result<u64, String> {
    let fraction = text.strip_suffix('T').and_then(|it| it.parse::<f64>().ok()).filter(|it| it.fract() != 0.0);
    match fraction {
        Some(terabytes) if terabytes > 0.0 && terabytes < 1e6 => Ok((terabytes * 1e12) as u64),
        _ => units::parse_bytes(text),
    }
}

impl From<ProposalError> for Failure {
    fn from(error: ProposalError) -> Self {
        let (class, subject) = match &error {
            ProposalError::Trace(_) => (Class::Input, String::new()),
            ProposalError::NoTables | ProposalError::Option { .. } => (Class::Usage, String::new()),
            ProposalError::Table { table, .. } | ProposalError::Uneven { table, .. } => (Class::Input, table.clone()),
            ProposalError::KeysOutside { table, .. } => (Class::Input, table.clone()),
            ProposalError::IdsOutside { table, .. } | ProposalError::Budget { table, .. } => {
                (Class::Input, table.clone())
            }
            ProposalError::File { path, .. } => (Class::Input, path.clone()),
            ProposalError::Timing(_) => (Class::Resources, String::new()),
            ProposalError::Stopped => (Class::Interrupted, String::new()),
            ProposalError::Changed { .. }
            | ProposalError::Index { .. }
            | ProposalError::TooShort { .. }
            | ProposalError::NothingInTables
            | ProposalError::Drives { .. } => (Class::Input, String::new()),
        };
        match error {
            ProposalError::Trace(error) => error.into(),
            error => Self::new(class, subject, error.to_string()).remedy(error.remedy()),
        }
    }
}

pub(crate) fn run(args: &PlanArgs, context: &Context) -> Result<Done, Failure> {
    let mut files = [&args.out, &args.svg].into_iter().flatten();
    if let Some(path) = files.find(|path| !args.force && path.exists()) {
        let refusal = Failure::new(Class::Refused, path.display().to_string(), "it exists already");
        return Err(refusal.remedy("choose another name, or --force"));
    }
    for path in [&args.out, &args.svg].into_iter().flatten() {
        file::refuse_own(path, &args.drives)?;
    }
    let (shapes, logs) = tables_and_traces(args)?;
    let mut trace = Trace::new(logs.iter().map(source).collect::<Result<_, _>>()?)?;
    let row_bytes = shapes.iter().filter_map(|it| it.dtype.row_bytes(it.dim)).max().unwrap_or(4);
    let costs = match args.typical_host || args.hbm > 0 {
        true => HostCosts::default(),
        false => HostCosts::measure(row_bytes.next_multiple_of(4), args.emulated)?,
    };
    let DriveKind { count, kind, bytes } = args.kind.clone();
    let options = Options {
        budgets: Budgets { hbm: args.hbm, dram: args.dram },
        drives: Drives { count, profile: kind, bytes, lba: args.lba, emulated: args.emulated },
        batch: args.batch,
        held_out: args.held_out,
        memory: args.memory,
        group: match args.group {
            Group::Auto => GroupRows::Auto,
            Group::On => GroupRows::On,
            Group::Off => GroupRows::Off,
        },
        allow_missing: args.allow_missing,
        costs,
        gpu: GpuCosts::default(),
        seed: args.seed,
    };
    let bar = context.screen.bar("planning", trace.queries(), Unit::Things);
    let proposal = warprow_plan::propose(&shapes, &mut trace, &options, &mut |progress| {
        bar.set_message(progress.what);
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    let proposal = proposal.map_err(|error| match error {
        ProposalError::Stopped => context.interrupt.failure(),
        error => keyed_instead(error, !args.drives.is_empty()),
    })?;
    if let Some(path) = &args.svg {
        write(path, curves(&proposal.tiers)?.as_bytes())?;
    }
    if let Some(path) = &args.out {
        write(path, &ProposalFile::encode(&proposal)?)?;
    }
    let mut text = describe(&proposal, &options);
    for (path, what) in [(&args.out, "the plan is in"), (&args.svg, "the curves are in")] {
        text += &path.as_ref().map_or_else(String::new, |path| format!("\n{what} {}", path.display()));
    }
    for log in &logs {
        let parts = [Some(log.text()).filter(|it| !it.is_empty()), log.unused_text()];
        parts.into_iter().flatten().for_each(|part| text += &format!("\n{part}"));
    }
    let host = (args.hbm == 0).then_some(options.costs);
    let traces: Vec<_> = logs.iter().map(Log::json).collect();
    Done::new(
        text,
        json!({ "plan": proposal.tiers, "traces": traces, "host_costs": host, "out": args.out, "svg": args.svg }),
    )
}

/// Where ids of the trace pass the rows of tables, what to do about all of these at once. Tables of a store are as they are.
fn keyed_instead(error: ProposalError, of_store: bool) -> Failure {
    let sparse = match &error {
        ProposalError::IdsOutside { sparse, .. } => sparse.clone(),
        _ => Vec::new(),
    };
    let failure = Failure::from(error);
    if sparse.is_empty() {
        return failure;
    }
    let remedy = match of_store {
        true => format!(
            "load {} with keys (`warprow load --keys`), or give the tables that the trace is of",
            sparse.join(", ")
        ),
        false => {
            let options: Vec<String> = sparse.iter().map(|name| format!("--keyed {}", drives::shell(name))).collect();
            format!(
                "ids past the rows are keys, any numbers of 64 bits: add {}; or give the tables that the trace is of",
                options.join(" ")
            )
        }
    };
    failure.remedy(remedy).detail("sparse", sparse)
}

/// Writes a file as a whole, or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail = |error: &std::io::Error| Failure::io(path.display().to_string(), "cannot be written", error);
    let new = file::replacing(path)?;
    let written = new.file().write_all(bytes).and_then(|()| new.file().sync_all());
    written.and_then(|()| new.persist(true)).map_err(|error| fail(&error))
}

/// A trace, with the names of its tables.
type Named = (Vec<String>, Box<dyn QuerySource>);

fn source(log: &Log) -> Result<Named, Failure> {
    let slots = log.columns.iter().map(|column| column.slot).collect();
    let read = Read::open(&log.spec)?.with_slots(slots);
    Ok((log.columns.iter().map(|column| column.table.clone()).collect(), Box::new(read)))
}

fn tables_and_traces(args: &PlanArgs) -> Result<(Vec<TableShape>, Vec<Log>), Failure> {
    let known = match args.drives.is_empty() {
        true => args.tables.iter().map(|argument| stated(argument, &args.keyed)).collect::<Result<Vec<_>, _>>()?,
        false => {
            let store =
                drives::open(&DriveArgs { drives: args.drives.clone() }, &OpenOptions::default().with_read_only())?;
            let shape = |it: warprow_store::TableInfo| {
                let index_bytes = it.keys.map(|keys| keys.index_bytes);
                TableShape { name: it.name, rows: it.rows, dim: it.dim, dtype: it.dtype, index_bytes }
            };
            store.tables().into_iter().map(shape).collect()
        }
    };
    let names: Vec<&str> = known.iter().map(|it| &*it.name).collect();
    if let Some(name) = args.keyed.iter().find(|name| !names.contains(&&***name)) {
        return Err(Failure::usage(name, "there is no such table").remedy("name one that --table gives"));
    }
    if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|it| it == *name)) {
        return Err(Failure::usage(*name, "the table is given twice").remedy("leave one of them out"));
    }
    let (mut logs, mut shapes) = (Vec::<Log>::new(), Vec::<TableShape>::new());
    for argument in &args.traces {
        let log = log(argument, &names)?;
        for column in &log.columns {
            let Some(shape) = known.iter().find(|it| it.name == column.table) else { continue };
            if shapes.contains(shape) {
                let what = format!("a second trace of table {:?}", shape.name);
                return Err(Failure::usage(argument, what).remedy("leave one out"));
            }
            shapes.push(shape.clone());
        }
        logs.push(log);
    }
    // Tables of a store may stay as they are; those that were stated are meant.
    match known.iter().find(|it| args.drives.is_empty() && !shapes.contains(it)) {
        Some(table) => {
            Err(Failure::usage(&table.name, "there is no trace of this table")
                .remedy("give one with --trace NAME=TRACE"))
        }
        None => Ok((shapes, logs)),
    }
}

/// A trace, and which of its columns looks up which of the tables `known`: one for each where as many are named, in their order; else
/// by what they are called.
fn log(argument: &str, known: &[&str]) -> Result<Log, Failure> {
    let listed = argument.split_once('=').filter(|(names, _)| names.split(',').all(|name| known.contains(&name)));
    let (name, rest) = match listed {
        Some((names, rest)) => (Some(names), rest),
        None => named::split(argument, known),
    };
    let spec: TraceSpec = rest
        .parse()
        .map_err(|error| Failure::usage(argument, format!("{error}")).remedy("look at `warprow plan --help`"))?;
    let Some(name) = name else { return Log::of(&spec, known, "--trace") };
    let tables: Vec<&str> = match listed {
        Some(_) => name.split(',').filter_map(|name| known.iter().copied().find(|it| *it == name)).collect(),
        None => named::matching(name, known),
    };
    if let Some((_, twice)) = tables.iter().enumerate().find(|(at, name)| tables.iter().take(*at).any(|it| it == *name))
    {
        let what = format!("table {twice:?} is named twice");
        return Err(Failure::usage(argument, what).remedy("a table has one trace: leave one out"));
    }
    let columns = Recorded::columns(&spec)?;
    match listed.is_some() && columns.len() == tables.len() {
        true => Ok(Log::in_order(&spec, &columns, &tables)),
        false => Log::of(&spec, &tables, "--trace"),
    }
}

fn stated(argument: &str, keyed: &[String]) -> Result<TableShape, Failure> {
    let (name, shape) = argument.rsplit_once('=').unwrap_or(("table", argument));
    let shape: RawShape =
        shape.parse().map_err(|error: String| Failure::usage(argument, error).remedy("such as item=1000x64:f32"))?;
    match (shape.rows, shape.at) {
        (Some(rows), 0) => {
            let index_bytes = keyed.iter().any(|it| it == name).then(|| TableShape::index_of(rows));
            Ok(TableShape { name: name.to_owned(), rows, dim: shape.dim, dtype: shape.dtype, index_bytes })
        }
        _ => Err(Failure::usage(argument, "a shape has rows, and no offset").remedy("such as item=1000x64:f32")),
    }
}

/// An error of the share in memory that is worth a warning.
const UNPREDICTABLE: f64 = 0.02;

/// An error of a share from which on it says nothing of it.
const UNKNOWN: f64 = 1.0;

fn percent(share: f64) -> String {
    let text = format!("{:.1}%", share * 100.0);
    if text == "-0.0%" { "0.0%".to_owned() } else { text }
}

/// The error of a share, in parentheses.
fn error(share: f64) -> String {
    match share.abs() < UNKNOWN {
        true => format!("(± {})", percent(share)),
        false => "(error unknown: too little was held out)".to_owned(),
    }
}

/// Where the share in memory will be, and for how many traces that holds.
fn intervals(intervals: &[Interval]) -> String {
    let known = intervals.iter().filter(|it| it.high - it.low < UNKNOWN);
    let lines = known.map(|it| {
        format!(
            "\nof the {} that follow: {} to {} from memory, for {} of unseen traces ({} measured)",
            units::plural(it.queries, "query").replace("querys", "queries"),
            percent(it.low),
            percent(it.high),
            percent(it.coverage).replace(".0%", "%"),
            percent(it.measured).replace(".0%", "%"),
        )
    });
    lines.collect()
}

fn describe(proposal: &Proposal, options: &Options) -> String {
    let tiers = &proposal.tiers;
    let (expected, trace) = (&tiers.expected, &tiers.trace);
    let mut text = format!(
        "Planned by {} in {}, the last {} of them held out",
        units::plural(trace.ids, "id"),
        if trace.queries == 1 { "1 query".to_owned() } else { format!("{} queries", units::count(trace.queries)) },
        units::count(trace.held_out)
    );
    if trace.missing > 0 {
        text += &format!("; {} of the ids are in no table", units::count(trace.missing));
    }
    text += "\n\n";
    text += &table(
        ["table", ">rows", ">dim", "type", ">looked up", ">in GPU memory", ">in DRAM", ">on drives", ">count error"],
        tiers.tables.iter().map(|it| {
            [
                it.name.clone(),
                units::count(it.rows),
                it.dim.to_string(),
                it.dtype.clone(),
                units::count(it.seen_rows),
                units::count(it.hbm_rows),
                units::count(it.dram_rows),
                units::count(it.rows - it.hbm_rows - it.dram_rows),
                it.count_error.to_string(),
            ]
        }),
    );
    for it in &tiers.tables {
        let Some(grouping) = it.grouping else { continue };
        text += &format!(
            "\n{}: rows looked up together {} LBAs: {} of read commands and {} of bytes {} {}",
            printable(&it.name),
            if grouping.applied { "share" } else { "do not share" },
            percent(grouping.commands_saved),
            percent(grouping.bytes_saved),
            if grouping.applied { "saved" } else { "would be saved" },
            error(2.0 * grouping.error),
        );
    }
    text += &format!(
        "\n\nexpected of ids: {} from GPU memory, {} from DRAM, {} from drives {}",
        percent(expected.hbm),
        percent(expected.dram),
        percent(expected.ssd),
        error(expected.error)
    );
    text += &intervals(&expected.intervals);
    if expected.drift > UNPREDICTABLE {
        text += &format!(
            "\nwhat is looked up changes, and few rows take much of it: the share in memory may be off by {}",
            if expected.drift < UNKNOWN { percent(expected.drift) } else { "any amount".to_owned() }
        );
    }
    text += &format!(
        "\na look-up of {:.0} ids reads {:.1} rows by {:.1} commands, {}, {:.2} bytes for each byte used",
        expected.ids,
        expected.rows_ssd,
        expected.commands,
        units::bytes(expected.bytes as u64),
        expected.amplification
    );
    let waits = match expected.bound {
        Bound::Drives => "waits for drives",
        Bound::Host => "waits for the processor",
        Bound::Gpu => "waits for the GPU",
        Bound::Unknown => "the rate is not known",
    };
    text += &format!(
        "\none slot: {} look-ups/s, {} ids/s, {} reads/s on each drive; it {waits}",
        units::short(expected.lookups_per_second),
        units::short(expected.ids_per_second),
        units::short(expected.iops_per_drive)
    );
    if options.budgets.hbm > 0 {
        text += "\n(the GPU's own time: as measured on an H200)";
    }
    text += &format!("\n\nother budgets, on {}:\n{}", tiers.drives.profile, budgets(tiers));
    text
}

/// About ten of the points, and the proposal's own.
fn budgets(tiers: &TierProposal) -> String {
    // What passes all rows is as good as memory for them.
    let chosen = tiers.memory_for_rows().min(tiers.curve.last().map_or(0, |point| point.bytes));
    let step = tiers.curve.len().div_ceil(10).max(1);
    let last = tiers.curve.len().saturating_sub(1);
    let kept = |(at, point): &(usize, &Point)| at % step == 0 || *at == last || point.bytes == chosen;
    let rows = tiers.curve.iter().enumerate().filter(kept).map(|(_, point)| {
        let rates = point.rates.iter().map(|it| match it.ids_per_second > 0.0 {
            true => format!("{}: {}", it.drives, units::short(it.ids_per_second)),
            false => format!("{}: –", it.drives),
        });
        let mark = if point.bytes == chosen { " *" } else { "" };
        [
            units::bytes(point.bytes) + mark,
            percent(point.hit),
            format!("{:.1}", point.commands),
            rates.collect::<Vec<_>>().join("   "),
        ]
    });
    table([">memory for rows", ">ids from memory", ">commands a look-up", "ids/s by number of drives"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_say_for_how_many_traces_they_hold() {
        let interval = |queries, low, high| Interval { queries, coverage: 0.9, measured: 0.915, low, high };
        assert_eq!(
            intervals(&[interval(1000, 0.5, 0.625), interval(5000, 0.0, 1.0)]),
            "\nof the 1,000 queries that follow: 50.0% to 62.5% from memory, for 90% of unseen traces (91.5% measured)"
        );
    }

    #[test]
    fn shares_and_their_errors_are_said_as_far_as_they_say_something() {
        assert_eq!([percent(-0.0004), percent(-0.0006), percent(0.25)], ["0.0%", "-0.1%", "25.0%"]);
        assert_eq!(error(0.013), "(± 1.3%)");
        for useless in [2.277, 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(error(useless), "(error unknown: too little was held out)");
        }
    }
}
