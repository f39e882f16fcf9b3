//! Tables, where their rows lie, and the buffers of a slot.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use fastrand::Rng;
use warprow_gpu_queues::abi::{GATE_BYTES, ReadWindow};
use warprow_kernels::abi::{
    self, BatchIds, DriveQueues, KEY_ALIGN, KeyBitmap, KeySort, KeySpace, Lookup, OutputRows, PlanTables, RowLanes,
    SlotPlaces, TICKETS, UniqueRows, bounds, element, lost, missing, padding, pooling, tier,
};
use warprow_kernels::crc;
use warprow_kernels::dedupe::{SORT_TILE, slots_log2, sorting_bytes, sweeps};

use crate::buffer::Buffer;
use crate::oracle::{element_bytes, row_bytes, row_crc, whole};
use crate::sparse::Sparse;

/// What an overlay has a row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// A row of the table, by its number.
    Row(u64),
    /// A key that was created.
    Key(i128),
}

pub struct Table {
    pub rows: u64,
    pub hbm: u64,
    pub dram_end: u64,
    /// Ranks from `dram_end` on, ascending, that lie in DRAM by a list; `dram_end` is `hbm` then.
    pub listed: Option<Vec<u64>>,
    pub dram_key: u64,
    pub ssd_key: u64,
    pub element: u32,
    pub dim: u32,
    /// id → rank, and bytes of an entry.
    ranks: Option<(u32, Vec<u64>)>,
    pub sparse: Option<Sparse>,
    /// By slot, the epoch in which its key was last found; `None`: it is not noted.
    pub touched: Option<Buffer>,
    /// By rank.
    content: Vec<u8>,
    pub default: Vec<u8>,
    first_lba: u64,
    /// Rows on drives are checked.
    pub checked: bool,
    /// Drives have rows without the scales behind them, which lie in memory of their own.
    pub apart: bool,
    /// Ranks of rows that a drive returns with a bit of these in the row wrong.
    pub spoilt: Vec<(u64, usize)>,
    /// The table's number in the overlay; 0: none.
    pub overlay: u32,
    /// The table's number among the ranges of the cache; 0: none.
    pub cached: u32,
    /// Rows in DRAM may lie in the cache too.
    pub caches_dram: bool,
    /// Updated rows, and those of created keys, as a look-up is to see them; empty: the key was removed.
    pub updated: BTreeMap<Of, Vec<u8>>,
}

impl Table {
    pub fn row_bytes(&self) -> usize {
        row_bytes(self.element, self.dim)
    }

    /// Bytes of a row that drives have.
    pub fn drive_bytes(&self) -> usize {
        if self.apart { self.dim as usize } else { self.row_bytes() }
    }

    pub fn stride(&self) -> usize {
        self.row_bytes().next_multiple_of(16)
    }

    pub fn row(&self, rank: u64) -> &[u8] {
        &self.content[rank as usize * self.row_bytes()..][..self.row_bytes()]
    }

    pub fn rank(&self, row: u64) -> u64 {
        self.ranks.as_ref().map_or(row, |(_, ranks)| ranks[row as usize])
    }

    /// The row that an id stands for.
    pub fn row_of(&self, id: i128) -> Option<u64> {
        match &self.sparse {
            Some(sparse) => sparse.row(id),
            None => u64::try_from(id).ok().filter(|&id| id < self.rows),
        }
    }

    /// What stands in the overlay for an id, if anything does.
    pub fn overlaid(&self, id: i128) -> Option<Of> {
        let all = [Some(Of::Key(id)), self.row_of(id).map(Of::Row)];
        all.into_iter().flatten().find(|of| self.updated.contains_key(of))
    }

    /// Whether the overlay says that an id was removed.
    pub fn is_removed(&self, id: i128) -> bool {
        self.overlaid(id).and_then(|of| self.updated.get(&of)).is_some_and(Vec::is_empty)
    }

    /// The id that stands for a row.
    pub fn id(&self, row: u64) -> i128 {
        self.sparse.as_ref().map_or(row.into(), |sparse| sparse.numbers[row as usize])
    }

    /// The rank whose row has that number in the cache.
    pub fn rank_of_number(&self, number: u64) -> u64 {
        number.checked_sub(self.rows).map_or(number, |place| self.dram_ranks()[place as usize])
    }

    /// The ranks of the rows in DRAM, as they lie there.
    pub fn dram_ranks(&self) -> Vec<u64> {
        self.listed.clone().unwrap_or_else(|| (self.hbm..self.dram_end).collect())
    }

    /// The key of a rank that is not in GPU memory.
    pub fn key(&self, rank: u64) -> u64 {
        let listed = self.listed.as_ref().and_then(|listed| listed.binary_search(&rank).ok());
        if let Some(place) = listed {
            return self.dram_key + place as u64;
        }
        if rank < self.dram_end { self.dram_key + rank - self.hbm } else { self.ssd_key + rank - self.dram_end }
    }
}

pub struct Feature {
    pub table: usize,
    pub pooling: u32,
    pub missing: u32,
    pub bounds: u32,
    pub weighted: bool,
    pub column: usize,
    pub padding: Option<i128>,
}

