//! Who takes part in the cold race, and how each did.

use warprow_workload::{PairedTimes, RowMismatch, median};

use crate::commands::demo::warprow;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// A drive on the file as it is by default.
    Warprow,
    /// A drive on the file past the page cache.
    Direct,
    Pread,
    Mapped,
    /// A contender that reads the plain file.
    Numpy,
}

impl Who {
    pub(crate) const ALL: [Self; 5] = [Self::Warprow, Self::Direct, Self::Pread, Self::Mapped, Self::Numpy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Warprow => "warprow",
            Self::Direct => "warprow, direct=1",
            Self::Pread => "pread per id",
            Self::Mapped => "mapped file per id",
            Self::Numpy => "numpy.memmap",
        }
    }

    /// What the member of the JSON object is called that is about it.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Warprow => "warprow",
            Self::Direct => "direct",
            Self::Pread => "pread",
            Self::Mapped => "mapped",
            Self::Numpy => "numpy",
        }
    }

    /// Threads that it keeps busy.
    pub(crate) fn threads(self) -> &'static str {
        match self {
            Self::Warprow | Self::Direct => warprow::THREADS,
            Self::Pread => "16",
            Self::Mapped | Self::Numpy => "1",
        }
    }
}

/// How the cold race went.
#[derive(Debug)]
pub(crate) struct Cold {
    /// Ids of a batch.
    pub batch: usize,
    /// Batches of each.
    pub rounds: usize,
    /// In the order of [`Who::ALL`].
    pub lines: Vec<Line>,
    /// Bytes that the kernel reads around a row which numpy misses.
    pub read_around: Option<u64>,
    /// Rows compared, those of untimed batches included; all of them equal but for the last of a mismatch.
    pub checked: u64,
    /// The first wrong row, and whose it was.
    pub mismatch: Option<(Who, RowMismatch)>,
    /// Whether somebody asked to stop.
    pub interrupted: bool,
}

/// How one did.
#[derive(Debug)]
pub(crate) struct Line {
    pub who: Who,
    /// Milliseconds of each batch; or why there are none.
    pub ms: Result<Vec<f64>, String>,
}

impl Line {
    pub(crate) fn median_ms(&self) -> Option<f64> {
        self.ms.as_ref().ok().filter(|ms| !ms.is_empty()).map(|ms| median(ms.iter().copied()))
    }
}

impl Cold {
    /// How many times as long as our own default somebody takes: the median of the rounds' ratios.
    pub(crate) fn ratio(&self, line: &Line) -> Option<f64> {
        let ours = self.lines.first()?.ms.as_ref().ok()?;
        let theirs = line.ms.as_ref().ok()?;
        let pairs: PairedTimes = theirs.iter().copied().zip(ours.iter().copied()).collect();
        (!pairs.pairs().is_empty()).then(|| pairs.ratio())
    }
}
