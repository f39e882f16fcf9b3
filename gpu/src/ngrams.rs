//! Ids of n-gram rows, made from tokens in GPU memory.

use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use warprow_gpu_queues::DeviceMemory;
use warprow_kernels::abi::{NgramHead, NgramTokens};
use warprow_keys::{MAX_ORDER, NgramHash};

use crate::attached::Attached;
use crate::batch::IdType;
use crate::capture::Capture;
use crate::error::GpuError;
use crate::executor::GpuExecutor;
use crate::launch::{check_address, hash_ngrams};

/// Tokens of one or several sequences, one after the other, by their addresses in device memory or pinned host memory. What
/// they mean is said of [`TokenBatch`](warprow_keys::TokenBatch), which has the same fields on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuTokens {
    /// The tokens, of type `token_type`. Negative ones are padding.
    pub tokens: CUdeviceptr,
    /// The type of the tokens and of the history: [`IdType::I32`] or [`IdType::I64`].
    pub token_type: IdType,
    /// How many tokens there are, padding included.
    pub count: usize,
    /// The address of a `u32` for each sequence, where it begins, and of one behind these, where the last one ends; and how
    /// many sequences there are. They are read when the kernel runs: a captured hash takes batches of fewer tokens, and gives
    /// all behind the last sequence the id −1. `None`: all tokens are one sequence.
    pub starts: Option<(CUdeviceptr, u32)>,
    /// For each sequence, the tokens before its first one: one fewer than the longest n-gram has. `None`: each sequence
    /// begins a text.
    pub history: Option<CUdeviceptr>,
    /// Whether a sequence's history begins with the latest of its tokens.
    pub newest_first: bool,
}

impl GpuTokens {
    /// So many tokens of one sequence that begins a text.
    pub fn new(tokens: CUdeviceptr, token_type: IdType, count: usize) -> Self {
        Self { tokens, token_type, count, starts: None, history: None, newest_first: false }
    }

    /// Says where so many sequences begin, and where the last one ends.
    #[must_use]
    pub fn with_starts(self, starts: CUdeviceptr, sequences: u32) -> Self {
        Self { starts: Some((starts, sequences)), ..self }
    }

    /// Gives the tokens before each sequence, the latest first or last.
    #[must_use]
    pub fn with_history(self, history: CUdeviceptr, newest_first: bool) -> Self {
        Self { history: Some(history), newest_first, ..self }
    }
}

/// An n-gram hash with all that a GPU needs for it. It writes ids to GPU memory, where look-ups read them.
#[derive(Debug)]
pub struct GpuNgramHash {
    attached: Arc<Attached>,
    hash: NgramHash,
    heads: DeviceMemory,
    words: Option<DeviceMemory>,
}

impl GpuExecutor {
    /// Prepares an n-gram hash for this executor's GPU: allocates memory there for primes, and for the words of tokens.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`], if the ids of the hash are beyond 2⁶³.
    pub fn ngram_hash(&self, hash: &NgramHash) -> Result<GpuNgramHash, GpuError> {
        let gpu = &self.inner.gpu;
        if hash.rows() > i64::MAX as u64 {
            return Err(GpuError::Unsupported("an n-gram table has fewer than 2⁶³ rows".to_owned()));
        }
        let heads = hash.heads().iter().map(|head| NgramHead {
            prime: head.prime,
            // Of heads that no column has it may be below zero.
            first_row: head.first_row.wrapping_sub(hash.first_row()),
        });
        let heads: Vec<u8> = heads.flat_map(|head| head.as_bytes().to_vec()).collect();
        let words = hash.rules().words.as_ref().map(|words| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            DeviceMemory::holding(gpu, &bytes)
        });
        Ok(GpuNgramHash {
            heads: DeviceMemory::holding(gpu, &heads)?,
            words: words.transpose()?,
            hash: hash.clone(),
            attached: self.inner.clone(),
        })
    }
}

impl GpuNgramHash {
    /// The hash.
    pub fn hash(&self) -> &NgramHash {
        &self.hash
    }

