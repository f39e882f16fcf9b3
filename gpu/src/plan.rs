//! Prepared look-ups on the GPU.

use std::sync::{Arc, Mutex, Weak};

use warprow_gpu_queues::{DeviceMemory, PinnedMemory};
use warprow_kernels::abi::TICKETS;
use warprow_kernels::dedupe::DedupeNeeds;
use warprow_kernels::{LaunchShape, LookupKind, PrefetchKind, SMALL_IDS, abi};

use crate::arrange::LINE;
use crate::attached::Attached;
use crate::captured_tickets::TicketChunk;
use crate::dedupe::{DedupeWay, Sizes};
use crate::describe::Description;
use crate::error::GpuError;
use crate::launch::Dimensions;
use crate::reading_plan::{Adopting, PlanStates, ReadingPlan};
use crate::scales::ResidentScales;
use crate::second_tier::SecondTier;
use crate::slot::{GpuSlot, State};
use crate::table::GpuTable;
use crate::view::View;
use warprow_lookup::DedupeMethod;
use warprow_lookup::{Feature, PlanOptions};
use warprow_store::view::lock;

/// Look-ups of a list of features on the GPU, prepared. Clones share its slots.
#[derive(Debug, Clone)]
pub struct GpuPlan {
    pub(crate) inner: Arc<Prepared>,
}

#[derive(Debug)]
pub(crate) struct Prepared {
    // Dropped first: graphs go before the kernels that they are made of.
    idle: Mutex<Vec<State>>,
    pub attached: Arc<Attached>,
    pub source: Vec<Feature>,
    pub options: PlanOptions,
    /// Scales of its tables that lie in memory.
    scales: Vec<ResidentScales>,
    /// As the plan was made: what it has room for, and what no other description in its place changes.
    pub description: Description,
    /// The tables that look-ups read at present, for as long as they may; more than one while they are replaced.
    views: Mutex<Vec<Arc<View>>>,
    /// Of each slot its state and one for each ticket, each with a description behind.
    pub states: DeviceMemory,
    /// More states, of tickets of captured look-ups, in memory of the slots.
    more_states: Mutex<Vec<PlanStates>>,
    /// Rows on drives, now or some day: slots have queues.
    pub is_cold: bool,
    /// The cache takes each row that look-ups read from a drive, whatever its admission says.
    pub admits: bool,
    /// Of plans without rows on drives, look-ups of up to so many ids read rows where they lie.
    direct_ids: u64,
    /// Look-ups of up to so many ids are one kernel, rows on drives included; 0: none are.
    few_ids: u64,
    /// How launches of many ids find different rows: not by one block.
    pub many: DedupeMethod,
    /// Of few ids, and of many.
    sharing: [Sharing; 2],
    /// Lines of 128 B of the longest row, if no row lies in DRAM; else 1. Warps that share a bag read lines of a row,
    /// not rows, and what reads over the bus cost is rows.
    pub lines_of_row: u32,
    /// Where bags have so many ids on the average, a block pools a bag; 0: never.
    pub long_bags: u32,
    /// Where its look-ups leave ids to be counted, and its number there; `None`: they leave none.
    pub sampled: Option<(u64, u32)>,
}

/// How lanes share a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    /// log₂ of the lanes that share a row, or a part of it.
    pub lanes: u32,
    /// As many, or only as many as the widest row needs.
    pub row_lanes: u32,
    /// Parts of the widest row.
    pub parts_of_row: u32,
    /// Lanes are aligned to lines of 128 B: where most rows in DRAM straddle those.
    pub by_lines: bool,
}

impl Sharing {
    /// `widest`: bytes of the longest row; `whole`: all rows are of whole 16 B.
    fn new(widest: u32, whole: bool, by_lines: bool) -> Self {
        let quads = widest / 16 + if by_lines { LINE as u32 / 16 - 1 } else { 0 };
        let lanes = quads.next_power_of_two().trailing_zeros().min(5);
        let row_lanes = if whole { quads.clamp(1, 1 << lanes) } else { 1 << lanes };
        Self { lanes, row_lanes, parts_of_row: quads.div_ceil(1 << lanes).max(1), by_lines }
    }
}

