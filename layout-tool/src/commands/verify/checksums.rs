//! Comparing tables with the checksums that were stored with them.

use warprow_store::{TableInfo, Verifier};

use super::finding::{Finding, interrupted};
use crate::commands::Context;
use crate::failure::{Class, Failure};
use crate::screen::Unit;

/// Against the checksums that were stored.
pub(super) fn check(
    verifier: &mut Verifier<'_>,
    table: TableInfo,
    standby: bool,
    context: &Context,
) -> Result<Finding, Failure> {
    let bar = context.screen.bar(format!("reading {}", table.name), table.rows, Unit::Things);
    let verified = verifier.verify_in(table.generation, &table.name, &mut |rows| {
        bar.set_position(rows);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    let verified = verified.map_err(|error| interrupted(error, context))?;
    Ok(Finding {
        against: verified.checked.then(|| "checksums".to_owned()),
        keys: verified.checked_keys,
        rows: verified.rows,
        bytes: verified.bytes,
        differing: verified.damaged,
        first: verified.first_damaged,
        damage: verified.damaged_ranks.or(verified.damaged_keys).map(|damage| {
            Failure::new(Class::Store, &table.name, damage).remedy("load the table again, with --replace")
        }),
        bad: verified.bad,
        standby,
        ..Finding::new(table)
    })
}
