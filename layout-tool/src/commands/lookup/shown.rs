//! Rows to be printed, and those that are lost.

use warprow_workload::units;

use crate::failure::{Class, Failure};
use crate::rows::RowBuffer;

/// Rows to be printed.
pub(super) struct Shown {
    /// How many; later ones are only counted.
    most: usize,
    dim: usize,
    pub(super) rows: Vec<Vec<f32>>,
    /// One byte a row, if not pooled.
    pub(super) mask: Vec<u8>,
    /// Positions of ids whose rows lie on drives that are missing, ascending.
    pub(super) lost: Vec<usize>,
    pub(super) missing_drives: Vec<String>,
}

impl Shown {
    pub(super) fn new(most: usize, dim: usize) -> Self {
        Self { most, dim, rows: Vec::new(), mask: Vec::new(), lost: Vec::new(), missing_drives: Vec::new() }
    }

    pub(super) fn failure(&self, table: &str) -> Option<Failure> {
        let count = self.lost.len() as u64;
        let drives = self.missing_drives.join(", ");
        let what = format!("the rows of {} lie on drives that are missing: {drives}", units::plural(count, "id"));
        let failure =
            Failure::new(Class::Store, table, what).remedy("give these drives too").detail("positions", &*self.lost);
        (count > 0).then_some(failure)
    }

    /// Whether the row at this position lies on a drive that is missing.
    pub(super) fn is_lost(&self, position: usize) -> bool {
        self.lost.binary_search(&position).is_ok()
    }

    pub(super) fn take(&mut self, buffer: &RowBuffer, mask: &[u8], by_id: bool) {
        let more = self.most.saturating_sub(self.rows.len());
        if more > 0 {
            self.rows.extend(buffer.values().chunks_exact(self.dim).take(more).map(<[f32]>::to_vec));
            self.mask.extend(mask.iter().filter(|_| by_id).take(more));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_rows_are_kept_than_are_shown() {
        let mut shown = Shown::new(5, 2);
        for _ in 0..3 {
            shown.take(&RowBuffer::F32(vec![0., 1., 2., 3., 4., 5.]), &[1, 0, 1], true);
        }
        assert_eq!(shown.rows, [[0., 1.], [2., 3.], [4., 5.], [0., 1.], [2., 3.]]);
        assert_eq!(shown.mask, [1, 0, 1, 1, 0]);
    }
}
