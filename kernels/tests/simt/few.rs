//! Look-ups by one kernel, rows on drives included: the checks of `fetch`, and those of what blocks tell each other.

use fastrand::Rng;
use warprow_driver::Submitter;
use warprow_gpu_queues::abi::{GATE_CLOSED, GATE_INSIDE};
use warprow_kernels::abi::{
    BatchIds, LEASE_ADOPTING, Lookup, OutputRows, SlotState, Ticket, TicketState, dedupe, outcome,
};

use crate::batch::{Batch, Varied};
use crate::buffer::Buffer;
use crate::queues::describe;
use crate::rig::{Rig, expect};
use crate::ring::{Scene, TIMEOUT, crowded, failing, right, rows_of_an_lba};
use crate::shim::{Shim, seeds};
use crate::world::Shape;
use crate::{overlay, rich, sets};

/// The first scene that is not pooled, of those of this seed; a few blocks at a time, from any one on.
fn unpooled(seed: u64, scene: impl Fn(u64) -> Scene) -> Scene {
    let mut rng = Rng::with_seed(seed);
    loop {
        let scene = scene(rng.u64(..));
        if !scene.world.pooled {
            return Scene { few: true, resident: rng.u32(0..4), ..scene };
        }
    }
}

/// All tiers, several drives and sets: every row, by the commands that are due.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    right(shim, unpooled(seed, |seed| Scene::random(seed, true, TIMEOUT)))
}

pub(crate) fn crowd(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let shape = Shape { drives: 3, sets: 3, rows: 200..400, row_bytes: 200..=500, max_ids: 200, ..rows_of_an_lba() };
    let scene = Scene::new(Rng::with_seed(seed), shape, true, TIMEOUT);
    crowded(shim, Scene { few: true, ..scene }, seed)
}

pub(crate) fn statuses(shim: &mut Shim, seed: u64) -> Result<(), String> {
    failing(shim, Scene { few: true, ..Scene::simple(seed) }, seed)
}

pub(crate) fn breaking(shim: &mut Shim, seed: u64) -> Result<(), String> {
    sets::by_one_kernel(shim, seed)
}

pub(crate) fn checked(shim: &mut Shim, seed: u64) -> Result<(), String> {
    rich::damage_in(shim, unpooled(seed, rich::scene)).map(drop)
}

pub(crate) fn updated(shim: &mut Shim, seed: u64) -> Result<(), String> {
    overlay::over_drives_in(shim, unpooled(seed, rich::scene), seed).map(drop)
}

/// One row over and over, and one of each drive: some positions wait for a turn, and rows lie far from each other in staging.
pub(crate) fn repeated(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape { drives: 3, rows: 1..8, row_bytes: 1..=600, cold: true, ..Shape::without_drives(600) };
    right(shim, Scene { few: true, ..Scene::new(rng.fork(), shape, true, TIMEOUT) })
}

/// A gate that is closed before the launch or while it runs, a slot that another launch has, and one whose tables are being replaced.
pub(crate) fn turned_away(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut scene = unpooled(seed, |seed| {
        let mut rng = Rng::with_seed(seed);
        let shape = Shape { drives: rng.u32(1..=2), sets: rng.u32(1..=2), ..Shape::without_drives(300) };
        Scene::new(rng.fork(), Shape { cold: rng.bool(), ..shape }, true, TIMEOUT)
    });
    for round in 0..4 {
        let batch = Batch::of(&mut scene.rng, &scene.world, 300);
        let closing = if scene.rng.bool() { 0 } else { scene.rng.u64(0..60) };
        match scene.rng.u32(0..3) {
            0 => {
                let mut door = None;
                let launched = scene.run(shim, batch, |turn, drives| {
                    if turn >= closing && door.is_none() {
                        drives.door.close();
                        door = Some(drives.door.clone());
                    }
                })?;
                let told = scene.check(shim, &launched)?;
                if closing == 0 && told.counters.commands != 0 {
                    return Err(format!("round {round}: commands behind a closed gate: {told:?}"));
                }
                scene.drives.recover();
                if let Some(door) = door {
                    door.open();
                }
            }
            1 => busy(shim, &mut scene, &batch)?,
            _ => {
                // It waits until the lease is given back.
                let lease = std::mem::offset_of!(SlotState, lease);
                let state = scene.world.slot.state.memory().clone();
                state.store_u32(lease, LEASE_ADOPTING);
                let launched = scene.run(shim, batch, |turn, _| {
                    if turn == closing + 5 {
                        state.store_u32(lease, 0);
                    }
                })?;
                scene.check(shim, &launched)?;
            }
        }
        if scene.world.slot.gate.u64_at(GATE_INSIDE) != 0 {
            return Err(format!("round {round}: it is still inside the gate"));
        }
    }
    Ok(())
}

