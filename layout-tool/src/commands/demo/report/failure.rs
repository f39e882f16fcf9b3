//! The worst that happened in the demo.

use warprow_workload::units;

use crate::commands::Context;
use crate::commands::demo::cold::Cold;
use crate::commands::demo::replay::Outcome;
use crate::commands::demo::results::Results;
use crate::commands::demo::warprow::STRUCK;
use crate::failure::{Class, Failure};

/// The worst that happened.
pub(super) fn failure(results: &Results, context: &Context) -> Option<Failure> {
    let rivals = results.rivals.iter().filter_map(|(rival, outcome)| Some((rival.name(), outcome.as_ref().ok()?)));
    let mut outcomes = std::iter::once(("warprow", &results.ours)).chain(rivals);
    outcomes
        .find_map(|(name, outcome)| of_contender(name, outcome, results, context))
        .or_else(|| of_cold(results.cold.as_ref()?, context))
        .or_else(|| nothing_injected(results))
        .or_else(|| nothing_found(&results.ours))
}

fn stopped(context: &Context) -> Failure {
    context.interrupt.failure().remedy("what was measured until then is printed")
}

fn of_contender(name: &str, outcome: &Outcome, results: &Results, context: &Context) -> Option<Failure> {
    if let Some(mismatch) = &outcome.mismatch {
        let what = format!("{name}, batch {}: {mismatch}", outcome.batches);
        let remedy = match results.injected {
            Some(1..) => "that is what --inject corrupt was for: the drive flipped a bit, and it was found",
            _ => "the drive, the memory or Warprow is at fault: please report it",
        };
        return Some(Failure::new(Class::Mismatch, name, what).remedy(remedy));
    }
    if outcome.interrupted {
        return Some(stopped(context));
    }
    let unchecked = !outcome.verified() && name == "warprow";
    unchecked.then(|| Failure::new(Class::Bug, name, "no row was compared").remedy("please report it"))
}

fn of_cold(cold: &Result<Cold, String>, context: &Context) -> Option<Failure> {
    let Ok(cold) = cold else { return context.interrupt.is_asked().then(|| stopped(context)) };
    if let Some((who, mismatch)) = &cold.mismatch {
        let what = format!("{}, of rows that were not in the page cache: {mismatch}", who.name());
        let remedy = "the disk, the memory or Warprow is at fault: please report it";
        return Some(Failure::new(Class::Mismatch, who.name(), what).remedy(remedy));
    }
    cold.interrupted.then(|| stopped(context))
}

/// A fault was to be injected, and there was no read that it could have struck.
fn nothing_injected(results: &Results) -> Option<Failure> {
    let reads = units::plural(results.total.commands, "read");
    let what = format!("nothing was injected: a bit of read {STRUCK} would flip, and there were {reads}");
    let remedy = "have more rows read from the drive: smaller --dram, larger --batch, more --batches or --seconds";
    (results.injected == Some(0)).then(|| Failure::input("--inject", what).remedy(remedy))
}

fn nothing_found(ours: &Outcome) -> Option<Failure> {
    let what = "no id that was looked up is in the table: not a row was read";
    (ours.missing == ours.ids).then(|| Failure::input("--trace", what).remedy("check the column, and the table"))
}
