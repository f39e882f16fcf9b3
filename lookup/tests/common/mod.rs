//! Stores in memory, and look-ups by the words of `docs/store.md`, as naively as possible.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod random;

use std::ops::ControlFlow;
use std::sync::Arc;

use half::{bf16, f16};
use warprow_keys::IndexOptions;
use warprow_layout::{FormatOptions, block_scales, float8};
use warprow_lookup::{BoundsCheck, Feature, MissingId, MissingPolicy, PlanOptions, Pooling};
use warprow_soft_controller::{Namespace, RamBacking, SoftController};
use warprow_store::{
    DType, Device, FingerprintWidth, KeyIndex, KeyKind, KeySource, LoadOptions, OpenOptions, Ranks, RowOrder, Store,
    StoreError, TableKeys, TableLoad, TableSpec,
};

/// A drive in memory.
pub(crate) fn drive(name: &str, bytes: u64, lba: u32) -> Arc<SoftController> {
    let namespace = Namespace::new(RamBacking::new(bytes).unwrap()).lba(lba);
    SoftController::builder().name(name).serial(name).namespace(namespace).permute().build().unwrap()
}

/// `count` drives in memory, and an empty store on them.
pub(crate) fn store(count: usize, bytes: u64, lba: u32) -> (Vec<Arc<SoftController>>, Store) {
    let drives: Vec<_> = (0..count).map(|i| drive(&format!("drive{i}"), bytes, lba)).collect();
    let store = store_on(&devices(&drives));
    (drives, store)
}

/// An empty store on these devices.
pub(crate) fn store_on(devices: &[Device]) -> Store {
    Store::create(devices, &FormatOptions::default(), &OpenOptions::default()).unwrap()
}

pub(crate) fn devices(drives: &[Arc<SoftController>]) -> Vec<Device> {
    drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect()
}

/// A table with the rows that it must have, by id.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) spec: TableSpec,
    pub(crate) rows: Vec<u8>,
    pub(crate) ranks: Option<Ranks>,
    /// What ids are, by position of their rows, if they are not the positions.
    pub(crate) keys: Option<Keys>,
}

/// The sparse ids of a table.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) numbers: Vec<i128>,
    pub(crate) kind: KeyKind,
    pub(crate) fingerprint: FingerprintWidth,
    pub(crate) order: RowOrder,
    pub(crate) stored: bool,
}

impl KeySource for Keys {
    fn len(&self) -> u64 {
        self.numbers.len() as u64
    }

    fn kind(&self) -> KeyKind {
        self.kind
    }

    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()> {
        keys.iter_mut().zip(&self.numbers[first as usize..]).for_each(|(key, &number)| *key = number as u64);
        Ok(())
    }
}

impl Keys {
    /// A key that is none of these.
    pub(crate) fn foreign(&self, random: &mut fastrand::Rng) -> i128 {
        loop {
            let shift = random.u32(..64);
            let number = match self.kind {
                KeyKind::I64 => i128::from(random.i64(..) >> shift),
                _ => i128::from(random.u64(..) >> shift),
            };
            if !self.numbers.contains(&number) {
                return number;
            }
        }
    }

    pub(crate) fn index(&self) -> Arc<KeyIndex> {
        let options = IndexOptions::default().with_fingerprint(self.fingerprint).with_threads(1);
        Arc::new(KeyIndex::build(self, &options, &mut |_| ControlFlow::Continue(())).unwrap())
    }
}

impl Table {
    pub(crate) fn row_bytes(&self) -> usize {
        self.spec.dtype.row_bytes(self.spec.dim).unwrap() as usize
    }

    /// Where the row of `id` stands; `None`: the table does not have it.
    pub(crate) fn position(&self, id: i128) -> Option<u64> {
        match &self.keys {
            None => (0..i128::from(self.spec.rows)).contains(&id).then_some(id as u64),
            Some(keys) => keys.numbers.iter().position(|&number| number == id).map(|position| position as u64),
        }
    }