/// A launch that finds the lease taken says so, and writes nothing else.
fn busy(shim: &mut Shim, scene: &mut Scene, batch: &Batch) -> Result<(), String> {
    let Scene { drives, world, rng, resident, .. } = scene;
    let descriptors = describe(&drives.queues);
    let lookup = batch.lookup().with_queues(descriptors.address()).with_ticket(7);
    let lease = std::mem::offset_of!(SlotState, lease);
    let before = (batch.out.bytes(), batch.mask.as_ref().map(Buffer::bytes));
    let mut rig = Rig { shim, rng: rng.fork(), world };
    let sequence = rig.told(7).sequence;
    world.slot.state.memory().store_u32(lease, 1);
    let mut time = 1_000_000;
    rig.few(
        &lookup,
        false,
        *resident,
        Some(&mut |_| {
            time += 100;
            time
        }),
    )?;
    world.slot.state.memory().store_u32(lease, 0);
    let told = rig.told(7);
    let after = (batch.out.bytes(), batch.mask.as_ref().map(Buffer::bytes));
    if (told.outcome, told.sequence) != (outcome::BUSY, sequence + 1) || before != after {
        return Err(format!("the slot was not busy: {told:?}"));
    }
    rig.check_clear()
}

/// Rows that are fetched ahead by one kernel, and then looked up or forgotten; others that come meanwhile find the slot busy.
pub(crate) fn ahead(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut scene = unpooled(seed, |seed| {
        let mut rng = Rng::with_seed(seed);
        let shape =
            Shape { drives: rng.u32(1..=2), sets: rng.u32(1..=2), rich: rng.bool(), ..Shape::without_drives(400) };
        let scene = Scene::new(rng.fork(), Shape { cold: rng.bool(), ..shape }, true, TIMEOUT);
        // Whoever forgets clears what other plans have marked, and nothing else.
        Scene { world: scene.world.deduped_by(dedupe::BITMAP), ..scene }
    });
    let closed = scene.rng.u32(0..4) == 0;
    let mut time = 1_000_000_000;
    for _ in 0..3 {
        let batch = Batch::new(&mut scene.rng, &scene.world);
        let Scene { drives, world, rng, resident, .. } = &mut scene;
        let kept = Buffer::new(world.max_ids as usize);
        let descriptors = describe(&drives.queues);
        let whole = batch.lookup().with_queues(descriptors.address()).with_ticket(rng.u32(0..2));
        // Where rows go is not known yet; later, the ids are the caller's again.
        let first = Lookup { output: OutputRows { mask: kept.address(), rows: 0, ..whole.output }, ..whole };
        let second = Lookup {
            batch: BatchIds { ids: 0, ..whole.batch },
            output: OutputRows { kept_mask: kept.address(), ..whole.output },
            ..whole
        };
        let expected = expect(world, &batch).by_one_block(world, true);
        world.slot.gate.memory().store_u32(GATE_CLOSED, closed.into());
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world };
        let steps = drives.steps.clone().unwrap();
        let mut beside = |_| steps.turn(300);
        rig.few(&first, true, *resident, Some(&mut beside))?;
        if world.slot.gate.u64_at(GATE_INSIDE) != 0 {
            return Err("whoever resets a drive waits for one that rests".to_owned());
        }
        if rig.admitted(whole.slot.ticket as usize) != 1 {
            return Err(format!("the launch that rests is admitted as {}", rig.admitted(whole.slot.ticket as usize)));
        }
        let forgotten = rng.u32(0..4) == 0;
        if forgotten {
            rig.finish(&second)?;
            rig.check_clear()?;
            continue;
        }
        let other = Batch::new(rng, world);
        busy_beside(&mut rig, &other, descriptors.address(), *resident)?;
        if batch.mask.is_some() {
            rig.mask(&second)?;
        }
        time += 1_000_000;
        rig.expand_ahead(&second, true, &mut |_| {
            time += 100;
            time
        })?;
        let lost = scene.lost_by_one_kernel(&expected);
        if !closed && !lost.is_empty() {
            return Err(format!("{} rows were not read", lost.len()));
        }
        let rig = Rig { shim: &mut *shim, rng: scene.rng.fork(), world: &scene.world };
        rig.check_ended(&batch, &second, &expected, |key| lost.binary_search(&key).is_ok())?;
    }
    Ok(())
}

