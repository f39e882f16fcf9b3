//! Drives that are added and removed: what moves, under whom, and what a power cut leaves of it.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::cuts::*;
use common::*;
use warprow_layout::{
    DType, Drive, Generation, GenerationSpec, LogUpdate, OpenError, RowSource, StoreAccess, StoreFormatError,
    TableSpec, Volume, VolumeError, open, row_crc,
};

const SIZES: [u64; 4] = [6, 8, 10, 12];
/// The drive that comes and goes.
const LAST: usize = 3;
const ROWS: u64 = 1300;

fn shapes() -> Vec<Shape> {
    SIZES.iter().map(|&mebibytes| small(512, mebibytes)).collect()
}

fn go(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A store on the first three drives: a generation of six chunks.
fn loaded(fixture: &Fixture) -> Volume {
    let store = Some(uuid::Uuid::from_u128(1));
    let options = warprow_layout::FormatOptions { chunk_size: Some(1 << 20), store, ..Default::default() };
    warprow_layout::format(&fixture.drives[..LAST], &options).unwrap();
    let volume = open(fixture.drives[..LAST].to_vec(), StoreAccess::ReadWrite).unwrap().volume;
    let mut table = TableSpec::new("t", ROWS, 4000, DType::U8);
    table.row_crc = true;
    let spec = GenerationSpec { stripe_unit: Some(4096), ..GenerationSpec::new("m", vec![table]) };
    let mut tx = volume.begin(&spec).unwrap();
    load(&volume, &mut tx, 1);
    tx.commit().unwrap();
    fixture.take_log();
    volume
}

/// Compares every row; updates are those of number 1 to as many as there are.
fn check_rows(volume: &Volume, generation: &Generation) -> Result<u64, String> {
    let told = |error: VolumeError| error.to_string();
    let mut updated = std::collections::HashMap::new();
    let last = volume.read_log(generation, |_, it| drop(updated.insert(it.key, it.row.to_vec()))).map_err(told)?;
    let crcs = volume.read_row_crcs(generation, 0).map_err(told)?.unwrap();
    let mut row = vec![0; 4000];
    let mut wanted = vec![0; 4000];
    for id in 0..ROWS {
        volume.read_row(generation, 0, id, &mut row).map_err(told)?;
        Rows { version: 1, table: 0 }.read(id, 4000, &mut wanted).unwrap();
        if row != wanted || crcs[id as usize] != row_crc(id, &row) {
            return Err(format!("row {id} differs"));
        }
    }
    let right = |(&id, row): (&u64, &Vec<u8>)| *row == vec![id as u8; 4000];
    if !updated.iter().all(right) || updated.len() as u64 != last {
        return Err(format!("{} updates, the last is {last}", updated.len()));
    }
    Ok(last)
}

fn on(generation: &Generation, member: usize) -> usize {
    generation.placement.map().iter().filter(|chunk| usize::from(chunk.drive()) == member).count()
}

/// What the last drive is due of six chunks.
fn due(volume: &Volume) -> usize {
    let counts: Vec<usize> = volume.geometry().members.iter().map(|member| member.chunk_count as usize).collect();
    6 * counts[LAST] / counts.iter().sum::<usize>()
}

fn add_and_spread(volume: &Volume, fixture: &Fixture) -> Result<Volume, VolumeError> {
    let added = volume.add_member(fixture.drives[LAST].clone(), true)?;
    added.spread(LAST as u16, &mut go)?;
    Ok(added)
}

#[test]
fn a_new_drive_gets_its_share_under_readers_and_no_other_chunk_moves() {
    let fixture = Fixture::new(&shapes());
    let volume = loaded(&fixture);
    let before: Arc<Generation> = volume.generations()[0].clone();
    let added = volume.add_member(fixture.drives[LAST].clone(), false).unwrap();
    assert!(matches!(volume.begin(&model()), Err(VolumeError::MembersChanged)));
    let mut told = Vec::new();
    let moved = added
        .spread(LAST as u16, &mut |moved, total| {
            told.push((moved, total));
            ControlFlow::Continue(())
        })
        .unwrap();
    let after = added.generations()[0].clone();
    assert_eq!((on(&after, LAST), moved), (due(&added), due(&added) as u64));
    assert!(due(&added) >= 2);
    assert_eq!(told, [(moved, moved)]);
    let pairs = before.placement.map().iter().zip(after.placement.map());
    assert_eq!(pairs.filter(|(before, after)| before != after).count() as u64, moved);
    assert_eq!(added.spread(LAST as u16, &mut go).unwrap(), 0, "it has its share");
    // A reader that holds the generation as it was reads it as it was, whatever is written now.
    let free: u64 = added.free_chunks().iter().sum();
    let spec = GenerationSpec::new("n", vec![TableSpec::new("n", (free - 1) * 200, 4096, DType::U8)]);
    let mut tx = added.begin(&spec).unwrap();
    load(&added, &mut tx, 5);
    tx.commit().unwrap();
    check_rows(&volume, &before).unwrap();
    check_rows(&added, &after).unwrap();
    let opened = fixture.open();
    assert!(opened.repairs.is_empty());
    check_rows(&opened.volume, &opened.volume.generations()[0]).unwrap();
    let three = open(fixture.drives[..LAST].to_vec(), StoreAccess::ReadOnly);
    assert!(matches!(&three, Err(OpenError::MissingMember { missing, .. }) if missing.len() == 1), "{three:?}");
}

#[test]
fn what_cannot_join_or_go_is_refused_before_anything_is_written() {
    let mut all = shapes();
    all.extend([small(4096, 8), small(512, 1)]);
    let fixture = Fixture::new(&all);
    let volume = loaded(&fixture);
    let unsuitable = |drive: usize| match volume.add_member(fixture.drives[drive].clone(), false) {
        Err(VolumeError::Unsuitable(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(unsuitable(4), StoreFormatError::MixedLbaSizes { .. }));
    assert!(matches!(unsuitable(5), StoreFormatError::TooSmall { .. }));
    assert!(matches!(unsuitable(0), StoreFormatError::Twice { .. }));
    let other = Fixture::with_images(&[all[3]], vec![fixture.images()[3].clone()]);
    other.format(9);
    fixture.drives[3].image.lock().unwrap().clone_from(&other.images()[0]);
    assert!(
        matches!(unsuitable(3), StoreFormatError::AlreadyFormatted { store: Some(store), .. } if store.as_u128() == 9)
    );
    // Nor while somebody writes.
    let log = volume.log(0, |_, _| ()).unwrap();
    assert!(matches!(volume.add_member(fixture.drives[3].clone(), true), Err(VolumeError::LogBusy { generation: 0 })));
    drop(log);
    let tx = volume.begin(&model()).unwrap();
    assert!(matches!(volume.add_member(fixture.drives[3].clone(), true), Err(VolumeError::Busy)));
    drop(tx);
    assert!(fixture.take_log().is_empty());
    // Without room elsewhere nobody goes.
    let free: u64 = volume.free_chunks().iter().sum();
    let filler = GenerationSpec::new("n", vec![TableSpec::new("n", (free - 1) * 250, 4096, DType::U8)]);
    let filler = volume.begin(&filler).unwrap().commit().unwrap().id;
    fixture.take_log();
    assert!(matches!(volume.remove_member(2, &mut go), Err(VolumeError::NoSpace { .. })));
    assert!(matches!(volume.remove_member(7, &mut go), Err(VolumeError::NoSuchMember { index: 7 })));
    assert!(fixture.take_log().is_empty());
    volume.drop_generation(filler).unwrap();
    check_rows(&volume, &volume.generations()[0]).unwrap();
}

#[test]
fn a_drive_that_goes_leaves_nothing_behind_and_its_place_is_taken_again() {
    let fixture = Fixture::new(&shapes());
    let volume = loaded(&fixture);
    let added = add_and_spread(&volume, &fixture).unwrap();
    let held = added.generations()[0].clone();
    // Stopped after the first commit, it is gone on with.
    let stopped = added.remove_member(LAST as u16, &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(VolumeError::Stopped)));
    check_rows(&added, &added.generations()[0]).unwrap();
    let in_use = added.remove_member(LAST as u16, &mut go);
    assert!(matches!(in_use, Err(VolumeError::MemberInUse { generation: 0, .. })), "{in_use:?}");
    check_rows(&added, &held).unwrap();
    drop((held, volume));
    let removed = added.remove_member(LAST as u16, &mut go).unwrap();
    check_rows(&removed, &removed.generations()[0]).unwrap();
    assert_eq!(removed.missing(), []);
    let opened = open(fixture.drives[..LAST].to_vec(), StoreAccess::ReadWrite).unwrap();
    assert!(opened.repairs.is_empty());
    check_rows(&opened.volume, &opened.volume.generations()[0]).unwrap();
    switch(&opened.volume, 2);
    // It says itself where it was; to software that does not know how, it carries no store.
    let store = opened.volume.store();
    for drives in [fixture.drives.clone(), vec![fixture.drives[LAST].clone()]] {
        match open(drives, StoreAccess::ReadOnly) {
            Err(OpenError::RemovedMember { drive, store: from }) => {
                assert_eq!((&*drive, from), (fixture.drives[LAST].name(), store));
            }
            other => panic!("{other:?}"),
        }
    }
    let found = warprow_layout::probe(&fixture.drives[LAST]).unwrap();
    assert!(found.newest().is_none() && !found.has_magic(), "{found:?}");
    // Another drive, and the first: indices stay what they were.
    let added = opened.volume.add_member(fixture.drives[LAST].clone(), false).unwrap();
    assert_eq!(added.geometry().members.len(), 4);
    // The volume before is a reader too.
    drop(opened);
    let removed = added.remove_member(0, &mut go).unwrap();
    assert!(removed.geometry().members[0].vacant);
    let opened = open(fixture.drives[1..].to_vec(), StoreAccess::ReadWrite).unwrap().volume;
    verify(&opened, &opened.generations()[0], 2).unwrap();
    assert!(
        matches!(open(vec![fixture.drives[1].clone()], StoreAccess::ReadOnly), Err(OpenError::MissingMember { missing, .. }) if missing.len() == 2)
    );
}

#[test]
fn a_drive_that_was_removed_and_could_not_be_wiped_is_named() {
    let fixture = Fixture::new(&shapes());
    let volume = loaded(&fixture);
    let added = add_and_spread(&volume, &fixture).unwrap();
    drop(volume);
    let before = fixture.drives[LAST].image.lock().unwrap().clone();
    added.remove_member(LAST as u16, &mut go).unwrap();
    fixture.drives[LAST].image.lock().unwrap().clone_from(&before);
    match open(fixture.drives.clone(), StoreAccess::ReadWrite) {
        Err(OpenError::RemovedMember { drive, .. }) => assert_eq!(drive, fixture.drives[LAST].name()),
        other => panic!("{other:?}"),
    }
}

struct Recorded {
    base: Vec<Image>,
    log: Vec<Op>,
}

/// One adding, as it is acknowledged: 1 the drive is a member, 2 it has its share.
fn record_adding() -> Recorded {
    let fixture = Fixture::new(&shapes());
    let volume = loaded(&fixture);
    let base = fixture.images();
    let added = volume.add_member(fixture.drives[LAST].clone(), false).unwrap();
    fixture.mark(1);
    added.spread(LAST as u16, &mut go).unwrap();
    fixture.mark(2);
    Recorded { base, log: fixture.take_log() }
}

/// Every member alone knows that the drive is one, from its start and from its tail.
fn all_know(images: &[Image], epoch: u64, tails_in_flight: bool) -> Result<(), String> {
    let shapes = shapes();
    for index in 0..images.len() {
        for zero_start in [false, true] {
            if zero_start && tails_in_flight {
                continue;
            }
            let fixture = Fixture::with_images(&shapes[index..=index], vec![images[index].clone()]);
            if zero_start {
                (0..2).for_each(|unit| fixture.drives[0].set_unit(unit, &[0; 4096]));
            }
            let alone = warprow_layout::probe(&fixture.drives[0]).unwrap();
            if alone.newest().is_none_or(|newest| newest.epoch < epoch) {
                return Err(format!("member {index} alone (start zeroed: {zero_start}) forgot epoch {epoch}"));
            }
        }
    }
    Ok(())
}

/// `spread`: what is left to be done is done.
fn added_or_not(crash: Crash, spread: bool) -> Result<(), String> {
    let shapes = shapes();
    // Epoch 2 has the generation, 3 the member, 4 its share.
    if crash.acked > 0 {
        all_know(&crash.images, crash.acked + 2, crash.tails_in_flight)?;
    }
    let fixture = Fixture::with_images(&shapes, crash.images);
    let (volume, before) = match open(fixture.drives.clone(), StoreAccess::ReadWrite) {
        Ok(opened) => (opened.volume, 4),
        // It is none yet: then the others are a store without it.
        Err(error) if crash.acked == 0 => {
            let three = open(fixture.drives[..LAST].to_vec(), StoreAccess::ReadWrite);
            (three.map_err(|other| format!("with it: {error}; without it: {other}"))?.volume, 3)
        }
        Err(error) => return Err(error.to_string()),
    };
    check_rows(&volume, &volume.generations()[0])?;
    if !spread {
        return Ok(());
    }
    // By the same calls.
    let told = |error: VolumeError| error.to_string();
    let volume = match before {
        3 => add_and_spread(&volume, &fixture).map_err(told)?,
        _ => {
            volume.spread(LAST as u16, &mut go).map_err(told)?;
            volume
        }
    };
    let generation = volume.generations()[0].clone();
    check_rows(&volume, &generation)?;
    if on(&generation, LAST) != due(&volume) {
        return Err(format!("{} chunks of {}", on(&generation, LAST), due(&volume)));
    }
    let again = fixture.open();
    if !again.repairs.is_empty() {
        return Err(format!("still to be repaired: {:?}", again.repairs));
    }
    check_rows(&again.volume, &again.volume.generations()[0]).map(drop)
}

/// Few, for images of some size.
const FATES: [Fate; 7] = [
    Fate::AllLost,
    Fate::AllKept,
    Fate::Lbas(50, 1),
    Fate::Torn(2),
    Fate::Spoilt(3),
    Fate::Drives(5),
    Fate::Only(LAST),
];

#[test]
fn cuts_while_a_drive_is_added_leave_a_store_that_goes_on() {
    let Recorded { base, log } = record_adding();
    let log = thinned(&log);
    enumerate_fates(&shapes(), &base, &log, 0, &FATES, |crash| added_or_not(crash, true)).unwrap();
}

/// Writes of rows that follow one another, as one: cuts between them show nothing new.
fn thinned(log: &[Op]) -> Vec<Op> {
    let mut out: Vec<Op> = Vec::new();
    for op in log {
        if let (Op::Write { drive, lba, data }, Some(Op::Write { drive: before, lba: first, data: written })) =
            (op, out.last_mut())
            && drive == before
            && *lba == *first + written.len() as u64 / 512
            && *lba > 2048
        {
            *written = [&written[..], &data[..]].concat().into();
        } else {
            out.push(op.clone());
        }
    }
    out
}

#[test]
fn the_flushes_of_adding_are_needed() {
    let Recorded { base, log } = record_adding();
    let log = thinned(&log);
    let joined = log.iter().position(|op| matches!(op, Op::Mark(1))).unwrap();
    let flushes: Vec<usize> = (0..joined).filter(|&at| matches!(log[at], Op::Flush { .. })).collect();
    // Emptied slots; four catalogues; the new drive's superblock, twice; those of the others, twice.
    assert_eq!(flushes.len(), 1 + 4 + 2 + 6);
    let mut idle = Vec::new();
    for (number, &from) in flushes.iter().enumerate() {
        let mut without = log[..=joined].to_vec();
        without.remove(from);
        let fates = fates(4, 2);
        if enumerate_fates(&shapes(), &base, &without, from, &fates, |crash| added_or_not(crash, false)).is_ok() {
            idle.push(number);
        }
    }
    // On a drive that was blank, emptying its slots changes nothing; its catalogue has other copies; and nobody misses it while
    // its first superblocks are both torn, for others speak of it later.
    assert_eq!(idle, [0, 4, 5]);
}

/// One removal of a drive that holds rows and a log: 1 updates were made, 2 it is gone.
fn record_removing() -> Recorded {
    let fixture = Fixture::new(&shapes());
    let volume = loaded(&fixture);
    let added = add_and_spread(&volume, &fixture).unwrap();
    drop(volume);
    let mut log = added.log(0, |_, _| ()).unwrap();
    let rows: Vec<Vec<u8>> = (0..5u8).map(|id| vec![id; 4000]).collect();
    let updates: Vec<LogUpdate<'_>> = (0..).zip(&rows).map(|(key, row)| LogUpdate { table: 0, key, row }).collect();
    log.append(&updates).unwrap();
    drop(log);
    assert_eq!(usize::from(added.generations()[0].log[0].chunk.drive()), LAST, "it has most room");
    let base = fixture.images();
    fixture.take_log();
    fixture.mark(1);
    added.remove_member(LAST as u16, &mut go).unwrap();
    fixture.mark(2);
    Recorded { base, log: fixture.take_log() }
}

fn removed_or_not(crash: Crash) -> Result<(), String> {
    let fixture = Fixture::with_images(&shapes(), crash.images);
    let told = |error: VolumeError| error.to_string();
    let others = fixture.drives[..LAST].to_vec();
    let volume = match open(others.clone(), StoreAccess::ReadWrite) {
        Ok(opened) => opened.volume,
        Err(error) if crash.acked < 2 => {
            let volume = open(fixture.drives.clone(), StoreAccess::ReadWrite)
                .map_err(|other| format!("without it: {error}; with it: {other}"))?
                .volume;
            if check_rows(&volume, &volume.generations()[0])? != 5 {
                return Err("updates are lost".to_owned());
            }
            volume.remove_member(LAST as u16, &mut go).map_err(told)?
        }
        Err(error) => return Err(error.to_string()),
    };
    if check_rows(&volume, &volume.generations()[0])? != 5 {
        return Err("updates are lost".to_owned());
    }
    drop(volume);
    let again = open(others, StoreAccess::ReadWrite).map_err(|error| error.to_string())?;
    if !again.repairs.is_empty() {
        return Err(format!("still to be repaired: {:?}", again.repairs));
    }
    check_rows(&again.volume, &again.volume.generations()[0]).map(drop)
}

#[test]
fn cuts_while_a_drive_is_removed_lose_nothing() {
    let Recorded { base, log } = record_removing();
    let log = thinned(&log);
    enumerate_fates(&shapes(), &base, &log, 0, &FATES, removed_or_not).unwrap();
}

#[test]
fn the_flushes_of_removing_are_needed() {
    let Recorded { base, log } = record_removing();
    let log = thinned(&log);
    let flushes: Vec<usize> = (0..log.len()).filter(|&at| matches!(log[at], Op::Flush { .. })).collect();
    // Of the last commit: three catalogues, and superblocks twice; then the drive that went.
    let last = &flushes[flushes.len() - 10..];
    let mut idle = Vec::new();
    for (number, &from) in last.iter().enumerate() {
        let mut without = log.clone();
        without.remove(from);
        if enumerate_fates(&shapes(), &base, &without, from, &fates(4, 2), removed_or_not).is_ok() {
            idle.push(number);
        }
    }
    // The tails are needed when a start is lost besides, which is not tried here; that the drive is wiped is a courtesy.
    assert_eq!(idle, [6, 7, 8, 9]);
}

/// The first commit behind a drive that joined, killed after each of its writes: the slot of the new drive that was never written is
/// one that the commit did not come to.
#[test]
fn a_commit_that_is_cut_off_behind_a_new_drive_is_unfinished_and_no_damage() {
    let fixture = Fixture::new(&shapes());
    let joined = loaded(&fixture).add_member(fixture.drives[LAST].clone(), false).unwrap();
    let base = fixture.images();
    fixture.take_log();
    let commit = |volume: &Volume| {
        let table = TableSpec::new("more", 1, 4000, DType::U8);
        let spec = GenerationSpec { stripe_unit: Some(4096), ..GenerationSpec::new("more", vec![table]) };
        volume.begin(&spec).unwrap().commit().unwrap();
    };
    commit(&joined);
    let mut durable = base;
    let mut pending = Vec::new();
    let mut unfinished = 0;
    for op in &fixture.take_log() {
        apply(&shapes(), op, &mut durable, &mut pending);
        let fixture = Fixture::with_images(&shapes(), survive(&durable, &pending, Fate::AllKept));
        let volume = open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume;
        let mends = volume.damaged_metadata().unwrap();
        assert!(mends.iter().all(|mend| mend.unfinished), "{mends:?}");
        unfinished += mends.iter().filter(|mend| usize::from(mend.member) == LAST).count();
    }
    assert!(unfinished >= 2, "{unfinished}");
    // Two commits later both slots of the drive were written: zeros are damage, whoever else is behind.
    commit(&joined);
    let tail = shapes()[LAST].units() - 2;
    for unit in [tail + joined.epoch() % 2, joined.epoch() % 2] {
        let whole = fixture.drives[LAST].unit(unit);
        fixture.drives[LAST].set_unit(unit, &[0; 4096]);
        let mends = joined.damaged_metadata().unwrap();
        assert!(mends.len() == 1 && !mends[0].unfinished, "{mends:?}");
        fixture.drives[LAST].set_unit(unit, &whole);
    }
    assert!(joined.damaged_metadata().unwrap().is_empty());
}
