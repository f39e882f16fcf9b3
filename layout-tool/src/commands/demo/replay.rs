//! Replaying batches, timed, and comparing every row, untimed.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use warprow_workload::{Answer, Batches, Content, Latencies, Mismatch, verify};

use super::workload::Truth;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::rows::RowBuffer;
use crate::units;

/// What rows are overwritten with between batches, so that none is taken for the last one's.
const POISON: u8 = 0xA5;

/// How long to replay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Batches, at most.
    pub batches: u64,
    /// Time in look-ups, at most.
    pub time: Duration,
}

/// Somebody who answers batches.
pub(crate) trait Contender {
    /// Fills `rows`, one after another, for `ids`. What it may be timed for.
    fn answer(&mut self, ids: &[i64], rows: &mut RowBuffer) -> Result<(), Failure>;

    /// The untimed batches are over.
    fn warmed_up(&mut self) {}

    /// The mask of the last answer, one byte an id, from those who give one.
    fn mask(&self) -> Option<&[u8]> {
        None
    }
}

/// How a contender did.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub batches: u64,
    pub ids: u64,
    /// In look-ups alone.
    pub time: Duration,
    pub latencies: Latencies,
    /// Rows compared, all of them equal but for the last of a mismatch.
    pub checked: u64,
    /// Missing ids among them.
    pub missing: u64,
    pub mismatch: Option<Mismatch>,
    /// Whether somebody asked to stop.
    pub interrupted: bool,
}

impl Outcome {
    pub(crate) fn ids_per_second(&self) -> f64 {
        match self.time.as_secs_f64() {
            seconds if seconds > 0.0 => self.ids as f64 / seconds,
            _ => 0.0,
        }
    }

    /// Whether every row was right, and there was one.
    pub(crate) fn verified(&self) -> bool {
        self.mismatch.is_none() && self.checked == self.ids && self.ids > 0
    }
}

/// Has `contender` answer `batches` of `batch` ids each, within `limits`. The first batches, which nobody else gets, are not
/// timed.
pub(crate) fn replay(
    contender: &mut dyn Contender,
    truth: &Truth<'_>,
    batches: &Batches,
    batch: usize,
    limits: Limits,
    interrupt: &Interrupt,
    bar: &ProgressBar,
) -> Result<Outcome, Failure> {
    const WARM_UP: u64 = 3;
    let (mut ids, row_bytes) = (vec![0; batch], truth.row_bytes());
    let mut rows = RowBuffer::new(truth.dtype(), batch * truth.dim() as usize);
    let mut outcome = Outcome {
        batches: 0,
        ids: 0,
        time: Duration::ZERO,
        latencies: Latencies::new(),
        checked: 0,
        missing: 0,
        mismatch: None,
        interrupted: false,
    };
    for number in (0..WARM_UP).map(|number| u64::MAX - number) {
        batches.fill(number, &mut ids);
        contender.answer(&ids, &mut rows)?;
    }
    contender.warmed_up();
    while outcome.batches < limits.batches && outcome.time < limits.time {
        if interrupt.check().is_err() {
            outcome.interrupted = true;
            break;
        }
        batches.fill(outcome.batches, &mut ids);
        rows.bytes_mut().fill(POISON);
        let begin = Instant::now();
        contender.answer(&ids, &mut rows)?;
        let taken = begin.elapsed();
        outcome.time += taken;
        outcome.latencies.record(taken);
        outcome.batches += 1;
        outcome.ids += batch as u64;
        let answer = Answer { rows: rows.bytes(), stride: row_bytes, mask: contender.mask() };
        match verify(truth, &ids, answer) {
            Ok(verified) => {
                outcome.checked += verified.rows;
                outcome.missing += verified.missing;
            }
            Err(mismatch) => {
                outcome.mismatch = Some(mismatch);
                break;
            }
        }
        let by_batches = outcome.batches as f64 / limits.batches.max(1) as f64;
        let by_time = outcome.time.as_secs_f64() / limits.time.as_secs_f64().max(1e-9);
        bar.set_position((by_batches.max(by_time) * 1000.0) as u64);
        if outcome.batches.is_multiple_of(16) {
            bar.set_prefix(format!("{} ids/s", units::short(outcome.ids_per_second())));
        }
    }
    if let Some(error) = truth.failed() {
        return Err(Failure::io("--table", "cannot be read", &error));
    }
    Ok(outcome)
}
