//! Files of embedding tables. The files of other programs are read row by row, never whole, and nothing that a file
//! says about itself is relied on before it was checked.
//!
//! [`TableFile::open`] finds the format and the tables; [`TableFile::rows`] gives a table's rows as a
//! [`RowSource`](warprow_layout::RowSource), [`TableFile::keys`] gives the key of each row, and [`TableFile::order`]
//! the id of each row, where keys are ids. [`ConvertedRows`] converts rows to another type of elements while they are
//! read, and tells how much precision that costs. [`TableWriter`] writes tables.
//!
//! ```
//! use warprow_formats::{TableFile, TableWriter};
//! use warprow_layout::DType;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("t.safetensors");
//! let writer = TableWriter::create(&path, false, "emb", 3, 2, DType::U8)?;
//! writer.write(0, &[1, 2, 3, 4, 5, 6])?;
//! writer.finish()?;                                  // the file appears now, whole
//!
//! let file = TableFile::open(&path)?;
//! let table = &file.tables[0];
//! assert_eq!((&*table.name, table.rows, table.dim), ("emb", 3, 2));
//! let mut row = [0; 2];
//! file.rows(table).fill(2, &mut row)?;
//! assert_eq!(row, [5, 6]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod ahead;
mod any_order;
mod arrays;
mod caught;
mod collection;
mod convert;
mod deflated;
mod detect;
mod dynamicemb;
mod error;
mod extent;
mod file_rows;
mod file_stream;
mod file_table;
#[cfg(feature = "parquet")]
mod floats;
mod format;
mod found;
mod hugectr;
mod input;
mod input_reader;
#[cfg(feature = "parquet")]
mod integers;
mod joined;
mod key_array;
mod key_type;
mod keys;
mod listed;
mod locked_file;
mod new_file;
pub mod npy;
mod npy_header;
mod npz;
mod open;
#[cfg(feature = "parquet")]
mod ordered_workers;
#[cfg(feature = "parquet")]
mod parquet;
mod place;
mod raw;
mod read_options;
pub mod safetensors;
mod scaled;
mod scaled_place;
mod scales;
mod seen;
mod sharded;
mod streams;
mod table_file;
mod table_shape;
mod write;
mod write_all;
mod write_arrays;
mod zip;

pub use any_order::RowsInAnyOrder;
pub use arrays::{ArchivedArray, ArrayArchive, ArrayReader};
pub use caught::panic_is_caught;
pub use collection::{CollectionMeta, parse_collection_meta};
pub use convert::{ConversionLoss, ConvertedRows, widen};
pub use error::{FileError, FileErrorKind};
pub use file_rows::FileRows;
pub use file_stream::FileStream;
pub use file_table::FileTable;
#[cfg(feature = "parquet")]
pub use floats::{FloatColumn, FloatReader};
pub use format::TableFormat;
pub use input::{open_regular, refuse_special};
#[cfg(feature = "parquet")]
pub use integers::{IntegerColumn, IntegerFile, IntegerReader};
pub use joined::JoinError;
pub use key_array::KeyArray;
pub use key_type::KeyType;
pub use keys::{KeyOrder, KeyReader};
pub use locked_file::LockedFile;
pub use new_file::NewFile;
pub use npy_header::{NpyHeader, NpyHeaderError};
pub use open::ChooseTensors;
pub use read_options::{RawShape, ReadOptions};
pub use scales::{ScaleError, ScaleTensors};
pub use sharded::parse_index;
pub use table_file::TableFile;
pub use table_shape::tensor_types;
pub use write::{TableWriter, directory, followed};
pub use write_all::{NewTable, TablesWriter};
pub use write_arrays::ArrayArchiveWriter;
pub use zip::{ZipMember, ZipPacking, members};
