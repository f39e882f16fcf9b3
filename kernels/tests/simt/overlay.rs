//! Rows that are updated while look-ups come and go: each look-up sees all of an update or nothing of it, and what was published before it
//! began. One kernel runs while another's lanes wait in the middle, in a copy of the shim of its own.

use fastrand::Rng;
use warprow_kernels::SMALL_IDS;
use warprow_kernels::abi;
use warprow_kernels::{OverlayMap, StagedBatch, overlay_row_bytes};

use crate::batch::{Batch, Varied};
use crate::buffer::Buffer;
use crate::oracle::Place;
use crate::rich;
use crate::rig::{Rig, expect};
use crate::ring::Scene;
use crate::shim::{Launch, Shim, seeds};
use crate::world::{Of, Shape, Table, World, random_rows};

/// An overlay in memory, and what was put in.
pub(crate) struct Updates {
    pub(crate) map: OverlayMap,
    memory: Buffer,
    staging: Buffer,
    number: u64,
    turns: u32,
}

/// Rows of one call: table, row or key, content; none: the key is removed.
pub(crate) type Rows = Vec<(usize, Of, Vec<u8>)>;

impl Updates {
    pub(crate) fn new(bytes: usize) -> Self {
        let memory = Buffer::new(bytes);
        let map = OverlayMap::new(memory.address(), bytes as u64, 300).unwrap();
        memory.write((map.header_at() - memory.address()) as usize, map.header().as_bytes());
        Self { map, memory, staging: Buffer::new(bytes + (1 << 15)), number: 0, turns: 0 }
    }

    /// The launches that put some rows in; more than one where all is copied to the other side first. `None`: they have no room.
    pub(crate) fn launches(&mut self, world: &World, rows: &Rows) -> Option<Vec<abi::Update>> {
        let of = |table: usize| world.tables[table].overlay;
        let bytes: u64 = rows.iter().map(|(.., row)| overlay_row_bytes(row.len() as u32)).sum();
        let mut all: Rows = Vec::new();
        if !self.map.has_room(rows.len(), bytes) {
            self.map.turn();
            self.turns += 1;
            for (number, table) in world.tables.iter().enumerate() {
                all.extend(table.updated.iter().map(|(&of, content)| (number, of, content.clone())));
            }
        }
        all.extend(rows.iter().cloned());
        // In two pieces, of which only the second shows them.
        let half = all.len() / 2;
        let mut at = 0;
        let mut launches = Vec::new();
        for (piece, shown) in [(&all[..half], false), (&all[half..], true)] {
            let mut put = self.map.begin();
            let mut content = Vec::new();
            for (table, row, bytes) in piece {
                let (table, row) = match *row {
                    Of::Row(row) => (of(*table), row),
                    Of::Key(key) => (of(*table) | abi::TABLE_CREATED, key as u64),
                };
                if !self.map.put(&mut put, table, row, bytes.len() as u32) {
                    return None;
                }
                content.extend_from_slice(bytes);
                content.resize(content.len().next_multiple_of(16), 0xdd);
            }
            assert_eq!(content.len() as u64, put.rows_bytes);
            let records: Vec<u8> = put.records.iter().flat_map(|record| record.as_bytes().to_vec()).collect();
            let entries: Vec<u8> = put.entries.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
            let mut stage = |bytes: &[u8]| {
                let begin = at;
                self.staging.write(begin, bytes);
                at = (begin + bytes.len()).next_multiple_of(16);
                self.staging.address() + begin as u64
            };
            self.number += 1;
            let staged = StagedBatch {
                rows: stage(&content),
                records: stage(&records),
                entries: stage(&entries),
                result: stage(&[0; 8]),
                number: self.number,
            };
            // A launch that begins a side clears it: the piece may be empty.
            let is_needed = shown || !put.records.is_empty();
            let update = self.map.update(&put, staged, shown);
            if shown {
                self.map.showing();
            }
            launches.extend(is_needed.then_some(update));
        }
        Some(launches)
    }
}

