//! Stores: what is loaded is there, by content; replaced tables give way; drives are asked for consent.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::ops::ControlFlow;

use common::Table;
use warprow_driver::FormatRequest;
use warprow_layout::{OpenError, RowSource, VolumeError};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions};
use warprow_soft_controller::{Fault, Namespace, NvmOpcode, RamBacking, Rule, SoftController, StatusCode};
use warprow_store::{
    CreateDrive, DType, Device, DriveAddress, DriveContent, FormatConsent, FormatProposal, FormatSettings, LbaChoice,
    LoadOptions, OpenOptions, Ranks, Store, StoreError, TableLoad, TableSpec,
};

fn go(_: impl Sized) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Reads a table back, and compares every row.
#[track_caller]
fn assert_holds(store: &Store, table: &Table) {
    let name = &table.spec.name;
    let ranks = store.ranks(name).unwrap();
    assert_eq!(ranks, table.ranks);
    let ids = ranks.map(|ranks| ranks.inverse());
    let mut seen = vec![false; table.spec.rows as usize];
    let mut row = |rank: u64, row: &[u8]| {
        let id = ids.as_ref().map_or(rank, |ids| ids.get(rank).unwrap());
        assert_eq!(row, table.row(id), "id {id}");
        assert!(!std::mem::replace(&mut seen[id as usize], true));
        ControlFlow::Continue(())
    };
    store.scan(name, 0..u64::MAX, &mut row).unwrap();
    assert!(seen.iter().all(|&seen| seen));
    let verified = store.verify(name, &mut go).unwrap();
    assert_eq!((verified.rows, verified.checked, verified.damaged), (table.spec.rows, table.spec.row_crc, 0));
}

#[test]
fn what_was_loaded_is_there_after_opening_again() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let lba = if random.bool() { 512 } else { 4096 };
        let (drives, store) = common::store(random.usize(1..4), 32 << 20, lba);
        let tables: Vec<Table> = (0..3)
            .map(|index| {
                let rows = random.u64(1..3000);
                let dim = [1, 7, 64, 130, 700][random.usize(..5)];
                Table::random(&format!("t{index}"), rows, dim, DType::ALL[random.usize(..5)], &mut random)
            })
            .collect();
        // Small buckets, so that permuted tables are partitioned.
        let memory = [1, 100_000, 1 << 30][random.usize(..3)];
        common::load(&store, &tables, &LoadOptions::default().with_memory(memory));
        tables.iter().for_each(|table| assert_holds(&store, table));
        drop(store);
        let mut devices = common::devices(&drives);
        random.shuffle(&mut devices);
        let store = Store::open(&devices, &OpenOptions::default().with_read_only()).unwrap();
        tables.iter().for_each(|table| assert_holds(&store, table));
        let info = store.table("t1").unwrap();
        assert_eq!((info.rows, info.dim, info.dtype), (tables[1].spec.rows, tables[1].spec.dim, tables[1].spec.dtype));
    }
}

/// Rows that are computed, and counted.
#[derive(Default)]
struct Computed(std::sync::Mutex<Vec<u64>>, std::time::Duration);

impl RowSource for Computed {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        std::thread::sleep(self.1);
        for (id, row) in (first..).zip(rows.chunks_mut(row_bytes)) {
            row.fill(id as u8);
            self.0.lock().unwrap().push(id);
        }
        Ok(())
    }
}

#[test]
fn sources_are_read_once_and_in_order() {
    let (_, store) = common::store(2, 32 << 20, 512);
    let ranks = Ranks::by_hotness(&(0..5000).map(|id| id * 7919 % 5000).collect::<Vec<_>>());
    for (name, memory, random_access) in [("a", 1 << 20, false), ("b", 1 << 30, false), ("c", 1 << 30, true)] {
        let mut spec = TableSpec::new(name, 5000, 512, DType::U8);
        (spec.permuted, spec.row_crc) = (true, true);
        let source = Computed::default();
        let load = TableLoad::new(&spec, &source).with_ranks(&ranks);
        let load = if random_access { load.with_random_access() } else { load };
        let mut last = 0;
        let mut gathered = 0;
        let report = store.load("m", &[load], &LoadOptions::default().with_memory(memory), &mut |progress| {
            let more = progress.written > last || progress.gathered > gathered || gathered == 5000 * 512;
            assert!(more && progress.written <= progress.total, "{progress:?}");
            (last, gathered) = (progress.written, progress.gathered);
            ControlFlow::Continue(())
        });
        assert_eq!(report.unwrap().bytes, last);
        assert_eq!(gathered, if random_access { 0 } else { 5000 * 512 }, "{name}");
        let mut asked = source.0.into_inner().unwrap();
        if random_access {
            asked.sort_unstable();
        }
        assert!(asked.into_iter().eq(0..5000), "{name}");
        let rows = (0..5000u64).flat_map(|id| [id as u8; 512]).collect();
        assert_holds(&store, &Table { spec, rows, ranks: Some(ranks.clone()), keys: None });
    }
}

