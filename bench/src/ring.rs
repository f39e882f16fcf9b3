//! Random reads over one queue pair: the driver on the software controller against the [`MinimalRing`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use warprow_dma::{DmaMemory, Function, MappedMemory, MemoryKind, SystemClock};
use warprow_driver::prp::Data;
use warprow_driver::{BlockIo, Controller, ControllerOptions, Namespace, QueueOptions, QueuePair};
use warprow_layout::DType;
use warprow_soft_controller::{self as soft, NullBacking, RamBacking, SoftController};
use warprow_workload::{ContentOracle, PairedTimes, RowsAnswer, SeededRandom, TableContent, verify};

use crate::vfio_user::Served;
use crate::{Cores, MinimalRing};

/// Commands in a round. Each has landing memory of its own, so that after the round every block can be compared.
pub(crate) const ROUND: usize = 8192;
/// Commands before each round, to find both threads of a contender running.
const WARM_UP: usize = 256;
/// Commands whose data the second yardstick fetches together: 8 was best of 1, 4, 8, 16 and 32.
const AHEAD: u32 = 8;
/// One command in so many is delayed in disorder, by how much.
const DELAYED: (u32, Duration) = (10_000, Duration::from_micros(100));

/// What the drive's blocks are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// Memory, which is copied.
    Ram,
    /// Nothing: commands complete without moving data.
    Null,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Commands in flight, 1 to 4095.
    pub depth: u16,
    /// Bytes of a block: 512 or 4096.
    pub block: u32,
    /// Bytes of the drive, a multiple of 4096.
    pub size: u64,
    /// What the drive is made of.
    pub media: Media,
    /// Seed of blocks and their content.
    pub seed: u64,
    /// The controller is served on a vfio-user socket.
    pub vfio_user: bool,
}

/// A submitting thread (the caller's) and an answering one.
pub(crate) trait Contender {
    /// Runs the answering thread; nothing if it wakes by itself.
    fn wake(&mut self) -> anyhow::Result<()>;
    /// Reads all of `blocks`, the `i`th into the landing memory at `i` blocks.
    fn round(&mut self, blocks: &[u64]) -> anyhow::Result<()>;
    /// Lets the answering thread sleep.
    fn rest(&mut self);
    fn landing(&self) -> &DmaMemory;
}

impl RingSetup {
    pub(crate) fn blocks(&self) -> u64 {
        self.size / u64::from(self.block)
    }

    /// Writes the content, from the first byte on, by calls of `write` with a byte offset and at most 1 MiB.
    pub(crate) fn write_content(&self, mut write: impl FnMut(u64, &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let content = self.content();
        let block = self.block as usize;
        let mut chunk = vec![0; (1 << 20).min(usize::try_from(self.size)?)];
        let per_chunk = chunk.len() / block;
        for first in (0..self.blocks()).step_by(per_chunk) {
            let rows = per_chunk.min((self.blocks() - first) as usize);
            for (block, row) in (first..).zip(chunk.chunks_exact_mut(block).take(rows)) {
                content.fill(block, row);
            }
            write(first * u64::from(self.block), &chunk[..rows * block])?;
        }
        Ok(())
    }

    /// The drive's content: block b is row b.
    pub(crate) fn content(&self) -> ContentOracle {
        ContentOracle::new(self.seed, 0, self.blocks(), self.block, DType::U8)
    }

    pub(crate) fn landing_bytes(&self) -> usize {
        ROUND * self.block as usize
    }

    /// Rounds in a measurement. Without data a round is short, and there is nothing to compare after each.
    fn repeats(&self) -> usize {
        if self.media == Media::Null { 128 } else { 1 }
    }

    /// What the landing memory holds after a round on [`Media::Null`]: what was there before.
    pub(crate) const UNTOUCHED: u8 = 0xa5;
}

impl Contender for MinimalRing {
    fn wake(&mut self) -> anyhow::Result<()> {
        MinimalRing::wake(self);
        Ok(())
    }

    fn round(&mut self, blocks: &[u64]) -> anyhow::Result<()> {
        Ok(MinimalRing::round(self, blocks)?)
    }

