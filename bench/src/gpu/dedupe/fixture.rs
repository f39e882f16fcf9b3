//! A table in GPU memory and a slot for look-ups in it, described to the kernels as a plan would; their checks.

use anyhow::{Context, ensure};
use warprow_gpu_queues::abi::GATE_BYTES;
use warprow_gpu_queues::{DeviceMemory, PinnedMemory};
use warprow_kernels::abi::{self, KEY_ALIGN, element, outcome, tier};
use warprow_kernels::dedupe::{self, DedupeNeeds, slots_log2, sweeps};
use warprow_kernels::{Kernels, LaunchShape, LookupGraph, LookupKind, PrefetchKind, SMALL_IDS};
use warprow_layout::DType;
use warprow_lookup::DedupeMethod;
use warprow_workload::{ContentOracle, TableContent};

use super::super::module::{Kernel, Module};
use super::super::{Request, Stream};

pub(in crate::gpu) const SOURCE: &str = include_str!("../cuda/dedupe.cu");
pub(in crate::gpu) const HEADERS: [(&str, &str); 1] = [("content.cuh", include_str!("../cuda/content.cuh"))];

/// Elements (f32) of a row, and its bytes.
pub(super) const DIM: u32 = 4;
pub(super) const ROW: u64 = DIM as u64 * 4;

/// Whether rows of batches of so many ids are said to be on drives: those in memory are not deduplicated.
pub(super) fn on_drives(ids: u64) -> bool {
    ids <= SMALL_IDS
}

/// Kernels of the look-up, and those that check it.
pub(super) struct Code {
    pub(super) kernels: Kernels,
    module: Module,
    fill_rows: Kernel,
    check_inverse: Kernel,
    check_uniques: Kernel,
}

impl Code {
    pub(super) fn new(stream: &Stream) -> anyhow::Result<Self> {
        let module = Module::new(stream.gpu(), SOURCE, &HEADERS)?;
        let kernel = |name| module.kernel(name);
        let fill_rows = kernel(c"fill_rows")?;
        let check_inverse = kernel(c"check_inverse")?;
        let check_uniques = kernel(c"check_uniques")?;
        Ok(Self { kernels: Kernels::load(stream.gpu())?, module, fill_rows, check_inverse, check_uniques })
    }
}

/// Where things begin in the slot's memory.
#[derive(Clone, Copy, Default)]
struct Places {
    state: u64,
    counts: u64,
    feature: u64,
    table: u64,
    segment: u64,
    default_row: u64,
    lookup: u64,
    unique: dedupe::DedupePlaces,
    seen: u64,
    found: u64,
}

/// The table, and a slot for batches of any way.
pub(super) struct Fixture<'a> {
    code: &'a Code,
    stream: &'a Stream,
    pub(super) content: ContentOracle,
    rows: DeviceMemory,
    memory: DeviceMemory,
    places: Places,
    tickets: PinnedMemory,
    gate: PinnedMemory,
    keys: u64,
    launched: std::cell::Cell<u64>,
}

impl<'a> Fixture<'a> {
    /// Bytes of GPU memory that a table of so many rows and batches of so many ids take, about.
    pub(super) fn bytes(rows: u64, ids: u64) -> u64 {
        // Ids, output, place, unique, status, staging, words twice, slots, seen.
        rows * ROW + rows / 4 + ids * (8 + ROW + 8 + 8 + 1 + ROW + 16 + 1) + (12 << slots_log2(ids))
    }

    pub(super) fn new(code: &'a Code, stream: &'a Stream, rows: u64, ids: u64, seed: u64) -> anyhow::Result<Self> {
        let gpu = stream.gpu();
        let content = ContentOracle::new(seed, 0, rows, DIM, DType::F32);
        let table = DeviceMemory::new(gpu, rows * ROW)?;
        let fill = [table.address(), rows, ROW / 8, content.key()];
        // SAFETY: the table has room for so many rows.
        unsafe { code.module.launch(code.fill_rows, stream, gpu.sms() * 8, 256, fill) }?;
        stream.wait()?;
        for row in [0, rows / 3, rows - 1] {
            let mut found = [0; ROW as usize];
            let mut wanted = [0; ROW as usize];
            table.read(row * ROW, &mut found)?;
            content.fill(row, &mut wanted);
            ensure!(found == wanted, "row {row} of the table is not what the processor computes");
        }
        let keys = rows.next_multiple_of(KEY_ALIGN);
        let mut end = 0u64;
        let mut room = |bytes: u64| {
            let begin = end.next_multiple_of(256);
            end = begin + bytes;
            begin
        };
        let slots = 1 << slots_log2(ids);
        // Of all ways at once.
        let needs = DedupeNeeds {
            ids,
            uniques: ids,
            bits: keys,
            words: ids,
            slots,
            parts: LaunchShape::parts(gpu.sms()),
            stride: ROW,
        };
        let places = Places {
            state: room(size_of::<abi::SlotState>() as u64),
            counts: room(size_of::<abi::TicketState>() as u64),
            feature: room(size_of::<abi::Feature>() as u64),
            table: room(size_of::<abi::Table>() as u64),
            segment: room(size_of::<abi::Segment>() as u64),
            default_row: room(ROW),
            lookup: room(size_of::<abi::Lookup>() as u64),
            unique: dedupe::DedupePlaces::new(&needs, &mut room),
            seen: room(ids),
            found: room(16),
        };
        let memory = DeviceMemory::new(gpu, end)?;
        let tickets = PinnedMemory::allocate(gpu, size_of::<abi::Ticket>() as u64)?;
        let gate = PinnedMemory::allocate(gpu, GATE_BYTES as u64)?;
        gpu.synchronize()?;
        let launched = 0.into();
        Ok(Self { code, stream, content, rows: table, memory, places, tickets, gate, keys, launched })
    }