pub(crate) fn random_update(rng: &mut Rng, world: &World) -> Rows {
    let tables: Vec<usize> = (0..world.tables.len()).filter(|&index| world.tables[index].overlay != 0).collect();
    let hot = rng.u64(1..30);
    let one = |rng: &mut Rng| {
        let number = tables[rng.usize(0..tables.len())];
        let table = &world.tables[number];
        let of = match &table.sparse {
            Some(sparse) if rng.bool() => Of::Key(sparse.foreign[rng.usize(0..sparse.foreign.len())]),
            _ => Of::Row(rng.u64(0..table.rows.min(hot))),
        };
        (number, of, random_content(rng, table))
    };
    (0..rng.usize(1..20)).map(|_| one(rng)).collect()
}

/// A row for a table; none for some of those with keys, which are removed.
fn random_content(rng: &mut Rng, table: &Table) -> Vec<u8> {
    match table.sparse.is_some() && rng.u32(0..5) == 0 {
        true => Vec::new(),
        false => random_rows(rng, table.element, table.dim, 1),
    }
}

pub(crate) fn show(world: &mut World, rows: Rows) {
    for (table, of, content) in rows {
        world.tables[table].updated.insert(of, content);
    }
}

pub(crate) fn launch() -> Launch {
    Launch::new("warprow_update", 1, 1024)
}

fn world(rng: &mut Rng, updates: &Updates) -> World {
    let shape = Shape { rows: 1..300, rich: rng.bool(), ..Shape::without_drives(rng.u64(1..400)) };
    let mut order = rng.fork();
    let world = World::new(rng, &shape);
    let always = order.usize(0..world.tables.len());
    let overlay = updates.map.header_at();
    world.overlaid(overlay, |table| table == always || order.bool())
}

/// A look-up, by one kernel or several, with somebody beside some of it; what is wrong with it if it is to see the world as it is.
fn look_up(
    shim: &mut Shim,
    rng: &mut Rng,
    world: &World,
    batch: &Batch,
    kind: u32,
    beside: &mut dyn FnMut(bool) -> u64,
) -> Result<(), String> {
    let mut rig = Rig { shim, rng: rng.fork(), world };
    match kind {
        0 => rig.direct_beside(&batch.lookup().with_ticket(2), beside),
        kind => {
            rig.prepare_beside(&batch.lookup(), kind == 1, beside)?;
            rig.fetch(&batch.lookup(), None)?;
            rig.expand(&batch.lookup(), kind == 1)
        }
    }
}

fn check(shim: &mut Shim, rng: &Rng, world: &World, batch: &Batch, kind: u32) -> Result<(), String> {
    let expected = expect(world, batch);
    let mut expected = expected.by_one_block(world, kind == 1);
    if kind == 0 {
        expected.counters.rows_dram = 0;
        // Else blocks of the next might take it for theirs.
        let left = world.slot.direct.u64_at(std::mem::offset_of!(abi::SlotState, snapshot));
        if left != 0 {
            return Err(format!("the snapshot {left:#x} outlives its launch"));
        }
    }
    let rig = Rig { shim, rng: rng.clone(), world };
    let lookup = batch.lookup().with_ticket(if kind == 0 { 2 } else { 0 });
    rig.check_ended(batch, &lookup, &expected, |_| false).map(drop)
}

