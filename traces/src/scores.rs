//! How hot keys are, as a folder of a HugeCTR sparse model says: `key`, and for each a score in `meta`.

use std::path::Path;

use warprow_formats::{FileError, FileErrorKind, KeyType};

use crate::stream::{Stream, numbers};

/// Keys (`i64`, in two's complement) and their scores, in the order of the folder's rows.
///
/// A score has eight bytes: a count, or a float of 0 and more. Only the order of scores means anything, which is that of
/// their bits either way. Floats that are no number, and what is below zero, are errors.
#[derive(Debug)]
pub struct KeyScores {
    keys: Stream,
    scores: Stream,
    row: u64,
    rows: u64,
    chunk: std::vec::IntoIter<(u64, u64)>,
}

/// Keys read at once.
const CHUNK: u64 = 1 << 15;
/// The bits of an infinite float: beyond it are those that are no number, and beyond these what is below zero. No count is
/// that large.
const INFINITE: u64 = 0x7ff0_0000_0000_0000;

impl KeyScores {
    /// Opens those of a folder.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        let open = |name: &str| {
            let path = folder.join(name);
            match path.exists() {
                true => Stream::open(&path),
                false => {
                    let what = format!("holds no file {name:?}");
                    Err(FileError::new(
                        FileErrorKind::Missing,
                        folder,
                        what,
                        "give the folder of a sparse model with scores",
                    ))
                }
            }
        };
        let keys = open("key")?;
        let scores = open("meta")?;
        if let Some(odd) = [&keys, &scores].into_iter().find(|stream| !stream.len.is_multiple_of(8)) {
            return Err(odd.damaged(format!("its {} bytes are not a whole number of 8-byte entries", odd.len)));
        }
        if keys.len != scores.len {
            let what = format!("it has {} scores, key has {} keys", scores.len / 8, keys.len / 8);
            return Err(scores.error(FileErrorKind::Disagree, what, "fetch or write both again"));
        }
        Ok(Self { row: 0, rows: keys.len / 8, keys, scores, chunk: Vec::new().into_iter() })
    }

    /// How many there are.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn refill(&mut self) -> Result<(), FileError> {
        let bytes = self.keys.left().min(CHUNK * 8) as usize;
        let scores: Vec<u64> = numbers(self.scores.take(bytes)?, KeyType::U64).collect();
        if let Some(at) = scores.iter().position(|&score| score > INFINITE) {
            let row = self.row + at as u64;
            let bits = scores.get(at).copied().unwrap_or_default();
            let what = format!(
                "the score of row {row} is {}, or as a count {}: below zero or no number",
                f64::from_bits(bits),
                bits as i64
            );
            return Err(self.scores.error(FileErrorKind::Damaged, what, "give scores of 0 and more").at(row * 8));
        }
        self.row += scores.len() as u64;
        let keys: Vec<u64> = numbers(self.keys.take(bytes)?, KeyType::I64).collect();
        self.chunk = keys.into_iter().zip(scores).collect::<Vec<_>>().into_iter();
        Ok(())
    }
}

impl Iterator for KeyScores {
    /// A key and its score.
    type Item = Result<(u64, u64), FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.len() == 0
            && self.row < self.rows
            && let Err(error) = self.refill()
        {
            self.row = self.rows;
            return Some(Err(error));
        }
        self.chunk.next().map(Ok)
    }
}
