//! Passes over a table, one after another.

use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use warprow_layout::Table;
use warprow_store::{Store, StoreError};

use crate::arena::Arena;
use crate::bits::Bits;
use crate::cache::{Cache, CacheChanges};
use crate::finder::{Finder, Found, Listed};
use crate::journal::Journal;
use crate::options::{CacheOptions, NewKeys, PassMode, PassOptions};
use crate::pass::{Pass, StageReport};
use crate::{Keyset, PassError};

/// Passes over one table of a store. Nobody else changes the table meanwhile.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_passes::*;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// # let store = FormatProposal::new(&[device], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// let mut passes = Passes::open(&store, "user", PassOptions::staged(64 << 10))?;
/// let pass = passes.stage(&Keyset::new(vec![5, 6]))?;
/// let mut rows = vec![0; pass.bytes()];
/// pass.read(&mut rows)?;
/// assert_eq!(rows[..4], 20.0f32.to_le_bytes());
/// rows.fill(0);
/// passes.finish(pass, &rows)?;                             // all of the pass is durable, or nothing of it
/// assert_eq!((passes.finished(), passes.touched()), (1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Passes {
    pub(crate) store: Store,
    pub(crate) options: PassOptions,
    pub(crate) table: Table,
    /// The generation that the table is of, its model, and the number of its last update by others.
    pub(crate) generation: u64,
    pub(crate) model: String,
    sequence: u64,
    /// Shared with the thread that finds keys ahead.
    pub(crate) finder: Arc<Finder>,
    pub(crate) arena: Arc<Arena>,
    cache: Cache,
    /// The number of the latest pass, and what tells whether it is under way; the latest that a pass was planned with.
    number: u32,
    planned: u32,
    open: Weak<()>,
    next: Option<Prefetch>,
    /// Rows that are newer than those on the drives, those on their way to them, and both.
    pub(crate) dirty: Bits,
    leaving: Option<Leaving>,
    pinned: Bits,
    /// Passes that were finished since the last commit.
    uncommitted: u32,
    /// The number of the last that was finished, with those that the journal knows of.
    pub(crate) finished: u64,
    /// Rows that were changed since the mark.
    pub(crate) touched: Bits,
    pub(crate) journal: Option<Journal>,
    /// Keys in it that are not in the table.
    pub(crate) dropped: usize,
    totals: PassTotals,
}

/// The next pass, being prepared.
#[derive(Debug)]
struct Prefetch {
    number: u32,
    keyset: Keyset,
    /// The rows of the keyset, once they are found.
    found: Option<Found>,
    /// Where not all rows are in memory: those that are being read.
    planned: Option<CacheChanges>,
    /// Reads rows, or finds them.
    work: Option<JoinHandle<Result<Option<Found>, StoreError>>>,
}

/// What a thread does ahead: rows that it found.
type Work = Box<dyn FnOnce() -> Result<Option<Found>, StoreError> + Send>;

/// Rows that are becoming durable.
#[derive(Debug)]
struct Leaving {
    rows: Arc<Bits>,
    writing: JoinHandle<Result<usize, StoreError>>,
}

/// What passes came to, since they were opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassTotals {
    /// Passes that were staged.
    pub staged: u64,
    /// Rows of the passes.
    pub rows: u64,
    /// Rows that were in memory before.
    pub hits: u64,
    /// Rows that were read from drives.
    pub read: u64,
    /// Rows that had to go from memory.
    pub evicted: u64,
    /// Commits.
    pub commits: u64,
    /// Rows that became durable by them.
    pub written: u64,
    /// Chunks that were copied for that.
    pub chunks: u64,
}

/// How long the opening waits for somebody else's compaction.
const PATIENCE: Duration = Duration::from_secs(600);
/// Rows that are read at once when all are staged.
const WINDOW: u32 = 4 << 20;

