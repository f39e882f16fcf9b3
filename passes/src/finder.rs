//! Keys to ranks, and back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use warprow_layout::{Ranks, Table};
use warprow_store::{KeyIndex, KeyKind, Store, StoreError};

use crate::bits::Bits;
use crate::{Keyset, PassError};

/// Where the rows of a table lie, by key: of the stored ones, and of those that were created since and are in memory alone.
#[derive(Debug, Clone)]
pub(crate) struct Finder {
    table: String,
    /// Rows on the drives.
    stored: u32,
    known: Known,
    /// Created keys, whose ranks follow the stored ones', and these ranks.
    created: Vec<u64>,
    ranks: HashMap<u64, u32>,
}

#[derive(Debug, Clone)]
enum Known {
    /// Id → rank, and rank → id; `None`: they are the same.
    Ids(Option<(Ranks, Ranks)>),
    Keys {
        index: Arc<KeyIndex>,
        ranks: Option<Ranks>,
        keys: Arc<Vec<u64>>,
    },
}

/// The rows of a keyset.
#[derive(Debug)]
pub(crate) struct Found {
    pub ranks: Bits,
    /// Keys that came before.
    pub duplicates: u64,
    /// Keys that the table does not have, each once, in the order in which they come.
    pub new: Vec<u64>,
    /// The slots and keys of `ranks`, if they were listed already.
    pub listed: Option<Listed>,
}

/// The rows of a keyset in its order, each once.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    pub keys: Vec<u64>,
    pub ranks: Vec<u32>,
    /// Keys that came before, and where the first of them stands.
    pub duplicates: u64,
    pub duplicate: Option<usize>,
    /// Keys that the table does not have, and the first of them.
    pub unknown: u64,
    pub first_unknown: Vec<u64>,
}

/// The slots of a pass's rows, ascending, and their keys.
pub(crate) type Listed = (Vec<u32>, Vec<u64>);

/// Keys looked for at once.
const BLOCK: usize = 1024;
/// Unknown keys that an error names.
const SHOWN: usize = 10;
/// Keys that a thread more is worth.
const ALONE: usize = 1 << 15;

impl Finder {
    pub(crate) fn of(store: &Store, table: &Table) -> Result<Self, PassError> {
        let name = table.name.clone();
        let too_many = || PassError::Options {
            what: format!("table {name:?} has {} rows: passes are for less than 2³²", table.rows),
        };
        let stored = u32::try_from(table.rows).ok().filter(|rows| *rows < u32::MAX).ok_or_else(too_many)?;
        let ranks = store.ranks(&name)?;
        let known = match store.key_index(&name)? {
            None => Known::Ids(ranks.map(|ranks| {
                let inverse = ranks.inverse();
                (ranks, inverse)
            })),
            Some(index) => {
                let missing = || StoreError::NotUpdatable { table: name.clone() };
                Known::Keys { index: Arc::new(index), ranks, keys: Arc::new(store.keys(&name)?.ok_or_else(missing)?) }
            }
        };
        Ok(Self { table: name, stored, known, created: Vec::new(), ranks: HashMap::new() })
    }

    /// Rows on the drives.
    pub(crate) fn stored(&self) -> u32 {
        self.stored
    }

    /// All rows.
    pub(crate) fn rows(&self) -> u32 {
        self.stored + self.created.len() as u32
    }

    /// Whether keys are numbers below zero, and what they are; `None`: they are ids.
    pub(crate) fn kind(&self) -> Option<KeyKind> {
        match &self.known {
            Known::Ids(_) => None,
            Known::Keys { index, .. } => Some(index.kind()),
        }
    }

    /// The index of the keys, and the keys by rank, with those that were created.
    pub(crate) fn index(&self) -> Option<&KeyIndex> {
        match &self.known {
            Known::Ids(_) => None,
            Known::Keys { index, .. } => Some(index),
        }
    }

