//! `warprow scrub`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warprow_formats::open_regular;
use warprow_soft_controller::parse_size;
use warprow_store::{DamagedUnit, OpenOptions, Pace, ScrubOptions, ScrubPosition, ScrubReport};
use warprow_workload::units;

use super::{CommandOutput, Context};
use crate::damage;
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file;
use crate::screen::Unit;

/// The slowest rate: less, and a single read would take seconds.
const SLOWEST: u64 = 1_000_000;
/// Time between two states that are kept.
const KEEP: Duration = Duration::from_secs(2);

/// Read everything on the drives, as slowly as wanted, and report every part that has gone bad
///
/// All generations are read, those that stand by too: rows, permutations, keys, logs of updates, and every copy of the superblocks
/// and the catalogue. Nothing is written to the drives. What can be mended from copies, `warprow repair` mends.
///
/// With --state it can be stopped and goes on where it was: the file keeps what was found so far, and is removed when the scrub
/// is through.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow scrub -d emulated:a.drive
  warprow scrub -d 0000:41:00.0 -d 0000:42:00.0 --rate 200MB --state /var/lib/warprow/scrub.json --json
  warprow scrub -d emulated:a.drive --share 10%

Exit codes: 0 everything that could be checked is sound; 5 rows are not what was written; 6 permutations, keys, logs or \
metadata are damaged; 7 a drive cannot read some of it; the worst counts, 7 before 6 before 5, but for metadata that \
`warprow repair` mends. 130 and 143: stopped; with --state, the same command goes on. All are in `warprow --help`.")]
pub struct ScrubArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Read so many bytes a second of all drives together, at most; 1MB at least
    #[arg(long, value_name = "SIZE", value_parser = parse_rate, conflicts_with = "share")]
    rate: Option<u64>,
    /// Read only in this part of the time, and rest in the remainder
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    share: Option<f64>,
    /// Keep in this file how far it is, and go on from there
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

fn parse_rate(text: &str) -> Result<u64, String> {
    let rate = parse_size(text.trim_end_matches("/s")).map_err(|error| error.to_string())?;
    if rate >= SLOWEST { Ok(rate) } else { Err("give 1MB a second or more, or --share".to_owned()) }
}

fn parse_share(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.trim_end_matches('%').parse().ok();
    percent
        .filter(|percent| (0.1..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "give a percentage from 0.1 to 100".to_owned())
}

/// How far a scrub is, as its file has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// The version of this file's format.
    scrub: u32,
    /// The store.
    store: String,
    position: ScrubPosition,
    rows: u64,
    bytes: u64,
    checked_rows: u64,
    transient: u64,
    /// All but metadata, which every run reads again.
    bad: Vec<DamagedUnit>,
    /// Bad places beyond those.
    #[serde(default)]
    unlisted: u64,
}

const VERSION: u32 = 1;
/// Bytes of a state's file, at most; a scrub lists only so many bad places that none comes near.
const MAX_STATE: u64 = 64 << 20;

impl State {
    /// What the file has; `None`: there is none.
    fn read(path: &Path, store: &str) -> Result<Option<Self>, Failure> {
        let subject = || path.display().to_string();
        file::refuse_special(path)?;
        let file = match open_regular(path) {
            Ok(file) => file,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let unreadable = |error: std::io::Error| Failure::io(subject(), "cannot be read", &error);
        let wrong =
            |what: String| Failure::input(subject(), what).remedy("remove it to begin anew, or give another name");
        if file.metadata().map_err(unreadable)?.len() > MAX_STATE {
            return Err(wrong(format!("is no state of a scrub: it has more than {}", units::bytes(MAX_STATE))));
        }
        let mut text = Vec::new();
        file.take(MAX_STATE).read_to_end(&mut text).map_err(unreadable)?;
        let state: Self =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("is no state of a scrub: {error}")))?;
        match () {
            () if state.scrub != VERSION => {
                Err(wrong(format!("is of another version of this command: {}", state.scrub)))
            }
            () if state.store != store => {
                Err(wrong(format!("is of a scrub of store {}, this is store {store}", state.store)))
            }
            () => Ok(Some(state)),
        }
    }

    /// Puts it into the file, whole or not at all.
    fn keep(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io(path.display().to_string(), "cannot be written", &error);
        let mut text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        let new = file::replacing(path)?;
        new.file().write_all(&text).and_then(|()| new.file().sync_all()).map_err(failed)?;
        new.persist(true).map_err(failed)
    }
}

