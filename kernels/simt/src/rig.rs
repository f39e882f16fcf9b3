//! A shim with a world: the launches of a look-up, one kernel after the other, in random shapes.

use std::collections::BTreeSet;

use fastrand::Rng;
use warprow_kernels::LONG_SHARED;
use warprow_kernels::abi::{
    Counters, Lookup, MISSING_IS_ERROR, SlotPlaces, SlotState, Ticket, TicketState, check_of, dedupe, expansion,
    outcome,
};

use crate::batch::Batch;
use crate::buffer::Buffer;
use crate::oracle::{self, Expected, Place};
use crate::shim::{Launch, Shim, Turn};
use crate::world::World;

/// Place of a position that is staged, in GPU memory, padding or missing: `cuda/common.cuh`.
const STAGED: u64 = 1 << 62;
const HASHED: u64 = 1 << 61;
const HERE: u64 = 1 << 63;
const PADDING: u64 = u64::MAX - 1;
const MISSING: u64 = u64::MAX;

pub struct Rig<'a> {
    pub shim: &'a mut Shim,
    pub rng: Rng,
    pub world: &'a World,
}

/// A field of a structure in a buffer.
macro_rules! field {
    ($buffer:expr, $at:expr, $type:ty, $field:ident, $load:ident) => {
        $buffer.$load($at + std::mem::offset_of!($type, $field))
    };
}

/// What a launch has told the host.
#[derive(Debug)]
pub struct Told {
    pub sequence: u64,
    pub outcome: u32,
    pub flaws: u32,
    pub gate_was_closed: u32,
    pub faults: u32,
    pub launch: u64,
    pub missing_id: u64,
    pub failures: u64,
    pub counters: Counters,
}

fn counters(buffer: &Buffer, at: usize) -> Counters {
    let counter = |i: usize| buffer.u64_at(at + i * 8);
    Counters {
        ids: counter(0),
        missing: counter(1),
        padding: counter(2),
        ids_hbm: counter(3),
        ids_dram: counter(4),
        ids_ssd: counter(5),
        failed: counter(6),
        rows_dram: counter(7),
        rows_ssd: counter(8),
        commands: counter(9),
        doorbells: counter(10),
        bytes: counter(11),
        anomalies: counter(12),
        damaged: counter(13),
        split: counter(14),
        ids_cached: counter(15),
        first_missing: counter(16),
    }
}

/// The first kernel of a large look-up.
fn begin_of(lookup: &Lookup) -> Launch {
    Launch::new("warprow_begin", 1, if lookup.plan.cache == 0 { 1 } else { 64 })
}

fn expand_of(lookup: &Lookup) -> &'static str {
    match (lookup.plan.pooled, lookup.plan.rich) {
        (0, _) if lookup.plan.cache != 0 => "warprow_expand_cached_rows",
        _ if lookup.plan.cache != 0 => "warprow_expand_cached_bags",
        (0, _) if lookup.queues.writes_output != 0 => "warprow_expand_unwritten",
        (0, 0) => "warprow_expand_rows",
        (_, 0) => "warprow_expand_bags",
        (0, _) => "warprow_expand_rich_rows",
        _ => "warprow_expand_rich_bags",
    }
}

/// Bytes of dynamic shared memory of the kernels that pool bags.
fn shared_of(lookup: &Lookup) -> u32 {
    if lookup.plan.pooled != 0 && lookup.lanes.long_bags != 0 { LONG_SHARED } else { 0 }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{what}: {got:?}, not {want:?}")) }
}

