//! Rows that drives delivered, kept in memory for later look-ups. docs/cache.md says why no look-up sees a wrong row.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use warprow_cache::{Admission, Cache, Eviction, Found};
use warprow_dma::prefetch::prefetch;
use warprow_layout::Table;
use warprow_store::StoreError;
use warprow_store::view::lock;
use zerocopy::IntoBytes;

use super::memory::Memory;

/// Rows begin at multiples of this, and all rows of as many steps share a pool.
const STEP: usize = 64;
/// The most shards of a pool. Look-ups of several threads seldom meet in one.
const SHARDS: usize = 64;
/// Lines that a shard has at least: with fewer, some shards would be full while others have room.
const LINES_OF_SHARD: usize = 1024;
/// Lines that a pool has at least.
const LEAST_LINES: usize = 64;
/// The most bytes of a line that are brought towards the processor before a row is written there: it follows longer rows by itself.
const MOST_AHEAD: usize = 1024;
/// Which line is given away. docs/performance/notes-cache.md says why.
const EVICTION: Eviction = Eviction::S3Fifo;
/// Which rows are worth a line.
const ADMISSION: Admission = Admission::Always;

/// What the cache of a host executor has done since the executor was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Rows that there is room for.
    pub lines: u64,
    /// Rows that are kept.
    pub used: u64,
    /// Different rows of batches that were looked for and found.
    pub hits: u64,
    /// Different rows of batches that were looked for and not found.
    pub misses: u64,
    /// Rows that were taken in.
    pub admissions: u64,
    /// Rows that were given up for others.
    pub evictions: u64,
    /// How long ago rows were last used when they were given up, on average of about the latest 64 of each shard: in different rows of
    /// batches that were looked for in their pool since. The mean of pools, each counted as often as its rows were looked for. 0: none was
    /// given up yet.
    pub eviction_age: u64,
}

/// The cache of a host executor. Every row has a number of its own: a table gets a range of numbers each time it is
/// attached, rows that a compaction has changed get others, and no number is given twice.
#[derive(Debug)]
pub(crate) struct RowCache {
    pools: Vec<Pool>,
    next_number: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Lines of one length.
#[derive(Debug)]
struct Pool {
    stride: usize,
    /// The table that has them to itself; `None`: all tables without lines of their own whose rows are so long.
    owner: Option<String>,
    lines: usize,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug)]
struct Shard {
    cache: Cache,
    rows: Memory,
    ages: Ages,
    /// Rows that were taken in.
    admissions: u64,
}

/// A row that is being copied to its line. If the copy panics, the row has no line any more: what is there is another row, or half of one.
struct Copying<'a> {
    cache: &'a mut Cache,
    number: u64,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.cache.forget(self.number);
    }
}

/// When lines were last used, and how old they were when others took them. The shard's clock counts the rows that were looked for in it.
#[derive(Debug)]
struct Ages {
    clock: u64,
    /// By line, the lower half of the clock when it was last used.
    used: Box<[u32]>,
    /// The mean age of lines that were taken from a row, in which the latest of `evicted` counts most.
    mean: f64,
    evicted: u64,
}

/// Of so many lines that were taken from a row lately the age is averaged.
const AVERAGED: u64 = 64;

impl Ages {
    fn new(lines: usize) -> Self {
        Self { clock: 0, used: vec![0; lines].into(), mean: 0.0, evicted: 0 }
    }

    /// Bytes of it for each line.
    const LINE_BYTES: usize = size_of::<u32>();

    fn use_line(&mut self, line: u32) {
        if let Some(used) = self.used.get_mut(line as usize) {
            *used = self.clock as u32;
        }
    }

    /// Notes that another row takes a line. An age of 2³² or more counts without its upper half.
    fn evict(&mut self, line: u32) {
        let Some(&used) = self.used.get(line as usize) else { return };
        let age = f64::from((self.clock as u32).wrapping_sub(used));
        self.evicted += 1;
        self.mean += (age - self.mean) / self.evicted.min(AVERAGED) as f64;
    }
}

