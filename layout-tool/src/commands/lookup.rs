//! `warprow lookup`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use warprow_formats::refuse_special;
use warprow_layout::DType;
use warprow_lookup::Host;
use warprow_lookup::{Batch, Feature, HostOptions, Ids, LookupError, Output, PlanOptions, Report, RowError};
use warprow_store::{OpenOptions, TableInfo};
use warprow_workload::{Keys, NpyHeader, TraceFile};

use super::hit_rates::{self, hit_rate};
use super::{Context, Done};
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure, chain};
use crate::file;
use crate::hotness::read_numbers;
use crate::report::{json_float, table};
use crate::rows::RowBuffer;
use crate::said_once::without_remedy;
use crate::screen::Unit;
use crate::store_failure::of_lookup;
use crate::{tally, units};

/// Ids of one look-up, at most; more are looked up one after another.
pub(super) const CHUNK: usize = 1 << 16;
/// Bytes that the rows of one look-up take, about, at most: wide rows are looked up in smaller numbers.
pub(super) const CHUNK_BYTES: u64 = 64 << 20;
/// Numbers that `--json` prints, at most: they are in memory, at about 90 bytes each.
const JSON_NUMBERS: u64 = 1 << 20;
/// Rows and elements that are shown to people.
const SHOWN: (usize, usize) = (20, 8);

/// Look rows up by their ids
///
/// Ids that the table does not have are missing, negative ones among them unless it has keys: --missing says what stands for them. With
/// --pooling, ids are added up in bags: --offsets says where each begins, as for torch.nn.EmbeddingBag; without it, all ids are
/// one bag.
///
/// With --trace, recorded look-ups of several tables are looked up and not shown: what is printed is, for each table and for all,
/// the share of ids that memory answered, so that what `plan` expects can be compared with what comes.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow lookup -d emulated:a.drive --table items --ids 7,42,-1
  warprow lookup -d emulated:a.drive --table items --ids-file clicks.csv:item --out rows.npy
  warprow lookup -d emulated:a.drive --table items --ids 1,2,3,4 --pooling mean --offsets offsets.npy
  warprow lookup -d emulated:a.drive --trace clicks.parquet --dram 64M
  warprow lookup -d emulated:a.drive --trace clicks.parquet --plan plan.safetensors")]
