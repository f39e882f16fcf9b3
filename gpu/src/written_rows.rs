//! Rows that go from a queue's landing area to the caller's output, without staging between (docs/gpu.md).

use warprow_lookup::DedupeMethod;

use crate::batch::GpuOutput;
use crate::plan::Prepared;
use crate::table_abi::element_of;

/// What lanes load and store at a time.
const QUAD: u64 = 16;

impl Prepared {
    /// Whether launches of many ids write rows to `out` as they land: of plans that sort all ids, so that it is known which position wants a row,
    /// and whose rows are output rows as they lie on drives.
    pub(crate) fn writes_output(&self, out: &GpuOutput) -> bool {
        let description = &self.description;
        let element_bytes = u64::from(self.options.out.size());
        let (element, width) = (element_of(self.options.out), description.width as u64 * element_bytes);
        let as_output =
            |&(_, of_table, bytes, _): &(u32, u32, u32, u32)| of_table == element && u64::from(bytes) == width;
        self.is_cold
            && self.many == DedupeMethod::Radix
            && !self.attached.options.ablations.written_rows
            && !(description.pooled || description.is_cached || description.scaled)
            && self.attached.slices.is_none()
            && description.rows.iter().all(as_output)
            && [width, out.rows, out.row_stride as u64 * element_bytes].iter().all(|it| it.is_multiple_of(QUAD))
    }
}
