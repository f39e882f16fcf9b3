//! From ids to unique keys: `begin`, `mark`, `count`, `place`, `finish`; what stands in their place where it is no bitmap; and `prepare`.

use fastrand::Rng;
use warprow_gpu_queues::abi::GATE_INSIDE;
use warprow_kernels::SMALL_IDS;
use warprow_kernels::abi::{BatchIds, Lookup, OutputRows, SlotState, check_of, dedupe, flaw, outcome};

use crate::batch::{Batch, Varied, encode};
use crate::buffer::{Buffer, poison};
use crate::rig::{Rig, expect};
use crate::shim::{Shim, seeds};
use crate::world::{Shape, World};

/// Ids of a few tables, on all tiers: by one block, or as that of [`dedupe`] says.
pub(crate) fn case(shim: &mut Shim, seed: u64, way: Option<u32>) -> Result<(), String> {
    let small = way.is_none();
    let mut rng = Rng::with_seed(seed);
    let max_ids = [rng.u64(0..40), rng.u64(0..2500), SMALL_IDS][rng.usize(0..3)];
    let max_ids = if small { max_ids } else { max_ids.min(3000) };
    // Keys of several words of the summary.
    let shape = Shape {
        drives: 1,
        rows: 1..[50, 3000, 90_000][rng.usize(0..3)],
        row_bytes: 1..=8,
        ..Shape::without_drives(max_ids)
    };
    let world = World::new(&mut rng, &shape).deduped_by(way.unwrap_or(dedupe::BITMAP));
    prepared(shim, world, rng, small)
}

/// Many ids of a few tables, which are not deduplicated.
pub(crate) fn repeated(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape {
        drives: 1,
        rows: 1..[50, 3000, 90_000][rng.usize(0..3)],
        row_bytes: 1..=8,
        ..Shape::without_drives(rng.u64(0..3000))
    };
    let world = World::new(&mut rng, &shape).with_repeats();
    prepared(shim, world, rng, false)
}

/// Two batches, up to the uniques.
fn prepared(shim: &mut Shim, world: World, mut rng: Rng, small: bool) -> Result<(), String> {
    for _ in 0..2 {
        let batch = Batch::new(&mut rng, &world);
        let lookup = batch.lookup().with_ticket(rng.u32(0..16));
        let expected = expect(&world, &batch).by_one_block(&world, small);
        world.slot.unique.poison();
        let mut rig = Rig { shim, rng: rng.fork(), world: &world };
        rig.prepare(&lookup, small)?;
        rig.check_prepared(&batch, &expected)?;
        if !small {
            rig.finish(&lookup)?;
            rig.check_clear()?;
            if rig.told(lookup.slot.ticket).outcome != outcome::DONE {
                return Err("the ticket says nothing".to_owned());
            }
        } else {
            // The last block of `expand` would do it.
            let offset = std::mem::offset_of!(SlotState, lease);
            if rig.world.slot.bitmap.is_zero() {
                world.slot.state.write(offset, &[0; 4]);
                world.slot.gate.write(GATE_INSIDE, &[0; 8]);
            }
        }
    }
    Ok(())
}

/// Ids of a table so large that many warps find some.
pub(crate) fn far_apart(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let shape =
        Shape { drives: 1, tables: 1..2, rows: 600_000..900_000, row_bytes: 1..=2, ..Shape::without_drives(600) };
    let mut world = World::new(&mut rng, &shape);
    for _ in 0..4 {
        world.dedupe = (world.dedupe + 1) % 3;
        let batch = Batch::of(&mut rng, &world, 600);
        let expected = expect(&world, &batch);
        let mut rig = Rig { shim, rng: rng.fork(), world: &world };
        rig.prepare(&batch.lookup(), false)?;
        rig.check_prepared(&batch, &expected)?;
        rig.finish(&batch.lookup())?;
        rig.check_clear()?;
    }
    Ok(())
}

