//! Updates of rows: logged and durable first, then seen by every look-up that begins later.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use warprow_layout::{LogUpdate, Table, Volume, VolumeError};

use super::key_changes::KeyChanges;
use super::state::{Placed, Writer, created_rows};
use crate::StoreError;
use crate::drive_access::lock;
use crate::overlay::{CREATED, Overlay, OverlayEntry, OverlaySnapshot};
use crate::store::Store;
use crate::table_version::TableVersion;

/// How rows are updated.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct UpdateOptions {
    /// The generation whose table is updated, which may be on standby; `None`: the one that look-ups find.
    pub generation: Option<u64>,
    /// Keys that the table does not have are created, with their rows; else they are refused ([`StoreError::NoSuchKey`]).
    pub create: bool,
}

impl UpdateOptions {
    /// Updates rows of generation `id`, which may be on standby.
    #[must_use]
    pub fn with_generation(self, id: u64) -> Self {
        Self { generation: Some(id), ..self }
    }

    /// Creates keys that the table does not have.
    #[must_use]
    pub fn with_created_keys(self) -> Self {
        Self { create: true, ..self }
    }
}

impl Store {
    /// Gives rows of a table other content, by id, or by key where it has keys, an `i64` by its bits: `rows` has one
    /// row after another. When it returns, they are durable, and every look-up of the host executor that begins later
    /// reads them; no look-up reads some of the rows without the others. Where an id comes twice, its last row counts.
    /// Returns the sequence number of the last row, which counts the updates of the generation.
    ///
    /// The first update of a table with keys reads the stored keys, and keeps them in memory: eight bytes a row. So the
    /// keys have to be stored.
    ///
    /// Refused, with nothing written: ids or keys that the table does not have, rows of another size, more than
    /// [`overlay_bytes`](crate::OpenOptions::overlay_bytes) hold ([`StoreError::OverlayFull`]: compact), and every
    /// update while a GPU executor is attached without `GpuOptions::overlay_bytes`. With such an overlay, the look-ups
    /// of that executor see updates as those of a host do, captured ones too. If a drive fails, the updates are in
    /// doubt ([`VolumeError::UpdateInDoubt`]).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let plan = HostExecutor::attach(&store, HostOptions::default())?.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
    /// let new: Vec<u8> = [-1.0f32; 8].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// store.update("user", &[7, 999], &new)?;                  // two rows, durable now
    /// let mut found = [0.0f32; 8];
    /// plan.slot()?.lookup(&Batch::new(&[8i64, 999], 2), &mut Output::new(OutputRows::F32(&mut found), 4))?;
    /// assert_eq!(found, [32.0, 33.0, 34.0, 35.0, -1.0, -1.0, -1.0, -1.0]);
    /// assert!(matches!(store.update("user", &[1000], &new[..16]), Err(StoreError::NoSuchRow { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn update(&self, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_with(table, ids, rows, &UpdateOptions::default())
    }

    /// As [`update`](Self::update), of another generation, or creating keys. A key that was created is as any other from then on:
    /// look-ups give its row, not
    /// that of a key whose fingerprint is the same; [`compact`](Self::compact) brings it into the table. Until then it takes memory of the
    /// overlay as an updated row does. Tables of ids do not grow.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // A table that is looked up by keys.
    /// let (keys, rows) = (&[1u64 << 40, 7, 99][..], &[1u8, 2, 3][..]);
    /// let index = KeyIndex::build(keys, &Default::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let keyed = TableKeys::new(index.into(), &keys, RowOrder::Given, true)?;
    /// let spec = TableSpec::new("sparse", 3, 1, DType::U8).keyed(&keyed);
    /// let load = TableLoad::new(&spec, &rows).with_keys(&keyed);
    /// store.load("k", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    ///
    /// assert!(matches!(store.update("sparse", &[7, 8], &[20, 80]), Err(StoreError::NoSuchKey { .. })));
    /// store.update_with("sparse", &[7, 8], &[20, 80], &UpdateOptions::default().with_created_keys())?;
    /// assert_eq!(store.created("sparse")?, [(8, vec![80])]);
    /// let generation = store.table("sparse").ok_or("gone")?.generation;
    /// store.compact(generation)?;                              // from now on it is a key as any other
    /// assert_eq!(store.table("sparse").ok_or("gone")?.rows, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn update_with(
        &self,
        table: &str,
        ids: &[u64],
        rows: &[u8],
        options: &UpdateOptions,
    ) -> Result<u64, StoreError> {
        let generation = self.locate_for(table, options)?.generation.id;
        // A compaction may give it another place, and another index.
        let change = Change::Rows { rows, create: options.create };
        let updated =
            self.with_room(generation, || self.change_located(&self.locate_for(table, options)?, ids, change));
        updated.map(|changed| changed.last)
    }

    /// Whether [`update`](Self::update) would find rows of all these ids or keys. Nothing is changed.
    pub fn check_update(&self, table: &str, ids: &[u64]) -> Result<(), StoreError> {
        self.check_update_with(table, ids, &UpdateOptions::default()).map(drop)
    }

    /// Whether [`update_with`](Self::update_with) would take all these ids or keys, and how many keys it would create, those that
    /// were removed among them. Nothing is changed.
    pub fn check_update_with(&self, table: &str, ids: &[u64], options: &UpdateOptions) -> Result<u64, StoreError> {
        let located = self.locate_for(table, options)?;
        refuse_absent(located.table(), ids)?;
        if located.table().keys.is_none() {
            return Ok(0);
        }
        let updating = self.shared.updates.updating(&self.shared.volume, located.generation.id)?;
        let placed = lock(&updating.0).places(&self.shared.volume, &located, ids, options.create)?;
        Ok(placed.created + placed.revived)
    }

    /// As [`update`](Self::update), of a table of generation `generation`, which may be on standby.
    pub fn update_generation(&self, generation: u64, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_with(table, ids, rows, &UpdateOptions::default().with_generation(generation))
    }

    /// The rows of keys that were created since the table was loaded, or compacted: its [`keys`](Self::keys), and the ranks of
    /// [`scan`](Self::scan), do not have them. Each key once, an `i64` by its bits, in the order of these.
    pub fn created(&self, table: &str) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let (located, overlay) = self.shared.updates.with_overlay(&self.shared.volume, self.locate(table)?);
        let Some(snapshot) = overlay?.snapshot() else { return Ok(Vec::new()) };
        let rows = created_rows(&snapshot, located.index as u32);
        Ok(rows.into_iter().map(|(key, row)| (key, row.to_vec())).collect())
    }

    pub(super) fn locate_for(&self, table: &str, options: &UpdateOptions) -> Result<TableVersion, StoreError> {
        match options.generation {
            Some(generation) => self.locate_in(generation, table),
            None => self.locate(table),
        }
    }

    pub(crate) fn locate_in(&self, id: u64, table: &str) -> Result<TableVersion, StoreError> {
        let generation = self.shared.volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        match generation.table_index(table) {
            Some(index) => Ok(TableVersion { generation, index }),
            None => Err(StoreError::NoSuchTable {
                table: table.to_owned(),
                known: generation.tables.iter().map(|table| table.name.clone()).collect(),
            }),
        }
    }

    /// Changes rows or keys of a table: logs that, and then shows it.
    pub(super) fn change_located(
        &self,
        located: &TableVersion,
        ids: &[u64],
        change: Change<'_>,
    ) -> Result<Changed, StoreError> {
        let table = located.table();
        let index = located.index as u32;
        let (rows, row_bytes) = match change {
            Change::Rows { rows, .. } => (rows, table.row_bytes() as usize),
            Change::Removal => (&[][..], 0),
        };
        if ids.len().checked_mul(row_bytes) != Some(rows.len()) {
            let table = table.name.clone();
            let ids = ids.len();
            return Err(StoreError::UpdateRows { table, ids, row_bytes, given: rows.len() });
        }
        match change {
            Change::Rows { .. } => refuse_absent(table, ids)?,
            Change::Removal if table.keys.is_none() => {
                return Err(StoreError::NotRemovable { table: table.name.clone() });
            }
            Change::Removal => {}
        }
        let unfollowing = self.shared.updates.unfollowing.read().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&unfollowing) > 1 {
            return Err(StoreError::Unfollowing { table: table.name.clone() });
        }
        self.shared.watch()?;
        self.shared.updates.know_kept_room(&self.shared.volume);
        let updating = self.shared.updates.updating(&self.shared.volume, located.generation.id)?;
        let mut writer = lock(&updating.0);
        let bound = self.shared.updates.bound;
        // First what was in doubt, for which room was made then.
        let mut log = writer.take_log(&self.shared.volume, located.generation.id)?;
        let resolved = writer.resolve(&self.shared.volume, located, ids, change).and_then(|resolved| {
            let full = |bytes| StoreError::OverlayFull { generation: located.generation.id, bytes, bound };
            writer.make_room(resolved.ids.len(), rows.len(), bound).map_err(full)?;
            writer.make_followers_room(index, resolved.ids.len())?;
            // Where the keys are those of the index again, that takes no room.
            if resolved.changes != writer.changes_of(index) && resolved.changes.any() {
                writer.keep_room_to_change(&self.shared.volume, &located.generation, index, resolved.changes)?;
            }
            Ok(resolved)
        });
        let Resolved { ids, places, changes } = match resolved {
            Ok(resolved) if !resolved.ids.is_empty() || matches!(change, Change::Rows { .. }) => resolved,
            other => {
                let last = log.sequence();
                writer.log = Some(log);
                return other.map(|_| Changed { last, count: 0 });
            }
        };
        let row = |position: usize| rows.get(position * row_bytes..(position + 1) * row_bytes).unwrap_or_default();
        let updates: Vec<LogUpdate<'_>> = ids
            .iter()
            .enumerate()
            .map(|(position, &key)| LogUpdate { table: index, key, row: row(position) })
            .collect();
        let chunks =
            || self.shared.volume.generation(located.generation.id).map_or(0, |generation| generation.log.len());
        let before = chunks();
        let appended = log.append(&updates);
        let desk = lock(&self.shared.updates.desk).upgrade();
        // It is counted over all chunks of the store: not for each update.
        let usage = desk.as_ref().filter(|_| chunks() != before).and_then(|_| log.usage().ok());
        writer.log = Some(log);
        let last = appended?;
        match changes.any() {
            true => drop(writer.changes.insert(index, changes)),
            false => drop(writer.changes.remove(&index)),
        }
        let entry = |(position, (table, key)): (usize, (u32, u64))| OverlayEntry {
            table,
            key,
            sequence: last - (ids.len() - 1 - position) as u64,
            begin: position * row_bytes,
            bytes: row_bytes,
        };
        let placed: Vec<OverlayEntry> = places.into_iter().enumerate().map(entry).collect();
        let logged = ids.iter().map(|&key| (index, key)).enumerate().map(entry);
        let logged: Vec<OverlayEntry> = if writer.older.is_empty() { Vec::new() } else { logged.collect() };
        let published = writer.publish(&placed, &logged, &rows.into());
        if let Some(desk) = desk {
            // What a compaction would bring into chunks; what older overlays keep is for those to let go who read them.
            desk.note(located.generation.id, writer.current.least_with(0, 0), usage);
        }
        published.map(|()| Changed { last, count: ids.len() as u64 })
    }

    /// The updated rows of a table, if any: by rank, as of now.
    pub(crate) fn updated_by_rank(
        &self,
        located: &TableVersion,
        overlay: &Overlay,
    ) -> Result<HashMap<u64, Vec<u8>>, StoreError> {
        match overlay.snapshot() {
            Some(snapshot) => self.rows_by_rank(located, &snapshot),
            None => Ok(HashMap::new()),
        }
    }

    /// The updated rows of a table by rank, as `snapshot` has them.
    pub(super) fn rows_by_rank(
        &self,
        located: &TableVersion,
        snapshot: &OverlaySnapshot,
    ) -> Result<HashMap<u64, Vec<u8>>, StoreError> {
        let mut rows = snapshot.rows(located.index as u32).peekable();
        if rows.peek().is_none() {
            return Ok(HashMap::new());
        }
        let ranks = self.shared.volume.read_ranks(&located.generation, located.index)?;
        let rank_of = |id: u64| ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
        Ok(rows.filter_map(|(id, row)| Some((rank_of(id)?, row.to_vec()))).collect())
    }
}

