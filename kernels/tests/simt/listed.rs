//! Rows that are listed for DRAM: every row of all tiers, by each way of finding different rows and by one kernel, with updated rows over them.

use std::collections::BTreeSet;

use fastrand::Rng;
use warprow_kernels::abi::dedupe;

use crate::batch::Batch;
use crate::oracle::Place;
use crate::ring::{Scene, TIMEOUT};
use crate::shim::{Shim, seeds};
use crate::world::Shape;
use crate::{overlay, rich};

/// All tiers, and tables some of which have lists.
fn scene(seed: u64, rich: bool) -> Scene {
    let mut rng = Rng::with_seed(seed);
    let (row_bytes, rows) = [(16, 9000), (300, 3000), (600, 1200)][rng.usize(0..3)];
    let shape = Shape {
        drives: rng.u32(1..=3),
        tables: 1..4,
        rows: 1..rows,
        row_bytes: 1..=row_bytes,
        sets: rng.u32(1..=2),
        rich,
        listed: true,
        ..Shape::without_drives(if rng.u32(0..3) == 0 { 4000 } else { rng.u64(1..1500) })
    };
    let ways = [dedupe::BITMAP, dedupe::HASH, dedupe::RADIX];
    let way = ways[rng.usize(0..3)];
    let mut scene = Scene::new(rng, shape, true, TIMEOUT);
    scene.world = scene.world.deduped_by(way);
    scene
}

/// By one kernel: the first scene of those of this seed whose rows are not pooled.
fn unpooled(seed: u64, rich: bool) -> Scene {
    let mut rng = Rng::with_seed(seed);
    loop {
        let scene = scene(rng.u64(..), rich);
        if !scene.world.pooled {
            return Scene { few: true, resident: rng.u32(0..4), ..scene };
        }
    }
}

/// Three look-ups, each row compared: how many ids had a listed row, and how many of tables with a list had none.
fn look_up(shim: &mut Shim, mut scene: Scene) -> Result<[usize; 2], String> {
    let mut found = [0; 2];
    for _ in 0..3 {
        let batch = Batch::of(&mut scene.rng, &scene.world, scene.world.max_ids);
        let launched = scene.run(shim, batch, |_, _| ())?;
        scene.check(shim, &launched)?;
        for place in &launched.expected.places {
            let Place::Key(key) = *place else { continue };
            let (table, _) = scene.world.row_of(key);
            if scene.world.tables[table].listed.is_some() {
                found[usize::from(key >= scene.world.ssd_key)] += 1;
            }
        }
    }
    Ok(found)
}

pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    look_up(shim, scene(seed, seed.is_multiple_of(2))).map(drop)
}

pub(crate) fn by_one_kernel(shim: &mut Shim, seed: u64) -> Result<(), String> {
    look_up(shim, unpooled(seed, seed.is_multiple_of(2))).map(drop)
}

/// Updated rows go before listed ones.
pub(crate) fn updated(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let scene = if seed.is_multiple_of(2) { scene(seed, true) } else { unpooled(seed, true) };
    overlay::over_drives_in(shim, scene, seed).map(drop)
}

#[test]
fn listed_rows_come_from_dram_and_others_from_drives() {
    let Some(mut shim) = Shim::new() else { return };
    let mut found = [0; 2];
    let mut ways = BTreeSet::new();
    for seed in seeds(24) {
        let by_one = seed % 3 == 0;
        let scene = if by_one { unpooled(seed, false) } else { scene(seed, seed.is_multiple_of(2)) };
        ways.insert((by_one, scene.world.dedupe));
        let some = look_up(&mut shim, scene).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        found = [found[0] + some[0], found[1] + some[1]];
    }
    assert!(found[0] > 1000 && found[1] > 1000, "{found:?}");
    assert!(ways.len() >= 5, "{ways:?}");
}

#[test]
fn updated_rows_go_before_listed_ones() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(12) {
        updated(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Scenes of `rich`, whose tables have checksums, are without lists; this one has both, and rows that a drive returns damaged.
#[test]
fn rows_that_a_drive_has_damaged_are_whole_in_dram() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(8) {
        let mut scene = scene(seed, true);
        let listed = scene.world.tables.iter().any(|table| table.listed.is_some());
        rich::spoil(&mut scene.world, &mut scene.rng);
        let drives = crate::queues::Drives::new(&mut scene.rng, &scene.world, 2, true, TIMEOUT);
        let scene = Scene { drives, ..scene };
        rich::damage_in(&mut shim, scene).unwrap_or_else(|wrong| panic!("seed {seed}, lists {listed}: {wrong}"));
    }
}
