//! A cache in which every key may lie in every line.

use crate::eviction::{Eviction, Order};
use crate::index::Index;
use crate::random::Draws;
use crate::sketch::Sketch;

/// Which keys are worth a line.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Admission {
    /// All of them.
    #[default]
    Always,
    /// Each time with this probability.
    Probability(f64),
    /// Those that were looked for oftener than the key whose line they would take, by a [`Sketch`] of 8 B a line.
    Sketch,
}

/// An admission with what it remembers.
#[derive(Debug, Clone)]
pub(crate) enum Gate {
    Always,
    Probability(f64, Draws),
    Sketch(Box<Sketch>),
}

/// Bytes of a sketch for each line.
const SKETCH_BYTES: usize = 8;

impl Gate {
    pub(crate) fn new(admission: Admission, lines: usize) -> Self {
        match admission {
            Admission::Always => Self::Always,
            Admission::Probability(p) => Self::Probability(p, Draws::default()),
            Admission::Sketch => Self::Sketch(Box::new(Sketch::new(lines, SKETCH_BYTES))),
        }
    }

    pub(crate) fn looked_for(&mut self, key: u64) {
        if let Self::Sketch(sketch) = self {
            sketch.add(key);
        }
    }

    /// Whether `key` is to take the line of `victim`; `None`: a line that is free.
    pub(crate) fn admits(&mut self, key: u64, victim: Option<u64>) -> bool {
        match self {
            Self::Always => true,
            Self::Probability(p, draws) => draws.unit() < *p,
            Self::Sketch(sketch) => victim.is_none_or(|victim| sketch.count(key) > sketch.count(victim)),
        }
    }
}

/// What became of a key that was to be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It has been given this line, whose content is to be replaced.
    Line(u32),
    /// It has this line already.
    Present(u32),
    /// It was not worth a line.
    Refused,
}

/// What a [`Cache`] most likely touches next, for whoever brings memory towards the processor before it is needed.
#[derive(Debug, Clone, Copy)]
pub struct LikelyNext<'a> {
    /// The line that the next new key gets.
    pub line: u32,
    /// Where the keys are looked for that go for it.
    pub index: [&'a u64; 2],
}

/// Leads keys to lines. It never allocates after it was made.
#[derive(Debug, Clone)]
pub struct Cache {
    /// The lines of keys; and of remembered keys the numbers of their places in `keys`.
    index: Index,
    /// The key of each line in use, and behind these a ring of keys that were given away and are remembered.
    keys: Box<[u64]>,
    lines: usize,
    /// The place in the ring of the key that is forgotten next.
    oldest: usize,
    /// Lines that are not in use; the next one is the last.
    free: Vec<u32>,
    order: Order,
    gate: Gate,
    evictions: u64,
}

impl Cache {
    /// A cache of `lines` lines, of which there are at most 2³¹.
    pub fn new(lines: usize, eviction: Eviction, admission: Admission) -> Self {
        let lines = lines.min(1 << 31);
        let places = lines + Order::remembers(eviction, lines);
        Self {
            index: Index::new(places),
            keys: vec![0; places].into(),
            lines,
            oldest: lines,
            free: (0..lines as u32).rev().collect(),
            order: Order::new(eviction, lines),
            gate: Gate::new(admission, lines),
            evictions: 0,
        }
    }

    /// Bytes that a cache of `lines` lines takes, without rows.
    pub fn bytes(lines: usize, eviction: Eviction, admission: Admission) -> usize {
        let sketch = if admission == Admission::Sketch { lines.saturating_mul(2 * SKETCH_BYTES) } else { 0 };
        let places = lines.saturating_add(Order::remembers(eviction, lines));
        Index::bytes(places) + places * 8 + lines * 4 + Order::bytes(eviction, lines) + sketch
    }

    /// Lines there are.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Lines in use.
    pub fn used(&self) -> usize {
        self.lines - self.free.len()
    }

    /// How many keys were given away for others.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The line of `key`, which counts as used by that.
    pub fn find(&mut self, key: u64) -> Option<u32> {
        self.gate.looked_for(key);
        let line = self.peek(key)?;
        self.order.touched(line);
        Some(line)
    }

    /// The line of `key`, without a trace.
    pub fn peek(&self, key: u64) -> Option<u32> {
        self.number(key).filter(|&number| (number as usize) < self.lines)
    }

    /// The line of `key`, or its place in the ring.
    fn number(&self, key: u64) -> Option<u32> {
        self.index.get(key, |number| self.keys[number as usize] == key)
    }

    /// What [`admit`](Self::admit) most likely touches when it gives a key a line next. `None`: there are no lines.
    pub fn likely_next(&self) -> Option<LikelyNext<'_>> {
        let line = self.free.last().copied().or_else(|| self.order.likely_victim())?;
        let place = |at: usize| self.index.home_of(self.keys.get(at).copied().unwrap_or_default());
        Some(LikelyNext { line, index: [place(line as usize), place(self.oldest)] })
    }

    /// Gives `key` a line, if it has none and is worth one.
    pub fn admit(&mut self, key: u64) -> Found {
        let mut remembered = match self.number(key) {
            Some(line) if (line as usize) < self.lines => return Found::Present(line),
            other => other,
        };
        let line = match self.free.last().copied() {
            Some(line) => {
                if !self.gate.admits(key, None) {
                    return Found::Refused;
                }
                self.free.pop();
                line
            }
            None => {
                let Some(line) = self.order.victim() else { return Found::Refused };
                let victim = self.keys[line as usize];
                if !self.gate.admits(key, Some(victim)) {
                    return Found::Refused;
                }
                match self.order.removed(line) {
                    // The place of the oldest remembered key is that of the victim now.
                    true if self.remember(victim, line) == remembered => remembered = None,
                    true => {}
                    false => _ = self.index.remove(victim, line),
                }
                self.evictions += 1;
                line
            }
        };
        self.keys[line as usize] = key;
        match remembered {
            Some(place) => _ = self.index.renumber(key, place, line),
            None => self.index.insert(key, line),
        }
        self.order.admitted(line, remembered.is_some());
        Found::Line(line)
    }

    /// Remembers `key`, whose line is given away, in the place of the key that has been remembered for longest. Returns the place.
    fn remember(&mut self, key: u64, line: u32) -> Option<u32> {
        let place = self.oldest as u32;
        // A key that came back meanwhile has another number.
        self.index.remove(self.keys[self.oldest], place);
        self.index.renumber(key, line, place);
        self.keys[self.oldest] = key;
        self.oldest = if self.oldest + 1 == self.keys.len() { self.lines } else { self.oldest + 1 };
        Some(place)
    }

    /// Takes its line from `key`; whether it had one.
    pub fn forget(&mut self, key: u64) -> bool {
        let Some(line) = self.peek(key) else { return false };
        self.index.remove(key, line);
        self.order.removed(line);
        self.free.push(line);
        true
    }

    /// Takes their lines from all keys for which `keeps` is false.
    pub fn retain(&mut self, mut keeps: impl FnMut(u64) -> bool) {
        for line in 0..self.lines {
            let key = self.keys[line];
            if self.peek(key) == Some(line as u32) && !keeps(key) {
                self.forget(key);
            }
        }
    }

    /// Takes their lines from all keys.
    pub fn clear(&mut self) {
        self.retain(|_| false);
    }
}
