//! The 4 KiB block in which all metadata lies: a header that says what it is, whose it is and where it belongs, and a
//! checksum over everything.

use uuid::Uuid;

use crate::codec::{Ended, Reader, Writer};

/// Bytes of a metadata block, and the unit of metadata addresses.
pub const UNIT: usize = 4096;

/// Bytes of a block's header.
pub const HEADER: usize = 96;

/// Bytes left for the payload.
pub const PAYLOAD: usize = UNIT - HEADER;

/// First eight bytes of every metadata block. The first is no ASCII, so that no text file begins like it.
pub const MAGIC: [u8; 8] = *b"\x89WARPROW";

/// The format written by this version: major, minor.
///
/// A newer major version is refused. Version 1.x, which knows no logs and no standby generations, and version 2.x, which
/// knows no removed keys, are read, and the first commit makes them this version. A newer minor is read: it may only add
/// fields in reserved space and at the end of records, such that a writer that drops them does no harm.
pub const VERSION: (u16, u16) = (3, 0);

/// Why a metadata block cannot be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The block does not begin with the magic.
    #[error("no Warprow block")]
    NoMagic,
    /// The checksum does not match: the block is torn or rotten.
    #[error("checksum mismatch: torn or damaged")]
    Checksum,
    /// The block is intact, and of a format that this version does not know.
    #[error("format version {major}.{minor}, this is {}.{}", VERSION.0, VERSION.1)]
    Version {
        /// The block's major version.
        major: u16,
        /// The block's minor version.
        minor: u16,
    },
    /// The block's payload would pass its end.
    #[error("payload of {length} bytes")]
    Length {
        /// Bytes that the header says the payload has.
        length: u32,
    },
    /// The block is intact, but another one than the one that belongs there.
    #[error("a block of another {field}")]
    Misplaced {
        /// Which header field differs.
        field: &'static str,
    },
    /// The block is intact, and contradicts itself.
    #[error("inconsistent: {what}")]
    Inconsistent {
        /// Where the contradiction is.
        what: &'static str,
    },
    /// The drive could not read the block.
    #[error("the drive could not read it")]
    Unreadable,
}

/// What a block belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Superblock = 1,
    Catalogue = 2,
    Log = 3,
}

/// Who and where: what a block's header must say for it to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockId {
    pub kind: Kind,
    /// Unit on this drive.
    pub address: u64,
    pub epoch: u64,
    /// Position in its structure.
    pub index: u32,
    pub store: Uuid,
    pub member: Uuid,
    /// The commit that wrote the block. It tells two attempts at one epoch apart.
    pub commit: Uuid,
}

/// A block whose magic, checksum and version are right.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    pub kind: u32,
    pub address: u64,
    pub epoch: u64,
    pub index: u32,
    pub store: Uuid,
    pub member: Uuid,
    pub commit: Uuid,
    pub payload: &'a [u8],
}

/// Writes the block at `unit`; `payload` has at most [`PAYLOAD`] bytes.
pub(crate) fn seal(id: &BlockId, payload: &[u8]) -> [u8; UNIT] {
    let mut head = Writer::default();
    head.u16(VERSION.0);
    head.u16(VERSION.1);
    head.u32(id.kind as u32);
    head.u32(payload.len() as u32);
    head.u64(id.address);
    head.u64(id.epoch);
    head.u32(id.index);
    head.u32(0);
    head.bytes(id.store.as_bytes());
    head.bytes(id.member.as_bytes());
    head.bytes(id.commit.as_bytes());
    let mut unit = [0; UNIT];
    unit[..8].copy_from_slice(&MAGIC);
    unit[12..12 + head.0.len()].copy_from_slice(&head.0);
    unit[HEADER..HEADER + payload.len()].copy_from_slice(payload);
    let crc = crc32c::crc32c(&unit[12..]);
    unit[8..12].copy_from_slice(&crc.to_le_bytes());
    unit
}

/// The block in `unit`, once magic, checksum and version have been checked, in this order: where they lie never changes.
pub(crate) fn open(unit: &[u8; UNIT]) -> Result<Block<'_>, BlockError> {
    let mut head = Reader::new(unit);
    read(&mut head, unit).unwrap_or(Err(BlockError::NoMagic))
}

/// As [`open`], and the block is the one that belongs there.
pub(crate) fn open_expecting<'a>(unit: &'a [u8; UNIT], id: &BlockId) -> Result<&'a [u8], BlockError> {
    let block = open(unit)?;
    let wrong = |field| Err(BlockError::Misplaced { field });
    match () {
        () if block.kind != id.kind as u32 => wrong("kind"),
        () if block.address != id.address => wrong("address"),
        () if block.epoch != id.epoch => wrong("epoch"),
        () if block.index != id.index => wrong("index"),
        () if block.store != id.store => wrong("store"),
        () if block.member != id.member => wrong("member"),
        () if block.commit != id.commit => wrong("commit"),
        () => Ok(block.payload),
    }
}

/// Whether the header in `unit` is that of the block `id`, its checksum apart: it was written there, and maybe torn.
pub(crate) fn claims_to_be(unit: &[u8; UNIT], id: &BlockId) -> bool {
    let mine = seal(id, &[]);
    let same = |range: std::ops::Range<usize>| unit.get(range.clone()) == mine.get(range);
    // Magic; kind; address to commit.
    same(0..8) && same(16..20) && same(24..HEADER)
}

fn read<'a>(head: &mut Reader<'a>, unit: &[u8]) -> Result<Result<Block<'a>, BlockError>, Ended> {
    if head.array()? != MAGIC {
        return Ok(Err(BlockError::NoMagic));
    }
    let crc = head.u32()?;
    if crc32c::crc32c(unit.get(12..).ok_or(Ended)?) != crc {
        return Ok(Err(BlockError::Checksum));
    }
    let major = head.u16()?;
    let minor = head.u16()?;
    if !(1..=VERSION.0).contains(&major) {
        return Ok(Err(BlockError::Version { major, minor }));
    }
    let kind = head.u32()?;
    let length = head.u32()?;
    let address = head.u64()?;
    let epoch = head.u64()?;
    let index = head.u32()?;
    head.u32()?;
    let mut uuid = || head.array().map(Uuid::from_bytes);
    let store = uuid()?;
    let member = uuid()?;
    let commit = uuid()?;
    let payload = head.bytes((length as usize).min(PAYLOAD))?;
    if length as usize > PAYLOAD {
        return Ok(Err(BlockError::Length { length }));
    }
    Ok(Ok(Block { kind, address, epoch, index, store, member, commit, payload }))
}
