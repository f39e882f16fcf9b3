//! How many rows of each table a budget of memory holds.

use serde::{Deserialize, Serialize};

use crate::order::{Class, Order};

/// Memory for rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Budgets {
    /// Bytes of GPU memory; with any, look-ups run on the GPU.
    pub hbm: u64,
    /// Bytes of DRAM.
    pub dram: u64,
}

/// The first ranks of each table that lie in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Ranks below this lie in GPU memory.
    pub hbm: Vec<u64>,
    /// Ranks below this lie in GPU memory or DRAM.
    pub hot: Vec<u64>,
}

/// How hot the rows of a table are, and what they take.
#[derive(Debug, Clone, Copy)]
pub struct Heat<'a> {
    /// The rows that were looked up, by count, the highest first.
    pub classes: &'a [Class],
    /// All its rows.
    pub rows: u64,
    /// Bytes of a row in memory.
    pub row_bytes: u64,
}

impl<'a> Heat<'a> {
    /// That of an order.
    pub fn new(order: &'a Order, row_bytes: u64) -> Self {
        Self { classes: order.classes(), rows: order.rows(), row_bytes }
    }

    fn seen(&self) -> u64 {
        self.classes.last().map_or(0, |class| class.end)
    }
}

/// Gives memory to the rows that are looked up most for each byte that they take. What is left when all that were looked up have a place goes to the others in proportion to their bytes.
///
/// GPU memory takes the same share of what each table has in both, as [`warprow_store`] shares it out.
pub fn allocate(tables: &[Heat<'_>], budgets: Budgets) -> Allocation {
    let both = budgets.hbm.saturating_add(budgets.dram);
    let mut classes: Vec<(f64, usize, u64)> = Vec::new();
    for (index, table) in tables.iter().enumerate() {
        let mut begin = 0;
        for class in table.classes {
            classes.push((f64::from(class.count) / table.row_bytes as f64, index, class.end - begin));
            begin = class.end;
        }
    }
    // Stable: classes of a table stay in their order, which is that of their density.
    classes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut hot, mut left) = (vec![0u64; tables.len()], both);
    let mut full = vec![false; tables.len()];
    for (_, index, rows) in classes {
        let (Some(table), Some(hot), Some(full)) = (tables.get(index), hot.get_mut(index), full.get_mut(index)) else {
            continue;
        };
        let row_bytes = table.row_bytes;
        // A table's rows lie in memory from the first rank on: one that does not fit ends it.
        let fits = if *full { 0 } else { rows.min(left / row_bytes) };
        (*full, *hot, left) = (*full || fits < rows, *hot + fits, left - fits * row_bytes);
    }
    let bytes = |rows: u64, table: &Heat<'_>| u128::from(rows) * u128::from(table.row_bytes);
    let others: u128 = tables.iter().zip(&hot).map(|(table, &hot)| bytes(table.rows - hot, table)).sum();
    let all_seen = tables.iter().zip(&hot).all(|(table, &hot)| hot >= table.seen());
    if all_seen && others > 0 {
        for (table, hot) in tables.iter().zip(&mut hot) {
            let rest = table.rows - *hot;
            *hot += (u128::from(rest) * u128::from(left) / others).min(rest.into()) as u64;
        }
    }
    let taken: u128 = tables.iter().zip(&hot).map(|(table, &hot)| bytes(hot, table)).sum();
    let in_hbm = |&hot: &u64| match taken <= u128::from(budgets.hbm) {
        true => hot,
        false => (u128::from(hot) * u128::from(budgets.hbm) / taken.max(1)) as u64,
    };
    Allocation { hbm: hot.iter().map(in_hbm).collect(), hot }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Counts;

    fn order(counts: &[u32]) -> Order {
        Order::new(Counts::Exact(counts.to_vec()))
    }

    #[test]
    fn memory_goes_to_what_is_looked_up_most_for_a_byte() {
        let (small, large) = (order(&[8, 1, 4, 0]), order(&[7, 2, 0, 20]));
        let tables = [Heat::new(&small, 100), Heat::new(&large, 400)];
        let hot = |hbm, dram| allocate(&tables, Budgets { hbm, dram });
        assert_eq!(hot(0, 99).hot, [0, 0]);
        // 8 per 100 B, then 20 per 400 B, then 4 per 100 B; 7 per 400 B does not fit.
        assert_eq!(hot(0, 100).hot, [1, 0]);
        assert_eq!(hot(0, 500).hot, [1, 1]);
        assert_eq!(hot(0, 700).hot, [3, 1]);
        assert_eq!(hot(500, 200), Allocation { hbm: vec![2, 0], hot: vec![3, 1] });
        assert_eq!(hot(0, 1 << 20), Allocation { hbm: vec![0, 0], hot: vec![4, 4] });
        assert_eq!(hot(1 << 20, 0), Allocation { hbm: vec![4, 4], hot: vec![4, 4] });
    }
}