pub struct LookupArgs {
    #[command(flatten)]
    pub(super) drives: DriveArgs,
    /// The table; with --trace it may be repeated, and be a pattern such as emb.*: by default all that columns are called like
    #[arg(long = "table", value_name = "TABLE", required_unless_present = "traces")]
    pub(super) tables: Vec<String>,
    /// Recorded look-ups of several tables: each column is of the table that it is called like
    ///
    /// [KIND:]PATH[:SETTINGS], as for `plan --trace` and `load --hotness`; with TABLE, or a pattern of tables, for these alone.
    #[arg(
        long = "trace",
        value_name = "[TABLE=]TRACE",
        conflicts_with_all = ["ids", "ids_file", "pooling", "offsets", "weights", "out", "degraded"]
    )]
    pub(super) traces: Vec<String>,
    /// Queries of the trace that are looked up at once
    #[arg(long, value_name = "N", default_value_t = 4096, conflicts_with_all = ["ids", "ids_file"], value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) batch: u32,
    /// DRAM for rows, the hottest of all tables of the store; by default none
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub(super) dram: Option<u64>,
    /// Give as much DRAM as this plan has memory for rows, and print what it expects beside what comes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ids", "ids_file"])]
    pub(super) plan: Option<PathBuf>,
    /// The ids
    #[arg(
        long,
        value_name = "ID,...",
        allow_hyphen_values = true,
        required_unless_present_any = ["ids_file", "traces"],
        conflicts_with = "ids_file"
    )]
    ids: Option<String>,
    /// A file of ids: .npy, .csv with a column, or raw .i32, .i64, .u32, .u64
    #[arg(long, value_name = "FILE[:COLUMN]")]
    ids_file: Option<String>,
    /// Whether the rows of a bag become one, and how
    #[arg(long, default_value = "none")]
    pooling: Pooling,
    /// A file of integers: where in the ids each bag begins
    ///
    /// As for torch.nn.EmbeddingBag: as many bags as offsets, the last up to the last id. The first is 0.
    #[arg(long, value_name = "FILE[:COLUMN]")]
    offsets: Option<String>,
    /// The last offset begins no bag, but is the number of ids, where the last bag ends
    #[arg(long, requires = "offsets")]
    include_last_offset: bool,
    /// A .npy file of <f4: a weight for each id; only with --pooling sum
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// What stands for missing ids: the table's default row, zeros, nothing, or an error
    #[arg(long, default_value = "default")]
    pub(super) missing: Missing,
    /// An id that stands for nothing
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub(super) padding: Option<i128>,
    /// Do not compare rows with their checksums, where the table has them
    ///
    /// To compare them, all checksums of the table are read first: four bytes a row.
    #[arg(long)]
    pub(super) no_check: bool,
    /// Compare every id with the stored key, where the table has keys
    ///
    /// Without it, a key that the table does not have gets some row once in 256, 65,536 or 4,294,967,296 times, by the table's
    /// fingerprints. To compare them, all keys of the table are read first: eight bytes a row.
    #[arg(long)]
    pub(super) check_keys: bool,
    /// Do without drives that are missing: print the rows that are left, unchecked
    ///
    /// Exit code 6 if one of the rows is lost. The table must be in the order of its ids; the order of others, and their keys, may be lost as well.
    #[arg(long, conflicts_with_all = ["out", "offsets"])]
    degraded: bool,
    /// Write the rows to a .npy or .safetensors file instead of printing them
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "out")]
    force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pooling {
    None,
    Sum,
    Mean,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Missing {
    Default,
    Zero,
    Skip,
    Error,
}

impl Pooling {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sum => "sum",
            Self::Mean => "mean",
        }
    }

    fn of_store(self) -> warprow_lookup::Pooling {
        match self {
            Self::None => warprow_lookup::Pooling::None,
            Self::Sum => warprow_lookup::Pooling::Sum,
            Self::Mean => warprow_lookup::Pooling::Mean,
        }
    }
}

impl Missing {
    pub(super) fn of_store(self) -> warprow_lookup::Missing {
        match self {
            Self::Default => warprow_lookup::Missing::Default,
            Self::Zero => warprow_lookup::Missing::Zero,
            Self::Skip => warprow_lookup::Missing::Skip,
            Self::Error => warprow_lookup::Missing::Error,
        }
    }
}

/// What is looked up, checked.
struct Request {
    ids: Keys,
    /// Where each bag begins, and the end of the last; `None`: not pooled.
    bags: Option<Vec<usize>>,
    weights: Option<Vec<f32>>,
}

