//! When keys were last touched: an epoch for each key of the tables that an executor reads.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use warprow_layout::Table;
use warprow_store::view::{Overlay, StoreView, TableVersion, lock};
use warprow_store::{LastTouches, StoreError};

use crate::stage::{KEY_FOUND, TABLE_SHIFT};

/// A table that an executor reads, as far as touches of its keys need it.
#[derive(Debug, Clone, Copy)]
pub struct NotedTable<'a> {
    /// The table, as the executor reads it.
    pub located: &'a TableVersion,
    /// The updated rows of the table; `None`: the executor sees none.
    pub overlay: Option<&'a Overlay>,
    /// Where touches of its keys are noted; `None`: they are not.
    pub touched: Option<&'a Arc<TouchedTable>>,
}

/// The epoch that look-ups note, and what was noted of tables that the executor no longer reads.
#[derive(Debug)]
pub struct TouchRecord {
    epoch: AtomicU16,
    left: Mutex<LeftTables>,
}

/// Tables of before.
#[derive(Debug, Default)]
struct LeftTables {
    /// Those that look-ups may still read.
    read: Vec<LeftTable>,
    /// What was noted of the others.
    over: LastTouches,
}

/// A table that the executor has left for another, or is about to.
#[derive(Debug)]
struct LeftTable {
    name: String,
    /// Keys by position.
    keys: Vec<u64>,
    touched: Arc<TouchedTable>,
}

/// The epoch at which each key of a table was last touched, by the key's position; 0: not since the executor reads the table.
#[derive(Debug)]
pub struct TouchedTable {
    epochs: Box<[AtomicU16]>,
    /// The epoch at which the executor began to read the table.
    began: u16,
    /// The index's checksum: positions belong to an index.
    index: u32,
}

impl TouchedTable {
    /// Notes the rows of `keys`, as the stage *keys* has made them of sparse ids.
    #[inline]
    pub(crate) fn touch(&self, keys: &[u64], epoch: u16) {
        for key in keys.iter().filter(|&&key| key < KEY_FOUND) {
            self.note((key & ((1 << TABLE_SHIFT) - 1)) as usize, epoch);
        }
    }

    /// Notes that the key at `position` was touched in `epoch`. Positions that the table lacks are passed over.
    #[inline]
    pub fn note(&self, position: usize, epoch: u16) {
        let Some(last) = self.epochs.get(position) else { return };
        // Nearly every row that is looked up often was touched in this epoch before: then its line is not written.
        if last.load(Ordering::Relaxed) < epoch {
            last.fetch_max(epoch, Ordering::Relaxed);
        }
    }

    /// Keys of the table.
    pub fn keys(&self) -> usize {
        self.epochs.len()
    }

    /// The epoch of the key at `position`; 0: it was not touched.
    fn last(&self, position: usize) -> u16 {
        self.epochs.get(position).map_or(0, |last| last.load(Ordering::Relaxed))
    }
}

impl LeftTable {
    fn touched(&self) -> impl Iterator<Item = (u64, u16)> {
        self.keys.iter().enumerate().map(|(position, &key)| (key, self.touched.last(position)))
    }
}

impl LeftTables {
    /// Puts together what was noted of tables that no look-up reads any more.
    fn settle(&mut self) {
        let over = &mut self.over;
        self.read.retain(|left| {
            let is_read = Arc::strong_count(&left.touched) > 1;
            if !is_read {
                over.touch(&left.name, left.touched());
            }
            is_read
        });
    }
}

impl TouchRecord {
    /// A record that begins with `epoch`, which `option` has given.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if that is 0.
    pub fn new(epoch: u16, option: &str) -> Result<Self, StoreError> {
        if epoch == 0 {
            let reason = format!("epochs of last touches begin with 1: {option} is 0");
            return Err(StoreError::ExecutorOptions { reason });
        }
        Ok(Self { epoch: AtomicU16::new(epoch), left: Mutex::default() })
    }

