//! The end of a launch, as its host sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use warprow_dma::DmaMemory;
use warprow_kernels::abi::{self, flaw, outcome};

use crate::captured_tickets::CapturedTicket;
use crate::error::GpuError;
use crate::report::GpuReport;
use crate::slot::Inner;
use warprow_lookup::MissingId;

/// A look-up that was launched, or captured in a graph.
#[derive(Debug)]
pub struct Ticket {
    slot: Arc<Inner>,
    place: TicketPlace,
    /// What the place told before.
    before: Told,
    /// Failures of the place's launches that were told of.
    failures: AtomicU32,
    /// The latest launch of which the drives' answers were told.
    told: AtomicU64,
    /// Whether the look-up's ids are of a signed type.
    signed: bool,
}

/// Where a ticket's launches report to.
#[derive(Debug)]
pub(crate) enum TicketPlace {
    /// A place of the slot's, for one launch.
    Own(usize),
    /// A place that the graph keeps as well.
    Captured(Arc<CapturedTicket>),
}

/// What launches of a place have told when none was under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// Launches that had ended.
    pub launches: u64,
    /// How many of these launches had failed.
    failures: u32,
}

impl Told {
    /// How long words of a report may be on their way behind the number of the launch, in looks at them.
    const LOOKS: u32 = 1 << 14;

    /// What ticket `index` of `memory` tells.
    pub(crate) fn of(memory: &DmaMemory, index: usize) -> Self {
        let launches = memory.load_u64(index * size_of::<abi::Ticket>());
        if launches == 0 {
            return Self::default();
        }
        let mut words = words_of(memory, index);
        for _ in 0..Self::LOOKS {
            if is_whole(&words) {
                break;
            }
            std::hint::spin_loop();
            words = words_of(memory, index);
        }
        Self { launches, failures: words.get(FAILURES / 8).map_or(0, |&failures| failures as u32) }
    }
}

/// The words of ticket `index` of `memory`, as they are now.
fn words_of(memory: &DmaMemory, index: usize) -> Words {
    std::array::from_fn(|word| memory.load_u64(index * size_of::<abi::Ticket>() + word * 8))
}

type Words = [u64; size_of::<abi::Ticket>() / 8];

/// Offsets of the words of a ticket in its pinned memory.
const OUTCOME: usize = 8;
const GATE: usize = 16;
const COUNTERS: usize = 24;
const TIMES: usize = COUNTERS + size_of::<abi::Counters>();
const ENDED: usize = TIMES + 24;
const LAUNCH: usize = TIMES + 32;
const GENERATION: usize = TIMES + 40;
const MISSING_ID: usize = TIMES + 48;
const FAILURES: usize = TIMES + 56;

/// Whether the words of a ticket are those of one launch.
fn is_whole(words: &[u64]) -> bool {
    let indexed = words.iter().copied().enumerate();
    let outcome = words.get(OUTCOME / 8).map_or(0, |&word| word as u32);
    let is_told = |index: usize| match outcome {
        outcome::BUSY => index <= OUTCOME / 8 || index == FAILURES / 8,
        _ => index < TIMES / 8 || (ENDED / 8..=FAILURES / 8).contains(&index),
    };
    let check = abi::check_of(indexed.filter(|&(index, _)| is_told(index)));
    outcome != outcome::NONE && words.last() == Some(&check)
}

impl Ticket {
    pub(crate) fn new(slot: Arc<Inner>, place: TicketPlace, before: Told, signed: bool) -> Self {
        Self { slot, place, before, failures: before.failures.into(), told: AtomicU64::new(0), signed }
    }

