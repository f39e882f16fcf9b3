//! Plans of large transfers: a region of a generation as contiguous runs on the drives.

use std::ops::Range;

use crate::placement::Placement;
use crate::table::LbaRegion;

/// A contiguous run of LBAs on one drive, gathered from stripe units that lie `K` units apart in the generation.
///
/// A buffer for it is the concatenation of its [`pieces`](Self::pieces).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Member index.
    pub drive: u16,
    /// First LBA on the drive.
    pub lba: u64,
    /// Bytes of the extent: whole stripe units, except in a [`run`](Placement::run).
    pub bytes: usize,
    /// Generation LBA of the first piece.
    first_lba: u64,
    /// Generation LBAs from one piece to the next.
    stride_lbas: u64,
    /// Bytes of a piece: a stripe unit, except in a [`run`](Placement::run).
    piece_bytes: usize,
}

impl Extent {
    /// Moves the extent to LBA `lba` of member `drive`: it has the same pieces, at another place.
    pub(crate) fn moved_to(self, drive: u16, lba: u64) -> Self {
        Self { drive, lba, ..self }
    }

    /// Generation LBA of the first piece.
    pub(crate) fn first_lba(&self) -> u64 {
        self.first_lba
    }

    /// Each piece: its first LBA in the generation's address space, and its bytes in the extent's buffer.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let Self { bytes, first_lba, stride_lbas, piece_bytes, .. } = *self;
        (0..bytes / piece_bytes).map(move |i| {
            let begin = i * piece_bytes;
            (first_lba + i as u64 * stride_lbas, begin..begin + piece_bytes)
        })
    }
}

/// The extents of a region. See [`Placement::extents`].
#[derive(Debug, Clone)]
pub struct Extents<'a> {
    placement: &'a Placement,
    /// Units of the region.
    units: Range<u64>,
    /// Units of an extent, at most.
    depth: u64,
    /// Next band of rows of units, and the next column in it.
    row: u64,
    column: u64,
}

impl Placement {
    /// The region as extents of at most `max_bytes`, or of one stripe unit if that is more. An extent is contiguous on
    /// its drive, so the caller can split one that the drive cannot move in one command.
    ///
    /// The order follows the region in bands of `max_bytes` times K, so that a memory-mapped source is read nearly in
    /// order, while neighbours in the order alternate between drives. LBAs past the generation's end are left out.
    pub fn extents(&self, region: LbaRegion, max_bytes: usize) -> Extents<'_> {
        let shift = self.stripe_lba_shift();
        let end = region.first_lba.saturating_add(region.lbas).min(self.lbas());
        let units = (region.first_lba.min(end) >> shift)..end.div_ceil(self.stripe_lbas());
        Extents {
            placement: self,
            depth: (max_bytes as u64 / self.stripe_bytes()).max(1),
            row: self.chunks().div_rem(units.start).0,
            column: 0,
            units,
        }
    }
}

impl Placement {
    /// `lbas` LBAs of the generation from `lba` on as one extent of one piece; `None` if they pass the end of a stripe unit, or the
    /// generation's.
    pub fn run(&self, lba: u64, lbas: u64) -> Option<Extent> {
        let last = lba.checked_add(lbas.checked_sub(1)?)?;
        if last >> self.stripe_lba_shift() != lba >> self.stripe_lba_shift() {
            return None;
        }
        let (drive, first) = self.locate(lba)?;
        let bytes = lbas as usize * self.lba_size() as usize;
        Some(Extent { drive, lba: first, bytes, first_lba: lba, stride_lbas: 0, piece_bytes: bytes })
    }
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let placement = self.placement;
        let columns = placement.chunks().divisor();
        // Rows below which a column's units lie before `unit`.
        let rows_before = |unit: u64, column: u64| unit.saturating_sub(column).div_ceil(columns);
        while self.row * columns < self.units.end {
            let row = self.row;
            let column = self.column;
            self.column += 1;
            if self.column == columns {
                (self.column, self.row) = (0, row + self.depth);
            }
            let first = row.max(rows_before(self.units.start, column));
            let end = (row + self.depth).min(rows_before(self.units.end, column));
            if first < end {
                let first_lba = (first * columns + column) << placement.stripe_lba_shift();
                let (drive, lba) = placement.locate(first_lba)?;
                let piece_bytes = placement.stripe_bytes() as usize;
                return Some(Extent {
                    drive,
                    lba,
                    bytes: (end - first) as usize * piece_bytes,
                    first_lba,
                    stride_lbas: columns << placement.stripe_lba_shift(),
                    piece_bytes,
                });
            }
        }
        None
    }
}
