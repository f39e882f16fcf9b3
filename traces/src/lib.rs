//! Recorded look-ups, read as a stream: for each *sample* (a query, a line of a data set) the keys that it looks up in each
//! *slot* (a feature, a table). What others write is never believed before it was checked, and memory is bounded whatever
//! a file says.
//!
//! ```
//! use warprow_traces::{TraceBlock, Trace, TraceSpec};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("clicks.csv");
//! std::fs::write(&path, "query,user,item\nq1,7,100\nq1,7,101\nq2,8,100\n")?;
//! // Two columns are slots; lines of one query are one sample.
//! let spec: TraceSpec = format!("csv:{}:user,item,query=query", path.display()).parse()?;
//! let mut trace = Trace::open(&spec)?;
//! let mut keys = vec![Vec::new(); trace.slots().len()];
//! let mut block = TraceBlock::default();
//! while trace.next_block(&mut block)? {          // whole samples, about 65,536 keys at a time
//!     for sample in block.samples() {
//!         for (slot, of_slot) in sample.slots().enumerate() {
//!             keys[slot].push(of_slot.to_vec());
//!         }
//!     }
//! }
//! assert_eq!(keys[1], [vec![100, 101], vec![100]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | `KIND:` | what | samples |
//! |---|---|---|
//! | `ids` | `*.u32`, `*.u64`, `*.i32`, `*.i64`, or any file with `keys=`: bare integers; a HugeCTR keyset | one key each, or `ids=N` |
//! | `npy` | `*.npy`: an array of `<i4`, `<i8`, `<u4`, `<u8` | its rows; of a list one key each, or `ids=N` |
//! | `npz` | `*.npz`: an archive of arrays of integers, `[samples]`, `[samples, n]`, or `[ids]` beside `NAME.offsets` | rows |
//! | `csv` | `*.csv`, `*.txt`, `*.tsv`: text with a header line; a slot for each column named | lines, or lines alike in `query=COLUMN` |
//! | `norm` | a HugeCTR file list of Norm data files, or one of these; `keys=u32` (default) or `i64` | its samples |
//! | `raw` | HugeCTR Raw: `labels=`, `dense=`, `slots=` or `hotness=1/3/..`, `keys=u32` (default) or `i64` | its samples |
//! | `parquet` | `*.parquet`, a folder of them, a file list, `_metadata.json`; columns of integers or of lists of them | rows |
//! | `tokens` | token ids of text: `*.npy`, or bare integers (`u32` if nothing else is said); `hash=engram-1`, `engram-14` or `ple`, `map=FILE`, `end=TOKEN` | tokens, each with the rows of its n-grams |
//!
//! `sizes=A/B/..` (HugeCTR's `slot_size_array`) adds to the keys of each slot the sizes of those before it.
//!
//! [`data`] reads whole data sets: labels and dense features too, as batches.
#![forbid(unsafe_code)]

mod block;
mod csv;
pub mod data;
mod detect;
mod fixed;
mod list;
mod norm;
mod npy;
mod npz;
mod parquet;
mod sample_source;
mod scores;
mod slot;
mod spec;
mod stream;
mod tokens;
mod trace;

pub use block::{MAX_SAMPLE_KEYS, Sample, TraceBlock};
pub use scores::KeyScores;
pub use slot::TraceSlot;
pub use spec::{NgramSpec, QueryBy, TraceFormat, TraceSpec, TraceSpecError};
pub use trace::Trace;
pub use warprow_formats::{FileError, FileErrorKind, KeyType};
