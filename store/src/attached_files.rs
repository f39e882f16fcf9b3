//! The files of attached tables: whether they are still what they were, and their descriptors for reading past the page cache.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use warprow_layout::{RowSource, Table};
use warprow_uring::FileRing;

use crate::dram_list::ListPlace;

/// A file of attached tables that is no longer what it was when they were attached. None of their rows is read from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedFile {
    /// The file.
    pub file: PathBuf,
    /// What is seen of it.
    pub what: String,
}

impl fmt::Display for ChangedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, what } = self;
        write!(f, "{} {what} while it was attached: let nobody write to it, and attach it again", file.display())
    }
}

impl std::error::Error for ChangedFile {}

/// What a file's content of a moment is known by. (The time of the last change of its inode says less: it moves also when somebody
/// makes a link to the file, or changes its rights.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    size: u64,
    modified: (i64, i64),
}

impl State {
    fn of(metadata: &Metadata) -> Self {
        Self { size: metadata.size(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

/// A file as it was when its tables were attached.
#[derive(Debug)]
struct Watched {
    state: State,
    /// It had no name from the beginning.
    was_nameless: bool,
    path: PathBuf,
    direct: Option<DirectFile>,
}

/// A file opened once more, for reading past the page cache.
#[derive(Debug)]
pub(crate) struct DirectFile {
    pub(crate) file: Arc<File>,
    /// Offsets and lengths of transfers are multiples of this.
    pub(crate) align: u64,
    /// Addresses in memory are.
    pub(crate) memory_align: usize,
}

/// Looks where the names of files lead, and says which leads elsewhere now.
pub(crate) type LookAtNames = Box<dyn Fn() -> Option<(PathBuf, String)> + Send + Sync>;

/// The files of attached tables.
pub(crate) struct AttachedFiles {
    /// By the descriptor that the tables have them open with.
    files: HashMap<RawFd, Watched>,
    /// The first that was found to have changed.
    changed: OnceLock<ChangedFile>,
    names: Option<LookAtNames>,
    /// By table: where its list of rows in DRAM is kept.
    lists: HashMap<String, ListPlace>,
    /// Since when times are counted.
    begin: Instant,
    /// Milliseconds from then to the next look at the names.
    look_at: AtomicU64,
}

/// Milliseconds between two looks at the names of files, which take longer than looks at open files.
const LOOKS: u64 = 1000;

impl fmt::Debug for AttachedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedFiles")
            .field("files", &self.files)
            .field("changed", &self.changed)
            .finish_non_exhaustive()
    }
}

impl AttachedFiles {
    /// Takes note of the files of all tables, and opens them once more if they are read past the page cache; what is in the way, if
    /// that cannot be done. Lists of rows in DRAM are kept beside `path`; `None`: nowhere.
    pub(crate) fn new<'a>(
        tables: impl Iterator<Item = (&'a Table, &'a (dyn RowSource + Send + Sync))>,
        direct: bool,
        names: Option<LookAtNames>,
        path: Option<&Path>,
    ) -> Result<Self, String> {
        let mut files: HashMap<RawFd, Watched> = HashMap::new();
        let mut lists = HashMap::new();
        for (table, source) in tables {
            let row_bytes = u64::from(table.row_bytes());
            let mut bytes = 0;
            let mut refused = None;
            // Where the rows are, and in which state of their files.
            let (mut rows_at, mut identity) = (crc_of(0, [table.rows, row_bytes]), 0);
            source.stretches(0, table.rows, row_bytes as usize, &mut |file, begin, len| {
                bytes += len;
                let watched = match files.entry(file.as_raw_fd()) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => match Watched::new(file, direct) {
                        Ok(watched) => place.insert(watched),
                        Err(error) => {
                            refused = Some(error);
                            return;
                        }
                    },
                };
                let State { size, modified: (seconds, nanoseconds) } = watched.state;
                rows_at = crc_of(rows_at, [begin, len]);
                identity = crc_of(identity, [size, seconds as u64, nanoseconds as u64, begin, len]);
            });
            if let Some(path) = path {
                lists.insert(table.name.clone(), ListPlace::new(path, &table.name, rows_at, identity));
            }
            let name = &table.name;
            if let Some(error) = refused {
                let how = if direct { "cannot be read past the page cache" } else { "cannot be read" };
                return Err(format!("a file of table {name:?} {how}: {error}"));
            }
            let stored = source.stored_bytes().map_or(row_bytes, |bytes| bytes as u64);
            if direct && bytes != table.rows * stored {
                return Err(format!(
                    "the rows of table {name:?} do not stand in a file as they are: leave direct=1 out"
                ));
            }
        }
        if direct {
            FileRing::new(1).map_err(|error| format!("direct=1 needs io_uring, which is not available: {error}"))?;
        }
        let (begin, look_at) = (Instant::now(), AtomicU64::new(LOOKS));
        Ok(Self { files, changed: OnceLock::new(), names, lists, begin, look_at })
    }

