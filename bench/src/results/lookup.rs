//! What `bench-lookup` found.

use serde::{Deserialize, Serialize};
use warprow_workload::{Latencies, PairedTimes};

use crate::ahead::AheadResult;
use crate::cold::ColdResult;
use crate::growth::Growth;
use crate::host_cache::HostCacheResult;
use crate::landing::{LandingResult, Taken, Team};
use crate::lookup::{Duel, LookupResult};
use crate::merging::{MergingResult, Way};
use crate::rerank::RerankResult;

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
    /// Look-ups with a cache and without one.
    pub host_cache: Option<HostCacheShares>,
    /// Look-ups beside a DRAM tier that follows.
    pub rerank: Option<RerankWindows>,
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

/// Look-ups with a cache and without one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostCacheShares {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Rows that it has room for.
    pub lines: u64,
    /// By share of hits.
    pub shares: Vec<HostCacheLine>,
    /// Rows compared.
    pub rows_checked: u64,
    /// Whether the caller and the drive had a processor each.
    pub pinned: bool,
}

/// One share of hits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HostCacheLine {
    /// The share that the batches were made for.
    pub asked: f64,
    /// The share of rows that the cache had.
    pub found: f64,
    /// Batches with the cache.
    pub with: CallPercentiles,
    /// Batches without it.
    pub without: CallPercentiles,
    /// How many times as many ids a second come with the cache: the median of pairs of turns.
    pub ratio: f64,
    /// The lowest ratio of a pair.
    pub ratio_low: f64,
    /// The highest ratio of a pair.
    pub ratio_high: f64,
    /// Microseconds that the cache saves of a batch, in the middle; negative: it costs them.
    pub saved_us: f64,
}

impl From<&HostCacheResult> for HostCacheShares {
    fn from(result: &HostCacheResult) -> Self {
        let lines = result.shares.iter().map(|share| {
            let (ratio_low, ratio_high) = share.pairs.ratio_range();
            HostCacheLine {
                asked: share.asked,
                found: share.found,
                with: (&share.with).into(),
                without: (&share.without).into(),
                ratio: share.pairs.ratio(),
                ratio_low,
                ratio_high,
                saved_us: share.saved_us(),
            }
        });
        Self {
            cache_bytes: result.cache_bytes,
            lines: result.lines,
            shares: lines.collect(),
            rows_checked: result.checked,
            pinned: result.pinned,
        }
    }
}

/// Look-ups in calm windows, and in windows in which a round has a DRAM tier follow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RerankWindows {
    /// Milliseconds that calm windows last at least.
    pub interval_ms: f64,
    /// Bytes a second that rounds read and write at most.
    pub rate: u64,
    /// Rows in DRAM.
    pub rows_in_dram: u64,
    /// Batches in calm windows.
    pub calm: CallPercentiles,
    /// Batches beside rounds.
    pub beside: CallPercentiles,
    /// The 99th percentile beside rounds to that of the calm window next to it: the median of pairs.
    pub p99_ratio: f64,
    /// The lowest ratio of a pair.
    pub p99_ratio_low: f64,
    /// The highest ratio of a pair.
    pub p99_ratio_high: f64,
    /// Pairs of windows.
    pub pairs: u64,
    /// Rounds that exchanged rows.
    pub rounds: u64,
    /// Rows that came to DRAM.
    pub rows_moved: u64,
    /// Rows compared.
    pub rows_checked: u64,
}

impl From<&RerankResult> for RerankWindows {
    fn from(result: &RerankResult) -> Self {
        let (p99_ratio_low, p99_ratio_high) = result.p99_us.ratio_range();
        Self {
            interval_ms: result.interval.as_secs_f64() * 1e3,
            rate: result.rate,
            rows_in_dram: result.hot_rows,
            calm: (&result.calm).into(),
            beside: (&result.beside).into(),
            p99_ratio: result.p99_us.ratio(),
            p99_ratio_low,
            p99_ratio_high,
            pairs: result.p99_us.pairs().len() as u64,
            rounds: result.rounds,
            rows_moved: result.moved,
            rows_checked: result.checked,
        }
    }
}
