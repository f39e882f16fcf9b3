//! id → rank permutations.

use serde::Serialize;

/// Width of the entries of a stored id → rank permutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RankWidth {
    /// `u32`: tables of up to 2³² rows.
    U32,
    /// `u64`.
    U64,
}

impl RankWidth {
    /// The width used for a table of `rows` rows.
    pub const fn for_rows(rows: u64) -> Self {
        if rows <= 1 << 32 { Self::U32 } else { Self::U64 }
    }

    /// Bytes of an entry.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }
}

/// A bijection of `0..len`: id → rank, or its inverse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranks {
    /// Up to 2³² entries.
    U32(Vec<u32>),
    /// More entries.
    U64(Vec<u64>),
}

/// Why an array is no permutation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// An entry is not below the length.
    #[error("id {id} has rank {rank}, but there are only {rows} rows")]
    OutOfRange {
        /// The index of the entry.
        id: u64,
        /// The entry.
        rank: u64,
        /// The length.
        rows: u64,
    },
    /// Two entries are equal.
    #[error("rank {rank} is given twice, to id {id} and to an earlier one")]
    Duplicate {
        /// The later of the two.
        id: u64,
        /// The rank.
        rank: u64,
    },
}

impl Ranks {
    /// Takes `entries` after checking that they are a permutation of `0..entries.len()`.
    pub fn from_u32(entries: Vec<u32>) -> Result<Self, RankError> {
        check(entries.iter().map(|&rank| u64::from(rank)))?;
        Ok(Self::U32(entries))
    }

    /// Takes `entries` after checking that they are a permutation of `0..entries.len()`; narrows them where they fit.
    pub fn from_u64(entries: Vec<u64>) -> Result<Self, RankError> {
        check(entries.iter().copied())?;
        Ok(match RankWidth::for_rows(entries.len() as u64) {
            RankWidth::U32 => Self::U32(entries.into_iter().map(|rank| rank as u32).collect()),
            RankWidth::U64 => Self::U64(entries),
        })
    }

    /// The ranking that puts the ids with the highest `counts` first; equal counts keep the order of their ids.
    pub fn by_hotness(counts: &[u64]) -> Self {
        let mut ids: Vec<u64> = (0..counts.len() as u64).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(counts[id as usize]));
        match RankWidth::for_rows(counts.len() as u64) {
            RankWidth::U32 => Self::U32(ids.into_iter().map(|id| id as u32).collect()),
            RankWidth::U64 => Self::U64(ids),
        }
        .inverse()
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        match self {
            Self::U32(entries) => entries.len() as u64,
            Self::U64(entries) => entries.len() as u64,
        }
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The width of an entry.
    pub fn width(&self) -> RankWidth {
        match self {
            Self::U32(_) => RankWidth::U32,
            Self::U64(_) => RankWidth::U64,
        }
    }

    /// Entry `index`, or `None` past the end.
    #[inline]
    pub fn get(&self, index: u64) -> Option<u64> {
        let index = usize::try_from(index).ok()?;
        match self {
            Self::U32(entries) => entries.get(index).map(|&entry| u64::from(entry)),
            Self::U64(entries) => entries.get(index).copied(),
        }
    }

    /// The inverse: rank → id from id → rank, and back.
    pub fn inverse(&self) -> Self {
        match self {
            Self::U32(entries) => {
                let mut inverse = vec![0; entries.len()];
                entries.iter().enumerate().for_each(|(id, &rank)| inverse[rank as usize] = id as u32);
                Self::U32(inverse)
            }
            Self::U64(entries) => {
                let mut inverse = vec![0; entries.len()];
                entries.iter().enumerate().for_each(|(id, &rank)| inverse[rank as usize] = id as u64);
                Self::U64(inverse)
            }
        }
    }

    /// This permutation, followed by `next`: entry i is the entry of `next` at the number that this permutation has at
    /// i. Both must have one length.
    pub(crate) fn then(&self, next: &Self) -> Self {
        let entries = (0..self.len()).map(|at| self.get(at).and_then(|at| next.get(at)).unwrap_or(0));
        match RankWidth::for_rows(self.len()) {
            RankWidth::U32 => Self::U32(entries.map(|rank| rank as u32).collect()),
            RankWidth::U64 => Self::U64(entries.collect()),
        }
    }

