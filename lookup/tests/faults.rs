//! Look-ups on drives that fail, in every way: the look-up ends in time and names the ids concerned, all other rows are
//! right, and the next look-up is right altogether.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Table;
use warprow_driver::DriverError;
use warprow_layout::FormatOptions;
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, FailedRows, Feature, HostOptions, LookupError, MaskMeaning, Output, OutputBuffer, OutputRows, Plan,
    PlanOptions, Pooling, RowError, Slot,
};
use warprow_soft_controller::{Fault, PowerCut, QueueMatch, Rule, SoftController};
use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};
use warprow_store::{DType, LoadOptions, OpenOptions, Store, TableSpec};

const ROWS: u64 = 500;
const DIM: usize = 128;
const HOT: u64 = 100;

/// A store on `drives`, with a table of rows of 512 B, of which 100 are in DRAM.
/// How many drives of a store serve nothing.
fn failed(store: &Store) -> u64 {
    HostExecutor::attach(store, HostOptions::default()).unwrap().metrics().drives_failed
}

struct Fixture {
    drives: Vec<Arc<SoftController>>,
    store: Store,
    table: Table,
    options: HostOptions,
}

fn options() -> OpenOptions {
    OpenOptions::default().with_timeout(Duration::from_millis(300)).with_admin_timeout(Duration::from_secs(2))
}

fn fixture(drives: usize) -> Fixture {
    let drives: Vec<_> = (0..drives).map(|i| common::drive(&format!("drive{i}"), 16 << 20, 512)).collect();
    let store = Store::create(&common::devices(&drives), &FormatOptions::default(), &options()).unwrap();
    let mut spec = TableSpec::new("t", ROWS, DIM as u32, DType::F32);
    (spec.hot_rows, spec.row_crc) = (HOT, true);
    let rows = (0..ROWS * DIM as u64).flat_map(|i| (i as f32 * 0.5 - 7.0).to_le_bytes()).collect();
    let table = Table { spec, rows, ranks: None, keys: None };
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    Fixture { drives, store, table, options: HostOptions::default().with_dram_bytes(HOT * 512) }
}

impl Fixture {
    fn plan(&self, pooling: Pooling, slots: u32) -> Plan {
        let host = HostExecutor::attach(&self.store, self.options.clone()).unwrap();
        let options = PlanOptions::default().with_max(64, 256).with_slots(slots);
        host.plan(&[Feature::new("f", "t").pooling(pooling)], options).unwrap()
    }

    fn row(&self, id: i64) -> Vec<f32> {
        common::widen(DType::F32, self.table.row(id as u64))
    }
}

/// Ids in DRAM and on drives, some twice, without neighbours.
fn ids() -> Vec<i64> {
    (0..64).map(|i| (i * 14 + i % 3) % ROWS as i64).chain([3, 250, 444, 250]).collect()
}

/// Looks `ids` up, unpooled, and checks every row; those that are reported as failed are zeros. Returns their
/// positions.
fn look(fixture: &Fixture, slot: &mut Slot, ids: &[i64]) -> Result<(), (Vec<usize>, RowError)> {
    let mut rows = vec![7.0; ids.len() * DIM];
    let mut mask = vec![7; ids.len()];
    let mut out = Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask);
    let began = Instant::now();
    let result = slot.lookup(&Batch::new(ids, 1), &mut out);
    assert!(began.elapsed() < Duration::from_secs(5), "waits are bounded");
    let (report, positions, source) = match result {
        Ok(report) => (report, Vec::new(), None),
        Err(LookupError::RowsFailed { report, positions, source }) => (*report, positions, Some(source)),
        Err(other) => panic!("{other}"),
    };
    for (position, &id) in ids.iter().enumerate() {
        let row = &rows[position * DIM..][..DIM];
        if positions.contains(&position) {
            assert!(row.iter().all(|&x| x == 0.0), "the row of a failed id is zeros");
        } else {
            assert_eq!(row, fixture.row(id), "id {id}");
        }
        assert_eq!(mask[position], u8::from(!positions.contains(&position)));
    }
    assert_eq!(report.failed, positions.len() as u64);
    assert_eq!(report.ids, report.padding + report.missing + report.failed + report.ids_dram + report.ids_ssd);
    assert_eq!(source.is_some(), !positions.is_empty());
    assert!(positions.iter().all(|&position| ids[position] >= HOT as i64), "rows in DRAM cannot fail");
    source.map_or(Ok(()), |source| Err((positions, source)))
}

