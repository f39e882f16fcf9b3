//! Which line is given away.

use crate::lists::Lists;

/// Which line is given away when a new key needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The least recently used.
    Lru,
    /// The least often used, by counters up to 15 that are halved when lines were used eight times as often as there
    /// are lines; of those, the one that has had its count for longest.
    Lfu,
    /// The next one that was not used since the clock's hand came by.
    Clock,
    /// S3-FIFO: newcomers wait in a small queue, a tenth of all lines. Those that were used meanwhile go on to the main
    /// queue, the others leave, and their keys are remembered: a remembered key that comes back goes to the main queue
    /// at once. (J. Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023.)
    #[default]
    S3Fifo,
}

/// The lists of [`Order::S3Fifo`].
const SMALL: usize = 0;
const MAIN: usize = 1;
/// Counters of [`Order::S3Fifo`] stop here.
const S3_MOST: u8 = 3;
/// Newcomers that were used so often go on to the main queue.
const S3_MOVES: u8 = 1;
/// Counters of [`Order::Lfu`] stop here.
const LFU_MOST: u8 = 15;

/// What an eviction knows of the lines in use.
#[derive(Debug, Clone)]
pub(crate) enum Order {
    Lru(Lists),
    /// A list for each count.
    Lfu {
        lists: Lists,
        counts: Box<[u8]>,
        touches: usize,
    },
    Clock {
        used: Box<[bool]>,
        hand: u32,
    },
    S3Fifo {
        lists: Lists,
        counts: Box<[u8]>,
        in_main: Box<[bool]>,
        small: usize,
    },
}

/// The list of [`Order::S3Fifo`] that gives a line next.
fn from(lists: &Lists, small: usize) -> usize {
    if lists.len(SMALL) >= small || lists.len(MAIN) == 0 { SMALL } else { MAIN }
}

impl Order {
    pub(crate) fn new(eviction: Eviction, lines: usize) -> Self {
        match eviction {
            Eviction::Lru => Self::Lru(Lists::new(1, lines)),
            Eviction::Lfu => Self::Lfu {
                lists: Lists::new(usize::from(LFU_MOST) + 1, lines),
                counts: vec![0; lines].into(),
                touches: 0,
            },
            Eviction::Clock => Self::Clock { used: vec![false; lines].into(), hand: 0 },
            Eviction::S3Fifo => Self::S3Fifo {
                lists: Lists::new(2, lines),
                counts: vec![0; lines].into(),
                in_main: vec![false; lines].into(),
                small: (lines / 10).max(1),
            },
        }
    }

    /// Bytes that are kept for `lines` lines.
    pub(crate) fn bytes(eviction: Eviction, lines: usize) -> usize {
        match eviction {
            Eviction::Lru => lines * 8,
            Eviction::Lfu => lines * 9,
            Eviction::Clock => lines,
            Eviction::S3Fifo => lines * 10,
        }
    }

    /// How many keys are remembered that left the small queue, the latest ones, where there are `lines` lines.
    pub(crate) fn remembers(eviction: Eviction, lines: usize) -> usize {
        match eviction {
            Eviction::S3Fifo => (lines - lines / 10).max(1),
            Eviction::Lru | Eviction::Lfu | Eviction::Clock => 0,
        }
    }

    /// A line comes into use. `remembered`: its key left the small queue lately.
    pub(crate) fn admitted(&mut self, line: u32, remembered: bool) {
        let at = line as usize;
        match self {
            Self::Lru(lists) => lists.push(0, line),
            Self::Lfu { lists, counts, .. } => {
                counts[at] = 0;
                lists.push(0, line);
            }
            Self::Clock { used, .. } => used[at] = false,
            Self::S3Fifo { lists, counts, in_main, .. } => {
                counts[at] = 0;
                in_main[at] = remembered;
                lists.push(if in_main[at] { MAIN } else { SMALL }, line);
            }
        }
    }

    pub(crate) fn touched(&mut self, line: u32) {
        let at = line as usize;
        match self {
            Self::Lru(lists) => {
                lists.remove(0, line);
                lists.push(0, line);
            }
            Self::Lfu { lists, counts, touches } => {
                lists.remove(counts[at].into(), line);
                counts[at] = (counts[at] + 1).min(LFU_MOST);
                lists.push(counts[at].into(), line);
                *touches += 1;
                if *touches >= counts.len().saturating_mul(8) {
                    *touches = 0;
                    counts.iter_mut().for_each(|count| *count /= 2);
                    (1..=usize::from(LFU_MOST)).for_each(|count| lists.append(count / 2, count));
                }
            }
            Self::Clock { used, .. } => used[at] = true,
            Self::S3Fifo { counts, .. } => counts[at] = (counts[at] + 1).min(S3_MOST),
        }
    }

    /// The line that is given away next, if all lines are in use. It stays in use until it is
    /// [removed](Self::removed).
    pub(crate) fn victim(&mut self) -> Option<u32> {
        match self {
            Self::Lru(lists) => lists.first(0),
            Self::Lfu { lists, .. } => (0..=usize::from(LFU_MOST)).find_map(|count| lists.first(count)),
            Self::Clock { used, hand } => {
                while std::mem::take(used.get_mut(*hand as usize)?) {
                    *hand = (*hand + 1) % used.len() as u32;
                }
                Some(*hand)
            }
            Self::S3Fifo { lists, counts, in_main, small, .. } => loop {
                let list = from(lists, *small);
                let line = lists.first(list)?;
                let at = line as usize;
                match (list, counts[at]) {
                    (SMALL, S3_MOVES..) => (counts[at], in_main[at]) = (0, true),
                    (MAIN, 1..) => counts[at] -= 1,
                    _ => break Some(line),
                }
                lists.remove(list, line);
                lists.push(MAIN, line);
            },
        }
    }

    /// The line that is most likely given away next, if all lines are in use.
    pub(crate) fn likely_victim(&self) -> Option<u32> {
        match self {
            Self::Lru(lists) => lists.first(0),
            Self::Lfu { lists, .. } => (0..=usize::from(LFU_MOST)).find_map(|count| lists.first(count)),
            Self::Clock { hand, .. } => Some(*hand),
            Self::S3Fifo { lists, small, .. } => lists.first(from(lists, *small)),
        }
    }

    /// A line ceases to be in use. Whether its key is worth being remembered: it leaves the small queue.
    pub(crate) fn removed(&mut self, line: u32) -> bool {
        let at = line as usize;
        match self {
            Self::Lru(lists) => lists.remove(0, line),
            Self::Lfu { lists, counts, .. } => lists.remove(counts[at].into(), line),
            Self::Clock { used, hand } => {
                used[at] = false;
                if *hand == line {
                    *hand = (*hand + 1) % used.len() as u32;
                }
            }
            Self::S3Fifo { lists, in_main, .. } => {
                lists.remove(if in_main[at] { MAIN } else { SMALL }, line);
                return !in_main[at];
            }
        }
        false
    }
}
