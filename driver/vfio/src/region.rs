use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS, VFIO_REGION_INFO_FLAG_MMAP, VFIO_TYPE,
    vfio_region_info,
};

use crate::answer::{ask, long, pairs, word};

nix::ioctl_readwrite_bad!(get_region_info, nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 8), u8);

/// One region of a device's file: a BAR, or configuration space (VFIO_DEVICE_GET_REGION_INFO).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Bytes; 0 where the device has no such region.
    pub(crate) size: u64,
    /// The offset at which the region begins in the file.
    pub(crate) offset: u64,
    /// Start in the region and length of each area that can be mapped, bytes.
    pub(crate) areas: Vec<(u64, u64)>,
}

impl Region {
    /// Asks for the region with this index, of a device's file.
    pub(crate) fn read(file: &File, index: u32) -> io::Result<Self> {
        let mut request = vec![0; size_of::<vfio_region_info>()];
        request[8..12].copy_from_slice(&index.to_ne_bytes());
        let answer = ask(request, |buffer| {
            // SAFETY: the descriptor is an open device; the buffer is as long as its first word says.
            unsafe { get_region_info(file.as_raw_fd(), buffer.as_mut_ptr()) }.map(drop)
        })?;
        Self::parse(&answer).ok_or_else(|| io::Error::other("its answer contradicts itself"))
    }

    fn parse(buffer: &[u8]) -> Option<Self> {
        let flags = word(buffer, 4)?;
        let (size, offset) = (long(buffer, 16)?, long(buffer, 24)?);
        let first = if flags & VFIO_REGION_INFO_FLAG_CAPS != 0 { word(buffer, 12)? } else { 0 };
        // If the kernel lists no areas, the whole region may be mapped.
        let areas = match pairs(buffer, first, VFIO_REGION_INFO_CAP_SPARSE_MMAP)? {
            _ if flags & VFIO_REGION_INFO_FLAG_MMAP == 0 => Vec::new(),
            Some(list) => list.into_iter().filter(|area| area.1 != 0).collect(),
            None => vec![(0, size)],
        };
        let inside = |&(start, len): &(u64, u64)| start.checked_add(len).is_some_and(|end| end <= size);
        areas.iter().all(inside).then_some(Self { size, offset, areas })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::chained;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn answer(flags: u32, size: u64, caps: &[(u16, &[u64])]) -> Vec<u8> {
        let mut head = Vec::new();
        [0, flags, 0, 32].iter().for_each(|word| head.extend(word.to_ne_bytes()));
        [size, 7 << 40].iter().for_each(|word| head.extend(word.to_ne_bytes()));
        chained(&head, caps)
    }

    #[test]
    fn areas_are_those_listed_or_all_or_none() {
        let areas = |flags, caps: &[_]| Region::parse(&answer(flags, 0x4000, caps)).map(|region| region.areas);
        let list: &[(u16, &[u64])] = &[(3, &[]), (1, &[2, 0, 0x2000, 0x3000, 0x1000])];
        assert_eq!(areas(0xf, list), Some(vec![(0, 0x2000), (0x3000, 0x1000)]));
        assert_eq!(areas(0xf, &[(3, &[])]), Some(vec![(0, 0x4000)]));
        assert_eq!(areas(0x7, &[]), Some(vec![(0, 0x4000)]));
        assert_eq!(areas(0x3, &[]), Some(vec![]));
        assert_eq!(areas(0xf, &[(1, &[1, 0x3000, 0x2000])]), None, "outside of the region");
        assert_eq!(areas(0xf, &[(1, &[1, u64::MAX, 2])]), None);
        assert_eq!(areas(0xf, &[(1, &[5, 0, 0x1000])]), None, "a truncated list");
        assert_eq!(Region::parse(&answer(0x3, 9, &[])).unwrap(), Region { size: 9, offset: 7 << 40, areas: vec![] });
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn any_answer_is_parsed_or_refused(bytes: Vec<u8>, flags in 0u32..16) {
            let mut whole = answer(flags, 0x4000, &[]);
            whole.extend(bytes);
            let _ = Region::parse(&whole);
            whole.truncate(20);
            prop_assert_eq!(Region::parse(&whole), None);
        }
    }
}
