//! Pilots for the buckets of one part.
//!
//! Large buckets come first, when most slots are free. A bucket takes the first pilot that puts all its keys on free slots. Where none
//! does, it takes the pilot under which it displaces the least, and those that it displaces look for another. (Pibiri and Trani,
//! *PTHash*, 2021; Groot Koerkamp, *PtrHash*, 2025.)

use std::collections::BinaryHeap;

use crate::hash::mix;
use crate::shape::{Shape, slot_in_part};

/// Keys of a bucket, at most. Chance puts about 20 together.
const MAX_BUCKET: usize = 64;
/// Buckets that were placed last are not displaced at once: those that displace each other would go on for ever.
const RECENT: usize = 16;
/// No bucket.
const NONE: u32 = u32::MAX;

pub(super) enum Placed {
    Yes,
    /// No pilots were found; with another seed they may be.
    No,
    /// Two keys have this hash, so the two are the same key.
    Duplicate(u64),
}

/// Buffers for one part after another.
pub(super) struct Placer<'a> {
    shape: &'a Shape,
    /// The part's hashes, by bucket.
    hashes: Vec<u64>,
    /// Where each bucket begins in `hashes`, and where the last one ends.
    starts: Vec<u32>,
    /// Buckets, the largest first.
    order: Vec<u32>,
    /// By slot: the bucket that has it.
    owners: Vec<u32>,
    /// The pilot of each bucket.
    pilots: Vec<u8>,
    displaced: BinaryHeap<(u32, u32)>,
    recent: [u32; RECENT],
    /// State of the random numbers by which one of several equally good pilots is chosen.
    draw: u64,
}

impl<'a> Placer<'a> {
    pub(super) fn new(shape: &'a Shape) -> Self {
        let buckets = shape.buckets as usize;
        Self {
            shape,
            hashes: Vec::new(),
            starts: vec![0; buckets + 1],
            order: vec![0; buckets],
            owners: vec![NONE; shape.slots as usize],
            pilots: vec![0; buckets],
            displaced: BinaryHeap::new(),
            recent: [NONE; RECENT],
            draw: 0,
        }
    }

