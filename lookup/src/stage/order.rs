//! Sorts rows on drives by address.

use super::route::RowRead;

/// Bits of a digit of the radix sort: two digits (22 bits) cover the LBAs of 2 GiB in blocks of 512 B.
const DIGIT: u32 = 11;
const VALUES: usize = 1 << DIGIT;
/// The number of rows below which a sort by comparison is faster than the radix sort.
const FEW: usize = 192;

/// Sorts `reads` by drive and LBA. If `scratch` is at least as long as `reads`, large lists are sorted by radix, which
/// is faster.
pub fn order(reads: &mut [RowRead], scratch: &mut [RowRead]) {
    let Some(&first) = reads.first() else { return };
    if reads.len() < FEW || scratch.len() < reads.len() {
        return reads.sort_unstable_by_key(|read| read.at);
    }
    let scratch = &mut scratch[..reads.len()];
    let differing = reads.iter().fold(0, |bits, read| bits | (read.at ^ first.at));
    let mut from = &mut *reads;
    let mut to = scratch;
    let mut swapped = false;
    for shift in (0..u64::BITS).step_by(DIGIT as usize) {
        if (differing >> shift) & (VALUES as u64 - 1) == 0 {
            continue;
        }
        let digit = |read: &RowRead| (read.at >> shift) as usize & (VALUES - 1);
        let mut places = [0u32; VALUES];
        from.iter().for_each(|read| places[digit(read)] += 1);
        let mut sum = 0;
        for place in &mut places {
            sum += std::mem::replace(place, sum);
        }
        for read in from.iter() {
            let place = &mut places[digit(read)];
            to[*place as usize] = *read;
            *place += 1;
        }
        std::mem::swap(&mut from, &mut to);
        swapped = !swapped;
    }
    if swapped {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn sorts(
            len in 0usize..1500,
            seed: u64,
            bits in 0u32..=56,
            base in 0u64..1 << 56,
            room: bool,
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mask = (1u64 << bits) - 1;
            let mut reads: Vec<RowRead> = (0..len)
                .map(|i| RowRead { at: base ^ (random.u64(..) & mask), unique: i as u32, byte: random.u32(..512) })
                .collect();
            let mut want = reads.clone();
            want.sort_by_key(|read| (read.at, read.unique));
            let mut scratch = vec![RowRead::default(); if room { len } else { 0 }];
            order(&mut reads, &mut scratch);
            prop_assert!(reads.is_sorted_by_key(|read| read.at));
            reads.sort_by_key(|read| (read.at, read.unique));
            prop_assert_eq!(reads, want);
        }
    }
}
