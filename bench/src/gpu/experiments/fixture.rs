//! A table in pinned memory, the kernels that gather its rows, and the comparison of what they have gathered.

use std::time::Duration;

use anyhow::{Context, ensure};
use warprow_gpu_queues::DeviceMemory;
use warprow_kernels::abi;
use warprow_layout::DType;
use warprow_workload::{Content, Oracle, Random};
use zerocopy::IntoBytes;

use super::{room, words};
use crate::gpu::module::{Kernel, Module};
use crate::gpu::{Gather, Stream, us};

pub(in crate::gpu) const SOURCE: &str = include_str!("../cuda/gather.cu");
pub(in crate::gpu) const HEADERS: [(&str, &str); 1] = [("content.cuh", include_str!("../cuda/content.cuh"))];

/// What an output holds before it is written.
const POISON: u8 = 0xa5;
/// Threads of a block.
const THREADS: u32 = 256;

/// The kernels.
#[derive(Debug)]
pub(super) struct Code {
    module: Module,
    fill_rows: Kernel,
    gather_keys: Kernel,
    check_gathered: Kernel,
}

impl Code {
    pub(super) fn new(stream: &Stream) -> anyhow::Result<Self> {
        let module = Module::new(stream.gpu(), SOURCE, &HEADERS)?;
        let kernel = |name| module.kernel(name);
        let (fill_rows, gather_keys) = (kernel(c"fill_rows")?, kernel(c"gather_keys")?);
        Ok(Self { fill_rows, gather_keys, check_gathered: kernel(c"check_gathered")?, module })
    }

    /// Whether the comparison accepts right rows, and finds one wrong bit in them.
    pub(super) fn prove(&self, stream: &Stream) -> anyhow::Result<()> {
        let content = Oracle::new(99, 0, 1 << 33, 25 * 4, DType::F32);
        let mut random = Random::new(5);
        let keys: Vec<u64> = (0..1000).map(|_| random.below(content.rows())).collect();
        let mut rows = vec![0u8; keys.len() * content.row_bytes()];
        keys.iter().zip(rows.chunks_exact_mut(content.row_bytes())).for_each(|(&key, row)| content.fill(key, row));
        let mut end = 0;
        let places = [keys.len() as u64 * 8, rows.len() as u64, 16].map(|bytes| room(&mut end, bytes));
        let memory = DeviceMemory::new(stream.gpu(), end)?;
        memory.write(places[0], keys.as_bytes())?;
        let at = places.map(|place| memory.address() + place);
        let compare = |rows: &[u8]| -> anyhow::Result<[u64; 2]> {
            memory.write(places[1], rows)?;
            let keys = KeysAt { at: at[0], count: keys.len() as u64, last: 0 };
            // SAFETY: keys, rows and two words are there.
            unsafe { self.compare(stream, &content, at[1], keys, at[2]) }?;
            words(&memory, places[2])
        };
        let all = rows.len() as u64 / 8;
        ensure!(compare(&rows)? == [0, all], "the benchmarks' own comparison is broken: it refuses right rows");
        let at = random.below(rows.len() as u64) as usize;
        rows[at] ^= 1 << random.below(8);
        ensure!(compare(&rows)? == [1, all], "the benchmarks' own comparison is broken: it does not see a wrong bit");
        Ok(())
    }

    /// # Safety
    /// There are so many keys and rows, and two words at `found`.
    unsafe fn compare(
        &self,
        stream: &Stream,
        content: &Oracle,
        rows: u64,
        keys: KeysAt,
        found: u64,
    ) -> anyhow::Result<()> {
        let words = content.row_bytes() as u64 / 8;
        let parameters = [rows, keys.at, keys.count, words, content.key(), found];
        // SAFETY: the caller's promise.
        unsafe {
            stream.set(found, 0, 16)?;
            self.module.launch(self.check_gathered, stream, stream.gpu().sms() * 8, THREADS, parameters)?;
        }
        stream.wait()
    }
}