/// A look-up by another ticket finds the slot busy.
fn busy_beside(rig: &mut Rig<'_>, batch: &Batch, descriptors: u64, resident: u32) -> Result<(), String> {
    let lookup = batch.lookup().with_queues(descriptors).with_ticket(5);
    let (before, sequence) = (batch.out.bytes(), rig.told(5).sequence);
    let mut time = 1_000_000;
    rig.few(
        &lookup,
        false,
        resident,
        Some(&mut |_| {
            time += 100;
            time
        }),
    )?;
    let told = rig.told(5);
    match (told.outcome, told.sequence) == (outcome::BUSY, sequence + 1) && before == batch.out.bytes() {
        true => Ok(()),
        false => Err(format!("the slot was not busy: {told:?}")),
    }
}

/// The times of a launch follow each other, whether it read from drives or not.
pub(crate) fn times(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut scene = unpooled(seed, |seed| Scene::random(seed, true, TIMEOUT));
    for ids in [0, 1, 40] {
        let batch = Batch::of(&mut scene.rng, &scene.world, ids.min(scene.world.max_ids));
        let launched = scene.run(shim, batch, |_, _| ())?;
        scene.check(shim, &launched)?;
        let rig = Rig { shim: &mut *shim, rng: scene.rng.fork(), world: &scene.world };
        let words = rig.words(launched.lookup.slot.ticket);
        let at = |field: usize| words[field / 8];
        let times = [
            at(std::mem::offset_of!(Ticket, began)),
            at(std::mem::offset_of!(Ticket, prepared)),
            at(std::mem::offset_of!(Ticket, fetched)),
            at(std::mem::offset_of!(Ticket, ended)),
        ];
        if times[0] == 0 || !times.is_sorted() {
            return Err(format!("{times:?} of {ids} ids"));
        }
    }
    Ok(())
}

#[test]
fn a_ticket_s_state_is_read_by_one_load() {
    assert_eq!(std::mem::offset_of!(TicketState, launches), 0);
    assert_eq!(std::mem::offset_of!(TicketState, failures), 8);
    assert_eq!(size_of::<TicketState>() % 16, 0);
}

/// A check by so many seeds.
macro_rules! by_seeds {
    ($($name:ident: $check:path, $seeds:expr;)*) => {$(
        #[test]
        fn $name() {
            let Some(mut shim) = Shim::new() else { return };
            for seed in seeds($seeds) {
                $check(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            }
        }
    )*};
}

by_seeds! {
    rows_come_by_one_kernel: case, 24;
    what_blocks_count_adds_up: crowd, 16;
    bad_statuses_fail_their_rows_alone: statuses, 4;
    healthy_sets_serve_the_rows_of_others: breaking, 8;
    damaged_rows_are_lost: checked, 12;
    updated_rows_are_seen: updated, 12;
    repeated_rows_are_written_in_turns: repeated, 12;
    launches_are_turned_away: turned_away, 24;
    rows_are_fetched_ahead: ahead, 32;
    times_follow_each_other: times, 12;
}
