//! Logs that are gone on with by other processes, room that is kept for compaction, and stores that have none left.

mod common;

use std::collections::HashMap;

use common::cuts::*;
use common::*;
use warprow_layout::{
    DType, GenerationSpec, Log, LogUpdate, RowPatch, RowSource, StoreAccess, TableSpec, Volume, VolumeError, open,
    row_crc,
};

/// Bytes of a row of table "wide" of the model, and its number there.
const WIDE: usize = 1200;
const TABLE: u32 = 1;
const ROWS: u64 = 30;

/// What the rows of table "wide" are after updates: the byte that fills each.
type Model = HashMap<u64, u8>;

fn update(log: &mut Log, model: &mut Model, key: u64, byte: u8) -> Result<u64, VolumeError> {
    let row = [byte; WIDE];
    let sequence = log.append(&[LogUpdate { table: TABLE, key, row: &row }])?;
    model.insert(key, byte);
    Ok(sequence)
}

/// Opens the log, and compares what it says with the model.
fn log_of(volume: &Volume, model: &Model) -> Result<Log, String> {
    let mut found = volume_rows(volume);
    let mut take = |_: u64, update: LogUpdate<'_>| {
        found.insert(update.key, update.row[0]);
    };
    let log = volume.log(0, &mut take).map_err(|error| error.to_string())?;
    for (key, byte) in model {
        if found.get(key) != Some(byte) {
            return Err(format!("row {key} is {:?}, and was {byte}", found.get(key)));
        }
    }
    Ok(log)
}

/// The rows of table "wide" that are filled with one byte, as they lie in the chunks, whose checksums have to be right.
fn volume_rows(volume: &Volume) -> Model {
    let generation = volume.generation(0).unwrap();
    let mut found = Model::new();
    let mut row = vec![0; WIDE];
    for rank in 0..ROWS {
        volume.read_row(&generation, TABLE as usize, rank, &mut row).unwrap();
        if row.iter().all(|&byte| byte == row[0]) {
            found.insert(rank, row[0]);
        }
    }
    found
}

fn compact(volume: &Volume, log: &mut Log, model: &Model) -> Result<usize, VolumeError> {
    let rewriting = volume.rewriting(0)?;
    if volume.free_chunks().iter().sum::<u64>() == 0 && log.repack(&rewriting)? == 0 {
        return Err(volume.no_space(1));
    }
    let sequence = log.seal();
    let rows: Vec<(u64, [u8; WIDE])> = model.iter().map(|(&rank, &byte)| (rank, [byte; WIDE])).collect();
    let patches: Vec<RowPatch<'_>> =
        rows.iter().map(|(rank, row)| RowPatch { table: TABLE, rank: *rank, row }).collect();
    let done = volume.rewrite_in_steps(&rewriting, &patches).and_then(|rewritten| {
        let chunks = rewritten.chunks();
        log.compact(sequence, rewritten).map(|_| chunks)
    });
    if done.is_err() {
        log.unseal(sequence);
    }
    done
}