    /// Describes the table to the kernels, as it is for batches of so many ids.
    pub(super) fn describe(&self, ids: u64) -> anyhow::Result<abi::Feature> {
        let rows = self.content.rows();
        let at = self.memory.address();
        let drives = on_drives(ids);
        let table = abi::Table {
            rows,
            dram_end: if drives { 0 } else { rows },
            dram: self.rows.address(),
            default_row: at + self.places.default_row,
            element: element::F32,
            dim: DIM,
            row_bytes: ROW as u32,
            row_stride: ROW as u32,
            row_lbas: 1,
            group_rows: 1,
            ..abi::Table::default()
        };
        let feature = abi::Feature { table, ..abi::Feature::default() };
        let segment = abi::Segment { rows, tier: if drives { tier::SSD } else { tier::DRAM }, ..Default::default() };
        self.memory.write(self.places.feature, feature.as_bytes())?;
        self.memory.write(self.places.table, table.as_bytes())?;
        self.memory.write(self.places.segment, segment.as_bytes())?;
        self.stream.gpu().synchronize()?;
        Ok(feature)
    }

    /// A look-up of `ids` ids of the request.
    pub(super) fn lookup(&self, request: &Request, ids: u64, way: DedupeMethod, first: abi::Feature) -> abi::Lookup {
        let at = self.memory.address();
        let places = &self.places;
        let lookup = abi::Lookup {
            batch: abi::BatchIds {
                ids: request.ids_at(),
                id_count: ids,
                bag_count: 1,
                max_ids: ids,
                max_bags: 1,
                id_type: abi::id::I64,
                has_end: 1,
                ..abi::BatchIds::default()
            },
            output: abi::OutputRows {
                rows: request.out_at(),
                row_stride: DIM.into(),
                element: element::F32,
                width: DIM,
                ..abi::OutputRows::default()
            },
            plan: abi::PlanTables {
                features: at + places.feature,
                tables: at + places.table,
                segments: at + places.segment,
                feature_count: 1,
                segment_count: 1,
                first_feature: first,
                ..abi::PlanTables::default()
            },
            lanes: abi::RowLanes { parts_of_row: 1, row_lanes: 1, lines_of_row: 1, ..abi::RowLanes::default() },
            slot: abi::SlotPlaces {
                state: at + places.state,
                tickets: self.tickets.address(),
                counts: at + places.counts,
                gate: self.gate.address(),
                ..abi::SlotPlaces::default()
            },
            keys: abi::KeySpace {
                count: self.keys,
                first_ssd_key: if on_drives(ids) { 0 } else { self.keys },
                dedupe: match way {
                    DedupeMethod::Hash => abi::dedupe::HASH,
                    DedupeMethod::Radix => abi::dedupe::RADIX,
                    _ => abi::dedupe::BITMAP,
                },
                repeats: 0,
            },
            sort: abi::KeySort {
                slots_log2: slots_log2(ids.min(self.content.rows())),
                sweeps: sweeps(self.keys),
                ..abi::KeySort::default()
            },
            unique: abi::UniqueRows { staging_stride: ROW, ..abi::UniqueRows::default() },
            ..abi::Lookup::default()
        };
        places.unique.of(at, lookup)
    }

    fn shape(&self, ids: u64) -> LaunchShape {
        let sms = self.stream.gpu().sms();
        // Rows are in GPU memory: the more read them the better.
        LaunchShape { sms, max_ids: ids, max_rows: ids, gatherers: sms * 4, listed: false }
    }

    /// A graph of such look-ups.
    pub(super) fn graph(&self, lookup: &abi::Lookup, way: DedupeMethod) -> anyhow::Result<LookupGraph> {
        let kind = if way == DedupeMethod::Block { LookupKind::Small } else { LookupKind::Large };
        let gpu = self.stream.gpu();
        let _current = gpu.enter()?;
        // SAFETY: the context is current; the kernels are `code`'s, which outlives this and the graph.
        Ok(unsafe { LookupGraph::new(gpu, &self.code.kernels, kind, lookup, &self.shape(lookup.batch.max_ids)) }?)
    }

    /// Runs it.
    pub(super) fn run(&self, graph: &mut LookupGraph, lookup: &abi::Lookup) -> anyhow::Result<()> {
        let _current = self.stream.gpu().enter()?;
        self.launched.set(self.launched.get() + 1);
        let stream = self.stream.raw();
        let shape = self.shape(lookup.batch.max_ids);
        // SAFETY: the look-up names memory of this and of the request, which last until the stream has been waited for.
        Ok(unsafe { graph.launch(stream, &self.code.kernels, lookup, &shape) }?)
    }

