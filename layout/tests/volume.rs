//! Space, pins, switches, and what goes wrong in them.

mod common;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::*;
use warprow_layout::{
    DType, Drive, DriveError, FormatOptions, GenerationSpec, OpenError, Ranks, StoreAccess, StoreFormatError,
    TableSpec, VolumeError, WritesLost, format, open,
};

fn one_mebibyte(name: &str) -> GenerationSpec {
    GenerationSpec::new(name, vec![TableSpec::new("t", 2048, 128, DType::F32)])
}

#[test]
fn chunks_of_a_dropped_generation_wait_for_its_readers() {
    let fixture = Fixture::new(&[small(512, 4)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    assert_eq!(volume.free_chunks(), [2]);
    let first = volume.begin(&one_mebibyte("a")).unwrap().commit().unwrap();
    let second = volume.begin(&one_mebibyte("b")).unwrap().commit().unwrap();
    let id = first.id;
    let chunks = first.placement.map().to_vec();
    volume.drop_generation(id).unwrap();
    assert!(volume.generation(id).is_none());
    match volume.begin(&one_mebibyte("c")) {
        Err(VolumeError::NoSpace { needed: 1, free: 0, pinned: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(first);
    let third = volume.begin(&one_mebibyte("c")).unwrap().commit().unwrap();
    assert_eq!(third.placement.map(), chunks);
    assert!(third.id > second.id, "ids are never given twice");
    assert_eq!(volume.free_chunks(), [0]);
    assert!(matches!(volume.drop_generation(id), Err(VolumeError::NoSuchGeneration { .. })));
}

#[test]
fn a_dropped_transaction_leaves_no_trace() {
    let fixture = Fixture::new(&[small(512, 4)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    fixture.take_log();
    let tx = volume.begin(&one_mebibyte("a")).unwrap();
    assert!(matches!(volume.begin(&one_mebibyte("b")), Err(VolumeError::Busy)));
    assert!(
        matches!(volume.drop_generation(0), Err(VolumeError::NoSuchGeneration { id: 0 })),
        "other commits need not wait"
    );
    drop(tx);
    assert!(fixture.take_log().is_empty());
    assert_eq!(volume.free_chunks(), [2]);
    volume.begin(&one_mebibyte("b")).unwrap().commit().unwrap();
    assert_eq!(fixture.open().volume.generations().len(), 1);
}

#[test]
fn the_latest_of_a_name_is_the_current_one() {
    let fixture = Fixture::new(&[small(512, 6)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    let old = volume.begin(&one_mebibyte("m")).unwrap().commit().unwrap();
    let new = volume.begin(&one_mebibyte("m")).unwrap().commit().unwrap();
    volume.begin(&one_mebibyte("other")).unwrap().commit().unwrap();
    for volume in [&volume, &fixture.open().volume] {
        assert_eq!(volume.latest("m").unwrap(), new);
        assert_eq!(volume.generation(old.id).unwrap(), old);
        assert!(volume.latest("nobody").is_none());
        let shown = volume.inspect();
        assert_eq!(
            shown.generations.iter().map(|generation| generation.latest).collect::<Vec<_>>(),
            [false, true, true]
        );
        assert_eq!(shown.members[0].free_chunks, 1);
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["generations"][0]["tables"][0]["rows"], 2048);
        assert_eq!(json["generations"][0]["tables"][0]["dtype"], "f32");
    }
}

#[test]
fn impossible_tables_are_refused_by_name() {
    let fixture = Fixture::new(&[small(512, 8)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    let refuse = |table: TableSpec| match volume.begin(&GenerationSpec::new("m", vec![table])) {
        Err(VolumeError::InvalidTable { table, reason }) => {
            assert!(table == "t" || table.is_empty());
            reason
        }
        other => panic!("{other:?}"),
    };
    let table = |rows, dim| TableSpec::new("t", rows, dim, DType::F32);
    assert!(refuse(table(0, 4)).contains("no rows"));
    assert!(refuse(table(4, 0)).contains("no rows"));
    assert!(refuse(table(4, 40_000)).contains("131072 bytes"), "the drive's transfer size is named");
    assert!(refuse(table(4, u32::MAX)).contains("4 GiB"));
    assert!(refuse(table(u64::MAX, 4)).contains("2⁶⁴"));
    assert!(refuse(TableSpec { name: String::new(), ..table(4, 4) }).contains("name"));
    assert!(refuse(TableSpec { default_row: Some(vec![0; 15]), ..table(4, 4) }).contains("15 bytes"));
    let twins = GenerationSpec::new("m", vec![table(1, 1), table(1, 1)]);
    assert!(matches!(volume.begin(&twins), Err(VolumeError::InvalidTable { .. })));
    let none = GenerationSpec::new("m", Vec::new());
    assert!(matches!(volume.begin(&none), Err(VolumeError::InvalidGeneration { .. })));
    for stripe_unit in [256, 5000, 2 << 20] {
        let spec = GenerationSpec { stripe_unit: Some(stripe_unit), ..one_mebibyte("m") };
        assert!(matches!(volume.begin(&spec), Err(VolumeError::InvalidGeneration { .. })), "{stripe_unit}");
    }
    // The largest row that the drive can move.
    let tx = volume.begin(&GenerationSpec::new("m", vec![table(3, 32_768)])).unwrap();
    assert_eq!(tx.generation().row(0, 2).unwrap().lbas, 256);
}

#[test]
fn a_permuted_table_needs_its_ranks() {
    let fixture = Fixture::new(&[small(512, 8)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    let permuted = TableSpec { permuted: true, ..TableSpec::new("t", 10, 128, DType::F32) };
    let spec = GenerationSpec::new("m", vec![permuted, TableSpec::new("plain", 10, 128, DType::F32)]);
    let tx = volume.begin(&spec).unwrap();
    assert!(matches!(tx.commit(), Err(VolumeError::RanksNotGiven { table }) if table == "t"));
    let mut tx = volume.begin(&spec).unwrap();
    let source = Rows { version: 1, table: 0 };
    let right = ranks(1, 10);
    let short = ranks(1, 9);
    for (table, ranks) in [(0, None), (0, Some(&short)), (1, Some(&right))] {
        assert!(matches!(tx.loader(table, &source, ranks), Err(VolumeError::RanksMismatch { .. })));
    }
    assert!(matches!(tx.loader(2, &source, None), Err(VolumeError::NoSuchTable { .. })));
    assert!(tx.loader(0, &source, Some(&right)).is_ok());
    tx.commit().unwrap();
}

#[test]
fn damaged_ranks_are_refused() {
    let fixture = Fixture::new(&[small(512, 4)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    let generation = switch(&volume, 1);
    assert_eq!(volume.read_ranks(&generation, 0).unwrap().as_ref().map(Ranks::len), Some(300));
    assert_eq!(volume.read_ranks(&generation, 1).unwrap(), None);
    let (_, lba) = generation.placement.locate(generation.tables[0].ranks.unwrap().region.first_lba).unwrap();
    let mut block = vec![0; 512];
    fixture.drives[0].read(lba, &mut block).unwrap();
    block[17] ^= 4;
    fixture.drives[0].write(lba, &block).unwrap();
    assert!(matches!(volume.read_ranks(&generation, 0), Err(VolumeError::RanksDamaged { .. })));
}

#[test]
fn a_full_catalogue_refuses_and_keeps_what_it_has() {
    let fixture = Fixture::new(&[small(512, 40)]);
    let options =
        warprow_layout::FormatOptions { chunk_size: Some(1 << 20), catalogue_slack: Some(1), ..Default::default() };
    warprow_layout::format(&fixture.drives, &options).unwrap();
    let volume = fixture.open().volume;
    let table = |i: usize| TableSpec::new(format!("{i:0200}"), 1, 1, DType::F32);
    let spec = GenerationSpec { stripe_unit: Some(512), ..GenerationSpec::new("m", (0..130).map(table).collect()) };
    let first = volume.begin(&spec).unwrap().commit().unwrap();
    match volume.begin(&spec).unwrap().commit() {
        Err(VolumeError::CatalogueFull { needed, capacity }) => assert!(needed > capacity),
        other => panic!("{other:?}"),
    }
    assert_eq!(volume.generations(), std::slice::from_ref(&first));
    drop(first);
    volume.drop_generation(0).unwrap();
    volume.begin(&spec).unwrap().commit().unwrap();
    assert_eq!(fixture.open().volume.epoch(), 4);
}

/// A drive that refuses its nth write or flush.
#[derive(Clone)]
struct Failing {
    inner: MemoryDrive,
    left: std::sync::Arc<AtomicUsize>,
}

impl Failing {
    fn step(&self, what: &str) -> Result<(), DriveError> {
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(DriveError::new(self.name(), what, "out of order")),
        }
    }
}

impl Drive for Failing {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn lba_size(&self) -> u32 {
        self.inner.lba_size()
    }
    fn lba_count(&self) -> u64 {
        self.inner.lba_count()
    }
    fn max_transfer(&self) -> usize {
        self.inner.max_transfer()
    }
    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.inner.read(lba, buf)
    }
    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        self.step("write").and_then(|()| self.inner.write(lba, data))
    }
    fn flush(&self) -> Result<(), DriveError> {
        self.step("flush").and_then(|()| self.inner.flush())
    }
}

#[test]
fn a_commit_that_fails_is_undone_or_in_doubt_and_never_half() {
    let shapes = [small(512, 4), small(512, 5), small(512, 7)];
    let base = Fixture::new(&shapes);
    base.format(1);
    switch(&base.open().volume, 1);
    let mut undone = 0;
    let mut in_doubt = 0;
    let mut done = 0;
    for steps in 0..60 {
        let fixture = Fixture::with_images(&shapes, base.images());
        let left = std::sync::Arc::new(AtomicUsize::new(usize::MAX));
        let drives: Vec<Failing> =
            fixture.drives.iter().map(|inner| Failing { inner: inner.clone(), left: left.clone() }).collect();
        let volume = open(drives, StoreAccess::ReadWrite).unwrap().volume;
        let mut tx = volume.begin(&model()).unwrap();
        load(&volume, &mut tx, 2);
        tx.supersede(0);
        left.store(steps, Ordering::Relaxed);
        let outcome = tx.commit().map(|generation| generation.id);
        left.store(usize::MAX, Ordering::Relaxed);
        let now = fixture.open().volume;
        let generations = now.generations();
        assert_eq!(generations.len(), 1);
        verify(&now, &generations[0], generations[0].id + 1).unwrap();
        match outcome {
            Ok(1) => {
                done += 1;
                assert_eq!((generations[0].id, volume.generations()[0].id), (1, 1));
            }
            Err(VolumeError::Drive(_)) => {
                undone += 1;
                assert_eq!(generations[0].id, 0, "nothing was committed");
                assert_eq!(volume.generations()[0].id, 0);
                switch(&volume, 2); // and the volume works on
                assert_eq!(verify(&volume, &volume.latest("model").unwrap(), 2), Ok(()));
            }
            Err(VolumeError::Indeterminate { epoch: 3, .. }) => {
                in_doubt += 1;
                assert!(matches!(volume.begin(&model()), Err(VolumeError::Poisoned)));
                assert!(matches!(volume.drop_generation(0), Err(VolumeError::Poisoned)));
                verify(&volume, &volume.generations()[0], 1).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    // Flush, catalogues, flush; then twice superblocks and flush: three drives each.
    assert_eq!((undone, in_doubt, done), (9, 12, 39));
}

/// A drive that is reset before its nth write or flush: what it has not flushed is lost, and it goes on as if nothing were.
#[derive(Clone)]
struct Forgetful {
    inner: MemoryDrive,
    flushed: Arc<Mutex<Image>>,
    left: Arc<AtomicUsize>,
    resets: Arc<AtomicU64>,
}

impl Forgetful {
    fn new(inner: &MemoryDrive) -> Self {
        let flushed = Arc::new(Mutex::new(inner.image.lock().unwrap().clone()));
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let resets = Arc::new(AtomicU64::new(7));
        Self { inner: inner.clone(), flushed, left, resets }
    }

    fn step(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.left.store(usize::MAX, Ordering::Relaxed);
            self.resets.fetch_add(1, Ordering::Relaxed);
            self.inner.image.lock().unwrap().clone_from(&self.flushed.lock().unwrap());
        }
    }
}

impl Drive for Forgetful {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn lba_size(&self) -> u32 {
        self.inner.lba_size()
    }
    fn lba_count(&self) -> u64 {
        self.inner.lba_count()
    }
    fn max_transfer(&self) -> usize {
        self.inner.max_transfer()
    }
    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.inner.read(lba, buf)
    }
    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        self.step();
        self.inner.write(lba, data)
    }
    fn flush(&self) -> Result<(), DriveError> {
        self.step();
        self.flushed.lock().unwrap().clone_from(&self.inner.image.lock().unwrap());
        self.inner.flush()
    }
    fn incarnation(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }
}

fn lost(error: &DriveError) -> bool {
    error.source.downcast_ref() == Some(&WritesLost)
}

#[test]
fn a_drive_that_forgets_what_it_had_not_flushed_ends_a_commit() {
    let shapes = [small(512, 4), small(512, 5), small(512, 7)];
    let base = Fixture::new(&shapes);
    base.format(1);
    switch(&base.open().volume, 1);
    for victim in 0..shapes.len() {
        let mut undone = 0;
        let mut in_doubt = 0;
        let mut steps = 0;
        loop {
            let fixture = Fixture::with_images(&shapes, base.images());
            let drives: Vec<Forgetful> = fixture.drives.iter().map(Forgetful::new).collect();
            let volume = open(drives.clone(), StoreAccess::ReadWrite).unwrap().volume;
            drives[victim].left.store(steps, Ordering::Relaxed);
            let mut tx = volume.begin(&model()).unwrap();
            load(&volume, &mut tx, 2);
            tx.supersede(0);
            let outcome = tx.commit().map(|generation| generation.id);
            let fired = drives[victim].left.swap(usize::MAX, Ordering::Relaxed) > usize::MAX / 2;
            let now = fixture.open().volume;
            let generations = now.generations();
            verify(&now, &generations[0], generations[0].id + 1).unwrap();
            match outcome {
                Ok(id) => {
                    assert_eq!((id, generations[0].id, fired), (1, 1, false), "step {steps} of drive {victim}");
                    break;
                }
                Err(VolumeError::Drive(error)) if lost(&error) => {
                    undone += 1;
                    assert_eq!(generations[0].id, 0, "nothing was committed");
                    switch(&volume, 2); // and the volume works on
                    let now = fixture.open().volume;
                    verify(&now, &now.latest("model").unwrap(), 2).unwrap();
                }
                Err(VolumeError::Indeterminate { source, .. }) if lost(&source) => in_doubt += 1,
                other => panic!("step {steps} of drive {victim}: {other:?}"),
            }
            steps += 1;
        }
        assert!(undone > 5 && in_doubt == 4, "{undone} undone, {in_doubt} in doubt");
    }
}

#[test]
fn a_drive_that_forgets_while_it_is_opened_or_formatted_is_an_error() {
    let shapes = [small(512, 4), small(512, 5)];
    let fixture = Fixture::new(&shapes);
    fixture.format(1);
    // The flush of what was read; then of a superblock that is repaired the write, and the flush.
    for step in 0..3 {
        (0..2).for_each(|unit| fixture.drives[1].set_unit(unit, &[0xFF; 4096]));
        let drives: Vec<Forgetful> = fixture.drives.iter().map(Forgetful::new).collect();
        drives[1].left.store(step, Ordering::Relaxed);
        assert!(matches!(open(drives, StoreAccess::ReadWrite), Err(OpenError::Drive(error)) if lost(&error)), "{step}");
    }
    let drives: Vec<Forgetful> = fixture.drives.iter().map(Forgetful::new).collect();
    let options = FormatOptions { overwrite: true, ..FormatOptions::default() };
    drives[0].left.store(6, Ordering::Relaxed);
    assert!(matches!(format(&drives, &options), Err(StoreFormatError::Drive(error)) if lost(&error)));
}

#[test]
fn a_map_covers_each_drive_and_counts_every_byte_of_every_table() {
    for sizes in [&[8u64][..], &[8, 13, 9]] {
        let shapes: Vec<Shape> = sizes.iter().map(|&mebibytes| small(512, mebibytes)).collect();
        let fixture = Fixture::new(&shapes);
        fixture.format(4);
        let volume = fixture.open().volume;
        switch(&volume, 1);
        let mut log = volume.log(0, |_, _| {}).unwrap();
        log.append(&[warprow_layout::LogUpdate { table: 2, key: 1, row: &[7; 64] }]).unwrap();
        let generation = volume.generations()[0].clone();
        let map = volume.map();
        let mut free = vec![];
        let mut tables = 0;
        let mut logs = 0;
        for (drive, shape) in map.iter().zip(&shapes) {
            let mut next = 0;
            for run in &drive.runs {
                assert_eq!(run.lba, next, "{drive:?}");
                next += run.lbas;
            }
            assert_eq!((next, drive.bytes), (shape.lba_count(), shape.bytes));
            let of = |kind| drive.runs.iter().filter(|run| run.what == kind).map(|run| run.lbas * 512).sum::<u64>();
            free.push(of(warprow_layout::MapKind::Free) >> 20);
            tables += of(warprow_layout::MapKind::Tables);
            logs += of(warprow_layout::MapKind::Log);
            assert_eq!(of(warprow_layout::MapKind::Superblocks), (64 << 10) + 8192);
        }
        assert_eq!((free, logs), (volume.free_chunks(), 1 << 20));
        assert_eq!(tables, (generation.placement.map().len() as u64) << 20);
        for (table, map) in generation.tables.iter().zip(volume.table_map()) {
            let regions = [Some(table.rows_region), table.ranks.map(|rank| rank.region), table.crc_region];
            let mut bytes = vec![0; sizes.len()];
            for region in regions.into_iter().flatten() {
                for lba in region.first_lba..region.end().unwrap() {
                    let (drive, at) = generation.placement.locate(lba).unwrap();
                    bytes[usize::from(drive)] += 512;
                    let in_chunk = (at - generation.placement.base_lba()) * 512 % (1 << 20);
                    assert!((map.in_chunk.0..map.in_chunk.1).contains(&in_chunk));
                }
            }
            assert_eq!((&map.table, map.bytes), (&table.name, bytes));
        }
    }
}
