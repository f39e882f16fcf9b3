//! What the host knows of an overlay on a GPU (`cuda/overlay.cuh`), and what it puts in next. Plain arithmetic: it calls nothing.

use std::collections::HashMap;

use crate::abi;

/// Rows begin at multiples of this in an overlay.
pub const OVERLAY_ALIGN: u64 = 16;

const LINE: u64 = 128;

/// Bytes that a row takes in an overlay.
pub const fn overlay_row_bytes(row_bytes: u32) -> u64 {
    (row_bytes as u64).next_multiple_of(OVERLAY_ALIGN)
}

/// Where the parts of an overlay lie in its memory, and which records its words lead to.
#[derive(Debug)]
pub struct OverlayMap {
    /// On the GPU.
    base: u64,
    /// Records of a side, and bytes of its rows.
    capacity: usize,
    rows: u64,
    /// The side that is written to, and that of which launches see something.
    side: usize,
    shown: usize,
    /// Words of the first.
    words: Box<[u64]>,
    /// Table and row of its records.
    records: Vec<(u32, u64)>,
    rows_used: u64,
    /// Some of its records are of created keys.
    created: bool,
}

/// Records and words that are to be put in together.
#[derive(Debug, Default)]
pub struct OverlayBatch {
    /// In the order of their numbers.
    pub records: Vec<abi::Record>,
    /// Place and word.
    pub entries: Vec<[u64; 2]>,
    /// By place.
    known: HashMap<u64, usize>,
    records_to: u64,
    rows_to: u64,
    /// Bytes of the rows, which lie one behind the other in the order of the records, each at a multiple of [`OVERLAY_ALIGN`].
    pub rows_bytes: u64,
}

/// Where what is put in lies in pinned memory, by the GPU's addresses.
#[derive(Clone, Copy, Debug)]
pub struct StagedBatch {
    /// The rows.
    pub rows: u64,
    /// The records.
    pub records: u64,
    /// The entries.
    pub entries: u64,
    /// Where the number of the update goes when it has ended.
    pub result: u64,
    /// The number of the update.
    pub number: u64,
}

