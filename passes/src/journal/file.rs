//! The file of a journal, open for reading and writing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A change of the file. Tests record these, and repeat a part of them, as a kill would leave it.
#[cfg(test)]
#[derive(Debug, Clone)]
pub(super) enum Step {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

/// The file of a journal: everything that is written to it goes through here.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    #[cfg(test)]
    pub(super) steps: std::sync::Mutex<Vec<Step>>,
    /// How many more steps succeed before one fails.
    #[cfg(test)]
    pub(super) until_failure: std::sync::Mutex<Option<usize>>,
}

impl JournalFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            #[cfg(test)]
            steps: Default::default(),
            #[cfg(test)]
            until_failure: Default::default(),
        }
    }

    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        self.record(Step::Write(at, bytes.to_vec()))?;
        self.file.write_all_at(bytes, at)
    }

    pub(super) fn set_len(&self, bytes: u64) -> io::Result<()> {
        #[cfg(test)]
        self.record(Step::Length(bytes))?;
        self.file.set_len(bytes)
    }

    /// When this returns, all that was written and the length of the file are durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        self.record(Step::Sync)?;
        self.file.sync_all()
    }

    /// The bytes from `begin` up to `end`.
    pub(super) fn read(&self, begin: u64, end: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; end.saturating_sub(begin) as usize];
        self.file.read_exact_at(&mut bytes, begin)?;
        Ok(bytes)
    }

    #[cfg(test)]
    fn record(&self, step: Step) -> io::Result<()> {
        let mut left = self.until_failure.lock().unwrap();
        match *left {
            Some(0) => {
                *left = None;
                return Err(io::Error::other("a failure that the test asked for"));
            }
            Some(more) => *left = Some(more - 1),
            None => {}
        }
        self.steps.lock().unwrap().push(step);
        Ok(())
    }
}