pub(crate) fn run(args: &LookupArgs, context: &Context) -> Result<Done, Failure> {
    if !args.traces.is_empty() {
        return hit_rates::run(args, context);
    }
    let [name] = &args.tables[..] else {
        let what = format!("{} are named", units::plural(args.tables.len() as u64, "table"));
        return Err(Failure::usage("--table", what).remedy("name one; ids of several are looked up with --trace"));
    };
    let request = Request::read(args)?;
    let options = OpenOptions::default();
    let options = if args.degraded { options.with_degraded() } else { options.with_read_only() };
    let store = drives::open(&args.drives, &options)?;
    let info = store.table(name).ok_or_else(|| drives::no_such_table(&store, name))?;
    // The type that the rows have, in a file and in what is said of them.
    let dtype = if request.bags.is_some() || info.dtype.is_scaled() { DType::F32 } else { info.dtype };
    // What is printed is numbers, which bytes of an 8-bit float are not yet.
    let narrow = matches!(dtype, DType::F8E4M3 | DType::F8E5M2) && args.out.is_none();
    let out = if narrow { DType::F32 } else { dtype };
    let most = CHUNK_BYTES / (u64::from(info.dim) * 4).max(1);
    let chunks = request.chunks(usize::try_from(most).unwrap_or(CHUNK).clamp(1, CHUNK));
    let most_ids = chunks.iter().map(|chunk| chunk.ids.len()).max().unwrap_or(0);
    let most_bags = chunks.iter().map(|chunk| chunk.bags.len()).max().unwrap_or(0);
    let options = HostOptions::default().with_dram_bytes(args.dram.unwrap_or(0));
    let rows = request.bags.as_ref().map_or(request.ids.len(), |bags| bags.len() - 1) as u64;
    let numbers = rows.saturating_mul(info.dim.into());
    if context.json && args.out.is_none() && numbers > JSON_NUMBERS {
        let what = format!(
            "{} of {} are more than the {} that it prints",
            units::plural(rows, "row"),
            units::plural(info.dim.into(), "number"),
            units::count(JSON_NUMBERS)
        );
        return Err(Failure::input("--json", what).remedy("write them to a file, with --out, or look up fewer at once"));
    }
    let options = if args.no_check || args.degraded { options } else { options.with_checked_rows() };
    let host = Host::attach(&store, if args.check_keys { options.with_checked_keys() } else { options })?;
    let feature = Feature::new("lookup", name).pooling(args.pooling.of_store()).missing(args.missing.of_store());
    let feature = if request.weights.is_some() { feature.weighted() } else { feature };
    let feature = match args.padding {
        Some(id) => feature.padding(id),
        None => feature,
    };
    let plan =
        host.plan(&[feature], PlanOptions::default().with_max(most_bags.max(1), most_ids.max(1)).with_out(out))?;
    let mut slot = plan.slot()?;

    let writer = match &args.out {
        Some(path) => Some((path, file::create(path, args.force, name, rows, info.dim, dtype)?)),
        None => None,
    };
    let most_shown = match (&writer, context.json) {
        (Some(_), _) => 0,
        (None, true) => usize::MAX,
        (None, false) => SHOWN.0,
    };
    let mut shown = Shown::new(most_shown, info.dim as usize);
    let mut report = Report::default();
    let bar = context.screen.bar("looking up", rows, Unit::Things);
    let mut first_row = 0;
    for chunk in &chunks {
        context.interrupt.check()?;
        let ids = request.ids_in(&chunk.ids);
        let offsets: Option<Vec<u64>> = request.bags.as_ref().map(|bags| {
            bags[chunk.bags.start..=chunk.bags.end].iter().map(|&offset| (offset - chunk.ids.start) as u64).collect()
        });
        let bags = chunk.bags.len();
        let mut batch = Batch::new(ids, bags);
        if let Some(offsets) = &offsets {
            batch = batch.with_offsets(offsets);
        }
        if let Some(weights) = &request.weights {
            batch = batch.with_weights(&weights[chunk.ids.clone()]);
        }
        let mut mask = vec![0; chunk.ids.len()];
        let mut buffer = RowBuffer::new(out, bags * info.dim as usize);
        let mut output = Output::new(buffer.rows(), plan.width()).with_mask(&mut mask);
        let looked_up = match slot.lookup(&batch, &mut output) {
            Err(LookupError::RowsFailed { report, positions, source: RowError::MemberMissing { drives } })
                if args.degraded && request.bags.is_none() =>
            {
                shown.lost.extend(positions.iter().map(|position| position + chunk.ids.start));
                shown.missing_drives = drives;
                *report
            }
            other => other.map_err(|error| failed(&error, name, &chunk.ids, request.ids.len()))?,
        };
        tally::add(&mut report, &looked_up);
        if let Some((_, writer)) = &writer {
            writer.write(first_row, buffer.bytes())?;
        }
        shown.take(&buffer, &mask, request.bags.is_none());
        first_row += bags as u64;
        bar.set_position(first_row);
    }
    bar.finish_and_clear();
    drop((slot, plan, host));
    if let Some((_, writer)) = writer {
        writer.finish()?;
    }
    let mut done = describe(args, &info, dtype, &request, &shown, &report, rows)?;
    done.failure = shown.failure(name);
    Ok(done)
}

