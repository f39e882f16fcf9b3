//! The look-ups: chunks of the ids one after another, whose rows are written to a file or kept to be printed.

use warprow_layout::DType;
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, LookupError, LookupReport, Output, Plan, PlanOptions, RowError, Slot,
};
use warprow_store::{Store, TableInfo};

use super::arguments::LookupArgs;
use super::failed::failed;
use super::limits::{CHUNK, CHUNK_BYTES, SHOWN};
use super::request::{Chunk, Request};
use super::shown::Shown;
use crate::commands::Context;
use crate::failure::Failure;
use crate::rows::RowBuffer;
use crate::screen::Unit;
use crate::{file, tally};

/// What look-ups have found.
pub(super) struct Found {
    pub(super) shown: Shown,
    /// The counts of all look-ups together.
    pub(super) report: LookupReport,
    /// The type that the rows have in a file, and in what is said of them.
    pub(super) dtype: DType,
}

/// What every chunk is looked up with.
struct Looking<'a> {
    args: &'a LookupArgs,
    table: &'a str,
    request: &'a Request,
    slot: Slot,
    /// Elements of an output row.
    width: usize,
}

/// Looks all ids up, and writes the rows to the file that `--out` names.
pub(super) fn look_up(
    args: &LookupArgs,
    store: &Store,
    info: &TableInfo,
    request: &Request,
    context: &Context,
) -> Result<Found, Failure> {
    let dtype = if request.bags.is_some() || info.dtype.is_scaled() { DType::F32 } else { info.dtype };
    // What is printed is numbers, which bytes of an 8-bit float are not yet.
    let narrow = matches!(dtype, DType::F8E4M3 | DType::F8E5M2) && args.out.is_none();
    let out = if narrow { DType::F32 } else { dtype };
    let most = CHUNK_BYTES / (u64::from(info.dim) * 4).max(1);
    let chunks = request.chunks(usize::try_from(most).unwrap_or(CHUNK).clamp(1, CHUNK));
    let host = attach(args, store)?;
    let plan = plan(args, &host, &info.name, request, &chunks, out)?;
    let mut looking = Looking { args, table: &info.name, request, slot: plan.slot()?, width: plan.width() };
    let rows = request.rows();
    let writer = match &args.out {
        Some(path) => Some(file::create(path, args.force, &info.name, rows, info.dim, dtype)?),
        None => None,
    };
    let most_shown = match (&writer, context.json) {
        (Some(_), _) => 0,
        (None, true) => usize::MAX,
        (None, false) => SHOWN.0,
    };
    let mut shown = Shown::new(most_shown, info.dim as usize);
    let mut report = LookupReport::default();
    let bar = context.screen.bar("looking up", rows, Unit::Things);
    let mut first_row = 0;
    for chunk in &chunks {
        context.interrupt.check()?;
        let mut mask = vec![0; chunk.ids.len()];
        let mut buffer = RowBuffer::new(out, chunk.bags.len() * looking.width);
        let looked_up = looking.chunk(chunk, &mut buffer, &mut mask, &mut shown)?;
        tally::add(&mut report, &looked_up);
        if let Some(writer) = &writer {
            writer.write(first_row, buffer.bytes())?;
        }
        shown.take(&buffer, &mask, request.bags.is_none());
        first_row += chunk.bags.len() as u64;
        bar.set_position(first_row);
    }
    bar.finish_and_clear();
    drop((looking, plan, host));
    if let Some(writer) = writer {
        writer.finish()?;
    }
    Ok(Found { shown, report, dtype })
}

fn attach(args: &LookupArgs, store: &Store) -> Result<HostExecutor, Failure> {
    let options =
        HostOptions::default().with_dram_bytes(args.dram.unwrap_or(0)).with_cache_bytes(args.cache.unwrap_or(0));
    let options = if args.no_check || args.degraded { options } else { options.with_checked_rows() };
    Ok(HostExecutor::attach(store, if args.check_keys { options.with_checked_keys() } else { options })?)
}

/// A plan for the largest of the chunks.
fn plan(
    args: &LookupArgs,
    host: &HostExecutor,
    table: &str,
    request: &Request,
    chunks: &[Chunk],
    out: DType,
) -> Result<Plan, Failure> {
    let most_ids = chunks.iter().map(|chunk| chunk.ids.len()).max().unwrap_or(0);
    let most_bags = chunks.iter().map(|chunk| chunk.bags.len()).max().unwrap_or(0);
    let feature = Feature::new("lookup", table).pooling(args.pooling.of_store()).missing(args.missing.of_store());
    let feature = if request.weights.is_some() { feature.weighted() } else { feature };
    let feature = match args.padding {
        Some(id) => feature.padding(id),
        None => feature,
    };
    let options = PlanOptions::default().with_max(most_bags.max(1), most_ids.max(1)).with_out(out);
    Ok(host.plan(&[feature], options)?)
}

impl Looking<'_> {
    /// Looks one chunk up. With `--degraded`, rows on drives that are missing are noted in `shown` as lost.
    fn chunk(
        &mut self,
        chunk: &Chunk,
        buffer: &mut RowBuffer,
        mask: &mut [u8],
        shown: &mut Shown,
    ) -> Result<LookupReport, Failure> {
        let Self { args, table, request, slot, width, .. } = self;
        let offsets: Option<Vec<u64>> = request.bags.as_ref().map(|bags| {
            bags[chunk.bags.start..=chunk.bags.end].iter().map(|&offset| (offset - chunk.ids.start) as u64).collect()
        });
        let mut batch = Batch::new(request.ids_in(&chunk.ids), chunk.bags.len());
        if let Some(offsets) = &offsets {
            batch = batch.with_offsets(offsets);
        }
        if let Some(weights) = &request.weights {
            batch = batch.with_weights(&weights[chunk.ids.clone()]);
        }
        let mut output = Output::new(buffer.rows(), *width).with_mask(mask);
        match slot.lookup(&batch, &mut output) {
            Err(LookupError::RowsFailed { report, positions, source: RowError::MemberMissing { drives } })
                if args.degraded && request.bags.is_none() =>
            {
                shown.lost.extend(positions.iter().map(|position| position + chunk.ids.start));
                shown.missing_drives = drives;
                Ok(*report)
            }
            other => other.map_err(|error| failed(&error, table, &chunk.ids, request.ids.len())),
        }
    }
}
