//! DynamicEmb dumps: `NAME_emb_keys.rank_R.world_size_W` (i64) and `NAME_emb_values.rank_R.world_size_W` (f32), for each rank.

use std::collections::BTreeMap;
use std::path::Path;

use warprow_layout::DType;

use crate::error::{FileError, FileErrorKind};
use crate::extent::Extent;
use crate::file_table::FileTable;
use crate::found::Found;
use crate::hugectr::{beside, dim, disagree, whole};
use crate::input::Input;
use crate::key_type::KeyType;
use crate::place::{KeyPlace, Place};
use crate::read_options::ReadOptions;
use crate::table_shape::shape_of_table;

/// What stands between a table's name and its rank, in files of keys and of vectors.
const KEYS: &str = "_emb_keys.rank_";
const VALUES: &str = "_emb_values.rank_";

/// Whether a folder is one.
pub(crate) fn is(folder: &Path) -> Result<bool, FileError> {
    Ok(!tables(folder)?.is_empty())
}

/// The number of ranks of each table, by name.
fn tables(folder: &Path) -> Result<BTreeMap<String, u32>, FileError> {
    let cannot = |error| FileError::io(folder, "cannot be listed", error);
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let Ok(file) = entry.file_name().into_string() else { continue };
        let Some((name, ranks)) = parse_name(&file) else { continue };
        if *found.entry(name.to_owned()).or_insert(ranks) != ranks {
            let what = format!("holds shards of table {name:?} from dumps of different world sizes");
            let remedy = "keep the files of one dump in a folder of their own";
            return Err(FileError::new(FileErrorKind::Disagree, &entry.path(), what, remedy));
        }
    }
    Ok(found)
}

/// The table's name and the number of ranks, from the name of a file of keys or vectors.
fn parse_name(file: &str) -> Option<(&str, u32)> {
    let (name, rest) = file.split_once(KEYS).or_else(|| file.split_once(VALUES))?;
    let (rank, ranks) = rest.split_once(".world_size_")?;
    let rank: u32 = rank.parse().ok()?;
    let ranks: u32 = ranks.parse().ok()?;
    (rank < ranks && !name.is_empty()).then_some((name, ranks))
}

pub(crate) fn open(folder: &Path, options: &ReadOptions) -> Result<Found, FileError> {
    let mut found = Found::default();
    let tables = tables(folder)?;
    if tables.is_empty() {
        let remedy = "give the folder with NAME_emb_keys.rank_0.world_size_1 in it";
        return Err(FileError::new(FileErrorKind::Missing, folder, "holds no DynamicEmb dump", remedy));
    }
    for (name, ranks) in tables {
        let mut extents = Vec::new();
        let mut key_extents = Vec::new();
        let mut rows = 0u64;
        let mut width = None;
        for rank in 0..ranks {
            // Each shard is opened only if it is there: a world size of billions costs the first missing one.
            let keys = beside(folder, &format!("{name}{KEYS}{rank}.world_size_{ranks}"))?;
            let vectors = beside(folder, &format!("{name}{VALUES}{rank}.world_size_{ranks}"))?;
            let count = whole(&keys, 8, "keys of 8 bytes")?;
            if count == 0 {
                if vectors.len > 0 {
                    return Err(disagree(&vectors, format!("it has {} bytes, and there are no keys", vectors.len)));
                }
                continue;
            }
            let dim = dim(&vectors, count, 4, options)?;
            if *width.get_or_insert(dim) != dim {
                return Err(other_width(&vectors, dim, width));
            }
            let input = found.inputs.len();
            extents.push(Extent { input, at: 0, first: rows, rows: count });
            key_extents.push(Extent { input: input + 1, at: 0, first: rows, rows: count });
            found.inputs.extend([vectors, keys]);
            rows += count;
        }
        match shape_of_table(rows, width.unwrap_or(0), DType::F32) {
            Ok((rows, dim)) => found.tables.push(FileTable {
                name,
                rows,
                dim,
                dtype: DType::F32,
                keys: Some(KeyType::I64),
                place: Place::Flat(extents),
                key_place: KeyPlace::Flat(key_extents),
            }),
            Err(reason) => found.skipped.push((name, reason)),
        }
    }
    Ok(found)
}

fn other_width(vectors: &Input, dim: u64, width: Option<u64>) -> FileError {
    disagree(vectors, format!("its rows have {dim} elements, those of other ranks {}", width.unwrap_or(0)))
}
