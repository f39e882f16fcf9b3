//! A host that goes over to other tables while look-ups run: what they read is prepared beside, and taken up as one.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::attached::Attached;
use super::current::Hosting;
use super::executor::Host;
use super::planned::Planned;
use super::prepared::Prepared;
use crate::prepare::PrepareOptions;
use warprow_store::StoreError;
use warprow_store::view::lock;

/// Tables that a host can take up: with tiers, orders and every plan's routes. It pins their generations.
#[derive(Debug)]
pub struct Upcoming {
    hosting: Arc<Hosting>,
    attached: Arc<Attached>,
    plans: Vec<(Weak<Planned>, Arc<Prepared>)>,
}

impl Host {
    /// Prepares other tables beside those that look-ups read, which go on: fills a DRAM tier of its own, reads orders, resolves
    /// the plans of this host. [`StoreError::Unfit`] if the slots of one have no room for it, [`StoreError::NoSuchTable`] if one
    /// of its tables is not there. Then [`Store::switch`](warprow_store::Store::switch), and [`adopt`](Self::adopt).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
    /// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let host = Host::attach(&store, HostOptions::default())?;
    /// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
    /// store.update("user", &[0], &[0; 16])?;
    /// store.compact(store.generations()[0].id)?;
    /// // Look-ups go on meanwhile, and read the new chunks from `adopt` on.
    /// let upcoming = host.prepare(&PrepareOptions::default())?;
    /// assert!(host.adopt(upcoming, std::time::Duration::from_secs(1))?);
    /// let mut row = [1.0f32; 4];
    /// plan.slot()?.lookup(&Batch::new(&[0i64], 1), &mut Output::new(Rows::F32(&mut row), 4))?;
    /// assert_eq!(row, [0.0; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(&self, options: &PrepareOptions) -> Result<Upcoming, StoreError> {
        let before = self.inner.current();
        let located = options.tables(&before.store)?;
        let mut pace = options.pace();
        // Not measured again: look-ups run.
        let (options, curves) = (before.options.clone(), before.curves.clone());
        let attached = Attached::new(&before.store, located, options, curves, before.totals.clone(), &mut |bytes| {
            pace.read(bytes)
        })?;
        let plans: Vec<Weak<Planned>> = lock(&self.inner.plans).clone();
        let plans = plans.iter().filter_map(|weak| Some((weak.clone(), weak.upgrade()?)));
        let plans = plans.map(|(weak, plan)| Ok((weak, plan.on(attached.clone())?)));
        let plans = plans.collect::<Result<_, StoreError>>()?;
        Ok(Upcoming { hosting: self.inner.clone(), attached, plans })
    }

    /// Takes up what was prepared: every look-up that begins after this reads it, in all plans of this host and its clones;
    /// those that run go on with what they began with. Nobody waits for anybody, but this call: up to `patience` for the last of
    /// them, so that what they read can be let go here, and not by a look-up. Whether nothing of it is left.
    ///
    /// Fails, with nothing changed, if a plan that was made meanwhile does not fit, or if `upcoming` is another host's.
    pub fn adopt(&self, upcoming: Upcoming, patience: Duration) -> Result<bool, StoreError> {
        let Upcoming { hosting, attached, plans: prepared } = upcoming;
        if !Arc::ptr_eq(&hosting, &self.inner) {
            return Err(StoreError::Unfit { why: "it was prepared by another host".to_owned() });
        }
        {
            // Plans that are being made wait here, and begin with the new tables.
            let plans = lock(&self.inner.plans);
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
