//! What kernels call things of tables.

use warprow_kernels::abi::{KEY_ALIGN, element};
use warprow_layout::{DType, Table};

/// Keys that a range of rows takes.
pub(crate) fn keys_of(rows: u64) -> u64 {
    rows.next_multiple_of(KEY_ALIGN)
}

pub(crate) fn element_of(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => element::F32,
        DType::F16 => element::F16,
        DType::BF16 => element::BF16,
        DType::I8 => element::I8,
        DType::U8 => element::U8,
        DType::F8E4M3 => element::F8E4M3,
        DType::F8E5M2 => element::F8E5M2,
        DType::Q8 => element::Q8,
        DType::Q4 => element::Q4,
        DType::Mxfp8 => element::MXFP8,
        DType::F8E4M3S => element::F8E4M3S,
        DType::Nvfp4 => element::NVFP4,
    }
}

/// Whether the GPU can read rows of `table` from drives with the two pages that a command has.
pub(crate) fn landing_stride(table: &Table, lba: u32) -> Result<u32, String> {
    let bytes = table.packing.row_lbas() * lba;
    match bytes.next_power_of_two() {
        stride if stride <= 8192 => Ok(stride.max(lba)),
        _ => Err(format!(
            "rows of {} B of table {:?} are too long for the GPU: 8 KiB at most",
            table.row_bytes(),
            table.name
        )),
    }
}
