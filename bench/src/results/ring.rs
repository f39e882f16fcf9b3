//! What `bench-ring` found.

use serde::{Deserialize, Serialize};
use warprow_workload::PairedTimes;

use crate::gpu::resident::ResidentResult;
use crate::gpu::ring::GpuRingResult;
use crate::ring::{RingResult, RingSetup};

/// Who submits commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Submitter {
    /// A thread of the processor.
    Host,
    /// Thread blocks of a GPU.
    Gpu,
}

/// Random reads over one queue pair against the minimal ring. Figures are medians; drives that were not measured have none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostRing {
    /// Always the host.
    pub submitter: Submitter,
    /// Commands in flight.
    pub depth: u16,
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of the drive.
    pub size: u64,
    /// Seed of blocks and contents.
    pub seed: u64,
    /// Whether the controller was reached through a vfio-user socket.
    pub vfio_user: bool,
    /// Warprow's commands a second on a drive of memory.
    pub commands_per_second: Option<f64>,
    /// The minimal ring's.
    pub minimal_commands_per_second: Option<f64>,
    /// How many times as fast Warprow is.
    pub ratio: Option<f64>,
    /// The minimal ring's commands a second with data fetched ahead.
    pub minimal_fetching_commands_per_second: Option<f64>,
    /// How many times as fast as that Warprow is.
    pub fetching_ratio: Option<f64>,
    /// Warprow's commands a second on a drive without data.
    pub null_commands_per_second: Option<f64>,
    /// The minimal ring's.
    pub minimal_null_commands_per_second: Option<f64>,
    /// How many times as fast Warprow is without data.
    pub null_ratio: Option<f64>,
    /// Warprow's commands a second on a drive of memory that completes in disorder.
    pub disordered_commands_per_second: Option<f64>,
    /// Warprow's commands a second without data, in disorder.
    pub null_disordered_commands_per_second: Option<f64>,
    /// Pairs of rounds.
    pub pairs: Option<usize>,
    /// Whether both threads had a processor each.
    pub pinned: Option<bool>,
    /// Blocks compared byte for byte.
    pub blocks_checked: Option<u64>,
}

impl HostRing {
    /// Of measurements on a drive of memory and on one without data.
    pub fn new(setup: &RingSetup, ram: Option<&RingResult>, null: Option<&RingResult>) -> Self {
        let of = |result: Option<&RingResult>, what: fn(&PairedTimes) -> f64| result.map(|result| what(&result.pairs));
        let fetching = ram.and_then(|result| result.fetching.as_ref());
        Self {
            submitter: Submitter::Host,
            depth: setup.depth,
            block: setup.block,
            size: setup.size,
            seed: setup.seed,
            vfio_user: setup.vfio_user,
            commands_per_second: of(ram, PairedTimes::median_a),
            minimal_commands_per_second: of(ram, PairedTimes::median_b),
            ratio: of(ram, PairedTimes::ratio),
            minimal_fetching_commands_per_second: fetching.map(PairedTimes::median_b),
            fetching_ratio: fetching.map(PairedTimes::ratio),
            null_commands_per_second: of(null, PairedTimes::median_a),
            minimal_null_commands_per_second: of(null, PairedTimes::median_b),
            null_ratio: of(null, PairedTimes::ratio),
            disordered_commands_per_second: ram.map(|result| result.disordered),
            null_disordered_commands_per_second: null.map(|result| result.disordered),
            pairs: ram.or(null).map(|result| result.pairs.pairs().len()),
            pinned: ram.or(null).map(|result| result.pinned),
            blocks_checked: ram.map(|result| result.checked),
        }
    }
}

/// Random reads of a drive that is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriveRing {
    /// Always the host.
    pub submitter: Submitter,
    /// The drive's address.
    pub on: String,
    /// Commands in flight.
    pub depth: u16,
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of the drive that are read.
    pub size: u64,
    /// Seed of blocks and contents.
    pub seed: u64,
    /// Median of rounds.
    pub commands_per_second: f64,
    /// Microseconds from a command to its completion, on average.
    pub microseconds: f64,
    /// Rounds.
    pub rounds: u32,
    /// Blocks compared byte for byte.
    pub blocks_checked: u64,
}

/// Reads that a GPU submits, answered by threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuRing {
    /// Always the GPU.
    pub submitter: Submitter,
    /// The GPU's name.
    pub gpu: String,
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of each drive.
    pub size: u64,
    /// Ids of a look-up.
    pub ids: u64,
    /// Seed of contents and ids.
    pub seed: u64,
    /// Where queues, doorbells and data lie.
    #[serde(rename = "rung")]
    pub placement: String,
    /// By number of drives and threads.
    pub results: Vec<GpuRingResult>,
    /// As many commands in a row as were asked for.
    pub soak: Option<GpuRingResult>,
}

/// Reads that a GPU submits, answered by a kernel that stays on a GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResidentRing {
    /// Always the GPU.
    pub submitter: Submitter,
    /// What answers.
    pub controller: String,
    /// The name of the GPU that submits.
    pub gpu: String,
    /// Bytes of a block.
    pub block: u64,
    /// Bytes of the drive.
    pub size: u64,
    /// Seed of LBAs, disorder and late completions.
    pub seed: u64,
    /// What is not a real drive, in words.
    pub emulated: String,
    /// By queues, batches and rings.
    pub results: Vec<ResidentResult>,
}
