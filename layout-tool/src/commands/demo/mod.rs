//! `warprow demo`.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use warprow_formats::{FileTable, TableFile};
use warprow_layout::{DEFAULT_STRIPE_UNIT, FormatOptions, Ranks, RowPacking, TableSpec};
use warprow_lookup::Host;
use warprow_lookup::{Batch, Feature, HostOptions, Output, PlanOptions, Report, Slot};
use warprow_soft_controller::{Fault, Rule, RuleId, SoftController};
use warprow_spec::NvmOpcode;
use warprow_store::{Device, LoadOptions, LoadReport, OpenOptions, Store, TableLoad};
use warprow_workload::{Content, Mapping, TraceFile};

use super::{Context, Done};
use crate::failure::Failure;
use crate::rows::RowBuffer;
use crate::screen::Unit;
use crate::select::Selection;
use crate::{tally, units};

mod cold;
mod place;
mod replay;
mod report;
mod rivals;
mod workload;

use cold::Cold;
use place::Place;
use replay::{Contender, Limits, Outcome, Race, Turn};
use rivals::Rival;
use workload::{Truth, Workload};

/// What the table is called.
const TABLE: &str = "demo";
/// Which read command after the warm-up goes wrong, if one is to.
const STRUCK: u64 = 100;
/// Bytes of an LBA of the drive.
const LBA: u32 = 512;

/// See it work: format an emulated drive, load a table, replay a skewed trace, check every row, race six rivals
///
/// The drive is a sparse file, served by a complete NVMe controller model in this process; the driver, the queues and the
/// layout are those that a real drive gets. The table is larger than what is kept in memory. Each batch of ids is looked up,
/// timed, and then, untimed, every row that came back is compared bit for bit with what it must be.
///
/// Six rivals then answer the same batches, checked in the same way: from the same file a pread for each id, an io_uring
/// read for each id, a copy from a mapping of the file for each id, and the first two again with equal means: the same deduplication, rows in memory, order and depth;
/// and, where python3 has numpy, numpy.memmap of a plain file of the rows in the order of ids. Where there is
/// a GPU, Warprow answers them once more by kernels on it; ids are copied to the GPU and rows back.
///
/// All of that with a warm page cache. In the end a few batches come from the disk: the page cache forgets the files, and every
/// id lies in a page that nobody has read since. Warprow, also with direct=1, races pread by 16 threads and both mapped files.
///
/// The file has no name and is gone when the command ends, however it ends; --keep gives it one.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow demo
  warprow demo --rows 65536 --seconds 1 --json
  warprow demo --table model.safetensors --tensor 'emb.items.*' --trace clicks.csv:item
  warprow demo --keep /data/demo.drive && warprow inspect -d emulated:/data/demo.drive
  warprow demo --inject corrupt; echo $?     # a bit flips on its way: exit code 5")]
pub struct DemoArgs {
    /// Rows of the table that is made up; at least 1000
    #[arg(long, value_name = "N", default_value_t = 1 << 21, conflicts_with = "table", value_parser = clap::value_parser!(u64).range(1000..=u64::from(u32::MAX)))]
    pub rows: u64,
    /// Elements, f32, in each of its rows; at most 16384
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "table", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub dim: u32,
    /// Exponent of the power law that its ids follow, from 0 to 100
    #[arg(long, value_name = "X", default_value_t = 1.05, conflicts_with = "table")]
    pub alpha: f64,
    /// Take the table from this file instead
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub table: Option<PathBuf>,
    /// The tensor in it [default: the one with the most rows]
    #[arg(long, value_name = "GLOB", requires = "table")]
    pub tensor: Option<String>,
    /// Take the ids from this file instead: .csv with a column, .npy, or raw .u32, .u64; its first half tells which rows are hot,
    /// its second half is replayed, again and again if it is short
    #[arg(long, value_name = "FILE[:COLUMN]", requires = "table")]
    pub trace: Option<String>,
    /// How keys of the trace become ids
    #[arg(long, default_value = "strict")]
    pub map: Map,
    /// Ids in a batch, at most 4194304; a shorter trace makes a smaller one
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = parse_batch)]
    pub batch: usize,
    /// The share of the rows that is kept in memory, the hottest, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = parse_percent)]
    pub dram: f64,
    /// Batches to replay, at most
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub batches: u64,
    /// Seconds of look-ups, at most
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// What everything random comes from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where the drive's file lies [default: $TMPDIR or /var/tmp, unless that is in memory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the drive, as this file; an existing one is refused
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub keep: Option<PathBuf>,
    /// Let something go wrong, to see it found
    #[arg(long, value_name = "FAULT")]
    pub inject: Option<Inject>,
    /// Do without the rivals
    #[arg(long)]
    pub no_rivals: bool,
}

/// How keys become ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Map {
    /// A key is the id; keys that the table does not have are missing ids
    Strict,
    /// The n-th smallest key is id n
    Dense,
    /// The key modulo the number of rows
    Modulo,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Inject {
    /// The drive flips a bit of the data of one read, and says that all went well
    Corrupt,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| "give 0 to 100".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.001..=86_400.0).contains(seconds))
        .ok_or_else(|| "give 0.001 to 86400".to_owned())
}