#[test]
fn ids_far_apart() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(3) {
        far_apart(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

fn all(way: Option<u32>) {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(24) {
        case(&mut shim, seed, way).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn many_ids() {
    all(Some(dedupe::BITMAP));
}

#[test]
fn many_ids_by_a_hash_table() {
    all(Some(dedupe::HASH));
}

#[test]
fn many_ids_by_a_sort() {
    all(Some(dedupe::RADIX));
}

#[test]
fn many_ids_that_are_not_deduplicated() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(24) {
        repeated(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn few_ids() {
    all(None);
}

/// A world and a batch for what follows.
fn fixed(seed: u64) -> (World, Batch, Rng) {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(&mut rng, &Shape::without_drives(600)).deduped_by((seed % 3) as u32);
    let batch = Batch::of(&mut rng, &world, 500);
    (world, batch, rng)
}

#[test]
fn a_slot_in_use_is_left_alone() {
    let Some(mut shim) = Shim::new() else { return };
    for (seed, small) in [(0, false), (1, false), (2, false), (1, true)] {
        let (world, batch, rng) = fixed(seed);
        let expected = expect(&world, &batch).by_one_block(&world, small);
        let first = batch.lookup().with_ticket(3);
        let mut rig = Rig { shim: &mut shim, rng, world: &world };
        rig.prepare(&first, small).unwrap();
        // A second launch comes between, on another ticket: all its kernels, between any two of the first.
        let second = Lookup {
            batch: BatchIds { ids: 0, ..first.batch },
            output: OutputRows { rows: 0, mask: 0, ..first.output },
            ..first.with_ticket(4)
        };
        rig.run(&second, small).unwrap();
        assert_eq!((rig.told(4).outcome, rig.told(4).sequence), (outcome::BUSY, 1));
        assert_eq!((rig.admitted(3), rig.admitted(4)), (1, 0));
        rig.fetch(&first, None).unwrap();
        rig.run(&second, !small).unwrap();
        rig.expand(&first, small).unwrap();
        let told = rig.check_ended(&batch, &first, &expected, |_| false).unwrap();
        assert_eq!((told.sequence, rig.told(4).sequence), (1, 2));
        assert_eq!((told.failures, rig.told(4).failures), (0, 2));
        let words = rig.words(4);
        let busy = words.iter().copied().enumerate().filter(|&(word, _)| [0, 1, words.len() - 2].contains(&word));
        assert_eq!(words.last(), Some(&check_of(busy)), "the check of a launch that found the slot in use");
        // The slot is free again.
        rig.run(&first, small).unwrap();
        assert_eq!(rig.told(3).sequence, 2);
    }
}

/// Runs a batch that has something wrong with it: bounded, within its memory, and told.
fn flawed_case(
    shim: &mut Shim,
    seed: u64,
    small: bool,
    change: &dyn Fn(&mut Lookup, &mut Vec<Buffer>, &Batch),
    want: u32,
) -> Result<(), String> {
    let same = |what: &str, is: bool| if is { Ok(()) } else { Err(what.to_owned()) };
    let (world, batch, rng) = fixed(seed);
    let mut lookup = batch.lookup();
    let mut held = Vec::new();
    change(&mut lookup, &mut held, &batch);
    let mut rig = Rig { shim, rng, world: &world };
    rig.run(&lookup, small)?;
    let told = rig.told(0);
    same("what the ticket says", (told.outcome, told.flaws, told.failures) == (outcome::DONE, want, 1))?;
    rig.check_clear()?;
    // So does the kernel that needs no slot.
    rig.direct(&lookup.with_ticket(9))?;
    let direct = rig.told(9);
    same("the other ticket", (direct.outcome, direct.flaws, direct.sequence) == (outcome::DONE, want, 1))?;
    same("failures of the other ticket", direct.failures == 1)?;
    rig.check_clear()?;
    same("something lies past an end", batch.is_sound())?;
    if want & (flaw::TOO_MANY_IDS | flaw::TOO_MANY_BAGS) != 0 {
        same("nothing was to be read", batch.out.bytes().iter().all(|&byte| byte == poison()))?;
        same("counters", told.counters == Default::default())?;
    }
    // What was wrong is forgotten.
    let expected = expect(&world, &batch).by_one_block(&world, small);
    batch.out.poison();
    rig.run(&batch.lookup(), small)?;
    same("flaws are left", rig.check_ended(&batch, &batch.lookup(), &expected, |_| false)?.flaws == 0)
}

fn flawed(change: impl Fn(&mut Lookup, &mut Vec<Buffer>, &Batch), want: u32) {
    let Some(mut shim) = Shim::new() else { return };
    for (seed, small) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        flawed_case(&mut shim, seed, small, &change, want).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

fn counts(lookup: &mut Lookup, held: &mut Vec<Buffer>, counts: [u64; 2]) {
    held.push(Buffer::of(&counts.map(u64::to_le_bytes).concat()));
    lookup.batch.counts = held.last().unwrap().address();
}

#[test]
fn more_ids_than_planned() {
    flawed(|lookup, held, _| counts(lookup, held, [lookup.batch.max_ids + 1, 1]), flaw::TOO_MANY_IDS);
    flawed(|lookup, held, _| counts(lookup, held, [u64::MAX, 1]), flaw::TOO_MANY_IDS);
}

#[test]
fn more_bags_than_planned() {
    flawed(|lookup, held, _| counts(lookup, held, [1, lookup.batch.max_bags + 1]), flaw::TOO_MANY_BAGS);
    let both = flaw::TOO_MANY_BAGS | flaw::TOO_MANY_IDS;
    flawed(|lookup, held, _| counts(lookup, held, [u64::MAX, u64::MAX]), both);
}

type Change = fn(&mut Vec<i128>, i128);

/// Of offsets, given the number of ids.
const SPOILT: [Change; 5] = [
    |offsets, ids| offsets.iter_mut().enumerate().for_each(|(i, offset)| *offset = if i % 2 == 0 { 0 } else { ids }),
    |offsets, _| offsets[0] = 1,
    |offsets, ids| *offsets.last_mut().unwrap() = ids + 1,
    |offsets, _| *offsets.last_mut().unwrap() = -1,
    |offsets, ids| offsets.iter_mut().enumerate().for_each(|(i, offset)| *offset = ids - i as i128),
];

fn spoil(lookup: &mut Lookup, held: &mut Vec<Buffer>, batch: &Batch, change: Change) {
    let bags: Vec<_> = batch.bags().collect();
    let mut offsets: Vec<i128> = bags.iter().map(|bag| bag.start as i128).collect();
    offsets.push(batch.ids.len() as i128);
    change(&mut offsets, batch.ids.len() as i128);
    (lookup.batch.offset_type, lookup.batch.has_end) = (warprow_kernels::abi::id::I64, 1);
    held.push(encode(offsets, lookup.batch.offset_type));
    lookup.batch.offsets = held.last().unwrap().address();
}

#[test]
fn offsets_that_are_none() {
    for change in SPOILT {
        flawed(|lookup, held, batch| spoil(lookup, held, batch, change), flaw::OFFSETS);
    }
}

/// One kind of spoilt offsets, or counts on the device of which one passes what was planned.
pub(crate) fn spoilt(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let small = seed.is_multiple_of(2);
    match SPOILT.get(seed as usize / 2 % 7) {
        Some(&change) => {
            let change =
                |lookup: &mut Lookup, held: &mut Vec<Buffer>, batch: &Batch| spoil(lookup, held, batch, change);
            flawed_case(shim, seed, small, &change, flaw::OFFSETS)
        }
        None => {
            let change = |lookup: &mut Lookup, held: &mut Vec<Buffer>, _: &Batch| {
                counts(lookup, held, [lookup.batch.max_ids + 1, 1]);
            };
            flawed_case(shim, seed, small, &change, flaw::TOO_MANY_IDS)
        }
    }
}
