//! `warprow add-drive` and `remove-drive`.

use std::ops::ControlFlow;

use clap::Args;
use serde_json::json;
use warprow_layout::OpenError;
use warprow_soft_controller::UriError;
use warprow_store::{Create, Device, DriveAddress, Joined, OpenOptions, Store, StoreError};

use super::{Context, Done};
use crate::attached;
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::units;

/// Add a drive to a store, and move its share of every table to it
///
/// Exactly its share moves: as much of each generation as it has of all drives' room. Stopped, or after a power cut, the same
/// command goes on. `size=` makes the file of an emulated drive.
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

pub(crate) fn add(args: &AddDriveArgs, context: &Context) -> Result<Done, Failure> {
    let options = OpenOptions::default();
    let address: DriveAddress = args.new.parse()?;
    // Before anything is opened, made or overwritten.
    refuse_attached(&args.drives, Some(&args.new))?;
    let mut devices = drives::devices(&args.drives)?;
    let new = Device::open_beside(&devices, &address, Create::IfMissing).map_err(|error| match &error {
        StoreError::Emulated(UriError::NotThere { .. }) => {
            Failure::from(error).remedy(format!("look at the path, or make it: {},size=64G", args.new))
        }
        _ => error.into(),
    })?;
    let store = match Store::open(&devices, &options) {
        // It is a member already: this was stopped before.
        Err(StoreError::Open(OpenError::MissingMember { .. })) => {
            devices.push(new.clone());
            Store::open(&devices, &options)
        }
        other => other,
    }?;
    let free = store.free_bytes();
    let Joined { store, moved } = store.add_drive(&new, args.overwrite, &options, &mut progress(context))?;
    moved?;
    let text = format!("{} is a drive of the store; {} are free.", new.name(), units::bytes(store.free_bytes()));
    Done::new(text, json!({ "drive": new.name(), "free_bytes": store.free_bytes(), "free_bytes_before": free }))
}

pub(crate) fn remove(args: &RemoveDriveArgs, context: &Context) -> Result<Done, Failure> {
    let options = OpenOptions::default();
    refuse_attached(&args.drives, None)?;
    let devices = drives::devices(&args.drives)?;
    // As it is named once it is open.
    let position = args.drives.addresses().iter().position(|address| *address == args.old);
    let name = position.and_then(|at| devices.get(at)).map_or(args.old.clone(), Device::name);
    let store = Store::open(&devices, &options)?;
    let store = store.remove_drive(&name, &options, &mut progress(context))?;
    let text = format!(
        "{name} is no drive of the store any more; {} are free on the others.",
        units::bytes(store.free_bytes())
    );
    Done::new(text, json!({ "drive": name, "free_bytes": store.free_bytes() }))
}
