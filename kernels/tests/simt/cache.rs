//! Rows in a cache: several slots, whose launches come and go in the middle of each other's kernels, look the same tables up, in versions of other content.
//! A test's own fetch brings rows to staging. Between any two steps of a lane that runs, each published line has the whole row that its word names,
//! and what a launch has found stays as it is until the launch has ended; outputs are compared with the tables.

use std::collections::BTreeSet;

use fastrand::Rng;
use warprow_kernels::abi::{
    self, CACHE_OFF, CachePin, CacheSweep, Counters, Lookup, SlotState, cache_admission, cache_swept,
};
use warprow_kernels::{CacheClaim, CacheLines, CacheMap, CachePins, CacheShape, CacheShare};

use crate::batch::{Batch, Varied};
use crate::buffer::Buffer;
use crate::oracle::{Expected, Place};
use crate::overlay::{self, Updates, random_update, show};
use crate::rig::{Rig, expect};
use crate::shim::{Launch, Shim, seeds};
use crate::world::{Shape, World};

/// The highest bit of a place: the row lies at the address below it.
const HERE: u64 = 1 << 63;
/// In a word: the line stays; the stamp.
const PINNED: u64 = 1 << 62;
const STAMP: u64 = (1 << abi::CACHE_STAMP_BITS) - 1;
/// A place: the kernel that looked at the id has written the output.
const SERVED: u64 = u64::MAX - 2;
/// Statuses of unique rows.
const READ: u8 = 0;
const FAILED: u8 = 1;
const DAMAGED: u8 = 2;

/// How many numbers the rows of a table have.
fn numbers(table: &crate::world::Table) -> u64 {
    table.rows + if table.caches_dram { table.listed.iter().flatten().count() as u64 } else { 0 }
}

/// A cache in memory.
struct Cache {
    map: CacheMap,
    memory: Buffer,
    time: u64,
    /// Content by the number of a range: whether it is inverted, and which table's rows have it.
    ranges: Vec<Option<(bool, usize)>>,
    sweeps: u32,
    busy: u32,
    /// The words as they were checked last.
    checked: Vec<u64>,
    pins: CachePins,
    /// A kernel is about to change which rows are pinned.
    is_pinning: bool,
    /// Rows that were pinned.
    pinned: u64,
    /// By table whether it has lines to itself.
    has_own: Vec<bool>,
}

/// The lines in which rows of a table may lie.
fn lines_of(index: usize, table: &crate::world::Table, has_own: &[bool]) -> CacheLines {
    let own = has_own.get(index).is_some_and(|&has_own| has_own);
    CacheLines { owner: own.then_some(index as u32), stride: table.stride() as u32 }
}

impl Cache {
    /// `shares`: at least one of the tables has lines to itself.
    fn new(rng: &mut Rng, world: &World, slots: u64, shares: bool) -> Self {
        let cached =
            |table: &crate::world::Table| table.rows - if table.caches_dram { table.hbm } else { table.dram_end };
        let mut has_own = Vec::new();
        if shares {
            let first = rng.usize(0..world.tables.len());
            has_own = (0..world.tables.len()).map(|table| table == first || rng.u32(0..3) == 0).collect();
        }
        let mut own = 0;
        let claim = |(index, table): (usize, &crate::world::Table)| {
            let CacheLines { owner, stride } = lines_of(index, table, &has_own);
            let share = owner.map(|owner| CacheShare { owner, bytes: rng.u64(8..120) * (u64::from(stride) + 16) });
            own += share.map_or(0, |share| share.bytes);
            CacheClaim { stride, rows: numbers(table), cached: cached(table), share }
        };
        let claims: Vec<CacheClaim> = world.tables.iter().enumerate().map(claim).collect();
        let widest = claims.iter().map(|claim| u64::from(claim.stride)).max().unwrap();
        let shape = CacheShape {
            bytes: 50_304 + own + rng.u64(8..200) * (widest + 8),
            batch_rows: [1, 4, 10, 1000][rng.usize(0..4)],
            slots,
            counts: rng.u32(0..3) == 0,
        };
        let place = |base| match CacheMap::new(base, shape, &claims) {
            Ok(map) => map,
            Err(small) => CacheMap::new(base, CacheShape { bytes: small.needed, ..shape }, &claims).unwrap(),
        };
        let memory = Buffer::new(place(0).bytes() as usize);
        let map = place(memory.address());
        memory.write(0, &vec![0; map.zeroed() as usize]);
        let admission = match rng.u32(0..4) {
            _ if shape.counts => cache_admission::SKETCH,
            0 => cache_admission::CHANCE,
            _ => cache_admission::ALWAYS,
        };
        let caches_dram = world.tables.iter().any(|table| table.caches_dram).into();
        let header = abi::Cache { admission: admission.into(), chance: 3 << 30, caches_dram, ..map.header() };
        memory.write(0, header.as_bytes());
        Self {
            map,
            memory,
            time: 1_000_000,
            ranges: Vec::new(),
            sweeps: 0,
            busy: 0,
            checked: Vec::new(),
            pins: CachePins::default(),
            is_pinning: false,
            pinned: 0,
            has_own,
        }
    }

    fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Numbers for the tables of a version; 0 for tables that get none.
    fn give(&mut self, world: &World, inverted: bool) -> Vec<u32> {
        let tables = world.tables.iter().enumerate();
        tables
            .map(|(index, table)| {
                let lines = lines_of(index, table, &self.has_own);
                let Some(given) = self.map.give(lines, numbers(table)) else { return 0 };
                self.memory.write(self.map.range_from_base(given.number) as usize, given.range.as_bytes());
                self.ranges.resize(self.ranges.len().max(given.number as usize + 1), None);
                self.ranges[given.number as usize] = Some((inverted, index));
                given.number
            })
            .collect()
    }

