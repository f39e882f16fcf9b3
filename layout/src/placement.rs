//! Where LBA `b` of a generation's address space lies, with a chunk map of `K` entries and stripe units of `s` LBAs: `u
//! = b / s`; chunk = `map[u mod K]`; LBA in the chunk = `(u / K)·s + b mod s`.

use crate::divide::Divider;

/// One entry of the chunk map: the member's index in the upper 8 bits, the number of the chunk on that member in the
/// lower 24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkRef(pub u32);

impl ChunkRef {
    /// Chunks that a drive may have.
    pub const MAX_CHUNKS: u32 = 1 << 24;

    /// Chunk `chunk` (below 2²⁴) of member `drive` (below 256).
    pub const fn new(drive: u8, chunk: u32) -> Self {
        Self((drive as u32) << 24 | (chunk & 0xFF_FFFF))
    }

    /// The member's index.
    #[inline(always)]
    pub const fn drive(self) -> u16 {
        (self.0 >> 24) as u16
    }

    /// The chunk's index on that member.
    #[inline(always)]
    pub const fn chunk(self) -> u32 {
        self.0 & 0xFF_FFFF
    }
}

/// The chunk map of one generation, with what a look-up needs precomputed: shifts, a mask and a reciprocal.
///
/// Every drive of a store has its chunk 0 at the same LBA, so one base serves all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    map: Box<[ChunkRef]>,
    chunks: Divider,
    /// log₂ of the LBAs in a stripe unit.
    stripe_shift: u32,
    /// log₂ of the LBAs in a chunk.
    chunk_shift: u32,
    lba_shift: u32,
    /// LBA at which chunk 0 begins on every drive.
    base_lba: u64,
}

impl Placement {
    /// A placement over `map`. (An empty map yields a placement of no LBAs.) Shifts are log₂ of bytes an LBA, of LBAs a
    /// stripe unit and of LBAs a chunk.
    pub(crate) fn new(
        map: Vec<ChunkRef>,
        lba_shift: u32,
        stripe_lba_shift: u32,
        chunk_lba_shift: u32,
        base: u64,
    ) -> Self {
        Self {
            chunks: Divider::new(map.len() as u64),
            map: map.into(),
            stripe_shift: stripe_lba_shift,
            chunk_shift: chunk_lba_shift,
            lba_shift,
            base_lba: base,
        }
    }

    /// The drive (member index) and LBA of the generation's LBA `index`; `None` past its end.
    #[inline]
    pub fn locate(&self, index: u64) -> Option<(u16, u64)> {
        let (row, column) = self.chunks.div_rem(index >> self.stripe_shift);
        if row >> (self.chunk_shift - self.stripe_shift) != 0 {
            return None;
        }
        let chunk = self.map.get(column as usize)?;
        let within = row << self.stripe_shift | index & self.stripe_mask();
        Some((chunk.drive(), self.base_lba + (u64::from(chunk.chunk()) << self.chunk_shift) + within))
    }

    /// Where LBA `index` of the generation lies: the entry of the chunk map, counted from 0 (called the *column*
    /// elsewhere in this crate), and the byte in that chunk; `None` past the end.
    pub(crate) fn column(&self, index: u64) -> Option<(usize, usize)> {
        let (row, column) = self.chunks.div_rem(index >> self.stripe_shift);
        let within = row << self.stripe_shift | index & self.stripe_mask();
        (within >> self.chunk_shift == 0).then_some((column as usize, (within << self.lba_shift) as usize))
    }

    /// The LBA of the generation at which stripe unit number `row` of the chunk in entry `column` of the chunk map begins: what
    /// [`column`](Self::column) takes apart.
    pub(crate) fn unit_lba(&self, column: usize, row: u64) -> u64 {
        (row * self.chunks.divisor() + column as u64) << self.stripe_shift
    }

    /// The first LBA of a chunk on its drive.
    pub(crate) fn chunk_lba(&self, chunk: ChunkRef) -> u64 {
        self.base_lba + (u64::from(chunk.chunk()) << self.chunk_shift)
    }

    /// The LBAs of each chunk, in no particular order: member, first LBA, how many.
    pub fn chunk_lbas(&self) -> impl Iterator<Item = (u16, u64, u64)> + '_ {
        let first = |chunk: &ChunkRef| self.base_lba + (u64::from(chunk.chunk()) << self.chunk_shift);
        self.map.iter().map(move |chunk| (chunk.drive(), first(chunk), 1 << self.chunk_shift))
    }

    /// The chunk map: K entries.
    pub fn map(&self) -> &[ChunkRef] {
        &self.map
    }

    /// K, the number of entries of the chunk map, with its reciprocal.
    pub fn chunks(&self) -> Divider {
        self.chunks
    }

    /// LBAs in the generation's address space: K chunks.
    pub fn lbas(&self) -> u64 {
        (self.map.len() as u64) << self.chunk_shift
    }

    /// Bytes of an LBA.
    pub fn lba_size(&self) -> u32 {
        1 << self.lba_shift
    }

    /// log₂ of the LBAs in a stripe unit.
    pub fn stripe_lba_shift(&self) -> u32 {
        self.stripe_shift
    }

    /// LBAs in a stripe unit.
    pub fn stripe_lbas(&self) -> u64 {
        1 << self.stripe_shift
    }

    /// Bytes in a stripe unit.
    pub fn stripe_bytes(&self) -> u64 {
        1 << (self.stripe_shift + self.lba_shift)
    }

    /// log₂ of the LBAs in a chunk.
    pub fn chunk_lba_shift(&self) -> u32 {
        self.chunk_shift
    }

    /// LBA at which chunk 0 begins on every drive.
    pub fn base_lba(&self) -> u64 {
        self.base_lba
    }

    #[inline(always)]
    fn stripe_mask(&self) -> u64 {
        (1 << self.stripe_shift) - 1
    }
}

