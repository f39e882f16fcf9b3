//! Options for preparing tables while look-ups read others, and a limit of how fast that reads.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warprow_store::StoreError;
use warprow_store::view::{StoreView, TableVersion};

/// How tables are prepared beside those that are read.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PrepareOptions {
    /// Prepare for a [switch](warprow_store::Store::switch) to this generation; `None`: the tables that the store shows
    /// now.
    pub generation: Option<u64>,
    /// Bytes a second that filling the DRAM tier may read from the drives, all together; `None`: as fast as they are.
    pub bytes_per_second: Option<u64>,
}

impl PrepareOptions {
    /// Prepares for a switch to generation `id`.
    #[must_use]
    pub fn with_generation(self, id: u64) -> Self {
        Self { generation: Some(id), ..self }
    }

    /// Reads at most that many bytes a second.
    #[must_use]
    pub fn with_rate(self, bytes_per_second: u64) -> Self {
        Self { bytes_per_second: Some(bytes_per_second), ..self }
    }
}

impl PrepareOptions {
    /// The tables to prepare.
    ///
    /// # Errors
    /// The generation to switch to is not there.
    pub fn tables(&self, store: &StoreView) -> Result<Vec<TableVersion>, StoreError> {
        match self.generation {
            Some(id) => store.tables_after_switch(id),
            None => Ok(store.tables()),
        }
    }

    /// Makes the pacer that keeps reading below [`bytes_per_second`](Self::bytes_per_second).
    pub fn pace(&self) -> ReadPacer {
        ReadPacer { began: Instant::now(), bytes: 0, rate: self.bytes_per_second, stop: None }
    }
}

/// Keeps reading below a rate, by sleeping.
#[derive(Debug)]
pub struct ReadPacer {
    began: Instant,
    bytes: u64,
    rate: Option<u64>,
    stop: Option<Arc<AtomicBool>>,
}

impl ReadPacer {
    /// Without a rate.
    pub fn unpaced() -> Self {
        PrepareOptions::default().pace()
    }

    /// Has reading stop when `stop` becomes true.
    #[must_use]
    pub fn until(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Bytes a second, at most; `None`: there is no rate.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Whether reading is to go on.
    pub fn go_on(&self) -> ControlFlow<()> {
        match self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Counts `bytes` that were read, and sleeps if reading was faster than the rate.
    pub fn read(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        let ahead = due.saturating_sub(self.began.elapsed());
        // Very short sleeps take longer than asked for; so it sleeps once more than 2 ms are due.
        if ahead > Duration::from_millis(2) {
            std::thread::sleep(ahead.min(Duration::from_millis(100)));
        }
    }
}
