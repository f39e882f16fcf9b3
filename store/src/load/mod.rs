//! Loading tables: one generation, one commit.

mod buckets;
mod journal;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warprow_driver::DriverError;
use warprow_layout::{
    Drive, Extent, GenerationSpec, Keyed, Loader, Placement, Ranks, Region, RowSource, Span, Table, TableSpec,
    Transaction, VolumeError, WritesLost, row_crc,
};

use crate::attach::ranks;
use crate::bulk::{Bulk, Job, Purpose};
use crate::table_version::{TableVersion, latest_tables};
use crate::{Store, StoreError};
use buckets::{Bucket, Buckets};
use journal::Journal;

/// A table to load.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // Row 2 is looked up most: it gets the first rank, and with it a place in memory.
/// let ranks = Ranks::by_hotness(&[1, 0, 9]);
/// let spec = TableSpec { permuted: true, hot_rows: 1, ..TableSpec::new("hot", 3, 1, DType::U8) };
/// let source = &[10u8, 11, 12][..];
/// let load = TableLoad::new(&spec, &source).with_ranks(&ranks);
/// store.load("m2", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// let mut by_rank = Vec::new();
/// store.scan("hot", 0..3, &mut |rank, row| {
///     by_rank.push((rank, row[0]));
///     ControlFlow::Continue(())
/// })?;
/// by_rank.sort();
/// assert_eq!(by_rank, [(0, 12), (1, 10), (2, 11)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct TableLoad<'a> {
    spec: &'a TableSpec,
    source: &'a dyn RowSource,
    ranks: Option<&'a Ranks>,
    keyed: Option<&'a Keyed<'a>>,
    order: Option<&'a Ranks>,
    random_access: bool,
    sequential: bool,
}

impl<'a> TableLoad<'a> {
    /// The table that `spec` describes, with rows from `source`, by id.
    pub fn new(spec: &'a TableSpec, source: &'a dyn RowSource) -> Self {
        Self { spec, source, ranks: None, keyed: None, order: None, random_access: false, sequential: false }
    }

    /// With the id → rank permutation of a table whose `spec` is `permuted`.
    #[must_use]
    pub fn with_ranks(self, ranks: &'a Ranks) -> Self {
        Self { ranks: Some(ranks), ..self }
    }

    /// With the keys of a table whose `spec` was made for them ([`TableSpec::keyed`]). Ids of rows are positions of keys.
    #[must_use]
    pub fn with_keys(self, keyed: &'a Keyed<'a>) -> Self {
        Self { keyed: Some(keyed), ..self }
    }

    /// Id, or position → rank; `None`: they are the same.
    fn placement(&self) -> Option<&'a Ranks> {
        self.keyed.map_or(self.ranks, Keyed::placement)
    }

    /// With rows that the source has in another order than that of their ids: its row i is that of id `order[i]`. They are read
    /// once, from the first to the last, also if that order is the same after all.
    #[must_use]
    pub fn with_order(self, order: &'a Ranks) -> Self {
        Self { order: Some(order), ..self }
    }

    /// With rows that the source gives in the order of their ids only, once, from the first to the last: compressed ones. While some
    /// are written the next are read.
    #[must_use]
    pub fn with_sequential_rows(self) -> Self {
        Self { sequential: true, ..self }
    }

    /// With rows that the source gives in any order at no cost: computed ones, or in memory. Other sources are read once,
    /// from the first row to the last.
    #[must_use]
    pub fn with_random_access(self) -> Self {
        Self { random_access: true, ..self }
    }
}

/// How tables are loaded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Tables of the same names give way, in the same commit. Until then both need room.
    pub replace: bool,
    /// Nothing finds the tables by name, before they are [switched](Store::switch) to; those of the same names stay.
    pub beside: bool,
    /// Bytes of memory for putting a permuted table's rows in order. Larger tables are written twice.
    pub memory: u64,
    /// Which free chunks to take.
    pub span: Span,
    /// Bytes of a stripe unit; `None`: as the layout thinks best.
    pub stripe_unit: Option<u32>,
    /// The file in which to note what is written, so that the same load goes on where it was killed or stopped; and what tells
    /// the sources from others, such as their names, sizes and times. The file goes when the load is done.
    pub journal: Option<(PathBuf, String)>,
}

