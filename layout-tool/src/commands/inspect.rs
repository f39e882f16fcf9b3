//! `warprow inspect`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use warprow_layout::{MetadataRepair, MetadataRepairKind, OpenError, StoreInspection, StoreState, SuperblockCopy};
use warprow_store::{
    DRAM_LISTS, Device, FormatProposal, FormatSettings, OpenOptions, SkippedTensor, Store, StoreError,
};
use warprow_workload::units;

use super::format::{describe, drive_json};
use super::{CommandOutput, Context, picture};
use crate::attached;
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file;
use crate::missing;
use crate::pending::{self, Pending};
use crate::report::{printable, table};

/// Show what lies on the drives, without changing anything
///
/// Updates that only a generation's log has are shown, with the chunks and drives of the log, and what `compact` would do with them.
///
/// Nothing is written, rolled forward or repaired. If drives of the store are missing, or do not answer, everything that is known
/// is printed all the same, with the reason, and exit code 6. A blank drive is no error: "store" is null then.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow inspect -d emulated:a.drive
  warprow inspect -d emulated:a.drive -d emulated:b.drive --svg store.svg
  warprow inspect -d attached:model.safetensors
  warprow inspect -d 0000:41:00.0 -d 0000:42:00.0 --json | jq .store.generations

Exit codes: 0 shown, a blank drive too; 3 a file is wrong; 4 a drive is in use, or the picture exists; 6 drives of the store are \
missing, or it cannot be opened; 7 a drive failed; 8 no room for the picture. All are in `warprow --help`.")]
pub struct InspectArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Draw where tables lie on each drive into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Overwrite that file
    #[arg(long, requires = "svg")]
    force: bool,
}

