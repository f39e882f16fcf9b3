//! Look-ups of one module: a plan that grows with its batches.

use std::process;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use warprow_gpu::{BatchLen, GpuBatch, GpuExecutor, GpuOutput, GpuReport, ResidentScales};
use warprow_layout::DType;
use warprow_lookup::{Batch, Feature, HostExecutor, LookupReport, PlanOptions};

use crate::arrays::{Integers, slice};
use crate::error::ModuleError;
use crate::gpu_lanes::{Ahead, Lanes};
use crate::host_slots::{HostAhead, HostSlots};
use crate::spec::{FeatureSpec, ModuleSpec, failed_rows, mask_meaning, missing_policy};

/// What a plan has room for at first.
const LEAST: usize = 4096;

/// What looks a module's rows up.
#[derive(Clone, Debug)]
pub enum ModuleExecutor {
    /// On the host.
    Host(HostExecutor),
    /// On a GPU.
    Gpu(GpuExecutor),
}

/// Ids, offsets and weights by address, and the number of bags of each feature.
#[derive(Clone, Copy, Debug)]
pub struct ModuleBatch {
    /// The ids of all bags, feature after feature.
    pub ids: Integers,
    /// Where each bag begins.
    pub offsets: Option<Integers>,
    /// A `f32` for each id.
    pub weights: Option<usize>,
    /// Bags of each feature; of a feature that is not pooled the number of ids.
    pub bags: usize,
}

/// Address and number of the output's elements, and the address of the mask (a byte for each id).
#[derive(Clone, Copy, Debug)]
pub struct ModuleOutput {
    /// The address of the rows.
    pub rows: usize,
    /// Elements that there is room for.
    pub elements: usize,
    /// The address of the mask.
    pub mask: Option<usize>,
}

/// A batch whose rows are fetched ahead, with the plan that holds it.
pub enum ModuleAhead {
    /// On the host.
    Host(Arc<HostSlots>, HostAhead),
    /// On a GPU.
    Gpu(Arc<Lanes>, Box<Ahead>),
}

/// What a look-up did.
pub enum ModuleReport {
    /// On the host.
    Host(LookupReport),
    /// On a GPU.
    Gpu(GpuReport),
}

#[derive(Clone)]
enum Planned {
    Host(Arc<HostSlots>),
    Gpu(Arc<Lanes>),
}

/// Looks up what one module of a model asks for. Any thread may use it, several at once.
pub struct ModuleLookup {
    spec: ModuleSpec,
    dtype: DType,
    features: Vec<Feature>,
    /// Without room for batches.
    options: PlanOptions,
    /// The process that made it.
    pid: u32,
    state: RwLock<State>,
}

struct State {
    /// `None`: closed.
    executor: Option<ModuleExecutor>,
    plan: Option<Planned>,
    /// Ids and bags that the plan has room for.
    room: (usize, usize),
    /// Plans that graphs were captured with before a larger plan took their place.
    kept: Vec<Arc<Lanes>>,
}

impl ModuleBatch {
    /// The batch, in this process.
    ///
    /// # Safety
    /// All addresses are right, and nobody writes there while the result lives.
    pub unsafe fn on_host<'a>(&self) -> Batch<'a> {
        // SAFETY: the caller's promise. There is a weight for each id.
        unsafe {
            let batch = Batch::new(self.ids.ids(), self.bags);
            let batch = match &self.offsets {
                Some(offsets) => batch.with_offsets(offsets.ids()),
                None => batch,
            };
            self.weights.iter().fold(batch, |batch, &weights| batch.with_weights(slice(weights, self.ids.len)))
        }
    }

    /// The batch, on a GPU.
    fn on_gpu(&self, features: usize) -> Result<GpuBatch, ModuleError> {
        let bags = u32::try_from(self.bags)
            .map_err(|_| ModuleError::invalid("input", format!("{} bags are too many: split the batch", self.bags)))?;
        let batch = GpuBatch::new(self.ids.at as u64, BatchLen::Host(self.ids.len), bags).with_id_type(self.ids.of);
        let batch = match self.offsets {
            Some(offsets) => {
                let batch = batch.with_offsets(offsets.at as u64, offsets.of);
                let bags = features * self.bags;
                match offsets.len.checked_sub(bags) {
                    Some(0) => batch.without_end(),
                    Some(1) => batch,
                    _ => {
                        let text = format!("{} offsets, where {bags} bags have as many, or one more", offsets.len);
                        return Err(ModuleError::invalid("offsets", text));
                    }
                }
            }
            None => batch,
        };
        Ok(self.weights.iter().fold(batch, |batch, &weights| batch.with_weights(weights as u64)))
    }
}

impl ModuleOutput {
    fn on_gpu(&self, width: usize) -> GpuOutput {
        let output = GpuOutput::new(self.rows as u64, width);
        self.mask.iter().fold(output, |output, &mask| output.with_mask(mask as u64))
    }
}

