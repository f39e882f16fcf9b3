//! A file that remembers which keys were touched since a mark.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use warprow_formats::{directory, refuse_special};

use crate::PassError;

const MAGIC: [u8; 8] = *b"\x89WRPASS\n";
const VERSION: u32 = 1;
/// Magic, version, CRC32C of the table's name.
const HEAD: usize = 16;
/// Count and CRC32C of the count and the keys.
const RECORD: usize = 8;
/// Keys of a record, at most.
const KEYS: usize = 1 << 16;

/// Keys that were touched: records are appended, each with its checksum, and durable before the commit that they speak of.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: String,
}

impl Journal {
    /// Opens it, or makes it, with the keys that it has. What a power cut tore at its end is cut off: the commit that it was for did
    /// not come about.
    pub(crate) fn open(path: &Path, table: &str) -> Result<(Self, Vec<u64>), PassError> {
        let name = path.display().to_string();
        let failed = |what| {
            let path = name.clone();
            move |source| PassError::Journal { path, what, source }
        };
        if path.exists() {
            refuse_special(path)?;
        }
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(failed("cannot be opened"))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed("cannot be read"))?;
        let head = [&MAGIC[..], &VERSION.to_le_bytes(), &crc32c::crc32c(table.as_bytes()).to_le_bytes()].concat();
        let (mut keys, mut valid) = (Vec::new(), HEAD);
        match bytes.get(..HEAD) {
            Some(found) if found == head => {
                while let Some(more) = record(bytes.get(valid..).unwrap_or_default()) {
                    valid += RECORD + more.len() * 8;
                    keys.extend(more);
                }
            }
            // It was made, and not written yet.
            None if head.starts_with(&bytes) => {}
            _ => {
                let other = io::Error::new(ErrorKind::InvalidData, "it is no journal, or another table's");
                return Err(failed("cannot be used")(other));
            }
        }
        let mut begin = || {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&head)?;
            file.set_len(valid as u64)?;
            file.seek(SeekFrom::End(0))?;
            file.sync_all()?;
            File::open(directory(path))?.sync_all()
        };
        begin().map_err(failed("cannot be written"))?;
        Ok((Self { file, path: name }, keys))
    }

    /// Adds keys; they are durable when this returns.
    pub(crate) fn append(&mut self, keys: impl Iterator<Item = u64>) -> Result<(), PassError> {
        let mut keys = keys.peekable();
        let mut write = || {
            // What failed half-way is written over.
            let end = self.file.stream_position()?;
            let mut append = || {
                while keys.peek().is_some() {
                    let bytes: Vec<u8> = keys.by_ref().take(KEYS).flat_map(u64::to_le_bytes).collect();
                    let count = (bytes.len() as u32 / 8).to_le_bytes();
                    let crc = crc32c::crc32c_append(crc32c::crc32c(&count), &bytes);
                    self.file.write_all(&[&count[..], &crc.to_le_bytes(), &bytes].concat())?;
                }
                self.file.sync_data()
            };
            append().inspect_err(|_| {
                let _ = self.file.seek(SeekFrom::Start(end));
            })
        };
        write().map_err(|source| PassError::Journal { path: self.path.clone(), what: "cannot be written", source })
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) -> Result<(), PassError> {
        let mut clear = || {
            self.file.set_len(HEAD as u64)?;
            self.file.seek(SeekFrom::End(0))?;
            self.file.sync_all()
        };
        clear().map_err(|source| PassError::Journal { path: self.path.clone(), what: "cannot be written", source })
    }
}

/// The keys of the record that `bytes` begin with; `None`: there is no whole one.
fn record(bytes: &[u8]) -> Option<Vec<u64>> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let length = (u32::from_le_bytes(*count) as usize).checked_mul(8).filter(|length| *length > 0)?;
    let keys = rest.get(..length)?;
    let found = crc32c::crc32c_append(crc32c::crc32c(count), keys);
    (found == u32::from_le_bytes(*crc)).then(|| keys.as_chunks().0.iter().map(|&key| u64::from_le_bytes(key)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_as_far_as_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("touched");
        let (mut journal, keys) = Journal::open(&path, "items").unwrap();
        assert!(keys.is_empty());
        journal.append(0..100_000).unwrap();
        journal.append(std::iter::once(u64::MAX)).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let all: Vec<u64> = (0..100_000).chain([u64::MAX]).collect();
        assert_eq!(Journal::open(&path, "items").unwrap().1, all);
        assert!(Journal::open(&path, "others").is_err());
        // Torn anywhere, and appended to.
        let mut random = fastrand::Rng::with_seed(5);
        let mut cuts: Vec<usize> = (0..60).map(|_| random.usize(..whole.len())).collect();
        cuts.extend([0, 3, HEAD, whole.len() - 1]);
        for cut in cuts {
            let mut bytes = whole[..cut].to_vec();
            if random.bool() && cut > HEAD + RECORD {
                let at = random.usize(HEAD..cut);
                bytes[at] ^= 1;
            }
            std::fs::write(&path, &bytes).unwrap();
            let (mut journal, keys) = Journal::open(&path, "items").unwrap();
            assert!([0, 1 << 16, 100_000].contains(&keys.len()) && all.starts_with(&keys), "cut at {cut}");
            journal.append([7, 8].into_iter()).unwrap();
            drop(journal);
            assert_eq!(Journal::open(&path, "items").unwrap().1, [&keys[..], &[7, 8]].concat());
        }
        let (mut journal, _) = Journal::open(&path, "items").unwrap();
        journal.clear().unwrap();
        journal.append([9].into_iter()).unwrap();
        drop(journal);
        assert_eq!(Journal::open(&path, "items").unwrap().1, [9]);
        std::fs::write(&path, b"something of somebody else's").unwrap();
        assert!(Journal::open(&path, "items").unwrap_err().to_string().contains("no journal"));
    }
}
