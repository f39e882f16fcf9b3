//! Rows that share read commands: what is read, that it is right, and what one bad block costs.

mod common;

use std::sync::Arc;

use common::Table;
use warprow_driver::DriverError;
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, Feature, HostOptions, LookupError, LookupReport, Output, OutputRows, PlanOptions, Pooling, ReadMerging,
    RowError, Slot,
};
use warprow_soft_controller::{Fault, Rule, SoftController};
use warprow_spec::{NvmOpcode, Status, StatusCode};
use warprow_store::{
    DType, DriveContent, FormatConsent, FormatProposal, FormatSettings, LbaChoice, LoadOptions, ReadCurve, Store,
    StoreError, TableSpec,
};

const ROWS: u64 = 4000;
/// Rows of an LBA, and of an eighth of one.
const DIMS: [usize; 2] = [128, 16];

/// Two tables on `drives` drives.
struct Fixture {
    drives: Vec<Arc<SoftController>>,
    store: Store,
    tables: Vec<Table>,
}

fn fixture(drives: usize) -> Fixture {
    let (drives, store) = common::store(drives, 16 << 20, 512);
    let table = |(dim, salt): (usize, u64)| {
        let spec = TableSpec::new(format!("t{dim}"), ROWS, dim as u32, DType::F32);
        let rows = (0..ROWS * dim as u64).flat_map(|i| ((i * 7 + salt) as f32 * 0.25).to_le_bytes()).collect();
        Table { spec, rows, ranks: None, keys: None }
    };
    let tables: Vec<Table> = DIMS.into_iter().zip([1, 2]).map(table).collect();
    common::load(&store, &tables, &LoadOptions::default());
    Fixture { drives, store, tables }
}

/// 3.3 M commands and 14 GB a second: a command of 16 LBAs costs less than two of one.
fn flash() -> ReadCurve {
    ReadCurve::of_limits(3.3e6, 14e9).unwrap()
}

impl Fixture {
    fn slot(&self, table: usize, pooling: Pooling, merging: ReadMerging) -> Slot {
        let host = HostExecutor::attach(&self.store, HostOptions::default().with_merging(merging)).unwrap();
        let options = PlanOptions::default().with_max(64, 256).with_prefetch();
        host.plan(&[Feature::new("f", &self.tables[table].spec.name).pooling(pooling)], options)
            .unwrap()
            .slot()
            .unwrap()
    }

    fn row(&self, table: usize, id: i64) -> Vec<f32> {
        common::widen(DType::F32, self.tables[table].row(id as u64))
    }

    /// The drive and the LBA of a row.
    fn place(&self, table: usize, id: i64) -> (usize, u64) {
        let (generation, index) = self.store.generation(&self.tables[table].spec.name).unwrap();
        let table = &generation.tables[index];
        let (lba, _) = table.packing.locate(id as u64);
        let (drive, lba) = generation.placement.locate(table.rows_region.first_lba + lba).unwrap();
        (usize::from(drive), lba)
    }

    /// Looks `ids` up, unpooled, and checks every row and the mask; those that failed are zeros. Their positions, and
    /// why.
    fn look(
        &self,
        table: usize,
        slot: &mut Slot,
        ids: &[i64],
        ahead: bool,
    ) -> (LookupReport, Vec<usize>, Option<RowError>) {
        let dim = DIMS[table];
        let mut rows = vec![7.0; ids.len() * dim];
        let mut mask = vec![7; ids.len()];
        let mut out = Output::new(OutputRows::F32(&mut rows), dim).with_mask(&mut mask);
        let batch = Batch::new(ids, 1);
        let result = match ahead {
            false => slot.lookup(&batch, &mut out),
            true => {
                slot.prefetch(&batch).unwrap();
                slot.lookup_prefetched(&mut out)
            }
        };
        let (report, positions, source) = match result {
            Ok(report) => (report, Vec::new(), None),
            Err(LookupError::RowsFailed { report, positions, source }) => (*report, positions, Some(source)),
            Err(other) => panic!("{other}"),
        };
        for (position, &id) in ids.iter().enumerate() {
            let row = &rows[position * dim..][..dim];
            let failed = positions.contains(&position);
            let wanted = if failed { vec![0.0; dim] } else { self.row(table, id) };
            assert_eq!(row, wanted, "id {id}");
            assert_eq!(mask[position], u8::from(!failed));
        }
        assert_eq!(report.commands, report.rows_ssd - report.merges);
        (report, positions, source)
    }
}

