//! Rows from a file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind};
use warprow_layout::{Table, row_crc};
use warprow_store::{Store, StoreError};

use super::begin::{read_window, refuse_unknown};
use super::origin::StagedOrigin;
use super::rows_file::RowsFile;
use super::{PassProgress, PassWatch, WINDOW};
use crate::PassError;
use crate::finder::Finder;
use crate::journal::Journal;

/// Bytes of the file that are read at once where rows follow each other.
const AHEAD: usize = 256 << 10;
/// Rows between two reports.
const REPORT: u64 = 1 << 12;
/// Keys that an error names.
const SHOWN: usize = 10;

/// How rows are brought back.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CommitOptions {
    /// The journal of the table's passes.
    pub journal: Option<PathBuf>,
    /// The file as it was staged, if that of the rows does not have what it says of itself.
    pub staged: Option<PathBuf>,
    /// Take rows that were staged before others changed the same rows.
    pub allow_stale: bool,
    /// Take rows of another store or table, or that do not say whose they are.
    pub allow_foreign: bool,
}

/// A pass that was brought back from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommitReport {
    /// Rows that the file has: all of them are durable.
    pub rows: u64,
    /// Rows that were so before: by an earlier run whose end nobody saw, or because the trainer left them as they were.
    pub unchanged: u64,
    /// Chunks that were copied.
    pub chunks: usize,
    /// The number of the pass in the journal.
    pub pass: Option<u64>,
    /// Where the rows were staged from, as far as that is known.
    pub origin: Option<StagedOrigin>,
}

/// Gives rows of a table the content that the file `rows` has, which is as [`begin`](super::begin) writes it, with other rows: in one commit. When
/// it returns all of them are durable; after a kill before that all are, or none, and the same call can be made again.
///
/// The file may have fewer rows, or have them in another order, each with its key. Refused with nothing written: rows of another store or table, and
/// those that do not say whose they are ([`PassError::Foreign`]); rows of which one was changed by somebody else since it was staged
/// ([`PassError::Stale`]), which is found by its checksum; keys that the table does not have, or that come twice.
pub fn commit(
    store: &Store,
    table: &str,
    rows: &Path,
    options: &CommitOptions,
    watch: &mut PassWatch<'_>,
) -> Result<CommitReport, PassError> {
    let file = RowsFile::open(rows, table)?;
    if store.has_key_changes(table)? {
        return Err(PassError::Uncompacted { table: table.to_owned() });
    }
    let (generation, index) = store.generation(table)?;
    let no_table = || StoreError::NoSuchTable { table: table.to_owned(), known: Vec::new() };
    let id = generation.id;
    let info = generation.tables.get(index).cloned().ok_or_else(no_table)?;
    // It would pin its chunks.
    drop(generation);
    file.check(info.dim, info.dtype)?;
    let now = StagedOrigin::now(store, table, id, store.update_sequence(id)?);
    let staged = options.staged.as_deref().map(|path| RowsFile::open(path, table)).transpose()?;
    let source = staged.as_ref().unwrap_or(&file);
    let origin = source.origin()?;
    // Also where they are not asked for, since nothing was written meanwhile: a file that is damaged there may be so elsewhere.
    source.check_checksums()?;
    check_origin(source, origin.as_ref(), &now, options)?;

    let finder = Finder::of(store, &info)?;
    let keyset = file.keys()?;
    let found = finder.find_in_order(&keyset);
    refuse_unknown(table, &keyset, &found)?;
    if let Some(at) = found.duplicate {
        let key = keyset.keys().get(at).copied().unwrap_or_default();
        let what = format!("the key {} of row {at} came before: which of the two rows is meant?", keyset.show(key));
        return Err(FileError::new(FileErrorKind::Duplicate, rows, what, "write each key once").into());
    }
    drop(keyset);
    let ranks = found.ranks;
    let keys = found.keys;
    let journal =
        options.journal.as_deref().map(|path| Journal::of_table(path, table, now.store, &finder)).transpose()?;
    let journal = journal.map(|(journal, ..)| journal);

    let work = Work { store, info: &info, generation: id, file: &file, ranks: &ranks };
    let checksums = work.checksums(watch)?;
    let mut unchanged = 0;
    // Where nothing was written meanwhile, nothing can have changed.
    if origin.as_ref().is_none_or(|origin| !origin.is_moment(&now)) {
        let current = work.current(watch)?;
        unchanged = current.iter().zip(&checksums).filter(|(current, new)| current == new).count() as u64;
        if !options.allow_stale && !options.allow_foreign {
            let before = staged_checksums(&file, staged.as_ref(), &finder, &ranks)?;
            let stale = current.iter().zip(&checksums).zip(&before).enumerate();
            let stale = stale.filter(|(_, ((current, new), before))| current != new && Some(**current) != **before);
            let stale: Vec<usize> = stale.map(|(at, _)| at).collect();
            refuse_stale(&file, &now, origin.as_ref(), &stale, &|at| {
                let key = keys.get(at).copied().unwrap_or_default();
                finder.keyset(Vec::new()).show(key)
            })?;
        }
    }
    if ranks.is_empty() {
        return Ok(CommitReport { rows: 0, unchanged: 0, chunks: 0, pass: None, origin });
    }
    let (chunks, pass) = work.replace(&checksums, &keys, journal, watch)?;
    Ok(CommitReport { rows: ranks.len() as u64, unchanged, chunks, pass, origin })
}