    /// The id at a position.
    pub(crate) fn id(&self, position: u64) -> i128 {
        self.keys.as_ref().map_or(i128::from(position), |keys| keys.numbers[position as usize])
    }

    /// The table with random sparse ids instead of its own, of whatever kind; `checked`: each will be compared with the
    /// stored one, else fingerprints are so long that no test meets a false one.
    pub(crate) fn with_random_keys(mut self, checked: bool, random: &mut fastrand::Rng) -> Self {
        let kind = if random.bool() { KeyKind::I64 } else { KeyKind::U64 };
        let rows = self.spec.rows as usize;
        let mut numbers: Vec<i128> = vec![0, 1, i128::from(i64::MAX), i128::from(u32::MAX)];
        match kind {
            KeyKind::I64 => numbers.extend([-1, i128::from(i64::MIN)]),
            KeyKind::U64 => numbers.extend([i128::from(u64::MAX), 1 << 63]),
        }
        random.shuffle(&mut numbers);
        numbers.truncate(random.usize(..=numbers.len()));
        while numbers.len() < rows {
            let shift = random.u32(..64);
            let number = match kind {
                KeyKind::I64 => i128::from(random.i64(..) >> shift),
                KeyKind::U64 => i128::from(random.u64(..) >> shift),
            };
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        numbers.truncate(rows);
        random.shuffle(&mut numbers);
        let order = match (&self.ranks, random.bool()) {
            (Some(ranks), _) => RowOrder::Ranks(ranks.clone()),
            (None, true) => RowOrder::Given,
            (None, false) => RowOrder::Positions,
        };
        let widths = [FingerprintWidth::Bits8, FingerprintWidth::Bits16, FingerprintWidth::Bits32];
        let fingerprint = if checked { widths[random.usize(..3)] } else { FingerprintWidth::Bits32 };
        self.keys = Some(Keys { numbers, kind, fingerprint, order, stored: checked || random.bool() });
        self
    }

    pub(crate) fn row(&self, id: u64) -> &[u8] {
        &self.rows[id as usize * self.row_bytes()..][..self.row_bytes()]
    }

    /// Random content: every bit pattern, NaN included.
    pub(crate) fn random(name: &str, rows: u64, dim: u32, dtype: DType, random: &mut fastrand::Rng) -> Self {
        let mut spec = TableSpec::new(name, rows, dim, dtype);
        let row_bytes = dtype.row_bytes(dim).unwrap();
        let rows: Vec<u8> = (0..rows * u64::from(row_bytes)).map(|_| random.u8(..)).collect();
        spec.permuted = random.bool();
        spec.row_crc = random.bool();
        spec.hot_rows = random.u64(..=spec.rows);
        spec.default_row = random.bool().then(|| (0..row_bytes).map(|_| random.u8(..)).collect());
        let ranks = spec.permuted.then(|| {
            let counts: Vec<u64> = (0..spec.rows).map(|_| random.u64(..20)).collect();
            Ranks::by_hotness(&counts)
        });
        Self { spec, rows, ranks, keys: None }
    }
}

pub(crate) fn load(store: &Store, tables: &[Table], options: &LoadOptions) {
    try_load(store, tables, options).unwrap();
}

/// Loads `tables`; returns the generation, or why there is none.
pub(crate) fn try_load(store: &Store, tables: &[Table], options: &LoadOptions) -> Result<u64, StoreError> {
    let sources: Vec<&[u8]> = tables.iter().map(|table| &table.rows[..]).collect();
    let keyed: Vec<Option<TableKeys<'_>>> = tables
        .iter()
        .map(|table| {
            let keys = table.keys.as_ref()?;
            Some(TableKeys::new(keys.index(), keys, keys.order.clone(), keys.stored).unwrap())
        })
        .collect();
    let specs: Vec<TableSpec> = tables
        .iter()
        .zip(&keyed)
        .map(|(table, keyed)| keyed.as_ref().map_or(table.spec.clone(), |keyed| table.spec.clone().keyed(keyed)))
        .collect();
    let loads: Vec<TableLoad<'_>> = tables
        .iter()
        .zip(&sources)
        .zip(specs.iter().zip(&keyed))
        .map(|((table, source), (spec, keyed))| {
            let load = TableLoad::new(spec, source);
            match (keyed, &table.ranks) {
                (Some(keyed), _) => load.with_keys(keyed),
                (None, Some(ranks)) => load.with_ranks(ranks),
                (None, None) => load,
            }
        })
        .collect();
    Ok(store.load("model", &loads, options, &mut |_| ControlFlow::Continue(()))?.generation)
}

/// One element of an output.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    /// Exactly these bits.
    Bits(u32),
    /// A number of the output's type; any NaN is as good as another.
    Number(f32),
    /// Whatever it was before.
    Untouched,
}

