//! Physical Region Pages: how a command names its data (NVMe Base 2.0, 4.1.1; NVMe 1.4, 4.3).

/// A memory page as CC.MPS = 0 has it, bytes.
pub const PAGE_BYTES: u64 = 4096;
/// PRP entries in a full list page.
const LIST_ENTRIES: u64 = PAGE_BYTES / 8;

/// The data memory of a command, as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// One stretch of I/O virtual addresses.
    Contiguous {
        /// Address of the first byte, a multiple of 4.
        iova: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Several stretches, in the order of the data. All but the first start at a page, all but the last end at one.
    Scattered(&'a [IovaRange]),
}

/// A stretch of I/O virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IovaRange {
    /// Address of the first byte.
    pub iova: u64,
    /// Length in bytes, not 0.
    pub len: u64,
}

/// Data memory that PRPs cannot describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrpError {
    /// The data does not start at a multiple of 4.
    #[error("the data starts at {iova:#x}, which is not a multiple of 4: align the buffer")]
    Unaligned {
        /// IOVA of the first byte of the range.
        iova: u64,
    },
    /// A stretch that is not the first starts, or one that is not the last ends, inside a page.
    #[error(
        "stretch {index} of the data ({len} bytes at {iova:#x}) starts or ends inside a page where another adjoins"
    )]
    Gap {
        /// Which stretch, from 0.
        index: usize,
        /// IOVA of the first byte of the range.
        iova: u64,
        /// Bytes of the stretch.
        len: u64,
    },
    /// No data, or an empty stretch.
    #[error("stretch {index} of the data is empty")]
    Empty {
        /// Which stretch, from 0.
        index: usize,
    },
    /// A stretch that runs past the end of the address space.
    #[error("{len} bytes at {iova:#x} run past the end of the address space")]
    Wraps {
        /// IOVA of the first byte of the range.
        iova: u64,
        /// Bytes of the stretch.
        len: u64,
    },
    /// More pages than the list has room for.
    #[error("the data touches more than {room} pages: split the transfer")]
    TooMany {
        /// Pages that fit.
        room: u64,
    },
}

impl Data<'_> {
    /// Length in bytes; `None` if it overflows.
    #[inline]
    pub fn len(&self) -> Option<u64> {
        match *self {
            Data::Contiguous { len, .. } => Some(len),
            Data::Scattered(stretches) => stretches.iter().try_fold(0u64, |sum, s| sum.checked_add(s.len)),
        }
    }

    /// PRP1 of data that lies within one page, and needs nothing else.
    #[inline]
    pub(crate) fn in_a_page(&self) -> Option<u64> {
        let Data::Contiguous { iova, len } = *self else { return None };
        (iova.is_multiple_of(4) && len != 0 && len <= PAGE_BYTES - iova % PAGE_BYTES).then_some(iova)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

/// Memory for the PRP lists of one command.
pub trait PrpList {
    /// Where the device sees the list; a list shorter than a page lies within one, a longer one starts at a page.
    fn iova(&self) -> u64;

    /// Entries there is room for, chaining pointers included.
    fn room(&self) -> u64;

    /// Stores entry `index`, less than [`room`](Self::room).
    fn store(&self, index: u64, entry: u64);
}

/// Bytes of list that data of `bytes` at any offset may need, rounded up so that lists laid one after another from a
/// page boundary obey [`PrpList::iova`].
pub fn list_bytes(bytes: u64) -> u64 {
    // PRP1 takes the first page, and one page more is touched when the data starts inside a page.
    let entries = bytes.div_ceil(PAGE_BYTES);
    if entries <= LIST_ENTRIES {
        (entries.max(1) * 8).next_power_of_two()
    } else {
        // Every page but the last gives its last entry to the pointer to the next.
        (entries - 1).div_ceil(LIST_ENTRIES - 1) * PAGE_BYTES
    }
}

/// PRP1 and PRP2 for `data`, with the list in `list` where the data touches more than two pages.
#[inline]
pub fn build(data: Data<'_>, list: &impl PrpList) -> Result<(u64, u64), PrpError> {
    match data {
        Data::Contiguous { iova, len } => contiguous(iova, len, list),
        Data::Scattered(stretches) => scattered(stretches, list),
    }
}

#[inline]
fn contiguous(iova: u64, len: u64, list: &impl PrpList) -> Result<(u64, u64), PrpError> {
    if !iova.is_multiple_of(4) {
        return Err(PrpError::Unaligned { iova });
    }
    if len == 0 {
        return Err(PrpError::Empty { index: 0 });
    }
    let last = iova.checked_add(len - 1).ok_or(PrpError::Wraps { iova, len })?;
    let (first_page, last_page) = (iova / PAGE_BYTES, last / PAGE_BYTES);
    match last_page - first_page {
        0 => Ok((iova, 0)),
        1 => Ok((iova, last_page * PAGE_BYTES)),
        more => {
            let mut writer = Writer::new(list);
            for page in 1..=more {
                writer.push((first_page + page) * PAGE_BYTES, page == more)?;
            }
            Ok((iova, list.iova()))
        }
    }
}

fn scattered(stretches: &[IovaRange], list: &impl PrpList) -> Result<(u64, u64), PrpError> {
    let Some(first) = stretches.first() else { return Err(PrpError::Empty { index: 0 }) };
    if !first.iova.is_multiple_of(4) {
        return Err(PrpError::Unaligned { iova: first.iova });
    }
    let mut pages = 0;
    for (index, &IovaRange { iova, len }) in stretches.iter().enumerate() {
        if len == 0 {
            return Err(PrpError::Empty { index });
        }
        let last = iova.checked_add(len - 1).ok_or(PrpError::Wraps { iova, len })?;
        let starts = index == 0 || iova.is_multiple_of(PAGE_BYTES);
        let ends = index + 1 == stretches.len() || last % PAGE_BYTES == PAGE_BYTES - 1;
        if !(starts && ends) {
            return Err(PrpError::Gap { index, iova, len });
        }
        pages = u64::saturating_add(pages, last / PAGE_BYTES - iova / PAGE_BYTES + 1);
    }
    // All pages but the first, which PRP1 names.
    let mut rest = stretches
        .iter()
        .flat_map(|s| s.iova / PAGE_BYTES..=(s.iova + (s.len - 1)) / PAGE_BYTES)
        .map(|page| page * PAGE_BYTES)
        .skip(1);
    match pages {
        1 => Ok((first.iova, 0)),
        2 => Ok((first.iova, rest.next().unwrap_or(0))),
        _ => {
            let mut writer = Writer::new(list);
            for (done, page) in (2..).zip(rest) {
                writer.push(page, done == pages)?;
            }
            Ok((first.iova, list.iova()))
        }
    }
}

/// Writes entries one after another, chaining list pages.
struct Writer<'a, L> {
    list: &'a L,
    at: u64,
}