    /// Whether the line that begins at an address is published as that of a row of a table.
    fn is_published_at(&self, address: u64, (inverted, table): (bool, usize), rank: u64, world: &World) -> bool {
        let lines = 0..self.map.lines();
        let index = lines.into_iter().find(|&index| self.map.line_from_base(index) == Some(address - self.address()));
        let row = index.and_then(|index| self.map.row_of(index, self.word(index)));
        row.is_some_and(|(number, place)| {
            self.ranges[number as usize] == Some((inverted, table)) && world.tables[table].rank_of_number(place) == rank
        })
    }

    fn clock(&self) -> u64 {
        self.memory.u64_at(0)
    }

    fn running(&self, slot: u32) -> u64 {
        self.memory.u64_at((self.map.header().running - self.address()) as usize + slot as usize * 8)
    }

    fn word(&self, index: u64) -> u64 {
        self.memory.u64_at((self.map.words().0 - self.address() + index * 8) as usize)
    }

    /// Has a line used by the latest launch, as far as its word goes, and returns the word.
    fn touch(&self, index: u64) -> u64 {
        let word = self.word(index);
        let word = word & !STAMP | (word & STAMP).max(self.clock() - 1);
        let at = self.map.words().0 - self.address() + index * 8;
        self.memory.write(at as usize, &word.to_le_bytes());
        word
    }

    fn count(&self, field: usize) -> u64 {
        self.memory.u64_at(field)
    }

    /// Lines with a row.
    fn used(&self) -> u64 {
        (0..self.map.lines()).filter(|&index| self.word(index) >> 63 != 0).count() as u64
    }

    /// Whether each line that was published since this was asked last has its row.
    fn check_new(&mut self, versions: [&World; 2]) -> Result<(), String> {
        let words: Vec<u64> = (0..self.map.lines()).map(|index| self.word(index)).collect();
        let before = std::mem::replace(&mut self.checked, words);
        let is_new = |&(index, word): &(usize, u64)| before.get(index) != Some(&word);
        self.checked
            .iter()
            .copied()
            .enumerate()
            .filter(is_new)
            .try_for_each(|(index, word)| self.check_line(versions, index as u64, word))
    }

    /// Whether each published line has its row.
    fn check(&self, versions: [&World; 2]) -> Result<(), String> {
        (0..self.map.lines()).try_for_each(|index| self.check_line(versions, index, self.word(index)))?;
        self.check_pins()?;
        if self.memory.is_sound() { Ok(()) } else { Err("something was written past the cache".to_owned()) }
    }

    /// Whether the rows that are pinned have lines, and no other line is pinned.
    fn check_pins(&self) -> Result<(), String> {
        let pinned = (0..self.map.lines()).filter(|&index| self.word(index) & PINNED != 0);
        let rows: Vec<(u32, u64)> = pinned.filter_map(|index| self.map.row_of(index, self.word(index))).collect();
        let due = || self.ranges.iter().enumerate().filter(|(number, _)| !self.map.is_retired(*number as u32));
        let due: Vec<(u32, u64)> = due()
            .flat_map(|(number, _)| self.pins.of(number as u32).into_iter().map(move |rank| (number as u32, rank)))
            .collect();
        if self.is_pinning || rows.len() == due.len() && due.iter().all(|row| rows.contains(row)) {
            return Ok(());
        }
        Err(format!("the rows {rows:?} are pinned (range, rank), where {due:?} should be"))
    }

    /// Whether the line has its row, if its word publishes it.
    fn check_line(&self, versions: [&World; 2], index: u64, word: u64) -> Result<(), String> {
        if word >> 63 == 0 {
            return Ok(());
        }
        // Ranges that nobody uses any more may still have lines.
        let Some((number, place)) = self.map.row_of(index, word) else { return Ok(()) };
        let (inverted, table) = self.ranges[number as usize].unwrap();
        let table = &versions[usize::from(inverted)].tables[table];
        let rank = table.rank_of_number(place);
        let row = table.row(rank);
        let line = self.map.line_from_base(index).unwrap();
        match self.memory.read(line as usize, row.len()) == row {
            true => Ok(()),
            false => {
                Err(format!("line {index} is published as rank {rank} of range {number}, and does not have that row"))
            }
        }
    }
}

/// A launch on its way.
struct Flight {
    batch: Batch,
    lookup: Lookup,
    expected: Expected,
    small: bool,
    ahead: bool,
    /// Positions that were found in the cache: the address, and the row; 0 and nothing, if the row was read at once.
    hits: Vec<(usize, u64, Vec<u8>)>,
    /// Positions whose row could not be read.
    lost: Vec<bool>,
    is_fetched: bool,
}

impl Flight {
    /// Positions of rows in DRAM that may be cached and were not found in lines.
    fn missed_in_dram(&self, world: &World) -> u64 {
        let is_asked = |key: u64| key < world.ssd_key && world.is_cacheable(key);
        let asked: Vec<usize> = (0..self.expected.places.len())
            .filter(|&i| matches!(self.expected.places[i], Place::Key(key) if is_asked(key)))
            .collect();
        let hits = self.hits.iter().filter(|hit| asked.contains(&hit.0)).count();
        (asked.len() - hits) as u64
    }
}