impl Request {
    fn read(args: &LookupArgs) -> Result<Self, Failure> {
        let ids = match (&args.ids, &args.ids_file) {
            (Some(list), _) => parse_ids(list)?,
            (_, Some(file)) => read_file(file)?,
            _ => return Err(Failure::usage("", "no ids").remedy("give --ids or --ids-file")),
        };
        if args.pooling == Pooling::None && args.offsets.is_some() {
            return Err(
                Failure::usage("--offsets", "bags are for pooling").remedy("add --pooling sum or --pooling mean")
            );
        }
        if args.pooling != Pooling::Sum && args.weights.is_some() {
            return Err(Failure::usage("--weights", "only sums are weighted").remedy("add --pooling sum"));
        }
        let bags = match (&args.offsets, args.pooling) {
            (_, Pooling::None) => None,
            (None, _) => Some(vec![0, ids.len()]),
            (Some(file), _) => Some(offsets(file, ids.len(), args.include_last_offset)?),
        };
        let weights = args.weights.as_deref().map(read_weights).transpose()?;
        if let Some(weights) = &weights
            && weights.len() != ids.len()
        {
            let what = format!(
                "{} for {}",
                units::plural(weights.len() as u64, "weight"),
                units::plural(ids.len() as u64, "id")
            );
            return Err(Failure::input("--weights", what).remedy("give one weight for each id"));
        }
        Ok(Self { ids, bags, weights })
    }

    /// Whole bags, or ids, that are looked up together: up to `most`, but for a single bag of more.
    fn chunks(&self, most: usize) -> Vec<Chunk> {
        let ids = self.ids.len();
        let Some(bags) = &self.bags else {
            let starts = (0..ids).step_by(most);
            return starts
                .map(|start| start..ids.min(start + most))
                .map(|ids| Chunk { bags: ids.clone(), ids })
                .collect();
        };
        let mut chunks: Vec<Chunk> = Vec::new();
        for (bag, ends) in bags.windows(2).enumerate() {
            let &[begin, end] = ends else { continue };
            match chunks.last_mut() {
                Some(chunk) if end - chunk.ids.start <= most && chunk.bags.len() < most => {
                    (chunk.bags.end, chunk.ids.end) = (bag + 1, end);
                }
                _ => chunks.push(Chunk { bags: bag..bag + 1, ids: begin..end }),
            }
        }
        chunks
    }

    fn ids_in(&self, range: &Range<usize>) -> Ids<'_> {
        match &self.ids {
            Keys::Signed(ids) => ids[range.clone()].into(),
            Keys::Unsigned(ids) => ids[range.clone()].into(),
        }
    }

    fn id(&self, position: usize) -> Value {
        match &self.ids {
            Keys::Signed(ids) => ids.get(position).copied().into(),
            Keys::Unsigned(ids) => ids.get(position).copied().into(),
        }
    }
}

struct Chunk {
    bags: Range<usize>,
    ids: Range<usize>,
}

