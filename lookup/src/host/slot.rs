//! The right to one look-up at a time.

use std::sync::Arc;

use super::planned::Planned;
use super::prefetch::Holding;
use super::state::{State, count};
use crate::batch::{Batch, Output};
use crate::error::LookupError;
use crate::report::LookupReport;

/// The right to one look-up at a time, with the queue pairs on every drive
/// ([`HostOptions::queue_pairs`](crate::HostOptions::queue_pairs) of them) and the buffers that this look-up uses. Dropping the
/// slot gives it back to its plan.
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
/// # let host = HostExecutor::attach(&store, HostOptions::default())?;
/// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// let mut slot = plan.slot()?;
/// let (mut rows, mut mask) = ([7.0f32; 8], [9u8; 2]);
/// let mut out = Output::new(OutputRows::F32(&mut rows), 4).with_mask(&mut mask);
/// let report = slot.lookup(&Batch::new(&[1i64, 5000], 2), &mut out)?;
/// assert_eq!(rows, [4.0, 5.0, 6.0, 7.0, 0.0, 0.0, 0.0, 0.0], "the table has no row 5000");
/// assert_eq!((mask, report.missing), ([1, 0], 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Slot {
    pub(crate) plan: Arc<Planned>,
    pub(crate) holding: Holding,
}

impl Slot {
    pub(crate) fn new(plan: Arc<Planned>, state: State) -> Self {
        Self { plan, holding: Holding::new(state) }
    }

    /// Looks up one batch, and fills `out`. It allocates nothing unless it fails.
    ///
    /// A failed read never looks like a row: see [`LookupError`]. The drive that failed is brought back, if it can be,
    /// by the next look-up.
    pub fn lookup(&mut self, batch: &Batch<'_>, out: &mut Output<'_>) -> Result<LookupReport, LookupError> {
        let state = self.holding.idle()?;
        // This is read once: tables that the host adopts during this look-up are for the next one.
        let prepared = self.plan.current();
        let mut snapshots = std::mem::take(&mut state.snapshots);
        snapshots.extend(prepared.overlays.iter().map(|overlay| overlay.snapshot()));
        let result = state.lookup(&prepared, &snapshots, batch, out);
        snapshots.clear();
        state.snapshots = snapshots;
        count(&prepared, &result);
        result
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(state) = self.holding.take() {
            self.plan.give_back(state);
        }
    }
}