impl Passes {
    /// Passes over table `table` of `store`. In the staged mode all its rows are read.
    pub fn open(store: &Store, table: &str, options: PassOptions) -> Result<Self, PassError> {
        // Keys that updates created have no ranks yet, and those that were removed have theirs still.
        if store.has_key_changes(table)? {
            store.compact_within(store.generation(table)?.0.id, PATIENCE)?;
        }
        let (generation, index) = store.generation(table)?;
        let id = generation.id;
        let model = generation.name.clone();
        let table = generation
            .tables
            .get(index)
            .cloned()
            .ok_or_else(|| PassError::Options { what: format!("table {table:?} has gone: name another") })?;
        // It would pin its chunks.
        drop(generation);
        check(&options, &table)?;
        let finder = Arc::new(Finder::of(store, &table)?);
        let rows = finder.stored() as usize;
        let row_bytes = table.row_bytes() as usize;
        let room = usize::try_from(options.memory).unwrap_or(usize::MAX) / row_bytes;
        let (cache, slots) = match options.mode {
            PassMode::Staged if room < rows => {
                return Err(PassError::TooLarge {
                    what: format!("table {:?}", table.name),
                    rows: rows as u64,
                    bytes: rows as u64 * row_bytes as u64,
                    memory: options.memory,
                    remedy: "keep some passes of it instead",
                });
            }
            // One block that everything is in, and room for rows that are created.
            PassMode::Staged => (CacheOptions { num_blocks: 1, target_hit_rate: 0.0, max_num_evict: 0 }, rows),
            PassMode::Cached(cache) => {
                let most = match options.new_keys {
                    NewKeys::Refuse => rows,
                    NewKeys::Create(_) => (2 * rows + (1 << 20)).min(u32::MAX as usize - 1),
                };
                (cache, room.min(most))
            }
        };
        let (journal, touched, dropped) = match options.journal.as_deref() {
            None => (None, Bits::new(rows), 0),
            Some(path) => {
                let (journal, touched, dropped) =
                    Journal::of_table(path, &table.name, store.inspect().0.store, &finder)?;
                (Some(journal), touched, dropped)
            }
        };
        let finished = journal.as_ref().map_or(0, Journal::last);
        let mut passes = Self {
            finished,
            arena: Arc::new(Arena::new(slots, row_bytes)?),
            cache: Cache::new(cache, rows, slots),
            sequence: store.update_sequence(id)?,
            store: store.clone(),
            options,
            table,
            generation: id,
            model,
            number: 0,
            planned: 0,
            open: Weak::new(),
            next: None,
            dirty: Bits::new(rows),
            leaving: None,
            pinned: Bits::new(rows),
            uncommitted: 0,
            touched,
            journal,
            dropped,
            totals: PassTotals::default(),
            finder,
        };
        if passes.options.mode == PassMode::Staged {
            passes.stage_all()?;
        }
        Ok(passes)
    }

    /// Reads all rows, each into the slot of its rank.
    fn stage_all(&mut self) -> Result<(), PassError> {
        let rows = self.finder.stored();
        for first in (0..rows).step_by(WINDOW as usize) {
            let window = first..rows.min(first.saturating_add(WINDOW));
            let wanted = Bits::of(window.end as usize, window);
            let planned = self.cache.plan_own(&wanted);
            self.reading(&planned.missing)()?;
        }
        (self.number, self.planned) = (1, 1);
        Ok(())
    }