    fn rest(&mut self) {
        MinimalRing::rest(self);
    }

    fn landing(&self) -> &DmaMemory {
        MinimalRing::landing(self)
    }
}

fn minimal(setup: &RingSetup, cores: Option<&Cores>, ahead: u32) -> anyhow::Result<MinimalRing> {
    let media = match setup.media {
        Media::Null => None,
        Media::Ram => {
            let memory = DmaMemory::allocate(usize::try_from(setup.size)?, MemoryKind::Anonymous)?;
            let content = setup.content();
            let mut row = vec![0; setup.block as usize];
            for block in 0..setup.blocks() {
                content.fill(block, &mut row);
                memory.write((block * u64::from(setup.block)) as usize, &row);
            }
            Some(memory)
        }
    };
    let landing = DmaMemory::allocate(setup.landing_bytes(), MemoryKind::Auto)?;
    landing.fill(0, landing.len(), RingSetup::UNTOUCHED);
    Ok(Cores::answering(cores, 0, || MinimalRing::new(setup.depth, setup.block as usize, landing, media, ahead))?)
}

/// The driver's queue pair on a controller.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) queue: QueuePair,
    pub(crate) namespace: Namespace,
    /// Bytes of a block, and LBAs.
    pub(crate) block: (u64, u32),
    pub(crate) landing: Arc<MappedMemory>,
    depth: usize,
    /// Ends after the driver has.
    _served: Option<Served>,
}

impl Driven {
    fn new(setup: &RingSetup, cores: Option<&Cores>, disorder: bool) -> anyhow::Result<Self> {
        let namespace = match setup.media {
            Media::Ram => soft::Namespace::new(RamBacking::new(setup.size)?),
            Media::Null => soft::Namespace::new(NullBacking::new(setup.size)),
        };
        let mut drive = SoftController::builder().name("emulated:ram").seed(setup.seed);
        drive = drive.namespace(namespace.lba(setup.block));
        if disorder {
            drive = drive.permute().delay_one_in(DELAYED.0, DELAYED.1);
        }
        let (function, served): (Arc<dyn Function>, _) = if setup.vfio_user {
            let served = Served::new(drive, cores)?;
            (served.function.clone(), Some(served))
        } else {
            (Cores::answering(cores, 0, || drive.build())?, None)
        };
        Self::on(function, 1, setup, served)
    }

    /// On a namespace of whatever answers, whose first bytes are overwritten with the content.
    pub(crate) fn on(
        function: Arc<dyn Function>,
        namespace: u32,
        setup: &RingSetup,
        served: Option<Served>,
    ) -> anyhow::Result<Self> {
        let controller = Controller::open(function, Arc::new(SystemClock::new()), ControllerOptions::default())?;
        let namespace = controller.namespace(namespace)?;
        let block = u64::from(setup.block);
        let lba = u64::from(namespace.lba_bytes());
        let bytes = namespace.bytes();
        ensure!(block.is_multiple_of(lba), "blocks of {block} bytes on a drive whose LBAs have {lba}");
        ensure!(setup.size <= bytes, "the drive has {bytes} bytes, fewer than {}", setup.size);
        if setup.media == Media::Ram {
            let mut io = BlockIo::new(&controller, namespace.clone(), &QueueOptions::default())?;
            setup.write_content(|at, bytes| Ok(io.write(at / lba, bytes)?))?;
        }
        let entries = (u32::from(setup.depth) + 1).next_power_of_two();
        let mut queue = controller.queue_pair(&QueueOptions { entries, ..QueueOptions::default() })?;
        let landing = controller.allocate(setup.landing_bytes())?;
        landing.memory().fill(0, landing.memory().len(), RingSetup::UNTOUCHED);
        queue.keep(landing.clone());
        let block = (block, (block / lba) as u32);
        let depth = usize::from(setup.depth);
        Ok(Self { queue, namespace, block, landing, depth, _served: served })
    }
}

