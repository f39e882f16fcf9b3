//! Whole look-ups from GPU memory and DRAM: every type of id, element and output, pooled and not.

use fastrand::Rng;
use warprow_gpu_queues::abi::GATE_CLOSED;
use warprow_kernels::SMALL_IDS;
use warprow_kernels::abi::{MISSING_IS_ERROR, Ticket, check_of, element};

use crate::batch::{Batch, Varied};
use crate::oracle::element_bytes;
use crate::rig::{Rig, expect, told_words};
use crate::shim::{Shim, seeds};
use crate::world::{Shape, World};

/// Two look-ups, checked; what they converted: pooled or not, from what, to what.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<Vec<(bool, u32, u32)>, String> {
    case_of(shim, seed, false)
}

pub(crate) fn case_of(shim: &mut Shim, seed: u64, rich: bool) -> Result<Vec<(bool, u32, u32)>, String> {
    let mut rng = Rng::with_seed(seed);
    // Up to 16,383 ids the whole report is one word.
    let max_ids = [rng.u64(1..20), rng.u64(1..1200), rng.u64(1..1200), rng.u64(16_384..24_000)][rng.usize(0..4)];
    let shape = Shape { rich, ..Shape::without_drives(max_ids) };
    let shape = if rich { Shape { tables: 1..6, rows: 1..600, ..shape } } else { shape };
    let world = World::new(&mut rng, &shape);
    let (mut launches, mut failures) = ([0u64; 16], [0u64; 16]);
    for _ in 0..2 {
        let batch = Batch::new(&mut rng, &world);
        let small = rng.bool() && max_ids <= SMALL_IDS;
        let ticket = rng.u32(0..3);
        let lookup = batch.lookup().with_ticket(ticket);
        let mut expected = expect(&world, &batch).by_one_block(&world, small);
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
        // A third ticket's launches read rows where they lie.
        if ticket == 2 {
            expected.counters.rows_dram = 0;
            rig.direct(&lookup)?;
        } else {
            rig.run(&lookup, small)?;
        }
        let told = rig.check_ended(&batch, &lookup, &expected, |_| false)?;
        launches[ticket as usize] += 1;
        failures[ticket as usize] += u64::from(told.counters.first_missing & MISSING_IS_ERROR != 0);
        let wanted = (launches[ticket as usize], failures[ticket as usize], 0, 0);
        if (told.sequence, told.failures, told.flaws, told.faults) != wanted {
            return Err(format!("{told:?} after {launches:?}, of which {failures:?} failed"));
        }
    }
    let tables = world.features.iter().map(|feature| &world.tables[feature.table]);
    Ok(tables.map(|table| (world.pooled, table.element, world.out)).collect())
}

/// More ids than one word counts, by one kernel.
pub(crate) fn many_by_one_kernel(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let ids = rng.u64(17_000..19_000);
    let world = World::new(&mut rng, &Shape { rows: 1..200, row_bytes: 1..=16, ..Shape::without_drives(ids) });
    let batch = Batch::of(&mut rng, &world, ids);
    let lookup = batch.lookup().with_ticket(2);
    let mut expected = expect(&world, &batch).by_one_block(&world, false);
    expected.counters.rows_dram = 0;
    let mut rig = Rig { shim, rng: rng.fork(), world: &world };
    rig.direct(&lookup)?;
    rig.check_ended(&batch, &lookup, &expected, |_| false).map(drop)
}

/// One feature whose rows are read where they lie: it has a kernel of its own.
pub(crate) fn one_feature(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let (element, out) =
        ([element::F32, element::F16][rng.usize(0..2)], [element::F32, element::BF16][rng.usize(0..2)]);
    let dim = rng.u32(1..80);
    let rows = rng.u64(1..2000);
    // Halves of small exponents: no NaN, whose bits nobody promises.
    let halves = (0..rows * u64::from(dim) * u64::from(element_bytes(element)) / 2).map(|_| rng.u16(..0x7000));
    let content = halves.collect::<Vec<u16>>().into_iter().flat_map(u16::to_le_bytes).collect();
    let world = World::of_rows(&mut rng, element, out, dim, content);
    let ids = rng.u64(0..=rows);
    let ticket = rng.u32(0..16);
    let batch = Batch::of(&mut rng, &world, ids);
    let lookup = batch.lookup().with_ticket(ticket);
    let mut expected = expect(&world, &batch).by_one_block(&world, false);
    expected.counters.rows_dram = 0;
    let mut rig = Rig { shim, rng: rng.fork(), world: &world };
    rig.direct(&lookup)?;
    rig.check_ended(&batch, &lookup, &expected, |_| false).map(drop)
}