impl Default for LoadOptions {
    /// Replaces nothing, takes up to 1 GiB of memory.
    fn default() -> Self {
        Self { replace: false, beside: false, memory: 1 << 30, span: Span::default(), stripe_unit: None, journal: None }
    }
}

impl LoadOptions {
    /// Replacing tables of the same names.
    #[must_use]
    pub fn with_replace(self) -> Self {
        Self { replace: true, ..self }
    }

    /// Noting in the file at `path` what is written, to go on there if it is killed or stopped: the same load of the same
    /// `sources`, on a store that nothing else was committed to meanwhile, reads what it had written back and compares it, which
    /// takes less than writing it. Of a table that is put in order, and larger than [`memory`](Self::memory), parts of that size are found.
    #[must_use]
    pub fn with_journal(self, path: impl Into<PathBuf>, sources: impl Into<String>) -> Self {
        Self { journal: Some((path.into(), sources.into())), ..self }
    }

    /// Beside what there is: see [`beside`](Self::beside).
    #[must_use]
    pub fn with_beside(self) -> Self {
        Self { beside: true, ..self }
    }

    fn generation(&self, model: &str, tables: Vec<TableSpec>) -> GenerationSpec {
        let mut spec = GenerationSpec::new(model, tables);
        (spec.span, spec.stripe_unit, spec.standby) = (self.span, self.stripe_unit, self.beside);
        spec
    }

    /// With that much memory for permuted tables.
    #[must_use]
    pub fn with_memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }
}

/// How far a load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress {
    /// Which of the tables is being loaded.
    pub table: usize,
    /// Bytes of rows put in order in memory, of all tables: those that are permuted, before they are written.
    pub gathered: u64,
    /// Bytes written to drives, of all tables.
    pub written: u64,
    /// Bytes to be written.
    pub total: u64,
    /// Bytes of sources read for their checksums alone, of all tables: those of rows that an earlier attempt had written.
    pub compared: u64,
}