impl Contender for Driven {
    fn wake(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn round(&mut self, blocks: &[u64]) -> anyhow::Result<()> {
        let queue = &mut self.queue;
        let namespace = &self.namespace;
        let (iova, (len, lbas)) = (self.landing.iova(), self.block);
        let mut submitted = 0;
        let mut completed = 0;
        let mut failed = None;
        // The controller begins while the rest is being pushed. The minimal ring, whose two sides do so little that it
        // has nothing to gain by that, was no faster with it.
        let quarter = (self.depth / 4).max(1);
        let mut unrung = 0;
        while completed < blocks.len() {
            let until = blocks.len().min(completed + self.depth);
            for (i, &block) in (submitted..).zip(&blocks[submitted..until]) {
                let data = Data::Contiguous { iova: iova + i as u64 * len, len };
                queue.read(namespace, block * u64::from(lbas), lbas, data, i as u64)?;
                unrung += 1;
                if unrung == quarter {
                    queue.ring()?;
                    unrung = 0;
                }
            }
            submitted = until;
            unrung = 0;
            queue.wait(|completion| {
                completed += 1;
                if !completion.is_success() {
                    failed = Some(completion);
                }
            })?;
        }
        match failed.and_then(|completion| queue.error(&completion)) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn rest(&mut self) {}

    fn landing(&self) -> &DmaMemory {
        self.landing.memory()
    }
}

/// Runs rounds of random reads and compares what they brought.
pub(crate) struct Bench {
    setup: RingSetup,
    blocks: Vec<u64>,
    landed: Vec<u8>,
    pub(crate) checked: u64,
}

impl Bench {
    pub(crate) fn new(setup: RingSetup) -> Self {
        Self { setup, blocks: vec![0; ROUND], landed: vec![0; setup.landing_bytes()], checked: 0 }
    }

    /// One round with fresh blocks: commands a second. Everything that landed is compared, outside the measured time.
    pub(crate) fn measure(&mut self, contender: &mut impl Contender, number: u64) -> anyhow::Result<f64> {
        let mut random = SeededRandom::new(warprow_workload::mix_all([self.setup.seed, number]));
        self.blocks.fill_with(|| random.below(self.setup.blocks()));
        contender.wake()?;
        // Other blocks than those that will land in the same places.
        contender.round(&self.blocks[ROUND - WARM_UP..])?;
        let start = Instant::now();
        for _ in 0..self.setup.repeats() {
            contender.round(&self.blocks)?;
        }
        let took = start.elapsed();
        contender.rest();
        self.check(contender)?;
        // The answering thread falls asleep meanwhile, and takes no core from the other contender.
        std::thread::sleep(Duration::from_millis(1));
        Ok((self.setup.repeats() * ROUND) as f64 / took.as_secs_f64())
    }

    fn check(&mut self, contender: &impl Contender) -> anyhow::Result<()> {
        contender.landing().read(0, &mut self.landed);
        match self.setup.media {
            Media::Ram => {
                let ids: Vec<i64> = self.blocks.iter().map(|&block| block as i64).collect();
                let answer = RowsAnswer { rows: &self.landed, stride: self.setup.block as usize, mask: None };
                self.checked += verify(&self.setup.content(), &ids, answer).context("a wrong block was read")?.rows;
            }
            Media::Null => {
                let touched = self.landed.iter().position(|&byte| byte != RingSetup::UNTOUCHED);
                if let Some(byte) = touched {
                    bail!("a drive without data has written to byte {byte} of the landing memory");
                }
            }
        }
        Ok(())
    }
}

/// What the driver on the software controller and the minimal ring reached, in pairs of rounds.
#[derive(Clone, Debug)]
pub struct RingResult {
    /// Commands a second: the driver, then the minimal ring.
    pub pairs: PairedTimes,
    /// Pairs with the minimal ring fetching data ahead, as the software controller does; none on [`Media::Null`].
    pub fetching: Option<PairedTimes>,
    /// Median commands a second of the driver with completions in disorder.
    pub disordered: f64,
    /// Blocks compared byte for byte; none on [`Media::Null`], where the landing memory was found untouched instead.
    pub checked: u64,
    /// Whether each thread had a processor of its own.
    pub pinned: bool,
}

impl RingSetup {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> anyhow::Result<()> {
        let Self { depth, block, size, .. } = *self;
        ensure!((1..=4095).contains(&depth), "a depth of {depth}: 1 to 4095 are possible");
        ensure!([512, 4096].contains(&block), "blocks of {block} bytes: 512 and 4096 are possible");
        let whole = size >= 4096 && size.is_multiple_of(4096);
        ensure!(whole, "a drive of {size} bytes: a multiple of 4096 is needed");
        Ok(())
    }
}

/// Measures for about `time`, at least 5 pairs.
pub fn run(setup: RingSetup, time: Duration) -> anyhow::Result<RingResult> {
    setup.check()?;
    let cores = Cores::two();
    let cores = cores.as_ref();
    let mut bench = Bench::new(setup);
    let mut disordered = Vec::new();
    {
        let mut driven = Driven::new(&setup, cores, true)?;
        let start = Instant::now();
        while disordered.len() < 5 || start.elapsed() < time / 8 {
            disordered.push(bench.measure(&mut driven, 1 << 32 | disordered.len() as u64)?);
        }
    }
    let mut driven = Driven::new(&setup, cores, false)?;
    let pairs = duel(&mut bench, &mut driven, &mut minimal(&setup, cores, 0)?, time)?;
    let fetching = match setup.media {
        Media::Ram => Some(duel(&mut bench, &mut driven, &mut minimal(&setup, cores, AHEAD)?, time / 4)?),
        Media::Null => None,
    };
    let disordered = warprow_workload::median(disordered);
    let checked = bench.checked;
    Ok(RingResult { pairs, fetching, disordered, checked, pinned: cores.is_some() })
}

fn duel(
    bench: &mut Bench,
    driven: &mut Driven,
    minimal: &mut MinimalRing,
    time: Duration,
) -> anyhow::Result<PairedTimes> {
    // A first pair, not counted, touches all memory.
    bench.measure(driven, u64::MAX)?;
    bench.measure(minimal, u64::MAX)?;
    // Both closures need the bench; they are never called at once.
    let bench = std::cell::RefCell::new(bench);
    PairedTimes::alternate_for(
        time,
        5,
        |pair| bench.borrow_mut().measure(driven, pair.into()),
        |pair| bench.borrow_mut().measure(minimal, pair.into()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_contenders_read_what_is_there() {
        for (media, block, vfio_user) in
            [(Media::Ram, 512, false), (Media::Ram, 4096, false), (Media::Null, 512, false), (Media::Ram, 512, true)]
        {
            let setup = RingSetup { depth: 32, block, size: 4 << 20, media, seed: 5, vfio_user };
            let result = run(setup, Duration::ZERO).unwrap();
            assert_eq!(result.pairs.pairs().len(), 5);
            assert!(result.pairs.median_a() > 0.0 && result.pairs.median_b() > 0.0 && result.disordered > 0.0);
            let rounds = if media == Media::Ram { 5 + 2 * 12 } else { 0 };
            assert_eq!(result.fetching.is_some(), media == Media::Ram);
            assert!(result.checked >= rounds * ROUND as u64, "{media:?}: {} blocks compared", result.checked);
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let setup = RingSetup { depth: 8, block: 512, size: 1 << 20, media: Media::Ram, seed: 6, vfio_user: false };
        let mut bench = Bench::new(setup);
        let mut ring = minimal(&setup, None, 0).unwrap();
        bench.measure(&mut ring, 0).unwrap();
        let landing = ring.landing();
        landing.store_u8(77 * 512 + 3, landing.load_u8(77 * 512 + 3) ^ 1);
        assert!(bench.check(&ring).unwrap_err().chain().any(|error| error.to_string().contains("row 77")));
    }

    #[test]
    fn impossible_setups_are_refused() {
        let good = RingSetup { depth: 8, block: 512, size: 1 << 20, media: Media::Null, seed: 0, vfio_user: false };
        for bad in [
            RingSetup { depth: 0, ..good },
            RingSetup { depth: 4096, ..good },
            RingSetup { block: 1000, ..good },
            RingSetup { size: 0, ..good },
            RingSetup { size: 4097, ..good },
        ] {
            assert!(run(bad, Duration::ZERO).is_err());
        }
    }
}
