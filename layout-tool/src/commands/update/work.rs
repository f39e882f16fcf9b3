//! The updates: batches one after another, and compactions where there is no room.

use warprow_layout::{RowSource, VolumeError};
use warprow_store::{Store, StoreError, TableInfo, UpdateOptions};

use super::arguments::Compact;
use crate::commands::Context;
use crate::failure::Failure;
use crate::screen::Unit;
use crate::store_failure::of_compaction;

/// Bytes of rows in a batch, at most.
const BATCH_BYTES: usize = 64 << 20;

/// What updates are made with.
pub(super) struct Work<'a> {
    pub(super) store: &'a Store,
    pub(super) info: &'a TableInfo,
    pub(super) ids: &'a [u64],
    pub(super) options: UpdateOptions,
    /// The rows; `None`: the keys are removed.
    pub(super) source: Option<&'a dyn RowSource>,
    /// The file of the rows, for messages.
    pub(super) file: String,
    /// Rows, or keys, that are made durable at once, at most.
    pub(super) batch: u64,
    pub(super) context: &'a Context,
    pub(super) compact: Compact,
}

/// How far the updates are.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The row, or key, that comes next: those before are durable.
    pub(super) next: usize,
    pub(super) batches: u64,
    pub(super) compactions: u64,
    pub(super) sequence: Option<u64>,
    /// Keys that were there and were removed.
    pub(super) removed: u64,
}

impl Work<'_> {
    /// Updates row after row, or removes key after key, in batches.
    pub(super) fn run(&self, at: &mut Progress) -> Result<(), Failure> {
        let row_bytes = self.info.row_bytes as usize;
        let most = (self.batch as usize).min((BATCH_BYTES / row_bytes.max(1)).max(1));
        let doing = if self.source.is_some() { "updating" } else { "removing from" };
        let bar = self.context.screen.bar(format!("{doing} {}", self.info.name), self.ids.len() as u64, Unit::Things);
        let mut rows = Vec::new();
        while let Some(ids) = self.ids.get(at.next..).filter(|ids| !ids.is_empty()) {
            self.context.interrupt.check()?;
            let ids = ids.get(..most).unwrap_or(ids);
            if let Some(source) = self.source {
                rows.resize(ids.len() * row_bytes, 0);
                source
                    .read(at.next as u64, row_bytes, &mut rows)
                    .map_err(|error| Failure::input(&*self.file, error.to_string()).remedy("look at the file"))?;
            }
            self.update(ids, &rows, at)?;
            (at.next, at.batches) = (at.next + ids.len(), at.batches + 1);
            bar.set_position(at.next as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Compacts first where the log is long: all of it was read just now, and is by each command that follows.
    pub(super) fn shorten_log(&self, at: &mut Progress) -> Result<(), Failure> {
        if self.compact == Compact::Never || !self.store.is_log_long(self.info.generation)? {
            return Ok(());
        }
        // Where it does not come about, the updates may have room all the same, and say so if they have none.
        at.compactions += u64::from(self.store.compact(self.info.generation).is_ok());
        Ok(())
    }

    /// One batch; where memory or the log is full, what is in them is brought into the table first.
    fn update(&self, ids: &[u64], rows: &[u8], at: &mut Progress) -> Result<(), Failure> {
        match self.change(ids, rows, at) {
            // A compactor has waited for what it could do.
            Err(error) if self.compact == Compact::Full && is_full(&error) => {
                let full = Failure::from(error);
                self.store.compact(self.info.generation).map_err(|error| {
                    let failure = of_compaction(error);
                    let message =
                        format!("{}; a compaction, which would make room, failed: {}", full.message, failure.message);
                    Failure { message, ..failure }
                })?;
                at.compactions += 1;
                self.change(ids, rows, at).map_err(|error| match &error {
                    StoreError::OverlayFull { .. } if ids.len() > 1 => {
                        Failure::from(error).remedy("give a smaller --batch")
                    }
                    StoreError::Volume(VolumeError::NoLogSpace { needed: 2.., .. }) if ids.len() > 1 => {
                        Failure::from(error).remedy("give a smaller --batch, drop a generation, or add a drive")
                    }
                    _ => error.into(),
                })
            }
            other => Ok(other?),
        }
    }

    fn change(&self, ids: &[u64], rows: &[u8], at: &mut Progress) -> Result<(), StoreError> {
        let table = &self.info.name;
        match self.source {
            Some(_) => at.sequence = Some(self.store.update_with(table, ids, rows, &self.options)?),
            None => at.removed += self.store.remove_with(table, ids, &self.options)?,
        }
        Ok(())
    }
}

/// Whether a compaction would help.
fn is_full(error: &StoreError) -> bool {
    let is_log_full =
        |error: &VolumeError| matches!(error, VolumeError::LogFull { .. } | VolumeError::NoLogSpace { .. });
    match error {
        StoreError::Volume(error) => is_log_full(error),
        error => matches!(error, StoreError::OverlayFull { .. }),
    }
}
