//! The vectors of a column: several threads unpack and check its pages, up to a bound ahead of who asks for rows.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::page::Vectors;
use super::pages::{Piece, Pieces};
use super::source::{Source, guarded};
use crate::error::FileError;
use crate::ordered_workers::OrderedWorkers;
use crate::streams::RowStream;

/// Bytes of pages and of their values that are in memory at a time, if not one page alone has more.
const AHEAD: u64 = 64 << 20;

/// The rows of a column of vectors, from the first to the last.
pub(super) struct VectorColumn {
    source: Arc<Source>,
    pieces: Pieces,
    /// Behind the last piece, or where there is none that could be found: why is told behind the rows before.
    is_over: bool,
    failed: Option<FileError>,
    workers: OrderedWorkers<Piece, Result<Vec<Bytes>, FileError>>,
    /// Values that have come, and not been asked for.
    come: VecDeque<Bytes>,
    dim: u64,
    size: usize,
    /// Bytes that were asked for.
    taken: u64,
}

impl VectorColumn {
    /// Rows of `dim` elements of `size` bytes.
    pub(super) fn new(source: Source, column: usize, dim: u64, size: usize) -> Self {
        let source = Arc::new(source);
        let vectors = Vectors::of(&source, column, dim, size);
        let unpacker = source.clone();
        let unpack = move |piece: Piece| {
            guarded(&unpacker.path, || {
                let mut first = piece.first;
                let pages = piece.unpack(&unpacker, column)?.map(|page| {
                    let page = page?;
                    let at = first;
                    first += u64::from(page.num_values());
                    Ok(vectors.values(&unpacker.path, page, at, piece.dictionary.as_ref()))
                });
                pages.collect::<Result<Result<Vec<_>, _>, _>>()
            })?
        };
        Self {
            pieces: Pieces::new(source.clone(), column, (dim, size as u64)),
            source,
            is_over: false,
            failed: None,
            workers: OrderedWorkers::new(unpack),
            come: VecDeque::new(),
            dim,
            size,
            taken: 0,
        }
    }

    /// Gives the threads work, and takes what they did first.
    fn refill(&mut self) -> Result<(), FileError> {
        while !self.is_over && self.workers.wants(AHEAD) {
            match self.pieces.next() {
                Ok(Some(piece)) => {
                    let cost = piece.cost(self.size as u64);
                    self.workers.give(piece, cost);
                }
                Ok(None) => self.is_over = true,
                Err(error) => (self.is_over, self.failed) = (true, Some(error)),
            }
        }
        let Some(made) = self.workers.take() else {
            let rows = self.taken / (self.dim * self.size as u64);
            let ends = || FileError::damaged(&self.source.path, format!("it ends after {rows} rows"));
            return Err(self.failed.take().unwrap_or_else(ends));
        };
        self.come.extend(made?);
        Ok(())
    }
}

impl RowStream for VectorColumn {
    fn next(&mut self, mut rows: &mut [u8]) -> Result<(), FileError> {
        while !rows.is_empty() {
            let Some(values) = self.come.front_mut().filter(|values| !values.is_empty()) else {
                if self.come.pop_front().is_none() {
                    self.refill()?;
                }
                continue;
            };
            let (now, rest) = rows.split_at_mut(values.len().min(rows.len()));
            values.copy_to_slice(now);
            self.taken += now.len() as u64;
            rows = rest;
        }
        Ok(())
    }
}
