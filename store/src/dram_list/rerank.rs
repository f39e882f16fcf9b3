//! Choosing which rows of a table lie in DRAM.

use std::io;
use std::sync::{Arc, TryLockError};

use warprow_layout::VolumeError;

use super::content::{ListedTable, decode, encode};
use super::options::{ListedRows, RerankOptions, RerankReport};
use super::stored::{PART, listed};
use super::{ListPlace, beside};
use crate::sparse_ids::SparseIds;
use crate::store::Shared;
use crate::table_version::TableVersion;
use crate::verified::{DamageKind, DamagedUnit};
use crate::{KeyIndex, Store, StoreError};

/// Where the list of a table is.
enum Medium<'a> {
    /// Among the lists of the store.
    Stored,
    /// In a file.
    Beside(&'a ListPlace),
}

impl Shared {
    /// Where the list of a table is kept.
    fn medium(&self, located: &TableVersion) -> Result<(Medium<'_>, ListedTable), StoreError> {
        let of = listed(located);
        let Some(member) = self.members.iter().flatten().find(|member| member.is_attached()) else {
            return Ok((Medium::Stored, of));
        };
        match member.list_place(&located.table().name) {
            Some(place) => Ok((Medium::Beside(place), ListedTable { generation: 0, identity: place.identity, ..of })),
            None => Err(StoreError::NoListPlace { table: located.table().name.clone() }),
        }
    }
}

/// Flags, one a row.
struct Seen(Vec<u64>);

impl Seen {
    fn new(rows: u64) -> Result<Self, StoreError> {
        let words = rows.div_ceil(64);
        let mut flags = Vec::new();
        let len = usize::try_from(words).ok().filter(|&words| flags.try_reserve_exact(words).is_ok());
        let lacking = || StoreError::Allocate {
            what: "the flags of listed rows",
            bytes: words.saturating_mul(8),
            source: std::io::ErrorKind::OutOfMemory.into(),
        };
        flags.resize(len.ok_or_else(lacking)?, 0);
        Ok(Self(flags))
    }

    /// Sets the flag of `rank`: whether it was set before. `None`: there is no such row.
    fn set(&mut self, rank: u64) -> Option<bool> {
        let word = self.0.get_mut(usize::try_from(rank / 64).ok()?)?;
        let bit = 1 << (rank % 64);
        let before = *word & bit != 0;
        *word |= bit;
        Some(before)
    }
}

