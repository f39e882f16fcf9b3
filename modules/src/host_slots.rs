//! Slots of a plan on the host, which calls take by turns.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use warprow_layout::DType;
use warprow_lookup::executors::output_type;
use warprow_lookup::{Batch, Feature, HostExecutor, LookupError, LookupReport, Output, Plan, PlanOptions, Slot};

use crate::arrays::{output_rows, slice_mut};
use crate::error::{ModuleError, Patience};
use crate::lookup::ModuleOutput;
use crate::pool::Pool;

/// How long a call waits for a slot.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits between two looks for interrupts.
const GLANCE: Duration = Duration::from_millis(50);

/// A plan on the host, and its slots.
pub struct HostSlots {
    plan: Plan,
    slots: Pool<Slot>,
    /// For batches that are fetched ahead.
    ahead: Pool<Slot>,
    latest: Mutex<Option<LookupReport>>,
    dtype: DType,
    /// Whether rows that could not be read are an error.
    raises_failed: bool,
}

/// A batch whose rows are fetched ahead, and the slot that holds it.
pub struct HostAhead {
    slot: Box<Slot>,
    ids: usize,
}

impl HostSlots {
    /// Plans. So many of the slots are for batches that are fetched ahead.
    pub fn new(
        executor: &HostExecutor,
        features: &[Feature],
        (options, ahead): (PlanOptions, u32),
        raises_failed: bool,
    ) -> Result<Self, ModuleError> {
        let plan = executor.plan(features, options)?;
        let mut slots = (0..plan.options().slots).map(|_| plan.slot()).collect::<Result<Vec<_>, _>>()?;
        let ahead = slots.split_off(slots.len().saturating_sub(ahead as usize));
        let dtype = output_type(plan.options().out);
        let (slots, ahead, latest) = (Pool::new(slots), Pool::new(ahead), Mutex::default());
        Ok(Self { plan, slots, ahead, latest, dtype, raises_failed })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Type of the output's elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    fn with_slot<T>(&self, work: impl FnOnce(&mut Slot) -> T) -> Result<T, ModuleError> {
        let patience = Patience::new(
            PATIENCE,
            "no slot of the plan came free in 60 s: wait for others to end, or plan more slots",
        );
        let mut slot = loop {
            if let Some(slot) = self.slots.take(GLANCE) {
                break slot;
            }
            patience.check()?;
        };
        let done = work(&mut slot);
        self.slots.give(slot);
        Ok(done)
    }

    /// Calls `work` with the output.
    ///
    /// # Safety
    /// The addresses are right, and nobody else uses that memory while this runs.
    unsafe fn filled(
        &self,
        out: ModuleOutput,
        ids: usize,
        work: impl FnOnce(&mut Output<'_>) -> Result<Result<LookupReport, LookupError>, ModuleError>,
    ) -> Result<(), ModuleError> {
        // SAFETY: the caller's promise.
        let (rows, mask) = unsafe {
            let mask = out.mask.map(|address| slice_mut::<u8>(address, ids));
            (output_rows(out.rows, out.elements, self.dtype)?, mask)
        };
        let mut output = Output::new(rows, self.plan.width());
        output.mask = mask;
        let report = match work(&mut output)? {
            Err(LookupError::RowsFailed { report, .. }) if !self.raises_failed => *report,
            done => done?,
        };
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        Ok(())
    }

    /// Looks a batch up. It waits for a slot.
    ///
    /// # Safety
    /// The output's addresses are right, and nobody else uses that memory while this runs.
    pub unsafe fn lookup(&self, batch: &Batch<'_>, out: ModuleOutput) -> Result<(), ModuleError> {
        // SAFETY: the caller's promise.
        unsafe { self.filled(out, batch.ids.len(), |output| self.with_slot(|slot| slot.lookup(batch, output))) }
    }

    /// Begins to fetch the rows of a batch, which is the caller's again when this returns.
    pub fn prefetch(&self, batch: &Batch<'_>) -> Result<HostAhead, ModuleError> {
        const TAKEN: &str = "as many batches are prefetched as was planned: look one up first";
        let mut slot = self.ahead.take(Duration::ZERO).ok_or(ModuleError::Busy(TAKEN))?;
        if let Err(error) = slot.prefetch(batch) {
            self.ahead.give(slot);
            return Err(error.into());
        }
        Ok(HostAhead { slot: Box::new(slot), ids: batch.ids.len() })
    }

    /// Looks up what was fetched ahead.
    ///
    /// # Safety
    /// As of [`lookup`](Self::lookup).
    pub unsafe fn lookup_prefetched(&self, held: HostAhead, out: ModuleOutput) -> Result<(), ModuleError> {
        let HostAhead { mut slot, ids } = held;
        // SAFETY: the caller's promise.
        let done = unsafe { self.filled(out, ids, |output| Ok(slot.lookup_prefetched(output))) };
        self.ahead.give(*slot);
        done
    }

    /// Forgets a batch that was fetched ahead.
    pub fn forget(&self, mut held: HostAhead) {
        let _ = held.slot.forget_prefetched();
        self.ahead.give(*held.slot);
    }

    /// The report of the latest look-up that did not fail.
    pub fn latest(&self) -> Option<LookupReport> {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
