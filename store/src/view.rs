//! What a store gives to executors: its drives, its tables as they are in a generation, where their rows lie, and which
//! rows were updated. The host executor (`warprow-lookup`) and the GPU executor (`warprow-gpu`) use nothing else of a
//! store, and another executor could be built on this too.
//!
//! Four things are promised. A [`TableVersion`] pins its generation, so that its rows stay where they are and readable.
//! The [`Overlay`] of a generation has every row that was updated since the chunks of just this generation were
//! written. A [`Follower`] is told of each update before [`Store::update`] returns, and can refuse it before anything
//! is written. While [`StoreView::refuse_updates`] is held, no update begins.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::Clock;
use warprow_keys::KeyIndex;
use warprow_layout::{Drive, Generation, Ranks, VolumeError};

pub use crate::dram_list::{read_list, write_list};
pub use crate::drive_access::{SharedPair, lock};
pub use crate::member::MemberDrive;
pub use crate::overlay::{CREATED, Follower, Overlay, OverlayEntry, OverlaySnapshot};
pub use crate::sparse_ids::SparseIds;
pub use crate::table_identity::TableIdentity;
pub use crate::table_version::TableVersion;

use crate::store::Shared;
use crate::table_version::{latest_tables, latest_tables_by};
use crate::{ReadCurve, Store, StoreError, TakeRow, measure};

/// A store, as executors see it. Clones are the same store.
#[derive(Clone, Debug)]
pub struct StoreView {
    pub(crate) shared: Arc<Shared>,
}

/// A guard: while it lives, the store refuses updates ([`StoreError::Unfollowing`]).
#[derive(Debug)]
#[must_use]
pub struct UpdatesRefused {
    _held: Arc<()>,
}

impl Store {
    /// What executors see of this store.
    pub fn view(&self) -> StoreView {
        StoreView { shared: self.shared.clone() }
    }
}

impl StoreView {
    /// The store.
    pub fn store(&self) -> Store {
        Store { shared: self.shared.clone() }
    }

    /// The drives, by member index; `None`: missing.
    #[inline]
    pub fn drives(&self) -> &[Option<Arc<MemberDrive>>] {
        &self.shared.members
    }

    /// The drives that are missing, by their identifiers.
    pub fn missing_drives(&self) -> Vec<String> {
        self.shared.volume.missing().iter().map(ToString::to_string).collect()
    }

    /// Looks at what drives report, every 10 ms at most, and fails once a namespace is not what it was when the store was opened.
    pub fn watch(&self) -> Result<(), StoreError> {
        self.shared.watch()
    }

    /// The store's clock.
    #[inline]
    pub fn clock(&self) -> &dyn Clock {
        &*self.shared.driving.clock
    }

    /// The longest wait for a read, which was given when the store was opened.
    pub fn timeout(&self) -> Duration {
        self.shared.driving.timeout
    }

    /// Bytes of an LBA, of all drives.
    #[inline]
    pub fn lba_size(&self) -> u32 {
        self.shared.volume.geometry().lba_size()
    }

    /// Every table that look-ups find by name, in the order of generations.
    pub fn tables(&self) -> Vec<TableVersion> {
        latest_tables(self.shared.volume.generations())
    }

    /// Every table that look-ups would find after a [switch](Store::switch) to generation `id`.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchGeneration`].
    pub fn tables_after_switch(&self, id: u64) -> Result<Vec<TableVersion>, StoreError> {
        let generations = self.shared.volume.generations();
        let found = generations.iter().find(|generation| generation.id == id);
        let name = found.ok_or(VolumeError::NoSuchGeneration { id })?.name.clone();
        Ok(latest_tables_by(generations, |generation| match generation.name == name {
            true if generation.id == id => u64::MAX,
            true => 0,
            false => generation.shown,
        }))
    }

    /// The permutation of a table, id → rank or key position → rank; `None`: ids, or key positions, are ranks.
    pub fn read_ranks(&self, table: &TableVersion) -> Result<Option<Ranks>, VolumeError> {
        self.shared.volume.read_ranks(&table.generation, table.index)
    }

    /// The index of a table's keys, key → key position; `None`: the table is looked up by ids.
    pub fn read_key_index(&self, table: &TableVersion) -> Result<Option<KeyIndex>, VolumeError> {
        self.shared.volume.read_key_index(&table.generation, table.index)
    }

    /// A table's keys by rank, an `i64` by its bits; `None`: none are stored.
    pub fn read_keys(&self, table: &TableVersion) -> Result<Option<Vec<u64>>, VolumeError> {
        self.shared.volume.read_keys(&table.generation, table.index)
    }

    /// The checksums of a table's rows by rank ([`row_crc`](warprow_layout::row_crc)); `None`: none are stored.
    pub fn read_row_crcs(&self, table: &TableVersion) -> Result<Option<Vec<u32>>, VolumeError> {
        self.shared.volume.read_row_crcs(&table.generation, table.index)
    }

    /// Reads the rows of ranks `ranks` as they are stored, without updates, at the drives' bandwidth; hands each to `row` with its
    /// rank, in no particular order, until `row` says stop.
    pub fn scan(
        &self,
        table: &TableVersion,
        ranks: Range<u64>,
        row: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.store().scan_version(table, ranks, row)
    }

    /// Reads the rows of `ranks`, ascending and each once, as they are stored, without updates; hands each to `take` with its
    /// position in `ranks`, in no particular order and on any thread.
    pub fn read_rows(&self, table: &TableVersion, ranks: &[u64], take: &TakeRow<'_>) -> Result<(), StoreError> {
        self.store().read_stored(table, ranks, None, &mut || ControlFlow::Continue(()), take)
    }

