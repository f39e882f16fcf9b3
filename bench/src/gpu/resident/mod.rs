//! The ring code of the look-up against a controller at hardware speed: a kernel that stays on a GPU and answers queues from an image in
//! that GPU's memory, beside those who read or on another GPU, which then reads and writes across the link between them.

mod abi;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use cudarc::driver::sys::{self, CUresult};
use serde::{Deserialize, Serialize};
use warprow_gpu_queues::abi::{DOORBELL_MEMORY, GATE_BYTES, LANES, MAX_BATCHES, QueueDescriptor, QueueState};
use warprow_gpu_queues::{DeviceMemory, Gpu, PinnedMemory};
use warprow_layout::DType;
use warprow_soft_controller::TimingProfile;
use warprow_workload::{ContentOracle, TableContent, mix_all};
use zerocopy::{FromBytes, IntoBytes};

use self::abi::{Answered, Channel, Read};
use super::Stream;
use super::module::{Kernel, Module};
use super::stream::cuda;

pub(super) const SOURCE: &str = include_str!("../cuda/resident.cu");
pub(super) const HEADERS: [(&str, &str); 2] =
    [("content.cuh", include_str!("../cuda/content.cuh")), ("controller.cuh", include_str!("../cuda/controller.cuh"))];

/// Bytes of an LBA.
const BLOCK: u64 = 512;
/// Threads of a block that answers a queue: where no data moves, where some does, and where so many queues would leave no room for readers.
const ANSWERING: [u32; 3] = [256, 1024, 512];
const MANY_QUEUES: u32 = 64;
/// A controller that nobody stops ends by itself.
const LONGEST: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(5);
/// From a doorbell of a queue to that of the next, each on a line of its own.
const LINE: u64 = 128;
const ALIGNED: u64 = 4096;

/// Measures between a GPU that reads and one that answers: the same, or another.
#[derive(Debug)]
pub struct Bench<'a> {
    /// On the reading GPU.
    stream: &'a Stream,
    reading: Code,
    /// On the answering one.
    answering: Code,
    answers: Stream,
    image: DeviceMemory,
    oracle: ContentOracle,
}

#[derive(Debug)]
struct Code {
    module: Module,
    fill_image: Kernel,
    read_lbas: Kernel,
    answer: Kernel,
}