#[test]
fn a_vector_is_a_source_and_one_of_another_length_is_refused() {
    let (_, store) = common::store(1, 32 << 20, 512);
    let spec = TableSpec::new("t", 300, 8, DType::U8);
    let rows: Vec<u8> = (0..2400).map(|byte| (byte % 251) as u8).collect();
    for length in [2399, 2401] {
        let mut other = rows.clone();
        other.resize(length, 0);
        let refused = store.load("m", &[TableLoad::new(&spec, &other)], &LoadOptions::default(), &mut go);
        let expected = matches!(&refused, Err(StoreError::Volume(VolumeError::Length { expected: 2400, .. })));
        assert!(expected, "{length}: {refused:?}");
    }
    store.load("m", &[TableLoad::new(&spec, &rows)], &LoadOptions::default(), &mut go).unwrap();
    assert_holds(&store, &Table { spec, rows, ranks: None, keys: None });
}

#[test]
fn an_emulated_drive_gives_its_controller_and_takes_its_faults() {
    let device = Device::open(&"emulated:x?backing=ram&size=32M".parse().unwrap(), CreateDrive::IfMissing).unwrap();
    let controller = device.soft_controller().unwrap().clone();
    let store = FormatProposal::new(&[device], FormatSettings::default())
        .unwrap()
        .run(&FormatConsent::None, &mut |_, _| {})
        .unwrap();
    let table = small("t", 1);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let unreadable = Fault::Status(StatusCode::UnrecoveredReadError.into());
    let rule = controller.faults().inject(Rule::new(unreadable).io(NvmOpcode::READ).always());
    store.scan("t", 0..1, &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(controller.faults().fired(rule) > 0);
    controller.faults().clear();
    assert_holds(&store, &table);
    // What was opened by its function is a drive as any other.
    assert!(Device::new(controller, 1).soft_controller().is_none());
}

/// Rows of which one cannot be read.
struct Breaks(Computed, u64);

impl RowSource for Breaks {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        if (first..first + (rows.len() / row_bytes) as u64).contains(&self.1) {
            return Err(std::io::Error::other(format!("row {} cannot be read", self.1)));
        }
        self.0.read(first, row_bytes, rows)
    }
}

#[test]
fn rows_that_come_in_turn_are_written_as_they_come() {
    for (drives, lba, memory) in [(1, 512, 1 << 20), (3, 512, 300_000), (2, 4096, 1 << 30)] {
        let (_, store) = common::store(drives, 32 << 20, lba);
        let mut spec = TableSpec::new("t", 5000, 520, DType::U8);
        spec.row_crc = true;
        let options = LoadOptions::default().with_memory(memory);
        for broken in [0, 2500, 4999] {
            let source = Breaks(Computed::default(), broken);
            let error = store.load("m", &[TableLoad::new(&spec, &source).with_sequential_rows()], &options, &mut go);
            let error = format!("{:?}", error.unwrap_err());
            assert!(error.contains(&format!("row {broken} cannot be read")), "{error}");
            assert!(store.table("t").is_none(), "nothing is half there");
        }
        let stopped = store.load(
            "m",
            &[TableLoad::new(&spec, &Computed::default()).with_sequential_rows()],
            &options,
            &mut |_| ControlFlow::Break(()),
        );
        assert!(matches!(stopped, Err(StoreError::Interrupted)) && store.table("t").is_none());
        let source = Computed::default();
        let mut last = 0;
        let report =
            store.load("m", &[TableLoad::new(&spec, &source).with_sequential_rows()], &options, &mut |progress| {
                assert!(
                    progress.written > last && progress.written <= progress.total && progress.gathered == 0,
                    "{progress:?}"
                );
                last = progress.written;
                ControlFlow::Continue(())
            });
        assert_eq!(report.unwrap().bytes, last);
        assert!(
            source.0.into_inner().unwrap().into_iter().eq(0..5000),
            "each is read once, from the first to the last"
        );
        let rows = (0..5000u64).flat_map(|id| [id as u8; 520]).collect();
        assert_holds(&store, &Table { spec, rows, ranks: None, keys: None });
    }
}

