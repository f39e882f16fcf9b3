//! Writing the tables to the drives, or asking the store whether it would take them.

use warprow_formats::ConvertedRows;
use warprow_layout::RowSource;
use warprow_store::{LoadReport, StoreError, TableLoad};

use super::arguments::LoadArgs;
use super::conversion::{Loss, converted};
use super::prepare::Prepared;
use super::target::Target;
use crate::commands::Context;
use crate::failure::Failure;
use crate::screen::Unit;

/// How it ended.
pub(super) enum Ended {
    /// Nothing was changed. The generations that a load would replace.
    DryRun { superseded: Vec<u64> },
    /// The tables are on the drives.
    Loaded { report: LoadReport, lost: Vec<Loss> },
}

/// Loads the tables, unless this is a dry run.
pub(super) fn run(
    args: &LoadArgs,
    target: &Target,
    prepared: &[Prepared<'_>],
    context: &Context,
) -> Result<Ended, Failure> {
    if args.dry_run {
        let specs = prepared.iter().map(|prepared| prepared.spec.clone()).collect();
        return Ok(Ended::DryRun { superseded: target.store.check_load(&target.model, specs, &target.options)? });
    }
    load(target, prepared, context)
}

fn load(target: &Target, prepared: &[Prepared<'_>], context: &Context) -> Result<Ended, Failure> {
    let rows: Vec<_> = prepared.iter().map(|prepared| prepared.chosen.file.rows(prepared.chosen.table)).collect();
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
    let loaded = target.store.load(&target.model, &loads, &target.options, &mut |progress| {
        // How much there is to compare is known once it was.
        bar.set_length(progress.total + progress.compared);
        bar.set_position(progress.written + progress.compared);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    let report = loaded.map_err(|error| match error {
        StoreError::Interrupted => context.interrupt.failure(),
        error => error.into(),
    })?;
    let losses = prepared.iter().zip(&converted).filter_map(|(it, converted)| {
        let lost = converted.as_ref().map(ConvertedRows::lost)?;
        Some(Loss { table: it.spec.name.clone(), from: it.chosen.table.dtype, to: it.spec.dtype, lost })
    });
    Ok(Ended::Loaded { report, lost: losses.collect() })
}
