//! Emulated drives that tell when they were busy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use warprow_dma::{DmaMemory, Function};
use warprow_soft_controller::SoftController;

/// From being woken until all threads look for work.
const WAKING: Duration = Duration::from_micros(200);

/// The drives of a store, whose threads are as awake for a host as for a GPU.
pub(crate) struct Drives {
    drives: Vec<Arc<SoftController>>,
    /// While somebody has these, threads look for work for milliseconds before they sleep.
    _doorbells: Vec<DmaMemory>,
}

/// What they did for a look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// From the first doorbell that any of them found to the last completion that any of them posted.
    pub time: Duration,
    /// Commands.
    pub completions: u64,
}

impl Drives {
    pub(crate) fn new(drives: Vec<Arc<SoftController>>) -> Self {
        let doorbells = drives.iter().map(|drive| drive.doorbell_memory()).collect();
        Self { drives, _doorbells: doorbells }
    }

    /// Before a look-up: all threads are awake, as a drive's processor always is.
    pub(crate) fn begin(&self) {
        self.drives.iter().for_each(|drive| drive.watch());
        self.drives.iter().for_each(|drive| drive.wake());
        std::thread::sleep(WAKING);
    }

    /// After it.
    pub(crate) fn end(&self) -> anyhow::Result<Window> {
        let mut first = None::<Instant>;
        let mut last = None::<Instant>;
        let mut completions = 0;
        for drive in &self.drives {
            let began = drive.clock_began().context("a drive without a clock of its own")?;
            let watched = drive.watched();
            let [begun, ended] =
                [watched.first_doorbell, watched.last_completion].map(|time| time.map(|time| began + time));
            first = [first, begun].into_iter().flatten().min();
            last = [last, ended].into_iter().flatten().max();
            completions += watched.completions;
        }
        let (first, last) = first.zip(last).context("no drive was asked for anything")?;
        Ok(Window { time: last.saturating_duration_since(first), completions })
    }
}
