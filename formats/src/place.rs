//! Where the rows and the keys of a table stand.

use crate::deflated::Deflated;
use std::ops::Range;

use crate::extent::{Extent, behind, cut};
use crate::scaled_place::Scaled;
use crate::zip::ZipMember;

/// Where rows stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// One after another, in one or several extents, which hold the rows in their order.
    Flat(Vec<Extent>),
    /// One after another, in a stored member of a zip archive, which has a checksum of it.
    Stored(Extent, ZipMember),
    /// Codes one after another, and their scales in other tensors.
    Scaled(Scaled),
    /// Compressed: in a deflated member of a zip archive.
    Deflated(Deflated),
    /// In column chunks.
    #[cfg(feature = "parquet")]
    Parquet(crate::parquet::Columns),
}

/// Where keys stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyPlace {
    /// There are none, or they are in a column beside the rows.
    Nowhere,
    /// One after another, in extents that hold them in their order.
    Flat(Vec<Extent>),
    /// In a deflated member of a zip archive.
    Deflated(Deflated),
}

impl Place {
    /// Whether rows, or the parts of rows, stand one after another in extents.
    pub(crate) fn is_flat(&self) -> bool {
        matches!(self, Self::Flat(_) | Self::Scaled(_))
    }

    /// With the rows of `other` behind `rows` of its own; `None`: they cannot stand in one place.
    pub(crate) fn append(&mut self, other: &Self, rows: u64) -> Option<()> {
        match (self, other) {
            (Self::Flat(own), Self::Flat(theirs)) => own.extend(behind(theirs, rows)),
            (Self::Scaled(own), Self::Scaled(theirs)) => own.append(theirs, rows)?,
            _ => return None,
        }
        Some(())
    }

    /// Of the rows `rows` alone, of `row_bytes` each; `None`: they stand in no extents.
    pub(crate) fn cut(&self, rows: &Range<u64>, row_bytes: usize) -> Option<Self> {
        Some(match self {
            Self::Flat(extents) => Self::Flat(cut(extents, rows, row_bytes)),
            Self::Scaled(scaled) => Self::Scaled(scaled.cut(rows)?),
            _ => return None,
        })
    }
}
