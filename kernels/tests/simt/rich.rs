//! The kernels that can everything: eight-bit floats, rows with a scale, missing ids told of in any way, rows that are checked.

use fastrand::Rng;
use warprow_kernels::abi::element;

use crate::batch::Batch;
use crate::lookups;
use crate::oracle::{row_bytes, whole as whole_of};
use crate::queues::Drives;
use crate::rig::{Rig, expect};
use crate::ring::{self, Scene, TIMEOUT};
use crate::shim::{Shim, seeds};
use crate::world::{Shape, World};

pub(crate) fn whole(shim: &mut Shim, seed: u64) -> Result<(), String> {
    lookups::case_of(shim, seed, true).map(drop)
}

/// One feature whose rows are read where they lie: it has a kernel of its own.
pub(crate) fn one_feature(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let from = rng.u32(element::F8E4M3..=element::NVFP4);
    let to = rng.u32(element::F32..=element::BF16);
    let dim = (2 * rng.u32(1..60)).next_multiple_of(whole_of(from));
    let count = rng.usize(1..600);
    let scale = scale_behind(from, dim);
    let numbers = row_bytes(from, dim) - scale.len();
    let mut row = || (0..numbers).map(|_| rng.u8(..)).chain(scale.clone()).collect::<Vec<u8>>();
    let rows: Vec<u8> = (0..count).flat_map(|_| row()).collect();
    let world = World::of_rows(&mut rng, from, to, dim, rows);
    let batch = Batch::each(&world, world.tables[0].rows);
    let lookup = batch.lookup();
    let mut expected = expect(&world, &batch).by_one_block(&world, false);
    expected.counters.rows_dram = 0;
    let mut rig = Rig { shim, rng, world: &world };
    rig.direct(&lookup)?;
    rig.check_ended(&batch, &lookup, &expected, |_| false).map(drop)
}

/// The end of a row: what its numbers are times and plus.
fn scale_behind(element: u32, dim: u32) -> Vec<u8> {
    match element {
        element::MXFP8 => (0..dim / 32).map(|block| (125 + block % 5) as u8).collect(),
        element::F8E4M3S => 0.75f32.to_le_bytes().to_vec(),
        element::NVFP4 => (0..dim / 16).map(|block| (0x30 + block % 16) as u8).chain(0.7f32.to_le_bytes()).collect(),
        element::Q8 => [0.75f32, -3.5].map(f32::to_le_bytes).concat(),
        element::Q4 => [0.75, -3.5].map(|number| half::f16::from_f32(number).to_le_bytes()).concat(),
        _ => Vec::new(),
    }
}

