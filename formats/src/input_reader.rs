//! A file that is read from a position on.

use std::io::{self, Read};
use std::ops::Deref;

use crate::input::Input;

/// A file's bytes from a position on.
pub(crate) struct InputReader<I> {
    pub(crate) input: I,
    pub(crate) at: u64,
}

impl<I: Deref<Target = Input>> Read for InputReader<I> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        let read = self.input.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