/// Look-ups of up to so many ids are one kernel, if nothing else is asked for (docs/performance/notes-gpu-drives.md).
const ONE_KERNEL_IDS: u64 = 128;

/// Bags of so many ids on the average are pooled by a block each: where the longest row has at most 384 B, and where it has more (docs/performance/notes-gpu.md).
const LONG_BAGS: [u32; 2] = [256, 128];

/// Blocks that drive queues and fit on one multiprocessor at once, by their shared memory.
const SUBMITTERS_PER_SM: u64 = 4;

/// Refuses a budget of multiprocessors that the blocks of so many queues do not fit.
fn check_budget(multiprocessors: Option<u32>, sets: u32, drives: usize) -> Result<(), GpuError> {
    let Some(most) = multiprocessors else { return Ok(()) };
    let needed = u64::from(sets).saturating_mul(drives as u64).div_ceil(SUBMITTERS_PER_SM).max(1);
    if u64::from(most) >= needed {
        return Ok(());
    }
    Err(GpuError::Unsupported(format!(
        "{sets} queue sets on {drives} drives take {needed} multiprocessors to fetch rows ahead, where {most} are allowed: allow \
         more, or give slots fewer queue sets"
    )))
}

/// As many of `sets` queue sets on so many drives as a budget of multiprocessors has one for each block; at least one.
fn sets_within(multiprocessors: Option<u32>, sets: u32, drives: u32) -> u32 {
    multiprocessors.map_or(sets, |most| (most / drives.max(1)).max(1).min(sets))
}

/// From so many ids on, reading by lines gains more than the idle lanes cost.
const MANY: u64 = 4096;

/// Bytes that a state takes, so that its description begins at a line.
const STATE: u64 = (size_of::<abi::SlotState>() as u64).next_multiple_of(LINE);

impl GpuPlan {
    pub(crate) fn new(attached: Arc<Attached>, features: &[Feature], options: PlanOptions) -> Result<Self, GpuError> {
        Self::with(attached, features, options, false, &[])
    }

