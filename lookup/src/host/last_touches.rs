//! When keys of an executor's tables were last touched, as its callers ask for it.

use std::path::Path;

use warprow_store::{LastTouches, StoreError};

use super::attached::Attached;
use super::executor::HostExecutor;
use crate::touches::TouchRecord;

impl HostExecutor {
    /// The epoch that look-ups note as that of the last touch. `None`: they note none
    /// ([`HostOptions::touch_epoch`](crate::HostOptions::touch_epoch)).
    pub fn touch_epoch(&self) -> Option<u16> {
        self.inner.current().touches.as_ref().map(|record| record.epoch())
    }

    /// Has look-ups that begin from now on note another epoch.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if look-ups note no epochs, or if `epoch` is lower than the one that they note: rows would seem to
    /// have been touched before they were.
    pub fn set_touch_epoch(&self, epoch: u16) -> Result<(), StoreError> {
        let attached = self.inner.current();
        record_of(&attached)?.raise(epoch)
    }

    /// When each key of the executor's tables was last touched, put together with `touches`, which it recorded before it was attached anew.
    /// A key that neither has is recorded as touched when the executor began to read its table. Keys of these tables that they do not have,
    /// or have no more, are left out. It reads the tables' keys, and takes memory for several copies of one table's for that time.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if look-ups note no epochs; errors of reading.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let (keys, rows) = (&[1u64 << 40, 7, 99][..], &[1u8, 2, 3][..]);
    /// # let index = KeyIndex::build(keys, &Default::default(), &mut |_| ControlFlow::Continue(()))?;
    /// # let keyed = TableKeys::new(index.into(), &keys, RowOrder::Given, true)?;
    /// # let spec = TableSpec::new("sparse", 3, 1, DType::U8).keyed(&keyed);
    /// # let load = TableLoad::new(&spec, &rows).with_keys(&keyed);
    /// # store.load("k", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // The table has the keys 2^40, 7 and 99.
    /// let host = HostExecutor::attach(&store, HostOptions::default().with_touch_epoch(1))?;
    /// let plan = host.plan(&[Feature::new("f", "sparse")], PlanOptions::default().with_out(DType::U8))?;
    /// host.set_touch_epoch(2)?;
    /// let mut rows = [0; 2];
    /// plan.slot()?.lookup(&Batch::new(&[7u64, 99], 2), &mut Output::new(OutputRows::U8(&mut rows), 1))?;
    /// let touches = host.last_touches(LastTouches::default())?;
    /// assert_eq!(touches.of("sparse").collect::<Vec<_>>(), [(7, 2), (99, 2), (1 << 40, 1)]);
    /// assert_eq!(store.expire("sparse", &touches, &ExpireOptions::before(2))?.removed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn last_touches(&self, touches: LastTouches) -> Result<LastTouches, StoreError> {
        let attached = self.inner.current();
        record_of(&attached)?.last_touches(&attached.store, &attached.noted(), touches)
    }

    /// Puts [`last_touches`](Self::last_touches) into a file, together with what the file has: after a crash the file before is there, or
    /// the new one. Each executor has a file of its own; [`LastTouches::merge`] puts several together.
    ///
    /// # Errors
    /// [`StoreError::TouchesFile`] if the file cannot be read, is no such record, or cannot be written; those of
    /// [`last_touches`](Self::last_touches).
    pub fn save_touches(&self, path: &Path) -> Result<(), StoreError> {
        let attached = self.inner.current();
        record_of(&attached)?.save(&attached.store, &attached.noted(), path)
    }
}

fn record_of(attached: &Attached) -> Result<&TouchRecord, StoreError> {
    attached.touches.as_deref().ok_or_else(|| TouchRecord::absent("HostOptions::touch_epoch"))
}
