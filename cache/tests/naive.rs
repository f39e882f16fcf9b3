//! Every eviction against a model of it that is as simple as can be.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_cache::{Admission, Cache, Eviction, Found};

/// A cache of keys alone.
trait Naive {
    fn find(&mut self, key: u64) -> bool;
    fn admit(&mut self, key: u64);
    fn forget(&mut self, key: u64);
}

/// The least recently used is first.
struct Lru(Vec<u64>, usize);

impl Naive for Lru {
    fn find(&mut self, key: u64) -> bool {
        let Some(at) = self.0.iter().position(|&it| it == key) else { return false };
        let key = self.0.remove(at);
        self.0.push(key);
        true
    }

    fn admit(&mut self, key: u64) {
        if self.0.len() == self.1 {
            self.0.remove(0);
        }
        self.0.push(key);
    }

    fn forget(&mut self, key: u64) {
        self.0.retain(|&it| it != key);
    }
}

/// Key, count, and when it got that count.
struct Lfu {
    keys: Vec<(u64, u8, u64)>,
    lines: usize,
    touches: usize,
    now: u64,
}

impl Naive for Lfu {
    fn find(&mut self, key: u64) -> bool {
        self.now += 1;
        let now = self.now;
        let Some(entry) = self.keys.iter_mut().find(|entry| entry.0 == key) else { return false };
        (entry.1, entry.2) = ((entry.1 + 1).min(15), now);
        self.touches += 1;
        if self.touches == 8 * self.lines {
            self.touches = 0;
            // Keys whose halved counts are equal stay in the order of the counts that they had.
            self.keys.sort_by_key(|&(_, count, since)| (count, since));
            for entry in &mut self.keys {
                self.now += 1;
                (entry.1, entry.2) = (entry.1 / 2, self.now);
            }
        }
        true
    }

    fn admit(&mut self, key: u64) {
        self.now += 1;
        if self.keys.len() == self.lines {
            self.keys.sort_by_key(|&(_, count, since)| (count, since));
            self.keys.remove(0);
        }
        self.keys.push((key, 0, self.now));
    }

    fn forget(&mut self, key: u64) {
        self.keys.retain(|entry| entry.0 != key);
    }
}

/// The hand is at the first.
struct Clock(VecDeque<(u64, bool)>, usize);

impl Naive for Clock {
    fn find(&mut self, key: u64) -> bool {
        self.0.iter_mut().find(|entry| entry.0 == key).map(|entry| entry.1 = true).is_some()
    }

    fn admit(&mut self, key: u64) {
        while self.0.len() == self.1 {
            let Some((first, used)) = self.0.pop_front() else { return };
            if used {
                self.0.push_back((first, false));
            }
        }
        self.0.push_back((key, false));
    }

    fn forget(&mut self, _: u64) {}
}

/// Queues of key and count.
#[derive(Default)]
struct S3 {
    small: VecDeque<(u64, u8)>,
    main: VecDeque<(u64, u8)>,
    ghosts: VecDeque<u64>,
    lines: usize,
}

impl Naive for S3 {
    fn find(&mut self, key: u64) -> bool {
        let mut all = self.small.iter_mut().chain(&mut self.main);
        all.find(|entry| entry.0 == key).map(|entry| entry.1 = (entry.1 + 1).min(3)).is_some()
    }

    fn admit(&mut self, key: u64) {
        while self.small.len() + self.main.len() == self.lines {
            if self.small.len() >= (self.lines / 10).max(1) || self.main.is_empty() {
                match self.small.pop_front() {
                    Some((key, 1..)) => self.main.push_back((key, 0)),
                    Some((key, 0)) => {
                        self.ghosts.push_back(key);
                        if self.ghosts.len() > self.lines - self.lines / 10 {
                            self.ghosts.pop_front();
                        }
                    }
                    None => return,
                }
            } else {
                match self.main.pop_front() {
                    Some((key, count @ 1..)) => self.main.push_back((key, count - 1)),
                    _ => break,
                }
            }
        }
        match self.ghosts.iter().position(|&it| it == key) {
            Some(at) => {
                // The place of the ghost stays taken until the ring comes round again.
                self.ghosts[at] = u64::MAX;
                self.main.push_back((key, 0));
            }
            None => self.small.push_back((key, 0)),
        }
    }