    /// The error of an executor that was attached without `option`.
    pub fn absent(option: &str) -> StoreError {
        StoreError::ExecutorOptions { reason: format!("this executor notes no last touches: attach it with {option}") }
    }

    /// The epoch that a look-up which begins now notes.
    #[inline]
    pub fn epoch(&self) -> u16 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Has look-ups note a later epoch.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if `epoch` is lower than the one that they note.
    pub fn raise(&self, epoch: u16) -> Result<(), StoreError> {
        let before = self.epoch.fetch_max(epoch, Ordering::Relaxed);
        match before > epoch {
            true => {
                let reason = format!("epoch {epoch} of last touches comes before {before}: epochs do not go back");
                Err(StoreError::ExecutorOptions { reason })
            }
            false => Ok(()),
        }
    }

    /// Where the touches of a table are noted; `None`: its ids are no keys, or its keys are not stored, so that none can be removed. A table
    /// whose index is that of a table in `before` goes on with what was noted of that.
    ///
    /// # Errors
    /// [`StoreError::Allocate`].
    pub fn of_table(&self, table: &Table, before: &[NotedTable<'_>]) -> Result<Option<Arc<TouchedTable>>, StoreError> {
        let Some(keys) = table.keys.filter(|keys| keys.keys.is_some()) else { return Ok(None) };
        let before = before.iter().find(|it| it.located.table().name == table.name);
        let before = before.and_then(|before| before.touched);
        if let Some(touched) = before
            && (touched.index, touched.epochs.len() as u64) == (keys.index_crc, table.rows)
        {
            return Ok(Some(touched.clone()));
        }
        let failed = || StoreError::Allocate {
            what: "last touches",
            bytes: 2 * table.rows,
            source: std::io::ErrorKind::OutOfMemory.into(),
        };
        let rows = usize::try_from(table.rows).map_err(|_| failed())?;
        let mut epochs = Vec::new();
        epochs.try_reserve_exact(rows).map_err(|_| failed())?;
        epochs.resize_with(rows, AtomicU16::default);
        let began = before.map_or(self.epoch(), |before| before.began);
        Ok(Some(Arc::new(TouchedTable { epochs: epochs.into(), began, index: keys.index_crc })))
    }

    /// Keeps what was noted of tables of `before` that are not among `after` with the same index, and notes the keys that only `after` has.
    ///
    /// # Errors
    /// Errors of reading rows of the overlay or keys of the index.
    pub fn leave(
        &self,
        store: &StoreView,
        before: &[NotedTable<'_>],
        after: &[NotedTable<'_>],
    ) -> Result<(), StoreError> {
        for table in before {
            let Some(touched) = table.touched else { continue };
            // What comes after has the updated rows in its chunks, and no more in its overlay.
            table.touch_updated(self);
            let name = &table.located.table().name;
            let next = after.iter().find(|after| after.located.table().name == *name);
            let next = next.and_then(|next| Some((next, next.touched?)));
            if next.is_some_and(|(_, next)| Arc::ptr_eq(next, touched)) {
                continue;
            }
            let keys = keys_by_position(store, table.located)?;
            if let Some((next, touched)) = next {
                // A key that was removed and created again is an updated row of the table before.
                let mut known = keys.clone();
                known.sort_unstable();
                for (position, key) in (0..).zip(keys_by_position(store, next.located)?) {
                    if known.binary_search(&key).is_err() {
                        touched.touch(&[position], self.epoch());
                    }
                }
            }
            let mut left = lock(&self.left);
            left.settle();
            if !left.read.iter().any(|left| Arc::ptr_eq(&left.touched, touched)) {
                left.read.push(LeftTable { name: name.clone(), keys, touched: touched.clone() });
            }
        }
        Ok(())
    }
}

/// The keys of a table whose keys are stored, by position.
fn keys_by_position(store: &StoreView, table: &TableVersion) -> Result<Vec<u64>, StoreError> {
    let missing = || StoreError::KeysNotStored { table: table.table().name.clone() };
    let keys = store.read_keys(table)?.ok_or_else(missing)?;
    let Some(ranks) = store.read_ranks(table)? else { return Ok(keys) };
    let key = |position| ranks.get(position).and_then(|rank| keys.get(rank as usize)).copied().ok_or_else(missing);
    (0..keys.len() as u64).map(key).collect()
}

impl NotedTable<'_> {
    /// Notes keys whose rows were updated since the table was loaded or compacted, as far as they are not known to the record yet.
    fn touch_updated(&self, record: &TouchRecord) {
        let (Some(touched), Some(overlay)) = (self.touched, self.overlay) else { return };
        if let Some(snapshot) = overlay.snapshot() {
            let epoch = record.epoch();
            snapshot.rows(self.located.index as u32).for_each(|(position, _)| touched.touch(&[position], epoch));
        }
    }

    /// The positions of removed keys.
    fn removed(&self) -> HashSet<u64> {
        let snapshot = self.overlay.and_then(|overlay| overlay.snapshot());
        snapshot.map(|snapshot| snapshot.removed(self.located.index as u32).collect()).unwrap_or_default()
    }
}

impl TouchRecord {
    /// What was noted of `tables`, which are those that the executor reads, put together with `touches`.
    ///
    /// # Errors
    /// Errors of reading rows of the overlay or keys of the index.
    pub fn last_touches(
        &self,
        store: &StoreView,
        tables: &[NotedTable<'_>],
        mut touches: LastTouches,
    ) -> Result<LastTouches, StoreError> {
        let mut left = lock(&self.left);
        left.settle();
        for table in tables {
            let Some(touched) = table.touched else { continue };
            let name = &*table.located.table().name;
            table.touch_updated(self);
            let removed = table.removed();
            let keys = (0u64..).zip(keys_by_position(store, table.located)?);
            let kept = keys.filter(|(position, _)| !removed.contains(position));
            let mut kept: Vec<_> = kept.map(|(position, key)| (key, touched.last(position as usize))).collect();
            kept.sort_unstable();
            let is_kept = |key| kept.binary_search_by_key(&key, |&(key, _)| key).is_ok();
            // A removed key may be created again: then it is another one, of which nothing was noted yet.
            touches.retain(name, is_kept);
            left.over.retain(name, is_kept);
            touches.touch(name, kept.iter().copied());
            touches.touch(name, left.over.of(name));
            for left in left.read.iter().filter(|left| left.name == name) {
                touches.touch(name, left.touched().filter(|&(key, _)| is_kept(key)));
            }
            // A key that nobody has noted counts as touched when this executor began.
            let unknown = kept.iter().map(|&(key, _)| key).filter(|&key| touches.last(name, key).is_none());
            let unknown: Vec<_> = unknown.map(|key| (key, touched.began)).collect();
            touches.touch(name, unknown);
        }
        // Tables that there are no more.
        let is_read = |name: &str| tables.iter().any(|table| table.located.table().name == name);
        let over = left.over.tables().filter(|&name| !is_read(name));
        over.for_each(|name| touches.touch(name, left.over.of(name)));
        let read = left.read.iter().filter(|left| !is_read(&left.name));
        read.for_each(|left| touches.touch(&left.name, left.touched()));
        Ok(touches)
    }
    /// Puts [`last_touches`](Self::last_touches) into a file, together with what the file has.
    ///
    /// # Errors
    /// [`StoreError::TouchesFile`]; those of reading.
    pub fn save(&self, store: &StoreView, tables: &[NotedTable<'_>], path: &Path) -> Result<(), StoreError> {
        let failed = |source| StoreError::TouchesFile { path: path.to_owned(), source };
        let saved = LastTouches::read(path).map_err(failed)?.unwrap_or_default();
        self.last_touches(store, tables, saved)?.write(path).map_err(failed)
    }
}
