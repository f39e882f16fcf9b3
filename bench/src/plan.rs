//! Plans against what look-ups then do on emulated drives with the timing of real ones.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use warprow_layout::{DType, FormatOptions, TableSpec};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions};
use warprow_plan::trace::{Bags, GeneratedQueries, IdPattern, QuerySource, QueryTrace, RecordedQueries};
use warprow_plan::{AlikeDrives, HostCosts, MemoryBudgets, OrderedProposal, ProposalOptions, TableShape, propose};
use warprow_soft_controller::{Namespace, RamBacking, SoftController, TimingProfile};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_workload::{ContentOracle, PowerLaw, RowsAnswer, median, peak_resident_bytes, verify};
use zerocopy::IntoBytes;

const LBA: u32 = 512;
const TABLE: &str = "table";

/// A table, look-ups, and where its rows lie.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanSetup {
    /// Rows.
    pub rows: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// The share of ranks that get another id within a million queries.
    pub drift: f64,
    /// Ids in all: four fifths are planned by, the last fifth is looked up.
    pub ids: u64,
    /// Ids of a look-up.
    pub batch: u32,
    /// The share of the rows' bytes that DRAM holds.
    pub dram: f64,
    /// Drives.
    pub drives: u32,
    /// The timing of the drives: p5800x or gen5-tlc.
    pub profile: String,
    /// Seed of ids and content.
    pub seed: u64,
}

/// Rounds of measuring costs, planning by them and looking up.
const ROUNDS: u32 = 3;
/// By how much a rate may differ from what was planned.
pub const RATE_WITHIN: f64 = 0.2;
/// By how much a hit rate may, unless the plan states a larger error.
pub const HIT_WITHIN: f64 = 0.02;

/// What was planned, and what happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanResult {
    /// The share of ids in DRAM: planned.
    pub hit_planned: f64,
    /// Twice the standard error of that, by the plan.
    pub hit_error: f64,
    /// Measured.
    pub hit: f64,
    /// Read commands of a look-up: planned.
    pub commands_planned: f64,
    /// Measured.
    pub commands: f64,
    /// Ids a second: planned, the median of the rounds.
    pub rate_planned: f64,
    /// Measured: the ids of a look-up by the median of its time, the median of the rounds.
    pub rate: f64,
    /// Planned over measured: the median of the rounds, each with costs measured just before.
    pub ratio: f64,
    /// The ratio by the look-up that is faster than 19 of 20, which others have not disturbed.
    pub undisturbed_ratio: f64,
    /// The least and the largest ratio of a round.
    pub ratios: [f64; 2],
    /// The share of the time that was planned to be waiting for drives.
    pub waited: f64,
    /// What the processor takes, as measured in the last round.
    pub costs: HostCosts,
    /// Rows compared.
    pub checked: u64,
}

impl PlanResult {
    /// Whether the rate is what was planned; on a `busy` machine, that of undisturbed look-ups.
    pub fn rate_holds(&self, busy: bool) -> bool {
        let ratio = if busy { self.undisturbed_ratio } else { self.ratio };
        (ratio - 1.0).abs() <= RATE_WITHIN
    }

    /// Whether the hit rate is.
    pub fn hit_holds(&self) -> bool {
        (self.hit - self.hit_planned).abs() <= HIT_WITHIN.max(self.hit_error)
    }
}

impl PlanSetup {
    fn generated(&self) -> anyhow::Result<GeneratedQueries> {
        let law = PowerLaw::new(self.rows, self.alpha);
        let law = law.with_context(|| format!("{} rows, α {}: there is no such law", self.rows, self.alpha))?;
        Ok(GeneratedQueries::new(IdPattern::PowerLaw { law, drift: self.drift }, self.rows, self.ids, 1, self.seed))
    }

    fn shape(&self) -> TableShape {
        TableShape { name: TABLE.to_owned(), rows: self.rows, dim: self.dim, dtype: DType::F32, index_bytes: None }
    }

    fn dram_bytes(&self) -> u64 {
        (self.rows as f64 * self.dram) as u64 * u64::from(self.dim) * 4
    }

