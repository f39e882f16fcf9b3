//! How many rows of each table go to GPU memory, to DRAM and to drives.

use std::sync::Arc;

use warprow_kernels::abi;
use warprow_kernels::crc::ROW_CONSTANTS;
use warprow_keys::KeyIndex;
use warprow_layout::{Ranks, Table, VolumeError};

use crate::options::GpuOptions;
use crate::table::{GpuTable, ListedRows, PlacedKeys};
use crate::touches::GpuTouches;
use warprow_lookup::executors::{ChosenRanks, MemoryClaim, choose_ranks, scaled, share, usable_list};
use warprow_store::view::{StoreView, TableVersion};
use warprow_store::{Store, StoreError};

/// Where rows begin: at the lines in which memory is read.
pub(crate) const LINE: u64 = 128;

/// Bytes that the GPU executor takes for a row of `row_bytes` in GPU memory and in DRAM: whole lines, where that costs
/// at most a third more; else a multiple of 16 B.
pub fn gpu_row_bytes(row_bytes: u32) -> u32 {
    let least = row_bytes.next_multiple_of(16);
    let lines = least.next_multiple_of(LINE as u32);
    if lines - least <= least / 3 { lines } else { least }
}

fn stride_of(table: &Table) -> u32 {
    gpu_row_bytes(table.row_bytes())
}

/// What lies where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuTiers {
    /// One entry per table, in the executor's order.
    pub tables: Vec<TableTiers>,
    /// Bytes of GPU memory, for rows and whatever else look-ups need of tables: permutations, indices of keys,
    /// checksums, last touches.
    pub gpu_bytes: u64,
    /// Bytes of pinned DRAM.
    pub dram_bytes: u64,
}

/// Rows of a table by where they lie; the others lie on drives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableTiers {
    /// The table's name.
    pub table: String,
    /// The first ranks, in GPU memory.
    pub hbm_rows: u64,
    /// The next, in DRAM, or those that the table's list has there.
    pub dram_rows: u64,
    /// Whether a list says which.
    pub listed: bool,
}

/// The places of all tables.
#[derive(Debug)]
pub(crate) struct Arrangement {
    pub tables: Vec<GpuTable>,
    /// In the order of `tables`; of a damaged table nothing.
    pub orders: Vec<Order>,
    /// Bytes that they take in GPU memory, and in DRAM.
    pub bytes: u64,
    pub dram_bytes: u64,
}

/// How a table's ids become ranks.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// `None`: the id, or the slot of its key, is the rank.
    pub ranks: Option<Ranks>,
    /// `None`: ids are no keys.
    pub index: Option<KeyIndex>,
    /// Keys by rank; `None`: not to be compared.
    pub stored: Option<Vec<u64>>,
    /// Checksums of rows by rank; `None`: they are not checked.
    pub crcs: Option<Vec<u32>>,
}

impl GpuTiers {
    /// What [`GpuExecutor::attach`](crate::GpuExecutor::attach) would keep where with these options. It needs no GPU,
    /// and reads what is read besides rows.
    pub fn of(store: &Store, options: &GpuOptions) -> Result<Self, StoreError> {
        let store = store.view();
        let arranged = arrange(&store, &store.tables(), options)?;
        let place = |table: &GpuTable| TableTiers {
            table: table.located.table().name.clone(),
            hbm_rows: table.hbm_rows,
            dram_rows: table.dram_rows(),
            listed: table.listed.is_some(),
        };
        let tables = arranged.tables.iter().map(place).collect();
        let noted = arranged.tables.iter().filter(|table| options.touch_epoch.is_some() && table.keys.is_some());
        let touches: u64 = noted.filter_map(|table| GpuTouches::bytes_of(table.located.table())).sum();
        Ok(Self { tables, gpu_bytes: arranged.bytes + touches, dram_bytes: arranged.dram_bytes })
    }
}

