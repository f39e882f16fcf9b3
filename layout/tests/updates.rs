//! Logs of updates: what was acknowledged survives power cuts, in order; what was not is there up to some update, or not at all;
//! and no flush can be left out.

mod common;

use std::sync::Arc;

use common::cuts::*;
use common::*;
use warprow_layout::{
    Generation, Log, LogUpdate, OpenError, RowPatch, RowSource, StoreAccess, Volume, VolumeError, open, row_crc,
};

const SIZES: [u64; 3] = [4, 5, 7];

fn shapes(lba_size: u32) -> Vec<Shape> {
    SIZES.iter().map(|&mebibytes| small(lba_size, mebibytes)).collect()
}

/// An update with a sequence number: which row it changes, and to what.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    table: u32,
    key: u64,
    row: Vec<u8>,
}

impl Change {
    fn update(&self) -> LogUpdate<'_> {
        LogUpdate { table: self.table, key: self.key, row: &self.row }
    }
}

/// `count` changes, of table `table` or any; `seed` is in the content.
fn changes(seed: u64, count: usize, table: Option<u32>) -> Vec<Change> {
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes = [100, 1200, 64];
    let rows = [300, 30, 199];
    (0..count)
        .map(|_| {
            let table = table.unwrap_or_else(|| random.u32(..3));
            let mut row = vec![0; bytes[table as usize]];
            random.fill(&mut row);
            Change { table, key: random.u64(..rows[table as usize]), row }
        })
        .collect()
}

fn append(log: &mut Log, changes: &[Change]) -> Result<u64, VolumeError> {
    log.append(&changes.iter().map(Change::update).collect::<Vec<_>>())
}

/// Opens the log, with all that it has.
fn log_of(volume: &Volume) -> Result<(Log, Vec<Change>), VolumeError> {
    let mut found = Vec::new();
    let log = volume.log(0, |sequence, update| {
        assert_eq!(sequence, found.len() as u64 + 1);
        found.push(Change { table: update.table, key: update.key, row: update.row.to_vec() });
    })?;
    assert_eq!(log.sequence(), found.len() as u64);
    Ok((log, found))
}

fn read_log(volume: &Volume, generation: &Generation) -> Result<Vec<Change>, VolumeError> {
    let mut found = Vec::new();
    volume.read_log(generation, |_, update| {
        found.push(Change { table: update.table, key: update.key, row: update.row.to_vec() });
    })?;
    Ok(found)
}

fn loaded(shapes: &[Shape]) -> (Fixture, Volume) {
    let fixture = Fixture::new(shapes);
    fixture.format(1);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    fixture.take_log();
    (fixture, volume)
}

/// A record of updates: what was changed, and after each mark how much of it was acknowledged, at which epoch.
struct Recorded {
    base: Vec<Image>,
    log: Vec<Op>,
    all: Vec<Change>,
    acked: Vec<(usize, u64)>,
}

/// Batches of several sizes, over the end of a chunk; then another process, and more.
fn record(shapes: &[Shape], padding: usize) -> Recorded {
    let (fixture, volume) = loaded(shapes);
    let base = fixture.images();
    let mut all = Vec::new();
    let mut acked = vec![(0, volume.epoch())];
    let mut run = |volume: &Volume, batches: &[(usize, Option<u32>)]| {
        let (mut log, found) = log_of(volume).unwrap();
        assert_eq!(found, all);
        log.pad_batches(padding);
        for &(count, table) in batches {
            let batch = changes(all.len() as u64, count, table);
            all.extend_from_slice(&batch);
            assert_eq!(append(&mut log, &batch).unwrap(), all.len() as u64);
            acked.push((all.len(), volume.epoch()));
            fixture.mark(acked.len() as u64 - 1);
        }
    };
    run(&volume, &[(1, None), (3, None), (64, None), (700, Some(1)), (1, None), (200, Some(1))]);
    drop(volume);
    run(&fixture.open().volume, &[(1, None), (40, None)]);
    let chunks = fixture.open().volume.generations()[0].log.len();
    assert_eq!(chunks, 2, "one is full, and the second process goes on with the other");
    Recorded { base, log: fixture.take_log(), all, acked }
}

