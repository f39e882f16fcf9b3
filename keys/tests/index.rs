//! Indexes against what they say of themselves: every key its own slot, foreign keys none, whatever the keys.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_keys::{FingerprintWidth, IndexBuildError, IndexError, IndexOptions, KeyIndex, KeyKind, KeySource};

const WIDTHS: [FingerprintWidth; 3] = [FingerprintWidth::Bits8, FingerprintWidth::Bits16, FingerprintWidth::Bits32];

fn build<S: KeySource + ?Sized>(keys: &S, options: &IndexOptions) -> Result<KeyIndex, IndexBuildError> {
    KeyIndex::build(keys, options, &mut |_| ControlFlow::Continue(()))
}

fn different(rng: &mut fastrand::Rng, count: usize) -> Vec<u64> {
    let mut seen = HashSet::new();
    std::iter::repeat_with(|| rng.u64(..)).filter(|&key| seen.insert(key)).take(count).collect()
}

/// Every key has another slot below their number, one by one, in batches and placed.
fn check(index: &KeyIndex, keys: &[u64]) {
    assert_eq!(index.len(), keys.len() as u64);
    let mut slots = vec![0; keys.len()];
    index.positions(keys, &mut slots);
    let mut seen = vec![false; keys.len()];
    for (&key, &slot) in keys.iter().zip(&slots) {
        assert_eq!(index.position(key), Some(slot), "key {key}");
        assert!(!std::mem::replace(&mut seen[slot as usize], true), "slot {slot} twice");
    }
    assert_eq!(index.place::<_, u32>(keys, 2).unwrap(), slots.iter().map(|&slot| slot as u32).collect::<Vec<_>>());
    assert_eq!(index.place::<_, u64>(keys, 1).unwrap(), slots);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn any_keys_have_slots(
        keys in proptest::collection::hash_set(
            prop_oneof![any::<u64>(), 0u64..2000, (u64::MAX - 2000)..=u64::MAX, (0u64..500).prop_map(|key| key << 40)], 1..600),
        seed: u64,
        width in 0usize..3,
        foreign in proptest::collection::vec(any::<u64>(), 100),
    ) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let options = IndexOptions::default().with_seed(seed).with_fingerprint(WIDTHS[width]).with_threads(1);
        let index = build(&keys[..], &options).unwrap();
        check(&index, &keys);
        let read = KeyIndex::from_bytes(index.as_bytes().to_vec()).unwrap();
        prop_assert_eq!(&read, &index);
        // What passes by chance is a slot all the same.
        prop_assert!(foreign.iter().filter_map(|&key| index.position(key)).all(|slot| slot < index.len()));
    }
}

#[test]
fn the_smallest_and_the_strangest_sets() {
    let edges = [0, u64::MAX, 1 << 63, i64::MAX as u64, 1, u64::MAX - 1];
    for count in 1..=edges.len() {
        for seed in 0..200 {
            let index = build(&edges[..count], &IndexOptions::default().with_seed(seed)).unwrap();
            check(&index, &edges[..count]);
        }
    }
    assert!(matches!(build(&[0u64; 0][..], &IndexOptions::default()), Err(IndexBuildError::Count { keys: 0 })));
    let negative = [-1i64, i64::MIN, 0, i64::MAX];
    let index = build(&negative[..], &IndexOptions::default()).unwrap();
    assert_eq!(index.kind(), KeyKind::I64);
    check(&index, &negative.map(|key| key as u64));
}

#[test]
fn foreign_keys_pass_as_often_as_is_said() {
    let mut rng = fastrand::Rng::with_seed(3);
    let keys = different(&mut rng, 300_000);
    let known: HashSet<u64> = keys.iter().copied().collect();
    for (width, asked) in
        [(FingerprintWidth::Bits8, 200_000), (FingerprintWidth::Bits16, 1_000_000), (FingerprintWidth::Bits32, 300_000)]
    {
        let index = build(&keys[..], &IndexOptions::default().with_fingerprint(width)).unwrap();
        check(&index, &keys);
        assert!(index.bits_per_key() < 4.0, "{}", index.bits_per_key());
        // Random ones, and neighbours of keys.
        for near in [false, true] {
            let foreign = std::iter::repeat_with(|| match near {
                false => rng.u64(..),
                true => keys[rng.usize(..keys.len())] ^ 1 << rng.u32(..64),
            });
            let passed =
                foreign.filter(|key| !known.contains(key)).take(asked).filter(|&key| index.position(key).is_some());
            let passed = passed.count() as f64;
            let expected = asked as f64 * width.false_positives();
            let off = (passed - expected).abs();
            assert!(off < 6.0 * expected.max(1.0).sqrt(), "{width:?}, near: {near}: {passed} passed, not {expected}");
        }
    }
}

