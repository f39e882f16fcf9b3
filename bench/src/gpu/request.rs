//! A batch on the GPU: fresh ids, a place for the answer, and the comparison of all of it with the truth.

use std::sync::Arc;

use anyhow::{Context, ensure};
use warprow_gpu::{BatchLen, GpuBatch, GpuOutput, IdType};
use warprow_gpu_queues::{DeviceMemory, Gpu, PinnedMemory};
use warprow_layout::DType;
use warprow_workload::{ContentOracle, PowerLaw, SeededRandom, TableContent, mix_all};
use zerocopy::IntoBytes;

use super::{Kernels, Stream};

/// What an output holds before it is written.
const POISON: u8 = 0xa5;

/// A table that ids are drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// The table's content, rows of f32.
    pub content: ContentOracle,
    /// The law of its ids, which are ranks; `None`: uniform.
    pub law: Option<PowerLaw>,
}

impl Drawn {
    /// Ids by a power law of that exponent; 0: uniform.
    pub fn new(content: ContentOracle, alpha: f64) -> anyhow::Result<Self> {
        let law = PowerLaw::new(content.rows(), alpha).with_context(|| format!("an exponent of {alpha}: 0 or more"))?;
        Ok(Self { content, law: Some(law).filter(|_| alpha != 0.0) })
    }
}

/// How a batch looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bags of each feature.
    pub bags: u64,
    /// Ids in a bag.
    pub hot: u64,
    /// Whether bags are summed: then an output row has all features side by side.
    pub pooled: bool,
}

impl Shape {
    /// `ids` ids of one feature, unpooled.
    pub fn rows(ids: u64) -> Self {
        Self { bags: 1, hot: ids, pooled: false }
    }

    /// Ids in all.
    pub fn ids(&self, features: usize) -> u64 {
        features as u64 * self.bags * self.hot
    }

    /// Output rows, and features in each.
    fn output(&self, features: usize) -> (u64, u64) {
        if self.pooled { (self.bags, features as u64) } else { (self.ids(features), 1) }
    }
}

/// Ids and output of one batch, in memory of the GPU's.
#[derive(Debug)]
pub struct Request {
    tables: Vec<Drawn>,
    dim: u64,
    shape: Shape,
    ids: DeviceMemory,
    out: DeviceMemory,
    on_gpu: DeviceMemory,
    found: DeviceMemory,
    staging: PinnedMemory,
    /// Where bags begin, if the plan has more features than this, which are empty.
    offsets: Option<DeviceMemory>,
    seed: u64,
    draws: u64,
    random: SeededRandom,
    /// Rows (or bags of a feature) compared, all of them on the GPU.
    pub checked: u64,
    /// Elements that this machine's processor computed as well.
    pub spots: u64,
}

impl Request {
    /// Room for batches of `tables` up to `most_ids` ids and `most_out` output rows of a feature.
    pub fn new(stream: &Stream, tables: &[Drawn], most_ids: u64, most_out: u64, seed: u64) -> anyhow::Result<Self> {
        let gpu = stream.gpu();
        let dim = tables.first().context("no table")?.content.dim();
        ensure!(
            tables.iter().all(|table| table.content.dim() == dim && table.content.dtype() == DType::F32),
            "rows differ"
        );
        let words = |drawn: &Drawn| {
            let (span, power) = drawn.law.map_or((0.0, 0.0), |law| law.parameters());
            [drawn.content.key(), drawn.content.rows(), span.to_bits(), power.to_bits()]
        };
        let described: Vec<u8> = tables.iter().flat_map(words).flat_map(u64::to_le_bytes).collect();
        let on_gpu = DeviceMemory::new(gpu, described.len() as u64)?;
        on_gpu.write(0, &described)?;
        // Copies from ordinary memory may still be under way when they return, and other streams do not wait for them.
        gpu.synchronize()?;
        Ok(Self {
            tables: tables.to_vec(),
            dim: dim.into(),
            shape: Shape::rows(0),
            ids: DeviceMemory::new(gpu, most_ids * 8)?,
            out: DeviceMemory::new(gpu, most_out * u64::from(dim) * 4)?,
            on_gpu,
            found: DeviceMemory::new(gpu, 24)?,
            staging: PinnedMemory::allocate(gpu, (most_ids * 8).clamp(4096, 1 << 20))?,
            offsets: None,
            seed,
            draws: 0,
            random: SeededRandom::new(mix_all([seed, 0x5e1ec7])),
            checked: 0,
            spots: 0,
        })
    }

    /// Batches look like this from now on.
    pub fn reshape(&mut self, shape: Shape) -> anyhow::Result<()> {
        let (rows, features) = shape.output(self.tables.len());
        let ids = shape.ids(self.tables.len());
        ensure!(ids * 8 <= self.ids.bytes(), "{ids} ids are more than there is room for");
        ensure!(rows * features * self.dim * 4 <= self.out.bytes(), "{rows} rows are more than there is room for");
        self.shape = shape;
        Ok(())
    }

