//! How memory is shared among tables.

use warprow_layout::Table;

/// The rows of one table, from some rank on, that want a share of the memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryClaim {
    /// Rows.
    pub rows: u64,
    /// How many of these rows were said to be hot when the table was loaded.
    pub hint: u64,
    /// Bytes that a row takes in memory.
    pub row_bytes: u64,
}

impl MemoryClaim {
    /// All rows of a table.
    pub fn of(table: &Table, row_bytes: u32) -> Self {
        Self { rows: table.rows, hint: table.hot_rows.min(table.rows), row_bytes: row_bytes.into() }
    }

    fn bytes(&self, rows: u64) -> u64 {
        rows.saturating_mul(self.row_bytes)
    }
}

/// How many rows of each part `budget` bytes hold. Rows that hints ask for come first: all of them or, if they are too
/// many, each part the same share of its own. What is left of the budget is divided among the other rows in proportion
/// to their bytes.
pub fn share(parts: &[MemoryClaim], budget: u64) -> Vec<u64> {
    let hinted = parts.iter().map(|part| part.bytes(part.hint)).fold(0, u64::saturating_add);
    let left = budget.saturating_sub(hinted);
    let others = parts.iter().map(|part| part.bytes(part.rows - part.hint)).fold(0, u64::saturating_add);
    parts.iter().map(|part| scaled(part.hint, budget, hinted) + scaled(part.rows - part.hint, left, others)).collect()
}

/// Scales `rows` by `part` / `whole`, rounded down; all of them if `part` is no less than `whole`.
pub fn scaled(rows: u64, part: u64, whole: u64) -> u64 {
    match whole <= part {
        true => rows,
        false => (u128::from(rows) * u128::from(part) / u128::from(whole.max(1))) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::test_table;

    #[test]
    fn hints_come_first() {
        let tables = [test_table(1000, 128, 100), test_table(1000, 16, 0)];
        let parts: Vec<MemoryClaim> = tables.iter().map(|table| MemoryClaim::of(table, table.row_bytes())).collect();
        let share = |budget| share(&parts, budget);
        assert_eq!(share(0), [0, 0]);
        assert_eq!(share(512 * 50), [50, 0]);
        assert_eq!(share(512 * 100), [100, 0]);
        // 900 · 512 B and 1000 · 64 B remain.
        assert_eq!(share(512 * 100 + (900 * 512 + 1000 * 64) / 2), [550, 500]);
        assert_eq!(share(u64::MAX), [1000, 1000]);
    }
}
