//! `warprow format`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use warprow_formats::TableFile;
use warprow_soft_controller::{DriveUri, parse_size};
use warprow_store::{
    CreateDrive, Device, DriveAddress, DriveContent, DriveFormat, FormatConsent, FormatProposal, FormatSettings,
    LbaChoice, SecureErase, Store,
};
use warprow_workload::units;

use super::trial_format::{self, TrialDrive};
use super::{CommandOutput, Context};
use crate::drives::{DriveArgs, NewFiles};
use crate::failure::{Class, Failure};
use crate::lba::{self, Choice};
use crate::report::{printable, table};

/// Make an empty store on drives; everything on them is lost
///
/// Files for emulated drives are created, sparse, where a size is given. A new or blank one is formatted at once. Anything else
/// is refused at first: the refusal says what would be lost and prints a token that, given with --consent, agrees to exactly
/// that. For emulated drives --yes does as well.
///
/// The LBA size follows the rows that will be looked up: with --row-bytes, the size of which the fewest bytes are read for
/// each row. Changing it means Format NVM, which can take minutes on a real drive.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow format -d emulated:a.drive,size=64G --row-bytes 512
  warprow format -d emulated:a.drive,size=64G --lba auto --sized-for model.safetensors
  warprow format -d 0000:41:00.0 -d 0000:42:00.0 --row-bytes 512 --dry-run
  warprow format -d 0000:41:00.0 -d 0000:42:00.0 --row-bytes 512 --consent 1f2e3d4c-0a1b2c3d-5e6f7081")]
pub struct FormatArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Choose the LBA size for rows of so many bytes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    row_bytes: Option<u32>,
    /// Set this LBA size; auto measures the drives' reads (0.1 s a drive), computes what look-ups of --row-bytes, or of the tables in
    /// --sized-for, cost with either size, and says why
    #[arg(long, value_name = "512|4096|auto", value_parser = parse_lba)]
    lba: Option<Lba>,
    /// A file or folder with tables that the store is to hold, for --lba auto; may be repeated
    #[arg(long, value_name = "FILE")]
    sized_for: Vec<PathBuf>,
    /// How many rows of --row-bytes there will be, for --lba auto
    #[arg(long, value_name = "N", default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// How many different rows of each table a look-up reads from the drives, for --lba auto
    #[arg(long, value_name = "N", default_value_t = lba::IDS, value_parser = clap::value_parser!(u64).range(1..))]
    lookup_ids: u64,
    /// Bytes of a chunk, the unit that space is given out in: a power of two from 1M to 64M [default: by the drives' size]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    chunk: Option<u64>,
    /// Secure Erase Setting of Format NVM: 0 none, 1 erase all user data
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    ses: u8,
    /// Only say what would be done and lost, or why it could not be
    #[arg(long)]
    dry_run: bool,
    /// Agree to the loss that an earlier refusal showed
    #[arg(long, value_name = "TOKEN")]
    consent: Option<String>,
    /// Agree to whatever lies on emulated drives
    #[arg(long, conflicts_with = "consent")]
    yes: bool,
}

/// An LBA size on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lba {
    /// So many bytes.
    Bytes(u32),
    /// To be computed.
    Auto,
}

fn parse_lba(text: &str) -> Result<Lba, String> {
    match text {
        "512" => Ok(Lba::Bytes(512)),
        "4096" => Ok(Lba::Bytes(4096)),
        "auto" => Ok(Lba::Auto),
        _ => Err("give 512, 4096 or auto".to_owned()),
    }
}

/// The rows that `--lba auto` is to suit.
fn rows_of(args: &FormatArgs) -> Result<Vec<lba::Rows>, Failure> {
    let ids = args.lookup_ids;
    let mut rows: Vec<_> = args.row_bytes.iter().map(|&bytes| lba::Rows { bytes, count: args.rows, ids }).collect();
    for path in &args.sized_for {
        let file = TableFile::open(path)?;
        rows.extend(file.tables.iter().map(|table| lba::Rows {
            bytes: table.row_bytes() as u32,
            count: table.rows,
            ids,
        }));
    }
    if rows.is_empty() {
        let what = "it depends on the rows, and nothing says how long they are";
        return Err(Failure::usage("--lba", what).remedy("add --row-bytes N, or --sized-for FILE with the tables"));
    }
    Ok(rows)
}

/// The LBA sizes that all drives offer, with the worst relative performance of any.
fn offers(drives: &[DriveFormat]) -> Vec<lba::Offer> {
    let of = |bytes: u32| {
        let of_drive = |drive: &DriveFormat| drive.lba_sizes.iter().find(|(it, _)| *it == bytes).map(|(_, rp)| *rp);
        let worst = drives.iter().map(of_drive).try_fold(0, |worst, rp| Some(rp?.max(worst)))?;
        Some(lba::Offer { lba_bytes: bytes, performance: worst })
    };
    lba::SIZES.into_iter().filter_map(of).collect()
}

