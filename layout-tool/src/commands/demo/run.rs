//! The course of the demo: a drive is made, a table is loaded, and everybody answers the same batches.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_formats::{FileTable, TableFile};
use warprow_layout::{DEFAULT_STRIPE_UNIT, FormatOptions, Ranks, RowPacking, TableSpec};
use warprow_lookup::{Feature, HostExecutor, HostOptions, PlanOptions};
use warprow_soft_controller::SoftController;
use warprow_store::{Device, LoadOptions, LoadReport, OpenOptions, Store, TableLoad};
use warprow_workload::units;
use warprow_workload::{KeyMapping, TableContent};

use super::arguments::{DemoArgs, Inject, Map};
use super::cold;
use super::place::{LBA, Place};
use super::replay::{Limits, Outcome, Race, Turn};
use super::report::report;
use super::results::Results;
use super::rivals::{Rival, Rivals, is_lost};
use super::warprow::Warprow;
use super::workload::{TABLE, Truth, Workload};
use crate::commands::{CommandOutput, Context};
use crate::failure::Failure;
use crate::screen::Unit;
use crate::select::Selection;

pub(crate) fn run(args: &DemoArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let file = args.table.as_deref().map(TableFile::open).transpose()?;
    let workload = match (&file, &args.trace) {
        (Some(file), Some(trace)) => {
            let mapping = match args.map {
                Map::Strict => KeyMapping::Strict,
                Map::Dense => KeyMapping::Dense,
                Map::Modulo => KeyMapping::Modulo,
            };
            Workload::given(args, file, choose(file, args.tensor.as_deref())?, trace, mapping)?
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
    let largest =
        chosen.iter().map(|chosen| chosen.table).max_by_key(|table| (table.rows, std::cmp::Reverse(&table.name)));
    largest.ok_or_else(|| Failure::input(file.path.display().to_string(), "it holds no table"))
}

fn demonstrate(args: &DemoArgs, workload: &Workload<'_>, context: &Context) -> Result<CommandOutput, Failure> {
    let begin = Instant::now();
    let truth = &workload.truth;
    let rows = truth.rows();
    let row_bytes = truth.row_bytes() as u64;
    let needed = bytes_on_drive(rows, row_bytes)?;
    let size = needed.saturating_add(64 << 20).next_multiple_of(1 << 20);
    let (mut place, controller) = Place::find(args.dir.as_deref(), args.keep.as_deref(), size, needed)?;
    let ranks = Arc::new(workload.ranks()?);
    let (store, load) = fill(&controller, workload, &ranks, args.dram, context)?;
    context.interrupt.check()?;
    place.filled();

    let dram_rows = (rows as f64 * args.dram / 100.0).floor() as u64;
    let host =
        HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(dram_rows.saturating_mul(row_bytes)))?;
    let options = PlanOptions::default().with_max(workload.batch, workload.batch).with_out(truth.dtype());
    let plan = host.plan(&[Feature::new(TABLE, TABLE)], options)?;
    let total = RefCell::default();
    let rule = Cell::default();
    let faulty = matches!(args.inject, Some(Inject::Corrupt)).then_some((&*controller, &rule));
    let mask = vec![0; workload.batch];
    let warprow = Warprow { slot: plan.slot()?, width: plan.width(), mask, total: &total, faulty };
    let dram_rows = host.hot_rows(TABLE).unwrap_or(0);
    let mut rivals = Vec::new();
    let mut plain = None;
    if !args.no_rivals {
        let mut entrants = Rivals::new(&place, &store, &ranks, dram_rows, workload.batch, truth, context)?;
        for rival in Rival::ALL {
            rivals.push((rival, entrants.enter(rival)?.map(Turn::new)));
        }
        plain = Some(entrants.plain);
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
    report(args, workload, &place, &results, context)
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
                    *entry = Err(is_lost(&failure).ok_or(failure)?);
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
