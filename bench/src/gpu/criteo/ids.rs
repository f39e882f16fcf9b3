//! Ids of batches without repetition.

use warprow_workload::IdShuffle;

/// Ids that differ, spread over `0..rows`: batch `number` of them.
pub(in crate::gpu) fn different(shuffle: &IdShuffle, number: u64, ids: &mut [i64]) {
    let first = number.wrapping_mul(ids.len() as u64);
    (0u64..).zip(ids).for_each(|(i, id)| *id = shuffle.id(first.wrapping_add(i) % shuffle.len()) as i64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_batch_differ() {
        let shuffle = IdShuffle::new(1003, 4);
        for number in 0..50 {
            let mut ids = [0; 100];
            different(&shuffle, number, &mut ids);
            ids.sort_unstable();
            assert!(ids.windows(2).all(|two| two[0] < two[1]) && ids[99] < 1003, "batch {number}");
        }
    }
}
