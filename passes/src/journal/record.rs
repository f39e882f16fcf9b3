//! Records of a journal: keys that one commit brought, with their checksum.

/// Bytes of a record before its keys: count, CRC32C of all of the record but that CRC, number of the pass.
pub(super) const RECORD: usize = 16;
/// Keys of a record, at most.
pub(super) const KEYS: usize = 1 << 16;

/// Keys that were touched by passes up to one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub pass: u64,
    pub keys: Vec<u64>,
}

impl Record {
    /// Bytes of the record in the file.
    pub(super) fn bytes(&self) -> usize {
        RECORD + self.keys.len() * 8
    }
}

/// The bytes of a record.
pub(super) fn encode(pass: u64, keys: impl Iterator<Item = u64>) -> Vec<u8> {
    let rest: Vec<u8> = pass.to_le_bytes().into_iter().chain(keys.flat_map(u64::to_le_bytes)).collect();
    let count = ((rest.len() as u32 - 8) / 8).to_le_bytes();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&count), &rest);
    [&count[..], &crc.to_le_bytes(), &rest].concat()
}

/// The record that `bytes` begin with; `None`: there is no whole one.
pub(super) fn record(bytes: &[u8]) -> Option<Record> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let length =
        (u32::from_le_bytes(*count) as usize).checked_mul(8).filter(|length| (8..=KEYS * 8).contains(length))?;
    let rest = rest.get(..length.checked_add(8)?)?;
    let found = crc32c::crc32c_append(crc32c::crc32c(count), rest);
    let (pass, keys) = rest.split_first_chunk::<8>()?;
    let keys = keys.as_chunks().0.iter().map(|&key| u64::from_le_bytes(key));
    (found == u32::from_le_bytes(*crc)).then(|| Record { pass: u64::from_le_bytes(*pass), keys: keys.collect() })
}

/// The whole records that `bytes` begin with, and how many bytes these have.
pub(super) fn records(bytes: &[u8]) -> (Vec<Record>, usize) {
    let (mut records, mut valid) = (Vec::new(), 0);
    while let Some(more) = record(bytes.get(valid..).unwrap_or_default()) {
        valid += more.bytes();
        records.push(more);
    }
    (records, valid)
}