#[test]
fn rows_of_one_feature_of_any_element_are_the_hosts() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(24) {
        one_feature(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(shim.launched.contains("warprow_direct_rich_one"));
}

#[test]
fn rows_of_any_element_are_the_hosts() {
    let Some(mut shim) = Shim::new() else { return };
    let mut seen = std::collections::BTreeSet::new();
    for seed in seeds(330) {
        let cases = lookups::case_of(&mut shim, seed, true);
        seen.extend(cases.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")));
    }
    // Every element to every float, pooled and not, and copies of elements of a byte.
    assert_eq!(seen.len(), 2 * 12 * 3 + 4, "{seen:?}");
}

/// All numbers of eight bits and of four, and more of each than a warp's turn; two rows to a table at least.
#[test]
fn every_number_of_few_bits_converts() {
    let Some(mut shim) = Shim::new() else { return };
    for from in element::F8E4M3..=element::NVFP4 {
        for to in element::F32..=element::BF16 {
            for dim in [256, 20, 1024, 2048].map(|dim: u32| dim.next_multiple_of(whole_of(from))) {
                let mut rng = Rng::with_seed(u64::from(from * 8 + to));
                let behind = scale_behind(from, dim);
                let row = row_bytes(from, dim);
                let numbers = (0..(row - behind.len()) as u32).map(|number| number as u8);
                let rows: Vec<u8> = numbers.chain(behind).collect::<Vec<u8>>().repeat(5);
                let world = World::of_rows(&mut rng, from, to, dim, rows);
                let batch = Batch::each(&world, world.tables[0].rows);
                let expected = expect(&world, &batch).by_one_block(&world, true);
                let lookup = batch.lookup();
                let mut rig = Rig { shim: &mut shim, rng, world: &world };
                let told = rig.run(&lookup, true).and_then(|()| rig.check_ended(&batch, &lookup, &expected, |_| false));
                told.unwrap_or_else(|wrong| panic!("{dim} of {from} to {to}: {wrong}"));
            }
        }
    }
}

/// Tables of which some are checked, on drives that return some of their rows with a bit changed.
/// Has drives return some rows damaged, of tables with checksums.
pub(crate) fn spoil(world: &mut World, rng: &mut Rng) {
    for table in world.tables.iter_mut().filter(|table| table.checked && table.dram_end < table.rows) {
        let bits = table.drive_bytes() * 8;
        table.spoilt = (0..rng.u64(0..40)).map(|_| (rng.u64(table.dram_end..table.rows), rng.usize(0..bits))).collect();
        // A bit that changes twice has not.
        table.spoilt.sort_unstable();
        table.spoilt.dedup_by_key(|(rank, _)| *rank);
    }
}

pub(crate) fn scene(seed: u64) -> Scene {
    let mut rng = Rng::with_seed(seed);
    let (row_bytes, rows) = [(16, 20_000), (300, 3000), (600, 2000), (8192, 200)][rng.usize(0..4)];
    let shape = Shape {
        drives: rng.u32(1..=3),
        rows: 1..rows,
        row_bytes: 1..=row_bytes,
        sets: rng.u32(1..=2),
        cold: rng.bool(),
        rich: true,
        ..Shape::without_drives(rng.u64(1..1500))
    };
    let mut world = World::new(&mut rng, &shape);
    spoil(&mut world, &mut rng);
    let batches = rng.u32(1..=4);
    let drives = Drives::new(&mut rng, &world, batches, true, TIMEOUT);
    Scene { drives, world, rng, resident: 0, few: false }
}

/// The keys, out of `keys`, whose rows drives return damaged.
pub(crate) fn damaged(world: &World, keys: &[u64]) -> Vec<u64> {
    let is_damaged = |key: u64| {
        let (table, rank) = world.row_of(key);
        world.tables[table].spoilt.iter().any(|&(spoilt, _)| spoilt == rank)
    };
    keys.iter().copied().filter(|&key| is_damaged(key)).collect()
}

/// Look-ups that find every damaged row, and no other; how many they found.
pub(crate) fn damage(shim: &mut Shim, seed: u64) -> Result<usize, String> {
    damage_in(shim, scene(seed))
}

pub(crate) fn damage_in(shim: &mut Shim, mut scene: Scene) -> Result<usize, String> {
    let mut found = 0;
    for _ in 0..2 {
        let batch = Batch::new(&mut scene.rng, &scene.world);
        let launched = scene.run(shim, batch, |_, _| ())?;
        let due = damaged(&scene.world, &launched.expected.uniques);
        if launched.lost != due {
            return Err(format!("{:?} were lost, where {due:?} are damaged", launched.lost));
        }
        let told = scene.check(shim, &launched)?;
        if told.counters.damaged != due.len() as u64 || told.faults != 0 {
            return Err(format!("{told:?}, where {} rows are damaged", due.len()));
        }
        let mut named = 0;
        for queue in &scene.drives.queues {
            let fault = queue.fault();
            if fault.damaged_launch != told.launch {
                continue;
            }
            named += 1;
            let table = fault.damaged_table as usize;
            let rank = fault.damaged_rank;
            let home = scene.world.home(table, rank);
            let is_due = due.contains(&scene.world.tables[table].key(rank));
            if !is_due || home.lba != fault.damaged_lba || !queue.has_cid(fault.damaged_cid) || fault.kind != 0 {
                return Err(format!("{fault:?}, where {due:?} are damaged"));
            }
        }
        if (named == 0) != due.is_empty() {
            return Err(format!("{named} queues name a damaged row of {}", due.len()));
        }
        found += due.len();
    }
    Ok(found)
}

pub(crate) fn checked(shim: &mut Shim, seed: u64) -> Result<(), String> {
    damage(shim, seed).map(drop)
}

/// Rows whose scales drives do not have, by several kernels or by one.
pub(crate) fn scales_apart(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape {
        drives: rng.u32(1..=3),
        rows: 1..2000,
        row_bytes: 33..=1200,
        sets: rng.u32(1..=2),
        cold: true,
        rich: true,
        ..Shape::without_drives(rng.u64(1..1500))
    };
    loop {
        let scene = Scene::new(rng.fork(), shape.clone(), true, TIMEOUT);
        if scene.world.tables.iter().any(|table| table.apart) {
            return ring::right(shim, Scene { few: rng.bool(), ..scene });
        }
    }
}

#[test]
fn rows_get_the_scales_that_drives_do_not_have() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(48) {
        scales_apart(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    for kernel in ["warprow_fetch", "warprow_few"] {
        assert!(shim.launched.contains(kernel), "{kernel}: {:?}", shim.launched);
    }
}

#[test]
fn damaged_rows_are_lost_and_no_others() {
    let Some(mut shim) = Shim::new() else { return };
    let mut found = 0;
    for seed in seeds(48) {
        found += damage(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(found > 100, "{found}");
}