    fn propose(&self, source: impl QuerySource, costs: HostCosts, memory: u64) -> anyhow::Result<OrderedProposal> {
        let mut trace = QueryTrace::new(vec![(vec![TABLE.to_owned()], Box::new(source) as _)])?;
        let options = ProposalOptions {
            budgets: MemoryBudgets { hbm: 0, dram: self.dram_bytes() },
            drives: AlikeDrives {
                count: self.drives,
                profile: self.profile.clone(),
                bytes: self.drive_bytes(),
                lba: LBA,
                emulated: true,
            },
            batch: self.batch,
            memory,
            costs,
            seed: self.seed,
            ..ProposalOptions::default()
        };
        Ok(propose(&[self.shape()], &mut trace, &options, &mut |_| ControlFlow::Continue(()))?)
    }

    /// Bytes of each drive.
    fn drive_bytes(&self) -> u64 {
        let bytes = self.rows * u64::from(self.dim) * 4 + self.rows * 4;
        (bytes * 9 / 8 / u64::from(self.drives.max(1)) + (64 << 20)).next_multiple_of(1 << 20)
    }
}

/// Plans by four fifths of the ids, loads the table as planned, and looks the others up, again and again for `time`. Every row is
/// compared, outside of the measured time.
pub fn run(setup: &PlanSetup, time: Duration) -> anyhow::Result<PlanResult> {
    ensure!((1..=1024).contains(&setup.dim), "rows of {} elements: 1 to 1024 are possible", setup.dim);
    ensure!(setup.rows <= 1 << 24 && setup.ids <= 1 << 26, "more than 2^24 rows or 2^26 ids are not looked up here");
    ensure!(setup.batch > 0 && setup.ids >= 10 * u64::from(setup.batch), "there are fewer than ten look-ups");
    let profile: TimingProfile = setup.profile.parse().ok().context("there are the profiles p5800x and gen5-tlc")?;
    let mut bags = Bags::default();
    setup.generated()?.read(setup.ids as usize, std::slice::from_mut(&mut bags))?;
    let cut = bags.ids.len() / 5 * 4;
    let proposed = || -> anyhow::Result<(OrderedProposal, HostCosts)> {
        let costs = HostCosts::measure(setup.dim * 4, true)?;
        Ok((setup.propose(RecordedQueries::new(&bags, 0..cut), costs, 1 << 30)?, costs))
    };
    let (mut proposal, mut costs) = proposed()?;

    let content = ContentOracle::new(setup.seed, 0, setup.rows, setup.dim, DType::F32);
    let device = |index: u32| {
        let name = format!("emulated:drive{index}");
        let namespace = Namespace::new(RamBacking::new(setup.drive_bytes())?).lba(LBA);
        let builder = SoftController::builder().name(&name).serial(&name).namespace(namespace).profile(profile);
        Ok(Device::new(builder.build()?, 1))
    };
    let devices = (0..setup.drives).map(device).collect::<anyhow::Result<Vec<_>>>()?;
    let store = Store::create(&devices, &FormatOptions::default(), &OpenOptions::default())?;
    let table = proposal.tiers.tables.first();
    let order = proposal.orders.first();
    let (table, order) = table.zip(order).context("a plan without a table")?;
    let mut spec = TableSpec::new(TABLE, setup.rows, setup.dim, DType::F32);
    (spec.permuted, spec.hot_rows) = (true, table.dram_rows);
    let ranks = order.ranks()?;
    let load = TableLoad::new(&spec, &content).with_ranks(&ranks).with_random_access();
    store.load("bench", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;

    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(setup.dram_bytes()))?;
    let batch = setup.batch as usize;
    let width = setup.dim as usize;
    let of_host = host.plan(&[Feature::new("f", TABLE)], PlanOptions::default().with_max(batch, batch))?;
    let mut slot = of_host.slot()?;
    let mut rows = vec![0f32; batch * width];
    let mut checked = 0;
    let mut did = [0u64; 4];
    let held_out: Range<usize> = cut..bags.ids.len() / batch * batch;
    let mut planned_rates = Vec::new();
    let mut rates = Vec::new();
    let mut ratios = Vec::new();
    let mut undisturbed_ratios = Vec::new();
    for round in 0..ROUNDS {
        if round > 0 {
            (proposal, costs) = proposed()?;
        }
        let mut times = Vec::new();
        let start = Instant::now();
        for (turn, first) in held_out.clone().step_by(batch).cycle().enumerate() {
            let once = turn >= held_out.len().div_ceil(batch);
            if once && start.elapsed() >= time / ROUNDS {
                break;
            }
            let Some(ids) = bags.ids.get(first..first + batch) else { continue };
            rows.as_mut_bytes().fill(0xa5);
            let began = Instant::now();
            let report = slot.lookup(&Batch::new(ids, batch), &mut Output::new(OutputRows::F32(&mut rows), width))?;
            times.push(began.elapsed().as_secs_f64());
            let answer = RowsAnswer { rows: rows.as_bytes(), stride: width * 4, mask: None };
            checked += verify(&content, ids, answer).context("a wrong row was returned")?.rows;
            if !once && round == 0 {
                let sums = [1, report.ids, report.ids_dram, report.commands];
                did.iter_mut().zip(sums).for_each(|(sum, of_lookup)| *sum += of_lookup);
            }
        }
        times.sort_by(f64::total_cmp);
        let undisturbed = times.get(times.len() / 20).copied().unwrap_or(f64::INFINITY);
        let planned = proposal.tiers.expected.ids_per_second;
        let rate = batch as f64 / median(times);
        planned_rates.push(planned);
        rates.push(rate);
        ratios.push(planned / rate);
        undisturbed_ratios.push(planned * undisturbed / batch as f64);
    }
    let [lookups, ids, ids_dram, commands] = did.map(|number| number as f64);
    let expected = &proposal.tiers.expected;
    let range = ratios.iter().fold([f64::MAX, 0.0], |[least, most], &it| [it.min(least), it.max(most)]);
    Ok(PlanResult {
        hit_planned: expected.dram,
        hit_error: expected.error,
        hit: ids_dram / ids,
        commands_planned: expected.commands,
        commands: commands / lookups,
        rate_planned: median(planned_rates),
        rate: median(rates),
        ratio: median(ratios),
        undisturbed_ratio: median(undisturbed_ratios),
        ratios: range,
        waited: expected.waited,
        costs,
        checked,
    })
}

