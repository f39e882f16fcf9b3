//! What a load has written, in a file beside the drives, so that one that was killed goes on where it was.
//!
//! The store's state alone decides which chunks a load gets, so the same load on the same epoch gets the same. The journal names
//! both, and lists extents with the CRC32C of their content. It is not trusted: an extent counts as written when the drive gives
//! that content back; any other is written again. So it needs no flush, and may be cut off anywhere.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use warprow_soft_controller::{FileLock, lock_file, open_regular};

use crate::StoreError;

/// How such a file begins.
const MAGIC: &[u8; 8] = b"WRPLOAD1";
/// Bytes of a record: table, extent, CRC32C of the content, CRC32C of these three.
const RECORD: usize = 16;

/// An extent of a table's rows, as the journal names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ExtentId {
    /// Which of the load's tables.
    pub(super) table: u32,
    /// Which of the extents of its rows.
    pub(super) extent: u32,
}

/// The journal of one load.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Nobody is to write over it meanwhile.
    _held: Option<FileLock>,
    /// The CRC32C of each extent's content.
    known: HashMap<ExtentId, u32>,
    /// Whether there was one that says nothing of this load: another's, or one that was lost.
    begun_anew: bool,
}

impl Journal {
    /// The journal at `path` of the load that `of` describes, of so many extents at most; another load's is begun anew.
    pub(super) fn open(path: &Path, of: &[u8], extents: u64) -> Result<Self, StoreError> {
        let failed = |source: io::Error| StoreError::Journal { path: path.to_owned(), source };
        let mut head = MAGIC.to_vec();
        head.extend((of.len() as u64).to_le_bytes());
        head.extend(of);
        // What an earlier attempt noted, and once more what was written again.
        let most = (head.len() as u64).saturating_add(extents.saturating_mul(2 * RECORD as u64));
        let found = match read(path, most) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        let begun_anew = !found.is_empty() && !found.starts_with(&head);
        let records = found.strip_prefix(&head[..]).unwrap_or_default().chunks_exact(RECORD);
        let known: HashMap<_, _> = records.map_while(record).collect();
        // What was cut off goes: it is written anew, whole.
        let mut file = File::create(path).map_err(failed)?;
        let mut kept = head;
        for (&id, &crc) in &known {
            kept.extend(encode(id, crc));
        }
        file.write_all(&kept).map_err(failed)?;
        Ok(Self { path: path.to_owned(), _held: lock_file(path), file, known, begun_anew })
    }

    /// The CRC32C of the content that an extent was given, if it was.
    pub(super) fn crc(&self, id: ExtentId) -> Option<u32> {
        self.known.get(&id).copied()
    }

    /// Whether there was a journal that says nothing of this load.
    pub(super) fn is_begun_anew(&self) -> bool {
        self.begun_anew
    }

    /// An extent is being written.
    pub(super) fn wrote(&mut self, id: ExtentId, crc: u32) -> Result<(), StoreError> {
        let written = self.file.write_all(&encode(id, crc));
        written.map_err(|source| StoreError::Journal { path: self.path.clone(), source })
    }

    /// The load is done, or what it wrote was given back.
    pub(super) fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the journal of a load stays");
        }
    }
}

/// What there is of a journal of `most` bytes at most; what is none is refused before more of it is read.
fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let other = || Err(io::Error::other("it is a file of something else, and was left as it is"));
    let mut found = Vec::new();
    (&file).take(MAGIC.len() as u64).read_to_end(&mut found)?;
    // Cut off in the magic it is still one.
    let is_one = MAGIC.starts_with(&found);
    if !is_one && found.iter().any(|&byte| byte != 0) {
        return other();
    }
    (&file).take(most.saturating_sub(found.len() as u64).saturating_add(1)).read_to_end(&mut found)?;
    // So is one of zeros, as a file system leaves it whose machine lost power before what was written had come to the disk; but what has
    // more of them than this load's can have is somebody else's.
    let lost = found.len() as u64 <= most && found.iter().all(|&byte| byte == 0);
    if is_one || lost { Ok(found) } else { other() }
}

fn encode(ExtentId { table, extent }: ExtentId, crc: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let words = [table, extent, crc];
    record.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    let check = crc32c::crc32c(&record[..12]).to_le_bytes();
    record[12..].copy_from_slice(&check);
    record
}

fn record(bytes: &[u8]) -> Option<(ExtentId, u32)> {
    let words: Vec<u32> = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let &[table, extent, crc, check] = &words[..] else { return None };
    (crc32c::crc32c(bytes.get(..12)?) == check).then_some((ExtentId { table, extent }, crc))
}
