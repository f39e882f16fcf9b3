//! The folder of a HugeCTR sparse model: `key` (i64), `emb_vector` (f32) and, of localized embeddings, `slot_id` (u64).

use std::path::Path;

use warprow_layout::DType;

use crate::error::{FileError, FileErrorKind};
use crate::extent::Extent;
use crate::file_table::{FileTable, stem};
use crate::found::Found;
use crate::input::Input;
use crate::key_type::KeyType;
use crate::listed::refuse_elsewhere;
use crate::place::KeyPlace;
use crate::read_options::ReadOptions;
use crate::table_shape::shape_of_table;

/// Whether a folder is one.
pub(crate) fn is(folder: &Path) -> bool {
    folder.join("key").is_file() || folder.join("emb_vector").is_file()
}

pub(crate) fn open(folder: &Path, options: &ReadOptions) -> Result<Found, FileError> {
    let keys = beside(folder, "key")?;
    let vectors = beside(folder, "emb_vector")?;
    let rows = whole(&keys, 8, "keys of 8 bytes")?;
    if folder.join("slot_id").exists() {
        let slots = beside(folder, "slot_id")?;
        let count = whole(&slots, 8, "slot numbers of 8 bytes")?;
        if count != rows {
            return Err(disagree(&slots, format!("it has {count} slot numbers, and key has {rows} keys")));
        }
    }
    let dim = dim(&vectors, rows, 4, options)?;
    let (rows, dim) = shape_of_table(rows, dim, DType::F32).map_err(|what| vectors.damaged(what))?;
    let name = folder.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let mut table = FileTable::flat(name.unwrap_or_else(|| stem(folder)), rows, dim, DType::F32, 0);
    table.keys = Some(KeyType::I64);
    table.key_place = KeyPlace::Flat(vec![Extent { input: 1, at: 0, first: 0, rows }]);
    Ok(Found { inputs: vec![vectors, keys], tables: vec![table], ..Found::default() })
}

/// A file of the folder.
pub(crate) fn beside(folder: &Path, name: &str) -> Result<Input, FileError> {
    let path = folder.join(name);
    if !path.exists() {
        let what = format!("{name} is missing");
        return Err(FileError::new(FileErrorKind::Missing, &path, what, "fetch the folder again, with all its files"));
    }
    refuse_elsewhere(folder, &path)?;
    Input::open(&path)
}

/// How many things of `width` bytes a file holds, if it is a whole number.
pub(crate) fn whole(input: &Input, width: u64, what: &str) -> Result<u64, FileError> {
    if !input.len.is_multiple_of(width) {
        let what = format!("its {} bytes are no whole number of {what}", input.len);
        return Err(input.damaged(what).at(input.len - input.len % width));
    }
    Ok(input.len / width)
}

/// Elements in a row of `vectors`, which holds nothing but `rows` of them, of `width` bytes each.
pub(crate) fn dim(vectors: &Input, rows: u64, width: u64, options: &ReadOptions) -> Result<u64, FileError> {
    let elements = whole(vectors, width, &format!("elements of {width} bytes"))?;
    if rows == 0 || !elements.is_multiple_of(rows) {
        return Err(disagree(vectors, format!("its {elements} elements do not make {rows} rows, one for each key")));
    }
    let dim = elements / rows;
    match options.dim {
        Some(stated) if u64::from(stated) != dim => {
            Err(disagree(vectors, format!("its {elements} elements make {rows} rows of {dim}, not of {stated}")))
        }
        _ => Ok(dim),
    }
}

pub(crate) fn disagree(input: &Input, what: impl Into<String>) -> FileError {
    input.error(
        FileErrorKind::Disagree,
        what,
        "fetch the folder again: its files are not of one dump, or one is cut off",
    )
}