/// What must hold after any cut: the updates that are found are the first so many, all acknowledged ones among them; the store
/// works on, and what it writes comes behind these.
fn acknowledged_and_in_order(shapes: &[Shape], recorded: &Recorded, crash: Crash) -> Result<(), String> {
    let Recorded { all, acked, .. } = recorded;
    let mark = crash.acked as usize;
    let ((least, epoch), most) = (acked[mark], acked.get(mark + 1).map_or(all.len(), |next| next.0));
    for index in 0..shapes.len() {
        for zero_start in [false, true] {
            if zero_start && crash.tails_in_flight {
                continue;
            }
            let fixture = Fixture::with_images(&shapes[index..=index], vec![crash.images[index].clone()]);
            if zero_start {
                (0..2).for_each(|unit| fixture.drives[0].set_unit(unit, &[0; 4096]));
            }
            let alone =
                open(fixture.drives.clone(), StoreAccess::Degraded).map_err(|error| format!("alone: {error}"))?;
            if alone.volume.epoch() < epoch {
                return Err(format!("member {index} alone (start zeroed: {zero_start}) forgot epoch {epoch}"));
            }
        }
    }
    let fixture = Fixture::with_images(shapes, crash.images);
    let told = |error: VolumeError| error.to_string();
    let before = {
        let volume = open(fixture.drives.clone(), StoreAccess::ReadOnly).map_err(|error| error.to_string())?.volume;
        verify(&volume, &volume.generations()[0], 1)?;
        read_log(&volume, &volume.generations()[0]).map_err(told)?
    };
    assert!(fixture.take_log().is_empty(), "reading writes nothing");
    if before.len() < least || before.len() > most || before[..] != all[..before.len()] {
        return Err(format!("{} updates are found, of {least} to {most}", before.len()));
    }
    let volume = open(fixture.drives.clone(), StoreAccess::ReadWrite).map_err(|error| error.to_string())?.volume;
    let (mut log, found) = log_of(&volume).map_err(told)?;
    if found != before {
        return Err(format!("{} updates, {} when it was opened for reading", found.len(), before.len()));
    }
    let more = changes(!0, 5, None);
    append(&mut log, &more).map_err(told)?;
    drop((log, volume));
    let again = log_of(&fixture.open().volume).map_err(told)?.1;
    match again == [before, more].concat() {
        true => Ok(()),
        false => Err(format!("{} updates after five more", again.len())),
    }
}

/// What units of 4 KiB withstand: all but what is spoilt around a torn write.
fn withstood(seeds: u64) -> Vec<Fate> {
    fates(SIZES.len(), seeds).into_iter().filter(|fate| !matches!(fate, Fate::Spoilt(_))).collect()
}

/// For tests with many cuts.
const FEW: [Fate; 5] = [Fate::AllKept, Fate::AllLost, Fate::Lbas(50, 1), Fate::Torn(2), Fate::Only(1)];

#[test]
fn cuts_during_updates_keep_what_was_acknowledged_in_order() {
    for lba_size in [512, 4096] {
        let shapes = shapes(lba_size);
        let recorded = record(&shapes, 4096);
        let check = |crash| acknowledged_and_in_order(&shapes, &recorded, crash);
        let checked = enumerate_fates(&shapes, &recorded.base, &recorded.log, 0, &withstood(3), check).unwrap();
        assert!(checked > 500, "{checked} cuts");
    }
}

#[test]
fn padded_batches_withstand_spoilt_neighbours() {
    let shapes = shapes(512);
    let recorded = record(&shapes, 64 << 10);
    let check = |crash| acknowledged_and_in_order(&shapes, &recorded, crash);
    enumerate(&shapes, &recorded.base, &recorded.log, 0, 3, check).unwrap();
    // And those of 4 KiB do not: else this would show nothing.
    let recorded = record(&shapes, 4096);
    let check = |crash| acknowledged_and_in_order(&shapes, &recorded, crash);
    assert!(enumerate(&shapes, &recorded.base, &recorded.log, 0, 3, check).is_err());
}