/// What a look-up must give: elements, and the mask.
pub(crate) struct Wanted {
    pub(crate) rows: Vec<Value>,
    pub(crate) mask: Vec<u8>,
    pub(crate) missing: u64,
    pub(crate) padding: u64,
    pub(crate) first_missing: Option<MissingId>,
}

/// What numbers with a scale and a bias stand for, rounded twice.
fn scaled(numbers: impl Iterator<Item = u8>, scale: f32, bias: f32) -> Vec<f32> {
    let number = |number: u8| {
        let product = f32::from(number) * scale;
        product + bias
    };
    numbers.map(number).collect()
}

pub(crate) fn widen(dtype: DType, row: &[u8]) -> Vec<f32> {
    if let Some(values) = float8::values_of(dtype) {
        return row.iter().map(|&code| values[usize::from(code)]).collect();
    }
    match (dtype, row) {
        (DType::Q8, [numbers @ .., a, b, c, d, e, f, g, h]) => {
            let scale = f32::from_le_bytes([*a, *b, *c, *d]);
            let bias = f32::from_le_bytes([*e, *f, *g, *h]);
            return scaled(numbers.iter().copied(), scale, bias);
        }
        (DType::Q4, [pairs @ .., a, b, c, d]) => {
            let scale = f16::from_le_bytes([*a, *b]).to_f32();
            let bias = f16::from_le_bytes([*c, *d]).to_f32();
            return scaled(pairs.iter().flat_map(|pair| [pair & 15, pair >> 4]), scale, bias);
        }
        (DType::Mxfp8, _) => {
            let (codes, scales) = row.split_at(row.len() / 33 * 32);
            let scale = |at: usize| block_scales::e8m0(scales[at / 32]);
            return (0..codes.len()).map(|at| float8::E4M3_VALUES[usize::from(codes[at])] * scale(at)).collect();
        }
        (DType::F8E4M3S, [codes @ .., a, b, c, d]) => {
            let scale = f32::from_le_bytes([*a, *b, *c, *d]);
            return codes.iter().map(|&code| float8::E4M3_VALUES[usize::from(code)] * scale).collect();
        }
        (DType::Nvfp4, [rest @ .., a, b, c, d]) => {
            let global = f32::from_le_bytes([*a, *b, *c, *d]);
            let (pairs, scales) = rest.split_at(rest.len() / 9 * 8);
            let number = |at: usize| {
                let scale = float8::E4M3_VALUES[usize::from(scales[at / 16])] * global;
                block_scales::E2M1_VALUES[usize::from(pairs[at / 2] >> (at % 2 * 4) & 15)] * scale
            };
            return (0..pairs.len() * 2).map(number).collect();
        }
        _ => {}
    }
    row.chunks(dtype.size() as usize)
        .map(|bytes| match (dtype, bytes) {
            (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (DType::I8, &[a]) => f32::from(a as i8),
            (DType::U8, &[a]) => f32::from(a),
            _ => unreachable!("whole elements"),
        })
        .collect()
}

fn values(table: &Table, row: Option<&[u8]>, out: DType) -> Vec<Value> {
    let dim = table.spec.dim as usize;
    let dtype = table.spec.dtype;
    match row {
        None => vec![Value::Bits(0); dim],
        Some(row) if dtype == out => row
            .chunks(dtype.size() as usize)
            .map(|bytes| Value::Bits(bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte))))
            .collect(),
        Some(row) => widen(dtype, row).into_iter().map(Value::Number).collect(),
    }
}

