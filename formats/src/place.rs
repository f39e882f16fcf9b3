//! Where the rows and the keys of a table stand.

use crate::deflated::Deflated;
use crate::extent::Extent;
use crate::zip::ZipMember;

/// Where rows stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// One after another, in one or several extents, which hold the rows in their order.
    Flat(Vec<Extent>),
    /// One after another, in a stored member of a zip archive, which has a checksum of it.
    Stored(Extent, ZipMember),
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
