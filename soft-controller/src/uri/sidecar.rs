//! What a drive in a file has besides its data: a small TOML file beside it, so that the data stays a plain image.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::UriError;
use super::files::with;
use crate::namespace::{FormatStep, LBA_BYTES};
use crate::regular::open_regular;

/// How the name of a drive's sidecar ends, behind the drive's own.
pub(super) const ENDING: &str = ".nvme.toml";
/// How the name of what a sidecar is replaced from ends, behind the sidecar's own.
pub(super) const NEW: &str = ".new";
/// Bytes of a sidecar at most: more is no sidecar.
const MOST: u64 = 64 << 10;
/// The version of the sidecar that is written, and the only one that is read.
const VERSION: u32 = 1;

/// The contents of the sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sidecar {
    version: u32,
    /// Serial number of the controller.
    pub(super) serial: String,
    /// UUID of the namespace.
    pub(super) uuid: Uuid,
    /// LBA size that the namespace is formatted with, bytes.
    pub(super) lba: u32,
    /// A format with these LBAs has begun; whether any data is left is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) formatting: bool,
}

/// Where the sidecar of a drive lies, or is to lie. Of a symbolic link, beside the file that it leads to, by whatever name that
/// is opened; one beside the link counts where there is no other.
pub(super) fn place_of(drive: &Path) -> PathBuf {
    let beside = |drive: &Path| with(drive, ENDING);
    let here = beside(drive);
    let is_link = fs::symlink_metadata(drive).is_ok_and(|metadata| metadata.is_symlink());
    match fs::canonicalize(drive).map(|target| beside(&target)) {
        Ok(there) if is_link && (there.exists() || !here.exists()) => there,
        _ => here,
    }
}

impl Sidecar {
    /// Of a new drive.
    pub(super) fn new(serial: Option<&str>, lba: u32) -> Self {
        let uuid = Uuid::new_v4();
        let serial = serial.map_or_else(|| format!("WP{:016X}", uuid.as_u64_pair().0), str::to_owned);
        Self { version: VERSION, serial, uuid, lba, formatting: false }
    }

    /// Of a file that has none: a serial number and a UUID that stay as long as the file does, without being written, and LBAs
    /// of 512 bytes.
    pub(super) fn of(file: &fs::Metadata) -> Self {
        let bytes = *Uuid::from_u64_pair(file.dev(), file.ino()).as_bytes();
        let uuid = uuid::Builder::from_custom_bytes(bytes).into_uuid();
        Self { version: VERSION, serial: format!("WP{:016X}", file.ino()), uuid, lba: 512, formatting: false }
    }

    /// The same at a step of a format.
    pub(super) fn at(&self, step: FormatStep, lba: u32) -> Self {
        Self { lba, formatting: step == FormatStep::Begins, ..self.clone() }
    }

    /// Reads the sidecar at `path`, if there is one.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, UriError> {
        let wrong = |reason: String| UriError::Sidecar { path: path.to_owned(), reason };
        let failed = |source| UriError::Io { what: "read", path: path.to_owned(), source };
        let file = match open_regular(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(wrong(error.to_string())),
            Err(error) => return Err(failed(error)),
        };
        let mut text = Vec::new();
        file.take(MOST + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > MOST {
            return Err(wrong(format!("it has more than {MOST} bytes")));
        }
        let text = String::from_utf8(text).map_err(|_| wrong("it is no text".to_owned()))?;
        let this: Self = toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
        if this.version != VERSION {
            return Err(wrong(format!("its version is {}, this program knows version {VERSION}", this.version)));
        }
        if !LBA_BYTES.contains(&this.lba) {
            return Err(wrong(format!("an LBA of {} bytes is not possible", this.lba)));
        }
        Ok(Some(this))
    }

    /// Replaces the sidecar at `path`: afterwards either the old or the new one is there, whatever happens. Who may read or
    /// write `drive`, the drive's own file, may do so with its sidecar.
    pub(super) fn write(&self, path: &Path, drive: &fs::Metadata) -> std::io::Result<()> {
        let text = toml::to_string(self).map_err(std::io::Error::other)?;
        let new = with(path, NEW);
        // What a kill left there, or somebody else put there, is not opened.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let permissions = fs::Permissions::from_mode(drive.mode() & 0o666);
        let written = file.set_permissions(permissions);
        let written = written.and_then(|()| file.write_all(text.as_bytes())).and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
            // Nobody needs half of it, least of all where the disk is full.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.nvme.toml");
        // What is to be replaced is a folder that is not empty: no rename goes there.
        fs::create_dir_all(path.join("kept")).unwrap();
        Sidecar::new(None, 512).write(&path, &fs::metadata(&path).unwrap()).unwrap_err();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [path]);
    }
}
