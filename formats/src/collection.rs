//! HugeCTR embedding-collection dumps: `embedding_collection_<i>/meta_data`, and `key<id>` and `weight<id>` for each table.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use warprow_layout::DType;

use crate::error::{FileError, FileErrorKind};
use crate::extent::Extent;
use crate::file_table::FileTable;
use crate::found::Found;
use crate::hugectr::{beside, disagree};
use crate::input::{Input, i32_at, u64_at};
use crate::key_type::KeyType;
use crate::listed::refuse_elsewhere;
use crate::place::{KeyPlace, Place};
use crate::table_shape::shape_of_table;

/// The file that says which tables there are.
const META: &str = "meta_data";
/// What folders of collections are called, but for their number.
const FOLDER: &str = "embedding_collection_";
/// Bytes before keys and before vectors.
const HEAD: u64 = 128;
/// The longest `meta_data` that is read.
const MAX_META: u64 = 64 << 20;

/// Whether a folder is a collection, or has folders that are.
pub(crate) fn is(folder: &Path) -> Result<bool, FileError> {
    Ok(folder.join(META).is_file() || !collections(folder)?.is_empty())
}

/// The collections in a folder, by name.
fn collections(folder: &Path) -> Result<Vec<(String, PathBuf)>, FileError> {
    let cannot = |error| FileError::io(folder, "cannot be listed", error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let number = name.strip_prefix(FOLDER).is_some_and(|rest| rest.parse::<u32>().is_ok());
        if number && entry.path().is_dir() {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn open(folder: &Path) -> Result<Found, FileError> {
    let mut found = Found::default();
    if folder.join(META).is_file() {
        collection(folder, "", &mut found)?;
        return Ok(found);
    }
    let collections = collections(folder)?;
    if collections.is_empty() {
        let remedy = "give the folder with meta_data in it, or the one above";
        return Err(FileError::new(FileErrorKind::Missing, folder, "holds no embedding_collection_0", remedy));
    }
    for (name, path) in &collections {
        refuse_elsewhere(folder, path)?;
        collection(path, &format!("{name}."), &mut found)?;
    }
    Ok(found)
}

/// What `meta_data` says.
#[derive(Debug, PartialEq, Eq)]
pub struct CollectionMeta {
    /// The type of all keys.
    pub keys: KeyType,
    /// The type of all vectors.
    pub values: DType,
    /// Id, rows and elements in a row of each table.
    pub tables: Vec<(i32, u64, i32)>,
}

/// Reads `meta_data`: five i32: tables, key type, value type, one that is not used, longest row; then the tables' ids (i32),
/// rows (u64) and widths (i32). Some writers leave the fifth number out: the length tells.
pub fn parse_collection_meta(bytes: &[u8]) -> Result<CollectionMeta, String> {
    let number = |index: usize| i32_at(bytes, index * 4).ok_or("it is cut off");
    let count = number(0)?;
    let tables = usize::try_from(count).map_err(|_| format!("it counts {count} tables"))?;
    let keys = match number(1)? {
        0 => KeyType::U32,
        1 => KeyType::I64,
        other => return Err(format!("its key type is {other}, neither 0 (u32) nor 1 (i64)")),
    };
    let values = match number(2)? {
        0 => DType::F32,
        1 => DType::F16,
        other => return Err(format!("its value type is {other}, neither 0 (f32) nor 1 (f16)")),
    };
    let head = [20, 16]
        .into_iter()
        .find(|head| tables.checked_mul(16).and_then(|number| number.checked_add(*head)) == Some(bytes.len()));
    let Some(head) = head else {
        return Err(format!("its {} bytes are not what {tables} tables take", bytes.len()));
    };
    let table = |index: usize| {
        let id = i32_at(bytes, head + index * 4)?;
        let rows = u64_at(bytes, head + tables * 4 + index * 8)?;
        let dim = i32_at(bytes, head + tables * 12 + index * 4)?;
        Some((id, rows, dim))
    };
    let listed: Option<Vec<_>> = (0..tables).map(table).collect();
    let listed = listed.ok_or("it is cut off")?;
    let mut ids = HashSet::new();
    match listed.iter().find(|(id, ..)| *id < 0 || !ids.insert(*id)) {
        Some((id, ..)) if *id < 0 => Err(format!("it lists a table of the id {id}")),
        Some((id, ..)) => Err(format!("it lists table {id} twice")),
        None => Ok(CollectionMeta { keys, values, tables: listed }),
    }
}

fn collection(folder: &Path, prefix: &str, found: &mut Found) -> Result<(), FileError> {
    let meta = beside(folder, META)?;
    let CollectionMeta { keys: key_type, values, tables } =
        parse_collection_meta(&meta.whole(MAX_META)?).map_err(|what| meta.damaged(what))?;
    for (id, rows, dim) in tables {
        let name = format!("{prefix}table{id}");
        let shape = u64::try_from(dim).map_err(|_| meta.damaged(format!("table {id} has rows of {dim} elements")))?;
        let (rows, dim) = match shape_of_table(rows, shape, values) {
            Ok(shape) => shape,
            Err(reason) => {
                found.skipped.push((name, reason));
                continue;
            }
        };
        let keys = part(folder, "key", 1, id, rows, key_type.size())?;
        let row_bytes = values.row_bytes(dim).map_or(0, u64::from);
        let vectors = part(folder, "weight", 2, id, rows, row_bytes)?;
        let input = found.inputs.len();
        found.inputs.extend([vectors, keys]);
        found.tables.push(FileTable {
            name,
            rows,
            dim,
            dtype: values,
            keys: Some(key_type),
            place: Place::Flat(vec![Extent { input, at: HEAD, first: 0, rows }]),
            key_place: KeyPlace::Flat(vec![Extent { input: input + 1, at: HEAD, first: 0, rows }]),
        });
    }
    Ok(())
}

/// A file of keys or vectors: a head that says which, then `rows` things of `width` bytes.
fn part(folder: &Path, name: &str, kind: i32, id: i32, rows: u64, width: u64) -> Result<Input, FileError> {
    let input = beside(folder, &format!("{name}{id}"))?;
    if input.len < HEAD {
        return Err(input.damaged("it is cut off in its head of 128 bytes").at(input.len));
    }
    let head: [u8; 8] = input.array(0)?;
    let stated_kind = i32_at(&head, 0).unwrap_or_default();
    let stated_id = i32_at(&head, 4).unwrap_or_default();
    if stated_kind != kind {
        return Err(input.damaged(format!("its head says that it is of kind {stated_kind}, not {kind}")).at(0));
    }
    if stated_id != id {
        return Err(disagree(&input, format!("its head says that it is of table {stated_id}, not {id}")).at(4));
    }
    let expected = rows.checked_mul(width).and_then(|bytes| bytes.checked_add(HEAD));
    if expected != Some(input.len) {
        let what = format!(
            "meta_data says that table {id} has {rows} rows, of {width} bytes each here; after its head there are {} bytes",
            input.len - HEAD
        );
        return Err(disagree(&input, what));
    }
    Ok(input)
}
