//! What a look-up takes and what it fills.

use half::{bf16, f16};
use warprow_layout::DType;
use zerocopy::IntoBytes;

use crate::output_buffer::{OutputBuffer, OutputBufferError};

/// A slice of integers of a batch: its ids, or its offsets. `From` makes one of `&[i32]`, `&[i64]`, `&[u32]` and
/// `&[u64]`.
#[derive(Debug, Clone, Copy)]
pub enum Ids<'a> {
    /// 32-bit, signed.
    I32(&'a [i32]),
    /// 64-bit, signed.
    I64(&'a [i64]),
    /// 32-bit, unsigned.
    U32(&'a [u32]),
    /// 64-bit, unsigned.
    U64(&'a [u64]),
}

impl Ids<'_> {
    /// The number of integers.
    pub fn len(&self) -> usize {
        match self {
            Self::I32(ids) => ids.len(),
            Self::I64(ids) => ids.len(),
            Self::U32(ids) => ids.len(),
            Self::U64(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The integer at position `index`, with its exact value; `None` past the end.
    pub fn get(&self, index: usize) -> Option<i128> {
        match self {
            Self::I32(ids) => ids.get(index).map(|&id| id.into()),
            Self::I64(ids) => ids.get(index).map(|&id| id.into()),
            Self::U32(ids) => ids.get(index).map(|&id| id.into()),
            Self::U64(ids) => ids.get(index).map(|&id| id.into()),
        }
    }
}

macro_rules! ids_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$type]> for Ids<'a> {
            fn from(ids: &'a [$type]) -> Self {
                Self::$variant(ids)
            }
        }
        impl<'a> From<&'a Vec<$type>> for Ids<'a> {
            fn from(ids: &'a Vec<$type>) -> Self {
                Self::$variant(ids)
            }
        }
        impl<'a, const N: usize> From<&'a [$type; N]> for Ids<'a> {
            fn from(ids: &'a [$type; N]) -> Self {
                Self::$variant(ids)
            }
        }
    )*};
}
ids_from!(i32 => I32, i64 => I64, u32 => U32, u64 => U64);

/// The ids of one look-up: B bags for each feature of a plan.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// # let host = HostExecutor::attach(&store, HostOptions::default())?;
/// let features = [Feature::new("clicks", "user").pooling(Pooling::Sum).weighted()];
/// let plan = host.plan(&features, PlanOptions::default())?;
/// // Two bags: ids 1 and 2, and id 3; each id with a weight.
/// let batch = Batch::new(&[1i64, 2, 3], 2).with_offsets(&[0i64, 2]).with_weights(&[1.0, 0.5, 2.0]);
/// let mut sums = [0.0f32; 8];
/// plan.slot()?.lookup(&batch, &mut Output::new(OutputRows::F32(&mut sums), plan.width()))?;
/// assert_eq!(sums, [8.0, 9.5, 11.0, 12.5, 24.0, 26.0, 28.0, 30.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// The ids of all bags, one after another: feature 0's bags 0 to B-1, then feature 1's, and so on.
    pub ids: Ids<'a>,
    /// Where each bag begins in `ids`, for F features: F·B entries, or F·B + 1 with the end of the last bag. The first
    /// is 0, and none is smaller than the one before. `None`: each bag has ids.len() / (F·B) ids.
    pub offsets: Option<Ids<'a>>,
    /// One weight for each id. Weights of ids of unweighted features are not used. Weights are given if and only if a
    /// feature of the plan is weighted.
    pub weights: Option<&'a [f32]>,
    /// B, the number of bags of each feature. 0 is valid if there are no ids.
    pub batch: usize,
}

impl<'a> Batch<'a> {
    /// A batch of `batch` bags for each feature, all of the same length, without weights.
    pub fn new(ids: impl Into<Ids<'a>>, batch: usize) -> Self {
        Self { ids: ids.into(), offsets: None, weights: None, batch }
    }

    /// The batch with bags that begin at [`offsets`](Self::offsets).
    #[must_use]
    pub fn with_offsets(self, offsets: impl Into<Ids<'a>>) -> Self {
        Self { offsets: Some(offsets.into()), ..self }
    }

    /// The batch with one [weight](Self::weights) for each id.
    #[must_use]
    pub fn with_weights(self, weights: &'a [f32]) -> Self {
        Self { weights: Some(weights), ..self }
    }
}

