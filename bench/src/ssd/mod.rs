//! Rows on drives: look-ups that the GPU drives and look-ups that processors drive, on one and the same controllers.
//!
//! What a look-up costs beside its drives is its time less that from the first doorbell to the last completion by the controllers' clocks.

mod drives;
mod host;
mod medium;
mod result;
mod team;
mod without;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_gpu::Ablations;
use warprow_gpu_queues::MemoryPlacement;
use warprow_layout::{ChunkSpread, DType};
use warprow_lookup::ReadMerging;
use warprow_soft_controller::TimingProfile;
use warprow_store::Store;
use warprow_workload::rival::{EqualMeansRival, RivalError, RivalTable};
use warprow_workload::{ContentOracle, PowerLaw, median};

use crate::fixtures::Media;

pub(crate) use drives::Drives;
pub use host::HostGround;
pub use medium::Medium;
use medium::{Laid, lay};
pub(crate) use result::best;
pub use result::{Measured, SsdResult, show};
pub use team::Means;
pub(crate) use team::{Landing, Team};
pub use without::without;

/// The table's name.
pub(crate) const TABLE: &str = "table";
/// Fewest repetitions of a look-up.
const FEWEST: usize = 3;
/// Most of them.
const MOST: usize = 1000;

/// What is measured.
#[derive(Clone, Debug)]
pub struct SsdSetup {
    /// Bytes of rows, all of them on drives.
    pub size: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// What drives are made of.
    pub medium: Medium,
    /// Bytes of their LBAs: 512 or 4096; of files as they need.
    pub lba: u32,
    /// The drives hold so many times as much as the table.
    pub room: u32,
    /// Which parts of the drives the table takes.
    pub spread: ChunkSpread,
    /// The GPU that plays drives, of [`Media::Played`].
    pub player: u32,
    /// The exponent of the power law by which ids are drawn; 0: uniform.
    pub alpha: f64,
    /// The timings of the drives, in turn; of files none.
    pub profiles: Vec<TimingProfile>,
    /// Numbers of drives.
    pub drives: Vec<u32>,
    /// Numbers of ids.
    pub counts: Vec<u64>,
    /// Numbers of threads that drive look-ups; none: they do not.
    pub threads: Vec<u32>,
    /// Numbers of queue sets by which a GPU does.
    pub sets: Vec<u32>,
    /// Which memories the queues of look-ups by a GPU lie in, in turn.
    pub memories: Vec<MemoryPlacement>,
    /// What these look-ups do without, in turn.
    pub ablations: Vec<Ablations>,
    /// Of how many kernels these look-ups are, in turn.
    pub kernels: Vec<KernelChoice>,
    /// The most commands in flight on each of these queues; `None`: as many as usual.
    pub depth: Option<u32>,
    /// Which rows share a read command, whoever looks up but for io_uring; `None`: as each executor has it usually.
    pub merging: Option<ReadMerging>,
    /// For each of those, each number of ids, drives and each timing.
    pub time: Duration,
    /// After this nothing more is begun.
    pub limit: Duration,
    /// Of contents and ids.
    pub seed: u64,
}

