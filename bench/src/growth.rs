//! The same look-ups in tables of growing size, on a drive with a real one's timing whose rows are computed when they are
//! read: larger than any disk here.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use warprow_dma::SystemClock;
use warprow_driver::{BlockIo, Controller, Options, QueueOptions};
use warprow_layout::{Access, ChunkRef, DType, Drive, DriveError, FormatOptions, GenerationSpec, Placement, TableSpec};
use warprow_soft_controller::{Namespace, Procedural, Profile, SoftController};
use warprow_store::{Device, OpenOptions, Store};
use warprow_workload::{Content, Oracle, peak_resident_bytes};

use crate::Cores;
use crate::lookup::{LookupSetup, Ours, Race, TABLE};

/// Bytes of an LBA, and of a row: the drive's content is then a row for each LBA.
const LBA: u32 = 512;

/// One size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GrowthResult {
    /// Bytes of rows.
    pub size: u64,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Rows in DRAM.
    pub hot_rows: u64,
    /// Median ids a second.
    pub ids_per_second: f64,
    /// Read commands a second, over all look-ups.
    pub commands_per_second: f64,
    /// Median and 99th percentile of a batch's latency, microseconds.
    pub p50_us: f64,
    /// The same, 99th percentile.
    pub p99_us: f64,
    /// Rows compared.
    pub checked: u64,
    /// Most memory that the process has had resident.
    pub peak_resident_bytes: Option<u64>,
}

/// Where rows lie: from the drive's blocks back to ranks.
struct Inverse {
    placement: Placement,
    /// By chunk on the drive, its place in the generation's map; `u32::MAX` for none.
    columns: Vec<u32>,
    first_lba: u64,
    rows: u64,
}

impl Inverse {
    /// The rank of the row in LBA `lba` of the drive; `None` if there is none.
    fn rank(&self, lba: u64) -> Option<u64> {
        let placement = &self.placement;
        let at = lba.checked_sub(placement.base_lba())?;
        let (chunk, within) = (at >> placement.chunk_lba_shift(), at & ((1 << placement.chunk_lba_shift()) - 1));
        let column = *self.columns.get(usize::try_from(chunk).ok()?)?;
        let (row, offset) = (within >> placement.stripe_lba_shift(), within & (placement.stripe_lbas() - 1));
        let unit = row * self.columns_in_map() + u64::from(column);
        let index = (unit << placement.stripe_lba_shift()) + offset;
        index.checked_sub(self.first_lba).filter(|&rank| column != u32::MAX && rank < self.rows)
    }

    fn columns_in_map(&self) -> u64 {
        self.placement.map().len() as u64
    }
}

/// A drive as the layout sees it, by the driver.
struct Whole(Mutex<BlockIo>);

impl Whole {
    fn with(
        &self,
        what: &str,
        access: impl FnOnce(&mut BlockIo) -> Result<(), warprow_driver::DriverError>,
    ) -> Result<(), DriveError> {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
            .map_err(|error| DriveError::new(self.name(), what, error))
    }
}

impl Drive for Whole {
    fn name(&self) -> &str {
        "emulated:procedural"
    }

    fn lba_size(&self) -> u32 {
        LBA
    }

    fn lba_count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).namespace().lba_count()
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

