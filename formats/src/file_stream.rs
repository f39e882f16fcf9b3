//! A file that is written from its first byte to its last, and seen when it is whole.

use std::io::{self, Write};
use std::path::Path;

use crate::error::FileError;
use crate::write::Whole;

/// A file that is being written. Dropped before [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct FileStream {
    file: Whole,
    /// What was put and not written yet, and where it belongs.
    buffer: Vec<u8>,
    at: u64,
}

/// Written at once.
const CHUNK: usize = 1 << 20;

impl FileStream {
    /// Begins a file. An existing one is refused, unless `force` says to replace it.
    pub fn create(path: &Path, force: bool) -> Result<Self, FileError> {
        Ok(Self { file: Whole::begin(path, force, &[], Some(0))?, buffer: Vec::new(), at: 0 })
    }

    /// Appends `bytes`.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK { self.write_buffer() } else { Ok(()) }
    }

    /// Bytes that were put so far.
    pub fn bytes(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    /// Replaces bytes from `at` on, which were put before.
    pub fn replace(&mut self, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.write_buffer()?;
        self.file.write(at, bytes)
    }

    /// Makes the file appear under its name, durably.
    pub fn finish(mut self) -> Result<(), FileError> {
        self.write_buffer()?;
        self.file.finish()
    }

    fn write_buffer(&mut self) -> Result<(), FileError> {
        self.file.write(self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for FileStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes)?;
        Ok(bytes.len())
    }

    /// Nothing is seen before the end: nothing is gained by writing earlier.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FileErrorKind;

    #[test]
    fn it_is_seen_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let mut stream = FileStream::create(&path, false).unwrap();
        let all: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        all.chunks(70_001).for_each(|part| stream.put(part).unwrap());
        assert_eq!(stream.bytes(), 3_000_000);
        stream.replace(1_500_000, b"here").unwrap();
        stream.put(b"end").unwrap();
        assert!(!path.exists());
        stream.finish().unwrap();
        let mut wanted = all;
        wanted[1_500_000..1_500_004].copy_from_slice(b"here");
        wanted.extend(b"end");
        assert!(std::fs::read(&path).unwrap() == wanted);
        assert_eq!(FileStream::create(&path, false).unwrap_err().kind, FileErrorKind::Exists);
        drop(FileStream::create(&path, true).unwrap());
        assert!(std::fs::read(&path).unwrap() == wanted, "dropped before it was finished");
    }
}
