//! What has gone bad is found, every bit of it and nothing else, whatever goes on meanwhile.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::Table;
use warprow_layout::FormatOptions;
use warprow_lookup::HostExecutor;
use warprow_lookup::HostOptions;
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};
use warprow_store::{
    CreateDrive, DType, DamageKind, Device, DriveAddress, LoadOptions, OpenOptions, Pace, ScrubOptions, ScrubPosition,
    ScrubProgress, ScrubReport, Store, StoreError,
};

fn go(_: ScrubProgress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn chunks() -> FormatOptions {
    FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() }
}

/// Drives in files, so that they can be damaged behind the store's back.
fn in_files(dir: &Path, sizes: &[u64]) -> (Vec<std::fs::File>, Vec<Device>) {
    let drive = |(index, size): (usize, &u64)| {
        let path = dir.join(format!("{index}.drive"));
        let address: DriveAddress = format!("emulated:{},size={size}M", path.display()).parse().unwrap();
        let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
        (std::fs::File::options().read(true).write(true).open(&path).unwrap(), device)
    };
    sizes.iter().enumerate().map(drive).unzip()
}

fn tables(random: &mut fastrand::Rng) -> Vec<Table> {
    let mut tables = vec![
        Table::random("narrow", 20_000, 48, DType::U8, random),
        Table::random("wide", 700, 3000, DType::U8, random),
        Table::random("even", 6000, 128, DType::F32, random),
    ];
    tables.iter_mut().for_each(|table| table.spec.row_crc = true);
    tables
}

/// Every row of every table that a scrub says is bad.
fn bad_rows(scrubbed: &ScrubReport) -> BTreeSet<(String, u64)> {
    let rows = scrubbed.bad.iter().filter(|unit| unit.what == DamageKind::Rows);
    rows.flat_map(|row| row.ranks.iter().map(|&rank| (row.table.clone().unwrap(), rank))).collect()
}

