//! What the demo and the benchmarks share: skewed batches of ids, id traces from files, tables whose content can be computed,
//! the comparison of an answer with the truth, rivals, files that the page cache has forgotten, and measuring in pairs.
#![forbid(unsafe_code)]

mod batches;
mod cold;
mod content;
mod keys;
mod machine;
mod measure;
mod power_law;
mod random;
pub mod rival;
mod shuffle;
mod trace;

pub use batches::{Batches, counts};
pub use cold::{FreshPages, NoFreshPage, forget, read_around, settle};
pub use content::{Answer, Content, Mismatch, Oracle, Verified, verify};
pub use keys::{Keys, Mapped, Mapping};
pub use machine::{FileSystem, Machine, available_memory, peak_resident_bytes};
pub use measure::{Bar, Latencies, Pairs, median};
pub use power_law::PowerLaw;
pub use random::{Random, mix, mix_all};
pub use shuffle::Shuffle;
pub use trace::{TraceError, TraceFile, TraceProblem};
pub use warprow_formats::{NpyHeader, NpyHeaderError};
