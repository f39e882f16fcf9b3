//! What the demo and the benchmarks share: skewed batches of ids, id traces from files, tables whose content can be computed,
//! the comparison of an answer with the truth, rivals, files that the page cache has forgotten, and measuring in pairs, sizes and figures in words.
#![forbid(unsafe_code)]

mod batches;
mod cold;
mod content;
mod drift;
mod generated;
mod keys;
mod machine;
mod measure;
mod power_law;
mod published;
mod random;
pub mod rival;
mod shuffle;
mod trace_file;
pub mod units;

pub use batches::{BatchSource, counts};
pub use cold::{FreshPages, NoFreshPage, forget, read_around, settle, warm};
pub use content::{ContentOracle, RowMismatch, RowsAnswer, TableContent, VerifiedRows, verify};
pub use drift::DriftingLaw;
pub use generated::GeneratedData;
pub use keys::{KeyMapping, MappedKeys, RecordedKeys};
pub use machine::{FileSystem, MachineInfo, available_memory, peak_resident_bytes};
pub use measure::{HistogramBar, Latencies, PairedTimes, median};
pub use power_law::PowerLaw;
pub use published::PublishedData;
pub use random::{SeededRandom, mix, mix_all};
pub use shuffle::IdShuffle;
pub use trace_file::{TraceFile, read_slots};
pub use warprow_formats::{NpyHeader, NpyHeaderError};