pub(crate) fn run(args: &FormatArgs, context: &Context) -> Result<CommandOutput, Failure> {
    refuse_contradiction(args)?;
    let addresses = args.drives.parse()?;
    let mut made = NewFiles::default();
    let mut devices = Vec::with_capacity(addresses.len());
    let mut to_make = Vec::new();
    for address in &addresses {
        match new_file(address) {
            Some((uri, size)) if args.dry_run => to_make.push((uri, size)),
            _ if args.dry_run => devices.push(Device::open_beside(&devices, address, CreateDrive::Never)?),
            _ => devices.push(made.open(&devices, address)?),
        }
    }
    let choice = if args.lba == Some(Lba::Auto) { Some(choose_lba(args, &devices)?) } else { None };
    let settings = settings(args, choice.as_ref());
    if args.dry_run {
        return dry_run(&FormatProposal::new(&devices, settings.clone())?, &to_make, &settings, choice.as_ref());
    }
    let plan = FormatProposal::new(&devices, settings)?;
    context.interrupt.check()?;
    let drives = plan.drives().to_vec();
    let store = make(args, plan, context)?;
    made.keep();
    report(args, &store, &drives, choice.as_ref())
}

fn refuse_contradiction(args: &FormatArgs) -> Result<(), Failure> {
    if let (Some(Lba::Bytes(bytes)), Some(_)) = (args.lba, args.row_bytes) {
        let what = format!("an LBA size for rows is to be chosen, and {bytes} B is given");
        let remedy = "give --lba or --row-bytes, or --lba auto with both";
        return Err(Failure::usage("--row-bytes", what).remedy(remedy));
    }
    if args.lba != Some(Lba::Auto) && !args.sized_for.is_empty() {
        return Err(Failure::usage("--sized-for", "nothing is to be computed for it").remedy("add --lba auto"));
    }
    Ok(())
}

/// The LBA size that suits the rows on these drives.
fn choose_lba(args: &FormatArgs, devices: &[Device]) -> Result<Choice, Failure> {
    let seen = FormatProposal::new(devices, FormatSettings::default())?;
    // What only a dry run would make is not there to be measured.
    let curves: Vec<_> = seen.measure_reads().into_iter().flatten().collect();
    Choice::new(&rows_of(args)?, &offers(seen.drives()), &curves).ok_or_else(|| {
        Failure::input("--lba", "the drives have no LBA size in common that a store can have")
            .remedy("look at what they offer with `warprow devices`, and format each store on drives that agree")
    })
}

fn settings(args: &FormatArgs, choice: Option<&Choice>) -> FormatSettings {
    let lba = match (choice, args.row_bytes, args.lba) {
        (Some(choice), ..) => LbaChoice::Bytes(choice.lba_bytes),
        (None, _, Some(Lba::Bytes(bytes))) => LbaChoice::Bytes(bytes),
        (None, Some(bytes), _) => LbaChoice::ForRows(bytes),
        (None, None, _) => LbaChoice::Keep,
    };
    let erase = if args.ses == 1 { SecureErase::USER_DATA } else { SecureErase::NONE };
    let settings = FormatSettings::default().with_lba(lba).with_erase(erase);
    match args.chunk {
        Some(bytes) => settings.with_chunk_size(bytes),
        None => settings,
    }
}

/// Makes the store, if the user agrees to what is lost.
fn make(args: &FormatArgs, plan: FormatProposal, context: &Context) -> Result<Store, Failure> {
    let consent = match (&args.consent, args.yes) {
        (Some(token), _) => FormatConsent::Token(token.clone()),
        (None, true) => FormatConsent::Emulated,
        (None, false) => FormatConsent::None,
    };
    let spinner = context.screen.spinner("formatting");
    let store = plan.run(&consent, &mut |drive, progress| {
        let percent = progress.percent.map(|percent| format!(", {percent}%")).unwrap_or_default();
        spinner.set_message(printable(&format!("formatting {}{percent}", drive.drive)));
    });
    spinner.finish_and_clear();
    store.map_err(|error| {
        let failure = Failure::from(error);
        match failure.class {
            Class::Refused if args.consent.is_some() => failure.detail("given_token", args.consent.clone()),
            _ => failure,
        }
    })
}