    /// Gives the batch offsets for a plan of so many features, of which only the first has ids.
    pub fn alone_among(&mut self, gpu: &Arc<Gpu>, features: u64) -> anyhow::Result<()> {
        ensure!(self.tables.len() == 1, "{} features have ids", self.tables.len());
        let Shape { bags, hot, .. } = self.shape;
        let offsets: Vec<u64> = (0..=features * bags).map(|bag| bag.min(bags) * hot).collect();
        let memory = DeviceMemory::new(gpu, offsets.len() as u64 * 8)?;
        memory.write(0, offsets.as_bytes())?;
        gpu.synchronize()?;
        self.offsets = Some(memory);
        Ok(())
    }

    /// Ids of the batch.
    pub fn count(&self) -> u64 {
        self.shape.ids(self.tables.len())
    }

    /// Bytes of the answer.
    pub fn out_bytes(&self) -> u64 {
        let (rows, features) = self.shape.output(self.tables.len());
        rows * features * self.dim * 4
    }

    /// Address of the ids.
    pub fn ids_at(&self) -> u64 {
        self.ids.address()
    }

    /// Address of the answer.
    pub fn out_at(&self) -> u64 {
        self.out.address()
    }

    /// As a look-up takes it.
    pub fn batch(&self) -> (GpuBatch, GpuOutput) {
        let (_, features) = self.shape.output(self.tables.len());
        let mut batch =
            GpuBatch::new(self.ids.address(), BatchLen::Host(self.count() as usize), self.shape.bags as u32);
        if let Some(offsets) = &self.offsets {
            batch = batch.with_offsets(offsets.address(), IdType::I64);
        }
        (batch, GpuOutput::new(self.out.address(), (features * self.dim) as usize))
    }

    /// Fresh ids, and nothing of an answer; both are there when it returns.
    pub fn draw(&mut self, stream: &Stream) -> anyhow::Result<()> {
        self.draws += 1;
        let count = self.count();
        let each = self.shape.bags * self.shape.hot;
        let seed = mix_all([self.seed, self.draws]);
        // SAFETY: `reshape` has seen to the room; there is a table for each feature.
        unsafe {
            stream.kernels().draw(stream, self.ids.address(), count, each, self.on_gpu.address(), seed)?;
            stream.set(self.out.address(), POISON, self.out_bytes() as usize)?;
        }
        stream.wait()
    }

    /// Uploads these ids and fills the output with a pattern; both are done when it returns.
    pub fn upload(&mut self, stream: &Stream, ids: &[i64]) -> anyhow::Result<()> {
        ensure!(ids.len() as u64 == self.count(), "{} ids instead of {}", ids.len(), self.count());
        let bytes = ids.as_bytes();
        // SAFETY: there is room for the ids, as `reshape` has seen; the copy is waited for.
        unsafe {
            if bytes.len() <= self.staging.memory().len() {
                self.staging.memory().write(0, bytes);
                stream.copy(self.ids.address(), self.staging.memory().as_ptr(), bytes.len())?;
            } else {
                self.ids.write(0, bytes)?;
                stream.gpu().synchronize()?;
            }
            stream.set(self.out.address(), POISON, self.out_bytes() as usize)?;
        }
        stream.wait()
    }

    /// The ids as they are on the GPU.
    pub fn ids(&self) -> anyhow::Result<Vec<i64>> {
        let mut ids = vec![0i64; self.count() as usize];
        self.ids.read(0, ids.as_mut_bytes())?;
        Ok(ids)
    }

    /// The bytes of an output row, or of its begin.
    pub(super) fn read_row(&self, row: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
        let (_, side_by_side) = self.shape.output(self.tables.len());
        Ok(self.out.read(row * side_by_side * self.dim * 4, bytes)?)
    }

