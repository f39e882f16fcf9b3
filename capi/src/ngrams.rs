//! Ids of n-gram rows by tokens, on the host and on a GPU.

use std::ffi::c_void;
use std::sync::Arc;

use warprow_gpu::{GpuNgramHash, GpuTokens};
use warprow_keys::{NgramError, NgramHash, NgramRules, TokenBatch};
use warprow_lookup::Ids;

use crate::arguments::{check_place, slice, slice_mut, store as put};
use crate::error::{Failure, warprow_error};
use crate::gpu::{Executor, warprow_gpu_executor};
use crate::gpu_lookup::CUstream_st;
use crate::guard;
use crate::handle::{self, Object};
use crate::sized::{read, versioned};
use crate::status::warprow_status;
use crate::store::close;
use crate::types::{gpu_int_type, integers};

/// The hash of a language model's n-grams for one of its tables: tokens to ids. Any thread may use it, several at once.
pub struct warprow_ngram_hash {
    _opaque: [u8; 0],
}

/// An n-gram hash with what a GPU needs for it. It keeps its executor. Any thread may use it, several at once.
pub struct warprow_gpu_ngram_hash {
    _opaque: [u8; 0],
}

/// How a model hashes n-grams of tokens for one of its tables: docs/ngram.md has the rules of two models.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_ngram_rules {
    /// sizeof(warprow_ngram_rules).
    pub struct_size: usize,
    /// The multipliers of an n-gram's tokens, that of the latest token first.
    pub multipliers: *const u64,
    /// How many there are, 2 to 8: the longest n-gram has as many tokens.
    pub multiplier_count: usize,
    /// For each token the word that is hashed in its place; UINT32_MAX for a token that takes no part. NULL: tokens are their own words.
    pub words: *const u32,
    /// The number of words.
    pub word_count: usize,
    /// The heads of all tables of the model have the primes from this number on, one after the other.
    pub first_prime: u64,
    /// The word in the place of a token that is missing, or that an n-gram does not reach.
    pub fill: u64,
    /// The word that ends a text, where `has_stop` is not 0.
    pub stop: u64,
    /// The row of the whole table that has the id 0.
    pub first_row: u64,
    /// How many heads the n-grams of each length have.
    pub heads_per_order: u32,
    /// Which of the model's tables is meant, from 0 on: the heads of the tables before it have the smaller primes.
    pub table: u32,
    /// The head of the first column of ids.
    pub first_head: u32,
    /// How many columns of ids there are; 0: one for each head from the first one on. Columns past the last head have the id -1.
    pub columns: u32,
    /// Not 0: `stop` is a word that ends a text.
    pub has_stop: i32,
    /// 0.
    pub reserved: u32,
}

/// Tokens of one or several sequences, one after the other. All of it stays the caller's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_tokens {
    /// sizeof(warprow_tokens).
    pub struct_size: usize,
    /// The tokens. Negative ones are padding.
    pub tokens: *const c_void,
    /// The number of tokens, padding included.
    pub count: usize,
    /// `sequences` + 1 numbers: where each sequence begins, and where the last one ends. Tokens outside are padding. NULL: all tokens are
    /// one sequence.
    pub starts: *const u32,
    /// The number of sequences. Not used if `starts` is NULL.
    pub sequences: usize,
    /// For each sequence the tokens before its first one: one fewer than the longest n-gram has. A negative one is missing, and so are
    /// those before it. NULL: each sequence begins a text.
    pub history: *const c_void,
    /// The type of tokens and history: WARPROW_INT_TYPE_I32 or WARPROW_INT_TYPE_I64.
    pub token_type: i32,
    /// Not 0: a sequence's history begins with the latest of its tokens.
    pub newest_first: i32,
}

versioned! {
    warprow_ngram_rules: 96,
    warprow_tokens: 56,
}

struct OnHost(NgramHash);

struct OnGpu(GpuNgramHash);