fn small(name: &str, seed: u64) -> Table {
    Table::random(name, 300, 16, DType::F32, &mut fastrand::Rng::with_seed(seed))
}

#[test]
fn replaced_tables_give_way_and_stay_for_whoever_reads_them() {
    let (_, store) = common::store(1, 16 << 20, 512);
    let a = small("a", 1);
    let b = small("b", 2);
    common::load(&store, &[a.clone(), b.clone()], &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = host.plan(&[Feature::new("f", "a")], PlanOptions::default()).unwrap();
    let mut slot = plan.slot().unwrap();
    let mut look = |table: &Table| {
        let ids: Vec<u32> = (0..300).collect();
        let mut rows = vec![0f32; 300 * 16];
        let report = slot.lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::F32(&mut rows), 16)).unwrap();
        assert!(rows.iter().zip(table.rows.chunks(4)).all(|(x, bytes)| x.to_le_bytes() == bytes));
        report.generation
    };

    let source = &a.rows[..];
    let again = TableLoad::new(&a.spec, &source);
    let again = a.ranks.as_ref().map_or(again, |ranks| again.with_ranks(ranks));
    let error = store.load("m", &[again], &LoadOptions::default(), &mut go).unwrap_err();
    assert!(matches!(&error, StoreError::TableExists { table } if table == "a"), "{error}");
    let first = look(&a);

    // Another a: the generation of both stays for b.
    let a2 = small("a", 3);
    common::load(&store, std::slice::from_ref(&a2), &LoadOptions::default().with_replace());
    assert_holds(&store, &a2);
    assert_holds(&store, &b);
    assert_eq!(store.inspect().0.generations.len(), 2);
    // Another b: nothing is left of the first generation.
    let b2 = small("b", 4);
    common::load(&store, std::slice::from_ref(&b2), &LoadOptions::default().with_replace());
    assert_holds(&store, &a2);
    assert_holds(&store, &b2);
    let generations: Vec<u64> = store.inspect().0.generations.iter().map(|generation| generation.id).collect();
    assert!(!generations.contains(&first));
    assert_eq!(store.tables().iter().map(|table| table.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);

    // The plan still reads what it was made for, whatever is written meanwhile.
    for seed in 5..9 {
        common::load(&store, &[small("a", seed)], &LoadOptions::default().with_replace());
        assert_eq!(look(&a), first);
    }
}

#[test]
fn an_interrupted_load_leaves_no_trace() {
    let (drives, store) = common::store(1, 16 << 20, 512);
    let a = small("a", 1);
    let free = store.free_bytes();
    let source = &a.rows[..];
    let load = TableLoad::new(&a.spec, &source);
    let load = a.ranks.as_ref().map_or(load, |ranks| load.with_ranks(ranks));
    let error = store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(error, StoreError::Interrupted));
    let short = &a.rows[..100];
    let error = store.load(
        "m",
        &[TableLoad::new(&TableSpec { permuted: false, ..a.spec.clone() }, &short)],
        &LoadOptions::default(),
        &mut go,
    );
    assert!(matches!(error, Err(StoreError::Volume(VolumeError::Length { .. }))), "{error:?}");
    assert_eq!((store.free_bytes(), store.tables().len()), (free, 0));
    drop(store);
    assert!(Store::open(&common::devices(&drives), &OpenOptions::default()).unwrap().tables().is_empty());
}

