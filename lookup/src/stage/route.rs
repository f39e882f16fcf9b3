//! Finds where the row of each unique key lies: hot ranks lie in DRAM, the others on drives.

use std::sync::Arc;

use warprow_layout::{Placement, Ranks, RowPacking};

use super::chosen::ChosenRanks;
use super::keys::TABLE_SHIFT;

/// Where a row is to be found, in 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLocation(u64);

impl RowLocation {
    const SSD: u64 = 1 << 63;
    /// A row that could not be read.
    pub const FAILED: Self = Self(u64::MAX);
    /// No row: the table does not have it.
    pub const MISSING: Self = Self(u64::MAX - 1);
    /// No row: padding.
    pub const PADDING: Self = Self(u64::MAX - 2);
    /// A row on a drive, before it is known where on which drive.
    pub const COLD: Self = Self(u64::MAX - 3);

    /// The row that begins at byte `byte` of the DRAM tier.
    #[inline(always)]
    pub const fn dram(byte: u64) -> Self {
        Self(byte & !Self::SSD)
    }

    /// A row on a drive: number `index` among the rows of the look-up that lie on drives.
    #[inline(always)]
    pub const fn ssd(index: u32) -> Self {
        Self(Self::SSD | index as u64)
    }

    /// An updated row: record `record` of overlay number `overlay`.
    #[inline(always)]
    pub const fn updated(overlay: u16, record: u32) -> Self {
        Self(Self::SSD | 1 << 62 | (overlay as u64) << 32 | record as u64)
    }

    /// A row that was found in the cache: number `index` among those of the look-up.
    #[inline(always)]
    pub const fn cached(index: u32) -> Self {
        Self(Self::SSD | 1 << 61 | index as u64)
    }

    /// A number that no other location has.
    #[inline(always)]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// The byte of the DRAM tier at which the row begins whose location has [`number`](Self::number) `number`; `None`:
    /// the row lies elsewhere.
    #[inline(always)]
    pub(crate) const fn byte_of_number(number: u64) -> Option<usize> {
        Self(number).dram_byte()
    }

    /// The numbers of the overlay and of the record, for an updated row; `None` for other locations.
    #[inline(always)]
    pub const fn updated_record(self) -> Option<(u16, u32)> {
        if self.0 >> 48 == (Self::SSD | 1 << 62) >> 48 { Some(((self.0 >> 32) as u16, self.0 as u32)) } else { None }
    }

    /// The byte of the DRAM tier at which the row begins; `None`: the row lies elsewhere.
    #[inline(always)]
    pub const fn dram_byte(self) -> Option<usize> {
        if self.0 & Self::SSD == 0 { Some(self.0 as usize) } else { None }
    }

    /// The row's number among the rows of the look-up that were found in the cache; `None`: the row lies elsewhere.
    #[inline(always)]
    pub const fn cached_index(self) -> Option<u32> {
        if self.0 >> 32 == (Self::SSD | 1 << 61) >> 32 { Some(self.0 as u32) } else { None }
    }

    /// The row's number among the rows of the look-up that lie on drives; `None`: the row lies elsewhere.
    #[inline(always)]
    pub const fn ssd_index(self) -> Option<u32> {
        if self.0 >> 32 == Self::SSD >> 32 { Some(self.0 as u32) } else { None }
    }
}

/// A row to be read from a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowRead {
    /// The drive's index (upper 16 bits) and the first LBA (lower 48 bits). Rows are read in the order of this number.
    pub at: u64,
    /// The index of the row's key among the unique keys.
    pub unique: u32,
    /// The byte of the first LBA at which the row begins.
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

/// What routing needs to know of a table.
#[derive(Debug, Clone)]
pub struct RouteTable {
    /// Id → rank; `None`: the id is the rank.
    pub ranks: Option<Arc<Ranks>>,
    /// How many rows lie in DRAM: those of the first ranks, unless others are `chosen`.
    pub hot_rows: u64,
    /// Ranks that lie in DRAM in the place of the first ones.
    pub chosen: Option<Arc<ChosenRanks>>,
    /// Byte of the DRAM tier at which the rows in DRAM begin. They follow each other by rank, without gaps.
    pub dram_byte: u64,
    /// How rows are packed.
    pub packing: RowPacking,
    /// First LBA of the rows in their generation.
    pub first_lba: u64,
    /// Where the generation's LBAs lie.
    pub placement: Arc<Placement>,
}

/// The numbers of unique rows in each tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Routed {
    /// In DRAM.
    pub dram: usize,
    /// On drives.
    pub ssd: usize,
    /// In no tier, because the placement of the row's table does not say where it lies. The location of such rows is
    /// [`RowLocation::FAILED`].
    pub lost: usize,
}

