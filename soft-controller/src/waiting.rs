//! Commands that wait for their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::fault::Fault;

/// A command that waits for its time.
#[derive(Debug)]
pub(crate) struct WaitingCommand {
    pub(crate) due: Duration,
    /// Decides among commands that are due at the same time.
    pub(crate) order: u64,
    pub(crate) sqid: u16,
    pub(crate) sqe: [u64; 8],
    /// The moment in the order of writes.
    pub(crate) fetched: u64,
    pub(crate) fault: Option<Fault>,
}

/// When a command is due, and its place. Small: a heap moves its entries about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    /// Nanoseconds: enough for five centuries.
    at: u64,
    order: u64,
    place: u32,
}

/// All of them, the one due first at hand.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    heap: BinaryHeap<Reverse<Due>>,
    /// By place; `None`: free.
    places: Vec<Option<WaitingCommand>>,
    free: Vec<u32>,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.places.clear();
        self.free.clear();
    }

    pub(crate) fn push(&mut self, held: WaitingCommand) {
        let at = nanos(held.due);
        let order = held.order;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        self.places[place as usize] = Some(held);
        self.heap.push(Reverse(Due { at, order, place }));
    }

    /// When the first is due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(first)| Duration::from_nanos(first.at))
    }

    /// The one due first, if that is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<WaitingCommand> {
        let first = self.heap.peek_mut().filter(|due| due.0.at <= nanos(now))?;
        let Reverse(Due { place, .. }) = std::collections::binary_heap::PeekMut::pop(first);
        self.free.push(place);
        self.places[place as usize].take()
    }

    /// Takes those that match, in the order in which they are due.
    pub(crate) fn take_where(&mut self, mut matches: impl FnMut(&WaitingCommand) -> bool) -> Vec<WaitingCommand> {
        let mut hit = Vec::new();
        let mut rest = BinaryHeap::new();
        for Reverse(due) in std::mem::take(&mut self.heap).into_sorted_vec().into_iter().rev() {
            let place = &mut self.places[due.place as usize];
            match place.take_if(|held| matches(held)) {
                Some(held) => {
                    self.free.push(due.place);
                    hit.push(held);
                }
                None => rest.push(Reverse(due)),
            }
        }
        self.heap = rest;
        hit
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(due: u64, order: u64, sqid: u16) -> WaitingCommand {
        WaitingCommand { due: Duration::from_nanos(due), order, sqid, sqe: [0; 8], fetched: 0, fault: None }
    }

    #[test]
    fn those_due_first_come_first_and_places_are_used_again() {
        let seed = 7;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut waiting = Waiting::default();
        let mut all = Vec::new();
        for now in 0..2000u64 {
            for _ in 0..rng.u32(0..4) {
                let due = now + rng.u64(0..8);
                let order = rng.u64(..);
                all.push((due, order));
                waiting.push(held(due, order, rng.u16(0..3)));
            }
            if rng.u32(0..50) == 0 {
                let taken = waiting.take_where(|held| held.sqid == 1);
                assert!(taken.iter().all(|held| held.sqid == 1), "seed {seed}");
                assert!(taken.is_sorted_by_key(|held| (held.due, held.order)), "seed {seed}");
                all.retain(|key| !taken.iter().any(|held| (nanos(held.due), held.order) == *key));
                assert!(waiting.take_where(|held| held.sqid == 1).is_empty(), "seed {seed}");
            }
            all.sort_unstable();
            assert_eq!(waiting.next_due(), all.first().map(|(due, _)| Duration::from_nanos(*due)), "seed {seed}");
            while let Some(held) = waiting.pop_due(Duration::from_nanos(now)) {
                assert_eq!((nanos(held.due), held.order), all.remove(0), "seed {seed}");
            }
            assert!(all.first().is_none_or(|(due, _)| *due > now), "seed {seed}");
            assert_eq!(waiting.is_empty(), all.is_empty(), "seed {seed}");
        }
        assert!(waiting.places.len() < 100, "{} places", waiting.places.len());
    }
}