fn read() -> Rule {
    Rule::new(Fault::Drop).io(NvmOpcode::READ)
}

fn rule(fault: Fault) -> Rule {
    Rule::new(fault).io(NvmOpcode::READ).nth(5)
}

#[test]
fn an_error_status_fails_its_rows_alone() {
    let fixture = fixture(1);
    let plan = fixture.plan(Pooling::None, 1);
    let mut slot = plan.slot().unwrap();
    look(&fixture, &mut slot, &ids()).unwrap();
    fixture.drives[0].faults().inject(rule(Fault::Status(Status::from(StatusCode::UnrecoveredReadError))));
    let (positions, source) = look(&fixture, &mut slot, &ids()).unwrap_err();
    assert!(positions.len() <= 2, "one command, one row: {positions:?}");
    assert!(matches!(&source, RowError::Drive(DriverError::Command { .. })), "{source:?}");
    assert!(source.to_string().contains("drive0"), "{source}");
    look(&fixture, &mut slot, &ids()).unwrap();
}

/// The fault, and whether the error of the rows is as it should be; without one, no row fails.
type Case = (Fault, Option<fn(&RowError) -> bool>);

fn timed_out(error: &RowError) -> bool {
    matches!(error, RowError::Drive(DriverError::TimedOut { .. }))
}

fn cases() -> Vec<Case> {
    vec![
        (Fault::Drop, Some(timed_out)),
        (Fault::Swallow, Some(timed_out)),
        (Fault::Delay(Duration::from_millis(600)), Some(timed_out)),
        (Fault::Delay(Duration::from_millis(10)), None),
        (Fault::Duplicate, None),
        (Fault::WrongCid(0x7ffe), Some(timed_out)),
        (
            Fault::Fatal,
            Some(|error| matches!(error, RowError::Drive(DriverError::Fatal { .. } | DriverError::TimedOut { .. }))),
        ),
    ]
}

#[test]
fn the_next_look_up_is_right_whatever_happened() {
    for (fault, expected) in cases() {
        for drives in [1, 3] {
            let fixture = fixture(drives);
            let plan = fixture.plan(Pooling::None, 2);
            let mut slot = plan.slot().unwrap();
            let mut other = plan.slot().unwrap();
            look(&fixture, &mut slot, &ids()).unwrap();
            look(&fixture, &mut other, &ids()).unwrap();
            fixture.drives[drives - 1].faults().inject(rule(fault));
            let result = look(&fixture, &mut slot, &ids());
            match (result, expected) {
                (Ok(()), None) => {}
                (Err((_, source)), Some(expected)) => assert!(expected(&source), "{fault:?}: {source:?}"),
                (result, _) => panic!("{fault:?} on {drives} drives: {result:?}"),
            }
            for _ in 0..3 {
                look(&fixture, &mut slot, &ids()).unwrap_or_else(|(_, error)| panic!("{fault:?}: {error}"));
                // The other slot may have been reset meanwhile.
                look(&fixture, &mut other, &ids())
                    .unwrap_or_else(|(_, error)| panic!("{fault:?}, other slot: {error}"));
            }
            // Late data of the first look-up must not have landed in rows of these.
            std::thread::sleep(Duration::from_millis(if matches!(fault, Fault::Delay(_)) { 650 } else { 0 }));
            look(&fixture, &mut slot, &ids()).unwrap();
        }
    }
}

#[test]
fn a_queue_that_is_not_deleted_costs_a_reset_of_the_controller() {
    let fixture = fixture(2);
    let plan = fixture.plan(Pooling::None, 3);
    let mut slots: Vec<Slot> = (0..3).map(|_| plan.slot().unwrap()).collect();
    for slot in &mut slots {
        look(&fixture, slot, &ids()).unwrap();
    }
    let faults = fixture.drives[1].faults();
    faults.inject(rule(Fault::Swallow));
    look(&fixture, &mut slots[0], &ids()).unwrap_err();
    faults.inject(Rule::new(Fault::Swallow).admin(AdminOpcode::DELETE_IO_SQ));
    for slot in &mut slots {
        look(&fixture, slot, &ids()).unwrap();
    }
    // The metadata's queue was reset as well.
    assert_eq!(fixture.store.tables().len(), 1);
    common::load(
        &fixture.store,
        &[Table { spec: TableSpec::new("u", ROWS, DIM as u32, DType::F32), ..fixture.table.clone() }],
        &LoadOptions::default(),
    );
}

