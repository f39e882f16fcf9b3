//! What `bench-lookup` found.

use serde::{Deserialize, Serialize};
use warprow_workload::{Latencies, PairedTimes};

use crate::ahead::AheadResult;
use crate::cold::ColdResult;
use crate::growth::Growth;
use crate::landing::{LandingResult, Taken, Team};
use crate::lookup::{Duel, LookupResult};
use crate::merging::{MergingResult, Way};

/// Look-ups by the host executor. What was not measured is `None`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostLookups {
    /// Bytes of rows.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Ids in a batch.
    pub batch: u32,
    /// Seed of ids and contents.
    pub seed: u64,
    /// From the page cache.
    pub cached: Option<Race>,
    /// Past the page cache.
    pub direct: Option<Race>,
    /// Rows that the page cache does not hold.
    pub cold: Option<ColdResult>,
    /// The drive whose timing emulated drives had in what follows.
    pub profile: String,
    /// Growing tables, by the law of their ids.
    pub growth: Option<Vec<Growth>>,
    /// Batches fetched ahead.
    pub ahead: Option<AheadCalls>,
    /// Rows that share commands.
    pub merging: Option<MergingWays>,
    /// Rows that land in the output.
    pub landing: Option<LandingTeams>,
}

/// The host executor against all rivals on one drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Race {
    /// Warprow's ids a second, median over all rivals' turns.
    pub ids_per_second: f64,
    /// Median latency of Warprow's batches.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// Rows in DRAM.
    pub rows_in_dram: u64,
    /// Rows compared, Warprow's and the rivals'.
    pub rows_checked: u64,
    /// The type of the file system.
    pub filesystem: String,
    /// Bytes of an LBA.
    pub lba: u32,
    /// Whether Warprow's two threads had a processor each.
    pub pinned: bool,
    /// The rivals, one after the other.
    pub rivals: Vec<RivalResult>,
}

/// One rival.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RivalResult {
    /// The rival's name.
    pub rival: String,
    /// Median ids a second, unless the rival could not take part.
    pub ids_per_second: Option<f64>,
    /// How many times as fast Warprow is: the median of pairs of turns.
    pub ratio: Option<f64>,
    /// Why the rival could not take part.
    pub unavailable: Option<String>,
    /// Median latency of the rival's batches.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl From<&LookupResult> for Race {
    fn from(result: &LookupResult) -> Self {
        let rival = |Duel { rival, outcome, latencies }: &Duel| RivalResult {
            rival: rival.clone(),
            ids_per_second: outcome.as_ref().ok().map(PairedTimes::median_b),
            ratio: outcome.as_ref().ok().map(PairedTimes::ratio),
            unavailable: outcome.as_ref().err().cloned(),
            p50_us: latencies.percentile_us(50.0),
            p99_us: latencies.percentile_us(99.0),
        };
        Self {
            ids_per_second: result.ids_per_second,
            p50_us: result.latencies.percentile_us(50.0),
            p99_us: result.latencies.percentile_us(99.0),
            p99_9_us: result.latencies.percentile_us(99.9),
            rows_in_dram: result.hot_rows,
            rows_checked: result.checked,
            filesystem: result.filesystem.clone(),
            lba: result.lba,
            pinned: result.pinned,
            rivals: result.duels.iter().map(rival).collect(),
        }
    }
}

/// Steps of a look-up and a wait, with batches fetched ahead and one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AheadCalls {
    /// Steps that batches are fetched ahead.
    pub ahead: u32,
    /// Microseconds that the caller waits in each step.
    pub work_us: f64,
    /// Rows in DRAM.
    pub rows_in_dram: u64,
    /// A look-up's call.
    pub lookup: CallPercentiles,
    /// A prefetch's call.
    pub prefetch: CallPercentiles,
    /// The call that looks up what is there already.
    pub lookup_prefetched: CallPercentiles,
    /// Steps of both kinds.
    pub steps_per_second: AheadSteps,
    /// Rows compared.
    pub rows_checked: u64,
}

/// How long calls of one kind take.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CallPercentiles {
    /// Median, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
}

/// Steps a second, medians.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct AheadSteps {
    /// With batches fetched ahead.
    pub ahead: f64,
    /// One after the other.
    pub in_turn: f64,
    /// How many times as many ahead.
    pub ratio: f64,
}

