//! Rows that drives write straight to the output: the same as ever, and nothing lands in memory that is anybody else's.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Table;
use common::random::{Buffer, Case, is_float, random_features};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use warprow_layout::FormatOptions;
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, Feature, HostOptions, InvalidBatch, LookupError, LookupReport, Output, OutputBuffer, OutputBufferError,
    OutputRows, PlanOptions, Pooling, ReadMerging, Slot,
};
use warprow_soft_controller::{Fault, QueueMatch, Rule, SoftController, StopSwitch};
use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};
use warprow_store::{DType, LoadOptions, OpenOptions, Store, StoreError, TableSpec};

/// `$body` with the elements of an ordinary output and of an output buffer.
macro_rules! with_both {
    ($buffer:expr, $output:expr, $type:ident, $rows:ident, $elements:ident => $body:expr) => {
        match $buffer {
            Buffer::F32($rows) => {
                type $type = f32;
                let $elements = $output.elements_mut::<$type>().unwrap();
                $body
            }
            Buffer::F16($rows) => {
                type $type = half::f16;
                let $elements = $output.elements_mut::<$type>().unwrap();
                $body
            }
            Buffer::Bf16($rows) => {
                type $type = half::bf16;
                let $elements = $output.elements_mut::<$type>().unwrap();
                $body
            }
            Buffer::I8($rows) => {
                type $type = i8;
                let $elements = $output.elements_mut::<$type>().unwrap();
                $body
            }
            Buffer::U8($rows) => {
                type $type = u8;
                let $elements = $output.elements_mut::<$type>().unwrap();
                $body
            }
        }
    };
}

/// Looks a case up into `output`, ahead or at once, and checks all that it must and must not write.
fn into_buffer(
    slot: &mut Slot,
    case: &mut Case,
    output: &mut OutputBuffer,
    ahead: bool,
    context: &str,
) -> LookupReport {
    with_both!(&case.buffer, output, T, rows, elements => elements[..rows.len()].copy_from_slice(rows));
    let report = {
        let (batch, mut out) = case.arrays();
        out.rows = OutputRows::Buffer(output);
        match ahead {
            true => {
                slot.prefetch(&batch).unwrap();
                slot.lookup_prefetched(&mut out).unwrap()
            }
            false => slot.lookup(&batch, &mut out).unwrap(),
        }
    };
    with_both!(&mut case.buffer, output, T, rows, elements => {
        let len = rows.len();
        rows.copy_from_slice(&elements[..len]);
    });
    case.check(&context);
    report
}

/// Tables most of which have rows of whole LBAs.
fn tables(lba: u32, random: &mut fastrand::Rng) -> Vec<Table> {
    (0..random.usize(1..5))
        .map(|index| {
            let dtype = if random.bool() { DType::F32 } else { DType::ALL[random.usize(..DType::ALL.len())] };
            let whole = random.u32(1..4) * lba / dtype.size().max(1);
            let dim: u32 = if random.u32(..4) == 0 { [2, 8, 40, 300][random.usize(..4)] } else { whole };
            let dim = dim.next_multiple_of(dtype.scale_block().unwrap_or(1));
            Table::random(&format!("t{index}"), random.u64(1..300), dim, dtype, random)
        })
        .collect()
}

