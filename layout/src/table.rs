//! A table of a generation: what it holds and where its parts lie.

use serde::Serialize;

use warprow_keys::{FingerprintWidth, KeyKind};

use crate::dtype::DType;
use crate::error::VolumeError;
use crate::key_spec::KeySpec;
use crate::keyed::TableKeys;
use crate::placement::RowPacking;
use crate::ranks::RankWidth;

/// The longest name of a table or a generation, in bytes of UTF-8.
pub const MAX_NAME: usize = 255;

/// A table to be created.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSpec {
    /// Unique in its generation; 1 to [`MAX_NAME`] bytes.
    pub name: String,
    /// Rows; at least one.
    pub rows: u64,
    /// Elements in a row; at least one.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Whether ids (in a table with keys, key positions) differ from ranks: an id → rank permutation is then stored
    /// beside the rows.
    pub permuted: bool,
    /// Whether rows are looked up by sparse keys, and by which index. Set it by [`keyed`](Self::keyed).
    pub keys: Option<KeySpec>,
    /// Row for ids that the table does not have: `dim` elements, little-endian. `None`: zeros.
    pub default_row: Option<Vec<u8>>,
    /// How many of the first ranks are worth keeping in memory: a hint to whoever opens the table.
    pub hot_rows: u64,
    /// Whether a CRC32C of every row is stored beside the rows.
    pub row_crc: bool,
}

impl TableSpec {
    /// A table in identity order, default row of zeros, without hint and row checksums.
    pub fn new(name: impl Into<String>, rows: u64, dim: u32, dtype: DType) -> Self {
        Self {
            name: name.into(),
            rows,
            dim,
            dtype,
            permuted: false,
            keys: None,
            default_row: None,
            hot_rows: 0,
            row_crc: false,
        }
    }

    /// The table with the keys of `keyed`, and with as many rows, in the order of `keyed`.
    #[must_use]
    pub fn keyed(self, keyed: &TableKeys<'_>) -> Self {
        Self { rows: keyed.len(), permuted: keyed.ranks().is_some(), keys: Some(keyed.spec()), ..self }
    }

    /// The table with keys that have no index yet. The index counts with the fewest bytes that it can have; this is for
    /// checking whether there will be room.
    #[must_use]
    pub fn with_least_keys(self, kind: KeyKind, fingerprint: FingerprintWidth, stored: bool) -> Self {
        let index_bytes = warprow_keys::KeyIndex::least_bytes(self.rows, fingerprint);
        Self { keys: Some(KeySpec { index_bytes, kind, fingerprint, stored }), ..self }
    }

    pub(crate) fn invalid(&self, reason: impl Into<String>) -> VolumeError {
        VolumeError::InvalidTable { table: self.name.clone(), reason: reason.into() }
    }

    /// Whether the name is one that a table can have: 1 to [`MAX_NAME`] bytes.
    pub fn is_named(&self) -> bool {
        (1..=MAX_NAME).contains(&self.name.len())
    }

    /// Bytes of the LBAs that each of its rows takes on drives with LBAs of `lba_size` bytes, which move at most `max_transfer` bytes
    /// in one command. [`VolumeError::InvalidTable`] says why such drives cannot have the table, whatever room they have.
    pub fn check_row(&self, lba_size: u32, max_transfer: usize) -> Result<u32, VolumeError> {
        let bytes = self.check()?.checked_next_multiple_of(lba_size);
        bytes.filter(|&bytes| bytes as usize <= max_transfer).ok_or_else(|| {
            self.invalid(format!("a row takes more than the {max_transfer} bytes that a drive moves in one command"))
        })
    }

    /// Bytes of a row. Fails for everything that is wrong with the table whatever the drives are.
    pub(crate) fn check(&self) -> Result<u32, VolumeError> {
        if !self.is_named() {
            return Err(self.invalid(format!("its name must have 1 to {MAX_NAME} bytes, not {}", self.name.len())));
        }
        if self.rows == 0 || self.dim == 0 {
            return Err(self.invalid("it has no rows or no elements in a row"));
        }
        let row_bytes = self.dtype.row_bytes(self.dim).ok_or_else(|| {
            self.invalid(format!(
                "{} elements of type {} make no row: it would pass 4 GiB, or end within a byte or a block that shares a scale",
                self.dim, self.dtype
            ))
        })?;
        if self.keys.is_some_and(|keys| keys.index_bytes > 1 << 48) {
            return Err(self.invalid("its key index passes 2⁴⁸ bytes"));
        }
        if let Some(row) = &self.default_row
            && row.len() != row_bytes as usize
        {
            return Err(
                self.invalid(format!("the default row has {} bytes, the table's rows have {row_bytes}", row.len()))
            );
        }
        Ok(row_bytes)
    }
}

