//! What a drive in a file has besides its data: a small TOML file beside it, so that the data stays a plain image.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::UriError;
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

/// A path that ends so besides.
pub(super) fn with(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    PathBuf::from(path)
}

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
    /// The sidecar of a new drive.
    pub(super) fn new(serial: Option<&str>, lba: u32) -> Self {
        let uuid = Uuid::new_v4();
        let serial = serial.map_or_else(|| format!("WP{:016X}", uuid.as_u64_pair().0), str::to_owned);
        Self { version: VERSION, serial, uuid, lba, formatting: false }
    }

    /// The sidecar that stands for that of a file without one: a serial number and a UUID that stay as long as the file does, without being written, and LBAs
    /// of 512 bytes.
    pub(super) fn of(file: &fs::Metadata) -> Self {
        let bytes = *Uuid::from_u64_pair(file.dev(), file.ino()).as_bytes();
        let uuid = uuid::Builder::from_custom_bytes(bytes).into_uuid();
        Self { version: VERSION, serial: format!("WP{:016X}", file.ino()), uuid, lba: 512, formatting: false }
    }

    /// The sidecar of the same drive at a step of a format.
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
        let permissions = fs::Permissions::from_mode(drive.mode() & 0o666);
        let fill = |mut file: &File| {
            file.set_permissions(permissions.clone())?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let named = match unnamed(folder) {
            Some(file) => {
                fill(&file)?;
                name(&file, path)
            }
            None => Err(Errno::EOPNOTSUPP.into()),
        };
        match named {
            Err(error) if has_no_links(&error) => write_named(path, fill)?,
            other => other?,
        }
        File::open(folder)?.sync_all()
    }
}

/// A file without a name, for this user alone, which a kill leaves nothing of; `None`: the file system of that folder has none.
fn unnamed(folder: &Path) -> Option<File> {
    OpenOptions::new().write(true).mode(0o600).custom_flags(OFlag::O_TMPFILE.bits()).open(folder).ok()
}

/// Names a file that has no name `path`, in place of what is there. Only a name takes another's place at once: where there is
/// one, the file gets that with [`NEW`] first, which [`tidy`] removes if a kill comes between.
fn name(file: &File, path: &Path) -> std::io::Result<()> {
    match link(file, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let new = with(path, NEW);
            put_away(&new)?;
            link(file, &new)?;
            take_place(&new, path)
        }
        other => other,
    }
}

