//! Updates, commits and changes of members that drives fail half-way, or that something else overtakes.

mod common;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::cuts::*;
use common::*;
use warprow_layout::{
    DType, FormatOptions, GenerationSpec, Log, LogUpdate, RowPatch, StoreAccess, TableSpec, Volume, VolumeError,
    format, open,
};

const SIZES: [u64; 3] = [4, 5, 7];
/// Rows of the table that is updated: 1,200 bytes each, so that a chunk of the log takes some 830.
const WIDE: u32 = 1;
const WIDE_BYTES: usize = 1200;
const OF_A_CHUNK: usize = 256 * 3992 / (WIDE_BYTES + 24);

fn shapes() -> Vec<Shape> {
    SIZES.iter().map(|&mebibytes| small(512, mebibytes)).collect()
}

fn loaded() -> (Fixture, Volume) {
    let fixture = Fixture::new(&shapes());
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    fixture.take_log();
    (fixture, volume)
}

type Row = (u64, Vec<u8>);

/// `count` rows of the wide table, that differ by `seed`.
fn rows(seed: u64, count: usize) -> Vec<Row> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut row = || {
        let mut row = vec![0; WIDE_BYTES];
        random.fill(&mut row);
        (random.u64(..30), row)
    };
    (0..count).map(|_| row()).collect()
}

fn append(log: &mut Log, rows: &[Row]) -> Result<u64, VolumeError> {
    let updates: Vec<LogUpdate<'_>> = rows.iter().map(|(key, row)| LogUpdate { table: WIDE, key: *key, row }).collect();
    log.append(&updates)
}

fn log_of(volume: &Volume, generation: u64) -> Result<(Log, Vec<Row>), VolumeError> {
    let mut found = Vec::new();
    let log = volume.log(generation, |_, update| found.push((update.key, update.row.to_vec())))?;
    Ok((log, found))
}