/// Where the rows of one table are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CachedTable {
    pool: usize,
    /// The number of row 0.
    first: u64,
    /// Rows that have other numbers than those from `first` on: compactions gave them other content.
    moved: Option<Arc<HashMap<u64, u64>>>,
}

impl CachedTable {
    fn number(&self, row: u64) -> u64 {
        let moved = self.moved.as_ref().and_then(|moved| moved.get(&row));
        moved.copied().unwrap_or(self.first + row)
    }
}

/// A table whose rows are to be cached, as far as sharing the memory goes.
pub(crate) struct Claim<'a> {
    pub table: &'a Table,
    /// Rows of it that lie in DRAM.
    pub hot_rows: u64,
}

impl Claim<'_> {
    fn cold(&self) -> u64 {
        self.table.rows - self.hot_rows.min(self.table.rows)
    }
}

fn refuse<T>(reason: String) -> Result<T, StoreError> {
    Err(StoreError::ExecutorOptions { reason })
}

/// The bytes that shares of a cache leave to other tables.
fn check_shares(bytes: u64, shares: &[(String, u64)], claims: &[Claim<'_>]) -> Result<u64, StoreError> {
    for (nth, (table, _)) in shares.iter().enumerate() {
        let Some(claim) = claims.iter().find(|claim| claim.table.name == *table) else {
            let known = claims.iter().map(|claim| claim.table.name.clone()).collect();
            return Err(StoreError::NoSuchTable { table: table.clone(), known });
        };
        if shares.iter().take(nth).any(|(before, _)| before == table) {
            return refuse(format!("table {table:?} has two shares of the cache: give it one"));
        }
        if claim.cold() == 0 {
            return refuse(format!(
                "table {table:?} has a share of the cache, which is for rows on drives, and all its rows lie in DRAM: leave the share out"
            ));
        }
    }
    let all = shares.iter().fold(0u64, |all, (_, share)| all.saturating_add(*share));
    match bytes.checked_sub(all) {
        Some(rest) => Ok(rest),
        None => refuse(format!(
            "the shares of tables in the cache come to {all} bytes, and the cache has {bytes}: give cache_bytes {all} or more, or smaller shares"
        )),
    }
}

/// How many lines of `stride` bytes, with what leads to them, `bytes` have room for: not more than there are rows, which take `cold` bytes.
/// The error is how many bytes the fewest lines take.
fn lines_in(bytes: u64, stride: usize, cold: u128) -> Result<usize, usize> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let needs =
        |lines: usize| lines.saturating_mul(stride + Ages::LINE_BYTES) + Cache::bytes(lines, EVICTION, ADMISSION);
    let rows = usize::try_from(cold / stride as u128).unwrap_or(usize::MAX).min(1 << 31);
    let (mut lines, mut too_many) = (0, (bytes / stride).min(rows) + 1);
    while too_many - lines > 1 {
        let middle = lines + (too_many - lines) / 2;
        if needs(middle) <= bytes { lines = middle } else { too_many = middle }
    }
    let least = LEAST_LINES.min(rows);
    if lines >= least { Ok(lines) } else { Err(needs(least)) }
}

fn stride_of(table: &Table) -> usize {
    (table.row_bytes() as usize).next_multiple_of(STEP)
}