fn parse_batch(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|batch| (1..=1 << 22).contains(batch)).ok_or_else(|| "give 1 to 4194304".to_owned())
}

/// Everything that was measured.
struct Results {
    ours: Outcome,
    total: Report,
    load: LoadReport,
    dram_rows: u64,
    rivals: Vec<(Rival, Result<Outcome, String>)>,
    /// The cold race, or why there was none; `None`: without rivals.
    cold: Option<Result<Cold, String>>,
    /// Commands that were made to go wrong, if that was asked for.
    injected: Option<u64>,
    elapsed: Duration,
}

pub(crate) fn run(args: &DemoArgs, context: &Context) -> Result<Done, Failure> {
    let file = args.table.as_deref().map(TableFile::open).transpose()?;
    let workload = match (&file, &args.trace) {
        (Some(file), Some(trace)) => {
            let mapping = match args.map {
                Map::Strict => Mapping::Strict,
                Map::Dense => Mapping::Dense,
                Map::Modulo => Mapping::Modulo,
            };
            let Ok(trace) = trace.parse::<TraceFile>();
            Workload::given(args, file, choose(file, args.tensor.as_deref())?, &trace, mapping)?
        }
        _ => Workload::computed(args)?,
    };
    demonstrate(args, &workload, context)
}

/// The tensor that matches, or else the one with the most rows.
fn choose<'a>(file: &'a TableFile, tensor: Option<&str>) -> Result<&'a FileTable, Failure> {
    let all = Selection { all: true, ..Selection::default() };
    let chosen = match tensor {
        Some(glob) => Selection { tensors: vec![glob.to_owned()], ..Selection::default() },
        None => all,
    };
    let chosen = chosen.choose(std::slice::from_ref(file), "warprow demo --table")?;
    let largest = chosen.iter().map(|it| it.table).max_by_key(|table| (table.rows, std::cmp::Reverse(&table.name)));
    largest.ok_or_else(|| Failure::input(file.path.display().to_string(), "it holds no table"))
}

fn demonstrate(args: &DemoArgs, workload: &Workload<'_>, context: &Context) -> Result<Done, Failure> {
    let begin = Instant::now();
    let truth = &workload.truth;
    let (rows, row_bytes) = (truth.rows(), truth.row_bytes() as u64);
    let needed = bytes_on_drive(rows, row_bytes)?;
    let size = needed.saturating_add(64 << 20).next_multiple_of(1 << 20);
    let (mut place, controller) = Place::find(args.dir.as_deref(), args.keep.as_deref(), size, needed)?;
    let ranks = Arc::new(workload.ranks()?);
    let (store, load) = fill(&controller, workload, &ranks, args.dram, context)?;
    context.interrupt.check()?;
    place.filled();

    let dram_rows = (rows as f64 * args.dram / 100.0).floor() as u64;
    let host = Host::attach(&store, HostOptions::default().with_dram_bytes(dram_rows.saturating_mul(row_bytes)))?;
    let options = PlanOptions::default().with_max(workload.batch, workload.batch).with_out(truth.dtype());
    let plan = host.plan(&[Feature::new(TABLE, TABLE)], options)?;
    let total = RefCell::default();
    let rule = Cell::default();
    let faulty = matches!(args.inject, Some(Inject::Corrupt)).then_some((&*controller, &rule));
    let mask = vec![0; workload.batch];
    let warprow = Warprow { slot: plan.slot()?, width: plan.width(), mask, total: &total, faulty };
    let dram_rows = host.hot_rows(TABLE).unwrap_or(0);
    let (mut rivals, mut plain) = (Vec::new(), None);
    if !args.no_rivals {
        let mut field = rivals::Field::new(&place, &store, &ranks, dram_rows, workload.batch, truth, context)?;
        for rival in Rival::ALL {
            rivals.push((rival, field.enter(rival)?.map(Turn::new)));
        }
        plain = Some(field.plain);
    }
    let mut ours = Turn::new(Box::new(warprow));
    race(args, workload, &mut ours, &mut rivals, context)?;
    let ours = ours.end();
    let rivals: Vec<_> = rivals.into_iter().map(|(rival, turn)| (rival, turn.map(Turn::end))).collect();
    let fired = |_: Inject| rule.get().map_or(0, |rule| controller.faults().fired(rule));
    let injected = args.inject.map(fired);
    // All mappings of the file go with them, of which the page cache could forget nothing.
    drop((plan, host, store, controller));
    let total = total.take();
    let is_over = ours.is_over() || rivals.iter().any(|(_, it)| it.as_ref().is_ok_and(Outcome::is_over));
    let cold = match plain {
        None => None,
        Some(_) if is_over => Some(Err("the race before it did not come to its end".to_owned())),
        Some(plain) => Some(cold::run(args, workload, &place, &ranks, &plain, context)?),
    };
    let results = Results { ours, total, load, dram_rows, rivals, cold, injected, elapsed: begin.elapsed() };
    report::report(args, workload, &place, &results, context)
}

