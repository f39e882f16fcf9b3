//! A plan as the kernels read it: features, tables, segments. Each state of a plan has a description of its own, which
//! may be replaced by that of other tables.

use std::borrow::Cow;

use warprow_kernels::abi;
use warprow_kernels::dedupe::MOST_KEYS;
use warprow_layout::Table;

use crate::arrange::gpu_row_bytes;
use crate::dedupe::MOST_BITMAP_KEYS;
use crate::dedupe::Sizes;
use crate::error::GpuError;
use crate::scales::ResidentScales;
use crate::table::GpuTable;
use crate::table_abi::{element_of, keys_of, landing_stride};
use crate::view::View;
use warprow_lookup::executors::{Resolved, resolve};
use warprow_lookup::{BoundsCheck, Feature, MissingPolicy, PlanOptions, Pooling};

/// What look-ups of a plan read.
#[derive(Debug)]
pub(crate) struct Description {
    /// Features, tables and segments, one after another; a multiple of 16 bytes.
    pub bytes: Vec<u8>,
    pub tables_at: u64,
    pub segments_at: u64,
    pub features: u32,
    /// Segments, empty ones included: two a table.
    pub segments: u32,
    pub first: abi::Feature,
    pub pooled: bool,
    pub weighted: bool,
    /// Whether look-ups take the kernels that can do everything.
    pub rich: bool,
    /// Whether tables have scales in memory of their own.
    pub scaled: bool,
    pub width: usize,
    pub keys: Keys,
    /// Rows that are not in GPU memory, and those on drives.
    pub keyed_rows: u64,
    pub cold_rows: u64,
    /// Look-ups ask the cache, for rows on drives or in DRAM.
    pub is_cached: bool,
    /// Look-ups ask lists which rows are in DRAM, or may come to do so.
    pub is_listed: bool,
    /// Bytes of the longest row in memory.
    pub stride: u32,
    /// Bytes that a read of a row takes, at most.
    pub landing: u32,
    /// LBAs of a row, at least.
    pub row_lbas: u32,
    /// What other descriptions in its place have to have: elements, types and bytes of each table's rows.
    pub rows: Vec<(u32, u32, u32, u32)>,
    /// Names of its tables.
    names: Vec<String>,
    pub generation: u64,
}

/// How many keys there are for rows in DRAM and for rows on drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub dram: u64,
    pub ssd: u64,
}

impl Keys {
    pub(crate) fn all(self) -> u64 {
        self.dram + self.ssd
    }

    /// For tables that grow: in either tier twice as many as there are rows, as far as that goes.
    fn grown(self, rows: u64) -> Self {
        let spare = MOST_BITMAP_KEYS.saturating_sub(self.all()) / 2;
        let more =
            |keys: u64| keys + rows.saturating_mul(2).saturating_sub(keys).min(spare) / abi::KEY_ALIGN * abi::KEY_ALIGN;
        Self { dram: more(self.dram), ssd: more(self.ssd) }
    }
}