/// How LBAs lie on drives.
#[derive(Clone, Debug)]
pub struct Geometry {
    pub drives: u32,
    pub lba_shift: u32,
    stripe_shift: u32,
    chunk_shift: u32,
    base_lba: u64,
    /// Drive and chunk.
    map: Vec<(u32, u32)>,
}

impl Geometry {
    /// Drive and LBA there.
    fn place(&self, lba: u64) -> (u32, u64) {
        let unit = lba >> self.stripe_shift;
        let (drive, chunk) = self.map[(unit % self.map.len() as u64) as usize];
        let within = ((unit / self.map.len() as u64) << self.stripe_shift) + lba % (1 << self.stripe_shift);
        assert!(within < 1 << self.chunk_shift);
        (drive, self.base_lba + (u64::from(chunk) << self.chunk_shift) + within)
    }
}

/// Where a row lies on drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    pub drive: u32,
    pub lba: u64,
    pub byte: usize,
    pub lbas: u32,
}

/// What a world is to be like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// 0: nothing lies on drives.
    pub drives: u32,
    pub tables: Range<usize>,
    pub rows: Range<u64>,
    /// Bytes of a row, about.
    pub row_bytes: RangeInclusive<u32>,
    /// None: any.
    pub lba_shift: Option<u32>,
    pub max_ids: u64,
    pub sets: u32,
    /// All rows on drives, one unpooled feature for each table.
    pub cold: bool,
    /// For the kernels that can everything: tables of any element, some with checksums, and features that tell of missing ids in
    /// any way.
    pub rich: bool,
    /// Some tables have a list of rows in DRAM.
    pub listed: bool,
    /// Which rows of different LBAs share a command.
    pub window: ReadWindow,
    /// Rows of all tables are what output rows are, and of whole 16 B.
    pub as_output: bool,
}

impl Shape {
    pub fn without_drives(max_ids: u64) -> Self {
        Self {
            drives: 0,
            tables: 1..4,
            rows: 1..5000,
            row_bytes: 1..=300,
            lba_shift: None,
            max_ids,
            sets: 1,
            cold: false,
            rich: false,
            listed: false,
            window: ReadWindow::default(),
            as_output: false,
        }
    }
}

pub struct World {
    pub tables: Vec<Table>,
    pub features: Vec<Feature>,
    pub geometry: Geometry,
    pub pooled: bool,
    pub out: u32,
    /// Elements of an output row.
    pub width: usize,
    pub max_ids: u64,
    pub max_bags: u64,
    pub ssd_key: u64,
    pub keys: u64,
    lanes: u32,
    /// How many more than it needs share a row, modulo what there may be.
    spare_lanes: u32,
    /// Where bags have so many ids on the average, a block pools a bag; 0: never.
    pub long_bags: u32,
    by_lines: bool,
    rich: bool,
    pub window: ReadWindow,
    /// Blocks of `count` and `place`.
    pub walkers: u32,
    pub sets: u32,
    pub staging_stride: usize,
    /// How many ids become unique keys, of [`abi::dedupe`].
    pub dedupe: u32,
    /// Many ids are not deduplicated; `dedupe` is then [`abi::dedupe::RADIX`].
    pub repeats: bool,
    /// Bits of [`abi::ablated`].
    pub ablated: u32,
    /// The address of the overlay; 0: none.
    overlay: u64,
    /// The address of the cache, 0: none; and the slot's place among those that use it.
    cache: (u64, u32),
    /// The epoch in which touches are noted, a u32.
    pub epoch: Buffer,
    described: Described,
    pub slot: Slot,
}

/// What is constant.
struct Described {
    tables: Buffer,
    features: Buffer,
    first: abi::Feature,
    segments: Buffer,
    segment_count: u32,
    /// 0: nothing is checked.
    slices: u64,
    // Held for their addresses.
    _rows: Vec<Buffer>,
}

/// What a slot keeps.
/// Words of a tile here: `simt/simt.h`.
const TILE: u64 = 512;

pub struct Slot {
    pub state: Buffer,
    /// Of launches that need no slot, with one ticket.
    pub direct: Buffer,
    pub tickets: Buffer,
    pub counts: Buffer,
    pub gate: Buffer,
    pub bitmap: Buffer,
    pub summary: Buffer,
    pub base: Buffer,
    pub parts: Buffer,
    pub sorting: Buffer,
    pub words: Buffer,
    pub sorted: Buffer,
    pub slots: Buffer,
    pub numbers: Buffer,
    pub place: Buffer,
    pub unique: Buffer,
    pub status: Buffer,
    pub staging: Buffer,
}

/// Elements as they come: mostly plain numbers, some of every kind.
pub fn random_elements(rng: &mut Rng, element: u32, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * element_bytes(element) as usize);
    for _ in 0..count {
        let plain = rng.u32(0..100) != 0;
        let value = (rng.f32() - 0.5) * 8.0;
        match element {
            element::F32 if plain => bytes.extend(value.to_le_bytes()),
            element::F16 if plain => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
            element::BF16 if plain => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
            element::F32 => bytes.extend(rng.u32(..).to_le_bytes()),
            element::F16 | element::BF16 => bytes.extend(rng.u16(..).to_le_bytes()),
            _ => bytes.push(rng.u8(..)),
        }
    }
    bytes
}