    /// Puts an answer there; it is there when this returns.
    pub(super) fn write_out(&self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.out.write(0, bytes)?)
    }

    /// Compares the whole answer on the GPU, and `spots` rows of it here too.
    pub fn check(&mut self, stream: &Stream, spots: u32) -> anyhow::Result<()> {
        let (features, Shape { bags, hot, pooled }) = (self.tables.len() as u64, self.shape);
        let (rows, side_by_side) = self.shape.output(self.tables.len());
        let stride = side_by_side * self.dim;
        let out = self.out.address();
        let ids = self.ids.address();
        let tables = self.on_gpu.address();
        let found = self.found.address();
        let work = rows * side_by_side * self.dim.div_ceil(2);
        // SAFETY: as many ids, rows and tables are there; `found` has three words, of which the second is to be lowered.
        unsafe {
            stream.set(found, 0, 24)?;
            stream.set(found + 8, 0xff, 8)?;
            match pooled {
                false => {
                    let all = [out, stride, ids, self.count(), (bags * hot).max(1), tables, self.dim, found];
                    stream.kernels().check_rows(stream, work, all)?;
                }
                true => {
                    let all = [out, stride, ids, bags, hot, features, tables, self.dim, found];
                    stream.kernels().check_sums(stream, work, all)?;
                }
            }
        }
        stream.wait()?;
        let mut words = [0u64; 3];
        self.found.read(0, words.as_mut_bytes())?;
        let [wrong, first, seen] = words;
        ensure!(wrong == 0, "{wrong} elements of {seen} are wrong, the first in row {}", first / stride.max(1));
        ensure!(seen == rows * stride, "{seen} elements were compared instead of {}", rows * stride);
        self.checked += rows * side_by_side;
        for _ in 0..spots.min(u32::try_from(rows).unwrap_or(u32::MAX)) {
            let row = self.random.below(rows);
            let feature = self.random.below(side_by_side);
            self.spot(row, feature).with_context(|| format!("row {row}, feature {feature}"))?;
        }
        Ok(())
    }

    /// One row of a feature, computed here.
    fn spot(&mut self, row: u64, feature: u64) -> anyhow::Result<()> {
        let (_, side_by_side) = self.shape.output(self.tables.len());
        let Shape { bags, hot, pooled } = self.shape;
        let (at, count, feature) = match pooled {
            false => (row, 1, row / (bags * hot).max(1)),
            true => ((feature * bags + row) * hot, hot, feature),
        };
        let mut ids = vec![0i64; count as usize];
        self.ids.read(at * 8, ids.as_mut_bytes())?;
        let table = self.tables.get(feature as usize).context("no such table")?;
        let column = if pooled { feature * self.dim } else { 0 };
        let row_bytes = self.dim as usize * 4;
        let mut got = vec![0u8; row_bytes];
        let mut wanted = vec![0u8; row_bytes];
        self.out.read((row * side_by_side * self.dim + column) * 4, &mut got)?;
        wanted_sum(&table.content, &ids, &mut wanted, pooled);
        ensure!(got == wanted, "the row of ids {ids:?} is wrong");
        self.spots += 1;
        Ok(())
    }

    /// Puts the right answer there, and then a wrong bit: the comparison has to see no fault, and then just that.
    fn prove(&mut self, stream: &Stream) -> anyhow::Result<()> {
        self.draw(stream)?;
        let ids = self.ids()?;
        let features = self.tables.len() as u64;
        let (rows, side_by_side) = self.shape.output(self.tables.len());
        let row_bytes = self.dim as usize * 4;
        let mut out = vec![0u8; (rows * side_by_side) as usize * row_bytes];
        let Shape { bags, hot, pooled } = self.shape;
        for (at, place) in out.chunks_exact_mut(row_bytes).enumerate() {
            let at = at as u64;
            let (feature, first, count) = match pooled {
                false => (at / (bags * hot), at, 1),
                true => (at % features, (at % features * bags + at / features) * hot, hot),
            };
            let ids = &ids[first as usize..][..count as usize];
            wanted_sum(&self.tables[feature as usize].content, ids, place, pooled);
        }
        self.out.write(0, &out)?;
        stream.gpu().synchronize()?;
        self.check(stream, 8).context("the comparison refuses a right answer")?;
        let at = self.random.below(out.len() as u64);
        self.out.write(at, &[out[at as usize] ^ 1 << self.random.below(8)])?;
        stream.gpu().synchronize()?;
        let seen = self.check(stream, 0).err().map(|error| error.to_string());
        ensure!(
            seen.as_ref().is_some_and(|seen| seen.starts_with("1 elements")),
            "the comparison does not see one wrong bit at byte {at}: {seen:?}"
        );
        Ok(())
    }
}

/// The row of a bag: that of its only id, or the sum in the order of the bag.
fn wanted_sum(content: &ContentOracle, ids: &[i64], row: &mut [u8], pooled: bool) {
    if !pooled {
        return ids.iter().for_each(|&id| content.fill(id as u64, row));
    }
    let mut sums = vec![0f32; row.len() / 4];
    let mut one = vec![0u8; row.len()];
    for &id in ids {
        content.fill(id as u64, &mut one);
        for (sum, bytes) in sums.iter_mut().zip(one.as_chunks::<4>().0) {
            *sum += f32::from_le_bytes(*bytes);
        }
    }
    row.copy_from_slice(sums.as_bytes());
}

/// A GPU, ready to measure on.
pub fn ready(gpu: &Arc<Gpu>) -> anyhow::Result<Stream> {
    let stream = Stream::new(&Kernels::new(gpu)?)?;
    for (dim, shape) in [
        (25, Shape { bags: 3, hot: 50, pooled: false }),
        (128, Shape { bags: 40, hot: 7, pooled: true }),
        (64, Shape { bags: 100, hot: 1, pooled: false }),
    ] {
        let table = |(rows, alpha, index)| Drawn::new(ContentOracle::new(99, index, rows, dim, DType::F32), alpha);
        let tables = [table((1 << 33, 0.0, 0))?, table((1000, 1.05, 1))?, table((3, 1.0, 2))?];
        let mut request = Request::new(&stream, &tables, shape.ids(3), shape.ids(3), 5)?;
        request.reshape(shape)?;
        request.prove(&stream).context("the benchmarks' own comparison is broken")?;
    }
    Ok(stream)
}
