//! The bytes of a saved list of what a cache has: ids by table, those that were asked for most or last first. `docs/formats.md` has the table.

use std::io;

/// How a file begins.
const MAGIC: [u8; 8] = *b"\x89WPCACH\n";
/// The version that is written, and the newest that is read.
const VERSION: u32 = 1;
/// Bytes before the first table, and before a table's name.
const HEADER: usize = 48;
const TABLE: usize = 32;

/// Why a saved list of a cache cannot be written or read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheFileError {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another process writes it.
    #[error("another process saves a cache there: wait for it, or choose another name")]
    Taken,
    /// It begins as no such file does.
    #[error("it is no list of a cache's rows: give what save_cache has written")]
    NotOne,
    /// A later version of Warprow has written it.
    #[error("it has version {version}, and this program reads up to {}: save the cache anew", VERSION)]
    Newer {
        /// What the file says.
        version: u32,
    },
    /// It is not as it was written.
    #[error("it is damaged, for {0}: remove it, and save the cache anew")]
    Damaged(&'static str),
    /// It lists far more rows than this cache has lines.
    #[error(
        "it has more than {most} B, which is far more than a list for this cache has: give GpuOptions::cache_bytes more, or save this cache anew"
    )]
    TooLong {
        /// Bytes that are read.
        most: u64,
    },
    /// The file's tables are tables of another store.
    #[error("it is of another store's tables: save this store's cache, and give that file")]
    OfAnotherStore,
}

/// What a cache has of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedTable {
    pub name: String,
    pub rows: u64,
    /// The generation that it was of; 0: an attached table.
    pub generation: u64,
    /// Of an attached table, a checksum of its files' places, sizes and times.
    pub identity: u32,
    /// Ids, or keys by their bits.
    pub ids: Vec<u64>,
}

/// What a cache has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedCache {
    /// The identity of the store; zeros: its tables are attached files.
    pub store: [u8; 16],
    pub tables: Vec<SavedTable>,
}

