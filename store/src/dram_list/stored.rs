//! The lists of a store's tables: a generation of their own, on standby, which a commit replaces as a whole.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use warprow_layout::{DType, Generation, GenerationSpec, RowSource, TableSpec};

use super::content::ListedTable;
use super::model::{DRAM_LISTS, is_lists};
use crate::table_version::TableVersion;
use crate::{LoadOptions, LoadProgress, Store, StoreError, TableLoad};

/// Bytes of a row, each of which has a part of a list.
pub(super) const PART: usize = 4096;

/// The name under which the list of a table lies. Names of tables may be as long as a name can be, and several generations
/// have tables of one name.
fn name_of(located: &TableVersion) -> String {
    format!("{}/{}", located.generation.id, located.index)
}

/// What tells a table from others.
pub(super) fn listed(located: &TableVersion) -> ListedTable {
    let table = located.table();
    let crcs = [table.ranks.map(|ranks| ranks.crc), table.keys.map(|keys| keys.index_crc)];
    let identity = crcs.iter().fold(0, |crc, it| crc32c::crc32c_append(crc, &it.unwrap_or(0).to_le_bytes()));
    ListedTable { generation: located.generation.id, rows: table.rows, row_bytes: table.row_bytes(), identity }
}

/// The bytes of a list, in rows.
struct Parts(Vec<u8>);

impl RowSource for Parts {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(first).ok().and_then(|first| self.0.get(first.checked_mul(row_bytes)?..));
        let from = from.and_then(|from| from.get(..rows.len()));
        rows.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Store {
    /// The generation that has the lists; if a commit left several, the latest.
    fn lists(&self) -> Option<Arc<Generation>> {
        self.shared.volume.generations().into_iter().rev().find(|generation| is_lists(generation))
    }

    /// The bytes of the list called `name`; `None`: there is none.
    fn list_called(&self, lists: &Arc<Generation>, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(index) = lists.table_index(name) else { return Ok(None) };
        let located = TableVersion { generation: lists.clone(), index };
        let row_bytes = located.table().row_bytes() as usize;
        let len = usize::try_from(located.table().rows).ok().and_then(|rows| rows.checked_mul(row_bytes));
        let allocate =
            |source| StoreError::Allocate { what: "a list of rows in DRAM", bytes: len.unwrap_or(0) as u64, source };
        let mut bytes: Vec<u8> = Vec::new();
        let len = len.filter(|&len| bytes.try_reserve_exact(len).is_ok());
        bytes.resize(len.ok_or_else(|| allocate(io::ErrorKind::OutOfMemory.into()))?, 0);
        self.scan_version(&located, 0..u64::MAX, &mut |rank, row| {
            if let Some(place) = bytes.get_mut(rank as usize * row_bytes..).and_then(|it| it.get_mut(..row_bytes)) {
                place.copy_from_slice(row);
            }
            ControlFlow::Continue(())
        })?;
        Ok(Some(bytes))
    }

    /// The bytes of the list of a table; `None`: there is none.
    pub(super) fn stored_list(&self, located: &TableVersion) -> Result<Option<Vec<u8>>, StoreError> {
        self.lists().map_or(Ok(None), |lists| self.list_called(&lists, &name_of(located)))
    }

    /// Commits another list of a table, or none, and writes so many bytes a second at most. Lists of other tables stay, but for those
    /// of generations that are gone.
    pub(super) fn store_list(
        &self,
        located: &TableVersion,
        list: Option<Vec<u8>>,
        bytes_per_second: Option<u64>,
    ) -> Result<(), StoreError> {
        let name = name_of(located);
        let mut parts: Vec<(String, Vec<u8>)> = Vec::new();
        if let Some(lists) = self.lists() {
            let generations = self.shared.volume.generations();
            let lives = |name: &str| {
                let (id, index) = name.split_once('/')?;
                let (id, index) = (id.parse::<u64>().ok()?, index.parse::<usize>().ok()?);
                let found = generations.iter().find(|generation| generation.id == id)?;
                (index < found.tables.len()).then_some(())
            };
            for other in lists.tables.iter().map(|table| &table.name).filter(|it| **it != name && lives(it).is_some()) {
                // Also one that is damaged: it stays so, and its own checksum tells.
                parts.extend(self.list_called(&lists, other)?.map(|bytes| (other.clone(), bytes)));
            }
        }
        parts.extend(list.map(|bytes| (name, bytes)));
        let olds = |generations: &[Arc<Generation>]| -> Vec<u64> {
            generations.iter().filter(|generation| is_lists(generation)).map(|generation| generation.id).collect()
        };
        if parts.is_empty() {
            return olds(&self.shared.volume.generations())
                .into_iter()
                .try_for_each(|id| Ok(self.shared.volume.drop_generation(id)?));
        }
        let parts: Vec<(TableSpec, Parts)> = parts
            .into_iter()
            .map(|(name, mut bytes)| {
                bytes.resize(bytes.len().next_multiple_of(PART), 0);
                let rows = (bytes.len() / PART) as u64;
                let spec = TableSpec { row_crc: true, ..TableSpec::new(name, rows, PART as u32, DType::U8) };
                (spec, Parts(bytes))
            })
            .collect();
        let tables: Vec<TableLoad<'_>> = parts.iter().map(|(spec, source)| TableLoad::new(spec, source)).collect();
        let choose = &mut |_: &GenerationSpec, generations: &[Arc<Generation>]| Ok(olds(generations));
        let options = LoadOptions::default().with_standby();
        let clock = &self.shared.driving.clock;
        let began = clock.now();
        let slow_down = &mut |progress: LoadProgress| {
            let due =
                bytes_per_second.map(|rate| Duration::from_secs_f64(progress.written as f64 / rate.max(1) as f64));
            let ahead = due.map_or(Duration::ZERO, |due| due.saturating_sub(clock.now().saturating_sub(began)));
            if !ahead.is_zero() {
                clock.sleep(ahead);
            }
            ControlFlow::Continue(())
        };
        self.load_choosing(DRAM_LISTS, &tables, &options, choose, slow_down)?;
        Ok(())
    }
}