/// Updates, one after the other, each with whole look-ups in the middle of its kernel.
fn readers(shim: &mut Shim, reader: &mut Shim, seed: u64) -> Result<u32, String> {
    let mut rng = Rng::with_seed(seed);
    let mut updates = Updates::new(rng.usize(20_000..60_000));
    let mut world = world(&mut rng, &updates);
    let mut inside = 0;
    for update in 0..8 {
        let rows = random_update(&mut rng, &world);
        let Some(launches) = updates.launches(&world, &rows) else { break };
        let last = launches.len() - 1;
        for (number, launched) in launches.iter().enumerate() {
            let mut time = 1_000_000;
            let mut wrong = None;
            let mut steps = rng.fork();
            let published = launched.published;
            let mut after = None;
            let mut turn = |_| {
                time += 100;
                if wrong.is_none() && steps.u32(0..300) == 0 {
                    // What is published is seen, and nothing else.
                    let header = (updates.map.header_at() - updates.memory.address()) as usize;
                    let is_new = published != 0 && updates.memory.u64_at(header) == published;
                    if is_new && after.is_none() {
                        after = Some(());
                        show(&mut world, rows.clone());
                    }
                    let batch = Batch::new(&mut steps, &world);
                    let kind = if steps.bool() { 0 } else { 1 + u32::from(batch.lookup().batch.max_ids > SMALL_IDS) };
                    let mut clock = time;
                    let looked = look_up(reader, &mut steps, &world, &batch, kind, &mut |_| {
                        clock += 100;
                        clock
                    });
                    wrong = looked.and_then(|()| check(reader, &steps, &world, &batch, kind)).err();
                    inside += 1;
                }
                time
            };
            shim.update(&launch(), launched, rng.u64(..), Some(&mut turn))?;
            if let Some(wrong) = wrong {
                return Err(format!("in the middle of update {update}, launch {number}: {wrong}"));
            }
            if number == last && after.is_none() {
                show(&mut world, rows.clone());
            }
        }
        if !updates.memory.is_sound() {
            return Err("something is written past the overlay's end".to_owned());
        }
    }
    Ok(inside)
}

/// Look-ups, one after the other, with whole updates in the middle of their kernels.
fn writers(shim: &mut Shim, writer: &mut Shim, seed: u64) -> Result<(u32, u32), String> {
    let mut rng = Rng::with_seed(seed);
    let mut updates = Updates::new(rng.usize(20_000..60_000));
    let mut world = world(&mut rng, &updates);
    let mut inside = 0;
    for look_up_number in 0..10 {
        // Those between look-ups may turn the sides, those inside have room.
        if rng.bool() {
            let rows = random_update(&mut rng, &world);
            let Some(launches) = updates.launches(&world, &rows) else { break };
            launches.iter().try_for_each(|update| writer.update(&launch(), update, rng.u64(..), None))?;
            show(&mut world, rows);
        }
        let batch = Batch::new(&mut rng, &world);
        let kind = rng.u32(0..3);
        let mut steps = rng.fork();
        let mut time = 1_000_000;
        let mut versions = Vec::new();
        let mut wrong = None;
        let mut later: Vec<Rows> = Vec::new();
        let mut turn = |_| {
            time += 100;
            if wrong.is_none() && later.len() < 3 && steps.u32(0..40) == 0 {
                let rows = random_update(&mut steps, &world);
                let bytes: u64 = rows.iter().map(|(.., row)| overlay_row_bytes(row.len() as u32)).sum();
                if updates.map.has_room(rows.len(), bytes) {
                    let launches = updates.launches(&world, &rows).unwrap();
                    wrong = launches
                        .iter()
                        .try_for_each(|update| writer.update(&launch(), update, steps.u64(..), None))
                        .err();
                    later.push(rows);
                    inside += 1;
                }
            }
            time
        };
        look_up(shim, &mut rng, &world, &batch, kind, &mut turn)?;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        // As before all of them, or after the first so many.
        versions.push(check(shim, &rng, &world, &batch, kind));
        for rows in later {
            show(&mut world, rows);
            versions.push(check(shim, &rng, &world, &batch, kind));
        }
        if versions.iter().all(Result::is_err) {
            return Err(format!(
                "look-up {look_up_number} by {kind} saw none of {} versions: {:?}",
                versions.len(),
                versions[0]
            ));
        }
    }
    Ok((inside, updates.turns))
}

/// What can be put into an overlay for an id: a row of its own, or one for a key that the table lacks.
fn overlaid(table: &Table, id: i128, rng: &mut Rng) -> Option<Of> {
    let lacks = table.sparse.as_ref().is_some_and(|sparse| sparse.lacks(id));
    if lacks && rng.u32(0..4) > 0 { Some(Of::Key(id)) } else { table.row_of(id).map(Of::Row) }
}

/// Look-ups of all tiers, of rows some of which were updated since, and of keys that were created: those are read from no drive, also where the
/// drive's are damaged. So are rows of removed keys. How many they found of each kind.
fn over_drives(shim: &mut Shim, seed: u64) -> Result<[usize; 3], String> {
    over_drives_in(shim, rich::scene(seed), seed)
}