    /// The key of each rank, or its id.
    #[inline]
    pub(crate) fn key(&self, rank: u32) -> u64 {
        if let Some(&created) = rank.checked_sub(self.stored).and_then(|nth| self.created.get(nth as usize)) {
            return created;
        }
        match &self.known {
            Known::Ids(None) => rank.into(),
            Known::Ids(Some((_, ids))) => ids.get(rank.into()).unwrap_or(rank.into()),
            Known::Keys { keys, .. } => keys.get(rank as usize).copied().unwrap_or_default(),
        }
    }

    /// A keyset of these bits, taken as keys of the table.
    pub(crate) fn keyset(&self, keys: Vec<u64>) -> Keyset {
        match self.kind() {
            Some(KeyKind::I64) => Keyset::signed(keys.into_iter().map(|key| key as i64).collect()),
            _ => Keyset::new(keys),
        }
    }

    /// Finds the rows of all keys, by so many threads.
    pub(crate) fn find(&self, keyset: &Keyset, threads: usize) -> Found {
        let threads = threads.min(keyset.len() / ALONE).max(1);
        let share = keyset.len().div_ceil(threads).max(1);
        let mut parts = keyset.keys().chunks(share);
        let first = parts.next().unwrap_or_default();
        let (mut found, others) = std::thread::scope(|scope| {
            let others: Vec<_> =
                parts.map(|keys| scope.spawn(move || self.find_part(keys, keyset.is_signed()))).collect();
            let found = self.find_part(first, keyset.is_signed());
            let join = |handle: std::thread::ScopedJoinHandle<'_, Found>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            (found, others.into_iter().map(join).collect::<Vec<_>>())
        });
        if others.iter().any(|found| !found.new.is_empty()) {
            let all = std::mem::take(&mut found.new)
                .into_iter()
                .chain(others.iter().flat_map(|found| found.new.iter().copied()));
            let mut once = HashSet::new();
            found.new = all.filter(|&key| once.insert(key)).collect();
        }
        others.iter().for_each(|other| found.ranks.unite(&other.ranks));
        found.duplicates = (keyset.len() - found.ranks.len() - found.new.len()) as u64;
        found
    }

    /// The rank of each key in the order of the keyset, or why that cannot be said.
    pub(crate) fn find_in_order(&self, keyset: &Keyset) -> InOrder {
        let mut seen = Bits::new(self.rows() as usize);
        let mut slots = [0; BLOCK];
        let mut found = InOrder { keys: Vec::with_capacity(keyset.len()), ..InOrder::default() };
        found.ranks.reserve_exact(keyset.len());
        for (first, keys) in (0..).step_by(BLOCK).zip(keyset.keys().chunks(BLOCK)) {
            if let Known::Keys { index, .. } = &self.known {
                index.positions(keys, slots.get_mut(..keys.len()).unwrap_or_default());
            }
            for (at, (&key, &slot)) in (first..).zip(keys.iter().zip(&slots)) {
                match self.rank(key, slot, keyset.is_signed()) {
                    Some(rank) if seen.insert(rank) => {
                        found.ranks.push(rank);
                        found.keys.push(key);
                    }
                    Some(_) => {
                        found.duplicates += 1;
                        found.duplicate.get_or_insert(at);
                    }
                    None => {
                        found.unknown += 1;
                        if found.first_unknown.len() < SHOWN && !found.first_unknown.contains(&key) {
                            found.first_unknown.push(key);
                        }
                    }
                }
            }
        }
        found
    }

    /// Finds as `find` does, and lists slots and keys, where slots are ranks.
    pub(crate) fn find_listed(&self, keyset: &Keyset, threads: usize) -> Found {
        let mut found = self.find(keyset, threads);
        found.listed = Some(self.list(&found.ranks));
        found
    }

    /// Slots and keys of rows whose slots are their ranks.
    pub(crate) fn list(&self, ranks: &Bits) -> Listed {
        let mut slots = Vec::with_capacity(ranks.len());
        slots.extend(ranks.iter());
        let keys = slots.iter().map(|&rank| self.key(rank)).collect();
        (slots, keys)
    }

