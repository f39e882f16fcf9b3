//! `warprow load`.

mod arguments;
mod conversion;
mod default_row;
mod json;
mod keys;
mod ordering;
mod outline;
mod prepare;
mod results;
mod sources;
mod target;
mod text;
mod work;

pub use arguments::LoadArgs;
pub(crate) use keys::name_keys;

use super::{CommandOutput, Context};
use crate::failure::Failure;
use crate::lba::{self, Choice};
use prepare::Prepared;
use results::Results;
use sources::Sources;
use target::Target;

pub(crate) fn run(args: &LoadArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let files = sources::open(args)?;
    let sources = Sources::choose(args, &files)?;
    let target = Target::open(args, &files, &sources)?;
    // Whether there is room is said before keys are read and ids counted, which may take minutes.
    target.check_room(args, &sources, None)?;
    context.interrupt.check()?;
    let keys = keys::read_all(args, &sources.chosen, context)?;
    // Now it is known which tables have an index besides. That is said before it is built, and ids are counted.
    target.check_room(args, &sources, Some(&keys))?;
    let Sources { chosen, hotness, proposal } = sources;
    let (prepared, notes) = prepare::all(args, chosen, &hotness, proposal.as_ref(), &target, &keys, context)?;
    let replaced = match args.beside {
        true => Vec::new(),
        false => prepared.iter().filter_map(|prepared| target.store.table(&prepared.spec.name)).collect(),
    };
    let lba = if args.lba.is_some() { best_lba(&prepared, &target)? } else { None };
    let lba_bytes = target.store.inspect().0.lba_size;
    let ended = work::run(args, &target, &prepared, context)?;
    let skipped = files.iter().flat_map(|file| &file.skipped).collect();
    let results = Results { prepared: &prepared, hotness: &hotness, notes, skipped, replaced, lba, lba_bytes, ended };
    CommandOutput::new(text::text(args, &results), json::json(args, &results))
}

/// The LBA size that suits the tables as they will be stored, on drives that read as the store's do.
fn best_lba(prepared: &[Prepared<'_>], target: &Target) -> Result<Option<Choice>, Failure> {
    let curves: Vec<_> = target.store.measure_reads()?.into_iter().flatten().collect();
    let row = |prepared: &Prepared<'_>| Some((prepared.spec.dtype.row_bytes(prepared.spec.dim)?, prepared.spec.rows));
    let rows = prepared.iter().filter_map(row).map(|(bytes, count)| lba::Rows { bytes, count, ids: lba::IDS });
    let offers = lba::SIZES.map(|lba_bytes| lba::Offer { lba_bytes, performance: 0 });
    Ok(Choice::new(&rows.collect::<Vec<_>>(), &offers, &curves))
}
