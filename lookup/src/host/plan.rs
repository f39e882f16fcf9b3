//! A plan: features resolved against tables, buffers allocated, queue pairs taken.

use std::ops::Range;
use std::sync::{Arc, Mutex, RwLock};

use warprow_store::StoreError;
use warprow_store::view::lock;

use super::current::Hosting;
use super::planned::Planned;
use super::prepared::{Prepared, Room};
use super::slot::Slot;
use super::state::State;
use crate::feature::{Feature, PlanOptions};

/// A list of features, resolved against tables, with all memory and queue pairs that its slots need for look-ups.
/// Clones share the slots.
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
/// // Two features over one table, each summed over its bags: their columns lie side by side.
/// let features = ["seen", "bought"].map(|name| Feature::new(name, "user").pooling(Pooling::Sum));
/// let plan = host.plan(&features, PlanOptions::default().with_max(64, 1000).with_slots(2))?;
/// assert_eq!(plan.width(), 8);
/// let (_one, _other) = (plan.slot()?, plan.slot()?);       // one for each thread that looks up
/// assert!(matches!(plan.slot(), Err(StoreError::NoFreeSlot { slots: 2 })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) inner: Arc<Planned>,
}

impl Plan {
    pub(crate) fn new(host: &Hosting, features: &[Feature], options: PlanOptions) -> Result<Self, StoreError> {
        let mut prepared = Arc::new(Prepared::new(host.current(), features, options.clone())?);
        let mut room = prepared.room();
        if options.adopt_room {
            let widest = prepared.tables.iter().map(|table| table.dim * size_of::<f32>()).max().unwrap_or(0);
            room = Room { row_bytes: room.row_bytes.max(widest), cold: options.max_ids };
        }
        let slots = (0..options.slots).map(|made| State::new(&prepared, room, made)).collect::<Result<Vec<_>, _>>()?;
        let (source, idle) = (features.to_vec(), Mutex::new(slots));
        // The host may have adopted other tables meanwhile.
        loop {
            if let Some(mut plans) = host.plans_of(&prepared.host) {
                let current = RwLock::new(prepared);
                let inner = Arc::new(Planned { source, options, current, room, idle });
                plans.push(Arc::downgrade(&inner));
                return Ok(Self { inner });
            }
            let newer = Arc::new(Prepared::new(host.current(), features, options.clone())?);
            if let Some(why) = newer.unfit(&prepared, room) {
                return Err(StoreError::Unfit { why });
            }
            prepared = newer;
        }
    }

    /// Takes a slot; dropping the slot gives it back. [`StoreError::NoFreeSlot`] if all slots are taken.
    pub fn slot(&self) -> Result<Slot, StoreError> {
        match lock(&self.inner.idle).pop() {
            Some(state) => Ok(Slot::new(self.inner.clone(), state)),
            None => Err(StoreError::NoFreeSlot { slots: self.inner.options.slots }),
        }
    }

    /// Elements of an output row: all features side by side if they are pooled, else the widest.
    pub fn width(&self) -> usize {
        self.inner.current().width
    }

    /// Whether the plan's features are pooled: all of them, or none.
    pub fn is_pooled(&self) -> bool {
        self.inner.current().pooled
    }

    /// Elements of an output row that belong to feature number `feature`; `None`: there is no such feature.
    pub fn columns(&self, feature: usize) -> Option<Range<usize>> {
        self.inner.current().features.get(feature).map(|feature| feature.column..feature.column + feature.dim)
    }

    /// The latest generation among those that look-ups of this plan read at present.
    pub fn generation(&self) -> u64 {
        self.inner.current().generation
    }

    /// The options that the plan was made with.
    pub fn options(&self) -> &PlanOptions {
        &self.inner.options
    }
}