impl Description {
    /// Of `features` on the tables of `view`, some of which have scales in memory, in the place of `before` if there is
    /// one. The GPU's context is current where there are scales.
    pub(crate) fn new(
        view: &View,
        features: &[Feature],
        options: &PlanOptions,
        (check_keys, scales): (bool, &[ResidentScales]),
        before: Option<&Self>,
    ) -> Result<Self, GpuError> {
        scales.iter().try_for_each(|scales| scales.check(view))?;
        let scales_of = |table: &Table| scales.iter().find(|scales| scales.table == table.name);
        let known: Vec<Cow<'_, Table>> = view
            .tables
            .iter()
            .map(|table| match table.located.table() {
                table if scales_of(table).is_some() => Cow::Owned(ResidentScales::scaled(table)),
                table => Cow::Borrowed(table),
            })
            .collect();
        let Resolved { features: planned, tables: resolved, pooled, width } =
            resolve(known.iter().map(|table| &**table), features, options)?;
        let tables: Vec<&GpuTable> = resolved.iter().filter_map(|table| view.tables.get(table.given)).collect();
        let known: Vec<&Table> = resolved.iter().filter_map(|table| known.get(table.given)).map(|it| &**it).collect();
        for feature in &planned {
            let scales = known.get(usize::from(feature.table)).and_then(|table| scales_of(table));
            scales.map_or(Ok(()), |scales| scales.check_missing(feature.missing))?;
        }
        tables.iter().try_for_each(|table| table.check(check_keys))?;
        let sum = |rows: fn(&GpuTable) -> u64| tables.iter().map(|table| keys_of(rows(table))).sum::<u64>();
        let needed = Keys { dram: sum(GpuTable::dram_rows), ssd: sum(GpuTable::cold_rows) };
        let keys = match before {
            Some(before) => before.keys,
            // A table that gets a list has keys on drives for all rows that are not in GPU memory, and a row more or less in DRAM,
            // for shares are rounded.
            None if view.may_list && !options.adopt_room && sum(GpuTable::cold_rows) > 0 => {
                let ssd = sum(|table| table.located.table().rows - table.hbm_rows);
                Keys { dram: sum(|table| table.dram_rows() + 1), ssd }
            }
            None if options.adopt_room && view.follows => needed.grown(sum(|table| table.located.table().rows)),
            None => needed,
        };
        if keys.all() > MOST_KEYS {
            return Err(GpuError::Unsupported(format!(
                "the plan's tables have {} rows outside GPU memory; the GPU executor takes {MOST_KEYS}: split the plan",
                keys.all()
            )));
        }
        if needed.dram > keys.dram || needed.ssd > keys.ssd {
            return Err(GpuError::Unfit(format!(
                "its slots have room for {} rows in DRAM and {} on drives, the tables have {} and {}: {}",
                keys.dram,
                keys.ssd,
                needed.dram,
                needed.ssd,
                if options.adopt_room { "attach and plan anew" } else { "plan with PlanOptions::with_adopt_room" }
            )));
        }
        let mut segments = Vec::with_capacity(tables.len() * 2);
        let mut firsts = vec![(0, 0); tables.len()];
        for (tier, mut key) in [(abi::tier::DRAM, 0), (abi::tier::SSD, keys.dram)] {
            for (index, (it, first)) in (0..).zip(tables.iter().zip(&mut firsts)) {
                let (first_rank, rows, place) = match tier {
                    abi::tier::DRAM => (it.hbm_rows, it.dram_rows(), &mut first.0),
                    _ => (it.dram_end, it.cold_rows(), &mut first.1),
                };
                *place = key;
                if rows > 0 {
                    segments.push(abi::Segment { first_key: key, first_rank, rows, table: index, tier });
                    key += keys_of(rows);
                }
            }
        }
        // Behind every key: there are as many whatever the tables are.
        segments.resize(tables.len() * 2, abi::Segment { first_key: u64::MAX, ..abi::Segment::default() });
        let dram = view.dram.as_ref().map(|dram| dram.address());
        let described: Vec<abi::Table> = tables
            .iter()
            .zip(&known)
            .zip(firsts)
            .map(|((table, known), (dram_key, ssd_key))| {
                let described = table.for_kernels(view.constants.address(), dram, dram_key, ssd_key);
                let described = match scales_of(known) {
                    None => described,
                    Some(scales) => with_scales(described, known, scales),
                };
                // Rows that come as they are, with their scales, are so many bytes.
                let is_raw = options.out.is_scaled() && known.dtype == options.out;
                let dim = if is_raw { described.row_bytes } else { described.dim };
                abi::Table { dim, ..described }
            })
            .collect();
        let mut bytes = Vec::new();
        let mut first = None;
        for feature in &planned {
            let (has_padding, padding) = feature.padding.map_or((abi::padding::NONE, 0), padding_of);
            let feature = abi::Feature {
                table: described.get(usize::from(feature.table)).copied().unwrap_or_default(),
                pooling: match feature.pooling {
                    Pooling::None => abi::pooling::NONE,
                    Pooling::Sum => abi::pooling::SUM,
                    Pooling::Mean => abi::pooling::MEAN,
                },
                missing: match feature.missing {
                    MissingPolicy::Zero | MissingPolicy::Error => abi::missing::ZERO,
                    MissingPolicy::Skip => abi::missing::SKIP,
                    MissingPolicy::Default => abi::missing::DEFAULT,
                },
                weighted: feature.weighted.into(),
                column: feature.column as u32,
                has_padding,
                bounds: match (feature.missing, feature.bounds) {
                    (MissingPolicy::Error, _) => abi::bounds::ERROR,
                    (_, BoundsCheck::Ignore) => abi::bounds::IGNORE,
                    (_, BoundsCheck::Count) => abi::bounds::COUNT,
                    (_, BoundsCheck::Report) => abi::bounds::REPORT,
                },
                padding,
            };
            first.get_or_insert(feature);
            bytes.extend_from_slice(feature.as_bytes());
        }
        let tables_at = bytes.len() as u64;
        described.iter().for_each(|table| bytes.extend_from_slice(table.as_bytes()));
        let segments_at = bytes.len() as u64;
        segments.iter().for_each(|segment| bytes.extend_from_slice(segment.as_bytes()));
        let mut landing = 4096;
        for table in tables.iter().map(|table| table.located.table()) {
            landing = landing.max(landing_stride(table, view.lba_size).map_err(GpuError::Unsupported)?);
        }
        let cold_rows = tables.iter().map(|table| table.cold_rows()).sum();
        // Slots of such plans have queues, or rows in DRAM that are cached, and their kernels ask the cache.
        let caches_dram = described.iter().zip(&tables).any(|(it, table)| it.caches_dram != 0 && table.dram_rows() > 0);
        let is_cached = view.cached && (cold_rows > 0 || caches_dram || view.follows && options.adopt_room);
        let this = Self {
            bytes,
            tables_at,
            segments_at,
            features: planned.len() as u32,
            segments: segments.len() as u32,
            first: first.unwrap_or_default(),
            pooled,
            weighted: planned.iter().any(|feature| feature.weighted),
            rich: view.updated
                || is_cached
                || known.iter().map(|table| element_of(table.dtype)).any(|element| {
                    // Rows as they are take the same kernels where they are converted.
                    element > abi::element::U8 || (!pooled && element != element_of(options.out))
                })
                || planned.iter().any(|it| it.bounds != BoundsCheck::Count || it.missing == MissingPolicy::Error),
            width,
            keys,
            keyed_rows: tables.iter().map(|table| table.dram_rows() + table.cold_rows()).sum(),
            cold_rows,
            is_cached,
            is_listed: view.may_list || tables.iter().any(|table| table.listed.is_some()),
            scaled: known.iter().any(|table| scales_of(table).is_some()),
            stride: described.iter().map(|table| table.row_stride).max().unwrap_or(16),
            landing,
            row_lbas: tables.iter().map(|table| table.located.table().packing.row_lbas()).min().unwrap_or(1),
            rows: known
                .iter()
                .zip(&described)
                .map(|(known, it)| (known.dim, it.element, it.row_bytes, it.row_stride))
                .collect(),
            generation: tables.iter().map(|table| table.located.generation.id).max().unwrap_or(0),
            names: tables.iter().map(|table| table.located.table().name.clone()).collect(),
        };
        match before {
            Some(before) => this.check_in_place_of(before).map(|()| this),
            None => Ok(this),
        }
    }