pub(super) fn parse_ids(list: &str) -> Result<Keys, Failure> {
    let parse = |text: &str| {
        text.trim().parse::<i128>().map_err(|_| {
            Failure::usage(text, format!("{text:?} is no id"))
                .remedy("give whole numbers separated by commas: --ids 7,42,-1")
        })
    };
    let list = list.trim();
    let ids = match list.strip_suffix(',').unwrap_or(list) {
        "" => Vec::new(),
        list => list.split(',').map(parse).collect::<Result<Vec<_>, _>>()?,
    };
    if let Ok(signed) = ids.iter().map(|&id| i64::try_from(id)).collect() {
        return Ok(Keys::Signed(signed));
    }
    let unsigned: Result<Vec<u64>, _> = ids.iter().map(|&id| u64::try_from(id)).collect();
    unsigned.map(Keys::Unsigned).map_err(|_| {
        Failure::usage("--ids", "the ids do not fit one 64-bit type")
            .remedy("look negative ids and those from 2⁶³ on up separately")
    })
}

pub(super) fn read_file(argument: &str) -> Result<Keys, Failure> {
    let Ok(file) = argument.parse::<TraceFile>();
    read_numbers(&file)
}

/// Where bags begin, with the end of the last.
fn offsets(argument: &str, ids: usize, include_last: bool) -> Result<Vec<usize>, Failure> {
    let given: Vec<i128> = match read_file(argument)? {
        Keys::Signed(offsets) => offsets.into_iter().map(i128::from).collect(),
        Keys::Unsigned(offsets) => offsets.into_iter().map(i128::from).collect(),
    };
    let mut bags: Vec<usize> = Vec::with_capacity(given.len() + 1);
    for (index, offset) in given.into_iter().enumerate() {
        let before = bags.last().copied();
        let rule = match usize::try_from(offset) {
            Ok(offset) if offset <= ids => match before {
                None if offset != 0 => "the first must be 0",
                Some(before) if offset < before => "none may be smaller than the one before",
                _ => {
                    bags.push(offset);
                    continue;
                }
            },
            _ => "it must not be negative nor pass the number of ids",
        };
        let what = format!("offsets[{index}] is {offset}: {rule}");
        return Err(Failure::input(argument, what).remedy(format!("there are {}", units::plural(ids as u64, "id"))));
    }
    let refuse = |what: String, remedy| Err(Failure::input(argument, what).remedy(remedy));
    match bags.last() {
        None if include_last || ids > 0 => refuse("it holds no offsets".to_owned(), "the first bag begins at 0"),
        Some(&last) if include_last && last != ids => refuse(
            format!("the last offset is {last}, there are {}", units::plural(ids as u64, "id")),
            "give the number of ids at the end, or leave --include-last-offset out",
        ),
        _ => {
            if !include_last {
                bags.push(ids);
            }
            Ok(bags)
        }
    }
}

fn read_weights(path: &Path) -> Result<Vec<f32>, Failure> {
    let subject = path.display().to_string();
    refuse_special(path)?;
    let bytes = std::fs::read(path).map_err(|error| Failure::io(&subject, "cannot be read", &error))?;
    let header = NpyHeader::read(&mut &bytes[..]).map_err(|error| Failure::input(&subject, error.to_string()))?;
    let data = bytes.get(header.data_at as usize..).unwrap_or_default();
    if header.descr != "<f4" || !header.is_c_order() {
        return Err(Failure::input(&subject, format!("its elements are {}; weights are <f4", header.descr))
            .remedy("save weights.astype(numpy.float32)"));
    }
    if header.elements().saturating_mul(4) != data.len() as u128 {
        return Err(Failure::input(&subject, "it is cut off or damaged").remedy("write it again, with numpy.save"));
    }
    Ok(data.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect())
}

/// Rows to be printed.
struct Shown {
    /// How many; later ones are only counted.
    most: usize,
    dim: usize,
    rows: Vec<Vec<f32>>,
    /// One byte a row, if not pooled.
    mask: Vec<u8>,
    /// Positions of ids whose rows lie on drives that are missing, ascending.
    lost: Vec<usize>,
    missing_drives: Vec<String>,
}

impl Shown {
    fn new(most: usize, dim: usize) -> Self {
        Self { most, dim, rows: Vec::new(), mask: Vec::new(), lost: Vec::new(), missing_drives: Vec::new() }
    }