fn hash(table: u32, row: u64) -> u64 {
    // Small keys are no small rows: else each would meet the other's word.
    let turned = if table & abi::TABLE_CREATED == 0 { row } else { !row };
    let mixed = (turned ^ u64::from(table) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl OverlayMap {
    /// Of `bytes` of memory at `base`, both sides together, for rows of `row_bytes` or more. `None`: that is too little.
    pub fn new(base: u64, bytes: u64, row_bytes: u32) -> Option<Self> {
        let side = bytes.checked_sub(LINE * 8)? / 2;
        // A record, and two to four words for it.
        let capacity = side / (32 + 32 + overlay_row_bytes(row_bytes.max(1)));
        let capacity = usize::try_from(capacity.min(1 << 30)).ok().filter(|&number| number > 0)?;
        let words = (capacity * 2).next_power_of_two();
        let rows = side.checked_sub((words * 8 + capacity * 32) as u64)? / LINE * LINE;
        let words = vec![0; words].into();
        let records = Vec::new();
        Some(Self { base, capacity, rows, side: 0, shown: 0, words, records, rows_used: 0, created: false })
    }

    fn place(&self, part: usize, side: usize) -> u64 {
        let parts = [self.words.len() as u64 * 8, self.capacity as u64 * 32, self.rows];
        let before = |part: usize| parts.iter().take(part).map(|bytes| 2 * bytes.next_multiple_of(LINE)).sum::<u64>();
        let own = parts.get(part).map_or(0, |bytes| bytes.next_multiple_of(LINE));
        self.base.next_multiple_of(LINE) + LINE + before(part) + side as u64 * own
    }

    /// Bytes of memory that it takes, from its base.
    pub fn bytes(&self) -> u64 {
        self.place(3, 0) - self.base
    }

    /// The GPU's description of it, which lies at [`header_at`](Self::header_at).
    pub fn header(&self) -> abi::Overlay {
        abi::Overlay {
            published: abi::SNAPSHOT_TAKEN,
            words: [self.place(0, 0), self.place(0, 1)],
            records: [self.place(1, 0), self.place(1, 1)],
            mask: self.words.len() as u64 - 1,
        }
    }

    /// Where the GPU finds that.
    pub fn header_at(&self) -> u64 {
        self.base.next_multiple_of(LINE)
    }

    /// Records that a side has room for, and bytes of rows.
    pub fn capacity(&self) -> (usize, u64) {
        (self.capacity, self.rows)
    }

    /// How many records, and how many bytes of rows, are in use.
    pub fn used(&self) -> (usize, u64) {
        (self.records.len(), self.rows_used)
    }

    /// Whether so many records more have room, whose rows take so many bytes.
    pub fn has_room(&self, records: usize, bytes: u64) -> bool {
        self.capacity - self.records.len() >= records && self.rows - self.rows_used >= bytes
    }

    /// Goes over to the side of which nothing is shown, and in which no launch reads any more, empty: [`update`](Self::update) clears it with
    /// the first of it.
    pub fn turn(&mut self) {
        self.side = 1 - self.shown;
        self.words.fill(0);
        self.records.clear();
        (self.rows_used, self.created) = (0, false);
    }

    /// What is put in next.
    pub fn begin(&self) -> OverlayBatch {
        let records_to = self.place(1, self.side) + self.records.len() as u64 * 32;
        OverlayBatch { records_to, rows_to: self.place(2, self.side) + self.rows_used, ..OverlayBatch::default() }
    }

    /// Puts a row in: `row` of `table`, of `bytes` bytes; of none, if its key was removed; with [`TABLE_CREATED`](abi::TABLE_CREATED), of the key `row` that was created. Whether there was room.
    pub fn put(&mut self, into: &mut OverlayBatch, table: u32, row: u64, bytes: u32) -> bool {
        let bytes = overlay_row_bytes(bytes);
        if !self.has_room(1, bytes) {
            return false;
        }
        let hash = hash(table, row);
        let mask = self.words.len() as u64 - 1;
        let mut place = hash & mask;
        let before = loop {
            let word = self.words[place as usize];
            let number = word as u32;
            if word == 0 {
                break 0;
            }
            if word >> 32 == hash >> 32 && self.records.get(number as usize - 1) == Some(&(table, row)) {
                break number;
            }
            place = (place + 1) & mask;
        };
        self.records.push((table, row));
        self.created |= table & abi::TABLE_CREATED != 0;
        let word = hash >> 32 << 32 | self.records.len() as u64;
        self.words[place as usize] = word;
        // Words are stored in any order: each place once.
        match into.known.get(&place).and_then(|&entry| into.entries.get_mut(entry)) {
            Some(entry) => entry[1] = word,
            None => {
                into.known.insert(place, into.entries.len());
                into.entries.push([place, word]);
            }
        }
        let address = if bytes == 0 { abi::REMOVED } else { into.rows_to + into.rows_bytes };
        into.records.push(abi::Record { row, address, table, before, unused: 0 });
        into.rows_bytes += bytes;
        self.rows_used += bytes;
        true
    }

    /// What launches see when all of the side that is written to is shown.
    fn snapshot(&self) -> u64 {
        let created = if self.created { abi::SNAPSHOT_CREATED } else { 0 };
        abi::SNAPSHOT_TAKEN | created | (self.records.len() as u64) << 1 | self.side as u64
    }

    /// A launch that shows the side has begun: it is the other one's turn next.
    pub fn showing(&mut self) {
        self.shown = self.side;
    }

    /// The launch that puts them in. `shown`: with it all records that were put in are to be seen; else with a later one. When it has begun,
    /// that is to be told ([`showing`](Self::showing)); one that could not begin has shown nothing.
    pub fn update(&self, put: &OverlayBatch, staged: StagedBatch, shown: bool) -> abi::Update {
        let is_first = self.records.len() == put.records.len();
        abi::Update {
            overlay: self.header_at(),
            words: self.place(0, self.side),
            cleared: if is_first { self.words.len() as u64 } else { 0 },
            rows_to: put.rows_to,
            rows_from: staged.rows,
            rows_bytes: put.rows_bytes,
            records_to: put.records_to,
            records_from: staged.records,
            records_bytes: put.records.len() as u64 * 32,
            entries: staged.entries,
            count: put.entries.len() as u64,
            published: if shown { self.snapshot() } else { 0 },
            result: staged.result,
            number: staged.number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_fit() {
        for (bytes, row) in [(1 << 20, 512), (100_000, 16), (1 << 26, 130), (64 << 20, 4096)] {
            let base = 0x10_0040;
            let map = OverlayMap::new(base, bytes, row).unwrap();
            let lens = [map.words.len() as u64 * 8, map.capacity as u64 * 32, map.rows];
            let mut parts = vec![(map.header_at(), size_of::<abi::Overlay>() as u64)];
            parts.extend((0..3).flat_map(|part| [0, 1].map(|side| (map.place(part, side), lens[part]))));
            assert!(parts.is_sorted() && parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:?}");
            let end = parts.last().map(|part| part.0 + part.1).unwrap();
            assert!(end <= base + map.bytes() && map.bytes() <= bytes, "{} of {bytes}", map.bytes());
            // Most of it is for rows and their records, and as many rows of the least size have room as records.
            assert!(map.rows / overlay_row_bytes(row) >= map.capacity as u64 * 9 / 10);
        }
        assert!(OverlayMap::new(0, 1000, 16).is_none());
    }

    #[test]
    fn what_is_full_says_so_and_each_place_comes_once() {
        let mut map = OverlayMap::new(0, 20_000, 64).unwrap();
        let (most, bytes) = map.capacity();
        let mut put = map.begin();
        let mut count = 0;
        while map.put(&mut put, 1, count % 7, 64) {
            count += 1;
        }
        assert!(count as usize == most || count == bytes / 64, "{count}");
        assert_eq!(put.entries.len(), 7);
        assert_eq!(put.records.iter().filter(|record| record.before == 0).count(), 7);
        assert!(!map.has_room(1, 64) && map.used() == (count as usize, count * 64));
        map.turn();
        assert_eq!(map.used(), (0, 0));
        let mut put = map.begin();
        assert!(map.put(&mut put, 1, 5, 64) && put.records[0].before == 0);
        let staged = StagedBatch { rows: 1, records: 2, entries: 3, result: 4, number: 5 };
        let update = map.update(&put, staged, true);
        assert_eq!((update.cleared, update.published & !abi::SNAPSHOT_TAKEN), (map.words.len() as u64, 3));
        let mut more = map.begin();
        assert!(map.put(&mut more, 1, 5, 64) && more.records[0].before == 1);
        let update = map.update(&more, staged, false);
        assert_eq!((update.cleared, update.published), (0, 0));
    }

    #[test]
    fn removed_keys_are_records_without_rows() {
        let mut map = OverlayMap::new(0, 20_000, 64).unwrap();
        let mut put = map.begin();
        assert!(map.put(&mut put, 1, 5, 64) && map.put(&mut put, 1, 5, 0) && map.put(&mut put, 1, 5, 64));
        let records: Vec<_> =
            put.records.iter().map(|record| (record.address == abi::REMOVED, record.before)).collect();
        assert_eq!(records, [(false, 0), (true, 1), (false, 2)]);
        assert_eq!((put.rows_bytes, map.used()), (128, (3, 128)));
        assert_eq!(put.records[2].address, put.records[0].address + 64);
    }

    #[test]
    fn created_keys_are_other_records_and_are_told_of() {
        let mut map = OverlayMap::new(0, 20_000, 64).unwrap();
        let staged = StagedBatch { rows: 1, records: 2, entries: 3, result: 4, number: 5 };
        let mut put = map.begin();
        assert!(map.put(&mut put, 1, 5, 64));
        let shown = abi::SNAPSHOT_TAKEN | 1 << 1;
        assert_eq!(map.update(&put, staged, true).published, shown);
        let mut put = map.begin();
        let key = 1 | abi::TABLE_CREATED;
        assert!(map.put(&mut put, key, 5, 64) && map.put(&mut put, key, 6, 64) && map.put(&mut put, 1, 5, 64));
        let before: Vec<u32> = put.records.iter().map(|record| record.before).collect();
        assert_eq!(before, [0, 0, 1]);
        // Their words differ by more than the number.
        assert_ne!(hash(1, 5) >> 32, hash(key, 5) >> 32);
        assert_eq!(map.update(&put, staged, true).published, abi::SNAPSHOT_TAKEN | abi::SNAPSHOT_CREATED | 4 << 1);
        // It is said of what lies on the side, and of all that is shown later.
        let mut put = map.begin();
        assert!(map.put(&mut put, 1, 7, 64));
        assert_ne!(map.update(&put, staged, true).published & abi::SNAPSHOT_CREATED, 0);
        // A launch that did not begin has shown nothing: the side is the one to be cleared again.
        for _ in 0..2 {
            map.turn();
            let mut put = map.begin();
            assert!(map.put(&mut put, 1, 5, 64));
            assert_eq!(map.update(&put, staged, true).published, shown | 1);
        }
        map.showing();
        map.turn();
        assert_eq!(map.update(&map.begin(), staged, true).published, abi::SNAPSHOT_TAKEN);
    }
}
