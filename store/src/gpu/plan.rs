//! Prepared look-ups on the GPU.

use std::sync::{Arc, Mutex};

use warprow_gpu_queues::DeviceMemory;
use warprow_kernels::{Kind, SMALL_IDS, Shape, abi};

use super::GpuError;
use super::arrange::LINE;
use super::executor::{Attached, GpuTable, keys_of};
use super::slot::{GpuSlot, State};
use crate::feature::{Feature, Missing, PlanOptions, Pooling};
use crate::member::lock;
use crate::plan::{Resolved, resolve};

/// Most keys that a plan has: a bitmap of 1 GiB.
const MAX_KEYS: u64 = 1 << 33;

/// Look-ups of a list of features on the GPU, prepared. Clones share its slots.
#[derive(Debug, Clone)]
pub struct GpuPlan {
    pub(crate) inner: Arc<Prepared>,
}

#[derive(Debug)]
pub(crate) struct Prepared {
    // Dropped first: graphs go before the kernels that they are made of.
    idle: Mutex<Vec<State>>,
    pub attached: Arc<Attached>,
    pub options: PlanOptions,
    pub pooled: bool,
    pub weighted: bool,
    pub width: usize,
    pub generation: u64,
    pub features: u32,
    pub first: abi::Feature,
    pub segments: u32,
    /// Features, tables and segments, one after another.
    pub description: DeviceMemory,
    pub tables_at: u64,
    pub segments_at: u64,
    pub keys: u64,
    pub ssd_key: u64,
    /// Rows that are not in GPU memory.
    pub keyed_rows: u64,
    pub cold_rows: u64,
    pub staging_stride: u64,
    /// Of few ids, and of many.
    sharing: [Sharing; 2],
}

/// How lanes share a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    /// log₂ of the lanes that share a row, or a part of it.
    pub lanes: u32,
    /// As many, or only as many as the widest row needs.
    pub row_lanes: u32,
    /// Parts of the widest row.
    pub parts_of_row: u32,
    /// Lanes are aligned to lines of 128 B: where most rows in DRAM straddle those.
    pub by_lines: bool,
}

impl Sharing {
    /// `widest`: bytes of the longest row; `whole`: all rows are of whole 16 B.
    fn new(widest: u32, whole: bool, by_lines: bool) -> Self {
        let quads = widest / 16 + if by_lines { LINE as u32 / 16 - 1 } else { 0 };
        let lanes = quads.next_power_of_two().trailing_zeros().min(5);
        let row_lanes = if whole { quads.clamp(1, 1 << lanes) } else { 1 << lanes };
        Self { lanes, row_lanes, parts_of_row: quads.div_ceil(1 << lanes).max(1), by_lines }
    }
}

/// From so many ids on, reading by lines gains more than the idle lanes cost.
const MANY: u64 = 4096;