/// A look-up of one batch, checked: from staging, or where rows lie.
fn pooled(shim: &mut Shim, rng: &mut Rng, world: &World, batch: &Batch) -> Result<(), String> {
    let ticket = rng.u32(0..3);
    let lookup = batch.lookup().with_ticket(ticket);
    let mut expected = expect(world, batch).by_one_block(world, true);
    let mut rig = Rig { shim, rng: rng.fork(), world };
    if ticket == 2 {
        expected.counters.rows_dram = 0;
        rig.direct(&lookup)?;
    } else {
        rig.run(&lookup, true)?;
    }
    rig.check_ended(batch, &lookup, &expected, |_| false).map(drop)
}

/// A few bags of many ids each, pooled by blocks: from staging, or where rows lie.
pub(crate) fn long_bags(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let rich = rng.bool();
    let world = loop {
        // Stages of all sizes, and rows of more than one stretch.
        let most = [16, 100, 700, 1500][rng.usize(0..4)];
        let tables = if rng.bool() { 1..2 } else { 1..3 };
        let shape = Shape { rich, tables, rows: 1..500, row_bytes: 1..=most, ..Shape::without_drives(2000) };
        let world = World::new(&mut rng, &shape);
        if world.long_bags != 0 {
            break world;
        }
    };
    let most = if rng.bool() { 40 } else { world.max_ids };
    let ids = rng.u64(1..=most);
    // Blocks share a bag where there are more of them.
    let bags = if rng.bool() { 1 } else { rng.usize(1..=(ids as usize / world.features.len()).clamp(1, 4)) };
    let batch = Batch::with_bags(&mut rng, &world, ids, bags);
    pooled(shim, &mut rng, &world, &batch)
}

/// Bags of one id or none, many by a warp, and some longer ones among them: from staging, or where rows lie.
pub(crate) fn single_bags(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let rich = rng.bool();
    // Rows of less than a lane's elements, and of more than a warp's.
    let most = [16, 100, 700, 3000][rng.usize(0..4)];
    let tables = if rng.bool() { 1..2 } else { 1..5 };
    let world = loop {
        let shape =
            Shape { rich, tables: tables.clone(), rows: 1..300, row_bytes: 1..=most, ..Shape::without_drives(1500) };
        let world = World::new(&mut rng, &shape);
        if world.pooled {
            break world;
        }
    };
    // Few, so that a warp takes few at a time; and more than a warp takes.
    let bags = [rng.usize(1..9), rng.usize(1..70), rng.usize(1..200)][rng.usize(0..3)].min(world.max_bags as usize);
    let batch = match rng.bool() {
        true => Batch::with_single_bags(&mut rng, &world, bags),
        false => Batch::with_bags(&mut rng, &world, (bags * world.features.len()).min(1500) as u64, bags),
    };
    pooled(shim, &mut rng, &world, &batch)
}