impl RowCache {
    /// A cache of `bytes` bytes. Each table among `shares` has so many of them to itself. The other tables of one stride share a pool;
    /// pools of different strides have parts of the rest in proportion to the bytes of their tables' rows on drives.
    pub(crate) fn new(bytes: u64, shares: &[(String, u64)], claims: &[Claim<'_>]) -> Result<Self, StoreError> {
        let rest = check_shares(bytes, shares, claims)?;
        let mut wanted: Vec<(usize, u128)> = Vec::new();
        let mut pools = Vec::new();
        for claim in claims {
            let stride = stride_of(claim.table);
            let cold = u128::from(claim.cold()) * stride as u128;
            if let Some((table, share)) = shares.iter().find(|(table, _)| *table == claim.table.name) {
                match lines_in(*share, stride, cold) {
                    Ok(lines) => pools.push(Pool::new(stride, lines, Some(table.clone()))?),
                    Err(needed) => {
                        return refuse(format!(
                            "the share of table {table:?} in the cache, {share} bytes, has no room for {LEAST_LINES} rows: give it {} bytes or more",
                            needed.next_multiple_of(1024)
                        ));
                    }
                }
                continue;
            }
            match wanted.iter_mut().find(|(it, _)| *it == stride) {
                _ if cold == 0 => {}
                Some((_, bytes)) => *bytes += cold,
                None => wanted.push((stride, cold)),
            }
        }
        let all: u128 = wanted.iter().map(|&(_, bytes)| bytes).sum();
        if all == 0 && pools.is_empty() {
            let reason = "a cache of rows on drives, and no row is on a drive: leave cache_bytes at 0";
            return refuse(reason.to_owned());
        }
        let mut needed = u128::MAX >> 1;
        for (stride, cold) in wanted {
            let part = u64::try_from(u128::from(rest) * cold / all).unwrap_or(u64::MAX);
            // A pool of few lines would hit seldom. Its tables do without, and its part stays free.
            match lines_in(part, stride, cold) {
                Ok(lines) => pools.push(Pool::new(stride, lines, None)?),
                Err(needs) => needed = needed.min(needs as u128 * all / cold + 1),
            }
        }
        if pools.is_empty() {
            return refuse(format!(
                "a cache of {bytes} bytes has no room for {LEAST_LINES} rows: give it {} bytes or more",
                needed.next_multiple_of(1024)
            ));
        }
        let zero = AtomicU64::default;
        Ok(Self { pools, next_number: zero(), hits: zero(), misses: zero() })
    }

    /// Where rows of `table` are kept from now on, under numbers that no row ever had; `None`: there are no lines of
    /// their length.
    pub(crate) fn attach(&self, table: &Table) -> Option<CachedTable> {
        let stride = stride_of(table);
        let own = self.pools.iter().position(|pool| pool.owner.as_ref() == Some(&table.name));
        let pool = match own {
            Some(own) => Some(own).filter(|&own| self.pools.get(own).is_some_and(|pool| pool.stride == stride)),
            None => self.pools.iter().position(|pool| pool.owner.is_none() && pool.stride == stride),
        }?;
        Some(CachedTable { pool, first: self.next_number.fetch_add(table.rows, Ordering::Relaxed), moved: None })
    }

    /// Where rows of a table are kept from now on that has other content in the rows `changed`, and else is as it was: these get numbers
    /// that no row ever had, and all others keep theirs. `None`: more rows would have such numbers than there are lines.
    pub(crate) fn attach_changed(&self, before: &CachedTable, changed: &[u64]) -> Option<CachedTable> {
        if changed.is_empty() {
            return Some(before.clone());
        }
        let lines = self.pools.get(before.pool)?.lines;
        if changed.len() > lines {
            return None;
        }
        let first = self.next_number.fetch_add(changed.len() as u64, Ordering::Relaxed);
        let mut moved = before.moved.as_deref().cloned().unwrap_or_default();
        moved.extend(changed.iter().copied().zip(first..));
        (moved.len() <= lines).then(|| CachedTable { moved: Some(Arc::new(moved)), ..*before })
    }

    /// Copies the row `row` of a table to `to`, if it is there.
    pub(crate) fn find(&self, table: &CachedTable, row: u64, to: &mut [u8]) -> bool {
        let Some(pool) = self.pools.get(table.pool) else { return false };
        let number = table.number(row);
        let mut shard = lock(pool.shard(number));
        let Shard { cache, rows, ages, .. } = &mut *shard;
        ages.clock += 1;
        let kept = cache.find(number).and_then(|line| {
            ages.use_line(line);
            rows.bytes().get(line as usize * pool.stride..)?.get(..to.len())
        });
        match kept {
            Some(kept) => {
                to.copy_from_slice(kept);
                true
            }
            None => false,
        }
    }

    /// Keeps the row `row` of a table, if that is worth a line: `fetch` writes the whole of it, `bytes` bytes, as its drive has it.
    pub(crate) fn keep(&self, table: &CachedTable, row: u64, bytes: usize, fetch: impl FnOnce(&mut [u8])) {
        let Some(pool) = self.pools.get(table.pool) else { return };
        let number = table.number(row);
        let mut shard = lock(pool.shard(number));
        let Shard { cache, rows, ages, admissions } = &mut *shard;
        let evictions = cache.evictions();
        // A row that is there already has the same content: it has the same number.
        let Found::Line(line) = cache.admit(number) else { return };
        if cache.evictions() != evictions {
            ages.evict(line);
        }
        ages.use_line(line);
        // Until the shard gets its next row, what that row will need is on its way.
        if let Some(next) = cache.likely_next() {
            next.index.into_iter().for_each(|place| prefetch(place.as_bytes()));
            let begin = next.line as usize * pool.stride;
            prefetch(rows.bytes().get(begin..begin + bytes.min(MOST_AHEAD)).unwrap_or_default());
        }
        match rows.bytes_mut().get_mut(line as usize * pool.stride..).and_then(|line| line.get_mut(..bytes)) {
            Some(place) => {
                let copying = Copying { cache, number };
                fetch(place);
                std::mem::forget(copying);
            }
            None => _ = cache.forget(number),
        }
        *admissions += 1;
    }

    /// Notes how many different rows of a batch were found, and how many were not.
    pub(crate) fn count(&self, hits: usize, misses: usize) {
        self.hits.fetch_add(hits as u64, Ordering::Relaxed);
        self.misses.fetch_add(misses as u64, Ordering::Relaxed);
    }

    /// Gives up all rows.
    pub(crate) fn clear(&self) {
        self.pools.iter().flat_map(|pool| &pool.shards).for_each(|shard| lock(shard).cache.clear());
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        let mut statistics = CacheStatistics {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            ..CacheStatistics::default()
        };
        let (mut ages, mut looked_for) = (0.0, 0.0);
        for pool in &self.pools {
            for shard in &pool.shards {
                let shard = lock(shard);
                statistics.lines += shard.cache.lines() as u64;
                statistics.used += shard.cache.used() as u64;
                statistics.evictions += shard.cache.evictions();
                statistics.admissions += shard.admissions;
                if shard.ages.evicted > 0 {
                    // Of the rows that are looked for in a pool each shard sees one in as many as there are shards.
                    let weight = shard.ages.clock as f64;
                    ages += shard.ages.mean * pool.shards.len() as f64 * weight;
                    looked_for += weight;
                }
            }
        }
        if looked_for > 0.0 {
            statistics.eviction_age = (ages / looked_for) as u64;
        }
        statistics
    }
}

impl Pool {
    fn new(stride: usize, lines: usize, owner: Option<String>) -> Result<Self, StoreError> {
        let count = (lines / LINES_OF_SHARD).clamp(1, SHARDS);
        let shards = (0..count).map(|shard| {
            let lines = lines * (shard + 1) / count - lines * shard / count;
            let rows = Memory::new(lines as u64 * stride as u64, "the cache")?;
            let cache = Cache::new(lines, EVICTION, ADMISSION);
            Ok(Mutex::new(Shard { cache, rows, ages: Ages::new(lines), admissions: 0 }))
        });
        Ok(Self { stride, owner, lines, shards: shards.collect::<Result<_, StoreError>>()? })
    }