/// Ids some LBAs apart: the rows of a tenth.
fn sparse(step: i64) -> Vec<i64> {
    (0..200).map(|i| i * step % ROWS as i64).collect()
}

#[test]
fn what_is_joined_is_right_and_fewer_commands() {
    for drives in [1, 3] {
        let fixture = fixture(drives);
        for (table, steps) in [(0, [1, 2, 7]), (1, [1, 8, 19])] {
            for step in steps {
                let ids = sparse(step);
                let curves = (0..drives).map(|_| flash()).collect();
                let all = [
                    ReadMerging::Separate,
                    ReadMerging::Neighbours,
                    ReadMerging::Curves(vec![flash()]),
                    ReadMerging::Curves(curves),
                ];
                let reports: Vec<LookupReport> = all
                    .into_iter()
                    .map(|merging| {
                        let mut slot = fixture.slot(table, Pooling::None, merging);
                        let (report, failed, _) = fixture.look(table, &mut slot, &ids, false);
                        assert!(failed.is_empty() && report.split == 0);
                        report
                    })
                    .collect();
                let [separate, neighbours, curve, curves] = [0, 1, 2, 3].map(|i| reports[i]);
                let what = format!("{drives} drives, rows of {}, every {step}th", DIMS[table] * 4);
                assert_eq!(curve.commands, curves.commands, "{what}");
                assert!(curve.commands <= neighbours.commands && neighbours.commands <= separate.commands, "{what}");
                assert_eq!(separate.bytes_read, neighbours.bytes_read, "{what}");
                // LBAs apart, of rows of one and of an eighth.
                match step * DIMS[table] as i64 / 128 {
                    0 | 1 if table == 0 || step == 8 => assert!(neighbours.commands * 4 < separate.commands, "{what}"),
                    2..15 => {
                        assert_eq!(neighbours.commands, separate.commands, "{what}");
                        assert!(curve.commands * 4 <= separate.commands, "{what}: {}", curve.commands);
                        assert!(curve.bytes_read > separate.bytes_read, "{what}");
                    }
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn one_bad_block_fails_its_own_rows() {
    for (drives, ahead) in [(1, false), (1, true), (3, false), (3, true)] {
        let fixture = fixture(drives);
        for (table, step) in [(0, 1), (0, 3), (1, 3)] {
            let ids = sparse(step);
            let mut slot = fixture.slot(table, Pooling::None, ReadMerging::Curves(vec![flash()]));
            let (before, ..) = fixture.look(table, &mut slot, &ids, ahead);
            let (drive, bad) = fixture.place(table, ids[77]);
            let status = Status::from(StatusCode::UnrecoveredReadError).with_dnr(true);
            let rule = Rule::new(Fault::Status(status)).io(NvmOpcode::READ).lbas(bad..bad + 1).always();
            let rule = fixture.drives[drive].faults().inject(rule);
            let (report, failed, source) = fixture.look(table, &mut slot, &ids, ahead);
            let wanted: Vec<usize> = (0..ids.len()).filter(|&i| fixture.place(table, ids[i]) == (drive, bad)).collect();
            assert_eq!(failed, wanted, "{drives} drives, every {step}th row of {}", DIMS[table] * 4);
            assert!(failed.len() < 4, "the test is of few rows");
            assert_eq!((report.split, report.commands), (1, before.commands));
            assert_eq!(fixture.drives[drive].faults().fired(rule), 2, "the command, and the part that the block is in");
            let source = source.unwrap();
            assert!(
                matches!(&source, RowError::Drive(DriverError::Command { status, .. })
                if status.code() == StatusCode::UnrecoveredReadError),
                "{source:?}"
            );
            fixture.drives[drive].faults().remove(rule);
            let (_, failed, _) = fixture.look(table, &mut slot, &ids, ahead);
            assert!(failed.is_empty());
        }
    }
}

#[test]
fn a_bad_block_between_rows_fails_none() {
    let fixture = fixture(1);
    let mut slot = fixture.slot(0, Pooling::None, ReadMerging::Curves(vec![flash()]));
    let (_, bad) = fixture.place(0, 7);
    let rule = Rule::new(Fault::Status(StatusCode::DeallocatedOrUnwrittenBlock.into())).lbas(bad..bad + 1).always();
    fixture.drives[0].faults().inject(rule);
    let (report, failed, _) = fixture.look(0, &mut slot, &[3, 6, 8, 11], false);
    assert_eq!((failed.len(), report.commands, report.split), (0, 1, 1));
    // Of its own, the row of the bad block fails, and is not tried again.
    let (report, failed, _) = fixture.look(0, &mut slot, &[7], false);
    assert_eq!((failed.len(), report.split), (1, 0));
}

#[test]
fn sums_of_split_commands_are_right() {
    let fixture = fixture(1);
    let mut slot = fixture.slot(1, Pooling::Sum, ReadMerging::Curves(vec![flash()]));
    let ids: Vec<i64> = (0..64).collect();
    let (_, bad) = fixture.place(1, 20);
    let rule = Rule::new(Fault::Status(StatusCode::UnrecoveredReadError.into())).lbas(bad..bad + 1).always();
    fixture.drives[0].faults().inject(rule);
    let mut sums = vec![7.0; 64 * 16];
    let result = slot.lookup(&Batch::new(&ids, 64), &mut Output::new(OutputRows::F32(&mut sums), 16));
    let Err(LookupError::RowsFailed { positions, report, .. }) = result else { panic!("{result:?}") };
    assert_eq!(positions, (16..24).collect::<Vec<_>>(), "eight rows share the block");
    assert_eq!(report.split, 1);
    for (id, sum) in sums.chunks(16).enumerate() {
        let wanted = if (16..24).contains(&id) { vec![0.0; 16] } else { fixture.row(1, id as i64) };
        assert_eq!(sum, wanted, "id {id}");
    }
}

#[test]
fn other_failures_are_not_repeated() {
    let fixture = fixture(1);
    let mut slot = fixture.slot(0, Pooling::None, ReadMerging::Neighbours);
    let (_, bad) = fixture.place(0, 7);
    let rule = Rule::new(Fault::Status(StatusCode::InternalError.into())).lbas(bad..bad + 1);
    let rule = fixture.drives[0].faults().inject(rule.always());
    let (report, failed, _) = fixture.look(0, &mut slot, &[6, 7, 8], false);
    assert_eq!((failed, report.split), (vec![0, 1, 2], 0));
    assert_eq!(fixture.drives[0].faults().fired(rule), 1);
}

#[test]
fn a_drive_that_fails_while_parts_are_read_fails_them() {
    let fixture = fixture(1);
    let mut slot = fixture.slot(0, Pooling::None, ReadMerging::Neighbours);
    let read = || Rule::new(Fault::Status(StatusCode::UnrecoveredReadError.into())).io(NvmOpcode::READ);
    fixture.drives[0].faults().inject(read());
    fixture.drives[0].faults().inject(Rule::new(Fault::Fatal).io(NvmOpcode::READ).nth(2));
    let (report, failed, source) = fixture.look(0, &mut slot, &[6, 7, 8], false);
    assert_eq!(report.split, 1);
    assert!(!failed.is_empty());
    assert!(
        matches!(source, Some(RowError::Drive(DriverError::Fatal { .. } | DriverError::TimedOut { .. }))),
        "{source:?}"
    );
    let (_, failed, _) = fixture.look(0, &mut slot, &[6, 7, 8], false);
    assert!(failed.is_empty(), "it is brought back");
}

#[test]
fn curves_are_for_one_drive_or_for_each() {
    let fixture = fixture(3);
    let attach =
        |curves| HostExecutor::attach(&fixture.store, HostOptions::default().with_merging(ReadMerging::Curves(curves)));
    for count in [0, 2, 4] {
        let error = attach(vec![flash(); count]).unwrap_err();
        assert!(
            matches!(&error, StoreError::ExecutorOptions { .. }) && error.to_string().contains("3 drives"),
            "{error}"
        );
    }
    let curves = attach(vec![flash()]).unwrap().read_curves();
    assert_eq!(curves.len(), 3);
    assert!(curves.iter().all(|(name, curve)| name.starts_with("drive") && *curve == Some(flash())));
}

#[test]
fn a_measured_curve_reads_rows_and_nothing_else() {
    let fixture = fixture(2);
    // A read of anything but rows fails the test.
    let rows: Vec<(usize, u64)> = (0..2)
        .flat_map(|table| (0..ROWS as i64).map(move |id| (table, id)))
        .map(|(t, id)| fixture.place(t, id))
        .collect();
    let ranges: Vec<_> = (0..2)
        .map(|drive| {
            let of_drive = || rows.iter().filter(|place| place.0 == drive).map(|place| place.1);
            let first = of_drive().min().unwrap();
            let last = of_drive().max().unwrap();
            let faults = fixture.drives[drive].faults();
            let forbid = |lbas| faults.inject(Rule::new(Fault::Drop).io(NvmOpcode::READ).lbas(lbas).always());
            [forbid(0..first), forbid(last + 1..u64::MAX)]
        })
        .collect();
    let host =
        HostExecutor::attach(&fixture.store, HostOptions::default().with_merging(ReadMerging::Measured)).unwrap();
    for (drive, rules) in fixture.drives.iter().zip(ranges) {
        for rule in rules {
            assert_eq!(drive.faults().fired(rule), 0);
        }
        drive.faults().clear();
    }
    for (drive, curve) in host.read_curves() {
        // On a machine that is too busy there is none.
        let Some(curve) = curve else { continue };
        let points: Vec<_> = curve.points().collect();
        assert!(points.len() >= 2 && points[0].0 == 512, "{drive}: {curve}");
        assert!(points.windows(2).all(|pair| pair[0].0 * 2 == pair[1].0), "{drive}: {curve}");
    }
    let mut slot =
        host.plan(&[Feature::new("f", "t128")], PlanOptions::default().with_max(64, 256)).unwrap().slot().unwrap();
    let (_, failed, _) = fixture.look(0, &mut slot, &sparse(3), false);
    assert!(failed.is_empty());
}

/// A drive's reads can be measured before there is a store on it, and then; nothing is written for it.
#[test]
fn reads_are_measured_with_and_without_a_store() {
    let drives = [common::drive("a", 16 << 20, 512), common::drive("b", 16 << 20, 4096)];
    let check = |curves: &[Option<ReadCurve>]| {
        assert_eq!(curves.len(), 2);
        for (curve, lba) in curves.iter().zip([512, 4096]) {
            // On a machine that is too busy there is none.
            let Some(curve) = curve else { continue };
            let points: Vec<_> = curve.points().collect();
            assert!(points.len() >= 2 && points[0].0 == lba, "{curve}");
        }
    };
    let devices = common::devices(&drives);
    let plan = FormatProposal::new(&devices, FormatSettings::default()).unwrap();
    for drive in &drives {
        drive.faults().inject(Rule::new(Fault::Drop).io(NvmOpcode::WRITE).always());
    }
    check(&plan.measure_reads());
    drives.iter().for_each(|drive| drive.faults().clear());
    let seen = FormatProposal::new(&devices, FormatSettings::default()).unwrap();
    assert!(seen.drives().iter().all(|drive| drive.content == DriveContent::Blank));
    drop(plan);
    let settings = FormatSettings::default().with_lba(LbaChoice::Bytes(4096));
    let one = FormatProposal::new(&devices[1..], settings).unwrap();
    let token = one.token().to_owned();
    let store = one.run(&FormatConsent::Token(token), &mut |_, _| {}).unwrap();
    let check_store = |store: &Store| check(&[vec![None], store.measure_reads().unwrap()].concat());
    check_store(&store);
    let table =
        Table { spec: TableSpec::new("t", 1000, 128, DType::F32), rows: vec![7; 1000 * 512], ranks: None, keys: None };
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    check_store(&store);
}