/// Where a row lies. A row that is smaller than an LBA lies within one LBA, and every row lies within one stripe unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowAddress {
    /// First LBA on the drive.
    pub lba: u64,
    /// Member index.
    pub drive: u16,
    /// First byte within that LBA; 0 for a row of a whole LBA or more.
    pub byte: u32,
    /// LBAs to read.
    pub lbas: u32,
}

/// How rows are packed into the LBAs of their region, by rank.
///
/// Rows smaller than an LBA share one, and none of them straddles two; a larger row takes whole LBAs and never
/// straddles two stripe units. Either way rows come in *groups* (an LBA, or a stripe unit), and one division finds the
/// group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPacking {
    row_bytes: u32,
    row_lbas: u32,
    /// Rows in a group.
    group_rows: Divider,
    /// LBAs in a group.
    group_lbas: u32,
    /// LBAs and bytes from a row to the next one in its group; one of these two numbers is 0.
    step_lbas: u32,
    step_bytes: u32,
    lba_size: u32,
}

impl RowPacking {
    /// Packs rows of `row_bytes` into LBAs of `lba_size` bytes and stripe units of `stripe_lbas`; `None` for an empty row or
    /// one larger than a stripe unit.
    pub fn new(row_bytes: u32, lba_size: u32, stripe_lbas: u32) -> Option<Self> {
        if row_bytes == 0 || lba_size == 0 {
            return None;
        }
        let row_lbas = row_bytes.div_ceil(lba_size);
        if row_lbas > stripe_lbas {
            return None;
        }
        let shared = row_bytes < lba_size;
        let (rows, lbas) = if shared { (lba_size / row_bytes, 1) } else { (stripe_lbas / row_lbas, stripe_lbas) };
        Some(Self {
            row_bytes,
            row_lbas,
            group_rows: Divider::new(u64::from(rows)),
            group_lbas: lbas,
            step_lbas: if shared { 0 } else { row_lbas },
            step_bytes: if shared { row_bytes } else { 0 },
            lba_size,
        })
    }

    /// The LBA, counted from the region's start, and the byte in it at which row `rank` begins.
    #[inline(always)]
    pub fn locate(&self, rank: u64) -> (u64, u32) {
        let (group, row) = self.group_rows.div_rem(rank);
        let lba = group * u64::from(self.group_lbas) + row * u64::from(self.step_lbas);
        (lba, row as u32 * self.step_bytes)
    }

    /// LBAs that `rows` rows need, or `None` past 2⁶⁴.
    pub fn lbas(&self, rows: u64) -> Option<u64> {
        rows.div_ceil(self.group_rows.divisor()).checked_mul(u64::from(self.group_lbas))
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u32 {
        self.row_bytes
    }

    /// Bytes of an LBA.
    pub fn lba_size(&self) -> u32 {
        self.lba_size
    }

    /// LBAs to read for one row.
    pub fn row_lbas(&self) -> u32 {
        self.row_lbas
    }

    /// Rows that share an LBA; 1 for rows of an LBA or more.
    pub fn rows_per_lba(&self) -> u32 {
        if self.step_bytes == 0 { 1 } else { self.group_rows.divisor() as u32 }
    }

    /// Rows in a group, with the reciprocal.
    pub fn group_rows(&self) -> Divider {
        self.group_rows
    }

    /// LBAs in a group: 1 for rows that share an LBA, else a stripe unit.
    pub fn group_lbas(&self) -> u32 {
        self.group_lbas
    }

    /// LBAs from a row to the next in its group; 0 for rows that share an LBA.
    pub fn step_lbas(&self) -> u32 {
        self.step_lbas
    }

    /// Whether the region's bytes are the rows one after another, without padding between them.
    pub fn is_dense(&self) -> bool {
        u64::from(self.row_bytes) * self.group_rows.divisor() == u64::from(self.group_lbas) * u64::from(self.lba_size)
    }
}

/// A run of rows without padding between them, in a buffer of whole groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Rank of the first row.
    pub rank: u64,
    /// The byte of the buffer at which the first row begins.
    pub begin: usize,
    /// Bytes of all rows of the run.
    pub bytes: usize,
}

impl RowPacking {
    /// The rows in `bytes` bytes from `lba` of the region on: whole groups, of a table of `rows` rows. In the order of ranks, in
    /// as few runs as padding allows.
    pub(crate) fn runs(&self, lba: u64, bytes: usize, rows: u64) -> impl Iterator<Item = Run> + use<> {
        let group_rows = self.group_rows.divisor();
        let row_bytes = self.row_bytes as usize;
        let group_bytes = self.group_lbas as usize * self.lba_size as usize;
        let first = (lba / u64::from(self.group_lbas)).saturating_mul(group_rows);
        let left = rows.saturating_sub(first).min((bytes / group_bytes) as u64 * group_rows);
        // Rows in a run and bytes from one run to the next; for large padded rows a group holds several runs.
        let (run_rows, run_step) = match (self.is_dense(), self.step_bytes) {
            (true, _) => (left, 0),
            (false, 0) => (1, self.row_lbas as usize * self.lba_size as usize),
            (false, _) => (group_rows, group_bytes),
        };
        let runs_per_group = (group_rows / run_rows.max(1)).max(1);
        (0..left.div_ceil(run_rows.max(1))).map(move |i| Run {
            rank: first + i * run_rows,
            begin: (i / runs_per_group) as usize * group_bytes + (i % runs_per_group) as usize * run_step,
            bytes: (left - i * run_rows).min(run_rows) as usize * row_bytes,
        })
    }
}
