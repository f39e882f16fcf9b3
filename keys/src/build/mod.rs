//! Building an index: keys are hashed and sorted into parts, each small enough for a processor's cache; then pilots are found
//! for each part by itself, on all cores.

mod crew;
mod place;
mod scatter;

use std::ops::{ControlFlow, Range};
use std::sync::{Mutex, PoisonError};

use crate::bytes::Shape;
use crate::hash::{mix, unmix};
use crate::{BuildError, Fingerprint, KeyIndex, KeyKind, KeySource, MAX_KEYS};
use crew::{Crew, Tell};
use place::{Placed, Placer};
use scatter::Scattered;

/// How an index is built. Keys, seed and fingerprint alone decide what comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What the hash begins with.
    pub seed: u64,
    /// How foreign keys are told.
    pub fingerprint: Fingerprint,
    /// Threads; 0: as many as the machine has cores for this process.
    pub threads: usize,
    /// Bytes of hashes in memory, 8 a key; where they are more, keys are read several times. What else it takes: the index, a bit a key,
    /// about 4 MiB a thread, and 8 bytes a thread for each 131,072 keys.
    pub memory: u64,
}

impl Default for Options {
    /// Seed 0, 16 bits of fingerprint, all cores, 4 GiB.
    fn default() -> Self {
        Self { seed: 0, fingerprint: Fingerprint::default(), threads: 0, memory: 4 << 30 }
    }
}

impl Options {
    /// With that seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// With such fingerprints.
    #[must_use]
    pub fn with_fingerprint(self, fingerprint: Fingerprint) -> Self {
        Self { fingerprint, ..self }
    }

    /// With so many threads.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// With so many bytes of hashes at a time.
    #[must_use]
    pub fn with_memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }

    fn crew(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.threads == 0 { all() } else { self.threads.min(1024) }
    }
}

/// Keys of a part, about: its tables stay in a core's second cache.
const PART_KEYS: u64 = 1 << 17;
/// Where stand-ins have 8 bytes: the fuller parts are, the more alike they are, and the fewer slots need one.
const LARGE_PART_KEYS: u64 = 1 << 20;
/// Buckets of a part: a pilot of 8 bits serves three keys.
const BUCKET_KEYS: u64 = 3;
/// Seeds tried. One fails about never, unless keys are few or were chosen to.
const ATTEMPTS: u32 = 64;
/// Keys asked of a source at once.
pub(crate) const BLOCK: u64 = 1 << 13;

/// Why one seed gave no index.
enum Setback {
    /// Another seed may.
    Unlucky,
    Error(BuildError),
}

impl From<BuildError> for Setback {
    fn from(error: BuildError) -> Self {
        Self::Error(error)
    }
}

impl KeyIndex {
    /// Builds the index of the keys of `source`, which is read several times over. `progress` hears on this thread of how many
    /// keys are placed, and may stop it ([`BuildError::Interrupted`]).
    ///
    /// A key that stands there twice is an error that names it.
    pub fn build<S: KeySource + ?Sized>(
        source: &S,
        options: &Options,
        progress: &mut Tell<'_>,
    ) -> Result<Self, BuildError> {
        let keys = source.len();
        if keys == 0 || keys > MAX_KEYS {
            return Err(BuildError::Count { keys });
        }
        for attempt in 0..ATTEMPTS {
            let seed = mix(options.seed.wrapping_add(u64::from(attempt)) ^ 0x9e37_79b9_7f4a_7c15);
            match (Attempt { source: &source, options, seed }).run(progress) {
                Ok(index) => return Ok(index),
                Err(Setback::Unlucky) => {}
                Err(Setback::Error(error)) => return Err(error),
            }
        }
        Err(BuildError::Unlucky { tried: ATTEMPTS, seed: options.seed })
    }

