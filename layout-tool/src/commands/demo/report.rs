//! What the demo says in the end.

use std::time::Duration;

use serde_json::{Map, Value, json};
use warprow_lookup::Stage;
use warprow_workload::{Content, Machine, Mapping};

use super::arguments::DemoArgs;
use super::cold::{Cold, Line, Who};
use super::place::Place;
use super::replay::Outcome;
use super::results::Results;
use super::rivals::Rival;
use super::warprow::{self, STRUCK};
use super::workload::Workload;
use crate::commands::{Context, Done};
use crate::failure::{Class, Failure};
use crate::report::table;
use crate::units::{self, short};

/// In what state the file's pages are for every contender: written just now, and read once more.
const CACHE: &str = "page cache warm";

pub(crate) fn report(
    args: &DemoArgs,
    workload: &Workload<'_>,
    place: &Place,
    results: &Results,
    context: &Context,
) -> Result<Done, Failure> {
    let machine = Machine::this();
    let mut done =
        Done::new(text(args, workload, place, results, &machine), json(args, workload, place, results, &machine))?;
    done.failure = failure(results, context);
    Ok(done)
}

/// The worst that happened.
fn failure(results: &Results, context: &Context) -> Option<Failure> {
    let outcomes = std::iter::once(("warprow", &results.ours))
        .chain(results.rivals.iter().filter_map(|(rival, outcome)| Some((rival.name(), outcome.as_ref().ok()?))));
    for (name, outcome) in outcomes {
        if let Some(mismatch) = &outcome.mismatch {
            let what = format!("{name}, batch {}: {mismatch}", outcome.batches);
            let remedy = match results.injected {
                Some(1..) => "that is what --inject corrupt was for: the drive flipped a bit, and it was found",
                _ => "the drive, the memory or Warprow is at fault: please report it",
            };
            return Some(Failure::new(Class::Mismatch, name, what).remedy(remedy));
        }
        if outcome.interrupted {
            return Some(context.interrupt.failure().remedy("what was measured until then is printed"));
        }
        if !outcome.verified() && name == "warprow" {
            return Some(Failure::new(Class::Bug, name, "no row was compared").remedy("please report it"));
        }
    }
    if matches!(results.cold, Some(Err(_))) && context.interrupt.is_asked() {
        return Some(context.interrupt.failure().remedy("what was measured until then is printed"));
    }
    if let Some(Ok(cold)) = &results.cold {
        if let Some((who, mismatch)) = &cold.mismatch {
            let what = format!("{}, of rows that were not in the page cache: {mismatch}", who.name());
            let remedy = "the disk, the memory or Warprow is at fault: please report it";
            return Some(Failure::new(Class::Mismatch, who.name(), what).remedy(remedy));
        }
        if cold.interrupted {
            return Some(context.interrupt.failure().remedy("what was measured until then is printed"));
        }
    }
    let (ours, total) = (&results.ours, &results.total);
    if results.injected == Some(0) {
        let what = format!(
            "nothing was injected: a bit of read {STRUCK} would flip, and there were {}",
            units::plural(total.commands, "read")
        );
        let remedy = "have more rows read from the drive: smaller --dram, larger --batch, more --batches or --seconds";
        return Some(Failure::input("--inject", what).remedy(remedy));
    }
    if ours.missing == ours.ids {
        let what = "no id that was looked up is in the table: not a row was read";
        return Some(Failure::input("--trace", what).remedy("check the column, and the table"));
    }
    None
}

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

/// The time that `percent` of the batches did not pass, in microseconds.
fn percentile(outcome: &Outcome, percent: f64) -> f64 {
    outcome.latencies.percentile_us(percent)
}

