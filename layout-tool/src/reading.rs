//! How files of rows are read, where they do not tell it themselves.

use clap::Args;
use warprow_formats::{RawShape, ReadOptions, TableFormat};

/// What all commands take that read files of rows.
#[derive(Debug, Clone, Args)]
pub struct ReadingArgs {
    /// The format of files, where it is not what their names and first bytes show
    #[arg(long, value_name = "FORMAT")]
    format: Option<TableFormat>,
    /// The shape of raw rows, without ROWS as many as there are: TYPE is f32, f16, bf16, f8e4m3, f8e5m2, q8, q4, i8 or u8
    #[arg(long, value_name = "[ROWSx]DIM:TYPE[@OFFSET]")]
    shape: Option<RawShape>,
    /// Elements in a row, where files of keys and vectors tell it by their sizes alone, to be checked
    #[arg(long, value_name = "N")]
    dim: Option<u32>,
    /// The column of ids or keys of Parquet files, if several are of whole numbers
    #[arg(long, value_name = "COLUMN")]
    key_column: Option<String>,
}

impl ReadingArgs {
    pub(crate) fn options(&self) -> ReadOptions {
        ReadOptions {
            format: self.format,
            shape: self.shape,
            dim: self.dim,
            key_column: self.key_column.clone(),
            follow_links: false,
        }
    }

    /// Whether nothing is said.
    pub(crate) fn is_empty(&self) -> bool {
        self.format.is_none() && self.shape.is_none() && self.dim.is_none() && self.key_column.is_none()
    }
}