impl Code {
    fn new(gpu: &Arc<Gpu>) -> anyhow::Result<Self> {
        let module = Module::new(gpu, SOURCE, &HEADERS)?;
        let kernel = |name| module.kernel(name);
        let fill_image = kernel(c"fill_image")?;
        let read_lbas = kernel(c"read_lbas")?;
        let answer = kernel(c"answer")?;
        Ok(Self { module, fill_image, read_lbas, answer })
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct ResidentSetup {
    /// Queues: blocks that read, and blocks that answer.
    pub queues: u32,
    /// Commands of a batch at most, 1 to 256.
    pub batch: u32,
    /// Entries of each ring, a power of two from 4 to 4096; of one batch at least.
    pub depth: u32,
    /// Whether data moves, and is compared.
    pub data: bool,
    /// Commands of each queue.
    pub commands: u64,
    /// The rate and latency of the drive behind the queues.
    pub profile: TimingProfile,
    /// Of LBAs, disorder and late completions.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResidentResult {
    /// Whether another GPU answers.
    pub peer: bool,
    /// Queues.
    pub queues: u32,
    /// Commands of a batch at most.
    pub batch: u32,
    /// Entries of each ring.
    pub depth: u32,
    /// Commands in flight on a queue at most.
    pub in_flight: u32,
    /// Whether data moved.
    pub data: bool,
    /// Timing of the drive.
    pub profile: String,
    /// Commands in all.
    pub commands: u64,
    /// Commands a second, by the GPU's clock.
    pub commands_per_second: f64,
    /// Bytes of data a second.
    pub bytes_per_second: f64,
    /// Commands for each doorbell, tails and heads together.
    pub commands_per_doorbell: f64,
    /// Commands that the controller fetched in one pass, on average.
    pub fetched_together: f64,
    /// LBAs that were compared: all.
    pub checked: u64,
    /// Completions that were late.
    pub late: u64,
}

impl<'a> Bench<'a> {
    /// Fills an image of `bytes` on GPU `answering`, for readers on the stream's.
    pub fn new(stream: &'a Stream, answering: &Arc<Gpu>, bytes: u64, seed: u64) -> anyhow::Result<Self> {
        let lbas = bytes / BLOCK;
        ensure!(lbas > 0, "{bytes} bytes hold no LBA of {BLOCK}");
        let peer = answering.context() != stream.gpu().context();
        if peer {
            befriend(stream.gpu(), answering)?;
            befriend(answering, stream.gpu())?;
        }
        let oracle = ContentOracle::new(seed, 0, lbas, (BLOCK / 4) as u32, DType::F32);
        let image = DeviceMemory::new(answering, lbas * BLOCK)?;
        let reading = Code::new(stream.gpu())?;
        let code = Code::new(answering)?;
        let answers = Stream::new(&super::Kernels::new(answering)?)?;
        let parameters = [image.address(), lbas, BLOCK / 8, oracle.key()];
        // SAFETY: the image has room for so many LBAs.
        unsafe { code.module.launch(code.fill_image, &answers, answering.sms() * 8, 256, parameters) }?;
        answers.wait()?;
        let this = Self { stream, reading, answering: code, answers, image, oracle };
        this.check_image()?;
        Ok(this)
    }

    /// Some LBAs of the image, by the processor.
    fn check_image(&self) -> anyhow::Result<()> {
        let lbas = self.oracle.rows();
        for lba in [0, lbas / 3, lbas - 1] {
            let mut found = [0; BLOCK as usize];
            let mut wanted = [0; BLOCK as usize];
            self.image.read(lba * BLOCK, &mut found)?;
            self.oracle.fill(lba, &mut wanted);
            ensure!(found == wanted, "LBA {lba} of the image is not what the processor computes");
        }
        Ok(())
    }

    /// Reads random LBAs: once to warm up, then `rounds` times, of which the one with the median rate counts.
    pub fn measure(&self, setup: &ResidentSetup, rounds: u32) -> anyhow::Result<ResidentResult> {
        let mut results = (0..=rounds.max(1))
            .map(|round| self.once(setup, mix_all([setup.seed, round.into()])))
            .skip(1)
            .collect::<anyhow::Result<Vec<_>>>()?;
        results.sort_by(|a, b| a.commands_per_second.total_cmp(&b.commands_per_second));
        Ok(results.swap_remove(results.len() / 2))
    }

    fn once(&self, setup: &ResidentSetup, seed: u64) -> anyhow::Result<ResidentResult> {
        let &ResidentSetup { queues, batch, depth, data, commands, profile, .. } = setup;
        ensure!((1..=1024).contains(&queues), "{queues} queues: 1 to 1024");
        ensure!((1..=LANES).contains(&batch), "batches of {batch}: a block has {LANES} lanes");
        ensure!(
            depth.is_power_of_two() && (4..=4096).contains(&depth),
            "a depth of {depth}: a power of two, 4 to 4096"
        );
        ensure!(batch < depth, "a batch of {batch} does not fit a ring of {depth}");
        let batches = ((depth - 1) / batch).min(MAX_BATCHES as u32);
        let gpu = self.stream.gpu();
        let other = self.answering.module.gpu();
        let sq_bytes = u64::from(depth) * 64;
        let cq_bytes = u64::from(depth) * 16;
        let landing = u64::from(LANES * batches) * BLOCK;
        let state_bytes = size_of::<QueueState>() as u64;
        let each = [sq_bytes, cq_bytes, landing].map(|bytes| bytes.next_multiple_of(ALIGNED)).iter().sum::<u64>();
        // Rings and what lands: with the reader. Doorbells: with the controller, like a drive's registers.
        let rings = DeviceMemory::new(gpu, each * u64::from(queues))?;
        let bells = DeviceMemory::new(other, 2 * LINE * u64::from(queues) + LINE)?;
        let states = DeviceMemory::new(gpu, state_bytes * u64::from(queues))?;
        let pinned = PinnedMemory::allocate(gpu, 256 * u64::from(queues) + GATE_BYTES as u64 + ALIGNED)?;
        let faults = pinned.address() + GATE_BYTES as u64;
        let stop = PinnedMemory::allocate(other, ALIGNED)?;
        let read_bytes = size_of::<Read>() as u64;
        let answered_bytes = size_of::<Answered>() as u64;
        let reads = DeviceMemory::new(gpu, read_bytes * u64::from(queues))?;
        let answered = DeviceMemory::new(other, answered_bytes * u64::from(queues))?;
        let timing = profile.timing();
        let latency_ns =
            timing.as_ref().map_or(0, |timing| (timing.page_read + timing.read_overhead).as_nanos() as u64);
        let step = timing.map_or(0, |timing| (4e9 / timing.small_reads) as u64);
        let cid_shift = (LANES * batches).next_power_of_two().ilog2();
        let mut descriptors = Vec::new();
        let mut channels = Vec::new();
        for queue in 0..queues {
            let number = u64::from(queue);
            let sq = rings.address() + number * each;
            let cq = sq + sq_bytes.next_multiple_of(ALIGNED);
            let lands = cq + cq_bytes.next_multiple_of(ALIGNED);
            let sq_tail = bells.address() + LINE + number * 2 * LINE;
            descriptors.extend_from_slice(
                QueueDescriptor {
                    sq,
                    cq,
                    landing: lands,
                    landing_iova: lands,
                    sq_tail,
                    cq_head: sq_tail + LINE,
                    state: states.address() + number * state_bytes,
                    fault: faults + number * 256,
                    timeout_ns: TIMEOUT.as_nanos() as u64,
                    landing_stride: BLOCK as u32,
                    sq_size: depth,
                    cq_size: depth,
                    doorbell_kind: DOORBELL_MEMORY,
                    queue_id: queue + 1,
                    drive: 0,
                    nsid: 1,
                    lba_shift: BLOCK.ilog2(),
                    batches,
                    cid_shift,
                    generations: (1 << (16 - cid_shift)) - 1,
                    ..QueueDescriptor::default()
                }
                .as_bytes(),
            );
            let channel = Channel {
                sq,
                cq,
                sq_tail,
                cq_head: sq_tail + LINE,
                image: if data { self.image.address() } else { 0 },
                lbas: self.oracle.rows(),
                window: lands,
                window_end: lands + landing,
                clock: bells.address(),
                report: answered.address() + number * answered_bytes,
                latency_ns,
                step,
                late_ns: 20_000,
                seed: mix_all([seed, number]),
                sq_size: depth,
                cq_size: depth,
                queue_id: queue + 1,
                nsid: 1,
                late_one_in: 10_000,
                lba_bytes: BLOCK as u32,
            };
            channels.extend_from_slice(channel.as_bytes());
        }
        let queue_memory = DeviceMemory::new(gpu, descriptors.len() as u64)?;
        let channel_memory = DeviceMemory::new(other, channels.len() as u64)?;
        queue_memory.write(0, &descriptors)?;
        channel_memory.write(0, &channels)?;
        let threads = ANSWERING[usize::from(data) + usize::from(data && queues > MANY_QUEUES)];
        let answer = [channel_memory.address(), stop.address(), LONGEST.as_nanos() as u64];
        let code = &self.answering;
        // SAFETY: the channels name memory of both GPUs that lives until the controller has ended, which is waited for below.
        unsafe { code.module.launch(code.answer, &self.answers, queues, threads, answer) }?;
        let read = [
            queue_memory.address(),
            self.oracle.rows(),
            self.oracle.key(),
            seed,
            pinned.address(),
            commands,
            batch.into(),
            data.into(),
            reads.address(),
        ];
        let code = &self.reading;
        // SAFETY: the queues name memory that lives until the stream is done, which is waited for.
        let launch = || unsafe { code.module.launch(code.read_lbas, self.stream, queues, LANES, read) };
        let took = self.stream.hidden(launch);
        stop.memory().store_u32(0, 1);
        self.answers.wait().context("the controller")?;
        self.stream.wait().context("the readers")?;
        let (took, ()) = took?;
        let read = reports::<Read>(&reads, queues)?;
        let did = reports::<Answered>(&answered, queues)?;
        let sum = |of: fn(&Read) -> u64| read.iter().map(of).sum::<u64>();
        let total = |of: fn(&Answered) -> u64| did.iter().map(of).sum::<u64>();
        let all = commands * u64::from(queues);
        let wrong = sum(|read| read.wrong);
        let anomalies = sum(|read| read.anomalies);
        ensure!(sum(|read| read.poison) == 0, "a queue was given up");
        ensure!(
            sum(|read| read.commands) == all && total(|answered| answered.commands) == all,
            "commands that were not answered"
        );
        ensure!(wrong == 0, "{wrong} blocks are wrong, or failed");
        ensure!(anomalies == 0, "{anomalies} completions that nobody waited for");
        ensure!(total(|answered| answered.reused) == 0, "identifiers were used again before they were answered");
        ensure!(
            total(|answered| answered.refused) + total(|answered| answered.overrun) == 0,
            "the controller refused commands"
        );
        ensure!(sum(|read| read.checked) == if data { all } else { 0 }, "blocks that were not compared");
        let rate = all as f64 / took.as_secs_f64();
        Ok(ResidentResult {
            peer: gpu.context() != other.context(),
            queues,
            batch,
            depth,
            in_flight: batch * batches,
            data,
            profile: format!("{profile:?}").to_lowercase(),
            commands: all,
            commands_per_second: rate,
            bytes_per_second: if data { rate * BLOCK as f64 } else { 0.0 },
            commands_per_doorbell: all as f64 / sum(|read| read.doorbells) as f64,
            fetched_together: all as f64 / total(|answered| answered.passes) as f64,
            checked: sum(|read| read.checked),
            late: total(|answered| answered.late),
        })
    }
}

fn reports<T: FromBytes + Copy>(memory: &DeviceMemory, count: u32) -> anyhow::Result<Vec<T>> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes)?;
    let of = |bytes: &[u8]| T::read_from_bytes(bytes).ok().context("a report of another size");
    bytes.chunks_exact(size_of::<T>()).take(count as usize).map(of).collect()
}

/// Lets kernels on `gpu` reach the memory of `other`.
fn befriend(gpu: &Gpu, other: &Gpu) -> anyhow::Result<()> {
    let _current = gpu.enter()?;
    // SAFETY: a context is current, the other is one.
    match unsafe { sys::cuCtxEnablePeerAccess(other.context(), 0) } {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        code => cuda("peer access between the GPUs", code),
    }
}