impl SsdSetup {
    /// Refuses what cannot be measured; no GPU is needed for that.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=2048).contains(&self.dim), "rows of {} elements: 1 to 2048 are possible", self.dim);
        ensure!(self.rows() > 0, "{} bytes are not a row of {} elements", self.size, self.dim);
        let most = self.rows().min(1 << 24);
        let bad = self.counts.iter().find(|count| !(1..=most).contains(count));
        ensure!(bad.is_none(), "{} ids of {} rows: 1 to {most} are possible", bad.unwrap_or(&0), self.rows());
        let within = |numbers: &[u32], most| numbers.iter().all(|number| (1..=most).contains(number));
        ensure!(within(&self.drives, 64), "1 to 64 drives are possible");
        ensure!(within(&self.threads, 64), "1 to 64 threads are possible");
        ensure!(within(&self.sets, 32), "1 to 32 queue sets are possible");
        if let Medium::Files(_, directory) = &self.medium {
            ensure!(directory.is_dir(), "{} is no directory; choose another with --dir", directory.display());
        }
        let timed = self.profiles.iter().any(|profile| *profile != TimingProfile::None);
        ensure!(
            !timed || matches!(self.medium, Medium::Emulated(_)),
            "files take the time that they take: --profile none"
        );
        ensure!(!self.memories.is_empty(), "queues lie in some memory");
        ensure!(!self.ablations.is_empty(), "look-ups do without something or nothing");
        ensure!((1..=64).contains(&self.room), "drives have room for the table 1 to 64 times");
        ensure!([512, 4096].contains(&self.lba), "an LBA of {} bytes: 512 and 4096 are possible", self.lba);
        let computes = self.medium == Medium::Emulated(Media::Computed);
        ensure!(
            self.lba == 512 || !computes,
            "rows are computed for LBAs of 512 bytes: --media ram or played has others"
        );
        let is_plain = self.lba == 512 && self.room == 1 && self.spread == ChunkSpread::Packed;
        ensure!(
            is_plain || matches!(self.medium, Medium::Emulated(_)),
            "files have the LBA and the room that they need"
        );
        ensure!(PowerLaw::new(self.rows(), self.alpha).is_some(), "an exponent of {}: 0 or more", self.alpha);
        ensure!(!self.kernels.is_empty(), "look-ups are of some kernels");
        let nothing = self.profiles.is_empty() || self.drives.is_empty() || self.counts.is_empty();
        ensure!(!nothing, "profiles, drives and ids: one of each at least");
        Ok(())
    }

    /// The ways in which a GPU drives look-ups, in turn.
    fn gpu_ways(&self) -> impl Iterator<Item = GpuWay> {
        let of_sets = move |memory| self.sets.iter().map(move |&sets| (memory, sets));
        let of_ablations = move |(memory, sets)| self.ablations.iter().map(move |&ablations| (memory, sets, ablations));
        let of_kernels = move |(memory, sets, ablations)| {
            self.kernels.iter().map(move |&kernels| GpuWay { memory, sets, ablations, kernels })
        };
        self.memories.iter().copied().flat_map(of_sets).flat_map(of_ablations).flat_map(of_kernels)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.size / (u64::from(self.dim) * 4)
    }

    pub(crate) fn content(&self) -> ContentOracle {
        ContentOracle::new(self.seed, 0, self.rows(), self.dim, DType::F32)
    }
}

/// Of how many kernels a look-up by the GPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// As many as the executor chooses.
    Auto,
    /// One, where that is possible.
    One,
    /// Several.
    Several,
}

impl KernelChoice {
    /// [`GpuOptions::one_kernel_ids`](warprow_gpu::GpuOptions::one_kernel_ids).
    pub(crate) fn one_kernel_ids(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::One => Some(u64::MAX),
            Self::Several => Some(0),
        }
    }

    fn name(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::One => Some("one kernel"),
            Self::Several => Some("several kernels"),
        }
    }
}

/// One look-up.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// From the call until its caller has seen that all rows are where they belong.
    pub seen: Duration,
    /// Processor time that this took of the calling thread: of a look-up by a GPU the call alone.
    pub caller: Duration,
    /// Read commands.
    pub commands: u64,
    /// By the GPU's clock: what comes before the first command, reading, and what comes behind.
    pub stages: Option<[Duration; 3]>,
}

/// Someone who answers look-ups of a number of ids.
pub trait Contender {
    /// Fresh ids, and nothing of an answer.
    fn prepare(&mut self) -> anyhow::Result<()>;

    /// The look-up, which is timed.
    fn look_up(&mut self) -> anyhow::Result<Taken>;

    /// Compares all rows of the answer: how many.
    fn check(&mut self) -> anyhow::Result<u64>;
}

/// How a GPU drives look-ups.
#[derive(Clone, Copy, Debug)]
pub struct GpuWay {
    /// The memory that the queues lie in.
    pub memory: MemoryPlacement,
    /// Queue sets.
    pub sets: u32,
    /// What the look-ups do without.
    pub ablations: Ablations,
    /// Of how many kernels they are.
    pub kernels: KernelChoice,
}