    fn failure(&self, table: &str) -> Option<Failure> {
        let count = self.lost.len() as u64;
        let drives = self.missing_drives.join(", ");
        let what = format!("the rows of {} lie on drives that are missing: {drives}", units::plural(count, "id"));
        let failure =
            Failure::new(Class::Store, table, what).remedy("give these drives too").detail("positions", &*self.lost);
        (count > 0).then_some(failure)
    }

    fn take(&mut self, buffer: &RowBuffer, mask: &[u8], by_id: bool) {
        let more = self.most.saturating_sub(self.rows.len());
        if more > 0 {
            self.rows.extend(buffer.values().chunks_exact(self.dim).take(more).map(<[f32]>::to_vec));
            self.mask.extend(mask.iter().filter(|_| by_id).take(more));
        }
    }
}

/// What a failed look-up means, of ids `looked_up` of so many: what the store says counts and places ids among these.
fn failed(error: &LookupError, table: &str, looked_up: &Range<usize>, ids: usize) -> Failure {
    let failure = of_lookup(error, table);
    let (found, positions) = match error {
        LookupError::MissingIds { positions, .. } => ("are missing from their tables", positions),
        LookupError::RowsFailed { positions, .. } => ("could not be read", positions),
        _ => return failure,
    };
    let positions: Vec<usize> = positions.iter().map(|position| position + looked_up.start).collect();
    let count = |number: usize| units::count(number as u64);
    let so_far = match looked_up.end == ids {
        true => units::plural(ids as u64, "id"),
        false => format!("the first {} of {}", count(looked_up.end), units::plural(ids as u64, "id")),
    };
    let rows = if matches!(error, LookupError::RowsFailed { .. }) { "the rows of " } else { "" };
    let mut message = format!(
        "{rows}{} of {so_far} {found}, the first at position {}",
        count(positions.len()),
        count(positions.first().copied().unwrap_or_default())
    );
    if let LookupError::RowsFailed { source, .. } = error {
        message += &format!(": {}", without_remedy(chain(source), &failure.remedy));
    }
    if looked_up.end < ids {
        message += "; the other ids were not looked up";
    }
    Failure { message, ..failure }.detail("positions", positions).detail("looked_up", looked_up.end)
}

