//! Each table as it will be: its shape, the order of its rows, its index of keys, its default row.

use warprow_layout::{Ranks, RowOrder, TableKeys, TableKeysError, TableSpec};
use warprow_plan::{ProposalFile, ranks_of};

use super::arguments::LoadArgs;
use super::default_row::default_row;
use super::ordering::{Indexed, count, index, inherit};
use super::outline::outline;
use super::target::Target;
use crate::commands::Context;
use crate::failure::Failure;
use crate::hotness::{Hot, Hotness, Rows, Share};
use crate::inherited::Inherited;
use crate::keyed::{RowNames, of_keys};
use crate::select::Chosen;

/// A table that is ready to be loaded.
pub(super) struct Prepared<'a> {
    pub(super) chosen: Chosen<'a>,
    pub(super) spec: TableSpec,
    /// The ids that the file's rows belong to, if not the ids in their order.
    pub(super) order: Option<Ranks>,
    pub(super) ranks: Option<Ranks>,
    /// The table's keys, if it is looked up by keys.
    pub(super) keyed: Option<TableKeys<'a>>,
    /// What told its hotness.
    pub(super) ranked: Option<Ranked>,
    /// How much of the trace that ranked it speaks of it.
    pub(super) trace: Option<Share>,
    /// The column of that trace.
    pub(super) column: Option<String>,
}

/// What told which rows are hot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranked {
    Hotness,
    Plan,
    /// The version before, of this generation.
    Inherited(u64),
}

/// What tells the order of a table's rows.
#[derive(Default)]
struct Telling<'a> {
    counted: Option<Hotness>,
    proposal: Option<&'a ProposalFile>,
    inherited: Option<Inherited>,
}

/// The order of a table's rows, if anything tells one.
#[derive(Default)]
struct Order {
    ranked: Option<Ranked>,
    ranks: Option<Ranks>,
    hot_rows: u64,
    trace: Option<Share>,
}

/// Prepares all tables: indexes their keys, and ranks their rows. Also returns notes about orders that could not be taken over.
pub(super) fn all<'a>(
    args: &LoadArgs,
    chosen: Vec<Chosen<'a>>,
    hotness: &[Hot],
    proposal: Option<&ProposalFile>,
    target: &Target,
    keys: &'a [RowNames<'a>],
    context: &Context,
) -> Result<(Vec<Prepared<'a>>, Vec<String>), Failure> {
    let indexed = chosen.iter().zip(keys).map(|(it, whose)| index(args.fingerprint, it, whose, context));
    let indexed = indexed.collect::<Result<Vec<_>, Failure>>()?;
    let mut counted = count(hotness, &chosen, &indexed, context)?.into_iter();
    let mut prepared = Vec::with_capacity(chosen.len());
    let mut notes = Vec::new();
    for (((chosen, whose), indexed), old) in chosen.into_iter().zip(keys).zip(indexed).zip(&target.followed) {
        let counted = counted.next().flatten();
        let rows = indexed.rows(&chosen);
        let inherited = old.as_ref().and_then(|old| inherit(&target.store, old, rows, &mut notes));
        let told = Telling { counted, proposal, inherited };
        let mut made = prepare(args, chosen, whose, indexed, told, context)?;
        let column = |hot: &Hot| Some(hot.log.as_ref()?.column_of(&made.spec.name)?.name.clone());
        made.column = hotness.iter().find_map(column);
        prepared.push(made);
    }
    Ok((prepared, notes))
}

fn prepare<'a>(
    args: &LoadArgs,
    chosen: Chosen<'a>,
    whose: &'a RowNames<'a>,
    indexed: Indexed<'a>,
    told: Telling<'_>,
    context: &Context,
) -> Result<Prepared<'a>, Failure> {
    let Order { ranked, ranks, hot_rows, trace } = told.order(&chosen, &indexed)?;
    let Indexed { index, order } = indexed;
    context.interrupt.check()?;
    let spec = outline(args, &chosen, ranked.is_some() && index.is_none())?;
    let spec = TableSpec { hot_rows, ..spec };
    let spec = TableSpec { default_row: default_row(&args.default, &chosen, &spec, whose)?, ..spec };
    let (spec, keyed, ranks) = match index {
        None => (spec, None, ranks),
        Some((index, keys)) => {
            let order = ranks.map_or(RowOrder::Given, RowOrder::Ranks);
            let keyed = TableKeys::new(index, keys, order, !args.forget_keys).map_err(|error| match error {
                TableKeysError::Build(error) => of_keys(&chosen.name, &error),
                error => Failure::input(&chosen.name, error.to_string())
                    .remedy("the file changed while it was read: let nobody write to it, and try again"),
            })?;
            (spec.keyed(&keyed), Some(keyed), None)
        }
    };
    context.interrupt.check()?;
    Ok(Prepared { chosen, spec, order, ranks, keyed, ranked, trace, column: None })
}

impl Telling<'_> {
    /// The order that it tells: a tier proposal's comes before counts, and these before the order of the version before.
    fn order(self, chosen: &Chosen<'_>, indexed: &Indexed<'_>) -> Result<Order, Failure> {
        if let Some(proposal) = self.proposal {
            let (ranks, hot_rows) = planned(proposal, chosen, indexed)?;
            return Ok(Order { ranked: Some(Ranked::Plan), ranks: Some(ranks), hot_rows, trace: None });
        }
        Ok(match (self.counted, self.inherited) {
            (Some(Hotness { ranks, trace }), _) => {
                Order { ranked: Some(Ranked::Hotness), ranks: Some(ranks), hot_rows: 0, trace }
            }
            (None, Some(Inherited { generation, ranks, hot_rows, .. })) => {
                Order { ranked: Some(Ranked::Inherited(generation)), ranks: Some(ranks), hot_rows, trace: None }
            }
            (None, None) => Order::default(),
        })
    }
}

/// The ranks that a tier proposal gives a table's rows, and how many of them belong in memory.
fn planned(proposal: &ProposalFile, chosen: &Chosen<'_>, indexed: &Indexed<'_>) -> Result<(Ranks, u64), Failure> {
    let rows = chosen.table.rows;
    let Some((index, keys)) = &indexed.index else { return Ok(proposal.ranks(&chosen.name, rows)?) };
    let (hottest, hot_rows) = proposal.keys(&chosen.name, rows)?;
    let hottest = Rows::Keys(index, *keys).rows_of(&chosen.name, &hottest)?;
    let ranks = ranks_of(rows, hottest.into_iter()).map_err(|error| {
        Failure::input(&chosen.name, format!("the plan is damaged: {error}")).remedy("make it again")
    })?;
    Ok((ranks, hot_rows))
}