/// Rows of any element; those with a scale mostly have plain ones.
pub fn random_rows(rng: &mut Rng, element: u32, dim: u32, rows: u64) -> Vec<u8> {
    let (wide, count) = match element {
        element::Q8 => (element::F32, 2),
        element::Q4 => (element::F16, 2),
        element::F8E4M3S | element::NVFP4 => (element::F32, 1),
        element::MXFP8 => {
            // Powers of two that are near 1 mostly, for others leave little to be added up.
            let power = |rng: &mut Rng| if rng.u32(0..20) == 0 { rng.u8(..) } else { rng.u8(120..134) };
            let row = |_| {
                let codes = random_elements(rng, element::U8, dim as usize);
                codes.into_iter().chain((0..dim / 32).map(|_| power(rng)).collect::<Vec<u8>>()).collect::<Vec<u8>>()
            };
            return (0..rows).flat_map(row).collect();
        }
        _ => return random_elements(rng, element, (rows * u64::from(dim)) as usize),
    };
    let numbers = row_bytes(element, dim) - count * element_bytes(wide) as usize;
    let row = |_| [random_elements(rng, element::U8, numbers), random_elements(rng, wide, count)].concat();
    (0..rows).flat_map(row).collect()
}

/// What lies at `Table::crcs`.
fn checksums(table: &Table) -> Buffer {
    let stored = |rank| &table.row(rank)[..table.drive_bytes()];
    let rows = (table.dram_end..table.rows).flat_map(|rank| row_crc(rank, stored(rank)).to_le_bytes());
    Buffer::of(&crc::row_constants(table.drive_bytes() as u32).into_iter().chain(rows).collect::<Vec<u8>>())
}

/// The scales of all rows, by rank.
fn scales(table: &Table) -> Buffer {
    Buffer::of(&(0..table.rows).flat_map(|rank| table.row(rank)[table.drive_bytes()..].to_vec()).collect::<Vec<u8>>())
}

/// One time in three, by what comes next: nothing else that is random changes by it.
fn seldom(rng: &Rng) -> bool {
    rng.clone().u32(0..3) == 0
}

/// Some row, or an id that no table has and not every type of id can be.
fn random_padding(rng: &mut Rng, rows: u64) -> i128 {
    match rng.u32(0..6) {
        0 | 1 => -1,
        2 => u64::MAX.into(),
        _ => rng.u64(0..rows + 2).into(),
    }
}

/// Of a slot whose launches are about to need more than 32 bits.
fn aged_state() -> Buffer {
    let state = Buffer::zeroed(size_of::<abi::SlotState>());
    state.memory().store_u64(std::mem::offset_of!(abi::SlotState, launch), (1 << 32) - 2);
    state
}

/// What lies at `Table::listed`: a word with the number of listed ranks before, and a bit for each of 448 ranks.
fn directory(rows: u64, listed: &[u64]) -> Buffer {
    let mut bytes = Vec::new();
    for first in (0..rows).step_by(448) {
        let below = listed.partition_point(|&rank| rank < first) as u64;
        bytes.extend_from_slice(&below.to_le_bytes());
        let bit = |rank: u64| listed.binary_search(&rank).is_ok();
        let byte = |first: u64| (0..8).map(|bit_of| u8::from(bit(first + bit_of)) << bit_of).sum::<u8>();
        bytes.extend((first..first + 448).step_by(8).map(byte));
    }
    Buffer::of(&bytes)
}

fn strided(table: &Table, ranks: impl IntoIterator<Item = u64>) -> Buffer {
    let mut bytes = Vec::new();
    for rank in ranks {
        bytes.extend_from_slice(table.row(rank));
        bytes.resize(bytes.len().next_multiple_of(table.stride()), 0xee);
    }
    Buffer::of(&bytes)
}

