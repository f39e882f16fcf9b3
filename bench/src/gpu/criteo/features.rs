//! Features of look-ups in all tables.

use warprow_lookup::{Feature, Pooling};

use crate::fixtures::FixtureTable;

/// A feature of each table, of so many ids a sample: one is looked up as it is, more are summed.
pub(super) fn features(tables: &[FixtureTable], hot: u64) -> Vec<Feature> {
    let pooling = if hot == 1 { Pooling::None } else { Pooling::Sum };
    tables.iter().map(|table| Feature::new(&table.name, &table.name).pooling(pooling)).collect()
}
