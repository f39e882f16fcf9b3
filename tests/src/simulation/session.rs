//! Look-ups, and what they must give by the words of `docs/store.md`.

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use half::{bf16, f16};
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, Feature, HostOptions, LookupError, MissingPolicy, Output, OutputRows, Plan, PlanOptions, Pooling, RowError,
    Slot,
};
use warprow_store::{DType, Store};

use crate::simulation::model::{State, Table};

/// A plan over the tables as they were when it was made.
pub(crate) struct Session {
    // Dropped in this order.
    slots: Vec<Slot>,
    _plan: Plan,
    tables: Vec<Table>,
    /// Table and padding id of each feature.
    features: Vec<(usize, Option<i128>, MissingPolicy)>,
    pooling: Pooling,
    out: DType,
    width: usize,
    /// Every row that is read is checked.
    pub(crate) checked: bool,
    /// Rows that look-ups without a failure had from drives.
    pub(crate) rows_read: u64,
}

const MAX_BATCH: u32 = 6;
const MAX_IDS: usize = 160;

/// What an id stands for.
enum Meant {
    Row(Vec<u8>),
    Default(Vec<u8>),
    /// A row of zeros that counts in a mean.
    Zero,
    Nothing,
}

/// An output of any type.
enum Buffer {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

/// What an output holds before.
const GARBAGE: u8 = 0x5a;

impl Buffer {
    fn new(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![f32::from_bits(0x5a5a_5a5a); len]),
            DType::F16 => Self::F16(vec![f16::from_bits(0x5a5a); len]),
            DType::BF16 => Self::Bf16(vec![bf16::from_bits(0x5a5a); len]),
            DType::I8 => Self::I8(vec![GARBAGE as i8; len]),
            _ => Self::U8(vec![GARBAGE; len]),
        }
    }

    fn rows(&mut self) -> OutputRows<'_> {
        match self {
            Self::F32(rows) => OutputRows::F32(rows),
            Self::F16(rows) => OutputRows::F16(rows),
            Self::Bf16(rows) => OutputRows::Bf16(rows),
            Self::I8(rows) => OutputRows::I8(rows),
            Self::U8(rows) => OutputRows::U8(rows),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::F32(rows) => rows.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
            Self::F16(rows) => rows.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
            Self::Bf16(rows) => rows.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
            Self::I8(rows) => rows.iter().map(|&x| x as u8).collect(),
            Self::U8(rows) => rows.clone(),
        }
    }
}

/// How a look-up that returned nothing wrong ended.
#[derive(Debug)]
pub(crate) enum Found {
    /// All rows that there are.
    All,
    /// An id was missing, and that was to be an error.
    Refused,
    /// All but some, whose drives failed; or nothing.
    Failed(String),
}

impl Session {
    /// Attaches to `store`, whose tables are `state`, and plans some features of random tables. `None` if there are no tables.
    pub(crate) fn new(store: &Store, state: &State, rng: &mut Rng) -> Result<Option<Self>> {
        let Some(first) = state.values().nth(rng.usize(..state.len().max(1))) else { return Ok(None) };
        // Integers are pooled, so that sums are exact.
        let is_integer = |dtype| matches!(dtype, DType::I8 | DType::U8);
        let pooling = match is_integer(first.spec.dtype) && rng.u32(..4) != 0 {
            true => [Pooling::Sum, Pooling::Mean][rng.usize(..2)],
            false => Pooling::None,
        };
        let fits = |table: &&Table| match pooling {
            Pooling::None => table.spec.dtype == first.spec.dtype,
            _ => is_integer(table.spec.dtype),
        };
        let fitting: Vec<&Table> = state.values().filter(fits).collect();
        let out = if pooling == Pooling::None { first.spec.dtype } else { DType::F32 };
        let missing = |rng: &mut Rng| {
            // Refusals hide everything else.
            if rng.u32(..12) == 0 {
                MissingPolicy::Error
            } else {
                [MissingPolicy::Default, MissingPolicy::Zero, MissingPolicy::Skip][rng.usize(..3)]
            }
        };
        let mut tables: Vec<Table> = Vec::new();
        let mut features = Vec::new();
        let mut planned = Vec::new();
        for number in 0..rng.usize(1..=4) {
            let table = fitting[rng.usize(..fitting.len())];
            let index = tables.iter().position(|other| other == table).unwrap_or_else(|| {
                tables.push(table.clone());
                tables.len() - 1
            });
            let padding = (rng.u32(..3) == 0).then(|| i128::from(rng.u64(..table.spec.rows + 2)));
            let missing = missing(rng);
            let mut feature =
                Feature::new(format!("feature{number}"), &table.spec.name).pooling(pooling).missing(missing);
            feature.padding = padding;
            planned.push(feature);
            features.push((index, padding, missing));
        }
        let checked = rng.bool();
        let mut options = HostOptions::default().with_depth(rng.u32(1..=24));
        if rng.bool() {
            options = options.with_dram_bytes(rng.u64(..20_000));
        }
        if checked {
            options = options.with_checked_rows();
        }
        let host = HostExecutor::attach(store, options)?;
        let slots = if rng.u32(..4) == 0 { 2 } else { 1 };
        let plan_options = PlanOptions::default().with_max(MAX_BATCH as usize, MAX_IDS).with_out(out).with_slots(slots);
        let plan = host.plan(&planned, plan_options)?;
        let slots = (0..slots).map(|_| plan.slot()).collect::<Result<_, _>>()?;
        let checked = checked && tables.iter().all(|table| table.spec.row_crc);
        let width = plan.width();
        Ok(Some(Self { slots, _plan: plan, tables, features, pooling, out, width, checked, rows_read: 0 }))
    }