impl Rig<'_> {
    pub fn launch(&mut self, launch: Launch, lookup: &Lookup, beside: Option<Turn<'_>>) -> Result<(), String> {
        self.shim.launch(&launch, lookup, self.rng.u64(..), beside)
    }

    /// Whether a look-up takes the kernels that know of updated rows and of lists.
    fn knows(&self, lookup: &Lookup) -> bool {
        lookup.plan.overlay != 0 || self.world.is_listed()
    }

    /// Up to the unique keys; by one block if `small`.
    pub fn prepare(&mut self, lookup: &Lookup, small: bool) -> Result<(), String> {
        self.prepare_with(lookup, small, None)
    }

    /// Runs the kernels up to the unique keys, as [`prepare`](Self::prepare) does, with somebody beside the kernel that
    /// takes the lease.
    pub fn prepare_beside(&mut self, lookup: &Lookup, small: bool, beside: Turn<'_>) -> Result<(), String> {
        self.prepare_with(lookup, small, Some(beside))
    }

    fn prepare_with(&mut self, lookup: &Lookup, small: bool, beside: Option<Turn<'_>>) -> Result<(), String> {
        if small {
            let shared = lookup.batch.max_ids.max(256).next_power_of_two() as u32 * 8;
            let kernel = match (lookup.plan.cache, self.knows(lookup)) {
                (0, false) => "warprow_prepare",
                (0, _) => "warprow_prepare_updated",
                _ => "warprow_prepare_cached",
            };
            return self.launch(Launch { shared, ..Launch::new(kernel, 1, 1024) }, lookup, beside);
        }
        self.launch(begin_of(lookup), lookup, beside)?;
        self.find_uniques(lookup, None)
    }

    /// Runs the kernels up to the unique keys, as [`prepare`](Self::prepare) does, with somebody beside each kernel that looks at ids.
    pub fn prepare_beside_all(&mut self, lookup: &Lookup, small: bool, beside: Turn<'_>) -> Result<(), String> {
        if small {
            return self.prepare_with(lookup, small, Some(beside));
        }
        self.launch(begin_of(lookup), lookup, Some(&mut *beside))?;
        self.find_uniques(lookup, Some(beside))
    }

    /// What comes behind `begin`, with somebody beside the kernel that looks at ids.
    fn find_uniques(&mut self, lookup: &Lookup, beside: Option<Turn<'_>>) -> Result<(), String> {
        let walkers = self.world.walkers;
        let blocks = self.rng.u32(1..5);
        if lookup.keys.dedupe != dedupe::BITMAP {
            return self.sort(lookup, blocks, beside);
        }
        let mark = match (lookup.plan.cache, self.knows(lookup)) {
            (0, false) => "warprow_mark",
            (0, _) => "warprow_mark_updated",
            _ => "warprow_mark_cached",
        };
        self.launch(Launch::new(mark, blocks, 256), lookup, beside)?;
        self.launch(Launch::new("warprow_count", walkers, 256), lookup, None)?;
        self.launch(Launch::new("warprow_place", walkers, 256), lookup, None)
    }

    /// What comes behind `begin`, where it is no bitmap.
    fn sort(&mut self, lookup: &Lookup, blocks: u32, beside: Option<Turn<'_>>) -> Result<(), String> {
        let (collect, number) = match (lookup.keys.dedupe, self.knows(lookup)) {
            (dedupe::HASH, _) if lookup.plan.cache != 0 => ("warprow_hash_cached", "warprow_rank"),
            _ if lookup.plan.cache != 0 => ("warprow_list_cached", "warprow_number"),
            (dedupe::HASH, false) => ("warprow_hash", "warprow_rank"),
            (dedupe::HASH, _) => ("warprow_hash_updated", "warprow_rank"),
            (_, false) => ("warprow_list", "warprow_number"),
            _ => ("warprow_list_updated", "warprow_number"),
        };
        self.launch(Launch::new(collect, blocks, 256), lookup, beside)?;
        for how in 0..lookup.sort.sweeps {
            let (blocks, resident) = (self.rng.u32(1..7), self.rng.u32(0..4));
            self.launch(Launch { how, resident, ..Launch::new("warprow_sweep", blocks, 256) }, lookup, None)?;
        }
        let (blocks, resident) = (self.rng.u32(1..7), self.rng.u32(0..4));
        self.launch(Launch { resident, ..Launch::new(number, blocks, 256) }, lookup, None)
    }

    pub fn fetch(&mut self, lookup: &Lookup, beside: Option<Turn<'_>>) -> Result<(), String> {
        self.fetch_by(lookup, 0, beside)
    }

    /// All of a look-up by one kernel, or its first half; with at most `resident` blocks at once (0: all).
    pub fn few(&mut self, lookup: &Lookup, ahead: bool, resident: u32, beside: Option<Turn<'_>>) -> Result<(), String> {
        let kernel = if self.knows(lookup) { "warprow_few_updated" } else { "warprow_few" };
        let blocks = lookup.queues.sets * lookup.queues.drives + self.rng.u32(1..4);
        let shared = 14 * lookup.batch.max_ids.max(64).next_power_of_two() as u32;
        let launch = Launch { resident, shared, how: ahead.into(), ..Launch::new(kernel, blocks, 256) };
        self.launch(launch, lookup, beside)
    }

    /// Runs *fetch* with at most `resident` blocks at once; 0: all.
    pub fn fetch_by(&mut self, lookup: &Lookup, resident: u32, beside: Option<Turn<'_>>) -> Result<(), String> {
        let blocks = lookup.queues.sets * lookup.queues.drives + self.rng.u32(1..4);
        self.launch(Launch { resident, ..Launch::new("warprow_fetch", blocks, 256) }, lookup, beside)
    }

    pub fn expand(&mut self, lookup: &Lookup, small: bool) -> Result<(), String> {
        self.expand_with(lookup, small, 0, None)
    }

    /// What [`expand`](Self::expand) does, with somebody beside the kernel that writes the output, which runs as `how` says besides.
    pub fn expand_with(
        &mut self,
        lookup: &Lookup,
        small: bool,
        how: u32,
        beside: Option<Turn<'_>>,
    ) -> Result<(), String> {
        let mut blocks = self.rng.u32(1..5);
        let mut how = how | if small { expansion::ENDS } else { 0 };
        let mut ends = small;
        if lookup.plan.cache != 0 {
            let keepers = self.rng.u32(1..4);
            (blocks, how) = (blocks + keepers, how | (expansion::KEEPERS * keepers));
            if !small && lookup.keys.dedupe == dedupe::RADIX && how & expansion::FETCHED == 0 {
                (ends, how) = (true, how | expansion::ENDS | expansion::CLEARS);
            }
        }
        let launch = Launch { how, shared: shared_of(lookup), ..Launch::new(expand_of(lookup), blocks, 256) };
        self.launch(launch, lookup, beside)?;
        if ends { Ok(()) } else { self.finish(lookup) }
    }

    pub fn finish(&mut self, lookup: &Lookup) -> Result<(), String> {
        let blocks = self.rng.u32(1..5);
        self.launch(Launch::new("warprow_finish", blocks, 256), lookup, None)
    }

    /// What lets the slot rest until its rows are wanted, with somebody beside it.
    pub fn rest_beside(&mut self, lookup: &Lookup, beside: Turn<'_>) -> Result<(), String> {
        self.launch(Launch::new("warprow_rest", 1, 1), lookup, Some(beside))
    }

    pub fn mask(&mut self, lookup: &Lookup) -> Result<(), String> {
        let blocks = self.rng.u32(1..5);
        self.launch(Launch::new("warprow_mask", blocks, 256), lookup, None)
    }

    /// What is left after the rest, with somebody beside it.
    pub fn expand_ahead(&mut self, lookup: &Lookup, small: bool, beside: Turn<'_>) -> Result<(), String> {
        self.expand_with(lookup, small, expansion::FETCHED, Some(beside))
    }

    /// All of it, without drives.
    pub fn run(&mut self, lookup: &Lookup, small: bool) -> Result<(), String> {
        self.prepare(lookup, small)?;
        self.fetch(lookup, None)?;
        self.expand(lookup, small)
    }

    /// The last kernel of what one block prepared, with somebody beside it.
    pub fn expand_beside(&mut self, lookup: &Lookup, beside: Turn<'_>) -> Result<(), String> {
        let blocks = self.rng.u32(1..5);
        let kernel = expand_of(lookup);
        let (how, shared) = (expansion::ENDS, shared_of(lookup));
        self.launch(Launch { how, shared, ..Launch::new(kernel, blocks, 256) }, lookup, Some(beside))
    }

    /// All of it by one kernel, which needs neither the slot nor drives.
    pub fn direct(&mut self, lookup: &Lookup) -> Result<(), String> {
        self.direct_with(lookup, None)
    }

    /// Runs *direct* as [`direct`](Self::direct) does, with somebody beside it.
    pub fn direct_beside(&mut self, lookup: &Lookup, beside: Turn<'_>) -> Result<(), String> {
        self.direct_with(lookup, Some(beside))
    }

    fn direct_with(&mut self, lookup: &Lookup, beside: Option<Turn<'_>>) -> Result<(), String> {
        let slot = SlotPlaces { state: self.world.slot.direct.address(), ..lookup.slot };
        let lookup = Lookup { slot, ..*lookup };
        let blocks = self.rng.u32(1..5);
        let kernel = match (
            lookup.plan.pooled,
            lookup.plan.feature_count + lookup.plan.follows,
            lookup.plan.rich + u32::from(lookup.plan.overlay != 0),
        ) {
            (0, 1, 0) => "warprow_direct_one",
            (0, _, 0) => "warprow_direct_rows",
            (_, _, 0) => "warprow_direct_bags",
            (0, 1, 1) => "warprow_direct_rich_one",
            (0, _, 1) => "warprow_direct_rich_rows",
            (_, _, 1) => "warprow_direct_rich_bags",
            (0, _, _) => "warprow_direct_updated_rows",
            _ => "warprow_direct_updated_bags",
        };
        self.launch(Launch { shared: shared_of(&lookup), ..Launch::new(kernel, blocks, 256) }, &lookup, beside)
    }

    /// The unique keys that were found.
    pub fn uniques(&self) -> Vec<u64> {
        let count = field!(self.world.slot.state, 0, SlotState, uniques, u32_at);
        self.world.slot.unique.longs().into_iter().take(count as usize).collect()
    }

    /// Whether `prepare` did what the oracle says.
    pub fn check_prepared(&self, batch: &Batch, expected: &Expected) -> Result<(), String> {
        let (slot, state) = (&self.world.slot, &self.world.slot.state);
        same("uniques", &self.uniques(), &expected.uniques)?;
        same("DRAM uniques", field!(state, 0, SlotState, dram_uniques, u32_at).into(), expected.counters.rows_dram)?;
        same("counters", counters(state, std::mem::offset_of!(SlotState, counters)), expected.counters)?;
        same("flaws", field!(state, 0, SlotState, flaws, u32_at), 0)?;
        let (bits, base, numbers) = (slot.bitmap.words(), slot.base.words(), slot.numbers.words());
        let below = |key: u64| {
            let (word, first) = (key as usize / 32, key as usize / 1024 * 32);
            let whole: u32 = bits[first..word].iter().map(|word| word.count_ones()).sum();
            base[key as usize / 1024] + whole + (bits[word] & ((1 << (key % 32)) - 1)).count_ones()
        };
        for (i, (got, &want)) in slot.place.longs().into_iter().zip(&expected.places).enumerate() {
            let right = match want {
                Place::Padding => got == PADDING,
                Place::Missing => got == MISSING,
                Place::Here(_) | Place::Updated(_) => got & HERE != 0 && got < PADDING,
                Place::Key(key) if key < expected.first_key => got & HERE != 0 && got < PADDING,
                Place::Key(key) => {
                    let number = match got & (STAGED | HASHED) {
                        0 => below(got).into(),
                        STAGED => got & !STAGED,
                        _ => numbers[(got & !(STAGED | HASHED)) as usize].into(),
                    };
                    let is_bitmap = self.world.dedupe == dedupe::BITMAP;
                    got & HERE == 0
                        && (got & STAGED != 0 || is_bitmap && got == key)
                        && expected.uniques.get(number as usize) == Some(&key)
                }
            };
            if !right {
                return Err(format!("position {i} (id {}) is at {got:#x}, where {want:?} is due", batch.ids[i]));
            }
        }
        if self.world.repeats {
            let keyed =
                expected.places.iter().zip(slot.place.longs()).filter(|(want, _)| matches!(want, Place::Key(_)));
            let own: BTreeSet<u64> = keyed.map(|(_, place)| place).collect();
            same("uniques that positions have for themselves", own.len(), expected.uniques.len())?;
        }
        let statuses = slot.status.bytes();
        same("statuses", statuses[..expected.uniques.len()].iter().all(|&status| status == 1), true)
    }

    /// Whether the slot is as it was before the launch.
    pub fn check_clear(&self) -> Result<(), String> {
        let slot = &self.world.slot;
        same("bits that are left", slot.bitmap.words().iter().map(|word| word.count_ones()).sum(), 0)?;
        same("summary", slot.summary.is_zero(), true)?;
        same("what sorting has left", slot.sorting.is_zero(), true)?;
        same("slots", slot.slots.is_zero(), true)?;
        same("lease", field!(slot.state, 0, SlotState, lease, u32_at), 0)?;
        same("admitted", (0..16).all(|i| self.admitted(i) == 0), true)?;
        let blocks = |i: usize| field!(slot.counts, i * size_of::<TicketState>(), TicketState, blocks, u32_at);
        same("blocks of one kernel", (0..16).all(|i| blocks(i) == 0), true)?;
        same("expand's count", field!(slot.state, 0, SlotState, expand_left, u32_at), 0)?;
        same("finish's count", field!(slot.state, 0, SlotState, finish_left, u32_at), 0)?;
        same("inside", slot.gate.u64_at(warprow_gpu_queues::abi::GATE_INSIDE), 0)?;
        same("nothing is written past an end", self.world.is_sound(), true)
    }

    pub fn admitted(&self, ticket: usize) -> u32 {
        field!(self.world.slot.counts, ticket * size_of::<TicketState>(), TicketState, admitted, u32_at)
    }

    /// The ticket.
    pub fn told(&self, ticket: u32) -> Told {
        let (tickets, at) = (&self.world.slot.tickets, ticket as usize * size_of::<Ticket>());
        Told {
            sequence: field!(tickets, at, Ticket, sequence, u64_at),
            outcome: field!(tickets, at, Ticket, outcome, u32_at),
            flaws: field!(tickets, at, Ticket, flaws, u32_at),
            gate_was_closed: field!(tickets, at, Ticket, gate_was_closed, u32_at),
            faults: field!(tickets, at, Ticket, faults, u32_at),
            launch: field!(tickets, at, Ticket, launch, u64_at),
            missing_id: field!(tickets, at, Ticket, missing_id, u64_at),
            failures: field!(tickets, at, Ticket, failures, u64_at),
            counters: counters(tickets, at + std::mem::offset_of!(Ticket, counters)),
        }
    }

    /// The ticket, word by word.
    pub fn words(&self, ticket: u32) -> Vec<u64> {
        let at = ticket as usize * size_of::<Ticket>();
        (0..size_of::<Ticket>() / 8).map(|i| self.world.slot.tickets.u64_at(at + i * 8)).collect()
    }

    /// Whether the launch ended well: output, mask, ticket, slot. `lost` are keys whose rows could not be read.
    pub fn check_ended(
        &self,
        batch: &Batch,
        lookup: &Lookup,
        expected: &Expected,
        lost: impl Fn(u64) -> bool,
    ) -> Result<Told, String> {
        self.check_ended_at(batch, lookup, expected, &expected.lost(lost))
    }

    /// Checks what [`check_ended`](Self::check_ended) does; `lost` are positions whose rows could not be read.
    pub fn check_ended_at(
        &self,
        batch: &Batch,
        lookup: &Lookup,
        expected: &Expected,
        lost: &[bool],
    ) -> Result<Told, String> {
        let failed = expected.check_at(self.world, batch, lost)?;
        let told = self.told(lookup.slot.ticket);
        same("outcome", told.outcome, outcome::DONE)?;
        let words = self.words(lookup.slot.ticket);
        same("the ticket's check", words.last().copied(), Some(check_of(told_words(&words))))?;
        let mut want = Counters { failed, ..expected.counters };
        // Those of queues are for others to judge.
        (want.commands, want.doorbells) = (told.counters.commands, told.counters.doorbells);
        (want.bytes, want.anomalies) = (told.counters.bytes, told.counters.anomalies);
        (want.damaged, want.split) = (told.counters.damaged, told.counters.split);
        same("counters", told.counters, want)?;
        let missing_id = match want.first_missing {
            0 => 0,
            first => batch.ids[!(first | MISSING_IS_ERROR) as usize] as u64,
        };
        same("the first missing id", told.missing_id, missing_id)?;
        self.check_clear()?;
        same("nothing is written past the output", batch.is_sound(), true)?;
        Ok(told)
    }
}

/// The words of a ticket that its check is a sum over, with their places: all words but the first three times and the
/// check.
pub fn told_words(words: &[u64]) -> Vec<(usize, u64)> {
    let (all, last) = (words.iter().copied().enumerate(), words.len() - 1);
    all.filter(|&(i, _)| i < last - 8 || (last - 5..last).contains(&i)).collect()
}

/// Prepares what is expected.
pub fn expect(world: &World, batch: &Batch) -> Expected {
    oracle::prepared(world, batch)
}
