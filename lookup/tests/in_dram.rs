//! Look-ups of rows that all lie in DRAM, or all of some tables, against a naive look-up.

mod common;

use common::Table;
use common::random::{Buffer, Case};
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, BoundsCheck, Feature, HostOptions, LookupError, MissingPolicy, Output, OutputBuffer, OutputRows,
    PlanOptions, Pooling,
};
use warprow_store::{DType, LoadOptions};

/// Rows of 1 to 2,052 bytes: shorter than a word, a line, and what is brought towards the caches; of no power of two.
const DIMS: [u32; 12] = [1, 2, 3, 7, 13, 16, 17, 33, 63, 65, 129, 513];
/// Bytes that hold every table of a test.
const ALL: u64 = 1 << 30;

fn tables(dtype: DType, random: &mut fastrand::Rng) -> Vec<Table> {
    let table = |(index, &dim): (usize, &u32)| {
        let mut table = Table::random(&format!("t{index}"), random.u64(1..500), dim, dtype, random);
        table.spec.hot_rows = table.spec.rows;
        table
    };
    DIMS.iter().enumerate().map(table).collect()
}

fn feature(table: &Table, random: &mut fastrand::Rng) -> Feature {
    let mut feature = Feature::new(format!("of {}", table.spec.name), table.spec.name.clone());
    feature.missing = Some([MissingPolicy::Default, MissingPolicy::Zero, MissingPolicy::Skip][random.usize(..3)]);
    feature.bounds = Some([BoundsCheck::Ignore, BoundsCheck::Count, BoundsCheck::Report][random.usize(..3)]);
    feature.padding = random.bool().then(|| i128::from(random.i64(-2..table.spec.rows as i64 + 2)));
    feature
}

/// Rows of every odd length, in every type that rows go out in as they are, one table at a time and all side by side:
/// the right rows, the right counts, and nothing written between rows or behind the last.
#[test]
fn rows_of_every_length_go_out_as_they_are() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8, DType::U8] {
        let random = &mut fastrand::Rng::with_seed(u64::from(dtype.size()) << 8 | 11);
        let (_drives, store) = common::store(2, 24 << 20, 512);
        let tables = tables(dtype, random);
        common::load(&store, &tables, &LoadOptions::default());
        let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(ALL)).unwrap();
        let options = PlanOptions::default().with_max(40, 500).with_out(dtype);
        let all: Vec<Feature> = tables.iter().map(|table| feature(table, random)).collect();
        let alone = all.iter().map(|feature| vec![feature.clone()]);
        for features in alone.chain([all.clone()]) {
            let plan = host.plan(&features, options.clone()).unwrap();
            let mut slot = plan.slot().unwrap();
            let room = options.max_ids * (plan.width() + 3) + 3;
            let mut output = OutputBuffer::allocate(&store, dtype, room).unwrap();
            for turn in 0..6 {
                let mut case = Case::random(&tables, &features, &options, plan.width(), false, random);
                let (batch, mut out) = case.arrays();
                let report = slot.lookup(&batch, &mut out).unwrap();
                case.check(&(turn, &features));
                assert_eq!((report.missing, report.padding), (case.wanted.missing, case.wanted.padding));
                assert_eq!((report.first_missing, report.failed), (case.wanted.first_missing, 0));
                assert_eq!((report.rows_dram, report.unique), (case.unique as u64, case.unique as u64));
                assert_eq!(report.ids, report.padding + report.missing + report.ids_dram, "{report:?}");
                assert_eq!((report.ids_ssd, report.rows_ssd, report.commands, report.sq_doorbells), (0, 0, 0, 0));

                let (expected, stride) = (case.buffer.bits(), case.stride);
                let (batch, _) = case.arrays();
                let again = slot.lookup(&batch, &mut Output::new(OutputRows::Buffer(&mut output), stride)).unwrap();
                assert_eq!((again.ids_dram, again.rows_dram), (report.ids_dram, report.rows_dram));
                let (width, rows) = (plan.width(), case.count);
                let mut copy = Buffer::new(dtype, expected.len());
                match &mut copy {
                    Buffer::F32(to) => to.copy_from_slice(&output.elements().unwrap()[..expected.len()]),
                    Buffer::F16(to) => to.copy_from_slice(&output.elements().unwrap()[..expected.len()]),
                    Buffer::Bf16(to) => to.copy_from_slice(&output.elements().unwrap()[..expected.len()]),
                    Buffer::I8(to) => to.copy_from_slice(&output.elements().unwrap()[..expected.len()]),
                    Buffer::U8(to) => to.copy_from_slice(&output.elements().unwrap()[..expected.len()]),
                }
                let got = copy.bits();
                for row in 0..rows {
                    let at = row * stride..row * stride + width;
                    assert_eq!(got[at.clone()], expected[at], "row {row} in an output buffer");
                }
            }
        }
    }
}

