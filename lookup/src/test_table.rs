//! Tables for this package's own tests, which lie on no drive.

use warprow_layout::{DType, LbaRegion, RowPacking, Table};

/// A table of `rows` rows of `dim` f32, of which `hot_rows` are its hint.
pub(crate) fn test_table(rows: u64, dim: u32, hot_rows: u64) -> Table {
    Table {
        name: "t".to_owned(),
        rows,
        dim,
        dtype: DType::F32,
        hot_rows,
        default_row: None,
        rows_region: LbaRegion { first_lba: 0, lbas: 0 },
        ranks: None,
        keys: None,
        crc_region: None,
        packing: RowPacking::new(dim * 4, 512, 64).unwrap(),
    }
}