/// Rows that landed, of rows that were read.
fn same_as_ever(seed: u64) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let lba = if random.bool() { 512 } else { 4096 };
    let (_drives, store) = common::store(random.usize(1..4), 24 << 20, lba);
    let mut tables = tables(lba, &mut random);
    if random.bool() {
        tables[0] = tables[0].clone().with_random_keys(false, &mut random);
    }
    common::load(&store, &tables, &LoadOptions::default());
    let mut host = HostOptions::default().with_dram_bytes(random.u64(..400_000)).with_queue_pairs(random.u32(1..3));
    host.depth = [1, 2, 16, 1023][random.usize(..4)];
    host.check_rows = random.bool();
    host.merging = [ReadMerging::Separate, ReadMerging::Neighbours][random.usize(..2)].clone();
    let host = HostExecutor::attach(&store, host).unwrap();
    let mut sum = (0, 0);
    for _ in 0..4 {
        let (mut features, mut options) = random_features(&tables, &mut random);
        if random.u32(..4) != 0 {
            features.iter_mut().for_each(|feature| (feature.pooling, feature.weighted) = (Pooling::None, false));
            let of =
                |feature: &Feature| tables.iter().find(|table| table.spec.name == feature.table).unwrap().spec.dtype;
            let out = of(&features[0]);
            if !out.is_scaled() && (is_float(out) || features.iter().all(|feature| of(feature) == out)) {
                options = options.with_out(out);
            }
        }
        let plan = host.plan(&features, options.clone().with_prefetch()).unwrap();
        let mut slot = plan.slot().unwrap();
        let mut output = OutputBuffer::allocate(&store, options.out, options.max_ids * (plan.width() + 3) + 3).unwrap();
        for turn in 0..4 {
            let random_case =
                |random: &mut fastrand::Rng| Case::random(&tables, &features, &options, plan.width(), false, random);
            let mut again = random.clone();
            let mut case = random_case(&mut random);
            let mut twin = random_case(&mut again);
            let ordinary = {
                let (batch, mut out) = twin.arrays();
                slot.lookup(&batch, &mut out).unwrap()
            };
            twin.check(&"ordinary");
            let report =
                into_buffer(&mut slot, &mut case, &mut output, turn == 3, &format!("{seed}: {features:?} {options:?}"));
            assert!(case.buffer.bits() == twin.buffer.bits() || is_float(options.out), "bit by bit");
            assert_eq!((ordinary.landed, report.rows_ssd, report.ids_ssd), (0, ordinary.rows_ssd, ordinary.ids_ssd));
            assert_eq!(
                (report.commands, report.bytes_read, report.failed),
                (ordinary.commands, ordinary.bytes_read, 0)
            );
            assert!(report.landed <= report.rows_ssd && (report.landed == 0 || turn != 3 && !plan.is_pooled()));
            sum = (sum.0 + report.landed, sum.1 + report.rows_ssd);
        }
    }
    sum
}

