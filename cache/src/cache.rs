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

/// Leads keys to lines. It never allocates after it was made.
#[derive(Debug, Clone)]
pub struct Cache {
    index: Index,
    /// The key of each line in use.
    keys: Box<[u64]>,
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
        Self {
            index: Index::new(lines),
            keys: vec![0; lines].into(),
            free: (0..lines as u32).rev().collect(),
            order: Order::new(eviction, lines),
            gate: Gate::new(admission, lines),
            evictions: 0,
        }
    }

    /// Bytes that a cache of `lines` lines takes, without rows.
    pub fn bytes(lines: usize, eviction: Eviction, admission: Admission) -> usize {
        let sketch = if admission == Admission::Sketch { lines.saturating_mul(2 * SKETCH_BYTES) } else { 0 };
        Index::bytes(lines) + lines * 12 + Order::bytes(eviction, lines) + sketch
    }

    /// Lines there are.
    pub fn lines(&self) -> usize {
        self.keys.len()
    }

    /// Lines in use.
    pub fn used(&self) -> usize {
        self.keys.len() - self.free.len()
    }

    /// How many keys were given away for others.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The line of `key`, which counts as used by that.
    pub fn find(&mut self, key: u64) -> Option<u32> {
        self.gate.looked_for(key);
        let line = self.index.get(key)?;
        self.order.touched(line);
        Some(line)
    }

    /// The line of `key`, without a trace.
    pub fn peek(&self, key: u64) -> Option<u32> {
        self.index.get(key)
    }

    /// Gives `key` a line, if it has none and is worth one.
    pub fn admit(&mut self, key: u64) -> Found {
        if let Some(line) = self.index.get(key) {
            return Found::Present(line);
        }
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
                self.index.remove(victim);
                self.order.removed(line, victim, true);
                self.evictions += 1;
                line
            }
        };
        self.keys[line as usize] = key;
        self.index.set(key, line);
        self.order.admitted(line, key);
        Found::Line(line)
    }

    /// Takes its line from `key`; whether it had one.
    pub fn forget(&mut self, key: u64) -> bool {
        let Some(line) = self.index.get(key) else { return false };
        self.index.remove(key);
        self.order.removed(line, key, false);
        self.free.push(line);
        true
    }

    /// Takes their lines from all keys for which `keeps` is false.
    pub fn retain(&mut self, mut keeps: impl FnMut(u64) -> bool) {
        for line in 0..self.keys.len() {
            let key = self.keys[line];
            if self.index.get(key) == Some(line as u32) && !keeps(key) {
                self.forget(key);
            }
        }
    }

    /// Takes their lines from all keys.
    pub fn clear(&mut self) {
        self.retain(|_| false);
    }
}