/// Where look-ups are measured: with a GPU, or on processors alone.
pub trait Ground {
    /// Who they are by whom a GPU drives look-ups of `count` ids. `None`: there is no GPU.
    fn by_gpu<'a>(
        &'a mut self,
        setup: &'a SsdSetup,
        store: &'a Store,
        count: u64,
        by: GpuWay,
    ) -> anyhow::Result<Option<Box<dyn Contender + 'a>>>;

    /// Looks up by `by` threads, whose rows end up where a GPU's would.
    fn by_threads<'a>(
        &'a mut self,
        setup: &'a SsdSetup,
        means: Means<'_>,
        count: u64,
        by: u32,
    ) -> anyhow::Result<Box<dyn Contender + 'a>>;
}

/// Measures everything of `setup`. `note` is told where it is, and what is left out.
pub fn run(
    ground: &mut dyn Ground,
    setup: &SsdSetup,
    note: &mut dyn FnMut(&str, bool),
) -> anyhow::Result<Vec<SsdResult>> {
    setup.check()?;
    let (began, mut results) = (Instant::now(), Vec::new());
    let cases = setup.profiles.iter().flat_map(|&profile| setup.drives.iter().map(move |&drives| (profile, drives)));
    for (profile, number) in cases {
        let name = format!("drives with the timing of {}: {number}", profile_name(profile));
        let mut counts = setup.counts.iter();
        if began.elapsed() < setup.limit {
            note(&name, false);
            let mut laid = lay(setup, profile, number)?;
            if !laid.pinned {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                note(
                    &format!("{number} drives take a core each, and there are {cores} for all: do not trust these"),
                    true,
                );
            }
            if let Some(missing) = laid.target.as_ref().and_then(without_uring) {
                note(&format!("io_uring does not take part: {missing}"), true);
                laid.target = None;
            }
            while began.elapsed() < setup.limit
                && let Some(&count) = counts.next()
            {
                let line = line(ground, setup, &laid, (profile, number, count));
                results.push(line.with_context(|| format!("{name}, {count} ids"))?);
            }
        }
        let left: Vec<String> = counts.map(u64::to_string).collect();
        if !left.is_empty() {
            note(&format!("left out, for the time is over: {name}, {} ids", left.join(", ")), true);
        }
    }
    Ok(results)
}

/// Why there is no io_uring, if there is none.
fn without_uring(target: &RivalTable) -> Option<RivalError> {
    EqualMeansRival::uring(target.clone(), 1, 8).err()
}

fn line(
    ground: &mut dyn Ground,
    setup: &SsdSetup,
    laid: &Laid,
    (profile, number, count): (TimingProfile, u32, u64),
) -> anyhow::Result<SsdResult> {
    let drives = Some(&laid.drives);
    let (mut gpu, mut cpu, mut uring) = (Vec::new(), Vec::new(), Vec::new());
    for way in setup.gpu_ways() {
        if let Some(mut contender) = ground.by_gpu(setup, &laid.store, count, way)? {
            let measured = measure(&mut *contender, drives, setup, count, way.sets)?;
            let memory = Some(format!("{:?}", way.memory).to_lowercase());
            let kernels = way.kernels.name().map(str::to_owned);
            gpu.push(Measured { memory, without: without::name(way.ablations), kernels, ..measured });
        }
    }
    for &by in &setup.threads {
        let mut contender = ground.by_threads(setup, Means::Host(&laid.store, setup.merging.as_ref()), count, by)?;
        cpu.push(measure(&mut *contender, drives, setup, count, by)?);
    }
    for (&by, target) in setup.threads.iter().flat_map(|by| laid.target.iter().map(move |target| (by, target))) {
        let mut contender = ground.by_threads(setup, Means::Uring(target), count, by)?;
        uring.push(measure(&mut *contender, None, setup, count, by)?);
    }
    Ok(SsdResult::new(profile_name(profile), number, count, [gpu, cpu, uring]))
}