#[test]
fn every_flush_of_updates_is_needed() {
    let shapes = shapes(512);
    let recorded = record(&shapes, 4096);
    let mut removed = 0;
    let mut idle = 0;
    let mut covered = 0;
    while let Some((log, from)) = without_flush(&recorded.log, removed) {
        let check = |crash| acknowledged_and_in_order(&shapes, &recorded, crash);
        // What it breaks shows soon.
        let marks = (from..log.len()).filter(|&at| matches!(log[at], Op::Mark(_)));
        let end = marks.take(2).last().map_or(log.len(), |mark| mark + 1);
        let found = enumerate_fates(&shapes, &recorded.base, &log[..end], from, &withstood(8), check);
        removed += 1;
        if found.is_err() {
            continue;
        }
        let Op::Flush { drive: flushed } = recorded.log[from] else { panic!("{:?}", recorded.log[from]) };
        let of_drive = |op: &&Op| matches!(op, Op::Write { drive, .. } | Op::Flush { drive } if *drive == flushed);
        match log[..from].iter().rev().find(of_drive) {
            // Opening flushes what it reads, and so does opening a log. Here everything was durable; another test has what was not.
            None | Some(Op::Flush { .. }) => idle += 1,
            // What it made durable is acknowledged later, behind another flush of the drive: of the tail copies, behind that of
            // the batch which the chunk was allotted for; of the first part of a batch, behind the commit for the second.
            _ => {
                let later = log[from..].iter().take_while(|op| !matches!(op, Op::Mark(_)));
                assert!(
                    later.filter(of_drive).any(|op| matches!(op, Op::Flush { .. })),
                    "flush {removed} is not needed"
                );
                covered += 1;
            }
        }
    }
    // Those of the tails of one allotment, of the first part of a batch, and of an end unit, which nothing rests on.
    assert_eq!((removed, idle, covered), (36, 2 * SIZES.len() + 1, 4));
}

/// A process is killed after `until` operations, which stay in the drives' caches; another opens the store, shows what it finds
/// and goes on.
fn record_killed(shapes: &[Shape], first: &Recorded, until: usize) -> Recorded {
    let mut durable = first.base.clone();
    let mut pending = Vec::new();
    first.log[..until].iter().for_each(|op| apply(shapes, op, &mut durable, &mut pending));
    let fixture = Fixture::with_images(shapes, survive(&durable, &pending, Fate::AllKept));
    let mut all = first.all.clone();
    let mut acked = first.acked.clone();
    let marks = first.log[..until].iter().filter(|op| matches!(op, Op::Mark(_))).count();
    acked.truncate(marks + 1);
    let volume = fixture.open().volume;
    let (mut log, found) = log_of(&volume).unwrap();
    assert_eq!(found[..], all[..found.len()]);
    all.truncate(found.len());
    acked.push((found.len(), volume.epoch()));
    fixture.mark(acked.len() as u64 - 1);
    let more = changes(until as u64, 7, None);
    append(&mut log, &more).unwrap();
    all.extend(more);
    acked.push((all.len(), volume.epoch()));
    fixture.mark(acked.len() as u64 - 1);
    Recorded { base: first.base.clone(), log: [&first.log[..until], &fixture.take_log()].concat(), all, acked }
}

#[test]
fn what_was_shown_after_a_kill_survives_a_power_cut() {
    let shapes = shapes(512);
    let first = record(&shapes, 4096);
    let writes = (1..first.log.len()).filter(|&until| matches!(first.log[until - 1], Op::Write { .. }));
    for until in writes {
        let killed = record_killed(&shapes, &first, until);
        // Up to the kill the record is as before: only that less of it was acknowledged then.
        let check = |crash| acknowledged_and_in_order(&shapes, &killed, crash);
        enumerate_fates(&shapes, &killed.base, &killed.log, until, &FEW[1..], check)
            .unwrap_or_else(|error| panic!("killed after {until} operations: {error}"));
    }
}