    /// Places part number `part`: writes its pilots, a fingerprint into the place of every slot that is in use, and a bit for each
    /// such slot into `taken`, which is zero.
    pub(super) fn place<'h>(
        &mut self,
        part: usize,
        hashes: impl Iterator<Item = &'h [u64]> + Clone,
        pilots: &mut [u8],
        prints: &mut [u8],
        taken: &mut [u64],
    ) -> Placed {
        self.sort(hashes);
        if let Some(hash) = self.duplicate() {
            return Placed::Duplicate(hash);
        }
        let Some(()) = self.order_by_size() else { return Placed::No };
        self.draw = mix(part as u64 ^ self.shape.seed);
        self.owners.fill(NONE);
        let mut patience = 64 + 2 * self.order.len();
        for at in 0..self.order.len() {
            let bucket = self.order[at];
            if self.bucket(bucket).is_empty() {
                break;
            }
            if self.try_place(bucket, taken) {
                continue;
            }
            self.recent = [NONE; RECENT];
            self.displaced.push((self.bucket(bucket).len() as u32, bucket));
            let mut displacing = 0;
            while let Some((_, bucket)) = self.displaced.pop() {
                if self.try_place(bucket, taken) {
                    continue;
                }
                patience = patience.saturating_sub(1);
                if patience == 0 || !self.displace(bucket, taken, displacing) {
                    self.displaced.clear();
                    return Placed::No;
                }
                displacing += 1;
            }
        }
        pilots.copy_from_slice(&self.pilots);
        let width = self.shape.fingerprint.bytes();
        for bucket in 0..self.pilots.len() as u32 {
            for &hash in self.bucket(bucket) {
                let slot = slot_in_part(hash, self.pilots[bucket as usize], self.shape.slots) as usize;
                let print = self.shape.print(hash).to_le_bytes();
                prints[slot * width..][..width].copy_from_slice(&print[..width]);
            }
        }
        Placed::Yes
    }

    fn bucket(&self, bucket: u32) -> &[u64] {
        let bucket = bucket as usize;
        &self.hashes[self.starts[bucket] as usize..self.starts[bucket + 1] as usize]
    }

    fn sort<'h>(&mut self, hashes: impl Iterator<Item = &'h [u64]> + Clone) {
        let Self { shape, starts, hashes: sorted, .. } = self;
        // Counted one place ahead, so that after the sums each bucket's entry says where the one before it ends.
        starts.fill(0);
        let mut total = 0;
        for hashes in hashes.clone() {
            hashes.iter().for_each(|&hash| starts[shape.bucket_in_part(hash) as usize] += 1);
            total += hashes.len();
        }
        let mut end = 0;
        for start in starts.iter_mut() {
            end += *start;
            *start = end;
        }
        sorted.resize(total, 0);
        for hashes in hashes {
            for &hash in hashes {
                let start = &mut starts[shape.bucket_in_part(hash) as usize];
                *start -= 1;
                sorted[*start as usize] = hash;
            }
        }
        self.pilots.fill(0);
    }

    /// A hash that occurs twice: the smallest one of the first bucket that has any.
    fn duplicate(&mut self) -> Option<u64> {
        for at in 0..self.pilots.len() {
            let bucket = &mut self.hashes[self.starts[at] as usize..self.starts[at + 1] as usize];
            if bucket.len() < 2 {
                continue;
            }
            // The order of the keys in their file must not matter to anything.
            bucket.sort_unstable();
            if let Some(pair) = bucket.windows(2).find(|pair| pair[0] == pair[1]) {
                return Some(pair[0]);
            }
        }
        None
    }

    /// `None`: a bucket is too large.
    fn order_by_size(&mut self) -> Option<()> {
        let size = |bucket: usize, starts: &[u32]| (starts[bucket + 1] - starts[bucket]) as usize;
        let mut next = [0u32; MAX_BUCKET + 1];
        for bucket in 0..self.pilots.len() {
            *next.get_mut(size(bucket, &self.starts))? += 1;
        }
        let mut begin = 0;
        for count in next.iter_mut().rev() {
            begin += std::mem::replace(count, begin);
        }
        for bucket in 0..self.pilots.len() {
            let at = &mut next[size(bucket, &self.starts)];
            self.order[*at as usize] = bucket as u32;
            *at += 1;
        }
        Some(())
    }

    /// Takes free slots for a bucket, if a pilot has them.
    fn try_place(&mut self, bucket: u32, taken: &mut [u64]) -> bool {
        let slots = self.shape.slots;
        let hashes = self.bucket(bucket);
        let mut places = [0u32; MAX_BUCKET];
        let is_free = |slot: u32| taken[slot as usize / 64] >> (slot % 64) & 1 == 0;
        let found = (0..=u8::MAX).find(|&pilot| {
            for (index, &hash) in hashes.iter().enumerate() {
                let slot = slot_in_part(hash, pilot, slots);
                if !is_free(slot) {
                    return false;
                }
                places[index] = slot;
            }
            are_different(&places[..hashes.len()])
        });
        let (Some(pilot), count) = (found, hashes.len()) else { return false };
        self.take(bucket, pilot, &places[..count], taken);
        true
    }

    fn take(&mut self, bucket: u32, pilot: u8, places: &[u32], taken: &mut [u64]) {
        self.pilots[bucket as usize] = pilot;
        for &slot in places {
            taken[slot as usize / 64] |= 1 << (slot % 64);
            self.owners[slot as usize] = bucket;
        }
    }

    /// Takes the slots for a bucket whose present buckets are displaced at the least cost; false: there are none that
    /// it may take.
    fn displace(&mut self, bucket: u32, taken: &mut [u64], number: usize) -> bool {
        let slots = self.shape.slots;
        self.draw = mix(self.draw.wrapping_add(1));
        let start = self.draw as u8;
        let hashes = self.bucket(bucket);
        let mut best: Option<(usize, u8)> = None;
        let mut places = [0u32; MAX_BUCKET];
        for pilot in (0..=u8::MAX).map(|offset| start.wrapping_add(offset)) {
            let mut cost = 0;
            for (index, &hash) in hashes.iter().enumerate() {
                let slot = slot_in_part(hash, pilot, slots);
                places[index] = slot;
                let owner = self.owners[slot as usize];
                if owner != NONE {
                    let size = self.bucket(owner).len();
                    cost += if self.recent.contains(&owner) { usize::MAX / 1024 } else { size * size };
                }
            }
            let worth = cost < best.map_or(usize::MAX / 1024, |best| best.0);
            if worth && are_different(&places[..hashes.len()]) {
                best = Some((cost, pilot));
            }
        }
        let Some((_, pilot)) = best else { return false };
        let count = hashes.len();
        for (index, place) in places.iter_mut().enumerate().take(count) {
            let slot = slot_in_part(self.bucket(bucket)[index], pilot, slots);
            *place = slot;
            let owner = self.owners[slot as usize];
            if owner != NONE {
                self.give_up(owner, taken);
            }
        }
        self.take(bucket, pilot, &places[..count], taken);
        self.recent[number % RECENT] = bucket;
        true
    }

    fn give_up(&mut self, bucket: u32, taken: &mut [u64]) {
        let pilot = self.pilots[bucket as usize];
        for index in 0..self.bucket(bucket).len() {
            let slot = slot_in_part(self.bucket(bucket)[index], pilot, self.shape.slots) as usize;
            taken[slot / 64] &= !(1 << (slot % 64));
            self.owners[slot] = NONE;
        }
        self.displaced.push((self.bucket(bucket).len() as u32, bucket));
    }
}

fn are_different(places: &[u32]) -> bool {
    places.iter().enumerate().all(|(index, place)| !places[..index].contains(place))
}
