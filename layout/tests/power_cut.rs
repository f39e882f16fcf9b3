//! Power cuts over format, load, switch and roll-forward: after each, the store is all old or all new.
//!
//! A run is recorded: every write and flush of every drive, and what was acknowledged when. Then for every point of the record
//! the drives are put together as a power cut there may have left them: what was flushed, and any subset of the LBAs written
//! since. A flush is removed by removing it from the record.

mod common;

use common::cuts::*;
use common::*;
use warprow_layout::{
    BlockError, Catalogue, GenerationSpec, MetadataRepairKind, OpenError, StoreAccess, StoreState, SuperblockCopy,
    Volume, VolumeError, open, probe,
};

fn version_of(volume: &Volume) -> Result<u64, String> {
    match volume.generations().as_slice() {
        [only] => verify(volume, only, only.id + 1).map(|()| only.id + 1),
        all => Err(format!("{} generations", all.len())),
    }
}

/// What must hold after any cut in a run of switches, when version and epoch `acked` had been acknowledged. (Version v comes
/// with epoch v + 1.)
fn old_or_new(shapes: &[Shape], crash: Crash, last: u64) -> Result<(), String> {
    let Crash { images, acked, tails_in_flight } = crash;
    let epoch = acked + 1;

    // Every member alone knows the acknowledged epoch, from its start and from its tail.
    for index in 0..shapes.len() {
        for zero_start in [false, true] {
            if zero_start && tails_in_flight {
                continue; // Two faults at once: refused, and rightly.
            }
            let fixture = Fixture::with_images(&shapes[index..=index], vec![images[index].clone()]);
            if zero_start {
                (0..2).for_each(|unit| fixture.drives[0].set_unit(unit, &[0; 4096]));
            }
            let alone = open(fixture.drives.clone(), StoreAccess::Degraded)
                .map_err(|error| format!("member {index} alone (start zeroed: {zero_start}): {error}"))?;
            if alone.volume.epoch() < epoch {
                return Err(format!("member {index} alone (start zeroed: {zero_start}) forgot epoch {epoch}"));
            }
            assert!(fixture.take_log().is_empty(), "a degraded open writes nothing");
        }
    }

    let fixture = Fixture::with_images(shapes, images);
    let read_only =
        open(fixture.drives.clone(), StoreAccess::ReadOnly).map_err(|error| format!("read-only: {error}"))?;
    assert!(fixture.take_log().is_empty(), "a read-only open writes nothing");
    let seen = version_of(&read_only.volume)?;
    let opened = open(fixture.drives.clone(), StoreAccess::ReadWrite).map_err(|error| error.to_string())?;
    let version = version_of(&opened.volume)?;
    if version != seen || version < acked || version > (acked + 1).min(last) {
        return Err(format!("version {version} (read-only: {seen})"));
    }
    // It is repaired, and works on.
    let again = fixture.open();
    if !again.repairs.is_empty() {
        return Err(format!("still to be repaired: {:?}", again.repairs));
    }
    Ok(())
}

/// As [`old_or_new`], in a run in which no commit had been cut off before.
fn first_attempt(shapes: &[Shape], crash: Crash, last: u64) -> Result<(), String> {
    data_before_catalogue(shapes, &crash.images, crash.acked)?;
    old_or_new(shapes, crash, last)
}

