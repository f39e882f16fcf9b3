//! What changed since a mark, as files.

use std::path::Path;

use warprow_formats::TableWriter;
use warprow_store::KeyKind;

use crate::bits::Bits;
use crate::{PassError, Passes};

/// Which elements of rows are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportedElements {
    /// The elements that are looked up, without the optimizer's state.
    Vector,
    /// All.
    Whole,
}

/// An incremental model that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IncrementalReport {
    /// Rows, and keys.
    pub rows: u64,
    /// Elements of each row.
    pub dim: u32,
}

/// Rows that are written at once.
const WINDOW: usize = 1 << 14;

impl Passes {
    /// Rows that were changed since the mark, or, without a journal, since the passes were opened.
    pub fn touched(&self) -> usize {
        self.touched.len()
    }

    /// Keys that the journal had when it was opened and the table does not: of passes whose commit did not come about. Nothing of these
    /// passes counts as touched.
    pub fn dropped_keys(&self) -> usize {
        self.dropped
    }

    /// Writes the rows that were changed since the mark to `rows`, `.safetensors` or `.npy`, and whose they are, in the same order, to
    /// `keys`, `.npy`; without that, into `rows` too, which is a `.safetensors` file then, as a tensor called as the table and `.keys`. Everything that was
    /// finished is made durable before. Each file appears when it is whole; first the keys. Existing files are refused, unless `force`.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_passes::*;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// # let dir = tempfile::tempdir()?;
    /// let mut passes = Passes::open(&store, "user", PassOptions::staged(64 << 10))?;
    /// let pass = passes.stage(&Keyset::new(vec![5, 6]))?;
    /// passes.finish(pass, &[1; 32])?;
    /// let written = passes.incremental(&dir.path().join("delta.safetensors"), None, ExportedElements::Vector, false)?;
    /// assert_eq!((written.rows, written.dim), (2, 4));
    /// passes.mark()?;                                          // the next one is of what changes from now on
    /// assert_eq!(passes.touched(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn incremental(
        &mut self,
        rows: &Path,
        keys: Option<&Path>,
        part: ExportedElements,
        force: bool,
    ) -> Result<IncrementalReport, PassError> {
        self.commit()?;
        self.export(&self.touched.clone(), rows, keys, part, force)
    }

    /// As [`incremental`](Self::incremental), the rows that passes behind number `pass` changed, by the journal: of passes that became
    /// durable together all, if any is behind.
    pub fn incremental_since(
        &mut self,
        pass: u64,
        rows: &Path,
        keys: Option<&Path>,
        part: ExportedElements,
        force: bool,
    ) -> Result<IncrementalReport, PassError> {
        self.commit()?;
        let refuse = |what| Err(PassError::Options { what });
        let Some(journal) = &self.journal else {
            return refuse("no journal was kept: what single passes touched is not known".into());
        };
        if pass < journal.mark() {
            return refuse(format!(
                "the mark forgot passes up to {}: what pass {} touched is not known",
                journal.mark(),
                pass + 1
            ));
        }
        if pass > self.finished {
            return refuse(format!("the last pass was number {}: there is no pass {pass}", self.finished));
        }
        let found = journal.since(pass)?;
        let ranks = self.finder.find(&self.finder.keyset(found), self.threads()).ranks;
        self.export(&ranks, rows, keys, part, force)
    }

    fn export(
        &mut self,
        touched: &Bits,
        rows: &Path,
        keys: Option<&Path>,
        part: ExportedElements,
        force: bool,
    ) -> Result<IncrementalReport, PassError> {
        self.await_prefetch();
        let table = &self.table;
        let dim = match part {
            ExportedElements::Vector => self.options.vector.unwrap_or(table.dim),
            ExportedElements::Whole => table.dim,
        };
        let bytes = table.dtype.row_bytes(dim).unwrap_or(table.row_bytes()) as usize;
        let count = touched.len() as u64;
        let signed = self.finder.kind() == Some(KeyKind::I64);
        let name = &table.name;
        let dtype = table.dtype;
        let key_file = keys.map(|keys| TableWriter::create_keys(keys, force, count, signed)).transpose()?;
        let row_file = match key_file {
            Some(_) => TableWriter::create(rows, force, name, count, dim, dtype)?,
            None => TableWriter::create_keyed(rows, force, name, count, dim, dtype, signed)?,
        };
        let ranks: Vec<u32> = touched.iter().collect();
        let mut buffer = Vec::new();
        for (first, ranks) in (0..).step_by(WINDOW).zip(ranks.chunks(WINDOW)) {
            let keys: Vec<u64> = ranks.iter().map(|&rank| self.finder.key(rank)).collect();
            match &key_file {
                Some(file) => file.write(first, &keys.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<_>>())?,
                None => row_file.write_keys(first, &keys)?,
            }
            let whole = self.rows_of(ranks)?;
            buffer.clear();
            whole.chunks_exact(self.row_bytes()).for_each(|row| buffer.extend(row.iter().take(bytes)));
            row_file.write(first, &buffer)?;
        }
        key_file.map_or(Ok(()), TableWriter::finish)?;
        row_file.finish()?;
        Ok(IncrementalReport { rows: count, dim })
    }

    /// From now on other rows are touched: what was exported is safe. Rows of passes that were finished and are not durable yet count
    /// as touched still.
    pub fn mark(&mut self) -> Result<(), PassError> {
        self.settle_failing();
        if let Some(journal) = &mut self.journal {
            journal.clear()?;
        }
        self.touched = Bits::of(self.finder.rows() as usize, self.dirty.iter());
        Ok(())
    }

    /// The rows of these ranks, as they are now: from memory where they are there; none is being read ahead. Those of keys that were created and are in no
    /// pass yet are what they begin with.
    pub(crate) fn rows_of(&self, ranks: &[u32]) -> Result<Vec<u8>, PassError> {
        let row_bytes = self.row_bytes();
        let mut rows = vec![0; ranks.len() * row_bytes];
        let mut absent = Vec::new();
        let mut places = Vec::new();
        for ((position, &rank), row) in ranks.iter().enumerate().zip(rows.chunks_exact_mut(row_bytes)) {
            match self.slot(rank) {
                Some(slot) => self.arena.get(slot, row),
                None if rank < self.finder.stored() => {
                    absent.push(u64::from(rank));
                    places.push(position);
                }
                None => self.begin_row(self.finder.key(rank), row),
            }
        }
        if absent.is_empty() {
            return Ok(rows);
        }
        let found = std::sync::Mutex::new(&mut rows);
        self.store.read_rows(self.generation, &self.table.name, &absent, &|position, row| {
            let mut rows = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(&place) = places.get(position)
                && let Some(to) = rows.get_mut(place * row_bytes..(place + 1) * row_bytes)
            {
                to.copy_from_slice(row);
            }
        })?;
        Ok(rows)
    }
}
