//! Output that drives can write to.

use std::sync::Arc;

use warprow_dma::{BufferError, DmaBuffer};
use warprow_layout::DType;
use zerocopy::FromBytes;

use crate::batch::Slices;
use crate::resolve::output_type;
use crate::stage::OutputElement;
use warprow_store::{Store, StoreError};

/// Elements that a look-up fills, in memory that the store's drives can reach: rows of whole LBAs, in the output's own
/// type, land in it without a copy (`docs/store.md`, direct landing). Give it as
/// [`OutputRows::Buffer`](crate::OutputRows::Buffer).
///
/// A command that was sent for it and neither came back nor provably never will keeps it *in quarantine*: its elements
/// can then be neither seen nor used, since the drive may still write there. It may be dropped at any time; the memory
/// lives as long as a drive may write to it.
#[derive(Debug)]
pub struct OutputBuffer {
    memory: DmaBuffer,
    dtype: DType,
    len: usize,
}

/// The elements of an [`OutputBuffer`] cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutputBufferError {
    /// A command that has not ended may still write to it.
    #[error(
        "the output buffer is in quarantine: {} may still write to it; look up again with the slots that used it, which brings \
         queues back, or drop it and allocate another", .drives.join(", "))]
    Quarantined {
        /// The functions of these drives.
        drives: Vec<String>,
    },
    /// The buffer has elements of another type.
    #[error("the output buffer has elements of type {has}, not {asked}")]
    Type {
        /// Type of its elements.
        has: DType,
        /// Type asked for.
        asked: DType,
    },
}

impl OutputBuffer {
    /// Allocates output for look-ups of `store`: `elements` zeros of type `dtype`, in memory that all its drives can
    /// reach. Any slot of any plan of the store can fill it. Mapping memory takes its time: allocate once, use often.
    ///
    /// # Errors
    /// [`StoreError::Memory`], and [`StoreError::Function`] if a drive cannot reach so much (for a real drive, the limit
    /// of locked memory may be too low).
    #[allow(unsafe_code, reason = "it vouches for who drives the devices")]
    pub fn allocate(store: &Store, dtype: DType, elements: usize) -> Result<Self, StoreError> {
        let dtype = output_type(dtype);
        let mut functions = Vec::new();
        for member in store.view().drives().iter().flatten() {
            let function = member.controller().function();
            // Namespaces of one controller share it; one that was given up serves nothing.
            if member.controller().failure().is_none() && !functions.iter().any(|other| Arc::ptr_eq(other, function)) {
                functions.push(function.clone());
            }
        }
        let bytes = elements.saturating_mul(dtype.size() as usize);
        // SAFETY: these are the functions of devices, whose contract it is that this store alone drives them
        // (`Device`). It does so through controllers and queue pairs that it gives to nobody, by their safe methods,
        // and by kernels whose commands land in the queues' own memory (docs/gpu.md).
        let memory = unsafe { DmaBuffer::allocate(bytes, &functions) }.map_err(|error| match error {
            BufferError::Allocate(error) => StoreError::Memory(error),
            BufferError::Map(error) => StoreError::Function(error),
        })?;
        Ok(Self { memory, dtype, len: elements })
    }
}

impl OutputBuffer {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements: `f32`, `f16`, `bf16`, `i8` or `u8`, which is what [`dtype`](Self::dtype) says.
    ///
    /// # Errors
    /// [`OutputBufferError::Type`]; [`OutputBufferError::Quarantined`].
    pub fn elements<O: OutputElement>(&self) -> Result<&[O], OutputBufferError> {
        self.check::<O>()?;
        let bytes =
            self.memory.bytes().and_then(|bytes| bytes.get(..self.bytes())).ok_or_else(|| self.quarantined())?;
        Ok(<[O]>::ref_from_bytes(bytes).unwrap_or_default())
    }

    /// The elements, to be written.
    ///
    /// # Errors
    /// The errors of [`elements`](Self::elements).
    pub fn elements_mut<O: OutputElement>(&mut self) -> Result<&mut [O], OutputBufferError> {
        self.check::<O>()?;
        self.reclaim()?;
        let len = self.bytes();
        let bytes = self.memory.bytes_mut().and_then(|bytes| bytes.get_mut(..len)).unwrap_or_default();
        Ok(<[O]>::mut_from_bytes(bytes).unwrap_or_default())
    }

    /// Takes the buffer out of quarantine, if no command can write to it any more: its queues were brought back, or its
    /// drives reset. What lies in it then at rows whose mask is 0 is anything: late data may have come after these were
    /// zeroed.
    ///
    /// # Errors
    /// [`OutputBufferError::Quarantined`].
    pub fn reclaim(&mut self) -> Result<(), OutputBufferError> {
        if self.memory.reclaim() { Ok(()) } else { Err(self.quarantined()) }
    }

    fn bytes(&self) -> usize {
        // No more than was allocated.
        self.len * self.dtype.size() as usize
    }

    fn check<O: OutputElement>(&self) -> Result<(), OutputBufferError> {
        let has = self.dtype;
        let asked = O::DTYPE;
        if has == asked { Ok(()) } else { Err(OutputBufferError::Type { has, asked }) }
    }

    fn quarantined(&self) -> OutputBufferError {
        OutputBufferError::Quarantined {
            drives: self.memory.borrowers().map(|borrower| borrower.name().to_owned()).collect(),
        }
    }

    pub(crate) fn slices(&mut self) -> Result<Slices<'_>, OutputBufferError> {
        Ok(match self.dtype {
            DType::F16 => Slices::F16(self.elements_mut()?),
            DType::BF16 => Slices::Bf16(self.elements_mut()?),
            DType::I8 => Slices::I8(self.elements_mut()?),
            DType::U8 => Slices::U8(self.elements_mut()?),
            // There are no others.
            _ => Slices::F32(self.elements_mut()?),
        })
    }

    pub(crate) fn memory(&mut self) -> &mut DmaBuffer {
        &mut self.memory
    }
}
