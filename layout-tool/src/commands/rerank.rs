//! `warprow rerank`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use serde_json::json;
use warprow_plan::ProposalFile;
use warprow_soft_controller::parse_size;
use warprow_store::{OpenOptions, RerankOptions, Store, TableInfo};
use warprow_traces::TraceSpec;
use warprow_workload::units;

use super::{CommandOutput, Context};
use crate::attached;
use crate::columns::LookupTrace;
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use crate::hotness::{self, Hot, HotnessFile, Rows, Share, Source};
use crate::report::printable;
use crate::screen::Unit;

/// Choose which rows of a table lie in DRAM, by what was looked up
///
/// Executors keep the rows of this list in DRAM, as many as they have memory for, in the place of the table's first rows; those on a
/// GPU without the rows that are in GPU memory. Nothing moves on a drive, and rows keep their order there: only the list is written, in one commit. It counts for executors
/// that are attached later, and for those that prepare and adopt tables.
///
/// The list of an attached table is a file beside it (.NAME.warprow-dram-…), or in the checkpoint's folder. A list is a hint: one
/// that is damaged, or of a file that has changed since, is not used, and every row is read all the same.
///
/// Counting a trace takes 8 bytes of memory for each row of the table. `warprow plan --out` counts in bounded memory; --plan takes
/// its list.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("by").required(true).args(["trace", "plan", "none"]),
    after_long_help = "\
Examples:
  warprow rerank items -d emulated:a.drive --trace clicks.parquet
  warprow rerank items -d emulated:a.drive --trace csv:clicks.csv:item --dram 4G
  warprow plan --table l1=384006168x256:mxfp8 --trace tokens:chat.u32:hash=engram-1,map=words.u32,end=0 \\
      --memory 4G --batch 8192 --group off --dram 4G --out hot.safetensors
  warprow rerank l1 -d 'attached:/models/DeepSeek-V4.1-Flash,tensor=l1=layers.1.engram.embed.weight' --plan hot.safetensors
  warprow rerank items -d emulated:a.drive --none"
)]
pub struct RerankArgs {
    /// The table
    table: String,
    #[command(flatten)]
    drives: DriveArgs,
    /// Recorded look-ups to be counted: the rows that were looked up most come first. As of `load --hotness` and `plan --trace`
    #[arg(long, value_name = "[KIND:]FILE[:SETTINGS]")]
    trace: Option<String>,
    /// The rows that this plan keeps in memory, which `warprow plan --out` made; all that it lists if it keeps none
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// No list any more: the table's first rows are kept in DRAM
    #[arg(long)]
    none: bool,
    /// List so many rows at most [default: with --trace all that were looked up, with --plan those that it keeps in memory]
    #[arg(long, value_name = "N", conflicts_with_all = ["none", "dram"])]
    rows: Option<u64>,
    /// List the rows that so much DRAM holds, at most
    #[arg(long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "none")]
    dram: Option<u64>,
}

/// The rows that are to be listed, and what they were found by.
struct Found {
    rows: Option<Named>,
    counted: Option<Counted>,
}

/// Rows by ranks, or by ids.
enum Named {
    Ranks(Vec<u64>),
    Ids(Vec<u64>),
}

/// What a trace says of the rows that are listed.
struct Counted {
    share: Share,
    /// How many look-ups of the trace ask for listed rows.
    listed: u64,
}

