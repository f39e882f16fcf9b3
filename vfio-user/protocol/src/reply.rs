//! What a server answers, understood by the client. The errors say what is wrong with an answer.

use zerocopy::FromBytes;

use crate::limits::{MAX_AREAS, MAX_IRQS, MAX_REGIONS};
use crate::version::Version;
use crate::wire::{
    CAP_SPARSE_MMAP, CapabilityHeader, DeviceInfo, DmaAccess, IrqInfo, MappableArea, RegionAccess, RegionInfo,
    SparseAreasHeader, device_flags, region, region_flags,
};

const SHORT: &str = "an answer that is too short";

fn head<T: FromBytes>(payload: &[u8]) -> Result<T, &'static str> {
    T::read_from_prefix(payload).map(|(head, _)| head).map_err(|_| SHORT)
}

/// The server's version, which must be ours or older.
pub fn version_reply(payload: &[u8], ours: (u16, u16)) -> Result<Version, &'static str> {
    let version = Version::decode(payload)?;
    if version.major != ours.0 || version.minor > ours.1 {
        return Err("a version of the protocol that was not proposed");
    }
    Ok(version)
}

/// The device, a PCI one.
pub fn device_info(payload: &[u8]) -> Result<DeviceInfo, &'static str> {
    let info = head::<DeviceInfo>(payload)?;
    if info.flags & device_flags::PCI == 0 {
        return Err("a device that is not a PCI function");
    }
    if info.num_regions <= region::CONFIG || info.num_regions > MAX_REGIONS || info.num_irqs > MAX_IRQS {
        return Err("a PCI function without configuration space, or with regions or interrupts beyond counting");
    }
    Ok(info)
}

/// A region as the server describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionDescription {
    /// The description's head.
    pub info: RegionInfo,
    /// What can be mapped: inside the region, in whole pages.
    pub areas: Vec<MappableArea>,
    /// Bytes that the whole description takes, if it was more than there was room for.
    pub needed: Option<u32>,
}

/// A region's description, of which `argsz` bytes were asked for.
pub fn region_info(payload: &[u8], index: u32, argsz: u32) -> Result<RegionDescription, &'static str> {
    let info = head::<RegionInfo>(payload)?;
    if info.index != index {
        return Err("the description of another region");
    }
    if info.argsz > argsz {
        return Ok(RegionDescription { info, areas: Vec::new(), needed: Some(info.argsz) });
    }
    let mut areas = Vec::new();
    let mappable = info.flags & region_flags::MMAP != 0;
    let mut sparse = false;
    let mut at = if info.flags & region_flags::CAPS != 0 { info.cap_offset as usize } else { 0 };
    // A chain that never runs backwards, so that it ends.
    while at != 0 {
        let rest = payload.get(at..).ok_or("a capability outside its answer")?;
        let (cap, rest) = CapabilityHeader::read_from_prefix(rest).map_err(|_| "a capability outside its answer")?;
        if cap.id == CAP_SPARSE_MMAP {
            sparse = true;
            let (list, rest) =
                SparseAreasHeader::read_from_prefix(rest).map_err(|_| "a capability outside its answer")?;
            if list.nr_areas > MAX_AREAS {
                return Err("more mappable areas than anybody needs");
            }
            let bytes =
                rest.get(..list.nr_areas as usize * size_of::<MappableArea>()).ok_or("areas outside their answer")?;
            areas.extend(bytes.chunks_exact(size_of::<MappableArea>()).flat_map(MappableArea::read_from_bytes));
        }
        let next = cap.next as usize;
        if next != 0 && next <= at {
            return Err("capabilities that go in circles");
        }
        at = next;
    }
    if !mappable {
        areas.clear();
    } else if !sparse {
        areas.push(MappableArea { offset: 0, size: info.size });
    }
    let fits = |area: &MappableArea| {
        let end = area.offset.checked_add(area.size);
        end.is_some_and(|end| end <= info.size && info.offset.checked_add(end).is_some())
    };
    if !areas.iter().all(fits) {
        return Err("a mappable area outside its region");
    }
    areas.retain(|area| area.size != 0 && (area.offset | area.size).is_multiple_of(4096));
    Ok(RegionDescription { info, areas, needed: None })
}

/// An interrupt type.
pub fn irq_info(payload: &[u8], index: u32) -> Result<IrqInfo, &'static str> {
    let info = head::<IrqInfo>(payload)?;
    if info.index == index { Ok(info) } else { Err("the description of another interrupt") }
}

/// The data of a Region Read.
pub fn region_data<'a>(payload: &'a [u8], asked: &RegionAccess) -> Result<&'a [u8], &'static str> {
    let (access, data) = RegionAccess::read_from_prefix(payload).map_err(|_| SHORT)?;
    if access.count != asked.count || data.len() != asked.count as usize {
        return Err("more or less data than was asked for");
    }
    Ok(data)
}

