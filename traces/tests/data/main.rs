//! Data sets of every format: batches have what was written, and what lies about itself is refused by name.

mod bad;
mod build;
mod read;
mod write;