#[test]
fn a_drive_that_is_gone_fails_its_rows_at_once_and_no_others() {
    let fixture = fixture(2);
    let plan = fixture.plan(Pooling::None, 2);
    let mut slot = plan.slot().unwrap();
    let mut other = plan.slot().unwrap();
    fixture.drives[1].faults().inject(rule(Fault::Disappear));
    look(&fixture, &mut slot, &ids()).unwrap_err();
    for slot in [&mut slot, &mut other] {
        for _ in 0..20 {
            let began = Instant::now();
            let (positions, source) = look(&fixture, slot, &ids()).unwrap_err();
            assert!(began.elapsed() < Duration::from_millis(100), "nothing is waited for");
            assert!(positions.len() > 5 && positions.len() < 50, "one of two drives, and DRAM: {positions:?}");
            assert!(matches!(&source, RowError::Drive(DriverError::GivenUp { .. })), "{source}");
            assert!(source.to_string().contains("drive1"), "{source}");
        }
    }
    // Ids in DRAM alone are a look-up without a fault.
    look(&fixture, &mut slot, &[1, 2, 99]).unwrap();
    let states = fixture.store.drive_states();
    assert!(states[0].failure.is_none() && states[0].drive == "drive0");
    assert!(states[1].failure.as_ref().is_some_and(|why| why.to_string().contains("gone")), "{states:?}");
    assert_eq!(failed(&fixture.store), 1);
    let error = fixture.store.verify("t", &mut |_| std::ops::ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("given up"), "{error}");

    assert!(fixture.store.retry_drives()[0].failure.is_some(), "it is still gone");
    look(&fixture, &mut slot, &ids()).unwrap_err();
    fixture.drives[1].power_cut(PowerCut::KeepAll).unwrap();
    assert!(fixture.store.retry_drives()[0].failure.is_none());
    assert_eq!(failed(&fixture.store), 0);
    for slot in [&mut slot, &mut other] {
        look(&fixture, slot, &ids()).unwrap();
    }
}

#[test]
fn a_drive_that_never_answers_is_given_up() {
    let fixture = fixture(2);
    let plan = fixture.plan(Pooling::None, 1);
    let mut slot = plan.slot().unwrap();
    look(&fixture, &mut slot, &ids()).unwrap();
    let reads = fixture.drives[1].faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).always());
    let began = Instant::now();
    let mut waits = 0;
    let failure = loop {
        match look(&fixture, &mut slot, &ids()).unwrap_err().1 {
            RowError::Drive(DriverError::TimedOut { .. }) => waits += 1,
            RowError::Drive(DriverError::GivenUp { failure, .. }) => break failure,
            other => panic!("{other}"),
        }
    };
    // At first, then with the queue made anew, after a reset of the controller, and after one of the function.
    assert_eq!((waits, failure.steps.len()), (4, 4), "{failure}");
    assert!(failure.steps.iter().all(|step| matches!(step.error, DriverError::TimedOut { .. })), "{failure}");
    assert!(began.elapsed() < Duration::from_secs(5));
    let began = Instant::now();
    (0..20).for_each(|_| drop(look(&fixture, &mut slot, &ids()).unwrap_err()));
    assert!(began.elapsed() < Duration::from_millis(300), "a time-out each");
    assert!(fixture.drives[1].faults().fired(reads) < 200, "it is still asked");

    fixture.drives[1].faults().clear();
    assert!(fixture.store.retry_drives().iter().all(|drive| drive.failure.is_none() && drive.drive == "drive1"));
    look(&fixture, &mut slot, &ids()).unwrap();
}

#[test]
fn a_drive_that_cannot_be_driven_is_done_without_when_opened_degraded() {
    let Fixture { drives, store, table, options: host } = fixture(2);
    drop(store);
    drives[1].faults().inject(Rule::new(Fault::Disappear).on(QueueMatch::Admin));
    Store::open(&common::devices(&drives), &options()).unwrap_err();
    let store = Store::open(&common::devices(&drives), &options().with_degraded()).unwrap();
    let states = store.drive_states();
    assert!(states[0].failure.is_none() && states.len() == 2, "{states:?}");
    assert!(states[1].drive == "drive1" && matches!(states[1].failure, Some(DriverError::Gone { .. })), "{states:?}");
    assert_eq!(failed(&store), 1);
    let fixture = Fixture { drives, store, table, options: host.with_dram_bytes(0) };
    let plan = fixture.plan(Pooling::None, 1);
    let ids = (HOT as i64..HOT as i64 + 64).collect::<Vec<_>>();
    let (positions, source) = look(&fixture, &mut plan.slot().unwrap(), &ids).unwrap_err();
    assert!(matches!(source, RowError::MemberMissing { .. }) && positions.len() < 64, "{source}: {positions:?}");
    // If none can be, the reason is the error.
    let gone = common::devices(&fixture.drives[1..]);
    assert!(matches!(
        Store::open(&gone, &options().with_degraded()),
        Err(warprow_store::StoreError::Driver(DriverError::Gone { .. }))
    ));
}