#[test]
fn look_ups_into_buffers_give_what_others_do() {
    let config = ProptestConfig {
        cases: 32,
        rng_seed: RngSeed::Fixed(0x5eed),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let sum = std::cell::Cell::new((0, 0));
    let run = |seed| {
        let (landed, rows) = same_as_ever(seed);
        sum.set((sum.get().0 + landed, sum.get().1 + rows));
        Ok(())
    };
    TestRunner::new(config).run(&any::<u64>(), run).unwrap();
    let (landed, rows) = sum.get();
    assert!(landed > 300 && rows - landed > 300, "{landed} of {rows}: there must be rows of both kinds");
}

const ROWS: u64 = 500;
const HOT: u64 = 50;

/// A store with one table, its slot, and an output for it.
struct Fixture {
    drives: Vec<Arc<SoftController>>,
    store: Store,
    table: Table,
    host: HostExecutor,
    slot: Slot,
    output: OutputBuffer,
}

fn options() -> OpenOptions {
    OpenOptions::default().with_timeout(Duration::from_millis(200)).with_admin_timeout(Duration::from_millis(500))
}

impl Fixture {
    fn new(drives: usize, lba: u32, (dim, dtype): (u32, DType), merging: ReadMerging) -> Self {
        let drives: Vec<_> = (0..drives).map(|i| common::drive(&format!("drive{i}"), 24 << 20, lba)).collect();
        let store = Store::create(&common::devices(&drives), &FormatOptions::default(), &options()).unwrap();
        let mut spec = TableSpec::new("t", ROWS, dim, dtype);
        (spec.hot_rows, spec.row_crc) = (HOT, true);
        let row_bytes = dtype.row_bytes(dim).unwrap() as usize;
        let rows = (0..ROWS as usize * row_bytes).map(|i| (i % 251) as u8 ^ (i / row_bytes) as u8).collect();
        let table = Table { spec, rows, ranks: None, keys: None };
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        let host = HostOptions::default().with_dram_bytes(HOT * row_bytes as u64).with_merging(merging);
        let mut host = host;
        host.check_rows = true;
        let host = HostExecutor::attach(&store, host).unwrap();
        let plan =
            host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(1, 256).with_out(DType::U8)).unwrap();
        let output = OutputBuffer::allocate(&store, DType::U8, 256 * row_bytes * 2).unwrap();
        Self { drives, store, table, host, slot: plan.slot().unwrap(), output }
    }

    /// Looks `ids` up, `stride` bytes apart, and checks every row; those reported as failed are zeros. Their positions.
    fn look(&mut self, ids: &[i64], stride: usize) -> (LookupReport, Vec<usize>) {
        let mut output =
            std::mem::replace(&mut self.output, OutputBuffer::allocate(&self.store, DType::U8, 1).unwrap());
        output.elements_mut::<u8>().unwrap().fill(0xaa);
        let result = self.look_into(ids, stride, &mut output);
        self.check(ids, stride, &result.1, &output);
        self.output = output;
        result
    }

    fn look_into(&mut self, ids: &[i64], stride: usize, output: &mut OutputBuffer) -> (LookupReport, Vec<usize>) {
        let mut mask = vec![7; ids.len()];
        let mut out = Output::new(OutputRows::Buffer(output), stride).with_mask(&mut mask);
        let (report, positions) = match self.slot.lookup(&Batch::new(ids, 1), &mut out) {
            Ok(report) => (report, Vec::new()),
            Err(LookupError::RowsFailed { report, positions, .. }) => (*report, positions),
            Err(other) => panic!("{other}"),
        };
        (0..ids.len()).for_each(|at| assert_eq!(mask[at], u8::from(!positions.contains(&at))));
        (report, positions)
    }

    fn check(&self, ids: &[i64], stride: usize, failed: &[usize], output: &OutputBuffer) {
        let bytes = output.elements::<u8>().unwrap();
        let len = self.table.row_bytes();
        for (position, &id) in ids.iter().enumerate() {
            let row = &bytes[position * stride..][..stride];
            match failed.contains(&position) {
                true => assert!(row[..len].iter().all(|&byte| byte == 0), "a failed row is zeros: {position}"),
                false => assert_eq!(row[..len], *self.table.row(id as u64), "id {id} at {position}"),
            }
            assert!(row[len..].iter().all(|&byte| byte == 0xaa), "between rows nothing is written");
        }
        assert!(bytes[ids.len() * stride..].iter().all(|&byte| byte == 0xaa), "nor behind the last");
    }
}

/// Different ids on drives, no two of them neighbours.
fn apart(count: usize) -> Vec<i64> {
    (0..count as i64).map(|i| HOT as i64 + 3 + i * 2 % 440).collect()
}

#[test]
fn what_lands_is_what_can() {
    let u8s = |bytes| (bytes, DType::U8);
    for merging in [ReadMerging::Separate, ReadMerging::Neighbours] {
        // Rows of an LBA, and of several; one behind the other, and apart.
        for (lba, bytes) in [(512, 512), (512, 2048), (4096, 4096), (4096, 8192)] {
            let mut fixture = Fixture::new(2, lba, u8s(bytes), merging.clone());
            for gap in [0, 4, 512] {
                let ids = apart(100);
                let (report, failed) = fixture.look(&ids, bytes as usize + gap);
                assert_eq!((report.landed, report.rows_ssd, failed.len()), (100, 100, 0), "{lba} {bytes} {gap}");
                // Rows of DRAM go where they belong, and repeated ones are copied.
                let mixed: Vec<i64> = ids.iter().take(60).flat_map(|&id| [id, id % HOT as i64, id]).collect();
                let (report, _) = fixture.look(&mixed, bytes as usize + gap);
                assert_eq!((report.landed, report.ids_ssd, report.ids_dram), (60, 120, 60));
            }
            // No place for a PRP.
            assert_eq!(fixture.look(&[100, 102, 104, 106], bytes as usize + 2).0.landed, 2, "each other row");
        }
        // Less than an LBA, and more than whole ones.
        for bytes in [256, 100, 640, 5000] {
            let mut fixture = Fixture::new(1, 512, u8s(bytes), merging.clone());
            assert_eq!(fixture.look(&apart(40), bytes as usize).0.landed, 0, "{bytes}");
        }
    }
}