    /// `admits`: the cache takes each row that its look-ups read from a drive, whatever its admission says.
    pub(crate) fn with(
        attached: Arc<Attached>,
        features: &[Feature],
        options: PlanOptions,
        admits: bool,
        scales: &[ResidentScales],
    ) -> Result<Self, GpuError> {
        let _current = attached.gpu.enter()?;
        // Who replaces tables meanwhile finds this plan, or this the tables.
        let mut plans = lock(&attached.plans);
        let view = attached.view();
        let description = Description::new(&view, features, &options, (attached.options.check_keys, scales), None)?;
        let tables = || description.tables(&view);
        let straddles = |table: &GpuTable| table.dram_rows() > 0 && mostly_straddle(table.row_stride.into());
        let by_lines = tables().any(straddles);
        let (longest, are_whole) = description.longest();
        // Rich kernels have groups of lanes within a warp.
        let whole = !description.rich && are_whole;
        let in_dram = tables().any(|table| table.dram_rows() > 0);
        let lines_of_row = if in_dram { 1 } else { longest.div_ceil(LINE as u32).max(1) };
        let long_bags =
            if in_dram || !description.are_floats() { 0 } else { LONG_BAGS[usize::from(lines_of_row >= 4)] };
        let sharing = [false, by_lines].map(|by_lines| Sharing::new(longest, whole, by_lines));
        let stride = STATE + (description.bytes.len() as u64).next_multiple_of(LINE);
        let count = u64::from(options.slots) * (1 + TICKETS as u64);
        let states = DeviceMemory::new(&attached.gpu, stride * count)?;
        let state = state_bytes(&description);
        (0..count).try_for_each(|number| states.write(number * stride, &state))?;
        let most = attached.options.direct_ids.unwrap_or(view.dram.as_ref().map_or(1 << 19, SecondTier::direct_ids));
        let sizes = sizes_of(&attached, &description, &options);
        let many = many(&attached, &options, sizes, description.keys.dram > 0)?;
        let is_cold = description.cold_rows > 0 || view.follows && options.adopt_room;
        if is_cold && options.prefetch {
            let drives = attached.store.drives().len();
            check_budget(attached.options.prefetch_multiprocessors, attached.options.queue_sets, drives)?;
        }
        let by_one_block = options.dedupe.is_none_or(|method| method == DedupeMethod::Block)
            && !attached.options.ablations.deduplication;
        if let Some(cache) = attached.cache.get().filter(|_| description.is_cached) {
            for table in description.tables(&view).filter(|table| table.cached != 0) {
                let alike = description.tables(&view).filter(|other| other.cache_lines() == table.cache_lines());
                let rows: u64 = alike.map(GpuTable::cacheable_rows).sum();
                cache.check_room(table, rows.min(options.max_ids as u64))?;
            }
        }
        let mut prepared = Prepared {
            many,
            admits,
            is_cold,
            few_ids: match is_cold && by_one_block && !description.pooled && !description.is_cached {
                true => attached.options.one_kernel_ids.unwrap_or(ONE_KERNEL_IDS).min(attached.kernels.few_ids()),
                false => 0,
            },
            direct_ids: match options.dedupe {
                _ if description.keyed_rows == 0 && !view.follows => u64::MAX,
                None => most.max(SMALL_IDS),
                Some(_) => 0,
            },
            source: features.to_vec(),
            scales: scales.to_vec(),
            views: Mutex::new(vec![view]),
            states,
            more_states: Mutex::default(),
            sharing,
            lines_of_row,
            long_bags,
            sampled: attached.sampling.as_ref().and_then(|sampling| sampling.place_of(features)),
            description,
            options,
            idle: Mutex::default(),
            attached: attached.clone(),
        };
        let slots = (0..prepared.options.slots).map(|number| State::new(&prepared, number));
        prepared.idle = Mutex::new(slots.collect::<Result<_, _>>()?);
        let inner = Arc::new(prepared);
        plans.retain(|plan| plan.strong_count() > 0);
        let reading: Weak<dyn ReadingPlan> = Arc::<Prepared>::downgrade(&inner);
        plans.push(reading);
        Ok(Self { inner })
    }

    /// Takes a slot, until it is dropped. [`GpuError::NoFreeSlot`] if all are taken.
    pub fn slot(&self) -> Result<GpuSlot, GpuError> {
        match lock(&self.inner.idle).pop() {
            Some(state) => Ok(GpuSlot::new(self.inner.clone(), state)),
            None => Err(GpuError::NoFreeSlot { slots: self.inner.options.slots }),
        }
    }

    /// Elements of an output row: all features side by side if they are pooled, else the widest.
    pub fn width(&self) -> usize {
        self.inner.description.width
    }

    /// How its largest batches' different rows are found, where that is done at all; of up to 8,192 ids it is by one
    /// block, unless the plan was asked for another way.
    pub fn dedupe(&self) -> DedupeMethod {
        if self.inner.by_one_block(self.inner.options.max_ids as u64) { DedupeMethod::Block } else { self.inner.many }
    }

    /// The latest generation among those that it reads; of each look-up,
    /// [`GpuReport::generation`](crate::GpuReport::generation).
    pub fn generation(&self) -> u64 {
        let views = lock(&self.inner.views);
        views.last().map_or(0, |view| self.inner.description.generation_in(view))
    }
}

/// A state that no launch has had, and behind it the description.
fn state_bytes(description: &Description) -> Vec<u8> {
    let state = abi::SlotState { generation: description.generation, ..Default::default() };
    let mut bytes = state.as_bytes().to_vec();
    bytes.resize(STATE as usize, 0);
    bytes.extend_from_slice(&description.bytes);
    bytes
}