    /// Bytes that an index of so many keys has at least; 0 of a number that none can have. Few have much more.
    pub fn least_bytes(keys: u64, fingerprint: Fingerprint) -> u64 {
        if keys == 0 || keys > MAX_KEYS {
            return 0;
        }
        let shape = shape(keys, 0, fingerprint, KeyKind::U64);
        Shape { slots: slots(keys.div_ceil(shape.parts)), ..shape }.layout().prints.end
    }

    /// The slot of each key of `source` in their order, which the index was built from: an array of its length, 4 or 8 bytes a
    /// key.
    pub fn place<S: KeySource + ?Sized, T: SlotNumber>(
        &self,
        source: &S,
        threads: usize,
    ) -> Result<Vec<T>, BuildError> {
        let keys = source.len();
        let mut all: Vec<T> = Vec::new();
        let bytes = keys.saturating_mul(size_of::<T>() as u64);
        let length = usize::try_from(keys).unwrap_or(usize::MAX);
        all.try_reserve_exact(length).map_err(|_| BuildError::Memory { what: "the slots of all keys", bytes })?;
        all.resize(length, T::default());
        let threads = Options { threads, ..Options::default() }.crew();
        let jobs = Mutex::new((0..).step_by(BLOCK as usize).zip(all.chunks_mut(BLOCK as usize)));
        Crew::new(threads.min(keys.div_ceil(BLOCK) as usize)).run(&mut |_| ControlFlow::Continue(()), &|crew, _| {
            let (mut keys, mut slots) = (vec![0; BLOCK as usize], vec![0; BLOCK as usize]);
            while let Some((first, out)) = crew.next(&jobs) {
                let (keys, slots) = (&mut keys[..out.len()], &mut slots[..out.len()]);
                source.read(first, keys).map_err(|source| BuildError::Source { first, source })?;
                self.slots(keys, slots);
                for (out, &slot) in out.iter_mut().zip(&*slots) {
                    *out = T::of(slot).ok_or(BuildError::Changed)?;
                }
            }
            Ok::<_, BuildError>(())
        })?;
        Ok(all)
    }
}

/// A number that slots are written as.
pub trait SlotNumber: Copy + Default + Send {
    /// `slot`, unless it is too large for this type, or no slot at all.
    fn of(slot: u64) -> Option<Self>;
}

impl SlotNumber for u32 {
    fn of(slot: u64) -> Option<Self> {
        slot.try_into().ok()
    }
}

impl SlotNumber for u64 {
    fn of(slot: u64) -> Option<Self> {
        Some(slot).filter(|&slot| slot != KeyIndex::ABSENT)
    }
}

/// What an index of so many keys looks like, but for its slots.
fn shape(keys: u64, seed: u64, fingerprint: Fingerprint, kind: KeyKind) -> Shape {
    let parts = keys.div_ceil(if keys <= 1 << 32 { PART_KEYS } else { LARGE_PART_KEYS });
    let buckets = keys.div_ceil(parts).div_ceil(BUCKET_KEYS) as u32;
    Shape { keys, seed, parts, buckets, slots: 0, fingerprint, kind }
}

/// Slots of each part, of which the fullest has so many keys.
fn slots(most: u64) -> u32 {
    // One in a hundred stays free, for the last keys to find a place.
    (most + most / 100 + 4) as u32
}

struct Attempt<'a> {
    source: &'a dyn KeySource,
    options: &'a Options,
    seed: u64,
}