impl Object for OnHost {
    type Tag = warprow_ngram_hash;
    const KIND: u8 = 30;
    const NAME: &'static str = "warprow_ngram_hash";
}

impl Object for OnGpu {
    type Tag = warprow_gpu_ngram_hash;
    const KIND: u8 = 31;
    const NAME: &'static str = "warprow_gpu_ngram_hash";
}

impl From<NgramError> for Failure {
    fn from(error: NgramError) -> Self {
        Self::of(warprow_status::InvalidArgument, &error)
    }
}

impl warprow_ngram_rules {
    /// # Safety
    /// `at` is NULL, or points to rules whose pointers are valid.
    unsafe fn hash(at: *const Self) -> Result<NgramHash, Failure> {
        // SAFETY: the caller's promise, for each pointer.
        let (given, multipliers, words) = unsafe {
            let given = read(at)?;
            let multipliers = slice("multipliers", given.multipliers.cast(), given.multiplier_count)?;
            let words = match given.words.is_null() {
                true if given.word_count != 0 => {
                    return Err(Failure::invalid("word_count is not 0, and words is NULL"));
                }
                true => None,
                false => Some(Arc::from(slice("words", given.words.cast(), given.word_count)?)),
            };
            (given, multipliers.to_vec(), words)
        };
        crate::store::reserved("warprow_ngram_rules", given.reserved)?;
        let hash = NgramHash::new(NgramRules {
            multipliers,
            heads_per_order: given.heads_per_order as usize,
            first_prime: given.first_prime,
            table: given.table as usize,
            fill: given.fill,
            stop: (given.has_stop != 0).then_some(given.stop),
            words,
        })?;
        let first = given.first_head as usize;
        let end = match given.columns {
            0 => hash.heads().len().max(first),
            columns => first.saturating_add(columns as usize),
        };
        Ok(hash.with_heads(first..end)?.with_first_row(given.first_row)?)
    }
}

/// Makes an n-gram hash by its rules, which stay the caller's. The hash in `*hash` is the caller's, who closes it with
/// warprow_ngram_hash_close.
///
/// Any thread may call it. It blocks for as long as it takes to find some primes.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_ngram_hash_create(
    rules: *const warprow_ngram_rules,
    hash: *mut *mut warprow_ngram_hash,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("hash", hash)?;
            hash.write(std::ptr::null_mut());
            put(hash, handle::open(OnHost(warprow_ngram_rules::hash(rules)?))?);
            Ok(())
        })
    }
}

/// Tells how many columns of ids a hash gives, and how many rows the heads of its model's table have together.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_ngram_hash_shape(
    hash: *const warprow_ngram_hash,
    columns: *mut usize,
    rows: *mut u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let hash = handle::get::<OnHost>(hash)?;
            put(columns, hash.0.columns().len());
            put(rows, hash.0.rows());
            Ok(())
        })
    }
}

/// Writes the ids of the n-grams that end at each token to `ids`, which has room for `id_count` of them, exactly one for each token and
/// column: those of the first token first. Padding has the id -1. Tokens and ids lie in host memory.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_ngram_hash_ids(
    hash: *const warprow_ngram_hash,
    tokens: *const warprow_tokens,
    ids: *mut i64,
    id_count: usize,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let hash = handle::get::<OnHost>(hash)?;
            let hash = &hash.0;
            let given: warprow_tokens = read(tokens)?;
            let ids = slice_mut("ids", ids.cast(), id_count)?;
            let (starts, sequences) = match given.starts.is_null() {
                true => (&[][..], 1),
                false => {
                    let entries = given.sequences.saturating_add(1);
                    (slice("starts", given.starts.cast(), entries)?, given.sequences)
                }
            };
            let kept = if given.history.is_null() { 0 } else { sequences.saturating_mul(hash.order() - 1) };
            let newest_first = given.newest_first != 0;
            let now = integers("tokens", given.tokens, given.count, given.token_type)?;
            match (now, integers("history", given.history, kept, given.token_type)?) {
                (Ids::I64(tokens), Ids::I64(history)) => {
                    hash.ids(&TokenBatch { tokens, starts, history, newest_first }, ids)?;
                }
                (Ids::I32(_), Ids::I32(_)) => {
                    let tokens = slice::<i32>("tokens", given.tokens, given.count)?;
                    let history = slice::<i32>("history", given.history, kept)?;
                    hash.ids(&TokenBatch { tokens, starts, history, newest_first }, ids)?;
                }
                _ => return Err(Failure::invalid("tokens are WARPROW_INT_TYPE_I32 or WARPROW_INT_TYPE_I64")),
            }
            Ok(())
        })
    }
}

