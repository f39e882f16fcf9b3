//! Stores on emulated drives, with tables whose content an oracle knows: loaded into memory, or computed when they are read.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use warprow_dma::SystemClock;
use warprow_driver::{BlockIo, Controller, ControllerOptions, DriverError, QueueOptions};
use warprow_layout::{
    ChunkSpread, DType, Drive, DriveError, FormatOptions, Generation, GenerationSpec, Placement, RowPacking, RowSource,
    StoreAccess, TableSpec,
};
use warprow_soft_controller::{
    Backing, Namespace, OffloadRate, OffloadRequest, ProceduralBacking, RamBacking, SoftController, TimingProfile,
};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_workload::{ContentOracle, TableContent};

use crate::Cores;

/// Bytes of an LBA, unless a fixture says otherwise, and of the blocks that content is computed in.
const LBA: u32 = 512;

/// Where rows come from when a drive is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Media {
    /// Memory, into which they are loaded first.
    Ram,
    /// Rows are computed when they are read: drives of any size need no memory.
    Computed,
    /// Memory, into which they are loaded first. A GPU has a copy, and answers reads from it.
    Played,
}

/// A table: its name, how many of its rows are worth keeping in memory, and its content, rows of `f32` whose ids are ranks.
#[derive(Clone, Debug)]
pub struct FixtureTable {
    /// The table's name.
    pub name: String,
    /// The hottest rows, which memory is given to first.
    pub hot_rows: u64,
    /// The table's content.
    pub content: ContentOracle,
}

impl FixtureTable {
    /// A table without hot rows.
    pub fn new(name: impl Into<String>, content: ContentOracle) -> Self {
        Self { name: name.into(), hot_rows: 0, content }
    }

    /// Bytes that it takes of drives with LBAs of 512 bytes, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_in(LBA)
    }

    /// Bytes that it takes of drives with LBAs of so many bytes, about.
    fn bytes_in(&self, lba: u32) -> u64 {
        // Rows smaller than an LBA share it, and never straddle two; larger ones take whole LBAs.
        let row = self.content.row_bytes() as u64;
        let lba = u64::from(lba);
        let lbas =
            if row < lba { self.content.rows().div_ceil(lba / row) } else { self.content.rows() * row.div_ceil(lba) };
        // A stripe unit that is not whole.
        lbas * lba + lbas * lba / 8 + (1 << 20)
    }
}

/// Drives to be made.
#[derive(Clone, Copy, Debug)]
pub struct Fixture {
    /// Drives, each with a thread of its own that answers.
    pub drives: u32,
    /// What they are made of.
    pub media: Media,
    /// Whether they permute completions and delay one in 10,000 by 100 us.
    pub disorder: bool,
    /// The timing of the drives.
    pub profile: TimingProfile,
    /// Bytes of their LBAs; of [`Media::Computed`] 512.
    pub lba: u32,
    /// They hold so many times as much as the tables.
    pub room: u32,
    /// Which parts of them the tables take.
    pub spread: ChunkSpread,
    /// The GPU that plays them, of [`Media::Played`].
    pub gpu: u32,
}

impl Default for Fixture {
    /// One drive in memory, in order and as fast as it can.
    fn default() -> Self {
        Self {
            drives: 1,
            media: Media::Ram,
            disorder: false,
            profile: TimingProfile::None,
            lba: LBA,
            room: 1,
            spread: ChunkSpread::Packed,
            gpu: 0,
        }
    }
}

impl Fixture {
    /// A store on new drives, with `tables`.
    pub fn store(&self, tables: &[FixtureTable], cores: Option<&Cores>) -> anyhow::Result<Store> {
        Ok(self.with_drives(tables, cores)?.0)
    }