impl Attempt<'_> {
    fn run(&self, progress: &mut Tell<'_>) -> Result<KeyIndex, Setback> {
        let keys = self.source.len();
        let (kind, fingerprint) = (self.source.kind(), self.options.fingerprint);
        let mut shape = shape(keys, self.seed, fingerprint, kind);
        let (parts, buckets) = (shape.parts, shape.buckets);
        let threads = self.options.crew().min(keys.div_ceil(BLOCK) as usize);
        let crew = Crew::new(threads);
        let counts = scatter::count(self.source, &shape, &crew, progress)?;
        let of_part = |part: usize| counts.iter().map(|counts| counts[part]).sum::<u64>();
        let (fullest, most) =
            (0..parts as usize).map(|part| (part, of_part(part))).max_by_key(|part| part.1).unwrap_or_default();
        let mean = keys as f64 / parts as f64;
        if parts > 1 && most as f64 > mean + 12.0 * mean.sqrt() {
            // Chance does not do this.
            self.find_duplicates_in(fullest as u64, &shape)?;
            return Err(Setback::Unlucky);
        }
        shape.slots = slots(most);

        let layout = shape.layout();
        let spare = (shape.total_slots() - keys) * fingerprint.bytes() as u64;
        let mut bytes = zeroed::<u8>(layout.prints.end + spare, "the index")?;
        let words = shape.slots.div_ceil(64) as usize;
        let mut taken = zeroed::<u64>(parts * words as u64, "the slots in use")?;
        let (head, prints) = bytes.split_at_mut(layout.prints.start as usize);
        let pilots = &mut head[layout.pilots.start as usize..layout.pilots.end as usize];
        let prints = prints.chunks_mut(shape.slots as usize * fingerprint.bytes());
        let mut todo = pilots
            .chunks_mut(buckets as usize)
            .zip(prints)
            .zip(taken.chunks_mut(words))
            .zip(0..)
            .map(|(((pilots, prints), taken), part)| (part, pilots, prints, taken));
        let mut first = 0;
        let mut placed = 0;
        while first < parts as usize {
            let mut end = first;
            let mut held = 0;
            while end < parts as usize && (end == first || held + of_part(end) <= self.options.memory / 8) {
                held += of_part(end);
                end += 1;
            }
            let scattered = scatter::scatter(self.source, &shape, &counts, first..end, &crew, progress)?;
            let jobs = Mutex::new(todo.by_ref().take(end - first));
            self.place_parts(&shape, &scattered, &jobs, &crew, placed, progress)?;
            placed += held;
            first = end;
        }
        drop(todo);
        stand_in(&shape, &mut bytes, &taken);
        bytes.truncate(layout.prints.end as usize);
        shape.seal(&mut bytes);
        Ok(KeyIndex::of(shape, bytes))
    }

    fn place_parts<'p>(
        &self,
        shape: &Shape,
        scattered: &Scattered,
        jobs: &Mutex<impl Iterator<Item = (usize, &'p mut [u8], &'p mut [u8], &'p mut [u64])> + Send>,
        crew: &Crew,
        before: u64,
        progress: &mut Tell<'_>,
    ) -> Result<(), Setback> {
        // Parts are taken in their order, so all below one that ends it are seen to: the first is the same every time.
        let worst: Mutex<Option<(usize, Option<u64>)>> = Mutex::default();
        let done = std::sync::atomic::AtomicU64::new(before);
        crew.run(progress, &|crew, tell| {
            let mut placer = Placer::new(shape);
            while let Some((part, pilots, prints, taken)) = crew.next(jobs) {
                let duplicate = match placer.place(part, scattered.part(part), pilots, prints, taken) {
                    Placed::Yes => None,
                    Placed::No => Some(None),
                    Placed::Duplicate(hash) => Some(Some(hash)),
                };
                if let Some(duplicate) = duplicate {
                    let mut worst = worst.lock().unwrap_or_else(PoisonError::into_inner);
                    if worst.is_none_or(|worst| part < worst.0) {
                        *worst = Some((part, duplicate));
                    }
                    crew.stop();
                }
                let keys = scattered.part(part).map(|hashes| hashes.len() as u64).sum::<u64>();
                let done = done.fetch_add(keys, std::sync::atomic::Ordering::Relaxed) + keys;
                if tell(done).is_break() {
                    return Err(BuildError::Interrupted);
                }
            }
            Ok(())
        })?;
        match worst.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some((_, None)) => Err(Setback::Unlucky),
            Some((_, Some(hash))) => Err(self.duplicate(hash).into()),
        }
    }

    /// Looks at the keys of one part, as many as parts have at most if there is no duplicate among them.
    fn find_duplicates_in(&self, part: u64, shape: &Shape) -> Result<(), BuildError> {
        let mut hashes = Vec::new();
        let most = (shape.keys / shape.parts * 2) as usize;
        scatter::read(self.source, 0..shape.keys, |keys| {
            let of_part = keys.iter().map(|&key| shape.hash(key)).filter(|&hash| shape.part(hash) == part);
            hashes.extend(of_part.take(most.saturating_sub(hashes.len())));
            Ok(())
        })?;
        hashes.sort_unstable();
        match hashes.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(self.duplicate(pair[0])),
            None => Ok(()),
        }
    }

    /// Names the key of that hash, which stands in the source at least twice.
    fn duplicate(&self, hash: u64) -> BuildError {
        let key = unmix(hash) ^ self.seed;
        let mut found = Vec::new();
        let mut at = 0;
        let scanned = scatter::read(self.source, 0..self.source.len(), |keys| {
            found.extend((at..).zip(keys).filter(|(_, other)| **other == key).map(|(at, _)| at).take(2));
            at += keys.len() as u64;
            Ok(())
        });
        match (scanned, &found[..]) {
            (Err(error), _) => error,
            (Ok(()), &[first, second, ..]) => BuildError::Duplicate { key, kind: self.source.kind(), first, second },
            _ => BuildError::Changed,
        }
    }
}

