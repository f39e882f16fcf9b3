//! Plans that go over to other tables while their look-ups run, captured ones too.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use warprow_gpu_queues::{DeviceMemory, Registered};
use warprow_kernels::abi::{self, adopted};

use crate::describe::Description;
use crate::launch::Stream;
use crate::plan::Prepared;
use crate::view::View;
use crate::{GpuError, GpuExecutor};
use warprow_lookup::PrepareOptions;
use warprow_store::view::lock;

/// How long a kernel may take to begin, behind whatever else the GPU does.
const GRACE: Duration = Duration::from_secs(10);

/// Tables that the plans of an executor can go over to, in places of their own on the GPU. It pins their generations.
#[derive(Debug)]
pub struct GpuUpcoming {
    executor: GpuExecutor,
    view: Arc<View>,
    plans: Vec<(Weak<Prepared>, Arc<Adopting>)>,
}

/// A plan's new description.
#[derive(Debug)]
struct Adopting {
    generation: u64,
    bytes: u64,
    source: DeviceMemory,
}

/// A replacement of descriptions that was launched, with all that its kernel uses and what is read by it: kept until it has ended.
#[derive(Debug)]
pub(crate) struct Attempt {
    adopting: Arc<Adopting>,
    /// What became of each state.
    results: Registered,
    view: Arc<View>,
}

impl Adopting {
    fn new(plan: &Prepared, view: &View) -> Result<Arc<Self>, GpuError> {
        let attached = &plan.attached;
        let before = Some(&plan.description);
        let description = Description::new(view, &plan.source, &plan.options, attached.options.check_keys, before)?;
        if description.cold_rows > 0 && !plan.is_cold {
            return Err(GpuError::Unfit(
                "its slots have no queues, and rows would lie on drives: plan with PlanOptions::with_growth".to_owned(),
            ));
        }
        let source = DeviceMemory::new(&attached.gpu, description.bytes.len() as u64)?;
        source.write(0, &description.bytes)?;
        let (generation, bytes) = (description.generation, description.bytes.len() as u64);
        Ok(Arc::new(Self { generation, bytes, source }))
    }
}

impl Attempt {
    fn new(plan: &Prepared, adopting: Arc<Adopting>, view: Arc<View>) -> Result<Self, GpuError> {
        let results = Registered::allocate(&plan.attached.gpu, u64::from(plan.state_count()) * 4)?;
        Ok(Self { adopting, results, view })
    }

    /// Launches it for the states of `plan`.
    fn begin(&self, plan: &Prepared, stream: &Stream, patience: Duration) -> Result<(), GpuError> {
        let (stride, place) = plan.strides();
        let adoption = abi::Adoption {
            states: plan.states.address(),
            stride,
            place,
            source: self.adopting.source.address(),
            bytes: self.adopting.bytes,
            generation: self.adopting.generation,
            results: self.results.address(),
            timeout_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2),
        };
        #[allow(unsafe_code, reason = "the kernel writes to the plan's states")]
        // SAFETY: the states are the plan's and as many; source and results live until they say that it has ended, for the executor
        // keeps this attempt until then; the description has the bytes that the plan's states have room for.
        unsafe {
            stream.adopt(&plan.attached.kernels, &adoption, plan.state_count())
        }
    }

    /// How many of the states are in each of the ways of [`adopted`].
    fn count(&self, states: u32, what: u32) -> usize {
        (0..states as usize).filter(|state| self.results.memory().load_u32(state * 4) == what).count()
    }
}