    /// A store on new drives, with `tables`, and the drives.
    pub fn with_drives(
        &self,
        tables: &[FixtureTable],
        cores: Option<&Cores>,
    ) -> anyhow::Result<(Store, Vec<Arc<SoftController>>)> {
        ensure!((1..=64).contains(&self.drives), "{} drives: 1 to 64 are possible", self.drives);
        ensure!(self.lba == LBA || self.media != Media::Computed, "rows are computed for LBAs of {LBA} bytes");
        let bytes: u64 = tables.iter().map(|table| table.bytes_in(self.lba)).sum::<u64>() * u64::from(self.room);
        let each = (bytes / u64::from(self.drives) + (bytes >> 5) + (128 << 20)).next_multiple_of(1 << 20);
        match self.media {
            Media::Ram | Media::Played => self.loaded(tables, each, cores),
            Media::Computed => self.computed(tables, each, cores),
        }
    }

    fn drive(&self, index: u32, namespace: Namespace, cores: Option<&Cores>) -> anyhow::Result<Arc<SoftController>> {
        let name = format!("emulated:drive{index}");
        let mut builder = SoftController::builder().name(&name).serial(&name).namespace(namespace.lba(self.lba));
        if self.disorder {
            builder = builder.permute().delay_one_in(10_000, Duration::from_micros(100));
        }
        Ok(Cores::answering(cores, index as usize, || builder.profile(self.profile).build())?)
    }

    /// A drive whose reads a GPU answers, in order, with the rates and the latency of the profile.
    fn played(
        &self,
        index: u32,
        backing: Arc<dyn Backing>,
        cores: Option<&Cores>,
    ) -> anyhow::Result<Arc<SoftController>> {
        let name = format!("emulated:drive{index},gpu={}", self.gpu);
        let rate = self.profile.timing().map_or_else(OffloadRate::default, |timing| OffloadRate::of(&timing));
        let request = OffloadRequest { gpu: self.gpu, uri: name.clone(), backing, lba_bytes: self.lba, rate };
        let played = warprow_gpu_drive::play(request)?;
        let namespace = Namespace::shared(played.backing).lba(self.lba);
        let builder = SoftController::builder().name(&name).serial(format!("drive{index}")).namespace(namespace);
        Ok(Cores::answering(cores, index as usize, || builder.offload(played.offload).build())?)
    }

    fn loaded(
        &self,
        tables: &[FixtureTable],
        each: u64,
        cores: Option<&Cores>,
    ) -> anyhow::Result<(Store, Vec<Arc<SoftController>>)> {
        let tables: Vec<(TableSpec, &dyn RowSource)> =
            tables.iter().map(|table| (spec(table), &table.content as &dyn RowSource)).collect();
        self.load(&tables, each, cores)
    }

    /// A store on new drives in memory, of `each` bytes, into which `tables` are loaded, and the drives.
    pub fn load(
        &self,
        tables: &[(TableSpec, &dyn RowSource)],
        each: u64,
        cores: Option<&Cores>,
    ) -> anyhow::Result<(Store, Vec<Arc<SoftController>>)> {
        let drive = |index| {
            let backing = RamBacking::new(each)?;
            if self.media == Media::Played {
                return self.played(index, Arc::new(backing), cores);
            }
            self.drive(index, Namespace::new(backing), cores)
        };
        let drives = (0..self.drives).map(drive).collect::<anyhow::Result<Vec<_>>>()?;
        let devices: Vec<Device> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        let store = Store::create(&devices, &FormatOptions::default(), &OpenOptions::default())?;
        let loads: Vec<TableLoad<'_>> =
            tables.iter().map(|(spec, source)| TableLoad::new(spec, *source).with_random_access()).collect();
        let mut options = LoadOptions::default();
        options.span = self.spread;
        store.load("bench", &loads, &options, &mut |_| ControlFlow::Continue(()))?;
        Ok((store, drives))
    }

