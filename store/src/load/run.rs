//! A load from its begin to its commit.

use std::ops::ControlFlow;
use std::sync::Arc;

use warprow_layout::{Generation, GenerationSpec, Placement, Ranks, TableSpec, Transaction, VolumeError, WritesLost};

use super::journal::Journal;
use super::load_writer::{LoadMeter, LoadWriter};
use super::options::LoadOptions;
use super::regions::{arrays, most_extents};
use super::report::{LoadProgress, LoadReport};
use super::superseded::superseded;
use super::table_load::TableLoad;
use super::write_table::write_table;
use crate::dram_list::refuse_name;
use crate::table_version::latest_tables;
use crate::{Store, StoreError};

/// Says which generations give way to a load, of those that there are; or refuses the load.
pub(crate) type Choose<'a> = dyn FnMut(&GenerationSpec, &[Arc<Generation>]) -> Result<Vec<u64>, StoreError> + 'a;

impl Store {
    /// Loads `tables` as one new generation of `model`. All of them are there when this returns, and none if it fails.
    /// `progress` is called on this thread, after every megabyte or so that was put in order or written; it may stop it
    /// ([`StoreError::Interrupted`]).
    ///
    /// A table whose name the store already has is refused, unless [`replace`](LoadOptions::replace) is set.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// let (a, b) = (&[1u8; 100 * 16][..], &[2u8; 50 * 16][..]);
    /// let specs = [TableSpec::new("a", 100, 16, DType::U8), TableSpec::new("b", 50, 16, DType::U8)];
    /// let tables = [TableLoad::new(&specs[0], &a), TableLoad::new(&specs[1], &b)];
    /// let mut written = 0;
    /// let report = store.load("model", &tables, &LoadOptions::default(), &mut |progress| {
    ///     written = progress.written;
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert!(written >= 150 * 16 && report.superseded.is_empty());
    /// // Once more: names that are there are replaced only if that is asked for.
    /// let again = store.load("model", &tables, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
    /// assert!(matches!(again, Err(StoreError::TableExists { .. })));
    /// let replace = LoadOptions::default().with_replace();
    /// let report = store.load("model", &tables, &replace, &mut |_| ControlFlow::Continue(()))?;
    /// assert_eq!((report.superseded.len(), store.tables().len()), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load(
        &self,
        model: &str,
        tables: &[TableLoad<'_>],
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<LoadReport, StoreError> {
        refuse_name(model)?;
        let choose = &mut |spec: &GenerationSpec, generations: &[Arc<Generation>]| {
            superseded(latest_tables(generations.to_vec()), spec, options)
        };
        self.load_choosing(model, tables, options, choose, progress)
    }

    /// As [`load`](Self::load); `choose` says which generations give way, of those that there are.
    pub(crate) fn load_choosing(
        &self,
        model: &str,
        tables: &[TableLoad<'_>],
        options: &LoadOptions,
        choose: &mut Choose<'_>,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<LoadReport, StoreError> {
        let spec = options.generation(model, tables.iter().map(|table| table.spec.clone()).collect());
        let volume = &self.shared.volume;
        choose(&spec, &volume.generations())?;
        self.shared.watch()?;
        self.shared.updates.know_kept_room(&self.shared.volume);
        let mut transaction = volume.begin(&spec)?;
        // Only now is there nobody else who loads.
        choose(&spec, &volume.generations())?;
        let placed = transaction.generation().clone();
        let placement = &*placed.placement;

        let clock = &self.shared.driving.clock;
        let began = clock.now();
        let mut meter = LoadMeter::new(progress);
        let journal = options.journal.as_ref().map(|(path, sources)| {
            let of = self.describe(&spec, placement, placed.id, tables, sources);
            Journal::open(path, of.as_bytes(), most_extents(placement, &placed.tables))
        });
        let mut journal = journal.transpose()?;
        if let Err(error) = self.write_tables(&mut transaction, tables, options, journal.as_mut(), &mut meter) {
            match journal {
                // What was written stays for the next attempt, or for whoever gets these chunks.
                Some(_) if matches!(error, StoreError::Interrupted) => {}
                journal => {
                    // Still nobody else can be given these chunks.
                    self.give_back(placement, &error);
                    journal.into_iter().for_each(Journal::remove);
                }
            }
            return Err(error);
        }

        self.shared.watch()?;
        // Others may have switched, or dropped some, meanwhile, or be about to.
        let committed =
            transaction.commit_superseding(|generations| choose(&spec, generations)).map_err(|error| match error {
                StoreError::Volume(VolumeError::Drive(error)) if error.source.is::<WritesLost>() => {
                    StoreError::LoadReset { drive: error.drive }
                }
                error => error,
            });
        let (generation, superseded) = committed?;
        superseded.iter().for_each(|&id| self.forget_updates(id));
        let elapsed = clock.now().saturating_sub(began);
        let begun_anew = journal.as_ref().is_some_and(Journal::is_begun_anew);
        journal.into_iter().for_each(Journal::remove);
        let bytes = meter.at.written - meter.resumed;
        let resumed = meter.resumed;
        Ok(LoadReport { generation: generation.id, bytes, resumed, begun_anew, superseded, elapsed })
    }

    /// What tells a load from others: the store and its state, which decide where it writes, and what it writes.
    fn describe(
        &self,
        spec: &GenerationSpec,
        placement: &Placement,
        id: u64,
        tables: &[TableLoad<'_>],
        sources: &str,
    ) -> String {
        let volume = &self.shared.volume;
        let map = placement.map().iter().fold(0, |crc, chunk| crc32c::crc32c_append(crc, &chunk.0.to_le_bytes()));
        let store = volume.store();
        let epoch = volume.epoch();
        let stripe = placement.stripe_bytes();
        // Hotness may have been counted anew since, and put rows elsewhere.
        let orders = tables.iter().flat_map(|load| [load.order, load.placement()]).flatten();
        let orders = orders.fold(0, |crc, ranks| crc32c::crc32c_append(crc, &checksum_of(ranks).to_le_bytes()));
        format!("{store} {epoch} {id} {map:08x} {stripe} {orders:08x} {spec:?} {sources}")
    }

    /// Writes everything but the commit.
    fn write_tables(
        &self,
        transaction: &mut Transaction,
        tables: &[TableLoad<'_>],
        options: &LoadOptions,
        journal: Option<&mut Journal>,
        meter: &mut LoadMeter<'_>,
    ) -> Result<(), StoreError> {
        let placed = transaction.generation().clone();
        let placement = &*placed.placement;
        let mut writer = LoadWriter::new(self, placement, journal, meter)?;
        let places = placed.tables.iter().zip(tables).map(|(table, load)| load.places(table));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let buckets =
            |index: usize, table| Some(places.get(index)?.as_ref()?.buckets(table, placement, options.memory));
        for (index, table) in placed.tables.iter().enumerate() {
            let is_written_twice =
                buckets(index, table).is_some_and(|buckets| buckets.count() > 1 && !buckets.in_turn());
            let rows = table.rows_region.lbas * (1 + u64::from(is_written_twice));
            let others = arrays(table).chain(table.crc_region);
            let lbas = rows + others.map(|region| region.lbas).sum::<u64>();
            writer.meter().at.total += lbas * u64::from(placement.lba_size());
        }
        for (index, (table, load)) in placed.tables.iter().zip(tables).enumerate() {
            writer.meter().at.table = index;
            write_table(&mut writer, transaction, (index, load), buckets(index, table))?;
        }
        Ok(())
    }

    /// Writes one table of a transaction, and nothing besides.
    pub(crate) fn write_one(
        &self,
        transaction: &mut Transaction,
        index: usize,
        load: &TableLoad<'_>,
        memory: u64,
    ) -> Result<(), StoreError> {
        let placed = transaction.generation().clone();
        let placement = &*placed.placement;
        let missing = VolumeError::NoSuchGeneration { id: placed.id };
        let table = placed.tables.get(index).ok_or(missing)?;
        let unwatched = &mut |_| ControlFlow::Continue(());
        let mut meter = LoadMeter::new(unwatched);
        let mut writer = LoadWriter::new(self, placement, None, &mut meter)?;
        let places = load.places(table)?;
        let buckets = places.as_ref().map(|places| places.buckets(table, placement, memory));
        write_table(&mut writer, transaction, (index, load), buckets)
    }

    /// Whether [`load`](Self::load) would take tables like these and find room for them, as far as that can be told without
    /// reading or writing a row; and which generations would give way. A store that is open for reading will do.
    pub fn check_load(
        &self,
        model: &str,
        tables: Vec<TableSpec>,
        options: &LoadOptions,
    ) -> Result<Vec<u64>, StoreError> {
        refuse_name(model)?;
        let spec = options.generation(model, tables);
        let superseded = superseded(self.located(), &spec, options)?;
        self.shared.updates.know_kept_room(&self.shared.volume);
        self.shared.volume.check(&spec, &superseded)?;
        Ok(superseded)
    }
}

fn checksum_of(ranks: &Ranks) -> u32 {
    let mut bytes = Vec::with_capacity(1 << 16);
    let mut crc = 0;
    for first in (0..ranks.len()).step_by(1 << 13) {
        bytes.clear();
        let part = first..ranks.len().min(first + (1 << 13));
        part.filter_map(|id| ranks.get(id)).for_each(|rank| bytes.extend_from_slice(&rank.to_le_bytes()));
        crc = crc32c::crc32c_append(crc, &bytes);
    }
    crc
}