/// Looks a batch up in `tables`. `bags` are the ids of each bag, feature-major.
pub(crate) fn look_up(
    tables: &[Table],
    features: &[Feature],
    options: &PlanOptions,
    bags: &[Vec<i128>],
    weights: Option<&[f32]>,
    stride: usize,
    width: usize,
) -> Wanted {
    let batch = bags.len() / features.len();
    let pooled = features[0].pooling != Pooling::None;
    let ids: usize = bags.iter().map(Vec::len).sum();
    let out_rows = if pooled { batch } else { ids };
    let mut rows = vec![Value::Untouched; out_rows * stride];
    let mut mask = Vec::new();
    let mut position = 0;
    let mut column = 0;
    let mut missing_count = 0;
    let mut padding_count = 0;
    let mut first_missing = None;
    for (index, bag) in bags.iter().enumerate() {
        let feature = &features[index / batch];
        if index > 0 && index % batch == 0 {
            let previous = &features[index / batch - 1];
            column += tables.iter().find(|table| table.spec.name == previous.table).unwrap().spec.dim as usize;
        }
        let table = tables.iter().find(|table| table.spec.name == feature.table).unwrap();
        let dim = table.spec.dim as usize;
        let zeros = vec![0; table.row_bytes()];
        let default = table.spec.default_row.as_deref().unwrap_or(&zeros);
        let mut sum = vec![0f32; dim];
        let mut count = 0u32;
        for &id in bag {
            let position_of_row = table.position(id);
            let found = position_of_row.is_some();
            let padding = feature.padding == Some(id);
            mask.push(u8::from(found && !padding));
            let bounds = feature.bounds.unwrap_or(options.bounds);
            let ignored = bounds == BoundsCheck::Ignore && !found && !padding;
            missing_count += u64::from(!found && !padding && !ignored);
            padding_count += u64::from(padding && (pooled || !found) || ignored);
            if bounds == BoundsCheck::Report && !found && !padding && first_missing.is_none() {
                first_missing = Some(MissingId { position: position as u64, id });
            }
            let missing = feature.missing.unwrap_or(options.missing);
            let stored = position_of_row.map(|position| table.row(position));
            if pooled {
                let row = match (padding, stored, missing) {
                    (true, _, _) => None,
                    (false, Some(row), _) => Some(widen(table.spec.dtype, row)),
                    (false, None, MissingPolicy::Default) => Some(widen(table.spec.dtype, default)),
                    (false, None, MissingPolicy::Zero) => {
                        count += 1;
                        None
                    }
                    (false, None, _) => None,
                };
                if let Some(row) = row {
                    count += 1;
                    for (sum, x) in sum.iter_mut().zip(row) {
                        let product = if feature.weighted { weights.unwrap()[position] * x } else { x };
                        *sum += product;
                    }
                }
            } else {
                let row = match (stored, missing) {
                    (Some(row), _) => Some(row),
                    (None, MissingPolicy::Default) if !padding => Some(default),
                    (None, _) => None,
                };
                let out = &mut rows[position * stride..][..width];
                out.fill(Value::Bits(0));
                out[..dim].copy_from_slice(&values(table, row, options.out));
            }
            position += 1;
        }
        if pooled {
            if feature.pooling == Pooling::Mean && count > 0 {
                sum.iter_mut().for_each(|sum| *sum /= count as f32);
            }
            let out = &mut rows[index % batch * stride + column..][..dim];
            out.copy_from_slice(&sum.into_iter().map(Value::Number).collect::<Vec<_>>());
        }
    }
    Wanted { rows, mask, missing: missing_count, padding: padding_count, first_missing }
}
