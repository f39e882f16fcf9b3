//! `warprow repair`.

use clap::Args;
use serde_json::{Value, json};
use warprow_layout::{RepairTarget, RepairWrite, SuperblockCopy};
use warprow_store::{OpenOptions, Store, StoreAccess};
use warprow_workload::units;

use super::{CommandOutput, Context};
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::report::table;

/// Mend superblocks and catalogues from their other copies
///
/// Says which copies are damaged, where each lies, and which whole copy would take its place; with --yes it is written, each
/// durable before the next at the same drive, so that a power cut leaves what the same command goes on with. Rows are not touched.
///
/// All drives of the store have to be given, in any order. A drive of which no superblock is left is mended too, if its own
/// catalogue proves which member it is. What would be a guess is refused (exit code 6): a superblock that may have been the
/// newest and has no copy, a catalogue that is whole nowhere, a drive that nothing proves to belong here.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow repair -d emulated:a.drive -d emulated:b.drive
  warprow repair -d emulated:a.drive -d emulated:b.drive --yes

Exit codes: 0 all copies are whole, or would be with --yes; 3 a file that is no drive; 4 a drive is in use; 6 it cannot be \
mended without a guess; 7 a drive failed. All are in `warprow --help`.")]
pub struct RepairArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Write it
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &RepairArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let options = OpenOptions::default();
    drives::refuse_attached(&args.drives)?;
    let devices = drives::devices(&args.drives, StoreAccess::ReadWrite)?;
    let plan = Store::propose_repair(&devices, &options)?;
    let mends = plan.writes();
    if args.yes && !mends.is_empty() {
        context.interrupt.check()?;
        plan.apply().map_err(warprow_store::StoreError::from)?;
        let left = Store::propose_repair(&devices, &options)?.writes().len();
        if left > 0 {
            let are = if left == 1 { "is" } else { "are" };
            let what = format!("{} {are} still damaged after being written", units::plural(left as u64, "copy"));
            return Err(Failure::new(Class::Drive, plan.store().to_string(), what)
                .remedy("look at the kernel's log and the drives' health"));
        }
    }
    let head = match (mends.len() as u64, args.yes) {
        (0, _) => format!("Every copy of the metadata of store {} is whole, at epoch {}.", plan.store(), plan.epoch()),
        (n, true) => format!("Mended {} of store {}, at epoch {}:", copies(n), plan.store(), plan.epoch()),
        (n, false) => format!("Nothing was changed. {} of store {} would be mended:", copies(n), plan.store()),
    };
    let listed = table(
        ["drive", ">LBA", ">LBAs", "what", ">epoch", "found there", "copy of"],
        mends.iter().map(|mend| {
            [
                mend.drive.clone(),
                mend.lba.to_string(),
                mend.lbas.to_string(),
                words(mend.what).to_owned(),
                mend.epoch.to_string(),
                mend.found.clone(),
                mend.from.clone(),
            ]
        }),
    );
    let text = match (mends.is_empty(), args.yes) {
        (true, _) => head,
        (false, true) => format!("{head}\n{listed}"),
        (false, false) => format!("{head}\n{listed}\nTo write this, add --yes."),
    };
    let object = json!({
        "dry_run": !args.yes,
        "store": plan.store().to_string(),
        "epoch": plan.epoch(),
        "mended": if args.yes { mends.len() } else { 0 },
        "mends": mends.iter().map(mend_json).collect::<Vec<_>>(),
    });
    CommandOutput::new(text, object)
}

fn copies(n: u64) -> String {
    if n == 1 { "1 copy".to_owned() } else { format!("{n} copies") }
}

fn words(what: RepairTarget) -> &'static str {
    match what {
        RepairTarget::Superblock(SuperblockCopy::Start) => "superblock at the start",
        RepairTarget::Superblock(SuperblockCopy::Tail) => "superblock at the end",
        RepairTarget::Catalogue => "catalogue",
        _ => "metadata",
    }
}

fn mend_json(it: &RepairWrite) -> Value {
    let what = match it.what {
        RepairTarget::Superblock(SuperblockCopy::Start) => "superblock-start",
        RepairTarget::Superblock(SuperblockCopy::Tail) => "superblock-end",
        RepairTarget::Catalogue => "catalogue",
        _ => "metadata",
    };
    json!({
        "drive": it.drive, "member": it.member, "lba": it.lba, "lbas": it.lbas, "what": what, "epoch": it.epoch,
        "found": it.found, "from": it.from, "unfinished_commit": it.unfinished,
    })
}