#[test]
fn sums_of_single_ids_are_the_hosts() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(60) {
        single_bags(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    for kernel in ["warprow_direct_bags", "warprow_direct_rich_bags", "warprow_expand_bags", "warprow_expand_rich_bags"]
    {
        assert!(shim.launched.contains(kernel), "{kernel}");
    }
}

#[test]
fn sums_of_long_bags_are_the_hosts() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(60) {
        long_bags(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    for kernel in ["warprow_direct_bags", "warprow_direct_rich_bags", "warprow_expand_bags", "warprow_expand_rich_bags"]
    {
        assert!(shim.launched.contains(kernel), "{kernel}");
    }
}

#[test]
fn rows_of_one_feature_are_the_hosts() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(24) {
        one_feature(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(shim.launched.contains("warprow_direct_one"));
}

#[test]
fn many_ids_are_counted_by_one_kernel() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(12) {
        many_by_one_kernel(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn rows_are_the_hosts() {
    let Some(mut shim) = Shim::new() else { return };
    let mut seen = std::collections::BTreeSet::new();
    for seed in seeds(200) {
        seen.extend(case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")));
    }
    // Floats to floats in 9 ways and from 2 integers in 3, both pooled and not, and 2 copies of integers.
    assert_eq!(seen.len(), 2 * (9 + 6) + 2, "{seen:?}");
}

/// Rows on drives fail, and no others, behind a closed gate.
pub(crate) fn behind_a_closed_gate(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(&mut rng, &Shape { drives: 2, sets: 2, ..Shape::without_drives(500) });
    let batch = Batch::new(&mut rng, &world);
    let lookup = batch.lookup();
    let small = rng.bool();
    // No queue is looked at but for its poison.
    let queues: Vec<_> = (0..4).map(|_| crate::queues::unreachable()).collect();
    let descriptors = crate::queues::describe(&queues);
    let lookup = lookup.with_queues(descriptors.address());
    world.slot.gate.memory().store_u32(GATE_CLOSED, 1);
    let expected = expect(&world, &batch).by_one_block(&world, small);
    let mut rig = Rig { shim, rng, world: &world };
    rig.run(&lookup, small)?;
    let told = rig.check_ended(&batch, &lookup, &expected, |key| key >= world.ssd_key)?;
    let failures = u64::from(told.counters.failed != 0 || told.counters.first_missing & MISSING_IS_ERROR != 0);
    match (told.gate_was_closed, told.counters.commands, told.faults, told.failures) == (1, 0, 0, failures) {
        true if queues.iter().all(|queue| queue.is_untouched()) => Ok(()),
        _ => Err(format!("a queue was touched: {told:?}")),
    }
}

#[test]
fn rows_behind_a_closed_gate_fail() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(20) {
        behind_a_closed_gate(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Every f16 and bf16 to the other types, and f32s around every boundary: one table of one column.
#[test]
fn every_half_converts_as_the_half_crate_does() {
    let Some(mut shim) = Shim::new() else { return };
    for (from, to) in [
        (element::F16, element::F32),
        (element::BF16, element::F32),
        (element::F16, element::BF16),
        (element::BF16, element::F16),
        (element::F32, element::F16),
        (element::F32, element::BF16),
    ] {
        let values: Vec<u8> = (0..=u16::MAX)
            .flat_map(|bits| match from {
                element::F32 => {
                    // Halves between two neighbours, and to either side of that; and whatever has these upper bits.
                    let f16 = half::f16::from_bits(bits).to_f32().to_bits();
                    let bf16 = u32::from(bits) << 16;
                    [
                        f16,
                        f16 | 0x0fff,
                        f16 | 0x1000,
                        f16 | 0x1001,
                        bf16 | 0x7fff,
                        bf16 | 0x8000,
                        bf16 | 0x8001,
                        bf16 | 0x2a,
                    ]
                    .into_iter()
                    .flat_map(u32::to_le_bytes)
                    .collect()
                }
                _ => bits.to_le_bytes().to_vec(),
            })
            .collect();
        let dim = 4096 / element_bytes(from);
        let mut rng = Rng::with_seed(u64::from(from * 8 + to));
        let world = World::of_rows(&mut rng, from, to, dim, values);
        let rows = world.tables[0].rows;
        let batch = Batch::each(&world, rows);
        let expected = expect(&world, &batch).by_one_block(&world, true);
        let lookup = batch.lookup();
        let mut rig = Rig { shim: &mut shim, rng, world: &world };
        let told = rig.run(&lookup, true).and_then(|()| rig.check_ended(&batch, &lookup, &expected, |_| false));
        told.unwrap_or_else(|wrong| panic!("{from} to {to}: {wrong}"));
    }
}

/// Whoever polls a ticket between any two stores of its next launch sees the report of one launch, or that it is of none. How many
/// were torn, and how many were whole.
fn polled(shim: &mut Shim, seed: u64) -> Result<(u64, usize), String> {
    const TICKET: u32 = 2;
    let mut torn = 0;
    let mut polled = 0;
    let mut rng = Rng::with_seed(seed);
    let world = World::new(&mut rng, &Shape::without_drives(200));
    let words = || -> Vec<u64> {
        let memory = world.slot.tickets.memory();
        (0..size_of::<Ticket>() / 8).map(|i| memory.load_u64(TICKET as usize * size_of::<Ticket>() + i * 8)).collect()
    };
    let mut ended: Vec<Vec<(usize, u64)>> = Vec::new();
    for run in 0..2 {
        let batch = Batch::new(&mut rng, &world);
        let lookup = batch.lookup().with_ticket(TICKET);
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
        let mut seen = Vec::new();
        let mut early = false;
        let mut time = 1_000_000_000_000 * (run + 1);
        let mut beside = |_: bool| {
            let words = words();
            match Some(check_of(told_words(&words))) == words.last().copied() {
                true => seen.push(told_words(&words)),
                // Of launches with a slot the number is stored last of all.
                false if seed % 2 == 1 && words.first() == Some(&(run + 1)) => early = true,
                false => torn += 1,
            }
            time += 100;
            time
        };
        if seed.is_multiple_of(2) {
            rig.direct_beside(&lookup, &mut beside)?;
        } else {
            rig.prepare(&lookup, true)?;
            rig.expand_beside(&lookup, &mut beside)?;
        }
        if early {
            return Err("the number of the launch was there before its report".to_owned());
        }
        ended.push(told_words(&words()));
        polled += seen.len();
        let is_known = |words: &Vec<(usize, u64)>| ended.contains(words) || words.iter().all(|&(_, word)| word == 0);
        if !seen.iter().all(is_known) {
            return Err(format!("{seen:?}, where {ended:?} have ended"));
        }
    }
    Ok((torn, polled))
}

pub(crate) fn reports(shim: &mut Shim, seed: u64) -> Result<(), String> {
    polled(shim, seed).map(drop)
}

#[test]
fn a_report_is_one_launchs() {
    let Some(mut shim) = Shim::new() else { return };
    let mut torn = 0;
    let mut whole = 0;
    for seed in seeds(200) {
        let seen = polled(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        (torn, whole) = (torn + seen.0, whole + seen.1);
    }
    assert!(torn > 100 && whole > 1000, "{torn} of {whole} were torn");
}
