//! Sparse ids of a table: keys of either kind, looked up as the host's index says.

use std::ops::ControlFlow;

use fastrand::Rng;
use warprow_kernels::abi;
use warprow_keys::{FingerprintWidth, IndexOptions, KeyIndex, KeyKind};

use crate::buffer::Buffer;

pub struct Sparse {
    index: KeyIndex,
    /// By slot, which is the number of the row.
    pub numbers: Vec<i128>,
    /// Keys of its kind that it does not have, some of them with a fingerprint that passes.
    pub foreign: Vec<i128>,
    kind: KeyKind,
    /// Keys are compared, so that short fingerprints do.
    stored: bool,
}

impl Sparse {
    pub fn random(rng: &mut Rng, rows: u64) -> Self {
        let kind = if rng.bool() { KeyKind::I64 } else { KeyKind::U64 };
        let stored = rng.bool();
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
        let width =
            [FingerprintWidth::Bits8, FingerprintWidth::Bits8, FingerprintWidth::Bits16, FingerprintWidth::Bits32];
        let width = if stored { FingerprintWidth::Bits8 } else { width[rng.usize(0..4)] };
        let options = IndexOptions::default().with_fingerprint(width).with_seed(rng.u64(..));
        let signed: Vec<i64> = keys.iter().map(|&key| key as i64).collect();
        let mut go_on = |_| ControlFlow::Continue(());
        let index = match kind {
            KeyKind::I64 => KeyIndex::build(&signed[..], &options, &mut go_on),
            KeyKind::U64 => KeyIndex::build(&keys[..], &options, &mut go_on),
        };
        let index = index.unwrap();
        let number = |key: u64| if kind == KeyKind::I64 { i128::from(key as i64) } else { i128::from(key) };
        let mut numbers = vec![0; keys.len()];
        for &key in &keys {
            numbers[index.position(key).unwrap() as usize] = number(key);
        }
        let mut foreign = Vec::new();
        let mut passing = 0;
        for turn in 0..3000 {
            // Some are as small as rows, and some have the upper bit.
            let key = rng.u64(..) >> [0, 0, 40, 56][turn % 4] | [1 << 63, 0, 0, 0][turn % 4];
            let passes = index.position(key).is_some();
            if keys.binary_search(&key).is_err() && (passing < 6 && passes || foreign.len() < 6) {
                foreign.push(number(key));
                passing += u32::from(passes);
            }
        }
        Self { index, numbers, foreign, kind, stored }
    }

    /// The row of an id; none of a number that is no key. Where keys are not compared, that of another key whose fingerprint is the same.
    pub fn row(&self, id: i128) -> Option<u64> {
        let slot = self.index.position(id as u64).filter(|_| self.holds(id))?;
        (!self.stored || self.numbers[slot as usize] == id).then_some(slot)
    }

    /// Whether an id could be a key.
    fn holds(&self, id: i128) -> bool {
        match self.kind {
            KeyKind::I64 => i64::try_from(id).is_ok(),
            KeyKind::U64 => u64::try_from(id).is_ok(),
        }
    }

    /// Whether an id could be a key that it does not have.
    pub fn lacks(&self, id: i128) -> bool {
        self.holds(id) && self.index.position(id as u64).is_none_or(|slot| self.numbers[slot as usize] != id)
    }

    /// For the kernels; `rank` of a row. Touches are noted at the first of these addresses, in the epoch at the second.
    pub fn describe(
        &self,
        rank: impl Fn(u64) -> u64,
        [touched, epoch]: [u64; 2],
        mut keep: impl FnMut(Buffer) -> u64,
    ) -> u64 {
        let base = keep(Buffer::of(self.index.as_bytes()));
        let mut by_rank = vec![0; self.numbers.len()];
        for (row, &number) in (0..).zip(&self.numbers) {
            by_rank[rank(row) as usize] = number as u64;
        }
        let stored = Buffer::of(&by_rank.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<u8>>());
        let stored = if self.stored { keep(stored) } else { 0 };
        let index = abi::KeyIndex { stored, touched, epoch, ..on_gpu(&self.index, base) };
        keep(Buffer::of(index.as_bytes()))
    }
}

/// An index whose bytes lie at `base`, as the kernels have it, without stored keys.
pub fn on_gpu(index: &KeyIndex, base: u64) -> abi::KeyIndex {
    let parts = index.parts();
    abi::KeyIndex {
        keys: parts.keys,
        seed: parts.seed,
        parts: parts.parts,
        pilots: base + parts.pilots,
        remap: base + parts.remap,
        fingerprints: base + parts.fingerprints,
        stored: 0,
        buckets: parts.buckets,
        slots: parts.slots,
        remap_bytes: parts.remap_bytes,
        fingerprint_bytes: parts.fingerprint_bytes,
        is_signed: (index.kind() == KeyKind::I64).into(),
        unused: 0,
        touched: 0,
        epoch: 0,
    }
}
