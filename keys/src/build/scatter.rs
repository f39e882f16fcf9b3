//! Hashes sorted by the part that they belong to.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::crew::{Crew, Tell};
use super::{BLOCK, share};
use crate::bytes::Shape;
use crate::{BuildError, KeySource};

/// Keys in each part: for each share of the keys one list, by part.
pub(super) type Counts = Vec<Vec<u64>>;

/// Gives the keys of `range` to `take`, in order.
pub(super) fn read(
    source: &dyn KeySource,
    range: Range<u64>,
    mut take: impl FnMut(&[u64]) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let mut keys = vec![0; BLOCK as usize];
    let mut first = range.start;
    while first < range.end {
        let keys = &mut keys[..(range.end - first).min(BLOCK) as usize];
        source.read(first, keys).map_err(|source| BuildError::Source { first, source })?;
        take(keys)?;
        first += keys.len() as u64;
    }
    Ok(())
}

/// One job for each share of the keys; results by share.
fn by_share<T: Send>(
    crew: &Crew,
    tell: &mut Tell<'_>,
    job: impl Fn(usize, &mut Tell<'_>) -> Result<T, BuildError> + Sync,
) -> Result<Vec<T>, BuildError> {
    let results: Vec<Mutex<Option<T>>> = (0..crew.threads).map(|_| Mutex::default()).collect();
    let jobs = Mutex::new(results.iter().enumerate());
    crew.run(tell, &|crew, tell| {
        while let Some((share, result)) = crew.next(&jobs) {
            let done = job(share, tell)?;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        }
        Ok(())
    })?;
    let taken = results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    taken.collect::<Option<Vec<T>>>().ok_or(BuildError::Interrupted)
}

pub(super) fn count(
    source: &dyn KeySource,
    shape: &Shape,
    crew: &Crew,
    tell: &mut Tell<'_>,
) -> Result<Counts, BuildError> {
    by_share(crew, tell, |number, tell| {
        let mut counts = super::zeroed(shape.parts, "counting keys")?;
        read(source, share(shape.keys, number, crew.threads), |keys| {
            keys.iter().for_each(|&key| counts[shape.part(shape.hash(key)) as usize] += 1);
            if tell(0).is_break() { Err(BuildError::Interrupted) } else { Ok(()) }
        })?;
        Ok(counts)
    })
}

/// The hashes of some parts.
pub(super) struct Scattered {
    first_part: usize,
    shares: Vec<Share>,
}

/// Those among one share of the keys.
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
    crew: &Crew,
    tell: &mut Tell<'_>,
) -> Result<Scattered, BuildError> {
    let all = parts.len() as u64 == shape.parts;
    let shares = by_share(crew, tell, |number, tell| {
        let counts = &counts[number][parts.clone()];
        let mut hashes = super::zeroed(counts.iter().sum(), "hashes: options.memory is what they may take")?;
        let mut next: Vec<usize> = Vec::with_capacity(counts.len());
        let mut begin = 0;
        for &count in counts {
            next.push(begin);
            begin += count as usize;
        }
        let ends: Vec<usize> = next.iter().copied().skip(1).chain([begin]).collect();
        read(source, share(shape.keys, number, crew.threads), |keys| {
            for &key in keys {
                let hash = shape.hash(key);
                let part = (shape.part(hash) as usize).wrapping_sub(parts.start);
                if !all && part >= next.len() {
                    continue;
                }
                // A source that changes must not spill one part's keys into another's.
                if next[part] == ends[part] {
                    return Err(BuildError::Changed);
                }
                hashes[next[part]] = hash;
                next[part] += 1;
            }
            if tell(0).is_break() { Err(BuildError::Interrupted) } else { Ok(()) }
        })?;
        if next != ends { Err(BuildError::Changed) } else { Ok(Share { hashes, ends }) }
    })?;
    Ok(Scattered { first_part: parts.start, shares })
}
