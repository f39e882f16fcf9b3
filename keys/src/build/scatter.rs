//! Hashes sorted by the part that they belong to.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::memory::zeroed;
use super::read::read;
use super::worker_threads::{Tell, WorkerThreads};
use crate::error::IndexBuildError;
use crate::shape::Shape;
use crate::source::KeySource;

/// Keys in each part: for each share of the keys one list, by part.
pub(super) type Counts = Vec<Vec<u64>>;

/// One job for each share of the keys; results by share.
fn by_share<T: Send>(
    workers: &WorkerThreads,
    tell: &mut Tell<'_>,
    job: impl Fn(usize, &mut Tell<'_>) -> Result<T, IndexBuildError> + Sync,
) -> Result<Vec<T>, IndexBuildError> {
    let results: Vec<Mutex<Option<T>>> = (0..workers.count).map(|_| Mutex::default()).collect();
    let jobs = Mutex::new(results.iter().enumerate());
    workers.run(tell, &|workers, tell| {
        while let Some((share, result)) = workers.next(&jobs) {
            let done = job(share, tell)?;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        }
        Ok(())
    })?;
    let taken = results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    taken.collect::<Option<Vec<T>>>().ok_or(IndexBuildError::Interrupted)
}

pub(super) fn count(
    source: &dyn KeySource,
    shape: &Shape,
    workers: &WorkerThreads,
    tell: &mut Tell<'_>,
) -> Result<Counts, IndexBuildError> {
    by_share(workers, tell, |number, tell| {
        let mut counts = zeroed(shape.parts, "counting keys")?;
        read(source, share(shape.keys, number, workers.count), |keys| {
            keys.iter().for_each(|&key| counts[shape.part(shape.hash(key)) as usize] += 1);
            if tell(0).is_break() { Err(IndexBuildError::Interrupted) } else { Ok(()) }
        })?;
        Ok(counts)
    })
}

/// The hashes of some parts.
pub(super) struct Scattered {
    first_part: usize,
    shares: Vec<Share>,
}

/// The hashes of one share of the keys.
struct Share {
    hashes: Vec<u64>,
    /// By part, counted from the first: where its hashes end, and the next part's begin.
    ends: Vec<usize>,
}

impl Scattered {
    /// The hashes of a part, in several pieces.
    pub(super) fn part(&self, part: usize) -> impl Iterator<Item = &[u64]> + Clone {
        let index = part - self.first_part;
        self.shares.iter().map(move |share| {
            let begin = if index == 0 { 0 } else { share.ends[index - 1] };
            &share.hashes[begin..share.ends[index]]
        })
    }
}

pub(super) fn scatter(
    source: &dyn KeySource,
    shape: &Shape,
    counts: &Counts,
    parts: Range<usize>,
    workers: &WorkerThreads,
    tell: &mut Tell<'_>,
) -> Result<Scattered, IndexBuildError> {
    let all = parts.len() as u64 == shape.parts;
    let shares = by_share(workers, tell, |number, tell| {
        let counts = &counts[number][parts.clone()];
        let mut hashes = zeroed(counts.iter().sum(), "hashes: options.memory is what they may take")?;
        let mut next: Vec<usize> = Vec::with_capacity(counts.len());
        let mut begin = 0;
        for &count in counts {
            next.push(begin);
            begin += count as usize;
        }
        let ends: Vec<usize> = next.iter().copied().skip(1).chain([begin]).collect();
        read(source, share(shape.keys, number, workers.count), |keys| {
            for &key in keys {
                let hash = shape.hash(key);
                let part = (shape.part(hash) as usize).wrapping_sub(parts.start);
                if !all && part >= next.len() {
                    continue;
                }
                // A source that changes must not spill one part's keys into another's.
                if next[part] == ends[part] {
                    return Err(IndexBuildError::Changed);
                }
                hashes[next[part]] = hash;
                next[part] += 1;
            }
            if tell(0).is_break() { Err(IndexBuildError::Interrupted) } else { Ok(()) }
        })?;
        if next != ends { Err(IndexBuildError::Changed) } else { Ok(Share { hashes, ends }) }
    })?;
    Ok(Scattered { first_part: parts.start, shares })
}

/// What several threads share of the keys: equal ranges.
fn share(keys: u64, thread: usize, threads: usize) -> Range<u64> {
    let at = |thread: usize| (u128::from(keys) * thread as u128 / threads as u128) as u64;
    at(thread)..at(thread + 1)
}
