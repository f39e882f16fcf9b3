//! The lists of attached tables: a file for each table, beside the file or in the folder that has its rows.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// Where the list of an attached table lies, and what tells the table from others.
#[derive(Debug, Clone)]
pub(crate) struct ListPlace {
    /// The file.
    pub path: PathBuf,
    /// A checksum of the files that the table's rows are in, and of where in them.
    pub identity: u32,
}

impl ListPlace {
    /// The place for a table in `path`, a file or a folder, whose rows are at places that have the checksum `rows_at`.
    pub(crate) fn new(path: &Path, table: &str, rows_at: u32, identity: u32) -> Self {
        let number = crc32c::crc32c_append(rows_at, table.as_bytes());
        let name = format!("warprow-dram-{number:08x}");
        let path = match (path.is_dir(), path.file_name()) {
            (false, Some(file)) => path.with_file_name(format!(".{}.{name}", file.to_string_lossy())),
            _ => path.join(format!(".{name}")),
        };
        Self { path, identity }
    }
}

/// The bytes of the list at `path`, of which there are at most `most`; `None`: there is no list. A longer file gives its first bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    // Without waiting: to open a FIFO lasts until somebody writes to it.
    let file = match File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A file system that knows no names of this length has no such file.
        Err(error) if error.raw_os_error() == Some(Errno::ENAMETOOLONG as i32) => return Ok(None),
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// The file in which a list is written before it gets its name.
fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Opens the file `new` for a list to be written in, and makes it if need be. Links are not followed, and a file that has another name
/// too is refused, because what is written would be that file's.
fn open_aside(new: &Path) -> io::Result<File> {
    let taken = |what| {
        let message = format!("{} is {what}, and the list would be written to it: remove it", new.display());
        io::Error::new(io::ErrorKind::AlreadyExists, message)
    };
    // For reading too, so that a FIFO is opened at once, and refused.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let opened = File::options().create(true).truncate(false).read(true).write(true).custom_flags(flags).open(new);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(number) if number == Errno::ELOOP as i32 => taken("a link"),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    match (metadata.is_file(), metadata.nlink()) {
        (false, _) => Err(taken("no regular file")),
        (true, 2..) => Err(taken("a file with another name")),
        (true, _) => Ok(file),
    }
}