    /// The files opened for reading past the page cache, each with the descriptor of its tables.
    pub(crate) fn all_direct(&self) -> impl Iterator<Item = (RawFd, &DirectFile)> {
        self.files.iter().filter_map(|(&descriptor, watched)| Some((descriptor, watched.direct.as_ref()?)))
    }

    /// Fails once a file was found to have changed. Looks where the names lead, if it is time.
    pub(crate) fn check_all(&self) -> io::Result<()> {
        if self.changed.get().is_none()
            && let Some(names) = &self.names
        {
            let now = self.begin.elapsed().as_millis() as u64;
            let at = self.look_at.load(Ordering::Relaxed);
            let is_mine =
                |()| self.look_at.compare_exchange(at, now + LOOKS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if now >= at
                && is_mine(())
                && let Some((file, what)) = names()
            {
                self.note(ChangedFile { file, what });
            }
        }
        self.changed.get().map_or(Ok(()), |changed| Err(io::Error::other(changed.clone())))
    }

    fn note(&self, changed: ChangedFile) {
        tracing::error!("{changed}");
        let _ = self.changed.set(changed);
    }

    /// Fails if a file, which the tables have open as `descriptor`, is not what it was. What was read of it before this call is as it
    /// was attached, if this succeeds. `file` is open, and may be another descriptor of the file.
    pub(crate) fn check(&self, descriptor: RawFd, file: &File) -> io::Result<()> {
        let Some(watched) = self.files.get(&descriptor) else {
            return Err(io::Error::other("rows stand in a file that was not told of before"));
        };
        if let Some(what) = watched.difference(&file.metadata()?) {
            self.note(ChangedFile { file: watched.path.clone(), what });
        }
        self.changed.get().map_or(Ok(()), |changed| Err(io::Error::other(changed.clone())))
    }

    /// As [`check`](Self::check), of a file that is open for reading past the page cache.
    pub(crate) fn check_direct(&self, descriptor: RawFd) -> io::Result<()> {
        match self.files.get(&descriptor).and_then(|watched| watched.direct.as_ref()) {
            Some(direct) => self.check(descriptor, &direct.file),
            None => Err(io::Error::other("rows stand in a file that was not told of before")),
        }
    }

    /// Where the list of rows in DRAM of a table is kept.
    pub(crate) fn list_place(&self, table: &str) -> Option<&ListPlace> {
        self.lists.get(table)
    }

    /// The first file that was found to have changed.
    pub(crate) fn changed(&self) -> Option<&ChangedFile> {
        self.changed.get()
    }
}

/// The checksum `crc`, continued with numbers.
fn crc_of<const N: usize>(crc: u32, numbers: [u64; N]) -> u32 {
    numbers.iter().fold(crc, |crc, number| crc32c::crc32c_append(crc, &number.to_le_bytes()))
}

impl Watched {
    fn new(file: &File, direct: bool) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (state, was_nameless) = (State::of(&metadata), metadata.nlink() == 0);
        let direct = if direct { Some(DirectFile::open(file)?) } else { None };
        // Only for what errors say.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        Ok(Self { state, was_nameless, path, direct })
    }

    /// What is not as it was.
    fn difference(&self, metadata: &Metadata) -> Option<String> {
        let (before, now) = (self.state, State::of(metadata));
        let sizes = || format!("({} bytes, before {})", now.size, before.size);
        match () {
            () if before.size > now.size => Some(format!("became shorter {}", sizes())),
            () if before.size < now.size => Some(format!("became longer {}", sizes())),
            () if before.modified != now.modified => Some("was written to".to_owned()),
            () if metadata.nlink() == 0 && !self.was_nameless => {
                Some("was removed, or replaced by another file,".to_owned())
            }
            () => None,
        }
    }
}

impl DirectFile {
    fn open(file: &File) -> io::Result<Self> {
        let direct = warprow_uring::reopen_direct(file)?;
        let alignment = warprow_uring::alignment(&direct)?;
        // Buffers begin at pages.
        if alignment.offset > 4096 || alignment.memory > 4096 || alignment.offset == 0 {
            let why = format!("its disk takes transfers of multiples of {} bytes", alignment.offset);
            return Err(io::Error::new(ErrorKind::Unsupported, why));
        }
        Ok(Self { file: Arc::new(direct), align: alignment.offset as u64, memory_align: alignment.memory.max(1) })
    }
}
