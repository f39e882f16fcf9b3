//! An index, and its evaluation.

use crate::fingerprint::Fingerprint;
use crate::format::HEADER_BYTES;
use crate::key_kind::KeyKind;
use crate::shape::{Layout, Shape, print_mask};

/// A minimal perfect hash function with fingerprints. See the [crate].
#[derive(Clone, PartialEq, Eq)]
pub struct KeyIndex {
    shape: Shape,
    layout: Layout,
    bytes: Vec<u8>,
}

/// Where things lie in an index's bytes, and its numbers: what another evaluator, such as a GPU, has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parts {
    /// Keys, and slots.
    pub keys: u64,
    /// Added to keys, bit by bit, before they are hashed.
    pub seed: u64,
    /// Parts of the function.
    pub parts: u64,
    /// Buckets of a part.
    pub buckets: u32,
    /// Slots of a part.
    pub slots: u32,
    /// First byte of the pilots: one byte a bucket.
    pub pilots: u64,
    /// First byte of the stand-ins for slots from `keys` on.
    pub stand_ins: u64,
    /// Bytes of a stand-in: 4 or 8.
    pub stand_in_bytes: u32,
    /// First byte of the fingerprints.
    pub fingerprints: u64,
    /// Bytes of a fingerprint: 1, 2 or 4.
    pub fingerprint_bytes: u32,
    /// Bytes in all.
    pub bytes: u64,
}

/// Keys whose loads are under way at a time.
const AHEAD: usize = 32;

impl KeyIndex {
    /// What [`slots`](Self::slots) gives for keys that the index does not have.
    pub const ABSENT: u64 = u64::MAX;

    pub(crate) fn of(shape: Shape, bytes: Vec<u8>) -> Self {
        Self { shape, layout: shape.layout(), bytes }
    }

    /// How many keys it has.
    pub fn len(&self) -> u64 {
        self.shape.keys
    }

    /// Whether it has none; it always has some.
    pub fn is_empty(&self) -> bool {
        self.shape.keys == 0
    }

    /// Which numbers its keys are.
    pub fn kind(&self) -> KeyKind {
        self.shape.kind
    }

    /// How it tells foreign keys.
    pub fn fingerprint(&self) -> Fingerprint {
        self.shape.fingerprint
    }

    /// CRC32C of the header, which has checksums of all else: equal for equal indexes, and for about no others.
    pub fn checksum(&self) -> u32 {
        crc32c::crc32c(self.bytes.get(..HEADER_BYTES).unwrap_or_default())
    }

    /// All of it, as it is stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bits of the function for each key, without the fingerprint.
    pub fn bits_per_key(&self) -> f64 {
        let prints = self.shape.keys as f64 * self.shape.fingerprint.bytes() as f64;
        (self.bytes.len() as f64 - prints) * 8.0 / self.shape.keys as f64
    }

    /// The index's numbers, for other evaluators.
    pub fn parts(&self) -> Parts {
        let Shape { keys, seed, parts, buckets, slots, fingerprint, .. } = self.shape;
        let layout = &self.layout;
        Parts {
            keys,
            seed,
            parts,
            buckets,
            slots,
            pilots: layout.pilots.start,
            stand_ins: layout.stand_ins.start,
            stand_in_bytes: self.shape.stand_in_bytes() as u32,
            fingerprints: layout.prints.start,
            fingerprint_bytes: fingerprint.bytes() as u32,
            bytes: layout.prints.end,
        }
    }

    /// The slot of `key` (an `i64` by its bits): below [`len`](Self::len), of each of the index's keys another. `None` for other
    /// keys, but for those whose fingerprint is by chance that of a key of the index.
    #[inline]
    pub fn slot(&self, key: u64) -> Option<u64> {
        let view = View::of(self);
        let hash = self.shape.hash(key);
        let pilot = view.pilot(hash);
        let slot = match (self.shape.fingerprint, self.shape.stand_in_bytes()) {
            (Fingerprint::Bits8, 4) => view.slot::<1, 4>(hash, pilot),
            (Fingerprint::Bits16, 4) => view.slot::<2, 4>(hash, pilot),
            (Fingerprint::Bits32, 4) => view.slot::<4, 4>(hash, pilot),
            (Fingerprint::Bits8, _) => view.slot::<1, 8>(hash, pilot),
            (Fingerprint::Bits16, _) => view.slot::<2, 8>(hash, pilot),
            (Fingerprint::Bits32, _) => view.slot::<4, 8>(hash, pilot),
        };
        Some(slot).filter(|&slot| slot != Self::ABSENT)
    }