#[test]
fn damaged_rows_are_noticed_where_they_are_checked() {
    let mut fixture = fixture(1);
    fixture.options.check_rows = true;
    let plan = fixture.plan(Pooling::None, 1);
    let mut slot = plan.slot().unwrap();
    look(&fixture, &mut slot, &ids()).unwrap();
    fixture.drives[0].faults().inject(rule(Fault::Corrupt));
    let (positions, source) = look(&fixture, &mut slot, &ids()).unwrap_err();
    let RowError::Checksum { table, rank, drive } = source else { panic!("{source}") };
    assert_eq!((table.as_str(), drive.as_str(), rank), ("t", "drive0", ids()[positions[0]] as u64));
    look(&fixture, &mut slot, &ids()).unwrap();
}

#[test]
fn a_bag_with_a_failed_row_is_zeros() {
    let fixture = fixture(1);
    let plan = fixture.plan(Pooling::Sum, 1);
    let mut slot = plan.slot().unwrap();
    let ids = ids();
    let bags = ids.len() / 4;
    fixture.drives[0].faults().inject(rule(Fault::Status(Status::from(StatusCode::UnrecoveredReadError))));
    let mut rows = vec![7.0; bags * DIM];
    let mut mask = vec![7; ids.len()];
    let mut out = Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask);
    let result = slot.lookup(&Batch::new(&ids, bags), &mut out);
    let Err(LookupError::RowsFailed { positions, report, .. }) = result else { panic!("{result:?}") };
    assert!(!positions.is_empty() && positions.is_sorted());
    assert_eq!(report.failed, positions.len() as u64);
    for (bag, (row, ids)) in rows.chunks(DIM).zip(ids.chunks(4)).enumerate() {
        let failed = positions.iter().any(|position| position / 4 == bag);
        let mut sum = vec![0.0; DIM];
        ids.iter()
            .filter(|_| !failed)
            .for_each(|&id| sum.iter_mut().zip(fixture.row(id)).for_each(|(sum, x)| *sum += x));
        assert_eq!(row, sum, "bag {bag}");
    }
    let flags: Vec<u8> = (0..ids.len()).map(|position| u8::from(!positions.contains(&position))).collect();
    assert_eq!(mask, flags);
}