pub(crate) fn over_drives_in(shim: &mut Shim, scene: Scene, seed: u64) -> Result<[usize; 3], String> {
    over_drives_with(shim, scene, seed, &mut |_, _| Ok(()))
}

/// What `over_drives_in` does, with `looked` behind each look-up.
pub(crate) fn over_drives_with(
    shim: &mut Shim,
    mut scene: Scene,
    seed: u64,
    looked: &mut dyn FnMut(&World, &Batch) -> Result<(), String>,
) -> Result<[usize; 3], String> {
    let mut updates = Updates::new(4 << 20);
    scene.world = scene.world.overlaid(updates.map.header_at(), |table| table == 0 || seed.is_multiple_of(2));
    let mut found = [0; 3];
    for _ in 0..3 {
        let batch = Batch::new(&mut scene.rng, &scene.world);
        let rng = &mut scene.rng;
        let world = &scene.world;
        let row = |at: usize, rng: &mut Rng| {
            let number = world.features[batch.feature_of(at, world.features.len())].table;
            let table = &world.tables[number];
            let of = overlaid(table, batch.ids[at], rng).filter(|_| table.overlay != 0)?;
            Some((number, of, random_content(rng, table)))
        };
        let rows: Rows =
            (0..30).filter(|_| !batch.ids.is_empty()).filter_map(|_| row(rng.usize(0..batch.ids.len()), rng)).collect();
        for launched in updates.launches(world, &rows).ok_or("there is no room")? {
            shim.update(&launch(), &launched, rng.u64(..), None)?;
        }
        show(&mut scene.world, rows);
        let launched = scene.run(shim, batch, |_, _| ())?;
        let due = rich::damaged(&scene.world, &launched.expected.uniques);
        if launched.lost != due {
            return Err(format!("{:?} were lost, where {due:?} are damaged", launched.lost));
        }
        scene.check(shim, &launched)?;
        looked(&scene.world, &launched.batch)?;
        for (at, place) in launched.expected.places.iter().enumerate() {
            match place {
                Place::Updated(Of::Row(_)) => found[0] += 1,
                Place::Updated(Of::Key(_)) => found[1] += 1,
                Place::Missing => {
                    let feature = launched.batch.feature_of(at, scene.world.features.len());
                    let table = &scene.world.tables[scene.world.features[feature].table];
                    found[2] += usize::from(table.is_removed(launched.batch.ids[at]));
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

pub(crate) fn updated_on_drives(shim: &mut Shim, seed: u64) -> Result<(), String> {
    over_drives(shim, seed).map(drop)
}

pub(crate) fn readers_beside_updates(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut reader = shim.twin();
    readers(shim, &mut reader, seed).map(drop)
}

pub(crate) fn updates_beside_readers(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut writer = shim.twin();
    writers(shim, &mut writer, seed).map(drop)
}

#[test]
fn updated_rows_are_read_from_no_drive() {
    let Some(mut shim) = Shim::new() else { return };
    let mut found = [0; 3];
    for seed in seeds(24) {
        let some = over_drives(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        found = [0, 1, 2].map(|kind| found[kind] + some[kind]);
    }
    assert!(found[0] > 200 && found[1] > 20 && found[2] > 20, "{found:?}");
}

#[test]
fn look_ups_in_the_middle_of_an_update_see_what_is_published() {
    let Some(mut shim) = Shim::new() else { return };
    let mut other = shim.twin();
    let inside: u32 = seeds(40)
        .map(|seed| readers(&mut shim, &mut other, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")))
        .sum();
    assert!(inside > 150, "{inside} look-ups");
}

#[test]
fn a_look_up_sees_all_of_an_update_or_nothing_of_it() {
    let Some(mut shim) = Shim::new() else { return };
    let mut other = shim.twin();
    let mut inside = 0;
    let mut turns = 0;
    for seed in seeds(60) {
        let found = writers(&mut shim, &mut other, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        (inside, turns) = (inside + found.0, turns + found.1);
    }
    assert!(inside > 300 && turns > 10, "{inside} updates inside look-ups, {turns} turns");
}