impl GpuExecutor {
    /// Prepares other tables beside those that look-ups read, which go on: with GPU memory and DRAM of their own, as much as the
    /// others have. Then [`Store::switch`](warprow_store::Store::switch), and [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] if the executor was not attached with [`GpuOptions::following`](crate::GpuOptions::following),
    /// [`GpuError::Unfit`] if a plan has no room for them, what memory and drives say. Nothing is changed then.
    pub fn prepare(&self, options: &PrepareOptions) -> Result<GpuUpcoming, GpuError> {
        let attached = &self.inner;
        if !attached.options.following {
            return Err(GpuError::Unsupported(
                "the executor keeps to its tables: attach it with GpuOptions::with_following".to_owned(),
            ));
        }
        let store = &attached.store;
        let mut pace = options.pace();
        let located = options.tables(store)?;
        let overlay = attached.overlay.as_ref();
        if overlay.is_none() {
            crate::executor::check_updates(&located)?;
        }
        let (gpu, mut read) = (&attached.gpu, |bytes| pace.read(bytes));
        let view = View::new(store, located, gpu, &attached.options, overlay, &mut read)?;
        let view = Arc::new(view);
        let plans: Vec<Weak<Prepared>> = lock(&attached.plans).clone();
        let plans = plans.iter().filter_map(|weak| Some((weak.clone(), weak.upgrade()?)));
        let plans = plans.map(|(weak, plan)| Ok((weak, Adopting::new(&plan, &view)?)));
        let plans = plans.collect::<Result<_, GpuError>>()?;
        Ok(GpuUpcoming { executor: self.clone(), view, plans })
    }

    /// Goes over to what was prepared: look-ups that begin after this has returned read it, in all plans of this executor and its
    /// clones, captured ones too; each look-up reads the tables before or these, never some of both. Look-ups that come in the
    /// microseconds in which a slot's description is replaced wait for that; none waits for those that run, but this call, up
    /// to `patience`.
    ///
    /// # Errors
    /// [`GpuError::Unfit`] if `upcoming` is another executor's, or does not fit a plan that was made since: nothing is changed.
    /// [`GpuError::QueueBusy`] if look-ups of a slot did not end in time: it reads the tables before, others these. Call it again.
    pub fn adopt(&self, upcoming: &GpuUpcoming, patience: Duration) -> Result<(), GpuError> {
        let attached = &self.inner;
        if !Arc::ptr_eq(attached, &upcoming.executor.inner) {
            return Err(GpuError::Unfit("they were prepared for another executor".to_owned()));
        }
        // Plans that are being made wait here, and begin with the new tables.
        let plans = lock(&attached.plans);
        let mut adopting = Vec::with_capacity(plans.len());
        for plan in plans.iter().filter_map(Weak::upgrade) {
            let prepared = upcoming.plans.iter().find(|(weak, _)| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(&plan)));
            let prepared = match prepared {
                Some((_, prepared)) => prepared.clone(),
                None => Adopting::new(&plan, &upcoming.view)?,
            };
            adopting.push((plan, prepared));
        }
        let mut attempts = Vec::with_capacity(adopting.len());
        for (plan, it) in adopting {
            let attempt = Arc::new(Attempt::new(&plan, it, upcoming.view.clone())?);
            attempts.push((plan, attempt));
        }
        let stream = attached.stream()?;
        attached.begin_with(upcoming.view.clone());
        // One after the other on one stream, and behind those of calls before: what comes later stays.
        let began = Instant::now();
        for (plan, attempt) in &attempts {
            plan.may_read(&attempt.view);
            lock(&attached.unended).push(attempt.clone());
            attempt.begin(plan, stream, patience)?;
        }
        let limit = patience.saturating_mul(attempts.len() as u32).saturating_add(GRACE);
        let (mut busy, mut turns) = (0, 0u32);
        for (plan, attempt) in &attempts {
            let states = plan.state_count();
            while attempt.count(states, adopted::NOT) > 0 {
                if began.elapsed() > limit {
                    return Err(GpuError::QueueBusy("the GPU does not come to replacing its tables: call it again"));
                }
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(512) {
                    stream.check()?;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            match attempt.count(states, adopted::BUSY) {
                0 => plan.reads_only(&attempt.view),
                some => busy += some,
            }
        }
        // The last has ended, and so have all before.
        lock(&attached.unended).clear();
        if busy == 0 { Ok(()) } else { Err(GpuError::QueueBusy("look-ups of it did not end in time: call it again")) }
    }
}