    /// Brings the rows of `keyset` into memory: all of them are there when this returns, and stay as long as the pass does. There is
    /// one pass at a time; one that is dropped leaves its rows as they were.
    ///
    /// Refused, with nothing moved: keys that the table does not have, if they are not to be created, and more rows than fit in
    /// memory.
    pub fn stage(&mut self, keyset: &Keyset) -> Result<Pass, PassError> {
        if self.open.strong_count() > 0 {
            return Err(PassError::PassOpen);
        }
        self.check_unchanged()?;
        // A keyset that is refused leaves what another's rows were read for. A row that could not be read is not there: it is read again.
        let mut ahead = if self.next.as_ref().is_some_and(|prefetch| prefetch.keyset == *keyset) {
            self.take_ahead()
        } else {
            None
        };
        // What was found ahead is where it was; keys that are new may be there by now.
        let taken = ahead.as_mut().and_then(|prefetch| prefetch.found.take_if(|found| found.new.is_empty()));
        let same_rows = taken.is_some();
        let mut found = match taken {
            Some(found) => found,
            None => self.find(keyset)?,
        };
        ahead = ahead.or_else(|| self.take_ahead());
        let mut report = StageReport { keys: keyset.len() as u64, duplicates: found.duplicates, ..Default::default() };
        if !found.new.is_empty() {
            report.created = found.new.len() as u64;
            // Made durable in between, they would be so before their pass is.
            let rows = found.ranks.len() + found.new.len() + self.pinned.len();
            if self.dirty.len() > 0 && rows > self.cache.slots_in_all() {
                self.commit()?;
            }
            self.create(std::mem::take(&mut found.new))?;
            found = self.find(keyset)?;
        }
        let wanted = found.ranks;
        let created = report.created as usize;
        let same = |prefetch: &Prefetch| {
            prefetch.found.as_ref().map_or(same_rows, |found| {
                found.ranks.len() + created == wanted.len() && found.ranks.iter().all(|rank| wanted.has(rank))
            })
        };
        // What was read ahead for another pass may make way for this one, whose number is higher.
        let (pass, before) = match ahead.filter(same) {
            Some(ahead) => (ahead.number, ahead.planned),
            None => (self.planned + 1, None),
        };
        (self.number, self.planned) = (pass, pass);
        // What is missing now, in the way of it what is not durable.
        let mut planned = self.plan(&wanted, pass, pass);
        self.fill(&planned)?;
        if planned.without > 0 {
            self.commit()?;
            let rest = self.plan(&wanted, pass, pass);
            self.fill(&rest)?;
            planned.missing.extend(&rest.missing);
            planned.evicted += rest.evicted;
            if rest.without > 0 {
                return Err(self.too_large("the pass".into(), wanted.len()));
            }
        }
        report.rows = wanted.len() as u64;
        report.read = planned.missing.len() as u64 - report.created.min(planned.missing.len() as u64);
        (report.hits, report.evicted, report.inserted) = (planned.hits, planned.evicted, planned.inserted);
        if let Some(before) = before {
            report.prefetched = before.missing.len() as u64;
            (report.hits, report.inserted) = (before.hits, before.inserted);
            report.evicted += before.evicted;
        }
        self.totals.staged += 1;
        self.totals.rows += report.rows;
        self.totals.hits += report.hits;
        self.totals.read += report.read + report.prefetched;
        self.totals.evicted += report.evicted;
        let listed = found.listed.unwrap_or_else(|| self.list(&wanted));
        let alive = Arc::new(());
        self.open = Arc::downgrade(&alive);
        let arena = self.arena.clone();
        let threads = self.threads();
        Ok(Pass::new(alive, arena, threads, self.table.row_bytes() as usize, wanted, listed, report))
    }

    /// Begins to prepare the next pass, while this one goes on: reads its rows that are not in memory, as far as there is room beside
    /// the rows of this one. [`stage`](Self::stage) takes them up, of a clone of the keyset without comparing keys.
    ///
    /// In the staged mode its keys are found meanwhile, on a thread, and what is wrong with them is said by `stage`; in the cached mode
    /// they are found before this returns, and refused by this as by `stage`.
    pub fn prefetch(&mut self, keyset: &Keyset) -> Result<(), PassError> {
        drop(self.take_ahead());
        self.check_unchanged()?;
        let number = self.planned + 1;
        let ahead = |work| Builder::new().name("passes-ahead".into()).spawn(work).map_err(PassError::Thread);
        if self.options.mode == PassMode::Staged {
            let finder = self.finder.clone();
            let wanted = keyset.clone();
            let threads = self.threads();
            let work = ahead(Box::new(move || Ok(Some(finder.find_listed(&wanted, threads)))) as Work)?;
            self.planned = number;
            self.next = Some(Prefetch { number, keyset: keyset.clone(), found: None, planned: None, work: Some(work) });
            return Ok(());
        }
        let found = self.find(keyset)?;
        let since = if self.open.strong_count() > 0 { self.number } else { number };
        self.planned = number;
        if let Some(error) = self.settle_leaving(false) {
            tracing::warn!(%error, "rows could not be made durable, and will be tried again");
        }
        let planned = self.plan(&found.ranks, number, since);
        let mut work = None;
        if !planned.missing.is_empty() {
            let read = self.reading(&planned.missing);
            match ahead(Box::new(move || read().map(|()| None))) {
                Ok(thread) => work = Some(thread),
                Err(error) => {
                    planned.missing.iter().for_each(|&(rank, _)| self.cache.forget(rank));
                    return Err(error);
                }
            }
        }
        let keyset = keyset.clone();
        self.next = Some(Prefetch { number, keyset, found: Some(found), planned: Some(planned), work });
        Ok(())
    }

    /// Finds slots for the rows `wanted`.
    fn plan(&mut self, wanted: &Bits, pass: u32, since: u32) -> CacheChanges {
        match self.options.mode {
            PassMode::Staged => self.cache.plan_own(wanted),
            PassMode::Cached(_) => self.cache.plan(wanted, pass, since, &self.pinned),
        }
    }