/// How launches of many ids find different rows; for plans without such launches, the method that takes least memory.
fn many(attached: &Attached, options: &PlanOptions, sizes: Sizes, dram: bool) -> Result<DedupeMethod, GpuError> {
    if attached.options.ablations.deduplication {
        let only = DedupeMethod::Radix;
        if let Some(asked) = options.dedupe.filter(|&asked| asked != only) {
            return Err(GpuError::Unsupported(format!(
                "{asked:?} finds different rows: without deduplication ask for {only:?}, or for none"
            )));
        }
        return only.check(sizes).map_err(GpuError::Unsupported).map(|()| only);
    }
    if let Some(asked) = options.dedupe {
        asked.check(sizes).map_err(GpuError::Unsupported)?;
        return Ok(if asked == DedupeMethod::Block { DedupeMethod::NEVER } else { asked });
    }
    match sizes.ids > SMALL_IDS || options.prefetch && dram {
        true => Ok(DedupeMethod::of_many(sizes, attached.gpu.memory()?.1)),
        false => Ok(DedupeMethod::NEVER),
    }
}

/// What the plan's batches are, at most.
fn sizes_of(attached: &Attached, description: &Description, options: &PlanOptions) -> Sizes {
    let sizes = description.sizes(options.max_ids as u64, attached.options.adopting);
    if attached.options.ablations.deduplication { Sizes { uniques: sizes.ids, ..sizes } } else { sizes }
}

impl Prepared {
    /// Where its look-ups find the cache; 0: they ask none.
    pub(crate) fn cache_at(&self) -> u64 {
        let cache = self.attached.cache.get().filter(|_| self.description.is_cached);
        cache.map_or(0, |cache| cache.address())
    }

    /// How so many ids are looked up. Where no row lies on a drive, each row may be read where it lies, without
    /// deduplication. Rows in GPU memory always are. For rows in DRAM, deduplication and the order of addresses pay
    /// when there are enough ids, the sooner the larger the memory, and sooner for uniform ids than for skewed ones;
    /// this is where they pay for both (docs/performance/notes-gpu.md).
    pub(crate) fn kind(&self, ids: u64) -> LookupKind {
        if self.reads_directly() && ids <= self.direct_ids {
            LookupKind::Direct
        } else if self.by_one_kernel(ids) {
            LookupKind::Few
        } else if self.by_one_block(ids) {
            LookupKind::Small
        } else {
            LookupKind::Large
        }
    }

    /// Whether some look-ups may be one kernel that reads each row where it lies: none is on a drive, and no cache is asked.
    pub(crate) fn reads_directly(&self) -> bool {
        !self.is_cold && !self.description.is_cached
    }

    fn by_one_kernel(&self, ids: u64) -> bool {
        self.few_ids != 0 && ids <= self.few_ids
    }

    fn by_one_block(&self, ids: u64) -> bool {
        !self.attached.options.ablations.deduplication
            && self.options.dedupe.map_or(ids <= SMALL_IDS, |method| method == DedupeMethod::Block)
    }

    /// How so many ids are prefetched: rows in DRAM too, where there are some (unless one block was asked for).
    pub(crate) fn ahead(&self, ids: u64) -> PrefetchKind {
        let staged = self.description.keys.dram > 0 && self.options.dedupe.is_none();
        match (staged, self.by_one_kernel(ids)) {
            (false, true) => PrefetchKind::Few,
            (false, false) if self.by_one_block(ids) => PrefetchKind::Small,
            _ => PrefetchKind::Large,
        }
    }

    pub(crate) fn sharing(&self, ids: u64) -> Sharing {
        self.sharing[usize::from(ids >= MANY)]
    }

    /// The dimensions of its batches and outputs.
    pub(crate) fn dimensions(&self) -> Dimensions {
        let element_bytes = self.options.out.size().into();
        let Description { features, pooled, width, .. } = self.description;
        Dimensions { features, pooled, width, element_bytes }
    }