/// What callers get in the place of rows that failed: in plain memory, in memory that drives write to, pooled, and of a
/// prefetch.
#[test]
fn failed_rows_are_nan_where_the_plan_says_so_and_masks_tell_them() {
    let fixture = fixture(1);
    let mut ids = ids();
    (ids[5], ids[50]) = (-1, ROWS as i64);
    let bad = Fault::Status(Status::from(StatusCode::UnrecoveredReadError));
    let host = HostExecutor::attach(&fixture.store, fixture.options.clone()).unwrap();
    for (pooling, way) in
        [(Pooling::None, 0), (Pooling::None, 1), (Pooling::None, 2), (Pooling::Sum, 0), (Pooling::Sum, 2)]
    {
        let each = if pooling == Pooling::None { 1 } else { 4 };
        for (failed_rows, meaning) in [
            (FailedRows::Nan, MaskMeaning::Failed),
            (FailedRows::Nan, MaskMeaning::Found),
            (FailedRows::Zeros, MaskMeaning::Failed),
        ] {
            let what = (pooling, way, failed_rows, meaning);
            let options = PlanOptions::default().with_max(256, 256).with_prefetch();
            let options = options.with_failed_rows(failed_rows).with_mask(meaning);
            let plan = host.plan(&[Feature::new("f", "t").pooling(pooling)], options).unwrap();
            let mut slot = plan.slot().unwrap();
            let out_rows = ids.len() / each;
            let batch = Batch::new(&ids, out_rows);
            let (mut plain, mut mask) = (vec![7.0f32; out_rows * DIM], vec![7; ids.len()]);
            let mut buffer = OutputBuffer::allocate(&fixture.store, DType::F32, out_rows * DIM).unwrap();
            fixture.drives[0].faults().inject(Rule::new(bad).io(NvmOpcode::READ).times(3));
            let rows = if way == 1 { OutputRows::Buffer(&mut buffer) } else { OutputRows::F32(&mut plain) };
            let mut out = Output::new(rows, DIM).with_mask(&mut mask);
            let result = match way {
                2 => {
                    slot.prefetch(&batch).unwrap();
                    slot.lookup_prefetched(&mut out)
                }
                _ => slot.lookup(&batch, &mut out),
            };
            fixture.drives[0].faults().clear();
            let Err(LookupError::RowsFailed { positions, .. }) = result else { panic!("{what:?}: {result:?}") };
            assert!(!positions.is_empty());
            let got = if way == 1 { buffer.elements::<f32>().unwrap() } else { &plain[..] };
            for (number, row) in got.chunks(DIM).enumerate() {
                let own = number * each..(number + 1) * each;
                let failed = positions.iter().any(|position| own.contains(position));
                let mut wanted = vec![0.0; DIM];
                for &id in ids[own].iter().filter(|&&id| (0..ROWS as i64).contains(&id)) {
                    wanted.iter_mut().zip(fixture.row(id)).for_each(|(sum, x)| *sum += x);
                }
                match (failed, failed_rows) {
                    (true, FailedRows::Nan) => assert!(row.iter().all(|x| x.is_nan()), "{what:?}: row {number}"),
                    (true, FailedRows::Zeros) => assert_eq!(row, [0.0; DIM], "{what:?}: row {number}"),
                    (false, _) => assert_eq!(row, wanted, "{what:?}: row {number}"),
                }
            }
            for (position, &mask) in mask.iter().enumerate() {
                let failed = positions.contains(&position);
                let found = (0..ROWS as i64).contains(&ids[position]) && !failed;
                let wanted = if meaning == MaskMeaning::Failed { failed } else { found };
                assert_eq!(mask, u8::from(wanted), "{what:?}: position {position}");
            }
        }
    }
}

#[test]
fn rows_on_a_missing_member_fail_by_name() {
    let Fixture { drives, store, table, options: host } = fixture(2);
    drop(store);
    let store = Store::open(&common::devices(&drives[..1]), &options().with_degraded()).unwrap();
    assert!(store.state() != warprow_layout::StoreState::Healthy);
    let fixture = Fixture { drives, store, table, options: host.with_dram_bytes(0) };
    let plan = fixture.plan(Pooling::None, 1);
    let mut slot = plan.slot().unwrap();
    let mut rows = vec![7.0; ROWS as usize * DIM];
    let ids = (0..ROWS as i64).step_by(2).collect::<Vec<_>>();
    let result = slot.lookup(&Batch::new(&ids[..], 1), &mut Output::new(OutputRows::F32(&mut rows), DIM));
    let Err(LookupError::RowsFailed { positions, source, .. }) = result else { panic!("{result:?}") };
    assert!(source.to_string().contains("drive1"), "{source}");
    assert!(positions.len() > 50 && positions.len() < ids.len());
    for (position, (&id, row)) in ids.iter().zip(rows.chunks(DIM)).enumerate() {
        let failed = positions.binary_search(&position).is_ok();
        assert_eq!(row, if failed { vec![0.0; DIM] } else { fixture.row(id) }, "id {id}");
    }
}

#[test]
fn faults_in_bulk_transfers_are_errors_and_leave_the_store_as_it_was() {
    let fixture = fixture(2);
    let other = Table { spec: TableSpec::new("u", ROWS, DIM as u32, DType::F32), ..fixture.table.clone() };
    for fault in [Fault::Status(Status::from(StatusCode::WriteFault)), Fault::Swallow] {
        fixture.drives[1].faults().inject(Rule::new(fault).io(NvmOpcode::WRITE));
        let source = &other.rows[..];
        let load = warprow_store::TableLoad::new(&other.spec, &source);
        let error =
            fixture.store.load("m", &[load], &LoadOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
        assert!(error.unwrap_err().to_string().contains("drive1"));
        assert!(fixture.store.table("u").is_none());
    }
    common::load(&fixture.store, std::slice::from_ref(&other), &LoadOptions::default());
    fixture.drives[0].faults().inject(read());
    let scanned = fixture.store.verify("u", &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(scanned.is_err());
    assert_eq!(fixture.store.verify("u", &mut |_| std::ops::ControlFlow::Continue(())).unwrap().rows, ROWS);
}
