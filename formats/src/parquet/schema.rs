//! What the columns of a Parquet file can be.

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type};
use parquet::schema::types::{self as schema, ColumnDescriptor};
use warprow_layout::DType;

use crate::key_type::KeyType;

/// The path of a column, as `a.b` where the column is part of a group, without what only says that it is a list.
pub(super) fn name_of(column: &ColumnDescriptor) -> String {
    let parts = column.path().parts();
    let of_list = match (column.max_rep_level(), parts.len()) {
        (0, _) | (_, 0 | 1) => 0,
        (_, 2) => 1,
        _ => 2,
    };
    parts[..parts.len() - of_list].join(".")
}

pub(super) enum Column {
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
pub(super) fn kind_of(column: &ColumnDescriptor, root: &schema::Type) -> Result<Column, &'static str> {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

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
}
