//! Errors of look-ups. Each names the thing and the remedy; the error of the package below is its `source`.

use warprow_driver::DriverError;
use warprow_layout::DType;
use warprow_store::{ChangedFile, NamespaceChanged};

use crate::LookupReport;
use crate::output_buffer::OutputBufferError;

/// A look-up that did not yield every row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The batch or the output does not fit the plan. The output is untouched, nothing was read.
    #[error(transparent)]
    Invalid(#[from] InvalidBatch),
    /// Ids are missing whose feature treats that as an error. The output is untouched, nothing was read.
    #[error("{} of {} ids are missing from their tables, the first at position {}",
        .positions.len(), .report.ids, .positions.first().copied().unwrap_or_default())]
    MissingIds {
        /// Counts so far.
        report: Box<LookupReport>,
        /// Where in `ids` they stand, ascending.
        positions: Vec<usize>,
    },
    /// Rows could not be read. All others are in the output; the rows of these ids are zeros, their mask is 0, and
    /// pooled bags that contain one of them are zeros.
    #[error("the rows of {} of {} ids could not be read, the first at position {}: {source}",
        .positions.len(), .report.ids, .positions.first().copied().unwrap_or_default())]
    RowsFailed {
        /// Counts of the look-up.
        report: Box<LookupReport>,
        /// Where in `ids` they stand, ascending.
        positions: Vec<usize>,
        /// The first failure.
        source: RowError,
    },
    /// A drive's namespace is not what it was when the store was opened. The output is untouched.
    #[error(transparent)]
    NamespaceChanged(#[from] NamespaceChanged),
    /// The slot holds a batch whose rows were fetched ahead.
    #[error("the slot holds a batch that was prefetched: look that up, or forget it, or take another slot")]
    SlotHoldsBatch,
    /// The slot holds no batch whose rows were fetched ahead.
    #[error("the slot holds no prefetched batch: prefetch one first")]
    NothingPrefetched,
    /// The slots of the plan have no room for rows that were fetched ahead.
    #[error("the plan has no room for prefetched rows: plan with PlanOptions::with_prefetch")]
    PrefetchNotPlanned,
}

/// Why a row could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// The row's drive answered with an error, did not answer in time, or failed as a whole.
    #[error(transparent)]
    Drive(#[from] DriverError),
    /// The row's file, which is attached, is no longer what it was.
    #[error(transparent)]
    FileChanged(#[from] ChangedFile),
    /// The row's checksum does not match.
    #[error("table {table:?}, rank {rank}: the row that drive {drive} returned does not match its checksum")]
    Checksum {
        /// The table.
        table: String,
        /// The row.
        rank: u64,
        /// The drive.
        drive: String,
    },
    /// The row's drive is missing from a store that was opened degraded.
    #[error("the row lies on a drive that is missing: {}; open the store with it", .drives.join(", "))]
    MemberMissing {
        /// The members that are missing.
        drives: Vec<String>,
    },
}

/// Why a batch or an output does not fit its plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBatch {
    /// More bags than planned.
    #[error("batch of {given} bags, the plan allows {max}: plan with a larger max_batch")]
    Batch {
        /// Bags given.
        given: usize,
        /// Bags allowed.
        max: usize,
    },
    /// More ids than planned.
    #[error("{given} ids, the plan allows {max}: plan with a larger max_ids")]
    Ids {
        /// Ids given.
        given: usize,
        /// Ids allowed.
        max: usize,
    },
    /// Offsets of the wrong number.
    #[error("{given} offsets: {features} features × {batch} bags need {} or {}",
        *features as usize * batch, *features as usize * batch + 1)]
    OffsetCount {
        /// Offsets given.
        given: usize,
        /// F.
        features: u32,
        /// B.
        batch: usize,
    },
    /// An offset breaks a rule: the first is 0, none is smaller than the one before, none exceeds the number of ids,
    /// and the last of F·B+1 is that number.
    #[error("offsets[{index}] is {value}: {rule}")]
    Offset {
        /// Which.
        index: usize,
        /// What it is.
        value: i128,
        /// What it must be.
        rule: &'static str,
    },
    /// Without offsets, the ids do not divide evenly among the bags.
    #[error("{ids} ids do not divide among {bags} bags: give offsets")]
    Uneven {
        /// Ids given.
        ids: usize,
        /// F·B.
        bags: u64,
    },
    /// Weights were given for a plan without weighted features, or a plan with such features got none.
    #[error("{}", if *.wanted { "a feature is weighted: give one weight an id" } else { "no feature is weighted: give no weights" })]
    Weights {
        /// Whether the plan wants them.
        wanted: bool,
    },
    /// Weights of the wrong number.
    #[error("{given} weights for {ids} ids")]
    WeightCount {
        /// Weights given.
        given: usize,
        /// Ids given.
        ids: usize,
    },
    /// Output elements of another type.
    #[error("the output has elements of type {given}, the plan yields {planned}")]
    OutputType {
        /// Type given.
        given: DType,
        /// Type planned.
        planned: DType,
    },
    /// Output rows too close.
    #[error("row_stride is {given} elements, rows have {width}")]
    Stride {
        /// Elements given.
        given: usize,
        /// Elements of a row.
        width: usize,
    },
    /// Output too short.
    #[error("the output has {given} elements, {needed} are needed")]
    OutputLength {
        /// Elements given.
        given: usize,
        /// Elements needed.
        needed: usize,
    },
    /// The output buffer may still be written to by a drive.
    #[error(transparent)]
    OutputBuffer(#[from] OutputBufferError),
    /// Mask too short.
    #[error("the mask has {given} bytes, {needed} are needed: one an id")]
    MaskLength {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
    },
}