    fn forget(&mut self, key: u64) {
        self.small.retain(|entry| entry.0 != key);
        self.main.retain(|entry| entry.0 != key);
    }
}

fn naive(eviction: Eviction, lines: usize) -> Box<dyn Naive> {
    match eviction {
        Eviction::Lru => Box::new(Lru(Vec::new(), lines)),
        Eviction::Lfu => Box::new(Lfu { keys: Vec::new(), lines, touches: 0, now: 0 }),
        Eviction::Clock => Box::new(Clock(VecDeque::new(), lines)),
        _ => Box::new(S3 { lines, ..S3::default() }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn evictions_are_what_they_say(
        eviction in prop_oneof![Just(Eviction::Lru), Just(Eviction::Lfu), Just(Eviction::Clock), Just(Eviction::S3Fifo)],
        lines in 1usize..30,
        spread in 1u64..80,
        steps in proptest::collection::vec((any::<u64>(), 0u8..40), 0..600),
    ) {
        let mut cache = Cache::new(lines, eviction, Admission::Always);
        let mut model = naive(eviction, lines);
        let mut held = vec![None; lines];
        for (number, what) in steps {
            let key = number % spread;
            // A hand that stands at a freed line has no simple model.
            if what == 0 && eviction != Eviction::Clock {
                let line = cache.peek(key);
                prop_assert_eq!(cache.forget(key), line.is_some());
                if let Some(line) = line {
                    held[line as usize] = None;
                }
                model.forget(key);
                continue;
            }
            let found = cache.find(key);
            prop_assert_eq!(found.is_some(), model.find(key), "key {}", key);
            match found {
                Some(line) => {
                    prop_assert_eq!(held[line as usize], Some(key), "a key leads to another's line");
                    prop_assert_eq!(cache.admit(key), Found::Present(line));
                }
                None => {
                    let Found::Line(line) = cache.admit(key) else { panic!("all keys are admitted") };
                    held[line as usize] = Some(key);
                    model.admit(key);
                }
            }
            prop_assert!(cache.used() <= lines);
        }
    }

    #[test]
    fn lines_are_never_shared(
        eviction in prop_oneof![Just(Eviction::Lru), Just(Eviction::Lfu), Just(Eviction::Clock), Just(Eviction::S3Fifo)],
        admission in prop_oneof![Just(Admission::Always), Just(Admission::Probability(0.5)), Just(Admission::Sketch)],
        lines in 1usize..20,
        steps in proptest::collection::vec((0u64..60, 0u8..20), 0..400),
    ) {
        let mut cache = Cache::new(lines, eviction, admission);
        let mut held = vec![None; lines];
        for (key, what) in steps {
            match what {
                0 => {
                    if let Some(line) = cache.peek(key) {
                        held[line as usize] = None;
                    }
                    cache.forget(key);
                }
                1 => {
                    cache.retain(|key| key % 3 != 0);
                    held.iter_mut().filter(|key| key.is_some_and(|key| key % 3 == 0)).for_each(|key| *key = None);
                }
                _ => {
                    if let Some(line) = cache.find(key) {
                        prop_assert_eq!(held[line as usize], Some(key));
                    } else if let Found::Line(line) = cache.admit(key) {
                        held[line as usize] = Some(key);
                    }
                }
            }
            prop_assert_eq!(cache.used(), held.iter().flatten().count());
            for (line, key) in held.iter().enumerate() {
                if let &Some(key) = key {
                    prop_assert_eq!(cache.peek(key), Some(line as u32));
                }
            }
        }
    }
}

#[test]
fn chance_admits_its_share() {
    let mut cache = Cache::new(100_000, Eviction::Lru, Admission::Probability(0.25));
    let admitted = (0..100_000u64).filter(|&key| cache.admit(key) != Found::Refused).count();
    // Four standard deviations of a binomial law are 548.
    assert!((24_452..25_548).contains(&admitted), "{admitted}");
}
