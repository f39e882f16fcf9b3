//! Samples of several files, one after another.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use warprow_formats::FileError;

use super::staging::Staging;
use crate::sample_source::SampleSink;

/// The samples of one file.
pub(super) trait FileSamples: Send {
    /// Adds samples until `staging` is full or the file has no more.
    fn read(&mut self, staging: &mut Staging) -> Result<(), FileError>;
}

/// Opens a file of the data set.
pub(super) type OpenFile = Box<dyn FnMut(&Path) -> Result<Box<dyn FileSamples>, FileError> + Send>;

/// The samples of all files.
pub(super) struct DataFiles {
    files: VecDeque<PathBuf>,
    open: OpenFile,
    current: Option<Box<dyn FileSamples>>,
}

/// Files that the system is asked to read while those before them are read, and how much of each.
const FILES_AHEAD: usize = 3;
const AHEAD_BYTES: i64 = 64 << 20;

impl DataFiles {
    pub(super) fn new(files: Vec<PathBuf>, open: OpenFile) -> Self {
        Self { files: files.into(), open, current: None }
    }

    /// Adds samples until `staging` is full or there are no more. An error names the sample that was being read.
    pub(super) fn fill(&mut self, staging: &mut Staging) -> Result<(), FileError> {
        while !staging.is_full() {
            let mut file = match self.current.take() {
                Some(file) => file,
                None => {
                    let Some(path) = self.files.pop_front() else { break };
                    self.files.iter().take(FILES_AHEAD).for_each(|next| ask_for(next));
                    (self.open)(&path)?
                }
            };
            file.read(staging).map_err(|mut error| {
                error.what = format!("in sample {}: {}", staging.current(), error.what);
                error
            })?;
            if staging.is_full() {
                self.current = Some(file);
            }
        }
        Ok(())
    }
}

/// Asks the system to read the beginning of a file that will be wanted soon.
fn ask_for(path: &Path) {
    if let Ok(file) = File::open(path) {
        // Advice alone: whether it is taken matters to time, not to samples.
        let _ = posix_fadvise(&file, 0, AHEAD_BYTES, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
    }
}
