//! Whole look-ups on drives in memory, against a naive one.

mod common;

use common::{Table, Value, Wanted, look_up};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_store::{
    Batch, DType, Feature, HostOptions, Ids, LoadOptions, Missing, Output, PlanOptions, Pooling, Report, Rows, Slot,
    Stage,
};

/// What output elements are before a look-up.
const BEFORE: u32 = 0x5A5A_5A5A;

/// Output elements of any type, as bits.
enum Buffer {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

impl Buffer {
    fn new(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![f32::from_bits(BEFORE); len]),
            DType::F16 => Self::F16(vec![f16::from_bits(BEFORE as u16); len]),
            DType::BF16 => Self::Bf16(vec![bf16::from_bits(BEFORE as u16); len]),
            DType::I8 => Self::I8(vec![BEFORE as i8; len]),
            DType::U8 => Self::U8(vec![BEFORE as u8; len]),
        }
    }

    fn rows(&mut self) -> Rows<'_> {
        match self {
            Self::F32(rows) => Rows::F32(rows),
            Self::F16(rows) => Rows::F16(rows),
            Self::Bf16(rows) => Rows::Bf16(rows),
            Self::I8(rows) => Rows::I8(rows),
            Self::U8(rows) => Rows::U8(rows),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Self::F32(rows) => rows.iter().map(|x| x.to_bits()).collect(),
            Self::F16(rows) => rows.iter().map(|x| x.to_bits().into()).collect(),
            Self::Bf16(rows) => rows.iter().map(|x| x.to_bits().into()).collect(),
            Self::I8(rows) => rows.iter().map(|&x| u32::from(x as u8)).collect(),
            Self::U8(rows) => rows.iter().map(|&x| x.into()).collect(),
        }
    }

    /// Whether element `index` is as wanted.
    fn matches(&self, index: usize, wanted: Value) -> bool {
        let bits = self.bits_at(index);
        match (wanted, self) {
            (Value::Bits(wanted), _) => bits == wanted,
            (Value::Untouched, Self::F32(_)) => bits == BEFORE,
            (Value::Untouched, Self::F16(_) | Self::Bf16(_)) => bits == BEFORE & 0xffff,
            (Value::Untouched, _) => bits == BEFORE & 0xff,
            (Value::Number(x), Self::F32(rows)) => rows[index].is_nan() && x.is_nan() || bits == x.to_bits(),
            (Value::Number(x), Self::F16(rows)) => {
                rows[index].is_nan() && x.is_nan() || bits == u32::from(f16::from_f32(x).to_bits())
            }
            (Value::Number(x), Self::Bf16(rows)) => {
                rows[index].is_nan() && x.is_nan() || bits == u32::from(bf16::from_f32(x).to_bits())
            }
            (Value::Number(_), _) => false,
        }
    }

    fn bits_at(&self, index: usize) -> u32 {
        match self {
            Self::F32(rows) => rows[index].to_bits(),
            Self::F16(rows) => rows[index].to_bits().into(),
            Self::Bf16(rows) => rows[index].to_bits().into(),
            Self::I8(rows) => u32::from(rows[index] as u8),
            Self::U8(rows) => rows[index].into(),
        }
    }
}