impl GpuPlan {
    pub(crate) fn new(attached: Arc<Attached>, features: &[Feature], options: PlanOptions) -> Result<Self, GpuError> {
        let known = attached.tables.iter().map(|table| table.located.table());
        let Resolved { features: planned, tables, pooled, width } = resolve(known, features, &options)?;
        if let Some((feature, _)) = features.iter().zip(&planned).find(|(_, it)| it.missing == Missing::Error) {
            return Err(GpuError::Unsupported(format!(
                "feature {:?}: a look-up on the GPU cannot stop at a missing id; choose another `missing` and read the mask",
                feature.name
            )));
        }
        let table = |index: usize| &attached.tables[tables[index].host];
        (0..tables.len()).try_for_each(|index| table(index).check(attached.options.check_keys))?;
        let mut segments = Vec::with_capacity(tables.len() * 2);
        let mut keys = 0u64;
        let mut firsts = vec![(0, 0); tables.len()];
        for tier in [abi::tier::DRAM, abi::tier::SSD] {
            for (index, first) in firsts.iter_mut().enumerate() {
                let it = table(index);
                let (first_rank, rows, place) = match tier {
                    abi::tier::DRAM => (it.hbm_rows, it.dram_end - it.hbm_rows, &mut first.0),
                    _ => (it.dram_end, it.located.table().rows - it.dram_end, &mut first.1),
                };
                *place = keys;
                if rows > 0 {
                    segments.push(abi::Segment { first_key: keys, first_rank, rows, table: index as u32, tier });
                    keys = keys.saturating_add(keys_of(rows));
                }
            }
        }
        if keys > MAX_KEYS {
            return Err(GpuError::Unsupported(format!(
                "the plan's tables have {keys} rows outside GPU memory; the GPU executor takes {MAX_KEYS}: split the plan"
            )));
        }
        let ssd_key = segments.iter().find(|it| it.tier == abi::tier::SSD).map_or(keys, |it| it.first_key);
        let sum = |rows: fn(&abi::Segment) -> u64| segments.iter().map(rows).sum::<u64>();
        let keyed_rows = sum(|it| it.rows);
        let cold_rows = sum(|it| if it.tier == abi::tier::SSD { it.rows } else { 0 });
        let described: Vec<abi::Table> = firsts
            .iter()
            .enumerate()
            .map(|(index, &(dram_key, ssd_key))| table(index).for_kernels(&attached, dram_key, ssd_key))
            .collect();
        let (mut description, mut first) = (Vec::new(), None);
        for feature in &planned {
            let (has_padding, padding) = feature.padding.map_or((abi::padding::NONE, 0), padding_of);
            let feature = abi::Feature {
                table: described[usize::from(feature.table)],
                pooling: match feature.pooling {
                    Pooling::None => abi::pooling::NONE,
                    Pooling::Sum => abi::pooling::SUM,
                    Pooling::Mean => abi::pooling::MEAN,
                },
                missing: match feature.missing {
                    Missing::Zero => abi::missing::ZERO,
                    Missing::Skip => abi::missing::SKIP,
                    Missing::Default | Missing::Error => abi::missing::DEFAULT,
                },
                weighted: feature.weighted.into(),
                column: feature.column as u32,
                has_padding,
                unused: 0,
                padding,
            };
            first.get_or_insert(feature);
            description.extend_from_slice(feature.as_bytes());
        }
        let tables_at = description.len() as u64;
        described.iter().for_each(|table| description.extend_from_slice(table.as_bytes()));
        let segments_at = description.len() as u64;
        segments.iter().for_each(|segment| description.extend_from_slice(segment.as_bytes()));
        let widest = (0..tables.len()).map(|index| table(index).row_stride).max().unwrap_or(16);
        let straddles = |it: &GpuTable| it.dram_end > it.hbm_rows && mostly_straddle(it.row_stride.into());
        let by_lines = (0..tables.len()).any(|index| straddles(table(index)));
        let row_bytes = |index| table(index).located.table().row_bytes();
        let whole = (0..tables.len()).all(|index| row_bytes(index).is_multiple_of(16));
        let longest = (0..tables.len()).map(|index| row_bytes(index).next_multiple_of(16)).max().unwrap_or(16);
        let memory = DeviceMemory::new(&attached.gpu, description.len().max(1) as u64)?;
        memory.write(0, &description)?;
        let mut prepared = Prepared {
            weighted: planned.iter().any(|feature| feature.weighted),
            generation: (0..tables.len()).map(|index| table(index).located.generation.id).max().unwrap_or(0),
            features: planned.len() as u32,
            first: first.unwrap_or_default(),
            segments: segments.len() as u32,
            description: memory,
            tables_at,
            segments_at,
            keys,
            ssd_key,
            keyed_rows,
            cold_rows,
            staging_stride: widest.into(),
            sharing: [false, by_lines].map(|by_lines| Sharing::new(longest, whole, by_lines)),
            options,
            pooled,
            width,
            idle: Mutex::default(),
            attached,
        };
        let strides = (0..tables.len()).map(|index| {
            let table = &prepared.attached.tables[tables[index].host];
            let lba = prepared.attached.store.volume.geometry().lba_size();
            let found = table.located.table();
            if crate::plan::is_float8(found.dtype) || found.dtype.is_scaled() {
                let what = format!(
                    "table {:?} has elements of type {}: the GPU does not widen them yet",
                    found.name, found.dtype
                );
                return Err(GpuError::Unsupported(what));
            }
            super::executor::landing_stride(table.located.table(), lba).map_err(GpuError::Unsupported)
        });
        let landing = strides.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(4096);
        let slots = (0..prepared.options.slots).map(|_| State::new(&prepared, landing));
        prepared.idle = Mutex::new(slots.collect::<Result<_, _>>()?);
        Ok(Self { inner: Arc::new(prepared) })
    }