/// How much of a Region Write was taken: all of it.
pub fn region_written(payload: &[u8], asked: &RegionAccess) -> Result<(), &'static str> {
    if head::<RegionAccess>(payload)?.count == asked.count { Ok(()) } else { Err("a write that was taken in part") }
}

/// The data of a DMA Read.
pub fn dma_data<'a>(payload: &'a [u8], asked: &DmaAccess) -> Result<&'a [u8], &'static str> {
    let (access, data) = DmaAccess::read_from_prefix(payload).map_err(|_| SHORT)?;
    if access != *asked || data.len() as u64 != asked.count {
        return Err("other memory than was asked for");
    }
    Ok(data)
}

/// How much of a DMA Write was taken: all of it.
pub fn dma_written(payload: &[u8], asked: &DmaAccess) -> Result<(), &'static str> {
    if head::<DmaAccess>(payload)? == *asked { Ok(()) } else { Err("other memory than was written") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use zerocopy::IntoBytes;

    fn described(areas: &[MappableArea], next: u32) -> Vec<u8> {
        let argsz = (32 + 8 + 8 + areas.len() * 16) as u32;
        let info = RegionInfo { argsz, flags: 15, index: 0, cap_offset: 32, size: 0x4000, offset: 0 };
        let mut bytes = info.as_bytes().to_vec();
        bytes.extend(CapabilityHeader { id: 1, version: 1, next }.as_bytes());
        bytes.extend(SparseAreasHeader { nr_areas: areas.len() as u32, reserved: 0 }.as_bytes());
        areas.iter().for_each(|area| bytes.extend(area.as_bytes()));
        bytes
    }

    #[test]
    fn areas_are_found_and_checked() {
        let area = MappableArea { offset: 0x1000, size: 0x1000 };
        assert_eq!(region_info(&described(&[area], 0), 0, 4096).unwrap().areas, [area]);
        assert_eq!(region_info(&described(&[area], 0), 0, 32).unwrap().needed, Some(64));
        for wrong in [MappableArea { offset: 0x4000, size: 0x1000 }, MappableArea { offset: !0xfff, size: 0x2000 }] {
            assert!(region_info(&described(&[wrong], 0), 0, 4096).is_err(), "{wrong:?}");
        }
        assert!(region_info(&described(&[MappableArea { offset: 1, size: 1 }], 0), 0, 4096).unwrap().areas.is_empty());
        assert!(region_info(&described(&[area], 32), 0, 4096).is_err(), "a circle");
        assert!(region_info(&described(&[area], 60), 0, 4096).is_err(), "past the end");
        assert!(region_info(&described(&[area], 0)[..60], 0, 4096).is_err());
        assert!(region_info(&described(&[area], 0), 1, 4096).is_err());
    }

    #[test]
    fn data_is_as_much_as_asked() {
        let asked = RegionAccess { offset: 8, region: 0, count: 4 };
        let answer = |count, len: usize| [RegionAccess { count, ..asked }.as_bytes(), &vec![7; len]].concat();
        assert_eq!(region_data(&answer(4, 4), &asked), Ok(&[7; 4][..]));
        for (count, len) in [(4, 3), (8, 8), (8, 4), (0, 4), (4, 8)] {
            assert!(region_data(&answer(count, len), &asked).is_err(), "{count} {len}");
        }
        assert!(region_data(&[], &asked).is_err());
    }

    #[test]
    fn memory_is_as_was_asked() {
        let asked = DmaAccess { addr: 0x1000, count: 4 };
        let answer = |addr, count, len: usize| [DmaAccess { addr, count }.as_bytes(), &vec![7; len]].concat();
        assert_eq!(dma_data(&answer(0x1000, 4, 4), &asked), Ok(&[7; 4][..]));
        for (addr, count, len) in
            [(0x1000, 4, 3), (0x1000, 8, 8), (0x1004, 4, 4), (0x1000, 4, 8), (0x1000, u64::MAX, 4)]
        {
            assert!(dma_data(&answer(addr, count, len), &asked).is_err(), "{addr:#x} {count} {len}");
        }
        assert!(dma_data(&[], &asked).is_err() && dma_written(&[0; 15], &asked).is_err());
        assert!(
            dma_written(&answer(0x1000, 4, 0), &asked).is_ok() && dma_written(&answer(0x1000, 3, 0), &asked).is_err()
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn any_answer_is_understood_or_refused(bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200), edits in prop::collection::vec((0usize..80, any::<u8>()), 0..6)) {
            let _ = (device_info(&bytes), irq_info(&bytes, 0), version_reply(&bytes, (0, 1)), region_info(&bytes, 0, 4096));
            let mut right = described(&[MappableArea { offset: 0x1000, size: 0x1000 }, MappableArea::default()], 0);
            for (at, byte) in edits {
                if let Some(place) = right.get_mut(at) {
                    *place = byte;
                }
            }
            if let Ok(region) = region_info(&right, 0, 4096) {
                for area in region.areas {
                    prop_assert!(area.offset + area.size <= region.info.size);
                    region.info.offset.checked_add(area.offset + area.size).unwrap();
                }
            }
        }
    }
}