/// A slot of one of the versions.
struct Slot {
    number: u32,
    inverted: bool,
    world: World,
    flight: Option<Flight>,
}

impl Slot {
    /// Whether all that the launch has found is still there.
    fn check(&self) -> Result<(), String> {
        for (position, address, row) in self.flight.iter().flat_map(|flight| &flight.hits).filter(|hit| hit.1 != 0) {
            // SAFETY: the address lies in the cache's memory, as `begin` has checked, with room for the row; kernels in this thread alone write to it.
            let there = unsafe { std::slice::from_raw_parts(*address as *const u8, row.len()) };
            if there != row {
                return Err(format!(
                    "the row of position {position} of slot {} changed while it was being read",
                    self.number
                ));
            }
        }
        Ok(())
    }
}

/// Whether the different keys that a launch has are those of rows that were not found in lines, and those in DRAM come first.
fn check_uniques(slot: &Slot, flight: &Flight) -> Result<(), String> {
    let (world, state) = (&slot.world, &slot.world.slot.state);
    let is_hit: BTreeSet<usize> = flight.hits.iter().map(|hit| hit.0).collect();
    let keys = flight.expected.places.iter().enumerate().filter_map(|(i, place)| match place {
        Place::Key(key) if !is_hit.contains(&i) => Some(*key),
        _ => None,
    });
    let staged = |key: &u64| !flight.small || *key >= world.ssd_key || world.is_cacheable(*key);
    let due: Vec<u64> = keys.filter(staged).collect::<BTreeSet<u64>>().into_iter().collect();
    let count = state.u32_at(std::mem::offset_of!(SlotState, uniques)) as usize;
    let uniques: Vec<u64> = world.slot.unique.longs().into_iter().take(count).collect();
    let dram = state.u32_at(std::mem::offset_of!(SlotState, dram_uniques)) as usize;
    if uniques != due || dram != due.partition_point(|&key| key < world.ssd_key) {
        return Err(format!("the keys {uniques:?}, {dram} of DRAM, are to be read, where {due:?} are due"));
    }
    Ok(())
}

/// All that takes steps.
struct Scene {
    versions: [World; 2],
    start: Rng,
    shape: Shape,
    /// By the number of a table whether its rows in DRAM are cached.
    dram: Vec<bool>,
    cache: Cache,
    slots: Vec<Option<Slot>>,
    /// Of each version the ranges of its tables as they are given to slots now.
    current: [Option<Vec<u32>>; 2],
    rng: Rng,
    /// Launches that ended.
    ended: u32,
    hits: u64,
    /// Of these, of rows in DRAM.
    dram_hits: u64,
    /// Of these, of rows of tables that have lines to themselves.
    own_hits: u64,
    /// Ids of lines, of launches that ended and of those that were dropped; and ids of rows that had none, on drives or in DRAM where those are cached.
    told_hits: u64,
    told_misses: u64,
    /// The most that the clock has been at.
    latest: u64,
    /// Steps in the middle of others.
    inside: u32,
    /// Launches have the cache take each row that they read, whatever its admission says.
    admits: bool,
}

impl Scene {
    /// `caches`: rows in DRAM are cached too, at least of some tables; then some scenes have lists, and some no drive. `shares`: there are two
    /// or three tables, of which some have lines to themselves.
    fn new(seed: u64, caches: bool, shares: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let shape = Shape {
            drives: if caches && seed % 3 == 2 { 0 } else { 1 },
            listed: caches && seed % 3 == 1,
            tables: if shares { 2..4 } else { 1..3 },
            rows: 20..400,
            row_bytes: 1..=[40, 300][rng.usize(0..2)],
            rich: rng.bool(),
            cold: rng.u32(0..3) == 0 && !caches,
            ..Shape::without_drives(rng.u64(1..300))
        };
        let start = rng.fork();
        let dram: Vec<bool> = (0..3).map(|table| caches && !(table + seed).is_multiple_of(4)).collect();
        let world = || World::new(&mut start.clone(), &shape).caching_dram(|table| dram[table]);
        let versions = [world(), world().inverted()];
        let count = rng.usize(1..4);
        let cache = Cache::new(&mut rng, &versions[0], count as u64 + 3, shares);
        let admits = seed % 4 == 3;
        if admits {
            // The admission alone takes no row.
            let chance = std::mem::offset_of!(abi::Cache, chance);
            cache
                .memory
                .write(std::mem::offset_of!(abi::Cache, admission), &u64::from(cache_admission::CHANCE).to_le_bytes());
            cache.memory.write(chance, &[0; 8]);
        }
        let mut scene = Self {
            versions,
            start,
            shape,
            dram,
            cache,
            slots: Vec::new(),
            current: [None, None],
            rng,
            ended: 0,
            hits: 0,
            dram_hits: 0,
            own_hits: 0,
            told_hits: 0,
            told_misses: 0,
            latest: 0,
            inside: 0,
            admits,
        };
        for number in 0..count as u32 {
            let slot = scene.slot(number);
            scene.slots.push(Some(slot));
        }
        scene
    }

    /// A slot of some version, with ranges that the version has or gets.
    fn slot(&mut self, number: u32) -> Slot {
        let inverted = self.rng.bool();
        let ranges = match &self.current[usize::from(inverted)] {
            Some(ranges) => ranges.clone(),
            None => self.cache.give(&self.versions[0], inverted),
        };
        self.current[usize::from(inverted)] = Some(ranges.clone());
        let world = World::new(&mut self.start.clone(), &self.shape).caching_dram(|table| self.dram[table]);
        let world = if inverted { world.inverted() } else { world };
        let mut world = world.cached(self.cache.address(), number, |table| ranges[table]);
        world.dedupe = self.rng.u32(0..3);
        Slot { number, inverted, world, flight: None }
    }