#[test]
fn every_flipped_row_is_found_where_it_lies_and_nothing_else() {
    for threads in [1, 2, 5, 9] {
        let dir = tempfile::tempdir().unwrap();
        let (files, devices) = in_files(dir.path(), &[24, 40, 33]);
        let store = Store::create(&devices, &chunks(), &OpenOptions::default()).unwrap();
        let mut random = fastrand::Rng::with_seed(threads as u64);
        let tables = tables(&mut random);
        common::load(&store, &tables, &LoadOptions::default());
        let options = ScrubOptions::default().with_threads(threads);
        let sound = store.scrub(&options, &mut go).unwrap();
        assert!(sound.bad.is_empty() && sound.next.is_none() && sound.transient == 0, "{sound:?}");
        assert_eq!((sound.rows, sound.checked_rows), (26_700, 26_700));

        let mut flipped = BTreeSet::new();
        let mut places = BTreeSet::new();
        for _ in 0..40 {
            let table = &tables[random.usize(..3)].spec;
            let (generation, index) = store.generation(&table.name).unwrap();
            let rank = random.u64(..table.rows);
            let at = generation.row(index, rank).unwrap();
            if !flipped.insert((table.name.clone(), rank)) {
                continue;
            }
            places.insert((usize::from(at.drive), at.lba));
            let bytes = u64::from(generation.tables[index].row_bytes());
            let byte = at.lba * 512 + u64::from(at.byte) + random.u64(..bytes);
            let file = &files[usize::from(at.drive)];
            let mut was = [0];
            file.read_exact_at(&mut was, byte).unwrap();
            file.write_all_at(&[was[0] ^ 1 << random.u8(..8)], byte).unwrap();
        }
        let mut told = 0;
        let scrubbed = store
            .scrub(&options, &mut |progress| {
                told += progress.found.len();
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(bad_rows(&scrubbed), flipped, "{threads} threads");
        assert_eq!(told, scrubbed.bad.len());
        let said: BTreeSet<(usize, u64)> = scrubbed
            .bad
            .iter()
            .map(|unit| {
                let drive = unit.drive.as_ref().unwrap();
                let index = store.drives().iter().position(|name| name.as_ref() == Some(drive)).unwrap();
                (index, unit.lba.unwrap())
            })
            .collect();
        assert_eq!(said, places);
        for table in &tables {
            let name = &table.spec.name;
            let verified = store.verify(name, &mut |_| ControlFlow::Continue(())).unwrap();
            let expected: Vec<u64> = flipped.iter().filter(|(it, _)| it == name).map(|(_, rank)| *rank).collect();
            assert_eq!((verified.damaged, verified.first_damaged), (expected.len() as u64, expected));
        }
    }
}

/// To make queues costs more than to read a small table.
#[test]
fn many_tables_are_verified_with_as_many_queues_as_they_are_scrubbed() {
    let drives: Vec<_> = [24, 40].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let store = Store::create(&common::devices(&drives), &chunks(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(9);
    let mut tables: Vec<Table> = (0..60)
        .map(|number| Table::random(&format!("t{number}"), 1 + number % 3, 16, DType::U8, &mut random))
        .collect();
    tables.iter_mut().for_each(|table| table.spec.row_crc = true);
    common::load(&store, &tables, &LoadOptions::default());
    // Counted, and no fault.
    let made = Rule::new(Fault::Delay(Duration::ZERO)).admin(AdminOpcode::CREATE_IO_SQ).always();
    let made: Vec<_> = drives.iter().map(|drive| drive.faults().inject(made.clone())).collect();
    let count = || drives.iter().zip(&made).map(|(drive, &rule)| drive.faults().fired(rule)).sum::<u64>();
    assert!(store.scrub(&ScrubOptions::default(), &mut go).unwrap().bad.is_empty());
    let scrubbed = count();
    assert!(scrubbed > 0);
    let mut verifier = store.verifier();
    for table in store.tables() {
        let verified = verifier.verify_in(table.generation, &table.name, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(verified.is_sound() && verified.checked && verified.rows == table.rows, "{verified:?}");
    }
    assert!(count() - scrubbed <= scrubbed, "{} queues, and {scrubbed} to scrub", count() - scrubbed);
    // One that was stopped is gone on from with others.
    let generation = store.tables()[0].generation;
    let stopped = verifier.verify_in(generation, "t5", &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(StoreError::Interrupted)), "{stopped:?}");
    assert!(verifier.verify_in(generation, "t5", &mut |_| ControlFlow::Continue(())).unwrap().is_sound());
}

#[test]
fn what_a_drive_cannot_read_is_named_and_the_rest_is_checked() {
    let drives: Vec<_> = [24, 40].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let store = Store::create(&common::devices(&drives), &chunks(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(4);
    let tables = tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let (generation, index) = store.generation("narrow").unwrap();
    let lost = generation.row(index, 777).unwrap();
    let unreadable = Fault::Status(Status::from_code(StatusCode::UnrecoveredReadError));
    // Three LBAs: ten rows of 48 bytes lie in each.
    let rule = Rule::new(unreadable).io(NvmOpcode::READ).lbas(lost.lba..lost.lba + 3).always();
    let rule = drives[usize::from(lost.drive)].faults().inject(rule);
    let expected: BTreeSet<(String, u64)> = (0..20_000)
        .filter(|&rank| {
            let at = generation.row(index, rank).unwrap();
            at.drive == lost.drive && (lost.lba..lost.lba + 3).contains(&at.lba)
        })
        .map(|rank| ("narrow".to_owned(), rank))
        .collect();
    assert!(expected.len() >= 10);
    let scrubbed = store.scrub(&ScrubOptions::default(), &mut go).unwrap();
    assert_eq!(bad_rows(&scrubbed), expected);
    assert_eq!(scrubbed.rows, 26_700);
    let [bad] = &scrubbed.bad[..] else { panic!("{:?}", scrubbed.bad) };
    assert!(bad.unreadable && bad.detail.contains("Unrecovered Read Error"), "{bad:?}");
    assert_eq!((bad.lba, bad.lbas, &bad.drive), (Some(lost.lba), 3, &store.drives()[usize::from(lost.drive)]));
    let verified = store.verify("narrow", &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((verified.rows, verified.damaged), (20_000, expected.len() as u64));
    drives[usize::from(lost.drive)].faults().remove(rule);

    // The checksums of a table: its rows are read, and not all can be checked.
    let stored = generation.tables[index].crc_region.unwrap();
    let extent = generation.placement.extents(stored, 4096).next().unwrap();
    let rule = Rule::new(unreadable).io(NvmOpcode::READ).lbas(extent.lba..extent.lba + 1).always();
    drives[usize::from(extent.drive)].faults().inject(rule);
    let scrubbed = store.scrub(&ScrubOptions::default(), &mut go).unwrap();
    let kinds: Vec<DamageKind> = scrubbed.bad.iter().map(|unit| unit.what).collect();
    assert_eq!(kinds, [DamageKind::Checksums], "{scrubbed:?}");
}

#[test]
fn metadata_ranks_and_logs_are_scrubbed_too_and_so_is_what_stands_by() {
    let dir = tempfile::tempdir().unwrap();
    let (files, devices) = in_files(dir.path(), &[24, 40, 33]);
    let store = Store::create(&devices, &chunks(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(8);
    let mut old = tables(&mut random);
    old.truncate(1);
    old[0].spec.permuted = true;
    old[0].ranks =
        Some(warprow_store::Ranks::by_hotness(&(0..20_000).map(|id| id * 7919 % 20_000).collect::<Vec<_>>()));
    common::load(&store, &old, &LoadOptions::default());
    common::load(&store, &tables(&mut random)[2..], &LoadOptions::default().with_standby());
    store.update("narrow", &[1, 2, 3], &[7; 3 * 48]).unwrap();
    let clean = store.scrub(&ScrubOptions::default(), &mut go).unwrap();
    assert!(clean.bad.is_empty() && clean.rows == 26_000, "{clean:?}");

    let flip = |drive: usize, byte: u64| {
        let mut was = [0];
        files[drive].read_exact_at(&mut was, byte).unwrap();
        files[drive].write_all_at(&[was[0] ^ 0x10], byte).unwrap();
    };
    let kinds = || {
        let scrubbed = store.scrub(&ScrubOptions::default(), &mut go).unwrap();
        scrubbed.bad.iter().map(|unit| unit.what).collect::<Vec<_>>()
    };
    let ranks = {
        let (generation, index) = store.generation("narrow").unwrap();
        let extent = generation.placement.extents(generation.tables[index].ranks.unwrap().region, 4096).next().unwrap();
        (usize::from(extent.drive), extent.lba * 512 + 5)
    };
    let log = {
        let (generation, _) = store.generation("narrow").unwrap();
        let chunk = generation.log[0].chunk;
        // Chunk 0 begins where the placement's does.
        let lba = generation.placement.base_lba() + u64::from(chunk.chunk()) * 2048;
        (usize::from(chunk.drive()), lba * 512 + 100)
    };
    let standby = {
        let generation = store.generations().into_iter().find(|generation| generation.shown == 0).unwrap().id;
        let extents = store.inspect().0.generations.iter().find(|other| other.id == generation).unwrap().chunks.clone();
        assert!(extents.iter().all(|&chunks| chunks > 0));
        generation
    };
    for (place, expected) in [
        ((0, 4096 + 200), vec![DamageKind::Superblock]),
        ((2, 33 * (1 << 20) - 100), vec![DamageKind::Superblock]),
        (ranks, vec![DamageKind::Ranks]),
    ] {
        flip(place.0, place.1);
        assert_eq!(kinds(), expected);
        flip(place.0, place.1);
    }
    // The only unit of a log: the end unit says that it was durable.
    flip(log.0, log.1);
    assert_eq!(kinds(), [DamageKind::Log]);
    store.update("narrow", &[4], &[8; 48]).unwrap();
    assert_eq!(kinds(), [DamageKind::Log]);
    flip(log.0, log.1);
    assert_eq!(kinds(), []);
    store.verify_in(standby, "even", &mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn stopped_anywhere_it_goes_on_and_reads_every_row_once() {
    let drives: Vec<_> = [24, 40].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let store = Store::create(&common::devices(&drives), &chunks(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    common::load(&store, &tables(&mut random), &LoadOptions::default());
    let mut from = ScrubPosition::default();
    let mut rows = 0;
    let mut runs = 0;
    loop {
        let before = from;
        // After the first step.
        let scrubbed = store
            .scrub(&ScrubOptions::default().with_from(from).with_threads(2), &mut |progress| {
                assert!(progress.bytes <= progress.total && progress.position >= before);
                if progress.position > before { ControlFlow::Break(()) } else { go(progress) }
            })
            .unwrap();
        (rows, runs) = (rows + scrubbed.rows, runs + 1);
        match scrubbed.next {
            Some(next) => {
                assert!(next >= from);
                from = next;
            }
            None => break,
        }
    }
    assert!((3..20).contains(&runs), "{runs} runs");
    assert_eq!(rows, 26_700);
    // At once: what was read by then counts, and no more.
    let few = store.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Break(())).unwrap();
    let rest = ScrubOptions::default().with_from(few.next.unwrap());
    assert_eq!(few.rows + store.scrub(&rest, &mut go).unwrap().rows, 26_700);
}

#[test]
fn a_rate_is_kept() {
    let drives: Vec<_> = [24, 40].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let store = Store::create(&common::devices(&drives), &chunks(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(6);
    let tables = vec![Table::random("t", 8 << 10, 1024, DType::U8, &mut random)];
    common::load(&store, &tables, &LoadOptions::default());
    let began = Instant::now();
    let options = ScrubOptions::default().with_pace(Pace::BytesPerSecond(32 << 20)).with_threads(3);
    assert_eq!(store.scrub(&options, &mut go).unwrap().rows, 8 << 10);
    // 8 MiB; the last extent does not wait for itself.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(220), "{took:?}");
    let began = Instant::now();
    let options = ScrubOptions::default().with_pace(Pace::Share(0.02)).with_threads(1);
    assert_eq!(store.scrub(&options, &mut go).unwrap().rows, 8 << 10);
    let paced = began.elapsed();
    let began = Instant::now();
    store.scrub(&ScrubOptions::default().with_threads(1), &mut go).unwrap();
    assert!(paced > began.elapsed() * 2, "{paced:?}");
}

#[test]
fn nothing_that_goes_on_meanwhile_is_taken_for_damage() {
    let drives: Vec<_> = [48, 64, 80].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let store = Store::create(&common::devices(&drives), &chunks(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let tables = tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let stop = AtomicBool::new(false);
    let scrubs = AtomicU64::new(0);
    let updates = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for threads in [1, 3] {
            let store = &store;
            let stop = &stop;
            let scrubs = &scrubs;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let scrubbed = store.scrub(&ScrubOptions::default().with_threads(threads), &mut go);
                    let scrubbed = scrubbed.inspect_err(|_| stop.store(true, Ordering::Relaxed)).unwrap();
                    if !scrubbed.bad.is_empty() || scrubbed.transient > 0 {
                        stop.store(true, Ordering::Relaxed);
                        panic!("wrong alarm: {:?}", scrubbed.bad);
                    }
                    scrubs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        {
            let store = &store;
            let stop = &stop;
            let updates = &updates;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(70);
                while !stop.load(Ordering::Relaxed) {
                    let ids: Vec<u64> = (0..random.u64(1..200)).map(|_| random.u64(..20_000)).collect();
                    let rows: Vec<u8> = ids.iter().flat_map(|_| [random.u8(..); 48]).collect();
                    match store.update("narrow", &ids, &rows) {
                        Ok(_) => drop(updates.fetch_add(1, Ordering::Relaxed)),
                        Err(warprow_store::StoreError::OverlayFull { .. }) => std::thread::yield_now(),
                        Err(error) => {
                            stop.store(true, Ordering::Relaxed);
                            panic!("{error}");
                        }
                    }
                }
            });
        }
        let began = Instant::now();
        let host =
            HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(1 << 16).with_checked_rows()).unwrap();
        let mut turns = 0;
        while (began.elapsed() < Duration::from_secs(3) || turns < 3 || scrubs.load(Ordering::Relaxed) < 4)
            && !stop.load(Ordering::Relaxed)
            && began.elapsed() < Duration::from_secs(60)
        {
            // A load beside, a compaction, and another load that goes again.
            let found = store.table("narrow").unwrap().generation;
            common::load(&store, &tables[1..2], &LoadOptions::default().with_standby());
            store.compact(found).unwrap();
            let standby = store.generations().into_iter().find(|generation| generation.shown == 0).unwrap().id;
            store.drop_generation(standby).unwrap();
            turns += 1;
        }
        stop.store(true, Ordering::Relaxed);
        drop(host);
        assert!(turns >= 3, "{turns} turns");
    });
    assert!(scrubs.into_inner() >= 4 && updates.into_inner() >= 20);
}
