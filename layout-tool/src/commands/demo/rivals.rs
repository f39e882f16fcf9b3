//! Others who answer the same batches from the same file, or from a plain file of the same rows.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use warprow_gpu::GpuExecutor;
use warprow_gpu::{CopyingSlot, Gpu, GpuOptions};
use warprow_layout::{DType, Ranks};
use warprow_lookup::{Batch, Feature, HostOptions, Output, PlanOptions};
use warprow_store::Store;
use warprow_workload::rival::{
    self, EqualMeansRival, NumpyProcess, PageCaching, PerIdRival, PlainFile, RivalError, RivalTable,
};
use warprow_workload::{TableContent, warm};

use super::place::Place;
use super::replay::Contender;
use super::workload::{TABLE, Truth};
use crate::commands::Context;
use crate::failure::{Class, Failure, chain};
use crate::rows::RowBuffer;
use crate::screen::Unit;

/// Who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    Pread,
    Uring,
    Mapped,
    /// In a process of its own, from a plain file of the rows in the order of ids.
    Numpy,
    PreadEqual,
    UringEqual,
    /// Warprow itself, by its other executor.
    Gpu,
}

impl Rival {
    pub(crate) const ALL: [Self; 7] =
        [Self::Pread, Self::Uring, Self::Mapped, Self::Numpy, Self::PreadEqual, Self::UringEqual, Self::Gpu];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread per id",
            Self::Uring => "io_uring per id",
            Self::Mapped => "mapped file per id",
            Self::Numpy => "numpy.memmap",
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
            Self::Numpy => "numpy",
            Self::PreadEqual => "pread_equal",
            Self::UringEqual => "uring_equal",
            Self::Gpu => "gpu",
        }
    }

    /// Threads that it keeps busy.
    pub(crate) fn threads(self) -> &'static str {
        match self {
            Self::Pread | Self::Mapped | Self::Numpy | Self::PreadEqual => "1",
            Self::Uring | Self::UringEqual => "1, and the kernel's",
            Self::Gpu => "1 that waits, and 1 that is the drive",
        }
    }
}

/// What all rivals are given: the file, where each row lies in it, the rank of each id, and what they may keep in memory.
pub(crate) struct Rivals {
    target: RivalTable,
    hot_rows: u64,
    batch: usize,
    store: Store,
    dtype: DType,
    numpy: Option<NumpyProcess>,
    /// The rows in the order of ids, for numpy; or why there is no such file.
    pub plain: Result<PlainFile, String>,
}

impl Rivals {
    /// Tells where the rows lie, writes them to a plain file if there is a numpy for it, and has the
    /// page cache hold both.
    pub(crate) fn new(
        place: &Place,
        store: &Store,
        ranks: &Arc<Ranks>,
        hot_rows: u64,
        batch: usize,
        truth: &Truth<'_>,
        context: &Context,
    ) -> Result<Self, Failure> {
        let (numpy, plain) = match start_numpy(place, truth, context) {
            Ok(numpy) => (Some(numpy), write_plain(place, truth, context)?),
            Err(reason) => (None, Err(reason)),
        };
        context.interrupt.check()?;
        let spinner = context.screen.spinner("warming the page cache");
        let target = target(place, store, ranks)?;
        File::open(&place.path)
            .and_then(|drive| warm(&drive))
            .map_err(|error| Failure::io(&place.shown, "the drive's file cannot be read", &error))?;
        if let Ok(plain) = &plain {
            plain.warm().map_err(|error| Failure::io("numpy.memmap", "the plain file cannot be read", &error))?;
        }
        spinner.finish_and_clear();
        let dtype = truth.dtype();
        Ok(Self { target, hot_rows, batch, store: store.clone(), dtype, numpy, plain })
    }

    /// A rival, ready; or the reason why it cannot take part.
    pub(crate) fn enter(&mut self, rival: Rival) -> Result<Result<Box<dyn Contender>, String>, Failure> {
        let depth = HostOptions::default().depth;
        let equal = || self.target.clone().with_dram(self.hot_rows);
        let made: Result<Box<dyn rival::Rival>, RivalError> = match rival {
            Rival::Gpu => return self.on_gpu(),
            Rival::Pread => PerIdRival::pread(self.target.clone()).map(|rival| Box::new(rival) as _),
            Rival::Uring => PerIdRival::uring(self.target.clone(), depth).map(|rival| Box::new(rival) as _),
            Rival::Mapped => PerIdRival::mapped(self.target.clone()).map(|rival| Box::new(rival) as _),
            Rival::Numpy => match (self.numpy.take(), &self.plain) {
                (Some(numpy), Ok(plain)) => numpy.map(plain, self.dtype, false).map(|memmap| Box::new(memmap) as _),
                (_, Err(reason)) => return Ok(Err(reason.clone())),
                (None, Ok(_)) => return Ok(Err("it has taken part".to_owned())),
            },
            Rival::PreadEqual => {
                equal().and_then(|table| EqualMeansRival::pread(table, self.batch)).map(|rival| Box::new(rival) as _)
            }
            Rival::UringEqual => equal()
                .and_then(|table| EqualMeansRival::uring(table, self.batch, depth))
                .map(|rival| Box::new(rival) as _),
        };
        enter(made, rival.name(), self.batch)
    }