fn text(args: &DemoArgs, workload: &Workload<'_>, place: &Place, results: &Results, machine: &Machine) -> String {
    let (ours, total) = (&results.ours, &results.total);
    let mut text = format!(
        "table      {}\ntrace      {}\ndrive      {} ({}), {CACHE}\nmachine    {machine}\n\
         loaded     {} in {}, {}/s; {} of {} rows in memory\n",
        workload.table,
        workload.trace,
        place.shown,
        place.filesystem,
        units::bytes(results.load.bytes),
        units::time(results.load.elapsed),
        units::bytes((results.load.bytes as f64 / results.load.elapsed.as_secs_f64().max(1e-9)) as u64),
        units::count(results.dram_rows),
        units::count(workload_rows(workload)),
    );
    if let Some((mapping, share)) = workload.mapped {
        text += &format!(
            "mapping    {}: {} distinct keys; {} of {} ids ({:.1}%) are not in the table and get its default row\n",
            mapping_name(mapping),
            units::count(share.distinct),
            units::count(share.missing),
            units::count(share.ids),
            share.part() * 100.0
        );
        if mapping == Mapping::Strict && share.missing > 0 {
            text += "           try --map dense or --map modulo\n";
        }
    }
    let verdict = match (ours.verified(), ours.interrupted) {
        (true, false) => "every row right, bit for bit",
        (true, true) => "every row right, bit for bit; INTERRUPTED",
        (false, _) => "NOT VERIFIED",
    };
    text += &format!(
        "replayed   {} {} of {} in {} of look-ups; {} compared: {verdict}\n",
        units::count(ours.batches),
        if ours.batches == 1 { "batch" } else { "batches" },
        units::plural(workload.batch as u64, "id"),
        units::time(ours.time),
        units::plural(ours.checked, "row"),
    );
    for note in notes(args, workload, results) {
        text += &format!("note       {note}\n");
    }
    text += "\n";
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
    let mut absent: Vec<(String, String)> = Vec::new();
    let mut lines = vec![line("warprow", ours, warprow::THREADS)];
    for (rival, outcome) in &results.rivals {
        lines.push(match outcome {
            Ok(outcome) if outcome.batches == 0 => continue,
            Ok(outcome) => line(rival.name(), outcome, rival.threads()),
            Err(reason) => {
                match absent.iter_mut().find(|(it, _)| it == reason) {
                    Some((_, names)) => *names += &format!(" and {}", rival.name()),
                    None => absent.push((reason.clone(), rival.name().to_owned())),
                }
                continue;
            }
        });
    }
    text +=
        &table(["contender", ">ids/s", ">p50", ">p99", ">p99.9", "threads", ">warprow is × as fast", ">by p50"], lines);
    for (reason, names) in &absent {
        text += &format!("\nwithout    {names}: {reason}");
    }
    text += &match &results.cold {
        None => String::new(),
        Some(Err(reason)) => format!("\n\nfrom disk  left out: {reason}"),
        Some(Ok(cold)) => cold_text(cold, &absent),
    };
    text += &format!(
        "\n\na batch    {:.0} different rows: {:.0} from memory, {:.0} from the drive by {:.0} commands\n\
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
    );
    if let Some(path) = &args.keep {
        text += &format!("kept       {}: warprow inspect -d emulated:{}\n", path.display(), path.display());
    }
    if machine.is_busy() {
        text += "note       the machine is busy with other work: take the figures with care\n";
    }
    text += &format!("all of it  {}", units::time(results.elapsed));
    text
}

/// The cold race. Who could not take part for a reason that was given before is not named again.
fn cold_text(cold: &Cold, absent: &[(String, String)]) -> String {
    let (rounds, ids) = (units::count(cold.rounds as u64), units::plural(cold.batch as u64, "id"));
    let verdict = match (&cold.mismatch, cold.interrupted) {
        (Some(_), _) => "NOT VERIFIED",
        (None, true) => "every row right, bit for bit; INTERRUPTED",
        (None, false) => "every row right, bit for bit",
    };
    let mut text = format!(
        "\n\nfrom disk  {rounds} batches of {ids}, each in a page that nobody has read since the page cache forgot the files;\n           \
         no rows in memory; {} compared: {verdict}\n\n",
        units::plural(cold.checked, "row")
    );
    let lines = cold.lines.iter().filter_map(|line| {
        let (ms, ratio) = (line.median_ms()?, cold.ratio(line)?);
        Some([line.who.name().to_owned(), format!("{ms:.2}"), line.who.threads().to_owned(), format!("{ratio:.2}")])
    });
    text += &table(["contender", ">ms a batch", "threads", ">warprow is × as fast"], lines);
    for line in &cold.lines {
        if let Err(reason) = &line.ms
            && !absent.iter().any(|(it, _)| it == reason)
        {
            text += &format!("\nwithout    {}: {reason}", line.who.name());
        }
    }
    let numpy = cold.lines.iter().any(|line| line.who == Who::Numpy && line.ms.is_ok());
    if let Some(bytes) = cold.read_around.filter(|_| numpy) {
        text += &format!(
            "\nnote       numpy.memmap has the kernel read {} around each row, this disk's read-ahead",
            units::bytes(bytes)
        );
    }
    text
}

/// What the figures do not say by themselves.
fn notes(args: &DemoArgs, workload: &Workload<'_>, results: &Results) -> Vec<String> {
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

fn workload_rows(workload: &Workload<'_>) -> u64 {
    workload.truth.rows()
}

fn mapping_name(mapping: Mapping) -> &'static str {
    match mapping {
        Mapping::Strict => "strict",
        Mapping::Dense => "dense",
        Mapping::Modulo => "modulo",
    }
}

