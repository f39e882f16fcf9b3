//! Sparse ids of a table: keys of either kind, looked up as the host's index says.

use std::ops::ControlFlow;

use fastrand::Rng;
use warprow_kernels::abi;
use warprow_keys::{Fingerprint, KeyIndex, KeyKind, Options};

use crate::buffer::Buffer;

pub(crate) struct Sparse {
    index: KeyIndex,
    /// By slot, which is the number of the row.
    pub(crate) numbers: Vec<i128>,
    /// Keys are compared, so that short fingerprints do.
    stored: bool,
}

impl Sparse {
    pub(crate) fn random(rng: &mut Rng, rows: u64) -> Self {
        let (kind, stored) = (if rng.bool() { KeyKind::I64 } else { KeyKind::U64 }, rng.bool());
        let mut keys: Vec<u64> = (0..rows).map(|_| rng.u64(..) >> rng.u32(0..50)).collect();
        // Numbers that only one kind has, and the borders.
        let odd = [0, 1, u64::MAX, 1 << 63, i64::MAX as u64, u32::MAX.into(), i64::from(i32::MIN) as u64];
        keys.iter_mut().zip(odd).for_each(|(key, odd)| *key = odd);
        let mut fresh = rows;
        loop {
            keys.sort_unstable();
            keys.dedup();
            let lacking = rows - keys.len() as u64;
            if lacking == 0 {
                break;
            }
            keys.extend((0..lacking).map(|i| (fresh + i) * 0x9e37_79b9));
            fresh += lacking;
        }
        let width = if stored { Fingerprint::Bits8 } else { Fingerprint::Bits32 };
        let options = Options::default().with_fingerprint(width).with_seed(rng.u64(..));
        let signed: Vec<i64> = keys.iter().map(|&key| key as i64).collect();
        let mut go_on = |_| ControlFlow::Continue(());
        let index = match kind {
            KeyKind::I64 => KeyIndex::build(&signed[..], &options, &mut go_on),
            KeyKind::U64 => KeyIndex::build(&keys[..], &options, &mut go_on),
        };
        let index = index.unwrap();
        let mut numbers = vec![0; keys.len()];
        for (&key, &signed) in keys.iter().zip(&signed) {
            numbers[index.slot(key).unwrap() as usize] =
                if kind == KeyKind::I64 { i128::from(signed) } else { i128::from(key) };
        }
        Self { index, numbers, stored }
    }

    /// The row of an id; none of a number that is no key.
    pub(crate) fn row(&self, id: i128) -> Option<u64> {
        let slot = self.index.slot(id as u64)?;
        (self.numbers[slot as usize] == id).then_some(slot)
    }

    /// For the kernels; `rank` of a row.
    pub(crate) fn describe(&self, rank: impl Fn(u64) -> u64, mut keep: impl FnMut(Buffer) -> u64) -> u64 {
        let base = keep(Buffer::of(self.index.as_bytes()));
        let mut by_rank = vec![0; self.numbers.len()];
        for (row, &number) in (0..).zip(&self.numbers) {
            by_rank[rank(row) as usize] = number as u64;
        }
        let stored = Buffer::of(&by_rank.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<u8>>());
        let index = abi::KeyIndex { stored: if self.stored { keep(stored) } else { 0 }, ..on_gpu(&self.index, base) };
        keep(Buffer::of(index.as_bytes()))
    }
}

/// An index whose bytes lie at `base`, as the kernels have it, without stored keys.
pub(crate) fn on_gpu(index: &KeyIndex, base: u64) -> abi::KeyIndex {
    let parts = index.parts();
    abi::KeyIndex {
        keys: parts.keys,
        seed: parts.seed,
        parts: parts.parts,
        pilots: base + parts.pilots,
        stand_ins: base + parts.stand_ins,
        fingerprints: base + parts.fingerprints,
        stored: 0,
        buckets: parts.buckets,
        slots: parts.slots,
        stand_in_bytes: parts.stand_in_bytes,
        fingerprint_bytes: parts.fingerprint_bytes,
        is_signed: (index.kind() == KeyKind::I64).into(),
        unused: 0,
    }
}