#[test]
fn the_flush_of_what_was_replayed_is_needed() {
    let shapes = shapes(512);
    let first = record(&shapes, 4096);
    // Killed between the write and the flush of the third batch.
    let second = first.log.iter().position(|op| matches!(op, Op::Mark(2))).unwrap();
    let killed = record_killed(&shapes, &first, second + 2);
    let opening = killed.log.iter().enumerate().skip(second + 2).take(SIZES.len());
    assert!(opening.clone().all(|(_, op)| matches!(op, Op::Flush { .. })), "opening begins with flushes");
    let log = [&killed.log[..second + 2], &killed.log[second + 2 + SIZES.len()..]].concat();
    let check = |crash| acknowledged_and_in_order(&shapes, &killed, crash);
    // The one that comes with opening the log does for it.
    enumerate_fates(&shapes, &killed.base, &log, second + 2, &withstood(2), check).unwrap();
    assert!(matches!(log[second + 2], Op::Flush { .. }));
    let log = [&log[..second + 2], &log[second + 3..]].concat();
    assert!(enumerate_fates(&shapes, &killed.base, &log, second + 2, &withstood(8), check).is_err());
}

/// Units of the log's last chunk, as a drive has them.
fn unit_of(volume: &Volume, chunk: usize, unit: u64) -> (usize, u64) {
    let entry = volume.generations()[0].log[chunk];
    let first = volume.geometry().first_chunk_unit + u64::from(entry.chunk.chunk()) * 256;
    (usize::from(entry.chunk.drive()), first + unit)
}

#[test]
fn rot_is_told_from_a_torn_end() {
    let shapes = shapes(512);
    let (fixture, volume) = loaded(&shapes);
    let (mut log, _) = log_of(&volume).unwrap();
    let all: Vec<Change> = (0..6).flat_map(|batch| changes(batch, 20, None)).collect();
    for batch in all.chunks(20) {
        append(&mut log, batch).unwrap();
    }
    drop(log);
    let images = fixture.images();
    let mut damaged = 0;
    let mut cut = Vec::new();
    let mut unit = 0;
    loop {
        let fixture = Fixture::with_images(&shapes, images.clone());
        let (drive, at) = unit_of(&volume, 0, unit);
        let mut block = fixture.drives[drive].unit(at);
        if block.iter().all(|&byte| byte == 0) {
            break;
        }
        block[1000] ^= 4;
        fixture.drives[drive].set_unit(at, &block);
        let opened = fixture.open().volume;
        match log_of(&opened) {
            Err(VolumeError::LogDamaged { generation: 0, unit: found, .. }) => {
                assert_eq!(u64::from(found), unit);
                damaged += 1;
            }
            // No later unit says that it was durable: as if the last batch had been torn.
            Ok((_, found)) => {
                assert_eq!(found[..], all[..found.len()]);
                cut.push(found.len());
            }
            other => panic!("{other:?}"),
        };
        unit += 1;
    }
    // The end unit says that all before it are durable, the last batch too; damage of it loses nothing.
    assert!(damaged >= 6 && cut == [all.len()], "{damaged} {cut:?}");

    // Without the end unit, which a power cut may have kept from the medium, the last batch is as if it had been torn.
    let (drive, end) = unit_of(&volume, 0, unit - 1);
    let fixture = Fixture::with_images(&shapes, images.clone());
    fixture.drives[drive].set_unit(end, &[0; 4096]);
    fixture.drives[drive].set_unit(end - 1, &[7; 4096]);
    let found = log_of(&fixture.open().volume).unwrap().1;
    assert!((100..120).contains(&found.len()) && found[..] == all[..found.len()], "{}", found.len());

    // Once the chunk is sealed, every unit of it counts.
    let fixture = Fixture::with_images(&shapes, images);
    let unit = unit - 1;
    let volume = fixture.open().volume;
    let (mut log, _) = log_of(&volume).unwrap();
    append(&mut log, &changes(99, 1500, Some(1))).unwrap();
    assert!(volume.generations()[0].log[0].units.is_some(), "another was allotted");
    let images = fixture.images();
    for unit in 0..unit {
        let fixture = Fixture::with_images(&shapes, images.clone());
        let (drive, at) = unit_of(&volume, 0, unit);
        fixture.drives[drive].set_unit(at, &[0; 4096]);
        let opened = fixture.open().volume;
        assert!(
            matches!(log_of(&opened), Err(VolumeError::LogDamaged { unit: found, .. }) if u64::from(found) == unit)
        );
        verify(&opened, &opened.generations()[0], 1).unwrap();
    }
}