    /// The slots of many keys, of foreign ones [`ABSENT`](Self::ABSENT); as many as fit in both.
    pub fn slots(&self, keys: &[u64], slots: &mut [u64]) {
        let view = View::of(self);
        match (self.shape.fingerprint, self.shape.stand_in_bytes()) {
            (Fingerprint::Bits8, 4) => view.slots::<1, 4>(keys, slots),
            (Fingerprint::Bits16, 4) => view.slots::<2, 4>(keys, slots),
            (Fingerprint::Bits32, 4) => view.slots::<4, 4>(keys, slots),
            (Fingerprint::Bits8, _) => view.slots::<1, 8>(keys, slots),
            (Fingerprint::Bits16, _) => view.slots::<2, 8>(keys, slots),
            (Fingerprint::Bits32, _) => view.slots::<4, 8>(keys, slots),
        }
    }
}

impl std::fmt::Debug for KeyIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyIndex").field("shape", &self.shape).field("bytes", &self.bytes.len()).finish()
    }
}

/// An index taken apart.
struct View<'a> {
    shape: Shape,
    pilots: &'a [u8],
    stand_ins: &'a [u8],
    prints: &'a [u8],
}

impl<'a> View<'a> {
    #[inline(always)]
    fn of(index: &'a KeyIndex) -> Self {
        let part = |range: &std::ops::Range<u64>| {
            index.bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
        };
        let layout = &index.layout;
        Self {
            shape: index.shape,
            pilots: part(&layout.pilots),
            stand_ins: part(&layout.stand_ins),
            prints: part(&layout.prints),
        }
    }

    #[inline(always)]
    fn pilot(&self, hash: u64) -> u8 {
        self.pilots.get(self.shape.bucket(hash) as usize).copied().unwrap_or(0)
    }

    /// The slot of a key, or [`ABSENT`](KeyIndex::ABSENT); `W` bytes of fingerprint, `R` of a stand-in.
    #[inline(always)]
    fn slot<const W: usize, const R: usize>(&self, hash: u64, pilot: u8) -> u64 {
        let mut slot = self.shape.slot(hash, pilot);
        if slot >= self.shape.keys {
            let stand_in = self.stand_ins.as_chunks::<R>().0.get((slot - self.shape.keys) as usize);
            slot = stand_in.map_or(KeyIndex::ABSENT, little_endian);
        }
        let print = self.prints.as_chunks::<W>().0.get(slot as usize).map(little_endian);
        if print == Some(hash & print_mask(W)) { slot } else { KeyIndex::ABSENT }
    }

    fn slots<const W: usize, const R: usize>(&self, keys: &[u64], slots: &mut [u64]) {
        // Each step's loads are independent of each other, so that a processor has many of them under way.
        let mut hashes = [0; AHEAD];
        let mut pilots = [0; AHEAD];
        for (keys, slots) in keys.chunks(AHEAD).zip(slots.chunks_mut(AHEAD)) {
            for ((&key, hash), pilot) in keys.iter().zip(&mut hashes).zip(&mut pilots) {
                *hash = self.shape.hash(key);
                *pilot = self.pilot(*hash);
            }
            for ((slot, &hash), &pilot) in slots.iter_mut().zip(&hashes).zip(&pilots).take(keys.len()) {
                *slot = self.slot::<W, R>(hash, pilot);
            }
        }
    }
}

#[inline(always)]
pub(crate) fn little_endian<const N: usize>(bytes: &[u8; N]) -> u64 {
    let mut wide = [0; 8];
    wide.iter_mut().zip(bytes).for_each(|(wide, &byte)| *wide = byte);
    u64::from_le_bytes(wide)
}
