//! How many rows of each table a budget of memory holds.

use serde::{Deserialize, Serialize};

use crate::order::{CountClass, HotnessOrder};

/// Memory for rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryBudgets {
    /// Bytes of GPU memory; with any, look-ups run on the GPU.
    pub hbm: u64,
    /// Bytes of DRAM.
    pub dram: u64,
}

/// The first ranks of each table that lie in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierAllocation {
    /// Ranks below this lie in GPU memory.
    pub hbm: Vec<u64>,
    /// Ranks below this lie in GPU memory or DRAM.
    pub hot: Vec<u64>,
}

/// How hot the rows of a table are, and what they take.
#[derive(Debug, Clone, Copy)]
pub struct TableHotness<'a> {
    /// The rows that were looked up, by count, the highest first.
    pub classes: &'a [CountClass],
    /// All its rows.
    pub rows: u64,
    /// Bytes of a row in memory.
    pub row_bytes: u64,
}

impl<'a> TableHotness<'a> {
    /// The heat of the rows of an order.
    pub fn new(order: &'a HotnessOrder, row_bytes: u64) -> Self {
        Self { classes: order.classes(), rows: order.rows(), row_bytes }
    }
}

/// Gives memory to the rows that are looked up most for each byte that they take: GPU memory first, DRAM to the next. What is left when none of those that
/// were looked up fits goes to the others in proportion to their bytes.
///
/// With these rows of each table in GPU memory ([`GpuOptions::hbm_rows`](warprow_gpu::GpuOptions::hbm_rows)), and both as its hint, the
/// executors place the same.
pub fn allocate(tables: &[TableHotness<'_>], budgets: MemoryBudgets) -> TierAllocation {
    let mut classes: Vec<Wanted> = Vec::new();
    for (table, it) in tables.iter().enumerate() {
        let mut begin = 0;
        for class in it.classes {
            let density = f64::from(class.count) / it.row_bytes as f64;
            classes.push(Wanted { density, table, rows: class.end - begin });
            begin = class.end;
        }
    }
    // Stable: classes of a table stay in their order, which is that of their density.
    classes.sort_by(|a, b| b.density.total_cmp(&a.density));
    let mut hot = vec![0u64; tables.len()];
    fill(tables, &mut classes, &mut hot, budgets.hbm);
    let hbm = hot.clone();
    fill(tables, &mut classes, &mut hot, budgets.dram);
    TierAllocation { hbm, hot }
}

/// Rows of a table that were looked up equally often, and have no place yet.
struct Wanted {
    density: f64,
    table: usize,
    rows: u64,
}

/// Gives `budget` bytes to rows, the densest first, which count as `hot` then.
fn fill(tables: &[TableHotness<'_>], classes: &mut [Wanted], hot: &mut [u64], budget: u64) {
    let mut left = budget;
    let mut full = vec![false; tables.len()];
    for class in classes {
        let (Some(table), Some(hot), Some(full)) =
            (tables.get(class.table), hot.get_mut(class.table), full.get_mut(class.table))
        else {
            continue;
        };
        // A table's rows lie in memory from the first rank on: one that does not fit ends it.
        let fits = if *full { 0 } else { class.rows.min(left / table.row_bytes) };
        class.rows -= fits;
        (*full, *hot, left) = (*full || class.rows > 0, *hot + fits, left - fits * table.row_bytes);
    }
    let bytes = |rows: u64, table: &TableHotness<'_>| u128::from(rows) * u128::from(table.row_bytes);
    // To rows that were not looked up, until nothing fits: an executor shares out what is left, too. Of a table of which a row did not fit,
    // none does.
    loop {
        let others: u128 = tables.iter().zip(&*hot).map(|(table, &hot)| bytes(table.rows - hot, table)).sum();
        let shared = left;
        for (table, hot) in tables.iter().zip(&mut *hot) {
            let rest = table.rows - *hot;
            let more = (u128::from(rest) * u128::from(shared) / others.max(1)).min(rest.into()) as u64;
            (*hot, left) = (*hot + more, left - more * table.row_bytes);
        }
        if left == shared {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::RowCounts;

    fn order(counts: &[u32]) -> HotnessOrder {
        HotnessOrder::new(RowCounts::Exact(counts.to_vec()))
    }

    #[test]
    fn memory_goes_to_what_is_looked_up_most_for_a_byte() {
        let small = order(&[8, 1, 4, 0]);
        let large = order(&[7, 2, 0, 20]);
        let tables = [TableHotness::new(&small, 100), TableHotness::new(&large, 400)];
        let hot = |hbm, dram| allocate(&tables, MemoryBudgets { hbm, dram });
        assert_eq!(hot(0, 99).hot, [0, 0]);
        // 8 per 100 B, then 20 per 400 B, then 4 per 100 B; 7 per 400 B does not fit.
        assert_eq!(hot(0, 100).hot, [1, 0]);
        assert_eq!(hot(0, 500).hot, [1, 1]);
        assert_eq!(hot(0, 700).hot, [3, 1]);
        // GPU memory to the densest of all, whatever their table; what does not fit there may fit into DRAM.
        assert_eq!(hot(500, 200), TierAllocation { hbm: vec![1, 1], hot: vec![3, 1] });
        assert_eq!(hot(300, 500), TierAllocation { hbm: vec![3, 0], hot: vec![3, 1] });
        assert_eq!(hot(0, 1 << 20), TierAllocation { hbm: vec![0, 0], hot: vec![4, 4] });
        assert_eq!(hot(1 << 20, 0), TierAllocation { hbm: vec![4, 4], hot: vec![4, 4] });
    }
}