impl From<&Latencies> for CallPercentiles {
    fn from(latencies: &Latencies) -> Self {
        Self { p50_us: latencies.percentile_us(50.0), p99_us: latencies.percentile_us(99.0) }
    }
}

impl From<&AheadResult> for AheadCalls {
    fn from(result: &AheadResult) -> Self {
        let steps = &result.steps;
        Self {
            ahead: result.ahead,
            work_us: result.work.as_secs_f64() * 1e6,
            rows_in_dram: result.hot_rows,
            lookup: (&result.lookup).into(),
            prefetch: (&result.prefetch).into(),
            lookup_prefetched: (&result.prefetched).into(),
            steps_per_second: AheadSteps { ahead: steps.median_a(), in_turn: steps.median_b(), ratio: steps.ratio() },
            rows_checked: result.checked,
        }
    }
}

/// Rows that share commands, in every way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MergingWays {
    /// The drive's read curve, if it could be measured.
    pub curve: Option<Vec<CurvePoint>>,
    /// Rows in DRAM.
    pub rows_in_dram: u64,
    /// Each way.
    pub ways: Vec<MergingWay>,
    /// Rows compared.
    pub rows_checked: u64,
}

/// A point of a drive's read curve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Bytes of a read.
    pub bytes: u32,
    /// Reads a second.
    pub reads_per_second: f64,
}

/// One way for rows to share commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MergingWay {
    /// The way's name.
    pub rows_share: String,
    /// Median ids a second.
    pub ids_per_second: f64,
    /// Commands of a batch.
    pub commands: f64,
    /// Bytes that a batch reads.
    pub bytes: f64,
    /// Median latency of batches.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// How many times as many ids a second the read curve's way reaches; none of that way itself.
    pub curve_ratio: Option<f64>,
}

impl From<&MergingResult> for MergingWays {
    fn from(result: &MergingResult) -> Self {
        let way = |way: &Way| MergingWay {
            rows_share: way.name.to_owned(),
            ids_per_second: way.ids_per_second,
            commands: way.commands,
            bytes: way.bytes,
            p50_us: way.latencies.percentile_us(50.0),
            p99_us: way.latencies.percentile_us(99.0),
            curve_ratio: way.curve_to_it.as_ref().map(PairedTimes::ratio),
        };
        let point = |(bytes, reads_per_second)| CurvePoint { bytes, reads_per_second };
        Self {
            curve: result.curve.as_ref().map(|curve| curve.points().map(point).collect()),
            rows_in_dram: result.hot_rows,
            ways: result.ways.iter().map(way).collect(),
            rows_checked: result.checked,
        }
    }
}

/// Look-ups into output buffers, where rows land, and into ordinary memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LandingTeams {
    /// Drives, each with a thread that answers.
    pub drives: u32,
    /// Rows in DRAM.
    pub rows_in_dram: u64,
    /// By number of threads.
    pub teams: Vec<LandingTeam>,
    /// Rows compared.
    pub rows_checked: u64,
}

/// One number of threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LandingTeam {
    /// How many.
    pub threads: u32,
    /// Into output buffers.
    pub buffers: LandingRates,
    /// Into ordinary memory.
    pub ordinary: LandingRates,
    /// How many times as many ids a second go into output buffers.
    pub ratio: f64,
}

/// Look-ups into one kind of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LandingRates {
    /// Median ids a second of all threads.
    pub ids_per_second: f64,
    /// Rows read from drives.
    pub rows_read: u64,
    /// Rows among them that landed in the output.
    pub rows_landed: u64,
    /// Nanoseconds for each id that copying, and looking for what has come, took.
    pub expand_ns_per_id: f64,
}

impl From<&LandingResult> for LandingTeams {
    fn from(result: &LandingResult) -> Self {
        let rates = |ids_per_second: f64, taken: &Taken| LandingRates {
            ids_per_second,
            rows_read: taken.rows,
            rows_landed: taken.landed,
            expand_ns_per_id: taken.expand_ns(),
        };
        let team = |team: &Team| LandingTeam {
            threads: team.threads,
            buffers: rates(team.ids_per_second.median_a(), &team.buffers),
            ordinary: rates(team.ids_per_second.median_b(), &team.ordinary),
            ratio: team.ids_per_second.ratio(),
        };
        Self {
            drives: result.drives,
            rows_in_dram: result.hot_rows,
            teams: result.teams.iter().map(team).collect(),
            rows_checked: result.checked,
        }
    }
}
