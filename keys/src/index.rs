//! An index, and its evaluation.

use crate::fingerprint::FingerprintWidth;
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

/// The numbers of an index, and where each part of it begins in its bytes: what another evaluator, such as a GPU, has
/// to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexParts {
    /// How many keys the index has; their positions are the numbers below.
    pub keys: u64,
    /// Combined with each key by xor before the key is hashed.
    pub seed: u64,
    /// Parts of the function.
    pub parts: u64,
    /// Buckets of a part.
    pub buckets: u32,
    /// Slots of a part; all parts together have a few more slots than the index has keys.
    pub slots: u32,
    /// First byte of the pilots: one byte a bucket.
    pub pilots: u64,
    /// First byte of the stand-ins for slots from `keys` on.
    pub remap: u64,
    /// Bytes of a stand-in: 4 or 8.
    pub remap_bytes: u32,
    /// First byte of the fingerprints.
    pub fingerprints: u64,
    /// Bytes of a fingerprint: 1, 2 or 4.
    pub fingerprint_bytes: u32,
    /// Bytes in all.
    pub bytes: u64,
}

/// How many keys have their loads under way at a time.
const AHEAD: usize = 32;

impl KeyIndex {
    /// What [`positions`](Self::positions) gives for keys that the index does not have.
    pub const ABSENT: u64 = u64::MAX;

    pub(crate) fn of(shape: Shape, bytes: Vec<u8>) -> Self {
        Self { shape, layout: shape.layout(), bytes }
    }

    /// How many keys the index has.
    pub fn len(&self) -> u64 {
        self.shape.keys
    }

    /// Whether the index has no keys; it always has some.
    pub fn is_empty(&self) -> bool {
        self.shape.keys == 0
    }

    /// Which numbers its keys are.
    pub fn kind(&self) -> KeyKind {
        self.shape.kind
    }

    /// How it tells foreign keys.
    pub fn fingerprint(&self) -> FingerprintWidth {
        self.shape.fingerprint
    }

    /// CRC32C of the header, which has checksums of all other bytes: equal for equal indexes, and different for others
    /// but for one pair in 2³².
    pub fn checksum(&self) -> u32 {
        crc32c::crc32c(self.bytes.get(..HEADER_BYTES).unwrap_or_default())
    }

    /// All bytes of the index, as they are stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bits of the function for each key, without the fingerprint.
    pub fn bits_per_key(&self) -> f64 {
        let prints = self.shape.keys as f64 * self.shape.fingerprint.bytes() as f64;
        (self.bytes.len() as f64 - prints) * 8.0 / self.shape.keys as f64
    }

    /// The index's numbers, for other evaluators.
    pub fn parts(&self) -> IndexParts {
        let Shape { keys, seed, parts, buckets, slots, fingerprint, .. } = self.shape;
        let layout = &self.layout;
        IndexParts {
            keys,
            seed,
            parts,
            buckets,
            slots,
            pilots: layout.pilots.start,
            remap: layout.remap.start,
            remap_bytes: self.shape.remap_bytes() as u32,
            fingerprints: layout.prints.start,
            fingerprint_bytes: fingerprint.bytes() as u32,
            bytes: layout.prints.end,
        }
    }

    /// The position of `key` (an `i64` by its bits): below [`len`](Self::len), and another one for each of the index's
    /// keys. `None` for a foreign key, unless its fingerprint happens to be that of the index's key at the position to
    /// which it hashes.
    #[inline]
    pub fn position(&self, key: u64) -> Option<u64> {
        let view = View::of(self);
        let hash = self.shape.hash(key);
        let pilot = view.pilot(hash);
        let slot = match (self.shape.fingerprint, self.shape.remap_bytes()) {
            (FingerprintWidth::Bits8, 4) => view.slot::<1, 4>(hash, pilot),
            (FingerprintWidth::Bits16, 4) => view.slot::<2, 4>(hash, pilot),
            (FingerprintWidth::Bits32, 4) => view.slot::<4, 4>(hash, pilot),
            (FingerprintWidth::Bits8, _) => view.slot::<1, 8>(hash, pilot),
            (FingerprintWidth::Bits16, _) => view.slot::<2, 8>(hash, pilot),
            (FingerprintWidth::Bits32, _) => view.slot::<4, 8>(hash, pilot),
        };
        Some(slot).filter(|&slot| slot != Self::ABSENT)
    }

    /// Writes the position of each of `keys` into `slots`, [`ABSENT`](Self::ABSENT) for foreign keys; as many as both
    /// slices have.
    pub fn positions(&self, keys: &[u64], slots: &mut [u64]) {
        let view = View::of(self);
        match (self.shape.fingerprint, self.shape.remap_bytes()) {
            (FingerprintWidth::Bits8, 4) => view.slots::<1, 4>(keys, slots),
            (FingerprintWidth::Bits16, 4) => view.slots::<2, 4>(keys, slots),
            (FingerprintWidth::Bits32, 4) => view.slots::<4, 4>(keys, slots),
            (FingerprintWidth::Bits8, _) => view.slots::<1, 8>(keys, slots),
            (FingerprintWidth::Bits16, _) => view.slots::<2, 8>(keys, slots),
            (FingerprintWidth::Bits32, _) => view.slots::<4, 8>(keys, slots),
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
    remap: &'a [u8],
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
            remap: part(&layout.remap),
            prints: part(&layout.prints),
        }
    }

    #[inline(always)]
    fn pilot(&self, hash: u64) -> u8 {
        self.pilots.get(self.shape.bucket(hash) as usize).copied().unwrap_or(0)
    }

    /// The position of a key, or [`ABSENT`](KeyIndex::ABSENT); `W`: bytes of a fingerprint, `R`: bytes of a stand-in.
    #[inline(always)]
    fn slot<const W: usize, const R: usize>(&self, hash: u64, pilot: u8) -> u64 {
        let mut slot = self.shape.slot(hash, pilot);
        if slot >= self.shape.keys {
            let write_remap = self.remap.as_chunks::<R>().0.get((slot - self.shape.keys) as usize);
            slot = write_remap.map_or(KeyIndex::ABSENT, little_endian);
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