/// How fast a plan is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpeedResult {
    /// Seconds to plan, the generating of ids included.
    pub seconds: f64,
    /// Seconds to generate the ids as often as planning read them.
    pub generating: f64,
    /// Most memory that the process has had resident.
    pub peak_resident_bytes: Option<u64>,
    /// By how much a count may be too low.
    pub count_error: u64,
    /// The share of ids in DRAM, planned.
    pub hit_planned: f64,
}

/// Plans `setup` in `memory` bytes for counting, from ids that are generated as they are read.
pub fn speed(setup: &PlanSetup, memory: u64) -> anyhow::Result<SpeedResult> {
    let mut source = setup.generated()?;
    let start = Instant::now();
    let proposal = setup.propose(source.clone(), HostCosts::default(), memory)?;
    let seconds = start.elapsed().as_secs_f64();
    // Counted twice, of four fifths and of all, and looked at once.
    let start = Instant::now();
    let mut bags = Bags::default();
    let mut read = 0;
    while read < setup.ids * 2 {
        bags.clear();
        match source.read(1 << 13, std::slice::from_mut(&mut bags))? {
            0 => source.rewind()?,
            got => read += got as u64,
        }
    }
    let count_error = proposal.tiers.tables.first().map_or(0, |table| table.count_error);
    Ok(SpeedResult {
        seconds,
        generating: start.elapsed().as_secs_f64(),
        peak_resident_bytes: peak_resident_bytes(),
        count_error,
        hit_planned: proposal.tiers.expected.dram,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_ups_do_what_was_planned() {
        let setup = PlanSetup {
            rows: 40_000,
            dim: 32,
            alpha: 1.05,
            drift: 0.0,
            ids: 200_000,
            batch: 1000,
            dram: 0.05,
            drives: 2,
            profile: "gen5-tlc".to_owned(),
            seed: 3,
        };
        let result = run(&setup, Duration::ZERO).unwrap();
        assert!((result.hit - result.hit_planned).abs() < 0.02 && result.hit_holds(), "{result:?}");
        assert!((0.9..1.1).contains(&(result.commands / result.commands_planned)), "{result:?}");
        assert!(result.rate > 0.0 && result.ratio > 0.0 && result.checked == 120_000, "{result:?}");
        // Not all counts fit.
        let fast = speed(&setup, 192 << 10).unwrap();
        assert!(fast.count_error > 0 && (fast.hit_planned - result.hit).abs() < 0.05, "{fast:?} for {result:?}");
    }
}
