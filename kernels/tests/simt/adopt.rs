//! Descriptions that are replaced while look-ups come and go: each reads one of them, from its beginning to its end.

use std::mem::offset_of;

use fastrand::Rng;
use warprow_kernels::SMALL_IDS;
use warprow_kernels::abi::{self, Adoption, LEASE_ADOPTING, Lookup, PlanTables, SlotState, adopted};

use crate::batch::{Batch, Varied};
use crate::buffer::Buffer;
use crate::rig::{Rig, expect};
use crate::shim::{Launch, Shim, seeds};
use crate::world::{Shape, World};

/// What `warprow_adopt` does, in steps between those of others.
struct Adopter<'a> {
    state: &'a Buffer,
    description: &'a Buffer,
    versions: &'a [Vec<u8>; 2],
    /// The one to come, and how far it is copied while the lease is held.
    next: usize,
    copied: Option<usize>,
    adoptions: u32,
}

impl Adopter<'_> {
    const LEASE: usize = offset_of!(SlotState, lease);

    fn step(&mut self, rng: &mut Rng) {
        let memory = self.state.memory();
        let version = &self.versions[self.next];
        match self.copied {
            None if memory.load_u32(Self::LEASE) == 0 && rng.u32(0..4) == 0 => {
                memory.store_u32(Self::LEASE, LEASE_ADOPTING);
                self.copied = Some(0);
            }
            None => {}
            Some(copied) if copied < version.len() => {
                let end = (copied + 16 * rng.usize(1..64)).min(version.len());
                self.description.write(copied, &version[copied..end]);
                self.copied = Some(end);
            }
            Some(_) => {
                memory.store_u64(offset_of!(SlotState, generation), self.next as u64 + 1);
                memory.store_u32(Self::LEASE, memory.load_u32(Self::LEASE) & !LEASE_ADOPTING);
                (self.next, self.copied) = (1 - self.next, None);
                self.adoptions += 1;
            }
        }
    }
}

/// A few look-ups by one kernel each, while descriptions are replaced; how many adoptions there were.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<u32, String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape::without_drives(rng.u64(1..400));
    let start = rng.clone();
    let world = World::new(&mut rng, &shape);
    let other = World::new(&mut start.clone(), &shape).inverted();
    let (first, [tables, segments]) = world.description();
    let versions = [first, other.description().0];
    let description = Buffer::of(&versions[0]);
    let state = &world.slot.direct;
    state.memory().store_u64(offset_of!(SlotState, generation), 1);
    let mut adopter =
        Adopter { state, description: &description, versions: &versions, next: 1, copied: None, adoptions: 0 };
    let mut time = 1_000_000;
    for launch in 0..4 {
        let batch = Batch::new(&mut rng, &world);
        let features = description.address();
        let usual = batch.lookup().with_ticket(2);
        let lookup = Lookup {
            plan: PlanTables {
                follows: 1,
                features,
                tables: features + tables,
                segments: features + segments,
                // Of no use to who follows.
                first_feature: abi::Feature::default(),
                ..usual.plan
            },
            ..usual
        };
        let mut steps = rng.fork();
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
        rig.direct_beside(&lookup, &mut |_| {
            adopter.step(&mut steps);
            time += 100;
            time
        })?;
        let generation = world.slot.tickets.u64_at(2 * size_of::<abi::Ticket>() + offset_of!(abi::Ticket, generation));
        let read = match generation {
            1 => &world,
            2 => &other,
            none => return Err(format!("launch {launch} read generation {none}")),
        };
        expect(read, &batch).check(read, &batch, |_| false).map_err(|wrong| format!("launch {launch}: {wrong}"))?;
        let held = state.memory().load_u32(Adopter::LEASE) & !LEASE_ADOPTING;
        if held != 0 {
            return Err(format!("{held} blocks are still inside after launch {launch}"));
        }
    }
    Ok(adopter.adoptions)
}

pub(crate) fn planted(shim: &mut Shim, seed: u64) -> Result<(), String> {
    case(shim, seed).map(drop)
}

