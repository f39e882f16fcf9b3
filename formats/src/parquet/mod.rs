//! Tables in Parquet files: a column of vectors, all of one length, and perhaps one of ids. Flat columns and lists of numbers;
//! nothing missing, nothing nested.
//!
//! Where all pages of a column are plain, its rows are read from where they stand; else pages are unpacked, and rows come in their order. The
//! library below is not trusted with a hostile file: what it panics at is an error here.

mod footer;
mod header;
mod hybrid;
mod page;
mod pages;
mod plain;
mod source;
mod thrift;
mod values;
mod vectors;

use std::path::Path;

use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::{self as schema, ColumnDescriptor};
use warprow_layout::DType;

use crate::error::{FormatError, Kind};
use crate::format::ReadOptions;
use crate::input::Input;
use crate::keys::{KeyPlace, KeyStream, KeyType};
use crate::table::{FileTable, Found, Place, Rows, shape_of_table, stem};
use plain::Plain;
pub(crate) use plain::{PlainPages, fill};
pub(crate) use source::Source;
use values::Numbers;
pub(crate) use values::Values;
use vectors::VectorColumn;

/// Values, or places where there is none, that a page may have: a few bytes can promise any number of them.
const MAX_PAGE_VALUES: u32 = 1 << 25;
/// Elements that a vector may have here: whole rows are in memory.
const MAX_DIM: u64 = 1 << 20;

/// Where a table stands in a file.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    /// The file, whose footer was read once for all tables.
    source: Source,
    /// The leaf column of its vectors.
    vectors: usize,
    /// The leaf column of its ids.
    keys: Option<usize>,
    /// Whether its vectors stand in their pages as they are.
    plain: Plain,
}

/// Columns of one file are those of one footer.
impl PartialEq for Columns {
    fn eq(&self, other: &Self) -> bool {
        (self.vectors, self.keys, &self.plain) == (other.vectors, other.keys, &other.plain)
    }
}

impl Eq for Columns {}