impl SavedCache {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.store);
        bytes.extend_from_slice(&(self.tables.len() as u64).to_le_bytes());
        for table in &self.tables {
            for number in [table.rows, table.generation, table.ids.len() as u64] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.extend_from_slice(&table.identity.to_le_bytes());
            bytes.extend_from_slice(&(table.name.len() as u32).to_le_bytes());
            bytes.extend_from_slice(table.name.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            table.ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
        }
        let len = bytes.len() as u64;
        put(&mut bytes, 16, &len.to_le_bytes());
        let crc = crc32c::crc32c(bytes.get(12..).unwrap_or_default());
        put(&mut bytes, 8, &crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CacheFileError> {
        if bytes.len() < HEADER || !bytes.starts_with(&MAGIC) {
            return Err(CacheFileError::NotOne);
        }
        let version = number(bytes, 12, 4) as u32;
        if version > VERSION {
            return Err(CacheFileError::Newer { version });
        }
        if number(bytes, 16, 8) != bytes.len() as u64 {
            return Err(CacheFileError::Damaged("its length is not the one that it had"));
        }
        if u64::from(crc32c::crc32c(bytes.get(12..).unwrap_or_default())) != number(bytes, 8, 4) {
            return Err(CacheFileError::Damaged("its checksum does not match"));
        }
        let damaged = || CacheFileError::Damaged("its tables are not as long as it is");
        let store = bytes.get(24..40).and_then(|it| it.try_into().ok()).ok_or_else(damaged)?;
        let (mut tables, mut at) = (Vec::new(), HEADER);
        for _ in 0..number(bytes, 40, 8) {
            let head = bytes.get(at..at + TABLE).ok_or_else(damaged)?;
            let (count, name_bytes) = (number(head, 16, 8), number(head, 28, 4) as usize);
            let name_at = at + TABLE;
            let name = bytes.get(name_at..name_at + name_bytes).ok_or_else(damaged)?;
            let name = std::str::from_utf8(name).map_err(|_| CacheFileError::Damaged("a name is no text"))?;
            let ids_at = (name_at + name_bytes).next_multiple_of(8);
            let end = usize::try_from(count).ok().and_then(|count| count.checked_mul(8)?.checked_add(ids_at));
            let end = end.ok_or_else(damaged)?;
            let ids = bytes.get(ids_at..end).ok_or_else(damaged)?;
            tables.push(SavedTable {
                name: name.to_owned(),
                rows: number(head, 0, 8),
                generation: number(head, 8, 8),
                identity: number(head, 24, 4) as u32,
                ids: ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect(),
            });
            at = end;
        }
        if at == bytes.len() { Ok(Self { store, tables }) } else { Err(damaged()) }
    }

    /// The most bytes of a file that is read for a cache of so many lines, in tables of so many bytes of names.
    pub(crate) fn most_bytes(lines: u64) -> u64 {
        // One of a cache four times as large, and a megabyte for what tables take.
        lines.saturating_mul(32).saturating_add(1 << 20)
    }
}

fn put(bytes: &mut [u8], at: usize, number: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + number.len()) {
        place.copy_from_slice(number);
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes.get(at..at + len).unwrap_or_default().iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> SavedCache {
        let table = |name: &str, ids: &[u64]| SavedTable {
            name: name.to_owned(),
            rows: 1000,
            generation: 7,
            identity: 9,
            ids: ids.to_vec(),
        };
        SavedCache {
            store: *b"0123456789abcdef", tables: vec![table("item", &[5, u64::MAX, 0]), table("ünamed", &[])]
        }
    }

    /// With the checksum that it should have.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let len = bytes.len() as u64;
        put(&mut bytes, 16, &len.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[12..]);
        put(&mut bytes, 8, &crc.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(SavedCache::decode(&saved().encode()).unwrap(), saved());
        let none = SavedCache { store: [0; 16], tables: Vec::new() };
        assert_eq!(SavedCache::decode(&none.encode()).unwrap(), none);
        assert!(saved().encode().len() as u64 <= SavedCache::most_bytes(3));
    }

    #[test]
    fn each_flipped_bit_and_each_cut_is_found() {
        let bytes = saved().encode();
        for at in 0..bytes.len() {
            assert!(SavedCache::decode(&bytes[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert!(SavedCache::decode(&bytes).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn nonsense_with_a_checksum_is_refused() {
        let bytes = saved().encode();
        let with = |at: usize, number: u64| {
            let mut bytes = bytes.clone();
            put(&mut bytes, at, &number.to_le_bytes());
            SavedCache::decode(&sealed(bytes))
        };
        // The number of tables, of ids, of bytes of a name.
        for (at, number) in
            [(40, 3), (40, u64::MAX), (40, 1), (HEADER + 16, 4), (HEADER + 16, u64::MAX), (HEADER + 16, 1 << 61)]
        {
            assert!(matches!(with(at, number), Err(CacheFileError::Damaged(_))), "{number} at {at}");
        }
        assert!(matches!(with(HEADER + 24, u64::MAX), Err(CacheFileError::Damaged(_))));
        let mut newer = bytes.clone();
        put(&mut newer, 12, &2u32.to_le_bytes());
        assert!(matches!(SavedCache::decode(&sealed(newer)), Err(CacheFileError::Newer { version: 2 })));
        let longer = sealed([&bytes[..], &[0; 8]].concat());
        assert!(matches!(SavedCache::decode(&longer), Err(CacheFileError::Damaged(_))));
        assert!(matches!(SavedCache::decode(b"something else"), Err(CacheFileError::NotOne)));
        let mut nameless = bytes;
        nameless[HEADER + TABLE] = 0xff;
        assert!(matches!(SavedCache::decode(&sealed(nameless)), Err(CacheFileError::Damaged(_))));
    }
}
