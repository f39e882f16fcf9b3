//! Tables that stay where they are: a drive that has a store's metadata in memory, and takes its rows from their source
//! whenever they are read.
//!
//! The metadata is made by formatting and committing to a drive in memory, so everything else (opening, look-ups, scans, kernels)
//! meets a store like any other. Where the layout puts a row says which row of the source is meant; so rows of any size at any
//! place in a file are read without being converted or moved, although a drive's blocks are of 512 bytes.

mod direct;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use warprow_dma::DmaMemory;
use warprow_layout::{
    Drive, DriveError, FormatOptions, Generation, GenerationSpec, MAX_NAME, Placement, RowPacking, RowSource,
    StoreAccess, Table, TableSpec, VolumeError,
};
use warprow_soft_controller::{Backing, BackingEngine, MediaError, Namespace, SoftController, UriError, will_need};

use crate::attached_files::{AttachedFiles, LookAtNames};
use crate::device::Device;
use crate::error::StoreError;
use direct::DirectEngine;

/// Bytes of an LBA of a drive of attached tables.
const LBA: u32 = 512;
/// Most bytes that one command moves, when the metadata is made.
const TRANSFER: usize = 128 << 10;

/// A table to attach, and where its rows come from, by id.
#[derive(Clone)]
pub struct AttachedTable {
    /// The table's name, shape and type.
    pub spec: TableSpec,
    /// The source of the rows. It is asked by several threads, in any order, whenever rows are looked up.
    pub source: Arc<dyn RowSource + Send + Sync>,
}

impl fmt::Debug for AttachedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedTable").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// How the files of attached tables are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachOptions {
    /// Past the page cache, by io_uring with O_DIRECT. Else through it: what is there is copied, and what is not is asked for
    /// together, so that a disk has as many reads under way as with io_uring.
    pub direct: bool,
    /// Reads under way in files, at most; from 1 to 1024.
    pub depth: u32,
    /// Threads that read, at most 64. The drive's queues are spread over them, and each has up to `depth` reads under way.
    pub workers: u32,
}

impl Default for AttachOptions {
    /// Through the page cache, up to 256 reads at once, by one thread.
    fn default() -> Self {
        Self { direct: false, depth: 256, workers: 1 }
    }
}

impl AttachOptions {
    /// Reads the files past the page cache if `direct` is set, else through it.
    #[must_use]
    pub fn with_direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// Reads by so many threads.
    #[must_use]
    pub fn with_workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    /// Keeps up to `depth` reads of a file under way.
    #[must_use]
    pub fn with_depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }
}

impl Device {
    /// A drive called `name` that holds a store of `tables`, which stay where they are. It can be read, and nothing else: open
    /// the store with [`OpenOptions::with_read_only`](crate::OpenOptions::with_read_only). Rows come in the order of their ids,
    /// without checksums.
    ///
    /// ```
    /// # use warprow_lookup::*;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// struct Zeros;
    /// impl RowSource for Zeros {
    ///     fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
    ///         for (id, row) in (first..).zip(rows.chunks_exact_mut(row_bytes)) {
    ///             row.fill(id as u8);
    ///         }
    ///         Ok(())
    ///     }
    /// }
    /// let table = AttachedTable { spec: TableSpec::new("t", 200, 160, DType::U8), source: std::sync::Arc::new(Zeros) };
    /// let device = Device::attached("made up", vec![table])?;
    /// let store = Store::open(&[device], &OpenOptions::default().with_read_only())?;
    /// store.scan("t", 199..200, &mut |_, row| {
    ///     assert_eq!(row, [199; 160]);
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attached(name: &str, tables: Vec<AttachedTable>) -> Result<Self, StoreError> {
        Self::attached_with(name, tables, &AttachOptions::default())
    }

    /// As [`attached`](Self::attached), with the tables' files read as `options` say. Those that are read past the page cache have to
    /// hold all rows as they are: [`RowSource::stretches`] tells where.
    pub fn attached_with(name: &str, tables: Vec<AttachedTable>, options: &AttachOptions) -> Result<Self, StoreError> {
        Self::attached_by(name, tables, options, None, None)
    }