/// Tables wholly in DRAM, partly, and not at all, in one batch; unpooled, and as sums.
#[test]
fn tables_of_several_tiers_share_a_batch() {
    for (seed, pooling) in [(1, Pooling::None), (2, Pooling::Sum), (3, Pooling::Mean)] {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(3, 24 << 20, 512);
        let mut tables = tables(DType::F32, random);
        for (index, table) in tables.iter_mut().enumerate() {
            table.spec.hot_rows = [table.spec.rows, table.spec.rows / 2, 0][index % 3];
        }
        // No more than the tables are to have: what is left over would go to the others.
        let hot: u64 = tables.iter().map(|table| table.spec.hot_rows * table.row_bytes() as u64).sum();
        common::load(&store, &tables, &LoadOptions::default());
        let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(hot)).unwrap();
        for (table, _) in tables.iter().zip(0..3) {
            assert_eq!(host.hot_rows(&table.spec.name), Some(table.spec.hot_rows));
        }
        let features: Vec<Feature> = tables.iter().map(|it| feature(it, random).pooling(pooling)).collect();
        let options = PlanOptions::default().with_max(40, 500);
        let plan = host.plan(&features, options.clone()).unwrap();
        let (mut slot, mut both) = (plan.slot().unwrap(), false);
        for turn in 0..30 {
            let mut case = Case::random(&tables, &features, &options, plan.width(), false, random);
            let (batch, mut out) = case.arrays();
            let report = slot.lookup(&batch, &mut out).unwrap();
            case.check(&(seed, turn));
            assert_eq!((report.missing, report.padding), (case.wanted.missing, case.wanted.padding));
            assert_eq!((report.unique, report.first_missing), (case.unique as u64, case.wanted.first_missing));
            assert_eq!(report.ids, report.padding + report.missing + report.ids_dram + report.ids_ssd);
            both |= report.rows_dram > 0 && report.rows_ssd > 0;
        }
        assert!(both, "no batch had rows in both tiers");
    }
}

#[test]
fn an_empty_batch_is_nothing() {
    let (_drives, store) = common::store(1, 16 << 20, 512);
    let table = Table::random("t", 100, 7, DType::F32, &mut fastrand::Rng::with_seed(5));
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(ALL)).unwrap();
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default()).unwrap();
    let (mut rows, mut slot) = ([3.0f32; 7], plan.slot().unwrap());
    for (batch, offsets) in [(0, &[][..]), (2, &[0i64, 0])] {
        let ids: &[i64] = &[];
        let batch = Batch::new(ids, batch).with_offsets(offsets);
        let report = slot.lookup(&batch, &mut Output::new(OutputRows::F32(&mut rows), 7)).unwrap();
        assert_eq!((report.ids, report.unique, report.ids_dram), (0, 0, 0));
    }
    assert_eq!(rows, [3.0; 7]);
}

/// Where missing ids are errors, the output is as it was before.
#[test]
fn a_missing_id_that_is_an_error_leaves_the_output_alone() {
    let (_drives, store) = common::store(1, 16 << 20, 512);
    let random = &mut fastrand::Rng::with_seed(6);
    let tables = [Table::random("a", 50, 5, DType::F32, random), Table::random("b", 60, 5, DType::F32, random)];
    common::load(&store, &tables, &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(ALL)).unwrap();
    let features =
        [Feature::new("f", "a"), Feature::new("g", "b").missing(MissingPolicy::Error).bounds(BoundsCheck::Report)];
    let mut slot = host.plan(&features, PlanOptions::default().with_max(3, 6)).unwrap().slot().unwrap();
    let (mut rows, mut mask) = ([9.0f32; 30], [9; 6]);
    let mut out = Output::new(OutputRows::F32(&mut rows), 5).with_mask(&mut mask);
    match slot.lookup(&Batch::new(&[1i64, 50, 2, 60, 3, -1], 3), &mut out) {
        Err(LookupError::MissingIds { report, positions }) => {
            assert_eq!((positions, report.missing), (vec![3, 5], 3));
            assert_eq!(report.first_missing.map(|it| (it.position, it.id)), Some((3, 60)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((rows, mask), ([9.0; 30], [9; 6]));
}
