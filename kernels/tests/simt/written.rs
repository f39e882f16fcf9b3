//! Rows that go from a queue's landing area to the output, where one position wants them: rows are right, and all such rows go that way.

use std::collections::BTreeMap;

use fastrand::Rng;
use warprow_gpu_queues::abi::ReadWindow;
use warprow_kernels::abi::dedupe;

use crate::batch::Batch;
use crate::oracle::Place;
use crate::ring::{self, Launched, READ, Scene, TIMEOUT, WRITTEN, rows_of_an_lba};
use crate::shim::{Shim, seeds};
use crate::world::Shape;

/// Several tables on all tiers, whose rows are output rows: shorter than an LBA, of one, or of several; some rows of neighbouring LBAs share commands.
fn scene(seed: u64) -> Scene {
    let mut rng = Rng::with_seed(seed);
    let (row_bytes, rows) = [(16..=100, 4000), (480..=512, 3000), (500..=2100, 1000)][rng.usize(0..3)].clone();
    let shift = [0, 0, 3][rng.usize(0..3)];
    let shape = Shape {
        drives: rng.u32(1..=3),
        tables: 1..4,
        rows: 1..rows,
        row_bytes,
        lba_shift: Some(9),
        sets: rng.u32(1..=2),
        cold: rng.bool(),
        rich: rng.u32(0..4) == 0,
        window: ReadWindow { shift, gap: rng.u32(0..1 << shift) },
        as_output: true,
        ..Shape::without_drives([300, 1500, 3000][rng.usize(0..3)])
    };
    let mut scene = Scene::new(rng, shape, true, TIMEOUT);
    (scene.world.dedupe, scene.world.repeats) = (dedupe::RADIX, scene.rng.u32(0..4) == 0);
    scene
}

/// Whether each row on drives that was read is where it is to be: in the output if one position wants it and the launch writes output, else in staging. How
/// many are in the output.
fn written(scene: &Scene, launched: &Launched) -> Result<usize, String> {
    let Launched { expected, lookup, .. } = launched;
    let mut wanted = BTreeMap::<u64, usize>::new();
    for place in &expected.places {
        if let Place::Key(key) = place {
            *wanted.entry(*key).or_default() += 1;
        }
    }
    let mut count = 0;
    for (&key, status) in expected.uniques.iter().zip(scene.world.slot.status.bytes()) {
        if key < scene.world.ssd_key || ![READ, WRITTEN].contains(&status) {
            continue;
        }
        let is_single = scene.world.repeats || wanted[&key] == 1;
        let due = if lookup.queues.writes_output != 0 && is_single { WRITTEN } else { READ };
        if status != due {
            return Err(format!("the row of key {key}, which {} positions want, has status {status}", wanted[&key]));
        }
        count += usize::from(status == WRITTEN);
    }
    Ok(count)
}

/// Random look-ups on drives that permute and delay completions.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    counted(shim, seed).map(drop)
}

/// As [`case`]; how many rows went to the output.
fn counted(shim: &mut Shim, seed: u64) -> Result<usize, String> {
    let mut scene = scene(seed);
    let mut count = 0;
    for _ in 0..3 {
        let batch = Batch::of(&mut scene.rng, &scene.world, scene.world.max_ids);
        let launched = scene.run(shim, batch, |_, _| ())?;
        if !launched.lost.is_empty() {
            return Err(format!("{} rows were not read", launched.lost.len()));
        }
        scene.check(shim, &launched)?;
        count += written(&scene, &launched)?;
    }
    Ok(count)
}

/// Commands that fail, whose rows are filled in.
pub(crate) fn failing(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let shape = Shape { row_bytes: 500..=512, as_output: true, ..rows_of_an_lba() };
    let mut scene = Scene::new(Rng::with_seed(seed), shape, true, TIMEOUT);
    scene.world.dedupe = dedupe::RADIX;
    ring::failing(shim, scene, seed)
}

#[test]
fn rows_are_written_as_they_land() {
    let Some(mut shim) = Shim::new() else { return };
    let mut count = 0;
    for seed in seeds(12) {
        count += counted(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(count > 1000, "{count} rows went to the output");
}

#[test]
fn rows_that_fail_are_filled_in() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(4) {
        failing(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
