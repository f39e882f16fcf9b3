//! Versions of a model whose every byte can be computed.

use warprow_layout::{Ranks, RowSource, TableSpec};

/// The rows of one table in one version: bytes that tell version, table and id apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The version.
    pub version: u64,
    /// The table's index.
    pub table: usize,
}

impl Rows {
    /// Fills `row` with the row of `id`.
    pub fn fill(&self, id: u64, row: &mut [u8]) {
        let seed = self.version << 48 ^ (self.table as u64) << 40 ^ id;
        fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).fill(row);
    }
}

impl RowSource for Rows {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        (first..).zip(rows.chunks_exact_mut(row_bytes)).for_each(|(id, row)| self.fill(id, row));
        Ok(())
    }
}

/// The id → rank permutation of a table in one version; `None` if it is not permuted.
pub fn ranks(spec: &TableSpec, version: u64) -> Option<Ranks> {
    spec.permuted.then(|| {
        let mut ranks: Vec<u64> = (0..spec.rows).collect();
        fastrand::Rng::with_seed(version).shuffle(&mut ranks);
        Ranks::from_u64(ranks).expect("a permutation")
    })
}