    /// What batches of up to so many ids are, at most; rows are among all keys where the plan follows updates.
    pub(crate) fn sizes(&self, ids: u64, follows: bool) -> Sizes {
        let keys = self.keys.all();
        Sizes { ids, keys, uniques: if follows { keys } else { self.keyed_rows }.min(ids) }
    }

    /// The name of table number `index` of those that look-ups read.
    pub(crate) fn table_name(&self, index: u32) -> &str {
        self.names.get(index as usize).map_or("", String::as_str)
    }

    /// Bytes of the longest row, to multiples of 16; and whether all rows are such multiples.
    pub(crate) fn longest(&self) -> (u32, bool) {
        let bytes = || self.rows.iter().map(|&(_, _, bytes, _)| bytes);
        let longest = bytes().map(|bytes| bytes.next_multiple_of(16)).max().unwrap_or(16);
        (longest, bytes().all(|bytes| bytes.is_multiple_of(16)))
    }

    /// Whether all tables are of f32, f16 or bf16.
    pub(crate) fn are_floats(&self) -> bool {
        self.rows.iter().all(|&(_, element, ..)| element <= abi::element::BF16)
    }

    /// The tables of this description, as `view` has them.
    pub(crate) fn tables<'a>(&'a self, view: &'a View) -> impl Iterator<Item = &'a GpuTable> {
        view.tables.iter().filter(|table| self.names.contains(&table.located.table().name))
    }

    /// The latest generation among its tables in `view`.
    pub(crate) fn generation_in(&self, view: &View) -> u64 {
        self.tables(view).map(|table| table.located.generation.id).max().unwrap_or(0)
    }

    fn check_in_place_of(&self, before: &Self) -> Result<(), GpuError> {
        let unfit = |why: &str| Err(GpuError::Unfit(why.to_owned()));
        if self.rows != before.rows || self.width != before.width {
            return unfit("rows of a table have another number or type of elements: attach, and plan anew");
        }
        if self.landing > before.landing {
            return unfit("rows lie on drives in another way, so that reads of them are longer: attach, and plan anew");
        }
        Ok(())
    }
}

/// A table whose rows have the scales in memory behind them, once look-ups have read them.
fn with_scales(described: abi::Table, table: &Table, scales: &ResidentScales) -> abi::Table {
    let scale_bytes = ResidentScales::bytes_of_row(table);
    let row_bytes = described.row_bytes + scale_bytes;
    abi::Table {
        element: element_of(table.dtype),
        row_bytes,
        row_stride: gpu_row_bytes(row_bytes),
        // The cache's lines have room for the codes alone.
        cached: 0,
        caches_dram: 0,
        scales: scales.address,
        scale_bytes,
        ..described
    }
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