/// Repeats a look-up with fresh ids for the setup's time. `drives`: those that are asked.
fn measure(
    contender: &mut dyn Contender,
    drives: Option<&Drives>,
    setup: &SsdSetup,
    count: u64,
    by: u32,
) -> anyhow::Result<Measured> {
    let mut samples: [Vec<f64>; 8] = Default::default();
    let (mut commands, mut checked) = (0, 0);
    let mut began = Instant::now();
    // The first is for warming up.
    for run in 0..=MOST {
        contender.prepare()?;
        if let Some(drives) = drives {
            drives.begin();
        }
        let taken = contender.look_up()?;
        let window = drives.map(Drives::end).transpose()?;
        if let Some(window) = window {
            let (sent, done) = (taken.commands, window.completions);
            ensure!(sent == done, "{sent} commands were sent, and drives completed {done}");
        }
        checked += contender.check()?;
        if run == 0 {
            began = Instant::now();
            continue;
        }
        commands += taken.commands;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let (seen, busy) = (us(taken.seen), window.map(|window| us(window.time)));
        let stages = taken.stages.map(|stages| stages.map(us));
        let [prepare, fetch, expand] = [0, 1, 2].map(|stage| stages.map(|stages| stages[stage]));
        let by_gpu = stages.map(|stages| stages.iter().sum::<f64>());
        let beside = by_gpu.zip(busy).map(|(all, busy)| all - busy);
        let caller = Some(us(taken.caller));
        let all = [Some(seen), caller, busy, busy.map(|busy| seen - busy), prepare, fetch, expand, beside];
        samples.iter_mut().zip(all).for_each(|(all, sample)| all.extend(sample));
        if run >= FEWEST && began.elapsed() >= setup.time {
            break;
        }
    }
    let runs = samples[0].len() as u64;
    let has_stages = !samples[4].is_empty();
    let [seen_us, caller_us, drives_us, overhead_us, prepare, fetch, expand, beside] = samples.map(median);
    let asked = |time: f64| drives.map(|_| time);
    Ok(Measured {
        by,
        memory: None,
        without: None,
        kernels: None,
        seen_us,
        drives_us: asked(drives_us),
        overhead_us: asked(overhead_us),
        caller_us,
        stages_us: has_stages.then_some([prepare, fetch, expand]),
        beside_on_gpu_us: asked(beside).filter(|_| has_stages),
        ids_per_second: count as f64 / seen_us * 1e6,
        commands: commands / runs.max(1),
        runs,
        checked,
    })
}

/// The profile's name, as it is written on command lines.
fn profile_name(profile: TimingProfile) -> &'static str {
    match profile {
        TimingProfile::None => "none",
        TimingProfile::P5800x => "p5800x",
        TimingProfile::Gen5Tlc => "gen5-tlc",
        TimingProfile::Gen6 => "gen6",
    }
}

#[cfg(test)]
mod tests {
    use warprow_workload::rival::PageCaching;

    use super::*;
    fn small() -> SsdSetup {
        SsdSetup {
            size: 1 << 20,
            dim: 128,
            medium: Medium::Emulated(Media::Computed),
            lba: 512,
            room: 1,
            spread: ChunkSpread::Packed,
            player: 0,
            alpha: 0.0,
            profiles: vec![TimingProfile::None, TimingProfile::P5800x],
            drives: vec![1, 3],
            counts: vec![1, 700],
            threads: vec![1, 3],
            sets: vec![1],
            memories: vec![MemoryPlacement::default()],
            ablations: vec![Ablations::default()],
            kernels: vec![KernelChoice::Auto],
            depth: None,
            merging: None,
            time: Duration::ZERO,
            limit: Duration::MAX,
            seed: 5,
        }
    }

    #[test]
    fn threads_look_up_and_drives_tell_when_they_were_busy() {
        let setup = small();
        let results = run(&mut HostGround::new(&setup), &setup, &mut |_, _| {}).unwrap();
        assert_eq!(results.len(), 8);
        for it in results {
            assert!(it.gpu.is_empty() && it.cpu.len() == 2 && it.overhead_met.is_none(), "{it:?}");
            for measured in &it.cpu {
                assert_eq!(measured.runs, 3);
                assert_eq!(measured.checked, 4 * it.ids);
                assert!(measured.commands >= 1 && measured.commands <= it.ids, "{measured:?}");
                assert!(measured.seen_us > 0.0 && measured.drives_us.is_some(), "{measured:?}");
            }
            let p5800x = it.profile == "p5800x";
            assert!(!p5800x || it.cpu[0].drives_us >= Some(5.0), "a read takes 5 us: {it:?}");
        }
    }