/// Refuses rows of another store, table or generation.
fn check_origin(
    file: &RowsFile,
    origin: Option<&StagedOrigin>,
    now: &StagedOrigin,
    options: &CommitOptions,
) -> Result<(), PassError> {
    let foreign = |what: String, remedy| Err(PassError::Foreign { path: file.shown(), what, remedy });
    const BEGIN: &str = "begin a pass of this table, or allow foreign rows";
    match origin {
        _ if options.allow_foreign => Ok(()),
        None => foreign(
            format!("does not say which rows its own were staged from: it has no tensor \"{}.pass\"", now.table),
            "write all tensors that were staged, or name the staged file as well, or allow foreign rows",
        ),
        Some(origin) if origin.store != now.store => {
            foreign(format!("was staged from the store {}, this one is {}", origin.store, now.store), BEGIN)
        }
        Some(origin) if origin.table != now.table => {
            foreign(format!("was staged from table {:?}, this one is {:?}", origin.table, now.table), BEGIN)
        }
        Some(origin) if origin.generation != now.generation && !options.allow_stale => {
            let what = format!(
                "its rows are of generation {}, and table {:?} was written anew since, as generation {}",
                origin.generation, now.table, now.generation
            );
            Err(PassError::Stale { path: file.shown(), what })
        }
        Some(_) => Ok(()),
    }
}

/// Refuses rows of which some were changed by others.
fn refuse_stale(
    file: &RowsFile,
    now: &StagedOrigin,
    origin: Option<&StagedOrigin>,
    stale: &[usize],
    key: &dyn Fn(usize) -> String,
) -> Result<(), PassError> {
    if stale.is_empty() {
        return Ok(());
    }
    let first: Vec<String> = stale.iter().take(SHOWN).map(|&at| key(at)).collect();
    let (epoch, sequence) = origin.map_or((0, 0), |origin| (origin.epoch, origin.sequence));
    let what = format!(
        "others changed {} of its {} rows of table {:?} since they were staged, such as those of the keys {} (the store was at commit {epoch} and update \
         {sequence} then, it is at commit {} and update {} now)",
        stale.len(),
        file.len(),
        now.table,
        first.join(", "),
        now.epoch,
        now.sequence
    );
    Err(PassError::Stale { path: file.shown(), what })
}

