//! The bytes of a list: which table it is of, and ranks, the hottest first.

/// How a list begins.
const MAGIC: [u8; 8] = *b"\x89WPDRAM\n";
/// The version that is written, and the newest that is read.
const VERSION: u32 = 1;
/// Bytes before the ranks.
const HEADER: usize = 64;

/// What tells the table of a list from others, and from itself with rows in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListedTable {
    /// The generation; 0: an attached table.
    pub generation: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// A checksum of what else decides which row has which rank.
    pub identity: u32,
}

impl ListedTable {
    /// The most bytes that a list of this table has.
    pub(super) fn most_bytes(&self) -> u64 {
        self.rows.saturating_mul(self.rank_bytes() as u64).saturating_add(HEADER as u64)
    }

    fn rank_bytes(&self) -> usize {
        if self.rows <= 1 << 32 { 4 } else { 8 }
    }
}

/// The bytes of a list of `ranks`.
pub(super) fn encode(of: &ListedTable, ranks: &[u64]) -> Vec<u8> {
    let rank_bytes = of.rank_bytes();
    let len = HEADER + ranks.len() * rank_bytes;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for number in [len as u64, of.generation, of.rows] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for number in [of.row_bytes, of.identity] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&(ranks.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(rank_bytes as u64).to_le_bytes());
    match rank_bytes {
        4 => ranks.iter().for_each(|&rank| bytes.extend_from_slice(&(rank as u32).to_le_bytes())),
        _ => ranks.iter().for_each(|rank| bytes.extend_from_slice(&rank.to_le_bytes())),
    }
    let crc = crc32c::crc32c(bytes.get(12..).unwrap_or_default());
    if let Some(place) = bytes.get_mut(8..12) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let part = bytes.get(at..at + len).unwrap_or_default();
    part.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The ranks in `bytes`, behind which fewer than `padding` zeros may follow. `None`: it is the list of another table, or of this one
/// with its rows in another order.
///
/// # Errors
/// What is wrong with the bytes.
pub(super) fn decode(bytes: &[u8], of: &ListedTable, padding: usize) -> Result<Option<Vec<u64>>, String> {
    if bytes.len() < HEADER || !bytes.starts_with(&MAGIC) {
        return Err("it does not begin as a list of rows does".to_owned());
    }
    match number(bytes, 12, 4) {
        version if version > u64::from(VERSION) => {
            return Err(format!("it has version {version}, and this program reads up to {VERSION}"));
        }
        _ => {}
    }
    let whole = usize::try_from(number(bytes, 16, 8)).ok().filter(|&len| len >= HEADER);
    let Some(whole) = whole.and_then(|len| bytes.get(..len)) else { return Err("it is cut off".to_owned()) };
    if u64::from(crc32c::crc32c(whole.get(12..).unwrap_or_default())) != number(whole, 8, 4) {
        return Err("its checksum does not match".to_owned());
    }
    match bytes.get(whole.len()..).unwrap_or_default() {
        [] => {}
        behind if behind.len() >= padding => return Err(format!("{} bytes stand behind it", behind.len())),
        behind if behind.iter().any(|&byte| byte != 0) => return Err("what stands behind it is no padding".to_owned()),
        _ => {}
    }
    let found = ListedTable {
        generation: number(whole, 24, 8),
        rows: number(whole, 32, 8),
        row_bytes: number(whole, 40, 4) as u32,
        identity: number(whole, 44, 4) as u32,
    };
    if found != *of {
        return Ok(None);
    }
    let (count, rank_bytes) = (number(whole, 48, 8), number(whole, 56, 8));
    let ranks = whole.get(HEADER..).unwrap_or_default();
    if rank_bytes != of.rank_bytes() as u64 || count.checked_mul(rank_bytes) != Some(ranks.len() as u64) {
        return Err("its length is not that of its ranks".to_owned());
    }
    let ranks: Vec<u64> = ranks.chunks_exact(of.rank_bytes()).map(|rank| number(rank, 0, rank.len())).collect();
    match ranks.iter().find(|&&rank| rank >= of.rows) {
        Some(rank) => Err(format!("it has rank {rank} of a table of {} rows", of.rows)),
        None => Ok(Some(ranks)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: ListedTable = ListedTable { generation: 7, rows: 1000, row_bytes: 64, identity: 5 };

    #[test]
    fn what_is_written_is_read_of_its_own_table_alone() {
        for of in [OF, ListedTable { rows: 1 << 33, ..OF }] {
            let ranks = [999, 0, 17];
            let mut bytes = encode(&of, &ranks);
            assert!(bytes.len() as u64 <= of.most_bytes());
            assert_eq!(decode(&bytes, &of, 0).unwrap().unwrap(), ranks);
            let whole = bytes.len();
            bytes.resize(4096, 0);
            assert_eq!(decode(&bytes, &of, 4096).unwrap().unwrap(), ranks);
            // What else stands behind a list is damage: more zeros than there may be, and any other byte.
            for (len, padding) in [(4096, 0), (4096, 4096 - whole), (whole + 1, 0), (whole + 1, 1)] {
                assert!(decode(&bytes[..len], &of, padding).is_err(), "{len} bytes, padding below {padding}");
            }
            bytes[4000] = 1;
            assert!(decode(&bytes, &of, 4096).is_err());
            bytes.truncate(whole);
            for other in [
                ListedTable { generation: 8, ..of },
                ListedTable { rows: of.rows + 1, ..of },
                ListedTable { row_bytes: 32, ..of },
                ListedTable { identity: 6, ..of },
            ] {
                assert_eq!(decode(&bytes, &other, 4096).unwrap(), None);
            }
            assert_eq!(decode(&encode(&of, &[]), &of, 0).unwrap().unwrap(), [0u64; 0]);
        }
    }

    #[test]
    fn each_flipped_bit_and_each_cut_is_found() {
        let bytes = encode(&OF, &[3, 1, 4, 1000 - 1]);
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at], &OF, 4096).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert!(decode(&bytes, &OF, 4096).is_err(), "bit {bit} of byte {at}");
            }
        }
        // Whole, and nonsense all the same.
        let error = decode(&encode(&OF, &[1000]), &OF, 0).unwrap_err();
        assert!(error.contains("rank 1000"), "{error}");
    }
}