    /// As [`attached_with`](Self::attached_with), for files whose names are looked at from time to time, and beside which, at `path`,
    /// lists of rows in DRAM are kept.
    pub(crate) fn attached_by(
        name: &str,
        tables: Vec<AttachedTable>,
        options: &AttachOptions,
        names: Option<LookAtNames>,
        path: Option<&Path>,
    ) -> Result<Self, StoreError> {
        let refused = |reason: String| StoreError::Address { address: name.to_owned(), reason };
        if !(1..=1024).contains(&options.depth) {
            return Err(refused(format!("a depth of {}: 1 to 1024 are possible", options.depth)));
        }
        if !(1..=64).contains(&options.workers) {
            return Err(refused(format!("{} workers: 1 to 64 are possible", options.workers)));
        }
        let specs: Vec<TableSpec> = tables.iter().map(|table| table.spec.clone()).collect();
        if let Some(spec) = specs.iter().find(|spec| spec.permuted || spec.row_crc) {
            let reason = "an attached table has neither ranks nor checksums".to_owned();
            return Err(VolumeError::InvalidTable { table: spec.name.clone(), reason }.into());
        }
        let (metadata, generation) = make(name, specs)?;
        for (table, attached) in generation.tables.iter().zip(&tables) {
            attached.source.check(table)?;
        }
        let sources = generation.tables.iter().zip(tables.iter().map(|table| &*table.source));
        let files = Arc::new(AttachedFiles::new(sources, options.direct, names, path).map_err(refused)?);
        let attached = Arc::new(Attached::new(metadata, &generation, tables));
        let backing = AttachedBacking { attached, files: files.clone(), options: *options };
        let namespace = Namespace::new(backing).lba(LBA);
        let controller = SoftController::builder().name(name).model("Warprow attached tables").namespace(namespace);
        let controller = controller.workers(options.workers as usize).build().map_err(UriError::from)?;
        Ok(Self::new(controller, 1).with_attached(files))
    }
}

/// Why a table cannot be attached, by its name and shape; `None`: it can, as far as these tell.
pub(crate) fn refusal(spec: &TableSpec) -> Option<String> {
    if !spec.is_named() {
        let bytes = spec.name.len();
        return Some(format!(
            "its name has {bytes} bytes, and 1 to {MAX_NAME} are possible: tensor=NAME=GLOB gives it another"
        ));
    }
    match spec.check_row(LBA, TRANSFER) {
        Ok(_) => drive_bytes(spec).is_none().then(|| TOO_LARGE.to_owned()),
        Err(VolumeError::InvalidTable { reason, .. }) => Some(reason),
        Err(other) => Some(other.to_string()),
    }
}

/// What is said of a table that would need a drive of more bytes than there are numbers for.
const TOO_LARGE: &str = "it passes what a drive can hold";

/// Bytes of a drive that has room for a table, at most: each stripe unit of 32 KiB holds rows, of which the last may leave as much
/// as itself unused; or it is as large as a row. `None`: past 2⁶⁴.
fn drive_bytes(spec: &TableSpec) -> Option<u64> {
    let row = spec.dtype.row_bytes(spec.dim).map_or(0, u64::from);
    let most = if row < u64::from(LBA) { u64::from(LBA) / row.max(1) } else { 1 };
    let lbas = spec.rows.div_ceil(most).checked_mul(row.div_ceil(LBA.into()).max(1))?;
    lbas.checked_mul(LBA.into())?.checked_mul(2)?.checked_add(2 * row + (64 << 10))
}

/// The metadata of a store of tables like these.
fn make(name: &str, specs: Vec<TableSpec>) -> Result<(Metadata, Arc<Generation>), StoreError> {
    let too_large = |table: &str| {
        StoreError::from(VolumeError::InvalidTable { table: table.to_owned(), reason: TOO_LARGE.to_owned() })
    };
    let mut bytes = 64u64 << 20;
    for spec in &specs {
        bytes = drive_bytes(spec).and_then(|number| bytes.checked_add(number)).ok_or_else(|| too_large(&spec.name))?;
    }
    let bytes = bytes.checked_next_multiple_of(64 << 20).ok_or_else(|| too_large(name))?;
    let mut made = make_on(name, bytes, None, specs.clone())?;
    // Nothing can be put beside them, so there is no free space to show. A drive that is smaller has a smaller catalogue too.
    for _ in 0..4 {
        let less = made.free_bytes();
        match less > 0 {
            true => {
                match make_on(name, made.metadata.lbas * u64::from(LBA) - less, Some(made.chunk_size), specs.clone()) {
                    Ok(smaller) => made = smaller,
                    Err(_) => break,
                }
            }
            false => break,
        }
    }
    Ok((made.metadata, made.generation))
}

