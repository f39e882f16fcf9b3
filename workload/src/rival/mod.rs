//! Rivals: the same look-ups from the same files by other means.
//!
//! *Per id* they read one row for each id, as programs do that know nothing better. With *equal means* they have everything
//! that Warprow's host executor has: the same deduplication, the same rows in DRAM, the same order and merging of
//! reads (its own functions), and the same depth. They read what an emulated drive keeps in its file; they know where
//! each row lies and the rank of each id.
//!
//! Two rivals have a [`PlainFile`] of the same rows in the order of ids and map it: [`MappedPlainFile`] in Rust, and [`NumpyMemmap`].

mod buffers;
mod engine;
mod equal;
mod error;
mod interface;
mod numpy;
mod per_id;
mod plain;
mod target;
mod threads;

pub use engine::{MappedReads, PreadReads, UringReads};
pub use equal::EqualMeansRival;
pub use error::RivalError;
pub use interface::Rival;
pub use numpy::{NumpyMemmap, NumpyProcess};
pub use per_id::PerIdRival;
pub use plain::{MappedPlainFile, PlainFile};
pub use target::{PageCaching, RivalTable};
pub use threads::ThreadedRival;