    /// What its largest batches are.
    pub(crate) fn sizes(&self) -> Sizes {
        sizes_of(&self.attached, &self.description, &self.options)
    }

    /// What a slot's launches need memory for.
    pub(crate) fn needs(&self) -> DedupeNeeds {
        let sizes = self.sizes();
        DedupeNeeds {
            ids: sizes.ids,
            // One kernel numbers the unique rows with gaps: as many as there are ids.
            uniques: sizes.uniques.max(self.few_ids.min(sizes.ids)),
            bits: if self.many == DedupeMethod::Bitmap { sizes.keys } else { 0 },
            words: self.many.words(sizes),
            slots: self.many.slots(sizes),
            parts: LaunchShape::parts(self.attached.gpu.sms()),
            stride: self.description.stride.into(),
        }
    }

    /// The shape of a launch of so many ids and rows or bags.
    pub(crate) fn shape(&self, max_ids: u64, max_rows: u64) -> LaunchShape {
        let Attached { gpu, options, .. } = &*self.attached;
        let listed = self.description.is_listed;
        LaunchShape { sms: gpu.sms(), max_ids, max_rows, gatherers: options.gatherers, listed }
    }

    /// The shape of the first half of a prefetch of so many ids.
    pub(crate) fn shape_ahead(&self, ids: u64) -> LaunchShape {
        let shape = self.shape(ids, ids);
        let most = self.attached.options.prefetch_multiprocessors;
        LaunchShape { sms: most.map_or(shape.sms, |most| shape.sms.min(most.max(1))), ..shape }
    }

    /// How many of a slot's queue sets the first half of a prefetch uses: within a budget as many as have a multiprocessor
    /// for each of their blocks, for a block that drives a queue keeps a model's larger blocks away from where it runs.
    pub(crate) fn sets_ahead(&self, sets: u32, drives: u32) -> u32 {
        sets_within(self.attached.options.prefetch_multiprocessors, sets, drives)
    }

    /// Bytes from a state to the next, and from a state to its description.
    pub(crate) fn strides(&self) -> (u64, u64) {
        (STATE + (self.description.bytes.len() as u64).next_multiple_of(LINE), STATE)
    }

    /// The state of slot `slot`, or of that slot's launches with ticket `ticket` that need no slot.
    pub(crate) fn state(&self, slot: u32, ticket: Option<usize>) -> u64 {
        let number = u64::from(slot) * (1 + TICKETS as u64) + ticket.map_or(0, |ticket| 1 + ticket as u64);
        self.states.address() + number * self.strides().0
    }

    /// Allocates tickets for captured look-ups. Look-ups that take no lease also get states, which adoptions update.
    pub(crate) fn ticket_chunk(&self, count: usize) -> Result<TicketChunk, GpuError> {
        let gpu = &self.attached.gpu;
        let tickets = Arc::new(PinnedMemory::allocate(gpu, (count * size_of::<abi::Ticket>()) as u64)?);
        let mut content = vec![0; (count * size_of::<abi::TicketState>()).next_multiple_of(LINE as usize)];
        if self.is_cold {
            return Ok(TicketChunk { count, tickets, gpu: DeviceMemory::holding(gpu, &content)?, states: None });
        }
        // Whoever replaces tables meanwhile finds these states, or these find the tables.
        let _replacing = lock(&self.attached.plans);
        let view = self.attached.view();
        let options = &self.attached.options;
        let (own, before) = (&self.description, Some(&self.description));
        let current = match options.replaces() {
            true => Some(Description::new(
                &view,
                &self.source,
                &self.options,
                (options.check_keys, &self.scales[..]),
                before,
            )?),
            false => None,
        };
        let ((stride, place), first) = (self.strides(), content.len() as u64);
        let state = state_bytes(current.as_ref().unwrap_or(own));
        for number in 1..=count {
            content.extend_from_slice(&state);
            content.resize((first + number as u64 * stride) as usize, 0);
        }
        let memory = DeviceMemory::holding(gpu, &content)?;
        let address = memory.address() + first;
        self.may_read(&view);
        lock(&self.more_states).push(PlanStates { address, stride, place, count: count as u32 });
        Ok(TicketChunk { count, tickets, gpu: memory, states: Some((address, stride)) })
    }