pub(crate) fn run(args: &RerankArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let options = OpenOptions::default();
    let store = match args.drives.addresses().iter().any(|address| attached::is(address)) {
        // The list of an attached table is a file of its own, and nothing else is written.
        true => drives::open(&args.drives, &options.with_read_only())?,
        false => drives::open(&args.drives, &options)?,
    };
    let table = store.table(&args.table).ok_or_else(|| drives::no_such_table(&store, &args.table))?;
    let Found { rows, counted } = find(args, &store, &table, context)?;
    let options = RerankOptions::new(&table.name);
    let options = match &rows {
        None => options,
        Some(Named::Ranks(ranks)) => options.with_ranks(ranks),
        Some(Named::Ids(ids)) => options.with_ids(ids),
    };
    let report = store.rerank(&options)?;
    let bytes = report.listed.saturating_mul(table.row_bytes.into());
    let name = printable(&table.name);
    let mut text = match &rows {
        None => format!("{name}: no rows are listed for DRAM; its first rows are kept there"),
        Some(_) => format!(
            "{name}: {} listed for DRAM ({}), {} of them new",
            units::plural(report.listed, "row"),
            units::bytes(bytes),
            units::count(report.added)
        ),
    };
    if let Some(before) = report.before {
        text += &format!(
            "; {} listed before",
            if before == 1 { "1 was".to_owned() } else { format!("{} were", units::count(before)) }
        );
    }
    text += ".";
    let known = counted.as_ref().map(|counted| counted.share.ids - counted.share.missing);
    if let (Some(counted), Some(known)) = (&counted, known) {
        text += &format!(
            "\n{:.1}% of the {} of the trace are of these rows.",
            counted.listed as f64 * 100.0 / known.max(1) as f64,
            units::plural(known, "id")
        );
        if counted.share.missing > 0 {
            text += &format!(" {} more are not in the table.", units::count(counted.share.missing));
        }
    }
    if report.missing > 0 {
        text += &format!("\n{} of the plan are not in the table.", units::plural(report.missing, "id"));
    }
    text += "\nExecutors read the list when they are attached, or prepare and adopt tables.";
    CommandOutput::new(
        text,
        json!({
            "table": table.name, "generation": table.generation, "rows": table.rows,
            "listed": report.listed, "bytes": bytes, "before": report.before, "added": report.added,
            "missing": report.missing, "repeated": report.repeated,
            "trace_ids": counted.as_ref().map(|counted| counted.share.ids),
            "trace_ids_missing": counted.as_ref().map(|counted| counted.share.missing),
            "trace_ids_listed": counted.as_ref().map(|counted| counted.listed),
        }),
    )
}

/// The rows that are to be listed.
fn find(args: &RerankArgs, store: &Store, table: &TableInfo, context: &Context) -> Result<Found, Failure> {
    let fits = args.dram.map(|dram| dram / u64::from(table.row_bytes.max(1)));
    let most = args.rows.or(fits);
    let limit = |most: u64| usize::try_from(most).unwrap_or(usize::MAX);
    if let Some(plan) = &args.plan {
        let (mut ids, kept) = ProposalFile::read(plan)?.listed(&table.name, table.rows, table.keys.is_some())?;
        let kept = if kept == 0 { u64::MAX } else { kept };
        ids.truncate(limit(most.unwrap_or(kept)));
        return Ok(Found { rows: Some(Named::Ids(ids)), counted: None });
    }
    let Some(trace) = &args.trace else { return Ok(Found { rows: None, counted: None }) };
    let spec: TraceSpec = trace.parse().map_err(|error: warprow_traces::TraceSpecError| {
        Failure::usage(trace, error.to_string()).remedy("see `warprow load --help`")
    })?;
    let log = LookupTrace::of(&spec, &[&table.name], "--trace")?;
    let file = HotnessFile { table: Some(table.name.clone()), source: Source::Trace(spec) };
    let hot = Hot { file, tables: vec![table.name.clone()], log: Some(log) };
    let index = store.key_index(&table.name)?;
    let rows = index.as_ref().map_or(Rows::Ids(table.rows), Rows::Positions);
    let bar = context.screen.bar(format!("counting {}", table.name), 0, Unit::Bytes);
    let counted = hotness::hottest(&hot, (&table.name, rows), &mut |read, bytes| {
        bar.set_length(bytes);
        bar.set_position(read);
        context.interrupt.check()
    });
    bar.finish_and_clear();
    let (mut hottest, share) = counted?;
    hottest.truncate(limit(most.unwrap_or(u64::MAX)));
    let ranks = store.ranks(&table.name)?;
    let rank_of = |place: u64| ranks.as_ref().map_or(Some(place), |ranks| ranks.get(place));
    let listed = hottest.iter().map(|(_, count)| count).sum();
    let rows = Named::Ranks(hottest.into_iter().filter_map(|(place, _)| rank_of(place)).collect());
    Ok(Found { rows: Some(rows), counted: Some(Counted { share, listed }) })
}
