//! Numbers of the header that choose among a few things, and what they mean.

use std::ffi::c_void;

use ::warprow_store::KeyKind;
use warprow_layout::{ChunkSpread, DType};
use warprow_lookup::{BoundsCheck, DedupeMethod, FailedRows, Ids, MaskMeaning, MissingPolicy, Pooling, ReadMerging};

use crate::arguments::slice;
use crate::error::Failure;

/// Types of elements: of tables, and of outputs.
#[repr(i32)]
pub enum warprow_dtype {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// The upper half of a binary32.
    Bf16 = 2,
    /// Signed bytes.
    I8 = 3,
    /// Unsigned bytes.
    U8 = 4,
    /// Eight-bit floats of OCP E4M3, without infinities.
    F8E4m3 = 5,
    /// Eight-bit floats of OCP E5M2.
    F8E5m2 = 6,
    /// Unsigned bytes, behind which each row has a scale and a bias of an f32 each. Of tables alone.
    Q8 = 7,
    /// Halves of bytes, behind which each row has a scale and a bias of an f16 each. Of tables alone.
    Q4 = 8,
    /// E4M3 bytes, behind which each row has a power of two for each 32 of them, a byte of E8M0: MXFP8. As an output: the bytes of rows.
    Mxfp8 = 9,
    /// E4M3 bytes, behind which each row has a scale of an f32. As an output: the bytes of rows.
    F8E4m3s = 10,
    /// Halves of bytes of E2M1, behind which each row has an E4M3 scale for each 16 of them, and an f32 for all of these: NVFP4. As an
    /// output: the bytes of rows.
    Nvfp4 = 11,
}

/// Which free chunks of each drive a load takes.
#[repr(i32)]
pub enum warprow_span {
    /// The lowest.
    Packed = 0,
    /// Some from all over the drive, evenly, for drives on which reads of rows that lie far apart go on side by side.
    Whole = 1,
}

/// Types of ids and offsets.
#[repr(i32)]
pub enum warprow_int_type {
    /// Signed, 64 bits.
    I64 = 0,
    /// Signed, 32 bits.
    I32 = 1,
    /// Unsigned, 64 bits.
    U64 = 2,
    /// Unsigned, 32 bits.
    U32 = 3,
}

/// How the rows of a bag become one.
#[repr(i32)]
pub enum warprow_pooling {
    /// Rows stay single: each id has an output row of its own.
    None = 0,
    /// A bag becomes the sum of its rows.
    Sum = 1,
    /// A bag becomes the sum of its rows, divided by the number of rows that count.
    Mean = 2,
}

/// Which row an id gets that its table does not have.
#[repr(i32)]
pub enum warprow_missing {
    /// Of a feature: as the plan says. Of a plan: the table's default row.
    Unset = 0,
    /// The table's default row.
    DefaultRow = 1,
    /// Zeros, which count for a mean.
    Zero = 2,
    /// None: nothing is added, nothing counts.
    Skip = 3,
    /// The look-up fails: on the host before it reads anything; on a GPU the ticket says so, and such ids get zeros.
    Error = 4,
}

/// What a report says of ids that their table does not have.
#[repr(i32)]
pub enum warprow_bounds {
    /// Of a feature: as the plan says. Of a plan: how many there are.
    Unset = 0,
    /// Nothing: they count as padding.
    Ignore = 1,
    /// How many there are.
    Count = 2,
    /// How many there are, and position and id of the first.
    Report = 3,
}

/// What a feature's padding id is.
#[repr(i32)]
pub enum warprow_padding {
    /// There is none.
    None = 0,
    /// The field `padding`, as it is.
    Signed = 1,
    /// The bits of the field `padding` as an unsigned number.
    Unsigned = 2,
}

/// Which rows on drives share a read command.
#[repr(i32)]
pub enum warprow_merging {
    /// On the host rows of neighbouring LBAs, on a GPU rows of one LBA.
    Unset = 0,
    /// Rows of one LBA.
    Separate = 1,
    /// Rows of neighbouring LBAs.
    Neighbours = 2,
    /// What each drive reads more cheaply together, which is measured when the executor is attached.
    Measured = 3,
}

/// What the output has for rows that could not be read.
#[repr(i32)]
pub enum warprow_failed_rows {
    /// Zeros.
    Zeros = 0,
    /// NaN, in the place of these zeros. Of outputs of f32, f16 or bf16 alone.
    Nan = 1,
}

/// What a mask tells of each id, by a byte that is 1 or 0.
#[repr(i32)]
pub enum warprow_mask {
    /// 1: the table has the id's row, which was read, and the id is no padding id.
    Found = 0,
    /// 1: the id's row could not be read.
    Failed = 1,
}

/// How look-ups on a GPU find the different rows among the ids.
#[repr(i32)]
pub enum warprow_dedupe {
    /// The way that was fastest in the benchmarks among those that the batch is small enough for.
    Unset = 0,
    /// One thread block sorts: up to 8,192 ids.
    Block = 1,
    /// A bit for each row outside GPU memory.
    Bitmap = 2,
    /// A hash table, and a sort of what is different.
    Hash = 3,
    /// A sort of all.
    Radix = 4,
}