#[test]
fn a_load_can_be_interrupted_while_rows_are_put_in_order() {
    let (_, store) = common::store(1, 32 << 20, 512);
    const ROWS: u64 = 32 << 10;
    let ranks = Ranks::by_hotness(&(0..ROWS).map(|id| id * 7919 % ROWS).collect::<Vec<_>>());
    let spec = TableSpec { permuted: true, ..TableSpec::new("t", ROWS, 512, DType::U8) };
    let thread = std::thread::current().id();
    let load = |stop_at: u64| {
        let source = Computed(Default::default(), std::time::Duration::from_millis(5));
        let load = TableLoad::new(&spec, &source).with_ranks(&ranks);
        let mut told = Vec::new();
        let result = store.load("m", &[load], &LoadOptions::default(), &mut |progress| {
            assert_eq!(std::thread::current().id(), thread);
            told.extend((progress.written == 0).then_some(progress.gathered));
            if progress.gathered >= stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (result, told, source.0.into_inner().unwrap().len() as u64)
    };
    let (result, told, read) = load(1);
    assert!(matches!(result, Err(StoreError::Interrupted)), "{result:?}");
    assert!(told.len() == 1 && read < ROWS, "{told:?}, {read} rows read");
    assert!(store.table("t").is_none());
    let (result, told, read) = load(u64::MAX);
    result.unwrap();
    assert!(told.len() > 2 && told.is_sorted() && told.last() == Some(&(ROWS * 512)), "{told:?}");
    assert_eq!(read, ROWS);
}

#[test]
fn rows_too_large_and_stores_too_small() {
    let small_transfers = SoftController::builder()
        .name("mdts")
        .max_transfer(16 << 10)
        .namespace(Namespace::new(RamBacking::new(16 << 20).unwrap()))
        .build()
        .unwrap();
    let store = Store::create(&common::devices(&[small_transfers]), &Default::default(), &Default::default()).unwrap();
    let load = |rows: u64, dim: u32| {
        let spec = TableSpec::new("big", rows, dim, DType::U8);
        let source = Computed::default();
        store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut go).unwrap_err().to_string()
    };
    let error = load(1, (16 << 10) + 1);
    assert!(error.contains("big") && error.contains("16384 bytes"), "{error}");
    let error = load(1 << 20, 512);
    assert!(error.contains("chunks") && error.contains("are free"), "{error}");
    let table = Table::random("fits", 100, 16 << 10, DType::U8, &mut fastrand::Rng::with_seed(1));
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    assert_holds(&store, &table);
}

#[test]
fn stores_that_cannot_be_opened() {
    let (drives, store) = common::store(2, 16 << 20, 512);
    drop(store);
    let open = |devices: &[Device]| Store::open(devices, &OpenOptions::default()).unwrap_err();
    let blank = Device::new(common::drive("blank", 16 << 20, 512), 1);
    let error = open(std::slice::from_ref(&blank));
    assert!(matches!(&error, StoreError::Open(OpenError::NotWarprow { drive }) if drive == "blank"), "{error}");
    let devices = common::devices(&drives);
    let error = open(&devices[..1]);
    assert!(matches!(error, StoreError::Open(OpenError::MissingMember { .. })) && error.to_string().contains("drive1"));
    let error = open(&[devices[0].clone(), devices[1].clone(), devices[0].clone()]);
    assert!(matches!(&error, StoreError::OpenedTwice { drive } if drive == "drive0"), "{error}");
    let error = open(&[Device::new(common::drive("two", 16 << 20, 512), 2)]);
    assert!(error.to_string().contains("namespace 2"), "{error}");
}

#[test]
fn formatting_asks_first() {
    let drive = common::drive("drive0", 16 << 20, 512);
    let devices = common::devices(std::slice::from_ref(&drive));
    let settings = || FormatSettings::default().with_lba(LbaChoice::ForRows(4096));
    let plan = FormatProposal::new(&devices, settings()).unwrap();
    let planned = &plan.drives()[0];
    assert_eq!(
        (planned.content, planned.lba_bytes, planned.new_lba_bytes, planned.formats),
        (DriveContent::Blank, 512, 4096, true)
    );
    let token = plan.token().to_owned();
    let error = plan.run(&FormatConsent::None, &mut |_, _| {}).unwrap_err();
    let StoreError::Refused { what, token: same } = error else { panic!("{error}") };
    assert!(what.contains("drive0") && what.contains("namespace 1"), "{what}");
    assert_eq!(same, token);

    let wrong = FormatProposal::new(&devices, settings())
        .unwrap()
        .run(&FormatConsent::Token("00000000".into()), &mut |_, _| {});
    assert!(matches!(wrong, Err(StoreError::Refused { .. })));
    let only_emulated =
        FormatProposal::new(&devices, settings()).unwrap().run(&FormatConsent::Emulated, &mut |_, _| {});
    assert!(matches!(only_emulated, Err(StoreError::Refused { .. })), "nobody said that it is emulated");
    let store = FormatProposal::new(&devices, settings())
        .unwrap()
        .run(&FormatConsent::Token(token.clone()), &mut |_, _| {})
        .unwrap();
    assert_eq!(store.inspect().0.lba_size, 4096);
    common::load(&store, &[small("a", 1)], &LoadOptions::default());
    let uuid = store.inspect().0.store;
    drop(store);

    // The token was for a blank drive.
    let plan = FormatProposal::new(&devices, settings()).unwrap();
    assert_eq!(plan.drives()[0].content, DriveContent::Store(Some(uuid)));
    let error = plan.run(&FormatConsent::Token(token), &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains(&uuid.to_string()), "{error}");
    assert_eq!(Store::open(&devices, &OpenOptions::default()).unwrap().tables().len(), 1);

    let error =
        FormatProposal::new(&devices, FormatSettings::default().with_lba(LbaChoice::Bytes(8192))).err().unwrap();
    assert!(error.to_string().contains("8192"), "{error}");
    // A changed LBA format is noticed.
    let controller = warprow_driver::Controller::open(
        drive,
        std::sync::Arc::new(warprow_dma::SystemClock::new()),
        Default::default(),
    );
    controller.unwrap().format(&FormatRequest::new(1, 512), |_| {}).unwrap();
    assert!(Store::open(&devices, &OpenOptions::default()).is_err());
}

#[test]
fn emulated_drives_by_address() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{}?size=16M", path.display()).parse().unwrap();
    let error = Device::open(&address, CreateDrive::Never).unwrap_err();
    assert!(error.to_string().contains("a.drive") && !path.exists(), "{error}");
    std::fs::write(&path, "").unwrap();
    let error = Device::open(&address, CreateDrive::Never).unwrap_err();
    assert!(error.to_string().contains("is empty") && std::fs::metadata(&path).unwrap().len() == 0, "{error}");
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let error = Device::open(&address, CreateDrive::Never).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    let store = FormatProposal::new(&[device], FormatSettings::default())
        .unwrap()
        .run(&FormatConsent::None, &mut |_, _| {})
        .unwrap();
    let table = small("a", 1);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    drop(store);
    let open = |address: &DriveAddress| Device::open(address, CreateDrive::Never);
    // The same drive by other names.
    for name in ["soft", "hard"] {
        let other = dir.path().join(name);
        match name {
            "soft" => std::os::unix::fs::symlink(&path, &other).unwrap(),
            _ => std::fs::hard_link(&path, &other).unwrap(),
        }
        let first = open(&address).unwrap();
        let other: DriveAddress = format!("emulated:{}", other.display()).parse().unwrap();
        let error = Device::open_beside(std::slice::from_ref(&first), &other, CreateDrive::Never).unwrap_err();
        assert!(matches!(&error, StoreError::OpenedTwice { drive } if drive.ends_with(name)), "{error}");
        let error = Device::open_beside(&[], &other, CreateDrive::Never).unwrap_err();
        assert!(matches!(error, StoreError::Emulated(_)), "{error}");
    }
    let store = Store::open(&[open(&address).unwrap()], &OpenOptions::default()).unwrap();
    assert_holds(&store, &table);
    drop(store);

    let device = open(&address).unwrap();
    let settings = || FormatSettings::default();
    let error =
        FormatProposal::new(&[device], settings()).unwrap().run(&FormatConsent::None, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let device = open(&address).unwrap();
    let store =
        FormatProposal::new(&[device], settings()).unwrap().run(&FormatConsent::Emulated, &mut |_, _| {}).unwrap();
    assert!(store.tables().is_empty());
    drop(store);
    std::fs::write(dir.path().join("b.drive"), vec![1; 16 << 20]).unwrap();
    let other: DriveAddress = format!("emulated:{}", dir.path().join("b.drive").display()).parse().unwrap();
    let plan = FormatProposal::new(&[open(&other).unwrap()], settings()).unwrap();
    assert_eq!(plan.drives()[0].content, DriveContent::Unknown);
    let error = plan.run(&FormatConsent::None, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("b.drive"), "{error}");
}

#[test]
fn consent_is_bound_to_what_was_shown() {
    let drives = [common::drive("drive0", 16 << 20, 512), common::drive("drive1", 16 << 20, 512)];
    let devices = common::devices(&drives);
    let settings = FormatSettings::default;
    let plan = |devices: &[Device], settings| FormatProposal::new(devices, settings).unwrap();
    let refused = |settings: FormatSettings, token: &str| match plan(&devices, settings)
        .run(&FormatConsent::Token(token.to_owned()), &mut |_, _| {})
    {
        Err(StoreError::Refused { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    for unknown in ["", "00000000", "1-2-3", "+0000001-00000002-00000003", "00000001-00000002-00000003-00000004"] {
        let what = refused(settings(), unknown);
        let hint = if unknown.is_empty() { "token is empty" } else { "is no consent token" };
        assert!(what.contains(hint) && what.contains(unknown), "{what}");
    }
    let of_one = plan(&devices[..1], settings()).token().to_owned();
    assert!(refused(settings(), &of_one).contains("for other drives"));
    let store = Store::create(&devices, &Default::default(), &Default::default()).unwrap();
    common::load(&store, &[small("first", 1)], &LoadOptions::default());
    drop(store);

    let before = plan(&devices, settings()).token().to_owned();
    let store = Store::open(&devices, &OpenOptions::default()).unwrap();
    common::load(&store, &[small("later", 2)], &LoadOptions::default());
    drop(store);
    let what = refused(settings(), &before);
    assert!(what.contains("has changed since it was given"), "{what}");
    let rows = small("later", 2);
    let size = format!("({} rows, {} bytes)", rows.spec.rows, rows.rows.len());
    assert!(what.contains(&format!("\"later\" {size}")) && what.contains("\"first\" ("), "{what}");

    let now = plan(&devices, settings()).token().to_owned();
    let lost = plan(&devices, settings()).drives()[0].tables.clone().unwrap();
    assert_eq!(lost.iter().map(|table| &*table.name).collect::<Vec<_>>(), ["first", "later"]);
    for other in [settings().with_chunk_size(2 << 20), settings().with_lba(LbaChoice::Bytes(4096))] {
        let what = refused(other, &now);
        assert!(what.contains("for other settings"), "{what}");
    }
    assert!(refused(settings().with_chunk_size(2 << 20), &before).contains("and the settings, have changed"));
    assert_eq!(Store::open(&devices, &OpenOptions::default()).unwrap().tables().len(), 2);

    // In whatever order the drives are given.
    let turned = [devices[1].clone(), devices[0].clone()];
    let store = plan(&turned, settings()).run(&FormatConsent::Token(now), &mut |_, _| {}).unwrap();
    assert!(store.tables().is_empty());
}

#[test]
fn consent_is_bound_to_data_that_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.drive");
    let address: DriveAddress = format!("emulated:{}", path.display()).parse().unwrap();
    let plan = || {
        let device = Device::open(&address, CreateDrive::Never).unwrap();
        FormatProposal::new(&[device], FormatSettings::default()).unwrap()
    };
    std::fs::write(&path, vec![1; 16 << 20]).unwrap();
    let token = plan().token().to_owned();
    std::fs::write(&path, vec![2; 16 << 20]).unwrap();
    let error = plan().run(&FormatConsent::Token(token), &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("has changed since it was given"), "{error}");
    let token = plan().token().to_owned();
    plan().run(&FormatConsent::Token(token), &mut |_, _| {}).unwrap();
}

#[test]
fn a_load_that_fails_gives_its_space_back() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a.drive", "b.drive"].map(|name| dir.path().join(name));
    let devices = paths.each_ref().map(|path| {
        let address: DriveAddress = format!("emulated:{},size=64M", path.display()).parse().unwrap();
        Device::open(&address, CreateDrive::IfMissing).unwrap()
    });
    let store = Store::create(&devices, &Default::default(), &Default::default()).unwrap();
    let kept = small("kept", 1);
    common::load(&store, std::slice::from_ref(&kept), &LoadOptions::default());
    let blocks = || paths.each_ref().map(|path| std::fs::metadata(path).unwrap().blocks());
    let before = blocks();

    let mut spec = TableSpec::new("t", 40_000, 256, DType::F32);
    spec.row_crc = true;
    for stops in [true, false] {
        let source = Failing(if stops { u64::MAX } else { 30_000 });
        let mut most = [0; 2];
        let loaded = store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |progress| {
            most = blocks();
            if stops && progress.written > 30 << 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match loaded.unwrap_err() {
            StoreError::Interrupted if stops => {}
            StoreError::Volume(VolumeError::Source { .. }) if !stops => {}
            error => panic!("{error}"),
        }
        for ((now, before), most) in blocks().into_iter().zip(before).zip(most) {
            assert!(most > before + (4 << 11), "{most}: it had taken more than 4 MiB");
            // What the file system needs to tell holes from data may stay.
            assert!(now <= before + 64, "{now}, {before} before");
        }
        assert_holds(&store, &kept);
    }
    let source = Failing(u64::MAX);
    store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut go).unwrap();
    assert!(store.verify("t", &mut go).unwrap().is_sound());
    assert_holds(&store, &kept);
}

/// Rows that cannot be read from one on.
struct Failing(u64);

impl RowSource for Failing {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        for (id, row) in (first..).zip(rows.chunks_mut(row_bytes)) {
            if id >= self.0 {
                return Err(std::io::Error::other("this far and no further"));
            }
            row.fill(id as u8 | 1);
        }
        Ok(())
    }
}

/// Rows that are made, and that may change behind the last.
struct Made {
    table: Table,
    changes: bool,
    fails_at: u64,
}

impl RowSource for Made {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        for (id, row) in (first..).zip(rows.chunks_mut(row_bytes)) {
            if id == self.fails_at {
                return Err(std::io::Error::other("this row and no other"));
            }
            row.copy_from_slice(self.table.row(id));
        }
        Ok(())
    }

    fn is_computed(&self) -> bool {
        true
    }

    fn unchanged(&self, read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> std::io::Result<()> {
        // As one that compares a checksum, in two runs.
        if (0..2).any(|_| read(1 << 10).is_break()) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        if self.changes { Err(std::io::Error::other("it was changed")) } else { Ok(()) }
    }
}

#[test]
fn rows_that_are_made_lie_where_they_belong_and_a_source_that_changes_is_not_committed() {
    let (_, store) = common::store(2, 24 << 20, 512);
    let kept = small("kept", 1);
    common::load(&store, std::slice::from_ref(&kept), &LoadOptions::default());
    let mut table = Table::random("t", 40_000, 16, DType::F32, &mut fastrand::Rng::with_seed(9));
    table.spec.row_crc = true;
    let spec = table.spec.clone();
    let load_until = |changes, fails_at, breaks: &dyn Fn(warprow_store::LoadProgress) -> bool| {
        let source = Made { table: table.clone(), changes, fails_at };
        let mut progress = |progress: warprow_store::LoadProgress| match breaks(progress) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut progress)
    };
    let load = |changes, fails_at, at: u64| load_until(changes, fails_at, &|progress| progress.written >= at);
    let error = load(true, u64::MAX, u64::MAX).unwrap_err();
    assert!(matches!(&error, StoreError::Volume(VolumeError::Source { table, .. }) if table == "t"), "{error}");
    let error = load(false, 31_111, u64::MAX).unwrap_err();
    assert!(matches!(error, StoreError::Volume(VolumeError::Source { .. })), "{error}");
    assert!(matches!(load(false, u64::MAX, 1 << 20), Err(StoreError::Interrupted)));
    for runs in 1..=2 {
        let error = load_until(true, u64::MAX, &|progress| progress.compared == runs << 10).unwrap_err();
        assert!(matches!(error, StoreError::Interrupted), "behind the last row: {error}");
    }
    assert!(store.table("t").is_none());
    assert_holds(&store, &kept);
    load(false, u64::MAX, u64::MAX).unwrap();
    assert_holds(&store, &table);
    assert!(store.verify("t", &mut go).unwrap().is_sound());
}