impl ModuleLookup {
    /// A look-up of `spec` by an executor of its device.
    ///
    /// # Safety
    /// Where `spec` has scales, they are this process's, and stay where they are for as long as this lives, and graphs with its look-ups.
    pub unsafe fn new(spec: ModuleSpec, executor: ModuleExecutor) -> Result<Self, ModuleError> {
        if spec.scales.is_some() && matches!(executor, ModuleExecutor::Host(_)) {
            return Err(ModuleError::invalid("scales", "in GPU memory, of a module on the host".to_owned()));
        }
        let features = spec.features.iter().map(FeatureSpec::feature).collect::<Result<_, _>>()?;
        let dtype = spec.dtype()?;
        let options = PlanOptions::default()
            .with_out(dtype)
            .with_slots(spec.prefetch.saturating_add(1))
            .with_missing(missing_policy(&spec.missing)?)
            .with_failed_rows(failed_rows(&spec.on_failure)?)
            .with_mask(mask_meaning(&spec.mask)?);
        let options = if spec.prefetch > 0 { options.with_prefetch() } else { options };
        let options = if spec.options.adopting { options.with_adopt_room() } else { options };
        let state = State { executor: Some(executor), plan: None, room: (0, 0), kept: Vec::new() };
        Ok(Self { spec, dtype, features, options, pid: process::id(), state: RwLock::new(state) })
    }

    /// Scales that lie in GPU memory.
    fn scales(&self) -> Vec<ResidentScales> {
        let table = self.spec.features.first().map(|feature| feature.table.clone());
        let scales = self.spec.scales.zip(table);
        scales.map(|(it, table)| ResidentScales { table, address: it.address, bytes: it.bytes }).into_iter().collect()
    }

    /// What it looks up.
    pub fn spec(&self) -> &ModuleSpec {
        &self.spec
    }

    /// Type of the output's elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether this process is the one that made it.
    pub fn is_of_this_process(&self) -> bool {
        self.pid == process::id()
    }

    /// The plan, with room for so many ids and bags; on a GPU, whether `stream` is being captured.
    fn planned(&self, (ids, bags): (usize, usize), stream: usize) -> Result<(Planned, bool), ModuleError> {
        if !self.is_of_this_process() {
            return Err(ModuleError::Forked(self.pid));
        }
        let captured = |plan: &Planned| match plan {
            Planned::Host(_) => Ok(false),
            Planned::Gpu(lanes) => lanes.is_captured(stream),
        };
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if ids <= state.room.0
            && bags <= state.room.1
            && let Some(plan) = &state.plan
        {
            return Ok((plan.clone(), captured(plan)?));
        }
        drop(state);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State { executor, plan, room, kept } = &mut *state;
        if ids > room.0 || bags > room.1 || plan.is_none() {
            let executor = executor.as_ref().ok_or(ModuleError::Closed)?;
            let most = self.spec.max_ids;
            if let Some(most) = most.filter(|&most| ids > most) {
                let text = format!("{ids} ids, where the module was made with max_ids={most}: split the batch");
                return Err(ModuleError::invalid("input", text));
            }
            if let ModuleExecutor::Gpu(executor) = executor
                && executor.is_captured(stream as _)?
            {
                let text = "a graph is being captured, and there is no plan yet for batches of this size: call the module once before, \
                            or make it with max_ids=";
                return Err(ModuleError::invalid("input", text));
            }
            let wanted = (
                most.unwrap_or_else(|| room.0.max(LEAST).max(ids.next_power_of_two())),
                room.1.max(LEAST).max(most.unwrap_or(0)).max(bags.next_power_of_two()),
            );
            *room = (0, 0);
            // Graphs keep what they run with. It is kept here as long as they live, so that `check` tells of their failures. The queue
            // pairs of any other plan are free once nobody looks up with it.
            if let Some(Planned::Gpu(lanes)) = plan.take()
                && lanes.has_captures()
            {
                kept.push(lanes);
            }
            let options = self.options.clone().with_max(wanted.1, wanted.0);
            let (ahead, raises) = (self.spec.prefetch, self.spec.on_failure == "raise");
            *plan = Some(match executor {
                ModuleExecutor::Host(executor) => {
                    Planned::Host(Arc::new(HostSlots::new(executor, &self.features, (options, ahead), raises)?))
                }
                ModuleExecutor::Gpu(executor) => {
                    let (executor, features) = (executor.clone(), self.features.clone());
                    // SAFETY: the promise of whoever made this.
                    Planned::Gpu(Arc::new(unsafe {
                        Lanes::new(executor, features, self.scales(), (options, ahead), raises)
                    }?))
                }
            });
            *room = wanted;
        }
        let plan = plan.as_ref().ok_or_else(|| ModuleError::Bug("a plan is gone".to_owned()))?;
        Ok((plan.clone(), captured(plan)?))
    }