fn json(args: &DemoArgs, workload: &Workload<'_>, place: &Place, results: &Results, machine: &Machine) -> Value {
    let ours = &results.ours;
    let right =
        |outcome: &Result<Outcome, String>| outcome.as_ref().map_or(true, |it| it.verified() || it.batches == 0);
    let mut object = figures(results);
    let Some(members) = object.as_object_mut() else { return object };
    let cold_right = !matches!(&results.cold, Some(Ok(Cold { mismatch: Some(_), .. })));
    let all_right = ours.verified() && results.rivals.iter().all(|(_, it)| right(it)) && cold_right;
    members.insert("verified".into(), all_right.into());
    members.insert("cold".into(), results.cold.as_ref().map_or(Value::Null, cold_json));
    members.insert("batch".into(), workload.batch.into());
    if let Value::Object(surroundings) = surroundings(args, workload, place, results, machine) {
        members.extend(surroundings);
    }
    if let Some((mapping, share)) = workload.mapped {
        members.insert("map".into(), mapping_name(mapping).into());
        members.insert("missing_share".into(), share.part().into());
        members.insert("distinct_keys".into(), share.distinct.into());
    }
    let mut reasons = Map::new();
    for rival in Rival::ALL {
        let outcome = results.rivals.iter().find(|(it, _)| *it == rival).map(|(_, outcome)| outcome);
        let rate = match outcome {
            Some(Ok(outcome)) if outcome.batches > 0 => {
                members.insert(format!("{}_p50_us", rival.key()), percentile(outcome, 50.0).into());
                members.insert(format!("{}_p99_us", rival.key()), percentile(outcome, 99.0).into());
                let times = ours.ids_per_second() / outcome.ids_per_second().max(1e-9);
                members.insert(format!("times_{}", rival.key()), times.into());
                Value::from(outcome.ids_per_second())
            }
            Some(Err(reason)) => {
                reasons.insert(rival.key().to_owned(), reason.clone().into());
                Value::Null
            }
            _ => {
                reasons.insert(rival.key().to_owned(), "did not run".into());
                Value::Null
            }
        };
        members.insert(format!("{}_ids_per_second", rival.key()), rate);
    }
    members.insert("rivals_absent".into(), reasons.into());
    object
}

/// The cold race, or why there was none.
fn cold_json(cold: &Result<Cold, String>) -> Value {
    let cold = match cold {
        Ok(cold) => cold,
        Err(reason) => return json!({ "absent": reason }),
    };
    let contender = |line: &Line| {
        let object = match &line.ms {
            Ok(ms) => json!({
                "median_ms": line.median_ms(),
                "ms": ms,
                "times": cold.ratio(line),
                "threads": line.who.threads(),
            }),
            Err(reason) => json!({ "absent": reason }),
        };
        (line.who.key().to_owned(), object)
    };
    json!({
        "batch": cold.batch,
        "rounds": cold.rounds,
        "rows_checked": cold.checked,
        "interrupted": cold.interrupted,
        "read_around_bytes": cold.read_around,
        "contenders": cold.lines.iter().map(contender).collect::<Map<_, _>>(),
    })
}

/// What was measured of us.
fn figures(results: &Results) -> Value {
    let (ours, total) = (&results.ours, &results.total);
    let stage = |(stage, time): (&Stage, Duration)| (stage.name().to_owned(), Value::from(time.as_secs_f64()));
    json!({
        "ids": ours.ids,
        "rows_checked": ours.checked,
        "batches": ours.batches,
        "seconds": ours.time.as_secs_f64(),
        "ids_per_second": ours.ids_per_second(),
        "p50_us": percentile(ours, 50.0),
        "p99_us": percentile(ours, 99.0),
        "p999_us": percentile(ours, 99.9),
        "unique": total.unique,
        "rows_dram": total.rows_dram,
        "rows_ssd": total.rows_ssd,
        "ids_dram": total.ids_dram,
        "ids_ssd": total.ids_ssd,
        "missing": total.missing,
        "commands": total.commands,
        "merges": total.merges,
        "rows_per_command": ratio(total.rows_ssd, total.commands),
        "doorbells": total.sq_doorbells,
        "doorbells_per_command": ratio(total.sq_doorbells, total.commands),
        "bytes_read": total.bytes_read,
        "bytes_needed": total.bytes_needed,
        "generation": total.generation,
        "stages_seconds": Stage::ALL.iter().zip(total.stages).map(stage).collect::<Map<_, _>>(),
        "interrupted": ours.interrupted,
        "load_bytes": results.load.bytes,
        "load_seconds": results.load.elapsed.as_secs_f64(),
        "injected": results.injected,
        "elapsed_seconds": results.elapsed.as_secs_f64(),
        "rows_in_dram": results.dram_rows,
    })
}

/// What it was measured with.
fn surroundings(
    args: &DemoArgs,
    workload: &Workload<'_>,
    place: &Place,
    results: &Results,
    machine: &Machine,
) -> Value {
    let truth = &workload.truth;
    let threads = results.rivals.iter().map(|(rival, _)| (rival.key().to_owned(), Value::from(rival.threads())));
    json!({
        "table": {
            "description": workload.table,
            "rows": truth.rows(),
            "dim": truth.dim(),
            "dtype": truth.dtype().name(),
            "bytes": truth.rows().saturating_mul(truth.row_bytes() as u64),
        },
        "trace": workload.trace,
        "alpha": args.trace.is_none().then_some(args.alpha),
        "seed": args.seed,
        "drive": place.shown,
        "filesystem": place.filesystem,
        "cache": CACHE,
        "cpu": machine.cpu,
        "cores": machine.cores,
        "kernel": machine.kernel,
        "load_average": machine.load,
        "threads": std::iter::once(("warprow".to_owned(), Value::from(warprow::THREADS))).chain(threads).collect::<Map<_, _>>(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}
