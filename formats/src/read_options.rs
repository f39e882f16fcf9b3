//! What the caller has to say about files, because the files do not say it themselves.

use std::str::FromStr;

use warprow_layout::DType;

use crate::format::TableFormat;

/// What files do not say about themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The format; `None`: it is found out from the file.
    pub format: Option<TableFormat>,
    /// The shape of the rows in a file that holds nothing else ([`TableFormat::Raw`](crate::TableFormat::Raw)).
    pub shape: Option<RawShape>,
    /// Elements in a row. Dumps of keys and vectors tell this only by the sizes of their files; a number that is given
    /// must agree with the sizes.
    pub dim: Option<u32>,
    /// The Parquet column of ids; `None`: the only one of whole numbers, if there is one.
    pub key_column: Option<String>,
    /// Whether files that an index lists may be symbolic links out of its folder.
    pub follow_links: bool,
}

/// The shape of the rows in a file that holds nothing else: `[ROWSx]DIM:TYPE[@OFFSET]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawShape {
    /// Rows; `None`: as many as the file holds.
    pub rows: Option<u64>,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Byte of the file at which the rows begin.
    pub at: u64,
}

impl FromStr for RawShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = || -> Option<Self> {
            let (rest, at) = text.split_once('@').map_or((text, Some(0)), |(rest, at)| (rest, at.parse().ok()));
            let (shape, dtype) = rest.split_once(':')?;
            let (rows, dim) = shape.split_once('x').map_or((None, shape), |(rows, dim)| (Some(rows), dim));
            let rows = rows.map(str::parse).transpose().ok()?;
            let dtype = DType::ALL.into_iter().find(|other| other.name() == dtype)?;
            Some(Self { rows, dim: dim.parse().ok()?, dtype, at: at? })
        };
        let types = || DType::ALL.map(DType::name).join(", ");
        shape().ok_or_else(|| {
            format!("{text:?} is no [ROWSx]DIM:TYPE[@OFFSET], such as 1000x64:f32; the types are {}", types())
        })
    }
}