    /// Looks a batch up: on a GPU launches that on a stream, or captures it, after it has told what befell earlier look-ups.
    ///
    /// # Safety
    /// All addresses are right, of the device's memory, aligned, and nobody writes there until the look-up has ended.
    pub unsafe fn lookup(&self, stream: usize, batch: &ModuleBatch, out: ModuleOutput) -> Result<(), ModuleError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.planned((batch.ids.len, batch.bags), stream)? {
                (Planned::Host(slots), _) => slots.lookup(&batch.on_host(), out),
                (Planned::Gpu(lanes), captured) => {
                    let batch = batch.on_gpu(self.features.len())?;
                    lanes.lookup(stream, captured, &batch, &out.on_gpu(lanes.width()))
                }
            }
        }
    }

    /// Begins to fetch the rows of a batch: on a GPU behind what the stream was given so far, or captures that. What is
    /// needed after the rows of `behind` is fetched behind these, on a GPU; on the host no batch waits for another.
    ///
    /// # Safety
    /// As of [`lookup`](Self::lookup); on the host the batch is the caller's again when this returns.
    pub unsafe fn prefetch(
        &self,
        stream: usize,
        batch: &ModuleBatch,
        behind: Option<&ModuleAhead>,
    ) -> Result<ModuleAhead, ModuleError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.planned((batch.ids.len, batch.bags), stream)? {
                (Planned::Host(slots), _) => {
                    let held = slots.prefetch(&batch.on_host())?;
                    Ok(ModuleAhead::Host(slots, held))
                }
                (Planned::Gpu(lanes), captured) => {
                    let behind = match behind {
                        Some(ModuleAhead::Gpu(_, held)) => Some(&**held),
                        _ => None,
                    };
                    let held = lanes.prefetch(stream, captured, &batch.on_gpu(self.features.len())?, behind)?;
                    Ok(ModuleAhead::Gpu(lanes, Box::new(held)))
                }
            }
        }
    }

    fn lanes(&self) -> Result<Vec<Arc<Lanes>>, ModuleError> {
        if !self.is_of_this_process() {
            return Err(ModuleError::Forked(self.pid));
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.executor.is_none() {
            return Err(ModuleError::Closed);
        }
        state.kept.retain(|lanes| lanes.has_captures());
        let current = match &state.plan {
            Some(Planned::Gpu(lanes)) => Some(lanes.clone()),
            _ => None,
        };
        Ok(state.kept.iter().cloned().chain(current).collect())
    }

    /// Waits until all look-ups on a GPU have ended that no graph has, and tells what befell them and the runs of graphs that have
    /// ended.
    pub fn check(&self, patience: Duration) -> Result<(), ModuleError> {
        self.lanes()?.iter().try_for_each(|lanes| lanes.check(patience))
    }

    /// Starts queues anew that take no commands; whether there were any.
    pub fn recover(&self) -> Result<bool, ModuleError> {
        self.lanes()?.iter().try_fold(false, |any, lanes| Ok(any | lanes.recover()?))
    }

    /// Whether a graph has look-ups of this.
    pub fn has_captures(&self) -> bool {
        self.lanes().is_ok_and(|lanes| lanes.iter().any(|lanes| lanes.has_captures()))
    }

    /// The report of the latest look-up that is known to have ended well.
    pub fn report(&self) -> Option<ModuleReport> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        match state.plan.as_ref()? {
            Planned::Host(slots) => slots.latest().map(ModuleReport::Host),
            Planned::Gpu(lanes) => lanes.latest().map(ModuleReport::Gpu),
        }
    }

    /// Whether it was not closed.
    pub fn is_open(&self) -> bool {
        self.state.read().unwrap_or_else(PoisonError::into_inner).executor.is_some()
    }

    /// Gives slots and queue pairs back, once what was launched has ended. Calls from then on fail.
    pub fn close(&self) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let closed = State { executor: None, plan: None, room: (0, 0), kept: Vec::new() };
        let held = std::mem::replace(&mut *state, closed);
        drop(state);
        drop(held);
    }
}

impl ModuleAhead {
    /// Looks up what was fetched ahead.
    ///
    /// # Safety
    /// As of [`ModuleLookup::lookup`].
    pub unsafe fn lookup(self, stream: usize, out: ModuleOutput) -> Result<(), ModuleError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Host(slots, held) => slots.lookup_prefetched(held, out),
                Self::Gpu(lanes, held) => lanes.lookup_prefetched(stream, *held, &out.on_gpu(lanes.width())),
            }
        }
    }

    /// Forgets it.
    pub fn forget(self) {
        match self {
            Self::Host(slots, held) => slots.forget(held),
            Self::Gpu(lanes, held) => lanes.forget(*held),
        }
    }
}