#[test]
fn units_of_an_earlier_log_are_not_taken_for_this_ones() {
    let shapes = [small(512, 5)];
    let (fixture, volume) = loaded(&shapes);
    let (mut log, _) = log_of(&volume).unwrap();
    append(&mut log, &changes(1, 50, None)).unwrap();
    drop(log);
    let chunk = volume.generations()[0].log[0].chunk;
    volume.drop_generation(0).unwrap();
    let mut tx = volume.begin(&model()).unwrap();
    load(&volume, &mut tx, 2);
    let generation = tx.commit().unwrap();
    let base = fixture.images();
    fixture.take_log();
    let mut log = volume.log(generation.id, |_, _| panic!("it is new")).unwrap();
    append(&mut log, &changes(2, 1, None)).unwrap();
    assert_eq!(volume.generations()[0].log[0].chunk, chunk, "the test wants the chunk again");
    let check = |crash: Crash| {
        let fixture = Fixture::with_images(&shapes, crash.images);
        let volume = fixture.open().volume;
        let found = read_log(&volume, &volume.generations()[0]).map_err(|error| error.to_string())?;
        match found == changes(2, 1, None)[..found.len()] {
            true => Ok(()),
            false => Err(format!("{found:?}")),
        }
    };
    enumerate_fates(&shapes, &base, &fixture.take_log(), 0, &withstood(3), check).unwrap();
}

#[test]
fn there_is_one_log_and_what_does_not_fit_is_refused() {
    let shapes = shapes(512);
    let (fixture, volume) = loaded(&shapes);
    let (mut log, _) = log_of(&volume).unwrap();
    assert!(matches!(volume.log(0, |_, _| ()), Err(VolumeError::LogBusy { generation: 0 })));
    fixture.take_log();
    let row = |table, bytes| Change { table, key: 0, row: vec![0; bytes] };
    assert!(matches!(
        append(&mut log, &[row(0, 100), row(0, 99)]),
        Err(VolumeError::Length { expected: 100, given: 99, .. })
    ));
    assert!(matches!(append(&mut log, &[row(3, 100)]), Err(VolumeError::NoSuchTable { table: 3, .. })));
    assert!(fixture.take_log().is_empty(), "nothing was written");
    assert_eq!(append(&mut log, &[]).unwrap(), 0);
    drop(log);
    assert!(matches!(volume.log(7, |_, _| ()), Err(VolumeError::NoSuchGeneration { id: 7 })));
    let read_only = open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume;
    let (mut log, _) = log_of(&read_only).unwrap();
    assert!(matches!(append(&mut log, &[row(0, 100)]), Err(VolumeError::ReadOnly { .. })));
    assert!(fixture.take_log().is_empty());
}

