//! `warprow plan`.

mod arguments;
mod failure;
mod report;
mod traces;

use std::io::Write;
use std::path::Path;

use serde_json::json;
use warprow_plan::trace::QueryTrace;
use warprow_plan::{
    CacheComparison, GpuCacheComparison, HostCosts, MemoryRates, OrderedProposal, ProposalError, ProposalFile,
    ProposalOptions, ProposalWatch, TableShape, curves,
};

pub use arguments::PlanArgs;

use super::{CommandOutput, Context};
use crate::columns::LookupTrace;
use crate::failure::{Class, Failure};
use crate::file;
use crate::screen::Unit;
use failure::keyed_instead;

pub(crate) fn run(args: &PlanArgs, context: &Context) -> Result<CommandOutput, Failure> {
    refuse_outputs(args)?;
    if args.cache.is_some() && args.hbm > 0 {
        let what = "it compares the row cache of an executor on the host, and --hbm is for one on a GPU";
        return Err(
            Failure::usage("--cache", what).remedy("leave --hbm out, or compare a cache in GPU memory: --gpu-cache")
        );
    }
    let (shapes, logs) = traces::tables_and_traces(args)?;
    let inputs: Vec<_> = logs.iter().map(|log| ("--trace", log.spec.path.clone())).collect();
    for (option, path) in [("--out", &args.out), ("--svg", &args.svg)] {
        path.iter().try_for_each(|path| file::refuse_inputs(option, path, &inputs))?;
    }
    let mut trace = QueryTrace::new(logs.iter().map(traces::source).collect::<Result<_, _>>()?)?;
    let row_bytes = shapes.iter().filter_map(|shape| shape.dtype.row_bytes(shape.dim)).max().unwrap_or(4);
    let costs = match args.typical_host || args.hbm > 0 {
        true => HostCosts::default(),
        false => HostCosts::measure(row_bytes.next_multiple_of(4), args.emulated)?,
    };
    let options = args.options(costs);
    let proposal = propose(args, &shapes, &mut trace, &options, context)?;
    let rates = rates(args, &shapes, &mut trace, &options, context)?;
    let cache = compare(args, &shapes, &mut trace, &options, context)?;
    let gpu_cache = compare_on_gpu(args, &shapes, &mut trace, &options, context)?;
    if let Some(path) = &args.svg {
        write(path, curves(&proposal.tiers).as_bytes())?;
    }
    if let Some(path) = &args.out {
        write(path, &ProposalFile::encode(&proposal)?)?;
    }
    let host = (args.hbm == 0).then_some(options.costs);
    let traces: Vec<_> = logs.iter().map(LookupTrace::json).collect();
    CommandOutput::new(
        report::text(args, &proposal, (rates.as_ref(), cache.as_ref(), gpu_cache.as_ref()), &options, &logs),
        json!({ "plan": proposal.tiers, "traces": traces, "host_costs": host, "rates": rates, "cache": cache, "gpu_cache": gpu_cache, "out": args.out, "svg": args.svg }),
    )
}

/// Files that exist are not overwritten, and those that are drives never.
fn refuse_outputs(args: &PlanArgs) -> Result<(), Failure> {
    if let Some(path) = args.outputs().find(|path| !args.force && path.exists()) {
        let refusal = Failure::new(Class::Refused, path.display().to_string(), "it exists already");
        return Err(refusal.remedy("choose another name, or --force"));
    }
    args.outputs().try_for_each(|path| file::refuse_own(path, &args.drives))
}

fn propose(
    args: &PlanArgs,
    shapes: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    context: &Context,
) -> Result<OrderedProposal, Failure> {
    watched(args, trace.queries(), context, |watch| warprow_plan::propose(shapes, trace, options, watch))
}

/// What memory of other sizes would give, if that is asked for.
fn rates(
    args: &PlanArgs,
    shapes: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    context: &Context,
) -> Result<Option<MemoryRates>, Failure> {
    if args.rates.is_empty() {
        return Ok(None);
    }
    let sizes = &args.rates;
    let rates = watched(args, trace.queries(), context, |watch| {
        warprow_plan::memory_rates(shapes, trace, options, sizes, watch)
    });
    rates.map(Some)
}

/// How a row cache compares with a DRAM tier, if that is asked for.
fn compare(
    args: &PlanArgs,
    shapes: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    context: &Context,
) -> Result<Option<CacheComparison>, Failure> {
    let Some(bytes) = args.cache else { return Ok(None) };
    let compared = watched(args, trace.queries(), context, |watch| {
        warprow_plan::compare_cache(shapes, trace, options, bytes, watch)
    });
    compared.map(Some)
}

/// How a cache in GPU memory compares with the hottest rows there, if that is asked for.
fn compare_on_gpu(
    args: &PlanArgs,
    shapes: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    context: &Context,
) -> Result<Option<GpuCacheComparison>, Failure> {
    let Some(bytes) = args.gpu_cache else { return Ok(None) };
    let compared = watched(args, trace.queries(), context, |watch| {
        warprow_plan::compare_gpu_cache(shapes, trace, options, bytes, watch)
    });
    compared.map(Some)
}

/// Does work that goes through the trace, and shows how far it is.
fn watched<T>(
    args: &PlanArgs,
    queries: u64,
    context: &Context,
    work: impl FnOnce(&mut ProposalWatch<'_>) -> Result<T, ProposalError>,
) -> Result<T, Failure> {
    let bar = context.screen.bar("planning", queries, Unit::Things);
    let done = work(&mut |progress| {
        bar.set_message(progress.what);
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    done.map_err(|error| match error {
        ProposalError::Stopped => context.interrupt.failure(),
        error => keyed_instead(error, !args.drives.is_empty()),
    })
}

/// Writes a file as a whole, or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail = |error: &std::io::Error| Failure::io(path.display().to_string(), "cannot be written", error);
    let new = file::replacing(path)?;
    let written = new.file().write_all(bytes).and_then(|()| new.file().sync_all());
    written.and_then(|()| new.persist(true)).map_err(|error| fail(&error))
}
