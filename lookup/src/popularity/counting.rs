//! The thread that counts, and where look-ups leave what it counts.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use warprow_store::view::lock;

use super::counters::{SampledId, TableCounts};

/// Gives ids that are to be counted, and returns how many were lost.
pub type IdFeed = dyn FnMut(&mut dyn FnMut(SampledId)) -> u64 + Send;

/// Where look-ups leave ids to be counted.
pub(super) struct Mailbox {
    pub ids: Mutex<Vec<SampledId>>,
    /// Ids that are being counted, the memory of which changes places with that of `ids`; and where others come from.
    counted: Mutex<(Vec<SampledId>, Box<IdFeed>)>,
    /// Ids that found no room.
    pub lost: AtomicU64,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl Mailbox {
    pub(super) fn new(feed: Box<IdFeed>) -> Self {
        let empty = || Vec::with_capacity(Self::ROOM);
        Self { ids: Mutex::new(empty()), counted: Mutex::new((empty(), feed)), lost: AtomicU64::new(0) }
    }

    /// Ids that fit.
    pub(super) const ROOM: usize = 1 << 15;

    /// Counts what is there; returns how many ids that were.
    pub(super) fn count(&self, tables: &[Mutex<TableCounts>]) -> usize {
        let mut counted = lock(&self.counted);
        let (counted, feed) = &mut *counted;
        // Look-ups find the mailbox locked for no longer than this.
        std::mem::swap(&mut *lock(&self.ids), counted);
        let lost = feed(&mut |id| counted.push(id));
        self.lost.fetch_add(lost, Ordering::Relaxed);
        for part in counted.chunk_by(|a, b| a.0 == b.0) {
            let table = part.first().and_then(|&(table, _)| tables.get(usize::from(table)));
            if let Some(table) = table {
                let mut table = lock(table);
                part.iter().for_each(|&(_, id)| table.add(id));
            }
        }
        let count = counted.len();
        counted.clear();
        count
    }
}

/// Between two looks into the mailbox: while ids come, and else.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_millis(100);

/// A thread that empties a mailbox until it is dropped.
#[derive(Debug)]
pub(super) struct CountingThread {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl CountingThread {
    pub(super) fn start(mailbox: Arc<Mailbox>, tables: Arc<[Mutex<TableCounts>]>) -> io::Result<Self> {
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let stopped = stop.clone();
        let work = move || {
            let (is_over, changed) = &*stopped;
            let mut over = lock(is_over);
            let mut pause = SOON;
            while !*over {
                let waited = changed.wait_timeout(over, pause);
                over = waited.unwrap_or_else(PoisonError::into_inner).0;
                pause = if mailbox.count(&tables) > 0 { SOON } else { LATER };
            }
        };
        let thread = std::thread::Builder::new().name("warprow-count".to_owned()).spawn(work)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for CountingThread {
    fn drop(&mut self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // What it panicked with was told where it did.
            let _ = thread.join();
        }
    }
}
