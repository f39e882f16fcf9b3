//! Files that hold rows and nothing else, of a shape that the caller states.

use std::path::Path;

use crate::error::{FileError, FileErrorKind};
use crate::file_table::{FileTable, stem};
use crate::found::Found;
use crate::input::Input;
use crate::read_options::ReadOptions;
use crate::table_shape::shape_of_table;

pub(crate) fn open(path: &Path, options: &ReadOptions) -> Result<Found, FileError> {
    let input = Input::open(path)?;
    let Some(shape) = options.shape else {
        let remedy = "state it: [ROWSx]DIM:TYPE[@OFFSET], such as 1000x64:f32";
        return Err(input.error(FileErrorKind::Unclear, "says nothing of its shape", remedy));
    };
    let disagree =
        |what: String| input.error(FileErrorKind::Disagree, what, "look at the shape that was stated, and at the file");
    let row_bytes = shape.dtype.row_bytes(shape.dim).map(u64::from).filter(|&bytes| bytes > 0);
    let row_bytes = row_bytes.ok_or_else(|| disagree("a row would be empty, or pass 4 GiB".into()))?;
    let data = input.len.checked_sub(shape.at);
    let data =
        data.ok_or_else(|| disagree(format!("it has {} bytes, and rows would begin at {}", input.len, shape.at)))?;
    let rows = shape.rows.unwrap_or(data / row_bytes);
    if rows.checked_mul(row_bytes) != Some(data) {
        let what = match shape.rows {
            Some(rows) => format!("{rows} rows of {row_bytes} bytes are not the {data} bytes that it holds"),
            None => format!("it holds {data} bytes, which is no whole number of rows of {row_bytes} bytes"),
        };
        return Err(disagree(what).at(shape.at));
    }
    let (rows, dim) = shape_of_table(rows, shape.dim.into(), shape.dtype).map_err(disagree)?;
    let table = FileTable::flat(stem(path), rows, dim, shape.dtype, shape.at);
    Ok(Found { inputs: vec![input], tables: vec![table], ..Found::default() })
}