fn describe(
    args: &LookupArgs,
    info: &TableInfo,
    out: DType,
    request: &Request,
    shown: &Shown,
    report: &Report,
    rows: u64,
) -> Result<Done, Failure> {
    let elapsed: Duration = report.stages.iter().sum();
    let mut object = json!({
        "table": info.name,
        "dim": info.dim,
        "dtype": out.name(),
        "pooling": args.pooling.name(),
        "generation": report.generation,
        "checked": info.row_crc && !args.no_check && !args.degraded,
        "dram_bytes": args.dram.unwrap_or(0),
        "keys_checked": info.keys.is_some() && args.check_keys,
        "ids": report.ids,
        "padding": report.padding,
        "missing": report.missing,
        "unique": report.unique,
        "rows_dram": report.rows_dram,
        "rows_ssd": report.rows_ssd,
        "ids_dram": report.ids_dram,
        "ids_ssd": report.ids_ssd,
        "hit_rate": hit_rate(report),
        "commands": report.commands,
        "doorbells": report.sq_doorbells,
        "bytes_read": report.bytes_read,
        "seconds": elapsed.as_secs_f64(),
    });
    let summary = format!(
        "{} of table {:?}: {}, {} missing; {} in {}",
        units::plural(rows, "row"),
        info.name,
        units::plural(report.ids, "id"),
        units::count(report.missing),
        units::plural(report.commands, "command"),
        units::time(elapsed),
    );
    let Some(members) = object.as_object_mut() else { return Done::new(summary, object) };
    if let Some(path) = &args.out {
        members.insert("out".into(), path.display().to_string().into());
        return Done::new(format!("{summary}\nwritten to {}", path.display()), object);
    }
    let lost = |index: usize| shown.lost.binary_search(&index).is_ok();
    let values = |(index, row): (usize, &Vec<f32>)| match lost(index) {
        true => Value::Null,
        false => row.iter().map(|&v| json_float(v)).collect(),
    };
    members.insert("rows".into(), shown.rows.iter().enumerate().map(values).collect());
    if request.bags.is_none() {
        members.insert("found".into(), shown.mask.iter().map(|&found| Value::from(found == 1)).collect());
    }
    let lines = shown.rows.iter().take(SHOWN.0).enumerate().map(|(i, row)| {
        let mut text = row.iter().take(SHOWN.1).map(|&v| number(v)).collect::<Vec<_>>().join("  ");
        if row.len() > SHOWN.1 {
            text += &format!("  … {} more", row.len() - SHOWN.1);
        }
        let (what, found) = match request.bags {
            None if lost(i) => {
                text.clear();
                (request.id(i).to_string(), "LOST".to_owned())
            }
            Some(_) => (i.to_string(), String::new()),
            None => (request.id(i).to_string(), if shown.mask.get(i) == Some(&1) { "yes" } else { "no" }.to_owned()),
        };
        [what, found, text]
    });
    let head = if request.bags.is_some() { [">bag", "", "sum or mean"] } else { [">id", "found", "row"] };
    let mut text = table(head, lines);
    let numbers = rows.saturating_mul(info.dim.into());
    let more = rows.saturating_sub(SHOWN.0 as u64);
    if more > 0 {
        let json = if numbers <= JSON_NUMBERS { "print them with --json, or " } else { "" };
        text += &format!("\n… and {} more: {json}write them with --out", units::count(more));
    }
    Done::new(format!("{text}\n{summary}"), object)
}

