//! Where unpooled rows are written to: plain memory, or an output buffer.

use warprow_dma::prefetch::prefetch;
use warprow_dma::{DmaBuffer, DmaMemory};
use zerocopy::IntoBytes;

use crate::host::expand::with_element;
use crate::resolve::ResolvedTable;
use crate::stage::{E4M3, E5M2, Element, Mxfp8, Nvfp4, OutputElement, Q4, Q8, ScaledE4M3, convert};
use half::{bf16, f16};
use warprow_layout::DType;

/// The most elements of an output row that are brought towards the caches before they are written.
const WRITTEN_AHEAD: usize = 1024;

/// Output memory for unpooled rows. Row `id` is the row of the id at position `id`. It has the plan's width; elements
/// behind those of its table are zeros.
pub(crate) trait RowsOut {
    /// Type of the output's elements.
    type Element: OutputElement;

    /// Fills row `id`, all of its width, with elements of that value; integers are zeros.
    fn fill(&mut self, id: usize, value: f32);

    /// Has memory of row `id`, if there is such a row, brought towards the caches, because it is written soon.
    fn expect(&self, _id: usize) {}

    /// Writes a stored row of `dim` elements to row `id`, converted; `None`: zeros.
    fn put<E: Element>(&mut self, id: usize, stored: Option<&[u8]>, dim: usize);

    /// Writes the row of `table` that lies in `memory` from byte `at` on to row `id`, converted. `scratch` has room for
    /// the stored row.
    fn land(&mut self, id: usize, table: &ResolvedTable, memory: &DmaMemory, at: usize, scratch: &mut [u8]);

    /// The byte of the output at which row `id` begins, if drives can write to the output.
    fn place(&self, id: usize) -> Option<usize>;

    /// Completes row `id` after a drive has written the elements of its table: fills the rest with zeros.
    fn landed(&mut self, id: usize, table: &ResolvedTable);

    /// Copies the elements of row `id`, which a drive has written, to `into`.
    fn read(&self, id: usize, into: &mut [u8]);

    /// Copies row `from` to row `to`.
    fn repeat(&mut self, from: usize, to: usize);
}

/// An element of that value; an integer is 0.
fn element<O: OutputElement>(value: f32) -> O {
    let mut element = [O::default()];
    if value != 0.0 {
        O::narrow(&[value], &mut element);
    }
    element[0]
}

/// Ordinary memory.
pub(crate) struct PlainRows<'a, O> {
    pub rows: &'a mut [O],
    /// Elements from the beginning of one row to that of the next.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
}

impl<O: OutputElement> PlainRows<'_, O> {
    #[inline(always)]
    fn row(&mut self, id: usize) -> &mut [O] {
        &mut self.rows[id * self.stride..][..self.width]
    }
}

impl<O: OutputElement> RowsOut for PlainRows<'_, O> {
    type Element = O;

    fn fill(&mut self, id: usize, value: f32) {
        self.row(id).fill(element(value));
    }

    #[inline(always)]
    fn expect(&self, id: usize) {
        if let Some(row) = self.rows.get(id * self.stride..).and_then(|rows| rows.get(..self.width.min(WRITTEN_AHEAD)))
        {
            prefetch(row.as_bytes());
        }
    }

    #[inline(always)]
    fn put<E: Element>(&mut self, id: usize, stored: Option<&[u8]>, dim: usize) {
        let (row, tail) = self.row(id).split_at_mut(dim);
        match stored {
            Some(stored) => convert::<E, O>(stored, row),
            None => row.fill(O::default()),
        }
        // Most rows fill theirs: they are not to pay for a call that fills nothing.
        if !tail.is_empty() {
            tail.fill(O::default());
        }
    }

    #[inline(always)]
    fn land(&mut self, id: usize, table: &ResolvedTable, memory: &DmaMemory, at: usize, scratch: &mut [u8]) {
        let (row, tail) = self.row(id).split_at_mut(table.dim);
        if table.dtype == O::DTYPE {
            memory.read(at, row.as_mut_bytes());
        } else {
            let scratch = &mut scratch[..table.row_bytes];
            memory.read(at, scratch);
            with_element!(table.dtype, E => convert::<E, O>(scratch, row));
        }
        tail.fill(O::default());
    }

    #[inline(always)]
    fn place(&self, _id: usize) -> Option<usize> {
        None
    }

    fn landed(&mut self, _id: usize, _table: &ResolvedTable) {}

    fn read(&self, _id: usize, _into: &mut [u8]) {}

    fn repeat(&mut self, from: usize, to: usize) {
        let from = from * self.stride;
        self.rows.copy_within(from..from + self.width, to * self.stride);
    }
}

/// An [`OutputBuffer`](crate::OutputBuffer)'s memory, to which drives may be writing other rows.
pub(crate) struct BufferRows<'a, O> {
    pub memory: &'a mut DmaBuffer,
    /// Elements from the beginning of one row to that of the next.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
    /// Room for one row, in which it is converted before it is written.
    pub row: &'a mut [O],
}

impl<O: OutputElement> BufferRows<'_, O> {
    #[inline(always)]
    fn byte(&self, id: usize) -> usize {
        id * self.stride * size_of::<O>()
    }

    #[inline(always)]
    fn zero_tail(&mut self, id: usize, dim: usize) {
        if dim < self.width {
            self.memory.fill(self.byte(id) + dim * size_of::<O>(), (self.width - dim) * size_of::<O>(), 0);
        }
    }
}

impl<O: OutputElement> RowsOut for BufferRows<'_, O> {
    type Element = O;

    fn fill(&mut self, id: usize, value: f32) {
        if value == 0.0 {
            return self.zero_tail(id, 0);
        }
        let at = self.byte(id);
        let row = &mut self.row[..self.width];
        row.fill(element(value));
        self.memory.write(at, row.as_bytes());
    }

    #[inline(always)]
    fn put<E: Element>(&mut self, id: usize, stored: Option<&[u8]>, dim: usize) {
        let at = self.byte(id);
        match stored {
            Some(stored) if E::DTYPE == O::DTYPE => self.memory.write(at, stored),
            Some(stored) => {
                let row = &mut self.row[..dim];
                convert::<E, O>(stored, row);
                self.memory.write(at, row.as_bytes());
            }
            None => self.memory.fill(at, dim * size_of::<O>(), 0),
        }
        self.zero_tail(id, dim);
    }

    #[inline(always)]
    fn land(&mut self, id: usize, table: &ResolvedTable, memory: &DmaMemory, at: usize, scratch: &mut [u8]) {
        if table.dtype == O::DTYPE {
            self.memory.copy_from(self.byte(id), memory, at, table.row_bytes);
            self.zero_tail(id, table.dim);
        } else {
            let scratch = &mut scratch[..table.row_bytes];
            memory.read(at, scratch);
            with_element!(table.dtype, E => self.put::<E>(id, Some(scratch), table.dim));
        }
    }

    #[inline(always)]
    fn place(&self, id: usize) -> Option<usize> {
        Some(self.byte(id))
    }

    #[inline(always)]
    fn landed(&mut self, id: usize, table: &ResolvedTable) {
        self.zero_tail(id, table.dim);
    }

    fn read(&self, id: usize, into: &mut [u8]) {
        self.memory.read(self.byte(id), into);
    }

    #[inline(always)]
    fn repeat(&mut self, from: usize, to: usize) {
        self.memory.copy_within(self.byte(from), self.byte(to), self.width * size_of::<O>());
    }
}