impl<'a, L: PrpList> Writer<'a, L> {
    fn new(list: &'a L) -> Self {
        Self { list, at: 0 }
    }

    #[inline]
    fn push(&mut self, page: u64, is_last: bool) -> Result<(), PrpError> {
        // The last entry of a list page points to the next list page, unless it is the last of all.
        if self.at % LIST_ENTRIES == LIST_ENTRIES - 1 && !is_last {
            self.put(self.list.iova() + (self.at + 1) * 8)?;
        }
        self.put(page)
    }

    #[inline]
    fn put(&mut self, entry: u64) -> Result<(), PrpError> {
        let room = self.list.room();
        if self.at >= room {
            return Err(PrpError::TooMany { room });
        }
        self.list.store(self.at, entry);
        self.at += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    struct List {
        iova: u64,
        room: u64,
        entries: RefCell<HashMap<u64, u64>>,
    }

    impl List {
        fn new(iova: u64, room: u64) -> Self {
            Self { iova, room, entries: RefCell::default() }
        }
    }

    impl PrpList for List {
        fn iova(&self) -> u64 {
            self.iova
        }
        fn room(&self) -> u64 {
            self.room
        }
        fn store(&self, index: u64, entry: u64) {
            assert!(index < self.room);
            assert_eq!(
                self.entries.borrow_mut().insert(self.iova + index * 8, entry),
                None,
                "an entry is written once"
            );
        }
    }

    /// What a device does, byte range by byte range, straight from the words of the specification.
    fn walk(prp1: u64, prp2: u64, len: u64, memory: &HashMap<u64, u64>) -> Vec<(u64, u64)> {
        let first = (PAGE_BYTES - prp1 % PAGE_BYTES).min(len);
        let mut ranges = vec![(prp1, first)];
        let mut left = len - first;
        if left == 0 {
            return ranges;
        }
        if left <= PAGE_BYTES {
            assert_eq!(prp2 % PAGE_BYTES, 0, "PRP2 as a page has no offset");
            ranges.push((prp2, left));
            return ranges;
        }
        assert_eq!(prp2 % 8, 0, "a list is qword aligned");
        let mut at = prp2;
        while left > 0 {
            let entry = memory[&at];
            if at % PAGE_BYTES == PAGE_BYTES - 8 && left > PAGE_BYTES {
                assert_eq!(entry % PAGE_BYTES, 0, "a chained list starts at a page");
                at = entry;
                continue;
            }
            assert_eq!(entry % PAGE_BYTES, 0, "list entries have no offset");
            let n = left.min(PAGE_BYTES);
            ranges.push((entry, n));
            left -= n;
            at += 8;
        }
        ranges
    }

    /// Joins neighbouring ranges, so that two ways to name the same bytes compare equal.
    fn joined(ranges: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for (iova, len) in ranges {
            match out.last_mut() {
                Some((start, n)) if *start + *n == iova => *n += len,
                _ => out.push((iova, len)),
            }
        }
        out
    }

    fn list_for(len: u64, slot: u64) -> List {
        let bytes = list_bytes(len);
        List::new(0x7000_0000 + slot * bytes, bytes / 8)
    }

    proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn contiguous_data_is_walked_back(
            page in 1u64..1 << 30, offset in 0u64..1024, len in 1u64..9 << 20, slot in 0u64..5,
        ) {
            let iova = page * PAGE_BYTES + offset * 4;
            let list = list_for(len, slot);
            let (prp1, prp2) = build(Data::Contiguous { iova, len }, &list).unwrap();
            prop_assert_eq!(joined(walk(prp1, prp2, len, &list.entries.borrow())), vec![(iova, len)]);
        }

        #[test]
        fn scattered_data_is_walked_back(
            offset in 0u64..1024, pages in proptest::collection::vec((1u64..1 << 30, 1u64..40), 1..80),
            cut in 0u64..4096, slot in 0u64..5,
        ) {
            let mut stretches: Vec<_> =
                pages.iter().map(|&(page, n)| IovaRange { iova: page * PAGE_BYTES, len: n * PAGE_BYTES }).collect();
            stretches[0].iova += offset * 4;
            stretches[0].len -= offset * 4;
            let last = stretches.last_mut().unwrap();
            last.len = last.len.saturating_sub(cut).max(1);
            let len = Data::Scattered(&stretches).len().unwrap();
            let list = list_for(len, slot);
            let (prp1, prp2) = build(Data::Scattered(&stretches), &list).unwrap();
            let want = joined(stretches.iter().map(|s| (s.iova, s.len)));
            prop_assert_eq!(joined(walk(prp1, prp2, len, &list.entries.borrow())), want);
        }
    }

