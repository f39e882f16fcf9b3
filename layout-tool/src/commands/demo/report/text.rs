//! What the demo says to people.

use std::time::Duration;

use warprow_lookup::Stage;
use warprow_workload::units::{self, short};
use warprow_workload::{KeyMapping, TableContent};

use super::cold::cold_text;
use super::figures::{CACHE, mapping_name, percentile, ratio};
use super::measured::Measured;
use crate::commands::demo::replay::Outcome;
use crate::commands::demo::results::Results;
use crate::commands::demo::warprow;
use crate::report::table;

pub(super) fn text(measured: &Measured<'_>) -> String {
    let Measured { args, results, machine, .. } = measured;
    let mut text = surroundings(measured) + &mapping(measured) + &replayed(measured);
    for note in notes(measured) {
        text += &format!("note       {note}\n");
    }
    let absent = absent(results);
    text += &format!("\n{}", contenders(results));
    for (reason, names) in &absent {
        text += &format!("\nwithout    {names}: {reason}");
    }
    text += &match &results.cold {
        None => String::new(),
        Some(Err(reason)) => format!("\n\nfrom disk  left out: {reason}"),
        Some(Ok(cold)) => cold_text(cold, &absent),
    };
    text += &format!("\n\n{}", work(results));
    if let Some(path) = &args.keep {
        text += &format!("kept       {}: warprow inspect -d emulated:{}\n", path.display(), path.display());
    }
    if machine.is_busy() {
        text += "note       the machine is busy with other work: take the figures with care\n";
    }
    text + &format!("all of it  {}", units::time(results.elapsed))
}

/// The table, the trace, the drive, the machine and the load.
fn surroundings(measured: &Measured<'_>) -> String {
    let Measured { workload, place, results, machine, .. } = measured;
    let load = &results.load;
    format!(
        "table      {}\ntrace      {}\ndrive      {} ({}), {CACHE}\nmachine    {machine}\n\
         loaded     {} in {}, {}/s; {} of {} rows in memory\n",
        workload.table,
        workload.trace,
        place.shown,
        place.filesystem,
        units::bytes(load.bytes),
        units::time(load.elapsed),
        units::bytes((load.bytes as f64 / load.elapsed.as_secs_f64().max(1e-9)) as u64),
        units::count(results.dram_rows),
        units::count(workload.truth.rows()),
    )
}

/// How keys of a trace became ids, if there is one.
fn mapping(measured: &Measured<'_>) -> String {
    let Some((mapping, share)) = measured.workload.mapped else { return String::new() };
    let mut text = format!(
        "mapping    {}: {} distinct keys; {} of {} ids ({:.1}%) are not in the table and get its default row\n",
        mapping_name(mapping),
        units::count(share.distinct),
        units::count(share.missing),
        units::count(share.ids),
        share.part() * 100.0
    );
    if mapping == KeyMapping::Strict && share.missing > 0 {
        text += "           try --map dense or --map modulo\n";
    }
    text
}

fn replayed(measured: &Measured<'_>) -> String {
    let ours = &measured.results.ours;
    let verdict = match (ours.verified(), ours.interrupted) {
        (true, false) => "every row right, bit for bit",
        (true, true) => "every row right, bit for bit; INTERRUPTED",
        (false, _) => "NOT VERIFIED",
    };
    format!(
        "replayed   {} of {} in {} of look-ups; {} compared: {verdict}\n",
        units::plural(ours.batches, "batch"),
        units::plural(measured.workload.batch as u64, "id"),
        units::time(ours.time),
        units::plural(ours.checked, "row"),
    )
}