    /// Takes a slot, until it is dropped. [`GpuError::QueueBusy`] if all are taken.
    pub fn slot(&self) -> Result<GpuSlot, GpuError> {
        match lock(&self.inner.idle).pop() {
            Some(state) => Ok(GpuSlot::new(self.inner.clone(), state)),
            None => Err(GpuError::QueueBusy("all slots of the plan are taken")),
        }
    }

    /// Elements of an output row: all features side by side if they are pooled, else the widest.
    pub fn width(&self) -> usize {
        self.inner.width
    }

    /// The latest generation among those that it reads.
    pub fn generation(&self) -> u64 {
        self.inner.generation
    }
}

impl Prepared {
    /// How so many ids are looked up. Where no row lies on a drive, each row may be read where it lies, without deduplication.
    /// Rows in GPU memory always are. For rows in DRAM, deduplication and the order of addresses pay when there are enough ids,
    /// the sooner the larger the memory, and sooner for uniform ids than for skewed ones; this is where they pay for both
    /// (docs/performance.md).
    pub(crate) fn kind(&self, ids: u64) -> Kind {
        let dram = self.attached.dram.as_ref().map_or(0, |dram| dram.memory().len() as u64);
        let most = self.attached.options.direct_ids.unwrap_or(match dram >> 30 {
            0..=2 => 1 << 19,
            3..=8 => 1 << 18,
            _ => 1 << 17,
        });
        if self.cold_rows == 0 && (self.keyed_rows == 0 || ids <= most.max(SMALL_IDS)) {
            Kind::Direct
        } else if ids <= SMALL_IDS {
            Kind::Small
        } else {
            Kind::Large
        }
    }

    pub(crate) fn sharing(&self, ids: u64) -> Sharing {
        self.sharing[usize::from(ids >= MANY)]
    }

    /// The shape of a launch of so many ids and rows or bags.
    pub(crate) fn shape(&self, max_ids: u64, max_rows: u64) -> Shape {
        Shape { sms: self.attached.gpu.sms(), max_ids, max_rows, gatherers: self.attached.options.gatherers }
    }

    pub(crate) fn give_back(&self, state: State) {
        lock(&self.idle).push(state);
    }
}

/// Whether more than half of all rows that follow each other so many bytes apart (a multiple of 16) begin in one line and end
/// in another, without being made of whole lines.
fn mostly_straddle(stride: u64) -> bool {
    let step = 1 << stride.trailing_zeros().min(LINE.trailing_zeros());
    step < LINE && (stride > LINE || 2 * (stride - step) > LINE)
}

/// A padding id as the kernels compare it: which types of ids can be it, and its bits.
fn padding_of(id: i128) -> (u32, u64) {
    match (i64::try_from(id), u64::try_from(id)) {
        (Ok(id), Ok(_)) => (abi::padding::ANY, id as u64),
        (Ok(id), Err(_)) => (abi::padding::SIGNED, id as u64),
        (Err(_), Ok(id)) => (abi::padding::U64, id),
        (Err(_), Err(_)) => (abi::padding::NONE, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_straddle_lines_as_counting_says() {
        for stride in (16..2000).step_by(16) {
            let straddling = (0..LINE).filter(|row| row * stride / LINE != (row * stride + stride - 1) / LINE).count();
            let wanted = !stride.is_multiple_of(LINE) && 2 * straddling as u64 > LINE;
            assert_eq!(mostly_straddle(stride), wanted, "{stride}");
        }
    }
}
