//! The contenders of the cold race, each ready; or why it cannot take part.

use std::cell::RefCell;
use std::sync::Arc;

use warprow_lookup::{Feature, HostExecutor, HostOptions, LookupReport, PlanOptions};
use warprow_soft_controller::SoftController;
use warprow_store::{Device, OpenOptions, Store};
use warprow_workload::TableContent;
use warprow_workload::rival::{PageCaching, PerIdRival, PlainFile, Rival, RivalError, RivalTable, ThreadedRival};

use super::who::Who;
use crate::commands::Context;
use crate::commands::demo::place::Place;
use crate::commands::demo::replay::Contender;
use crate::commands::demo::rivals;
use crate::commands::demo::warprow::Warprow;
use crate::commands::demo::workload::{TABLE, Workload};
use crate::failure::Failure;

/// Threads of the rival that reads with many.
const THREADS: usize = 16;

/// Someone who takes part, or why not.
pub(super) struct Entry<'a> {
    pub(super) who: Who,
    pub(super) contender: Result<Box<dyn Contender + 'a>, String>,
}

/// What contenders are made of.
pub(super) struct Entrants<'a> {
    pub(super) place: &'a Place,
    pub(super) workload: &'a Workload<'a>,
    /// The store on the drive's file, opened again.
    pub(super) store: &'a Store,
    pub(super) target: &'a RivalTable,
    pub(super) plain: &'a Result<PlainFile, String>,
    /// Ids of a batch, at most.
    pub(super) batch: usize,
    pub(super) total: &'a RefCell<LookupReport>,
}

impl<'a> Entrants<'a> {
    /// All contenders.
    pub(super) fn all(&self, context: &Context) -> Result<Vec<Entry<'a>>, Failure> {
        Who::ALL.into_iter().map(|who| Ok(Entry { who, contender: self.enter(who, context)? })).collect()
    }

    fn enter(&self, who: Who, context: &Context) -> Result<Result<Box<dyn Contender + 'a>, String>, Failure> {
        let made: Result<Box<dyn Rival>, RivalError> = match who {
            Who::Warprow => return Ok(Ok(Box::new(self.ours(self.store)?))),
            Who::Direct => match self.place.open(PageCaching::Direct) {
                Ok(drive) => return Ok(Ok(Box::new(self.ours(&open(drive)?)?))),
                Err(reason) => return Ok(Err(reason)),
            },
            Who::Pread => {
                ThreadedRival::new(THREADS, || PerIdRival::pread(self.target.clone())).map(|rival| Box::new(rival) as _)
            }
            Who::Mapped => PerIdRival::mapped(self.target.clone()).map(|rival| Box::new(rival) as _),
            Who::Numpy => match self.plain {
                Ok(plain) => {
                    let dtype = self.workload.truth.dtype();
                    rivals::numpy_again(plain, dtype, context).map(|memmap| Box::new(memmap) as _)
                }
                Err(reason) => return Ok(Err(reason.clone())),
            },
        };
        Ok(rivals::enter(made, who.name(), self.batch)?.map(|contender| contender as _))
    }

    /// Warprow on a drive, without rows in memory.
    fn ours(&self, store: &Store) -> Result<Warprow<'a>, Failure> {
        let host = HostExecutor::attach(store, HostOptions::default().with_dram_bytes(0))?;
        let options = PlanOptions::default().with_max(self.batch, self.batch).with_out(self.workload.truth.dtype());
        let plan = host.plan(&[Feature::new(TABLE, TABLE)], options)?;
        let mask = vec![0; self.batch];
        Ok(Warprow { slot: plan.slot()?, width: plan.width(), mask, total: self.total, faulty: None })
    }
}

/// The store on a drive, for reading.
pub(super) fn open(drive: Arc<SoftController>) -> Result<Store, Failure> {
    Ok(Store::open(&[Device::new(drive, 1)], &OpenOptions::default().with_read_only())?)
}