    #[test]
    fn drives_have_other_lbas_and_more_room_and_ids_repeat() {
        let ram = SsdSetup { medium: Medium::Emulated(Media::Ram), counts: vec![700], threads: vec![2], ..small() };
        let ram = SsdSetup { profiles: vec![TimingProfile::None], ..ram };
        let commands = |setup: SsdSetup| -> Vec<u64> {
            let results = run(&mut HostGround::new(&setup), &setup, &mut |_, _| {}).unwrap();
            results.iter().map(|it| it.cpu[0].commands).collect()
        };
        // Eight rows share an LBA of 4096 bytes: far fewer commands for 700 of 2048 rows.
        let spread = ChunkSpread::Whole;
        let (small, large) = (commands(ram.clone()), commands(SsdSetup { lba: 4096, room: 3, spread, ..ram.clone() }));
        assert!(small.iter().zip(&large).all(|(small, large)| small > large), "{small:?}, {large:?}");
        let skewed = commands(SsdSetup { alpha: 1.5, ..ram });
        assert!(skewed.iter().zip(&small).all(|(skewed, even)| skewed < even), "{skewed:?}, {small:?}");
    }

    #[test]
    fn files_are_read_by_io_uring_too() {
        let folder = tempfile::tempdir().unwrap();
        for caching in [PageCaching::Cached, PageCaching::Direct] {
            let medium = Medium::Files(caching, folder.path().to_owned());
            let setup = SsdSetup { medium, profiles: vec![TimingProfile::None], drives: vec![2], ..small() };
            let mut notes = Vec::new();
            let note = &mut |text: &str, kept: bool| notes.extend(kept.then(|| text.to_owned()));
            let results = match run(&mut HostGround::new(&setup), &setup, note) {
                Err(error) if caching == PageCaching::Direct => {
                    eprintln!("skipped: {error:#}");
                    continue;
                }
                results => results.unwrap(),
            };
            assert_eq!(results.len(), 2);
            if notes.iter().any(|note| note.contains("io_uring")) {
                eprintln!("skipped: {notes:?}");
                continue;
            }
            for it in results {
                assert_eq!((it.cpu.len(), it.uring.len()), (2, 2));
                let read = |it: &&Measured| it.drives_us.is_none() && it.checked > 0 && it.seen_us > 0.0;
                assert!(it.uring.iter().filter(read).all(|one| one.checked == 4 * it.ids), "{it:?}");
                assert!(it.uring_ratio.is_some());
            }
        }
    }

    #[test]
    fn what_is_begun_ends_with_the_time() {
        let setup = SsdSetup { limit: Duration::ZERO, ..small() };
        let mut left_out = 0;
        let note = &mut |text: &str, kept: bool| left_out += u32::from(kept && text.contains("the time is over"));
        assert!(run(&mut HostGround::new(&setup), &setup, note).unwrap().is_empty());
        assert_eq!(left_out, 4, "a line for each kind of drives");
    }

    #[test]
    fn impossible_setups_are_refused() {
        for bad in [
            SsdSetup { dim: 0, ..small() },
            SsdSetup { size: 100, ..small() },
            SsdSetup { counts: vec![2049], ..small() },
            SsdSetup { counts: vec![0], ..small() },
            SsdSetup { drives: vec![65], ..small() },
            SsdSetup { ablations: vec![], ..small() },
            SsdSetup { lba: 4096, ..small() },
            SsdSetup { lba: 1024, medium: Medium::Emulated(Media::Ram), ..small() },
            SsdSetup { alpha: -1.0, ..small() },
            SsdSetup { room: 0, ..small() },
            SsdSetup { sets: vec![0], ..small() },
            SsdSetup { medium: Medium::Files(PageCaching::Cached, "/".into()), ..small() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