fn link(file: &File, path: &Path) -> std::io::Result<()> {
    let place = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(AT_FDCWD, &*place, AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}

/// Whether it says that files there cannot get a name once they were made without one.
fn has_no_links(error: &std::io::Error) -> bool {
    let known = [Errno::EPERM, Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EXDEV, Errno::ENOENT, Errno::EMLINK];
    error.raw_os_error().is_some_and(|code| known.contains(&Errno::from_raw(code)))
}

/// Replaces the file at `path` by way of one beside it, which `fill` fills.
fn write_named(path: &Path, fill: impl Fn(&File) -> std::io::Result<()>) -> std::io::Result<()> {
    let new = with(path, NEW);
    put_away(&new)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    match fill(&file) {
        Ok(()) => take_place(&new, path),
        Err(error) => {
            // Nobody needs half of it, least of all where the disk is full.
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

/// Removes what a kill left there, or somebody else put there: it is not opened.
fn put_away(new: &Path) -> std::io::Result<()> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Puts the file at `new` in the place of that at `path`, at once; where that fails, it is removed.
fn take_place(new: &Path, path: &Path) -> std::io::Result<()> {
    fs::rename(new, path).inspect_err(|_| {
        let _ = fs::remove_file(new);
    })
}

/// Removes what a process that was killed left of replacing the sidecar at `path`: a file beside it that begins as sidecars do,
/// as far as it goes. Only whoever has the drive locked may call this. Anything else of that name is somebody's, and stays until
/// the sidecar is replaced again.
pub(super) fn tidy(path: &Path) {
    const BEGINNING: &[u8] = b"version = ";
    let new = with(path, NEW);
    let is_file = fs::symlink_metadata(&new).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MOST);
    if !is_file {
        return;
    }
    let mut begins = Vec::new();
    let read = open_regular(&new).and_then(|file| file.take(BEGINNING.len() as u64).read_to_end(&mut begins));
    if read.is_ok() && BEGINNING.starts_with(&begins) {
        // It does no harm where it cannot be removed.
        let _ = fs::remove_file(&new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(folder: &tempfile::TempDir) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_sidecar_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.nvme.toml");
        // What is to be replaced is a folder that is not empty: no rename goes there.
        fs::create_dir_all(path.join("kept")).unwrap();
        Sidecar::new(None, 512).write(&path, &fs::metadata(&path).unwrap()).unwrap_err();
        assert_eq!(listed(&folder), ["drive.nvme.toml"]);
    }

    /// As after a kill at each step: nothing is tidied up.
    #[test]
    fn a_kill_leaves_the_old_sidecar_or_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.nvme.toml");
        let drive = fs::metadata(folder.path()).unwrap();
        let old = Sidecar::new(Some("OLD"), 512);
        let new = Sidecar::new(Some("NEW"), 4096);
        let text = |sidecar: &Sidecar| toml::to_string(sidecar).unwrap();
        let begin = || {
            let mut begun = unnamed(folder.path())?;
            begun.write_all(text(&new).as_bytes()).unwrap();
            Some(begun)
        };
        let Some(begun) = begin() else {
            println!("no files without a name in {}", folder.path().display());
            return;
        };
        assert!(listed(&folder).is_empty(), "written, and without a name");
        // A new one gets its name at once, and there was never another.
        let is = |wanted: &Sidecar| {
            assert_eq!(listed(&folder), ["drive.nvme.toml"]);
            assert_eq!(Sidecar::read(&path).unwrap().as_ref(), Some(wanted));
        };
        old.write(&path, &drive).unwrap();
        is(&old);
        // One that is replaced is whole under another name, before it takes the place.
        link(&begun, &with(&path, NEW)).unwrap();
        assert_eq!(Sidecar::read(&path).unwrap(), Some(old.clone()));
        assert_eq!(fs::read_to_string(with(&path, NEW)).unwrap(), text(&new));
        tidy(&path);
        is(&old);
        name(&begin().unwrap(), &path).unwrap();
        is(&new);
    }

    #[test]
    fn only_what_begins_as_a_sidecar_does_is_tidied_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.nvme.toml");
        let new = with(&path, NEW);
        let whole = toml::to_string(&Sidecar::new(None, 512)).unwrap();
        for (left, goes) in [
            (whole.as_bytes(), true),
            (&whole.as_bytes()[..4], true),
            (b"", true),
            (b"my own notes", false),
            (&[0; MOST as usize + 1], false),
        ] {
            fs::write(&new, left).unwrap();
            tidy(&path);
            assert_eq!(!new.exists(), goes, "{:?}", String::from_utf8_lossy(&left[..left.len().min(20)]));
        }
        fs::remove_file(&new).unwrap();
        std::os::unix::fs::symlink("elsewhere", &new).unwrap();
        tidy(&path);
        assert!(new.is_symlink());
    }

    #[test]
    fn where_there_are_no_files_without_a_name_it_is_written_under_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.nvme.toml");
        for text in ["one", "two"] {
            write_named(&path, |mut file| file.write_all(text.as_bytes())).unwrap();
            assert_eq!((fs::read_to_string(&path).unwrap().as_str(), listed(&folder).len()), (text, 1));
        }
        write_named(&path, |_| Err(Errno::ENOSPC.into())).unwrap_err();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), listed(&folder).len()), ("two", 1));
    }
}
