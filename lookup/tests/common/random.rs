//! Random tables, features and batches.

use half::{bf16, f16};
use warprow_lookup::{Batch, BoundsCheck, Feature, Ids, MissingPolicy, Output, OutputRows, PlanOptions, Pooling};
use warprow_store::DType;

use super::{Table, Value, Wanted, look_up};

/// What output elements are before a look-up.
const BEFORE: u32 = 0x5A5A_5A5A;

/// Output elements of any type, as bits.
pub(crate) enum Buffer {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

impl Buffer {
    pub(crate) fn new(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![f32::from_bits(BEFORE); len]),
            DType::F16 => Self::F16(vec![f16::from_bits(BEFORE as u16); len]),
            DType::BF16 => Self::Bf16(vec![bf16::from_bits(BEFORE as u16); len]),
            DType::I8 => Self::I8(vec![BEFORE as i8; len]),
            _ => Self::U8(vec![BEFORE as u8; len]),
        }
    }

    pub(crate) fn rows(&mut self) -> OutputRows<'_> {
        match self {
            Self::F32(rows) => OutputRows::F32(rows),
            Self::F16(rows) => OutputRows::F16(rows),
            Self::Bf16(rows) => OutputRows::Bf16(rows),
            Self::I8(rows) => OutputRows::I8(rows),
            Self::U8(rows) => OutputRows::U8(rows),
        }
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        match self {
            Self::F32(rows) => rows.iter().map(|x| x.to_bits()).collect(),
            Self::F16(rows) => rows.iter().map(|x| x.to_bits().into()).collect(),
            Self::Bf16(rows) => rows.iter().map(|x| x.to_bits().into()).collect(),
            Self::I8(rows) => rows.iter().map(|&x| u32::from(x as u8)).collect(),
            Self::U8(rows) => rows.iter().map(|&x| x.into()).collect(),
        }
    }

    /// Whether element `index` is as wanted.
    pub(crate) fn matches(&self, index: usize, wanted: Value) -> bool {
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

    pub(crate) fn bits_at(&self, index: usize) -> u32 {
        match self {
            Self::F32(rows) => rows[index].to_bits(),
            Self::F16(rows) => rows[index].to_bits().into(),
            Self::Bf16(rows) => rows[index].to_bits().into(),
            Self::I8(rows) => u32::from(rows[index] as u8),
            Self::U8(rows) => rows[index].into(),
        }
    }
}

pub(crate) fn random_dtype(random: &mut fastrand::Rng) -> DType {
    DType::ALL[random.usize(..DType::ALL.len())]
}

pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Features over `tables` that one plan can have.
pub(crate) fn random_features(tables: &[Table], random: &mut fastrand::Rng) -> (Vec<Feature>, PlanOptions) {
    let pooled = random.bool();
    let out = random_dtype(random);
    let out = if out.is_scaled() { DType::F32 } else { out };
    let out = if pooled && !is_float(out) { DType::F32 } else { out };
    let usable: Vec<&Table> = tables.iter().filter(|table| is_float(out) || table.spec.dtype == out).collect();
    let (out, usable) = if usable.is_empty() { (DType::F32, tables.iter().collect()) } else { (out, usable) };
    let missing = || [MissingPolicy::Default, MissingPolicy::Zero, MissingPolicy::Skip];
    let bounds = || [BoundsCheck::Ignore, BoundsCheck::Count, BoundsCheck::Report];
    let features = (0..random.usize(1..6))
        .map(|index| {
            let table = usable[random.usize(..usable.len())];
            let mut feature = Feature::new(format!("f{index}"), table.spec.name.clone());
            if pooled {
                feature.pooling = if random.bool() { Pooling::Sum } else { Pooling::Mean };
                feature.weighted = feature.pooling == Pooling::Sum && random.bool();
            }
            if random.bool() {
                let near = i128::from(random.i64(-2..table.spec.rows as i64 + 2));
                let own = table.keys.is_some() && random.bool();
                feature.padding = Some(if own { table.id(random.u64(..table.spec.rows)) } else { near });
            }
            feature.missing = random.bool().then(|| missing()[random.usize(..3)]);
            feature.bounds = random.bool().then(|| bounds()[random.usize(..3)]);
            feature
        })
        .collect();
    let options = PlanOptions::default().with_max(8, 200).with_out(out).with_missing(missing()[random.usize(..3)]);
    let options = if random.bool() { options.with_bounds(bounds()[random.usize(..3)]) } else { options };
    (features, options)
}

/// Ids as a caller may give them.
pub(crate) enum Given {
    I32(Vec<i32>),
    I64(Vec<i64>),
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl Given {
    pub(crate) fn new(ids: &[i128], random: &mut fastrand::Rng) -> Self {
        let signed = ids.iter().any(|&id| id < 0);
        let wide = ids.iter().any(|&id| i32::try_from(id).is_err());
        match (signed, wide, random.bool()) {
            (_, false, true) => Self::I32(ids.iter().map(|&id| id as i32).collect()),
            (true, ..) => Self::I64(ids.iter().map(|&id| id as i64).collect()),
            (false, false, false) => Self::U32(ids.iter().map(|&id| id as u32).collect()),
            (false, true, _) => Self::U64(ids.iter().map(|&id| id as u64).collect()),
        }
    }

    pub(crate) fn ids(&self) -> Ids<'_> {
        match self {
            Self::I32(ids) => ids.into(),
            Self::I64(ids) => ids.into(),
            Self::U32(ids) => ids.into(),
            Self::U64(ids) => ids.into(),
        }
    }
}

