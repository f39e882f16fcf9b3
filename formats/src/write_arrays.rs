//! An archive of arrays, as `numpy.savez` writes one, of which all arrays grow at a time.
//!
//! Members of an archive stand one after another, so each array is kept in a file without a name until all are whole.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::{FileError, FileErrorKind};
use crate::file_stream::FileStream;
use crate::npy;
use crate::write::{directory, followed};

/// An archive that is being written. Dropped before [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct ArrayArchiveWriter {
    path: PathBuf,
    file: FileStream,
    arrays: Vec<GrowingArray>,
}

/// An array, as far as it was put.
#[derive(Debug)]
struct GrowingArray {
    name: String,
    descr: String,
    spool: File,
    buffer: Vec<u8>,
    bytes: u64,
    sum: crc32fast::Hasher,
}

/// Bytes of an array that are written at once.
const CHUNK: usize = 1 << 16;
/// The largest size that the 32 bits of a plain header hold.
const PLAIN: u64 = u32::MAX as u64 - 1;

/// A member, for the directory.
struct Listed {
    name: String,
    crc: u32,
    bytes: u64,
    at: u64,
}

impl ArrayArchiveWriter {
    /// Begins an archive of arrays: the name of each, and the type of its elements as NumPy writes it. An existing file is refused, unless
    /// `force` says to replace it.
    pub fn create(path: &Path, force: bool, arrays: &[(String, &str)]) -> Result<Self, FileError> {
        if let Some((name, _)) = arrays.iter().find(|(name, _)| name.is_empty() || name.len() > 1 << 12) {
            let what = format!("an array of it would have a name of {} bytes", name.len());
            return Err(FileError::new(FileErrorKind::Unsupported, path, what, "choose a name of 1 to 4096 bytes"));
        }
        let file = FileStream::create(path, force)?;
        let folder = followed(path);
        let array = |(name, descr): &(String, &str)| {
            let spool = tempfile::tempfile_in(directory(&folder)).map_err(|error| failed(path, error))?;
            Ok(GrowingArray {
                name: name.clone(),
                descr: (*descr).to_owned(),
                spool,
                buffer: Vec::new(),
                bytes: 0,
                sum: crc32fast::Hasher::new(),
            })
        };
        let arrays = arrays.iter().map(array).collect::<Result<_, FileError>>()?;
        Ok(Self { path: path.to_owned(), file, arrays })
    }

    /// Appends `bytes` to array number `array`.
    pub fn put(&mut self, array: usize, bytes: &[u8]) -> Result<(), FileError> {
        let Some(array) = self.arrays.get_mut(array) else { return Ok(()) };
        array.bytes += bytes.len() as u64;
        array.sum.update(bytes);
        array.buffer.extend_from_slice(bytes);
        if array.buffer.len() >= CHUNK {
            array.spool.write_all(&array.buffer).map_err(|error| failed(&self.path, error))?;
            array.buffer.clear();
        }
        Ok(())
    }

    /// Makes the archive appear under its name, durably. `shapes` are those of the arrays, which have as many elements.
    pub fn finish(self, shapes: &[Vec<u64>]) -> Result<(), FileError> {
        let Self { path, mut file, arrays } = self;
        let mut listed = Vec::new();
        for (mut array, shape) in arrays.into_iter().zip(shapes) {
            let head = npy::head_of_shape(&array.descr, shape);
            let mut sum = crc32fast::Hasher::new();
            sum.update(&head);
            sum.combine(&array.sum);
            let bytes = head.len() as u64 + array.bytes;
            let member = Listed { name: format!("{}.npy", array.name), crc: sum.finalize(), bytes, at: file.bytes() };
            file.put(&member.header())?;
            file.put(&head)?;
            array.spool.rewind().map_err(|error| failed(&path, error))?;
            let mut part = vec![0; 1 << 20];
            loop {
                let read = array.spool.read(&mut part).map_err(|error| failed(&path, error))?;
                if read == 0 {
                    break;
                }
                file.put(&part[..read])?;
            }
            file.put(&array.buffer)?;
            listed.push(member);
        }
        let begin = file.bytes();
        listed.iter().try_for_each(|member| file.put(&member.entry()))?;
        let end = end(listed.len() as u64, begin, file.bytes());
        file.put(&end)?;
        file.finish()
    }
}

fn failed(path: &Path, error: std::io::Error) -> FileError {
    FileError::io(path, "an array of it cannot be kept in the same folder", error)
}

impl Listed {
    /// What the header and the directory have in common: version, flags, method, a date (1980-01-01), checksum, sizes, lengths.
    fn common(&self, extra: usize) -> Vec<u8> {
        let plain = if self.bytes > PLAIN { u32::MAX } else { self.bytes as u32 };
        let mut common = Vec::new();
        let version: u16 = if extra > 0 { 45 } else { 20 };
        // Names are UTF-8 (bit 11).
        let words = [version, 1 << 11, 0, 0, 0x21];
        common.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        common.extend([self.crc, plain, plain].iter().flat_map(|number| number.to_le_bytes()));
        common.extend([self.name.len() as u16, extra as u16].iter().flat_map(|length| length.to_le_bytes()));
        common
    }