    #[test]
    fn the_last_entry_of_a_full_list_page_is_data_when_it_is_the_last_of_all() {
        // 512 entries fill one list page exactly; one page more chains.
        for (pages, chained) in [(513, false), (514, true)] {
            let list = List::new(0x10_0000, 2048);
            build(Data::Contiguous { iova: 0x4000_0000, len: pages * PAGE_BYTES }, &list).unwrap();
            let entry = list.entries.borrow()[&(0x10_0000 + 511 * 8)];
            assert_eq!(entry == 0x10_1000, chained, "{pages} pages");
        }
    }

    #[test]
    fn what_prps_cannot_describe_is_refused() {
        let list = List::new(0x10_0000, 4);
        let at = |iova, len| build(Data::Contiguous { iova, len }, &list);
        assert_eq!(at(2, 512), Err(PrpError::Unaligned { iova: 2 }));
        assert_eq!(at(4096, 0), Err(PrpError::Empty { index: 0 }));
        assert_eq!(at(u64::MAX - 3, 8), Err(PrpError::Wraps { iova: u64::MAX - 3, len: 8 }));
        assert_eq!(at(0, 6 * PAGE_BYTES), Err(PrpError::TooMany { room: 4 }));
        let of = |stretches: &[IovaRange]| build(Data::Scattered(stretches), &list);
        let s = |iova, len| IovaRange { iova, len };
        assert_eq!(of(&[]), Err(PrpError::Empty { index: 0 }));
        assert_eq!(of(&[s(4096, 4096), s(8192, 0)]), Err(PrpError::Empty { index: 1 }));
        assert_eq!(of(&[s(0x1200, 512), s(8192, 512)]), Err(PrpError::Gap { index: 0, iova: 0x1200, len: 512 }));
        assert_eq!(of(&[s(4096, 4096), s(8196, 512)]), Err(PrpError::Gap { index: 1, iova: 8196, len: 512 }));
        assert_eq!(of(&[s(4098, 512)]), Err(PrpError::Unaligned { iova: 4098 }));
        assert_eq!(of(&[s(4096, u64::MAX)]), Err(PrpError::Wraps { iova: 4096, len: u64::MAX }));
    }
}
