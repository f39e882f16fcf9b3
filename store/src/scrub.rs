//! Reading a whole store through, slowly, beside everything else, to find what has gone bad before somebody needs it.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use warprow_layout::Generation;

use crate::pace::Pace;
use crate::parallel_read::ParallelRead;
use crate::table_check::TableCheck;
use crate::table_version::TableVersion;
use crate::verified::DamagedUnit;
use crate::{Store, StoreError};

/// How a store is scrubbed.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ScrubOptions {
    /// How fast; `None`: as fast as can be.
    pub pace: Option<Pace>,
    /// Where to go on; `None`: from the beginning.
    pub from: Option<ScrubPosition>,
    /// Threads; `None`: as many as there are processors, but no more than the drives' queues allow.
    pub threads: Option<usize>,
}

impl ScrubOptions {
    /// Reads no faster than `pace`.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// Goes on from where an earlier scrub stopped.
    #[must_use]
    pub fn with_from(self, from: ScrubPosition) -> Self {
        Self { from: Some(from), ..self }
    }

    /// Checks rows on so many threads.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }
}

/// How far a scrub is: everything before was read. It means the same after any change of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct ScrubPosition {
    /// The generation.
    pub generation: u64,
    /// The index of the table in it.
    pub table: u32,
    /// The rank of the next row; 0: the table's permutation and keys come first.
    pub rank: u64,
}

/// How a scrub is getting on.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ScrubProgress<'a> {
    /// Where to go on if it were stopped now.
    pub position: ScrubPosition,
    /// Bytes of rows that are behind it, those before [`ScrubOptions::from`] included, and of all.
    pub bytes: u64,
    /// See [`bytes`](Self::bytes).
    pub total: u64,
    /// What was found since the last call.
    pub found: &'a [DamagedUnit],
    /// What this run has read up to [`position`](Self::position): rows, and their bytes.
    pub rows: u64,
    /// See [`rows`](Self::rows).
    pub read: u64,
    /// As [`ScrubReport::checked_rows`].
    pub checked_rows: u64,
    /// As [`ScrubReport::transient`].
    pub transient: u64,
}

/// The result of [`Store::scrub`].
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Where to go on; `None`: it is through.
    pub next: Option<ScrubPosition>,
    /// Rows that were read.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Rows among them that have checksums. Of the others it is known only that the drives can read them.
    pub checked_rows: u64,
    /// Rows that were read wrong once, and right when they were read again.
    pub transient: u64,
    /// What is bad, metadata first: at most 10,000 places.
    pub bad: Vec<DamagedUnit>,
    /// Copies of metadata that a commit which was cut off left as they were: [`MetadataReport::unfinished`](crate::MetadataReport).
    pub unfinished: Vec<DamagedUnit>,
    /// Bad places beyond those.
    pub unlisted: u64,
}

/// Bad places that are listed, at most.
const PLACES: usize = 10_000;

/// Bytes of rows between two positions, without a pace.
const STEP: u64 = 4 << 30;

impl Store {
    /// Reads everything that any generation has, those on standby included, every copy of the metadata, and the logs, and compares
    /// it with its checksums. Look-ups, updates, loads, switches and compaction go on meanwhile, and are never taken for damage:
    /// what is read is pinned, what does not match is read again. New generations are read as well.
    ///
    /// `progress` is told after every step, and often in between, and may stop it: then [`next`](ScrubReport::next) says where to go
    /// on. Metadata and logs are read in every run.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let scrubbed = store.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// assert!(scrubbed.bad.is_empty() && scrubbed.next.is_none(), "all of it was read, and is whole");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scrub(
        &self,
        options: &ScrubOptions,
        progress: &mut dyn FnMut(ScrubProgress<'_>) -> ControlFlow<()>,
    ) -> Result<ScrubReport, StoreError> {
        let mut scrub = Scrub { store: self, done: ScrubReport::default(), told: 0, before: 0, total: 0, progress };
        let metadata = self.verify_metadata()?;
        (scrub.done.bad, scrub.done.unfinished) = (metadata.bad, metadata.unfinished);
        let mut at = options.from.unwrap_or_default();
        // A generation is held only while it is read.
        while let Some(generation) = self.next_generation(at.generation) {
            if generation.id != at.generation {
                at = ScrubPosition { generation: generation.id, ..ScrubPosition::default() };
            }
            let stripe = generation.placement.stripe_bytes() as usize;
            let shared = &self.shared;
            let mut sweep = ParallelRead::new(&shared.members, stripe, options.threads, options.pace, &shared.driving)?;
            for index in at.table as usize..generation.tables.len() {
                if index as u32 != at.table {
                    (at.table, at.rank) = (index as u32, 0);
                }
                let located = TableVersion { generation: generation.clone(), index };
                if scrub.table(&located, &mut sweep, options.pace, &mut at)?.is_break() {
                    scrub.done.next = Some(at);
                    return Ok(scrub.done);
                }
            }
            at = ScrubPosition { generation: generation.id + 1, ..ScrubPosition::default() };
        }
        // For what was found last.
        let _through = scrub.tell(at, 0);
        Ok(scrub.done)
    }