/// The numbers that a table's rows are looked up by.
#[repr(i32)]
pub enum warprow_key_type {
    /// There are no keys: ids count from 0.
    None = 0,
    /// Unsigned numbers of 64 bits.
    U64 = 1,
    /// Signed numbers of 64 bits, each passed as its bits.
    I64 = 2,
}

fn unknown(what: &str, number: i32) -> Failure {
    Failure::invalid(format!("{what} is {number}, which stands for nothing: use a constant of warprow.h"))
}

pub(crate) fn dtype(what: &str, number: i32) -> Result<DType, Failure> {
    u8::try_from(number).ok().and_then(DType::from_code).ok_or_else(|| unknown(what, number))
}

pub(crate) fn span(number: i32) -> Result<ChunkSpread, Failure> {
    match number {
        0 => Ok(ChunkSpread::Packed),
        1 => Ok(ChunkSpread::Whole),
        _ => Err(unknown("span", number)),
    }
}

pub(crate) fn pooling(number: i32) -> Result<Pooling, Failure> {
    match number {
        0 => Ok(Pooling::None),
        1 => Ok(Pooling::Sum),
        2 => Ok(Pooling::Mean),
        _ => Err(unknown("pooling", number)),
    }
}

pub(crate) fn missing(number: i32) -> Result<Option<MissingPolicy>, Failure> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(MissingPolicy::Default)),
        2 => Ok(Some(MissingPolicy::Zero)),
        3 => Ok(Some(MissingPolicy::Skip)),
        4 => Ok(Some(MissingPolicy::Error)),
        _ => Err(unknown("missing", number)),
    }
}

pub(crate) fn bounds(number: i32) -> Result<Option<BoundsCheck>, Failure> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(BoundsCheck::Ignore)),
        2 => Ok(Some(BoundsCheck::Count)),
        3 => Ok(Some(BoundsCheck::Report)),
        _ => Err(unknown("bounds", number)),
    }
}

pub(crate) fn padding(kind: i32, padding: i64) -> Result<Option<i128>, Failure> {
    match kind {
        0 => Ok(None),
        1 => Ok(Some(padding.into())),
        2 => Ok(Some((padding as u64).into())),
        _ => Err(unknown("padding_kind", kind)),
    }
}

pub(crate) fn merging(number: i32) -> Result<Option<ReadMerging>, Failure> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(ReadMerging::Separate)),
        2 => Ok(Some(ReadMerging::Neighbours)),
        3 => Ok(Some(ReadMerging::Measured)),
        _ => Err(unknown("merging", number)),
    }
}

pub(crate) fn failed_rows(number: i32) -> Result<FailedRows, Failure> {
    match number {
        0 => Ok(FailedRows::Zeros),
        1 => Ok(FailedRows::Nan),
        _ => Err(unknown("failed_rows", number)),
    }
}

pub(crate) fn mask(number: i32) -> Result<MaskMeaning, Failure> {
    match number {
        0 => Ok(MaskMeaning::Found),
        1 => Ok(MaskMeaning::Failed),
        _ => Err(unknown("mask", number)),
    }
}

pub(crate) fn dedupe(number: i32) -> Result<Option<DedupeMethod>, Failure> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(DedupeMethod::Block)),
        2 => Ok(Some(DedupeMethod::Bitmap)),
        3 => Ok(Some(DedupeMethod::Hash)),
        4 => Ok(Some(DedupeMethod::Radix)),
        _ => Err(unknown("dedupe", number)),
    }
}

pub(crate) fn key_kind(number: i32) -> Result<Option<KeyKind>, Failure> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(KeyKind::U64)),
        2 => Ok(Some(KeyKind::I64)),
        _ => Err(unknown("key_type", number)),
    }
}

pub(crate) fn key_type(kind: Option<KeyKind>) -> i32 {
    match kind {
        None => warprow_key_type::None as i32,
        Some(KeyKind::U64) => warprow_key_type::U64 as i32,
        Some(KeyKind::I64) => warprow_key_type::I64 as i32,
    }
}

/// Integers of the caller's, of a type that a number names.
///
/// # Safety
/// `at` points to `count` integers of that type that stay as they are for `'a`.
pub(crate) unsafe fn integers<'a>(
    what: &str,
    at: *const c_void,
    count: usize,
    int_type: i32,
) -> Result<Ids<'a>, Failure> {
    // SAFETY: the caller's promise, in each case.
    unsafe {
        match int_type {
            0 => Ok(Ids::I64(slice(what, at, count)?)),
            1 => Ok(Ids::I32(slice(what, at, count)?)),
            2 => Ok(Ids::U64(slice(what, at, count)?)),
            3 => Ok(Ids::U32(slice(what, at, count)?)),
            _ => Err(unknown(&format!("the type of {what}"), int_type)),
        }
    }
}

pub(crate) fn gpu_int_type(what: &str, int_type: i32) -> Result<warprow_gpu::IdType, Failure> {
    use warprow_gpu::IdType;
    match int_type {
        0 => Ok(IdType::I64),
        1 => Ok(IdType::I32),
        2 => Ok(IdType::U64),
        3 => Ok(IdType::U32),
        _ => Err(unknown(&format!("the type of {what}"), int_type)),
    }
}
