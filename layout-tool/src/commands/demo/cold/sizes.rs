//! How many ids a batch of the cold race has, and how many batches there are.

use std::time::Duration;

use warprow_workload::FreshPages;
use warprow_workload::units;

/// Ids of a batch, at most.
pub(super) const BATCH: usize = 1024;
/// Ids of a batch, at least.
pub(super) const LEAST: usize = 8;
/// Batches of each, at most and at least.
const ROUNDS: (usize, usize) = (5, 3);

/// Batches that a file could give at least without a page of it being read twice. Four who read the drive's file take 21 of them.
const BATCHES: u64 = 48;

/// Ids of a batch, at most, of a table of `rows` rows of `row_bytes` bytes that is looked up in batches of `asked` ids; or why there
/// can be no cold race.
pub(super) fn most(rows: u64, row_bytes: u64, asked: usize) -> Result<usize, String> {
    if asked < LEAST {
        let ids = units::plural(asked as u64, "id");
        return Err(format!("a batch has {ids}, and at least {LEAST} are needed"));
    }
    let fresh = usize::try_from(FreshPages::room(rows, row_bytes) / BATCHES).unwrap_or(BATCH);
    match fresh.min(asked).min(BATCH) {
        most if most >= LEAST => Ok(most),
        _ => {
            let bytes = units::bytes(rows * row_bytes);
            Err(format!("a table of {bytes} has too few pages for batches of {LEAST} ids of pages of their own"))
        }
    }
}

/// Ids of a batch, `most` at most, and batches of each, so that all of them take about `time`, if one of `first` ids of each took
/// `taken`.
pub(super) fn sizes(first: usize, taken: Duration, most: usize, time: Duration) -> (usize, usize) {
    let of_one_id = taken.as_secs_f64().max(1e-9) / first as f64;
    let rounds = (time.as_secs_f64() / (of_one_id * most as f64)) as usize;
    if rounds >= ROUNDS.1 {
        return (most, rounds.min(ROUNDS.0));
    }
    let batch = (time.as_secs_f64() / ROUNDS.1 as f64 / of_one_id) as usize;
    // The largest power of two that is not larger.
    let batch = 1 << batch.max(1).ilog2();
    (batch.clamp(LEAST, most), ROUNDS.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_disks_get_fewer_and_smaller_batches() {
        let second = Duration::from_secs(1);
        let ms = Duration::from_millis;
        assert_eq!(sizes(64, ms(1), 1024, second), (1024, 5));
        assert_eq!(sizes(64, ms(15), 1024, second), (1024, 4));
        assert_eq!(sizes(64, ms(64), 1024, second), (256, 3));
        // A disk that takes 10 ms for each row of each of five.
        assert_eq!(sizes(64, ms(3200), 1024, second), (8, 3));
        assert_eq!(sizes(8, Duration::from_secs(3600), 1024, second), (8, 3));
        assert_eq!(sizes(8, Duration::ZERO, 30, second), (30, 5));
        assert_eq!(sizes(8, ms(100), 30, second), (16, 3));
    }
}
