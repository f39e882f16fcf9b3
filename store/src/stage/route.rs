//! Unique keys to tiers: hot ranks lie in DRAM, the others on drives.

use std::sync::Arc;

use warprow_layout::{Placement, Ranks, RowPacking};

use super::keys::TABLE_SHIFT;

/// Where a unique row is to be found: in 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location(u64);

impl Location {
    const SSD: u64 = 1 << 63;
    /// A row that could not be read.
    pub const FAILED: Self = Self(u64::MAX);

    /// At a byte of the DRAM tier.
    #[inline(always)]
    pub const fn dram(byte: u64) -> Self {
        Self(byte & !Self::SSD)
    }

    /// On a drive; number `index` among the rows there.
    #[inline(always)]
    pub const fn ssd(index: u32) -> Self {
        Self(Self::SSD | index as u64)
    }

    /// The byte of the DRAM tier.
    #[inline(always)]
    pub const fn dram_byte(self) -> Option<usize> {
        if self.0 & Self::SSD == 0 { Some(self.0 as usize) } else { None }
    }

    /// The number among the rows on drives.
    #[inline(always)]
    pub const fn ssd_index(self) -> Option<u32> {
        if self.0 & Self::SSD != 0 && self.0 != Self::FAILED.0 { Some(self.0 as u32) } else { None }
    }
}

/// A row to be read from a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowRead {
    /// Drive (16 bits) and first LBA (48 bits): the order of reading.
    pub at: u64,
    /// Index among the unique keys.
    pub unique: u32,
    /// First byte within the LBA.
    pub byte: u32,
}

impl RowRead {
    /// Bits of an LBA in [`at`](Self::at).
    pub const LBA_BITS: u32 = 48;

    /// The drive's index.
    #[inline(always)]
    pub const fn drive(&self) -> u16 {
        (self.at >> Self::LBA_BITS) as u16
    }

    /// The first LBA.
    #[inline(always)]
    pub const fn lba(&self) -> u64 {
        self.at & ((1 << Self::LBA_BITS) - 1)
    }
}

/// What routing has to know of a table.
#[derive(Debug, Clone)]
pub struct RouteTable {
    /// Id → rank; `None`: the id is the rank.
    pub ranks: Option<Arc<Ranks>>,
    /// Ranks below this lie in DRAM.
    pub hot_rows: u64,
    /// Byte of the DRAM tier at which rank 0 lies; the others follow without gaps.
    pub dram_byte: u64,
    /// How rows are packed.
    pub packing: RowPacking,
    /// First LBA of the rows in their generation.
    pub first_lba: u64,
    /// Where the generation's LBAs lie.
    pub placement: Arc<Placement>,
}

/// Unique rows in each tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Routed {
    /// In DRAM.
    pub dram: usize,
    /// On drives.
    pub ssd: usize,
    /// Neither: a key that its table's placement does not cover. Their location is [`Location::FAILED`].
    pub lost: usize,
}

/// Finds for every unique key where its row lies: writes `locations`, and for the rows on drives `reads`, in the order of
/// the keys. Both are as long as `unique` at least.
pub fn route(tables: &[RouteTable], unique: &[u64], locations: &mut [Location], reads: &mut [RowRead]) -> Routed {
    let mut routed = Routed::default();
    let mut reads = reads.iter_mut();
    for (index, (location, &key)) in locations.iter_mut().zip(unique).enumerate() {
        let id = key & ((1 << TABLE_SHIFT) - 1);
        *location = 'found: {
            let Some(table) = tables.get((key >> TABLE_SHIFT) as usize) else { break 'found Location::FAILED };
            let rank = match table.ranks.as_deref() {
                None => id,
                Some(Ranks::U32(ranks)) => ranks.get(id as usize).map_or(u64::MAX, |&rank| rank.into()),
                Some(Ranks::U64(ranks)) => ranks.get(id as usize).copied().unwrap_or(u64::MAX),
            };
            if rank < table.hot_rows {
                routed.dram += 1;
                break 'found Location::dram(table.dram_byte + rank * u64::from(table.packing.row_bytes()));
            }
            if rank == u64::MAX {
                break 'found Location::FAILED;
            }
            let (lba, byte) = table.packing.locate(rank);
            let place = table.placement.locate(table.first_lba + lba).filter(|place| place.1 >> RowRead::LBA_BITS == 0);
            let (Some((drive, lba)), Some(read)) = (place, reads.next()) else { break 'found Location::FAILED };
            *read = RowRead { at: u64::from(drive) << RowRead::LBA_BITS | lba, unique: index as u32, byte };
            routed.ssd += 1;
            Location::ssd(routed.ssd as u32 - 1)
        };
    }
    routed.lost = unique.len() - routed.dram - routed.ssd;
    routed
}
