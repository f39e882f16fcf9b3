//! Arrays of the caller's, by address.

use pyo3::prelude::*;
use warprow_gpu::IdType;
use warprow_layout::DType;
use warprow_lookup::Ids;

pub(crate) use warprow_modules::{slice, slice_mut};

use crate::error::invalid;

/// Integers at an address of this process or of a GPU: `(address, number, type)`, of type "i32", "i64", "u32" or "u64".
#[derive(Clone, FromPyObject)]
pub(crate) struct Integers(usize, usize, String);

impl Integers {
    /// As look-ups take them.
    pub(crate) fn given(&self) -> PyResult<warprow_modules::Integers> {
        let of = match &*self.2 {
            "i32" => IdType::I32,
            "i64" => IdType::I64,
            "u32" => IdType::U32,
            "u64" => IdType::U64,
            other => return Err(invalid("input", format!("integers of type {other}: give 32 or 64 bits"))),
        };
        Ok(warprow_modules::Integers { at: self.0, len: self.1, of })
    }

    /// The integers, in this process.
    ///
    /// # Safety
    /// So many integers of that type lie at the address, aligned, and nobody writes to them while the result lives.
    pub(crate) unsafe fn ids<'a>(&self) -> PyResult<Ids<'a>> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.given()?.ids() })
    }
}

/// The type of elements that a name stands for.
pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        let known: Vec<_> = DType::ALL.into_iter().map(DType::name).collect();
        invalid("dtype", format!("{name:?} is no type of elements; they are {}", known.join(", ")))
    })
}