#[test]
fn threads_memory_and_order_change_nothing_and_seeds_do() {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut keys = different(&mut rng, 700_000);
    let options = IndexOptions::default().with_threads(1);
    let first = build(&keys[..], &options).unwrap();
    // Two hundred kilobytes hold no more than one part.
    for other in [
        options.clone().with_threads(5),
        options.clone().with_memory(200_000),
        options.clone().with_memory(3_000_000).with_threads(3),
    ] {
        assert!(build(&keys[..], &other).unwrap() == first, "{other:?}");
    }
    assert!(build(&keys[..], &options.with_seed(1)).unwrap() != first);
    rng.shuffle(&mut keys);
    assert!(build(&keys[..], &IndexOptions::default()).unwrap() == first);
    check(&first, &keys);
}

#[test]
fn duplicates_are_named_with_their_places() {
    let mut rng = fastrand::Rng::with_seed(5);
    for count in [2, 100, 400_000] {
        let mut keys = different(&mut rng, count);
        keys[count - 1] = keys[count / 3];
        let want = keys[count / 3];
        let place = count as u64 / 3;
        for threads in [1, 3] {
            match build(&keys[..], &IndexOptions::default().with_threads(threads)) {
                Err(IndexBuildError::Duplicate { key, first, second, .. }) => {
                    assert_eq!((key, first, second), (want, place, count as u64 - 1));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // All alike, in several parts' worth; and negative ones are shown as such.
    match build(&[-7i64; 400_000][..], &IndexOptions::default()) {
        Err(error @ IndexBuildError::Duplicate { .. }) => {
            assert!(error.to_string().starts_with("key -7 stands at positions 0 and 1"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    // Of several, the same is named every time.
    let mut keys = different(&mut rng, 400_000);
    (0..1000).for_each(|at| keys[399_999 - at] = keys[at]);
    let name = |threads| build(&keys[..], &IndexOptions::default().with_threads(threads)).unwrap_err().to_string();
    let first = name(1);
    (0..10).for_each(|_| assert_eq!(name(4), first));
}

/// Gives other keys each time, or fails.
struct Moving(std::sync::atomic::AtomicU64, u64);

impl KeySource for Moving {
    fn len(&self) -> u64 {
        300_000
    }
    fn kind(&self) -> KeyKind {
        KeyKind::U64
    }
    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()> {
        let time = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if time == self.1 {
            return Err(std::io::Error::other("the disk is gone"));
        }
        let mut rng = fastrand::Rng::with_seed(time);
        keys.fill_with(|| rng.u64(..));
        let _ = first;
        Ok(())
    }
}

#[test]
fn sources_that_change_or_fail_are_told() {
    assert!(matches!(build(&Moving(0.into(), u64::MAX), &IndexOptions::default()), Err(IndexBuildError::Changed)));
    for at in [0, 20, 50] {
        let error = build(&Moving(0.into(), at), &IndexOptions::default().with_threads(1)).unwrap_err();
        assert!(matches!(error, IndexBuildError::Source { .. } | IndexBuildError::Changed), "{error:?}");
    }
    let keys: Vec<u64> = (0..500_000).collect();
    let mut calls = 0;
    let stopped = KeyIndex::build(&keys[..], &IndexOptions::default(), &mut |done| {
        calls += 1;
        if done > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(IndexBuildError::Interrupted)) && calls > 0);
    // Another set's keys have no places.
    let index = build(&keys[..], &IndexOptions::default().with_fingerprint(FingerprintWidth::Bits32)).unwrap();
    let others: Vec<u64> = (1_000_000..1_000_100).collect();
    assert!(matches!(index.place::<_, u64>(&others[..], 1), Err(IndexBuildError::Changed)));
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let keys: Vec<u64> = (0..300).map(|key| key * key).collect();
    let right = build(&keys[..], &IndexOptions::default()).unwrap().as_bytes().to_vec();
    for bit in 0..right.len() * 8 {
        let mut bytes = right.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(KeyIndex::from_bytes(bytes).is_err(), "bit {bit}");
    }
    for length in 0..right.len() {
        let error = KeyIndex::from_bytes(right[..length].to_vec()).unwrap_err();
        assert!(matches!(error, IndexError::Length { given, .. } if given == length as u64), "{error}");
    }
    let mut longer = right.clone();
    longer.push(0);
    assert!(matches!(KeyIndex::from_bytes(longer), Err(IndexError::Length { .. })));
}

/// Headers with right checksums and numbers that lie: none may be believed to the point of a panic or a slot that is none.
#[test]
fn headers_that_lie_are_refused_or_harmless() {
    let keys: Vec<u64> = (0..300).map(|key| key * key).collect();
    let right = build(&keys[..], &IndexOptions::default()).unwrap().as_bytes().to_vec();
    let numbers = [0u64, 1, 2, 100, 299, 301, 1 << 20, 1 << 30, 1 << 32, (1 << 40) + 1, 1 << 62, u64::MAX];
    let mut accepted = 0;
    for (at, width) in [(16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 1), (49, 1), (50, 1), (64, 8), (120, 8)] {
        for number in numbers {
            let mut bytes = right.clone();
            bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            let crc = crc32c::crc32c(&bytes[12..128]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            if let Ok(index) = KeyIndex::from_bytes(bytes) {
                accepted += 1;
                assert!((0..1000).filter_map(|key| index.position(key)).all(|slot| slot < index.len()));
            }
        }
    }
    // Another seed is as good as any.
    assert!(accepted >= numbers.len(), "{accepted}");
    let version = IndexError::Version { found: 2 };
    let mut bytes = right;
    bytes[12] = 2;
    assert_eq!(KeyIndex::from_bytes(bytes).unwrap_err(), version);
}

/// A naive evaluation by the words of docs/keys.md, from the bytes alone.
#[test]
fn the_function_is_what_is_written_down() {
    fn mix(x: u64) -> u64 {
        let x = (x ^ x >> 33).wrapping_mul(0xff51afd7ed558ccd);
        let x = (x ^ x >> 33).wrapping_mul(0xc4ceb9fe1a85ec53);
        x ^ x >> 33
    }
    let upper = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64;
    let mut rng = fastrand::Rng::with_seed(6);
    let keys = different(&mut rng, 500_000);
    let index = build(&keys[..], &IndexOptions::default().with_seed(9)).unwrap();
    let bytes = index.as_bytes();
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    let n = u64_at(16);
    let seed = u64_at(24);
    let parts = u64_at(32);
    let buckets = u32_at(40);
    let slots = u32_at(44);
    let pilots = 128;
    let remap = (pilots + parts * buckets).next_multiple_of(128);
    let prints = (remap + 4 * (parts * slots - n)).next_multiple_of(128);
    let mut stood_in = 0;
    let by_hand: HashMap<u64, u64> = keys
        .iter()
        .map(|&key| {
            let hash = mix(key ^ seed);
            let part = upper(hash, parts);
            let bucket = part * buckets + upper(hash.wrapping_mul(parts), buckets);
            let pilot = bytes[(pilots + bucket) as usize];
            let mut slot = part * slots + upper(hash.wrapping_mul(mix(u64::from(pilot) + 1) | 1), slots);
            if slot >= n {
                stood_in += 1;
                slot = u32_at((remap + 4 * (slot - n)) as usize);
            }
            let print = u16::from_le_bytes(bytes[(prints + 2 * slot) as usize..][..2].try_into().unwrap());
            assert_eq!(print, hash as u16);
            (key, slot)
        })
        .collect();
    assert!(stood_in > 0, "no slot past the last key");
    assert!(keys.iter().all(|key| index.position(*key) == by_hand.get(key).copied()));
    assert_eq!(bytes.len() as u64, prints + 2 * n);
}

/// What is said before an index is built is never more than it takes, and not far below.
#[test]
fn the_least_size_of_an_index_is_close() {
    for (count, bits) in [(1, 8), (1000, 16), (70_000, 32), (300_000, 16)] {
        let fingerprint = FingerprintWidth::from_bits(bits).unwrap();
        let keys: Vec<u64> = (0..count).map(|key| key * 977 + 5).collect();
        let index = build(&keys[..], &IndexOptions::default().with_fingerprint(fingerprint)).unwrap();
        let least = KeyIndex::least_bytes(count, fingerprint);
        let bytes = index.as_bytes().len() as u64;
        assert!(least <= bytes && bytes <= least + least / 20 + 4096, "{count} keys: {least} of {bytes}");
    }
    assert_eq!(KeyIndex::least_bytes(0, FingerprintWidth::Bits8), 0);
    assert_eq!(KeyIndex::least_bytes(u64::MAX, FingerprintWidth::Bits8), 0);
}