    /// Slots and keys of rows in memory, in the order of memory.
    fn list(&self, ranks: &Bits) -> Listed {
        if self.options.mode == PassMode::Staged {
            return self.finder.list(ranks);
        }
        let mut slots: Vec<u32> = ranks.iter().filter_map(|rank| self.cache.slot(rank)).collect();
        if !slots.is_sorted() {
            slots = Bits::of(self.cache.slots_in_all(), slots).iter().collect();
        }
        let keys = slots.iter().map(|&slot| self.finder.key(self.cache.rank(slot))).collect();
        (slots, keys)
    }

    /// Takes the rows of a pass back, all of them, in its order: later passes have them. Then, or after as many passes as
    /// [`commit_every`](PassOptions::commit_every) says, makes them durable: all rows of a pass, or, after a crash before that, none.
    ///
    /// If they cannot be made durable, they are in memory all the same ([`PassError::NotDurable`]): [`commit`](Self::commit) tries again.
    /// Rows that are not as many as the pass has are refused, and the pass has then ended without them.
    pub fn finish(&mut self, pass: Pass, rows: &[u8]) -> Result<(), PassError> {
        if !pass.is(&self.open) {
            return Err(PassError::NotThisPass);
        }
        pass.check_length(rows.len())?;
        // The rows of the pass before are being read.
        self.settle_failing();
        self.arena.scatter(pass.slots(), rows, self.threads());
        [&mut self.dirty, &mut self.pinned, &mut self.touched].into_iter().for_each(|bits| bits.unite(pass.ranks()));
        drop(pass);
        (self.uncommitted, self.finished) = (self.uncommitted + 1, self.finished + 1);
        match self.options.commit_every {
            every if every > 0 && self.uncommitted >= every => self.begin_commit(self.options.behind),
            _ => Ok(()),
        }
    }

    /// Makes everything durable that was finished, in one commit, and waits for that.
    pub fn commit(&mut self) -> Result<(), PassError> {
        self.begin_commit(false)
    }

    /// Makes everything durable that was finished, here or on another thread. Rows of keys that were created are durable when
    /// this returns.
    fn begin_commit(&mut self, behind: bool) -> Result<(), PassError> {
        self.settle_failing();
        self.uncommitted = 0;
        if self.dirty.len() == 0 {
            return Ok(());
        }
        self.check_unchanged()?;
        if let Some(journal) = &mut self.journal {
            // Before the commit: a key that is there in vain does no harm.
            journal.append(self.finished, self.dirty.iter().map(|rank| self.finder.key(rank)))?;
        }
        if self.finder.rows() > self.finder.stored() {
            self.await_prefetch();
            return self.grow();
        }
        let rows = Arc::new(self.dirty.clone());
        // None: as the ranks.
        let slots: Option<Vec<u32>> = match self.options.mode {
            PassMode::Staged => None,
            PassMode::Cached(_) => Some(rows.iter().filter_map(|rank| self.cache.slot(rank)).collect()),
        };
        let store = self.store.clone();
        let arena = self.arena.clone();
        let list = rows.clone();
        let generation = self.generation;
        let name = self.table.name.clone();
        let write = move || {
            let ranks: Vec<u64> = list.iter().map(u64::from).collect();
            let fill = |position: usize, row: &mut [u8]| {
                let slot = match &slots {
                    Some(slots) => slots.get(position).copied(),
                    None => ranks.get(position).and_then(|&rank| u32::try_from(rank).ok()),
                };
                if let Some(slot) = slot {
                    arena.get(slot, row);
                }
            };
            store.replace_rows(generation, &name, &ranks, &fill)
        };
        if behind {
            let writing = Builder::new().name("passes".into()).spawn(write).map_err(PassError::Thread)?;
            self.dirty.clear();
            self.leaving = Some(Leaving { rows, writing });
            return Ok(());
        }
        let written = write();
        self.dirty.clear();
        match self.have_left(&rows, written) {
            None => Ok(()),
            Some(source) => Err(PassError::NotDurable { rows: self.dirty.len(), source }),
        }
    }

    /// The number of the last pass that was finished: from 1 on, with a journal from its first on.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// What the passes came to so far.
    pub fn totals(&self) -> PassTotals {
        self.totals
    }

    /// Blocks that made way to raise the hit rate, of [`max_num_evict`](CacheOptions::max_num_evict).
    pub fn evictions(&self) -> u32 {
        self.cache.evictions()
    }

    /// Passes that are kept.
    pub fn blocks(&self) -> usize {
        self.cache.blocks()
    }

    /// Rows in memory, each once.
    pub fn resident(&self) -> usize {
        self.cache.resident()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.table.row_bytes() as usize
    }