    /// The report, once the look-up has ended; `None` until then. Reads pinned memory and waits for nothing. For a
    /// captured look-up it is that of the latest launch of the graph that has ended ([`GpuReport::runs`] counts them),
    /// and `None` while one writes its report. A graph that ran again has overwritten what went wrong before:
    /// [`check`](Self::check) has not.
    ///
    /// # Errors
    /// [`GpuError::Busy`] if the slot was in use when the look-up began: it did nothing. [`GpuError::Flawed`] if the
    /// batch was wrong. [`GpuError::RowsFailed`] if rows could not be read. [`GpuError::MissingIds`] if ids are missing
    /// of a feature with [`MissingPolicy::Error`](warprow_lookup::MissingPolicy::Error).
    pub fn poll(&self) -> Option<Result<GpuReport, GpuError>> {
        self.words().map(|words| self.report(&words))
    }

    /// What went wrong with the launches of this ticket that have ended by now and that no call before was told of.
    /// Reads pinned memory and waits for nothing: a launch that has not ended is for a later call to judge. Each launch
    /// that failed is told of once.
    ///
    /// # Errors
    /// As of [`poll`](Self::poll), if the latest launch failed; [`GpuError::RunsFailed`] if it did not, but launches of
    /// the graph before it did, whose reports are overwritten.
    pub fn check(&self) -> Result<(), GpuError> {
        let Some(words) = self.words() else { return Ok(()) };
        let failures = words.get(FAILURES / 8).map_or(0, |&failures| failures as u32);
        match failures.wrapping_sub(self.failures.swap(failures, Ordering::Relaxed)) {
            0 => Ok(()),
            new => match self.report(&words) {
                Ok(report) => Err(GpuError::RunsFailed { failures: new, report: Box::new(report) }),
                Err(error) => Err(error),
            },
        }
    }

    /// The words of the latest launch that has ended. `None`: none has, or a graph runs again while this reads, or
    /// words are still on their way.
    fn words(&self) -> Option<Words> {
        let (memory, index) = match &self.place {
            TicketPlace::Own(index) => (self.slot.tickets.memory(), *index),
            TicketPlace::Captured(ticket) => (ticket.memory(), ticket.index),
        };
        if memory.load_u64(index * size_of::<abi::Ticket>()) <= self.before.launches {
            return None;
        }
        fence(Ordering::Acquire);
        let words = words_of(memory, index);
        is_whole(&words).then_some(words)
    }

    fn report(&self, words: &[u64]) -> Result<GpuReport, GpuError> {
        let word = |byte: usize| words.get(byte / 8).copied().unwrap_or(0);
        let state = word(OUTCOME) as u32;
        if state == outcome::BUSY {
            return Err(GpuError::Busy(
                "another launch of the slot was under way when this one began; its output is untouched",
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
            ids_cached,
            first_missing,
        ] = std::array::from_fn(|i| word(COUNTERS + i * 8));
        let [began, prepared, fetched, ended] = std::array::from_fn(|i| word(TIMES + i * 8));
        let span = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        let report = GpuReport {
            runs: word(0).saturating_sub(self.before.launches),
            ids,
            padding,
            missing,
            failed,
            ids_hbm,
            ids_dram,
            ids_cached,
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
                position: !(first_missing | abi::MISSING_IS_ERROR),
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
        match report.first_missing {
            Some(first) if first_missing & abi::MISSING_IS_ERROR != 0 => {
                Err(GpuError::MissingIds { missing, first, report: Box::new(report) })
            }
            _ => Ok(report),
        }
    }

    /// Whether a graph can launch the look-up: it was captured, and its graph, a copy of that, or what was instantiated of one of them is not
    /// destroyed yet. Who holds tickets of many graphs lets those go that have none any more.
    pub fn has_graph(&self) -> bool {
        // The ticket has one reference, and all graphs together have another.
        matches!(&self.place, TicketPlace::Captured(it) if Arc::strong_count(it) > 1)
    }

    /// Whether the launch was captured in a graph.
    pub fn is_captured(&self) -> bool {
        matches!(self.place, TicketPlace::Captured(_))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let TicketPlace::Own(index) = self.place {
            self.slot.forget_ticket(index, self.before.launches + 1);
        }
    }
}