pub(crate) fn run(args: &InspectArgs, _: &Context) -> Result<CommandOutput, Failure> {
    let (devices, unopened) = drives::devices_that_answer(&args.drives)?;
    let store = match Store::open(&devices, &OpenOptions::default().with_degraded()) {
        Ok(store) => store,
        Err(StoreError::Open(error @ (OpenError::NotWarprow { .. } | OpenError::RemovedMember { .. }))) => {
            return no_store(args, &devices, error);
        }
        Err(error) => return Err(error.into()),
    };
    let (inspection, repairs) = store.inspect();
    let skipped: Vec<&SkippedTensor> = devices.iter().flat_map(Device::skipped).collect();
    let (map, tables) = store.map();
    if let Some(path) = &args.svg {
        save(path, args.force, &picture::draw(&inspection, &map, &tables))?;
    }
    let missing = match store.state() {
        StoreState::Healthy => Vec::new(),
        StoreState::Degraded { missing } => missing,
    };
    let failed = store
        .drive_states()
        .into_iter()
        .filter_map(|drive_state| Some((drive_state.drive, drive_state.failure?.to_string())));
    let failed: Vec<(String, String)> = unopened.into_iter().chain(failed).collect();
    let pending = pending::of_store(&store, &store.generations());
    let lists = lists(&store);
    let object = json!({
        "drives": devices.iter().map(Device::name).collect::<Vec<_>>(),
        "state": if missing.is_empty() { "healthy" } else { "degraded" },
        "missing": missing,
        "failed": failed.iter().map(|(drive, why)| json!({"drive": drive, "why": why})).collect::<Vec<_>>(),
        "repairs_due": repairs.iter().map(|repair| json!({"drive": repair.drive, "what": words(repair)})).collect::<Vec<_>>(),
        "free_bytes": store.free_bytes(),
        "skipped": skipped.iter().map(|tensor| json!({"name": tensor.name, "reason": tensor.reason})).collect::<Vec<_>>(),
        "pending": pending.iter().map(Pending::json).collect::<Vec<_>>(),
        "store": inspection,
        "map": map,
        "tables": tables,
        "dram_lists": lists.iter().map(DramList::json).collect::<Vec<_>>(),
        "svg": args.svg.as_ref().map(|path| path.display().to_string()),
    });
    let mut text = describe_store(&inspection, repairs, free(&args.drives, &store), missing.is_empty());
    if !skipped.is_empty() {
        text += "\n\nNot attached:\n";
        text += &table(["tensor", "why"], skipped.iter().map(|tensor| [tensor.name.clone(), tensor.reason.clone()]));
    }
    if !pending.is_empty() {
        text += "\n\nUpdates that only logs have:";
        pending.iter().for_each(|pending| text += &format!("\n{}", pending.describe()));
    }
    if !lists.is_empty() {
        text += "\n\nRows listed for DRAM (`warprow rerank`):";
        lists.iter().for_each(|list| text += &format!("\n{}", list.text()));
    }
    failed.iter().for_each(|(drive, why)| text += &format!("\nFAILED {drive}: {why}"));
    if let Some(path) = &args.svg {
        text += &format!("\n\nDrew it in {}", path.display());
    }
    let mut done = CommandOutput::new(text, object)?;
    done.failure = pending.iter().find_map(Pending::failure).cloned();
    if !missing.is_empty() {
        let what =
            format!("the store lacks {}", missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        let failure = Failure::new(Class::Store, inspection.store.to_string(), what)
            .remedy("give these drives too; without them rows are missing and nothing can be written");
        done.failure = Some(missing::placed(failure, &missing, &args.drives.parse()?));
    }
    Ok(done)
}

/// The rows of a table that are listed for DRAM.
struct DramList {
    table: String,
    rows: u64,
    bytes: u64,
    damaged: Option<String>,
}

/// The lists of all tables that have one. What a drive cannot read is told elsewhere.
fn lists(store: &Store) -> Vec<DramList> {
    let mut lists = Vec::new();
    for table in store.tables() {
        let (rows, damaged) = match store.dram_list(&table.name) {
            Ok(None) => continue,
            Ok(Some(ranks)) => (ranks.len() as u64, None),
            Err(error) => (0, Some(error.to_string())),
        };
        lists.push(DramList { bytes: rows * u64::from(table.row_bytes), table: table.name, rows, damaged });
    }
    lists
}

impl DramList {
    fn json(&self) -> serde_json::Value {
        json!({ "table": self.table, "rows": self.rows, "bytes": self.bytes, "damaged": self.damaged })
    }

    fn text(&self) -> String {
        let name = printable(&self.table);
        match &self.damaged {
            Some(why) => format!("{name}: {}", printable(why)),
            None => format!("{name}: {}, {}", units::plural(self.rows, "row"), units::bytes(self.bytes)),
        }
    }
}

/// Drives none of which has a store: blank ones, and those that were removed from one. If another is among them, `error` stands.
fn no_store(args: &InspectArgs, devices: &[Device], error: OpenError) -> Result<CommandOutput, Failure> {
    let mut removed = Vec::new();
    let options = OpenOptions::default().with_degraded();
    let mut is_blank = |device| match Store::open(std::slice::from_ref(device), &options) {
        Err(StoreError::Open(OpenError::RemovedMember { drive, store })) => {
            removed.push((drive, store));
            true
        }
        alone => matches!(alone, Err(StoreError::Open(OpenError::NotWarprow { .. }))),
    };
    if !devices.iter().all(&mut is_blank) {
        return Err(StoreError::from(error).into());
    }
    if let Some(path) = &args.svg {
        let what = "no picture was drawn: there is no store on these drives";
        return Err(Failure::input(path.display().to_string(), what).remedy("make a store with `warprow format`"));
    }
    let plan = FormatProposal::new(devices, FormatSettings::default())?;
    let mut text = "No Warprow store here. `warprow format` makes one.\n".to_owned();
    for (drive, store) in &removed {
        text += &format!("{} was removed from store {store}, which goes on without it.\n", printable(drive));
    }
    let object = json!({
        "drives": devices.iter().map(Device::name).collect::<Vec<_>>(),
        "store": null,
        "seen": plan.drives().iter().map(drive_json).collect::<Vec<_>>(),
        "removed": removed.iter().map(|(drive, store)| json!({ "drive": drive, "from": store })).collect::<Vec<_>>(),
    });
    CommandOutput::new(text + &describe(plan.drives()), object)
}

/// Writes the picture: whole, or not at all.
fn save(path: &Path, force: bool, picture: &str) -> Result<(), Failure> {
    let subject = || path.display().to_string();
    let failed = |error: std::io::Error| Failure::io(subject(), "cannot be written", &error);
    let new = file::replacing(path)?;
    new.file().write_all(picture.as_bytes()).and_then(|()| new.file().sync_all()).map_err(failed)?;
    match new.persist(force) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(Failure::new(Class::Refused, subject(), "exists already").remedy("choose another name, or add --force"))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Bytes that tables may be put into; `None`: in an attached file there is no such thing.
fn free(drives: &DriveArgs, store: &Store) -> Option<u64> {
    let is_attached = drives.addresses().iter().any(|address| attached::is(address));
    (!is_attached).then(|| store.free_bytes())
}

fn describe_store(store: &StoreInspection, repairs: &[MetadataRepair], free: Option<u64>, healthy: bool) -> String {
    let total: u64 = store.members.iter().map(|member| u64::from(member.chunks) * store.chunk_size).sum();
    let mut text = match free {
        None => "Tables that stay in their file, to be read there; nothing is put beside them.".to_owned(),
        Some(free) => format!(
            "Store {}: {}, format {}, epoch {}\n{} free of {}, in chunks of {} and LBAs of {} B; catalogue {} of {}\n\n{}",
            store.store,
            if healthy { "healthy" } else { "DEGRADED" },
            store.format_version,
            store.epoch,
            units::bytes(free),
            units::bytes(total),
            units::bytes(store.chunk_size),
            store.lba_size,
            units::bytes(store.catalogue_bytes),
            units::bytes(store.catalogue_capacity),
            drives_of(store),
        ),
    };
    for repair in repairs {
        text += &format!("\n{}: {}; mended when the store is next opened for writing", repair.drive, words(repair));
    }
    let rows: Vec<_> = store
        .generations
        .iter()
        .filter(|generation| generation.name != DRAM_LISTS)
        .flat_map(|generation| generation.tables.iter().map(move |table| (generation, table)))
        .collect();
    if rows.is_empty() {
        return text + "\n\nNo tables yet: load some with `warprow load`.";
    }
    text += "\n\n";
    text += &table(
        [
            "table",
            ">rows",
            ">dim",
            "type",
            ">row",
            ">rows/LBA",
            ">on drives",
            "ids",
            "order",
            "checksums",
            "model",
            ">generation",
        ],
        rows.into_iter().map(|(generation, it)| {
            [
                it.name.clone(),
                units::count(it.rows),
                it.dim.to_string(),
                it.dtype.to_string(),
                units::bytes(it.row_bytes.into()),
                if it.lbas_per_row > 1 { format!("1/{}", it.lbas_per_row) } else { it.rows_per_lba.to_string() },
                units::bytes(it.bytes),
                match &it.keys {
                    None => "from 0".to_owned(),
                    Some(keys) => format!(
                        "{} keys{}, {}-bit fingerprints",
                        if keys.signed { "i64" } else { "u64" },
                        if keys.stored { ", stored" } else { "" },
                        keys.fingerprint_bits
                    ),
                },
                match (&it.keys, &it.ranks) {
                    (_, Some(_)) => "by rank",
                    (None, None) => "by id",
                    (Some(_), None) => "by slot",
                }
                .to_owned(),
                if it.row_crc { "every row" } else { "metadata" }.to_owned(),
                generation.name.clone(),
                generation.id.to_string(),
            ]
        }),
    );
    text
}

fn drives_of(store: &StoreInspection) -> String {
    table(
        ["drive", "serial", ">size", ">free"],
        store.members.iter().map(|member| {
            [
                member.drive.clone().unwrap_or_else(|| if member.chunks == 0 { "removed" } else { "MISSING" }.into()),
                member.serial.clone(),
                units::bytes(member.bytes),
                units::bytes(member.free_chunks * store.chunk_size),
            ]
        }),
    )
}

fn words(repair: &MetadataRepair) -> &'static str {
    match repair.kind {
        MetadataRepairKind::RolledForward => "one commit behind: a commit was interrupted",
        MetadataRepairKind::Superblock(SuperblockCopy::Start) => {
            "the superblock at its start is missing or damaged; another is whole"
        }
        MetadataRepairKind::Superblock(SuperblockCopy::Tail) => {
            "the superblock at its end is missing or damaged; another is whole"
        }
        MetadataRepairKind::Catalogue => "its catalogue is damaged; another drive's or an earlier one is whole",
        _ => "metadata was damaged; another copy is whole",
    }
}
