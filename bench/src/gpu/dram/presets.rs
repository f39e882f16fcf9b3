//! Which tables are measured together, and how long that takes.

use std::time::Duration;

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Bytes.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Whether PyTorch may take part: it fills a table of its own first.
    pub torch: bool,
}

/// A set of tables and of ids.
#[derive(Clone, Debug)]
pub struct Preset {
    /// The tables.
    pub cases: Vec<Case>,
    /// Ids of look-ups.
    pub counts: Vec<u64>,
}

impl Preset {
    /// A first impression.
    pub fn quick() -> Self {
        let case = |(size, row_bytes, torch)| Case { size, row_bytes, torch };
        let cases = [(512 << 20, 128, false), (512 << 20, 100, false), (4 << 30, 128, true), (4 << 30, 512, false)];
        Self { cases: cases.map(case).to_vec(), counts: vec![100, 1_000, 10_000, 100_000, 1_000_000] }
    }

    /// Rows of 64 to 4,096 B, aligned and not; tables of 64 MiB to 64 GiB; 100 to 10 million ids.
    pub fn full() -> Self {
        let mut cases = Vec::new();
        for size in [64 << 20, 512 << 20, 4 << 30, 16 << 30, 64 << 30] {
            let rows: &[u32] = match size {
                s if s == 4 << 30 => &[64, 96, 100, 128, 200, 256, 512, 1024, 4096],
                _ => &[128, 512],
            };
            let torch = |row_bytes| size == 4 << 30 && [128, 512].contains(&row_bytes);
            cases.extend(rows.iter().map(|&row_bytes| Case { size, row_bytes, torch: torch(row_bytes) }));
        }
        Self { cases, counts: vec![100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000] }
    }
}

/// All rows in all tables.
pub fn everything(sizes: &[u64], rows: &[u32]) -> Vec<Case> {
    let case = |size: u64| rows.iter().map(move |&row_bytes| Case { size, row_bytes, torch: true });
    sizes.iter().flat_map(|&size| case(size)).collect()
}

/// Repetitions for so many ids: of large ones few are enough, and they take long.
pub(super) fn runs_of(runs: u32, count: u64) -> u32 {
    if count > 1 << 21 { runs.min(3) } else { runs }
}

/// About how long it takes: filling tables at 2 GB/s, and for every repetition four plain gathers at 30 million rows a second, the
/// others, and a dozen passes over the output.
pub fn duration(cases: &[Case], counts: &[u64], alphas: usize, runs: u32, torch: bool) -> Duration {
    let line = |row: u32, count: u64| -> f64 {
        let out = count as f64 * f64::from(row);
        let once = if out > 8e9 { 0.0 } else { 2e-3 + count as f64 * 5.0 / 30e6 + out / 5e9 };
        f64::from(runs_of(runs, count) + 1) * once
    };
    let lines = |row: u32| alphas as f64 * counts.iter().map(|&count| line(row, count)).sum::<f64>();
    let case = |case: &Case| {
        let filled = case.size as f64 / 2e9 + 2.0;
        let by_torch = if torch && case.torch { 8.0 + case.size as f64 / 1e9 + lines(case.row_bytes) } else { 0.0 };
        filled + by_torch + lines(case.row_bytes)
    };
    Duration::from_secs_f64(cases.iter().map(case).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_what_help_says() {
        for Preset { cases, counts } in [Preset::quick(), Preset::full()] {
            assert!(cases.iter().all(|case| case.row_bytes.is_multiple_of(4) && case.size >= 64 << 20));
            assert!(counts.is_sorted());
        }
        let time = |preset: Preset| duration(&preset.cases, &preset.counts, 2, 9, true).as_secs();
        assert!(time(Preset::quick()) < 120, "{}", time(Preset::quick()));
        assert!(time(Preset::full()) < 10 * 60, "{}", time(Preset::full()));
    }
}