    fn check(&self) -> Result<(), String> {
        self.cache.check([&self.versions[0], &self.versions[1]])?;
        self.slots.iter().flatten().try_for_each(Slot::check)
    }

    /// One step of some slot, or a sweep, by the first shim; others take steps in the middle, by the other shims.
    fn step(&mut self, shims: &mut [Shim]) -> Result<(), String> {
        let Some((shim, others)) = shims.split_first_mut() else { return Ok(()) };
        let idle: Vec<usize> = (0..self.slots.len()).filter(|&index| self.slots[index].is_some()).collect();
        if idle.is_empty() {
            return Ok(());
        }
        let index = idle[self.rng.usize(0..idle.len())];
        let mut slot = self.slots[index].take().unwrap();
        let done = self.step_of(&mut slot, shim, others);
        self.slots[index] = Some(slot);
        done?;
        self.check()
    }

    fn step_of(&mut self, slot: &mut Slot, shim: &mut Shim, others: &mut [Shim]) -> Result<(), String> {
        match &slot.flight {
            None if self.rng.u32(0..6) == 0 => {
                *slot = self.slot(slot.number);
                Ok(())
            }
            None => self.begin(slot, shim, others),
            Some(flight) if !flight.is_fetched => {
                self.fetch(slot);
                Ok(())
            }
            Some(_) => self.end(slot, shim, others),
        }
    }

    /// Runs a kernel with `run`, in whose middle others take steps now and then.
    fn beside(
        &mut self,
        slot: &Slot,
        others: &mut [Shim],
        run: impl FnOnce(&mut dyn FnMut(bool) -> u64, Rng) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut dice = self.rng.fork();
        let rig = self.rng.fork();
        let mut wrong = None;
        let mut left = others.len();
        let often = [2, 8, 40][dice.usize(0..3)];
        let mut turn = |_: bool| {
            if wrong.is_none() && left > 0 && dice.u32(0..often) == 0 {
                left -= 1;
                self.inside += u32::from(!others.is_empty());
                wrong = self.step(others).and_then(|()| slot.check()).err();
            }
            if wrong.is_none() {
                wrong = self.cache.check_new([&self.versions[0], &self.versions[1]]).err();
            }
            self.cache.time += 100;
            self.cache.time
        };
        let ran = run(&mut turn, rig);
        ran.and(wrong.map_or(Ok(()), Err))
    }

    fn begin(&mut self, slot: &mut Slot, shim: &mut Shim, others: &mut [Shim]) -> Result<(), String> {
        let batch = Batch::new(&mut self.rng, &slot.world);
        let (small, ahead) = (self.rng.bool(), self.rng.u32(0..3) == 0);
        let lookup = batch.lookup().with_ticket(self.rng.u32(0..3));
        let lookup = Lookup { plan: abi::PlanTables { admits: self.admits.into(), ..lookup.plan }, ..lookup };
        let expected = expect(&slot.world, &batch).by_one_block(&slot.world, small);
        // Who fetches rows ahead does not know yet where they go.
        let rows = if ahead { 0 } else { lookup.output.rows };
        let first = Lookup { output: abi::OutputRows { rows, ..lookup.output }, ..lookup };
        self.beside(slot, others, |turn, rng| {
            Rig { shim: &mut *shim, rng, world: &slot.world }.prepare_beside_all(&first, small, turn)
        })?;
        let mut flight = Flight {
            lost: vec![false; batch.ids.len()],
            hits: Vec::new(),
            ahead,
            is_fetched: false,
            batch,
            lookup,
            expected,
            small,
        };
        let state = &slot.world.slot.state;
        let launch = state.u64_at(std::mem::offset_of!(SlotState, cache_launch));
        let lines = self.cache.address()..self.cache.address() + self.cache.memory.len() as u64;
        for (i, place) in slot.world.slot.place.longs().into_iter().take(flight.batch.ids.len()).enumerate() {
            let Place::Key(key) = flight.expected.places[i] else { continue };
            if !slot.world.is_cacheable(key) || place & HERE == 0 {
                continue;
            }
            if place == SERVED {
                flight.hits.push((i, 0, Vec::new()));
                continue;
            }
            let (table, rank) = slot.world.row_of(key);
            let row = slot.world.tables[table].row(rank).to_vec();
            let address = place & !HERE;
            if launch == 0 || !lines.contains(&address) || !lines.contains(&(address + row.len() as u64 - 1)) {
                return Err(format!(
                    "position {i} is at {address:#x}, no line of the cache {lines:x?}, in launch {launch}"
                ));
            }
            if !self.cache.is_published_at(address, (slot.inverted, table), rank, &slot.world) {
                return Err(format!("position {i} is at {address:#x}, no line of rank {rank} of table {table}"));
            }
            flight.hits.push((i, address, row));
        }
        check_uniques(slot, &flight)?;
        // A miss in DRAM counts as its row is looked for, a miss on a drive when the launch ends.
        self.told_misses += flight.missed_in_dram(&slot.world);
        slot.flight = Some(flight);
        slot.check()
    }

