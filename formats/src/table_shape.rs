//! The shapes and types that tables can have.

use warprow_layout::DType;

/// A table's shape, if it can have it: at least one element, rows below 4 GiB.
pub(crate) fn shape_of_table(rows: u64, dim: u64, dtype: DType) -> Result<(u64, u32), String> {
    if rows == 0 || dim == 0 {
        return Err(format!("shape [{rows}, {dim}] is empty"));
    }
    let dim = u32::try_from(dim).ok().filter(|&dim| dtype.row_bytes(dim).is_some());
    Ok((rows, dim.ok_or("its rows pass 4 GiB")?))
}

/// The types of tensors that can be tables, as safetensors calls them.
pub(crate) const TYPES: [(&str, DType); 7] = [
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("F8_E4M3", DType::F8E4M3),
    ("F8_E5M2", DType::F8E5M2),
    ("I8", DType::I8),
    ("U8", DType::U8),
];

/// The types of tensors that can be tables, in words.
pub fn tensor_types() -> String {
    let names = TYPES.map(|(name, _)| name);
    let [first @ .., last] = &names;
    format!("{} or {last}", first.join(", "))
}