/// Bytes that the table and its store take on a drive, at most.
fn bytes_on_drive(rows: u64, row_bytes: u64) -> Result<u64, Failure> {
    let stripe = u64::from(DEFAULT_STRIPE_UNIT).max(row_bytes.next_power_of_two());
    let packing =
        u32::try_from(row_bytes).ok().and_then(|bytes| RowPacking::new(bytes, LBA, (stripe / u64::from(LBA)) as u32));
    let lbas = packing.and_then(|packing| packing.lbas(rows));
    let data = lbas.and_then(|lbas| lbas.checked_mul(LBA.into())?.checked_add(rows.checked_mul(4)?));
    let data = data.ok_or_else(|| Failure::input("--rows", "the table is too large").remedy("choose a smaller one"))?;
    // Chunks that are not full, and metadata.
    Ok(data.saturating_add(64 << 20))
}

/// Formats the drive and loads the table.
fn fill(
    controller: &Arc<SoftController>,
    workload: &Workload<'_>,
    ranks: &Ranks,
    dram: f64,
    context: &Context,
) -> Result<(Store, LoadReport), Failure> {
    let device = Device::new(controller.clone(), 1);
    let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default())?;
    let truth = &workload.truth;
    let spec = TableSpec {
        permuted: true,
        hot_rows: (truth.rows() as f64 * dram / 100.0).floor() as u64,
        ..TableSpec::new(TABLE, truth.rows(), truth.dim(), truth.dtype())
    };
    let bar = context.screen.bar("loading the table", 0, Unit::Bytes);
    let load = TableLoad::new(&spec, truth).with_ranks(ranks);
    let load = if matches!(truth, Truth::Computed(_)) { load.with_random_access() } else { load };
    let loaded = store.load(TABLE, &[load], &LoadOptions::default(), &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.written);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    context.interrupt.check()?;
    Ok((store, loaded?))
}

/// Everybody in turns, so that what slows the machine for a while slows all alike. Rivals get a third of our time each.
fn race(
    args: &DemoArgs,
    workload: &Workload<'_>,
    ours: &mut Turn<'_>,
    rivals: &mut [(Rival, Result<Turn<'_>, String>)],
    context: &Context,
) -> Result<(), Failure> {
    const ROUNDS: u32 = 20;
    let mut race = Race::new(&workload.truth, &workload.batches, workload.batch, &context.interrupt);
    let seconds = Duration::from_secs_f64(args.seconds);
    let bar = context.screen.thousandths(if rivals.is_empty() { "replaying" } else { "racing" });
    for round in 1..=ROUNDS {
        let limits = Limits { batches: args.batches, time: seconds * round / ROUNDS };
        race.run(ours, limits, |outcome| {
            let by_batches = outcome.batches as f64 / args.batches as f64;
            let by_time = outcome.time.as_secs_f64() / args.seconds;
            bar.set_position((by_batches.max(by_time) * 1000.0) as u64);
            if outcome.batches.is_multiple_of(64) {
                bar.set_prefix(format!("{} ids/s", units::short(outcome.ids_per_second())));
            }
        })?;
        let limits = Limits { batches: ours.outcome.batches, time: limits.time / 3 };
        for (_, entry) in &mut *rivals {
            let Ok(turn) = entry else { continue };
            if ours.outcome.is_over() {
                break;
            }
            match race.run(turn, limits, |_| {}) {
                Ok(()) => ours.outcome.interrupted |= turn.outcome.interrupted,
                Err(failure) => {
                    *entry = Err(rivals::is_lost(&failure).ok_or(failure)?);
                    ours.outcome.interrupted |= context.interrupt.is_asked();
                }
            }
        }
        if ours.outcome.is_over() || ours.outcome.batches >= args.batches {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Us.
pub(crate) struct Warprow<'a> {
    slot: Slot,
    width: usize,
    mask: Vec<u8>,
    total: &'a RefCell<Report>,
    /// The drive, if it is to go wrong, and the rule by which it does.
    faulty: Option<(&'a SoftController, &'a Cell<Option<RuleId>>)>,
}

impl Contender for Warprow<'_> {
    fn answer(&mut self, ids: &[i64], rows: &mut RowBuffer) -> Result<(), Failure> {
        let mut output = Output::new(rows.rows(), self.width).with_mask(&mut self.mask[..ids.len()]);
        match self.slot.lookup(&Batch::new(ids, ids.len()), &mut output) {
            Ok(report) => {
                tally::add(&mut self.total.borrow_mut(), &report);
                Ok(())
            }
            Err(error) => Err(crate::store_failure::of_lookup(&error, TABLE)),
        }
    }

    fn warmed_up(&mut self) {
        self.total.take();
        if let Some((drive, rule)) = self.faulty {
            rule.set(Some(drive.faults().inject(Rule::new(Fault::Corrupt).io(NvmOpcode::READ).nth(STRUCK))));
        }
    }

    fn mask(&self) -> Option<&[u8]> {
        Some(&self.mask)
    }
}