    /// Brings unique rows to staging, but for some that fail or are damaged.
    fn fetch(&mut self, slot: &mut Slot) {
        let (world, flight) = (&slot.world, slot.flight.as_mut().unwrap());
        let count = world.slot.state.u32_at(std::mem::offset_of!(SlotState, uniques)) as usize;
        let uniques: Vec<u64> = world.slot.unique.longs().into_iter().take(count).collect();
        let troubled = self.rng.u32(0..3) == 0;
        for (number, key) in uniques.into_iter().enumerate() {
            let (table, rank) = world.row_of(key);
            let row = world.tables[table].row(rank);
            let status = match self.rng.u32(0..8) {
                0 if troubled && key >= world.ssd_key => FAILED,
                1 if troubled && key >= world.ssd_key => DAMAGED,
                _ => READ,
            };
            let damaged: Vec<u8> = row.iter().map(|byte| byte ^ 0x10).collect();
            world.slot.staging.write(number * world.staging_stride, if status == READ { row } else { &damaged });
            // What gathers rows of DRAM leaves their status as it is.
            if key >= world.ssd_key {
                world.slot.status.write(number, &[status]);
            }
            if status != READ {
                for (i, place) in flight.expected.places.iter().enumerate() {
                    let is_hit = flight.hits.iter().any(|(hit, ..)| *hit == i);
                    flight.lost[i] |= *place == Place::Key(key) && !is_hit;
                }
            }
        }
        flight.is_fetched = true;
    }

    fn end(&mut self, slot: &mut Slot, shim: &mut Shim, others: &mut [Shim]) -> Result<(), String> {
        let is_forgotten = self.rng.u32(0..12) == 0 && slot.flight.as_ref().is_some_and(|flight| flight.ahead);
        let how = if slot.flight.as_ref().is_some_and(|flight| flight.ahead) { abi::expansion::FETCHED } else { 0 };
        let count = slot.world.slot.state.u32_at(std::mem::offset_of!(SlotState, uniques));
        let dram = slot.world.slot.state.u32_at(std::mem::offset_of!(SlotState, dram_uniques));
        self.beside(slot, others, |turn, rng| {
            let flight = slot.flight.as_ref().unwrap();
            let mut rig = Rig { shim: &mut *shim, rng, world: &slot.world };
            match is_forgotten {
                true => rig.finish(&flight.lookup),
                false => rig.expand_with(&flight.lookup, flight.small, how, Some(turn)),
            }
        })?;
        let running = self.cache.running(slot.number);
        if running != 0 {
            return Err(format!("slot {} still has the horizon {running} after its launch", slot.number));
        }
        let flight = slot.flight.take().unwrap();
        let rig = Rig { shim, rng: self.rng.fork(), world: &slot.world };
        let hits = flight.hits.len() as u64;
        let places = &flight.expected.places;
        let is_dram = |place: &Place| matches!(place, Place::Key(key) if *key < slot.world.ssd_key);
        let dram_hits = flight.hits.iter().filter(|hit| is_dram(&places[hit.0])).count() as u64;
        let is_own = |place: &Place| matches!(place, Place::Key(key) if self.cache.has_own.get(slot.world.row_of(*key).0) == Some(&true));
        let own_hits = flight.hits.iter().filter(|hit| is_own(&places[hit.0])).count() as u64;
        self.told_hits += hits;
        self.told_misses += flight.expected.counters.ids_ssd - (hits - dram_hits);
        if is_forgotten {
            return rig.check_clear();
        }
        let rows_ssd = u64::from(count - dram);
        let counters = flight.expected.counters;
        let (ids_dram, ids_ssd) = (counters.ids_dram - dram_hits, counters.ids_ssd - (hits - dram_hits));
        let counters = Counters { ids_cached: hits, ids_dram, ids_ssd, rows_dram: dram.into(), rows_ssd, ..counters };
        let expected = Expected { counters, ..flight.expected };
        rig.check_ended_at(&flight.batch, &flight.lookup, &expected, &flight.lost)?;
        self.ended += 1;
        self.hits += hits;
        self.dram_hits += dram_hits;
        self.own_hits += own_hits;
        Ok(())
    }

