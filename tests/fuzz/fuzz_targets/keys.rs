//! Key indexes: whatever is accepted has a position or none for every key, below its number of keys, and is the same when read again.
#![no_main]

use std::ops::ControlFlow;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warprow_fuzz::edit;
use warprow_keys::{Fingerprint, HEADER_BYTES, KeyIndex, IndexOptions};

static RIGHT: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let keys: Vec<u64> = (0..200).map(|key| key * key * key).collect();
    [(&keys[..1], Fingerprint::Bits8), (&keys[..], Fingerprint::Bits16)].map(|(keys, width)| {
        let options = IndexOptions::default().with_fingerprint(width).with_threads(1);
        KeyIndex::build(keys, &options, &mut |_| ControlFlow::Continue(())).unwrap().as_bytes().to_vec()
    })
});

/// Makes all checksums right that can be found by the header's own numbers.
fn seal(bytes: &mut [u8]) {
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |bytes: &[u8], at: usize| u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    let keys = word(bytes, 16);
    let parts = word(bytes, 32);
    let buckets = half(bytes, 40);
    let slots = half(bytes, 44);
    let lengths = [
        parts.wrapping_mul(buckets),
        parts.wrapping_mul(slots).wrapping_sub(keys).wrapping_mul(4),
        keys.wrapping_mul(u64::from(bytes[48]) / 8),
    ];
    let mut end = HEADER_BYTES as u64;
    for (index, length) in lengths.into_iter().enumerate() {
        let begin = end.checked_next_multiple_of(128).unwrap_or(u64::MAX);
        end = begin.saturating_add(length);
        let part = bytes.get(begin as usize..end as usize).unwrap_or_default();
        let crc = crc32c::crc32c(part);
        bytes[52 + index * 4..56 + index * 4].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c::crc32c(&bytes[12..HEADER_BYTES]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let mut bytes = match how & 3 {
        0 => data.to_vec(),
        _ => {
            let mut bytes = RIGHT[usize::from(how & 1)].clone();
            edit(&mut bytes, data);
            bytes
        }
    };
    if how & 4 != 0 && bytes.len() >= HEADER_BYTES {
        seal(&mut bytes);
    }
    let length = bytes.len() as u64;
    let Ok(index) = KeyIndex::from_bytes(bytes) else { return };
    assert_eq!(index.as_bytes().first_chunk().map(KeyIndex::bytes_of), Some(Ok(length)));
    assert!(index.len() > 0);
    let keys: Vec<u64> = (0..500).map(|key| key * key * key).chain([u64::MAX, 1 << 63]).collect();
    let mut positions = vec![0; keys.len()];
    index.positions(&keys, &mut positions);
    for (&key, &position) in keys.iter().zip(&positions) {
        assert!(position < index.len() || position == KeyIndex::ABSENT);
        assert_eq!(index.position(key), Some(position).filter(|&position| position != KeyIndex::ABSENT));
    }
    assert_eq!(KeyIndex::from_bytes(index.as_bytes().to_vec()).as_ref(), Ok(&index));
});
