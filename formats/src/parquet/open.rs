//! The tables of a Parquet file, found by its footer.

use std::path::Path;

use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;
use warprow_layout::DType;

use super::columns::Columns;
use super::plain::Plain;
use super::schema::{Column, kind_of, name_of};
use super::source::Source;
use crate::error::{FileError, FileErrorKind};
use crate::file_table::{FileTable, stem};
use crate::found::Found;
use crate::input::Input;
use crate::key_type::KeyType;
use crate::place::{KeyPlace, Place};
use crate::read_options::ReadOptions;
use crate::table_shape::shape_of_table;

/// Elements that a vector may have here: whole rows are in memory.
const MAX_DIM: u64 = 1 << 20;

/// A column by its number: its name, and what it may be here, or why it is nothing.
type Named = (String, Result<Column, &'static str>);

/// The column that has the ids.
struct KeyColumn {
    index: usize,
    name: String,
    width: KeyType,
}

pub(crate) fn open(path: &Path, options: &ReadOptions) -> Result<Found, FileError> {
    let input = Input::open(path)?;
    let source = Source::open(&input)?;
    let metadata = source.metadata.clone();
    let schema = metadata.file_metadata().schema_descr();
    let columns: Vec<Named> =
        schema.columns().iter().map(|column| (name_of(column), kind_of(column, schema.root_schema()))).collect();
    let keys = key_column(&input, &columns, options.key_column.as_deref())?;
    let rows = u64::try_from(metadata.file_metadata().num_rows())
        .map_err(|_| input.damaged("it has a negative number of rows"))?;
    let vectors = columns.iter().filter(|(_, kind)| matches!(kind, Ok(Column::Vector(_)))).count();
    let mut found = Found::default();
    for (index, (name, kind)) in columns.iter().enumerate() {
        let dtype = match kind {
            Ok(Column::Vector(dtype)) => *dtype,
            Ok(Column::Key(_)) => continue,
            Err(reason) => {
                found.skipped.push((name.clone(), (*reason).to_owned()));
                continue;
            }
        };
        let name = if vectors == 1 { stem(path) } else { name.clone() };
        if rows == 0 {
            found.empty.push(name.clone());
            found.skipped.push((name, "it has no rows".to_owned()));
            continue;
        }
        match shape(&metadata, (index, &name, dtype), keys.as_ref(), rows) {
            Ok((rows, dim)) => found.tables.push(FileTable {
                name,
                rows,
                dim,
                dtype,
                keys: keys.as_ref().map(|keys| keys.width),
                place: Place::Parquet(Columns {
                    source: source.clone(),
                    vectors: index,
                    keys: keys.as_ref().map(|keys| keys.index),
                    plain: Plain::of(&source, index),
                }),
                key_place: KeyPlace::Nowhere,
            }),
            Err(reason) => found.skipped.push((name, reason)),
        }
    }
    if let Some((_, twice)) = found
        .tables
        .iter()
        .enumerate()
        .find(|(at, it)| found.tables.iter().take(*at).any(|other| other.name == it.name))
    {
        let what = format!("it has several columns of vectors called {:?}", twice.name);
        return Err(input.error(FileErrorKind::Unclear, what, "give the columns names of their own"));
    }
    found.inputs.push(input);
    Ok(found)
}

/// The column of ids: the one that is `wanted`, or else the only one of whole numbers, if there is any.
fn key_column(input: &Input, columns: &[Named], wanted: Option<&str>) -> Result<Option<KeyColumn>, FileError> {
    let mut keys = columns.iter().enumerate().filter_map(|(index, (name, kind))| match kind {
        Ok(Column::Key(width)) => Some(KeyColumn { index, name: name.clone(), width: *width }),
        _ => None,
    });
    let Some(wanted) = wanted else {
        let first = keys.next();
        let others = keys.next();
        if let (Some(one), Some(other)) = (&first, others) {
            let what = format!("it has several columns of whole numbers: {}, {}", one.name, other.name);
            return Err(input.error(FileErrorKind::Unclear, what, "say which has the ids"));
        }
        return Ok(first);
    };
    let mut keys = keys.filter(|keys| keys.name == wanted);
    let Some(found) = keys.next() else {
        let all: Vec<&str> = columns.iter().map(|(name, _)| &**name).collect();
        let what = format!("it has no column {wanted:?} of whole numbers; its columns are {}", all.join(", "));
        return Err(input.error(FileErrorKind::Unsupported, what, "name the column that has the ids"));
    };
    if keys.next().is_some() {
        let what = format!("it has several columns {wanted:?} of whole numbers");
        return Err(input.error(FileErrorKind::Unclear, what, "give the columns names of their own"));
    }
    Ok(Some(found))
}

/// Rows and elements of a column of vectors of `rows` rows, or why it is no table.
fn shape(
    metadata: &ParquetMetaData,
    (index, name, dtype): (usize, &str, DType),
    keys: Option<&KeyColumn>,
    rows: u64,
) -> Result<(u64, u32), String> {
    let groups = metadata.row_groups().iter();
    let values = groups.map(|group| group.columns().get(index).map_or(0, |column| column.num_values()));
    let values = values.map(u64::try_from).try_fold(0u64, |all, n| all.checked_add(n.ok()?));
    let (rows, dim) = match values.filter(|values| values.is_multiple_of(rows)).map(|values| values / rows) {
        Some(MAX_DIM..) => return Err(format!("its vectors have {MAX_DIM} elements or more")),
        Some(dim) => shape_of_table(rows, dim, dtype)?,
        None => return Err(format!("its {rows} vectors are not all of one length")),
    };
    unpackable(metadata, index, name)?;
    if let Some(keys) = keys {
        unpackable(metadata, keys.index, &keys.name)?;
    }
    groups_agree(metadata, (index, dim.into()), keys.map(|keys| keys.index))?;
    Ok((rows, dim))
}

/// Whether what a column is compressed with can be unpacked.
fn unpackable(metadata: &ParquetMetaData, column: usize, name: &str) -> Result<(), String> {
    let codecs = metadata.row_groups().iter().filter_map(|group| Some(group.columns().get(column)?.compression()));
    let unread = codecs.into_iter().find_map(|codec| match codec {
        Compression::BROTLI(_) => Some("brotli"),
        Compression::LZO => Some("LZO"),
        _ => None,
    });
    unread.map_or(Ok(()), |codec| {
        Err(format!("its column {name} is compressed with {codec}, which is not read: write it again with zstd, lz4, snappy, gzip or none"))
    })
}

/// Each group of rows has a vector of `dim` elements and an id for each of its rows: else those behind it would have others'. (A chunk whose pages have
/// less than it says is found where it is read.)
fn groups_agree(metadata: &ParquetMetaData, (vectors, dim): (usize, u64), keys: Option<usize>) -> Result<(), String> {
    for (nth, group) in metadata.row_groups().iter().enumerate() {
        let has = |column: usize| group.columns().get(column).and_then(|data| u64::try_from(data.num_values()).ok());
        let rows = u64::try_from(group.num_rows()).ok();
        let elements = rows.and_then(|rows| rows.checked_mul(dim));
        if rows.is_none() || has(vectors) != elements || keys.is_some_and(|keys| has(keys) != rows) {
            let counts = [rows, keys.and_then(has), has(vectors)]
                .map(|number| number.map_or("none".into(), |number| number.to_string()));
            let [rows, ids, elements] = counts;
            return Err(format!(
                "group {nth} of its rows has {rows} rows, {ids} ids and {elements} elements of vectors, where each has {dim}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, RowGroupMetaData};
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    /// Groups of (rows, ids, elements of vectors).
    fn metadata(groups: &[(i64, i64, i64)]) -> ParquetMetaData {
        let schema = "message m { required int64 id; required group v (LIST) { repeated group list { required float element; } } }";
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(parse_message_type(schema).unwrap())));
        let group = |&(rows, ids, elements): &(i64, i64, i64)| {
            let chunk = |(column, values)| {
                ColumnChunkMetaData::builder(schema.column(column)).set_num_values(values).build().unwrap()
            };
            let chunks = [(0, ids), (1, elements)].map(chunk).to_vec();
            RowGroupMetaData::builder(schema.clone()).set_num_rows(rows).set_column_metadata(chunks).build().unwrap()
        };
        let rows = groups.iter().map(|group| group.0).sum();
        let file = FileMetaData::new(1, rows, None, None, schema.clone(), None);
        ParquetMetaData::new(file, groups.iter().map(group).collect())
    }

    #[test]
    fn groups_whose_ids_belong_to_others_vectors_are_damage() {
        let check = |groups: &[(i64, i64, i64)], keys| groups_agree(&metadata(groups), (1, 4), keys);
        check(&[(10, 10, 40), (0, 0, 0), (3, 3, 12)], Some(0)).unwrap();
        // The sums are right.
        for groups in [[(10, 10, 44), (3, 3, 8)], [(10, 11, 40), (3, 2, 12)], [(11, 10, 40), (2, 3, 12)]] {
            let error = check(&groups, Some(0)).unwrap_err();
            assert!(error.contains("group 0 of its rows has"), "{error}");
        }
        check(&[(10, 11, 40), (3, 2, 12)], None).expect("nobody asks for ids");
        assert!(check(&[(-1, -1, -4), (1, 1, 4)], Some(0)).is_err());
    }
}
