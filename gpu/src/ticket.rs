//! The end of a launch, as its host sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use warprow_kernels::abi::{self, flaw, outcome};

use crate::error::GpuError;
use crate::report::GpuReport;
use crate::slot::Inner;
use warprow_lookup::MissingId;

/// A look-up that was launched, or captured in a graph.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) slot: Arc<Inner>,
    pub(crate) index: usize,
    /// The sequence number that ends it.
    pub(crate) ends: u64,
    /// Which capture of the slot's it is, from 1; 0: it is none.
    pub(crate) capture: u64,
    /// The latest launch of which the drives' answers were told.
    told: AtomicU64,
    /// Whether the look-up's ids are of a signed type.
    signed: bool,
}

/// Offsets of the words of a ticket in its pinned memory.
const OUTCOME: usize = 8;
const GATE: usize = 16;
const COUNTERS: usize = 24;
const TIMES: usize = COUNTERS + size_of::<abi::Counters>();
const ENDED: usize = TIMES + 24;
const LAUNCH: usize = TIMES + 32;
const GENERATION: usize = TIMES + 40;
const MISSING_ID: usize = TIMES + 48;

/// Whether the words of a ticket are those of one launch.
fn is_whole(words: &[u64]) -> bool {
    let indexed = words.iter().copied().enumerate();
    let outcome = words.get(OUTCOME / 8).map_or(0, |&word| word as u32);
    let is_told = |index: usize| match outcome {
        outcome::BUSY => index <= OUTCOME / 8,
        _ => index < TIMES / 8 || (ENDED / 8..=MISSING_ID / 8).contains(&index),
    };
    let check = abi::check_of(indexed.filter(|&(index, _)| is_told(index)));
    outcome != outcome::NONE && words.last() == Some(&check)
}

impl Ticket {
    pub(crate) fn new(slot: Arc<Inner>, index: usize, ends: u64, capture: u64, signed: bool) -> Self {
        Self { slot, index, ends, capture, told: AtomicU64::new(0), signed }
    }

    /// The report, once the look-up has ended; `None` until then. Reads pinned memory and waits for nothing. For a captured
    /// look-up it is that of the latest launch of the graph that has ended ([`GpuReport::runs`] counts them), and `None` while
    /// one writes its report, and after [`GpuSlot::forget_captures`](crate::GpuSlot::forget_captures).
    ///
    /// # Errors
    /// [`GpuError::QueueBusy`] if the slot was in use when the look-up began: it did nothing. [`GpuError::Flawed`] if the batch
    /// was wrong. [`GpuError::RowsFailed`] if rows could not be read.
    pub fn poll(&self) -> Option<Result<GpuReport, GpuError>> {
        if self.slot.has_forgotten(self.capture) {
            return None;
        }
        let memory = self.slot.tickets.memory();
        let base = self.index * size_of::<abi::Ticket>();
        let sequence = memory.load_u64(base);
        if sequence < self.ends {
            return None;
        }
        fence(Ordering::Acquire);
        let words: [u64; size_of::<abi::Ticket>() / 8] = std::array::from_fn(|i| memory.load_u64(base + i * 8));
        // A graph may run again while this reads, or words of the report still be on their way.
        is_whole(&words).then(|| self.report(&words))
    }

    fn report(&self, words: &[u64]) -> Result<GpuReport, GpuError> {
        let word = |byte: usize| words.get(byte / 8).copied().unwrap_or(0);
        let state = word(OUTCOME) as u32;
        if state == outcome::BUSY {
            return Err(GpuError::QueueBusy(
                "another launch of it was under way when this one began; its output is untouched",
            ));
        }
        let flaws = (word(OUTCOME) >> 32) as u32;
        let [
            ids,
            missing,
            padding,
            ids_hbm,
            ids_dram,
            ids_ssd,
            failed,
            rows_dram,
            rows_ssd,
            commands,
            doorbells,
            bytes,
            anomalies,
            damaged,
            split,
            first_missing,
        ] = std::array::from_fn(|i| word(COUNTERS + i * 8));
        let [began, prepared, fetched, ended] = std::array::from_fn(|i| word(TIMES + i * 8));
        let span = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        let report = GpuReport {
            runs: word(0),
            ids,
            padding,
            missing,
            failed,
            ids_hbm,
            ids_dram,
            ids_ssd: ids_ssd.saturating_sub(failed),
            rows_dram,
            rows_ssd,
            commands,
            doorbells,
            bytes_read: bytes,
            anomalies,
            damaged,
            split,
            first_missing: (first_missing != 0).then(|| MissingId {
                position: !first_missing,
                id: if self.signed { i128::from(word(MISSING_ID) as i64) } else { word(MISSING_ID).into() },
            }),
            generation: match word(GENERATION) {
                0 => self.slot.plan.description.generation,
                generation => generation,
            },
            prepare: span(began, prepared),
            fetch: span(prepared, fetched),
            expand: span(fetched, ended),
        };
        if flaws & flaw::TOO_MANY_IDS != 0 {
            return Err(GpuError::Flawed("it has more ids than planned", "nothing was looked up: plan for more"));
        }
        if flaws & flaw::TOO_MANY_BAGS != 0 {
            return Err(GpuError::Flawed("it has more bags than planned", "nothing was looked up: plan for more"));
        }
        if flaws & flaw::OFFSETS != 0 {
            let rule = "offsets begin with 0, never descend, and end with the number of ids; take no row of its output";
            return Err(GpuError::Flawed("its offsets make no sense", rule));
        }
        let launch = word(LAUNCH);
        if commands > 0 && self.told.load(Ordering::Relaxed) != launch && self.slot.tell_answers() {
            self.told.store(launch, Ordering::Relaxed);
        }
        if failed != 0 {
            let gate_was_closed = word(GATE) as u32 != 0;
            let first = if gate_was_closed { None } else { self.slot.first_fault(launch) };
            return Err(GpuError::RowsFailed { failed, first, report: Box::new(report) });
        }
        Ok(report)
    }

    /// Whether the launch was captured in a graph.
    pub fn is_captured(&self) -> bool {
        self.capture != 0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A graph may launch a captured one again.
        if !self.is_captured() {
            self.slot.forget_ticket(self.index, self.ends);
        }
    }
}
