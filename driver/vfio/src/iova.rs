use std::collections::BTreeMap;

use crate::map_error::MapError;

const GIB_4: u64 = 1 << 32;
const SUPERPAGE: u64 = 2 << 20;
/// Where x86 devices write their interrupts: DMA to it never reaches memory (Intel SDM volume 3, "Message Signalled
/// Interrupts").
const MSI_WINDOW: (u64, u64) = (0xfee0_0000, 0xfeef_ffff);

/// The free I/O virtual addresses of one IOMMU domain, in bytes.
///
/// Addresses above 4 GiB are preferred: below lie most devices' registers. Address 0 is never given out, since a PRP
/// of 0 means "none". Lengths of 2 MiB and more start at a multiple of it, so that the IOMMU may use large pages.
#[derive(Debug)]
pub(crate) struct IovaSpace {
    /// Free ranges: first byte → one past the last. No range is empty, and no two touch each other.
    free: BTreeMap<u64, u64>,
    page: u64,
    /// Bits of the largest address that the IOMMU translates.
    bits: u32,
}

impl IovaSpace {
    /// Makes the space from the page sizes of the IOMMU (a bit for each), the ranges that it can translate, and the
    /// ranges to keep clear of. A range is given by its first and last byte.
    pub(crate) fn new(page_sizes: u64, usable: &[(u64, u64)], avoid: &[(u64, u64)]) -> Self {
        let page = (1u64 << page_sizes.trailing_zeros().min(63)).max(4096);
        let bits = usable.iter().map(|&(_, last)| u64::BITS - last.leading_zeros()).max().unwrap_or(0);
        let mut space = Self { free: BTreeMap::new(), page, bits };
        for &(first, last) in usable {
            // A range that ends with the address space loses its last page, so that its end can be written down.
            let end = last.saturating_add(1) & !(page - 1);
            if let Some(start) = first.checked_next_multiple_of(page).filter(|&start| start < end) {
                // Ranges may touch or overlap: what is free already is not released twice.
                space.cut(start, end);
                space.release(start, end - start);
            }
        }
        for &(first, last) in avoid.iter().chain(&[(0, 0), MSI_WINDOW]) {
            space.cut(first & !(page - 1), last.saturating_add(1).checked_next_multiple_of(page).unwrap_or(u64::MAX));
        }
        space
    }

    /// The smallest page the IOMMU maps, bytes.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Bytes that are free.
    pub(crate) fn available(&self) -> u64 {
        self.free.iter().map(|(start, end)| end - start).sum()
    }

    /// The error for `len` bytes that [`allocate`](Self::allocate) could not find.
    pub(crate) fn exhausted(&self, len: u64) -> MapError {
        let largest = self.free.iter().map(|(start, end)| end - start).max().unwrap_or(0);
        MapError::NoAddresses { len, free: self.available(), largest, bits: self.bits }
    }

    /// Takes `len` contiguous bytes, a non-zero multiple of the page. `None` if there is no such stretch.
    pub(crate) fn allocate(&mut self, len: u64) -> Option<u64> {
        let align = if len >= SUPERPAGE { SUPERPAGE.max(self.page) } else { self.page };
        let find = |floor: u64| {
            self.free.iter().find_map(|(&start, &end)| {
                let at = start.max(floor).checked_next_multiple_of(align)?;
                (at.checked_add(len)? <= end).then_some(at)
            })
        };
        let start = find(GIB_4).or_else(|| find(0))?;
        self.cut(start, start + len);
        Some(start)
    }

