//! Memory for servers that take few DMA regions: large pieces, of which each allocation gets a part.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};
use warprow_dma::{AllocateError, DmaMemory, MemoryKind, PAGE, WeakMemory};

/// The first piece, bytes; each further one is twice as large. Pages that nobody touches take no memory.
const FIRST: usize = 256 << 20;

#[derive(Debug)]
struct Slab {
    memory: DmaMemory,
    /// Parts by where they begin: their length, and whether somebody has them still.
    parts: BTreeMap<usize, (usize, WeakMemory)>,
    /// Where the last one ended.
    next: usize,
}

impl Slab {
    fn new(len: usize) -> Result<Self, AllocateError> {
        Ok(Self { memory: DmaMemory::allocate(len, MemoryKind::Memfd)?, parts: BTreeMap::new(), next: 0 })
    }

    /// A part that nobody has. They go around before one is used again.
    fn allocate(&mut self, len: usize) -> Option<DmaMemory> {
        self.parts.retain(|_, (_, part)| !part.is_gone());
        let at = self.gap(self.next, len).or_else(|| self.gap(0, len))?;
        let part = self.memory.part(at, len);
        // Pages that nobody has touched yet stay untouched.
        let fresh = part.file().is_some_and(|(fd, offset)| {
            fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len as u64).is_ok()
        });
        if !fresh {
            part.fill(0, len, 0);
        }
        self.parts.insert(at, (len, part.downgrade()));
        self.next = at + len;
        Some(part)
    }

    fn gap(&self, from: usize, len: usize) -> Option<usize> {
        let before = self.parts.range(..from).next_back().map_or(from, |(at, (len, _))| at + len);
        let mut at = from.max(before);
        for (&used, (used_len, _)) in self.parts.range(from..) {
            if used.saturating_sub(at) >= len {
                return Some(at);
            }
            at = used + used_len;
        }
        (at.checked_add(len)? <= self.memory.len()).then_some(at)
    }
}

/// The pieces.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    slabs: Vec<Slab>,
}

impl Arena {
    /// At least `len` zeroed bytes, of a piece that is there or of a new one.
    pub(crate) fn allocate(&mut self, len: usize) -> Result<DmaMemory, AllocateError> {
        let source = || Arc::new(std::io::ErrorKind::OutOfMemory.into());
        let too_long = || AllocateError { len, backing: MemoryKind::Memfd, source: source() };
        let rounded = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(too_long)?;
        if let Some(part) = self.slabs.iter_mut().find_map(|slab| slab.allocate(rounded)) {
            return Ok(part);
        }
        let mut slab = Slab::new((FIRST << self.slabs.len().min(16)).max(rounded))?;
        let part = slab.allocate(rounded).ok_or_else(too_long)?;
        self.slabs.push(slab);
        Ok(part)
    }

    /// The piece that `memory` is part of, and where in it that begins.
    pub(crate) fn find(&self, memory: &DmaMemory) -> Option<(usize, &DmaMemory, usize)> {
        self.slabs.iter().enumerate().find_map(|(index, slab)| {
            let offset = memory.as_ptr().addr().checked_sub(slab.memory.as_ptr().addr())?;
            slab.memory.contains(offset, memory.len()).then_some((index, &slab.memory, offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_and_come_back_zeroed() {
        let mut arena = Arena::default();
        let mut parts: Vec<_> = (1..20).map(|i| arena.allocate(i * 1000).unwrap()).collect();
        parts.iter().enumerate().for_each(|(i, part)| part.fill(0, part.len(), i as u8 + 1));
        for (i, part) in parts.iter().enumerate() {
            assert!([0, part.len() - 1].iter().all(|&at| part.load_u8(at) == i as u8 + 1));
        }
        let (_, slab, offset) = arena.find(&parts[3]).unwrap();
        assert_eq!(slab.load_u8(offset), 4);
        assert!(arena.find(&DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap()).is_none());
        parts.clear();
        // All the way around, over what was written before.
        let rest: Vec<_> = (0..FIRST / (16 << 20)).map(|_| arena.allocate(16 << 20).unwrap()).collect();
        assert!(rest.iter().all(|part| (0..16 << 20).step_by(PAGE).all(|at| part.load_u8(at) == 0)));
        assert!(arena.slabs.len() <= 2);
        let large = arena.allocate(FIRST * 5).unwrap();
        assert_eq!(large.len(), FIRST * 5);
        assert!(arena.allocate(usize::MAX).is_err());
    }
}
