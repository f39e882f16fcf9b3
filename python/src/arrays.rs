//! Arrays of the caller's, by address.

use pyo3::prelude::*;
use warprow_gpu::IdType;
use warprow_layout::DType;
use warprow_lookup::{Ids, OutputRows};

use crate::error::invalid;

/// Integers at an address of this process or of a GPU: `(address, number, type)`, of type "i32", "i64", "u32" or "u64".
#[derive(Clone, FromPyObject)]
pub(crate) struct Integers(pub(crate) usize, pub(crate) usize, String);

impl Integers {
    pub(crate) fn id_type(&self) -> PyResult<IdType> {
        match &*self.2 {
            "i32" => Ok(IdType::I32),
            "i64" => Ok(IdType::I64),
            "u32" => Ok(IdType::U32),
            "u64" => Ok(IdType::U64),
            other => Err(invalid("input", format!("integers of type {other}: give 32 or 64 bits"))),
        }
    }

    /// The integers, in this process.
    ///
    /// # Safety
    /// So many integers of that type lie at the address, aligned, and nobody writes to them while the result lives.
    pub(crate) unsafe fn ids<'a>(&self) -> PyResult<Ids<'a>> {
        let (address, len) = (self.0, self.1);
        // SAFETY: the caller's promise.
        unsafe {
            Ok(match self.id_type()? {
                IdType::I32 => Ids::I32(slice(address, len)),
                IdType::I64 => Ids::I64(slice(address, len)),
                IdType::U32 => Ids::U32(slice(address, len)),
                _ => Ids::U64(slice(address, len)),
            })
        }
    }
}

/// Elements of a slice at an address; none where there are none, whatever the address.
///
/// # Safety
/// So many elements lie there, aligned, and nobody writes to them while the result lives.
pub(crate) unsafe fn slice<'a, T>(address: usize, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const T, len) }
}

/// As [`slice`], to be written.
///
/// # Safety
/// So many elements lie there, aligned, and nobody else reads or writes them while the result lives.
pub(crate) unsafe fn slice_mut<'a, T>(address: usize, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(address as *mut T, len) }
}

/// The type of elements that a name stands for.
pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        let known: Vec<_> = DType::ALL.into_iter().map(DType::name).collect();
        invalid("dtype", format!("{name:?} is no type of elements; they are {}", known.join(", ")))
    })
}

/// Output elements at an address of this process.
///
/// # Safety
/// So many elements of that type lie there, aligned, and nobody else reads or writes them while the result lives.
pub(crate) unsafe fn output_rows<'a>(address: usize, len: usize, dtype: DType) -> PyResult<OutputRows<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok(match dtype {
            DType::F32 => OutputRows::F32(slice_mut(address, len)),
            DType::F16 => OutputRows::F16(slice_mut(address, len)),
            DType::BF16 => OutputRows::Bf16(slice_mut(address, len)),
            DType::I8 => OutputRows::I8(slice_mut(address, len)),
            DType::U8 => OutputRows::U8(slice_mut(address, len)),
            other => return Err(invalid("dtype", format!("no look-up yields elements of type {other}"))),
        })
    }
}
