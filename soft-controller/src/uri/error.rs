use std::io;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};

use super::holder::DriveInUse;
use crate::builder::ControllerBuildError;
use crate::offload_maker::OffloadLack;

/// An emulated drive could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// The address does not name an emulated drive.
    #[error("{uri:?} names no emulated drive: write emulated:PATH")]
    Scheme {
        /// The text given.
        uri: String,
    },
    /// There is no path.
    #[error("{uri:?} has no path: write emulated:PATH")]
    NoPath {
        /// The text given.
        uri: String,
    },
    /// There is no such property.
    #[error("{uri:?}: an emulated drive has no property {property:?}; it has {accepted}")]
    Unknown {
        /// The text given.
        uri: String,
        /// The property.
        property: String,
        /// The properties that there are.
        accepted: String,
    },
    /// A property was given twice.
    #[error("{uri:?}: {property} is given twice")]
    Twice {
        /// The text given.
        uri: String,
        /// The property.
        property: String,
    },
    /// A property cannot have this value.
    #[error("{uri:?}: {property}={value} is not possible; {property} is {accepted}")]
    Value {
        /// The text given.
        uri: String,
        /// The property.
        property: String,
        /// The value given.
        value: String,
        /// The values accepted.
        accepted: String,
    },
    /// The drive is another than the URI says.
    #[error("{}: the drive's {property} is {kept}, not {given}; leave {property}= out, or {remedy}", .path.display())]
    Contradicts {
        /// The file.
        path: PathBuf,
        /// The property.
        property: &'static str,
        /// What the URI says.
        given: String,
        /// What the drive has.
        kept: String,
        /// How to give it what the URI says.
        remedy: String,
    },
    /// A property is missing or does not go with another.
    #[error("{uri}: {reason}")]
    Properties {
        /// The drive.
        uri: String,
        /// What is wrong and how to mend it.
        reason: String,
    },
    /// There is no such file, and it is not to be created.
    #[error("{0}: there is no such drive; to create one, give its size, as in emulated:{0}?size=64G", .path.display())]
    NotThere {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be a drive of that size.
    #[error("{} has {actual} bytes, {reason}", .path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// The file's size, bytes.
        actual: u64,
        /// What is wrong with it and how to mend it.
        reason: String,
    },
    /// Another process, or this one, has the drive open.
    #[error("{} is in use: {}", .0.path.display(), .0.remedy())]
    InUse(DriveInUse),
    /// More processes have a drive with a rate open than share it.
    #[error(
        "{uri}: the drive is open for reading {open} times, and its rate is divided among {sharers}; give sharers={open}, or more, wherever \
         it is opened"
    )]
    Sharers {
        /// The drive.
        uri: String,
        /// The file.
        path: PathBuf,
        /// How many have it open, this one included.
        open: usize,
        /// Among how many it is divided here.
        sharers: u32,
    },
    /// A format of the drive was cut short, and who opens the drive for reading alone may not finish it.
    #[error("{}: a format of this drive was cut short; open it for writing once, which finishes the format", .path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// Somebody has it in another way than as a drive: a block device is mounted.
    #[error("{} is in use by the system: it is mounted, or part of something that is; release it first", .path.display())]
    Mounted {
        /// The block device.
        path: PathBuf,
    },
    /// What is kept beside the file cannot be understood.
    #[error("{}: {reason}; to go on with a drive of 512-byte LBAs, remove that file: the data is not in it", .path.display())]
    Sidecar {
        /// The sidecar.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file cannot be made as long as the drive: this process may not write files of that size.
    #[error("cannot make {} {size} bytes long: files of this process may have {limit} bytes (ulimit -f)", .path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// The size that it was to get.
        size: u64,
        /// The most that it may have, RLIMIT_FSIZE.
        limit: u64,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A GPU is to play the drive, and cannot.
    #[error("{uri}: {lack}")]
    Offload {
        /// The drive.
        uri: String,
        /// What is lacking.
        lack: OffloadLack,
    },
    /// Nothing of the drive itself is wrong, but no controller could be built.
    #[error(transparent)]
    Build(#[from] ControllerBuildError),
}

impl UriError {
    /// The file at `path` cannot be made `size` bytes long, and the system says why.
    pub fn of_sizing(path: &Path, size: u64, source: io::Error) -> Self {
        let path = path.to_owned();
        match getrlimit(Resource::RLIMIT_FSIZE) {
            Ok((limit, _)) if source.kind() == io::ErrorKind::FileTooLarge && size > limit => {
                Self::Limit { path, size, limit }
            }
            _ => Self::Io { what: "set the size of", path, source },
        }
    }
}
