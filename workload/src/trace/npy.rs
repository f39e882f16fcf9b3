//! NumPy's array files, as far as arrays of integers go.

use std::io::Read;

use warprow_formats::{NpyHeader, NpyHeaderError};

use super::error::TraceProblem;
use super::raw::Type;
use super::rest::read_rest;
use crate::keys::Keys;

pub(super) fn read(reader: &mut impl Read, len: u64) -> Result<Keys, TraceProblem> {
    let header = NpyHeader::read(reader).map_err(|error| match error {
        NpyHeaderError::Io(error) => TraceProblem::Io(error),
        NpyHeaderError::Damaged(how) => TraceProblem::NpyHeader(how),
    })?;
    let of = match &*header.descr {
        "<u4" => Type::U32,
        "<u8" => Type::U64,
        "<i4" => Type::I32,
        "<i8" => Type::I64,
        other => return Err(TraceProblem::NpyType(other.to_owned())),
    };
    if !header.is_c_order() {
        return Err(TraceProblem::NpyHeader("the array is in Fortran order: save numpy.ascontiguousarray(ids)"));
    }
    let promised = header.elements().saturating_mul(of.width() as u128);
    let found = len.saturating_sub(header.data_at);
    if promised != u128::from(found) {
        return Err(TraceProblem::NpySize { promised, found });
    }
    Ok(of.decode(&read_rest(reader)?))
}
