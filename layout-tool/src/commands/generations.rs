//! `warprow generations`, `switch`, `drop` and `compact`.

use clap::Args;
use serde_json::json;
use warprow_store::OpenOptions;

use super::Done;
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use crate::report::table;
use crate::units;

/// List the generations of a store: what is found by name, and what stands by
///
/// Each load is a generation. `load --beside` makes one that stands by until `switch`; the one before stands by then, until it
/// is switched back to, or dropped.
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
#[derive(Debug, Args)]
pub struct DropArgs {
    /// The generation's id
    generation: u64,
    #[command(flatten)]
    drives: DriveArgs,
}

/// Bring updated rows into the chunks of their generation, and empty its log
///
/// Chunks that hold updated rows are copied; the old ones are free then.
#[derive(Debug, Args)]
pub struct CompactArgs {
    /// The generation's id [default: every one that has a log]
    generation: Option<u64>,
    #[command(flatten)]
    drives: DriveArgs,
}

pub(crate) fn list(args: &GenerationsArgs) -> Result<Done, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let generations = store.generations();
    let rows: Vec<_> = generations
        .iter()
        .map(|it| {
            json!({
                "id": it.id, "model": it.model, "tables": it.tables, "found": it.found, "standby": it.shown == 0,
                "bytes": it.bytes,
            })
        })
        .collect();
    let text = table(
        [">id", "model", ">tables", ">found by name", ">bytes", ""],
        generations.iter().map(|it| {
            [
                it.id.to_string(),
                it.model.clone(),
                it.tables.len().to_string(),
                it.found.len().to_string(),
                units::bytes(it.bytes),
                if it.shown == 0 { "standby".to_owned() } else { String::new() },
            ]
        }),
    );
    Done::new(text, json!({ "generations": rows }))
}

pub(crate) fn switch(args: &SwitchArgs) -> Result<Done, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    store.switch(args.generation, args.allow_vanishing)?;
    let text = format!("Generation {} is found by name now.", args.generation);
    Done::new(text, json!({ "generation": args.generation }))
}

pub(crate) fn drop(args: &DropArgs) -> Result<Done, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    store.drop_generation(args.generation)?;
    let text = format!("Generation {} is gone; {} are free.", args.generation, units::bytes(store.free_bytes()));
    Done::new(text, json!({ "generation": args.generation, "free_bytes": store.free_bytes() }))
}

pub(crate) fn compact(args: &CompactArgs) -> Result<Done, Failure> {
    let store = drives::open(&args.drives, &OpenOptions::default())?;
    let ids = match args.generation {
        Some(id) => vec![id],
        None => store.generations().iter().map(|it| it.id).collect(),
    };
    let mut chunks = 0;
    for id in ids {
        chunks += store.compact(id)?;
    }
    Done::new(format!("{} copied.", units::plural(chunks as u64, "chunk")), json!({ "chunks": chunks }))
}