/// Metadata that was made.
struct Made {
    metadata: Metadata,
    generation: Arc<Generation>,
    chunk_size: u64,
    chunks: u64,
}

impl Made {
    /// The bytes of chunks that no table has.
    fn free_bytes(&self) -> u64 {
        (self.chunks - self.generation.placement.map().len() as u64) * self.chunk_size
    }
}

/// The metadata of a store of these tables on a drive of so many bytes.
fn make_on(name: &str, bytes: u64, chunk_size: Option<u64>, specs: Vec<TableSpec>) -> Result<Made, StoreError> {
    let drive = Arc::new(Metadata { name: name.to_owned(), lbas: bytes / u64::from(LBA), written: Mutex::default() });
    warprow_layout::format(std::slice::from_ref(&drive), &FormatOptions { chunk_size, ..FormatOptions::default() })?;
    let volume = warprow_layout::open(vec![drive.clone()], StoreAccess::ReadWrite)?.volume;
    let transaction = volume.begin(&GenerationSpec::new("attached", specs))?;
    let generation = transaction.commit()?;
    let chunk_size = volume.geometry().chunk_size();
    let members = &volume.geometry().members;
    let chunks = members.iter().map(|member| u64::from(member.chunk_count)).sum();
    drop(volume);
    let metadata = Metadata {
        name: drive.name.clone(),
        lbas: drive.lbas,
        written: Mutex::new(std::mem::take(&mut *drive.written.lock().unwrap_or_else(PoisonError::into_inner))),
    };
    Ok(Made { metadata, generation, chunk_size, chunks })
}

type Block = [u8; LBA as usize];

/// A drive in memory of which only what was written takes any.
#[derive(Debug)]
struct Metadata {
    name: String,
    lbas: u64,
    written: Mutex<HashMap<u64, Block>>,
}

impl Drive for Metadata {
    fn name(&self) -> &str {
        &self.name
    }

    fn lba_size(&self) -> u32 {
        LBA
    }

    fn lba_count(&self) -> u64 {
        self.lbas
    }

