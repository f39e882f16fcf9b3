//! Where the demo's drive lies: a sparse file on a real file system, without a name unless it is to be kept.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::statvfs::statvfs;
use warprow_soft_controller::{DriveUri, Namespace, SoftController};
use warprow_store::StoreError;
use warprow_workload::FileSystem;

use super::LBA;
use crate::drives::NewFiles;
use crate::failure::{Class, Failure};
use crate::units;

/// File systems in memory: a drive there would cost memory twice, and show nothing.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// The demo's drive.
#[derive(Debug)]
pub(crate) struct Place {
    /// The emulated controller.
    pub controller: Arc<SoftController>,
    /// How rivals open the same file. It works as long as `_file` is open.
    pub path: PathBuf,
    /// Where it lies, for people.
    pub shown: String,
    /// The file system that it lies on.
    pub filesystem: String,
    _file: Option<File>,
    /// The file that is to be kept, if all goes well.
    made: NewFiles,
}

impl Place {
    /// A new drive of `size` bytes, of which `needed` will be written: at `keep`, or in `dir`, or where there is room.
    pub(crate) fn find(dir: Option<&Path>, keep: Option<&Path>, size: u64, needed: u64) -> Result<Self, Failure> {
        if let Some(path) = keep {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            check_room(parent, needed)?;
            return Self::kept(path, size);
        }
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => default_directory(),
        };
        check_room(&dir, needed)?;
        let subject = dir.display().to_string();
        let failed = |error: io::Error| {
            Failure::io(&subject, "no drive can be made there", &error).remedy("choose a directory with --dir")
        };
        // Without a name from the start: nothing is left behind, however this process ends.
        let file = tempfile::tempfile_in(&dir).map_err(failed)?;
        file.set_len(size).map_err(failed)?;
        let backing = file.try_clone().and_then(warprow_soft_controller::File::new).map_err(failed)?;
        let controller = SoftController::builder()
            .name("emulated:demo")
            .serial("WARPROWDEMO")
            .namespace(Namespace::new(backing).lba(LBA))
            .build()
            .map_err(|error| Failure::new(Class::Resources, &subject, error.to_string()))?;
        Ok(Self {
            controller,
            path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            shown: format!("a nameless file in {}", dir.display()),
            filesystem: filesystem(&dir),
            _file: Some(file),
            made: NewFiles::default(),
        })
    }

    /// The table is in: a file that is to be kept stays.
    pub(crate) fn filled(&mut self) {
        self.made.keep();
    }

    fn kept(path: &Path, size: u64) -> Result<Self, Failure> {
        let subject = path.display().to_string();
        if path.exists() {
            return Err(Failure::new(Class::Refused, subject, "exists already, and was left as it is")
                .remedy("choose another path for --keep"));
        }
        let mut uri = DriveUri::new(path);
        (uri.size, uri.lba) = (Some(size), Some(LBA));
        let mut made = NewFiles::default();
        made.make(&uri)?;
        let controller = uri.open().map_err(StoreError::from)?;
        let path = path.canonicalize().map_err(|error| Failure::io(&subject, "cannot be found", &error))?;
        let filesystem = filesystem(path.parent().unwrap_or(&path));
        Ok(Self { controller, shown: subject, filesystem, path, _file: None, made })
    }
}

/// $TMPDIR, /var/tmp or the working directory: the first that is there and not in memory, else the first that is there.
fn default_directory() -> PathBuf {
    let places = [std::env::var_os("TMPDIR").map(PathBuf::from), Some("/var/tmp".into()), Some(".".into())];
    let there: Vec<PathBuf> = places.into_iter().flatten().filter(|place| place.is_dir()).collect();
    let on_disk = there.iter().find(|place| !IN_MEMORY.contains(&&*filesystem(place)));
    on_disk.or(there.first()).cloned().unwrap_or_else(|| ".".into())
}

fn filesystem(dir: &Path) -> String {
    FileSystem::of(dir).map_or_else(|| "unknown".to_owned(), |found| found.kind)
}

fn check_room(dir: &Path, needed: u64) -> Result<(), Failure> {
    let subject = dir.display().to_string();
    let found = statvfs(dir).map_err(|errno| {
        Failure::io(&subject, "cannot be used", &io::Error::from(errno)).remedy("choose a directory with --dir")
    })?;
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    if free < needed {
        let what = format!("{} are needed in {subject}, {} are free", units::bytes(needed), units::bytes(free));
        return Err(Failure::new(Class::Resources, subject, what)
            .remedy("choose a directory with more room with --dir, or a smaller table with --rows"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_room_or_taken_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let failure = Place::find(Some(dir.path()), None, 1 << 20, u64::MAX / 2).unwrap_err();
        assert_eq!(failure.class, Class::Resources);
        assert!(failure.message.contains("are needed") && failure.remedy.contains("--dir"), "{failure}");
        let taken = dir.path().join("precious");
        std::fs::write(&taken, "precious").unwrap();
        assert_eq!(Place::find(None, Some(&taken), 1 << 20, 0).unwrap_err().class, Class::Refused);
        assert_eq!(std::fs::read_to_string(&taken).unwrap(), "precious");
    }

    #[test]
    fn an_unnamed_drive_leaves_nothing_and_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(dir.path()), None, 1 << 20, 1 << 20).unwrap();
        assert_eq!(File::open(&place.path).unwrap().metadata().unwrap().len(), 1 << 20);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
