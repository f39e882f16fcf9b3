//! Where drives that a store lacks may be: looked for by their serial numbers, beside the drives given and on the machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use warprow_host::Machine;
use warprow_layout::{MissingMember, OpenError};
use warprow_soft_controller::DriveUri;
use warprow_store::{DriveAddress, StoreError};

use crate::drives::shell;
use crate::failure::Failure;

/// Files of a folder that are looked at, at most.
const FILES: usize = 10_000;

/// The failure, with what to give besides where a store lacks drives that were given by `addresses`.
pub fn explained(error: StoreError, addresses: &[DriveAddress]) -> Failure {
    let missing = match &error {
        StoreError::Open(OpenError::MissingMember { missing, .. }) => missing.clone(),
        _ => return error.into(),
    };
    placed(error.into(), &missing, addresses)
}

/// A failure by the lack of drives, with what to give besides those of `addresses`.
pub fn placed(failure: Failure, missing: &[MissingMember], addresses: &[DriveAddress]) -> Failure {
    let found: Vec<Vec<String>> = find(missing, addresses);
    let each: Vec<_> = missing
        .iter()
        .zip(&found)
        .map(|(missing, found)| json!({ "serial": missing.serial, "member": missing.index, "found": found }))
        .collect();
    // Where two have the number of one, which it is is not known.
    let known: Vec<String> = found
        .iter()
        .filter_map(|found| match &found[..] {
            [alone] => Some(format!("-d {}", shell(alone))),
            _ => None,
        })
        .collect();
    let failure = failure.detail("missing", each);
    if known.is_empty() {
        return failure;
    }
    let all = if known.len() == missing.len() { "" } else { "; the others were not found" };
    let what = if known.len() == 1 { "a drive of that serial number is" } else { "drives of these serial numbers are" };
    let remedy = format!("{what} here, add {}{all}; or {}", known.join(" "), failure.remedy);
    failure.remedy(remedy)
}

/// The addresses of drives of each serial number.
fn find(missing: &[MissingMember], addresses: &[DriveAddress]) -> Vec<Vec<String>> {
    let emulated: Vec<&DriveUri> = addresses
        .iter()
        .filter_map(|address| match address {
            DriveAddress::Emulated(uri) => Some(uri),
            _ => None,
        })
        .collect();
    let folders: BTreeSet<PathBuf> =
        emulated.iter().filter_map(|uri| Some(uri.path.canonicalize().ok()?.parent()?.to_owned())).collect();
    let here: Vec<(String, String)> = folders
        .iter()
        .flat_map(|folder| drives_in(folder))
        .map(|(serial, path)| (serial, format!("emulated:{}", path.display())))
        .collect();
    // Real drives are asked for where some were given.
    let real = match emulated.len() == addresses.len() {
        true => Vec::new(),
        false => Machine::at("/").drives(),
    };
    let real = real.into_iter().filter_map(|drive| Some((drive.serial?, drive.function.address.to_string())));
    let known: Vec<(String, String)> = here.into_iter().chain(real).collect();
    let of = |member: &MissingMember| {
        known.iter().filter(|(serial, _)| serial.trim() == member.serial).map(|(_, address)| address.clone()).collect()
    };
    missing.iter().map(of).collect()
}

/// The emulated drives of a folder that have a sidecar, by serial number.
fn drives_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.take(FILES).flatten().filter_map(|entry| DriveUri::beside(&entry.path())).collect()
}