    /// A store whose tables are there without having been written: rows are computed where the placement says that they lie.
    fn computed(
        &self,
        tables: &[FixtureTable],
        each: u64,
        cores: Option<&Cores>,
    ) -> anyhow::Result<(Store, Vec<Arc<SoftController>>)> {
        let inverse: Arc<OnceLock<Inverse>> = Arc::default();
        let drive = |index: u32| {
            let inverse = inverse.clone();
            let backing = ProceduralBacking::with(each, move |block, words| match inverse.get() {
                Some(inverse) => inverse.fill(index as u16, block, words),
                None => words.fill(0),
            });
            self.drive(index, Namespace::new(backing), cores)
        };
        let drives = (0..self.drives).map(drive).collect::<anyhow::Result<Vec<_>>>()?;
        {
            let whole = drives.iter().map(Whole::open).collect::<anyhow::Result<Vec<_>>>()?;
            warprow_layout::format(&whole, &FormatOptions::default())?;
            let opened = warprow_layout::open(whole, StoreAccess::ReadWrite)?;
            // Members are in the order that they were given in, if the layout did not choose another.
            let positions: Vec<u16> = opened.volume.positions().iter().map(|at| at.unwrap_or(0) as u16).collect();
            let spec = GenerationSpec::new("bench", tables.iter().map(spec).collect());
            let spec = GenerationSpec { span: self.spread, ..spec };
            let transaction = opened.volume.begin(&spec)?;
            let placed = Inverse::new(transaction.generation(), &positions, tables);
            ensure!(inverse.set(placed).is_ok(), "the drives were laid out twice");
            transaction.commit()?;
        }
        let devices: Vec<Device> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        Ok((Store::open(&devices, &OpenOptions::default())?, drives))
    }
}

fn spec(table: &FixtureTable) -> TableSpec {
    let mut spec = TableSpec::new(&table.name, table.content.rows(), table.content.dim(), DType::F32);
    spec.hot_rows = table.hot_rows;
    spec
}

/// Where rows lie: from the drives' blocks back to rows.
struct Inverse {
    placement: Arc<Placement>,
    /// By drive and chunk on it, its place in the generation's map; `u32::MAX` for none.
    columns: Vec<Vec<u32>>,
    /// By first LBA in the generation, ascending.
    tables: Vec<Placed>,
}

struct Placed {
    first_lba: u64,
    packing: RowPacking,
    content: ContentOracle,
}

impl Inverse {
    fn new(generation: &Generation, positions: &[u16], tables: &[FixtureTable]) -> Self {
        let placement = generation.placement.clone();
        let mut columns: Vec<Vec<u32>> = vec![Vec::new(); positions.len()];
        for (chunk, column) in placement.map().iter().zip(0..) {
            let drive = positions.get(usize::from(chunk.drive())).copied().unwrap_or(0);
            let Some(of_drive) = columns.get_mut(usize::from(drive)) else { continue };
            let at = chunk.chunk() as usize;
            of_drive.resize(of_drive.len().max(at + 1), u32::MAX);
            of_drive[at] = column;
        }
        let place = |(table, made): (&warprow_layout::Table, &FixtureTable)| Placed {
            first_lba: table.rows_region.first_lba,
            packing: table.packing,
            content: made.content,
        };
        let mut tables: Vec<Placed> = generation.tables.iter().zip(tables).map(place).collect();
        tables.sort_by_key(|table| table.first_lba);
        Self { placement, columns, tables }
    }

    /// The LBA in the generation of an LBA on a drive; `None` if it has none there.
    fn lba(&self, drive: u16, lba: u64) -> Option<u64> {
        let placement = &self.placement;
        let at = lba.checked_sub(placement.base_lba())?;
        let chunk = at >> placement.chunk_lba_shift();
        let within = at & ((1 << placement.chunk_lba_shift()) - 1);
        let column = *self.columns.get(usize::from(drive))?.get(usize::try_from(chunk).ok()?)?;
        let row = within >> placement.stripe_lba_shift();
        let offset = within & (placement.stripe_lbas() - 1);
        let unit = row * placement.map().len() as u64 + u64::from(column);
        Some((unit << placement.stripe_lba_shift()) + offset).filter(|_| column != u32::MAX)
    }