#[test]
fn rows_of_one_command_land_where_prps_lead() {
    // One drive: rows of neighbouring ids are neighbours.
    let mut fixture = Fixture::new(1, 512, (512, DType::U8), ReadMerging::Neighbours);
    let (report, _) = fixture.look(&[100, 101, 102, 103, 104, 105, 106, 107], 512);
    assert_eq!((report.commands, report.landed), (1, 8), "they follow each other in the output too");
    let (report, _) = fixture.look(&[101, 100, 200], 512);
    assert_eq!((report.commands, report.landed), (2, 1), "two that are exchanged do not");
    let (report, _) = fixture.look(&[100, 101], 1024);
    assert_eq!((report.commands, report.landed), (1, 0), "nor two with a gap between them");
    let mut fixture = Fixture::new(1, 4096, (4096, DType::U8), ReadMerging::Neighbours);
    let pages = [71, 65, 66, 64, 70, 67, 68, 69];
    for stride in [4096, 8192] {
        let (report, _) = fixture.look(&pages, stride);
        assert_eq!((report.commands, report.landed), (1, 8), "pages may lie anywhere");
    }
    let (report, _) = fixture.look(&pages, 4096 + 512);
    assert_eq!((report.commands, report.landed), (1, 0));
    // Rows of two pages that begin within one.
    let mut fixture = Fixture::new(1, 4096, (8192, DType::U8), ReadMerging::Neighbours);
    let (report, _) = fixture.look(&[80, 64, 65], 8192 + 512);
    assert_eq!((report.commands, report.landed), (2, 1));
}

#[test]
fn a_bad_block_fails_its_row_and_no_other() {
    let mut fixture = Fixture::new(1, 512, (512, DType::U8), ReadMerging::Neighbours);
    let bad = || Rule::new(Fault::Status(Status::from(StatusCode::UnrecoveredReadError))).io(NvmOpcode::READ);
    fixture.drives[0].faults().inject(bad().nth(3));
    let (report, failed) = fixture.look(&apart(20), 512);
    assert_eq!((report.landed, failed.len()), (19, 1));
    // A joined command is read again in its parts, which land by themselves.
    let ids: Vec<i64> = (100..108).collect();
    fixture.drives[0].faults().inject(bad());
    let (report, failed) = fixture.look(&ids, 512);
    assert_eq!((report.commands, report.split, report.landed, failed.len()), (1, 1, 8, 0));
    // What a checksum does not match is found in place.
    fixture.drives[0].faults().inject(Rule::new(Fault::Corrupt).io(NvmOpcode::READ).nth(7));
    let (report, failed) = fixture.look(&apart(20), 512);
    assert_eq!((report.landed, failed.len()), (20, 1));
    assert_eq!(fixture.look(&ids, 512).1.len(), 0);
}

