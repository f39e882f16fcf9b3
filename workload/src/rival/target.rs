use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use warprow_dma::{DmaMemory, MemoryKind, PAGE};
use warprow_layout::{Generation, Ranks};
use warprow_lookup::stage::RouteTable;

use super::buffers::check;
use super::error::RivalError;

/// Whether reads may be served from the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCaching {
    /// Pages may come from the page cache.
    Cached,
    /// Reads go to the disk (O_DIRECT).
    Direct,
}

/// A table, as a rival knows it.
#[derive(Clone, Debug)]
pub struct RivalTable {
    /// By drive; their byte 0 is the drive's LBA 0.
    pub(super) files: Vec<Arc<File>>,
    /// Offsets and lengths of reads are multiples of this.
    align: u64,
    pub(super) route: RouteTable,
    pub(super) rows: u64,
    pub(super) row_bytes: usize,
    pub(super) row_lbas: u32,
    pub(super) lba_shift: u32,
    pub(super) default_row: Arc<[u8]>,
    /// The hot rows by rank, one after another; empty until [`with_dram`](Self::with_dram).
    pub(super) dram: Arc<[u8]>,
}

/// Bytes of a drive's file to be read, and where in them what is wanted begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) drive: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) skip: usize,
}

impl RivalTable {
    /// Table number `table` of `generation`, on drives that keep their data in the files at `paths`, in the order of the store's
    /// members. `ranks` is the table's id → rank permutation, if it has one.
    pub fn new(
        generation: &Generation,
        table: usize,
        ranks: Option<Arc<Ranks>>,
        paths: &[impl AsRef<Path>],
        caching: PageCaching,
    ) -> Result<Self, RivalError> {
        let mut align = 1;
        let open = |(drive, path): (usize, &Path)| match caching {
            PageCaching::Cached => {
                let read = |source| RivalError::Read { drive, offset: 0, len: 0, source };
                File::open(path).map_err(read)
            }
            PageCaching::Direct => {
                let unavailable = |source| RivalError::Unavailable { what: "O_DIRECT", source };
                let file = warprow_uring::open_direct(path).map_err(unavailable)?;
                align = align.max(warprow_uring::alignment(&file).map_err(unavailable)?.offset as u64);
                Ok(file)
            }
        };
        let files = paths.iter().map(AsRef::as_ref).enumerate().map(open).collect::<Result<Vec<_>, RivalError>>()?;
        let (placement, Some(table)) = (generation.placement.clone(), generation.tables.get(table)) else {
            return Err(RivalError::Misplaced { rank: 0, drive: None, files: files.len() });
        };
        let row_bytes = table.row_bytes() as usize;
        Ok(Self {
            files: files.into_iter().map(Arc::new).collect(),
            align,
            rows: table.rows,
            row_bytes,
            row_lbas: table.packing.row_lbas(),
            lba_shift: placement.lba_size().trailing_zeros(),
            default_row: table.default_row.as_deref().map_or_else(|| vec![0; row_bytes].into(), Arc::from),
            dram: Arc::from([]),
            route: RouteTable {
                ranks,
                hot_rows: 0,
                chosen: None,
                dram_byte: 0,
                packing: table.packing,
                first_lba: table.rows_region.first_lba,
                placement,
            },
        })
    }

    /// With the `hot_rows` hottest rows in DRAM, read from the files now.
    pub fn with_dram(mut self, hot_rows: u64) -> Result<Self, RivalError> {
        let hot_rows = hot_rows.min(self.rows);
        let mut dram = vec![0; hot_rows as usize * self.row_bytes];
        let memory = DmaMemory::allocate(self.largest(self.row_lbas), MemoryKind::Anonymous)?;
        for (rank, row) in (0..).zip(dram.chunks_exact_mut(self.row_bytes)) {
            let extent = self.row(rank)?;
            self.read(&extent, &memory)?;
            memory.read(extent.skip, row);
        }
        self.dram = dram.into();
        self.route.hot_rows = hot_rows;
        Ok(self)
    }

    /// Reads every byte of the table once, so that the page cache holds what it can.
    pub fn warm(&self) -> Result<(), RivalError> {
        let memory = DmaMemory::allocate(self.largest(self.row_lbas), MemoryKind::Anonymous)?;
        (0..self.rows).try_for_each(|rank| self.read(&self.row(rank)?, &memory))
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Where the row of an id lies: the drive, and the bytes of its file. `None` if the table has no such row, or its drive has no
    /// file.
    pub fn bytes_of(&self, id: i64) -> Option<(usize, Range<u64>)> {
        let Extent { drive, offset, skip, .. } = self.row(self.rank(id)?).ok()?;
        let begin = offset + skip as u64;
        Some((drive, begin..begin + self.row_bytes as u64))
    }

    /// Whether what is read is just what is asked for.
    pub(super) fn is_exact(&self) -> bool {
        self.align == 1
    }

    /// The rank of an id; `None` if the table does not have it.
    #[inline]
    pub(super) fn rank(&self, id: i64) -> Option<u64> {
        let id = u64::try_from(id).ok().filter(|&id| id < self.rows)?;
        self.route.ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id))
    }

    /// Where the row of a rank lies.
    #[inline]
    pub(super) fn row(&self, rank: u64) -> Result<Extent, RivalError> {
        let misplaced = |drive| RivalError::Misplaced { rank, drive, files: self.files.len() };
        let (lba, byte) = self.route.packing.locate(rank);
        let (drive, lba) = self.route.placement.locate(self.route.first_lba + lba).ok_or_else(|| misplaced(None))?;
        let extent = self.around(drive.into(), (lba << self.lba_shift) + u64::from(byte), self.row_bytes);
        if extent.drive < self.files.len() { Ok(extent) } else { Err(misplaced(Some(extent.drive))) }
    }

    /// The smallest extent that can be read and holds these bytes.
    #[inline]
    pub(super) fn around(&self, drive: usize, offset: u64, len: usize) -> Extent {
        let begin = offset & !(self.align - 1);
        let end = (offset + len as u64).next_multiple_of(self.align);
        Extent { drive, offset: begin, len: (end - begin) as usize, skip: (offset - begin) as usize }
    }

    /// Bytes that an extent around `lbas` LBAs has at most.
    pub(super) fn largest(&self, lbas: u32) -> usize {
        (((lbas as usize) << self.lba_shift) + 2 * self.align as usize).next_multiple_of(PAGE)
    }

    /// Reads an extent to the beginning of `memory`.
    pub(super) fn read(&self, extent: &Extent, memory: &DmaMemory) -> Result<(), RivalError> {
        let Extent { drive, offset, len, .. } = *extent;
        let failed = |source| RivalError::Read { drive, offset, len, source };
        let file = self.files.get(drive).ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
        warprow_uring::read_at(file, offset, memory, 0, len).map_err(failed)
    }

    /// Refuses buffers that do not fit the ids.
    pub(super) fn check(&self, ids: &[i64], rows: &[u8], mask: &[u8], max_ids: usize) -> Result<(), RivalError> {
        check(ids, rows, mask, max_ids, self.row_bytes)
    }
}