/// A complete catalogue on a drive describes durable data, whether its epoch came about or not. Reads the blocks by the
/// offsets in docs/layout.md.
fn data_before_catalogue(shapes: &[Shape], images: &[Image], acked: u64) -> Result<(), String> {
    let fixture = Fixture::with_images(shapes, images.to_vec());
    let Ok(opened) = open(fixture.drives.clone(), StoreAccess::ReadOnly) else { return Ok(()) };
    let geometry = opened.volume.geometry().clone();
    let next = acked + 2;
    for drive in &fixture.drives {
        let mut bytes = Vec::new();
        for index in 0..geometry.catalogue_units {
            let block = drive.unit(16 + (next & 1) * u64::from(geometry.catalogue_units) + u64::from(index));
            let field = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
            let intact = crc32c::crc32c(&block[12..]).to_le_bytes() == block[8..12];
            if !intact || field(32) != next || field(40) != u64::from(index) {
                break;
            }
            bytes.extend_from_slice(&block[96..96 + (field(20) as u32) as usize]);
        }
        let Ok(catalogue) = Catalogue::decode(&bytes, &geometry) else { continue };
        for generation in &catalogue.generations {
            verify(&opened.volume, generation, generation.id + 1)
                .map_err(|error| format!("the catalogue of epoch {next} is complete: {error}"))?;
        }
    }
    Ok(())
}