    fn next_generation(&self, id: u64) -> Option<Arc<Generation>> {
        self.shared.volume.generations().into_iter().find(|generation| generation.id >= id)
    }
}

struct Scrub<'a> {
    store: &'a Store,
    done: ScrubReport,
    /// How many of the bad places `progress` was told of.
    told: usize,
    /// Bytes before this step, and of all.
    before: u64,
    total: u64,
    progress: &'a mut dyn FnMut(ScrubProgress<'_>) -> ControlFlow<()>,
}

impl Scrub<'_> {
    fn table(
        &mut self,
        located: &TableVersion,
        sweep: &mut ParallelRead,
        pace: Option<Pace>,
        at: &mut ScrubPosition,
    ) -> Result<ControlFlow<()>, StoreError> {
        let checking = TableCheck::new(&self.store.shared, located);
        let table = located.table();
        let row_bytes = u64::from(table.row_bytes());
        self.measure(*at);
        if at.rank == 0 {
            let position = *at;
            match checking.arrays(sweep, &mut || self.tell(position, 0)) {
                Ok((verified, ..)) => self.done.bad.extend(verified.bad),
                Err(StoreError::Interrupted) => return Ok(ControlFlow::Break(())),
                Err(error) => return Err(error),
            }
        }
        let step = match pace {
            Some(Pace::BytesPerSecond(rate)) => rate.saturating_mul(5).clamp(16 << 20, STEP),
            Some(Pace::Share(_)) => STEP / 8,
            None => STEP,
        };
        while at.rank < table.rows {
            let window = at.rank..table.rows.min(at.rank.saturating_add(checking.window(step)));
            let position = *at;
            let end = window.end;
            match checking.rows(sweep, window, &mut |rows| self.tell(position, rows * row_bytes)) {
                Ok(part) => {
                    self.done.rows += part.rows;
                    self.done.bytes += part.bytes;
                    self.done.checked_rows += if table.crc_region.is_some() { part.rows } else { 0 };
                    self.done.transient += part.transient;
                    let room = PLACES.saturating_sub(self.done.bad.len());
                    self.done.unlisted += part.bad.len().saturating_sub(room) as u64;
                    self.done.bad.extend(part.bad.into_iter().take(room));
                }
                Err(StoreError::Interrupted) => return Ok(ControlFlow::Break(())),
                Err(error) => return Err(error),
            }
            at.rank = end;
            self.measure(*at);
            if self.tell(*at, 0).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// How many bytes there are, and how many lie before `at`.
    fn measure(&mut self, at: ScrubPosition) {
        (self.before, self.total) = (0, 0);
        for generation in self.store.shared.volume.generations() {
            for (index, table) in (0u32..).zip(&generation.tables) {
                let row_bytes = u64::from(table.row_bytes());
                let behind = match (generation.id, index).cmp(&(at.generation, at.table)) {
                    std::cmp::Ordering::Less => table.rows,
                    std::cmp::Ordering::Equal => at.rank.min(table.rows),
                    std::cmp::Ordering::Greater => 0,
                };
                self.before = self.before.saturating_add(behind.saturating_mul(row_bytes));
                self.total = self.total.saturating_add(table.rows.saturating_mul(row_bytes));
            }
        }
    }

    fn tell(&mut self, position: ScrubPosition, more: u64) -> ControlFlow<()> {
        let found = self.done.bad.get(self.told..).unwrap_or_default();
        let bytes = self.before.saturating_add(more).min(self.total);
        let ScrubReport { rows, bytes: read, checked_rows, transient, .. } = self.done;
        let total = self.total;
        let flow =
            (self.progress)(ScrubProgress { position, bytes, total, found, rows, read, checked_rows, transient });
        self.told = self.done.bad.len();
        flow
    }
}