/// Finds where the row of each unique key lies. Writes `locations` for all rows, and `reads` for the rows on drives, in
/// the order of the keys. `locations` must be at least as long as `unique`, and `reads` must have room for all rows on
/// drives: a row for which it has none counts as lost.
pub fn route(tables: &[RouteTable], unique: &[u64], locations: &mut [RowLocation], reads: &mut [RowRead]) -> Routed {
    let mut routed = Routed::default();
    let mut reads = reads.iter_mut();
    for (index, (location, &key)) in locations.iter_mut().zip(unique).enumerate() {
        let id = key & ((1 << TABLE_SHIFT) - 1);
        *location = 'found: {
            let Some(table) = tables.get((key >> TABLE_SHIFT) as usize) else { break 'found RowLocation::FAILED };
            let rank = match table.ranks.as_deref() {
                None => id,
                Some(Ranks::U32(ranks)) => ranks.get(id as usize).map_or(u64::MAX, |&rank| rank.into()),
                Some(Ranks::U64(ranks)) => ranks.get(id as usize).copied().unwrap_or(u64::MAX),
            };
            let in_dram = table.chosen.as_deref().map_or(rank, |chosen| chosen.place(rank));
            if in_dram < table.hot_rows {
                routed.dram += 1;
                break 'found RowLocation::dram(table.dram_byte + in_dram * u64::from(table.packing.row_bytes()));
            }
            if rank == u64::MAX {
                break 'found RowLocation::FAILED;
            }
            let (lba, byte) = table.packing.locate(rank);
            let place = table.placement.locate(table.first_lba + lba).filter(|place| place.1 >> RowRead::LBA_BITS == 0);
            let (Some((drive, lba)), Some(read)) = (place, reads.next()) else { break 'found RowLocation::FAILED };
            *read = RowRead { at: u64::from(drive) << RowRead::LBA_BITS | lba, unique: index as u32, byte };
            routed.ssd += 1;
            RowLocation::ssd(routed.ssd as u32 - 1)
        };
    }
    routed.lost = unique.len() - routed.dram - routed.ssd;
    routed
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{LazyLock, Mutex};

    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use warprow_layout::{
        DType, Drive, DriveError, FormatOptions, Generation, GenerationSpec, StoreAccess, TableSpec, format, open,
    };

    struct Memory(String, Mutex<Vec<u8>>);

    impl Drive for Memory {
        fn name(&self) -> &str {
            &self.0
        }
        fn lba_size(&self) -> u32 {
            512
        }
        fn lba_count(&self) -> u64 {
            16 << 11
        }
        fn max_transfer(&self) -> usize {
            1 << 20
        }
        fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
            buf.copy_from_slice(&self.1.lock().unwrap()[lba as usize * 512..][..buf.len()]);
            Ok(())
        }
        fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
            self.1.lock().unwrap()[lba as usize * 512..][..data.len()].copy_from_slice(data);
            Ok(())
        }
        fn flush(&self) -> Result<(), DriveError> {
            Ok(())
        }
    }

    /// A generation on three drives, with tables of 500 rows of 16, 128 and 300 elements.
    pub(in crate::stage) static GENERATION: LazyLock<Arc<Generation>> = LazyLock::new(|| {
        let drives: Vec<Memory> = (0..3).map(|i| Memory(format!("{i}"), Mutex::new(vec![0; 16 << 20]))).collect();
        let drives: Vec<Arc<Memory>> = drives.into_iter().map(Arc::new).collect();
        format(&drives, &FormatOptions::default()).unwrap();
        let tables = [16, 128, 300].map(|dim| TableSpec::new(format!("{dim}"), 500, dim, DType::F32)).to_vec();
        let volume = open(drives, StoreAccess::ReadWrite).unwrap().volume;
        volume.begin(&GenerationSpec::new("m", tables)).unwrap().commit().unwrap()
    });

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn every_key_goes_where_its_row_lies(
            keys in proptest::collection::vec((0usize..3, 0u64..500), 0..100),
            hot in proptest::array::uniform3(0u64..600),
            permuted in proptest::array::uniform3(any::<bool>()),
        ) {
            let generation = &*GENERATION;
            let reversed = Ranks::U32((0..500).rev().collect());
            let tables: Vec<RouteTable> = generation
                .tables
                .iter()
                .enumerate()
                .map(|(index, table)| RouteTable {
                    ranks: permuted[index].then(|| Arc::new(reversed.clone())),
                    hot_rows: hot[index],
                    chosen: None,
                    dram_byte: index as u64 * 1_000_000,
                    packing: table.packing,
                    first_lba: table.rows_region.first_lba,
                    placement: generation.placement.clone(),
                })
                .collect();
            let unique: Vec<u64> = keys.iter().map(|&(table, id)| (table as u64) << TABLE_SHIFT | id).collect();
            let mut locations = vec![RowLocation::FAILED; unique.len()];
            let mut reads = vec![RowRead::default(); unique.len()];
            let routed = route(&tables, &unique, &mut locations, &mut reads);
            let mut next = 0;
            for (index, &(table, id)) in keys.iter().enumerate() {
                let rank = if permuted[table] { 499 - id } else { id };
                if rank < hot[table] {
                    let byte = table as u64 * 1_000_000 + rank * u64::from(generation.tables[table].row_bytes());
                    prop_assert_eq!(locations[index], RowLocation::dram(byte));
                    continue;
                }
                let wanted = generation.row(table, rank).unwrap();
                let read = reads[next];
                prop_assert_eq!(locations[index], RowLocation::ssd(next as u32));
                prop_assert_eq!((read.drive(), read.lba(), read.byte), (wanted.drive, wanted.lba, wanted.byte));
                prop_assert_eq!(read.unique as usize, index);
                next += 1;
            }
            prop_assert_eq!(routed, Routed { dram: keys.len() - next, ssd: next, lost: 0 });
        }
    }

    #[test]
    fn keys_of_nothing_have_no_place() {
        let generation = &*GENERATION;
        let table = RouteTable {
            ranks: Some(Arc::new(Ranks::U32((0..500).collect()))),
            hot_rows: 0,
            chosen: None,
            dram_byte: 0,
            packing: generation.tables[0].packing,
            first_lba: generation.tables[0].rows_region.first_lba,
            placement: generation.placement.clone(),
        };
        let unique = [1 << TABLE_SHIFT, 500];
        let mut locations = [RowLocation::dram(0); 2];
        let mut reads = [RowRead::default(); 2];
        assert_eq!(route(&[table], &unique, &mut locations, &mut reads), Routed { dram: 0, ssd: 0, lost: 2 });
        assert_eq!(locations, [RowLocation::FAILED; 2]);
        assert_eq!((locations[0].dram_byte(), locations[0].ssd_index()), (None, None));
    }
}