    /// Launches the hash of `batch` on `stream`, or records it, if the stream is being captured: one kernel, which writes ids of
    /// type `id_type` ([`IdType::I32`] or [`IdType::I64`]) to `ids`, for each token one for each column of the hash. A look-up
    /// or a prefetch that is launched on the same stream next reads them there. It waits for nothing.
    ///
    /// # Errors
    /// [`GpuError::Invalid`], if an address is none of CUDA's, too little memory lies there, or a type does not fit; nothing was
    /// launched then.
    ///
    /// # Safety
    /// What lies at the addresses stays valid until the kernel has ended, and nobody else writes there; of a recorded one, whenever
    /// its graph runs. This hash lives until then, too: graphs do not keep it.
    #[allow(unsafe_code, reason = "it takes addresses from its caller")]
    pub unsafe fn launch(
        &self,
        stream: CUstream,
        batch: &GpuTokens,
        ids: CUdeviceptr,
        id_type: IdType,
    ) -> Result<(), GpuError> {
        let gpu = &self.attached.gpu;
        let _current = gpu.enter()?;
        Capture::of_stream(gpu, stream)?;
        let parameter = self.parameter(batch, ids, id_type)?;
        if batch.count == 0 {
            return Ok(());
        }
        // SAFETY: the addresses were checked; the rest is the caller's promise.
        unsafe { hash_ngrams(&self.attached.kernels, stream, &parameter, gpu.sms()) }
    }

    /// The kernel's parameter, once all of it is known to fit.
    fn parameter(&self, batch: &GpuTokens, ids: CUdeviceptr, id_type: IdType) -> Result<NgramTokens, GpuError> {
        let signed = |what, it: IdType| match it {
            IdType::I32 | IdType::I64 => Ok(it.size()),
            _ => Err(GpuError::Invalid {
                what,
                why: format!("{it:?} is not signed, and −1 is one of them: give i32 or i64"),
            }),
        };
        let token_bytes = signed("the tokens", batch.token_type)?;
        let id_bytes = signed("the ids", id_type)?;
        let last = self.hash.head_rows().end.saturating_sub(self.hash.first_row());
        if id_type == IdType::I32 && last > i32::MAX as u64 {
            let why = format!("rows up to {last} do not fit i32: give i64");
            return Err(GpuError::Invalid { what: "the ids", why });
        }
        let (count, columns) = (batch.count as u64, self.hash.columns());
        let kept = self.hash.order() as u64 - 1;
        let sequences = batch.starts.map_or(1, |(_, sequences)| sequences);
        let none = count == 0;
        let bytes = |numbers: u64, each: u64| numbers.saturating_mul(each);
        check_address("the tokens", batch.tokens, bytes(count, token_bytes), token_bytes, none)?;
        if let Some((starts, sequences)) = batch.starts {
            check_address("the starts of sequences", starts, (u64::from(sequences) + 1) * 4, 4, false)?;
        }
        if let Some(history) = batch.history {
            let tokens = u64::from(sequences) * kept;
            check_address("the history", history, bytes(tokens, token_bytes), token_bytes, tokens == 0)?;
        }
        let places = count.saturating_mul(columns.len() as u64);
        check_address("the ids", ids, bytes(places, id_bytes), id_bytes, none)?;
        let rules = self.hash.rules();
        let mut multipliers = [0; MAX_ORDER];
        multipliers.iter_mut().zip(&rules.multipliers).for_each(|(to, &from)| *to = from);
        Ok(NgramTokens {
            tokens: batch.tokens,
            starts: batch.starts.map_or(0, |(starts, _)| starts),
            history: batch.history.unwrap_or(0),
            words: self.words.as_ref().map_or(0, DeviceMemory::address),
            heads: self.heads.address(),
            ids,
            token_count: count,
            word_count: rules.words.as_ref().map_or(0, |words| words.len() as u64),
            fill: rules.fill,
            stop: rules.stop.unwrap_or(u64::MAX),
            multipliers,
            sequences,
            order: self.hash.order() as u32,
            heads_per_order: rules.heads_per_order as u32,
            head_count: self.hash.heads().len() as u32,
            first_head: columns.start as u32,
            columns: columns.len() as u32,
            token_type: batch.token_type.code(),
            id_type: id_type.code(),
            newest_first: batch.newest_first.into(),
            unused: 0,
        })
    }
}
