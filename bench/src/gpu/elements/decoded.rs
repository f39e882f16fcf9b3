//! What rows mean, as the processor has decoded them, in GPU memory; and the comparison of answers with it.

use anyhow::{Context, ensure};
use warprow_gpu_queues::DeviceMemory;
use warprow_layout::DType;
use warprow_workload::{SeededRandom, mix_all};
use zerocopy::IntoBytes;

use super::content::Rows;
use super::request::request;
use crate::gpu::module::{Kernel, Module};
use crate::gpu::{Request, Shape, Stream};

pub(in crate::gpu) const SOURCE: &str = include_str!("../cuda/decoded.cu");

/// Bytes that are decoded and copied at a time.
const PIECE: u64 = 64 << 20;
/// Rows, or bags, of each answer that the processor computes too.
const SPOTS: u64 = 2;

/// The kernels.
#[derive(Debug)]
pub(super) struct Code {
    module: Module,
    rows: Kernel,
    sums: Kernel,
}

impl Code {
    pub(super) fn new(stream: &Stream) -> anyhow::Result<Self> {
        let module = Module::new(stream.gpu(), SOURCE, &[])?;
        let rows = module.kernel(c"check_decoded")?;
        let sums = module.kernel(c"check_decoded_sums")?;
        Ok(Self { module, rows, sums })
    }
}

/// A table's rows as f32.
pub(super) struct Decoded<'a> {
    stream: &'a Stream,
    code: &'a Code,
    rows: &'a Rows,
    dim: u64,
    memory: DeviceMemory,
    found: DeviceMemory,
    random: SeededRandom,
    /// Rows or bags compared, all of them on the GPU.
    pub(super) checked: u64,
    /// Elements that this machine's processor computed as well.
    pub(super) spots: u64,
}

impl<'a> Decoded<'a> {
    pub(super) fn new(
        stream: &'a Stream,
        code: &'a Code,
        rows: &'a Rows,
        (count, dim): (u64, u64),
        seed: u64,
    ) -> anyhow::Result<Self> {
        let row = dim * 4;
        let memory = DeviceMemory::new(stream.gpu(), count * row)?;
        let found = DeviceMemory::new(stream.gpu(), 16)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let piece = (PIECE / row).clamp(1, count);
        let mut values = vec![0f32; (piece * dim) as usize];
        for first in (0..count).step_by(piece as usize) {
            let here = piece.min(count - first);
            let values = &mut values[..(here * dim) as usize];
            let each = (here as usize).div_ceil(threads) * dim as usize;
            std::thread::scope(|scope| {
                for (values, part) in values.chunks_mut(each).zip(0u64..) {
                    let first = first + part * each as u64 / dim;
                    scope.spawn(move || {
                        let mut row = vec![0; rows.row_bytes()];
                        for (id, values) in (first..).zip(values.chunks_exact_mut(dim as usize)) {
                            rows.fill(id, &mut row);
                            rows.decode(&row, values);
                        }
                    });
                }
            });
            memory.write(first * row, values.as_bytes())?;
        }
        let random = SeededRandom::new(mix_all([seed, 0x5b07]));
        Ok(Self { stream, code, rows, dim, memory, found, random, checked: 0, spots: 0 })
    }

    /// Compares the whole answer on the GPU, and some of it here too.
    pub(super) fn check(&mut self, request: &Request, shape: Shape) -> anyhow::Result<()> {
        let ids = request.ids()?;
        let out_rows = if shape.pooled { shape.bags } else { ids.len() as u64 };
        let out = request.out_at();
        let decoded = self.memory.address();
        let found = self.found.address();
        let dim = self.dim;
        let code = self.code;
        let stream = self.stream;
        let blocks = self.stream.gpu().sms() * 8;
        // SAFETY: as many ids, rows of output and decoded rows are there, and two words at `found`.
        unsafe {
            stream.set(found, 0, 16)?;
            match shape.pooled {
                false => {
                    let all = [out, request.ids_at(), out_rows, dim, decoded, found];
                    code.module.launch(code.rows, stream, blocks, 256, all)?;
                }
                true => {
                    let all = [out, request.ids_at(), shape.bags, shape.hot, dim, decoded, found];
                    code.module.launch(code.sums, stream, blocks, 256, all)?;
                }
            }
        }
        stream.wait()?;
        let mut words = [0u64; 2];
        self.found.read(0, words.as_mut_bytes())?;
        let [wrong, seen] = words;
        ensure!(wrong == 0, "{wrong} elements of {seen} are wrong");
        ensure!(seen == out_rows * dim, "{seen} elements were compared instead of {}", out_rows * dim);
        self.checked += out_rows;
        for _ in 0..SPOTS.min(out_rows) {
            let at = self.random.below(out_rows);
            let hot = if shape.pooled { shape.hot } else { 1 };
            let ids = &ids[(at * hot) as usize..][..hot as usize];
            let mut got = vec![0f32; dim as usize];
            request.read_row(at, got.as_mut_bytes())?;
            let wanted = self.wanted(ids, shape.pooled);
            ensure!(got.as_bytes() == wanted.as_bytes(), "row {at} of ids {ids:?} is wrong");
            self.spots += 1;
        }
        Ok(())
    }

    /// The row of an id, or the sum of several in their order.
    fn wanted(&self, ids: &[i64], pooled: bool) -> Vec<f32> {
        let mut sums = vec![0f32; self.dim as usize];
        let mut one = vec![0f32; self.dim as usize];
        let mut row = vec![0; self.rows.row_bytes()];
        for &id in ids {
            self.rows.fill(id as u64, &mut row);
            self.rows.decode(&row, &mut one);
            sums.iter_mut().zip(&one).for_each(|(sum, &value)| *sum = if pooled { *sum + value } else { value });
        }
        sums
    }

    /// Whether the comparison accepts a right answer, and finds one wrong bit in it.
    pub(super) fn prove(&mut self, request: &mut Request, shape: Shape) -> anyhow::Result<()> {
        request.draw(self.stream)?;
        let ids = request.ids()?;
        let hot = if shape.pooled { shape.hot as usize } else { 1 };
        let mut out: Vec<f32> = ids.chunks_exact(hot).flat_map(|ids| self.wanted(ids, shape.pooled)).collect();
        request.write_out(out.as_bytes())?;
        self.check(request, shape).context("the benchmarks' own comparison refuses a right answer")?;
        let at = self.random.below(out.len() as u64) as usize;
        out[at] = f32::from_bits(out[at].to_bits() ^ 1 << self.random.below(32));
        request.write_out(out.as_bytes())?;
        let seen = self.check(request, shape).err().map(|error| error.to_string());
        ensure!(
            seen.as_ref().is_some_and(|seen| seen.starts_with("1 elements")),
            "the benchmarks' own comparison does not see one wrong bit of element {at}: {seen:?}"
        );
        Ok(())
    }
}

/// The comparison by itself, of pooled rows and of others.
pub(super) fn prove(stream: &Stream, code: &Code) -> anyhow::Result<()> {
    let count = 1000;
    let dim = 34;
    for (dtype, pooled) in [(DType::Q4, false), (DType::F8E4M3, true), (DType::F32, false)] {
        let rows = Rows::new(99, count, dim, dtype).context("rows of 34 elements")?;
        let mut decoded = Decoded::new(stream, code, &rows, (count, dim.into()), 5)?;
        let shape = if pooled { Shape { bags: 40, hot: 7, pooled } } else { Shape::rows(280) };
        let mut request = request(stream, (count, dim), 0.0, shape, 5)?;
        decoded.prove(&mut request, shape)?;
    }
    Ok(())
}