/// Closes an n-gram hash. NULL is left alone. Any thread may call it.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_ngram_hash_close(
    hash: *mut warprow_ngram_hash,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<OnHost>(hash)) }
}

/// Prepares an n-gram hash for the GPU of an executor: allocates memory there for its primes and words. Both arguments stay the caller's.
/// The hash in `*on_gpu` is the caller's, who closes it with warprow_gpu_ngram_hash_close.
///
/// Any thread may call it. It blocks until the memory is filled.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_ngram_hash_create(
    executor: *const warprow_gpu_executor,
    hash: *const warprow_ngram_hash,
    on_gpu: *mut *mut warprow_gpu_ngram_hash,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("on_gpu", on_gpu)?;
            on_gpu.write(std::ptr::null_mut());
            let executor = handle::get::<Executor>(executor)?;
            let hash = handle::get::<OnHost>(hash)?;
            let prepared = executor.0.ngram_hash(&hash.0)?;
            put(on_gpu, handle::open(OnGpu(prepared))?);
            Ok(())
        })
    }
}

/// Launches the hash of tokens on `stream` (a cudaStream_t or CUstream; NULL: the default stream), or captures it, if the stream is being
/// captured in a CUDA graph. It writes ids of type `id_type`, WARPROW_INT_TYPE_I32 or WARPROW_INT_TYPE_I64, to `ids`: for each token one
/// for each column, those of the first token first. Padding has the id -1. A look-up that is launched on the stream next finds them there.
///
/// `tokens` stays the caller's, and is not needed after the call. What it points to lies in GPU memory, or in host memory that CUDA has
/// pinned, and so does `ids`. Until the hash has ended they stay valid, and nobody else writes to them; of a captured one, whenever its
/// graph runs. The starts of the sequences are read then, so that a graph takes fewer tokens too: all behind the last sequence are padding.
/// Graphs do not keep the hash: it is closed after them.
///
/// Any thread may call it. It waits for nothing.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_ngram_hash_launch(
    on_gpu: *const warprow_gpu_ngram_hash,
    stream: *mut CUstream_st,
    tokens: *const warprow_tokens,
    ids: *mut c_void,
    id_type: i32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let hash = handle::get::<OnGpu>(on_gpu)?;
            let given: warprow_tokens = read(tokens)?;
            let token_type = gpu_int_type("tokens", given.token_type)?;
            let mut batch = GpuTokens::new(given.tokens as u64, token_type, given.count);
            if !given.starts.is_null() {
                let sequences = u32::try_from(given.sequences);
                let sequences = sequences.map_err(|_| Failure::invalid("there are more than 2^32 - 1 sequences"))?;
                batch = batch.with_starts(given.starts as u64, sequences);
            }
            if !given.history.is_null() {
                batch = batch.with_history(given.history as u64, given.newest_first != 0);
            }
            hash.0.launch(stream.cast(), &batch, ids as u64, gpu_int_type("ids", id_type)?)?;
            Ok(())
        })
    }
}

/// Closes an n-gram hash of a GPU. What was launched, or is in a graph, must have ended. NULL is left alone. Any thread may call it.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_ngram_hash_close(
    on_gpu: *mut warprow_gpu_ngram_hash,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<OnGpu>(on_gpu)) }
}
