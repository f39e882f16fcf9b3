//! Where the demo's drive lies: a sparse file on a real file system, without a name unless it is to be kept.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use warprow_soft_controller::{self as soft, DirectBacking, DriveUri, Namespace, NewDrive, SoftController};
use warprow_store::StoreError;
use warprow_workload::rival::PageCaching;
use warprow_workload::units;
use warprow_workload::{FileSystem, available_memory};

use crate::drives::NewFiles;
use crate::failure::{Class, Failure};

/// Bytes of an LBA of the drive.
pub(crate) const LBA: u32 = 512;
/// File systems in memory: a drive there would cost memory twice, and show nothing.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// The file of the demo's drive.
#[derive(Debug)]
pub(crate) struct Place {
    /// How rivals open the same file. It works as long as `file` is open.
    pub path: PathBuf,
    /// The folder that it lies in.
    pub dir: PathBuf,
    /// The place as it is shown to people.
    pub shown: String,
    /// The file system that it lies on.
    pub filesystem: String,
    /// The file, if it has no name.
    file: Option<File>,
    /// The file that is to be kept, if all goes well.
    made: NewFiles,
}

impl Place {
    /// A new drive of `size` bytes, of which `needed` will be written: at `keep`, or in `dir`, or where there is room.
    pub(crate) fn find(
        dir: Option<&Path>,
        keep: Option<&Path>,
        size: u64,
        needed: u64,
    ) -> Result<(Self, Arc<SoftController>), Failure> {
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
        let backing = file.try_clone().and_then(soft::FileBacking::new).map_err(failed)?;
        let controller = controller(Namespace::new(backing))
            .map_err(|error| Failure::new(Class::Resources, &subject, error.to_string()))?;
        let place = Self {
            path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            shown: format!("a nameless file in {}", dir.display()),
            filesystem: filesystem(&dir),
            dir,
            file: Some(file),
            made: NewFiles::default(),
        };
        Ok((place, controller))
    }

    /// Another controller of the drive, whose first is closed, for reading. An error of words says why there can be none.
    pub(crate) fn open(&self, caching: PageCaching) -> Result<Arc<SoftController>, String> {
        let namespace = match caching {
            PageCaching::Cached => {
                let file = File::options().read(true).write(true).open(&self.path).and_then(soft::FileBacking::new);
                Namespace::new(file.map_err(|error| format!("{} cannot be opened again: {error}", self.shown))?)
            }
            PageCaching::Direct => {
                let refused = |error| format!("{} does not take O_DIRECT: {error}", self.filesystem);
                let file = warprow_uring::open_direct(&self.path).map_err(refused)?;
                let size = file.metadata().map_err(refused)?.len();
                let direct = DirectBacking::new(file, size)
                    .map_err(|error| format!("direct=1 is not possible here: {error}"))?;
                if direct.alignment() > LBA as usize {
                    let bytes = direct.alignment();
                    return Err(format!("the disk takes direct transfers of {bytes} bytes and up, an LBA has {LBA}"));
                }
                Namespace::new(direct)
            }
        };
        controller(namespace).map_err(|error| error.to_string())
    }

    /// Keeps others from the drive, as its first controller did, which is closed. A file without a name is nobody else's.
    pub(crate) fn hold(&self) -> Result<Option<Flock<File>>, String> {
        if self.file.is_some() {
            return Ok(None);
        }
        let file = File::open(&self.path).map_err(|error| format!("{} cannot be opened again: {error}", self.shown))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        lock.map(Some).map_err(|(_, errno)| format!("somebody else has {} in use: {errno}", self.shown))
    }

    /// Why there is no place beside the drive for a file of `bytes` bytes, all of which is to stay in the page cache with what is
    /// there; `Ok` if there is.
    pub(crate) fn has_room_beside(&self, bytes: u64) -> Result<(), String> {
        let shown = units::bytes(bytes);
        let free = statvfs(&self.dir).map(|found| found.blocks_available().saturating_mul(found.fragment_size()));
        match free {
            Ok(free) if free < bytes.saturating_add(bytes / 16) => {
                let dir = self.dir.display();
                let free = units::bytes(free);
                return Err(format!("a file of the rows takes {shown} in {dir}, of which {free} are free"));
            }
            Ok(_) => {}
            Err(errno) => return Err(format!("{} cannot be used: {errno}", self.dir.display())),
        }
        match available_memory() {
            // The drive's pages count as available.
            Some(available) if available < bytes.saturating_mul(2).saturating_add(256 << 20) => {
                let available = units::bytes(available);
                Err(format!(
                    "the page cache has no room for a second file of the rows: {shown}, and {available} for both"
                ))
            }
            _ => Ok(()),
        }
    }

    /// The table is in: a file that is to be kept stays.
    pub(crate) fn filled(&mut self) {
        self.made.keep();
    }

    fn kept(path: &Path, size: u64) -> Result<(Self, Arc<SoftController>), Failure> {
        let subject = path.display().to_string();
        let exists = || {
            Failure::new(Class::Refused, &subject, "exists already, and was left as it is")
                .remedy("choose another path for --keep")
        };
        if path.exists() {
            return Err(exists());
        }
        let mut uri = DriveUri::new(path);
        (uri.size, uri.lba) = (Some(size), Some(LBA));
        let mut made = NewFiles::default();
        let (controller, new) = uri.open_or_make().map_err(StoreError::from)?;
        let created = new.as_ref().is_some_and(NewDrive::created_file);
        new.into_iter().for_each(|new| made.add(new));
        if !created {
            // Somebody else made the file since it was looked for.
            drop(controller);
            return Err(exists());
        }
        let path = path.canonicalize().map_err(|error| Failure::io(&subject, "cannot be found", &error))?;
        let dir = path.parent().unwrap_or(&path).to_owned();
        Ok((Self { shown: subject, filesystem: filesystem(&dir), dir, path, file: None, made }, controller))
    }
}

fn controller(namespace: Namespace) -> Result<Arc<SoftController>, soft::ControllerBuildError> {
    let builder = SoftController::builder().name("emulated:demo").serial("WARPROWDEMO");
    builder.namespace(namespace.lba(LBA)).build()
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
        let (place, controller) = Place::find(Some(dir.path()), None, 1 << 20, 1 << 20).unwrap();
        assert_eq!(File::open(&place.path).unwrap().metadata().unwrap().len(), 1 << 20);
        drop(controller);
        assert!(place.hold().unwrap().is_none());
        place.open(PageCaching::Cached).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(place.has_room_beside(4096), Ok(()));
        assert!(place.has_room_beside(1 << 60).unwrap_err().contains("are free"));
    }

    #[test]
    fn a_kept_drive_is_held_while_it_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.drive");
        let (mut place, controller) = Place::find(None, Some(&path), 1 << 20, 1 << 20).unwrap();
        place.filled();
        assert!(place.hold().unwrap_err().contains("in use"));
        drop(controller);
        let held = place.hold().unwrap();
        assert!(held.is_some() && DriveUri::new(&path).open().is_err());
        place.open(PageCaching::Cached).unwrap();
        drop(held);
        DriveUri::new(&path).open().unwrap();
    }
}
