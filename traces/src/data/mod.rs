//! Data sets of models that predict clicks, read as *batches*: for each sample its labels, its dense features, and for each
//! *sparse feature* a list of ids, which a table of embeddings is looked up by.
//!
//! ```
//! use warprow_traces::data::{DataOptions, DataReader, DataSpec};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("train.bin");
//! // Raw: two samples of a label, two dense features, an id of the first feature and two of the second.
//! let word = |sample: u32| [1f32.to_bits(), 0.5f32.to_bits(), 2f32.to_bits(), sample, 10, 20 + sample];
//! std::fs::write(&path, [0, 1].into_iter().flat_map(word).flat_map(u32::to_le_bytes).collect::<Vec<u8>>())?;
//! let spec: DataSpec = format!("raw:{}:labels=1,dense=2,hotness=1/2", path.display()).parse()?;
//! let mut reader = DataReader::open(&spec, &DataOptions::default())?;
//! let batch = reader.next_batch()?.expect("a batch");
//! assert_eq!((batch.samples(), batch.labels(), batch.dense()), (2, &[1.0, 1.0][..], &[0.5, 2.0, 0.5, 2.0][..]));
//! assert_eq!((batch.feature(0), batch.feature(1)), (&[0, 1][..], &[10, 20, 10, 21][..]));
//! // Feature by feature, where the ids of each sample begin: as a look-up of both features takes them.
//! assert_eq!(batch.offsets(), [0, 1, 2, 4, 6]);
//! assert!(reader.next_batch()?.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | `KIND:` | what |
//! |---|---|
//! | `norm` | HugeCTR's Norm: data files, or a file list |
//! | `raw` | HugeCTR's Raw: `labels=`, `dense=`, `slots=` or `hotness=` |
//! | `parquet` | HugeCTR's Parquet, or any other: files, a folder of them, a file list, `_metadata.json` |
//! | `csv` | text with a line of names; lists of ids as `5\|7\|9` |
//! | `npz` | an archive of NumPy's arrays |
//!
//! `docs/data.md` has all settings.

mod batch;
mod convert;
mod csv;
mod files;
mod norm;
mod npz;
mod opened;
mod options;
mod parquet;
mod raw;
mod reader;
mod roles;
mod shape;
mod source;
mod spec;
mod staging;
mod write;

pub use batch::DataBatch;
pub use convert::{ConvertedData, DataProgress, convert};
pub use options::{DataOptions, MAX_AHEAD, MAX_BATCH};
pub use reader::{DataReader, NextBatch, UsedBatches};
pub use shape::{DataFeature, DataShape};
pub(crate) use source::DataSource;
pub use spec::{DataColumns, DataFormat, DataSpec};
pub use staging::MAX_BATCH_IDS;
pub use write::{DataWriteOptions, DataWriter};