/// What is done to rows by their ids or keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    /// They get other content. With `create`, keys that have no row get one.
    Rows { rows: &'a [u8], create: bool },
    /// Their keys are removed, those that are there.
    Removal,
}

/// A change that was made.
pub(super) struct Changed {
    /// The sequence number of the last record of the log.
    last: u64,
    /// Rows that got other content, or keys that were removed.
    pub(super) count: u64,
}

/// What a change is to write, and where.
struct Resolved<'a> {
    ids: Cow<'a, [u64]>,
    /// Where the current overlay has them.
    places: Vec<(u32, u64)>,
    /// How the keys of the table differ from those of its index then.
    changes: KeyChanges,
}

impl Writer {
    fn changes_of(&self, table: u32) -> KeyChanges {
        self.changes.get(&table).copied().unwrap_or_default()
    }

    fn resolve<'a>(
        &mut self,
        volume: &Volume,
        located: &TableVersion,
        ids: &'a [u64],
        change: Change<'_>,
    ) -> Result<Resolved<'a>, StoreError> {
        let before = self.changes_of(located.index as u32);
        match change {
            Change::Rows { create, .. } => {
                let Placed { places, created, revived } = self.places(volume, located, ids, create)?;
                let changes =
                    KeyChanges { created: before.created + created, removed: before.removed.saturating_sub(revived) };
                Ok(Resolved { ids: ids.into(), places, changes })
            }
            Change::Removal => {
                let (ids, places) = self.with_rows(volume, located, ids)?;
                let created = places.iter().filter(|place| place.0 & CREATED != 0).count() as u64;
                let removed = before.removed + places.len() as u64 - created;
                let changes = KeyChanges { created: before.created.saturating_sub(created), removed };
                let table = located.table();
                match changes.applied_to(table.rows) {
                    0 => Err(StoreError::NoKeyLeft { table: table.name.clone() }),
                    _ => Ok(Resolved { ids: ids.into(), places, changes }),
                }
            }
        }
    }
}

/// Refuses ids that a table of ids does not have.
fn refuse_absent(table: &Table, ids: &[u64]) -> Result<(), StoreError> {
    let is_absent = |&id: &u64| table.keys.is_none() && id >= table.rows;
    let absent: Vec<u64> = ids.iter().copied().filter(is_absent).take(10).collect();
    match absent.is_empty() {
        true => Ok(()),
        false => Err(StoreError::NoSuchRow { table: table.name.clone(), rows: table.rows, ids: absent }),
    }
}
