//! NumPy's `.npz` archives: each member an array.

use std::io::{BufReader, Read};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use flate2::read::DeflateDecoder;

use crate::ahead::Ahead;
use crate::error::FormatError;
use crate::input::Input;
use crate::keys::{KeyArray, KeyPlace};
use crate::npy::{self, From, array};
use crate::table::{FileTable, Found, Part, Place, Rows};
use crate::zip::{self, Member, Packing};

/// A member of an archive that is compressed, and an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deflated {
    member: Member,
    /// Bytes of the member before its rows.
    head: u64,
}

pub(crate) fn open(path: &Path) -> Result<Found, FormatError> {
    let input = Input::open(path)?;
    let mut found = Found::default();
    for member in zip::read(&input)? {
        let Some(name) = member.name.strip_suffix(".npy").filter(|name| !name.is_empty()) else {
            found.skipped.push((member.name, "no array".into()));
            continue;
        };
        let table = match member.packing {
            Packing::Stored => {
                let reader = BufReader::with_capacity(4096, From { input: &input, at: member.at });
                array(&input, reader, member.bytes)
            }
            Packing::Deflated => array(&input, inflate(&input, &member), member.bytes),
        };
        let list = match member.packing {
            Packing::Stored => {
                npy::list(BufReader::with_capacity(4096, From { input: &input, at: member.at }), member.bytes)
            }
            Packing::Deflated => npy::list(inflate(&input, &member), member.bytes),
        };
        if let Some((rows, keys, head)) = list {
            let place = match member.packing {
                Packing::Stored => {
                    let part = Part { input: 0, at: member.at.saturating_add(head), first: 0, rows };
                    KeyPlace::Flat(vec![part])
                }
                Packing::Deflated => KeyPlace::Deflated(Deflated { member: member.clone(), head }),
            };
            let stored = (member.packing == Packing::Stored).then(|| member.clone());
            found.key_arrays.push(KeyArray { name: name.to_owned(), rows, keys, place, stored });
        }
        match table {
            Ok((rows, dim, dtype, head)) => {
                let mut table = FileTable::flat(name, rows, dim, dtype, member.at.saturating_add(head));
                table.place = match member.packing {
                    Packing::Deflated => Place::Deflated(Deflated { member, head }),
                    Packing::Stored => {
                        let at = member.at.saturating_add(head);
                        Place::Stored(Part { input: 0, at, first: 0, rows }, member)
                    }
                };
                found.tables.push(table);
            }
            Err(error) if error.kind == crate::Kind::Unsupported => {
                found.skipped.push((name.to_owned(), error.message()));
            }
            Err(error) => {
                let what = format!("in {}: {}", member.name, error.what);
                return Err(error.saying(what).at(member.at));
            }
        }
    }
    found.inputs.push(input);
    Ok(found)
}

/// Bytes of a member above which a thread of its own unpacks it.
const WORTH_A_THREAD: u64 = 1 << 20;

type Inflate<I> = DeflateDecoder<BufReader<std::io::Take<From<I>>>>;

fn inflate<I: Deref<Target = Input>>(input: I, member: &Member) -> Inflate<I> {
    let packed = From { input, at: member.at }.take(member.packed);
    DeflateDecoder::new(BufReader::with_capacity(64 << 10, packed))
}

impl Deflated {
    pub(crate) fn reader(&self, inputs: &[Arc<Input>]) -> Result<Box<dyn Rows>, FormatError> {
        let input = inputs.first().ok_or_else(|| FormatError::damaged(Path::new(""), "no archive is open"))?.clone();
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
    member: Member,
    inflate: Inflate<Arc<Input>>,
    crc: crc32fast::Hasher,
    /// Bytes of rows that are still to come.
    left: u64,
}

impl Inflated {
    fn take(&mut self, bytes: &mut [u8]) -> Result<(), FormatError> {
        let Member { name, at, .. } = &self.member;
        let damaged = |error: std::io::Error| {
            self.input.damaged(format!("what is packed as {name} is damaged or cut off: {error}")).at(*at)
        };
        self.inflate.read_exact(bytes).map_err(damaged)?;
        self.crc.update(bytes);
        Ok(())
    }
}

impl Rows for Inflated {
    fn next(&mut self, rows: &mut [u8]) -> Result<(), FormatError> {
        self.take(rows)?;
        self.left = self.left.saturating_sub(rows.len() as u64);
        let Member { name, at, crc, .. } = &self.member;
        if self.left == 0 && self.crc.clone().finalize() != *crc {
            return Err(self.input.damaged(format!("the checksum of {name} does not match what is packed")).at(*at));
        }
        Ok(())
    }
}