    /// Gives back what [`allocate`](Self::allocate) took.
    pub(crate) fn release(&mut self, start: u64, len: u64) {
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &touching)) = self.free.range(..start).next_back()
            && touching == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(after) = self.free.remove(&end) {
            end = after;
        }
        self.free.insert(start, end);
    }

    /// Removes `start..end` from the free ranges.
    fn cut(&mut self, start: u64, end: u64) {
        let touched: Vec<_> = self.free.range(..end).filter(|&(_, &e)| e > start).map(|(&s, &e)| (s, e)).collect();
        for (s, e) in touched {
            self.free.remove(&s);
            if s < start {
                self.free.insert(s, start);
            }
            if end < e {
                self.free.insert(end, e);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    const PAGES: u64 = 0x4020_1000;
    const WHOLE: [(u64, u64); 1] = [(0, (1 << 39) - 1)];

    #[test]
    fn addresses_lie_above_4_gib_while_there_are_any() {
        let mut space = IovaSpace::new(PAGES, &WHOLE, &[]);
        assert_eq!(space.allocate(4096), Some(GIB_4));
        let mut space = IovaSpace::new(PAGES, &[(0, 0xffff_ffff)], &[]);
        assert_eq!(space.allocate(4096), Some(4096), "zero is never given out");
    }

    #[test]
    fn large_lengths_are_aligned_to_large_pages() {
        let mut space = IovaSpace::new(PAGES, &WHOLE, &[]);
        space.allocate(4096).unwrap();
        assert_eq!(space.allocate(4 << 20), Some(GIB_4 + SUPERPAGE));
        assert_eq!(space.allocate(8192), Some(GIB_4 + 4096), "the gap before it is used");
    }

    /// A name, what VFIO lists, and the width of addresses.
    type Machine = (&'static str, &'static [(u64, u64)], u32);

    const MACHINES: [Machine; 4] = [
        ("a client's, 39 bits", &[(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)], 39),
        (
            "a server's with memory reserved by the firmware",
            &[(0, 0x7aff_ffff), (0x7c00_0000, 0xfedf_ffff), (0xfef0_0000, 0x1ff_ffff_ffff_ffff)],
            57,
        ),
        (
            "AMD's, with HyperTransport's hole",
            &[(0, 0xfedf_ffff), (0xfef0_0000, 0xfc_ffff_ffff), (1 << 40, u64::MAX)],
            64,
        ),
        ("Arm's, whose MSI window lies low", &[(0, 0x7ff_ffff), (0x810_0000, (1 << 48) - 1)], 48),
    ];

    #[test]
    fn every_address_lies_in_a_range_of_the_machine() {
        for (name, usable, bits) in MACHINES {
            let peer = (0x10_0000_0000, 0x10_3fff_ffff);
            let mut space = IovaSpace::new(PAGES, usable, &[peer]);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            // All of it: in pieces too large for the small holes, then in ever smaller ones.
            for len in (21..60).rev().map(|shift| 1u64 << shift) {
                for _ in 0..4 {
                    let Some(start) = space.allocate(len) else { break };
                    let last = start + (len - 1);
                    assert!(usable.iter().any(|&(a, b)| a <= start && last <= b), "{name}: {start:#x} + {len:#x}");
                    for &(a, b) in taken.iter().chain(&[peer, MSI_WINDOW, (0, 0)]) {
                        assert!(last < a || b < start, "{name}: {start:#x} + {len:#x} meets {a:#x} to {b:#x}");
                    }
                    taken.push((start, last));
                }
            }
            assert!(taken.len() >= 16, "{name}: {}", taken.len());
            let refused = space.exhausted(1 << 63);
            assert!(matches!(refused, MapError::NoAddresses { bits: b, .. } if b == bits), "{name}: {refused}");
        }
    }

    #[test]
    fn a_narrow_iommu_refuses_what_does_not_fit() {
        let mut space = IovaSpace::new(PAGES, MACHINES[0].1, &[]);
        let most = (1 << 39) - (4 << 30);
        assert_eq!(space.allocate((1 << 39) - (4 << 30) + (32 << 20)), None, "it would cover the MSI window");
        let text = space.exhausted(1 << 40).to_string();
        assert!(text.contains("1099511627776 contiguous") && text.contains("39 bits"), "{text}");
        assert_eq!(space.allocate(most), Some(GIB_4), "all above 4 GiB");
        assert_eq!(space.allocate(SUPERPAGE), Some(SUPERPAGE), "then below");
        assert_eq!(space.allocate(4 << 30), None);
        let MapError::NoAddresses { largest, free, .. } = space.exhausted(1) else { panic!() };
        assert!(largest < free && free < 4 << 30);
    }

    #[test]
    fn the_end_of_the_address_space_does_not_overflow() {
        let mut space = IovaSpace::new(PAGES, &[(u64::MAX - 0x2fff, u64::MAX)], &[(u64::MAX - 10, u64::MAX)]);
        assert_eq!(space.allocate(8192), Some(u64::MAX - 0x2fff));
        assert_eq!(space.allocate(4096), None);
        assert_eq!(IovaSpace::new(0, &[(5, 3), (1, 2)], &[(0, u64::MAX)]).allocate(4096), None);
        assert_eq!(space.allocate(!0xfff), None);
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let mut space = IovaSpace::new(PAGES, &[(GIB_4, GIB_4 + 0x1fff), (GIB_4 + 0x2000, GIB_4 + 0x2fff)], &[]);
        assert_eq!(space.allocate(0x3000), Some(GIB_4));
        let space = IovaSpace::new(PAGES, &[(GIB_4, GIB_4 + 0x2fff), (GIB_4 + 0x1000, GIB_4 + 0x1fff)], &[]);
        assert_eq!(space.available(), 0x3000);
    }

    #[test]
    fn larger_pages_of_the_iommu_are_respected() {
        let mut space = IovaSpace::new(1 << 16, &[(0x1_0000_1000, 0x1_0005_ffff)], &[]);
        assert_eq!(space.page(), 1 << 16);
        assert_eq!(space.allocate(1 << 16), Some(0x1_0001_0000));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        /// Against a naive set of pages.
        #[test]
        fn gives_each_page_to_one(
            usable in proptest::collection::vec((0u64..64, 0u64..64), 1..4),
            avoid in proptest::collection::vec((0u64..64, 0u64..8), 0..4),
            steps in proptest::collection::vec((any::<bool>(), 1u64..12, any::<prop::sample::Index>()), 0..60),
        ) {
            // The pages are numbered from below the MSI window on, so that it lies among them.
            let base = MSI_WINDOW.0 - 32 * 4096;
            let bytes = |(first, len): (u64, u64)| (base + first * 4096, base + (first + len) * 4096 + 4095);
            let mut at = 0;
            let usable: Vec<_> = usable.into_iter().map(|(gap, len)| { let r = (at + gap, len); at += gap + len + 1; r }).collect();
            let inside = |list: &[(u64, u64)], page: u64| list.iter().any(|&r| bytes(r).0 <= page && page <= bytes(r).1);
            let mut free: std::collections::BTreeSet<u64> = (0..400).map(|p| base + p * 4096)
                .filter(|&p| inside(&usable, p) && !inside(&avoid, p) && !(MSI_WINDOW.0..=MSI_WINDOW.1).contains(&p))
                .collect();
            let ranges = |list: &[(u64, u64)]| list.iter().map(|&r| bytes(r)).collect::<Vec<_>>();
            let mut space = IovaSpace::new(0x1000, &ranges(&usable), &ranges(&avoid));
            let mut taken = Vec::new();
            prop_assert_eq!(space.available(), free.len() as u64 * 4096);
            for (take, pages, index) in steps {
                if take {
                    let fits = free.iter().any(|&p| (0..pages).all(|i| free.contains(&(p + i * 4096))));
                    let got = space.allocate(pages * 4096);
                    prop_assert_eq!(got.is_some(), fits);
                    if let Some(start) = got {
                        for i in 0..pages {
                            prop_assert!(free.remove(&(start + i * 4096)), "{:#x} was not free", start + i * 4096);
                        }
                        taken.push((start, pages));
                    }
                } else if !taken.is_empty() {
                    let (start, pages) = taken.swap_remove(index.index(taken.len()));
                    space.release(start, pages * 4096);
                    free.extend((0..pages).map(|i| start + i * 4096));
                }
                prop_assert_eq!(space.available(), free.len() as u64 * 4096);
            }
        }
    }
}