impl World {
    pub fn new(rng: &mut Rng, shape: &Shape) -> Self {
        let pooled = !shape.cold && !shape.as_output && rng.bool();
        let integer = !pooled && rng.u32(0..5) == 0;
        let out = match (integer, shape.rich) {
            (true, true) => rng.u32(element::I8..=element::F8E5M2),
            (true, false) => rng.u32(element::I8..=element::U8),
            _ => rng.u32(element::F32..=element::BF16),
        };
        let geometry = random_geometry(rng, shape);
        let own_bytes = shape.as_output.then(|| rng.u32(shape.row_bytes.clone()).next_multiple_of(16));
        let mut tables = Vec::new();
        let mut next_lba = rng.u64(0..3) << geometry.stripe_shift;
        for _ in 0..rng.usize(shape.tables.clone()) {
            let copied = integer || shape.as_output || rng.u32(0..4) == 0;
            let most = if shape.rich { element::NVFP4 } else { element::U8 };
            let element = if copied { out } else { rng.u32(element::F32..=most) };
            // Elements that share scales need longer rows than some shapes have.
            let is_short = row_bytes(element, whole(element)) > *shape.row_bytes.end() as usize;
            let element = if is_short { element::F8E4M3 } else { element };
            let bytes = rng.u32(shape.row_bytes.clone());
            // Multiples of 16 bytes are what most tables have.
            let bytes = if rng.bool() { bytes } else { bytes.next_multiple_of(16).min(*shape.row_bytes.end()) };
            let bytes = own_bytes.unwrap_or(bytes);
            let dim = match element {
                element::Q8 => bytes.saturating_sub(8).max(1),
                element::Q4 => bytes.saturating_sub(4).max(1) * 2,
                element::MXFP8 => (bytes / 33).max(1) * 32,
                element::F8E4M3S => bytes.saturating_sub(4).max(1),
                element::NVFP4 => (bytes.saturating_sub(4) / 9).max(1) * 16,
                _ => (bytes / element_bytes(element)).max(1),
            };
            let rows = rng.u64(shape.rows.clone());
            let hbm = if shape.cold || rng.bool() { 0 } else { rng.u64(0..=rows) };
            let dram_end = match shape.drives {
                0 => rows,
                _ if shape.cold => 0,
                _ => rng.u64(hbm..=rows),
            };
            let is_listed = shape.listed && !shape.cold && rng.u32(0..4) != 0;
            let (dram_end, listed) = match is_listed {
                true => (hbm, Some((hbm..rows).filter(|_| rng.u64(0..=rows) < dram_end - hbm).collect())),
                false => (dram_end, None),
            };
            let mut ranks: Vec<u64> = (0..rows).collect();
            rng.shuffle(&mut ranks);
            let ranks = [None, Some((4, ranks.clone())), Some((8, ranks))][rng.usize(0..3)].clone();
            let table = Table {
                rows,
                hbm,
                dram_end,
                listed,
                dram_key: 0,
                ssd_key: 0,
                element,
                dim,
                ranks,
                sparse: seldom(rng).then(|| Sparse::random(&mut rng.clone(), rows)),
                touched: None,
                content: random_rows(rng, element, dim, rows),
                default: random_rows(rng, element, dim, 1),
                first_lba: next_lba,
                checked: shape.rich && rng.bool(),
                apart: element == element::MXFP8 && shape.drives != 0 && rng.clone().bool(),
                spoilt: Vec::new(),
                overlay: 0,
                cached: 0,
                caches_dram: false,
                updated: BTreeMap::new(),
            };
            let packing = Packing::of(&table, &geometry);
            next_lba += rows.div_ceil(packing.group_rows) * u64::from(packing.group_lbas);
            next_lba = next_lba.next_multiple_of(1 << geometry.stripe_shift);
            tables.push(table);
        }
        let mut world = Self::with(rng, shape, tables, geometry, pooled, out);
        world.geometry.fit(next_lba);
        world.describe();
        world
    }

    fn with(rng: &mut Rng, shape: &Shape, mut tables: Vec<Table>, geometry: Geometry, pooled: bool, out: u32) -> Self {
        let (mut keys, mut column) = (0, 0);
        for table in &mut tables {
            table.dram_key = keys;
            keys = (keys + table.dram_ranks().len() as u64).next_multiple_of(KEY_ALIGN);
        }
        let ssd_key = keys;
        for table in &mut tables {
            table.ssd_key = keys;
            keys = (keys + table.rows - table.dram_end).next_multiple_of(KEY_ALIGN);
        }
        let mut features = Vec::new();
        // Few are held by each block, and the begins of more.
        let many = [rng.usize(1..=4), rng.usize(1..=4), rng.usize(30..=36), rng.usize(250..=300)][rng.usize(0..4)];
        let count = if shape.cold { tables.len() } else { many };
        for i in 0..count {
            let table = if shape.cold { i } else { rng.usize(0..tables.len()) };
            let rows = tables[table].rows;
            features.push(Feature {
                table,
                pooling: if pooled { rng.u32(pooling::SUM..=pooling::MEAN) } else { pooling::NONE },
                missing: rng.u32(missing::DEFAULT..=missing::SKIP),
                bounds: if shape.rich { rng.u32(bounds::COUNT..=bounds::ERROR) } else { bounds::COUNT },
                weighted: pooled && rng.bool(),
                column,
                padding: (rng.u32(0..3) == 0).then(|| match seldom(rng) {
                    true => match &tables[table].sparse {
                        Some(sparse) if rng.bool() => sparse.foreign[rng.usize(0..sparse.foreign.len())],
                        _ => tables[table].id(rng.u64(0..rows)),
                    },
                    false => random_padding(rng, rows),
                }),
            });
            column += tables[table].dim as usize;
        }
        let widest = features.iter().map(|feature| tables[feature.table].dim as usize).max().unwrap();
        let staging_stride = tables.iter().map(Table::stride).max().unwrap();
        let (max_ids, walkers, keys) = (shape.max_ids, rng.u32(1..4), keys.max(KEY_ALIGN));
        let ids = max_ids as usize;
        let are_floats = tables.iter().all(|table| table.element <= element::BF16);
        let long_bags = match seldom(rng) {
            false if pooled && are_floats => 1 << (max_ids % 5),
            _ => 0,
        };
        Self {
            pooled,
            out,
            width: if pooled { column } else { widest },
            max_ids,
            max_bags: max_ids.max(4),
            ssd_key,
            keys,
            lanes: rng.u32(0..=5),
            spare_lanes: rng.u32(..),
            long_bags,
            by_lines: rng.bool(),
            // Rows as they are take the rich kernels where any is converted.
            rich: shape.rich || (!pooled && tables.iter().any(|table| table.element != out)),
            window: shape.window,
            walkers,
            sets: shape.sets,
            staging_stride,
            overlay: 0,
            cache: (0, 0),
            dedupe: (max_ids % 3) as u32,
            repeats: false,
            ablated: 0,
            epoch: Buffer::zeroed(4),
            described: Described {
                tables: Buffer::new(0),
                features: Buffer::new(0),
                first: abi::Feature::default(),
                segments: Buffer::new(0),
                segment_count: 0,
                slices: 0,
                _rows: Vec::new(),
            },
            slot: Slot {
                state: aged_state(),
                direct: Buffer::zeroed(size_of::<abi::SlotState>()),
                tickets: Buffer::zeroed(size_of::<abi::Ticket>() * TICKETS),
                counts: Buffer::zeroed(size_of::<abi::TicketState>() * TICKETS),
                gate: Buffer::zeroed(GATE_BYTES),
                bitmap: Buffer::zeroed(keys as usize / 8),
                summary: Buffer::zeroed(keys.div_ceil(32768) as usize * 4),
                base: Buffer::new((keys / KEY_ALIGN) as usize * 4),
                parts: Buffer::new(walkers as usize * 8 * 4),
                sorting: Buffer::zeroed(sorting_bytes(max_ids.div_ceil(TILE) * SORT_TILE) as usize),
                words: Buffer::new(ids * 8),
                sorted: Buffer::new(ids * 8),
                slots: Buffer::zeroed(8 << slots_log2(max_ids)),
                numbers: Buffer::new(4 << slots_log2(max_ids)),
                place: Buffer::new(ids * 8),
                unique: Buffer::new(ids * 8),
                status: Buffer::new(ids),
                staging: Buffer::new(ids * staging_stride),
            },
            tables,
            features,
            geometry,
        }
    }