    fn launch(&self, kind: LookupKind, lookup: &abi::Lookup) -> anyhow::Result<()> {
        let _current = self.stream.gpu().enter()?;
        let stream = self.stream.raw();
        let shape = self.shape(lookup.batch.max_ids);
        // SAFETY: as above.
        Ok(unsafe { self.code.kernels.launch(stream, kind, lookup, &shape) }?)
    }

    /// Nanoseconds until unique keys were known, of the launch that has just ended.
    pub(super) fn unique_ns(&self) -> anyhow::Result<u64> {
        let memory = self.tickets.memory();
        let sequence = memory.load_u64(std::mem::offset_of!(abi::Ticket, sequence));
        let became = memory.load_u32(std::mem::offset_of!(abi::Ticket, outcome));
        ensure!(sequence == self.launched.get(), "{sequence} look-ups have ended instead of {}", self.launched.get());
        ensure!(became == outcome::DONE, "the look-up's outcome is {became}");
        let at = |offset| memory.load_u64(offset);
        let began = at(std::mem::offset_of!(abi::Ticket, began));
        let prepared = at(std::mem::offset_of!(abi::Ticket, prepared));
        prepared.checked_sub(began).context("its unique keys were known before it began")
    }

    /// Runs a look-up in two halves, and compares in between all that was found with the ids: how many different ones there are.
    pub(super) fn compare(&self, request: &Request, lookup: &abi::Lookup, way: DedupeMethod) -> anyhow::Result<u64> {
        let ahead = if way == DedupeMethod::Block { PrefetchKind::Small } else { PrefetchKind::Large };
        self.launched.set(self.launched.get() + 1);
        self.launch(LookupKind::Ahead(ahead), lookup)?;
        let uniques = self.check(request, lookup);
        self.launch(LookupKind::Rest(ahead), lookup)?;
        self.stream.wait()?;
        uniques
    }

    fn check(&self, request: &Request, lookup: &abi::Lookup) -> anyhow::Result<u64> {
        let wrong = self.wrong(request, lookup)?;
        let mut uniques = [0; 4];
        self.memory.read(self.places.state + std::mem::offset_of!(abi::SlotState, uniques) as u64, &mut uniques)?;
        let uniques = u64::from(u32::from_le_bytes(uniques));
        ensure!(
            wrong[0] == 0,
            "{} positions and uniques of {} and {uniques} are wrong",
            wrong[0],
            lookup.batch.id_count
        );
        ensure!(wrong[1] == uniques && uniques > 0, "{} uniques were compared instead of {uniques}", wrong[1]);
        Ok(uniques)
    }

    /// How many are wrong, and how many uniques were compared.
    fn wrong(&self, request: &Request, lookup: &abi::Lookup) -> anyhow::Result<[u64; 2]> {
        let at = self.memory.address();
        let count = lookup.batch.id_count;
        let code = self.code;
        let stream = self.stream;
        let launch = at + self.places.lookup;
        let seen = at + self.places.seen;
        let found = at + self.places.found;
        stream.wait()?;
        self.memory.write(self.places.lookup, lookup.as_bytes())?;
        stream.gpu().synchronize()?;
        let blocks = stream.gpu().sms() * 8;
        // SAFETY: the launch is described there, its ids are as many, and there is a byte for each unique.
        unsafe {
            stream.set(seen, 0, count as usize)?;
            stream.set(found, 0, 16)?;
            let inverse = [launch, request.ids_at(), count, 0, seen, found];
            code.module.launch(code.check_inverse, stream, blocks, 256, inverse)?;
            code.module.launch(code.check_uniques, stream, blocks, 256, [launch, seen, found])?;
        }
        stream.wait()?;
        let mut words = [0; 16];
        self.memory.read(self.places.found, &mut words)?;
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap_or_default());
        Ok([word(0), word(8)])
    }

    /// Whether the comparison finds a unique that is another.
    pub(super) fn prove(&self, request: &Request, lookup: &abi::Lookup) -> anyhow::Result<()> {
        self.launched.set(self.launched.get() + 1);
        self.launch(LookupKind::Ahead(PrefetchKind::Large), lookup)?;
        let uniques = self.check(request, lookup)?;
        let at = lookup.unique.keys - self.memory.address() + uniques / 2 * 8;
        let mut key = [0; 8];
        self.memory.read(at, &mut key)?;
        let other = u64::from_le_bytes(key) ^ 1;
        self.memory.write(at, &other.to_le_bytes())?;
        let wrong = self.wrong(request, lookup)?;
        self.memory.write(at, &key)?;
        self.stream.gpu().synchronize()?;
        self.launch(LookupKind::Rest(PrefetchKind::Large), lookup)?;
        self.stream.wait()?;
        ensure!(wrong[0] > 0, "the comparison does not see a wrong unique");
        Ok(())
    }
}