/// A random batch, and what a look-up of it must give.
pub(crate) struct Case {
    pub(crate) bags: Vec<Vec<i128>>,
    pub(crate) batch: usize,
    pub(crate) ids: Given,
    pub(crate) count: usize,
    /// `None`: all bags are of one length.
    pub(crate) offsets: Option<Given>,
    /// Given if a feature is weighted.
    pub(crate) weights: Option<Vec<f32>>,
    pub(crate) stride: usize,
    pub(crate) wanted: Wanted,
    /// Different rows of tables among the ids.
    pub(crate) unique: usize,
    /// What must be read where. Longer than the output by a few elements.
    pub(crate) buffer: Buffer,
    pub(crate) mask: Vec<u8>,
    pub(crate) masked: bool,
}

impl Case {
    /// `ends`: offsets always have an entry past the last bag.
    pub(crate) fn random(
        tables: &[Table],
        features: &[Feature],
        options: &PlanOptions,
        width: usize,
        ends: bool,
        random: &mut fastrand::Rng,
    ) -> Self {
        let batch = random.usize(..=options.max_batch);
        let count = batch * features.len();
        // Few bags of many ids, where there is room for such.
        let longer = if options.max_ids / options.max_batch >= 500 { 150 } else { 1 };
        let each = random.usize(..4) * longer;
        let fixed = random.bool();
        let mut left = options.max_ids;
        let mut bags: Vec<Vec<i128>> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for bag in 0..count {
            let feature = &features[bag / batch];
            let table = tables.iter().find(|table| table.spec.name == feature.table).unwrap();
            let len = if fixed { each } else { (random.usize(..9).saturating_sub(2) * longer).min(left) };
            let len = if fixed && each * count > options.max_ids { 0 } else { len };
            left = left.saturating_sub(len);
            let ids: Vec<i128> = (0..len)
                .map(|_| match random.u32(..12) {
                    0 => -i128::from(random.u32(1..5)),
                    1 => i128::from(table.spec.rows + random.u64(..3)),
                    2 if random.bool() => i128::from(random.u64(..)),
                    2 => i128::from(random.i32(..)),
                    3..8 => table.id(random.u64(..table.spec.rows.min(4))),
                    _ => table.id(random.u64(..table.spec.rows)),
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
                if table.position(id).is_some() && !padding {
                    seen.insert((&table.spec.name, id));
                }
            }
        }

        let ids: Vec<i128> = bags.iter().flatten().copied().collect();
        let mut offsets: Vec<i128> =
            bags.iter().scan(0, |sum, bag| Some(std::mem::replace(sum, *sum + bag.len() as i128))).collect();
        if random.bool() || ends {
            offsets.push(ids.len() as i128);
        }
        let given = Given::new(&ids, random);
        let offsets = Given::new(&offsets, random);
        let weights: Vec<f32> = ids.iter().map(|_| random.f32() * 4.0 - 2.0).collect();
        let weights = features.iter().any(|feature| feature.weighted).then_some(weights);
        let offsets = (!fixed || random.bool()).then_some(offsets);
        let stride = width + random.usize(..3);
        let wanted = look_up(tables, features, options, &bags, weights.as_deref(), stride, width);
        let buffer = Buffer::new(options.out, wanted.rows.len() + random.usize(..3));
        let mask = vec![7; ids.len() + random.usize(..3)];
        Self {
            batch,
            ids: given,
            count: ids.len(),
            offsets,
            weights,
            stride,
            wanted,
            unique: seen.len(),
            buffer,
            mask,
            masked: random.bool(),
            bags,
        }
    }

    /// As a look-up takes them.
    pub(crate) fn arrays(&mut self) -> (Batch<'_>, Output<'_>) {
        let mut batch = Batch::new(self.ids.ids(), self.batch);
        if let Some(offsets) = &self.offsets {
            batch = batch.with_offsets(offsets.ids());
        }
        if let Some(weights) = &self.weights {
            batch = batch.with_weights(weights);
        }
        let out = Output::new(self.buffer.rows(), self.stride);
        (batch, if self.masked { out.with_mask(&mut self.mask) } else { out })
    }

    /// Whether output and mask are what they must be.
    pub(crate) fn check(&self, context: &dyn std::fmt::Debug) {
        for (index, &value) in self.wanted.rows.iter().enumerate() {
            assert!(
                self.buffer.matches(index, value),
                "row {} element {}: {:#x} instead of {value:x?}; {context:?} {:?}",
                index / self.stride,
                index % self.stride,
                self.buffer.bits_at(index),
                self.bags,
            );
        }
        let beyond = self.buffer.bits().split_off(self.wanted.rows.len());
        assert!((0..beyond.len()).all(|i| self.buffer.matches(self.wanted.rows.len() + i, Value::Untouched)));
        if self.masked {
            assert_eq!(self.mask[..self.count], self.wanted.mask, "{context:?} {:?}", self.bags);
            assert!(self.mask[self.count..].iter().all(|&byte| byte == 7));
        }
    }
}

pub(crate) fn random_tables(random: &mut fastrand::Rng) -> Vec<Table> {
    (0..random.usize(1..5))
        .map(|index| {
            let rows = random.u64(1..400);
            let dim = [1, 3, 8, 40, 128, 300, 2000][random.usize(..7)];
            let dtype = random_dtype(random);
            // Whole bytes.
            let dim: u32 = if dtype == DType::Q4 { dim + dim % 2 } else { dim };
            let dim = dim.next_multiple_of(dtype.scale_block().unwrap_or(1));
            Table::random(&format!("t{index}"), rows, dim, dtype, random)
        })
        .collect()
}
