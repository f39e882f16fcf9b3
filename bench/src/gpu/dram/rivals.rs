//! Rivals that bring rows to the GPU by the processor, and by copy engines.

use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUresult, CUstream};
use warprow_gpu_queues::{Gpu, PinnedMemory};

use crate::gpu::processor::{HostRows, gather};
use crate::gpu::{Request, Stream};

/// Copies of one batch, at most: each row is one.
pub const MOST_COPIES: u64 = 100_000;

/// Gathers by all cores into pinned memory and copies that to the GPU; by the clock, until it is there.
pub fn gather_and_copy(
    stream: &Stream,
    rows: &HostRows,
    request: &Request,
    staging: &PinnedMemory,
) -> anyhow::Result<Duration> {
    let ids = request.ids()?;
    let began = Instant::now();
    gather(std::slice::from_ref(rows), ids.len(), &ids, staging);
    // SAFETY: both have room for all rows, and it is waited for.
    unsafe { stream.copy(request.out_at(), staging.memory().as_ptr(), ids.len() * rows.row_bytes)? };
    stream.wait()?;
    Ok(began.elapsed())
}

type CopyBatch = unsafe extern "C" fn(
    *mut CUdeviceptr,
    *mut CUdeviceptr,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    CUstream,
) -> CUresult;

/// The driver has the call, but does not take it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cuMemcpyBatchAsync is refused: {0:?}")]
pub(super) struct BatchRefused(CUresult);

/// `cuMemcpyBatchAsync`: one call for many copies, each of which is a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchCopy(CopyBatch);

impl BatchCopy {
    /// The driver's, in the form of CUDA 13; `None` if it has none.
    pub(super) fn find(gpu: &Gpu) -> anyhow::Result<Option<Self>> {
        let _current = gpu.enter()?;
        let mut function: *mut c_void = ptr::null_mut();
        let mut found = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        // SAFETY: CUDA is there, as the GPU shows; the name ends with a zero, an address and a result are stored.
        let code =
            unsafe { sys::cuGetProcAddress_v2(c"cuMemcpyBatchAsync".as_ptr(), &mut function, 13_000, 0, &mut found) };
        if code != CUresult::CUDA_SUCCESS || function.is_null() {
            return Ok(None);
        }
        // SAFETY: that is the function's type from version 13.0 of CUDA on, which was asked for.
        Ok(Some(Self(unsafe { std::mem::transmute::<*mut c_void, CopyBatch>(function) })))
    }

    /// Copies the rows of the request: by the clock, descriptors included, until all are there.
    pub(super) fn copy(&self, stream: &Stream, rows: &HostRows, request: &Request) -> anyhow::Result<Duration> {
        let ids = request.ids()?;
        ensure!(ids.len() as u64 <= MOST_COPIES, "{} copies", ids.len());
        let _current = stream.gpu().enter()?;
        let mut from = Vec::with_capacity(ids.len());
        let mut to = Vec::with_capacity(ids.len());
        let mut sizes = Vec::with_capacity(ids.len());
        let began = Instant::now();
        for (&id, at) in ids.iter().zip(0u64..) {
            from.push(rows.on_gpu + id as u64 * rows.stride as u64);
            to.push(request.out_at() + at * rows.row_bytes as u64);
            sizes.push(rows.row_bytes);
        }
        // SAFETY: a description of copies, for which zeros are valid: no place is hinted at.
        let mut attributes: CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        attributes.srcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let mut first = 0;
        // SAFETY: as many sources, destinations and sizes; rows and output are there until the wait has ended.
        let code = unsafe {
            self.0(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                sizes.as_mut_ptr(),
                ids.len(),
                &mut attributes,
                &mut first,
                1,
                stream.raw(),
            )
        };
        if code != CUresult::CUDA_SUCCESS {
            return Err(BatchRefused(code).into());
        }
        stream.wait()?;
        Ok(began.elapsed())
    }
}
