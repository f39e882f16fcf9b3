//! The I/O virtual addresses that a host has mapped, and the controller's view of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use warprow_dma::{DmaMemory, PAGE, PeerMemory};

/// The first address handed out: beyond 4 GiB, so that an address cut to 32 bits never works by accident.
const FIRST: u64 = 0x10_0000_0000;
/// One past the last address: what a 48-bit address bus reaches.
const END: u64 = 1 << 48;

/// Memory of a host that the controller cannot map: it is read and written piece by piece, through a copy in this
/// process. The workers call both methods; both return in bounded time, and at once when an earlier failure was for
/// good.
pub trait RemoteMemory: Send + Sync + fmt::Debug {
    /// Copies `len` bytes at an I/O virtual address to `offset` of `into`; false if that is not possible.
    fn read(&self, iova: u64, into: &DmaMemory, offset: usize, len: usize) -> bool;

    /// Copies `len` bytes at `offset` of `from` to an I/O virtual address; false if that is not possible.
    fn write(&self, iova: u64, from: &DmaMemory, offset: usize, len: usize) -> bool;
}

/// Copies between memory of another device, mapped from `iova` on, and its copy in this process.
#[derive(Debug)]
struct PeerCopies {
    iova: u64,
    memory: Arc<dyn PeerMemory>,
}

impl RemoteMemory for PeerCopies {
    fn read(&self, iova: u64, into: &DmaMemory, offset: usize, len: usize) -> bool {
        let mut bytes = vec![0; len];
        let read = self.memory.read((iova - self.iova) as usize, &mut bytes).is_ok();
        if read {
            into.write(offset, &bytes);
        }
        read
    }

    fn write(&self, iova: u64, from: &DmaMemory, offset: usize, len: usize) -> bool {
        let mut bytes = vec![0; len];
        from.read(offset, &mut bytes);
        self.memory.write((iova - self.iova) as usize, &bytes).is_ok()
    }
}

/// Memory at an I/O virtual address.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) iova: u64,
    pub(crate) memory: DmaMemory,
    /// The device may write there.
    pub(crate) writable: bool,
    /// What brings `memory` up to date, where that is a copy of the host's memory.
    pub(crate) remote: Option<Arc<dyn RemoteMemory>>,
    /// The address of the host's memory, where that is another device's. An offload may reach it, and `memory` is a copy for the worker.
    pub(crate) peer: Option<u64>,
}

impl Region {
    fn end(&self) -> u64 {
        self.iova + self.memory.len() as u64
    }
}

/// Hands out I/O virtual addresses and remembers which memory lies at each.
#[derive(Debug)]
pub(crate) struct Iommu {
    regions: BTreeMap<u64, Region>,
    next: u64,
}

impl Iommu {
    pub(crate) fn new() -> Self {
        Self { regions: BTreeMap::new(), next: FIRST }
    }

    /// Maps `memory`. Addresses are not used again before the address space has been walked through once, and an
    /// unmapped page follows each mapping, so that stale and overrunning addresses fault instead of hitting others.
    pub(crate) fn map(&mut self, memory: &DmaMemory) -> Option<u64> {
        let iova = self.take(memory.len())?;
        self.regions.insert(iova, Region { iova, memory: memory.clone(), writable: true, remote: None, peer: None });
        Some(iova)
    }

    /// As [`map`](Self::map), for memory of another device; `copy` is as long.
    pub(crate) fn map_peer(&mut self, memory: &Arc<dyn PeerMemory>, copy: &DmaMemory) -> Option<u64> {
        let (iova, peer) = (self.take(copy.len())?, Some(memory.address()));
        let remote: Arc<dyn RemoteMemory> = Arc::new(PeerCopies { iova, memory: memory.clone() });
        self.regions.insert(iova, Region { iova, memory: copy.clone(), writable: true, remote: Some(remote), peer });
        Some(iova)
    }

    /// Addresses for so many bytes.
    fn take(&mut self, len: usize) -> Option<u64> {
        let needed = (len as u64).checked_add(PAGE as u64)?;
        let iova = self.gap(self.next, needed).or_else(|| self.gap(FIRST, needed))?;
        self.next = iova + needed;
        Some(iova)
    }

    /// Maps `memory` where the host wants it; false if something is there, or the addresses end before.
    pub(crate) fn map_at(
        &mut self,
        iova: u64,
        memory: &DmaMemory,
        writable: bool,
        remote: Option<Arc<dyn RemoteMemory>>,
    ) -> bool {
        let Some(end) = iova.checked_add(memory.len() as u64) else { return false };
        if self.regions.range(..end).next_back().is_some_and(|(_, region)| region.end() > iova) {
            return false;
        }
        self.regions.insert(iova, Region { iova, memory: memory.clone(), writable, remote, peer: None });
        true
    }

    /// Ends every mapping.
    pub(crate) fn clear(&mut self) {
        self.regions.clear();
    }

