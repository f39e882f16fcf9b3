//! Files of tables as drives: `attached:PATH[,tensor=GLOB][,direct=1][,depth=N]...`, which [`AttachedFile`] understands.

use std::path::PathBuf;

use warprow_layout::VolumeError;
use warprow_store::{AttachError, AttachedFile, CreateDrive, Device, DriveAddress, StoreError};

use crate::failure::{Class, Failure};

/// Whether an address is one.
pub fn is(address: &str) -> bool {
    AttachedFile::is_address(address)
}

/// The file, or the folder, that such an address names.
pub fn file_of(address: &str) -> Option<PathBuf> {
    AttachedFile::is_address(address).then(|| address.parse().ok().map(|file: AttachedFile| file.path)).flatten()
}

/// The drive that the only of `addresses` names, if one of them is a file of tables.
pub fn device(addresses: &[String]) -> Result<Option<Device>, Failure> {
    let Some(address) = addresses.iter().find(|address| is(address)) else { return Ok(None) };
    if addresses.len() > 1 {
        return Err(Failure::usage(address, "a file of tables is a store of its own").remedy("give no other drive"));
    }
    let device = Device::open(&address.parse::<DriveAddress>()?, CreateDrive::Never).map_err(|error| match &error {
        // Of all tables together: there is no store into which others could be loaded.
        StoreError::Volume(
            VolumeError::InvalidTable { .. }
            | VolumeError::InvalidGeneration { .. }
            | VolumeError::CatalogueFull { .. }
            | VolumeError::NoSpace { .. },
        ) => Failure::from(error).remedy("choose some of the file's tensors in the address: tensor=GLOB"),
        _ => error.into(),
    })?;
    Ok(Some(device))
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Self {
        let message = error.to_string();
        let (file, remedy) = match error {
            AttachError::File(error) => return error.into(),
            AttachError::Nothing { file, .. } => {
                (file, "load it instead: `warprow load` puts rows where look-ups find them")
            }
            AttachError::Stays { file, .. } => {
                (file, "leave it out of tensor=, or load it: `warprow load` puts rows where look-ups find them")
            }
            AttachError::NoMatch { file, .. } => (file, "* stands for any characters and ? for one; quote the pattern"),
            AttachError::Shards { file, .. } => (file, "look at the names and shapes that `warprow inspect` prints"),
            AttachError::Scales { file, .. } => {
                (file, "name the tensor of scales (scales=), or take the elements as they stand (scales= and nothing)")
            }
            AttachError::Changed(changed) => (changed.file, "attach it again"),
            AttachError::Several { file, .. } => {
                (file, "give the pattern without NAME=, or one that only one tensor matches")
            }
            AttachError::SameName { file, .. } => (file, "name them: tensor=NAME=GLOB"),
            _ => return Self::new(Class::Input, "", message).remedy("look at the file"),
        };
        Self::input(file.display().to_string(), message).remedy(remedy)
    }
}
