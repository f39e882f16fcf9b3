//! What the opening of a drive made.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::Flock;

/// What an opening made for a drive that was not there: its file, or the size of a file that was empty, and its sidecar. The drive's
/// file stays locked until every clone of this, and the drive itself, are dropped.
#[derive(Clone, Debug)]
pub struct NewDrive {
    pub(super) path: PathBuf,
    /// Whether the drive's file was created by the opening; otherwise it was there, and empty.
    pub(super) created: bool,
    /// The sidecar that the opening wrote.
    pub(super) sidecar: Option<PathBuf>,
    pub(super) file: Arc<Flock<File>>,
}

impl NewDrive {
    /// The path of the drive's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the drive's file was created; otherwise it was there, and empty.
    pub fn created_file(&self) -> bool {
        self.created
    }

    /// Takes back what was made; the drive must be closed. Nobody else has used the file, for it is locked still. A file that
    /// another one replaced stays as it is. What cannot be removed is an empty drive: no harm.
    pub fn unmake(&self) {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let named = fs::metadata(&self.path).map(identity).ok();
        let ours = self.file.metadata().map(identity).ok();
        if ours.is_none() || named != ours {
            return;
        }
        // The sidecar goes first: as soon as the file has no name, a sidecar beside it may be another process's.
        let _ = self.sidecar.as_ref().map(fs::remove_file);
        let _ = match self.created {
            true => fs::remove_file(&self.path),
            false => self.file.set_len(0),
        };
    }
}
