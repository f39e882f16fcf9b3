//! `warprow generations`, `switch`, `drop` and `compact`.

use std::collections::HashMap;

use clap::Args;
use serde_json::json;
use warprow_store::{OpenOptions, Store, StoreError};
use warprow_workload::units;

use super::CommandOutput;
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use crate::pending::{self, Pending};
use crate::report::table;
use crate::store_failure::of_compaction;

/// List the generations of a store: what is found by name, and what stands by
///
/// Each load is a generation. `load --beside` makes one that stands by until `switch`; the one before stands by then, until it
/// is switched back to, or dropped. Of each its updates are shown that only its log has, and what `compact` would do with them: the
/// chunks that it would copy, or write if keys were created, and whether enough are free.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow load -d emulated:a.drive monday.safetensors --all --model ctr --beside
  warprow generations -d emulated:a.drive
  warprow switch 7 -d emulated:a.drive
  warprow drop 6 -d emulated:a.drive")]
pub struct GenerationsArgs {
    #[command(flatten)]
    drives: DriveArgs,
}

/// Make names of tables mean those of another generation
///
/// In one commit: after a power cut it is the one or the other. Other generations of the same model stand by then, and can be
/// switched back to. Tables that would be found no more are an error.
#[derive(Debug, Args)]
pub struct SwitchArgs {
    /// The generation's id
    generation: u64,
    #[command(flatten)]
    drives: DriveArgs,
    /// Tables that the new generation lacks may vanish
    #[arg(long)]
    allow_vanishing: bool,
}

/// Drop a generation that stands by
///
/// The rows of the generation are lost, and so are updates that only its log has. No free chunk is needed for this.
#[derive(Debug, Args)]
pub struct DropArgs {
    /// The generation's id
    generation: u64,
    #[command(flatten)]
    drives: DriveArgs,
    /// Drop it also where its tables are found by name: each name means the table of the generation that was shown before it,
    /// if one has it, and else is gone
    #[arg(long)]
    allow_vanishing: bool,
}

/// Bring updated rows into the chunks of their generation, and empty its log
///
/// Chunks that hold updated rows are copied; the old ones are free then. One free chunk is enough, for which updates leave
/// room; where keys were created, it takes as many as the whole generation. A generation that cannot be compacted does not keep
/// the others from it.
#[derive(Debug, Args)]
pub struct CompactArgs {
    /// The generation's id [default: every one that has a log]
    generation: Option<u64>,
    #[command(flatten)]
    drives: DriveArgs,
}

pub(crate) fn list(args: &GenerationsArgs) -> Result<CommandOutput, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let generations = store.generations();
    let pending = pending::of_store(&store, &generations);
    let of = |id: u64| pending.iter().find(|pending| pending.generation() == id);
    let rows: Vec<_> = generations
        .iter()
        .map(|generation| {
            json!({
                "id": generation.id, "model": generation.model, "tables": generation.tables, "found": generation.found, "standby": generation.shown == 0,
                "bytes": generation.bytes, "pending": of(generation.id).map(Pending::json),
            })
        })
        .collect();
    let mut text = table(
        [">id", "model", ">tables", ">found by name", ">bytes", "", ">updates", "log", "compaction"],
        generations.iter().map(|generation| {
            let words = |words: fn(&Pending) -> String| of(generation.id).map(words).unwrap_or_default();
            [
                generation.id.to_string(),
                generation.model.clone(),
                generation.tables.len().to_string(),
                generation.found.len().to_string(),
                units::bytes(generation.bytes),
                if generation.shown == 0 { "standby".to_owned() } else { String::new() },
                words(Pending::updates),
                words(Pending::log),
                words(Pending::compaction),
            ]
        }),
    );
    if let Some(remedy) = pending.iter().find_map(Pending::remedy) {
        text += &format!("\nFor a compaction that has no room: {remedy}");
    }
    let mut done = CommandOutput::new(text, json!({ "generations": rows }))?;
    done.failure = pending.iter().find_map(Pending::failure).cloned();
    Ok(done)
}

pub(crate) fn switch(args: &SwitchArgs) -> Result<CommandOutput, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    store.switch(args.generation, args.allow_vanishing)?;
    let text = format!("Generation {} is found by name now.", args.generation);
    CommandOutput::new(text, json!({ "generation": args.generation }))
}

pub(crate) fn drop(args: &DropArgs) -> Result<CommandOutput, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    let found = || {
        store
            .generations()
            .into_iter()
            .flat_map(|generation| generation.found.into_iter().map(move |name| (name, generation.id)))
    };
    let before: Vec<(String, u64)> = found().filter(|pair| pair.1 == args.generation).collect();
    match args.allow_vanishing {
        true => store.drop_shown_generation(args.generation)?,
        false => store.drop_generation(args.generation)?,
    }
    let now: HashMap<String, u64> = found().collect();
    let (uncovered, vanished): (Vec<_>, Vec<_>) = before.iter().partition(|(name, _)| now.contains_key(name));
    let mut text = format!("Generation {} is gone; {} are free.", args.generation, units::bytes(store.free_bytes()));
    if !vanished.is_empty() {
        text += &format!("\nNo longer found by name: {}.", names(&vanished));
    }
    for (name, _) in &uncovered {
        text += &format!("\nThe name {name:?} means the table of generation {} now.", now.get(name).unwrap_or(&0));
    }
    let vanished: Vec<&String> = vanished.iter().map(|pair| &pair.0).collect();
    let uncovered: HashMap<&String, Option<&u64>> = uncovered.iter().map(|pair| (&pair.0, now.get(&pair.0))).collect();
    CommandOutput::new(
        text,
        json!({
            "generation": args.generation, "free_bytes": store.free_bytes(), "vanished": vanished, "uncovered": uncovered,
        }),
    )
}

fn names(tables: &[&(String, u64)]) -> String {
    tables.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

pub(crate) fn compact(args: &CompactArgs) -> Result<CommandOutput, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    let ids = match args.generation {
        Some(id) => vec![id],
        None => store.generations().iter().map(|generation| generation.id).collect(),
    };
    let mut done = Vec::new();
    let mut failed = compact_each(&store, &ids, &mut done);
    // What one gave back may be what another needs.
    let mut before = 0;
    while !failed.is_empty() && done.len() > before {
        before = done.len();
        let left: Vec<u64> = failed.iter().map(|pair| pair.0).collect();
        failed = compact_each(&store, &left, &mut done);
    }
    let chunks: usize = done.iter().map(|pair| pair.1).sum();
    let compacted: Vec<_> = done.iter().map(|(id, chunks)| json!({ "generation": id, "chunks": chunks })).collect();
    if let Some((id, error)) = failed.into_iter().next() {
        let failure = of_compaction(error);
        let message = format!("generation {id} was not compacted: {}", failure.message);
        return Err(Failure { message, ..failure }.detail("compacted", compacted));
    }
    CommandOutput::new(
        format!("{} copied.", units::plural(chunks as u64, "chunk")),
        json!({ "chunks": chunks, "compacted": compacted }),
    )
}

/// Compacts these generations, and adds the chunks that were copied of each to `done`; those that failed, and why.
fn compact_each(store: &Store, ids: &[u64], done: &mut Vec<(u64, usize)>) -> Vec<(u64, StoreError)> {
    let mut failed = Vec::new();
    for &id in ids {
        match store.compact(id) {
            Ok(chunks) => done.push((id, chunks)),
            Err(error) => failed.push((id, error)),
        }
    }
    failed
}
