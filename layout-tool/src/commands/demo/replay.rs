//! Replaying batches, timed, and comparing every row, untimed.

use std::time::{Duration, Instant};

use warprow_workload::{BatchSource, Latencies, RowMismatch, RowsAnswer, TableContent, verify};

use super::workload::Truth;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::rows::RowBuffer;

/// What rows are overwritten with between batches, so that none is taken for the last one's.
pub(crate) const POISON: u8 = 0xA5;

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

    /// How long the last answer took, if the contender knows that better than our clock.
    fn took(&self) -> Option<Duration> {
        None
    }

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
    pub mismatch: Option<RowMismatch>,
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

    /// Whether there is no point in going on.
    pub(crate) fn is_over(&self) -> bool {
        self.interrupted || self.mismatch.is_some()
    }

    /// Whether every row was right, and there was one.
    pub(crate) fn verified(&self) -> bool {
        self.mismatch.is_none() && self.checked == self.ids && self.ids > 0
    }
}

/// A contender and how far it is in the batches. Every contender gets the same ones, from the first.
pub(crate) struct Turn<'a> {
    contender: Box<dyn Contender + 'a>,
    pub outcome: Outcome,
}

/// What all contenders share.
pub(crate) struct Race<'a> {
    truth: &'a Truth<'a>,
    batches: &'a BatchSource,
    ids: Vec<i64>,
    rows: RowBuffer,
    interrupt: &'a Interrupt,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(contender: Box<dyn Contender + 'a>) -> Self {
        let outcome = Outcome {
            batches: 0,
            ids: 0,
            time: Duration::ZERO,
            latencies: Latencies::new(),
            checked: 0,
            missing: 0,
            mismatch: None,
            interrupted: false,
        };
        Self { contender, outcome }
    }

    /// The contender goes.
    pub(crate) fn end(self) -> Outcome {
        self.outcome
    }
}

impl<'a> Race<'a> {
    /// Batches of `batch` ids.
    pub(crate) fn new(truth: &'a Truth<'a>, batches: &'a BatchSource, batch: usize, interrupt: &'a Interrupt) -> Self {
        let rows = RowBuffer::new(truth.dtype(), batch * truth.dim() as usize);
        Self { truth, batches, ids: vec![0; batch], rows, interrupt }
    }

    /// Has the contender go on until it has reached one of `limits`, counted from its first batch, or failed. Before its first
    /// turn it answers some batches that are not timed.
    pub(crate) fn run(&mut self, turn: &mut Turn<'_>, limits: Limits, tick: impl Fn(&Outcome)) -> Result<(), Failure> {
        const WARM_UP: u64 = 3;
        let Self { truth, batches, ids, rows, interrupt } = self;
        let Turn { contender, outcome } = turn;
        if outcome.batches == 0 {
            for number in (0..WARM_UP).map(|number| u64::MAX - number) {
                batches.fill(number, ids);
                contender.answer(ids, rows)?;
            }
            contender.warmed_up();
        }
        while !outcome.is_over() && outcome.batches < limits.batches && outcome.time < limits.time {
            batches.fill(outcome.batches, ids);
            rows.bytes_mut().fill(POISON);
            let begin = Instant::now();
            contender.answer(ids, rows)?;
            let taken = begin.elapsed();
            let taken = contender.took().unwrap_or(taken);
            outcome.time += taken;
            outcome.latencies.record(taken);
            outcome.batches += 1;
            outcome.ids += ids.len() as u64;
            let answer = RowsAnswer { rows: rows.bytes(), stride: truth.row_bytes(), mask: contender.mask() };
            match verify(*truth, ids, answer) {
                Ok(verified) => {
                    outcome.checked += verified.rows;
                    outcome.missing += verified.missing;
                }
                Err(mismatch) => outcome.mismatch = Some(mismatch),
            }
            outcome.interrupted = interrupt.check().is_err();
            tick(outcome);
        }
        match truth.failed() {
            Some(error) => Err(Failure::io("--table", "cannot be read", &error)),
            None => Ok(()),
        }
    }
}