#[test]
fn after_a_time_out_the_output_is_as_it_was_told() {
    let late = Duration::from_millis(400);
    let refused = Fault::Status(Status::from_code(StatusCode::InternalError));
    for drives in [1, 2] {
        for fault in
            [Fault::Drop, Fault::Swallow, Fault::Delay(late), Fault::WrongCid(0x7ffe), Fault::Fatal, Fault::Duplicate]
        {
            for undeleted in [false, true] {
                let mut fixture = Fixture::new(drives, 512, (512, DType::U8), ReadMerging::Separate);
                let ids = apart(60);
                fixture.look(&ids, 512);
                let faults = fixture.drives[0].faults();
                faults.inject(Rule::new(fault).io(NvmOpcode::READ).nth(5));
                if undeleted {
                    // Then it takes a reset.
                    faults.inject(Rule::new(refused).admin(AdminOpcode::DELETE_IO_SQ));
                }
                let (report, failed) = fixture.look(&ids, 512);
                assert_eq!(failed.is_empty(), fault == Fault::Duplicate, "{fault:?}");
                assert_eq!(report.landed + failed.len() as u64, 60);
                if fault == Fault::Delay(late) {
                    // Its data comes now, and reaches nothing.
                    std::thread::sleep(late);
                    fixture.check(&ids, 512, &failed, &fixture.output);
                }
                assert!(fixture.look(&ids, 512).1.is_empty(), "{fault:?}: the next is right");
            }
        }
    }
}

/// A world on a drive whose reads come after `late` from the tenth on, and which obeys nothing then.
fn stubborn(late: Duration) -> Fixture {
    let fixture = Fixture::new(1, 512, (512, DType::U8), ReadMerging::Separate);
    let faults = fixture.drives[0].faults();
    [StopSwitch::Enable, StopSwitch::Reset, StopSwitch::BusMaster]
        .into_iter()
        .for_each(|switch| faults.disobey(switch));
    faults.inject(Rule::new(Fault::Delay(late)).io(NvmOpcode::READ).nth(10).always());
    faults.inject(Rule::new(Fault::Swallow).on(QueueMatch::Admin).always());
    fixture
}

#[test]
fn a_buffer_that_a_drive_may_write_to_is_in_quarantine() {
    let late = Duration::from_secs(4);
    let mut fixture = stubborn(late);
    let ids = apart(30);
    let mut output = OutputBuffer::allocate(&fixture.store, DType::U8, 30 * 512).unwrap();
    let began = std::time::Instant::now();
    let (_, failed) = fixture.look_into(&ids, 512, &mut output);
    assert!(failed.len() > 10, "{failed:?}");
    assert!(began.elapsed() < late, "{:?}: it must not have come by now", began.elapsed());
    let quarantined = OutputBufferError::Quarantined { drives: vec!["drive0".to_owned()] };
    assert_eq!(output.elements::<u8>().unwrap_err(), quarantined);
    assert_eq!(output.elements_mut::<u8>().unwrap_err(), quarantined);
    assert_eq!(output.reclaim().unwrap_err(), quarantined);
    assert!(quarantined.to_string().contains("drive0"), "{quarantined}");
    let refused =
        fixture.slot.lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::Buffer(&mut output), 512)).unwrap_err();
    assert!(matches!(refused, LookupError::Invalid(InvalidBatch::OutputBuffer(it)) if it == quarantined));
    // Rows in DRAM go to other memory as ever, and those on the drive fail at once.
    let mut other = OutputBuffer::allocate(&fixture.store, DType::U8, 3 * 512).unwrap();
    other.elements_mut::<u8>().unwrap().fill(0xaa);
    let (_, lost) = fixture.look_into(&[1, 100, 2], 512, &mut other);
    fixture.check(&[1, 100, 2], 512, &lost, &other);
    assert_eq!(lost, [1]);

    // The data comes, and lands where it was to; nobody sees that before the drive is back.
    std::thread::sleep(late.saturating_sub(began.elapsed()) + Duration::from_millis(300));
    assert_eq!(output.reclaim().unwrap_err(), quarantined, "that nothing comes any more is not known");
    fixture.drives[0].faults().clear();
    assert!(fixture.store.retry_drives().iter().all(|drive| drive.failure.is_none()));
    assert_eq!(fixture.look_into(&ids, 512, &mut other_for(&fixture)).1.len(), 0);
    let bytes = output.reclaim().map(|()| output.elements::<u8>().unwrap()).unwrap();
    for (position, &id) in ids.iter().enumerate() {
        assert_eq!(
            bytes[position * 512..][..512],
            *fixture.table.row(id as u64),
            "{position}: late, and in its own place"
        );
    }
    output.elements_mut::<u8>().unwrap().fill(0xaa);
    let (report, failed) = fixture.look_into(&ids, 512, &mut output);
    fixture.check(&ids, 512, &failed, &output);
    assert_eq!((report.landed, failed.len()), (30, 0));
}

