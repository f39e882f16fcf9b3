//! The sizes of a store, which are decided at format time and never change, and its members, which may be added and
//! removed.

use serde::Serialize;
use uuid::Uuid;

use crate::block::{PAYLOAD, UNIT};
use crate::placement::{ChunkRef, Placement};

/// Drives that a store may have: as many as a superblock can list.
pub const MAX_MEMBERS: usize = 48;

/// Bytes kept of a drive's serial.
pub const MAX_SERIAL: usize = 48;

/// log₂ of the least and the largest chunk: 1 to 64 MiB.
pub(crate) const CHUNK_SHIFTS: std::ops::RangeInclusive<u8> = 20..=26;

/// log₂ of the LBA sizes that a store can lie on: 512 B to 4 KiB, the metadata unit.
pub(crate) const LBA_SHIFTS: std::ops::RangeInclusive<u8> = 9..=12;

/// Catalogue extents begin and end at multiples of this many units: 64 KiB, the largest unit that drives are known to map and
/// rewrite as a whole. What a drive spoils around a torn write then belongs to the same structure, or is superblocks of one end.
pub(crate) const METADATA_ALIGNMENT: u64 = (64 << 10) / UNIT as u64;

/// Chunk 0 begins at a multiple of this many units: 1 MiB.
const CHUNK_ALIGNMENT: u64 = (1 << 20) / UNIT as u64;

/// Copies of a superblock slot on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SuperblockCopy {
    /// At the start of the drive.
    Start,
    /// At its end.
    Tail,
}

/// A drive of the store, as the membership list has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The drive's identity, given when the drive was formatted or added.
    pub uuid: Uuid,
    /// LBAs that the drive had then.
    pub lba_count: u64,
    /// Chunks on it; at most 2²⁴.
    pub chunk_count: u32,
    /// The drive's serial, cut to [`MAX_SERIAL`] bytes.
    pub serial: String,
    /// Whether the drive was removed. A vacant entry keeps its index, has no chunks, and its drive does not count as
    /// missing.
    pub vacant: bool,
}

/// Sizes and membership of a store. The same on every member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// log₂ of the bytes in an LBA: 9 to 12.
    pub lba_shift: u8,
    /// log₂ of the bytes in a chunk: 20 to 26.
    pub chunk_shift: u8,
    /// 4 KiB units in each of the two catalogue extents.
    pub catalogue_units: u32,
    /// Unit at which chunk 0 begins, on every member.
    pub first_chunk_unit: u64,
    /// The drives, in the order of their indices: 1 to [`MAX_MEMBERS`].
    pub members: Vec<Member>,
}

impl Geometry {
    /// Bytes of an LBA.
    pub fn lba_size(&self) -> u32 {
        1 << self.lba_shift
    }

    /// Bytes of a chunk.
    pub fn chunk_size(&self) -> u64 {
        1 << self.chunk_shift
    }

    /// 4 KiB units in a chunk.
    pub(crate) fn chunk_units(&self) -> u64 {
        self.chunk_size() / UNIT as u64
    }

    /// The unit of a member at which a chunk begins.
    pub(crate) fn chunk_unit(&self, chunk: ChunkRef) -> u64 {
        self.first_chunk_unit + u64::from(chunk.chunk()) * self.chunk_units()
    }

    /// Whether `chunk` is a chunk of its member, and not the space behind the last one.
    pub(crate) fn is_chunk(&self, chunk: ChunkRef) -> bool {
        self.members.get(usize::from(chunk.drive())).is_some_and(|member| chunk.chunk() < member.chunk_count)
    }

    /// The space behind a member's last chunk, as the chunk number that would come next, and how many units it has: up
    /// to the 64 KiB in which the tail superblocks lie, and at most a chunk.
    pub(crate) fn remainder(&self, index: u16) -> Option<(ChunkRef, u64)> {
        let member = self.members.get(usize::from(index)).filter(|member| !member.vacant)?;
        if member.chunk_count >= ChunkRef::MAX_CHUNKS {
            return None;
        }
        let place = ChunkRef::new(index as u8, member.chunk_count);
        let end = remainder_end(units(member.lba_count, self.lba_size()));
        Some((place, end.saturating_sub(self.chunk_unit(place)).min(self.chunk_units())))
    }

    /// Chunks on all members.
    pub fn total_chunks(&self) -> u64 {
        self.members.iter().map(|member| u64::from(member.chunk_count)).sum()
    }

    /// Bytes that the serialised catalogue may have.
    pub fn catalogue_capacity(&self) -> u64 {
        u64::from(self.catalogue_units) * PAYLOAD as u64
    }

    /// Unit at which the catalogue of `epoch` begins.
    pub(crate) fn catalogue_unit(&self, epoch: u64) -> u64 {
        METADATA_ALIGNMENT + (epoch & 1) * u64::from(self.catalogue_units)
    }

    /// Unit of the superblock of `epoch` on `member`.
    pub(crate) fn superblock_unit(&self, epoch: u64, copy: SuperblockCopy, member: &Member) -> u64 {
        superblock_unit((epoch & 1) as u8, copy, units(member.lba_count, self.lba_size()))
    }

    /// First unit at which chunk 0 may begin behind catalogue extents of `catalogue_units`.
    pub(crate) fn first_chunk_unit_for(catalogue_units: u32) -> u64 {
        (METADATA_ALIGNMENT + 2 * u64::from(catalogue_units)).next_multiple_of(CHUNK_ALIGNMENT)
    }

    /// Chunks that fit on a drive of `units` units, between the catalogue and the tail superblocks.
    pub(crate) fn chunks_on(units: u64, first_chunk_unit: u64, chunk_shift: u8) -> u32 {
        let bytes = units.saturating_sub(2).saturating_sub(first_chunk_unit).saturating_mul(UNIT as u64);
        (bytes >> chunk_shift).min(u64::from(ChunkRef::MAX_CHUNKS)) as u32
    }

    /// The placement of a generation over `map`, with stripe units of `1 << stripe_shift` bytes.
    pub(crate) fn placement(&self, map: Vec<ChunkRef>, stripe_shift: u32) -> Placement {
        let lba_shift = u32::from(self.lba_shift);
        let base = (self.first_chunk_unit * UNIT as u64) >> lba_shift;
        Placement::new(map, lba_shift, stripe_shift - lba_shift, u32::from(self.chunk_shift) - lba_shift, base)
    }
}

/// Where the 64 KiB begin in which the tail superblocks of a drive of `units` units lie.
pub(crate) fn remainder_end(units: u64) -> u64 {
    units.saturating_sub(2) / METADATA_ALIGNMENT * METADATA_ALIGNMENT
}

/// Whole 4 KiB units on a drive.
pub(crate) fn units(lba_count: u64, lba_size: u32) -> u64 {
    lba_count / (UNIT as u64 / u64::from(lba_size).clamp(1, UNIT as u64))
}

/// Unit of superblock slot A (0) or B (1) on a drive of `units` units (at least 4).
pub(crate) fn superblock_unit(slot: u8, copy: SuperblockCopy, units: u64) -> u64 {
    match copy {
        SuperblockCopy::Start => u64::from(slot),
        SuperblockCopy::Tail => units - 2 + u64::from(slot),
    }
}
