//! Others who answer the same batches from the same file.

use std::sync::Arc;

use warprow_gpu::GpuExecutor;
use warprow_gpu::{CopiedSlot, Gpu, GpuOptions};
use warprow_layout::{DType, Ranks};
use warprow_lookup::{Batch, Feature, HostOptions, Output, PlanOptions};
use warprow_store::Store;
use warprow_workload::rival::{self, Caching, Equal, PerId, RivalError, Target};

use super::TABLE;
use super::place::Place;
use super::replay::Contender;
use crate::failure::{Class, Failure, chain};
use crate::rows::RowBuffer;

/// Who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    Pread,
    Uring,
    Mapped,
    PreadEqual,
    UringEqual,
    /// Warprow itself, by its other executor.
    Gpu,
}

impl Rival {
    pub(crate) const ALL: [Self; 6] =
        [Self::Pread, Self::Uring, Self::Mapped, Self::PreadEqual, Self::UringEqual, Self::Gpu];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread per id",
            Self::Uring => "io_uring per id",
            Self::Mapped => "mapped file per id",
            Self::PreadEqual => "pread, equal means",
            Self::UringEqual => "io_uring, equal means",
            Self::Gpu => "warprow on a GPU",
        }
    }

    /// How the members of the JSON object begin that are about it.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::Uring => "uring",
            Self::Mapped => "mapped",
            Self::PreadEqual => "pread_equal",
            Self::UringEqual => "uring_equal",
            Self::Gpu => "gpu",
        }
    }

    /// Threads that it keeps busy.
    pub(crate) fn threads(self) -> &'static str {
        match self {
            Self::Pread | Self::Mapped | Self::PreadEqual => "1",
            Self::Uring | Self::UringEqual => "1, and the kernel's",
            Self::Gpu => "1 that waits, and 1 that is the drive",
        }
    }
}

/// What all rivals are given: the file, where each row lies in it, the rank of each id, and what they may keep in memory.
pub(crate) struct Field {
    target: Target,
    hot_rows: u64,
    batch: usize,
    store: Store,
    dtype: DType,
}

impl Field {
    /// Tells where the rows lie, and reads all of it once, so that the page cache is warm.
    pub(crate) fn new(
        place: &Place,
        store: &Store,
        ranks: &Arc<Ranks>,
        hot_rows: u64,
        batch: usize,
    ) -> Result<Self, Failure> {
        let failed = |what: String| {
            Failure::new(Class::Bug, "rivals", what).remedy("please report it; --no-rivals goes without")
        };
        let (generation, table) = store.generation(TABLE)?;
        let target = Target::new(&generation, table, Some(ranks.clone()), &[&place.path], Caching::Cached);
        let target = target.map_err(|error| failed(chain(&error)))?;
        target.warm().map_err(|error| failed(chain(&error)))?;
        let dtype = generation.tables.get(table).map_or(DType::F32, |table| table.dtype);
        Ok(Self { target, hot_rows, batch, store: store.clone(), dtype })
    }

    /// A rival, ready; or the reason why it cannot take part.
    pub(crate) fn enter(&self, rival: Rival) -> Result<Result<Box<dyn Contender>, String>, Failure> {
        let depth = HostOptions::default().depth;
        let equal = || self.target.clone().with_dram(self.hot_rows);
        let made: Result<Box<dyn rival::Rival>, RivalError> = match rival {
            Rival::Gpu => return self.on_gpu(),
            Rival::Pread => PerId::pread(self.target.clone()).map(|it| Box::new(it) as _),
            Rival::Uring => PerId::uring(self.target.clone(), depth).map(|it| Box::new(it) as _),
            Rival::Mapped => PerId::mapped(self.target.clone()).map(|it| Box::new(it) as _),
            Rival::PreadEqual => equal().and_then(|it| Equal::pread(it, self.batch)).map(|it| Box::new(it) as _),
            Rival::UringEqual => equal().and_then(|it| Equal::uring(it, self.batch, depth)).map(|it| Box::new(it) as _),
        };
        match made {
            Ok(made) => Ok(Ok(Box::new(Entrant { rival: made, name: rival.name(), mask: vec![0; self.batch] }))),
            Err(error @ RivalError::Unavailable { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(failure(rival.name(), &error)),
        }
    }
}

impl Field {
    /// The GPU executor with the same rows in DRAM; or why there is none.
    fn on_gpu(&self) -> Result<Result<Box<dyn Contender>, String>, Failure> {
        let gpu = match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let row_bytes = self.store.tables().iter().find(|it| it.name == TABLE).map_or(0, |it| u64::from(it.row_bytes));
        let options = GpuOptions::default().with_dram_bytes(self.hot_rows.saturating_mul(row_bytes));
        let plan = PlanOptions::default().with_max(self.batch, self.batch).with_out(self.dtype);
        let made =
            GpuExecutor::attach(&self.store, gpu, options).and_then(|it| it.plan(&[Feature::new(TABLE, TABLE)], plan));
        match made.and_then(|plan| Ok((plan.width(), plan.slot()?.copied()?))) {
            Ok((width, slot)) => Ok(Ok(Box::new(OnGpu { slot, width, mask: vec![0; self.batch] }))),
            Err(error) => Ok(Err(chain(&error))),
        }
    }
}

/// The GPU executor in the race: ids are copied to the GPU, and rows back.
struct OnGpu {
    slot: CopiedSlot,
    width: usize,
    mask: Vec<u8>,
}

impl Contender for OnGpu {
    fn answer(&mut self, ids: &[i64], rows: &mut RowBuffer) -> Result<(), Failure> {
        let mut output = Output::new(rows.rows(), self.width).with_mask(&mut self.mask);
        match self.slot.lookup(&Batch::new(ids, ids.len()), &mut output) {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(Failure::new(Class::Drive, Rival::Gpu.name(), chain(&error)).remedy("--no-rivals goes without"))
            }
        }
    }

    fn mask(&self) -> Option<&[u8]> {
        Some(&self.mask)
    }
}

fn failure(name: &str, error: &RivalError) -> Failure {
    let class = match error {
        RivalError::Memory(_) => Class::Resources,
        RivalError::Read { .. } => Class::Drive,
        _ => Class::Bug,
    };
    Failure::new(class, name, chain(error)).remedy("--no-rivals goes without")
}

/// A rival in the race.
struct Entrant {
    rival: Box<dyn rival::Rival>,
    name: &'static str,
    mask: Vec<u8>,
}

impl Contender for Entrant {
    fn answer(&mut self, ids: &[i64], rows: &mut RowBuffer) -> Result<(), Failure> {
        self.rival.lookup(ids, rows.bytes_mut(), &mut self.mask).map_err(|error| failure(self.name, &error))
    }

    fn mask(&self) -> Option<&[u8]> {
        Some(&self.mask)
    }
}