    /// The generation that has the rows: another after keys were created.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn threads(&self) -> usize {
        match self.options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// What the row of a new key begins with.
    pub(crate) fn begin_row(&self, key: u64, row: &mut [u8]) {
        row.fill(0);
        if let NewKeys::Create(begin) = &self.options.new_keys {
            begin(key, row);
        }
    }

    /// The slot of a row in memory.
    pub(crate) fn slot(&self, rank: u32) -> Option<u32> {
        self.cache.slot(rank)
    }

    /// Whether a row is on no drive yet.
    fn is_new(&self, rank: u32) -> bool {
        rank >= self.finder.stored()
    }

    /// The rows of a keyset, once it is clear that they can be staged.
    fn find(&self, keyset: &Keyset) -> Result<crate::finder::Found, PassError> {
        let found = self.finder.find(keyset, self.threads());
        if !found.new.is_empty() {
            match &self.options.new_keys {
                NewKeys::Refuse => {
                    return Err(PassError::NewKeys {
                        table: self.table.name.clone(),
                        count: found.new.len() as u64,
                        first: found.new.iter().take(10).map(|&key| keyset.show(key)).collect(),
                    });
                }
                NewKeys::Create(_) => self.finder.check_creatable(keyset, &found.new)?,
            }
        }
        let (rows, room) = match self.options.mode {
            PassMode::Staged => (
                self.finder.rows() as usize + found.new.len(),
                usize::try_from(self.options.memory).unwrap_or(usize::MAX) / self.row_bytes(),
            ),
            PassMode::Cached(_) => (found.ranks.len() + found.new.len(), self.cache.slots_in_all()),
        };
        if rows > room {
            let what = match self.options.mode {
                PassMode::Staged => format!("table {:?} with the keys that the pass would create", self.table.name),
                PassMode::Cached(_) => "the pass".into(),
            };
            return Err(self.too_large(what, rows));
        }
        Ok(found)
    }

    fn too_large(&self, what: String, rows: usize) -> PassError {
        PassError::TooLarge {
            what,
            rows: rows as u64,
            bytes: rows as u64 * self.row_bytes() as u64,
            memory: self.options.memory,
            remedy: "make passes of fewer keys",
        }
    }

    /// Gives keys rows that are in memory alone.
    fn create(&mut self, new: Vec<u64>) -> Result<(), PassError> {
        self.settle_failing();
        Arc::make_mut(&mut self.finder).create(new);
        let rows = self.finder.rows() as usize;
        if self.options.mode == PassMode::Staged {
            let arena = Arc::get_mut(&mut self.arena).ok_or(PassError::PassOpen)?;
            arena.grow(rows)?;
            self.cache.add_slots(rows);
        }
        self.cache.grow(rows);
        [&mut self.dirty, &mut self.pinned, &mut self.touched].into_iter().for_each(|bits| bits.grow(rows));
        Ok(())
    }

    /// Fills slots: with rows of the drives, or what new keys begin with. If that fails none of them is there.
    fn fill(&mut self, planned: &CacheChanges) -> Result<(), PassError> {
        self.reading(&planned.missing)().map_err(|error| {
            planned.missing.iter().for_each(|&(rank, _)| self.cache.forget(rank));
            PassError::from(error)
        })
    }