pub(crate) fn run(args: &ScrubArgs, context: &Context) -> Result<CommandOutput, Failure> {
    drives::refuse_attached(&args.drives)?;
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let id = store.inspect().0.store.to_string();
    let resumed = match &args.state {
        Some(path) => State::read(path, &id)?,
        None => None,
    };
    let goes_on = resumed.is_some();
    let mut state = resumed.unwrap_or(State {
        scrub: VERSION,
        store: id,
        position: ScrubPosition::default(),
        rows: 0,
        bytes: 0,
        checked_rows: 0,
        transient: 0,
        bad: Vec::new(),
        unlisted: 0,
    });
    // That it can be written is known before hours have passed.
    if let Some(path) = &args.state {
        state.keep(path)?;
    }
    let pace = args.rate.map(Pace::BytesPerSecond).or(args.share.map(Pace::Share));
    let options = ScrubOptions::default().with_from(state.position);
    let options = pace.into_iter().fold(options, ScrubOptions::with_pace);
    let bar = context.screen.bar("scrubbing", 0, Unit::Bytes);
    let before = state.clone();
    let began = Instant::now();
    let mut kept = Instant::now();
    let mut unkept = None;
    let mut metadata = Vec::new();
    let scrubbed = store.scrub(&options, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.bytes);
        for unit in progress.found {
            let list = if unit.table.is_some() { &mut state.bad } else { &mut metadata };
            // The table that a scrub was stopped in may have been told before.
            if !list.contains(unit) {
                list.push(unit.clone());
            }
        }
        if let Some(path) = &args.state
            && progress.position > state.position
        {
            (state.position, state.rows, state.bytes) =
                (progress.position, before.rows + progress.rows, before.bytes + progress.read);
            (state.checked_rows, state.transient) =
                (before.checked_rows + progress.checked_rows, before.transient + progress.transient);
            if kept.elapsed() > KEEP {
                kept = Instant::now();
                unkept = state.keep(path).err();
            }
        }
        if unkept.is_some() { std::ops::ControlFlow::Break(()) } else { context.interrupt.flow() }
    });
    bar.finish_and_clear();
    if let Some(failure) = unkept {
        return Err(failure);
    }
    let scrubbed = scrubbed?;
    let seconds = began.elapsed().as_secs_f64();
    (state.rows, state.bytes) = (before.rows + scrubbed.rows, before.bytes + scrubbed.bytes);
    state.checked_rows = before.checked_rows + scrubbed.checked_rows;
    state.transient = before.transient + scrubbed.transient;
    state.unlisted = before.unlisted + scrubbed.unlisted;
    let mut bad = metadata;
    bad.extend(state.bad.iter().cloned());
    match (&args.state, scrubbed.next) {
        (Some(path), Some(next)) => {
            state.position = next;
            state.keep(path)?;
        }
        (Some(path), None) => {
            std::fs::remove_file(path)
                .map_err(|error| Failure::io(path.display().to_string(), "cannot be removed", &error))?;
        }
        (None, _) => {}
    }
    report(&state, &bad, &scrubbed, goes_on, seconds, context, args)
}

fn report(
    state: &State,
    bad: &[DamagedUnit],
    scrubbed: &ScrubReport,
    goes_on: bool,
    seconds: f64,
    context: &Context,
    args: &ScrubArgs,
) -> Result<CommandOutput, Failure> {
    let stopped = scrubbed.next.is_some();
    let read = scrubbed.bytes;
    let unchecked = state.rows - state.checked_rows.min(state.rows);
    let rate = if seconds > 0.0 { (read as f64 / seconds) as u64 } else { 0 };
    let mut text = format!(
        "Read {} of rows, {}, at {}/s{}: {}.",
        units::count(state.rows),
        units::bytes(state.bytes),
        units::bytes(rate),
        if stopped { ", and was stopped" } else { "" },
        if bad.is_empty() {
            "nothing is damaged".to_owned()
        } else {
            units::plural(bad.len() as u64 + state.unlisted, "bad place")
        },
    )
    .replace(" of rows", if state.rows == 1 { " row" } else { " rows" });
    if unchecked > 0 {
        text += &format!(
            "\nOf {} the drives can read them, and no more is known: load with --row-crc.",
            units::plural(unchecked, "row")
        );
    }
    if state.transient > 0 {
        text += &format!(
            "\n{} read wrong once, and right when read again: look at memory, cables and the bus.",
            units::plural(state.transient, "row")
        );
    }
    if !bad.is_empty() {
        text += &format!("\n{}", damage::text(bad));
    }
    if !scrubbed.unfinished.is_empty() {
        text += &format!("\n{}", damage::unfinished_text(&scrubbed.unfinished));
    }
    let object = json!({
        "store": state.store,
        "complete": !stopped,
        "resumed": goes_on,
        "position": if stopped { serde_json::to_value(state.position).unwrap_or(Value::Null) } else { Value::Null },
        "rows": state.rows,
        "bytes": state.bytes,
        "checked_rows": state.checked_rows,
        "unchecked_rows": unchecked,
        "transient": state.transient,
        "seconds": seconds,
        "bytes_per_second": rate,
        "bad_units": bad.len() as u64 + state.unlisted,
        "unlisted": state.unlisted,
        "bad": bad.iter().map(damage::json).collect::<Vec<_>>(),
        "unfinished_commit": scrubbed.unfinished.iter().map(damage::json).collect::<Vec<_>>(),
    });
    let mut done = CommandOutput::new(text, object)?;
    done.failure = match stopped {
        true => {
            let failure = context.interrupt.failure();
            Some(match &args.state {
                Some(path) => Failure { message: "stopped".to_owned(), ..failure }
                    .remedy(format!("the same command goes on; {} has how far it is", path.display())),
                None => failure.remedy("with --state FILE it can go on where it was stopped"),
            })
        }
        false => damage::failure(bad),
    };
    if stopped && let Some(found) = damage::failure(bad).filter(|failure| failure.class != Class::Interrupted) {
        done.failure = done.failure.map(|failure| failure.detail("found", found.message));
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_are_read_and_bounded() {
        assert_eq!(parse_rate("200MB"), Ok(200_000_000));
        assert_eq!(parse_rate("1GiB/s"), Ok(1 << 30));
        assert!(parse_rate("999kB").unwrap_err().contains("1MB"));
        assert_eq!(parse_share("25%"), Ok(0.25));
        assert_eq!(parse_share("0.5"), Ok(0.005));
        for text in ["0", "101%", "NaN", "-5", "x", ""] {
            parse_share(text).unwrap_err();
        }
    }
}
