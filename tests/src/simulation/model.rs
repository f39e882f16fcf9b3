//! What a store should hold, as naively as possible.

use std::collections::BTreeMap;

use fastrand::Rng;
use warprow_store::{DType, Ranks, TableSpec};

use crate::versions::{Rows, ranks};

/// A table that was loaded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) spec: TableSpec,
    pub(crate) rows: Rows,
}

/// All tables, by name.
pub(crate) type State = BTreeMap<String, Table>;

const NAMES: [&str; 4] = ["ada", "bob", "cyd", "dan"];

impl Table {
    /// A table of random shape.
    pub(crate) fn random(name: &str, rows: Rows, max_row: u32, rng: &mut Rng) -> Self {
        let dtype = DType::ALL[rng.usize(..5)];
        let most = (max_row / dtype.size()).max(1);
        let dim = if rng.u32(..4) == 0 { rng.u32(1..=most) } else { rng.u32(1..=most.min(64)) };
        let most = if rng.u32(..4) == 0 { 200 } else { 40 };
        let count = rng.u64(1..=most);
        let mut spec = TableSpec::new(name, count, dim, dtype);
        spec.permuted = rng.bool();
        spec.row_crc = rng.bool();
        spec.hot_rows = rng.u64(..=count);
        spec.default_row = rng.bool().then(|| (0..spec.dim * dtype.size()).map(|_| rng.u8(..)).collect());
        Self { spec, rows }
    }

    pub(crate) fn row_bytes(&self) -> usize {
        (self.spec.dim * self.spec.dtype.size()) as usize
    }

    pub(crate) fn row(&self, id: u64) -> Vec<u8> {
        let mut row = vec![0; self.row_bytes()];
        self.rows.fill(id, &mut row);
        row
    }

    /// The row that missing ids get.
    pub(crate) fn default_row(&self) -> Vec<u8> {
        self.spec.default_row.clone().unwrap_or_else(|| vec![0; self.row_bytes()])
    }

    pub(crate) fn ranks(&self) -> Option<Ranks> {
        ranks(&self.spec, self.rows.version)
    }
}

/// Tables to load as version `version`: some, or all that there can be, which makes everything older give way.
pub(crate) fn tables(version: u64, max_row: u32, rng: &mut Rng) -> Vec<Table> {
    let mut names = NAMES;
    rng.shuffle(&mut names);
    let count = if rng.u32(..4) == 0 { NAMES.len() } else { rng.usize(1..NAMES.len()) };
    let table = |(table, name): (usize, &&str)| Table::random(name, Rows { version, table }, max_row, rng);
    names.iter().take(count).enumerate().map(table).collect()
}