/// A store whose table is there without having been written: its rows are computed where the placement says that they lie.
fn store(setup: &LookupSetup, profile: Profile, cores: Option<&Cores>) -> anyhow::Result<Store> {
    let content: Oracle = setup.content();
    let inverse: Arc<OnceLock<Inverse>> = Arc::default();
    let backing = Procedural::with(setup.drive_bytes(), {
        let inverse = inverse.clone();
        move |block, words| match inverse.get().and_then(|inverse| inverse.rank(block)) {
            None => words.fill(0),
            Some(rank) => {
                let mut row = [0; LBA as usize];
                content.fill(rank, &mut row);
                for (word, bytes) in words.iter_mut().zip(row.as_chunks::<8>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
            }
        }
    });
    let drive = SoftController::builder().name("emulated:procedural").namespace(Namespace::new(backing).lba(LBA));
    let drive = Cores::answering(cores, || drive.profile(profile).build())?;
    {
        let controller = Controller::open(drive.clone(), Arc::new(SystemClock::new()), Options::default())?;
        let io = BlockIo::new(&controller, controller.namespace(1)?, &QueueOptions::default())?;
        let whole = Arc::new(Whole(Mutex::new(io)));
        warprow_layout::format(std::slice::from_ref(&whole), &FormatOptions::default())?;
        let opened = warprow_layout::open(vec![whole], Access::ReadWrite)?;
        let spec = TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32);
        let transaction = opened.volume.begin(&GenerationSpec::new("bench", vec![spec]))?;
        let generation = transaction.generation();
        let (placement, table) = (&generation.placement, &generation.tables[0]);
        let mut columns =
            vec![u32::MAX; placement.map().iter().map(|chunk| chunk.chunk() as usize + 1).max().unwrap_or(0)];
        placement
            .map()
            .iter()
            .zip(0..)
            .for_each(|(chunk, column): (&ChunkRef, u32)| columns[chunk.chunk() as usize] = column);
        let placed = Inverse {
            placement: (**placement).clone(),
            columns,
            first_lba: table.rows_region.first_lba,
            rows: table.rows,
        };
        ensure!(inverse.set(placed).is_ok(), "the drive was laid out twice");
        transaction.commit()?;
    }
    Ok(Store::open(&[Device::new(drive, 1)], &OpenOptions::default())?)
}

/// Looks up batches in a table of `setup.size` bytes for `time`, with `dram` bytes of its rows in DRAM. Ids are ranks: a
/// permutation would be memory that grows with the table. The drive has the timing of `profile`.
pub fn run(setup: &LookupSetup, dram: u64, profile: Profile, time: Duration) -> anyhow::Result<GrowthResult> {
    setup.check()?;
    ensure!(setup.dim * 4 == LBA, "rows of {} bytes: growth is measured with rows of {LBA}", setup.dim * 4);
    let hot_rows = (dram / u64::from(LBA)).min(setup.rows());
    let cores = Cores::two();
    let store = store(setup, profile, cores.as_ref()).context("no computed drive")?;
    let mut ours = Ours::new(&store, setup, hot_rows)?;
    let mut race = Race::new(setup, false)?;
    let before = store.metrics();
    let (ids_per_second, latencies) = race.alone(&mut ours, time)?;
    let after = store.metrics();
    let (commands, ids) = (after.commands - before.commands, after.ids - before.ids);
    Ok(GrowthResult {
        size: setup.size,
        alpha: setup.alpha,
        hot_rows,
        ids_per_second,
        commands_per_second: ids_per_second * commands as f64 / ids as f64,
        p50_us: latencies.percentile_us(50.0),
        p99_us: latencies.percentile_us(99.0),
        checked: race.checked,
        peak_resident_bytes: peak_resident_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_tables_of_any_size_are_looked_up() {
        for size in [1 << 20, (100 << 20) + 512, 64 << 30] {
            let setup = LookupSetup { size, dim: 128, alpha: 0.5, batch: 300, hot: 0.0, seed: 3 };
            let result = run(&setup, 10 << 10, Profile::None, Duration::ZERO).unwrap();
            assert_eq!(result.hot_rows, 20);
            assert!(result.checked >= 16 * 300 && result.ids_per_second > 0.0, "{result:?}");
        }
    }

    #[test]
    fn rows_of_another_size_are_refused() {
        let setup = LookupSetup { size: 1 << 20, dim: 64, alpha: 0.5, batch: 300, hot: 0.0, seed: 3 };
        assert!(run(&setup, 0, Profile::None, Duration::ZERO).is_err());
    }
}