/// What a load did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The new generation.
    pub generation: u64,
    /// Bytes written to drives, without metadata.
    pub bytes: u64,
    /// Bytes that an earlier attempt had written, and that were found intact.
    pub resumed: u64,
    /// Whether there was a journal of another load, or one whose content was lost, and this load began anew.
    pub begun_anew: bool,
    /// Generations that gave way: all of their tables were replaced.
    pub superseded: Vec<u64>,
    /// Time from the first write to the end of the commit.
    pub elapsed: Duration,
}

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
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
    /// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
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
        let spec = options.generation(model, tables.iter().map(|table| table.spec.clone()).collect());
        self.superseded(&spec, options)?;
        let volume = &self.shared.volume;
        self.shared.watch()?;
        self.shared.updates.know_kept_room(&self.shared.volume);
        let mut transaction = volume.begin(&spec)?;
        // Only now is there nobody else who loads.
        self.superseded(&spec, options)?;
        let placed = transaction.generation().clone();
        let placement = &*placed.placement;

        let clock = &self.shared.driving.clock;
        let began = clock.now();
        let at = LoadProgress { table: 0, gathered: 0, written: 0, total: 0, compared: 0 };
        let mut pace = Pace { progress, at, resumed: 0 };
        let journal = options.journal.as_ref().map(|(path, sources)| {
            let of = self.describe(&spec, placement, placed.id, tables, sources);
            Journal::open(path, of.as_bytes(), most_extents(placement, &placed.tables))
        });
        let mut journal = journal.transpose()?;
        if let Err(error) = self.write_tables(&mut transaction, tables, options, &mut journal, &mut pace) {
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
        let committed = transaction
            .commit_superseding(|generations| superseded(latest_tables(generations.to_vec()), &spec, options))
            .map_err(|error| match error {
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
        let (bytes, resumed) = (pace.at.written - pace.resumed, pace.resumed);
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
        let (store, epoch, stripe) = (volume.store(), volume.epoch(), placement.stripe_bytes());
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
        journal: &mut Option<Journal>,
        pace: &mut Pace<'_>,
    ) -> Result<(), StoreError> {
        let placed = transaction.generation().clone();
        let placement = &*placed.placement;
        let mut bulk =
            Bulk::new(Purpose::Load, &self.shared.members, placement.stripe_bytes() as usize, &self.shared.driving)?;
        let places = placed.tables.iter().zip(tables).map(|(table, load)| load.places(table));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let buckets =
            |index: usize, table| Some(places.get(index)?.as_ref()?.buckets(table, placement, options.memory));
        for (index, table) in placed.tables.iter().enumerate() {
            let partitions = buckets(index, table).is_some_and(|buckets| buckets.count() > 1 && !buckets.in_turn());
            let rows = table.rows_region.lbas * (1 + u64::from(partitions));
            let others = arrays(table).chain(table.crc_region);
            pace.at.total += (rows + others.map(|region| region.lbas).sum::<u64>()) * u64::from(placement.lba_size());
        }
        for (index, (table, load)) in placed.tables.iter().zip(tables).enumerate() {
            pace.at.table = index;
            write_table(&mut bulk, transaction, (index, load), buckets(index, table), journal, pace)?;
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
        let (placement, missing) = (&*placed.placement, VolumeError::NoSuchGeneration { id: placed.id });
        let table = placed.tables.get(index).ok_or(missing)?;
        let mut bulk =
            Bulk::new(Purpose::Load, &self.shared.members, placement.stripe_bytes() as usize, &self.shared.driving)?;
        let places = load.places(table)?;
        let buckets = places.as_ref().map(|places| places.buckets(table, placement, memory));
        let at = LoadProgress { table: index, gathered: 0, written: 0, total: 0, compared: 0 };
        let mut pace = Pace { progress: &mut |_| ControlFlow::Continue(()), at, resumed: 0 };
        write_table(&mut bulk, transaction, (index, load), buckets, &mut None, &mut pace)
    }

    /// Gives the space of chunks back that a load took and did not get done with, where drives still answer: a disk below that has
    /// run full would else stay so. What fails of it is no worse than before.
    fn give_back(&self, placement: &Placement, error: &StoreError) {
        let answers = match error {
            StoreError::Driver(error) => matches!(error, DriverError::Command { .. }),
            StoreError::LoadReset { .. }
            | StoreError::NamespaceChanged(_)
            | StoreError::Function(_)
            | StoreError::Drive(_)
            | StoreError::Volume(VolumeError::Drive(_)) => false,
            _ => true,
        };
        for (index, member) in (0..).zip(&self.shared.members) {
            let Some(member) = member.as_ref().filter(|_| answers) else { continue };
            let mut chunks: Vec<_> = placement.chunk_lbas().filter(|&(drive, ..)| drive == index).collect();
            chunks.sort_unstable();
            let mut ranges: Vec<(u64, u32)> = Vec::new();
            for (_, first, lbas) in chunks {
                let lbas = u32::try_from(lbas).unwrap_or(0);
                match ranges.last_mut() {
                    Some((begin, count))
                        if *begin + u64::from(*count) == first && count.checked_add(lbas).is_some() =>
                    {
                        *count += lbas;
                    }
                    _ => ranges.push((first, lbas)),
                }
            }
            if let Err(error) = member.deallocate(&ranges) {
                tracing::debug!(drive = member.name(), %error, "what a load left on the drive keeps its space");
            }
        }
    }

    /// Whether [`load`](Self::load) would take tables like these and find room for them, as far as that can be told without
    /// reading or writing a row; and which generations would give way. A store that is open for reading will do.
    pub fn check_load(
        &self,
        model: &str,
        tables: Vec<TableSpec>,
        options: &LoadOptions,
    ) -> Result<Vec<u64>, StoreError> {
        let spec = options.generation(model, tables);
        let superseded = self.superseded(&spec, options)?;
        self.shared.updates.know_kept_room(&self.shared.volume);
        self.shared.volume.check(&spec, &superseded)?;
        Ok(superseded)
    }

    /// The generations that `spec` would replace now.
    fn superseded(&self, spec: &GenerationSpec, options: &LoadOptions) -> Result<Vec<u64>, StoreError> {
        superseded(self.located(), spec, options)
    }
}

/// The generations all of whose tables that count `spec` replaces, where `current` are those that count.
fn superseded(
    current: Vec<TableVersion>,
    spec: &GenerationSpec,
    options: &LoadOptions,
) -> Result<Vec<u64>, StoreError> {
    if options.beside {
        return Ok(Vec::new());
    }
    let named = |name: &str| spec.tables.iter().any(|table| table.name == name);
    if !options.replace
        && let Some(table) = current.iter().map(TableVersion::table).find(|table| named(&table.name))
    {
        return Err(StoreError::TableExists { table: table.name.clone() });
    }
    let survives = |id| current.iter().any(|it| it.generation.id == id && !named(&it.table().name));
    // What is standby, or was hidden before, stays.
    let counting: BTreeSet<u64> = current.iter().map(|it| it.generation.id).collect();
    Ok(counting.into_iter().filter(|&id| !survives(id)).collect())
}

impl<'a> TableLoad<'a> {
    /// How the source's rows come to their places, if it cannot be asked for them in the order of extents.
    fn places(&self, table: &Table) -> Result<Option<Places<'a>>, VolumeError> {
        let Some(order) = self.order else {
            let ranks = self.placement().filter(|ranks| !self.random_access && ranks.len() == table.rows);
            let otherwise = self.sequential.then_some(Places::InTurn);
            return Ok(ranks.map(|ranks| Places::Ranks(Cow::Borrowed(ranks))).or(otherwise));
        };
        if order.len() != table.rows {
            let (expected, given) = (table.rows, order.len());
            return Err(VolumeError::Length { what: "the order of the source's rows", expected, given });
        }
        let Some(ranks) = self.placement() else { return Ok(Some(Places::Ranks(Cow::Borrowed(order)))) };
        let rank = |id: u64| ranks.get(id).unwrap_or(u64::MAX);
        Ok(Some(Places::Ranks(Cow::Owned(match order {
            Ranks::U32(order) => Ranks::U32(order.iter().map(|&id| rank(id.into()) as u32).collect()),
            Ranks::U64(order) => Ranks::U64(order.iter().map(|&id| rank(id)).collect()),
        }))))
    }
}

/// How rows that are read from the first to the last come to their places.
enum Places<'a> {
    /// Put in order: the rank of each.
    Ranks(Cow<'a, Ranks>),
    /// As they come.
    InTurn,
}

/// Bytes of rows that come in turn which are read while as many are written: some extents for each of many drives.
const IN_TURN: u64 = 16 << 20;

impl Places<'_> {
    fn buckets<'b>(&'b self, table: &'b Table, placement: &'b Placement, memory: u64) -> Buckets<'b> {
        match self {
            Self::Ranks(ranks) => Buckets::new(table, placement, Some(ranks), memory),
            Self::InTurn => Buckets::new(table, placement, None, IN_TURN.min(memory / 2)),
        }
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

