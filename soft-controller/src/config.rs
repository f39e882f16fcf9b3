//! Properties of a controller that do not change while it lives.

use std::time::Duration;

use warprow_spec::identify::Fna;
use warprow_spec::registers::Vs;

use crate::fault::FaultRules;
use crate::timing::Timing;

/// Disorder among completions, from a seed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disorder {
    /// Each completion comes up to this much later; with zero, only commands fetched together are permuted.
    pub(crate) within: Duration,
    /// One command in so many is delayed by so much more.
    pub(crate) delay_one_in: Option<(u32, Duration)>,
    /// Each round takes a random number of the commands that wait.
    pub(crate) partial_fetch: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) serial: String,
    pub(crate) model: String,
    pub(crate) firmware: String,
    pub(crate) version: Vs,
    /// I/O queue pairs, 1 to 65,535.
    pub(crate) queue_pairs: u16,
    /// Entries of the largest I/O queue, 2 to 65,536.
    pub(crate) queue_entries: u32,
    pub(crate) dstrd: u8,
    /// Doorbells lie in a file that other processes can map.
    pub(crate) shared_doorbells: bool,
    /// Base-two logarithm of the largest transfer in pages of 4 KiB.
    pub(crate) mdts: u8,
    /// Largest memory page is 2^(12 + this).
    pub(crate) mpsmax: u8,
    pub(crate) fna: Fna,
    /// Whether it says that it changes its power state by itself.
    pub(crate) autonomous_power_states: bool,
    /// Pages of host memory that it would like, and least that are of use to it; 0: none.
    pub(crate) host_memory: (u32, u32),
    pub(crate) ready_delay: Duration,
    pub(crate) shutdown_delay: Duration,
    pub(crate) format_time: Duration,
    /// Worker threads; 0 for a controller that is stepped.
    pub(crate) workers: usize,
    pub(crate) seed: u64,
    pub(crate) disorder: Option<Disorder>,
    pub(crate) timing: Option<Timing>,
    /// Hosts that share what the timing allows.
    pub(crate) sharers: u32,
    pub(crate) faults: FaultRules,
}

impl Config {
    /// Whether commands are held until they are due rather than executed as they are fetched.
    #[inline]
    pub(crate) fn holds_commands(&self) -> bool {
        self.disorder.is_some() || self.timing.is_some()
    }

    /// The largest transfer, bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        4096 << self.mdts
    }
}
