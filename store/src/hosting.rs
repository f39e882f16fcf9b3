//! A host that goes over to other tables while look-ups run: what they read is prepared beside, and taken up as one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use warprow_layout::VolumeError;

use crate::host::{Attached, Host};
use crate::member::lock;
use crate::plan::{Planned, Prepared};
use crate::store::{Located, latest_tables, latest_tables_by};
use crate::{Store, StoreError};

/// What a host reads at present, and the plans that read it.
#[derive(Debug)]
pub(crate) struct Hosting {
    current: RwLock<Arc<Attached>>,
    plans: Mutex<Vec<Weak<Planned>>>,
    /// Put away, while look-ups may still read it.
    retired: Mutex<Vec<Arc<Prepared>>>,
}

impl Hosting {
    pub(crate) fn new(attached: Arc<Attached>) -> Self {
        Self { current: RwLock::new(attached), plans: Mutex::default(), retired: Mutex::default() }
    }

    pub(crate) fn current(&self) -> Arc<Attached> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The plans, if `attached` is what the host reads; while they are held, it stays so.
    pub(crate) fn plans_of(&self, attached: &Arc<Attached>) -> Option<MutexGuard<'_, Vec<Weak<Planned>>>> {
        let mut plans = lock(&self.plans);
        plans.retain(|plan| plan.strong_count() > 0);
        Arc::ptr_eq(attached, &self.current()).then_some(plans)
    }

    /// Lets go of what no look-up reads any more; how much is left.
    fn let_go(&self) -> usize {
        let mut retired = lock(&self.retired);
        // Nobody else can take it up again: one holder is the last.
        retired.retain(|prepared| Arc::strong_count(prepared) > 1);
        retired.len()
    }
}

/// How tables are prepared beside those that are read.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PrepareOptions {
    /// Prepare for a [switch](Store::switch) to this generation; `None`: the tables that the store shows now.
    pub generation: Option<u64>,
    /// Bytes a second that filling the DRAM tier may read from the drives, all together; `None`: as fast as they are.
    pub bytes_per_second: Option<u64>,
}

impl PrepareOptions {
    /// For a switch to generation `id`.
    #[must_use]
    pub fn with_generation(self, id: u64) -> Self {
        Self { generation: Some(id), ..self }
    }

    /// Reading at most that many bytes a second.
    #[must_use]
    pub fn with_rate(self, bytes_per_second: u64) -> Self {
        Self { bytes_per_second: Some(bytes_per_second), ..self }
    }
}

impl PrepareOptions {
    /// The tables to prepare.
    pub(crate) fn tables(&self, store: &Store) -> Result<Vec<Located>, StoreError> {
        let generations = store.shared.volume.generations();
        let Some(id) = self.generation else { return Ok(latest_tables(generations)) };
        let found = generations.iter().find(|generation| generation.id == id);
        let name = found.ok_or(VolumeError::NoSuchGeneration { id })?.name.clone();
        Ok(latest_tables_by(generations, |it| match it.name == name {
            true if it.id == id => u64::MAX,
            true => 0,
            false => it.shown,
        }))
    }

    pub(crate) fn pace(&self) -> Pace {
        Pace { began: Instant::now(), bytes: 0, rate: self.bytes_per_second }
    }
}

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
    /// of its tables is not there. Then [`Store::switch`], and [`adopt`](Self::adopt).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
    /// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let host = store.attach_host(HostOptions::default())?;
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
        let store = Store { shared: before.store.clone() };
        let located = options.tables(&store)?;
        let mut pace = options.pace();
        // Not measured again: look-ups run.
        let (options, curves) = (before.options.clone(), before.curves.clone());
        let attached = store.attach(located, options, curves, &mut |bytes| pace.read(bytes))?;
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

/// Keeps reading below a rate.
pub(crate) struct Pace {
    began: Instant,
    bytes: u64,
    rate: Option<u64>,
}

impl Pace {
    pub(crate) fn read(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        let ahead = due.saturating_sub(self.began.elapsed());
        // Short sleeps are long ones: they come in portions.
        if ahead > Duration::from_millis(2) {
            std::thread::sleep(ahead.min(Duration::from_millis(100)));
        }
    }
}
