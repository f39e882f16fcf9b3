//! A file that nobody sees before it is whole, and of which a kill leaves nothing.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use tempfile::NamedTempFile;

use crate::write::directory;

/// The file's permissions, before the process's mask (umask) is applied.
const MODE: u32 = 0o666;

/// A file that is being written and gets its name when it is whole. If it is dropped before [`persist`](Self::persist),
/// it is gone. It is also gone after `kill -9` if the file system has files without a name (`O_TMPFILE`); if not, a
/// file `.warprow-*` in the same folder stays.
#[derive(Debug)]
pub struct NewFile {
    kind: Kind,
    path: PathBuf,
}

#[derive(Debug)]
enum Kind {
    Unnamed(File),
    Named(NamedTempFile),
}

impl NewFile {
    /// A file, open for reading and writing, that is to be called `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut unnamed = OpenOptions::new();
        unnamed.read(true).write(true).mode(MODE).custom_flags(OFlag::O_TMPFILE.bits());
        let kind = match unnamed.open(directory(path)) {
            // The file gets its name by way of procfs.
            Ok(file) if place(&file).exists() => Kind::Unnamed(file),
            _ => {
                let permissions = Permissions::from_mode(MODE);
                Kind::Named(temporary().permissions(permissions).tempfile_in(directory(path))?)
            }
        };
        Ok(Self { kind, path: path.to_owned() })
    }

    /// The file that the content is written to.
    pub fn file(&self) -> &File {
        match &self.kind {
            Kind::Unnamed(file) => file,
            Kind::Named(file) => file.as_file(),
        }
    }

    /// Whether the file has no name at all yet, rather than one that begins with `.warprow-`.
    pub fn is_unnamed(&self) -> bool {
        matches!(self.kind, Kind::Unnamed(_))
    }

    /// Gives the file its name. If there is a file of that name, this fails
    /// ([`AlreadyExists`](io::ErrorKind::AlreadyExists)), or replaces it atomically if `replace` is set.
    pub fn persist(self, replace: bool) -> io::Result<()> {
        let Self { kind, path } = self;
        match kind {
            Kind::Named(file) if replace => file.persist(&path).map(drop).map_err(|error| error.error),
            Kind::Named(file) => file.persist_noclobber(&path).map(drop).map_err(|error| error.error),
            Kind::Unnamed(file) => name(file, &path, replace, link),
        }
    }
}

/// Gives a file without a name one.
fn name(file: File, path: &Path, replace: bool, link: impl Fn(&File, &Path) -> io::Result<()>) -> io::Result<()> {
    let linked = match link(&file, path) {
        // Only a name can be moved onto another.
        Err(error) if replace && error.kind() == io::ErrorKind::AlreadyExists => temporary()
            .make_in(directory(path), |other| link(&file, other))
            .and_then(|named| named.into_temp_path().persist(path).map_err(|error| error.error)),
        other => other,
    };
    match linked {
        Err(error) if has_no_links(&error) => {
            let permissions = file.metadata()?.permissions();
            let mut named = temporary().permissions(permissions).tempfile_in(directory(path))?;
            (&file).rewind()?;
            io::copy(&mut &file, named.as_file_mut())?;
            named.as_file().sync_all()?;
            NewFile { kind: Kind::Named(named), path: path.to_owned() }.persist(replace)
        }
        other => other,
    }
}

/// Whether it says that files there, made without a name, cannot get one: some file systems have those, and no links.
fn has_no_links(error: &io::Error) -> bool {
    let known = [Errno::EPERM, Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EXDEV, Errno::ENOENT, Errno::EMLINK];
    error.raw_os_error().is_some_and(|code| known.contains(&Errno::from_raw(code)))
}

fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".warprow-");
    builder
}

/// Where procfs shows an open file.
fn place(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(AT_FDCWD, &place(file), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn it_appears_whole_and_a_kill_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let listed =
            || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        let write = |content: &str| {
            let new = NewFile::create(&path).unwrap();
            new.file().write_all(content.as_bytes()).unwrap();
            new
        };
        // As after a kill: nothing is tidied up.
        let killed = write("half");
        let expected = usize::from(!killed.is_unnamed());
        std::mem::forget(killed);
        assert_eq!(listed().len(), expected);
        if let Some(left) = listed().first() {
            println!("no files without a name in {}", dir.path().display());
            std::fs::remove_file(dir.path().join(left)).unwrap();
        }
        drop(write("dropped"));
        assert!(listed().is_empty());
        write("first").persist(false).unwrap();
        let refused = write("second").persist(false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        write("third").persist(true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(listed(), ["t"]);
    }

    #[test]
    fn where_there_are_no_links_it_is_copied_to_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let listed =
            || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        // Whether a name is taken is looked at first, as the kernel does.
        let refuses = |code: Errno| {
            move |_: &File, name: &Path| Err(io::Error::from(if name.exists() { Errno::EEXIST } else { code }))
        };
        let unnamed = |content: &[u8]| {
            let mut file = tempfile::tempfile_in(dir.path()).unwrap();
            file.write_all(content).unwrap();
            file
        };
        for (code, content) in [(Errno::EPERM, "first"), (Errno::EOPNOTSUPP, "second"), (Errno::ENOENT, "third")] {
            name(unnamed(content.as_bytes()), &path, true, refuses(code)).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert_eq!(listed(), ["t"]);
        }
        let refused = name(unnamed(b"fourth"), &path, false, refuses(Errno::EPERM)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        // Another reason is the caller's to know.
        let refused = name(unnamed(b"fourth"), &path, true, refuses(Errno::ENOSPC)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::ENOSPC as i32));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(listed(), ["t"]);
    }
}