/// Other commits, and a load that takes long, go on beside updates; chunks are given to one of them.
#[test]
fn updates_go_on_beside_a_load() {
    let shapes = shapes(512);
    let (fixture, volume) = loaded(&shapes);
    let free: u64 = volume.free_chunks().iter().sum();
    let tx = volume.begin(&model()).unwrap();
    let placed: Vec<_> = tx.generation().placement.map().to_vec();
    let (mut log, _) = log_of(&volume).unwrap();
    append(&mut log, &changes(1, 3, None)).unwrap();
    let chunk = volume.generations()[0].log[0].chunk;
    assert!(!placed.contains(&chunk));
    let mut tx = tx;
    load(&volume, &mut tx, 2);
    let second: Arc<Generation> = tx.commit().unwrap();
    verify(&volume, &second, 2).unwrap();
    append(&mut log, &changes(2, 3, None)).unwrap();
    drop(log);
    let opened = fixture.open().volume;
    assert_eq!(opened.free_chunks().iter().sum::<u64>(), free - placed.len() as u64 - 1);
    assert_eq!(log_of(&opened).unwrap().1, [changes(1, 3, None), changes(2, 3, None)].concat());
    verify(&opened, &opened.generations()[1], 2).unwrap();
    let gone = open(fixture.drives[1..].to_vec(), StoreAccess::ReadWrite);
    assert!(matches!(gone, Err(OpenError::MissingMember { .. })));
}

/// What the rows of version 1 are after so many updates.
fn rows_after(changes: &[Change]) -> std::collections::HashMap<(u32, u64), &[u8]> {
    changes.iter().map(|change| ((change.table, change.key), &change.row[..])).collect()
}

/// Checks every row of the generation, updates over what lies in its chunks, against the model; and the checksums of what lies in
/// its chunks. How many updates there are.
fn check_rows(volume: &Volume, all: &[Change]) -> Result<usize, String> {
    let generation = &volume.generations()[0];
    let told = |error: VolumeError| error.to_string();
    let logged = read_log(volume, generation).map_err(told)?;
    let count = generation.base_sequence as usize + logged.len();
    let wanted = rows_after(all.get(..count).ok_or("more updates than there were")?);
    let logged = rows_after(&logged);
    for (index, table) in generation.tables.iter().enumerate() {
        let ranks = volume.read_ranks(generation, index).map_err(told)?;
        let crcs = volume.read_row_crcs(generation, index).map_err(told)?;
        let mut row = vec![0; table.row_bytes() as usize];
        let mut original = vec![0; table.row_bytes() as usize];
        for id in 0..table.rows {
            let rank = ranks.as_ref().map_or(id, |ranks| ranks.get(id).unwrap());
            volume.read_row(generation, index, rank, &mut row).map_err(told)?;
            if crcs.as_ref().is_some_and(|crcs| crcs[rank as usize] != row_crc(rank, &row)) {
                return Err(format!("the checksum of row {id} of table {index} differs"));
            }
            Rows { version: 1, table: index }.read(id, row.len(), &mut original).unwrap();
            let key = (index as u32, id);
            let found = logged.get(&key).copied().unwrap_or(&row);
            if found != wanted.get(&key).copied().unwrap_or(&original) {
                return Err(format!("row {id} of table {index} is wrong after {count} updates"));
            }
        }
    }
    Ok(count)
}

/// Rewrites the chunks that were updated, and drops the log up to there; `meanwhile` is done before the commit.
fn compact(volume: &Volume, log: &mut Log, all: &[Change], meanwhile: impl FnOnce(&mut Log)) -> Arc<Generation> {
    let sequence = log.seal();
    let ranks = volume.read_ranks(&volume.generations()[0], 0).unwrap().unwrap();
    let rank = |table, id| if table == 0 { ranks.get(id).unwrap() } else { id };
    let rows = rows_after(&all[..sequence as usize]);
    let patches: Vec<RowPatch<'_>> =
        rows.iter().map(|(&(table, id), &row)| RowPatch { table, rank: rank(table, id), row }).collect();
    let rewritten = volume.rewrite(0, &patches).unwrap();
    assert!(matches!(volume.rewrite(0, &patches), Err(VolumeError::Rewriting { generation: 0 })));
    meanwhile(log);
    log.compact(sequence, rewritten).unwrap()
}

/// Rows of version 1 as they are after changes.
struct Changed<'a> {
    original: Rows,
    changes: std::collections::HashMap<(u32, u64), &'a [u8]>,
}