    /// Pins rows of a version that has slots, or lets some go, while others go on.
    fn pin(&mut self, shims: &mut [Shim]) -> Result<(), String> {
        let (shim, others) = shims.split_first_mut().unwrap();
        let Some(ranges) = self.current[self.rng.usize(0..2)].clone() else { return Ok(()) };
        let table = self.rng.usize(0..ranges.len());
        let range = ranges[table];
        let lines =
            (0..self.cache.map.lines()).filter_map(|index| self.cache.map.row_of(index, self.cache.word(index)));
        let mut ranks: Vec<u64> = lines.filter(|row| row.0 == range).map(|row| row.1).collect();
        // Of rows that have two lines it is named once. One has none, mostly.
        ranks.push(self.rng.u64(0..self.versions[0].tables[table].rows));
        ranks.sort_unstable();
        ranks.dedup();
        self.rng.shuffle(&mut ranks);
        let pins = self.rng.u32(0..3) > 0;
        let mut chosen = Vec::new();
        for rank in ranks.into_iter().take(self.rng.usize(1..30)) {
            let is_pinned = self.cache.pins.of(range).contains(&rank);
            let mut wanted = chosen.clone();
            wanted.push(rank);
            if is_pinned != pins && (!pins || self.cache.pins.new_ones(&self.cache.map, range, &wanted).is_ok()) {
                chosen = wanted;
            }
        }
        if range == 0 || chosen.is_empty() {
            return Ok(());
        }
        let (ranks, found) = (Buffer::zeroed(chosen.len() * 8), Buffer::zeroed(chosen.len()));
        chosen.iter().enumerate().for_each(|(at, rank)| ranks.write(at * 8, &rank.to_le_bytes()));
        let (ranks_at, found_at, count) = (ranks.address(), found.address(), chosen.len() as u64);
        let cache = self.cache.address();
        let pin = CachePin { cache, ranks: ranks_at, found: found_at, count, range, pins: pins.into() };
        let mut dice = self.rng.fork();
        let seed = self.rng.u64(..);
        let (mut wrong, mut left) = (None, 8);
        self.cache.is_pinning = true;
        // Launches use the rows' lines meanwhile: what they stamp stays.
        let row = |index| self.cache.map.row_of(index, self.cache.word(index));
        let is_chosen = |&index: &u64| row(index).is_some_and(|row| row.0 == range && chosen.contains(&row.1));
        let lines: Vec<u64> = (0..self.cache.map.lines()).filter(is_chosen).collect();
        let mut touched = Vec::new();
        let mut turn = |_: bool| {
            if !lines.is_empty() && dice.u32(0..2) == 0 {
                let index = lines[dice.usize(0..lines.len())];
                if self.cache.word(index) >> 63 != 0 {
                    touched.push((index, self.cache.touch(index)));
                }
            }
            if wrong.is_none() && left > 0 && dice.u32(0..6) == 0 {
                left -= 1;
                wrong = self.step(others).err();
            }
            self.cache.time += 500;
            self.cache.time
        };
        let launch = Launch::new("warprow_pin_cache", 1, 256);
        shim.pin_cache(&launch, &pin, seed, Some(&mut turn))?;
        self.cache.is_pinning = false;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        for (index, word) in touched {
            let now = self.cache.word(index);
            if (now ^ word) & !(STAMP | PINNED) == 0 && now & STAMP < word & STAMP {
                return Err(format!("the stamp of line {index} fell from {} to {}", word & STAMP, now & STAMP));
            }
        }
        for (at, rank) in chosen.into_iter().enumerate() {
            let found = found.read(at, 1)[0];
            match (pins, found) {
                (true, 1) => {
                    self.cache.pins.add(&self.cache.map, range, rank);
                    self.cache.pinned += 1;
                }
                (true, 0) => {}
                (false, 1) => _ = self.cache.pins.remove(&self.cache.map, range, rank),
                _ => return Err(format!("rank {rank}, of which {found} lines are told, with pins = {pins}")),
            }
        }
        self.check()
    }

    /// Empties the cache, while others go on; a slot that does not end in time has it left as it is. Versions that no slot has any more lose their numbers.
    fn sweep(&mut self, shims: &mut [Shim]) -> Result<(), String> {
        let (shim, others) = shims.split_first_mut().unwrap();
        for version in 0..2 {
            let is_used = self.slots.iter().flatten().any(|slot| usize::from(slot.inverted) == version);
            if !is_used && let Some(ranges) = self.current[version].take() {
                ranges.into_iter().for_each(|number| self.cache.map.retire(number));
            }
        }
        let result = Buffer::zeroed(16);
        let (words, word_count) = self.cache.map.words();
        let sweep = CacheSweep {
            cache: self.cache.address(),
            words,
            word_count,
            timeout_ns: self.rng.u64(1_000..1_000_000),
            result: result.address(),
        };
        let mut dice = self.rng.fork();
        let seed = self.rng.u64(..);
        let mut wrong = None;
        let mut was_empty = false;
        let mut left = 8;
        let before = self.cache.used();
        self.cache.is_pinning = true;
        let mut turn = |_: bool| {
            was_empty |= self.cache.used() == 0;
            if wrong.is_none() && left > 0 && dice.u32(0..3) == 0 {
                left -= 1;
                wrong = self.step(others).err();
            }
            self.cache.time += 500;
            self.cache.time
        };
        let launch = Launch::new("warprow_sweep_cache", 1, 1024);
        shim.sweep_cache(&launch, &sweep, seed, Some(&mut turn))?;
        self.cache.is_pinning = false;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if self.cache.clock() & CACHE_OFF != 0 {
            return Err("the cache is off after a sweep".to_owned());
        }
        match result.u64_at(0) as u32 {
            cache_swept::DONE => {
                self.cache.map.swept();
                self.cache.pins.swept();
                self.cache.sweeps += 1;
                if !was_empty && self.cache.used() != 0 {
                    return Err("a sweep has left rows".to_owned());
                }
            }
            cache_swept::BUSY => {
                let late = result.u64_at(8);
                self.cache.busy += 1;
                if self.cache.used() < before || late >= self.slots.len() as u64 {
                    return Err(format!("a sweep that gave up for slot {late} has emptied lines"));
                }
            }
            other => return Err(format!("a sweep ended with {other}")),
        }
        self.check()
    }
}

