//! Batches and outputs of look-ups on the GPU, by their addresses there.

use cudarc::driver::sys::CUdeviceptr;

/// Type of ids and offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum IdType {
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    #[default]
    I64,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
}

impl IdType {
    /// Bytes of one id.
    pub const fn size(self) -> u64 {
        match self {
            Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    pub(crate) const fn is_signed(self) -> bool {
        matches!(self, Self::I32 | Self::I64)
    }

    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::I32 => warprow_kernels::abi::id::I32,
            Self::I64 => warprow_kernels::abi::id::I64,
            Self::U32 => warprow_kernels::abi::id::U32,
            Self::U64 => warprow_kernels::abi::id::U64,
        }
    }
}

/// How many ids and bags a batch has, or where the GPU finds that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchLen {
    /// The batch has so many ids, and for each feature as many bags as [`GpuBatch::batch`] says.
    Host(usize),
    /// The address of two u64 in device memory, which the look-up reads when it runs: ids, and bags of each feature. If
    /// either is more than was planned, nothing is looked up, and the report says so.
    Device(CUdeviceptr),
}

/// One batch over all features of a plan: addresses of device memory, or of pinned host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuBatch {
    /// The ids of all bags, feature-major as in [`Batch`](warprow_lookup::Batch).
    pub ids: CUdeviceptr,
    /// The type of the ids.
    pub id_type: IdType,
    /// Where each bag begins: F·B + 1 entries, of type `offset_type`, or F·B if `has_end` is false. `None`: all bags
    /// are of one length.
    pub offsets: Option<CUdeviceptr>,
    /// Type of the offsets.
    pub offset_type: IdType,
    /// Whether the offsets have an entry past the last bag, which is the number of ids.
    pub has_end: bool,
    /// One f32 an id. Given if and only if a feature of the plan is weighted.
    pub weights: Option<CUdeviceptr>,
    /// B: how many bags each feature has.
    pub batch: u32,
    /// How many ids the batch has.
    pub len: BatchLen,
}

impl GpuBatch {
    /// A batch of signed 64-bit ids at address `ids`, in `batch` bags for each feature, all of one length, without
    /// weights.
    pub fn new(ids: CUdeviceptr, len: BatchLen, batch: u32) -> Self {
        Self {
            ids,
            id_type: IdType::I64,
            offsets: None,
            offset_type: IdType::I64,
            has_end: true,
            weights: None,
            batch,
            len,
        }
    }

    /// Says that the ids are of type `id_type`.
    #[must_use]
    pub fn with_id_type(self, id_type: IdType) -> Self {
        Self { id_type, ..self }
    }

    /// Says where each bag begins, by offsets of type `offset_type`.
    #[must_use]
    pub fn with_offsets(self, offsets: CUdeviceptr, offset_type: IdType) -> Self {
        Self { offsets: Some(offsets), offset_type, ..self }
    }

    /// Says that the offsets end with where the last bag begins, as PyTorch's do.
    #[must_use]
    pub fn without_end(self) -> Self {
        Self { has_end: false, ..self }
    }

    /// Gives each id a weight.
    #[must_use]
    pub fn with_weights(self, weights: CUdeviceptr) -> Self {
        Self { weights: Some(weights), ..self }
    }
}

/// Where a look-up on the GPU writes rows and mask: addresses of device memory, or of pinned host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOutput {
    /// Output rows, of the plan's type: `[B, ΣD]` pooled, `[ids, Dmax]` unpooled.
    pub rows: CUdeviceptr,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// A byte for each id: 1 if its row was found and read.
    pub mask: Option<CUdeviceptr>,
}

impl GpuOutput {
    /// An output with rows at address `rows`, `row_stride` elements apart, without a mask.
    pub fn new(rows: CUdeviceptr, row_stride: usize) -> Self {
        Self { rows, row_stride, mask: None }
    }

    /// Asks for a mask, at address `mask`.
    #[must_use]
    pub fn with_mask(self, mask: CUdeviceptr) -> Self {
        Self { mask: Some(mask), ..self }
    }
}