impl Store {
    /// Lists the rows of a table that executors keep in DRAM, in the place of its first ranks. Nothing moves on a
    /// drive, and nobody who looks rows up is disturbed: an executor that is attached from now on reads the list, and so
    /// does one that prepares and adopts tables anew. Those on a GPU leave out what is in GPU memory.
    ///
    /// The list replaces the one before in one commit; that of an attached table is a file beside the table's, which is
    /// written aside, synced and renamed. It is a hint: after a crash there is the old one or the new one, and one that is damaged is
    /// not used.
    ///
    /// # Errors
    /// [`StoreError::RerankBusy`] beside a load, a compaction of the table's generation, or another `rerank`;
    /// [`StoreError::NoSuchTable`]; [`StoreError::NoSuchRow`] for ranks that the table does not have;
    /// [`StoreError::DramListFile`] where the file of an attached table's list cannot be written.
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
    /// // Ids 900 and 7 are looked up most. There is room for two rows of 16 bytes.
    /// store.rerank(&RerankOptions::new("user").with_ids(&[900, 7]))?;
    /// let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(32))?;
    /// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
    /// let mut rows = [0.0f32; 12];
    /// let report = plan.slot()?.lookup(&Batch::new(&[7i64, 0, 900], 3), &mut Output::new(OutputRows::F32(&mut rows), 4))?;
    /// assert_eq!((report.rows_dram, report.rows_ssd), (2, 1));
    /// assert_eq!((rows[0], rows[4], rows[8]), (28.0, 0.0, 3600.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rerank(&self, options: &RerankOptions<'_>) -> Result<RerankReport, StoreError> {
        let located = self.locate(&options.table)?;
        let busy = |by: &'static str| StoreError::RerankBusy { table: options.table.clone(), by };
        let _one_at_a_time = match self.shared.reranking.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(busy("another rerank runs")),
        };
        self.shared.watch()?;
        let (medium, of) = self.shared.medium(&located)?;
        if self.shared.volume.is_rewriting(located.generation.id) {
            return Err(busy("its generation is being compacted"));
        }
        let mut report = RerankReport::default();
        let ranks = match options.rows {
            None => None,
            Some(rows) => Some(self.ranks_of(&located, rows, &mut report)?),
        };
        let before = match self.dram_list_of(&located) {
            Ok(list) => list,
            // It is about to be replaced.
            Err(StoreError::DramListDamaged { .. } | StoreError::DramListUnreadable { .. }) => None,
            Err(error) => return Err(error),
        };
        report.before = before.as_ref().map(|list| list.len() as u64);
        report.listed = ranks.as_ref().map_or(0, |ranks| ranks.len() as u64);
        let mut seen = Seen::new(of.rows)?;
        before.iter().flatten().for_each(|&rank| _ = seen.set(rank));
        report.added = ranks.iter().flatten().filter(|&&rank| seen.set(rank) == Some(false)).count() as u64;
        let list = ranks.map(|ranks| encode(&of, &ranks));
        match medium {
            Medium::Stored => {
                self.store_list(&located, list, options.bytes_per_second).map_err(|error| match error {
                    StoreError::Volume(VolumeError::Busy) => busy("a load runs"),
                    error => error,
                })?
            }
            Medium::Beside(place) => {
                let written = match &list {
                    Some(bytes) => beside::write(&place.path, bytes),
                    None => beside::remove(&place.path),
                };
                let failed = |source| StoreError::DramListFile { path: place.path.clone(), source };
                if !written.map_err(failed)? {
                    return Err(busy("another process lists its rows"));
                }
            }
        }
        Ok(report)
    }

    /// The ranks that are listed for DRAM, the hottest first; `None`: the table has no list, and its first ranks are kept. A
    /// list that was made when the table's rows had other ranks does not count.
    ///
    /// # Errors
    /// [`StoreError::NoSuchTable`]; [`StoreError::DramListDamaged`]; [`StoreError::DramListUnreadable`]; errors of reading.
    pub fn dram_list(&self, table: &str) -> Result<Option<Vec<u64>>, StoreError> {
        self.dram_list_of(&self.locate(table)?)
    }

    pub(crate) fn dram_list_of(&self, located: &TableVersion) -> Result<Option<Vec<u64>>, StoreError> {
        let damaged = |place: String, what: String| {
            let table = located.table().name.clone();
            StoreError::DramListDamaged { table, place, what }
        };
        let (medium, of) = match self.shared.medium(located) {
            // There is no place that could have a list.
            Err(StoreError::NoListPlace { .. }) => return Ok(None),
            found => found?,
        };
        let (bytes, place, padding) = match medium {
            Medium::Stored => (self.stored_list(located)?, "in the store".to_owned(), PART),
            Medium::Beside(place) => {
                let shown = place.path.display().to_string();
                // One byte more than a list can have: a longer file is not one.
                match beside::read(&place.path, of.most_bytes().saturating_add(1)) {
                    Ok(bytes) => (bytes, shown, 0),
                    // Something else than a file is in its place.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        return Err(damaged(shown, error.to_string()));
                    }
                    Err(source) => {
                        let table = located.table().name.clone();
                        return Err(StoreError::DramListUnreadable { table, path: place.path.clone(), source });
                    }
                }
            }
        };
        let Some(bytes) = bytes else { return Ok(None) };
        decode(&bytes, &of, padding).map_err(|what| damaged(place, what))
    }

    /// The lists that are damaged, or that cannot be read. Where members are missing, those alone that are damaged.
    pub(crate) fn damaged_lists(&self) -> Vec<DamagedUnit> {
        let is_whole = self.shared.volume.missing().is_empty();
        let damaged = self.located().into_iter().filter_map(|located| {
            let error = self.dram_list_of(&located).err()?;
            let unreadable = !matches!(error, StoreError::DramListDamaged { .. });
            let what = match error {
                StoreError::DramListUnreadable { .. } => DamageKind::DramListFile,
                _ => DamageKind::DramList,
            };
            let unit = DamagedUnit::new(what, error.to_string()).of(&located);
            (is_whole || !unreadable).then_some(DamagedUnit { unreadable, ..unit })
        });
        damaged.collect()
    }

    /// The ranks of rows, each once.
    fn ranks_of(
        &self,
        located: &TableVersion,
        rows: ListedRows<'_>,
        report: &mut RerankReport,
    ) -> Result<Vec<u64>, StoreError> {
        let table = located.table();
        let found: Vec<u64> = match rows {
            ListedRows::Ranks(ranks) => {
                let ids: Vec<u64> = ranks.iter().copied().filter(|&rank| rank >= table.rows).take(10).collect();
                if !ids.is_empty() {
                    return Err(StoreError::NoSuchRow { table: table.name.clone(), rows: table.rows, ids });
                }
                ranks.to_vec()
            }
            ListedRows::Ids(ids) => {
                let volume = &self.shared.volume;
                let ranks = volume.read_ranks(&located.generation, located.index)?.map(Arc::new);
                let positions = match volume.read_key_index(&located.generation, located.index)? {
                    None => ids.to_vec(),
                    Some(index) => {
                        let stored = volume.read_keys(&located.generation, located.index)?.map(Arc::new);
                        let sparse = SparseIds { index: Arc::new(index), stored, ranks: ranks.clone() };
                        sparse.positions_of(ids)
                    }
                };
                let rank_of = |position: u64| match &ranks {
                    _ if position == KeyIndex::ABSENT || position >= table.rows => u64::MAX,
                    Some(ranks) => ranks.get(position).unwrap_or(u64::MAX),
                    None => position,
                };
                positions.into_iter().map(rank_of).collect()
            }
        };
        let mut seen = Seen::new(table.rows)?;
        let mut list = Vec::with_capacity(found.len());
        for rank in found {
            match if rank < table.rows { seen.set(rank) } else { None } {
                Some(false) => list.push(rank),
                Some(true) => report.repeated += 1,
                None => report.missing += 1,
            }
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warprow_layout::{DType, FormatOptions, TableSpec};

    use super::*;
    use crate::{CreateDrive, Device, DriveAddress, LoadOptions, OpenOptions, TableLoad};

    #[test]
    fn one_lists_at_a_time() {
        let address: DriveAddress = "emulated:one-at-a-time?backing=ram&size=64M".parse().unwrap();
        let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
        let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default()).unwrap();
        let (spec, source) = (TableSpec::new("t", 10, 4, DType::U8), &[0u8; 40][..]);
        let load = TableLoad::new(&spec, &source);
        store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        let options = RerankOptions::new("t").with_ranks(&[1, 2]);
        let other = store.shared.reranking.lock().unwrap();
        let busy = store.rerank(&options);
        assert!(matches!(&busy, Err(StoreError::RerankBusy { by, .. }) if by.contains("another")), "{busy:?}");
        assert_eq!(store.dram_list("t").unwrap(), None);
        drop(other);
        store.rerank(&options).unwrap();
        assert_eq!(store.dram_list("t").unwrap().unwrap(), [1, 2]);
    }
}