/// Keys in GPU memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeysAt {
    pub(super) at: u64,
    pub(super) count: u64,
    last: u64,
}

/// Fresh keys for each measurement.
pub(super) struct Keys {
    memory: DeviceMemory,
    ids: u64,
    random: Random,
}

impl Keys {
    pub(super) fn new(stream: &Stream, ids: u64, seed: u64) -> anyhow::Result<Self> {
        Ok(Self { memory: DeviceMemory::new(stream.gpu(), ids * 8)?, ids, random: Random::new(seed) })
    }

    /// Uniform ones, in the order of a request.
    pub(super) fn as_asked(&mut self, fixture: &Fixture<'_>) -> anyhow::Result<KeysAt> {
        let keys = self.draw(fixture);
        self.put(&keys)
    }

    /// Different ones among as many, ascending: what a look-up's gather gets.
    pub(super) fn ascending(&mut self, fixture: &Fixture<'_>) -> anyhow::Result<KeysAt> {
        let mut keys = self.draw(fixture);
        keys.sort_unstable();
        keys.dedup();
        self.put(&keys)
    }

    fn draw(&mut self, fixture: &Fixture<'_>) -> Vec<u64> {
        let rows = fixture.content.rows();
        (0..self.ids).map(|_| self.random.below(rows)).collect()
    }

    fn put(&self, keys: &[u64]) -> anyhow::Result<KeysAt> {
        self.memory.write(0, keys.as_bytes())?;
        let last = keys.last().copied().context("no keys")?;
        Ok(KeysAt { at: self.memory.address(), count: keys.len() as u64, last })
    }
}

/// One gathering.
pub(super) struct Taken {
    pub(super) time: Duration,
    pub(super) rows: u64,
}

impl Taken {
    /// Microseconds, and bytes a second.
    pub(super) fn sample(&self, row_bytes: u32) -> (f64, f64) {
        (us(self.time), (self.rows * u64::from(row_bytes)) as f64 / self.time.as_secs_f64())
    }
}

/// The table, and room for what is gathered.
pub(super) struct Fixture<'a> {
    stream: &'a Stream,
    code: &'a Code,
    content: Oracle,
    table: u64,
    out: DeviceMemory,
    description: DeviceMemory,
    places: Places,
    gatherers: u32,
}

struct Places {
    lookup: u64,
    state: u64,
    segment: u64,
    table: u64,
    found: u64,
}

impl<'a> Fixture<'a> {
    /// Fills the memory at `table` with the content's rows. Room for as many as `ids`.
    pub(super) fn new(
        stream: &'a Stream,
        code: &'a Code,
        table: u64,
        content: Oracle,
        ids: u64,
        gatherers: u32,
    ) -> anyhow::Result<Self> {
        let (gpu, row_bytes) = (stream.gpu(), content.row_bytes() as u64);
        let fill = [table, content.rows(), row_bytes / 8, content.key()];
        // SAFETY: the memory has room for so many rows.
        unsafe { code.module.launch(code.fill_rows, stream, gpu.sms() * 8, THREADS, fill) }?;
        stream.wait()?;
        let mut end = 0;
        let places = Places {
            lookup: room(&mut end, size_of::<abi::Lookup>() as u64),
            state: room(&mut end, size_of::<abi::SlotState>() as u64),
            segment: room(&mut end, size_of::<abi::Segment>() as u64),
            table: room(&mut end, size_of::<abi::Table>() as u64),
            found: room(&mut end, 16),
        };
        let (out, description) = (DeviceMemory::new(gpu, ids * row_bytes)?, DeviceMemory::new(gpu, end)?);
        // As the executor has it.
        let gatherers = if gatherers == 0 { (gpu.sms() / 8).max(1) } else { gatherers };
        let fixture = Self { stream, code, content, table, out, description, places, gatherers };
        let table = abi::Table {
            rows: content.rows(),
            dram_end: content.rows(),
            dram: table,
            row_bytes: row_bytes as u32,
            row_stride: row_bytes as u32,
            ..abi::Table::default()
        };
        let segment = abi::Segment { rows: content.rows(), tier: abi::tier::DRAM, ..Default::default() };
        fixture.description.write(fixture.places.table, table.as_bytes())?;
        fixture.description.write(fixture.places.segment, segment.as_bytes())?;
        Ok(fixture)
    }

