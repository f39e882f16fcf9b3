//! `bench-ssd`: rows on drives, by a GPU and by processors.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use warprow_bench::arguments::{Common, profile};
use warprow_bench::fixtures::Media;
use warprow_bench::gpu::ready;
use warprow_bench::gpu::ssd::GpuGround;
use warprow_bench::output::{Notes, busy, finish};
use warprow_bench::results::{BenchmarkResult, Record, SsdLookups};
use warprow_bench::ssd::{HostGround, KernelChoice, Medium, SsdSetup, run, show, without};
use warprow_bench::{Bytes, Count, Scratch};
use warprow_gpu::Ablations;
use warprow_gpu_queues::{Gpu, MemoryPlacement};
use warprow_layout::ChunkSpread;
use warprow_lookup::ReadMerging;
use warprow_soft_controller::TimingProfile;
use warprow_workload::MachineInfo;
use warprow_workload::rival::PageCaching;
use warprow_workload::units::bytes;

/// Look-ups of rows that lie on emulated drives, driven by the GPU and driven by processors, on the same drives in turn.
///
/// By the GPU: thread blocks write commands into rings in pinned memory and ring the doorbells; rows end up in GPU memory.
/// By threads: the host executor on each number of threads, each with a part of the ids and queues of its own, into pinned memory, from
/// where each part is copied to the GPU as soon as it is there. Threads get the ids for nothing; those are not copied from the GPU.
///
/// What matters is the time beside the drives: the look-up, from the call until its caller sees that the rows are there, less the time
/// from the first doorbell that a drive found to the last completion that one posted, by the drives' clocks. Aims: 15 us + 1 ns an id,
/// and half of what threads need; 1.3 times as fast on 16 drives; 10 us of the caller's processor for a call.
///
/// Drives have the timing of a real one, answer on a thread each, permute completions and delay one in 10,000. Ids are uniform, and fresh
/// for each look-up; every row is compared.
///
/// io_uring cannot reach such drives. With --media cached or direct they are files, without a timing of their own and in order, and threads
/// that read these files with io_uring are another rival: deduplication, order, merging and depth are the same.
///
/// Without a GPU threads alone are measured, and rows end up in memory.
#[derive(Debug, Parser)]
#[command(
    name = "bench-ssd",
    version,
    after_help = "\
Examples:
  bench-ssd                             # both timings, 16, 4 and 1 drives, 100 to a million ids; a minute at most
  bench-ssd --profile p5800x --drives 16 --ids 1e4,1e6 --json
  bench-ssd --threads 1,2,4,8,16 --sets 1,2 --seconds 0.5 --limit 600
  bench-ssd --size 64M --drives 1 --ids 1e4,1e5 --merging measured  # and the same with separate
  bench-ssd --media played --profile none,gen6 --size 4G --sets 1,4,16   # drives at hardware's speed, by a kernel on this GPU
  bench-ssd --media played --player 1 --only-gpu --memory pinned,a-minus,a --ids 1e5,1e6   # drives that another GPU plays
  bench-ssd --media played --dim 32 --alpha 1.05 --only-gpu --without nothing,dedupe,dedupe+shared-commands,shared-doorbells
  bench-ssd --media ram --lba 4096 --size 1G --room 8 --spread whole   # larger LBAs, and a table all over its drives
  bench-ssd --media cached --drives 4   # with io_uring beside; 1 GiB in /var/tmp"
)]
struct Args {
    /// Bytes of rows [default: 16G; of files 1G].
    #[arg(long)]
    size: Option<Bytes>,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// What drives are made of.
    #[arg(long, value_enum, default_value_t = MediaArg::Computed)]
    media: MediaArg,
    /// Bytes of the drives' LBAs: 512, or 4096 with --media ram and played.
    #[arg(long, default_value_t = 512)]
    lba: u32,
    /// Drives hold so many times as much as the table.
    #[arg(long, default_value_t = 1)]
    room: u32,
    /// Which parts of them the table takes.
    #[arg(long, value_enum, default_value_t = SpreadArg::Packed)]
    spread: SpreadArg,
    /// The GPU that plays drives, with --media played; the first looks up.
    #[arg(long, default_value_t = 0)]
    player: u32,
    /// The exponent of the power law by which ids are drawn; 0: uniform.
    #[arg(long, default_value_t = 0.0)]
    alpha: f64,
    /// Where files are made, without names. By default $TMPDIR or /var/tmp.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The drives whose timing emulated drives have: none, p5800x, gen5-tlc, gen6 [default: p5800x,gen5-tlc; of files
    /// none].
    #[arg(long, value_delimiter = ',', value_parser = profile)]
    profile: Vec<TimingProfile>,
    /// Drives, each with a thread that answers.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 4, 1])]
    drives: Vec<u32>,
    /// Ids of a look-up.
    #[arg(long, value_delimiter = ',', default_value = "100,1e3,1e4,1e5,1e6")]
    ids: Vec<Count>,
    /// Threads that drive look-ups, of which the best counts.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    threads: Vec<u32>,
    /// Look-ups by a GPU alone, and none by threads.
    #[arg(long)]
    only_gpu: bool,
    /// What look-ups by a GPU do without, in turn: nothing, or of dedupe, shared-commands, shared-doorbells and written-rows
    /// those with a plus between. Rows are the same; what differs is what they cost.
    #[arg(long, value_delimiter = ',', value_parser = without, default_value = "nothing")]
    without: Vec<Ablations>,
    /// Queue sets by which the GPU drives them, likewise.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    sets: Vec<u32>,
    /// Which memory the queues lie in that the GPU drives.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [MemoryArg::Best])]
    memory: Vec<MemoryArg>,
    /// Of how many kernels a look-up by the GPU is, in turn: several,one,several,one compares the two.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [KernelsArg::Auto])]
    kernels: Vec<KernelsArg>,
    /// The most commands in flight on each of these queues [default: 768].
    #[arg(long)]
    depth: Option<u32>,
    /// Which rows share a read command, by the GPU and by threads [default: separate by the GPU, neighbours by threads].
    #[arg(long, value_enum)]
    merging: Option<MergingArg>,
    /// Seconds for each of these and each number of ids, at least three look-ups.
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Seconds after which nothing more is begun; what is left out is said.
    #[arg(long, default_value_t = 50.0)]
    limit: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MediaArg {
    /// Memory, into which the table is loaded first.
    Ram,
    /// Rows are computed when they are read: drives of any size need no memory.
    Computed,
    /// Memory, of which a GPU has a copy: a kernel answers the reads of look-ups by the GPU, with the rate and the latency of the profile.
    Played,
    /// A file for each drive, read through the page cache.
    Cached,
    /// A file for each drive, read past the page cache.
    Direct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MemoryArg {
    /// GPU memory on drives that a GPU plays, pinned memory on all others.
    Best,
    /// Pinned memory (placements B and C).
    Pinned,
    /// Completion queues and landing areas in GPU memory (placement A⁻).
    AMinus,
    /// All of it in GPU memory (placement A).
    A,
}

impl MemoryArg {
    fn placement(self) -> MemoryPlacement {
        match self {
            Self::Best => MemoryPlacement::Best,
            Self::Pinned => MemoryPlacement::Pinned,
            Self::AMinus => MemoryPlacement::AMinus,
            Self::A => MemoryPlacement::A,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SpreadArg {
    /// The lowest addresses, so that it lies in a narrow span.
    Packed,
    /// Evenly all over each drive.
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KernelsArg {
    /// As many as the executor chooses.
    Auto,
    /// One, up to 4,096 ids.
    One,
    /// Several.
    Several,
}

impl KernelsArg {
    fn choice(self) -> KernelChoice {
        match self {
            Self::Auto => KernelChoice::Auto,
            Self::One => KernelChoice::One,
            Self::Several => KernelChoice::Several,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MergingArg {
    /// Rows of one LBA share a command, and no others.
    Separate,
    /// Rows of neighbouring LBAs share a command too.
    Neighbours,
    /// What one command reads more cheaply than two, by each drive's curve: 50 ms to measure each, for each line.
    Measured,
}

impl MergingArg {
    fn merging(self) -> ReadMerging {
        match self {
            Self::Separate => ReadMerging::Separate,
            Self::Neighbours => ReadMerging::Neighbours,
            Self::Measured => ReadMerging::Measured,
        }
    }
}

impl Args {
    fn setup(&self) -> anyhow::Result<SsdSetup> {
        let files = |caching| Medium::Files(caching, self.dir.clone().unwrap_or_else(Scratch::default_directory));
        let medium = match self.media {
            MediaArg::Ram => Medium::Emulated(Media::Ram),
            MediaArg::Computed => Medium::Emulated(Media::Computed),
            MediaArg::Played => Medium::Emulated(Media::Played),
            MediaArg::Cached => files(PageCaching::Cached),
            MediaArg::Direct => files(PageCaching::Direct),
        };
        let (size, profiles) = match medium {
            Medium::Emulated(_) => (16 << 30, vec![TimingProfile::P5800x, TimingProfile::Gen5Tlc]),
            Medium::Files(..) => (1 << 30, vec![TimingProfile::None]),
        };
        let setup = SsdSetup {
            size: self.size.map_or(size, |size| size.0),
            dim: self.dim,
            medium,
            lba: self.lba,
            room: self.room,
            spread: match self.spread {
                SpreadArg::Packed => ChunkSpread::Packed,
                SpreadArg::Whole => ChunkSpread::Whole,
            },
            player: self.player,
            alpha: self.alpha,
            profiles: if self.profile.is_empty() { profiles } else { self.profile.clone() },
            drives: self.drives.clone(),
            counts: self.ids.iter().map(|ids| ids.0).collect(),
            threads: if self.only_gpu { Vec::new() } else { self.threads.clone() },
            sets: self.sets.clone(),
            memories: self.memory.iter().map(|memory| memory.placement()).collect(),
            ablations: self.without.clone(),
            kernels: self.kernels.iter().map(|kernels| kernels.choice()).collect(),
            depth: self.depth,
            merging: self.merging.map(MergingArg::merging),
            time: Duration::try_from_secs_f64(self.seconds)?,
            limit: Duration::try_from_secs_f64(self.limit)?,
            seed: self.common.seed,
        };
        setup.check()?;
        Ok(setup)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, measure(&args))
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let setup = args.setup()?;
    let machine = MachineInfo::this();
    let mut notes = Notes::default();
    let mut note = |text: &str, kept: bool| if kept { notes.say(text) } else { eprintln!("{text}") };
    let gpu = Gpu::open(0);
    let results = match &gpu {
        Ok(gpu) => run(&mut GpuGround::new(&ready(gpu)?, &setup), &setup, &mut note)?,
        Err(missing) if args.only_gpu => anyhow::bail!("{missing}, and threads are left out by --only-gpu"),
        Err(missing) => {
            note(&format!("look-ups by a GPU were not run: {missing}"), true);
            run(&mut HostGround::new(&setup), &setup, &mut note)?
        }
    };
    let gpu = gpu.ok().map(|gpu| gpu.name().to_owned());
    if args.common.json {
        let found = SsdLookups {
            gpu,
            size: setup.size,
            row_bytes: u64::from(setup.dim) * 4,
            media: setup.medium.name().to_owned(),
            merging: setup.merging.as_ref().map(|merging| format!("{merging:?}").to_lowercase()),
            lba: setup.lba,
            room: setup.room,
            spread: format!("{:?}", setup.spread).to_lowercase(),
            player: (args.media == MediaArg::Played).then_some(setup.player),
            alpha: setup.alpha,
            seed: setup.seed,
            results,
            notes: notes.into_vec(),
        };
        return Ok(Record::new(BenchmarkResult::Ssd(found), machine).line()?);
    }
    let by = gpu.unwrap_or_else(|| "no GPU".to_owned());
    let rows = args.dim * 4;
    let seed = setup.seed;
    let size = bytes(setup.size);
    let media = setup.medium.name();
    let mut text = format!("Rows of {rows} B on emulated drives, {size}, {media}; {by}, seed {seed}\n");
    let SsdSetup { lba, room, spread, player, alpha, .. } = &setup;
    text += &format!("LBAs of {lba} B, ids by α = {alpha}, the table in 1/{room} of its drives ({spread:?})");
    text += &if args.media == MediaArg::Played { format!(", which GPU {player} plays\n") } else { "\n".to_owned() };
    if let Some(merging) = &setup.merging {
        text += &format!("Rows that share commands: {merging:?}\n");
    }
    text += &show(&results)?;
    Ok(text + &notes.lines() + &busy(&machine))
}
