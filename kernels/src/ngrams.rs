//! The launch that hashes tokens.

use std::ptr;

use cudarc::driver::sys::{self, CUstream};

use crate::abi::NgramTokens;
use crate::{KernelError, Kernels};

/// Threads of a block, as in the source.
const THREADS: u32 = 256;
/// Blocks that fit a multiprocessor at once.
const PER_SM: u32 = 8;

impl Kernels {
    /// Launches the hash of tokens on `stream`, with blocks for so many multiprocessors; a stream that is being captured records it.
    ///
    /// # Safety
    /// The context of the kernels is current and the stream is one of its. Every address of `batch` is valid for what `abi.rs` says of it,
    /// until the launch has ended; its numbers agree with each other.
    pub unsafe fn hash_ngrams(&self, stream: CUstream, batch: &NgramTokens, sms: u32) -> Result<(), KernelError> {
        let ids = batch.token_count.saturating_mul(batch.columns.into());
        let blocks = ids.div_ceil(THREADS.into()).clamp(1, u64::from(sms.max(1)) * u64::from(PER_SM)) as u32;
        let mut parameters = [ptr::from_ref(batch).cast_mut().cast()];
        // SAFETY: the function takes this parameter; the rest is the caller's promise.
        KernelError::check("the kernel `ngrams`", unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(self.ngrams, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, ptr::null_mut())
        })
    }
}
