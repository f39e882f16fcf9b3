//! What a look-up on the GPU takes and fills: device addresses.

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
    /// Bytes of one.
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

/// How many ids and bags there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Len {
    /// So many ids; the bags are those of the batch.
    Host(usize),
    /// Two u64 in device memory when the look-up runs: ids, and bags of each feature. Neither may pass what was planned: then
    /// nothing is looked up, and the report says so.
    Device(CUdeviceptr),
}

/// One batch over all features of a plan: addresses of device memory, or of pinned host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuBatch {
    /// The ids of all bags, feature-major as in [`Batch`](warprow_lookup::Batch).
    pub ids: CUdeviceptr,
    /// Their type.
    pub id_type: IdType,
    /// Where each bag begins: F·B + 1 entries, of type `offset_type`. `None`: all bags are of one length.
    pub offsets: Option<CUdeviceptr>,
    /// Type of the offsets.
    pub offset_type: IdType,
    /// One f32 an id. Given if and only if a feature of the plan is weighted.
    pub weights: Option<CUdeviceptr>,
    /// B: bags of each feature.
    pub batch: u32,
    /// How many ids.
    pub len: Len,
}

impl GpuBatch {
    /// `ids` ids of 64 bits in `batch` bags a feature, all of one length, without weights.
    pub fn new(ids: CUdeviceptr, len: Len, batch: u32) -> Self {
        Self { ids, id_type: IdType::I64, offsets: None, offset_type: IdType::I64, weights: None, batch, len }
    }

    /// With ids of that type.
    #[must_use]
    pub fn with_id_type(self, id_type: IdType) -> Self {
        Self { id_type, ..self }
    }

    /// With offsets.
    #[must_use]
    pub fn with_offsets(self, offsets: CUdeviceptr, offset_type: IdType) -> Self {
        Self { offsets: Some(offsets), offset_type, ..self }
    }

    /// With weights.
    #[must_use]
    pub fn with_weights(self, weights: CUdeviceptr) -> Self {
        Self { weights: Some(weights), ..self }
    }
}

/// Where rows go.
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
    /// Rows at `rows`, so many elements apart, without a mask.
    pub fn new(rows: CUdeviceptr, row_stride: usize) -> Self {
        Self { rows, row_stride, mask: None }
    }

    /// With a mask.
    #[must_use]
    pub fn with_mask(self, mask: CUdeviceptr) -> Self {
        Self { mask: Some(mask), ..self }
    }
}