    /// The 64-bit numbers that do not fit into 32.
    fn extra(&self, numbers: &[u64]) -> Vec<u8> {
        if numbers.is_empty() {
            return Vec::new();
        }
        let mut extra = [1u16, (numbers.len() * 8) as u16].iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
        extra.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        extra
    }

    fn header(&self) -> Vec<u8> {
        let sizes = [self.bytes; 2];
        let extra = self.extra(if self.bytes > PLAIN { &sizes } else { &[] });
        [b"PK\x03\x04", &*self.common(extra.len()), self.name.as_bytes(), &extra].concat()
    }

    fn entry(&self) -> Vec<u8> {
        let mut wide = Vec::new();
        if self.bytes > PLAIN {
            wide.extend([self.bytes; 2]);
        }
        if self.at > PLAIN {
            wide.push(self.at);
        }
        let extra = self.extra(&wide);
        let at = if self.at > PLAIN { u32::MAX } else { self.at as u32 };
        // Made by version 4.5; no comment, the first disk, no attributes.
        let head = [b"PK\x01\x02", &45u16.to_le_bytes()[..]].concat();
        let tail = [[0; 10].as_slice(), &at.to_le_bytes()].concat();
        [&head, &*self.common(extra.len()), &tail, self.name.as_bytes(), &extra].concat()
    }
}

/// What stands behind a directory of `count` members from `begin` to `end`.
fn end(count: u64, begin: u64, end: u64) -> Vec<u8> {
    let len = end - begin;
    let is_wide = count >= u64::from(u16::MAX) || begin > PLAIN || len > PLAIN;
    let mut bytes = Vec::new();
    if is_wide {
        bytes.extend(b"PK\x06\x06");
        bytes.extend(44u64.to_le_bytes());
        bytes.extend([45u16, 45].iter().flat_map(|version| version.to_le_bytes()));
        bytes.extend([0; 8]);
        bytes.extend([count, count, len, begin].iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(b"PK\x06\x07");
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(end.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
    }
    let members = count.min(u16::MAX.into()) as u16;
    let number = |number: u64| if number > PLAIN { u32::MAX } else { number as u32 };
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0u16, 0, members, members].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend([number(len), number(begin)].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(0u16.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArrayArchive;

    #[test]
    fn what_is_put_in_turns_is_read_array_by_array() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.npz");
        let names = [("labels".to_owned(), "<f4"), ("user".to_owned(), "<i8"), ("none".to_owned(), "<i4")];
        let mut writer = ArrayArchiveWriter::create(&path, false, &names).unwrap();
        let user: Vec<u8> = (0..90_000i64).flat_map(|id| (id * id).to_le_bytes()).collect();
        for part in user.chunks(777) {
            writer.put(1, part).unwrap();
            writer.put(0, &[1, 2, 3, 4]).unwrap();
        }
        let labels = user.chunks(777).count() as u64;
        writer.finish(&[vec![labels, 1], vec![90_000], vec![0]]).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let archive = ArrayArchive::open(&path).unwrap();
        let shapes: Vec<_> = archive.arrays().iter().map(|array| (&*array.name, array.shape.clone())).collect();
        assert_eq!(shapes, [("labels", vec![labels, 1]), ("user", vec![90_000]), ("none", vec![0])]);
        let mut reader = archive.read(&archive.arrays()[1]).unwrap();
        let mut found = vec![0; user.len()];
        found.chunks_mut(1000).for_each(|part| reader.fill(part).unwrap());
        assert!(found == user && reader.left() == 0);
        assert!(reader.fill(&mut [0]).unwrap_err().message().contains("ends early"));
        // A byte of the data: the checksum shows it, behind the last element.
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(8).position(|it| it == (80_000i64 * 80_000).to_le_bytes()).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let archive = ArrayArchive::open(&path).unwrap();
        let mut reader = archive.read(&archive.arrays()[1]).unwrap();
        assert!(
            reader.fill(&mut found).unwrap_err().message().contains("the checksum of the array user does not match")
        );
    }

    #[test]
    fn numbers_that_need_64_bits_have_them() {
        let member = Listed { name: "a.npy".to_owned(), crc: 7, bytes: 5 << 32, at: 6 << 32 };
        let directory = member.entry();
        let found = crate::zip::members(&directory, 1).unwrap();
        assert_eq!((found[0].packed, found[0].bytes, found[0].at, found[0].crc), (5 << 32, 5 << 32, 6 << 32, 7));
        assert_eq!(member.header().len(), 30 + 5 + 20);
        assert_eq!(end(1, 6 << 32, (6 << 32) + 70).len(), 56 + 20 + 22);
        assert_eq!(end(1, 100, 170).len(), 22);
    }
}