    fn gap(&self, from: u64, needed: u64) -> Option<u64> {
        let mut at = from;
        if let Some((_, before)) = self.regions.range(..from).next_back() {
            at = at.max(before.end() + PAGE as u64);
        }
        for (&iova, region) in self.regions.range(from..) {
            if iova.saturating_sub(at) >= needed {
                return Some(at);
            }
            at = region.end() + PAGE as u64;
        }
        (at.checked_add(needed)? <= END).then_some(at)
    }

    /// Ends a mapping; false if there is none at `iova`.
    pub(crate) fn unmap(&mut self, iova: u64) -> bool {
        self.regions.remove(&iova).is_some()
    }

    /// What is mapped now, in order of address.
    pub(crate) fn snapshot(&self) -> Arc<[Region]> {
        self.regions.values().cloned().collect()
    }
}

/// The controller touched an address that is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DmaFault;

/// Where some bytes of host memory lie: a region of [`Dma`] and an offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) region: u32,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// The address translation of one worker, with the region it found last.
#[derive(Debug, Default)]
pub(crate) struct Dma {
    regions: Arc<[Region]>,
    last: usize,
    /// Some memory must not be written.
    some_read_only: bool,
    /// Some memory is a copy.
    some_remote: bool,
    /// Accesses to addresses that were not mapped.
    pub(crate) faults: u64,
}

impl Dma {
    pub(crate) fn replace(&mut self, regions: Arc<[Region]>) {
        self.some_read_only = regions.iter().any(|region| !region.writable);
        self.some_remote = regions.iter().any(|region| region.remote.is_some());
        self.regions = regions;
        self.last = 0;
    }

    /// Finds `len` bytes at `iova`, which must lie in one mapping.
    #[inline]
    pub(crate) fn find(&mut self, iova: u64, len: usize) -> Result<Segment, DmaFault> {
        if let Some(region) = self.regions.get(self.last) {
            // An address below the region wraps around and is far past its end.
            let offset = iova.wrapping_sub(region.iova) as usize;
            if region.memory.contains(offset, len) {
                return Ok(Segment { region: self.last as u32, offset, len });
            }
        }
        self.search(iova, len)
    }

    #[cold]
    fn search(&mut self, iova: u64, len: usize) -> Result<Segment, DmaFault> {
        let index = self.regions.partition_point(|region| region.iova <= iova).checked_sub(1);
        let found = index.and_then(|index| {
            let region = &self.regions[index];
            let offset = (iova - region.iova) as usize;
            region.memory.contains(offset, len).then_some((index, offset))
        });
        match found {
            Some((index, offset)) => {
                self.last = index;
                Ok(Segment { region: index as u32, offset, len })
            }
            None => {
                self.faults += 1;
                Err(DmaFault)
            }
        }
    }

    /// Fails if the device must not write to one of the segments.
    #[inline]
    pub(crate) fn check_writable(&mut self, segments: &[Segment]) -> Result<(), DmaFault> {
        if self.some_read_only && segments.iter().any(|segment| !self.regions[segment.region as usize].writable) {
            self.faults += 1;
            return Err(DmaFault);
        }
        Ok(())
    }

    /// The memory that a segment lies in.
    #[inline]
    pub(crate) fn memory(&self, segment: Segment) -> &DmaMemory {
        &self.regions[segment.region as usize].memory
    }

    /// Finds a range of memory that is no copy, and clones it.
    pub(crate) fn resolve(&mut self, iova: u64, len: usize) -> Result<(DmaMemory, usize), DmaFault> {
        let segment = self.find(iova, len)?;
        if self.is_remote(&[segment]) {
            self.faults += 1;
            return Err(DmaFault);
        }
        Ok((self.memory(segment).clone(), segment.offset))
    }

    /// Finds the memory of a ring, which may be a copy of memory that is far away.
    pub(crate) fn ring(&mut self, iova: u64, len: usize) -> Result<RingMemory, DmaFault> {
        let segment = self.find(iova, len)?;
        let Region { memory, remote, peer, .. } = &self.regions[segment.region as usize];
        let remote = remote.clone().map(|it| (it, iova));
        Ok(RingMemory { memory: memory.clone(), offset: segment.offset, remote, is_peer: peer.is_some() })
    }

    /// Whether any of the segments is a copy.
    #[inline]
    pub(crate) fn is_remote(&self, segments: &[Segment]) -> bool {
        self.some_remote && segments.iter().any(|segment| self.regions[segment.region as usize].remote.is_some())
    }

    /// Brings copies up to date with what the host has.
    #[inline]
    pub(crate) fn pull(&mut self, segments: &[Segment]) -> Result<(), DmaFault> {
        if self.some_remote { self.copy(segments, true) } else { Ok(()) }
    }

    /// Brings the host up to date with what was written to copies.
    #[inline]
    pub(crate) fn push(&mut self, segments: &[Segment]) -> Result<(), DmaFault> {
        if self.some_remote { self.copy(segments, false) } else { Ok(()) }
    }