    fn shard(&self, number: u64) -> &Mutex<Shard> {
        // The upper bits of a product depend on all lower ones; the lines of a shard are found by another hash.
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[((u128::from(hash) * self.shards.len() as u128) >> 64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::test_table;

    fn of(bytes: u64, tables: &[(&Table, u64)]) -> Result<RowCache, StoreError> {
        let claims: Vec<_> = tables.iter().map(|&(table, hot_rows)| Claim { table, hot_rows }).collect();
        RowCache::new(bytes, &[], &claims)
    }

    fn shared(bytes: u64, shares: &[(&str, u64)], tables: &[(&Table, u64)]) -> Result<RowCache, StoreError> {
        let claims: Vec<_> = tables.iter().map(|&(table, hot_rows)| Claim { table, hot_rows }).collect();
        let shares: Vec<_> = shares.iter().map(|&(table, share)| (table.to_owned(), share)).collect();
        RowCache::new(bytes, &shares, &claims)
    }

    fn named(name: &str, rows: u64, dim: u32) -> Table {
        Table { name: name.to_owned(), ..test_table(rows, dim, 0) }
    }

    fn keep(cache: &RowCache, table: &CachedTable, row: u64, content: [u8; 64]) {
        cache.keep(table, row, content.len(), |line| line.copy_from_slice(&content));
    }

    #[test]
    fn memory_is_shared_by_bytes_on_drives() {
        let (wide, narrow) = (test_table(10_000, 128, 0), test_table(10_000, 16, 0));
        let cache = of(1 << 20, &[(&wide, 0), (&narrow, 0)]).unwrap();
        let strides: Vec<_> = cache.pools.iter().map(|pool| pool.stride).collect();
        assert_eq!(strides, [512, 64]);
        let lines: Vec<usize> =
            cache.pools.iter().map(|pool| pool.shards.iter().map(|it| lock(it).cache.lines()).sum()).collect();
        assert!((1400..1820).contains(&lines[0]) && (500..1820).contains(&lines[1]), "{lines:?}");
        // Not more lines than rows.
        assert_eq!(of(1 << 40, &[(&narrow, 9000)]).unwrap().statistics().lines, 1000);
    }

    #[test]
    fn a_table_with_a_share_has_lines_of_its_own() {
        let (item, user, shop) = (named("item", 10_000, 16), named("user", 10_000, 16), named("shop", 10_000, 128));
        let all = [(&item, 0), (&user, 0), (&shop, 0)];
        let cache = shared(1 << 20, &[("item", 1 << 18)], &all).unwrap();
        let lines_of = |table| {
            let pool = &cache.pools[cache.attach(table).unwrap().pool];
            pool.shards.iter().map(|it| lock(it).cache.lines()).sum::<usize>()
        };
        let share = (1 << 18) / (64 + 4 + 66);
        assert!((share - 100..share + 200).contains(&lines_of(&item)), "{}", lines_of(&item));
        assert_ne!(cache.attach(&item).unwrap().pool, cache.attach(&user).unwrap().pool);
        // The others share what is left as they would the whole: user has a ninth of it.
        let rest = shared((1 << 20) - (1 << 18), &[], &[(&user, 0), (&shop, 0)]).unwrap();
        assert_eq!(
            cache.statistics().lines - lines_of(&item) as u64,
            rest.statistics().lines,
            "lines of tables without a share"
        );
        // However many rows of others come, those of the share stay.
        let (item, user) = (cache.attach(&item).unwrap(), cache.attach(&user).unwrap());
        (0..500).for_each(|row| keep(&cache, &item, row, [1; 64]));
        (0..10_000).for_each(|row| keep(&cache, &user, row, [2; 64]));
        let mut row = [0; 64];
        assert!((0..500).all(|id| cache.find(&item, id, &mut row) && row == [1; 64]));
        // A share that is all of the cache leaves the other tables out.
        let whole = shared(1 << 18, &[("shop", 1 << 18)], &all).unwrap();
        assert!(whole.attach(&shop).is_some() && whole.attach(&named("user", 10_000, 16)).is_none());
        // Rows of another length, as those of another generation may be, have no place in it.
        assert!(whole.attach(&named("shop", 10_000, 16)).is_none());
    }

    #[test]
    fn shares_that_make_no_sense_are_refused() {
        let (item, user) = (named("item", 10_000, 16), named("user", 10_000, 16));
        let all = [(&item, 0), (&user, 10_000)];
        let reason = |shares: &[(&str, u64)]| shared(1 << 20, shares, &all).unwrap_err().to_string();
        let error = reason(&[("item", (1 << 20) + 1)]);
        assert!(error.contains("come to 1048577 bytes, and the cache has 1048576"), "{error}");
        let error = reason(&[("item", u64::MAX), ("item", 1)]);
        assert!(error.contains("\"item\" has two shares"), "{error}");
        let error = reason(&[("items", 1 << 18)]);
        assert!(error.contains("no table \"items\"") && error.contains("user"), "{error}");
        let error = reason(&[("user", 1 << 18)]);
        assert!(error.contains("\"user\"") && error.contains("lie in DRAM"), "{error}");
        let error = reason(&[("item", 1000)]);
        let needed = error.rsplit("give it ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
        shared(1 << 20, &[("item", needed)], &all).expect("the remedy helps");
        assert!(needed < 16_384 && error.contains("\"item\""), "{error}");
    }

    #[test]
    fn what_is_too_small_or_of_no_use_is_refused() {
        let wide = test_table(10_000, 128, 0);
        let error = of(20_000, &[(&wide, 0)]).unwrap_err().to_string();
        assert!(error.contains("64 rows") && error.contains("or more"), "{error}");
        let needed = error.rsplit("give it ").next().unwrap().split(' ').next().unwrap();
        of(needed.parse().unwrap(), &[(&wide, 0)]).expect("the remedy helps");
        let error = of(1 << 20, &[(&wide, 10_000)]).unwrap_err().to_string();
        assert!(error.contains("no row is on a drive"), "{error}");
        // Tables of another length may be too small for a pool of their own.
        let few = test_table(3, 16, 0);
        let cache = of(100_000, &[(&wide, 0), (&few, 0)]).unwrap();
        assert!(cache.attach(&wide).is_some() && cache.attach(&few).is_none());
        // A table of fewer rows than lines that a cache needs.
        assert_eq!(of(1 << 20, &[(&test_table(5, 128, 0), 0)]).unwrap().statistics().lines, 5);
    }

    #[test]
    fn tables_attached_twice_do_not_share_rows() {
        let table = test_table(1000, 16, 0);
        let cache = of(1 << 20, &[(&table, 0)]).unwrap();
        let (old, new) = (cache.attach(&table).unwrap(), cache.attach(&table).unwrap());
        keep(&cache, &old, 7, [1; 64]);
        let mut row = [0; 64];
        assert!(cache.find(&old, 7, &mut row));
        assert_eq!(row, [1; 64]);
        assert!(!cache.find(&new, 7, &mut row));
        assert!(!cache.find(&old, 8, &mut row));
        cache.clear();
        assert!(!cache.find(&old, 7, &mut row));
    }

    #[test]
    fn rows_that_changed_have_other_numbers_and_all_others_theirs() {
        let table = test_table(1000, 16, 0);
        let cache = of(1 << 20, &[(&table, 0)]).unwrap();
        let old = cache.attach(&table).unwrap();
        (0..100).for_each(|row| keep(&cache, &old, row, [row as u8; 64]));
        let found = |table: &CachedTable, row: u64| {
            let mut found = [0; 64];
            cache.find(table, row, &mut found).then_some(found[0])
        };
        let new = cache.attach_changed(&old, &[7, 50, 400]).unwrap();
        for row in 0..101 {
            let there = row < 100 && row != 7 && row != 50;
            assert_eq!(found(&new, row), there.then_some(row as u8), "row {row}");
            assert_eq!(found(&old, row), (row < 100).then_some(row as u8), "row {row} as it was");
        }
        // Who reads the table as it was may come late.
        keep(&cache, &old, 400, [1; 64]);
        assert_eq!((found(&old, 400), found(&new, 400)), (Some(1), None));
        keep(&cache, &new, 400, [2; 64]);
        keep(&cache, &new, 7, [3; 64]);
        assert_eq!((found(&old, 400), found(&new, 400), found(&old, 7)), (Some(1), Some(2), Some(7)));
        // Once more: a row that changed again has a third number, and one that did not keeps its second.
        let newer = cache.attach_changed(&new, &[7, 60]).unwrap();
        assert_eq!(
            (found(&newer, 7), found(&newer, 60), found(&newer, 400), found(&newer, 61)),
            (None, None, Some(2), Some(61))
        );
        assert_eq!(cache.attach_changed(&newer, &[]), Some(newer));
        // No more rows than there are lines have numbers of their own.
        let small = of(100_000, &[(&test_table(1 << 20, 16, 0), 0)]).unwrap();
        let lines = small.statistics().lines;
        let of_small = small.attach(&test_table(1 << 20, 16, 0)).unwrap();
        let most = small.attach_changed(&of_small, &(0..lines).collect::<Vec<u64>>()).unwrap();
        assert!(small.attach_changed(&most, &(0..lines).collect::<Vec<u64>>()).is_some());
        assert_eq!(small.attach_changed(&most, &[lines]), None);
        assert_eq!(small.attach_changed(&of_small, &(0..=lines).collect::<Vec<u64>>()), None);
    }

    #[test]
    fn a_row_whose_copy_panics_is_not_kept() {
        let table = test_table(1000, 16, 0);
        let cache = of(1 << 20, &[(&table, 0)]).unwrap();
        let known = cache.attach(&table).unwrap();
        let copy = std::panic::AssertUnwindSafe(|| {
            cache.keep(&known, 7, 64, |line| {
                line[..32].fill(1);
                panic!("in the middle of a row");
            });
        });
        assert!(std::panic::catch_unwind(copy).is_err());
        let mut row = [0; 64];
        assert!(!cache.find(&known, 7, &mut row) && cache.statistics().used == 0);
        keep(&cache, &known, 7, [2; 64]);
        assert!(cache.find(&known, 7, &mut row) && row == [2; 64]);
    }

    #[test]
    fn age_is_how_many_rows_were_looked_for_since_the_last_use() {
        let table = test_table(1 << 20, 16, 0);
        let cache = of(100_000, &[(&table, 0)]).unwrap();
        let known = cache.attach(&table).unwrap();
        let lines = cache.statistics().lines;
        let mut row = [0; 64];
        let mut look = |id: u64| {
            if !cache.find(&known, id, &mut row) {
                keep(&cache, &known, id, [3; 64]);
            }
        };
        // Each row once: a row is given up when as many others as there are lines have come behind it, or as many as the small queue has.
        (0..lines).for_each(&mut look);
        assert_eq!((cache.statistics().evictions, cache.statistics().eviction_age), (0, 0));
        (lines..4 * lines).for_each(&mut look);
        let once = cache.statistics();
        assert!(once.evictions == 3 * lines && (lines / 20..=lines).contains(&once.eviction_age), "{once:?}");
        // Between two new rows come eight looks for a row that is there: all others are eight more looks older when they leave.
        look(7);
        for id in 4 * lines..8 * lines {
            look(id);
            (0..8).for_each(|_| look(7));
        }
        let looked = cache.statistics();
        let times = looked.eviction_age as f64 / once.eviction_age as f64;
        assert!((7.0..11.0).contains(&times), "{looked:?}, {once:?}");
    }

    #[test]
    fn threads_find_whole_rows() {
        let table = test_table(4096, 16, 0);
        let cache = of(100_000, &[(&table, 0)]).unwrap();
        let known = cache.attach(&table).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (cache, known) = (&cache, &known);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    for _ in 0..50_000 {
                        let id = random.u64(..4096);
                        let mut row = [0u8; 64];
                        match cache.find(known, id, &mut row) {
                            true => assert_eq!(row, [(id % 251) as u8; 64], "row {id}, seed {thread}"),
                            false => keep(cache, known, id, [(id % 251) as u8; 64]),
                        }
                    }
                });
            }
        });
        let statistics = cache.statistics();
        assert!(statistics.evictions > 1000 && statistics.used == statistics.lines, "{statistics:?}");
        assert!(statistics.admissions >= statistics.evictions + statistics.used);
    }
}
