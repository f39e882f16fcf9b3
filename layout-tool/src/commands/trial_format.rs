//! Formatting in rehearsal: on stand-ins of the same sizes, in memory.

use std::path::Path;

use nix::errno::Errno;
use warprow_formats::directory;
use warprow_layout::FormatOptions;
use warprow_soft_controller::{DriveUri, Namespace, ProceduralBacking, SoftController, UriError};
use warprow_store::{Device, FormatProposal, FormatSettings, OpenOptions, Store, StoreError};

use crate::failure::Failure;

/// A drive as it would be.
#[derive(Debug, Clone)]
pub(super) struct TrialDrive {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) lba_bytes: u32,
}

impl TrialDrive {
    /// For the drive that `uri` would make, `bytes` large. Fails as making its file would.
    pub(super) fn of_new(uri: &DriveUri, bytes: u64, settings: &FormatSettings) -> Result<Self, Failure> {
        try_file(&uri.path, bytes)?;
        let new = Self { name: uri.to_string(), bytes, lba_bytes: uri.lba.unwrap_or(512) };
        let plan = FormatProposal::new(&[new.device()?], settings.clone())?;
        let lba_bytes = plan.drives().first().map_or(new.lba_bytes, |drive| drive.new_lba_bytes);
        Ok(Self { lba_bytes, ..new })
    }

    fn device(&self) -> Result<Device, Failure> {
        let blank = ProceduralBacking::with(self.bytes, |_, block| block.fill(0));
        let namespace = Namespace::new(blank).lba(self.lba_bytes);
        let controller = SoftController::builder().name(&self.name).namespace(namespace).build();
        Ok(Device::new(controller.map_err(|error| StoreError::from(UriError::from(error)))?, 1))
    }
}

/// Makes a store on the stand-ins; fails as it would on the drives.
pub(super) fn format(drives: &[TrialDrive], chunk_size: Option<u64>) -> Result<(), Failure> {
    let devices = drives.iter().map(TrialDrive::device).collect::<Result<Vec<_>, _>>()?;
    let options = FormatOptions { chunk_size, overwrite: true, ..FormatOptions::default() };
    Store::create(&devices, &options, &OpenOptions::default())?;
    Ok(())
}

/// Makes a file of that size, without a name, where `path` would be.
fn try_file(path: &Path, bytes: u64) -> Result<(), Failure> {
    let failed = |what| move |source| StoreError::from(UriError::Io { what, path: path.to_owned(), source });
    if path.is_symlink() {
        // It leads nowhere: no file is made through it.
        return Err(failed("create")(Errno::EEXIST.into()).into());
    }
    let file = tempfile::tempfile_in(directory(path)).map_err(failed("create"))?;
    file.set_len(bytes).map_err(|source| StoreError::from(UriError::of_sizing(path, bytes, source)))?;
    Ok(())
}
