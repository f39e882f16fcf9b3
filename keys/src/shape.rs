//! The numbers that an index consists of: where its parts lie, and how a hash becomes a slot by them.

use std::ops::Range;

use crate::error::IndexError;
use crate::fingerprint::FingerprintWidth;
use crate::format::{HEADER_BYTES, MAX_KEYS};
use crate::hash::{MULTIPLIERS, mix, reduce};
use crate::key_kind::KeyKind;

/// Where parts begin: at cache lines of a GPU.
const ALIGN: u64 = 128;

/// Slots and buckets of a part, at most: what a build's tables hold.
const MAX_PART: u32 = 1 << 30;

/// The numbers of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub keys: u64,
    pub seed: u64,
    pub parts: u64,
    pub buckets: u32,
    pub slots: u32,
    pub fingerprint: FingerprintWidth,
    pub kind: KeyKind,
}

/// Where the parts of an index lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub pilots: Range<u64>,
    pub remap: Range<u64>,
    pub prints: Range<u64>,
}

impl Shape {
    /// Whether an index can have these numbers, and so whether all arithmetic on them stays in range.
    pub(crate) fn check(&self) -> Result<(), IndexError> {
        let bad = |what| Err(IndexError::Field { what });
        if self.keys == 0 || self.keys > MAX_KEYS {
            return bad("it has no keys, or too many");
        }
        if self.parts == 0 || self.parts > self.keys {
            return bad("it has no parts, or more than keys");
        }
        if self.buckets == 0 || self.buckets > MAX_PART || self.slots == 0 || self.slots > MAX_PART {
            return bad("its parts have no buckets or slots, or too many");
        }
        // Below 2⁴⁰ · 2³⁰.
        let slots = u128::from(self.parts) * u128::from(self.slots);
        if slots < self.keys.into() || slots > u128::from(self.keys) * 2 + 1024 {
            return bad("its slots are fewer than its keys, or far more");
        }
        if u128::from(self.parts) * u128::from(self.buckets) > u128::from(self.keys) * 2 + 1024 {
            return bad("its buckets are far more than its keys");
        }
        Ok(())
    }

    /// Slots in all, before those from `keys` on are given stand-ins.
    pub(crate) fn total_slots(&self) -> u64 {
        self.parts * u64::from(self.slots)
    }

    /// Bytes of a stand-in.
    pub(crate) fn remap_bytes(&self) -> usize {
        if self.keys <= 1 << 32 { 4 } else { 8 }
    }

    pub(crate) fn layout(&self) -> Layout {
        let after = |end: u64, bytes: u64| {
            let begin = end.next_multiple_of(ALIGN);
            begin..begin + bytes
        };
        let pilots = after(HEADER_BYTES as u64, self.parts * u64::from(self.buckets));
        let remap = after(pilots.end, (self.total_slots() - self.keys) * self.remap_bytes() as u64);
        let prints = after(remap.end, self.keys * self.fingerprint.bytes() as u64);
        Layout { pilots, remap, prints }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: u64) -> u64 {
        mix(key ^ self.seed)
    }

    #[inline(always)]
    pub(crate) fn part(&self, hash: u64) -> u64 {
        reduce(hash, self.parts)
    }

    /// The bucket, counted through all parts.
    #[inline(always)]
    pub(crate) fn bucket(&self, hash: u64) -> u64 {
        self.part(hash) * u64::from(self.buckets) + u64::from(self.bucket_in_part(hash))
    }

    #[inline(always)]
    pub(crate) fn bucket_in_part(&self, hash: u64) -> u32 {
        reduce(hash.wrapping_mul(self.parts), self.buckets.into()) as u32
    }

    #[inline(always)]
    pub(crate) fn slot(&self, hash: u64, pilot: u8) -> u64 {
        self.part(hash) * u64::from(self.slots) + u64::from(slot_in_part(hash, pilot, self.slots))
    }

    #[inline(always)]
    pub(crate) fn print(&self, hash: u64) -> u64 {
        hash & print_mask(self.fingerprint.bytes())
    }
}

#[inline(always)]
pub(crate) fn slot_in_part(hash: u64, pilot: u8, slots: u32) -> u32 {
    reduce(hash.wrapping_mul(MULTIPLIERS[usize::from(pilot)]), slots.into()) as u32
}

#[inline(always)]
pub(crate) const fn print_mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}