impl RowSource for Changed<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        self.original.read(first, row_bytes, rows)?;
        for (id, row) in (first..).zip(rows.chunks_exact_mut(row_bytes)) {
            if let Some(changed) = self.changes.get(&(self.original.table as u32, id)) {
                row.copy_from_slice(changed);
            }
        }
        Ok(())
    }
}

/// Writes the generation anew, one table with a row more than it had and one as a copy, and drops the log up to there.
fn rebuild(volume: &Volume, log: &mut Log, all: &[Change], meanwhile: impl FnOnce(&mut Log)) -> Arc<Generation> {
    let sequence = log.seal();
    let before = volume.generations().remove(0);
    let mut spec = model();
    spec.tables[1].rows = before.tables[1].rows + 1;
    let mut rebuilt = volume.rebuild(0, &spec).unwrap();
    assert!(matches!(volume.rebuild(0, &spec), Err(VolumeError::Rewriting { generation: 0 })));
    assert!(matches!(volume.begin(&spec), Err(VolumeError::Busy)));
    let tx = rebuilt.transaction();
    for table in 0..3 {
        let source = Changed { original: Rows { version: 1, table }, changes: rows_after(&all[..sequence as usize]) };
        let entry = tx.generation().tables[table].clone();
        let ranks = entry.ranks.map(|_| ranks(1, entry.rows));
        if table == 1 {
            assert!(matches!(tx.copied(table, &before.tables[table]), Err(VolumeError::InvalidTable { .. })));
        }
        let loader = tx.loader(table, &source, ranks.as_ref()).unwrap();
        for extent in loader.extents(16 << 10) {
            let mut buf = vec![0xEE; extent.bytes];
            loader.fill(&extent, &mut buf).unwrap();
            volume.drive(extent.drive).unwrap().write(extent.lba, &buf).unwrap();
        }
        if table != 1 {
            // With the checksums that it has.
            tx.copied(table, &before.tables[table]).unwrap();
        }
    }
    meanwhile(log);
    let replaced = log.replace(sequence, rebuilt).unwrap();
    assert_eq!((replaced.id, replaced.shown, replaced.base_sequence), (before.id, before.shown, sequence));
    assert_eq!(replaced.tables[1].rows, before.tables[1].rows + 1);
    replaced
}

type Compact = fn(&Volume, &mut Log, &[Change], &mut dyn FnMut(&mut Log)) -> Arc<Generation>;

/// Copies the chunks that were updated; or writes all anew.
const WAYS: [Compact; 2] = [
    |volume, log, all, meanwhile| compact(volume, log, all, meanwhile),
    |volume, log, all, meanwhile| rebuild(volume, log, all, meanwhile),
];

/// Updates, a compaction with updates meanwhile, more of them; another compaction with none; another process.
fn record_compactions(shapes: &[Shape], compact: Compact) -> Recorded {
    let (fixture, volume) = loaded(shapes);
    let base = fixture.images();
    let mut all = Vec::new();
    let mut acked = vec![(0, volume.epoch())];
    let mut mark = |volume: &Volume, count: usize| {
        acked.push((count, volume.epoch()));
        fixture.mark(acked.len() as u64 - 1);
    };
    let add = |all: &mut Vec<Change>, log: &mut Log, count| {
        let batch = changes(all.len() as u64, count, None);
        append(log, &batch).unwrap();
        all.extend(batch);
    };
    let (mut log, _) = log_of(&volume).unwrap();
    add(&mut all, &mut log, 40);
    mark(&volume, all.len());
    let before = all.clone();
    compact(&volume, &mut log, &before, &mut |log| {
        add(&mut all, log, 3);
        mark(&volume, all.len());
    });
    mark(&volume, all.len());
    assert_eq!(volume.generations()[0].log.len(), 1, "of what came meanwhile");
    add(&mut all, &mut log, 2);
    mark(&volume, all.len());
    let before = all.clone();
    let compacted = compact(&volume, &mut log, &before, &mut |_| ());
    mark(&volume, all.len());
    assert!(compacted.log.is_empty());
    assert_eq!(check_rows(&volume, &all), Ok(45));
    add(&mut all, &mut log, 1);
    mark(&volume, all.len());
    Recorded { base, log: fixture.take_log(), all, acked }
}

