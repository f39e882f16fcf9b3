//! What is wrong with a file.

use std::io;
use std::path::{Path, PathBuf};

/// What kind of thing is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileErrorKind {
    /// The system would not open, read or write it.
    Io,
    /// There is no regular file, but a pipe, a device, or a directory where a file belongs.
    Special,
    /// The file contradicts its format, or itself: it is cut off, has flipped bits, or sizes that cannot be.
    Damaged,
    /// Two files that belong together contradict each other.
    Disagree,
    /// A file that belongs to this one is not there.
    Missing,
    /// A file that belongs to this one is a symbolic link to another folder.
    Elsewhere,
    /// A key, a tensor or an entry comes twice.
    Duplicate,
    /// The file is sound, but can be no table here.
    Unsupported,
    /// The file can only be read if the caller says more: a shape, or a column.
    Unclear,
    /// The name of the file does not tell the format.
    Name,
    /// The file that is to be written exists already.
    Exists,
    /// The file was written to, or replaced, while it was read.
    Changed,
    /// The file asks for more memory than there is.
    Memory,
    /// The file is sound, and holds nothing.
    Empty,
}

/// Something is wrong with a file: which, where in it, what, and what to do.
#[derive(Debug)]
pub struct FileError {
    /// What kind of thing.
    pub kind: FileErrorKind,
    /// The file.
    pub file: PathBuf,
    /// Byte of the file at which it shows, if it shows at one.
    pub at: Option<u64>,
    /// What is wrong, as a sentence about the file.
    pub what: String,
    /// What to do.
    pub remedy: String,
    source: Option<io::Error>,
}

impl FileError {
    /// An error about `file`.
    pub fn new(kind: FileErrorKind, file: &Path, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind, file: file.to_owned(), at: None, what: what.into(), remedy: remedy.into(), source: None }
    }

    /// The system refused to do what `what` says.
    pub fn io(file: &Path, what: &str, error: io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "look at the path",
            io::ErrorKind::PermissionDenied => "change the permissions, or choose another place",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room, then try again",
            io::ErrorKind::FileTooLarge => {
                "raise the limit on the size of files (ulimit -f), or write to another file system"
            }
            _ => "look at the file, and at the disk below",
        };
        Self { source: Some(error), ..Self::new(FileErrorKind::Io, file, what, remedy) }
    }

    /// The file contradicts its format, and should be written or fetched again.
    pub fn damaged(file: &Path, what: impl Into<String>) -> Self {
        Self::new(FileErrorKind::Damaged, file, what, "fetch or write the file again")
    }

    /// Adds that the error shows at byte `at` of the file.
    #[must_use]
    pub fn at(self, at: u64) -> Self {
        Self { at: Some(at), ..self }
    }

    /// In other words.
    #[must_use]
    pub(crate) fn saying(self, what: String) -> Self {
        Self { what, ..self }
    }

    /// The error, with another remedy.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// The system's error below it.
    pub fn io_error(&self) -> Option<&io::Error> {
        self.source.as_ref()
    }

    /// Whether there is no such file.
    pub fn is_absent(&self) -> bool {
        self.source.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// What is wrong and where, without the file's name.
    pub fn message(&self) -> String {
        let at = self.at.map(|at| format!(" (at byte {at})")).unwrap_or_default();
        match &self.source {
            Some(source) => format!("{}: {source}{at}", self.what),
            None => format!("{}{at}", self.what),
        }
    }
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.message())
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Turns a file error into the error of a [`RowSource`](warprow_layout::RowSource).
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        Self::other(error)
    }
}