/// Where a table's ranks and keys lie.
fn arrays(table: &Table) -> impl Iterator<Item = Region> + use<> {
    let keys = table.keys.into_iter().flat_map(|keys| [Some(keys.index), keys.keys]).flatten();
    table.ranks.map(|ranks| ranks.region).into_iter().chain(keys)
}

/// Extents that the rows of tables are written in, at most: each holds a stripe unit or a part of one that no other has.
fn most_extents(placement: &Placement, tables: &[Table]) -> u64 {
    let unit = (placement.stripe_bytes() / u64::from(placement.lba_size())).max(1);
    tables.iter().map(|table| table.rows_region.lbas / unit + 2).sum()
}

/// Where all that a table has lies, in one order for all tables of a shape.
pub(crate) fn regions(table: &Table) -> impl Iterator<Item = Region> + use<> {
    std::iter::once(table.rows_region).chain(arrays(table)).chain(table.crc_region)
}

/// Threads that make rows, at most, and extents that each has ready.
const MAKERS: usize = 8;
const READY: usize = 2;

/// Gives `take` the content of `extents`, in their order. Where rows take time to be made, several threads make them.
fn filled<T: Send>(
    loader: &Loader<'_, Source<'_>>,
    extents: impl Iterator<Item = (T, Extent)> + Clone + Send,
    mut take: impl FnMut(T, Extent, &[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let makers = std::thread::available_parallelism().map_or(1, usize::from).min(MAKERS);
    std::thread::scope(|scope| {
        let lanes = (0..makers).map(|maker| {
            let (sender, receiver) = std::sync::mpsc::sync_channel(READY);
            let mine = extents.clone().skip(maker).step_by(makers);
            let make = move || {
                for (tag, extent) in mine {
                    let mut content = vec![0; extent.bytes];
                    let made = loader.fill(&extent, &mut content).map(|()| (tag, extent, content));
                    let failed = made.is_err();
                    // Nobody listens any longer after a failure.
                    if sender.send(made).is_err() || failed {
                        return;
                    }
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, make).map(|_| receiver)
        });
        let failed = |source| StoreError::Allocate { what: "threads that make rows", bytes: 0, source };
        let lanes = lanes.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        for lane in lanes.iter().cycle() {
            // Extents went round; the first that has none is behind the last.
            let Ok(made) = lane.recv() else { return Ok(()) };
            let (tag, extent, content) = made?;
            take(tag, extent, &content)?;
        }
        Ok(())
    })
}

/// Writes a table: its rows, put in order by `buckets` where they have to be, and all that belongs to them.
fn write_table(
    bulk: &mut Bulk,
    transaction: &mut Transaction,
    (index, load): (usize, &TableLoad<'_>),
    buckets: Option<Buckets<'_>>,
    journal: &mut Option<Journal>,
    pace: &mut Pace<'_>,
) -> Result<(), StoreError> {
    let placement = &*transaction.generation().placement.clone();
    let missing = VolumeError::NoSuchGeneration { id: transaction.generation().id };
    let table = &transaction.generation().tables.get(index).cloned().ok_or(missing)?;
    let source = Source::new(load, table);
    let loader = match load.keyed {
        Some(keyed) => transaction.keyed_loader(index, &source, keyed)?,
        None => transaction.loader(index, &source, load.ranks)?,
    };
    match buckets {
        None => match journal {
            Some(journal) => resume(bulk, &loader, placement, table, &source, (journal, index as u32), pace)?,
            None => write(bulk, &loader, placement, table.rows_region, pace)?,
        },
        Some(buckets) => write_in_order(bulk, &buckets, placement, table, (index as u32, &source), journal, pace)?,
    }
    for region in arrays(table) {
        write(bulk, &loader, placement, region, pace)?;
    }
    if let Some(region) = table.crc_region {
        let extents = placement.extents(region, bulk.extent_bytes());
        let mut fill = |extent: &Extent, buf: &mut [u8]| {
            source.fill_crcs(extent, region, placement.lba_size(), buf);
            pace.wrote(buf.len())
        };
        bulk.run(extents, Job::Write(&mut fill))?;
    }
    let mut stopped = None;
    let unchanged = load.source.unchanged(&mut |bytes| match pace.compared(bytes) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            stopped = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(stopped) = stopped {
        return Err(stopped);
    }
    Ok(unchanged.map_err(|source| VolumeError::Source { table: table.name.clone(), source })?)
}

fn write(
    bulk: &mut Bulk,
    loader: &Loader<'_, Source<'_>>,
    placement: &Placement,
    region: Region,
    pace: &mut Pace<'_>,
) -> Result<(), StoreError> {
    let extents = placement.extents(region, bulk.extent_bytes());
    if loader.source().is_computed() {
        filled(loader, extents.map(|extent| ((), extent)), |(), extent, content| {
            let mut fill = |_: &Extent, buf: &mut [u8]| {
                buf.copy_from_slice(content);
                pace.wrote(buf.len())
            };
            bulk.submit(extent, &mut Job::Write(&mut fill))
        })?;
        return bulk.finish(&mut Job::Write(&mut |_, _| Ok(())));
    }
    let mut fill = |extent: &Extent, buf: &mut [u8]| {
        loader.fill(extent, buf)?;
        pace.wrote(buf.len())
    };
    bulk.run(extents, Job::Write(&mut fill))
}

/// Puts rows in order, where they are not, and writes them: bucket by bucket, but for those that the journal knows and that are there whole. If there is but one,
/// that counts of each extent of it.
fn write_in_order(
    bulk: &mut Bulk,
    buckets: &Buckets<'_>,
    placement: &Placement,
    table: &Table,
    (index, source): (u32, &Source<'_>),
    journal: &mut Option<Journal>,
    pace: &mut Pace<'_>,
) -> Result<(), StoreError> {
    let mut numbers = 0u32..;
    let extents: Vec<Vec<(u32, Extent)>> = (0..buckets.count())
        .map(|bucket| {
            let extents = placement.extents(buckets.region(bucket), bulk.extent_bytes());
            extents.map(|extent| (numbers.next().unwrap_or(u32::MAX), extent)).collect()
        })
        .collect();
    let mut intact = HashSet::new();
    // Buckets among several count as wholes where rows on their way lay in the same place.
    let alone = buckets.count() == 1 || buckets.in_turn();
    if let Some(journal) = &*journal {
        let known = |them: &&Vec<(u32, Extent)>| alone || them.iter().all(|it| journal.crc(index, it.0).is_some());
        let known = extents.iter().filter(known).flatten().copied();
        intact = find_intact(bulk, placement, table, source, (journal, index), known, pace)?;
    }
    let whole: Vec<bool> = extents.iter().map(|them| them.iter().all(|(number, _)| intact.contains(number))).collect();
    if whole.iter().all(|&whole| whole) {
        return Ok(());
    }
    let mut write = |bucket: &Bucket, bulk: &mut Bulk, pace: &mut Pace<'_>| {
        let extents = extents.get(bucket.number as usize).into_iter().flatten();
        // What was there of a bucket among several has been written over with rows on their way.
        for &(number, extent) in extents.filter(|(number, _)| !(alone && intact.contains(number))) {
            let mut fill = |extent: &Extent, buf: &mut [u8]| {
                buckets.fill(bucket, extent, buf);
                if let Some(journal) = journal {
                    journal.wrote(index, number, crc32c::crc32c(buf))?;
                }
                pace.wrote(buf.len())
            };
            bulk.submit(extent, &mut Job::Write(&mut fill))?;
        }
        Ok(())
    };
    let wanted: Vec<u64> = (0..).zip(&whole).filter(|(_, whole)| !**whole).map(|(number, _)| number).collect();
    if buckets.in_turn() {
        buckets.each_in_turn(source, &wanted, |bucket| write(bucket, bulk, pace))?;
        return bulk.finish(&mut Job::Write(&mut |_, _| Ok(())));
    }
    buckets.partition(source.load.source, bulk, &whole, &mut |bytes| pace.wrote(bytes))?;
    for number in wanted {
        let note = |rank: u64, row: &[u8]| source.note(rank, row);
        let bucket = buckets.gather(number, source.load.source, bulk, &note, &mut |bytes| pace.gathered(bytes))?;
        write(&bucket, bulk, pace)?;
        bulk.finish(&mut Job::Write(&mut |_, _| Ok(())))?;
    }
    Ok(())
}

/// The extents that the journal knows, and that are there; their rows' checksums are noted.
fn find_intact(
    bulk: &mut Bulk,
    placement: &Placement,
    table: &Table,
    source: &Source<'_>,
    (journal, index): (&Journal, u32),
    extents: impl Iterator<Item = (u32, Extent)> + Clone,
    pace: &mut Pace<'_>,
) -> Result<HashSet<u32>, StoreError> {
    let known = extents
        .clone()
        .filter_map(|(number, extent)| Some(((extent.drive, extent.lba), (number, journal.crc(index, number)?))));
    let known: HashMap<(u16, u64), (u32, u32)> = known.collect();
    let mut intact = HashSet::new();
    let mut compare = |extent: &Extent, buf: &[u8]| {
        if let Some(&(number, crc)) = known.get(&(extent.drive, extent.lba))
            && crc32c::crc32c(buf) == crc
        {
            source.note_extent(table, extent, placement.lba_size(), buf);
            intact.insert(number);
            pace.resumed += buf.len() as u64;
            pace.wrote(buf.len())?;
        }
        Ok(())
    };
    let written = extents.filter(|(_, extent)| known.contains_key(&(extent.drive, extent.lba)));
    bulk.run(written.map(|(_, extent)| extent), Job::Read(&mut compare))?;
    Ok(intact)
}

/// Writes a table's rows, but for those that the journal knows, and that are there.
fn resume(
    bulk: &mut Bulk,
    loader: &Loader<'_, Source<'_>>,
    placement: &Placement,
    table: &Table,
    source: &Source<'_>,
    (journal, index): (&mut Journal, u32),
    pace: &mut Pace<'_>,
) -> Result<(), StoreError> {
    let extents: Vec<_> = (0u32..).zip(placement.extents(table.rows_region, bulk.extent_bytes())).collect();
    let intact = find_intact(bulk, placement, table, source, (journal, index), extents.iter().copied(), pace)?;
    let missing = extents.into_iter().filter(|(number, _)| !intact.contains(number)).collect::<Vec<_>>();
    if source.is_computed() {
        filled(loader, missing.iter().copied(), |number, extent, content| {
            let mut fill = |_: &Extent, buf: &mut [u8]| {
                buf.copy_from_slice(content);
                journal.wrote(index, number, crc32c::crc32c(content))?;
                pace.wrote(content.len())
            };
            bulk.submit(extent, &mut Job::Write(&mut fill))
        })?;
        return bulk.finish(&mut Job::Write(&mut |_, _| Ok(())));
    }
    for (number, extent) in missing {
        let mut fill = |extent: &Extent, buf: &mut [u8]| {
            loader.fill(extent, buf)?;
            journal.wrote(index, number, crc32c::crc32c(buf))?;
            pace.wrote(buf.len())
        };
        bulk.submit(extent, &mut Job::Write(&mut fill))?;
    }
    bulk.finish(&mut Job::Write(&mut |_, _| Ok(())))
}

/// Tells how far it is.
struct Pace<'a> {
    progress: &'a mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    at: LoadProgress,
    /// Bytes among those written that had been before.
    resumed: u64,
}

impl Pace<'_> {
    fn wrote(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.at.written += bytes as u64;
        self.tell()
    }

    fn gathered(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.at.gathered += bytes;
        self.tell()
    }

    fn compared(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.at.compared += bytes;
        self.tell()
    }

    fn tell(&mut self) -> Result<(), StoreError> {
        match (self.progress)(self.at) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(StoreError::Interrupted),
        }
    }
}

/// A table's source as its loader sees it; notes every row's checksum on the way.
struct Source<'a> {
    load: &'a TableLoad<'a>,
    /// By rank; empty if none are stored.
    crcs: Vec<AtomicU32>,
}

impl<'a> Source<'a> {
    fn new(load: &'a TableLoad<'a>, table: &Table) -> Self {
        let count = if table.crc_region.is_some() { table.rows as usize } else { 0 };
        Self { load, crcs: std::iter::repeat_with(|| AtomicU32::new(0)).take(count).collect() }
    }

    /// Notes the rows of an extent that has been written before.
    fn note_extent(&self, table: &Table, extent: &Extent, lba_bytes: u32, content: &[u8]) {
        if self.crcs.is_empty() {
            return;
        }
        for (lba, bytes) in extent.pieces() {
            let content = content.get(bytes).unwrap_or_default();
            let first_lba = lba - table.rows_region.first_lba;
            let (first, end) = ranks(&table.packing, first_lba, content.len() as u64 / u64::from(lba_bytes));
            for rank in first..end.min(table.rows) {
                let (row_lba, byte) = table.packing.locate(rank);
                let begin = (row_lba - first_lba) as usize * lba_bytes as usize + byte as usize;
                if let Some(row) = content.get(begin..begin + table.row_bytes() as usize) {
                    self.note(rank, row);
                }
            }
        }
    }

    fn note(&self, rank: u64, row: &[u8]) {
        if let Some(crc) = self.crcs.get(rank as usize) {
            crc.store(row_crc(rank, row), Ordering::Relaxed);
        }
    }

    /// The content of an extent of the checksums' region.
    fn fill_crcs(&self, extent: &Extent, region: Region, lba_size: u32, buf: &mut [u8]) {
        for (lba, bytes) in extent.pieces() {
            let first = (lba - region.first_lba) as usize * (lba_size / 4) as usize;
            let crcs = self.crcs.iter().skip(first).map(|crc| crc.load(Ordering::Relaxed));
            let (slots, _) = buf.get_mut(bytes).unwrap_or_default().as_chunks_mut::<4>();
            slots.iter_mut().zip(crcs.chain(std::iter::repeat(0))).for_each(|(slot, crc)| *slot = crc.to_le_bytes());
        }
    }
}

impl RowSource for Source<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        self.load.source.read(first, row_bytes, rows)?;
        if !self.crcs.is_empty() {
            let rank_of = |id: u64| self.load.placement().map_or(Some(id), |ranks| ranks.get(id)).unwrap_or(u64::MAX);
            (first..).zip(rows.chunks_exact(row_bytes)).for_each(|(id, row)| self.note(rank_of(id), row));
        }
        Ok(())
    }

    fn is_computed(&self) -> bool {
        self.load.source.is_computed()
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        self.load.source.check(table)
    }
}