    /// Fills a block with what lies there: rows, and zeros between them.
    fn fill(&self, drive: u16, block: u64, words: &mut [u64; 64]) {
        words.fill(0);
        let Some(lba) = self.lba(drive, block) else { return };
        let after = self.tables.partition_point(|table| table.first_lba <= lba);
        let Some(Placed { first_lba, packing, content }) = after.checked_sub(1).and_then(|at| self.tables.get(at))
        else {
            return;
        };
        let lba = lba - first_lba;
        let group_lbas = u64::from(packing.group_lbas());
        let first = lba / group_lbas * packing.group_rows().divisor();
        let rows = packing.group_rows().divisor();
        let mut bytes = [0; LBA as usize];
        if packing.step_lbas() == 0 {
            let ids = first..(first + rows).min(content.rows());
            let places = bytes.chunks_exact_mut(packing.row_bytes() as usize);
            ids.zip(places).for_each(|(id, place)| content.fill(id, place));
        } else {
            let within = lba % group_lbas;
            let row = within / u64::from(packing.step_lbas());
            let part = within % u64::from(packing.step_lbas());
            let begin = part as usize * LBA as usize;
            let len = (packing.row_bytes() as usize).saturating_sub(begin).min(LBA as usize);
            if row < rows && first + row < content.rows() {
                content.fill_from(first + row, begin as u64 / 8, &mut bytes[..len]);
            }
        }
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
    }
}

/// A drive as the layout sees it, by the driver.
struct Whole {
    name: String,
    io: Mutex<BlockIo>,
}

impl Whole {
    fn open(drive: &Arc<SoftController>) -> anyhow::Result<Self> {
        let controller = Controller::open(drive.clone(), Arc::new(SystemClock::new()), ControllerOptions::default())?;
        let io = BlockIo::new(&controller, controller.namespace(1)?, &QueueOptions::default())?;
        Ok(Self { name: controller.name().to_string(), io: Mutex::new(io) })
    }

    fn with(&self, what: &str, access: impl FnOnce(&mut BlockIo) -> Result<(), DriverError>) -> Result<(), DriveError> {
        access(&mut self.io.lock().unwrap_or_else(PoisonError::into_inner))
            .map_err(|error| DriveError::new(self.name(), what, error))
    }
}

impl Drive for Whole {
    fn name(&self) -> &str {
        &self.name
    }

    fn lba_size(&self) -> u32 {
        LBA
    }

    fn lba_count(&self) -> u64 {
        self.io.lock().unwrap_or_else(PoisonError::into_inner).namespace().lba_count()
    }

    fn max_transfer(&self) -> usize {
        128 << 10
    }

    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.with("read", |io| io.read(lba, buf))
    }

    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        self.with("write", |io| io.write(lba, data))
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.with("flush", BlockIo::flush)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn both_media_hold_what_the_oracles_say() {
        // Rows that share an LBA evenly and not, that take one, several, and several with padding.
        let dims = [16, 24, 25, 32, 50, 64, 128, 130, 256, 1024, 1500];
        let tables: Vec<FixtureTable> = dims
            .iter()
            .zip(0..)
            .map(|(&dim, i)| {
                FixtureTable::new(format!("t{i}"), ContentOracle::new(5, i, 1000 + i * 37, dim, DType::F32))
            })
            .collect();
        for (drives, media) in [(1, Media::Computed), (3, Media::Computed), (2, Media::Ram)] {
            let store = Fixture { drives, media, ..Fixture::default() }.store(&tables, None).unwrap();
            for FixtureTable { name, content, .. } in &tables {
                let mut wanted = vec![0; content.row_bytes()];
                let mut rows = 0;
                store
                    .scan(name, 0..u64::MAX, &mut |rank, row| {
                        content.fill(rank, &mut wanted);
                        assert!(row == wanted, "{drives} drives, {media:?}, {name}: row {rank} is wrong");
                        rows += 1;
                        ControlFlow::Continue(())
                    })
                    .with_context(|| format!("{drives} drives, {media:?}, {name}"))
                    .unwrap();
                assert_eq!(rows, content.rows(), "{drives} drives, {media:?}, {name}");
            }
        }
    }

    #[test]
    fn hot_rows_are_hints_of_the_tables() {
        let table =
            FixtureTable { hot_rows: 7, ..FixtureTable::new("t", ContentOracle::new(1, 0, 100, 16, DType::F32)) };
        let store = Fixture { media: Media::Computed, ..Fixture::default() }.store(&[table], None).unwrap();
        let host = warprow_lookup::HostExecutor::attach(
            &store,
            warprow_lookup::HostOptions::default().with_dram_bytes(7 * 64),
        )
        .unwrap();
        assert_eq!(host.hot_rows("t"), Some(7));
    }
}