fn read_order(
    store: &StoreView,
    it: &TableVersion,
    (check_keys, check_rows): (bool, bool),
) -> Result<Order, VolumeError> {
    let index = store.read_key_index(it)?;
    let compared = check_keys && index.is_some();
    let stored = if compared { store.read_keys(it)? } else { None };
    let crcs = if check_rows { store.read_row_crcs(it)? } else { None };
    Ok(Order { ranks: store.read_ranks(it)?, index, stored, crcs })
}

/// Reads all permutations and key indices, and shares both budgets among the tables whose are sound. Damage of one is
/// no error here: what was lost is the table's alone.
pub(crate) fn arrange(
    store: &StoreView,
    located: &[TableVersion],
    options: &GpuOptions,
) -> Result<Arrangement, StoreError> {
    let read =
        located.iter().map(|version| match read_order(store, version, (options.check_keys, options.check_rows)) {
            Ok(order) => Ok(Ok(order)),
            Err(
                damage @ (VolumeError::RanksDamaged { .. }
                | VolumeError::RanksInvalid { .. }
                | VolumeError::KeysDamaged { .. }
                | VolumeError::KeysInvalid { .. }),
            ) => {
                tracing::warn!(%damage, "the GPU executor leaves a table out");
                Ok(Err(Arc::new(damage)))
            }
            Err(error) => Err(StoreError::from(error)),
        });
    let read = read.collect::<Result<Vec<_>, _>>()?;
    let sound = || located.iter().zip(&read).filter(|(_, read)| read.is_ok()).map(|(it, _)| it);
    let lists: Vec<Option<Vec<u64>>> = sound().map(|it| usable_list(store, it, options.dram_bytes)).collect();
    let tables: Vec<&Table> = sound().map(|it| it.table()).collect();
    let mut shares = shares(&tables, &lists, options).into_iter().zip(lists);
    let mut shares = || shares.next().unwrap_or_default();

    let mut all = Arrangement { tables: Vec::new(), orders: Vec::new(), bytes: 0, dram_bytes: 0 };
    for (located, read) in located.iter().cloned().zip(read) {
        let ((shares, list), order, damage) = match read {
            Ok(order) => (shares(), order, None),
            Err(damage) => (Default::default(), Order::default(), Some(damage)),
        };
        let (hbm_rows, dram_rows) = shares;
        // Where all rows are in memory, or none that a list could choose, there is nothing to choose.
        let chooses = dram_rows > 0 && hbm_rows + dram_rows < located.table().rows;
        let listed = list.filter(|_| chooses).map(|list| choose_ranks(&located, hbm_rows, &list, dram_rows));
        all.place(located, shares, listed.transpose()?, order, damage);
    }
    Ok(all)
}

/// How many rows of each table go to GPU memory, and how many of the next ones to DRAM.
fn shares(tables: &[&Table], lists: &[Option<Vec<u64>>], options: &GpuOptions) -> Vec<(u64, u64)> {
    let all: Vec<MemoryClaim> = tables.iter().map(|table| MemoryClaim::of(table, stride_of(table))).collect();
    let asked: Vec<Option<u64>> =
        tables.iter().map(|table| options.hbm_rows.get(&table.name).map(|rows| table.rows.min(*rows))).collect();
    let bytes = |part: &MemoryClaim, rows: u64| rows.saturating_mul(part.row_bytes);
    let wanted = all.iter().zip(&asked).map(|(part, asked)| bytes(part, asked.unwrap_or(0)));
    let wanted = wanted.fold(0, u64::saturating_add);
    // Of tables that are named no others go there.
    let others: Vec<MemoryClaim> = all
        .iter()
        .zip(&asked)
        .map(|(part, asked)| if asked.is_some() { MemoryClaim { rows: 0, hint: 0, ..*part } } else { *part })
        .collect();
    let others = share(&others, options.hbm_bytes.saturating_sub(wanted));
    let hbm: Vec<u64> = asked
        .iter()
        .zip(others)
        .map(|(asked, others)| asked.map_or(others, |rows| scaled(rows, options.hbm_bytes, wanted)))
        .collect();
    let behind: Vec<MemoryClaim> = all
        .iter()
        .zip(&hbm)
        .zip(lists)
        .map(|((part, hbm), list)| {
            let rows = part.rows - hbm;
            let hint = match list {
                // Listed rows are those that are worth DRAM.
                Some(list) => (list.iter().filter(|&rank| rank >= hbm).count() as u64).min(rows),
                None => part.hint.saturating_sub(*hbm),
            };
            MemoryClaim { rows, hint, ..*part }
        })
        .collect();
    let dram = share(&behind, options.dram_bytes);
    hbm.into_iter().zip(dram).collect()
}