    /// Writes down for the kernels what does not change.
    fn describe(&mut self) {
        let mut rows = Vec::new();
        let mut keep = |buffer: Buffer| {
            rows.push(buffer);
            rows.last().unwrap().address()
        };
        let geometry = &self.geometry;
        let map = keep(Buffer::of(
            &geometry.map.iter().flat_map(|(drive, chunk)| (drive << 24 | chunk).to_le_bytes()).collect::<Vec<u8>>(),
        ));
        let (mut tables, mut dram, mut ssd) = (Vec::new(), Vec::new(), Vec::new());
        for (number, table) in self.tables.iter().enumerate() {
            let packing = Packing::of(table, geometry);
            let ranks = table.ranks.as_ref().map(|(bytes, ranks)| {
                Buffer::of(
                    &ranks.iter().flat_map(|rank| rank.to_le_bytes()[..*bytes as usize].to_vec()).collect::<Vec<u8>>(),
                )
            });
            let touched = table.touched.as_ref().map_or([0, 0], |touched| [touched.address(), self.epoch.address()]);
            let keys =
                table.sparse.as_ref().map_or(0, |sparse| sparse.describe(|row| table.rank(row), touched, &mut keep));
            tables.push(abi::Table {
                rows: table.rows,
                hbm_rows: table.hbm,
                dram_end: table.dram_end,
                dram_key: table.dram_key,
                ssd_key: table.ssd_key,
                hbm: keep(strided(table, 0..table.hbm)),
                dram: keep(strided(table, table.dram_ranks())),
                default_row: keep(Buffer::of(&table.default)),
                ranks: ranks.map_or(0, &mut keep),
                rank_bytes: table.ranks.as_ref().map_or(0, |(bytes, _)| *bytes),
                element: table.element,
                dim: table.dim,
                row_bytes: table.row_bytes() as u32,
                row_stride: table.stride() as u32,
                row_lbas: packing.row_lbas,
                group_rows: packing.group_rows,
                group_lbas: packing.group_lbas,
                step_lbas: packing.step_lbas,
                step_bytes: packing.step_bytes,
                stripe_shift: geometry.stripe_shift,
                first_lba: table.first_lba,
                map,
                base_lba: geometry.base_lba,
                keys,
                chunks: geometry.map.len() as u32,
                chunk_shift: geometry.chunk_shift,
                crcs: if table.checked { keep(checksums(table)) } else { 0 },
                overlay: table.overlay,
                cached: table.cached,
                scales: if table.apart { keep(scales(table)) } else { 0 },
                scale_bytes: (table.row_bytes() - table.drive_bytes()) as u32,
                caches_dram: (table.caches_dram && table.cached != 0).into(),
                listed: table.listed.as_ref().map_or(0, |listed| keep(directory(table.rows, listed))),
                spare: 0,
            });
            let number = number as u32;
            let segment =
                |first_key, first_rank, rows, tier| abi::Segment { first_key, first_rank, rows, table: number, tier };
            dram.push(segment(table.dram_key, table.hbm, table.dram_ranks().len() as u64, tier::DRAM));
            ssd.push(segment(table.ssd_key, table.dram_end, table.rows - table.dram_end, tier::SSD));
        }
        let segments: Vec<_> = dram.into_iter().chain(ssd).filter(|segment| segment.rows != 0).collect();
        let features = self.features.iter().map(|feature| abi::Feature {
            table: tables[feature.table],
            pooling: feature.pooling,
            missing: feature.missing,
            weighted: feature.weighted.into(),
            column: feature.column as u32,
            has_padding: match feature.padding {
                None => padding::NONE,
                Some(..0) => padding::SIGNED,
                Some(id) if id > i64::MAX.into() => padding::U64,
                Some(_) => padding::ANY,
            },
            bounds: feature.bounds,
            padding: feature.padding.unwrap_or(0) as u64,
        });
        let features: Vec<_> = features.collect();
        self.described = Described {
            tables: Buffer::of_all(tables.iter().map(abi::Table::as_bytes)),
            features: Buffer::of_all(features.iter().map(abi::Feature::as_bytes)),
            first: features[0],
            segments: Buffer::of_all(segments.iter().map(abi::Segment::as_bytes)),
            segment_count: segments.len() as u32,
            slices: if self.tables.iter().any(|table| table.checked) { keep(Buffer::of(&crc::slices())) } else { 0 },
            _rows: rows,
        };
    }