    /// As [`read_rows`](Self::read_rows), by one thread and at most so many bytes a second, whole LBAs counted; `tick` is asked now and
    /// then whether to stop.
    ///
    /// # Errors
    /// [`StoreError::Interrupted`] if `tick` said stop; errors of reading.
    pub fn read_rows_slowly(
        &self,
        table: &TableVersion,
        ranks: &[u64],
        bytes_per_second: u64,
        tick: &mut dyn FnMut() -> ControlFlow<()>,
        take: &TakeRow<'_>,
    ) -> Result<(), StoreError> {
        self.store().read_stored(table, ranks, Some(bytes_per_second), tick, take)
    }

    /// The ranks of a table that are listed for DRAM ([`Store::dram_list`]).
    pub fn dram_list(&self, table: &TableVersion) -> Result<Option<Vec<u64>>, StoreError> {
        self.store().dram_list_of(table)
    }

    /// The updated rows that belong over a generation's rows.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchGeneration`] if the store no longer has the generation with these chunks; errors of a damaged
    /// log.
    pub fn overlay(&self, generation: &Generation) -> Result<Arc<Overlay>, StoreError> {
        self.shared.updates.overlay(&self.shared.volume, generation)
    }

    /// A table with the updated rows that belong over it, as both are now, or as they were together a moment ago: a compaction may
    /// come between, and give the table another generation.
    pub fn with_overlay(&self, table: TableVersion) -> (TableVersion, Result<Arc<Overlay>, StoreError>) {
        self.shared.updates.with_overlay(&self.shared.volume, table)
    }

    /// As [`with_overlay`](Self::with_overlay), of many tables; `None`: the log of the table's generation cannot be read.
    pub fn with_overlays(&self, tables: Vec<TableVersion>) -> Vec<(TableVersion, Option<Arc<Overlay>>)> {
        self.shared.updates.with_overlays(&self.shared.volume, tables)
    }

    /// The ranks of those rows of a table that updates override: what is stored in their place does not matter.
    pub fn overridden(&self, table: &TableVersion) -> Result<HashSet<u64>, StoreError> {
        self.shared.updates.overridden(&self.shared.volume, table)
    }

    /// The rows of a table that may be stored with other content in `now` than in `before`, which somebody reads together with `overlay`:
    /// by their ids, or the positions of their keys, in no particular order, each once. All other rows are stored in both versions with
    /// the same content, under the same ids and ranks. `None`: any row may have other content, or another rank, as in another
    /// generation, or where rows were replaced, or keys created or removed, since.
    ///
    /// `now` was read from this store before this is called.
    pub fn changed_rows(&self, before: &TableVersion, overlay: &Overlay, now: &TableVersion) -> Option<Vec<u64>> {
        self.shared.updates.changed_rows(before, overlay, now)
    }

    /// Whether rows of a generation were updated since its chunks were written.
    pub fn is_updated(generation: &Generation) -> bool {
        crate::update::is_updated(generation)
    }

    /// Refuses updates, for an executor that would not see them. Those that are under way have ended when this returns.
    pub fn refuse_updates(&self) -> UpdatesRefused {
        UpdatesRefused { _held: self.shared.updates.unfollowing() }
    }

    /// The error of a row that was read and does not match its checksum.
    pub fn damaged_row(&self, table: &TableVersion, rank: u64) -> StoreError {
        self.shared.damaged_row(table, rank)
    }

    /// What reads cost each drive, where it holds rows of `tables`, with up to `depth` commands under way, and `timeout` the longest wait
    /// for one: 50 ms a drive, one after another. `curves`: by member index; what cannot be measured stays as it was.
    pub fn measure_reads(
        &self,
        tables: &[TableVersion],
        depth: u32,
        timeout: Duration,
        curves: &mut [Option<ReadCurve>],
    ) {
        for ((number, member), curve) in (0u16..).zip(&self.shared.members).zip(curves) {
            let Some(member) = member else { continue };
            match measure::measure((number, member), tables, (depth, timeout), self.clock()) {
                Ok(measured) => *curve = measured,
                // Look-ups will meet it too, and bring the drive back.
                Err(error) => tracing::warn!("{}: its read curve could not be measured: {error}", member.name()),
            }
            if let Some(curve) = curve {
                tracing::debug!("{}: {curve}", member.name());
            }
        }
    }
}

impl Store {
    /// What reads cost each drive, in the order of members: measured within 50 ms a drive, on LBAs that hold rows, or 100 ms, all over a
    /// drive where the store has none. `None`: a drive is missing, failed, or was too slow to tell.
    pub fn measure_reads(&self) -> Result<Vec<Option<ReadCurve>>, StoreError> {
        let view = self.view();
        view.watch()?;
        let tables = view.tables();
        let mut curves = vec![None; view.drives().len()];
        view.measure_reads(&tables, measure::DEPTH, view.timeout(), &mut curves);
        if tables.is_empty() {
            for (member, curve) in view.drives().iter().zip(&mut curves) {
                let Some(member) = member else { continue };
                *curve = measure::measure_empty(member, (measure::DEPTH, view.timeout()), view.clock())
                    .inspect_err(|error| tracing::warn!("{}: its reads could not be measured: {error}", member.name()))
                    .unwrap_or_default();
            }
        }
        Ok(curves)
    }
}
