//! The superblock: which epoch is the valid one, and who belongs to the store.

use uuid::Uuid;

use crate::block::{self, BlockError, BlockId, Kind, UNIT};
use crate::codec::{Ended, Reader, Writer};
use crate::geometry::{
    CHUNK_SHIFTS, Geometry, LBA_SHIFTS, MAX_MEMBERS, MAX_SERIAL, METADATA_ALIGNMENT, Member, SuperblockCopy, units,
};
use crate::placement::ChunkRef;

/// What a superblock says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The identity of the store.
    pub store: Uuid,
    /// Counts commits. Its parity chooses the superblock slot and the catalogue extent.
    pub epoch: u64,
    /// The identity of the commit that brought the epoch. Several attempts at one epoch have different ones.
    pub commit: Uuid,
    /// Which of the members carries this copy.
    pub member: u16,
    /// Bytes of the serialised catalogue.
    pub catalogue_bytes: u32,
    /// CRC32C of the serialised catalogue.
    pub catalogue_crc: u32,
    /// The epoch whose commit last changed the members; 0: it is not known.
    pub members_epoch: u64,
    /// Sizes and membership.
    pub geometry: Geometry,
}

/// Bytes before the list of members, and of an entry.
const FIXED: usize = 80;
const ENTRY: usize = 80;

/// Flag of a member's entry.
const VACANT: u32 = 1 << 0;

impl Superblock {
    /// This drive's entry in the membership list.
    pub fn own(&self) -> Option<&Member> {
        self.geometry.members.get(usize::from(self.member))
    }

    /// The block of copy `copy` on the member that the superblock is meant for, and the unit at which it belongs.
    pub(crate) fn encode(&self, copy: SuperblockCopy) -> Option<(u64, [u8; UNIT])> {
        let own = self.own()?;
        let geometry = &self.geometry;
        let mut out = Writer::default();
        out.u8(geometry.lba_shift);
        out.u8(geometry.chunk_shift);
        out.u16(geometry.members.len() as u16);
        out.u16(self.member);
        out.u16(0);
        out.u32(geometry.catalogue_units);
        out.u32(self.catalogue_bytes);
        out.u64(geometry.first_chunk_unit);
        out.u32(self.catalogue_crc);
        out.u64(self.members_epoch);
        out.zeros(FIXED - out.0.len());
        for member in &geometry.members {
            let end = out.0.len() + ENTRY;
            out.bytes(member.uuid.as_bytes());
            out.u64(member.lba_count);
            out.u32(member.chunk_count);
            out.u32(if member.vacant { VACANT } else { 0 });
            out.bytes(member.serial.as_bytes());
            out.zeros(end - out.0.len());
        }
        let address = geometry.superblock_unit(self.epoch, copy, own);
        let id = BlockId {
            kind: Kind::Superblock,
            address,
            epoch: self.epoch,
            index: 0,
            store: self.store,
            member: own.uuid,
            commit: self.commit,
        };
        Some((address, block::seal(&id, &out.0)))
    }

    /// The superblock in a block that was read from unit `address`, of slot A (0) or B (1). The block may have any
    /// content.
    pub fn decode(unit: &[u8; UNIT], address: u64, slot: u8) -> Result<Self, BlockError> {
        let block = block::open(unit)?;
        if block.kind != Kind::Superblock as u32 {
            return Err(BlockError::Misplaced { field: "kind" });
        }
        if block.address != address {
            return Err(BlockError::Misplaced { field: "address" });
        }
        if block.epoch & 1 != u64::from(slot) {
            return Err(BlockError::Misplaced { field: "epoch" });
        }
        let superblock =
            read(&block).map_err(|Ended| BlockError::Inconsistent { what: "it ends inside a field" })??;
        if superblock.own().filter(|own| !own.vacant).map(|own| own.uuid) != Some(block.member) {
            return Err(BlockError::Inconsistent { what: "its own entry in the membership list is another drive's" });
        }
        Ok(superblock)
    }
}

fn read(block: &block::Block<'_>) -> Result<Result<Superblock, BlockError>, Ended> {
    let inconsistent = |what| Ok(Err(BlockError::Inconsistent { what }));
    let mut input = Reader::new(block.payload);
    let lba_shift = input.u8()?;
    let chunk_shift = input.u8()?;
    let count = input.u16()?;
    let member = input.u16()?;
    input.u16()?;
    let catalogue_units = input.u32()?;
    let catalogue_bytes = input.u32()?;
    let first_chunk_unit = input.u64()?;
    let catalogue_crc = input.u32()?;
    let members_epoch = input.u64()?;
    input.bytes(FIXED - 36)?;
    if !LBA_SHIFTS.contains(&lba_shift) {
        return inconsistent("the LBA size is none from 512 B to 4 KiB");
    }
    if !CHUNK_SHIFTS.contains(&chunk_shift) {
        return inconsistent("the chunk size is none from 1 to 64 MiB");
    }
    if count == 0 || usize::from(count) > MAX_MEMBERS {
        return inconsistent("the number of members is none from 1 to 48");
    }
    let mut members: Vec<Member> = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let uuid = Uuid::from_bytes(input.array()?);
        let lba_count = input.u64()?;
        let chunk_count = input.u32()?;
        let vacant = input.u32()? & VACANT != 0;
        let serial = input.bytes(MAX_SERIAL)?;
        let serial = serial.split(|&byte| byte == 0).next().unwrap_or(serial);
        let Ok(serial) = std::str::from_utf8(serial) else {
            return inconsistent("a serial is no UTF-8");
        };
        if lba_count > u64::MAX >> lba_shift {
            return inconsistent("a member's size passes 2⁶⁴ bytes");
        }
        let units = units(lba_count, 1 << lba_shift);
        if (chunk_count == 0) != vacant
            || chunk_count > ChunkRef::MAX_CHUNKS
            || chunk_count > Geometry::chunks_on(units, first_chunk_unit, chunk_shift)
        {
            return inconsistent("a member's chunks do not fit on it");
        }
        if members.iter().any(|member| member.uuid == uuid) {
            return inconsistent("a drive stands twice in the membership list");
        }
        members.push(Member { uuid, lba_count, chunk_count, serial: serial.to_owned(), vacant });
    }
    let geometry = Geometry { lba_shift, chunk_shift, catalogue_units, first_chunk_unit, members };
    if !catalogue_units.is_multiple_of(METADATA_ALIGNMENT as u32) {
        return inconsistent("its catalogue extents are not aligned");
    }
    if first_chunk_unit < Geometry::first_chunk_unit_for(catalogue_units) {
        return inconsistent("chunks overlap the catalogue");
    }
    if u64::from(catalogue_bytes) > geometry.catalogue_capacity() {
        return inconsistent("the catalogue is larger than its extent");
    }
    let store = block.store;
    let epoch = block.epoch;
    let commit = block.commit;
    Ok(Ok(Superblock { store, epoch, commit, member, catalogue_bytes, catalogue_crc, members_epoch, geometry }))
}