#[test]
fn a_damaged_permutation_harms_its_own_table_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=16M", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let store = Store::create(&[device], &Default::default(), &Default::default()).unwrap();
    let permuted = |name, seed| {
        let mut table = small(name, seed);
        let counts: Vec<u64> = (0..table.spec.rows).map(|id| id % 7).collect();
        (table.spec.permuted, table.spec.row_crc, table.ranks) = (true, true, Some(Ranks::by_hotness(&counts)));
        table
    };
    let bad = permuted("bad", 1);
    let good = permuted("good", 2);
    common::load(&store, &[bad.clone(), good.clone()], &LoadOptions::default());
    let (generation, index) = store.generation("bad").unwrap();
    let region = generation.tables[index].ranks.unwrap().region;
    let extent = generation.placement.extents(region, 1 << 20).next().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 3], extent.lba * 512).unwrap();

    let row_bytes = good.row_bytes() as u64;
    for options in [HostOptions::default(), HostOptions::default().with_dram_bytes(20 * row_bytes).with_checked_rows()]
    {
        let host = HostExecutor::attach(&store, options).unwrap();
        for _ in 0..2 {
            let plan = |table| host.plan(&[Feature::new("f", table)], PlanOptions::default());
            let error = plan("bad").unwrap_err();
            assert!(matches!(error, StoreError::Volume(VolumeError::RanksDamaged { .. })), "{error}");
            assert!(error.to_string().contains("\"bad\""), "{error}");
            let mut slot = plan("good").unwrap().slot().unwrap();
            let ids: Vec<u64> = (0..good.spec.rows).collect();
            let width = good.spec.dim as usize;
            let mut rows = vec![0.0f32; ids.len() * width];
            slot.lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::F32(&mut rows), width)).unwrap();
            for (id, row) in rows.chunks(width).enumerate() {
                assert_eq!(
                    row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>(),
                    good.row(id as u64),
                    "id {id}"
                );
            }
        }
    }
    let verified = store.verify("bad", &mut go).unwrap();
    assert_eq!((verified.rows, verified.checked, verified.damaged), (bad.spec.rows, true, 0), "by rank they are whole");
    assert!(verified.damaged_ranks.as_ref().unwrap().contains("\"bad\"") && !verified.is_sound());
    assert_holds(&store, &good);
    assert!(store.verify("good", &mut go).unwrap().is_sound());
}

