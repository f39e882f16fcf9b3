//! What lies on the drives: superblocks, catalogue, chunks, generations.
//!
//! A store lies on 1 to 48 drives, each reached through [`Drive`]. [`format()`] makes one, [`open`] opens it as a
//! [`Volume`]. A *generation* is one version of a model: its tables, on chunks of its own, spread over all drives. One
//! atomic commit adds it to the store, and another removes it; a power cut leaves all of it or nothing.
//!
//! ```text
//! let tx = volume.begin(&GenerationSpec::new("ctr", vec![TableSpec::new("user", rows, 128, DType::F32)]))?;
//! let loader = tx.loader(0, source, None)?;            // rows in id order, placed by rank
//! for extent in loader.extents(max_transfer) {         // large, aligned, alternating between drives
//!     loader.fill(&extent, &mut buf)?;                 // into DMA memory
//!     submit_write(extent.drive, extent.lba, &buf);    // by the caller, as many in flight as it likes
//! }
//! let generation = tx.commit()?;                       // Flush, catalogue, Flush, superblocks, Flush
//! let address = generation.row(0, rank);               // drive, LBA, byte
//! ```
//!
//! `docs/layout.md` describes the format byte by byte, with its reasons.
//!
//! This crate knows nothing of processes: the caller has to ensure that only one of them has a store open for writing.

#![forbid(unsafe_code)]

mod block;
pub mod block_scales;
mod catalogue;
mod chunks;
mod codec;
mod commit;
mod compaction;
mod copied_rows;
mod divide;
mod drive;
mod dtype;
mod error;
mod extent;
pub mod float8;
mod format;
mod generation;
mod geometry;
mod inspect;
mod key_spec;
mod keyed;
mod load;
mod log;
mod map;
mod membership;
mod open;
mod placement;
mod probe;
mod ranks;
mod read;
mod removed;
mod repair;
mod rewrite;
mod superblock;
mod table;
mod transaction;
mod units;
mod volume;

pub use block::{BlockError, HEADER, MAGIC, PAYLOAD, UNIT, VERSION};
pub use catalogue::Catalogue;
pub use copied_rows::CopiedRows;
pub use divide::Divider;
pub use drive::{Drive, DriveError, WritesLost};
pub use dtype::DType;
pub use error::{CatalogueError, MissingMember, OpenError, StoreFormatError, VolumeError};
pub use extent::{Extent, Extents};
pub use format::{FormatOptions, format};
pub use generation::{
    ChunkSpread, DEFAULT_STRIPE_UNIT, Generation, GenerationSpec, LogChunk, MAX_LOG_CHUNKS, MAX_TABLES,
};
pub use geometry::{Geometry, MAX_MEMBERS, MAX_SERIAL, Member, SuperblockCopy};
pub use inspect::{
    GenerationInspection, KeysInspection, LogChunkInspection, MemberInspection, StoreInspection, TableInspection,
};
pub use key_spec::KeySpec;
pub use keyed::{RowOrder, TableKeys, TableKeysError};
pub use load::{RowSource, TableWrites};
pub use log::{Log, LogUpdate, LogUsage};
pub use map::{DriveMap, MapKind, MapRun, TableMap, TablePart};
pub use membership::MoveProgress;
pub use open::{MetadataRepair, MetadataRepairKind, OpenedVolume, StoreAccess, StoreState, generations_on, open};
pub use placement::{ChunkRef, Placement, RowAddress, RowPacking};
pub use probe::{SlotState, SuperblockProbe, probe};
pub use ranks::{RankError, RankWidth, Ranks};
pub use read::RowReader;
pub use repair::{RepairProposal, RepairTarget, RepairWrite};
pub use rewrite::{RewritePermit, RewrittenChunks, RowPatch};
pub use superblock::Superblock;
pub use table::{LbaRegion, MAX_NAME, StoredKeys, StoredRanks, Table, TableSpec, row_crc};
pub use transaction::{RebuiltGeneration, Transaction};
pub use volume::Volume;
