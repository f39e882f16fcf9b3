//! Arrays of the caller's, by address.

use warprow_gpu::IdType;
use warprow_layout::DType;
use warprow_lookup::{Ids, OutputRows};

use crate::error::ModuleError;

/// Integers at an address of this process or of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    /// The address of the first.
    pub at: usize,
    /// How many.
    pub len: usize,
    /// The type of each.
    pub of: IdType,
}

impl Integers {
    /// The integers, in this process.
    ///
    /// # Safety
    /// So many integers of that type lie at the address, aligned, and nobody writes to them while the result lives.
    pub unsafe fn ids<'a>(&self) -> Ids<'a> {
        let (address, len) = (self.at, self.len);
        // SAFETY: the caller's promise.
        unsafe {
            match self.of {
                IdType::I32 => Ids::I32(slice(address, len)),
                IdType::I64 => Ids::I64(slice(address, len)),
                IdType::U32 => Ids::U32(slice(address, len)),
                IdType::U64 => Ids::U64(slice(address, len)),
            }
        }
    }
}

/// Elements of a slice at an address; none where there are none, whatever the address.
///
/// # Safety
/// So many elements lie there, aligned, and nobody writes to them while the result lives.
pub unsafe fn slice<'a, T>(address: usize, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const T, len) }
}

/// As [`slice`](slice()), to be written.
///
/// # Safety
/// So many elements lie there, aligned, and nobody else reads or writes them while the result lives.
pub unsafe fn slice_mut<'a, T>(address: usize, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(address as *mut T, len) }
}

/// Output elements at an address of this process.
///
/// # Safety
/// So many elements of that type lie there, aligned, and nobody else reads or writes them while the result lives.
pub(crate) unsafe fn output_rows<'a>(address: usize, len: usize, dtype: DType) -> Result<OutputRows<'a>, ModuleError> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok(match dtype {
            DType::F32 => OutputRows::F32(slice_mut(address, len)),
            DType::F16 => OutputRows::F16(slice_mut(address, len)),
            DType::BF16 => OutputRows::Bf16(slice_mut(address, len)),
            DType::I8 => OutputRows::I8(slice_mut(address, len)),
            DType::U8 => OutputRows::U8(slice_mut(address, len)),
            other => {
                return Err(ModuleError::invalid("dtype", format!("no look-up yields elements of type {other}")));
            }
        })
    }
}