/// A number for people, with as many digits as tell it from its neighbours.
fn number(value: f32) -> String {
    match value.abs() {
        0.0 | 1e-5..1e16 => value.to_string(),
        v if v.is_finite() => format!("{value:e}"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ids: usize, bags: Option<Vec<usize>>) -> Request {
        Request { ids: Keys::Signed(vec![0; ids]), bags, weights: None }
    }

    #[test]
    fn chunks_cover_every_id_and_bag_once() {
        let sizes = [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7];
        for ids in sizes {
            for most in [CHUNK, 1000] {
                let chunks = request(ids, None).chunks(most);
                assert_eq!(chunks.iter().map(|chunk| chunk.ids.len()).sum::<usize>(), ids);
                assert!(chunks.iter().all(|chunk| chunk.ids == chunk.bags && chunk.ids.len() <= most));
            }
        }
        let bags = vec![0, 0, 5, CHUNK, CHUNK, 2 * CHUNK + 9, 2 * CHUNK + 9];
        let chunks = request(2 * CHUNK + 9, Some(bags.clone())).chunks(CHUNK);
        let (mut bag, mut id) = (0, 0);
        for chunk in &chunks {
            assert_eq!((chunk.bags.start, chunk.ids.start), (bag, id));
            assert_eq!((bags[chunk.bags.start], bags[chunk.bags.end]), (chunk.ids.start, chunk.ids.end));
            (bag, id) = (chunk.bags.end, chunk.ids.end);
        }
        assert_eq!((bag, id), (6, 2 * CHUNK + 9));
    }

    #[test]
    fn a_drive_that_dies_fails_ids_among_all() {
        let lost = || LookupError::RowsFailed {
            report: Box::new(Report::default()),
            positions: (20..CHUNK).collect(),
            source: RowError::Drive(warprow_driver::DriverError::Gone { function: "d".into(), during: "reads" }),
        };
        let failure = failed(&lost(), "t", &(CHUNK..2 * CHUNK), 1_000_000);
        let want = "the rows of 65,516 of the first 131,072 of 1,000,000 ids could not be read, the first at position 65,556: d: the \
                    device is gone";
        assert!(failure.message.starts_with(want), "{failure}");
        assert!(failure.message.ends_with("; the other ids were not looked up"), "{failure}");
        let positions = failure.details["positions"].as_array().unwrap();
        assert_eq!(
            (positions.len(), &positions[0], &failure.details["looked_up"]),
            (65_516, &json!(65_556), &json!(131_072))
        );
        let last = failed(&lost(), "t", &(CHUNK..2 * CHUNK), 2 * CHUNK);
        assert!(
            last.message.contains("65,516 of 131,072 ids could not") && !last.message.contains("other ids"),
            "{last}"
        );
    }

    #[test]
    fn no_more_rows_are_kept_than_are_shown() {
        let mut shown = Shown::new(5, 2);
        for _ in 0..3 {
            shown.take(&RowBuffer::F32(vec![0., 1., 2., 3., 4., 5.]), &[1, 0, 1], true);
        }
        assert_eq!(shown.rows, [[0., 1.], [2., 3.], [4., 5.], [0., 1.], [2., 3.]]);
        assert_eq!(shown.mask, [1, 0, 1, 1, 0]);
    }

    #[test]
    fn ids_are_taken_as_they_fit() {
        assert_eq!(parse_ids("7, -1,").unwrap(), Keys::Signed(vec![7, -1]));
        assert_eq!(parse_ids("").unwrap(), Keys::Signed(vec![]));
        assert_eq!(parse_ids("18446744073709551615,0").unwrap(), Keys::Unsigned(vec![u64::MAX, 0]));
        for bad in ["x", "1.5", "1,,2", ",1", "-1,18446744073709551615", "18446744073709551616"] {
            assert_eq!(parse_ids(bad).unwrap_err().class, Class::Usage, "{bad}");
        }
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, -0.0, 7.0, -0.5, 1e-5, 1e-20, 3e37, f32::NAN, f32::NEG_INFINITY].map(number);
        assert_eq!(shown, ["0", "-0", "7", "-0.5", "0.00001", "1e-20", "3e37", "NaN", "-inf"]);
    }

    #[test]
    fn offsets_are_those_of_torch() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.i64");
        let read_with = |given: &[i64], ids, include_last| {
            std::fs::write(&path, given.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
            offsets(path.to_str().unwrap(), ids, include_last).map_err(|failure| failure.message)
        };
        let read = |given: &[i64], ids| read_with(given, ids, false);
        assert_eq!(read(&[0, 2, 2], 5), Ok(vec![0, 2, 2, 5]));
        assert_eq!(read(&[0, 2, 2, 5], 5), Ok(vec![0, 2, 2, 5, 5]), "an empty bag at the end");
        assert_eq!(read(&[0, 0, 0], 0), Ok(vec![0, 0, 0, 0]));
        assert_eq!(read(&[], 0), Ok(vec![0]), "no bag");
        assert!(read(&[], 5).unwrap_err().contains("no offsets"));
        assert_eq!(read_with(&[0, 2, 2, 5], 5, true), Ok(vec![0, 2, 2, 5]));
        assert_eq!(read_with(&[0], 0, true), Ok(vec![0]));
        assert!(read_with(&[0, 2], 5, true).unwrap_err().contains("the last offset is 2, there are 5 ids"));
        assert!(read_with(&[], 0, true).unwrap_err().contains("no offsets"));
        assert_eq!(read(&[1, 2], 5), Err("offsets[0] is 1: the first must be 0".into()));
        assert!(read(&[0, 3, 2], 5).unwrap_err().starts_with("offsets[2] is 2: none may be smaller"));
        assert!(read(&[0, 6], 5).unwrap_err().starts_with("offsets[1] is 6: it must not be negative nor pass"));
        assert!(read(&[0, -1], 5).unwrap_err().starts_with("offsets[1] is -1"));
    }
}