fn go(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Where a unit of a log's chunk lies.
fn unit_of(volume: &Volume, chunk: usize, unit: u64) -> (usize, u64) {
    let entry = volume.generations()[0].log[chunk];
    let first = volume.geometry().first_chunk_unit + u64::from(entry.chunk.chunk()) * 256;
    (usize::from(entry.chunk.drive()), first + unit)
}

/// While a batch is written into a chunk that was allotted for it, the generation is dropped: nobody is given that chunk before
/// the batch has been written.
#[test]
fn a_chunk_that_is_being_appended_to_is_nobody_elses() {
    let (fixture, volume) = loaded();
    let (mut log, _) = log_of(&volume, 0).unwrap();
    append(&mut log, &rows(1, 1)).unwrap();
    let old = volume.generations()[0].log[0].chunk;
    let first = volume.geometry().first_chunk_unit;
    let meanwhile = Arc::new(Mutex::new(None));
    for (index, drive) in fixture.drives.iter().enumerate() {
        let volume = volume.clone();
        let drive = drive.clone();
        let meanwhile = meanwhile.clone();
        fixture.drives[index].hook(move |asked| {
            let Asked::Write { lba } = asked else { return true };
            let Some(chunk) = drive.chunk_of(lba, first) else { return true };
            if (index, chunk) != (usize::from(old.drive()), old.chunk()) && meanwhile.lock().unwrap().is_none() {
                *meanwhile.lock().unwrap() = Some(Vec::new());
                volume.drop_generation(0).unwrap();
                let free: u64 = volume.free_chunks().iter().sum();
                let table = TableSpec::new("n", free * 256, 4096, DType::U8);
                let all = volume.begin(&GenerationSpec::new("n", vec![table])).unwrap();
                let given = all.generation().placement.map().iter();
                let given = given.map(|chunk| (usize::from(chunk.drive()), chunk.chunk())).collect::<Vec<_>>();
                *meanwhile.lock().unwrap() = Some([vec![(index, chunk)], given].concat());
            }
            true
        });
    }
    append(&mut log, &rows(2, OF_A_CHUNK + 10)).unwrap();
    let meanwhile = meanwhile.lock().unwrap().take().unwrap();
    let (written, given) = meanwhile.split_first().unwrap();
    assert!(!given.is_empty() && !given.contains(written), "{written:?} is given away: {given:?}");
}

/// The flush of a batch fails; its log is closed and opened again in the same process. What is found then, and shown, is durable.
#[test]
fn what_a_log_shows_when_it_is_opened_again_is_durable() {
    let (fixture, volume) = loaded();
    let (mut log, _) = log_of(&volume, 0).unwrap();
    let sure = rows(1, 3);
    let doubted = rows(2, 4);
    append(&mut log, &sure).unwrap();
    let base = fixture.images();
    fixture.take_log();
    fixture.drives.iter().for_each(|drive| drive.hook(|asked| asked != Asked::Flush));
    let failed = append(&mut log, &doubted);
    assert!(matches!(failed, Err(VolumeError::UpdateInDoubt { sequence: 4, .. })), "{failed:?}");
    assert!(matches!(log_of(&volume, 0), Err(VolumeError::LogBusy { .. })));
    drop(log);
    assert!(log_of(&volume, 0).is_err(), "what cannot be made durable is not shown");
    fixture.drives.iter().for_each(MemoryDrive::unhook);
    let shown = log_of(&volume, 0).unwrap().1;
    assert_eq!(shown, [sure, doubted].concat());
    fixture.mark(1);
    let check = |crash: Crash| {
        let fixture = Fixture::with_images(&shapes(), crash.images);
        let found = log_of(&fixture.open().volume, 0).map_err(|error| error.to_string())?.1;
        let least = if crash.acked == 1 { 7 } else { 3 };
        match found.len() >= least && found[..] == shown[..found.len()] {
            true => Ok(()),
            false => Err(format!("{} updates are found", found.len())),
        }
    };
    let fates: Vec<Fate> = fates(SIZES.len(), 2).into_iter().filter(|fate| !matches!(fate, Fate::Spoilt(_))).collect();
    enumerate_fates(&shapes(), &base, &fixture.take_log(), 0, &fates, check).unwrap();
}

/// A drive that cannot read what a power cut tore at the end of a log has all the rest of it.
#[test]
fn the_end_of_a_log_may_be_unreadable_and_no_more() {
    let (fixture, volume) = loaded();
    let (mut log, _) = log_of(&volume, 0).unwrap();
    let sure: Vec<Vec<Row>> = (0..4).map(|seed| rows(seed, 9)).collect();
    for batch in &sure {
        append(&mut log, batch).unwrap();
    }
    drop(log);
    let sure = sure.concat();
    let units = 4 * (9u64 * 1224).div_ceil(3992);
    let images = fixture.images();
    let unreadable = |from: u64, to: u64, also_dead: bool| {
        let fixture = Fixture::with_images(&shapes(), images.clone());
        let volume = fixture.open().volume;
        let ((drive, begin), (_, end)) = (unit_of(&volume, 0, from), unit_of(&volume, 0, to));
        fixture.drives[drive].hook(move |asked| match asked {
            Asked::Read { lba, lbas } => !also_dead && (lba + lbas <= begin * 8 || lba >= end * 8),
            _ => true,
        });
        (fixture, volume)
    };
    for to in [units + 1, units + 5, 256] {
        let (fixture, volume) = unreadable(units, to, false);
        let (mut log, found) = log_of(&volume, 0).unwrap();
        assert_eq!(found, sure, "unreadable up to unit {to}");
        let more = rows(9, 5);
        append(&mut log, &more).unwrap();
        drop((log, volume));
        assert_eq!(log_of(&fixture.open().volume, 0).unwrap().1, [sure.clone(), more].concat());
    }
    // Of the last batch, and of one before it: the end unit, and later ones, say that it was durable.
    for unit in [units - 1, units - 4] {
        let (_rig, volume) = unreadable(unit, unit + 1, false);
        let damaged = log_of(&volume, 0);
        assert!(matches!(&damaged, Err(VolumeError::LogDamaged { .. })), "{:?}", damaged.err());
    }
    // Without the end unit, the last batch is as if it had been torn.
    let (_rig, volume) = unreadable(units - 1, 256, false);
    assert_eq!(log_of(&volume, 0).unwrap().1, sure[..sure.len() - 3]);
    // A drive that reads nothing any more has not lost the end of its log.
    let (_rig, volume) = unreadable(0, 256, true);
    assert!(matches!(log_of(&volume, 0), Err(VolumeError::Drive(_))));
}

/// Fills the store up to `left` free chunks.
fn fill(volume: &Volume, left: u64) {
    let free: u64 = volume.free_chunks().iter().sum();
    let table = TableSpec::new("filler", (free - left) * 256, 4096, DType::U8);
    let spec = GenerationSpec { stripe_unit: Some(4096), ..GenerationSpec::new("filler", vec![table]) };
    volume.begin(&spec).unwrap().commit().unwrap();
    assert_eq!(volume.free_chunks().iter().sum::<u64>(), left);
}

#[test]
fn an_update_for_which_there_is_no_room_leaves_no_part_of_it() {
    let (fixture, volume) = loaded();
    fill(&volume, 3);
    let (mut log, _) = log_of(&volume, 0).unwrap();
    append(&mut log, &rows(1, 10)).unwrap();
    fixture.take_log();
    // What is left of this chunk, another, and one more, which is kept for compaction.
    let full = append(&mut log, &rows(2, 2 * OF_A_CHUNK));
    assert!(matches!(full, Err(VolumeError::NoLogSpace { needed: 2, free: 2, kept: 1, .. })), "{full:?}");
    assert_eq!(log.sequence(), 10);
    assert!(fixture.take_log().is_empty(), "nothing was written");
    append(&mut log, &rows(3, OF_A_CHUNK)).unwrap();
    drop(log);
    assert_eq!(log_of(&fixture.open().volume, 0).unwrap().1, [rows(1, 10), rows(3, OF_A_CHUNK)].concat());
}

/// A drive fails each write and each flush of an update over three chunks in turn: none of it counts then, and the next update
/// comes right behind what was acknowledged.
#[test]
fn of_an_update_that_fails_half_way_nothing_counts() {
    let big = 2 * OF_A_CHUNK + 40;
    let mut after = 0;
    for compacted in [false, true].into_iter().cycle() {
        let (fixture, volume) = loaded();
        let (mut log, _) = log_of(&volume, 0).unwrap();
        append(&mut log, &rows(1, 10)).unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        for drive in &fixture.drives {
            let count = count.clone();
            drive.hook(move |asked| {
                matches!(asked, Asked::Read { .. }) || count.fetch_add(1, Ordering::Relaxed) != after
            });
        }
        let failed = append(&mut log, &rows(2, big));
        fixture.drives.iter().for_each(MemoryDrive::unhook);
        let Err(error) = failed else {
            if count.load(Ordering::Relaxed) > after {
                // The end unit was not written, and the updates are durable without it.
                drop((log, volume));
                assert_eq!(log_of(&fixture.open().volume, 0).unwrap().1, [rows(1, 10), rows(2, big)].concat());
                after += 1;
                continue;
            }
            assert!(after > 50, "{after} writes and flushes");
            break;
        };
        assert_eq!(log.sequence(), 10, "{error}");
        after += 3;
        let more = rows(3, 20);
        match append(&mut log, &more) {
            // A superblock failed: see what it was.
            Err(VolumeError::Poisoned) => {
                drop((log, volume));
                let found = log_of(&fixture.open().volume, 0).unwrap().1;
                let all = [rows(1, 10), rows(2, big)].concat();
                assert!(found.len() >= 10 && found[..] == all[..found.len()]);
                continue;
            }
            result => assert_eq!(result.unwrap(), 30, "after {error}"),
        }
        let mut wanted = [rows(1, 10), more].concat();
        if compacted {
            let sequence = log.seal();
            let patches: Vec<RowPatch<'_>> =
                wanted.iter().map(|(rank, row)| RowPatch { table: WIDE, rank: *rank, row }).collect();
            let rewritten = volume.rewrite(0, &patches).unwrap();
            log.compact(sequence, rewritten).unwrap();
            wanted.clear();
        }
        let later = rows(4, 2);
        append(&mut log, &later).unwrap();
        drop((log, volume));
        assert_eq!(log_of(&fixture.open().volume, 0).unwrap().1, [wanted, later].concat(), "after {error}");
    }
}

/// A compaction right after an update that failed half-way, with no other update between.
#[test]
fn a_compaction_ends_the_doubt() {
    let (fixture, volume) = loaded();
    let (mut log, _) = log_of(&volume, 0).unwrap();
    let sure = rows(1, 10);
    append(&mut log, &sure).unwrap();
    let first = volume.geometry().first_chunk_unit;
    let chunks = Arc::new(Mutex::new(Vec::new()));
    for drive in &fixture.drives {
        let chunks = chunks.clone();
        let drive_ = drive.clone();
        // Writes into the third chunk fail.
        drive.hook(move |asked| {
            let Asked::Write { lba } = asked else { return true };
            let Some(chunk) = drive_.chunk_of(lba, first) else { return true };
            let mut chunks = chunks.lock().unwrap();
            if !chunks.contains(&(drive_.index, chunk)) {
                chunks.push((drive_.index, chunk));
            }
            chunks.len() < 3
        });
    }
    assert!(matches!(append(&mut log, &rows(2, 2 * OF_A_CHUNK)), Err(VolumeError::UpdateInDoubt { .. })));
    fixture.drives.iter().for_each(MemoryDrive::unhook);
    let sequence = log.seal();
    assert_eq!(sequence, 10);
    let patches: Vec<RowPatch<'_>> =
        sure.iter().map(|(rank, row)| RowPatch { table: WIDE, rank: *rank, row }).collect();
    let rewritten = volume.rewrite(0, &patches).unwrap();
    assert!(log.compact(sequence, rewritten).unwrap().log.is_empty());
    drop((log, volume));
    let volume = fixture.open().volume;
    let (mut log, found) = log_of(&volume, 0).unwrap();
    assert!(found.is_empty());
    append(&mut log, &rows(3, 1)).unwrap();
    assert_eq!(log.sequence(), 11);
    let mut row = vec![0; WIDE_BYTES];
    for (rank, _) in &sure {
        let last = sure.iter().rev().find(|(key, _)| key == rank).unwrap();
        volume.read_row(&volume.generations()[0], WIDE as usize, *rank, &mut row).unwrap();
        assert_eq!(row, last.1);
    }
}

/// Chunks of its log count among those that need room elsewhere.
#[test]
fn a_drive_whose_log_has_no_room_elsewhere_stays() {
    let fixture = Fixture::new(&[small(512, 6), small(512, 12)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    let (mut log, _) = log_of(&volume, 0).unwrap();
    append(&mut log, &rows(1, 4 * OF_A_CHUNK)).unwrap();
    drop(log);
    let generation = volume.generations()[0].clone();
    let logged = generation.log.iter().filter(|log| log.chunk.drive() == 1).count();
    let mapped = generation.placement.map().iter().filter(|chunk| chunk.drive() == 1).count();
    drop(generation);
    assert!(logged >= 2, "{logged} chunks of the log");
    let elsewhere = volume.free_chunks()[0] as usize;
    assert!(elsewhere > mapped && elsewhere < mapped + logged, "{elsewhere} chunks free, {mapped} and {logged} needed");
    fixture.take_log();
    let refused = volume.remove_member(1, &mut go);
    assert!(
        matches!(refused, Err(VolumeError::NoSpace { needed, .. }) if needed as usize == mapped + logged),
        "{refused:?}"
    );
    assert!(fixture.take_log().is_empty(), "nothing was moved");
}

#[test]
fn a_member_under_another_name_is_not_added() {
    let (fixture, volume) = loaded();
    let alias = MemoryDrive { name: "alias".into(), ..fixture.drives[1].clone() };
    let copy = Fixture::with_images(&shapes()[2..], vec![fixture.images()[2].clone()]);
    let copy = MemoryDrive { name: "copy".into(), ..copy.drives[0].clone() };
    for (drive, of) in [(&alias, 1), (&copy, 2)] {
        // Its newest superblock may be the one at the tail.
        for zeroed in [&[][..], &[0, 1]] {
            zeroed.iter().for_each(|&unit| drive.set_unit(unit, &[0; 4096]));
            for overwrite in [false, true] {
                let refused = volume.add_member(drive.clone(), overwrite);
                assert!(
                    matches!(&refused, Err(VolumeError::AlreadyMember { member, .. }) if *member == fixture.drives[of].name),
                    "{refused:?}"
                );
            }
        }
    }
    assert!(fixture.take_log().is_empty());
    verify(&fixture.open().volume, &volume.generations()[0], 1).unwrap();
}

/// A load that had begun commits while a drive is emptied: the drive stays.
#[test]
fn a_load_that_commits_while_a_drive_is_emptied_loses_nothing() {
    let (fixture, volume) = loaded();
    let mut tx = volume.begin(&model()).unwrap();
    assert!(tx.generation().placement.map().iter().any(|chunk| chunk.drive() == 1));
    load(&volume, &mut tx, 2);
    let mut tx = Some(tx);
    let removed = volume.remove_member(1, &mut |_, _| {
        if let Some(tx) = tx.take() {
            tx.commit().unwrap();
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(removed, Err(VolumeError::MemberInUse { generation: 1, .. })), "{removed:?}");
    drop(volume);
    let opened = fixture.open();
    assert!(opened.repairs.is_empty());
    [1, 2]
        .iter()
        .zip(opened.volume.generations())
        .for_each(|(&version, it)| verify(&opened.volume, &it, version).unwrap());
    // Now it goes.
    let removed = opened.volume.remove_member(1, &mut go).unwrap();
    [1, 2].iter().zip(removed.generations()).for_each(|(&version, it)| verify(&removed, &it, version).unwrap());
}

/// Blocks the first flush of a drive until it is told to go on; says when it is there.
fn blocked(drive: &MemoryDrive) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((there, is_there), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let once = AtomicBool::new(false);
    let may_go_on = Mutex::new(may_go_on);
    drive.hook(move |asked| {
        if asked == Asked::Flush && !once.swap(true, Ordering::Relaxed) {
            there.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        }
        true
    });
    (is_there, go_on)
}

/// A commit that began before the members changed comes to nothing behind that.
#[test]
fn a_commit_that_the_members_change_overtakes_is_refused() {
    let mut all = shapes();
    all.push(small(512, 6));
    let fixture = Fixture::new(&all);
    let options = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    format(&fixture.drives[..3], &options).unwrap();
    let volume = open(fixture.drives[..3].to_vec(), StoreAccess::ReadWrite).unwrap().volume;
    let first = volume.begin(&model()).map(|mut tx| {
        load(&volume, &mut tx, 1);
        tx.commit().unwrap()
    });
    let first = first.unwrap().id;
    let (is_there, go_on) = blocked(&fixture.drives[0]);
    let added = std::thread::scope(|scope| {
        let switching = scope.spawn(|| volume.switch(first, false).map(drop));
        is_there.recv().unwrap();
        // Both wait for the switch, in whichever order.
        let dropping = scope.spawn(|| volume.drop_generation(first));
        std::thread::sleep(Duration::from_millis(50));
        let adding = scope.spawn(|| volume.add_member(fixture.drives[3].clone(), false));
        std::thread::sleep(Duration::from_millis(50));
        go_on.send(()).unwrap();
        switching.join().unwrap().unwrap();
        assert!(matches!(dropping.join().unwrap(), Err(VolumeError::MembersChanged)));
        adding.join().unwrap().unwrap()
    });
    verify(&added, &added.generations()[0], 1).unwrap();
    drop((added, volume));
    let opened = fixture.open();
    assert!(opened.repairs.is_empty());
    verify(&opened.volume, &opened.volume.generations()[0], 1).unwrap();
}

/// Of two compactions, the one that sealed first ends last: its rows are the older ones.
#[test]
fn a_compaction_that_another_overtook_is_refused() {
    let (fixture, volume) = loaded();
    let (mut log, _) = log_of(&volume, 0).unwrap();
    let of = |byte: u8| vec![(7u64, vec![byte; WIDE_BYTES])];
    append(&mut log, &of(1)).unwrap();
    let early = log.seal();
    append(&mut log, &of(2)).unwrap();
    let late = log.seal();
    let patch = |row| [RowPatch { table: WIDE, rank: 7, row }];
    let rewritten = volume.rewrite(0, &patch(&[2; WIDE_BYTES])).unwrap();
    log.compact(late, rewritten).unwrap();
    let rewritten = volume.rewrite(0, &patch(&[1; WIDE_BYTES])).unwrap();
    let overtaken = log.compact(early, rewritten);
    assert!(matches!(overtaken, Err(VolumeError::Rewriting { generation: 0 })), "{overtaken:?}");
    drop((log, volume));
    let volume = fixture.open().volume;
    let mut row = vec![0; WIDE_BYTES];
    volume.read_row(&volume.generations()[0], WIDE as usize, 7, &mut row).unwrap();
    assert_eq!(row, [2; WIDE_BYTES]);
}

/// A load's commit fails at each superblock in turn, so that nobody knows whether it came about: until the store is opened again
/// nobody is given chunks that it may have, and it is whole if it did.
#[test]
fn nobody_is_given_what_a_commit_in_doubt_may_have() {
    for nth in 0..6 {
        for lands in [false, true] {
            let (fixture, volume) = loaded();
            let mut tx = volume.begin(&model()).unwrap();
            load(&volume, &mut tx, 2);
            tx.supersede(0);
            let count = Arc::new(AtomicUsize::new(0));
            for drive in &fixture.drives {
                let count = count.clone();
                let tail = (drive.shape.units() - 2) * 8;
                drive.hook(move |asked| {
                    let Asked::Write { lba } = asked else { return Answer::Done };
                    match (lba < 16 || lba >= tail) && count.fetch_add(1, Ordering::Relaxed) == nth {
                        false => Answer::Done,
                        true if lands => Answer::Lost,
                        true => Answer::Failed,
                    }
                });
            }
            let failed = tx.commit();
            assert!(matches!(failed, Err(VolumeError::Indeterminate { .. })), "{failed:?}");
            fixture.drives.iter().for_each(MemoryDrive::unhook);
            let images = fixture.images();
            fixture.take_log();
            assert!(matches!(volume.begin(&model()), Err(VolumeError::Poisoned)));
            assert!(matches!(volume.log(0, |_, _| ()), Err(VolumeError::Poisoned)));
            assert!(matches!(volume.switch(0, false), Err(VolumeError::Poisoned)));
            assert!(matches!(volume.remove_member(0, &mut go), Err(VolumeError::Poisoned)));
            assert!(fixture.take_log().is_empty());
            drop(volume);
            let fixture = Fixture::with_images(&shapes(), images);
            let opened = fixture.open().volume;
            let generation = opened.generations()[0].clone();
            // It did, unless it failed before anybody had it.
            assert_eq!(generation.id, u64::from(nth > 0 || lands), "at superblock {nth}, {lands}");
            verify(&opened, &generation, generation.id + 1).unwrap();
        }
    }
}