fn random_dtype(random: &mut fastrand::Rng) -> DType {
    DType::ALL[random.usize(..5)]
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Features over `tables` that one plan can have.
fn random_features(tables: &[Table], random: &mut fastrand::Rng) -> (Vec<Feature>, PlanOptions) {
    let pooled = random.bool();
    let out = random_dtype(random);
    let out = if pooled && !is_float(out) { DType::F32 } else { out };
    let usable: Vec<&Table> = tables.iter().filter(|it| is_float(out) || it.spec.dtype == out).collect();
    let (out, usable) = if usable.is_empty() { (DType::F32, tables.iter().collect()) } else { (out, usable) };
    let missing = || [Missing::Default, Missing::Zero, Missing::Skip];
    let features = (0..random.usize(1..6))
        .map(|index| {
            let table = usable[random.usize(..usable.len())];
            let mut feature = Feature::new(format!("f{index}"), table.spec.name.clone());
            if pooled {
                feature.pooling = if random.bool() { Pooling::Sum } else { Pooling::Mean };
                feature.weighted = feature.pooling == Pooling::Sum && random.bool();
            }
            if random.bool() {
                feature.padding = Some(i128::from(random.i64(-2..table.spec.rows as i64 + 2)));
            }
            feature.missing = random.bool().then(|| missing()[random.usize(..3)]);
            feature
        })
        .collect();
    let options = PlanOptions::default().with_max(8, 200).with_out(out).with_missing(missing()[random.usize(..3)]);
    (features, options)
}

/// Ids as a caller may give them.
enum Given {
    I32(Vec<i32>),
    I64(Vec<i64>),
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl Given {
    fn new(ids: &[i128], random: &mut fastrand::Rng) -> Self {
        let signed = ids.iter().any(|&id| id < 0);
        let wide = ids.iter().any(|&id| id > i128::from(i32::MAX));
        match (signed, wide, random.bool()) {
            (_, false, true) => Self::I32(ids.iter().map(|&id| id as i32).collect()),
            (true, ..) => Self::I64(ids.iter().map(|&id| id as i64).collect()),
            (false, false, false) => Self::U32(ids.iter().map(|&id| id as u32).collect()),
            (false, true, _) => Self::U64(ids.iter().map(|&id| id as u64).collect()),
        }
    }

    fn ids(&self) -> Ids<'_> {
        match self {
            Self::I32(ids) => ids.into(),
            Self::I64(ids) => ids.into(),
            Self::U32(ids) => ids.into(),
            Self::U64(ids) => ids.into(),
        }
    }
}

fn check_report(report: &Report, wanted: &Wanted, unique_rows: usize) {
    assert_eq!(report.ids, wanted.mask.len() as u64);
    assert_eq!((report.missing, report.padding, report.failed), (wanted.missing, wanted.padding, 0));
    assert_eq!(report.ids, report.padding + report.missing + report.failed + report.ids_dram + report.ids_ssd);
    assert_eq!(report.unique as usize, unique_rows);
    assert_eq!(report.unique, report.rows_dram + report.rows_ssd);
    assert_eq!(report.commands, report.rows_ssd - report.merges);
    assert!(report.bytes_read >= report.bytes_needed || report.merges > 0);
    assert_eq!(report.sq_doorbells > 0, report.commands > 0);
    assert_eq!(report.commands > 0, report.rows_ssd > 0);
    assert_eq!(report.stages.len(), Stage::ALL.len());
}

/// One random batch through `slot`, checked.
fn one_batch(
    slot: &mut Slot,
    tables: &[Table],
    features: &[Feature],
    options: &PlanOptions,
    width: usize,
    random: &mut fastrand::Rng,
) {
    let batch = random.usize(..=options.max_batch as usize);
    let count = batch * features.len();
    let each = random.usize(..4);
    let fixed = random.bool();
    let mut left = options.max_ids;
    let mut bags: Vec<Vec<i128>> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for bag in 0..count {
        let feature = &features[bag / batch];
        let table = tables.iter().find(|table| table.spec.name == feature.table).unwrap();
        let len = if fixed { each } else { random.usize(..9).saturating_sub(2).min(left) };
        let len = if fixed && each * count > options.max_ids { 0 } else { len };
        left = left.saturating_sub(len);
        let ids: Vec<i128> = (0..len)
            .map(|_| match random.u32(..12) {
                0 => -i128::from(random.u32(1..5)),
                1 => i128::from(table.spec.rows + random.u64(..3)),
                2 if random.bool() => i128::from(random.u64(..)),
                2 => i128::from(random.i32(..)),
                3..8 => i128::from(random.u64(..table.spec.rows.min(4))),
                _ => i128::from(random.u64(..table.spec.rows)),
            })
            .collect();
        bags.push(ids);
    }
    // One type must hold them all.
    if bags.iter().flatten().any(|&id| id < 0) {
        bags.iter_mut().flatten().for_each(|id| *id = (*id).min(i128::from(i64::MAX)));
    }
    let pooled = features[0].pooling != Pooling::None;
    for (bag, ids) in bags.iter().enumerate() {
        let feature = &features[bag / batch];
        let table = tables.iter().find(|table| table.spec.name == feature.table).unwrap();
        for &id in ids {
            let padding = feature.padding == Some(id) && pooled;
            if (0..i128::from(table.spec.rows)).contains(&id) && !padding {
                seen.insert((&table.spec.name, id));
            }
        }
    }

    let ids: Vec<i128> = bags.iter().flatten().copied().collect();
    let mut offsets: Vec<i128> =
        bags.iter().scan(0, |sum, bag| Some(std::mem::replace(sum, *sum + bag.len() as i128))).collect();
    if random.bool() {
        offsets.push(ids.len() as i128);
    }
    let (given, offsets) = (Given::new(&ids, random), Given::new(&offsets, random));
    let weights: Vec<f32> = ids.iter().map(|_| random.f32() * 4.0 - 2.0).collect();
    let weighted = features.iter().any(|feature| feature.weighted);
    let mut batch = Batch::new(given.ids(), batch as u32);
    if !fixed || random.bool() {
        batch = batch.with_offsets(offsets.ids());
    }
    if weighted {
        batch = batch.with_weights(&weights);
    }
    let stride = width + random.usize(..3);
    let wanted = look_up(tables, features, options, &bags, weighted.then_some(&weights), stride, width);

    let mut buffer = Buffer::new(options.out, wanted.rows.len() + random.usize(..3));
    let mut mask = vec![7; ids.len() + random.usize(..3)];
    let masked = random.bool();
    let mut out = Output::new(buffer.rows(), stride);
    if masked {
        out = out.with_mask(&mut mask);
    }
    let report = slot.lookup(&batch, &mut out).unwrap();
    for (index, &value) in wanted.rows.iter().enumerate() {
        assert!(
            buffer.matches(index, value),
            "row {} element {}: {:#x} instead of {value:x?}; {features:?} {options:?} {bags:?}",
            index / stride,
            index % stride,
            buffer.bits_at(index),
        );
    }
    let beyond = buffer.bits().split_off(wanted.rows.len());
    assert!((0..beyond.len()).all(|i| buffer.matches(wanted.rows.len() + i, Value::Untouched)));
    if masked {
        assert_eq!(mask[..ids.len()], wanted.mask);
        assert!(mask[ids.len()..].iter().all(|&byte| byte == 7));
    }
    check_report(&report, &wanted, seen.len());
}

fn random_tables(random: &mut fastrand::Rng) -> Vec<Table> {
    (0..random.usize(1..5))
        .map(|index| {
            let (rows, dim) = (random.u64(1..400), [1, 3, 8, 40, 128, 300, 2000][random.usize(..7)]);
            Table::random(&format!("t{index}"), rows, dim, random_dtype(random), random)
        })
        .collect()
}

fn whole_lookups(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let lba = if random.bool() { 512 } else { 4096 };
    let (_drives, store) = common::store(random.usize(1..4), 24 << 20, lba);
    let tables = random_tables(&mut random);
    let memory = if random.bool() { 1 << 20 } else { 1 << 30 };
    common::load(&store, &tables, &LoadOptions::default().with_memory(memory));
    let mut host = HostOptions::default().with_dram_bytes(random.u64(..600_000)).with_workers(random.u32(1..3));
    host.depth = [1, 2, 16, 1023][random.usize(..4)];
    host.check_rows = random.bool();
    let host = store.attach_host(host).unwrap();
    for _ in 0..4 {
        let (features, options) = random_features(&tables, &mut random);
        let plan = host.plan(&features, options.clone()).unwrap();
        let mut slot = plan.slot().unwrap();
        for _ in 0..4 {
            one_batch(&mut slot, &tables, &features, &options, plan.width(), &mut random);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn match_the_naive_look_up(seed: u64) {
        whole_lookups(seed);
    }
}

#[test]
fn slots_look_up_side_by_side() {
    let mut random = fastrand::Rng::with_seed(77);
    let (_drives, store) = common::store(2, 24 << 20, 512);
    let tables = random_tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let host = store.attach_host(HostOptions::default().with_dram_bytes(20_000)).unwrap();
    let (features, options) = random_features(&tables, &mut random);
    let plan = host.plan(&features, options.clone().with_slots(3)).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (mut slot, tables, features, options) = (plan.slot().unwrap(), &tables, &features, &options);
            let width = plan.width();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                (0..40).for_each(|_| one_batch(&mut slot, tables, features, options, width, &mut random));
            });
        }
    });
    let metrics = store.metrics();
    assert_eq!(metrics.lookups, 120);
    assert_eq!(metrics.ids, metrics.padding + metrics.missing + metrics.ids_dram + metrics.ids_ssd);
    assert!(plan.slot().is_ok());
}