    /// This world with rows of other content: every bit of every row is inverted.
    pub fn inverted(mut self) -> Self {
        for table in &mut self.tables {
            table.content.iter_mut().chain(&mut table.default).for_each(|byte| *byte = !*byte);
        }
        self.describe();
        self
    }

    /// This world with an overlay at `address`, for the tables that `has` names.
    pub fn overlaid(mut self, address: u64, mut has: impl FnMut(usize) -> bool) -> Self {
        for (number, table) in self.tables.iter_mut().enumerate() {
            table.overlay = if has(number) { number as u32 + 1 } else { 0 };
        }
        (self.overlay, self.rich) = (address, true);
        self.describe();
        self
    }

    /// This world with a cache at `address`, among whose slots this one is number `slot`; `range` gives the number of a table's range, or 0.
    pub fn cached(mut self, address: u64, slot: u32, mut range: impl FnMut(usize) -> u32) -> Self {
        for (number, table) in self.tables.iter_mut().enumerate() {
            table.cached = range(number);
        }
        (self.cache, self.rich) = ((address, slot), true);
        self.describe();
        self
    }

    /// This world with rows in DRAM in the cache too, of those of its tables that `has` names.
    pub fn caching_dram(mut self, mut has: impl FnMut(usize) -> bool) -> Self {
        self.tables.iter_mut().enumerate().for_each(|(number, table)| table.caches_dram = has(number));
        self.describe();
        self
    }

    /// Whether look-ups ask the cache for the row of a key.
    pub fn is_cacheable(&self, key: u64) -> bool {
        let table = &self.tables[self.row_of(key).0];
        table.cached != 0 && (key >= self.ssd_key || table.caches_dram)
    }

    /// This world with touches of keys noted, for the sparse tables that `has` names; `epoch` is that of now.
    pub fn touched(mut self, mut has: impl FnMut(usize) -> bool) -> Self {
        for (number, table) in self.tables.iter_mut().enumerate() {
            let keys = table.sparse.as_ref().filter(|_| has(number)).map(|sparse| sparse.numbers.len());
            table.touched = keys.map(|keys| Buffer::zeroed(keys * 2));
        }
        self.describe();
        self
    }

    /// Features, tables and segments, and where the second and the third begin.
    pub fn description(&self) -> (Vec<u8>, [u64; 2]) {
        let Described { features, tables, segments, .. } = &self.described;
        let parts = [features.bytes(), tables.bytes(), segments.bytes()];
        (parts.concat(), [features.len() as u64, (features.len() + tables.len()) as u64])
    }

    /// Whether look-ups take the kernels that know of lists.
    pub fn is_listed(&self) -> bool {
        self.tables.iter().any(|table| table.listed.is_some())
    }

    /// With look-ups of many ids that find unique keys as that of [`abi::dedupe`] says.
    pub fn deduped_by(self, dedupe: u32) -> Self {
        Self { dedupe, ..self }
    }

    /// With look-ups of many ids that are not deduplicated.
    pub fn with_repeats(self) -> Self {
        Self { dedupe: abi::dedupe::RADIX, repeats: true, ..self }
    }

    /// What the output has of rows that could not be read: bits of [`lost`].
    pub fn lost(&self) -> u32 {
        let of_floats = matches!(self.out, element::F32 | element::F16 | element::BF16);
        self.spare_lanes >> 16 & if of_floats { lost::NAN | lost::MASK } else { lost::MASK }
    }