/// Two switches, the second onto the chunks that the first freed. Version 1 is there before.
fn record_switches(shapes: &[Shape]) -> (Vec<Image>, Vec<Op>) {
    let fixture = Fixture::new(shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    let first = switch(&volume, 1).placement.map().to_vec();
    let base = fixture.images();
    fixture.take_log();
    fixture.mark(1);
    switch(&volume, 2);
    fixture.mark(2);
    let third = switch(&volume, 3).placement.map().to_vec();
    assert_eq!(first, third, "the test wants freed chunks reused");
    fixture.mark(3);
    (base, fixture.take_log())
}

const ONE: [u64; 1] = [4];
const THREE: [u64; 3] = [4, 5, 7];

fn shapes(lba_size: u32, mebibytes: &[u64]) -> Vec<Shape> {
    mebibytes.iter().map(|&mebibytes| small(lba_size, mebibytes)).collect()
}

#[test]
fn cuts_during_switches_leave_old_or_new() {
    for (lba_size, sizes) in [(512, &ONE[..]), (512, &THREE), (4096, &ONE), (4096, &THREE)] {
        let shapes = shapes(lba_size, sizes);
        let (base, log) = record_switches(&shapes);
        let checked = enumerate(&shapes, &base, &log, 0, 4, |crash| first_attempt(&shapes, crash, 3)).unwrap();
        assert!(checked > 200, "{checked} cuts");
    }
}

/// What a process that is killed leaves, or a power cut between whole writes, is told from damage.
#[test]
fn cuts_between_writes_are_not_taken_for_damage() {
    for sizes in [&ONE[..], &THREE] {
        let shapes = shapes(512, sizes);
        let (base, log) = record_switches(&shapes);
        let mut unfinished = 0;
        let mut fates = vec![Fate::AllKept, Fate::AllLost];
        fates.extend((0..8).map(Fate::Writes));
        let checked = enumerate_fates(&shapes, &base, &log, 0, &fates, |crash| {
            let fixture = Fixture::with_images(&shapes, crash.images);
            let opened = open(fixture.drives.clone(), StoreAccess::ReadOnly).map_err(|error| error.to_string())?;
            let mends = opened.volume.damaged_metadata().map_err(|error| error.to_string())?;
            unfinished += mends.len();
            match mends.iter().find(|mend| !mend.unfinished) {
                Some(damage) => Err(format!("{damage:?}")),
                None => Ok(()),
            }
        });
        assert!(checked.unwrap() > 100 && unfinished > 10, "{unfinished} copies to be written");
    }
}

#[test]
fn every_flush_of_a_switch_is_needed() {
    for sizes in [&ONE[..], &THREE] {
        let shapes = shapes(512, sizes);
        let (base, log) = record_switches(&shapes);
        let mut removed = 0;
        while let Some((log, from)) = without_flush_of_all(&log, removed) {
            let found = enumerate(&shapes, &base, &log, from, 12, |crash| first_attempt(&shapes, crash, 3));
            assert!(found.is_err(), "without flush {removed} on {} drives nothing goes wrong", shapes.len());
            removed += 1;
        }
        assert_eq!(removed, 8, "two commits with four flushes each");
    }
}

#[test]
fn every_flush_of_every_drive_of_a_switch_is_needed() {
    let shapes = shapes(512, &THREE);
    let (base, log) = record_switches(&shapes);
    let mut removed = 0;
    while let Some((log, from)) = without_flush(&log, removed) {
        let found = enumerate(&shapes, &base, &log, from, 12, |crash| first_attempt(&shapes, crash, 3));
        assert!(found.is_err(), "without flush {removed} nothing goes wrong");
        removed += 1;
    }
    assert_eq!(removed, 24, "two commits, four flushes, three drives");
}

/// A format over a store at an odd epoch, so that both catalogues lie in the same extent.
fn record_format(shapes: &[Shape]) -> (Vec<Image>, Vec<Op>) {
    let fixture = Fixture::new(shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    switch(&volume, 2);
    let base = fixture.images();
    fixture.take_log();
    fixture.format(2);
    fixture.mark(1);
    (base, fixture.take_log())
}

/// After a cut in a format there is the old store, the new one, or none: never half of one.
fn old_or_new_or_none(shapes: &[Shape], crash: Crash) -> Result<(), String> {
    let acked = crash.acked == 1;
    let tails_in_flight = crash.tails_in_flight;
    let fixture = Fixture::with_images(shapes, crash.images.clone());
    match open(fixture.drives.clone(), StoreAccess::ReadWrite) {
        Ok(opened) => match opened.volume.store().as_u128() {
            1 if !acked => version_of(&opened.volume).map(drop)?,
            2 if opened.volume.generations().is_empty() => {}
            other => return Err(format!("store {other}")),
        },
        Err(
            OpenError::NotWarprow { .. }
            | OpenError::TornSuperblock { .. }
            | OpenError::LostSuperblock { .. }
            | OpenError::SwappedMember { .. }
            | OpenError::MissingMember { .. },
        ) if !acked => {}
        Err(error) => return Err(error.to_string()),
    }
    for (index, &shape) in shapes.iter().enumerate() {
        let fixture = Fixture::with_images(&[shape], vec![crash.images[index].clone()]);
        // A whole copy of the new superblock at the tail means that the start is durable.
        let found = probe(&fixture.drives[0]).unwrap();
        let new = |state: &warprow_layout::SlotState| {
            state.superblock().is_some_and(|superblock| superblock.store.as_u128() == 2)
        };
        if (acked || found.tail.iter().any(new)) && !found.start.iter().any(new) {
            return Err(format!("member {index}: the new superblock is missing at the start"));
        }
        if acked && !tails_in_flight && !found.tail.iter().any(new) {
            return Err(format!("member {index}: the new superblock is missing at the tail"));
        }
    }
    Ok(())
}

#[test]
fn cuts_during_format_leave_old_new_or_nothing() {
    for (lba_size, sizes) in [(512, &ONE[..]), (512, &THREE), (4096, &THREE)] {
        let shapes = shapes(lba_size, sizes);
        let (base, log) = record_format(&shapes);
        enumerate(&shapes, &base, &log, 0, 40, |crash| old_or_new_or_none(&shapes, crash)).unwrap();
    }
}

#[test]
fn every_flush_of_a_format_is_needed() {
    for sizes in [&ONE[..], &THREE] {
        let shapes = shapes(512, sizes);
        let (base, log) = record_format(&shapes);
        let mut removed = 0;
        while let Some((log, from)) = without_flush_of_all(&log, removed) {
            let found = enumerate(&shapes, &base, &log, from, 40, |crash| old_or_new_or_none(&shapes, crash));
            assert!(found.is_err(), "without flush {removed} on {} drives nothing goes wrong", shapes.len());
            removed += 1;
        }
        assert_eq!(removed, 4);
    }
}

/// The drives after a cut in step 3 of the switch to version 2: only `ahead` has the new superblock.
fn half_committed(shapes: &[Shape], ahead: usize) -> Vec<Image> {
    let (base, log) = record_switches(shapes);
    // The first tail copy of the commit follows the superblocks at the start and their flushes.
    let tail = log.iter().position(|op| is_tail(shapes, op)).unwrap();
    let mut durable = base;
    let mut pending = Vec::new();
    for op in &log[..tail - shapes.len()] {
        apply(shapes, op, &mut durable, &mut pending);
    }
    assert_eq!(pending.len(), shapes.len(), "the superblocks at the start, nothing else");
    survive(&durable, &pending, Fate::Only(ahead))
}

/// Opening rolls the laggards forward; then rows are written onto chunks that the switch freed, and no commit follows.
fn record_roll_forward(shapes: &[Shape], ahead: usize) -> (Vec<Image>, Vec<Op>) {
    let base = half_committed(shapes, ahead);
    let fixture = Fixture::with_images(shapes, base.clone());
    fixture.mark(1);
    let opened = fixture.open();
    let laggards = opened.repairs.iter().filter(|repair| repair.kind == MetadataRepairKind::RolledForward).count();
    assert_eq!(laggards, shapes.len() - 1);
    fixture.mark(2);
    let mut tx = opened.volume.begin(&model()).unwrap();
    load(&opened.volume, &mut tx, 3);
    (base, fixture.take_log())
}

#[test]
fn cuts_during_roll_forward_leave_the_new() {
    for lba_size in [512, 4096] {
        for ahead in 0..3 {
            let shapes = shapes(lba_size, &THREE);
            let (base, log) = record_roll_forward(&shapes, ahead);
            enumerate(&shapes, &base, &log, 0, 3, |crash| {
                let fixture = Fixture::with_images(&shapes, crash.images.clone());
                let version = version_of(&open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume)?;
                if version != 2 {
                    return Err(format!("version {version} after a committed 2"));
                }
                old_or_new(&shapes, crash, 2)
            })
            .unwrap();
        }
    }
}

#[test]
fn every_flush_of_a_roll_forward_is_needed() {
    let shapes = shapes(512, &THREE);
    let (base, log) = record_roll_forward(&shapes, 0);
    // The first of each drive make durable what was read: here everything was.
    let mut removed = shapes.len();
    while let Some((log, from)) = without_flush(&log, removed) {
        let found = enumerate(&shapes, &base, &log, from, 40, |crash| old_or_new(&shapes, crash, 2));
        assert!(found.is_err(), "without flush {removed} nothing goes wrong");
        removed += 1;
    }
    assert!(removed >= shapes.len() + 4, "two laggards, two flushes each: {removed}");
}

/// A process is killed after `until` operations of the switch to version 2; the drives have power and keep what it wrote in
/// their caches. Another process opens the store, shows the version that it finds, and writes rows onto free chunks.
fn record_killed(shapes: &[Shape], until: usize) -> (Vec<Image>, Vec<Op>) {
    let (base, log) = record_switches(shapes);
    let mut durable = base.clone();
    let mut pending = Vec::new();
    log[..until].iter().for_each(|op| apply(shapes, op, &mut durable, &mut pending));
    let fixture = Fixture::with_images(shapes, survive(&durable, &pending, Fate::AllKept));
    let volume = fixture.open().volume;
    fixture.mark(version_of(&volume).unwrap());
    let mut tx = volume.begin(&model()).unwrap();
    load(&volume, &mut tx, 3);
    (base, [&log[..until], &fixture.take_log()].concat())
}

/// The operations of the switch to version 2 that begin with the first flush.
fn commit_of_the_first_switch(log: &[Op]) -> std::ops::RangeInclusive<usize> {
    let first = log.iter().position(|op| matches!(op, Op::Flush { .. })).unwrap();
    first..=log.iter().position(|op| matches!(op, Op::Mark(2))).unwrap()
}

#[test]
fn what_was_shown_after_a_kill_survives_a_power_cut() {
    for sizes in [&ONE[..], &THREE] {
        let shapes = shapes(512, sizes);
        for until in commit_of_the_first_switch(&record_switches(&shapes).1) {
            let (base, log) = record_killed(&shapes, until);
            enumerate(&shapes, &base, &log, until, 1, |crash| old_or_new(&shapes, crash, 2))
                .unwrap_or_else(|error| panic!("killed after {until} operations: {error}"));
        }
    }
}

#[test]
fn the_flush_of_what_was_read_is_needed() {
    for sizes in [&ONE[..], &THREE] {
        let shapes = shapes(512, sizes);
        // Killed when the first drive had its superblock at the start.
        let superblock = |op: &Op| matches!(op, Op::Write { lba: 0..16, .. });
        let until = record_switches(&shapes).1.iter().position(superblock).unwrap() + 1;
        let (base, log) = record_killed(&shapes, until);
        let flushed = until..until + shapes.len();
        assert!(log[flushed.clone()].iter().all(|op| matches!(op, Op::Flush { .. })), "opening begins with flushes");
        let log = [&log[..until], &log[flushed.end..]].concat();
        let found = enumerate(&shapes, &base, &log, until, 12, |crash| old_or_new(&shapes, crash, 2));
        assert!(found.is_err(), "without it nothing goes wrong on {} drives", shapes.len());
    }
}

/// A commit is cut off before its superblocks; another commit of the same epoch, with other rows, follows and is cut off too.
#[test]
fn cuts_during_a_second_attempt_leave_old_or_new() {
    for (sizes, lba_size) in [(&ONE[..], 512), (&THREE, 512), (&THREE, 4096)] {
        let shapes = shapes(lba_size, sizes);
        let fixture = Fixture::new(&shapes);
        fixture.format(1);
        let volume = fixture.open().volume;
        switch(&volume, 1);
        let base = fixture.images();
        fixture.take_log();
        let mut tx = volume.begin(&model()).unwrap();
        load(&volume, &mut tx, 9);
        tx.supersede(0);
        tx.commit().unwrap();
        let first = fixture.take_log();
        // Behind its second flush only superblocks follow.
        let flushes = (0..first.len()).filter(|&i| matches!(first[i], Op::Flush { .. }));
        let superblocks = flushes.take(2 * shapes.len()).last().unwrap() + 1;
        let mut starts = Vec::new();
        enumerate(&shapes, &base, &first[..superblocks + shapes.len()], superblocks - 2 * shapes.len(), 2, |crash| {
            starts.push(crash.images);
            Ok(())
        })
        .unwrap();
        let mut attempts = 0;
        let step = starts.len() / 9;
        for start in starts.into_iter().step_by(step) {
            let fixture = Fixture::with_images(&shapes, start);
            let opened = fixture.open();
            if opened.volume.epoch() != 2 {
                continue; // The first attempt came about.
            }
            let base = fixture.images();
            fixture.take_log();
            fixture.mark(1);
            switch(&opened.volume, 2);
            fixture.mark(2);
            enumerate(&shapes, &base, &fixture.take_log(), 0, 1, |crash| old_or_new(&shapes, crash, 2)).unwrap();
            attempts += 1;
        }
        assert!(attempts >= 4, "{attempts} attempts");
    }
}

#[test]
fn a_member_away_during_the_commit_is_stale_not_a_laggard() {
    let shapes = shapes(512, &THREE);
    let fixture = Fixture::new(&shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    let old = fixture.images();
    switch(&volume, 2);
    let one_behind =
        Fixture::with_images(&shapes, vec![old[0].clone(), fixture.images()[1].clone(), fixture.images()[2].clone()]);
    match open(one_behind.drives.clone(), StoreAccess::ReadWrite) {
        Err(OpenError::StaleMember { drive, its_epoch: 2, epoch: 3 }) => assert_eq!(drive, "memory:0"),
        other => panic!("{other:?}"),
    }
    assert!(one_behind.take_log().is_empty(), "nothing was written");
    // Without it, the others still serve their rows.
    let others = open(one_behind.drives[1..].to_vec(), StoreAccess::Degraded).unwrap();
    assert_eq!(others.volume.epoch(), 3);
    assert!(matches!(others.state, StoreState::Degraded { missing } if missing.len() == 1 && missing[0].index == 0));
}

/// A degraded open between the crash and the repair sees the old epoch if the only drive ahead is missing; it writes nothing, so
/// that the drive may come back.
#[test]
fn a_degraded_open_without_the_drive_ahead_does_no_harm() {
    let shapes = shapes(512, &THREE);
    let fixture = Fixture::with_images(&shapes, half_committed(&shapes, 2));
    let behind = open(fixture.drives[..2].to_vec(), StoreAccess::Degraded).unwrap();
    assert_eq!(behind.volume.epoch(), 2);
    assert!(behind.volume.begin(&model()).is_err());
    drop(behind);
    assert!(fixture.take_log().is_empty());
    assert_eq!(version_of(&fixture.open().volume), Ok(2));
}

#[test]
fn losing_both_copies_of_the_newest_superblock_is_not_taken_for_a_torn_commit() {
    let shapes = shapes(512, &ONE);
    let fixture = Fixture::new(&shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    switch(&volume, 2); // epoch 3: slot B
    let damaged = fixture.images();
    let fixture = Fixture::with_images(&shapes, damaged);
    for unit in [1, shapes[0].units() - 1] {
        let mut block = fixture.drives[0].unit(unit);
        block[2000] ^= 1;
        fixture.drives[0].set_unit(unit, &block);
    }
    match open(fixture.drives.clone(), StoreAccess::ReadOnly) {
        Err(OpenError::LostSuperblock { epoch: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn damage_at_the_start_is_repaired_from_the_tail() {
    let shapes = shapes(512, &THREE);
    let fixture = Fixture::new(&shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    (0..2).for_each(|unit| fixture.drives[1].set_unit(unit, &[0xFF; 4096]));
    let probed = probe(&fixture.drives[1]).unwrap();
    assert_eq!(probed.start[0], warprow_layout::SlotState::Bad(BlockError::NoMagic));
    let opened = fixture.open();
    assert!(opened.repairs.iter().any(
        |repair| repair.drive == "memory:1" && repair.kind == MetadataRepairKind::Superblock(SuperblockCopy::Start)
    ));
    assert_eq!(version_of(&opened.volume), Ok(1));
    assert!(fixture.open().repairs.is_empty());
}

/// A version beside version 1, which is shown; both are there, then the shown one changes: in marks 1 nothing is done yet, 2 the
/// second is loaded beside, 3 it is shown, 4 the first is shown again, 5 the second is dropped.
fn record_beside(shapes: &[Shape]) -> (Vec<Image>, Vec<Op>) {
    let fixture = Fixture::new(shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    let base = fixture.images();
    fixture.take_log();
    fixture.mark(1);
    let mut tx = volume.begin(&GenerationSpec { standby: true, ..model() }).unwrap();
    load(&volume, &mut tx, 2);
    let second = tx.commit().unwrap().id;
    fixture.mark(2);
    volume.switch(second, false).unwrap();
    fixture.mark(3);
    volume.switch(0, false).unwrap();
    fixture.mark(4);
    volume.drop_hidden(second).unwrap();
    fixture.mark(5);
    (base, fixture.take_log())
}

/// How many of the steps were done: which generations there are, whole, and which is shown, say so.
fn step_of(volume: &Volume, least: u64) -> Result<u64, String> {
    let generations = volume.generations();
    generations.iter().try_for_each(|generation| verify(volume, generation, generation.id + 1))?;
    let shown = volume.latest("model").ok_or("none is shown")?.id;
    let ids: Vec<u64> = generations.iter().map(|generation| generation.id).collect();
    match (&ids[..], shown) {
        // As before the second came, and as after it went.
        ([0], 0) => Ok(if least >= 4 { 5 } else { 1 }),
        ([0, 1], 0) => Ok(if least >= 3 { 4 } else { 2 }),
        ([0, 1], 1) => Ok(3),
        other => Err(format!("{other:?}")),
    }
}

/// Old or new at each step, on every member alone as well; whoever opens it for writing next goes on with the next step.
fn one_step_or_the_next(shapes: &[Shape], crash: Crash) -> Result<(), String> {
    let Crash { images, acked, tails_in_flight } = crash;
    for index in 0..shapes.len() {
        for zero_start in [false, true] {
            if zero_start && tails_in_flight {
                continue;
            }
            let fixture = Fixture::with_images(&shapes[index..=index], vec![images[index].clone()]);
            if zero_start {
                (0..2).for_each(|unit| fixture.drives[0].set_unit(unit, &[0; 4096]));
            }
            let alone = open(fixture.drives.clone(), StoreAccess::Degraded)
                .map_err(|error| format!("member {index} alone (start zeroed: {zero_start}): {error}"))?;
            // Version 1 came with epoch 2.
            if alone.volume.epoch() < acked + 1 {
                return Err(format!("member {index} alone (start zeroed: {zero_start}) forgot step {acked}"));
            }
        }
    }
    data_before_catalogue(shapes, &images, acked)?;
    let fixture = Fixture::with_images(shapes, images);
    let seen = step_of(
        &open(fixture.drives.clone(), StoreAccess::ReadOnly).map_err(|error| error.to_string())?.volume,
        acked,
    )?;
    let opened = open(fixture.drives.clone(), StoreAccess::ReadWrite).map_err(|error| error.to_string())?;
    let step = step_of(&opened.volume, acked)?;
    if step != seen || !(acked..=acked + 1).contains(&step) {
        return Err(format!("step {step} (read-only: {seen}), acknowledged {acked}"));
    }
    let volume = opened.volume;
    let told = |error: VolumeError| error.to_string();
    match step {
        1 | 5 => {
            let mut tx = volume.begin(&GenerationSpec { standby: true, ..model() }).map_err(told)?;
            let version = tx.generation().id + 1;
            load(&volume, &mut tx, version);
            tx.commit().map(drop).map_err(told)?;
        }
        2 => volume.switch(1, false).map(drop).map_err(told)?,
        3 => volume.switch(0, false).map(drop).map_err(told)?,
        _ => volume.drop_hidden(1).map_err(told)?,
    }
    let again = fixture.open();
    again
        .volume
        .generations()
        .iter()
        .try_for_each(|generation| verify(&again.volume, generation, generation.id + 1))?;
    if again.repairs.is_empty() { Ok(()) } else { Err(format!("still to be repaired: {:?}", again.repairs)) }
}

#[test]
fn cuts_during_load_beside_and_switches_leave_old_or_new() {
    for lba_size in [512, 4096] {
        let shapes = shapes(lba_size, &THREE);
        let (base, log) = record_beside(&shapes);
        let checked = enumerate(&shapes, &base, &log, 0, 3, |crash| one_step_or_the_next(&shapes, crash)).unwrap();
        assert!(checked > 500, "{checked} cuts");
    }
}

#[test]
fn every_flush_of_every_drive_of_load_beside_and_switches_is_needed() {
    let shapes = shapes(512, &THREE);
    let (base, log) = record_beside(&shapes);
    let mut removed = 0;
    while let Some((without, from)) = without_flush(&log, removed) {
        // What it breaks shows before the second acknowledgement behind it.
        let marks = (from..without.len()).filter(|&at| matches!(without[at], Op::Mark(_)));
        let end = marks.take(2).last().map_or(without.len(), |mark| mark + 1);
        let found = enumerate(&shapes, &base, &without[..end], from, 12, |crash| one_step_or_the_next(&shapes, crash));
        assert!(found.is_err(), "without flush {removed} nothing goes wrong");
        removed += 1;
    }
    assert_eq!(removed, 3 * (4 + 3 + 3 + 3), "of data once; of catalogues, superblocks and tails of four commits");
}