    /// The GPU executor with the same rows in DRAM; or why there is none.
    fn on_gpu(&self) -> Result<Result<Box<dyn Contender>, String>, Failure> {
        let gpu = match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let row_bytes =
            self.store.tables().iter().find(|table| table.name == TABLE).map_or(0, |table| u64::from(table.row_bytes));
        let options = GpuOptions::default().with_dram_bytes(self.hot_rows.saturating_mul(row_bytes));
        let plan = PlanOptions::default().with_max(self.batch, self.batch).with_out(self.dtype);
        let made = GpuExecutor::attach(&self.store, gpu, options)
            .and_then(|executor| executor.plan(&[Feature::new(TABLE, TABLE)], plan));
        match made.and_then(|plan| Ok((plan.width(), plan.slot()?.copied()?))) {
            Ok((width, slot)) => Ok(Ok(Box::new(OnGpu { slot, width, mask: vec![0; self.batch] }))),
            Err(error) => Ok(Err(chain(&error))),
        }
    }
}

/// The GPU executor in the race: ids are copied to the GPU, and rows back.
struct OnGpu {
    slot: CopyingSlot,
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

/// Tells where the rows lie.
pub(crate) fn target(place: &Place, store: &Store, ranks: &Arc<Ranks>) -> Result<RivalTable, Failure> {
    let (generation, table) = store.generation(TABLE)?;
    let target = RivalTable::new(&generation, table, Some(ranks.clone()), &[&place.path], PageCaching::Cached);
    target.map_err(|error| bug(chain(&error)))
}

/// A process with numpy, if there is room for the file that it is to have.
fn start_numpy(place: &Place, truth: &Truth<'_>, context: &Context) -> Result<NumpyProcess, String> {
    let spinner = context.screen.spinner("looking for numpy");
    let interrupt = context.interrupt.clone();
    let started = NumpyProcess::start(move || interrupt.is_asked()).map_err(|error| error.to_string());
    spinner.finish_and_clear();
    let started = started?;
    place.has_room_beside(truth.rows().saturating_mul(truth.row_bytes() as u64))?;
    Ok(started)
}

/// The rows in the order of ids, as somebody keeps them who maps them.
fn write_plain(place: &Place, truth: &Truth<'_>, context: &Context) -> Result<Result<PlainFile, String>, Failure> {
    let rows = truth.rows();
    let row_bytes = truth.row_bytes();
    let bar = context.screen.bar("a plain file for numpy", rows * row_bytes as u64, Unit::Bytes);
    let written = PlainFile::new(&place.dir, rows, row_bytes, truth, &mut |bytes| {
        bar.inc(bytes);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    context.interrupt.check()?;
    Ok(written.map_err(|error| format!("a plain file of the rows cannot be written: {error}")))
}

/// Another clean start of numpy, with a file that is written already.
pub(crate) fn numpy_again(
    plain: &PlainFile,
    dtype: DType,
    context: &Context,
) -> Result<rival::NumpyMemmap, RivalError> {
    let interrupt = context.interrupt.clone();
    NumpyProcess::start(move || interrupt.is_asked())?.map(plain, dtype, true)
}

/// A rival as a contender; or the reason why it cannot take part.
pub(crate) fn enter(
    made: Result<Box<dyn rival::Rival>, RivalError>,
    name: &'static str,
    batch: usize,
) -> Result<Result<Box<dyn Contender>, String>, Failure> {
    match made {
        Ok(rival) => Ok(Ok(Box::new(Entrant { rival, name, mask: vec![0; batch] }))),
        Err(error @ (RivalError::Unavailable { .. } | RivalError::Process { .. })) => Ok(Err(error.to_string())),
        Err(error) => Err(failure(name, &error)),
    }
}

fn bug(what: String) -> Failure {
    Failure::new(Class::Bug, "rivals", what).remedy("please report it; --no-rivals goes without")
}

/// What is said of a rival in a process of its own that has failed: others go on without it.
const LOST: &str = "lost";

/// Why others go on without the one that has failed so; `None`: nobody goes on.
pub(crate) fn is_lost(failure: &Failure) -> Option<String> {
    failure.details.contains_key(LOST).then(|| failure.message.clone())
}

fn failure(name: &str, error: &RivalError) -> Failure {
    let class = match error {
        RivalError::Memory(_) | RivalError::Process { .. } => Class::Resources,
        RivalError::Read { .. } | RivalError::PlainFile { .. } => Class::Drive,
        _ => Class::Bug,
    };
    let failure = Failure::new(class, name, chain(error)).remedy("--no-rivals goes without");
    match error {
        RivalError::Process { .. } => failure.detail(LOST, true),
        _ => failure,
    }
}

/// A rival in the race.
struct Entrant {
    rival: Box<dyn rival::Rival>,
    name: &'static str,
    mask: Vec<u8>,
}

impl Contender for Entrant {
    fn answer(&mut self, ids: &[i64], rows: &mut RowBuffer) -> Result<(), Failure> {
        let mask = &mut self.mask[..ids.len()];
        self.rival.lookup(ids, rows.bytes_mut(), mask).map_err(|error| failure(self.name, &error))
    }

    fn took(&self) -> Option<Duration> {
        self.rival.took()
    }

    fn mask(&self) -> Option<&[u8]> {
        Some(&self.mask)
    }
}
