//! What the library of PyTorch's operators finds in `libwarprow`.

use std::ffi::c_void;

/// The table of functions by which `libwarprow_torch.so`, the library of operators of PyTorch's (docs/python.md), looks rows up for compiled
/// models. It is for that library alone, which compares the table's version and size with its own.
///
/// The table belongs to the library and is always valid. Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_operator_table() -> *const c_void {
    (&raw const warprow_modules::operators::OPERATORS).cast()
}
