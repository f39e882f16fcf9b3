//! Data sets that are written, in every format that is read.

mod batches;
mod csv;
mod norm;
mod npz;
mod options;
mod parquet;
mod raw;
mod writer;

pub use options::DataWriteOptions;
pub use writer::DataWriter;