    /// What fills these slots, on any thread.
    fn reading(&self, missing: &[(u32, u32)]) -> impl FnOnce() -> Result<(), StoreError> + Send + 'static {
        let split = missing.partition_point(|&(rank, _)| !self.is_new(rank));
        let (stored, new) = missing.split_at(split);
        let begun: Vec<(u64, u32)> = new.iter().map(|&(rank, slot)| (self.finder.key(rank), slot)).collect();
        let ranks: Vec<u64> = stored.iter().map(|&(rank, _)| rank.into()).collect();
        let slots: Vec<u32> = stored.iter().map(|&(_, slot)| slot).collect();
        let store = self.store.clone();
        let arena = self.arena.clone();
        let row_bytes = self.row_bytes();
        let generation = self.generation;
        let name = self.table.name.clone();
        let new_keys = self.options.new_keys.clone();
        move || {
            for (key, slot) in begun {
                let mut row = vec![0; row_bytes];
                if let NewKeys::Create(begin) = &new_keys {
                    begin(key, &mut row);
                }
                arena.put(slot, &row);
            }
            if ranks.is_empty() {
                return Ok(());
            }
            store.read_rows(generation, &name, &ranks, &|position, row| {
                if let Some(&slot) = slots.get(position) {
                    arena.put(slot, row);
                }
            })
        }
    }

    /// Waits for the rows that are found or read ahead. If they could not be read none of them is there.
    fn settle_prefetch(&mut self) -> Result<Option<Prefetch>, StoreError> {
        let Some(mut next) = self.next.take() else { return Ok(None) };
        match next.work.take().map_or(Ok(Ok(None)), JoinHandle::join) {
            Ok(Ok(found)) => {
                next.found = found.or(next.found);
                Ok(Some(next))
            }
            failed => {
                let missing = next.planned.iter().flat_map(|changes| &changes.missing);
                missing.for_each(|&(rank, _)| self.cache.forget(rank));
                match failed {
                    Ok(Err(error)) => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    /// What was prepared, when that is done.
    fn take_ahead(&mut self) -> Option<Prefetch> {
        self.settle_prefetch().unwrap_or_else(|error| {
            tracing::warn!(%error, "rows could not be read ahead");
            None
        })
    }

    /// Waits for the rows that are becoming durable. What failed is tried again with the next.
    pub(crate) fn settle_failing(&mut self) {
        if let Some(error) = self.settle_leaving(true) {
            tracing::warn!(%error, "rows could not be made durable, and will be tried again");
        }
    }

    /// Waits for the rows that are read ahead, so that all rows in memory are what they are.
    pub(crate) fn await_prefetch(&mut self) {
        self.next = self.take_ahead();
    }

    /// Takes note of what became of the rows that were becoming durable; waits for them, or does not.
    fn settle_leaving(&mut self, wait: bool) -> Option<StoreError> {
        let Leaving { rows, writing } = self.leaving.take_if(|leaving| wait || leaving.writing.is_finished())?;
        let written = writing.join().unwrap_or(Err(StoreError::Interrupted));
        self.have_left(&rows, written)
    }

    /// Rows that are durable can go from memory; those that could not be made so are as before.
    fn have_left(&mut self, rows: &Bits, written: Result<usize, StoreError>) -> Option<StoreError> {
        match written {
            Ok(chunks) => {
                self.totals.commits += 1;
                self.totals.written += rows.len() as u64;
                self.totals.chunks += chunks as u64;
                self.pinned.subtract(rows, &self.dirty);
                None
            }
            Err(error) => {
                self.dirty.unite(rows);
                Some(error)
            }
        }
    }

    /// Everything that was finished is durable, with the rows of created keys, in generation `generation`.
    pub(crate) fn grown(&mut self, generation: u64, table: Table, finder: Finder) -> Result<(), PassError> {
        self.totals.commits += 1;
        self.totals.written += self.dirty.len() as u64;
        self.dirty.clear();
        self.pinned.clear();
        (self.generation, self.table, self.finder) = (generation, table, Arc::new(finder));
        self.sequence = self.store.update_sequence(generation)?;
        Ok(())
    }

    /// Refuses to go on where others changed the table.
    fn check_unchanged(&self) -> Result<(), PassError> {
        let changed = |how| Err(PassError::Changed { table: self.table.name.clone(), how });
        match self.store.table(&self.table.name) {
            Some(found) if found.generation == self.generation => {}
            _ => return changed("replaced"),
        }
        match self.store.update_sequence(self.generation)? == self.sequence {
            true => Ok(()),
            false => changed("updated"),
        }
    }
}

impl Drop for Passes {
    /// Waits for what is under way. What was finished and is not durable is lost.
    fn drop(&mut self) {
        let _ = self.settle_prefetch();
        if let Some(error) = self.settle_leaving(true) {
            tracing::error!(%error, "rows of finished passes are lost");
        }
    }
}

fn check(options: &PassOptions, table: &Table) -> Result<(), PassError> {
    let refuse = |what: String| Err(PassError::Options { what });
    if let PassMode::Cached(cache) = options.mode
        && !(0.0..=1.0).contains(&cache.target_hit_rate)
    {
        return refuse(format!("a target hit rate of {}: give one between 0 and 1", cache.target_hit_rate));
    }
    match options.vector {
        Some(elements) if elements == 0 || elements > table.dim => {
            refuse(format!("vectors of {elements} elements: the rows of table {:?} have {}", table.name, table.dim))
        }
        Some(_) if table.dtype.is_scaled() => {
            refuse(format!("rows of {} cannot be cut into vector and state: use f32 or f16", table.dtype))
        }
        _ => Ok(()),
    }
}
