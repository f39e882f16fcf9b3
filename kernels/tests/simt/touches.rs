//! When keys were last touched: by every way to look up, in the epoch of the launch's time, for the keys that the host would note.

use fastrand::Rng;
use warprow_kernels::SMALL_IDS;

use crate::batch::{Batch, Varied};
use crate::rig::Rig;
use crate::ring::{Scene, TIMEOUT};
use crate::shim::{Shim, seeds};
use crate::world::{Shape, World};
use crate::{overlay, rich};

/// The epochs that are due of each table, by slot; of tables whose touches nobody notes nothing.
struct Noted(Vec<Option<Vec<u16>>>);

impl Noted {
    fn new(world: &World) -> Self {
        let keys = |buffer: &crate::buffer::Buffer| vec![0; buffer.len() / 2];
        Self(world.tables.iter().map(|table| table.touched.as_ref().map(keys)).collect())
    }

    /// What a launch in `epoch` notes of the ids of `batch`: how many keys had another epoch.
    fn look_up(&mut self, world: &World, batch: &Batch, epoch: u16) -> usize {
        let mut changed = 0;
        for (at, &id) in batch.ids.iter().enumerate() {
            let feature = &world.features[batch.feature_of(at, world.features.len())];
            let Some(noted) = &mut self.0[feature.table] else { continue };
            let is_read = !world.pooled || feature.padding != Some(id);
            if let Some(row) = world.tables[feature.table].row_of(id).filter(|_| is_read) {
                changed += usize::from(noted[row as usize] != epoch);
                noted[row as usize] = epoch;
            }
        }
        changed
    }

    fn check(&self, world: &World) -> Result<(), String> {
        for (number, (table, noted)) in world.tables.iter().zip(&self.0).enumerate() {
            let (Some(touched), Some(noted)) = (&table.touched, noted) else { continue };
            if !touched.is_sound() {
                return Err(format!("something is written past the touches of table {number}"));
            }
            let bytes = touched.bytes();
            let got = bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
            if let Some((slot, (got, due))) = got.zip(noted).enumerate().find(|(_, (got, due))| got != *due) {
                return Err(format!("slot {slot} of table {number} was touched in epoch {got}, not {due}"));
            }
        }
        Ok(())
    }
}

/// The first world of this seed that has keys whose touches are noted.
fn noting(rng: &mut Rng, mut world: impl FnMut(&mut Rng) -> World) -> World {
    loop {
        let world = world(rng).touched(|table| table % 4 != 3);
        if world.features.iter().any(|feature| world.tables[feature.table].touched.is_some()) {
            return world;
        }
    }
}

/// One batch, looked up in several epochs by the same launch, as graphs do, in each way that needs no drives.
fn replayed(shim: &mut Shim, seed: u64) -> Result<usize, String> {
    let mut rng = Rng::with_seed(seed);
    let max_ids = [rng.u64(1..20), rng.u64(1..1200), rng.u64(1..1200)][rng.usize(0..3)];
    let rich = rng.bool();
    let shape = Shape { rich, rows: 1..600, ..Shape::without_drives(max_ids) };
    let world = noting(&mut rng, |rng| World::new(rng, &shape));
    let (mut noted, mut changed) = (Noted::new(&world), 0);
    let mut epoch = rng.u16(1..65_000);
    for _ in 0..3 {
        let batch = Batch::new(&mut rng, &world);
        let lookup = batch.lookup();
        for _ in 0..2 {
            epoch += rng.u16(0..3);
            world.epoch.write(0, &u32::from(epoch).to_le_bytes());
            let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
            match rng.u32(0..3) {
                0 => rig.direct(&lookup.with_ticket(2))?,
                way => rig.run(&lookup, way == 1 && max_ids <= SMALL_IDS)?,
            }
            changed += noted.look_up(&world, &batch, epoch);
            noted.check(&world)?;
        }
    }
    Ok(changed)
}

/// Rows of all tiers, of which some were updated, and of keys that were created or removed since; by one kernel, or several.
fn updated(shim: &mut Shim, seed: u64) -> Result<usize, String> {
    let mut rng = Rng::with_seed(seed);
    let scene = loop {
        let mut scene = rich::scene(rng.u64(..));
        scene.world = scene.world.touched(|_| true);
        let is_noted = |world: &World| world.tables.iter().any(|table| table.touched.is_some());
        if is_noted(&scene.world) {
            break Scene { few: !scene.world.pooled && rng.bool(), ..scene };
        }
    };
    let mut noted = Noted::new(&scene.world);
    let (mut epoch, mut changed) = (7, 0);
    scene.world.epoch.write(0, &u32::from(epoch).to_le_bytes());
    overlay::over_drives_with(shim, scene, seed, &mut |world, batch| {
        changed += noted.look_up(world, batch, epoch);
        epoch += 1;
        world.epoch.write(0, &u32::from(epoch).to_le_bytes());
        noted.check(world)
    })?;
    Ok(changed)
}

/// Rows on drives, deduplicated in each way.
fn on_drives(shim: &mut Shim, seed: u64) -> Result<usize, String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape { drives: 2, rows: 1..2000, cold: rng.bool(), ..Shape::without_drives(rng.u64(1..1500)) };
    let mut scene = loop {
        let mut scene = Scene::new(rng.fork(), shape.clone(), true, TIMEOUT);
        scene.world = scene.world.touched(|_| true);
        if scene.world.tables.iter().any(|table| table.touched.is_some()) {
            break scene;
        }
    };
    let (mut noted, mut changed) = (Noted::new(&scene.world), 0);
    for epoch in 1..3u16 {
        scene.world.epoch.write(0, &u32::from(epoch).to_le_bytes());
        let batch = Batch::new(&mut scene.rng, &scene.world);
        let launched = scene.run(shim, batch, |_, _| ())?;
        scene.check(shim, &launched)?;
        changed += noted.look_up(&scene.world, &launched.batch, epoch);
        noted.check(&scene.world)?;
    }
    Ok(changed)
}

/// All of it.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    match seed % 4 {
        0 => updated(shim, seed),
        1 => on_drives(shim, seed),
        _ => replayed(shim, seed),
    }
    .map(drop)
}

/// Fails, or tells how many touches were noted, by a seed.
type Way = fn(&mut Shim, u64) -> Result<usize, String>;

#[test]
fn launches_note_the_keys_that_they_find_in_the_epoch_of_their_time() {
    let Some(mut shim) = Shim::new() else { return };
    let ways: [Way; 3] = [replayed, updated, on_drives];
    for (way, look_up) in ways.into_iter().enumerate() {
        let noted = seeds(16)
            .map(|seed| look_up(&mut shim, seed).unwrap_or_else(|wrong| panic!("way {way}, seed {seed}: {wrong}")));
        let noted: usize = noted.sum();
        assert!(noted > 500, "{noted} touches by way {way}");
    }
}