    /// The parts of a launch that are the slot's and the plan's.
    pub fn lookup(&self) -> Lookup {
        let Slot { state, tickets, counts, gate, bitmap, summary, base, parts, place, unique, status, staging, .. } =
            &self.slot;
        let Slot { sorting, words, sorted, slots, numbers, .. } = &self.slot;
        let quads = self.staging_stride as u32 / 16 + if self.by_lines { 7 } else { 0 };
        Lookup {
            batch: BatchIds { max_ids: self.max_ids, max_bags: self.max_bags, ..BatchIds::default() },
            output: OutputRows { element: self.out, width: self.width as u32, ..OutputRows::default() },
            plan: PlanTables {
                features: self.described.features.address(),
                tables: self.described.tables.address(),
                segments: self.described.segments.address(),
                overlay: self.overlay,
                crc_slices: self.described.slices,
                cache: self.cache.0,
                feature_count: self.features.len() as u32,
                segment_count: self.described.segment_count,
                pooled: self.pooled.into(),
                rich: self.rich.into(),
                follows: (self.overlay != 0).into(),
                lost: self.lost(),
                admits: 0,
                scaled: self.tables.iter().any(|table| table.apart).into(),
                first_feature: self.described.first,
            },
            lanes: RowLanes {
                group_log2: self.lanes,
                parts_of_row: quads.div_ceil(1 << self.lanes),
                row_lanes: match quads {
                    _ if self.rich => 1 << self.lanes,
                    needed if needed <= 1 << self.lanes => needed + self.spare_lanes % ((1 << self.lanes) - needed + 1),
                    _ => 1 << self.lanes,
                },
                by_lines: self.by_lines.into(),
                lines_of_row: 1 + self.spare_lanes % 5,
                long_bags: self.long_bags,
            },
            slot: SlotPlaces {
                state: state.address(),
                tickets: tickets.address(),
                counts: counts.address(),
                gate: gate.address(),
                cache_slot: self.cache.1,
                ..SlotPlaces::default()
            },
            queues: DriveQueues {
                sets: if self.geometry.drives == 0 { 0 } else { self.sets },
                drives: self.geometry.drives,
                ablated: self.ablated,
                ..DriveQueues::default()
            },
            keys: KeySpace {
                count: self.keys,
                first_ssd_key: self.ssd_key,
                dedupe: self.dedupe,
                repeats: self.repeats.into(),
            },
            bitmap: KeyBitmap {
                bits: bitmap.address(),
                summary: summary.address(),
                base: base.address(),
                parts: parts.address(),
            },
            sort: KeySort {
                state: sorting.address(),
                words: words.address(),
                sorted: sorted.address(),
                slots: slots.address(),
                numbers: numbers.address(),
                slots_log2: slots_log2(self.max_ids),
                sweeps: sweeps(self.keys),
            },
            unique: UniqueRows {
                places: place.address(),
                keys: unique.address(),
                status: status.address(),
                staging: staging.address(),
                staging_stride: self.staging_stride as u64,
            },
        }
    }

    /// Whether launches of many ids like `lookup` write rows to the output as they land.
    pub fn writes_output(&self, lookup: &Lookup) -> bool {
        let bytes = self.width * element_bytes(self.out) as usize;
        let stride = lookup.output.row_stride * u64::from(element_bytes(self.out));
        let as_output = |table: &Table| {
            (table.element, table.row_bytes(), table.checked, table.apart) == (self.out, bytes, false, false)
        };
        self.dedupe == abi::dedupe::RADIX
            && !self.pooled
            && self.cache.0 == 0
            && self.tables.iter().all(as_output)
            && [bytes as u64, lookup.output.rows, stride].iter().all(|it| it.is_multiple_of(16))
    }

    /// Where a rank lies on drives.
    pub fn home(&self, table: usize, rank: u64) -> Home {
        let table = &self.tables[table];
        let packing = Packing::of(table, &self.geometry);
        let (group, row) = (rank / packing.group_rows, rank % packing.group_rows);
        let lba = table.first_lba + group * u64::from(packing.group_lbas) + row * u64::from(packing.step_lbas);
        let (drive, lba) = self.geometry.place(lba);
        Home { drive, lba, byte: row as usize * packing.step_bytes as usize, lbas: packing.row_lbas }
    }

    /// The table and rank of a key.
    pub fn row_of(&self, key: u64) -> (usize, u64) {
        let in_tier = |table: &Table| {
            let in_dram = key.checked_sub(table.dram_key).and_then(|place| match &table.listed {
                Some(listed) => listed.get(place as usize).copied(),
                None => Some(table.hbm + place).filter(|&rank| rank < table.dram_end),
            });
            let ssd = table.ssd_key..table.ssd_key + table.rows - table.dram_end;
            in_dram.or_else(|| ssd.contains(&key).then(|| key - ssd.start + table.dram_end))
        };
        let found = self.tables.iter().enumerate().find_map(|(number, table)| Some((number, in_tier(table)?)));
        found.unwrap_or_else(|| panic!("no row has key {key}"))
    }

    /// Bytes that a command lands in.
    pub fn landing_stride(&self) -> usize {
        let longest = self.tables.iter().map(|table| table.row_bytes()).max().unwrap_or(1);
        let row = longest.next_multiple_of(1 << self.geometry.lba_shift).next_power_of_two();
        row.max(1 << (self.geometry.lba_shift + self.window.shift))
    }

