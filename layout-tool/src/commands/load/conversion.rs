//! Rows of another type than the file's: `--to`.

use warprow_formats::{ConversionLoss, ConvertedRows, FileRows};
use warprow_layout::{DType, TableSpec};

use crate::failure::Failure;
use crate::select::Chosen;

/// The type that rows are converted to, if they are.
pub(super) fn converted<'a>(
    rows: &'a FileRows<'a>,
    chosen: &Chosen<'_>,
    spec: &TableSpec,
) -> Result<Option<ConvertedRows<'a>>, Failure> {
    let from = chosen.table.dtype;
    let to = spec.dtype;
    if from == to {
        return Ok(None);
    }
    let refuse = || Failure::usage("--to", format!("rows of {from} cannot become {to}")).remedy("leave --to out");
    ConvertedRows::new(rows, spec.dim, from, to).map(Some).ok_or_else(refuse)
}

/// What conversion has lost of a table's numbers.
pub(super) struct Loss {
    pub(super) table: String,
    pub(super) from: DType,
    pub(super) to: DType,
    pub(super) lost: ConversionLoss,
}