    pub(super) fn table(&self) -> u64 {
        self.table
    }

    pub(super) fn out(&self) -> u64 {
        self.out.address()
    }

    pub(super) fn row_bytes(&self) -> u32 {
        self.content.row_bytes() as u32
    }

    pub(super) fn gatherers(&self) -> u32 {
        self.gatherers
    }

    /// Describes a look-up of these keys to the kernels, poisons the output, times `gather`, and compares all rows.
    pub(super) fn timed(&self, keys: KeysAt, gather: impl Fn(KeysAt) -> anyhow::Result<()>) -> anyhow::Result<Taken> {
        let (at, row_bytes) = (self.description.address(), u64::from(self.row_bytes()));
        let count = u32::try_from(keys.count)?;
        let lookup = abi::Lookup {
            unique: keys.at,
            staging: self.out.address(),
            staging_stride: row_bytes,
            slot: at + self.places.state,
            segment: at + self.places.segment,
            table: at + self.places.table,
            segments: 1,
            lanes: (row_bytes / 16).next_power_of_two().trailing_zeros().min(5),
            ..abi::Lookup::default()
        };
        let state = abi::SlotState { uniques: count, dram_uniques: count, ..abi::SlotState::default() };
        self.description.write(self.places.lookup, lookup.as_bytes())?;
        self.description.write(self.places.state, state.as_bytes())?;
        // SAFETY: the output has room for so many rows.
        unsafe { self.stream.set(self.out.address(), POISON, (keys.count * row_bytes) as usize) }?;
        self.stream.wait()?;
        let (time, ()) = self.stream.hidden(|| gather(keys))?;
        // SAFETY: there are so many keys and rows.
        unsafe { self.code.compare(self.stream, &self.content, self.out.address(), keys, at + self.places.found) }?;
        let [wrong, seen] = words(&self.description, self.places.found)?;
        ensure!(wrong == 0, "{wrong} words of {seen} are wrong");
        ensure!(seen == keys.count * row_bytes / 8, "{seen} words were compared of {} rows", keys.count);
        self.spot(keys)?;
        Ok(Taken { time, rows: keys.count })
    }

    /// The last row, computed here.
    fn spot(&self, keys: KeysAt) -> anyhow::Result<()> {
        let (mut got, mut wanted) = (vec![0; self.content.row_bytes()], vec![0; self.content.row_bytes()]);
        let last = keys.count.checked_sub(1).context("no keys")?;
        self.out.read(last * u64::from(self.row_bytes()), &mut got)?;
        self.content.fill(keys.last, &mut wanted);
        ensure!(got == wanted, "the last row is wrong");
        Ok(())
    }

    /// The look-up's own gather.
    pub(super) fn by_lookup(&self, _: KeysAt) -> anyhow::Result<()> {
        let launch = [self.description.address() + self.places.lookup];
        // SAFETY: `timed` has described the look-up there.
        unsafe { self.code.module.launch(self.code.gather_keys, self.stream, self.gatherers, THREADS, launch) }
    }

    /// Plain loads, by all multiprocessors, in the order of the keys.
    pub(super) fn plainly(&self, keys: KeysAt) -> anyhow::Result<()> {
        let row_bytes = u64::from(self.row_bytes());
        let gather = Gather {
            table: self.table,
            stride: row_bytes,
            ids: keys.at,
            out: self.out(),
            count: keys.count,
            row_bytes,
        };
        // SAFETY: the table has every key's row, the output room for all.
        unsafe { self.stream.kernels().gather(self.stream, &gather) }
    }
}