/// Gives each slot in use from `keys` on a free one below, with its fingerprint.
fn stand_in(shape: &Shape, bytes: &mut [u8], taken: &[u64]) {
    let layout = shape.layout();
    let (width, slots) = (shape.fingerprint.bytes(), u64::from(shape.slots));
    let words = shape.slots.div_ceil(64) as usize;
    let is_taken = |slot: u64| {
        let (part, slot) = ((slot / slots) as usize, (slot % slots) as usize);
        taken[part * words + slot / 64] >> (slot % 64) & 1 == 1
    };
    let mut free = FreeSlots { taken, words, slots, keys: shape.keys, word: 0, left: !taken[0] };
    for slot in (shape.keys..shape.total_slots()).filter(|&slot| is_taken(slot)) {
        let Some(to) = free.next() else { return };
        let stand_in = layout.stand_ins.start as usize + (slot - shape.keys) as usize * shape.stand_in_bytes();
        bytes[stand_in..][..shape.stand_in_bytes()].copy_from_slice(&to.to_le_bytes()[..shape.stand_in_bytes()]);
        let print = |slot: u64| layout.prints.start as usize + slot as usize * width;
        bytes.copy_within(print(slot)..print(slot) + width, print(to));
    }
}

/// Slots below `keys` that are not taken, ascending.
struct FreeSlots<'a> {
    taken: &'a [u64],
    words: usize,
    slots: u64,
    keys: u64,
    word: usize,
    /// Free bits of that word that were not given yet.
    left: u64,
}

impl Iterator for FreeSlots<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            if self.left != 0 {
                let (part, bit) = (self.word / self.words, self.left.trailing_zeros() as usize);
                self.left &= self.left - 1;
                let in_part = ((self.word % self.words) * 64 + bit) as u64;
                if in_part < self.slots {
                    return Some(part as u64 * self.slots + in_part).filter(|&slot| slot < self.keys);
                }
                continue;
            }
            self.word += 1;
            self.left = !*self.taken.get(self.word)?;
        }
    }
}

fn zeroed<T: Default + Clone>(length: u64, what: &'static str) -> Result<Vec<T>, BuildError> {
    let refused = || BuildError::Memory { what, bytes: length.saturating_mul(size_of::<T>() as u64) };
    let length = usize::try_from(length).map_err(|_| refused())?;
    let mut all = Vec::new();
    all.try_reserve_exact(length).map_err(|_| refused())?;
    all.resize(length, T::default());
    Ok(all)
}

/// What several threads share of the keys: equal ranges.
fn share(keys: u64, thread: usize, threads: usize) -> Range<u64> {
    let at = |thread: usize| (u128::from(keys) * thread as u128 / threads as u128) as u64;
    at(thread)..at(thread + 1)
}