/// The checksum that each row had when it was staged; `None`: it was not.
fn staged_checksums(
    file: &RowsFile,
    staged: Option<&RowsFile>,
    finder: &Finder,
    ranks: &[u32],
) -> Result<Vec<Option<u32>>, PassError> {
    if let Some(staged) = staged {
        let checksums = staged.checksums()?.ok_or_else(|| missing(staged))?;
        let found = finder.find_in_order(&staged.keys()?);
        let known: HashMap<u32, u32> = found.ranks.into_iter().zip(checksums).collect();
        return Ok(ranks.iter().map(|rank| known.get(rank).copied()).collect());
    }
    Ok(file.checksums()?.ok_or_else(|| missing(file))?.into_iter().map(Some).collect())
}

fn missing(file: &RowsFile) -> PassError {
    PassError::Foreign {
        path: file.shown(),
        what: "has no checksums of the rows that its own were staged from".to_owned(),
        remedy: "write all tensors that were staged, or name the staged file as well, or allow stale rows",
    }
}

/// The rows of a file, and the table that they are for.
struct Work<'a> {
    store: &'a Store,
    info: &'a Table,
    generation: u64,
    file: &'a RowsFile,
    /// The rank of each row of the file.
    ranks: &'a [u32],
}

impl Work<'_> {
    fn row_bytes(&self) -> usize {
        self.info.row_bytes() as usize
    }

    fn tell(&self, what: &'static str, done: u64, watch: &mut PassWatch<'_>) -> Result<(), PassError> {
        match watch(PassProgress { what, done, total: self.ranks.len() as u64 }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(PassError::Stopped),
        }
    }

    /// The checksum that each row of the file will have.
    fn checksums(&self, watch: &mut PassWatch<'_>) -> Result<Vec<u32>, PassError> {
        let row_bytes = self.row_bytes();
        let window = (AHEAD / row_bytes.max(1)).max(1);
        let mut checksums = Vec::with_capacity(self.ranks.len());
        let mut buffer = Vec::new();
        for ranks in self.ranks.chunks(window) {
            buffer.resize(ranks.len() * row_bytes, 0);
            self.file.read_rows(checksums.len() as u64, row_bytes, &mut buffer)?;
            checksums.extend(buffer.chunks_exact(row_bytes).zip(ranks).map(|(row, &rank)| row_crc(rank.into(), row)));
            self.tell("reading", checksums.len() as u64, watch)?;
        }
        Ok(checksums)
    }

    /// The checksum that the row of each has now.
    fn current(&self, watch: &mut PassWatch<'_>) -> Result<Vec<u32>, PassError> {
        if let Some(stored) = self.store.row_crcs(&self.info.name)? {
            return Ok(self.ranks.iter().map(|&rank| stored.get(rank as usize).copied().unwrap_or_default()).collect());
        }
        let row_bytes = self.row_bytes();
        let mut checksums = Vec::with_capacity(self.ranks.len());
        for ranks in self.ranks.chunks((WINDOW / row_bytes.max(1)).max(1)) {
            let slabs = read_window(self.store, self.generation, &self.info.name, ranks, row_bytes)?;
            let rows = slabs.iter().flat_map(|slab| slab.chunks_exact(row_bytes));
            checksums.extend(rows.zip(ranks).map(|(row, &rank)| row_crc(rank.into(), row)));
            self.tell("comparing", checksums.len() as u64, watch)?;
        }
        Ok(checksums)
    }

    /// Makes the rows durable, all or none; the keys are in the journal before. How many chunks were copied, and the number of the pass.
    fn replace(
        &self,
        checksums: &[u32],
        keys: &[u64],
        journal: Option<Journal>,
        watch: &mut PassWatch<'_>,
    ) -> Result<(usize, Option<u64>), PassError> {
        let row_bytes = self.row_bytes();
        let mut order: Vec<u32> = (0..self.ranks.len() as u32).collect();
        order.sort_unstable_by_key(|&at| self.ranks.get(at as usize));
        let rank = |&at: &u32| self.ranks.get(at as usize).map(|&rank| u64::from(rank));
        let ascending: Vec<u64> = order.iter().filter_map(rank).collect();
        let reader = RefCell::new(Reader { file: self.file, row_bytes, first: 0, buffer: Vec::new(), next: 0 });
        let failed = RefCell::new(None);
        let journal = RefCell::new(journal);
        let watch = RefCell::new(watch);
        let done = std::cell::Cell::new(0u64);
        let fill = |position: usize, out: &mut [u8]| {
            let Some(&at) = order.get(position) else { return };
            let mut failed = failed.borrow_mut();
            if failed.is_some() {
                return;
            }
            done.set(done.get().max(position as u64 + 1));
            let expected = checksums.get(at as usize).copied();
            match reader.borrow_mut().read(at.into(), self.ranks.len() as u64, out) {
                Err(error) => *failed = Some(error),
                // Asked twice, for the row and for its checksum: both must be of the same bytes.
                Ok(()) if ascending.get(position).map(|&rank| row_crc(rank, out)) != expected => {
                    *failed = Some(self.file.changed());
                }
                Ok(()) if done.get().is_multiple_of(REPORT) => {
                    *failed = self.tell("writing", done.get(), &mut **watch.borrow_mut()).err();
                }
                Ok(()) => {}
            }
        };
        let pass = std::cell::Cell::new(None);
        let check = |all: bool| {
            let stopped = |error| {
                failed.borrow_mut().get_or_insert(error);
                Err(StoreError::Interrupted)
            };
            if failed.borrow().is_some() {
                return Err(StoreError::Interrupted);
            }
            if let Err(error) = self.tell("writing", done.get(), &mut **watch.borrow_mut()) {
                return stopped(error);
            }
            if let Some(journal) = journal.borrow_mut().as_mut().filter(|_| all) {
                let number = journal.last() + 1;
                // Before the commit: a key that is there in vain does no harm.
                if let Err(error) =
                    journal.append(number, order.iter().filter_map(|&at| keys.get(at as usize).copied()))
                {
                    return stopped(error);
                }
                pass.set(Some(number));
            }
            Ok(())
        };
        let replaced = self.store.replace_rows_checked(self.generation, &self.info.name, &ascending, &fill, &check);
        match (failed.take(), replaced) {
            (None, Ok(chunks)) => Ok((chunks, pass.get())),
            (Some(error), Err(StoreError::Interrupted)) => Err(error),
            (_, Err(error)) => Err(error.into()),
            // It was told so before the commit.
            (Some(error), Ok(_)) => Err(error),
        }
    }
}

