//! Tables in Parquet files: a column of vectors, all of one length, and perhaps one of ids. Flat columns and lists of numbers;
//! nothing missing, nothing nested.
//!
//! Pages are read here rather than by the library's own reader of columns, which makes a level of 16 bits twice for every value and copies
//! the values twice: `cargo bench -p warprow-formats` compares the two. That reader also bounds no row (a file of some bytes can
//! name one that never ends), so it is used for keys only, behind a reader of pages that counts (`values.rs`).
//!
//! Where all pages of a column are plain, its rows are read from where they stand; else pages are unpacked, and rows come in their order. The
//! library below is not trusted with a hostile file: what it panics at is an error here.

mod columns;
mod footer;
mod header;
mod hybrid;
mod open;
mod page;
mod pages;
mod plain;
mod schema;
mod source;
mod thrift;
mod values;
mod vectors;

pub(crate) use columns::Columns;
pub(crate) use open::open;
pub(crate) use plain::{PlainPages, fill};
pub(crate) use schema::whole;
pub(crate) use source::Source;
pub(crate) use values::Values;