/// The elements that a look-up fills: a slice of the caller's, or an [`OutputBuffer`]. Their type is the one that
/// [`PlanOptions::out`](crate::PlanOptions::out) names.
#[derive(Debug)]
#[non_exhaustive]
pub enum OutputRows<'a> {
    /// IEEE 754 binary32.
    F32(&'a mut [f32]),
    /// IEEE 754 binary16.
    F16(&'a mut [f16]),
    /// The upper half of a binary32.
    Bf16(&'a mut [bf16]),
    /// Signed bytes.
    I8(&'a mut [i8]),
    /// Unsigned bytes.
    U8(&'a mut [u8]),
    /// Elements of any type, in memory that drives can write to.
    Buffer(&'a mut OutputBuffer),
}

/// Elements to fill, in plain memory.
pub(crate) enum Slices<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
    I8(&'a mut [i8]),
    U8(&'a mut [u8]),
}

impl OutputRows<'_> {
    /// All elements, as a slice of their type.
    pub(crate) fn slices(&mut self) -> Result<Slices<'_>, OutputBufferError> {
        Ok(match self {
            Self::F32(rows) => Slices::F32(rows),
            Self::F16(rows) => Slices::F16(rows),
            Self::Bf16(rows) => Slices::Bf16(rows),
            Self::I8(rows) => Slices::I8(rows),
            Self::U8(rows) => Slices::U8(rows),
            Self::Buffer(buffer) => return buffer.slices(),
        })
    }

    /// The bytes of all elements.
    ///
    /// # Errors
    /// [`OutputBufferError::Quarantined`], while a drive may still write to the buffer.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], OutputBufferError> {
        Ok(match self.slices()? {
            Slices::F32(rows) => rows.as_mut_bytes(),
            Slices::F16(rows) => rows.as_mut_bytes(),
            Slices::Bf16(rows) => rows.as_mut_bytes(),
            Slices::I8(rows) => rows.as_mut_bytes(),
            Slices::U8(rows) => rows,
        })
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::BF16,
            Self::I8(_) => DType::I8,
            Self::U8(_) => DType::U8,
            Self::Buffer(buffer) => buffer.dtype(),
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(rows) => rows.len(),
            Self::F16(rows) => rows.len(),
            Self::Bf16(rows) => rows.len(),
            Self::I8(rows) => rows.len(),
            Self::U8(rows) => rows.len(),
            Self::Buffer(buffer) => buffer.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a look-up's result goes.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// # let host = HostExecutor::attach(&store, HostOptions::default())?;
/// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// // Rows of 4 elements begin every 6 elements; the 2 elements between rows are left as they are. The table has no row 1000.
/// let (mut rows, mut found) = ([-1.0f32; 12], [0u8; 2]);
/// let mut out = Output::new(OutputRows::F32(&mut rows), 6).with_mask(&mut found);
/// plan.slot()?.lookup(&Batch::new(&[1i64, 1000], 2), &mut out)?;
/// assert_eq!(rows, [4.0, 5.0, 6.0, 7.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, -1.0, -1.0]);
/// assert_eq!(found, [1, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Output<'a> {
    /// Pooled: row b holds bag b of every feature side by side, `[B, row_stride]`. Unpooled: row i is the row of id i,
    /// `[ids, row_stride]`; where the feature's table is narrower than the plan's [`width`](crate::Plan::width), the
    /// rest of that width is zeros. The last row may end at the plan's width; elements between the plan's width and the
    /// stride are left as they are.
    pub rows: OutputRows<'a>,
    /// Elements from one row to the next; at least the plan's [`width`](crate::Plan::width).
    pub row_stride: usize,
    /// Filled with one byte for each id: 1 if the id's row was found and read; 0 if the id is missing or padding, or
    /// its row could not be read.
    pub mask: Option<&'a mut [u8]>,
}

impl<'a> Output<'a> {
    /// An output whose rows begin every `row_stride` elements, without a mask.
    pub fn new(rows: OutputRows<'a>, row_stride: usize) -> Self {
        Self { rows, row_stride, mask: None }
    }

    /// The output with a [mask](Self::mask), which has room for one byte for each id.
    #[must_use]
    pub fn with_mask(self, mask: &'a mut [u8]) -> Self {
        Self { mask: Some(mask), ..self }
    }
}