/// Reads rows of a file one by one; where they follow each other, many at once.
struct Reader<'a> {
    file: &'a RowsFile,
    row_bytes: usize,
    /// The rows that are in memory.
    first: u64,
    buffer: Vec<u8>,
    /// The row that would continue a run.
    next: u64,
}

impl Reader<'_> {
    fn read(&mut self, row: u64, rows: u64, out: &mut [u8]) -> Result<(), PassError> {
        let runs = row == self.next;
        self.next = row + 1;
        let held = |reader: &Self| {
            let begin = usize::try_from(row.checked_sub(reader.first)?).ok()?.checked_mul(reader.row_bytes)?;
            reader.buffer.get(begin..begin.checked_add(reader.row_bytes)?).map(|_| begin)
        };
        if held(self).is_none() && !runs {
            return self.file.read_rows(row, self.row_bytes, out);
        }
        if held(self).is_none() {
            let count = ((AHEAD / self.row_bytes.max(1)) as u64).clamp(1, rows.saturating_sub(row).max(1));
            self.buffer.resize(count as usize * self.row_bytes, 0);
            self.first = row;
            if let Err(error) = self.file.read_rows(row, self.row_bytes, &mut self.buffer) {
                self.buffer.clear();
                return Err(error);
            }
        }
        if let Some(found) = held(self).and_then(|begin| self.buffer.get(begin..begin + self.row_bytes)) {
            out.copy_from_slice(found);
        }
        Ok(())
    }
}
