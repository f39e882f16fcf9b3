//! Compressed members of zip archives, unpacked row by row.

use std::io::{BufReader, Read};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use flate2::read::DeflateDecoder;

use crate::ahead::Ahead;
use crate::error::FileError;
use crate::input::Input;
use crate::input_reader::InputReader;
use crate::streams::RowStream;
use crate::zip::ZipMember;

/// A member of an archive that is compressed, and an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deflated {
    pub(crate) member: ZipMember,
    /// Bytes of the member before its rows.
    pub(crate) head: u64,
}

/// Bytes of a member above which a thread of its own unpacks it.
const WORTH_A_THREAD: u64 = 1 << 20;

pub(crate) type Inflate<I> = DeflateDecoder<BufReader<std::io::Take<InputReader<I>>>>;

pub(crate) fn inflate<I: Deref<Target = Input>>(input: I, member: &ZipMember) -> Inflate<I> {
    let packed = InputReader { input, at: member.at }.take(member.packed);
    DeflateDecoder::new(BufReader::with_capacity(64 << 10, packed))
}

impl Deflated {
    pub(crate) fn reader(&self, inputs: &[Arc<Input>]) -> Result<Box<dyn RowStream>, FileError> {
        let input = inputs.first().ok_or_else(|| FileError::damaged(Path::new(""), "no archive is open"))?.clone();
        let crc = crc32fast::Hasher::new();
        let left = self.member.bytes - self.head.min(self.member.bytes);
        let inflate = inflate(input.clone(), &self.member);
        let mut reader = Inflated { input: input.clone(), member: self.member.clone(), inflate, crc, left };
        let mut head = vec![0; self.head as usize];
        reader.take(&mut head)?;
        if left < WORTH_A_THREAD {
            return Ok(Box::new(reader));
        }
        Ok(Box::new(Ahead::new(input, reader, left)?))
    }
}

/// The rows of a deflated array, one after the other; behind the last the member's checksum is compared.
struct Inflated {
    input: Arc<Input>,
    member: ZipMember,
    inflate: Inflate<Arc<Input>>,
    crc: crc32fast::Hasher,
    /// Bytes of rows that are still to come.
    left: u64,
}

impl Inflated {
    fn take(&mut self, bytes: &mut [u8]) -> Result<(), FileError> {
        let ZipMember { name, at, .. } = &self.member;
        let damaged = |error: std::io::Error| {
            self.input.damaged(format!("what is packed as {name} is damaged or cut off: {error}")).at(*at)
        };
        self.inflate.read_exact(bytes).map_err(damaged)?;
        self.crc.update(bytes);
        Ok(())
    }
}

impl RowStream for Inflated {
    fn next(&mut self, rows: &mut [u8]) -> Result<(), FileError> {
        self.take(rows)?;
        self.left = self.left.saturating_sub(rows.len() as u64);
        let ZipMember { name, at, crc, .. } = &self.member;
        if self.left == 0 && self.crc.clone().finalize() != *crc {
            return Err(self.input.damaged(format!("the checksum of {name} does not match what is packed")).at(*at));
        }
        Ok(())
    }
}
