//! `warprow add-drive` and `remove-drive`.

use std::ops::ControlFlow;

use clap::Args;
use serde_json::json;
use warprow_layout::{OpenError, VolumeError};
use warprow_soft_controller::UriError;
use warprow_store::{
    CreateDrive, Device, DriveAddress, OpenOptions, Store, StoreAccess, StoreError, StoreWithNewDrive,
};
use warprow_workload::units;

use super::{CommandOutput, Context};
use crate::drives::{self, DriveArgs, NewFiles};
use crate::failure::{Class, Failure};
use crate::{attached, missing};

/// Add a drive to a store, and move its share of every table to it
///
/// Exactly its share moves: as much of each generation as it has of all drives' room. Stopped, or after a power cut, the same
/// command goes on. `size=` makes the file of an emulated drive, with LBAs as the store has them; if the drive is not added, the
/// file goes again.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow add-drive emulated:b.drive,size=64G -d emulated:a.drive
  warprow remove-drive emulated:a.drive -d emulated:a.drive -d emulated:b.drive")]
pub struct AddDriveArgs {
    /// The new drive
    new: String,
    #[command(flatten)]
    drives: DriveArgs,
    /// Overwrite a store on the new drive
    #[arg(long)]
    overwrite: bool,
}

/// Move everything off a drive, and take it out of the store
///
/// The others need room for it. Stopped, or after a power cut, the same command goes on.
#[derive(Debug, Args)]
pub struct RemoveDriveArgs {
    /// The drive that goes, as -d names it
    old: String,
    #[command(flatten)]
    drives: DriveArgs,
}

/// Shows how far it is, and stops when it is asked to.
fn progress(context: &Context) -> impl FnMut(u64, u64) -> ControlFlow<()> + '_ {
    move |_, _| if context.interrupt.check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Refuses files of tables: they are read where they are, and never written.
fn refuse_attached(drives: &DriveArgs, new: Option<&String>) -> Result<(), Failure> {
    let addresses = drives.addresses();
    match addresses.iter().chain(new).find(|address| attached::is(address)) {
        None => Ok(()),
        Some(address) => {
            let what = "a file of tables is a store of its own, which is never written";
            Err(Failure::new(Class::Refused, address.as_str(), what).remedy("load it into a store: `warprow load`"))
        }
    }
}

pub(crate) fn add(args: &AddDriveArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let options = OpenOptions::default();
    let address: DriveAddress = args.new.parse()?;
    // Before anything is opened, made or overwritten.
    refuse_attached(&args.drives, Some(&args.new))?;
    drives::refuse_fleeting(&args.new, &address)?;
    // Dropped last: what it removes is in use until then.
    let mut made = NewFiles::default();
    let mut devices = drives::devices(&args.drives, StoreAccess::ReadWrite)?;
    let (store, new) = match Store::open(&devices, &options) {
        Ok(store) => {
            let address = with_lba(address, store.inspect().0.lba_size)?;
            let new = open_new(&devices, &address, &args.new, &mut made)?;
            (store, new)
        }
        // It may be a member already: then this was stopped before.
        Err(error @ StoreError::Open(OpenError::MissingMember { .. })) => {
            let explained = |error| missing::explained(error, &args.drives.parse().unwrap_or_default());
            let new = match Device::open_beside(&devices, &address, CreateDrive::Never) {
                // A file that is empty was left by a kill, before it was a drive.
                Err(StoreError::Emulated(UriError::NotThere { .. } | UriError::Size { actual: 0, .. })) => {
                    return Err(explained(error));
                }
                other => other?,
            };
            devices.push(new.clone());
            (Store::open(&devices, &options).map_err(explained)?, new)
        }
        Err(error) => return Err(error.into()),
    };
    let free = store.free_bytes();
    let joined = store.add_drive(&new, args.overwrite, &options, &mut progress(context));
    // Where a commit is in doubt, another drive may show it as a member.
    if !joined.as_ref().is_err_and(|error| !matches!(error, StoreError::Volume(VolumeError::Indeterminate { .. }))) {
        made.keep();
    }
    let StoreWithNewDrive { store, moved } = joined?;
    moved?;
    let text = format!("{} is a drive of the store; {} are free.", new.name(), units::bytes(store.free_bytes()));
    CommandOutput::new(
        text,
        json!({ "drive": new.name(), "free_bytes": store.free_bytes(), "free_bytes_before": free }),
    )
}

/// The new drive with LBAs as the store's drives have them, where nothing else says what it has: its file is not there, or empty,
/// or has no sidecar. Refused, before anything is made, where the address says other ones.
fn with_lba(address: DriveAddress, lba: u32) -> Result<DriveAddress, Failure> {
    let DriveAddress::Emulated(mut uri) = address else { return Ok(address) };
    // A block device has no sidecar: it has the LBAs that its address says, each time.
    let file = std::fs::metadata(&uri.path);
    let is_file = file.as_ref().map_or(true, std::fs::Metadata::is_file);
    let is_empty = file.map_or(true, |file| file.len() == 0);
    if is_file && (is_empty || uri.sidecar().symlink_metadata().is_err()) {
        match uri.lba {
            Some(given) if given != lba => {
                let what = format!("lba={given}: the store has LBAs of {lba} B, as each of its drives has to have");
                let failure = Failure::input(uri.to_string(), what);
                return Err(failure.remedy(format!("leave lba= out, or say lba={lba}; nothing was made")));
            }
            _ => uri.lba = Some(lba),
        }
    }
    Ok(DriveAddress::Emulated(uri))
}

/// Opens the new drive; its file is made where that is not there.
fn open_new(devices: &[Device], address: &DriveAddress, text: &str, made: &mut NewFiles) -> Result<Device, Failure> {
    made.open(devices, address).map_err(|error| match &error {
        StoreError::Emulated(UriError::NotThere { .. }) => {
            Failure::from(error).remedy(format!("look at the path, or make it: {text},size=64G"))
        }
        StoreError::Emulated(UriError::Size { path, actual: 0, .. }) => {
            let what = "is empty, and nothing says how large a drive it is to become";
            Failure::input(path.display().to_string(), what)
                .remedy(format!("give the size: warprow add-drive {text},size=64G"))
        }
        _ => error.into(),
    })
}

pub(crate) fn remove(args: &RemoveDriveArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let options = OpenOptions::default();
    refuse_attached(&args.drives, None)?;
    let devices = drives::devices(&args.drives, StoreAccess::ReadWrite)?;
    // As it is named once it is open.
    let position = args.drives.addresses().iter().position(|address| *address == args.old);
    let name = position.and_then(|at| devices.get(at)).map_or(args.old.clone(), Device::name);
    let store = Store::open(&devices, &options)?;
    let store = store.remove_drive(&name, &options, &mut progress(context))?;
    let text = format!(
        "{name} is no drive of the store any more; {} are free on the others.",
        units::bytes(store.free_bytes())
    );
    CommandOutput::new(text, json!({ "drive": name, "free_bytes": store.free_bytes() }))
}