/// Puts a list at `path`: after a crash at any moment the one before is there, or this one. `false`: another process does so now,
/// and nothing was changed.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let new = aside(path);
    let mut file = open_aside(&new)?;
    // Where the file system has no locks, nobody is kept away; each list is whole all the same.
    let _locked = match Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock) {
        Err((_, Errno::EWOULDBLOCK)) => return Ok(false),
        locked => locked.ok(),
    };
    // Whoever had the lock before may have given the file its name meanwhile: then it is not to be written to.
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    if fs::metadata(&new).ok().map(id) != Some(id(file.metadata()?)) {
        return Ok(false);
    }
    let mut put = || {
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    if let Err(error) = put() {
        // The error that counts is the first; what is left aside is written over by the next list.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    sync_folder(path)?;
    Ok(true)
}

/// Removes the list at `path`, if there is one, and what a list that was not finished left aside. `false`: another process lists rows
/// now, and nothing was changed.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    let new = aside(path);
    // A link, a FIFO or a folder in that place is none of ours.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let unfinished = File::options().read(true).custom_flags(flags).open(&new).ok();
    let unfinished = unfinished.filter(|file| file.metadata().is_ok_and(|it| it.is_file() && it.nlink() == 1));
    // Held until both are gone, so that nobody who writes the file meanwhile finds it gone.
    let locked = match unfinished.map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock)) {
        Some(Err((_, Errno::EWOULDBLOCK))) => return Ok(false),
        locked => locked,
    };
    let gone = |path: &Path| match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    };
    // The list first: what is left aside, if this fails, is no list.
    let mut is_changed = gone(path)?;
    if locked.is_some() {
        is_changed |= gone(&new)?;
    }
    if is_changed {
        sync_folder(path)?;
    }
    Ok(true)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = ListPlace::new(&dir.path().join("m.safetensors"), "t", 1, 2).path;
        assert_eq!(path.parent().unwrap(), dir.path());
        assert_eq!(read(&path, 100).unwrap(), None);
        assert!(remove(&path).unwrap());
        assert!(write(&path, b"first").unwrap());
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"first");
        assert_eq!(read(&path, 3).unwrap().unwrap(), b"fir");
        // Killed while the next one was written, at each byte of it: the one before counts, and the next is written over the rest.
        for written in 0..=6 {
            fs::write(aside(&path), &b"second"[..written]).unwrap();
            assert_eq!(read(&path, 100).unwrap().unwrap(), b"first");
        }
        let other = File::open(aside(&path)).unwrap();
        other.lock().unwrap();
        assert!(!write(&path, b"third").unwrap(), "another process writes");
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"first");
        drop(other);
        assert!(write(&path, b"3rd").unwrap());
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"3rd");
        assert!(!aside(&path).exists());
        // What a list that was not finished left aside goes with the list; not while another process writes it.
        fs::write(aside(&path), b"fou").unwrap();
        let other = File::open(aside(&path)).unwrap();
        other.lock().unwrap();
        assert!(!remove(&path).unwrap(), "another process writes");
        assert!(path.exists() && aside(&path).exists());
        drop(other);
        assert!(remove(&path).unwrap());
        assert_eq!((read(&path, 100).unwrap(), aside(&path).exists()), (None, false));
        fs::write(aside(&path), b"fou").unwrap();
        assert!(remove(&path).unwrap() && !aside(&path).exists(), "there is no list, and something aside");
        // A folder in the place of a list, and a folder that is not there.
        fs::create_dir(&path).unwrap();
        assert!(read(&path, 100).is_err() && write(&path, b"x").is_err() && !aside(&path).exists());
        assert!(write(&dir.path().join("absent/list"), b"x").is_err());
    }

    #[test]
    fn nothing_but_a_list_is_written_to_or_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = ListPlace::new(&dir.path().join("m.npy"), "t", 1, 2).path;
        let new = aside(&path);
        let other = dir.path().join("other");
        fs::write(&other, b"precious").unwrap();
        let refused = |what: &str| {
            let error = write(&path, b"list").unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("remove it"), "{error}");
            assert_eq!(fs::read(&other).unwrap(), b"precious");
            // Nor is it removed with a list.
            assert!(remove(&path).unwrap() && fs::symlink_metadata(&new).is_ok());
            fs::remove_file(&new).unwrap();
        };
        std::os::unix::fs::symlink(&other, &new).unwrap();
        refused("a link");
        fs::hard_link(&other, &new).unwrap();
        refused("another name");
        let fifo = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        fifo(&new);
        refused("no regular file");
        // A FIFO in the place of a list is told, and a list takes its place.
        fifo(&path);
        assert!(read(&path, 100).unwrap_err().to_string().contains("no regular file"));
        assert!(write(&path, b"list").unwrap());
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"list");
        // Nothing has a name that is too long for the file system.
        let long = dir.path().join("n".repeat(300));
        assert_eq!(read(&long, 100).unwrap(), None);
        assert!(write(&long, b"x").is_err());
    }

    #[test]
    fn tables_slices_and_files_have_lists_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let of = |path: &Path, table, rows_at| ListPlace::new(path, table, rows_at, 0).path;
        let file = dir.path().join("a.npy");
        let all = [
            of(&file, "t", 1),
            of(&file, "u", 1),
            of(&file, "t", 2),
            of(&dir.path().join("b.npy"), "t", 1),
            of(dir.path(), "t", 1),
        ];
        assert!(all.iter().enumerate().all(|(at, path)| !all[..at].contains(path)));
        assert!(all.iter().all(|path| path.parent() == Some(dir.path())));
    }
}
