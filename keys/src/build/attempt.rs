//! An index, built with one seed after another until one gives a function.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::memory::zeroed;
use super::options::IndexOptions;
use super::place::{Placed, Placer};
use super::read::{BLOCK, read};
use super::remap::write_remap;
use super::scatter::{Scattered, count, scatter};
use super::worker_threads::{Tell, WorkerThreads};
use crate::error::IndexBuildError;
use crate::fingerprint::FingerprintWidth;
use crate::format::MAX_KEYS;
use crate::hash::{mix, unmix};
use crate::index::KeyIndex;
use crate::key_kind::KeyKind;
use crate::shape::Shape;
use crate::source::KeySource;

/// About how many keys a part has: the part's tables then stay in a core's second-level cache.
const PART_KEYS: u64 = 1 << 17;
/// Where stand-ins have 8 bytes: the fuller parts are, the more alike they are, and the fewer slots need one.
const LARGE_PART_KEYS: u64 = 1 << 20;
/// Keys for each bucket: a pilot of 8 bits serves three keys on average.
const BUCKET_KEYS: u64 = 3;
/// How many seeds are tried. A seed hardly ever fails, unless keys are few or were chosen to make it fail.
const ATTEMPTS: u32 = 64;

/// Why one seed gave no index.
enum Setback {
    /// Another seed may.
    Unlucky,
    Error(IndexBuildError),
}

impl From<IndexBuildError> for Setback {
    fn from(error: IndexBuildError) -> Self {
        Self::Error(error)
    }
}

impl KeyIndex {
    /// Builds the index of the keys of `source`, which is read several times over. `progress` is called on this thread
    /// with the number of keys that are placed, and may stop the build ([`IndexBuildError::Interrupted`]).
    ///
    /// A key that occurs twice is an error that names it.
    pub fn build<S: KeySource + ?Sized>(
        source: &S,
        options: &IndexOptions,
        progress: &mut Tell<'_>,
    ) -> Result<Self, IndexBuildError> {
        let keys = source.len();
        if keys == 0 || keys > MAX_KEYS {
            return Err(IndexBuildError::Count { keys });
        }
        for attempt in 0..ATTEMPTS {
            let seed = mix(options.seed.wrapping_add(u64::from(attempt)) ^ 0x9e37_79b9_7f4a_7c15);
            match (Attempt { source: &source, options, seed }).run(progress) {
                Ok(index) => return Ok(index),
                Err(Setback::Unlucky) => {}
                Err(Setback::Error(error)) => return Err(error),
            }
        }
        Err(IndexBuildError::Unlucky { tried: ATTEMPTS, seed: options.seed })
    }

    /// The fewest bytes that an index of so many keys can have; 0 if no index can have so many keys. Few indexes are
    /// much larger.
    pub fn least_bytes(keys: u64, fingerprint: FingerprintWidth) -> u64 {
        if keys == 0 || keys > MAX_KEYS {
            return 0;
        }
        let shape = shape(keys, 0, fingerprint, KeyKind::U64);
        Shape { slots: slots(keys.div_ceil(shape.parts)), ..shape }.layout().prints.end
    }
}

/// What an index of so many keys looks like, but for its slots.
fn shape(keys: u64, seed: u64, fingerprint: FingerprintWidth, kind: KeyKind) -> Shape {
    let parts = keys.div_ceil(if keys <= 1 << 32 { PART_KEYS } else { LARGE_PART_KEYS });
    let buckets = keys.div_ceil(parts).div_ceil(BUCKET_KEYS) as u32;
    Shape { keys, seed, parts, buckets, slots: 0, fingerprint, kind }
}

/// Slots of each part, of which the fullest has so many keys.
fn slots(most: u64) -> u32 {
    // One in a hundred stays free, for the last keys to find a place.
    (most + most / 100 + 4) as u32
}

/// The building of an index with one seed.
struct Attempt<'a> {
    source: &'a dyn KeySource,
    options: &'a IndexOptions,
    seed: u64,
}

impl Attempt<'_> {
    fn run(&self, progress: &mut Tell<'_>) -> Result<KeyIndex, Setback> {
        let keys = self.source.len();
        let kind = self.source.kind();
        let fingerprint = self.options.fingerprint;
        let mut shape = shape(keys, self.seed, fingerprint, kind);
        let parts = shape.parts;
        let buckets = shape.buckets;
        let threads = self.options.thread_count().min(keys.div_ceil(BLOCK) as usize);
        let workers = WorkerThreads::new(threads);
        let counts = count(self.source, &shape, &workers, progress)?;
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
            let scattered = scatter(self.source, &shape, &counts, first..end, &workers, progress)?;
            let jobs = Mutex::new(todo.by_ref().take(end - first));
            self.place_parts(&shape, &scattered, &jobs, &workers, placed, progress)?;
            placed += held;
            first = end;
        }
        drop(todo);
        write_remap(&shape, &mut bytes, &taken);
        bytes.truncate(layout.prints.end as usize);
        shape.seal(&mut bytes);
        Ok(KeyIndex::of(shape, bytes))
    }

    fn place_parts<'p>(
        &self,
        shape: &Shape,
        scattered: &Scattered,
        jobs: &Mutex<impl Iterator<Item = (usize, &'p mut [u8], &'p mut [u8], &'p mut [u64])> + Send>,
        workers: &WorkerThreads,
        before: u64,
        progress: &mut Tell<'_>,
    ) -> Result<(), Setback> {
        // Parts are taken in their order, so all below one that ends it are seen to: the first is the same every time.
        let worst: Mutex<Option<(usize, Option<u64>)>> = Mutex::default();
        let done = AtomicU64::new(before);
        workers.run(progress, &|workers, tell| {
            let mut placer = Placer::new(shape);
            while let Some((part, pilots, prints, taken)) = workers.next(jobs) {
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
                    workers.stop();
                }
                let keys = scattered.part(part).map(|hashes| hashes.len() as u64).sum::<u64>();
                let done = done.fetch_add(keys, Ordering::Relaxed) + keys;
                if tell(done).is_break() {
                    return Err(IndexBuildError::Interrupted);
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
    fn find_duplicates_in(&self, part: u64, shape: &Shape) -> Result<(), IndexBuildError> {
        let mut hashes = Vec::new();
        let most = (shape.keys / shape.parts * 2) as usize;
        read(self.source, 0..shape.keys, |keys| {
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
    fn duplicate(&self, hash: u64) -> IndexBuildError {
        let key = unmix(hash) ^ self.seed;
        let mut found = Vec::new();
        let mut at = 0;
        let scanned = read(self.source, 0..self.source.len(), |keys| {
            found.extend((at..).zip(keys).filter(|(_, other)| **other == key).map(|(at, _)| at).take(2));
            at += keys.len() as u64;
            Ok(())
        });
        match (scanned, &found[..]) {
            (Err(error), _) => error,
            (Ok(()), &[first, second, ..]) => {
                IndexBuildError::Duplicate { key, kind: self.source.kind(), first, second }
            }
            _ => IndexBuildError::Changed,
        }
    }
}