    pub(crate) fn give_back(&self, state: State) {
        lock(&self.idle).push(state);
    }
}

impl ReadingPlan for Prepared {
    fn states(&self) -> Vec<PlanStates> {
        let (stride, place) = self.strides();
        let count = self.options.slots * (1 + TICKETS as u32);
        let mut states = vec![PlanStates { address: self.states.address(), stride, place, count }];
        states.extend_from_slice(&lock(&self.more_states));
        states
    }

    fn describe_on(&self, view: &View) -> Result<Arc<Adopting>, GpuError> {
        let attached = &self.attached;
        let before = Some(&self.description);
        let how = (attached.options.check_keys, &self.scales[..]);
        let description = Description::new(view, &self.source, &self.options, how, before)?;
        if description.cold_rows > 0 && !self.is_cold {
            return Err(GpuError::Unfit(
                "its slots have no queues, and rows would lie on drives: plan with PlanOptions::with_adopt_room"
                    .to_owned(),
            ));
        }
        let source = DeviceMemory::new(&attached.gpu, description.bytes.len() as u64)?;
        source.write(0, &description.bytes)?;
        let generation = description.generation;
        let bytes = description.bytes.len() as u64;
        Ok(Arc::new(Adopting { generation, bytes, source }))
    }

    fn may_read(&self, view: &Arc<View>) {
        let mut views = lock(&self.views);
        if !views.iter().any(|other| Arc::ptr_eq(other, view)) {
            views.push(view.clone());
        }
    }

    fn reads_only(&self, view: &Arc<View>) {
        lock(&self.views).retain(|kept| Arc::ptr_eq(kept, view));
    }
}

/// Whether more than half of all rows that follow each other so many bytes apart (a multiple of 16) begin in one line
/// and end in another, without being made of whole lines.
fn mostly_straddle(stride: u64) -> bool {
    let step = 1 << stride.trailing_zeros().min(LINE.trailing_zeros());
    step < LINE && (stride > LINE || 2 * (stride - step) > LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_straddle_lines_as_counting_says() {
        for stride in (16..2000).step_by(16) {
            let straddling = (0..LINE).filter(|row| row * stride / LINE != (row * stride + stride - 1) / LINE).count();
            let wanted = !stride.is_multiple_of(LINE) && 2 * straddling as u64 > LINE;
            assert_eq!(mostly_straddle(stride), wanted, "{stride}");
        }
    }

    #[test]
    fn a_budget_leaves_sets_idle() {
        for (budget, sets, drives, used) in [
            (None, 2, 8, 2),
            (Some(16), 2, 8, 2),
            (Some(15), 2, 8, 1),
            (Some(8), 2, 8, 1),
            (Some(2), 2, 8, 1),
            (Some(9), 4, 3, 3),
            (Some(100), 2, 1, 2),
            (Some(4), 0, 0, 0),
        ] {
            assert_eq!(sets_within(budget, sets, drives), used, "{budget:?}, {sets} sets on {drives} drives");
        }
    }

    #[test]
    fn queues_fit_their_budget_or_are_refused() {
        for (budget, sets, drives, fits) in [
            (None, 128, 16, true),
            (Some(0), 1, 1, false),
            (Some(1), 2, 2, true),
            (Some(1), 1, 5, false),
            (Some(2), 1, 5, true),
            (Some(8), 2, 16, true),
            (Some(7), 2, 16, false),
        ] {
            match check_budget(budget, sets, drives) {
                Ok(()) => assert!(fits, "{budget:?}, {sets} sets on {drives} drives"),
                Err(GpuError::Unsupported(why)) => assert!(!fits && why.contains("allow more"), "{why}"),
                Err(other) => panic!("{other}"),
            }
        }
    }
}