pub(crate) fn open(path: &Path, options: &ReadOptions) -> Result<Found, FormatError> {
    let input = Input::open(path)?;
    let source = Source::open(&input)?;
    let metadata = source.metadata.clone();
    let schema = metadata.file_metadata().schema_descr();
    let columns: Vec<_> =
        schema.columns().iter().map(|column| (name_of(column), kind_of(column, schema.root_schema()))).collect();
    let mut keys = columns.iter().enumerate().filter_map(|(index, (name, kind))| match kind {
        Ok(Column::Key(width)) => Some((index, name, *width)),
        _ => None,
    });
    let keys = match &options.key_column {
        Some(wanted) if keys.clone().filter(|(_, name, _)| *name == wanted).count() > 1 => {
            let what = format!("it has several columns {wanted:?} of whole numbers");
            return Err(input.error(Kind::Unclear, what, "give the columns names of their own"));
        }
        Some(wanted) => Some(keys.find(|(_, name, _)| *name == wanted).ok_or_else(|| {
            let all: Vec<&str> = columns.iter().map(|(name, _)| &**name).collect();
            let what = format!("it has no column {wanted:?} of whole numbers; its columns are {}", all.join(", "));
            input.error(Kind::Unsupported, what, "name the column that has the ids")
        })?),
        None => {
            let (first, others) = (keys.next(), keys.next());
            if let (Some((_, one, _)), Some((_, other, _))) = (first, others) {
                let what = format!("it has several columns of whole numbers: {one}, {other}");
                return Err(input.error(Kind::Unclear, what, "say which has the ids"));
            }
            first
        }
    };
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
        if rows == 0 {
            let name = if vectors == 1 { stem(path) } else { name.clone() };
            found.empty.push(name.clone());
            found.skipped.push((name, "it has no rows".to_owned()));
            continue;
        }
        let groups = metadata.row_groups().iter();
        let values = groups.map(|group| group.columns().get(index).map_or(0, |column| column.num_values()));
        let values = values.map(u64::try_from).try_fold(0u64, |all, n| all.checked_add(n.ok()?));
        let dim = values.filter(|values| values.is_multiple_of(rows)).map(|values| values / rows);
        let name = if vectors == 1 { stem(path) } else { name.clone() };
        let shape = match dim {
            Some(MAX_DIM..) => Err(format!("its vectors have {MAX_DIM} elements or more")),
            Some(dim) => shape_of_table(rows, dim, dtype),
            None => Err(format!("its {rows} vectors are not all of one length")),
        };
        let shape = shape.and_then(|shape| {
            let packed = [Some((index, name.as_str())), keys.map(|(index, key, _)| (index, key.as_str()))];
            packed
                .into_iter()
                .flatten()
                .try_for_each(|(index, name)| unpackable(&metadata, index, name))
                .map(|()| shape)
        });
        let shape = shape.and_then(|(rows, dim)| {
            groups_agree(&metadata, (index, dim.into()), keys.map(|(index, ..)| index)).map(|()| (rows, dim))
        });
        match shape {
            Ok((rows, dim)) => found.tables.push(FileTable {
                name,
                rows,
                dim,
                dtype,
                keys: keys.map(|(.., width)| width),
                place: Place::Parquet(Columns {
                    source: source.clone(),
                    vectors: index,
                    keys: keys.map(|(index, ..)| index),
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
        return Err(input.error(Kind::Unclear, what, "give the columns names of their own"));
    }
    found.inputs.push(input);
    Ok(found)
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
        let has = |column: usize| group.columns().get(column).and_then(|it| u64::try_from(it.num_values()).ok());
        let rows = u64::try_from(group.num_rows()).ok();
        let elements = rows.and_then(|rows| rows.checked_mul(dim));
        if rows.is_none() || has(vectors) != elements || keys.is_some_and(|keys| has(keys) != rows) {
            let counts =
                [rows, keys.and_then(has), has(vectors)].map(|it| it.map_or("none".into(), |it| it.to_string()));
            let [rows, ids, elements] = counts;
            return Err(format!(
                "group {nth} of its rows has {rows} rows, {ids} ids and {elements} elements of vectors, where each has {dim}"
            ));
        }
    }
    Ok(())
}

/// Its path, as `a.b` where it is part of a group, without what only says that it is a list.
fn name_of(column: &ColumnDescriptor) -> String {
    let parts = column.path().parts();
    let of_list = match (column.max_rep_level(), parts.len()) {
        (0, _) | (_, 0 | 1) => 0,
        (_, 2) => 1,
        _ => 2,
    };
    parts[..parts.len() - of_list].join(".")
}

enum Column {
    Key(KeyType),
    Vector(DType),
}

/// The type of a column's whole numbers, or of those in its lists.
pub(crate) fn whole(column: &ColumnDescriptor) -> Option<KeyType> {
    let unsigned = match column.logical_type_ref() {
        Some(LogicalType::Integer(integer)) => !integer.is_signed,
        // Times and decimals are no keys.
        Some(_) => return None,
        None => matches!(column.converted_type(), ConvertedType::UINT_64 | ConvertedType::UINT_32),
    };
    match column.physical_type() {
        Type::INT64 => Some(if unsigned { KeyType::U64 } else { KeyType::I64 }),
        Type::INT32 => Some(if unsigned { KeyType::U32 } else { KeyType::I32 }),
        _ => None,
    }
}

/// What a column can be, or why nothing.
fn kind_of(column: &ColumnDescriptor, root: &schema::Type) -> Result<Column, &'static str> {
    let float16 = matches!(column.logical_type_ref(), Some(LogicalType::Float16));
    if let (0, Some(width)) = (column.max_rep_level(), whole(column)) {
        return Ok(Column::Key(width));
    }
    if column.max_rep_level() == 1
        && let Some(other) = no_list(column, root)
    {
        return Err(other);
    }
    match (column.max_rep_level(), column.physical_type()) {
        (1, Type::FLOAT) => Ok(Column::Vector(DType::F32)),
        (1, Type::FIXED_LEN_BYTE_ARRAY) if float16 && column.type_length() == 2 => Ok(Column::Vector(DType::F16)),
        (1, Type::DOUBLE) => Err("vectors of doubles: convert them to float"),
        (0 | 1, _) => Err("neither ids of whole numbers nor vectors of floats"),
        _ => Err("nested"),
    }
}

/// Bytes of an element: floats or halves.
fn size_of(dtype: DType) -> usize {
    if dtype == DType::F16 { 2 } else { 4 }
}

/// What repeats a column's numbers, if it is no list of them alone: each row of it could have one, and look like a vector of one.
fn no_list(column: &ColumnDescriptor, root: &schema::Type) -> Option<&'static str> {
    let is_map = |group: &schema::Type| {
        let info = group.get_basic_info();
        matches!(info.logical_type_ref(), Some(LogicalType::Map))
            || matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
    };
    let mut group = root;
    for (nth, part) in (1..).zip(column.path().parts()) {
        let fields = if group.is_group() { group.get_fields() } else { &[] };
        let Some(field) = fields.iter().find(|field| field.name() == part) else { break };
        if is_map(field) {
            return Some("a map, not a list of numbers");
        }
        let info = field.get_basic_info();
        if info.has_repetition() && info.repetition() == Repetition::REPEATED {
            let alone = field.is_primitive() || field.get_fields().len() == 1;
            let rest = column.path().parts().len() - nth;
            return (!alone || rest > 1).then_some("a list of structs, not of numbers");
        }
        group = field;
    }
    None
}

impl Columns {
    pub(crate) fn reader(&self, table: &FileTable) -> Box<dyn Rows> {
        Box::new(VectorColumn::new(self.source.clone(), self.vectors, table.dim.into(), size_of(table.dtype)))
    }

    /// Whether its rows can be read in any order: who asks first waits while the headers of all pages are read.
    pub(crate) fn are_plain(&self) -> bool {
        self.plain.is_so()
    }

    /// Where its rows stand, if they do as they are.
    pub(crate) fn plain_pages(&self, table: &FileTable) -> PlainPages {
        PlainPages::new(self.source.clone(), self.vectors, table.dim.into(), size_of(table.dtype))
    }

    pub(crate) fn key_reader(&self, table: &FileTable) -> Option<Box<dyn KeyStream>> {
        let (column, width) = self.keys.zip(table.keys)?;
        let source = self.source.clone();
        Some(match width {
            KeyType::I64 | KeyType::U64 => {
                Box::new(Numbers { values: Values::<Int64Type>::new(source, column), to_bits: |key| *key as u64 })
            }
            KeyType::U32 => {
                let to_bits = |key: &i32| u64::from(*key as u32);
                Box::new(Numbers { values: Values::<Int32Type>::new(source, column), to_bits })
            }
            KeyType::I32 => {
                let to_bits = |key: &i32| i64::from(*key) as u64;
                Box::new(Numbers { values: Values::<Int32Type>::new(source, column), to_bits })
            }
        })
    }
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
        let rows = groups.iter().map(|it| it.0).sum();
        let file = FileMetaData::new(1, rows, None, None, schema.clone(), None);
        ParquetMetaData::new(file, groups.iter().map(group).collect())
    }

    #[test]
    fn columns_have_their_paths_for_names() {
        let schema = "message m {
            required int64 id;
            required group s { required int64 id; }
            required group v (LIST) { repeated group list { required float element; } }
            required group old (LIST) { repeated float array; }
            required group e {
                required group user (LIST) { repeated group list { required float element; } }
                required group item (LIST) { repeated group list { required float element; } }
            }
        }";
        let schema = SchemaDescriptor::new(Arc::new(parse_message_type(schema).unwrap()));
        let names: Vec<String> = schema.columns().iter().map(|column| name_of(column)).collect();
        assert_eq!(names, ["id", "s.id", "v", "old", "e.user", "e.item"]);
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