fn compacted_or_not(shapes: &[Shape], recorded: &Recorded, crash: Crash) -> Result<(), String> {
    let Recorded { all, acked, .. } = recorded;
    let mark = crash.acked as usize;
    let ((least, epoch), most) = (acked[mark], acked.get(mark + 1).map_or(all.len(), |next| next.0));
    for index in 0..shapes.len() {
        let fixture = Fixture::with_images(&shapes[index..=index], vec![crash.images[index].clone()]);
        for zero_start in [false, true] {
            if zero_start && crash.tails_in_flight {
                continue;
            }
            if zero_start {
                (0..2).for_each(|unit| fixture.drives[0].set_unit(unit, &[0; 4096]));
            }
            let alone =
                open(fixture.drives.clone(), StoreAccess::Degraded).map_err(|error| format!("alone: {error}"))?;
            if alone.volume.epoch() < epoch {
                return Err(format!("member {index} alone (start zeroed: {zero_start}) forgot epoch {epoch}"));
            }
        }
    }
    let fixture = Fixture::with_images(shapes, crash.images);
    let volume = open(fixture.drives.clone(), StoreAccess::ReadWrite).map_err(|error| error.to_string())?.volume;
    let count = check_rows(&volume, all)?;
    if count < least || count > most {
        return Err(format!("{count} updates are found, of {least} to {most}"));
    }
    // It works on: updates, and a compaction.
    let mut log = volume.log(0, |_, _| ()).map_err(|error| error.to_string())?;
    let more = changes(!0, 5, None);
    append(&mut log, &more).map_err(|error| error.to_string())?;
    let now = [&all[..count], &more].concat();
    compact(&volume, &mut log, &now, |_| ());
    drop((log, volume));
    match check_rows(&fixture.open().volume, &now)? {
        found if found == now.len() => Ok(()),
        found => Err(format!("{found} updates after five more")),
    }
}

#[test]
fn cuts_during_compaction_leave_every_row_as_updated() {
    for lba_size in [512, 4096] {
        let shapes = shapes(lba_size);
        for way in WAYS {
            let recorded = record_compactions(&shapes, way);
            let check = |crash| compacted_or_not(&shapes, &recorded, crash);
            enumerate_fates(&shapes, &recorded.base, &recorded.log, 0, &FEW, check).unwrap();
        }
    }
}

#[test]
fn the_flushes_of_a_compaction_are_needed() {
    let shapes = shapes(512);
    WAYS.iter().for_each(|&way| flushes_are_needed(&shapes, &record_compactions(&shapes, way)));
}

fn flushes_are_needed(shapes: &[Shape], recorded: &Recorded) {
    // The commit of the first one: between the second mark and the third.
    let position = |mark| recorded.log.iter().position(|op| matches!(op, Op::Mark(it) if *it == mark)).unwrap();
    let flushes: Vec<usize> =
        (position(2)..position(3)).filter(|&at| matches!(recorded.log[at], Op::Flush { .. })).collect();
    assert_eq!(flushes.len(), 4 * SIZES.len(), "data, catalogues, superblocks, tails");
    for (number, &from) in flushes.iter().enumerate() {
        let mut log = recorded.log.clone();
        log.remove(from);
        let end = log.len().min(position(3) + 1);
        let check = |crash| compacted_or_not(shapes, recorded, crash);
        let found = enumerate_fates(shapes, &recorded.base, &log[..end], from, &withstood(12), check);
        // That of the data is followed by those of the catalogues, before any superblock speaks of it: see docs/layout.md.
        assert_eq!(found.is_err(), number >= SIZES.len(), "flush {number}");
    }
}