fn loaded(shapes: &[Shape]) -> (Fixture, Volume) {
    let fixture = Fixture::new(shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    (fixture, volume)
}

fn free(volume: &Volume) -> u64 {
    volume.free_chunks().iter().sum()
}

/// Takes free chunks until `left` are.
fn fill(volume: &Volume, left: u64) {
    let table = TableSpec::new("filler", (free(volume) - left) * 256, 4096, DType::U8);
    let spec = GenerationSpec { stripe_unit: Some(4096), ..GenerationSpec::new("filler", vec![table]) };
    volume.begin(&spec).unwrap().commit().unwrap();
    assert_eq!(free(volume), left);
}

#[test]
fn a_thousand_processes_of_one_update_each_take_as_many_chunks_as_their_units() {
    let (fixture, volume) = loaded(&[small(512, 24)]);
    drop(volume);
    let mut model = Model::new();
    for process in 0..600u64 {
        let volume = fixture.open().volume;
        let mut log = log_of(&volume, &model).unwrap();
        update(&mut log, &mut model, process % ROWS, process as u8).unwrap();
        assert_eq!(log.sequence(), process + 1);
    }
    let volume = fixture.open().volume;
    let log = log_of(&volume, &model).unwrap();
    let usage = log.usage().unwrap();
    assert_eq!((usage.chunks, usage.bytes), (3, 600 * 4096), "255 units of a chunk, and one that ends them");
}

/// Two processes, of which the first is cut off within a batch of several units: whatever is left of it, what the second appends
/// is found, and nothing of the first behind it. A second cut, within what the second writes, leaves no mixture.
#[test]
fn what_a_torn_batch_left_never_follows_what_is_appended_in_its_place() {
    let shapes = [small(512, 6)];
    let (fixture, volume) = loaded(&shapes);
    let mut model = Model::new();
    update(&mut log_of(&volume, &model).unwrap(), &mut model, 0, 1).unwrap();
    drop(volume);
    let base = fixture.images();
    fixture.take_log();
    let torn = |byte: u8| [[byte; WIDE]; 9];
    let batch = |log: &mut Log, rows: &[[u8; WIDE]]| {
        let updates: Vec<LogUpdate<'_>> =
            (1..).zip(rows).map(|(key, row)| LogUpdate { table: TABLE, key, row: &row[..] }).collect();
        log.append(&updates).unwrap();
    };
    batch(&mut log_of(&fixture.open().volume, &model).unwrap(), &torn(2));
    let first = fixture.take_log();
    let mut seconds = 0;
    let check = |crash: Crash| {
        let fixture = Fixture::with_images(&shapes, crash.images);
        let images = fixture.images();
        fixture.take_log();
        let mut found = 0;
        {
            let volume = fixture.open().volume;
            let mut log = volume.log(0, |_, _| found += 1).map_err(|error| error.to_string())?;
            // As many rows as before, so that units of either batch look alike.
            batch(&mut log, &torn(3));
        }
        seconds += 1;
        if seconds % 7 != 0 {
            return Ok(());
        }
        let second = fixture.take_log();
        let check = |crash: Crash| {
            let fixture = Fixture::with_images(&shapes, crash.images);
            let volume = open(fixture.drives.clone(), StoreAccess::ReadOnly).map_err(|error| error.to_string())?.volume;
            let mut all = Vec::new();
            let read = volume.read_log(&volume.generations()[0], |_, update| all.push(update.row[0]));
            read.map_err(|error| error.to_string())?;
            let (before, after) = all.split_at(found.min(all.len()));
            let is_first = |row: &u8| *row <= 2;
            match before.iter().all(is_first) && after.iter().all(|&row| row == 3 || row == 2 && all.len() <= 10) {
                // What was in doubt may be there whole or in part, and nothing of the second with it; or all of the second comes behind.
                true if !(after.contains(&2) && after.contains(&3)) => Ok(()),
                _ => Err(format!("{found} were shown, then there are {all:?}")),
            }
        };
        let fates =
            [Fate::AllKept, Fate::AllLost, Fate::Lbas(50, 1), Fate::Lbas(50, 2), Fate::Torn(3), Fate::Writes(4)];
        enumerate_fates(&shapes, &images, &second, 0, &fates, check).map(drop)
    };
    let fates: Vec<Fate> = (0..12).flat_map(|seed| [Fate::Lbas(50, seed), Fate::Torn(seed)]).collect();
    enumerate_fates(&shapes, &base, &first, 0, &fates, check).unwrap();
    assert!(seconds > 40, "{seconds}");
}

/// Without the flush between clearing what a torn batch left and what is appended, a cut could bring both.
#[test]
fn the_clearing_is_durable_before_anything_is_appended() {
    let shapes = [small(512, 6)];
    let (fixture, volume) = loaded(&shapes);
    let mut model = Model::new();
    let mut log = log_of(&volume, &model).unwrap();
    update(&mut log, &mut model, 0, 1).unwrap();
    let rows = [[2; WIDE]; 9];
    let updates: Vec<LogUpdate<'_>> = (1..).zip(&rows).map(|(key, row)| LogUpdate { table: TABLE, key, row }).collect();
    log.append(&updates).unwrap();
    let entry = volume.generations()[0].log[0];
    drop((log, volume));
    // The first unit of the batch, and the end unit, did not come to the medium.
    let first = fixture.open().volume.geometry().first_chunk_unit + u64::from(entry.chunk.chunk()) * 256;
    fixture.drives[0].set_unit(first + 1, &[0; 4096]);
    fixture.drives[0].set_unit(first + 4, &[0; 4096]);
    assert!(fixture.drives[0].unit(first + 2).iter().any(|&byte| byte != 0));
    fixture.take_log();
    let volume = fixture.open().volume;
    let mut log = log_of(&volume, &Model::from([(0, 1)])).unwrap();
    assert_eq!(log.sequence(), 1);
    let opened = fixture.take_log().len();
    assert_eq!(opened, 2, "opening flushes, and writes nothing");
    update(&mut log, &mut Model::new(), 5, 9).unwrap();
    let ops = fixture.take_log();
    let lba = |unit: u64| (first + unit) * 8;
    assert!(matches!(&ops[0], Op::Write { lba: at, data, .. } if *at == lba(1) && data.iter().all(|&byte| byte == 0)));
    assert!(matches!(ops[1], Op::Flush { .. }));
    assert!(matches!(&ops[2], Op::Write { lba: at, .. } if *at == lba(1)));
    assert!(matches!(ops[3], Op::Flush { .. }));
    assert!(matches!(&ops[4], Op::Write { lba: at, .. } if *at == lba(2)), "the end unit");
    assert_eq!(ops.len(), 5);
}

#[test]
fn a_log_that_was_closed_in_a_process_is_not_gone_on_with_by_it() {
    let (_rig, volume) = loaded(&[small(512, 8)]);
    let mut model = Model::new();
    let mut log = log_of(&volume, &model).unwrap();
    update(&mut log, &mut model, 0, 1).unwrap();
    // A compaction seals here, and does not know of another opening.
    let sequence = log.seal();
    let rewriting = volume.rewriting(0).unwrap();
    let row = [1; WIDE];
    let rewritten = volume.rewrite_in_steps(&rewriting, &[RowPatch { table: TABLE, rank: 0, row: &row }]).unwrap();
    drop(log);
    let mut log = log_of(&volume, &model).unwrap();
    update(&mut log, &mut model, 1, 2).unwrap();
    assert_eq!(volume.generations()[0].log.len(), 2);
    log.compact(sequence, rewritten).unwrap();
    drop(log);
    log_of(&volume, &model).unwrap();
}

#[test]
fn a_compaction_that_did_not_come_about_costs_no_chunk() {
    let (_rig, volume) = loaded(&[small(512, 8)]);
    let mut model = Model::new();
    let mut log = log_of(&volume, &model).unwrap();
    for round in 0..5 {
        update(&mut log, &mut model, round, round as u8).unwrap();
        let sequence = log.seal();
        log.unseal(sequence);
    }
    assert_eq!(volume.generations()[0].log.len(), 1);
    let sequence = log.seal();
    update(&mut log, &mut model, 7, 7).unwrap();
    assert_eq!(volume.generations()[0].log.len(), 2, "what comes after a seal lies in another chunk");
    log.unseal(sequence);
    drop(log);
    log_of(&volume, &model).unwrap();
}

#[test]
fn updates_end_before_the_room_of_compaction_and_compaction_has_it() {
    let (fixture, volume) = loaded(&[small(512, 12)]);
    let mut model = Model::new();
    let mut compactions = 0;
    fill(&volume, 4);
    for round in 0..3000u64 {
        let mut log = log_of(&volume, &model).unwrap();
        match update(&mut log, &mut model, round * 7 % ROWS, round as u8) {
            Ok(_) => {}
            Err(VolumeError::NoLogSpace { generation: 0, needed: 1, free: 1, kept: 1, .. }) => {
                assert!(compact(&volume, &mut log, &model).unwrap() > 0);
                compactions += 1;
                assert_eq!(free(&volume), 4);
                let spec = GenerationSpec::new("other", vec![TableSpec::new("other", 256 * 4, 4096, DType::U8)]);
                volume.check(&spec, &[]).unwrap();
                update(&mut log, &mut model, round * 7 % ROWS, round as u8).unwrap();
                assert!(matches!(volume.check(&spec, &[]), Err(VolumeError::NoSpace { kept: 1, .. })));
            }
            Err(error) => panic!("{error}"),
        }
        // A process goes on with the log of one before it; within one, each opening takes a chunk.
        if round % 300 == 299 {
            let before = volume.generations()[0].log.len();
            drop(log);
            let again = fixture.open().volume;
            log_of(&again, &model).unwrap();
            assert_eq!(again.generations()[0].log.len(), before);
        }
    }
    assert!(compactions > 3, "{compactions}");
}

/// All chunks of a generation have updates, and one chunk is free: compaction goes in steps, and can be cut short in each.
#[test]
fn compaction_in_steps_needs_one_chunk_and_may_be_cut_anywhere() {
    let shapes = [small(512, 9), small(512, 9)];
    let (fixture, volume) = loaded(&shapes);
    // A model of several chunks: each row of it in another.
    let mut spec = GenerationSpec::new("large", vec![TableSpec::new("rows", 6 * 256, 4096, DType::U8)]);
    (spec.tables[0].row_crc, spec.stripe_unit) = (true, Some(4096));
    volume.drop_generation(0).unwrap();
    let mut tx = volume.begin(&spec).unwrap();
    let source = Rows { version: 3, table: 0 };
    let loader = tx.loader(0, &source, None).unwrap();
    for extent in loader.extents(16 << 10) {
        let mut buf = vec![0xEE; extent.bytes];
        loader.fill(&extent, &mut buf).unwrap();
        volume.drive(extent.drive).unwrap().write(extent.lba, &buf).unwrap();
    }
    let id = tx.commit().unwrap().id;
    let columns = volume.generation(id).unwrap().placement.map().len();
    let changed: Vec<(u64, Vec<u8>)> = (0..64u64).map(|number| (number * 23, vec![number as u8 + 1; 4096])).collect();
    let mut log = volume.log(id, |_, _| ()).unwrap();
    let updates: Vec<LogUpdate<'_>> = changed.iter().map(|(key, row)| LogUpdate { table: 0, key: *key, row }).collect();
    log.append(&updates).unwrap();
    drop(log);
    fill(&volume, 2);
    drop(volume);
    let base = fixture.images();
    fixture.take_log();
    // A reader, whose chunks would not come back: all at once, for which there is no room, and none is spent.
    let patches: Vec<RowPatch<'_>> =
        changed.iter().map(|(rank, row)| RowPatch { table: 0, rank: *rank, row }).collect();
    let volume = fixture.open().volume;
    let mut log = volume.log(id, |_, _| ()).unwrap();
    let reader = volume.generation(id).unwrap();
    let refused = volume.rewrite_in_steps(&volume.rewriting(id).unwrap(), &patches);
    assert!(matches!(refused, Err(VolumeError::NoSpace { free: 2, .. })), "{refused:?}");
    assert_eq!(free(&volume), 2);
    drop(reader);
    let epoch = volume.epoch();
    let sequence = log.seal();
    let rewritten = volume.rewrite_in_steps(&volume.rewriting(id).unwrap(), &patches).unwrap();
    assert_eq!(rewritten.chunks(), columns, "each chunk once");
    log.compact(sequence, rewritten).unwrap();
    assert!(volume.epoch() - epoch > 2, "in steps");
    drop((log, volume));
    let ops = fixture.take_log();
    let all_right = |volume: &Volume| -> Result<(), String> {
        let generation = volume.generation(id).ok_or("it is gone")?;
        let mut logged = HashMap::new();
        let read = volume.read_log(&generation, |_, update| drop(logged.insert(update.key, update.row.to_vec())));
        read.map_err(|error| error.to_string())?;
        let crcs = volume.read_row_crcs(&generation, 0).map_err(|error| error.to_string())?.ok_or("no checksums")?;
        let wanted: HashMap<u64, &Vec<u8>> = changed.iter().map(|(rank, row)| (*rank, row)).collect();
        let mut row = vec![0; 4096];
        let mut original = vec![0; 4096];
        for rank in 0..6 * 256 {
            volume.read_row(&generation, 0, rank, &mut row).map_err(|error| error.to_string())?;
            Rows { version: 3, table: 0 }.read(rank, 4096, &mut original).map_err(|error| error.to_string())?;
            let found = logged.get(&rank).unwrap_or(&row);
            if found != *wanted.get(&rank).unwrap_or(&&original) {
                return Err(format!("row {rank} is wrong"));
            }
            // Of a row that the log has, the checksum may be that of before.
            if !logged.contains_key(&rank) && crcs[rank as usize] != row_crc(rank, &row) {
                return Err(format!("the checksum of row {rank} is wrong"));
            }
        }
        Ok(())
    };
    let check = |crash: Crash| {
        let fixture = Fixture::with_images(&shapes, crash.images);
        let volume = open(fixture.drives.clone(), StoreAccess::ReadWrite).map_err(|error| error.to_string())?.volume;
        all_right(&volume)
    };
    // Each write of a copy is like the others: some of them, and all that are not of chunks.
    let fates = [Fate::AllLost, Fate::Lbas(50, 1), Fate::Only(1)];
    let mut durable = base.clone();
    let mut pending = Vec::new();
    let mut checked = 0;
    for (position, op) in ops.iter().enumerate() {
        apply(&shapes, op, &mut durable, &mut pending);
        let is_copy = matches!(op, Op::Write { data, .. } if data.len() > 4096);
        if is_copy && position % 37 != 0 {
            continue;
        }
        for fate in fates {
            let images = survive(&durable, &pending, fate);
            let told = check(Crash { images, acked: 0, tails_in_flight: false });
            told.unwrap_or_else(|error| panic!("cut after operation {position}, {fate:?}: {error}"));
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
    // What was cut short goes on with what it lacks.
    let half = ops.len() / 2;
    let mut durable = base;
    let mut pending = Vec::new();
    ops[..half].iter().for_each(|op| apply(&shapes, op, &mut durable, &mut pending));
    let fixture = Fixture::with_images(&shapes, survive(&durable, &pending, Fate::AllKept));
    let volume = fixture.open().volume;
    let mut log = volume.log(id, |_, _| ()).unwrap();
    let sequence = log.seal();
    let rewritten = volume.rewrite_in_steps(&volume.rewriting(id).unwrap(), &patches).unwrap();
    assert!(rewritten.chunks() < columns, "{} of {columns} once more", rewritten.chunks());
    log.compact(sequence, rewritten).unwrap();
    assert!(volume.generation(id).unwrap().log.is_empty());
    all_right(&volume).unwrap();
}

/// What earlier versions left: a chunk of the log for each process, until hardly one was free.
fn wedged(units: u64) -> (Fixture, Model) {
    let (fixture, volume) = loaded(&[small(512, 16)]);
    let mut model = Model::new();
    drop(volume);
    let mut byte = 0u8;
    // Each second opening of a log in one process begins another chunk, as each process did then.
    let volume = fixture.open().volume;
    drop(log_of(&volume, &model).unwrap());
    while free(&volume) > 1 {
        let mut log = log_of(&volume, &model).unwrap();
        for _ in 0..units {
            byte = byte.wrapping_add(1);
            update(&mut log, &mut model, u64::from(byte) % ROWS, byte).unwrap();
        }
    }
    drop(volume);
    (fixture, model)
}

#[test]
fn a_log_is_packed_closer_where_no_chunk_is_free() {
    for units in [1, 200] {
        let (fixture, mut model) = wedged(units);
        let before = fixture.images();
        let volume = fixture.open().volume;
        let chunks = volume.generations()[0].log.len();
        assert!(chunks >= 10, "{chunks}");
        fixture.take_log();
        // It is known before, also by who may only read.
        let reading = open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume;
        let wins = reading.chunks_to_repack(&reading.generations()[0]).unwrap();
        let mut log = log_of(&volume, &model).unwrap();
        assert_eq!(volume.chunks_to_repack(&volume.generations()[0]).unwrap(), wins);
        let free_before = free(&volume);
        let won = log.repack(&volume.rewriting(0).unwrap()).unwrap();
        assert!(won > 2, "{won} of {chunks}");
        assert_eq!((won as u64, free(&volume)), (wins, free_before + wins));
        // Once packed, its place is taken.
        assert_eq!(volume.chunks_to_repack(&volume.generations()[0]).unwrap(), 0);
        let ops = fixture.take_log();
        // It is a store like any other: read, gone on with, compacted.
        drop((log, volume));
        let volume = fixture.open().volume;
        let packed = volume.generations()[0].log[0];
        assert_eq!(packed.chunk.chunk(), volume.geometry().members[0].chunk_count, "behind the last chunk");
        let runs = volume.map().remove(0).runs;
        assert!(runs.windows(2).all(|pair| pair[0].lba + pair[0].lbas == pair[1].lba), "{runs:?}");
        let mut log = log_of(&volume, &model).unwrap();
        update(&mut log, &mut model, 3, 250).unwrap();
        compact(&volume, &mut log, &model).unwrap();
        drop((log, volume));
        let volume = fixture.open().volume;
        assert!(volume.generations()[0].log.is_empty());
        log_of(&volume, &model).unwrap();
        // Whatever of it a power cut leaves.
        model.remove(&3);
        let check = |crash: Crash| {
            let fixture = Fixture::with_images(&[small(512, 16)], crash.images);
            let volume =
                open(fixture.drives.clone(), StoreAccess::ReadWrite).map_err(|error| error.to_string())?.volume;
            log_of(&volume, &model).map(drop)
        };
        let fates = [Fate::AllKept, Fate::AllLost, Fate::Lbas(50, 1), Fate::Torn(2)];
        enumerate_fates(&[small(512, 16)], &before, &ops, 0, &fates, check).unwrap();
    }
}

/// Full chunks are no fewer when they are packed.
#[test]
fn a_log_of_full_chunks_cannot_be_packed() {
    let (_rig, volume) = loaded(&[small(512, 12)]);
    let mut log = log_of(&volume, &Model::new()).unwrap();
    // As many records as 255 units hold, one after another.
    let row = [1; WIDE];
    let batch = vec![LogUpdate { table: TABLE, key: 0, row: &row }; 255 * 3992 / (WIDE + 24)];
    while log.append(&batch).is_ok() {}
    let generation = volume.generations().remove(0);
    assert!(generation.log.len() > 3 && free(&volume) == 1);
    let usage = log.usage().unwrap();
    assert_eq!(usage.bytes, usage.chunks * 255 * 4096);
    assert_eq!(volume.chunks_to_repack(&generation).unwrap(), 0);
    drop(generation);
    let epoch = volume.epoch();
    assert_eq!(log.repack(&volume.rewriting(0).unwrap()).unwrap(), 0);
    assert_eq!((volume.epoch(), free(&volume)), (epoch, 1), "nothing was written");
}

/// Each end unit, and each unit before it, by one flipped bit at any place.
#[test]
fn one_flipped_bit_in_a_log_that_was_closed_undoes_nothing_unnoticed() {
    let (fixture, volume) = loaded(&[small(512, 6)]);
    let mut model = Model::new();
    let mut log = log_of(&volume, &model).unwrap();
    let rows = [[5; WIDE]; 12];
    let updates: Vec<LogUpdate<'_>> = (0..).zip(&rows).map(|(key, row)| LogUpdate { table: TABLE, key, row }).collect();
    log.append(&updates).unwrap();
    model.extend((0..12).map(|key| (key, 5)));
    let entry = volume.generations()[0].log[0];
    let first = volume.geometry().first_chunk_unit + u64::from(entry.chunk.chunk()) * 256;
    drop((log, volume));
    let images = fixture.images();
    let units = (12 * (WIDE + 24)).div_ceil(3992) as u64;
    let mut random = fastrand::Rng::with_seed(7);
    for unit in 0..units + 3 {
        for _ in 0..40 {
            let fixture = Fixture::with_images(&[small(512, 6)], images.clone());
            let mut block = fixture.drives[0].unit(first + unit);
            block[random.usize(..4096)] ^= 1 << random.u32(..8);
            fixture.drives[0].set_unit(first + unit, &block);
            let volume = fixture.open().volume;
            match volume.log(0, |_, _| ()) {
                Err(VolumeError::LogDamaged { unit: found, .. }) => assert_eq!(u64::from(found), unit),
                Err(error) => panic!("{error}"),
                Ok(log) => {
                    assert!(unit >= units, "unit {unit} was damaged, and nobody noticed");
                    drop(log);
                    let mut log = log_of(&volume, &model).unwrap();
                    update(&mut log, &mut model.clone(), 20, 1).unwrap();
                }
            }
        }
    }
}

/// What a process was doing when it was cut off.
struct Nearly {
    shapes: Vec<Shape>,
    images: Vec<Image>,
    model: Model,
    /// The sequence number of the last update that was acknowledged, or shown.
    sequence: u64,
    random: fastrand::Rng,
    /// Compactions, those that were cut off, and updates that found no room.
    counts: [u32; 3],
}

impl Nearly {
    /// One process: opens the store, updates and compacts, and ends, or is cut off at some operation of a drive.
    fn process(&mut self) -> Result<(), String> {
        let fixture = Fixture::with_images(&self.shapes, self.images.clone());
        let volume = open(fixture.drives.clone(), StoreAccess::ReadWrite).map_err(|error| error.to_string())?.volume;
        let mut log = log_of(&volume, &self.model)?;
        if log.sequence() != self.sequence {
            return Err(format!("{} updates are there, and were {}", log.sequence(), self.sequence));
        }
        for _ in 0..self.random.u32(1..5) {
            let (images, _) = (fixture.images(), fixture.take_log());
            let count = [1, 1, 3, 40, 400][self.random.usize(..5)];
            let batch: Vec<(u64, [u8; WIDE])> =
                (0..count).map(|_| (self.random.u64(..ROWS), [self.random.u8(..); WIDE])).collect();
            let updates: Vec<LogUpdate<'_>> =
                batch.iter().map(|(key, row)| LogUpdate { table: TABLE, key: *key, row }).collect();
            let compacts = self.random.u32(..8) == 0;
            let appended = if compacts { Ok(0) } else { log.append(&updates) };
            match appended {
                Ok(_) if !compacts => {
                    if self.random.u32(..4) == 0 {
                        return self.cut(images, &fixture.take_log(), &batch);
                    }
                    self.model.extend(batch.iter().map(|(key, row)| (*key, row[0])));
                    self.sequence += batch.len() as u64;
                }
                Ok(_) | Err(VolumeError::NoLogSpace { .. }) => {
                    self.counts[2] += u32::from(!compacts);
                    // Whenever it is refused, a compaction has room.
                    compact(&volume, &mut log, &self.model).map_err(|error| format!("no compaction: {error}"))?;
                    self.counts[0] += 1;
                    if self.random.bool() {
                        self.counts[1] += 1;
                        return self.cut(images, &fixture.take_log(), &[]);
                    }
                    log.append(&updates).map_err(|error| format!("no room behind a compaction: {error}"))?;
                    self.model.extend(batch.iter().map(|(key, row)| (*key, row[0])));
                    self.sequence += batch.len() as u64;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        drop((log, volume));
        self.images = fixture.images();
        Ok(())
    }

    /// Kills the process, or cuts the power, at one of `ops`, in which a batch was appended; and sees how much of it is there.
    fn cut(&mut self, images: Vec<Image>, ops: &[Op], batch: &[(u64, [u8; WIDE])]) -> Result<(), String> {
        let at = self.random.usize(..=ops.len());
        let mut durable = images;
        let mut pending = Vec::new();
        ops[..at].iter().for_each(|op| apply(&self.shapes, op, &mut durable, &mut pending));
        let seed = self.random.u64(..);
        let fates =
            [Fate::AllKept, Fate::AllKept, Fate::AllLost, Fate::Lbas(50, seed), Fate::Torn(seed), Fate::Writes(seed)];
        self.images = survive(&durable, &pending, fates[self.random.usize(..fates.len())]);
        let fixture = Fixture::with_images(&self.shapes, self.images.clone());
        let volume = open(fixture.drives.clone(), StoreAccess::ReadOnly).map_err(|error| error.to_string())?.volume;
        let found = volume.read_log(&volume.generation(0).unwrap(), |_, _| ()).map_err(|error| error.to_string())?;
        let more = found.checked_sub(self.sequence).filter(|&more| more <= batch.len() as u64);
        let more =
            more.ok_or_else(|| format!("{found} updates behind a cut, of {} and {}", self.sequence, batch.len()))?;
        self.model.extend(batch[..more as usize].iter().map(|(key, row)| (*key, row[0])));
        self.sequence = found;
        // The end that was cut off is no damage.
        let mends = volume.damaged_metadata().map_err(|error| error.to_string())?;
        match mends.iter().find(|mend| !mend.unfinished) {
            None => Ok(()),
            Some(mend) => Err(format!("damage behind a cut: {mend:?}")),
        }
    }
}

/// Drives nearly full, updates of all sizes, kills and power cuts: every row is one that it may be, and compaction always succeeds.
#[test]
fn nearly_full_drives_take_updates_and_compactions_through_kills_and_cuts() {
    let mut counts = [0; 3];
    for seed in 0..60u64 {
        let shapes: Vec<Shape> =
            [[10, 10], [7, 12]][seed as usize % 2].map(|size| small([512, 4096][seed as usize / 2 % 2], size)).to_vec();
        let (fixture, volume) = loaded(&shapes);
        let room = 2 + seed % 2;
        fill(&volume, room);
        drop(volume);
        let random = fastrand::Rng::with_seed(seed);
        let mut it =
            Nearly { shapes, images: fixture.images(), model: Model::new(), sequence: 0, random, counts: [0; 3] };
        for process in 0..25 {
            it.process().unwrap_or_else(|error| panic!("seed {seed}, process {process}: {error}"));
        }
        // In the end.
        let fixture = Fixture::with_images(&it.shapes, it.images.clone());
        let volume = fixture.open().volume;
        let mut log = log_of(&volume, &it.model).unwrap();
        compact(&volume, &mut log, &it.model).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        drop(log);
        assert!(volume.generation(0).unwrap().log.is_empty() && free(&volume) == room, "seed {seed}");
        drop(log_of(&volume, &it.model).unwrap());
        counts.iter_mut().zip(it.counts).for_each(|(all, of)| *all += of);
    }
    println!("{counts:?} compactions, of them cut off, refused updates");
    assert!(counts.iter().all(|&count| count > 20), "{counts:?}");
}

/// What a generation takes when it is written anew is kept, all of it where so much is free; by how much it grows is for the others.
#[test]
fn the_growth_of_a_generation_is_not_kept_beside_what_it_takes() {
    let (_rig, volume) = loaded(&[small(512, 12)]);
    let mut model = Model::new();
    update(&mut log_of(&volume, &model).unwrap(), &mut model, 0, 1).unwrap();
    let free = free(&volume);
    volume.keep_for_compaction(0, free, 1);
    assert_eq!(volume.kept_for_compaction(), free);
    let spec = GenerationSpec::new("other", vec![TableSpec::new("other", 1, 4096, DType::U8)]);
    assert!(matches!(volume.check(&spec, &[]), Err(VolumeError::NoSpace { needed: 1, .. })));
    volume.check_anew(&spec, &[]).unwrap();
    // More than are free cannot be kept.
    volume.keep_for_compaction(0, free + 1, 1);
    assert_eq!(volume.kept_for_compaction(), 1);
}
