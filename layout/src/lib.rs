//! What lies on the drives: superblocks, catalogue, chunks, generations.
//!
//! A store lies on 1 to 48 drives, each reached through [`Drive`]. [`format()`] makes one, [`open`] opens it as a [`Volume`].
//! A *generation* is one version of a model: its tables, on chunks of its own, spread over all drives. It comes with one
//! atomic commit and goes with another; a power cut leaves all of it or nothing.
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
//! The format, byte by byte, with its reasons: `docs/layout.md`.
//!
//! This crate knows nothing of processes: that only one of them has a store open for writing is for the caller to ensure.

#![forbid(unsafe_code)]

mod block;
mod catalogue;
mod chunks;
mod codec;
mod commit;
mod compaction;
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
pub use divide::Divider;
pub use drive::{Drive, DriveError, WritesLost};
pub use dtype::DType;
pub use error::{CatalogueError, FormatError, Missing, OpenError, VolumeError};
pub use extent::{Extent, Extents};
pub use format::{FormatOptions, format};
pub use generation::{DEFAULT_STRIPE_UNIT, Generation, GenerationSpec, LogChunk, MAX_LOG_CHUNKS, MAX_TABLES, Span};
pub use geometry::{Copy, Geometry, MAX_MEMBERS, MAX_SERIAL, Member};
pub use inspect::{
    GenerationInspection, Inspection, KeysInspection, LogChunkInspection, MemberInspection, TableInspection,
};
pub use key_spec::KeySpec;
pub use keyed::{Keyed, KeyedError, RowOrder};
pub use load::{Loader, RowSource};
pub use log::{Log, LogUsage, Update};
pub use map::{DriveMap, MapKind, MapRun, TableMap, TablePart};
pub use membership::Progress;
pub use open::{Access, Opened, Repair, RepairKind, State, generations_on, open};
pub use placement::{ChunkRef, Placement, RowAddress, RowPacking};
pub use probe::{Probe, SlotState, probe};
pub use ranks::{RankError, RankWidth, Ranks};
pub use read::RowReader;
pub use repair::{Mend, MendWhat, RepairPlan};
pub use rewrite::{Patch, Rewriting, Rewritten};
pub use superblock::Superblock;
pub use table::{MAX_NAME, Region, StoredKeys, StoredRanks, Table, TableSpec, row_crc};
pub use transaction::{Rebuilt, Transaction};
pub use volume::Volume;
