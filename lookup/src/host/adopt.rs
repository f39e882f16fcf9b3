//! How a host goes over to other tables while look-ups run. The other tables are prepared while look-ups read the
//! present ones; then all plans go over to them at once.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::attached::Attached;
use super::current::Hosting;
use super::executor::HostExecutor;
use super::planned::Planned;
use super::prepared::Prepared;
use crate::prepare::{PrepareOptions, ReadPacer};
use warprow_store::StoreError;
use warprow_store::view::lock;

/// Tables that were prepared beside those that look-ups read, with a DRAM tier, permutations and every plan's routes,
/// for [`HostExecutor::adopt`]. Their generations are pinned while this lives.
#[derive(Debug)]
pub struct PreparedTables {
    hosting: Arc<Hosting>,
    attached: Arc<Attached>,
    plans: Vec<(Weak<Planned>, Arc<Prepared>)>,
}

impl HostExecutor {
    /// Prepares other tables than those that look-ups read, while look-ups go on: fills another DRAM tier, reads the
    /// tables' orders, and resolves the plans of this host against them. The next steps are
    /// [`Store::switch`](warprow_store::Store::switch), if the tables are of another generation, and
    /// [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// [`StoreError::Unfit`] if the slots of a plan have no room for the tables, [`StoreError::NoSuchTable`] if a table
    /// of a plan is not among them, and errors of reading.
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
    /// let host = HostExecutor::attach(&store, HostOptions::default())?;
    /// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
    /// store.update("user", &[0], &[0; 16])?;
    /// store.compact(store.generations()[0].id)?;
    /// // Look-ups go on meanwhile, and read the new chunks from `adopt` on.
    /// let upcoming = host.prepare(&PrepareOptions::default())?;
    /// assert!(host.adopt(upcoming, std::time::Duration::from_secs(1))?);
    /// let mut row = [1.0f32; 4];
    /// plan.slot()?.lookup(&Batch::new(&[0i64], 1), &mut Output::new(OutputRows::F32(&mut row), 4))?;
    /// assert_eq!(row, [0.0; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(&self, options: &PrepareOptions) -> Result<PreparedTables, StoreError> {
        self.prepare_after(&self.inner.current(), options, options.pace())
    }

    /// As [`prepare`](Self::prepare), to take the place of `before`, which this host reads or has read.
    pub(super) fn prepare_after(
        &self,
        before: &Attached,
        options: &PrepareOptions,
        mut pace: ReadPacer,
    ) -> Result<PreparedTables, StoreError> {
        let located = options.tables(&before.store)?;
        // Drives are not measured again, because look-ups use them.
        let (options, curves) = (before.options.clone(), before.curves.clone());
        let attached = Attached::new(&before.store, located, options, curves, Some(before), &mut pace)?;
        let plans: Vec<Weak<Planned>> = lock(&self.inner.plans).clone();
        let plans = plans.iter().filter_map(|weak| Some((weak.clone(), weak.upgrade()?)));
        let plans = plans.map(|(weak, plan)| Ok((weak, plan.on(attached.clone())?)));
        let plans = plans.collect::<Result<_, StoreError>>()?;
        Ok(PreparedTables { hosting: self.inner.clone(), attached, plans })
    }

    /// Adopts the tables that were prepared: every look-up that begins after this call reads them, in all plans of this
    /// host and its clones. Look-ups that are under way go on with the tables that they began with, and no look-up
    /// waits. This call waits, for up to `patience`, until the last of them has ended, so that the memory of the tables
    /// before is freed here and not by a look-up. Returns whether all of it was freed.
    ///
    /// # Errors
    /// [`StoreError::Unfit`], with nothing changed, if a plan that was made after [`prepare`](Self::prepare) has no
    /// room for the tables, or if another host prepared `upcoming`; [`StoreError::NoSuchTable`] if such a plan has a
    /// table that is not among them.
    pub fn adopt(&self, upcoming: PreparedTables, patience: Duration) -> Result<bool, StoreError> {
        self.adopt_after(None, upcoming, patience)
    }

    /// As [`adopt`](Self::adopt); if `before` is given and no longer what this host reads, it fails, with nothing changed.
    pub(super) fn adopt_after(
        &self,
        before: Option<&Arc<Attached>>,
        upcoming: PreparedTables,
        patience: Duration,
    ) -> Result<bool, StoreError> {
        let PreparedTables { hosting, attached, plans: prepared } = upcoming;
        if !Arc::ptr_eq(&hosting, &self.inner) {
            return Err(StoreError::Unfit { why: "it was prepared by another host".to_owned() });
        }
        {
            // Plans that are being made wait here, and begin with the new tables.
            let plans = lock(&self.inner.plans);
            if before.is_some_and(|before| !Arc::ptr_eq(before, &self.inner.current())) {
                return Err(StoreError::Unfit { why: "the host has adopted other tables meanwhile".to_owned() });
            }
            let mut next = Vec::with_capacity(plans.len());
            for plan in plans.iter().filter_map(Weak::upgrade) {
                let found = prepared.iter().find(|(weak, _)| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(&plan)));
                let on = match found {
                    Some((_, on)) => on.clone(),
                    None => plan.on(attached.clone())?,
                };
                next.push((plan, on));
            }
            drop(prepared);
            *self.inner.current.write().unwrap_or_else(PoisonError::into_inner) = attached;
            let mut retired = lock(&self.inner.retired);
            retired.extend(next.into_iter().map(|(plan, on)| plan.replace(on)));
        }
        let began = Instant::now();
        loop {
            match self.inner.let_go() {
                0 => return Ok(true),
                _ if began.elapsed() >= patience => return Ok(false),
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
}