    fn meant(&self, feature: usize, id: i128) -> (Meant, u8) {
        let (table, padding, missing) = self.features[feature];
        let table = &self.tables[table];
        let is_padding = padding == Some(id);
        let stored = u64::try_from(id).ok().filter(|&id| id < table.spec.rows).map(|id| table.row(id));
        let mask = u8::from(stored.is_some() && !is_padding);
        let meant = match (stored, missing) {
            _ if is_padding && self.pooling != Pooling::None => Meant::Nothing,
            (Some(row), _) => Meant::Row(row),
            (None, _) if is_padding => Meant::Nothing,
            (None, MissingPolicy::Default) => Meant::Default(table.default_row()),
            (None, MissingPolicy::Zero) => Meant::Zero,
            (None, _) => Meant::Nothing,
        };
        (meant, mask)
    }

    /// Looks a random batch up and compares everything that comes back.
    pub(crate) fn look_up(&mut self, rng: &mut Rng) -> Result<Found> {
        let batch = rng.u32(..=MAX_BATCH);
        let bags = self.features.len() * batch as usize;
        let mut ids: Vec<i64> = Vec::new();
        let mut offsets = vec![0u32];
        let mut feature_of = Vec::new();
        let most = if rng.u32(..4) == 0 { MAX_IDS / bags.max(1) } else { 6 };
        for bag in 0..bags {
            let feature = bag / batch as usize;
            let rows = self.tables[self.features[feature].0].spec.rows as i64;
            for _ in 0..rng.usize(..=most.min(MAX_IDS / bags)) {
                let hot = rng.bool();
                ids.push(match rng.u32(..24) {
                    0 => -rng.i64(1..5),
                    1 => rows + rng.i64(0..5),
                    _ if hot => rng.i64(0..rows.min(8)),
                    _ => rng.i64(0..rows),
                });
                feature_of.push(feature);
            }
            offsets.push(ids.len() as u32);
        }
        let stride = self.width + if rng.bool() { 0 } else { rng.usize(..5) };
        let pooled = self.pooling != Pooling::None;
        let out_rows = if pooled { batch as usize } else { ids.len() };
        let mut buffer = Buffer::new(self.out, out_rows * stride);
        let mut mask = vec![GARBAGE; ids.len()];
        let untouched = buffer.bytes();
        let slot = rng.usize(..self.slots.len());
        let result = {
            let batch = Batch::new(&ids, batch as usize).with_offsets(&offsets);
            let mut out = Output::new(buffer.rows(), stride).with_mask(&mut mask);
            self.slots[slot].lookup(&batch, &mut out)
        };
        let bytes = buffer.bytes();

        let refusals: Vec<usize> = (0..ids.len())
            .filter(|&at| {
                let (table, padding, missing) = self.features[feature_of[at]];
                let there = (0..self.tables[table].spec.rows as i64).contains(&ids[at]);
                missing == MissingPolicy::Error && !there && padding != Some(ids[at].into())
            })
            .collect();
        let (failed, found) = match result {
            Ok(report) => {
                ensure!(refusals.is_empty(), "ids are missing, and it did not refuse");
                ensure!(report.ids == ids.len() as u64 && report.failed == 0, "{report:?} of {} ids", ids.len());
                let counted = report.padding + report.missing + report.failed + report.ids_dram + report.ids_ssd;
                ensure!(report.ids == counted && report.unique == report.rows_dram + report.rows_ssd, "{report:?}");
                self.rows_read += report.rows_ssd;
                (Vec::new(), Found::All)
            }
            Err(LookupError::RowsFailed { positions, source, report }) => {
                ensure!(refusals.is_empty(), "ids are missing, and it did not refuse");
                ensure!(!positions.is_empty() && positions.is_sorted(), "{positions:?}");
                ensure!(report.failed == positions.len() as u64, "{report:?}");
                if let RowError::Checksum { .. } = source {
                    ensure!(self.checked, "a checksum that was not to be checked");
                }
                (positions, Found::Failed(source.to_string()))
            }
            Err(LookupError::MissingIds { positions, .. }) => {
                ensure!(positions == refusals && !refusals.is_empty(), "{positions:?} are missing, not {refusals:?}");
                ensure!(bytes == untouched, "a refused look-up wrote");
                return Ok(Found::Refused);
            }
            Err(error) => bail!("a right batch was refused: {error}"),
        };
        let is_failed = |at: usize| failed.binary_search(&at).is_ok();

        for (at, &id) in ids.iter().enumerate() {
            let (_, want) = self.meant(feature_of[at], id.into());
            let want = if is_failed(at) { 0 } else { want };
            ensure!(mask[at] == want, "mask of id {id} at {at} is {}", mask[at]);
        }
        let element = self.out.size() as usize;
        let mut want = untouched;
        if pooled {
            for bag in 0..bags {
                let range = offsets[bag] as usize..offsets[bag + 1] as usize;
                let feature = bag / batch as usize;
                let column: usize =
                    self.features[..feature].iter().map(|&(table, ..)| self.tables[table].spec.dim as usize).sum();
                let place = (bag % batch as usize * stride + column) * element;
                let pool = self.pool(feature, &ids[range.clone()], range.clone().any(is_failed));
                want[place..place + pool.len()].copy_from_slice(&pool);
            }
        } else {
            for (at, &id) in ids.iter().enumerate() {
                let place = at * stride * element;
                let row = match self.meant(feature_of[at], id.into()).0 {
                    Meant::Row(row) | Meant::Default(row) if !is_failed(at) => row,
                    _ => Vec::new(),
                };
                want[place..place + self.width * element].fill(0);
                want[place..place + row.len()].copy_from_slice(&row);
            }
        }
        if let Some(at) = want.iter().zip(&bytes).position(|(want, found)| want != found) {
            let row = at / element / stride.max(1);
            let what = if pooled { "bag" } else { "id" };
            bail!("byte {} of output row {row} ({what} {:?}) is wrong", at % (stride * element), ids.get(row));
        }
        Ok(found)
    }

    fn pool(&self, feature: usize, ids: &[i64], failed: bool) -> Vec<u8> {
        let table = &self.tables[self.features[feature].0];
        let mut sum = vec![0i64; table.spec.dim as usize];
        let mut count = 0u32;
        for &id in ids {
            let row = match self.meant(feature, id.into()).0 {
                Meant::Row(row) | Meant::Default(row) => row,
                Meant::Zero => {
                    count += 1;
                    continue;
                }
                Meant::Nothing => continue,
            };
            count += 1;
            for (sum, byte) in sum.iter_mut().zip(row) {
                *sum += if table.spec.dtype == DType::I8 { i64::from(byte as i8) } else { i64::from(byte) };
            }
        }
        let pooled = |sum: i64| match self.pooling {
            _ if failed => 0.0,
            Pooling::Mean if count > 0 => sum as f32 / count as f32,
            _ => sum as f32,
        };
        sum.into_iter().flat_map(|sum| pooled(sum).to_bits().to_le_bytes()).collect()
    }
}