    /// Writes entries `first..` little-endian into `out`, zeros past the last.
    pub(crate) fn encode(&self, first: u64, out: &mut [u8]) {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        match self {
            Self::U32(entries) => put(entries.get(first..).unwrap_or(&[]), out, |rank| rank.to_le_bytes()),
            Self::U64(entries) => put(entries.get(first..).unwrap_or(&[]), out, |rank| rank.to_le_bytes()),
        }
    }

    /// CRC32C of the encoded entries.
    pub(crate) fn crc(&self) -> u32 {
        let bytes = self.len() * u64::from(self.width().bytes());
        let width = self.width().bytes() as usize;
        let mut block = [0; 4096];
        (0..bytes.div_ceil(block.len() as u64)).fold(0, |crc, i| {
            self.encode(i * (block.len() / width) as u64, &mut block);
            let valid = (bytes - i * block.len() as u64).min(block.len() as u64) as usize;
            crc32c::crc32c_append(crc, &block[..valid])
        })
    }

    /// The permutation in `bytes`, an array of entries of `width`.
    pub(crate) fn decode(bytes: &[u8], width: RankWidth) -> Result<Self, RankError> {
        match width {
            RankWidth::U32 => {
                Self::from_u32(bytes.as_chunks().0.iter().map(|&entry| u32::from_le_bytes(entry)).collect())
            }
            RankWidth::U64 => {
                let entries: Vec<u64> = bytes.as_chunks().0.iter().map(|&entry| u64::from_le_bytes(entry)).collect();
                check(entries.iter().copied())?;
                Ok(Self::U64(entries))
            }
        }
    }
}

fn put<T: Copy, const N: usize>(entries: &[T], out: &mut [u8], bytes: impl Fn(T) -> [u8; N]) {
    let (slots, _) = out.as_chunks_mut::<N>();
    let filled = entries.len().min(slots.len());
    slots.iter_mut().zip(entries).for_each(|(slot, &entry)| *slot = bytes(entry));
    out[filled * N..].fill(0);
}

fn check(entries: impl ExactSizeIterator<Item = u64>) -> Result<(), RankError> {
    let rows = entries.len() as u64;
    let mut seen = vec![0u64; entries.len().div_ceil(64)];
    for (id, rank) in (0..).zip(entries) {
        if rank >= rows {
            return Err(RankError::OutOfRange { id, rank, rows });
        }
        let word = &mut seen[(rank / 64) as usize];
        let bit = 1 << (rank % 64);
        if *word & bit != 0 {
            return Err(RankError::Duplicate { id, rank });
        }
        *word |= bit;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_permutation() {
        assert_eq!(Ranks::from_u32(vec![0, 2, 1, 2]), Err(RankError::Duplicate { id: 3, rank: 2 }));
        assert_eq!(Ranks::from_u64(vec![1, 2]), Err(RankError::OutOfRange { id: 1, rank: 2, rows: 2 }));
    }

    #[test]
    fn hotness_ranks_stably() {
        let ranks = Ranks::by_hotness(&[5, 9, 5, 7]);
        assert_eq!(ranks, Ranks::U32(vec![2, 0, 3, 1]));
        assert_eq!(ranks.inverse(), Ranks::U32(vec![1, 3, 0, 2]));
    }

    #[test]
    fn encodes_and_decodes_across_blocks() {
        for len in [1u32, 1023, 1024, 1025, 5000] {
            let entries: Vec<u32> = (0..len).rev().collect();
            let bytes: Vec<u8> = entries.iter().flat_map(|rank| rank.to_le_bytes()).collect();
            let ranks = Ranks::from_u32(entries).unwrap();
            assert_eq!(ranks.crc(), crc32c::crc32c(&bytes));
            assert_eq!(Ranks::decode(&bytes, RankWidth::U32).unwrap(), ranks);

            let wide = Ranks::U64((0..u64::from(len)).rev().collect());
            let mut out = vec![0xAA; len as usize * 8 + 24];
            wide.encode(0, &mut out);
            assert_eq!(out[len as usize * 8..], [0; 24]);
            assert_eq!(wide.crc(), crc32c::crc32c(&out[..len as usize * 8]));
            assert_eq!(Ranks::decode(&out[..len as usize * 8], RankWidth::U64).unwrap(), wide);
        }
    }
}