/// A store with LBAs of 4096 bytes in a file, and a table on it.
fn image_of_4096(path: &std::path::Path) -> Table {
    let address: DriveAddress = format!("emulated:{},size=16M,lba=4096", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let store = Store::create(&[device], &Default::default(), &Default::default()).unwrap();
    let table = small("a", 1);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    table
}

fn open_image(path: &std::path::Path, properties: &str) -> Result<Store, StoreError> {
    let address: DriveAddress = format!("emulated:{}{properties}", path.display()).parse().unwrap();
    Store::open(&[Device::open(&address, CreateDrive::Never)?], &OpenOptions::default())
}

#[test]
fn an_image_without_its_sidecar_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let table = image_of_4096(&path);
    let [linked, copied, hard] = ["link", "copy", "hard"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink(&path, &linked).unwrap();
    std::fs::copy(&path, &copied).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    assert_holds(&open_image(&linked, "").unwrap(), &table);
    for path in [&copied, &hard] {
        let error = open_image(path, "").unwrap_err();
        assert!(matches!(error, StoreError::ImageLba { lba_size: 512, formatted: 4096, .. }), "{error}");
        let text = error.to_string();
        let sidecar = format!("{}.nvme.toml", path.display());
        assert!(text.contains("lba=4096") && text.contains(&sidecar) && text.contains("whole"), "{text}");
        let text = open_image(path, ",lba=512").unwrap_err().to_string();
        assert!(text.contains("give lba=4096 instead of lba=512"), "{text}");
        assert_holds(&open_image(path, ",lba=4096").unwrap(), &table);
        assert!(!std::fs::exists(sidecar).unwrap(), "opening writes nothing beside it");
    }
    // The sidecar of another drive.
    std::fs::write(
        dir.path().join("copy.nvme.toml"),
        std::fs::read_to_string(dir.path().join("a.drive.nvme.toml")).unwrap().replace("4096", "512"),
    )
    .unwrap();
    let text = open_image(&copied, "").unwrap_err().to_string();
    assert!(text.contains("set lba = 4096") && text.contains("copy.nvme.toml"), "{text}");
    let text = open_image(&copied, ",lba=4096").unwrap_err().to_string();
    assert!(text.contains("set lba in") && text.contains("copy.nvme.toml"), "{text}");
}

#[test]
fn what_an_image_is_formatted_as_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    std::fs::write(&path, vec![0; 16 << 20]).unwrap();
    let address: DriveAddress = format!("emulated:{},lba=4096", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::Never).unwrap();
    let plan = FormatProposal::new(&[device], FormatSettings::default()).unwrap();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
    drop(plan.run(&FormatConsent::None, &mut |_, _| {}).unwrap());
    assert_eq!(open_image(&path, "").unwrap().inspect().0.lba_size, 4096);
}

#[test]
fn a_format_that_cannot_be_recorded_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let table = image_of_4096(&path);
    // Where the new sidecar is written first, nothing can be: for the superuser neither.
    std::fs::create_dir(dir.path().join("a.drive.nvme.toml.new")).unwrap();
    let device = Device::open(&format!("emulated:{}", path.display()).parse().unwrap(), CreateDrive::Never).unwrap();
    let settings = FormatSettings::default().with_lba(LbaChoice::Bytes(512));
    let error =
        FormatProposal::new(&[device], settings).unwrap().run(&FormatConsent::Emulated, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("cannot write") && error.to_string().contains("a.drive.nvme.toml"), "{error}");
    assert_holds(&open_image(&path, "").unwrap(), &table);
}