/// A range of a generation's LBA space: whole stripe units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LbaRegion {
    /// First LBA in the generation's address space.
    pub first_lba: u64,
    /// Number of LBAs.
    pub lbas: u64,
}

impl LbaRegion {
    /// One past the last LBA, or `None` past 2⁶⁴.
    pub fn end(&self) -> Option<u64> {
        self.first_lba.checked_add(self.lbas)
    }
}

/// Where a permutation lies, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StoredRanks {
    /// The array, one entry an id, dense, little-endian, padded with zeros.
    pub region: LbaRegion,
    /// Width of an entry.
    pub width: RankWidth,
    /// CRC32C of the entries, without the padding.
    pub crc: u32,
}

/// Where a table's keys lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredKeys {
    /// What the keys and their index are.
    pub spec: KeySpec,
    /// The bytes of the index, dense, padded with zeros.
    pub index: LbaRegion,
    /// The index's [`checksum`](warprow_keys::KeyIndex::checksum).
    pub index_crc: u32,
    /// The keys by rank, a little-endian `u64` each, dense; `None`: not stored.
    pub keys: Option<LbaRegion>,
    /// CRC32C of the keys, without the padding; 0 if they are not stored.
    pub keys_crc: u32,
}

impl StoredKeys {
    pub(crate) fn regions(&self) -> impl Iterator<Item = LbaRegion> + use<> {
        [Some(self.index), self.keys].into_iter().flatten()
    }
}

/// A table that lies in a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Unique in its generation.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// How many of the first ranks are worth keeping in memory.
    pub hot_rows: u64,
    /// Row for ids that the table does not have; `None`: zeros.
    pub default_row: Option<Box<[u8]>>,
    /// The rows, by rank.
    pub rows_region: LbaRegion,
    /// The permutation id → rank, or key position → rank in a table with keys; `None`: ranks are ids, or key positions.
    pub ranks: Option<StoredRanks>,
    /// The table's keys; `None`: it is looked up by ids from 0 on.
    pub keys: Option<StoredKeys>,
    /// CRC32C of each row ([`row_crc`]), a little-endian `u32` each, by rank, dense; `None`: not stored.
    pub crc_region: Option<LbaRegion>,
    /// How rows are packed into [`rows_region`](Self::rows_region).
    pub packing: RowPacking,
}

impl Table {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> u32 {
        self.packing.row_bytes()
    }

    /// The LBA in the generation's address space and the byte in it at which row `rank` begins; `None` past the last row.
    #[inline]
    pub fn locate(&self, rank: u64) -> Option<(u64, u32)> {
        if rank >= self.rows {
            return None;
        }
        let (lba, byte) = self.packing.locate(rank);
        Some((self.rows_region.first_lba + lba, byte))
    }

    /// The LBA in the generation's address space and the byte in it of row `rank`'s checksum; `None` past the last row or
    /// without checksums.
    #[inline]
    pub fn locate_crc(&self, rank: u64, lba_size: u32) -> Option<(u64, u32)> {
        let region = self.crc_region.filter(|_| rank < self.rows)?;
        let shift = lba_size.trailing_zeros() - 2;
        Some((region.first_lba + (rank >> shift), ((rank & ((1 << shift) - 1)) as u32) << 2))
    }
}

/// The checksum stored for a row: CRC32C of its rank (`u64`, little-endian) followed by its bytes. The rank is in it so that
/// an intact row read from the wrong place does not pass.
pub fn row_crc(rank: u64, row: &[u8]) -> u32 {
    // Faster than the crate `crc32c` from rows of 32 bytes on, and twice as fast from 512 on.
    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    crc.update(&rank.to_le_bytes());
    crc.update(row);
    crc.finalize() as u32
}