fn report(
    args: &FormatArgs,
    store: &Store,
    drives: &[DriveFormat],
    choice: Option<&Choice>,
) -> Result<CommandOutput, Failure> {
    let inspection = store.inspect().0;
    let text = format!(
        "Made store {} on {}, {} free, in chunks of {} and LBAs of {} B.\n{}{}\nLoad tables with\n  warprow load {} FILE",
        inspection.store,
        units::plural(drives.len() as u64, "drive"),
        units::bytes(store.free_bytes()),
        units::bytes(inspection.chunk_size),
        inspection.lba_size,
        choice.iter().map(|choice| format!("{}\n", choice.why)).collect::<String>(),
        describe(drives),
        args.drives.pasteable_without_properties(),
    );
    let object = json!({
        "dry_run": false,
        "lba_choice": choice.map(Choice::json),
        "drives": drives.iter().map(drive_json).collect::<Vec<_>>(),
        "free_bytes": store.free_bytes(),
        "store": inspection,
    });
    CommandOutput::new(text, object)
}

/// The emulated drive, and its size, whose file would have to be made.
fn new_file(address: &DriveAddress) -> Option<(&DriveUri, u64)> {
    match address {
        DriveAddress::Emulated(uri) if uri.backing == warprow_soft_controller::BackingKind::File => {
            let is_drive = std::fs::metadata(&uri.path).is_ok_and(|file| !file.is_file() || file.len() > 0);
            if is_drive { None } else { Some((uri, uri.size?)) }
        }
        _ => None,
    }
}

fn dry_run(
    plan: &FormatProposal,
    to_make: &[(&DriveUri, u64)],
    settings: &FormatSettings,
    choice: Option<&Choice>,
) -> Result<CommandOutput, Failure> {
    let there = plan
        .drives()
        .iter()
        .map(|drive| Ok(TrialDrive { name: drive.drive.clone(), bytes: drive.bytes, lba_bytes: drive.new_lba_bytes }));
    let new = to_make.iter().map(|(uri, size)| TrialDrive::of_new(uri, *size, settings));
    let drives = there.chain(new).collect::<Result<Vec<_>, Failure>>()?;
    trial_format::format(&drives, settings.chunk_size)?;
    let to_make: Vec<_> = to_make.iter().map(|(uri, size)| (&uri.path, size)).collect();
    let mut text = choice.map(|choice| format!("{}\n", choice.why)).unwrap_or_default();
    text += "Nothing was changed. `format` would";
    for (path, size) in &to_make {
        text += &format!("\nmake {}, {}, and a store on it", path.display(), units::bytes(**size));
    }
    if !plan.drives().is_empty() {
        text += &format!("\nmake a store on\n{}", describe(plan.drives()));
    }
    let agree = plan.drives().iter().any(DriveFormat::needs_consent);
    if agree {
        text += &format!("\nTo agree, give --consent {}", plan.token());
    }
    let object = json!({
        "dry_run": true,
        "lba_choice": choice.map(Choice::json),
        "drives": plan.drives().iter().map(drive_json).collect::<Vec<_>>(),
        "new_files": to_make.iter().map(|(path, size)| json!({"path": path.display().to_string(), "bytes": size})).collect::<Vec<_>>(),
        "needs_consent": agree,
        "token": plan.token(),
        "store": null,
    });
    CommandOutput::new(text, object)
}

fn content(drive: &DriveFormat) -> String {
    match drive.content {
        DriveContent::Blank => "blank".to_owned(),
        DriveContent::Store(Some(store)) => format!("store {store}"),
        DriveContent::Store(None) => "a damaged store, or a newer one".to_owned(),
        DriveContent::Unknown => "data of something else".to_owned(),
    }
}

/// What lies on drives, and what `format` would do to them.
pub(super) fn describe(drives: &[DriveFormat]) -> String {
    table(
        ["drive", "model", "serial", ">size", ">LBA", "held before", "lost"],
        drives.iter().map(|drive| {
            [
                drive.drive.clone(),
                drive.model.clone(),
                drive.serial.clone(),
                units::bytes(drive.bytes),
                match drive.formats {
                    true => format!("{} → {} B", drive.lba_bytes, drive.new_lba_bytes),
                    false => format!("{} B", drive.lba_bytes),
                },
                content(drive),
                drive.losses.iter().map(|loss| format!("namespace {}", loss.nsid)).collect::<Vec<_>>().join(", "),
            ]
        }),
    )
}

/// What becomes of a drive, for programs.
pub(super) fn drive_json(drive: &DriveFormat) -> Value {
    json!({
        "drive": drive.drive,
        "model": drive.model,
        "serial": drive.serial,
        "emulated": drive.emulated,
        "bytes": drive.bytes,
        "lba_bytes": drive.lba_bytes,
        "new_lba_bytes": drive.new_lba_bytes,
        "formats": drive.formats,
        "held": content(drive),
        "tables": drive.tables.as_ref().map(|tables| tables.iter().map(|table| json!({"name": table.name, "rows": table.rows, "bytes": table.bytes})).collect::<Vec<_>>()),
        "needs_consent": drive.needs_consent(),
        "losses": drive.losses.iter().map(|loss| json!({"nsid": loss.nsid, "bytes": loss.bytes})).collect::<Vec<_>>(),
    })
}