    #[cold]
    fn copy(&mut self, segments: &[Segment], here: bool) -> Result<(), DmaFault> {
        let copied = segments.iter().all(|&Segment { region, offset, len }| {
            let region = &self.regions[region as usize];
            let iova = region.iova + offset as u64;
            match &region.remote {
                None => true,
                Some(remote) if here => remote.read(iova, &region.memory, offset, len),
                Some(remote) => remote.write(iova, &region.memory, offset, len),
            }
        });
        if copied {
            return Ok(());
        }
        self.faults += 1;
        Err(DmaFault)
    }
}

/// Where a ring lies; with the host's address where it is a copy.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory {
    pub(crate) memory: DmaMemory,
    pub(crate) offset: usize,
    pub(crate) remote: Option<(Arc<dyn RemoteMemory>, u64)>,
    /// The ring is in memory of another device, which an offload may reach though the worker does not.
    pub(crate) is_peer: bool,
}

impl RingMemory {
    /// Whether an offload may reach it.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.remote.is_none() || self.is_peer
    }

    /// Brings bytes at `at` of the ring up to date, if it is a copy. False if that is not possible.
    #[inline]
    pub(crate) fn pull(&self, at: usize, len: usize) -> bool {
        let pull = |(remote, iova): &(Arc<dyn RemoteMemory>, u64)| {
            remote.read(iova + at as u64, &self.memory, self.offset + at, len)
        };
        self.remote.as_ref().is_none_or(pull)
    }

    /// Brings the host's bytes up to date.
    #[inline]
    pub(crate) fn push(&self, at: usize, len: usize) -> bool {
        let push = |(remote, iova): &(Arc<dyn RemoteMemory>, u64)| {
            remote.write(iova + at as u64, &self.memory, self.offset + at, len)
        };
        self.remote.as_ref().is_none_or(push)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_dma::MemoryKind;

    fn memory(pages: usize) -> DmaMemory {
        DmaMemory::allocate(pages * PAGE, MemoryKind::Anonymous).unwrap()
    }

    #[test]
    fn mappings_do_not_touch_and_are_found() {
        let mut iommu = Iommu::new();
        let a = iommu.map(&memory(3)).unwrap();
        let b = iommu.map(&memory(1)).unwrap();
        assert!(a >= 1 << 32 && b >= a + 4 * PAGE as u64);
        let mut dma = Dma::default();
        dma.replace(iommu.snapshot());
        assert_eq!(dma.find(b + 8, 16), Ok(Segment { region: 1, offset: 8, len: 16 }));
        assert_eq!(dma.find(a + 2 * PAGE as u64, PAGE).unwrap().offset, 2 * PAGE);
        for (iova, len) in
            [(a, 3 * PAGE + 1), (a - 1, 1), (a + 3 * PAGE as u64, 1), (0, 8), (u64::MAX, 8), (b, usize::MAX)]
        {
            assert_eq!(dma.find(iova, len), Err(DmaFault), "{iova:#x} {len}");
        }
        assert_eq!(dma.faults, 6);
        assert!(iommu.unmap(a) && !iommu.unmap(a));
        dma.replace(iommu.snapshot());
        assert_eq!(dma.find(a, 1), Err(DmaFault));
    }

    #[test]
    fn a_host_chooses_addresses_that_are_free() {
        let mut iommu = Iommu::new();
        let page = PAGE as u64;
        assert!(iommu.map_at(4 * page, &memory(2), false, None) && iommu.map_at(0, &memory(4), true, None));
        for (at, pages, free) in
            [(5, 1, false), (3, 1, false), (0, 9, false), (6, 1, true), (7, 1, true), (6, 2, false)]
        {
            assert_eq!(iommu.map_at(at * page, &memory(pages), true, None), free, "{pages} at {at}");
        }
        assert!(!iommu.map_at(!(page - 1), &memory(2), true, None));
        let mut dma = Dma::default();
        dma.replace(iommu.snapshot());
        let (read_only, writable) = (dma.find(4 * page, 8).unwrap(), dma.find(0, 8).unwrap());
        assert_eq!(dma.check_writable(&[writable]), Ok(()));
        assert_eq!(dma.check_writable(&[writable, read_only]), Err(DmaFault));
        assert_eq!(dma.faults, 1);
    }

    #[test]
    fn gaps_are_used_again_only_when_the_end_is_reached() {
        let mut iommu = Iommu::new();
        let a = iommu.map(&memory(4)).unwrap();
        let b = iommu.map(&memory(4)).unwrap();
        assert!(iommu.unmap(a));
        assert!(iommu.map(&memory(1)).unwrap() > b);
        iommu.next = END;
        assert_eq!(iommu.map(&memory(4)), Some(a));
        iommu.next = END;
        assert!(iommu.map(&memory(1)).unwrap() > b);
    }
}