    fn find_part(&self, keys: &[u64], signed: bool) -> Found {
        let mut found = Found { ranks: Bits::new(self.rows() as usize), duplicates: 0, new: Vec::new(), listed: None };
        let mut new = HashSet::new();
        let mut slots = [0; BLOCK];
        for keys in keys.chunks(BLOCK) {
            if let Known::Keys { index, .. } = &self.known {
                index.positions(keys, slots.get_mut(..keys.len()).unwrap_or_default());
            }
            for (&key, &slot) in keys.iter().zip(&slots) {
                match self.rank(key, slot, signed) {
                    Some(rank) => found.ranks.add(rank),
                    None if new.insert(key) => found.new.push(key),
                    None => {}
                }
            }
        }
        found
    }

    #[inline]
    fn rank(&self, key: u64, slot: u64, signed: bool) -> Option<u32> {
        let stored = match &self.known {
            Known::Ids(ranks) if key < u64::from(self.stored) => {
                ranks.as_ref().map_or(Some(key), |(ranks, _)| ranks.get(key))
            }
            Known::Ids(_) => None,
            Known::Keys { index, .. } if self.is_foreign(key, signed, index.kind()) => return None,
            Known::Keys { .. } if slot == KeyIndex::ABSENT => None,
            Known::Keys { ranks, keys, .. } => {
                let rank = ranks.as_ref().map_or(Some(slot), |ranks| ranks.get(slot));
                // A fingerprint that passes falsely would have another key's row trained.
                rank.filter(|rank| usize::try_from(*rank).ok().and_then(|rank| keys.get(rank)) == Some(&key))
            }
        };
        match stored {
            Some(rank) => u32::try_from(rank).ok(),
            None => self.ranks.get(&key).copied(),
        }
    }

    /// Whether these bits are another number in the table.
    fn is_foreign(&self, key: u64, signed: bool, kind: KeyKind) -> bool {
        key >> 63 == 1 && signed != (kind == KeyKind::I64)
    }

    /// Refuses keys that no rows can be made for.
    pub(crate) fn check_creatable(&self, keyset: &Keyset, new: &[u64]) -> Result<(), PassError> {
        let refused = |key: u64, reason: String| {
            Err(PassError::Uncreatable { table: self.table.clone(), key: keyset.show(key), reason })
        };
        if u64::from(self.rows()) + new.len() as u64 >= u64::from(u32::MAX) {
            return refused(new.first().copied().unwrap_or_default(), "passes are for less than 2³² rows".into());
        }
        match self.kind() {
            Some(kind) => match new.iter().find(|&&key| self.is_foreign(key, keyset.is_signed(), kind)) {
                Some(&key) => refused(key, "the table's keys are numbers of another kind".into()),
                None => Ok(()),
            },
            None => {
                let end = u64::from(self.rows()) + new.len() as u64;
                match new.iter().find(|&&id| id >= end) {
                    Some(&id) => refused(
                        id,
                        format!("ids have no gaps, and the pass does not have all from {} on; use keys", self.rows()),
                    ),
                    None => Ok(()),
                }
            }
        }
    }

    /// Gives keys that are new the ranks behind the last.
    pub(crate) fn create(&mut self, mut new: Vec<u64>) {
        // Ranks of ids have to be the ids themselves.
        new.sort_unstable();
        for key in new {
            self.ranks.insert(key, self.rows());
            self.created.push(key);
        }
    }

    /// The keys by rank of all rows, of a table that has keys.
    pub(crate) fn keys(&self) -> Vec<u64> {
        (0..self.rows()).map(|rank| self.key(rank)).collect()
    }

    /// The id of each row by rank, of a table of ids that are no ranks.
    pub(crate) fn ids(&self) -> Option<Vec<u64>> {
        match &self.known {
            Known::Ids(Some(_)) => Some((0..self.rows()).map(|rank| self.key(rank)).collect()),
            _ => None,
        }
    }
}