    fn max_transfer(&self) -> usize {
        TRANSFER
    }

    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for (lba, buf) in (lba..).zip(buf.chunks_mut(LBA as usize)) {
            match written.get(&lba).and_then(|block| block.get(..buf.len())) {
                Some(block) => buf.copy_from_slice(block),
                None => buf.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.extend((lba..).zip(data.as_chunks().0.iter().copied()));
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

/// What the drive keeps its data in: metadata, and rows that are fetched.
struct Attached {
    lbas: u64,
    metadata: HashMap<u64, Block>,
    placement: Arc<Placement>,
    /// By chunk of the drive: which of the generation's it is; `None`: none.
    chunks: Vec<Option<u64>>,
    /// By where they begin in the generation's address space.
    tables: Vec<(Table, Arc<dyn RowSource + Send + Sync>)>,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("lbas", &self.lbas).field("tables", &self.tables.len()).finish_non_exhaustive()
    }
}

impl Attached {
    fn new(metadata: Metadata, generation: &Generation, tables: Vec<AttachedTable>) -> Self {
        let placement = generation.placement.clone();
        let shift = placement.chunk_lba_shift();
        let mut chunks = Vec::new();
        for (number, (_, first, _)) in (0..).zip(placement.chunk_lbas()) {
            let chunk = ((first - placement.base_lba()) >> shift) as usize;
            if chunks.len() <= chunk {
                chunks.resize(chunk + 1, None);
            }
            chunks[chunk] = Some(number);
        }
        let mut tables: Vec<_> =
            generation.tables.iter().cloned().zip(tables.into_iter().map(|table| table.source)).collect();
        tables.sort_by_key(|(table, _)| table.rows_region.first_lba);
        Self {
            lbas: metadata.lbas,
            metadata: metadata.written.into_inner().unwrap_or_else(PoisonError::into_inner),
            chunks,
            placement,
            tables,
        }
    }

    /// Where LBA `lba` of the drive is in the generation's address space, and how many there follow without a break.
    fn address(&self, lba: u64) -> Option<(u64, u64)> {
        let offset = lba.checked_sub(self.placement.base_lba())?;
        let shift = self.placement.chunk_lba_shift();
        let chunk = (*self.chunks.get((offset >> shift) as usize)?)?;
        let within = offset & ((1 << shift) - 1);
        let stripe = self.placement.stripe_lbas();
        let unit = (within / stripe) * self.placement.chunks().divisor() + chunk;
        Some((unit * stripe + within % stripe, stripe - within % stripe))
    }

    /// Fills `out`, whole LBAs, with what lies from LBA `lba` on. Bytes of no row are zeros. `read` fills a buffer with rows, which
    /// it is asked for in the order of [`each`](Self::each), and which is `scratch`.
    fn fill(
        &self,
        lba: u64,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
        mut read: impl FnMut(&Rows<'_>, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        out.fill(0);
        let lbas = (out.len() / LBA as usize) as u64;
        self.each(lba, lbas, |at, run| {
            let out = out.get_mut(at as usize * LBA as usize..).unwrap_or_default();
            match run {
                Stretch::Rows(rows) => rows.fill(out, scratch, &mut read),
                Stretch::Metadata(block) => {
                    out.iter_mut().zip(block).for_each(|(out, &byte)| *out = byte);
                    Ok(())
                }
            }
        })
    }

    /// Calls `each` with what lies in `lbas` LBAs from `lba` on, and after how many of them.
    fn each<'a>(
        &'a self,
        lba: u64,
        lbas: u64,
        mut each: impl FnMut(u64, Stretch<'a>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut at = 0;
        while at < lbas {
            let address = self.address(lba + at);
            let now = address.map_or(1, |(_, run)| run.min(lbas - at));
            match address {
                Some((first, _)) => {
                    if let Some(rows) = self.rows(first, now) {
                        each(at, Stretch::Rows(rows))?;
                    }
                }
                None => {
                    if let Some(block) = self.metadata.get(&(lba + at)) {
                        each(at, Stretch::Metadata(block))?;
                    }
                }
            }
            at += now;
        }
        Ok(())
    }

    /// The rows within a part of a stripe unit, by address. Metadata never stands in chunks.
    fn rows(&self, first: u64, lbas: u64) -> Option<Rows<'_>> {
        let after = self.tables.partition_point(|(table, _)| table.rows_region.first_lba <= first);
        let (table, source) = self.tables.get(after.checked_sub(1)?)?;
        let lba = first - table.rows_region.first_lba;
        if lba >= table.rows_region.lbas {
            return None;
        }
        let (rank, end) = ranks(&table.packing, lba, lbas);
        let count = end.min(table.rows).saturating_sub(rank);
        Some(Rows { table, source: &**source, lba, lbas, rank, count })
    }
}

/// Memory that is used again from one command to the next.
#[derive(Debug, Default)]
struct Scratch {
    /// LBAs.
    out: Vec<u8>,
    /// Rows, one behind the other.
    rows: Vec<u8>,
}

/// What lies in LBAs one after another.
enum Stretch<'a> {
    Rows(Rows<'a>),
    Metadata(&'a Block),
}

/// Rows that have bytes in some LBAs of a stripe unit.
struct Rows<'a> {
    table: &'a Table,
    source: &'a (dyn RowSource + Send + Sync),
    /// First LBA of these, counted from the start of the table's region.
    lba: u64,
    lbas: u64,
    rank: u64,
    count: u64,
}

impl Rows<'_> {
    fn row_bytes(&self) -> usize {
        self.table.row_bytes() as usize
    }

    /// Reads them as their source does.
    fn read(&self, rows: &mut [u8]) -> io::Result<()> {
        self.source.read(self.rank, self.row_bytes(), rows)
    }

    /// Makes `rows` of what their stretches hold, which `fill` reads.
    fn put_together(&self, rows: &mut [u8], fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
        match self.source.stored_bytes() {
            None => fill(rows),
            Some(bytes) => {
                let mut stored = vec![0; self.count as usize * bytes];
                fill(&mut stored)?;
                self.source.assemble(self.rank, self.row_bytes(), &stored, rows)
            }
        }
    }

    /// Where the rows stand in files.
    fn stretches(&self, each: &mut dyn FnMut(&std::fs::File, u64, u64)) {
        if self.count > 0 {
            self.source.stretches(self.rank, self.count, self.row_bytes(), each);
        }
    }

    /// Has them read, and puts them where they belong in `out`, which begins with their first LBA and may go on behind the last.
    fn fill(
        &self,
        out: &mut [u8],
        rows: &mut Vec<u8>,
        read: &mut impl FnMut(&Self, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let out = out.get_mut(..(self.lbas * u64::from(LBA)) as usize).unwrap_or_default();
        let row_bytes = self.row_bytes();
        rows.resize(self.count as usize * row_bytes, 0);
        read(self, rows)?;
        let begin = self.lba * u64::from(LBA);
        for (rank, row) in (self.rank..).zip(rows.chunks_exact(row_bytes)) {
            let (row_lba, byte) = self.table.packing.locate(rank);
            let at = row_lba * u64::from(LBA) + u64::from(byte);
            // The first and the last may reach out of what was asked for.
            let skip = begin.saturating_sub(at) as usize;
            let to = at.saturating_sub(begin) as usize;
            let row = row.get(skip..).unwrap_or_default();
            let len = row.len().min(out.len().saturating_sub(to));
            if let (Some(out), Some(row)) = (out.get_mut(to..to + len), row.get(..len)) {
                out.copy_from_slice(row);
            }
        }
        Ok(())
    }
}

/// The first rank that has bytes in `lbas` LBAs from `lba` of a region on, within a stripe unit, and the one past the last.
pub(crate) fn ranks(packing: &RowPacking, lba: u64, lbas: u64) -> (u64, u64) {
    let group_lbas = u64::from(packing.group_lbas()).max(1);
    let group_rows = packing.group_rows().divisor();
    match u64::from(packing.step_lbas()) {
        0 => (lba / group_lbas * group_rows, (lba + lbas).div_ceil(group_lbas) * group_rows),
        step => {
            let group = lba / group_lbas;
            let within = lba % group_lbas;
            let first = (within / step).min(group_rows);
            (group * group_rows + first, group * group_rows + (within + lbas).div_ceil(step).min(group_rows))
        }
    }
}

/// The drive's data: read through the page cache, or past it.
#[derive(Debug)]
struct AttachedBacking {
    attached: Arc<Attached>,
    files: Arc<AttachedFiles>,
    options: AttachOptions,
}

impl Backing for AttachedBacking {
    fn size(&self) -> u64 {
        self.attached.lbas * u64::from(LBA)
    }

    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        let lba = offset / u64::from(LBA);
        let skip = (offset % u64::from(LBA)) as usize;
        let mut blocks = vec![0; (skip + len).next_multiple_of(LBA as usize)];
        self.files.check_all().map_err(MediaError::Read)?;
        self.attached
            .fill(lba, &mut blocks, &mut Vec::new(), |rows: &Rows<'_>, out: &mut [u8]| {
                let read = rows.read(out);
                // What was read is only good if the files are what they were; and a file that is not says more than the read does.
                let mut checked = Ok(());
                rows.stretches(&mut |file, _, _| {
                    if checked.is_ok() {
                        checked = self.files.check(file.as_raw_fd(), file);
                    }
                });
                checked.and(read)
            })
            .map_err(MediaError::Read)?;
        to.write(at, blocks.get(skip..skip + len).unwrap_or_default());
        Ok(())
    }

    fn will_need(&self, offset: u64, len: usize) {
        let lba = offset / u64::from(LBA);
        let lbas = (len as u64).div_ceil(LBA.into());
        let _ = self.attached.each(lba, lbas, |_, stretch| {
            if let Stretch::Rows(rows) = stretch {
                rows.stretches(&mut will_need);
            }
            Ok(())
        });
    }

    fn depth(&self) -> u32 {
        // What is read past the page cache has a depth of its own.
        if !self.options.direct && self.options.depth > 1 { self.options.depth } else { 0 }
    }

    fn engine(&self) -> io::Result<Option<Box<dyn BackingEngine>>> {
        let engine = || DirectEngine::new(&self.files, &self.attached, self.options.depth);
        self.options.direct.then(|| engine().map(|engine| Box::new(engine) as _)).transpose()
    }

    fn write(&self, _: u64, _: &DmaMemory, _: usize, _: usize) -> Result<(), MediaError> {
        Err(MediaError::ReadOnly)
    }

    fn zero(&self, _: u64, _: u64, _: bool) -> Result<(), MediaError> {
        Err(MediaError::ReadOnly)
    }

    fn flush(&self) -> Result<(), MediaError> {
        Ok(())
    }
}
