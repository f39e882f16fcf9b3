//! Updates that only logs have, for people and for programs.

use serde_json::{Value, json};
use warprow_layout::LogChunkInspection;
use warprow_store::{GenerationInfo, PendingTable, PendingUpdates, Store};
use warprow_workload::units;

use crate::failure::Failure;
use crate::store_failure::ROOM_TO_COMPACT;

/// The updates of one generation, or why they cannot be told.
pub(crate) struct Pending {
    generation: u64,
    found: Result<PendingUpdates, Failure>,
}

/// The updates of each generation that has a log.
pub(crate) fn of_store(store: &Store, generations: &[GenerationInfo]) -> Vec<Pending> {
    let of = |generation: &GenerationInfo| {
        let found = store.pending_updates(generation.id).transpose()?;
        Some(Pending { generation: generation.id, found: found.map_err(Failure::from) })
    };
    generations.iter().filter_map(of).collect()
}

/// A drive's share of a log.
struct Share<'a> {
    drive: Option<&'a str>,
    chunks: u64,
    units: u64,
    bytes: u64,
}

/// The share of a log that each drive has, in the order in which the log came to the drives.
fn shares(log: &[LogChunkInspection]) -> Vec<Share<'_>> {
    let mut shares: Vec<(u16, Share<'_>)> = Vec::new();
    for chunk in log {
        let known = shares.iter().position(|(member, _)| *member == chunk.member);
        let at = known.unwrap_or_else(|| {
            let share = Share { drive: chunk.drive.as_deref(), chunks: 0, units: 0, bytes: 0 };
            shares.push((chunk.member, share));
            shares.len() - 1
        });
        if let Some((_, share)) = shares.get_mut(at) {
            share.chunks += 1;
            share.units += u64::from(chunk.units);
            share.bytes += chunk.bytes;
        }
    }
    shares.into_iter().map(|(_, share)| share).collect()
}

impl Pending {
    /// The generation's id.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Why they cannot be told, if so.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.found.as_ref().err()
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let found = match &self.found {
            Ok(found) => found,
            Err(failure) => return json!({ "generation": self.generation, "error": failure.json() }),
        };
        let shares: Vec<Value> = shares(&found.log)
            .iter()
            .map(|share| json!({ "drive": share.drive, "chunks": share.chunks, "units": share.units, "bytes": share.bytes }))
            .collect();
        let compaction = &found.compaction;
        json!({
            "generation": found.generation,
            "updates": found.updates,
            "tables": found.tables,
            "log": {
                "chunks": found.log.len(),
                "units": found.log.iter().map(|chunk| u64::from(chunk.units)).sum::<u64>(),
                "bytes": found.log.iter().map(|chunk| chunk.bytes).sum::<u64>(),
                "sealed_chunks": found.log.iter().filter(|chunk| chunk.sealed).count(),
                "drives": shares,
            },
            "compaction": {
                "rewrites": compaction.rewrites,
                "chunks": compaction.chunks,
                "needs_chunks": compaction.needs,
                "free_chunks": compaction.free,
                "frees_chunks": compaction.frees,
                "packs_chunks": compaction.packs,
                "has_room": compaction.has_room(),
                "remedy": (!compaction.has_room()).then_some(ROOM_TO_COMPACT),
            },
        })
    }

    /// How many there are, in a few words.
    pub(crate) fn updates(&self) -> String {
        self.found.as_ref().map_or_else(|_| "unknown".to_owned(), |found| units::count(found.updates))
    }

    /// The log of the pending updates, in a few words.
    pub(crate) fn log(&self) -> String {
        match &self.found {
            Ok(found) => {
                let bytes = found.log.iter().map(|chunk| chunk.bytes).sum();
                format!("{}, {}", units::plural(found.log.len() as u64, "chunk"), units::bytes(bytes))
            }
            Err(_) => "cannot be read".to_owned(),
        }
    }

    /// What a compaction would do, in a few words.
    pub(crate) fn compaction(&self) -> String {
        let Ok(PendingUpdates { compaction, .. }) = &self.found else { return String::new() };
        let does = if compaction.rewrites { "rewrites" } else { "copies" };
        let room = match compaction.has_room() {
            true if compaction.packs > 0 => ", packs the log first".to_owned(),
            true => String::new(),
            false => {
                format!(", NO ROOM: {} needed, {} free", units::count(compaction.needs), units::count(compaction.free))
            }
        };
        format!("{does} {}{room}", units::plural(compaction.chunks, "chunk"))
    }

    /// What to do where a compaction has no room; `None`: it has, or that cannot be told.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        self.found.as_ref().is_ok_and(|found| !found.compaction.has_room()).then_some(ROOM_TO_COMPACT)
    }

    /// For people, a line each.
    pub(crate) fn describe(&self) -> String {
        let found = match &self.found {
            Ok(found) => found,
            Err(failure) => {
                return format!("LOG of generation {} cannot be read: {}", self.generation, failure.message);
            }
        };
        let table = |pending: &PendingTable| {
            let parts = [(pending.rows, "row"), (pending.created, "new key"), (pending.removed, "removed key")];
            let parts = parts.into_iter().filter(|(count, _)| *count > 0);
            let parts: Vec<String> = parts.map(|(count, what)| units::plural(count, what)).collect();
            format!("{} of {}", parts.join(" and "), crate::report::printable(&pending.table))
        };
        let changed: Vec<String> = found.tables.iter().take(SHOWN).map(table).collect();
        let more = found.tables.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(", and {} more", units::plural(more as u64, "table")) } else { String::new() };
        let on: Vec<String> = shares(&found.log)
            .iter()
            .map(|share| {
                let drive = share.drive.unwrap_or("a MISSING drive");
                let count =
                    [(share.chunks, "chunk"), (share.units, "unit")].map(|(count, what)| units::plural(count, what));
                format!("{} with {} ({}) on {drive}", count[0], count[1], units::bytes(share.bytes))
            })
            .collect();
        let compaction = &found.compaction;
        let does = match compaction.rewrites {
            true => "would write the whole generation anew, with the keys that there are now, into",
            false => "would copy",
        };
        let least = if compaction.rewrites { "at least " } else { "" };
        let needs = units::count(compaction.needs);
        let free = units::count(compaction.free);
        let packs = units::plural(compaction.packs, "chunk");
        let room = match (compaction.has_room(), compaction.packs) {
            (true, 0) => format!("{least}{needs} must be free, {free} are"),
            (true, _) => {
                format!("{least}{needs} must be free, {free} are: it packs the log first, which frees {packs}")
            }
            (false, 0) => format!("{least}{needs} must be free, and only {free} are: NO ROOM"),
            (false, _) => {
                format!("{least}{needs} must be free, only {free} are, and {packs} more with the log packed: NO ROOM")
            }
        };
        let remedy = self.remedy().map_or_else(String::new, |remedy| format!("\n  help: {remedy}"));
        format!(
            "generation {}: {} not in its chunks yet: {}{more}\n  log: {}\n  compaction {does} {} ({room}), and {} would be free again{remedy}",
            found.generation,
            units::plural(found.updates, "update"),
            if changed.is_empty() { "of no row".to_owned() } else { changed.join(", ") },
            on.join(", "),
            units::plural(compaction.chunks, "chunk"),
            units::count(compaction.frees),
        )
    }
}

/// Tables that are named, at most.
const SHOWN: usize = 8;