fn other_for(fixture: &Fixture) -> OutputBuffer {
    OutputBuffer::allocate(&fixture.store, DType::U8, 256 * 512).unwrap()
}

#[test]
fn late_data_lands_in_no_memory_that_was_given_back() {
    let late = Duration::from_secs(4);
    let mut fixture = stubborn(late);
    let ids = apart(30);
    let begun = std::time::Instant::now();
    let mut output = other_for(&fixture);
    let failed = fixture.look_into(&ids, 512, &mut output).1;
    assert!(failed.len() > 10);
    // Slot, plan, and the buffer: all are gone while the drive has the commands.
    let faults_before = fixture.drives[0].dma_faults();
    let Fixture { drives, store, slot, output: unused, .. } = fixture;
    drop((output, unused, slot));
    assert!(begun.elapsed() < late, "{:?}", begun.elapsed());
    // Memory of the same length, which the system would give out again at once.
    let others: Vec<Vec<u8>> = (0..64).map(|_| vec![0x77; 256 * 512]).collect();
    std::thread::sleep(late.saturating_sub(begun.elapsed()) + Duration::from_millis(300));
    assert!(others.iter().flatten().all(|&byte| byte == 0x77), "late data landed in other memory");
    assert_eq!(drives[0].dma_faults(), faults_before, "what the drive writes to is mapped");
    drives[0].faults().clear();
    assert!(store.retry_drives().iter().all(|drive| drive.failure.is_none()));
}

#[test]
fn buffers_are_what_plans_yield() {
    let mut fixture = Fixture::new(1, 512, (512, DType::U8), ReadMerging::Separate);
    let mut floats = OutputBuffer::allocate(&fixture.store, DType::F32, 4096).unwrap();
    assert_eq!((floats.dtype(), floats.len(), floats.is_empty()), (DType::F32, 4096, false));
    assert!(floats.elements::<f32>().unwrap().iter().all(|&x| x.to_bits() == 0));
    assert!(matches!(floats.elements::<u8>(), Err(OutputBufferError::Type { has: DType::F32, asked: DType::U8 })));
    let refused = fixture.slot.lookup(&Batch::new(&[60i64], 1), &mut Output::new(OutputRows::Buffer(&mut floats), 512));
    assert!(matches!(refused, Err(LookupError::Invalid(InvalidBatch::OutputType { given: DType::F32, .. }))));
    assert_eq!(OutputBuffer::allocate(&fixture.store, DType::Q8, 8).unwrap().dtype(), DType::U8, "rows as they are");
    assert!(matches!(OutputBuffer::allocate(&fixture.store, DType::F32, usize::MAX), Err(StoreError::Memory(_))));
    assert_eq!(OutputBuffer::allocate(&fixture.store, DType::F8E4M3, 0).unwrap().dtype(), DType::U8);
    // Another store's is as good as ordinary memory.
    let foreign = Fixture::new(1, 512, (512, DType::U8), ReadMerging::Separate);
    let mut output = other_for(&foreign);
    output.elements_mut::<u8>().unwrap().fill(0xaa);
    let (report, failed) = fixture.look_into(&apart(30), 512, &mut output);
    fixture.check(&apart(30), 512, &failed, &output);
    assert_eq!((report.landed, report.rows_ssd, failed.len()), (0, 30, 0));
    assert_eq!(fixture.look(&apart(30), 512).0.landed, 30);
    assert_eq!(fixture.host.metrics().landed, 30);
}