#[test]
fn a_look_up_by_many_blocks_reads_one_description() {
    let Some(mut shim) = Shim::new() else { return };
    let adoptions: u32 =
        seeds(120).map(|seed| case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"))).sum();
    assert!(adoptions > 100, "{adoptions} adoptions");
}

/// `warprow_adopt` itself, on states of which some are busy.
pub(crate) fn replacing(shim: &mut Shim, seed: u64) -> Result<(), String> {
    const STRIDE: usize = 1024;
    let mut rng = Rng::with_seed(seed);
    let count = rng.usize(1..20);
    let bytes = 16 * rng.usize(1..(STRIDE - size_of::<SlotState>()) / 16);
    let fresh: Vec<u8> = (0..bytes).map(|_| rng.u8(..)).collect();
    let source = Buffer::of(&fresh);
    let results = Buffer::zeroed(count * 4);
    let before: Vec<u8> = (0..count * STRIDE).map(|_| rng.u8(..)).collect();
    let states = Buffer::of(&before);
    let busy: Vec<bool> = (0..count).map(|_| rng.u32(0..4) == 0).collect();
    for (i, &busy) in busy.iter().enumerate() {
        states.memory().store_u32(i * STRIDE + Adopter::LEASE, if busy { rng.u32(1..9) } else { 0 });
    }
    let before = states.bytes();
    let adoption = Adoption {
        states: states.address(),
        stride: STRIDE as u64,
        place: size_of::<SlotState>() as u64,
        source: source.address(),
        bytes: bytes as u64,
        generation: 77,
        results: results.address(),
        timeout_ns: 50_000,
    };
    shim.adopt(&Launch::new("warprow_adopt", count as u32, 64), &adoption, rng.u64(..), None)?;
    for (i, &busy) in busy.iter().enumerate() {
        let mut wanted = before[i * STRIDE..(i + 1) * STRIDE].to_vec();
        if !busy {
            wanted[size_of::<SlotState>()..][..bytes].copy_from_slice(&fresh);
            wanted[offset_of!(SlotState, generation)..][..8].copy_from_slice(&77u64.to_le_bytes());
        }
        let result = if busy { adopted::BUSY } else { adopted::DONE };
        if states.read(i * STRIDE, STRIDE) != wanted || results.u32_at(i * 4) != result {
            return Err(format!("state {i}, busy: {busy}, result {}", results.u32_at(i * 4)));
        }
    }
    if states.is_sound() && results.is_sound() { Ok(()) } else { Err("something lies past an end".to_owned()) }
}

#[test]
fn the_kernel_replaces_what_is_free_and_leaves_what_is_not() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(20) {
        replacing(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// `warprow_adopt` beside launches: one that takes a free lease has it to itself; blocks that come while tables are replaced count
/// themselves in, and find the new description when they may read.
pub(crate) fn replacing_beside(shim: &mut Shim, seed: u64) -> Result<(), String> {
    const STRIDE: usize = 1024;
    let mut rng = Rng::with_seed(seed);
    let count = rng.usize(1..4);
    let bytes = STRIDE - size_of::<SlotState>().next_multiple_of(16);
    let fresh: Vec<u8> = (0..bytes).map(|_| rng.u8(..)).collect();
    let source = Buffer::of(&fresh);
    let results = Buffer::zeroed(count * 4);
    let states = Buffer::zeroed(count * STRIDE);
    let place = size_of::<SlotState>().next_multiple_of(16);
    let adoption = Adoption {
        states: states.address(),
        stride: STRIDE as u64,
        place: place as u64,
        source: source.address(),
        bytes: bytes as u64,
        generation: 77,
        results: results.address(),
        timeout_ns: 1_000_000_000,
    };
    /// What goes on beside the kernel, in one state.
    #[derive(Clone, Copy, Default)]
    struct Beside {
        /// A launch has the lease.
        launch: bool,
        /// Blocks that wait for the adoption's end.
        blocks: u32,
        adopting: bool,
        adopted: bool,
    }
    let mut beside = vec![Beside::default(); count];
    let mut wrong = None;
    let mut time = 1_000_000;
    let memory = states.memory();
    let mut dice = rng.fork();
    let mut turn = |_: bool| {
        for (i, it) in beside.iter_mut().enumerate() {
            let lease = i * STRIDE + Adopter::LEASE;
            let description = i * STRIDE + place;
            let now = memory.load_u32(lease);
            let adopting = now & LEASE_ADOPTING != 0;
            if it.launch && adopting {
                wrong.get_or_insert(format!("state {i} is adopted for under a launch"));
            }
            if it.adopting && !adopting {
                it.adopted = true;
                if states.read(description, bytes) != fresh {
                    wrong.get_or_insert(format!("state {i} is given back before it is whole"));
                }
            }
            it.adopting = adopting;
            if adopting && it.blocks < 3 && dice.u32(0..2) == 0 {
                memory.store_u32(lease, now + 1);
                it.blocks += 1;
            } else if now == 0 && !it.adopted && dice.u32(0..2) == 0 {
                memory.store_u32(lease, 1);
                it.launch = true;
            } else if it.launch && dice.u32(0..3) == 0 {
                memory.store_u32(lease, 0);
                it.launch = false;
            }
        }
        time += 100;
        time
    };
    let launch = Launch::new("warprow_adopt", count as u32, 64);
    shim.adopt(&launch, &adoption, rng.u64(..), Some(&mut turn))?;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    for (i, it) in beside.iter().enumerate() {
        let lease = memory.load_u32(i * STRIDE + Adopter::LEASE);
        // A launch may have begun after the last turn's adoption had ended: then it alone is there.
        let due = if it.launch { 1 } else { it.blocks };
        if lease != due || results.u32_at(i * 4) != adopted::DONE {
            return Err(format!("state {i}: lease {lease:#x}, where {due} are inside"));
        }
        if states.read(i * STRIDE + place, bytes) != fresh {
            return Err(format!("state {i} has not the new description"));
        }
    }
    Ok(())
}

#[test]
fn the_kernel_replaces_beside_launches() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(100) {
        replacing_beside(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// A launch whose slot is being adopted for when it begins.
pub(crate) fn waiting(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape::without_drives(rng.u64(1..300));
    let world = World::new(&mut rng, &shape);
    let batch = Batch::new(&mut rng, &world);
    let lookup = batch.lookup();
    let small = rng.bool();
    assert!(lookup.batch.max_ids <= SMALL_IDS);
    let lease = world.slot.state.memory();
    // It has begun before the launch, or begins when the lease is still free.
    let mut left = rng.u32(0..6);
    let mut began = rng.bool();
    let mut wrong = false;
    let mut time = 1_000_000;
    if began {
        lease.store_u32(Adopter::LEASE, LEASE_ADOPTING);
    }
    let mut dice = rng.fork();
    let mut rig = Rig { shim, rng: rng.fork(), world: &world };
    let mut beside = |_: bool| {
        let now = lease.load_u32(Adopter::LEASE);
        if began && left > 0 {
            wrong |= now & LEASE_ADOPTING == 0;
            left -= 1;
            if left == 0 {
                lease.store_u32(Adopter::LEASE, now & !LEASE_ADOPTING);
            }
        } else if !began && now == 0 && dice.u32(0..8) == 0 {
            lease.store_u32(Adopter::LEASE, LEASE_ADOPTING);
            (began, left) = (true, left.max(1));
        } else if began && now == LEASE_ADOPTING {
            lease.store_u32(Adopter::LEASE, 0);
        }
        time += 100;
        time
    };
    rig.prepare_beside(&lookup, small, &mut beside)?;
    if wrong || (began && left > 0) {
        return Err("the launch takes what is being adopted for".to_owned());
    }
    rig.fetch(&lookup, None)?;
    rig.expand(&lookup, small)?;
    let expected = expect(&world, &batch).by_one_block(&world, small);
    rig.check_ended(&batch, &lookup, &expected, |_| false).map(drop)
}

#[test]
fn a_slot_whose_lease_is_an_adoption_s_is_waited_for() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(20) {
        waiting(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