    /// What each drive holds, whole pages; with a window drives end with the page of the last row.
    pub fn images(&self) -> Vec<Vec<u8>> {
        let chunks = self.geometry.map.iter().map(|(_, chunk)| u64::from(chunk + 1)).max().unwrap_or(0);
        let lbas = self.geometry.base_lba + (chunks << self.geometry.chunk_shift);
        let len = ((lbas << self.geometry.lba_shift) as usize).next_multiple_of(4096);
        let mut images = vec![vec![0x5a; len]; self.geometry.drives as usize];
        if self.window.shift != 0 {
            let mut ends = vec![1; images.len()];
            for (number, table) in self.tables.iter().enumerate() {
                for home in (0..table.rows).map(|rank| self.home(number, rank)) {
                    let end = &mut ends[home.drive as usize];
                    *end = (home.lba + u64::from(home.lbas)).max(*end);
                }
            }
            let bytes = |end: u64| ((end as usize) << self.geometry.lba_shift).next_multiple_of(4096);
            images.iter_mut().zip(ends).for_each(|(image, end)| image.truncate(bytes(end)));
        }
        for (number, table) in self.tables.iter().enumerate() {
            for rank in 0..table.rows {
                let home = self.home(number, rank);
                let at = ((home.lba << self.geometry.lba_shift) as usize) + home.byte;
                let stored = &table.row(rank)[..table.drive_bytes()];
                images[home.drive as usize][at..at + stored.len()].copy_from_slice(stored);
            }
            for &(rank, bit) in &table.spoilt {
                let home = self.home(number, rank);
                let at = ((home.lba << self.geometry.lba_shift) as usize) + home.byte + bit / 8;
                images[home.drive as usize][at] ^= 1 << (bit % 8);
            }
        }
        images
    }

    /// Whether nothing was written past the end of what a slot has.
    pub fn is_sound(&self) -> bool {
        let Slot {
            state,
            direct,
            tickets,
            counts,
            gate,
            bitmap,
            summary,
            base,
            parts,
            place,
            unique,
            status,
            staging,
            ..
        } = &self.slot;
        let Slot { sorting, words, sorted, slots, numbers, .. } = &self.slot;
        let sound = |buffers: &[&Buffer]| buffers.iter().all(|it| it.is_sound());
        sound(&[state, direct, tickets, counts, gate, bitmap, summary, base, parts, place, unique, status, staging])
            && sound(&[sorting, words, sorted, slots, numbers])
    }
}

/// How rows lie in LBAs.
struct Packing {
    row_lbas: u32,
    group_rows: u64,
    group_lbas: u32,
    step_lbas: u32,
    step_bytes: u32,
}

impl Packing {
    fn of(table: &Table, geometry: &Geometry) -> Self {
        let (row, lba, stripe) =
            (table.drive_bytes() as u32, 1u32 << geometry.lba_shift, 1u32 << geometry.stripe_shift);
        let row_lbas = row.div_ceil(lba);
        assert!(row_lbas <= stripe);
        if row < lba {
            return Self { row_lbas, group_rows: (lba / row).into(), group_lbas: 1, step_lbas: 0, step_bytes: row };
        }
        Self {
            row_lbas,
            group_rows: (stripe / row_lbas).into(),
            group_lbas: stripe,
            step_lbas: row_lbas,
            step_bytes: 0,
        }
    }
}

fn random_geometry(rng: &mut Rng, shape: &Shape) -> Geometry {
    let lba_shift = shape.lba_shift.unwrap_or(if rng.bool() { 9 } else { 12 });
    let stripe_shift = if lba_shift == 9 { rng.u32(4..7) } else { rng.u32(1..4) };
    let mut chunks: Vec<(u32, u32)> =
        (0..shape.drives.max(1)).flat_map(|drive| (0..rng.u32(2..5)).map(move |chunk| (drive, chunk))).collect();
    rng.shuffle(&mut chunks);
    Geometry { drives: shape.drives, lba_shift, stripe_shift, chunk_shift: 0, base_lba: rng.u64(1..40), map: chunks }
}

impl Geometry {
    /// Makes chunks as large as `lbas` need.
    fn fit(&mut self, lbas: u64) {
        let units = (lbas >> self.stripe_shift) + 1;
        let needed = units.div_ceil(self.map.len() as u64) << self.stripe_shift;
        self.chunk_shift = needed.next_power_of_two().ilog2();
    }
}

impl World {
    /// One table of rows that lie in GPU memory and DRAM, half each, looked up as they are.
    pub fn of_rows(rng: &mut Rng, element: u32, out: u32, dim: u32, content: Vec<u8>) -> Self {
        let row = row_bytes(element, dim);
        let rows = (content.len() / row) as u64;
        let shape = Shape { cold: true, rich: element > element::U8 || element != out, ..Shape::without_drives(rows) };
        let geometry = Geometry { stripe_shift: 5, lba_shift: 9, ..random_geometry(rng, &shape) };
        let default = content[..row].to_vec();
        let table = Table {
            rows,
            hbm: rows / 2,
            dram_end: rows,
            listed: None,
            dram_key: 0,
            ssd_key: 0,
            element,
            dim,
            ranks: None,
            sparse: None,
            touched: None,
            content,
            default,
            first_lba: 0,
            checked: false,
            apart: false,
            spoilt: Vec::new(),
            overlay: 0,
            cached: 0,
            caches_dram: false,
            updated: BTreeMap::new(),
        };
        let mut world = Self::with(rng, &shape, vec![table], geometry, false, out);
        world.features[0].padding = None;
        world.describe();
        world
    }
}