/// A line for each contender, and for how long each was timed.
fn contenders(results: &Results) -> String {
    let ours = &results.ours;
    let line = |name: &str, outcome: &Outcome, threads: &str| {
        let us = |percent| units::time(Duration::from_secs_f64(percentile(outcome, percent) / 1e6));
        let ratio = ours.ids_per_second() / outcome.ids_per_second().max(1e-9);
        [
            name.to_owned(),
            short(outcome.ids_per_second()),
            us(50.0),
            us(99.0),
            us(99.9),
            threads.to_owned(),
            format!("{ratio:.2}"),
            format!("{:.2}", percentile(outcome, 50.0) / percentile(ours, 50.0).max(1e-9)),
        ]
    };
    let ran = results.rivals.iter().filter_map(|(rival, outcome)| Some((rival, outcome.as_ref().ok()?)));
    let ran: Vec<_> = ran.filter(|(_, outcome)| outcome.batches > 0).collect();
    let rivals = ran.iter().map(|(rival, outcome)| line(rival.name(), outcome, rival.threads()));
    let lines = std::iter::once(line("warprow", ours, warprow::THREADS)).chain(rivals);
    let head = ["contender", ">ids/s", ">p50", ">p99", ">p99.9", "threads", ">warprow is × as fast", ">by p50"];
    let mut text = table(head, lines);
    let times = || ran.iter().map(|(_, outcome)| outcome.time);
    if let (Some(shortest), Some(longest)) = (times().min(), times().max()) {
        let ours = units::time(ours.time);
        let shortest = units::time(shortest);
        let longest = units::time(longest);
        let rivals = if shortest == longest { longest } else { format!("{shortest} to {longest}") };
        text += &format!("\ntimed      {ours} of look-ups of warprow, {rivals} of each rival, in turns");
    }
    text
}

/// Why rivals could not take part, and which: those with one reason together.
fn absent(results: &Results) -> Vec<(String, String)> {
    let mut absent: Vec<(String, String)> = Vec::new();
    for (rival, outcome) in &results.rivals {
        let Err(reason) = outcome else { continue };
        match absent.iter_mut().find(|(it, _)| it == reason) {
            Some((_, names)) => *names += &format!(" and {}", rival.name()),
            None => absent.push((reason.clone(), rival.name().to_owned())),
        }
    }
    absent
}

/// What look-ups did.
fn work(results: &Results) -> String {
    let ours = &results.ours;
    let total = &results.total;
    format!(
        "a batch    {:.0} different rows: {:.0} from memory, {:.0} from the drive by {:.0} commands\n\
         commands   {}: {:.2} rows and {:.4} doorbells each; {} read for {} of rows\n\
         stages     {}\n",
        ratio(total.unique, ours.batches),
        ratio(total.rows_dram, ours.batches),
        ratio(total.rows_ssd, ours.batches),
        ratio(total.commands, ours.batches),
        units::count(total.commands),
        ratio(total.rows_ssd, total.commands),
        ratio(total.sq_doorbells, total.commands),
        units::bytes(total.bytes_read),
        units::bytes(total.bytes_needed),
        stages(results),
    )
}

/// What the figures do not say by themselves.
fn notes(measured: &Measured<'_>) -> Vec<String> {
    let Measured { args, workload, results, .. } = measured;
    let ours = &results.ours;
    let mut notes = Vec::new();
    if ours.missing * 2 > ours.ids {
        let percent = 100.0 * ratio(ours.missing, ours.ids);
        notes.push(format!(
            "{percent:.1}% of the rows compared are the default row, of ids that the table does not have"
        ));
    }
    if workload.batch < args.batch {
        let ids = units::count(args.batch as u64);
        notes.push(format!("the second half of the trace is shorter than a batch of {ids} ids: it is the batch"));
    }
    if let Some(ids) = workload.trace_ids()
        && ours.ids > ids
    {
        notes.push(format!("the second half of the trace was replayed {:.1} times over", ratio(ours.ids, ids)));
    }
    if matches!(results.injected, Some(1..)) && ours.mismatch.is_none() {
        notes.push("the drive flipped a bit of a read, among bytes that no row needed".to_owned());
    }
    notes
}

fn stages(results: &Results) -> String {
    let all: f64 = results.total.stages.iter().map(Duration::as_secs_f64).sum();
    let share = |stage: Stage| {
        let time = results.total.stages.get(stage as usize).map_or(0.0, Duration::as_secs_f64);
        format!("{} {:.0}%", stage.name(), 100.0 * time / all.max(1e-12))
    };
    Stage::ALL.map(share).join(", ")
}
