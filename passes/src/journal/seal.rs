//! The head of a journal: whose it is, and two seals, which say how far it was acknowledged.
//!
//! The seals are written in turn, so that a write that a power cut tears spoils one of them and leaves the one before. The identity is
//! written once, when the journal is made.

use uuid::Uuid;

use super::content::{Content, Current, EXPORT, cut_off, damaged};
use super::record::{Record, records};

pub(super) const MAGIC: [u8; 8] = *b"\x89WRPASS\n";
pub(super) const VERSION: u32 = 3;
/// Bytes that a drive writes as a whole or not at all: the identity and each seal have that many for themselves.
const SECTOR: usize = 512;
/// Bytes of the head: the identity and two seals.
pub(super) const HEAD: usize = 3 * SECTOR;

/// Bytes of the identity before its CRC32C: magic, version, CRC32C of the table's name, the store's UUID.
const IDENTITY: usize = 32;
/// Bytes of a seal before its CRC32C.
const SEAL: usize = 32;

/// How far the journal was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seal {
    /// Each seal has a higher number than the one before; the highest counts.
    pub(super) sequence: u64,
    /// Where the last acknowledged record ends.
    pub(super) end: u64,
    /// Keys of passes up to this one were forgotten.
    pub(super) mark: u64,
    /// The last number that was given to a pass.
    pub(super) last: u64,
}

impl Seal {
    /// The seal's bytes, with its checksum.
    pub(super) fn bytes(self) -> Vec<u8> {
        checked([self.sequence, self.end, self.mark, self.last].into_iter().flat_map(u64::to_le_bytes).collect())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (fields, []) = whole(bytes, SEAL)?.as_chunks() else { return None };
        let &[sequence, end, mark, last] = fields else { return None };
        let [sequence, end, mark, last] = [sequence, end, mark, last].map(u64::from_le_bytes);
        (end >= HEAD as u64 && mark <= last).then_some(Self { sequence, end, mark, last })
    }
}

/// Where a seal stands, 0 or 1.
pub(super) fn place(slot: usize) -> u64 {
    (SECTOR * (1 + slot)) as u64
}

/// Bytes with their checksum.
fn checked(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// The first `length` of `bytes`, if the checksum behind them is theirs.
fn whole(bytes: &[u8], length: usize) -> Option<&[u8]> {
    let (found, rest) = bytes.split_at_checked(length)?;
    (crc32c::crc32c(found).to_le_bytes() == *rest.first_chunk()?).then_some(found)
}

/// The head of a journal, both of whose seals say `seal`.
pub(super) fn head(table: &str, store: Uuid, seal: Seal) -> Vec<u8> {
    let table = crc32c::crc32c(table.as_bytes()).to_le_bytes();
    let mut head = checked([&MAGIC[..], &VERSION.to_le_bytes(), &table, store.as_bytes()].concat());
    for slot in [0, 1] {
        head.resize(place(slot) as usize, 0);
        head.extend(seal.bytes());
    }
    head.resize(HEAD, 0);
    head
}

/// Refuses a journal of another store, or of another table.
fn check_identity(head: &[u8], table: &str, store: Uuid) -> Result<(), String> {
    let found = whole(head, IDENTITY).ok_or_else(|| format!("its head is damaged: {EXPORT}"))?;
    let its_store = found.get(16..).and_then(|uuid| Uuid::from_slice(uuid).ok()).unwrap_or_default();
    if its_store != store {
        return Err(format!("it is the journal of a table in the store {its_store}, and this store is {store}"));
    }
    match found.get(12..16) == Some(&crc32c::crc32c(table.as_bytes()).to_le_bytes()[..]) {
        true => Ok(()),
        false => Err(format!("it is the journal of another table than {table:?}")),
    }
}

/// What the file says.
///
/// With two whole seals, what lies behind the acknowledged records belongs to no commit. If one seal is damaged, it may have been the one that
/// counts: then the records of one more append are there, whole, since they were durable before that seal was written.
pub(super) fn read(bytes: &[u8], table: &str, store: Uuid) -> Result<Content, String> {
    let Some(head) = bytes.get(..HEAD) else { return Err(cut_off(bytes, HEAD)) };
    check_identity(head, table, store)?;
    let seal = |slot| head.get(place(slot) as usize..).and_then(Seal::parse);
    let (slot, seal, reseal) = match (seal(0), seal(1)) {
        (Some(first), Some(second)) if first.sequence >= second.sequence => (0, first, false),
        (_, Some(second)) => (1, second, seal(0).is_none()),
        (Some(first), None) => (0, first, true),
        (None, None) => return Err(format!("both of its seals are damaged: {EXPORT}")),
    };
    let end = usize::try_from(seal.end).unwrap_or(usize::MAX);
    let Some(acknowledged) = bytes.get(HEAD..end) else {
        return Err(format!("it is cut off: it has {} bytes, and {end} were acknowledged: {EXPORT}", bytes.len()));
    };
    let (mut records, valid) = records(acknowledged);
    if valid != acknowledged.len() || records.iter().any(|record| record.pass > seal.last) {
        return Err(damaged());
    }
    let mut content = Content {
        records: Vec::new(),
        begin: HEAD as u64,
        end: seal.end,
        mark: seal.mark,
        last: seal.last,
        seal: Some(Current { slot, sequence: seal.sequence }),
        reseal,
    };
    if reseal {
        let more = of_one_append(bytes.get(end..).unwrap_or_default(), seal.last)?;
        content.end = bytes.len() as u64;
        content.last = more.iter().map(|record| record.pass).fold(seal.last, u64::max);
        records.extend(more);
    }
    content.records = records;
    Ok(content)
}

/// The records of one append, after a pass of the number `last`.
fn of_one_append(bytes: &[u8], last: u64) -> Result<Vec<Record>, String> {
    let (records, valid) = records(bytes);
    let pass = records.first().map_or(last, |record| record.pass);
    match valid == bytes.len() && pass >= last && records.iter().all(|record| record.pass == pass) {
        true => Ok(records),
        false => {
            Err(format!("one of its seals is damaged, and so are records that it may have acknowledged: {EXPORT}"))
        }
    }
}
