//! Plans that go over to other tables while their look-ups run, captured ones too.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use warprow_kernels::abi::adopted;
use warprow_lookup::PrepareOptions;
use warprow_store::view::lock;

use crate::attached::check_updates;
use crate::attempt::Attempt;
use crate::error::GpuError;
use crate::executor::GpuExecutor;
use crate::reading_plan::{Adopting, ReadingPlan};
use crate::view::{Shared, View};

/// How long a kernel may take to begin while the GPU does other work.
const GRACE: Duration = Duration::from_secs(10);

/// Tables that were prepared beside those that look-ups read, with memory of their own on the GPU, for
/// [`GpuExecutor::adopt`]. Their generations are pinned while this lives.
#[derive(Debug)]
pub struct GpuPreparedTables {
    executor: GpuExecutor,
    view: Arc<View>,
    plans: Vec<(Weak<dyn ReadingPlan>, Arc<Adopting>)>,
}

impl GpuExecutor {
    /// Prepares other tables beside those that look-ups read, which go on: with GPU memory and DRAM of their own, as
    /// much as the others have. Then [`Store::switch`](warprow_store::Store::switch), and [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] if the executor was not attached with
    /// [`GpuOptions::adopting`](crate::GpuOptions::adopting), [`GpuError::Unfit`] if a plan has no room for them, what
    /// memory and drives say. Nothing is changed then.
    pub fn prepare(&self, options: &PrepareOptions) -> Result<GpuPreparedTables, GpuError> {
        let attached = &self.inner;
        if !attached.options.adopting {
            return Err(GpuError::Unsupported(
                "the executor keeps to its tables: attach it with GpuOptions::with_adopting".to_owned(),
            ));
        }
        let store = &attached.store;
        let mut pace = options.pace();
        let located = options.tables(store)?;
        let overlay = attached.overlay.as_ref();
        if overlay.is_none() {
            check_updates(&located)?;
        }
        let gpu = &attached.gpu;
        let before = attached.view();
        let (kernels, cache, touches) = (&attached.kernels, &attached.cache, attached.touches.as_ref());
        let shared = Shared { kernels, cache, touches, before: Some(&before) };
        let view = View::new(store, located, gpu, &attached.options, overlay, shared, &mut pace)?;
        let view = Arc::new(view);
        let plans: Vec<Weak<dyn ReadingPlan>> = lock(&attached.plans).clone();
        let plans = plans.iter().filter_map(|weak| Some((weak.clone(), weak.upgrade()?)));
        let plans = plans.map(|(weak, plan)| Ok((weak, plan.describe_on(&view)?)));
        let plans = plans.collect::<Result<_, GpuError>>()?;
        Ok(GpuPreparedTables { executor: self.clone(), view, plans })
    }

    /// Goes over to what was prepared: look-ups that begin after this has returned read it, in all plans of this
    /// executor and its clones, captured ones too; each look-up reads the tables before or these, never some of both.
    /// Look-ups that come in the microseconds in which a slot's description is replaced wait for that; none waits for
    /// those that run, but this call, up to `patience`.
    ///
    /// # Errors
    /// [`GpuError::Unfit`] if `upcoming` is another executor's, or does not fit a plan that was made since: nothing is
    /// changed. [`GpuError::Busy`] if look-ups of a slot did not end in time: it reads the tables before, others these.
    /// Call it again.
    pub fn adopt(&self, upcoming: &GpuPreparedTables, patience: Duration) -> Result<(), GpuError> {
        let attached = &self.inner;
        if !Arc::ptr_eq(attached, &upcoming.executor.inner) {
            return Err(GpuError::Unfit("they were prepared for another executor".to_owned()));
        }
        // Plans that are being made wait here, and begin with the new tables.
        let plans = lock(&attached.plans);
        let mut adopting = Vec::with_capacity(plans.len());
        for plan in plans.iter().filter_map(Weak::upgrade) {
            let prepared = upcoming.plans.iter().find(|(weak, _)| std::ptr::addr_eq(weak.as_ptr(), Arc::as_ptr(&plan)));
            let prepared = match prepared {
                Some((_, prepared)) => prepared.clone(),
                None => plan.describe_on(&upcoming.view)?,
            };
            adopting.push((plan, prepared));
        }
        let mut attempts = Vec::with_capacity(adopting.len());
        for (number, (plan, it)) in adopting.iter().enumerate() {
            for states in plan.states() {
                let attempt = Attempt::new(&attached.gpu, states.count, it.clone(), upcoming.view.clone())?;
                attempts.push((number, states, Arc::new(attempt)));
            }
        }
        let stream = attached.stream()?;
        attached.begin_with(upcoming.view.clone());
        // One after the other on one stream, and behind those of calls before: what comes later stays.
        let began = Instant::now();
        adopting.iter().for_each(|(plan, _)| plan.may_read(&upcoming.view));
        for (_, states, attempt) in &attempts {
            lock(&attached.unended).push(attempt.clone());
            #[allow(unsafe_code, reason = "the kernel writes to the plan's states")]
            // SAFETY: the states are a plan's and as many, and its descriptions have room, or it would not have been
            // described; the plans are held here, and the attempt by the executor, which plans keep, until it has
            // ended.
            unsafe {
                attempt.begin(&attached.kernels, states, stream, patience)?;
            }
        }
        let limit = patience.saturating_mul(attempts.len() as u32).saturating_add(GRACE);
        let (mut busy, mut turns) = (vec![0; adopting.len()], 0u32);
        for (number, states, attempt) in &attempts {
            let states = states.count;
            while attempt.count(states, adopted::NOT) > 0 {
                if began.elapsed() > limit {
                    return Err(GpuError::Busy("the GPU does not come to replacing its tables: call it again"));
                }
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(512) {
                    stream.check()?;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            if let Some(busy) = busy.get_mut(*number) {
                *busy += attempt.count(states, adopted::BUSY);
            }
        }
        let through = adopting.iter().zip(&busy).filter(|&(_, &busy)| busy == 0);
        through.for_each(|((plan, _), _)| plan.reads_only(&upcoming.view));
        // The last has ended, and so have all before.
        lock(&attached.unended).clear();
        if busy.iter().all(|&busy| busy == 0) {
            Ok(())
        } else {
            Err(GpuError::Busy("look-ups of a slot did not end in time: call it again"))
        }
    }
}