impl Arrangement {
    fn place(
        &mut self,
        located: TableVersion,
        (hbm_rows, dram_rows): (u64, u64),
        listed: Option<Arc<ChosenRanks>>,
        order: Order,
        damage: Option<Arc<VolumeError>>,
    ) {
        let place = |bytes: &mut u64, len: u64| {
            let begin = bytes.next_multiple_of(LINE);
            *bytes = begin + len;
            begin
        };
        let stride = stride_of(located.table());
        let dram_end = if listed.is_some() { hbm_rows } else { hbm_rows + dram_rows };
        let listed = listed.map(|ranks| {
            let bytes = ChosenRanks::bytes(located.table().rows);
            ListedRows { ranks, directory: place(&mut self.bytes, bytes) }
        });
        let bytes = &mut self.bytes;
        let ranks = order.ranks.as_ref().map(|ranks| {
            let width = ranks.width().bytes();
            (place(bytes, ranks.len() * u64::from(width)), width)
        });
        let keys = order.index.as_ref().map(|index| PlacedKeys {
            description: place(bytes, size_of::<abi::KeyIndex>() as u64),
            index: place(bytes, index.as_bytes().len() as u64),
            stored: order.stored.as_ref().map(|stored| place(bytes, stored.len() as u64 * 8)),
        });
        let cold = located.table().rows - dram_end;
        let crcs = order.crcs.as_ref().filter(|_| cold > 0).map(|_| place(bytes, ROW_CONSTANTS as u64 + cold * 4));
        let constant = |len: u64| if damage.is_some() { 0 } else { len };
        self.tables.push(GpuTable {
            hbm_rows,
            dram_end,
            row_stride: stride,
            hbm: place(bytes, hbm_rows * u64::from(stride)),
            default_row: place(bytes, constant(stride.into())),
            ranks,
            keys,
            crcs,
            map: place(bytes, constant(located.generation.placement.map().len() as u64 * 4)),
            dram: place(&mut self.dram_bytes, dram_rows * u64::from(stride)),
            listed,
            damage,
            located,
            overlay: 0,
            cached: 0,
            cache_owner: None,
            caches_dram: false,
            updated: None,
            touched: None,
            unread: None,
        });
        self.orders.push(order);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warprow_layout::{DType, Drive, FormatOptions, TableSpec};
    use warprow_soft_controller::{Namespace, RamBacking, SoftController};

    use super::*;
    use crate::error::GpuError;
    use warprow_store::{Device, LoadOptions, OpenOptions, RerankOptions, TableLoad};

    const ROWS: u64 = 400;

    /// Permuted tables of 400 rows of 64 B on two drives.
    fn store(names: &[&str]) -> Store {
        let devices: Vec<Device> = (0..2)
            .map(|i| {
                let namespace = Namespace::new(RamBacking::new(16 << 20).unwrap());
                let builder = SoftController::builder().name(format!("drive{i}")).serial(format!("drive{i}"));
                Device::new(builder.namespace(namespace).build().unwrap(), 1)
            })
            .collect();
        let store = Store::create(&devices, &FormatOptions::default(), &OpenOptions::default()).unwrap();
        let counts: Vec<u64> = (0..ROWS).map(|id| id % 7).collect();
        let ranks = Ranks::by_hotness(&counts);
        let rows = vec![7u8; ROWS as usize * 64];
        let specs: Vec<TableSpec> = names
            .iter()
            .map(|name| {
                let mut spec = TableSpec::new(*name, ROWS, 16, DType::F32);
                spec.permuted = true;
                spec
            })
            .collect();
        let source = &rows[..];
        let loads: Vec<_> = specs.iter().map(|spec| TableLoad::new(spec, &source).with_ranks(&ranks)).collect();
        store.load("model", &loads, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        store
    }

    fn damage(store: &Store, table: &str) {
        let (generation, index) = store.generation(table).unwrap();
        let first = generation.tables[index].ranks.unwrap().region.first_lba;
        let (drive, lba) = generation.placement.locate(first).unwrap();
        let member = store.view().drives()[usize::from(drive)].clone().unwrap();
        let mut block = vec![0; 512];
        member.read(lba, &mut block).unwrap();
        block[17] ^= 4;
        member.write(lba, &block).unwrap();
    }

    /// What is checked for updates is what is attached, whatever is switched to, or tried to be updated, meanwhile.
    #[test]
    fn the_tables_that_are_checked_for_updates_are_those_that_are_attached() {
        let store = store(&["a", "b"]);
        let spec = TableSpec::new("a", ROWS, 16, DType::F32);
        let rows = vec![9u8; ROWS as usize * 64];
        let source = &rows[..];
        let beside = LoadOptions::default().with_standby();
        let loads = [TableLoad::new(&spec, &source)];
        let second = store.load("model", &loads, &beside, &mut |_| ControlFlow::Continue(())).unwrap().generation;
        store.update_generation(second, "a", &[1], &[5; 64]).unwrap();
        let unfollowing = store.view().refuse_updates();
        let located = store.view().tables();
        assert!(!located.iter().any(|version| StoreView::is_updated(&version.generation)));
        store.switch(second, true).unwrap();
        let refused = store.update("a", &[1], &[6; 64]);
        assert!(matches!(refused, Err(StoreError::Unfollowing { .. })), "{refused:?}");
        let arranged = arrange(&store.view(), &located, &GpuOptions::default()).unwrap();
        assert_eq!(arranged.tables.len(), 2);
        assert!(
            arranged
                .tables
                .iter()
                .all(|table| table.located.generation.id != second && table.located.generation.log.is_empty())
        );
        drop((arranged, located, unfollowing));
        store.update("a", &[1], &[6; 64]).unwrap();
        assert!(
            store
                .view()
                .tables()
                .iter()
                .all(|table| table.generation.id == second && StoreView::is_updated(&table.generation))
        );
        store.compact(second).unwrap();
        assert!(!StoreView::is_updated(&store.view().tables()[0].generation));
    }

    #[test]
    fn tables_have_the_rows_in_gpu_memory_that_are_asked_for() {
        let store = store(&["a", "b", "c"]);
        let rows = |options: &GpuOptions| {
            let placed = GpuTiers::of(&store, options).unwrap();
            // Each table begins at a line.
            assert!(placed.dram_bytes <= options.dram_bytes + 3 * LINE);
            placed.tables.iter().map(|table| (table.hbm_rows, table.dram_rows)).collect::<Vec<_>>()
        };
        let options = GpuOptions::default().with_hbm_bytes(100 * 64).with_dram_bytes(90 * 64);
        assert_eq!(rows(&options), [(33, 30); 3]);
        // One that is named; those that are not share the rest.
        let one = options.clone().with_hbm_rows("b", 60).with_hbm_rows("absent", 1 << 40);
        assert_eq!(rows(&one)[1].0, 60);
        assert_eq!((rows(&one)[0].0, rows(&one)[2].0), (20, 20));
        let none = options.clone().with_hbm_rows("a", 0);
        assert_eq!(rows(&none).iter().map(|pair| pair.0).collect::<Vec<_>>(), [0, 50, 50]);
        // More than there is room for, and than there are.
        let much = options.with_hbm_rows("a", 300).with_hbm_rows("c", 100);
        assert_eq!(rows(&much).iter().map(|pair| pair.0).collect::<Vec<_>>(), [75, 0, 25]);
        let all = GpuOptions::default().with_hbm_bytes(u64::MAX).with_hbm_rows("a", u64::MAX);
        assert_eq!(rows(&all), [(ROWS, 0); 3]);
    }

    #[test]
    fn listed_rows_take_the_place_of_the_first_in_dram() {
        let store = store(&["a", "b"]);
        let list: Vec<u64> = (0..40).map(|number| number * 10).collect();
        store.rerank(&RerankOptions::new("a").with_ranks(&list)).unwrap();
        let options = GpuOptions::default().with_hbm_rows("a", 100).with_hbm_bytes(100 * 64).with_dram_bytes(50 * 64);
        let placed = GpuTiers::of(&store, &options).unwrap();
        let tiers = |table: usize| (placed.tables[table].hbm_rows, placed.tables[table].listed);
        assert_eq!((tiers(0), tiers(1)), ((100, true), (0, false)));
        let arranged = arrange(&store.view(), &store.view().tables(), &options).unwrap();
        let [a, b] = &arranged.tables[..] else { panic!() };
        let ranks: Vec<u64> = a.listed.as_ref().unwrap().ranks.ranks().collect();
        // Rows of the list that are not in GPU memory come first: ranks 100, 110 and so on.
        let wanted: Vec<u64> = (100..ROWS).filter(|rank| rank % 10 == 0).collect();
        assert!(wanted.iter().all(|rank| ranks.contains(rank)), "{ranks:?}");
        assert_eq!((a.dram_end, a.dram_rows(), a.cold_rows()), (100, ranks.len() as u64, 300));
        assert!(b.listed.is_none() && a.dram_rows() + b.dram_rows() <= 50 && a.dram_rows() > 30);
        assert!(placed.gpu_bytes > 0 && placed.dram_bytes >= a.dram_rows() * 64);
        // Where all rows of a table are in memory, or none is in DRAM, a list has nothing to say.
        for (hbm, dram) in [(0, u64::MAX / 2), (400 * 64 * 2, 0), (0, 0)] {
            let options = GpuOptions::default().with_hbm_bytes(hbm).with_dram_bytes(dram);
            let placed = GpuTiers::of(&store, &options).unwrap();
            assert!(placed.tables.iter().all(|table| !table.listed), "{hbm} {dram}");
        }
    }

    #[test]
    fn a_damaged_permutation_costs_its_own_table_alone() {
        let store = store(&["a", "bad", "c"]);
        let options = GpuOptions::default().with_hbm_bytes(100 * 64).with_dram_bytes(200 * 64);
        let sound = arrange(&store.view(), &store.view().tables(), &options).unwrap();
        assert!(sound.tables.iter().all(|table| table.check(false).is_ok() && table.ranks.is_some()));
        damage(&store, "bad");
        let all = arrange(&store.view(), &store.view().tables(), &options).unwrap();
        assert_eq!(all.orders.iter().map(|order| order.ranks.is_some()).collect::<Vec<_>>(), [true, false, true]);
        let [a, bad, c] = &all.tables[..] else { panic!("{:?}", all.tables) };
        assert_eq!((bad.hbm_rows, bad.dram_end, bad.ranks), (0, 0, None));
        // What it does not get the others do.
        for table in [a, c] {
            table.check(false).unwrap();
            assert_eq!((table.hbm_rows, table.dram_end), (50, 150));
        }
        assert!(all.bytes < sound.bytes && all.dram_bytes == 200 * 64);
        let error = bad.check(false).unwrap_err();
        assert!(matches!(&error, GpuError::TableDamaged { table, .. } if table == "bad"), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("\"bad\"") && text.contains("damaged") && text.contains("load it again"), "{text}");
    }
}