/// Rows are updated that lie in lines, keys are created: look-ups find these first, and the others in their lines. How many rows were
/// found updated, and how many in lines.
fn updates(shim: &mut Shim, seed: u64, caches: bool) -> Result<[u64; 2], String> {
    let mut rng = Rng::with_seed(seed);
    let mut updates = Updates::new(60_000);
    let shape = Shape {
        drives: 1,
        tables: 1..3,
        rows: 20..200,
        row_bytes: 1..=100,
        rich: true,
        ..Shape::without_drives(rng.u64(100..300))
    };
    let world = World::new(&mut rng, &shape).overlaid(updates.map.header_at(), |_| true).caching_dram(|_| caches);
    let mut cache = Cache::new(&mut rng, &world, 3, false);
    let ranges = cache.give(&world, false);
    let mut world = world.cached(cache.address(), 1, |table| ranges[table]);
    world.dedupe = rng.u32(0..3);
    let mut found = [0, 0];
    for _ in 0..8 {
        let batch = Batch::of(&mut rng, &world, shape.max_ids);
        let small = rng.bool();
        let lookup = batch.lookup();
        let expected = expect(&world, &batch).by_one_block(&world, small);
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
        rig.prepare(&lookup, small)?;
        let places = world.slot.place.longs();
        let is_hit = |(place, want): (&u64, &Place)| {
            matches!(want, Place::Key(key) if world.is_cacheable(*key)) && place & HERE != 0
        };
        let found_in_lines = || places.iter().zip(&expected.places).filter(|&both| is_hit(both));
        let is_dram = |place: &Place| matches!(place, Place::Key(key) if *key < world.ssd_key);
        let hits = found_in_lines().count() as u64;
        let dram_hits = found_in_lines().filter(|(_, want)| is_dram(want)).count() as u64;
        let uniques = rig.uniques();
        for (number, &key) in uniques.iter().enumerate() {
            let (table, rank) = world.row_of(key);
            world.slot.staging.write(number * world.staging_stride, world.tables[table].row(rank));
            if key >= world.ssd_key {
                world.slot.status.write(number, &[READ]);
            }
        }
        rig.expand_with(&lookup, small, 0, None)?;
        let rows_ssd = uniques.iter().filter(|&&key| key >= world.ssd_key).count() as u64;
        let counters = expected.counters;
        let (ids_dram, ids_ssd) = (counters.ids_dram - dram_hits, counters.ids_ssd - (hits - dram_hits));
        let rows_dram = uniques.len() as u64 - rows_ssd;
        let counters = Counters { ids_cached: hits, ids_dram, ids_ssd, rows_dram, rows_ssd, ..counters };
        let expected = Expected { counters, ..expected };
        rig.check_ended(&batch, &lookup, &expected, |_| false)?;
        found[0] += expected.places.iter().filter(|place| matches!(place, Place::Updated(_))).count() as u64;
        found[1] += hits;
        cache.check([&world, &world])?;
        let rows = random_update(&mut rng, &world);
        for launched in updates.launches(&world, &rows).ok_or("there is no room")? {
            shim.update(&overlay::launch(), &launched, rng.u64(..), None)?;
        }
        show(&mut world, rows);
    }
    Ok(found)
}

pub(crate) fn updated(shim: &mut Shim, seed: u64) -> Result<(), String> {
    updates(shim, seed, false).map(drop)
}

pub(crate) fn updated_of_dram(shim: &mut Shim, seed: u64) -> Result<(), String> {
    updates(shim, seed, true).map(drop)
}

#[test]
fn updated_rows_go_before_those_in_lines() {
    let Some(mut shim) = Shim::new() else { return };
    for caches in [false, true] {
        let mut found = [0, 0];
        for seed in seeds(8) {
            let some = updates(&mut shim, seed, caches).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            found = [found[0] + some[0], found[1] + some[1]];
        }
        assert!(found[0] > 200 && found[1] > 200, "{caches}: {found:?}");
    }
}

/// What a scene has come to.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    ended: u32,
    hits: u64,
    dram_hits: u64,
    own_hits: u64,
    inside: u32,
    evictions: u64,
    full: u64,
    sweeps: u32,
    busy: u32,
    pinned: u64,
}

/// Some slots look up, in the middle of each other, and versions change.
pub(crate) fn scene(shim: &mut Shim, seed: u64, caches: bool, shares: bool) -> Result<Seen, String> {
    let mut scene = Scene::new(seed, caches, shares);
    let mut shims = [shim.twin(), shim.twin(), shim.twin()];
    let steps = scene.rng.u32(16..40);
    for step in 0..steps {
        match scene.rng.u32(0..12) {
            0 => scene.sweep(&mut shims),
            1..=3 => scene.pin(&mut shims),
            _ => scene.step(&mut shims),
        }
        .map_err(|wrong| format!("step {step}: {wrong}"))?;
        scene.latest = scene.latest.max(scene.cache.clock() & !abi::CACHE_OFF);
    }
    for shim_launched in &shims {
        shim.launched.extend(shim_launched.launched.iter().copied());
    }
    let count = |field| scene.cache.count(field);
    let (admissions, evictions) =
        (count(std::mem::offset_of!(abi::Cache, admissions)), count(std::mem::offset_of!(abi::Cache, evictions)));
    let swept = count(std::mem::offset_of!(abi::Cache, swept));
    if admissions - evictions - swept != scene.cache.used() {
        let used = scene.cache.used();
        return Err(format!("{used} lines are used, where {admissions} came, {evictions} went and {swept} were swept"));
    }
    let told = (count(std::mem::offset_of!(abi::Cache, hits)), count(std::mem::offset_of!(abi::Cache, misses)));
    if told != (scene.told_hits, scene.told_misses) {
        let due = (scene.told_hits, scene.told_misses);
        return Err(format!("hits and misses are counted as {told:?}, where {due:?} are due"));
    }
    // A row goes when `hold` launches and more have not used it, and no stamp is from before the clock began.
    let hold = scene.cache.map.hold();
    let ages = count(std::mem::offset_of!(abi::Cache, evicted_age));
    let most = scene.latest.saturating_sub(hold + 1);
    if ages < evictions * (hold + 1) || ages > evictions * most {
        return Err(format!(
            "{evictions} rows went at {ages} launches of age, where the clock was {} at most",
            scene.latest
        ));
    }
    let refusals = count(std::mem::offset_of!(abi::Cache, refusals));
    if scene.admits && refusals != 0 {
        return Err(format!("{refusals} rows were refused of launches that have each row admitted"));
    }
    Ok(Seen {
        ended: scene.ended,
        hits: scene.hits,
        dram_hits: scene.dram_hits,
        own_hits: scene.own_hits,
        inside: scene.inside,
        evictions,
        full: count(std::mem::offset_of!(abi::Cache, full)),
        sweeps: scene.cache.sweeps,
        busy: scene.cache.busy,
        pinned: scene.cache.pinned,
    })
}

pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    scene(shim, seed, false, false).map(drop)
}

/// As `case`, with rows of DRAM in the cache too.
pub(crate) fn case_of_dram(shim: &mut Shim, seed: u64) -> Result<(), String> {
    scene(shim, seed, true, false).map(drop)
}

/// As `case`, with tables that have lines to themselves.
pub(crate) fn case_of_shares(shim: &mut Shim, seed: u64) -> Result<(), String> {
    scene(shim, seed, seed.is_multiple_of(2), true).map(drop)
}

/// The clock comes to its end: the cache rests, and begins anew after a sweep.
pub(crate) fn worn(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut scene = Scene::new(seed, false, false);
    let mut shims = [shim.twin(), shim.twin()];
    for _ in 0..10 {
        scene.step(&mut shims)?;
    }
    let left = scene.rng.u64(0..4);
    scene.cache.memory.memory().store_u64(0, abi::CACHE_CLOCK_END - left);
    // As long as launches run that began before, nobody has moved a clock by so much.
    for _ in 0..30 {
        scene.step(&mut shims)?;
    }
    if scene.cache.clock() < abi::CACHE_CLOCK_END {
        return Ok(());
    }
    for index in 0..scene.slots.len() {
        while scene.slots[index].as_ref().is_some_and(|slot| slot.flight.is_some()) {
            scene.step(&mut shims[..1])?;
        }
    }
    let before: Vec<u64> = (0..scene.cache.map.lines()).map(|index| scene.cache.word(index)).collect();
    let hits = scene.hits;
    for _ in 0..8 {
        scene.step(&mut shims)?;
    }
    let after: Vec<u64> = (0..scene.cache.map.lines()).map(|index| scene.cache.word(index)).collect();
    if before != after || hits != scene.hits {
        return Err("a cache whose clock has come to its end is used".to_owned());
    }
    for index in 0..scene.slots.len() {
        while scene.slots[index].as_ref().is_some_and(|slot| slot.flight.is_some()) {
            scene.step(&mut shims[..1])?;
        }
    }
    scene.sweep(&mut shims[..1])?;
    let due = scene.cache.map.hold() + 1;
    if scene.cache.clock() != due {
        return Err(format!("the clock is {} after a sweep, where {due} is due", scene.cache.clock()));
    }
    for _ in 0..30 {
        scene.step(&mut shims)?;
    }
    Ok(())
}

#[test]
fn each_look_up_finds_its_own_rows() {
    let Some(all) = seen(|shim, seed| scene(shim, seed, false, false)) else { return };
    assert!(all.ended > 300 && all.hits > 1000 && all.inside > 100, "{all:?}");
    assert!(all.evictions > 100 && all.full > 10 && all.sweeps > 5 && all.busy > 5 && all.pinned > 100, "{all:?}");
}

#[test]
fn each_look_up_finds_its_own_rows_of_dram() {
    let Some(all) = seen(|shim, seed| scene(shim, seed, true, false)) else { return };
    assert!(all.ended > 300 && all.hits > all.dram_hits && all.dram_hits > 1000 && all.inside > 100, "{all:?}");
    assert!(all.evictions > 100 && all.full > 10 && all.sweeps > 5 && all.busy > 5 && all.pinned > 100, "{all:?}");
}

#[test]
fn each_look_up_finds_its_own_rows_where_tables_have_shares() {
    let Some(all) = seen(|shim, seed| scene(shim, seed, seed.is_multiple_of(2), true)) else { return };
    assert!(all.ended > 250 && all.hits > 1000 && all.dram_hits > 300 && all.inside > 100, "{all:?}");
    assert!(all.own_hits > 300 && all.hits > all.own_hits + 200, "{all:?}");
    assert!(all.evictions > 100 && all.full > 10 && all.sweeps > 5 && all.busy > 5 && all.pinned > 100, "{all:?}");
}

/// What 16 scenes have come to; `None`: nothing compiles the kernels here.
fn seen(scene: impl Fn(&mut Shim, u64) -> Result<Seen, String>) -> Option<Seen> {
    let mut all = Seen::default();
    let mut shim = Shim::new()?;
    for seed in seeds(16) {
        let seen = scene(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        all = Seen {
            ended: all.ended + seen.ended,
            hits: all.hits + seen.hits,
            dram_hits: all.dram_hits + seen.dram_hits,
            own_hits: all.own_hits + seen.own_hits,
            inside: all.inside + seen.inside,
            evictions: all.evictions + seen.evictions,
            full: all.full + seen.full,
            sweeps: all.sweeps + seen.sweeps,
            busy: all.busy + seen.busy,
            pinned: all.pinned + seen.pinned,
        };
    }
    eprintln!("{all:?}");
    Some(all)
}

#[test]
fn a_clock_that_has_come_to_its_end_rests() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(4) {
        worn(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
