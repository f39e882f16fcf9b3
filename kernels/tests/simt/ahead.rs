//! Look-ups whose rows are fetched ahead: they rest between two kernels, and then are looked up or forgotten.

use fastrand::Rng;
use warprow_gpu_queues::abi::{GATE_CLOSED, GATE_INSIDE};
use warprow_kernels::abi::{BatchIds, Lookup, OutputRows, Ticket, outcome};

use crate::batch::{Batch, Varied};
use crate::buffer::Buffer;
use crate::rig::{Rig, expect};
use crate::shim::{Shim, seeds};
use crate::world::{Shape, World};

/// Nanoseconds between fetch and look-up.
const REST: u64 = 1 << 40;

/// Three look-ups of a slot, of which some are forgotten. Others that come meanwhile find it busy. Behind a closed gate, rows on drives fail.
/// How often ids were told of that no table has.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<u32, String> {
    let mut rng = Rng::with_seed(seed);
    let rich = rng.bool();
    let closed = rng.bool();
    let max_ids = rng.u64(1..700);
    let drives = if closed { 2 } else { 0 };
    let world = World::new(&mut rng, &Shape { rich, drives, sets: drives.max(1), ..Shape::without_drives(max_ids) });
    let queues: Vec<_> = (0..4).map(|_| crate::queues::unreachable()).collect();
    let descriptors = crate::queues::describe(&queues);
    world.slot.gate.memory().store_u32(GATE_CLOSED, closed.into());
    let mut launches = [0u64; 3];
    let mut told_of = 0;
    let mut time = 1_000_000_000;
    for _ in 0..3 {
        let batch = Batch::new(&mut rng, &world);
        let kept = Buffer::new(max_ids as usize);
        let small = rng.bool();
        let ticket = rng.u32(0..2);
        let whole = batch.lookup().with_ticket(ticket).with_queues(descriptors.address());
        // Where rows go is not known yet; later, the ids are the caller's again.
        let ahead = Lookup { output: OutputRows { mask: kept.address(), rows: 0, ..whole.output }, ..whole };
        let behind = Lookup {
            batch: BatchIds { ids: 0, ..whole.batch },
            output: OutputRows { kept_mask: kept.address(), ..whole.output },
            ..whole
        };
        let expected = expect(&world, &batch).by_one_block(&world, small);
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
        let mut tick = |_: bool| {
            time += 100;
            time
        };
        rig.prepare_beside(&ahead, small, &mut tick)?;
        rig.fetch(&ahead, None)?;
        if !closed && world.slot.gate.u64_at(GATE_INSIDE) == 0 {
            return Err("queues were left before they are at rest".to_owned());
        }
        rig.rest_beside(&ahead, &mut tick)?;
        if world.slot.gate.u64_at(GATE_INSIDE) != 0 {
            return Err("whoever resets a drive waits for one that rests".to_owned());
        }
        launches[ticket as usize] += 1;
        if rig.told(ticket).sequence >= launches[ticket as usize] {
            return Err("it has not ended".to_owned());
        }
        if rng.bool() {
            let other = Batch::new(&mut rng, &world);
            let before = other.out.bytes();
            let other = (other.lookup().with_ticket(2), other);
            launches[2] += 1;
            rig.run(&other.0, small)?;
            let told = rig.told(2);
            if (told.outcome, told.sequence) != (outcome::BUSY, launches[2]) || other.1.out.bytes() != before {
                return Err(format!("the slot was not busy: {told:?}"));
            }
        }
        if rng.u32(0..4) == 0 {
            rig.finish(&behind)?;
            rig.check_clear()?;
        } else {
            if batch.mask.is_some() {
                rig.mask(&behind)?;
            }
            time += REST;
            let mut tick = |_: bool| {
                time += 100;
                time
            };
            rig.expand_ahead(&behind, small, &mut tick)?;
            let told = rig.check_ended(&batch, &behind, &expected, |key| closed && key >= world.ssd_key)?;
            told_of += u32::from(told.counters.first_missing != 0);
            // Other kernels than these have the time of the machine.
            let words = rig.words(ticket);
            let at = |field: usize| words[field / 8];
            let began = at(std::mem::offset_of!(Ticket, began));
            let fetched = at(std::mem::offset_of!(Ticket, fetched));
            if small && (began < REST || fetched.wrapping_sub(began) > REST / 2) {
                return Err(format!("from {began} to {fetched}, of which it rested for {REST}"));
            }
        }
        if rig.told(ticket).sequence != launches[ticket as usize] {
            return Err(format!("{:?} after {launches:?}", rig.told(ticket)));
        }
    }
    match queues.iter().all(|queue| queue.is_untouched()) {
        true => Ok(told_of),
        false => Err("a queue was touched".to_owned()),
    }
}

pub(crate) fn resting(shim: &mut Shim, seed: u64) -> Result<(), String> {
    case(shim, seed).map(drop)
}

#[test]
fn rows_that_were_fetched_ahead_are_the_hosts() {
    let Some(mut shim) = Shim::new() else { return };
    let told_of: u32 =
        seeds(60).map(|seed| case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"))).sum();
    assert!(told_of > 4, "{told_of}");
}
