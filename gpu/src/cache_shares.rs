//! Tables' shares of a cache in GPU memory: what each table asks of the cache, and which shares are refused.

use warprow_kernels::{CacheClaim, CacheShare, CacheTooSmall};
use warprow_store::StoreError;

use crate::error::GpuError;
use crate::options::GpuOptions;

/// A table, as far as its part of a cache goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claiming<'a> {
    pub name: &'a str,
    /// Bytes from one row to the next in GPU memory.
    pub stride: u32,
    /// How many numbers its rows have in the cache.
    pub numbers: u64,
    /// Rows that may be cached.
    pub cached: u64,
    /// Look-ups can find its rows.
    pub is_sound: bool,
}

/// The number by which the cache calls a table that has lines to itself: its place among the shares.
pub(crate) fn owner_of(options: &GpuOptions, table: &str) -> Option<u32> {
    options.cache_shares.iter().position(|(name, _)| name == table).map(|place| place as u32)
}

/// What tables ask of the cache. A damaged table gets no lines, and leaves its share free.
pub(crate) fn claims(options: &GpuOptions, tables: &[Claiming<'_>]) -> Result<Vec<CacheClaim>, GpuError> {
    check(options, tables)?;
    let claim = |table: &Claiming<'_>| {
        let owner = owner_of(options, table.name);
        let share = owner.and_then(|owner| {
            let (_, bytes) = options.cache_shares.get(owner as usize)?;
            Some(CacheShare { owner, bytes: *bytes })
        });
        CacheClaim { stride: table.stride, rows: table.numbers, cached: table.cached, share }
    };
    Ok(tables.iter().filter(|table| table.is_sound).map(claim).collect())
}

fn check(options: &GpuOptions, tables: &[Claiming<'_>]) -> Result<(), GpuError> {
    let shares = &options.cache_shares;
    for (place, (name, _)) in shares.iter().enumerate() {
        let Some(table) = tables.iter().find(|table| table.name == name) else {
            let known = tables.iter().map(|table| table.name.to_owned()).collect();
            return Err(StoreError::NoSuchTable { table: name.clone(), known }.into());
        };
        if shares.iter().take(place).any(|(before, _)| before == name) {
            return Err(GpuError::CacheShares(format!("table {name:?} has two shares of the cache: give it one")));
        }
        if table.is_sound && table.cached == 0 {
            let (kept, lie) = match options.cached_dram {
                true => ("rows outside GPU memory", "there"),
                false => ("rows on drives", "in GPU memory or DRAM"),
            };
            return Err(GpuError::CacheShares(format!(
                "table {name:?} has a share of the cache, which is for {kept}, and all its rows lie {lie}: leave the share out"
            )));
        }
    }
    let all = all_shares(options);
    if all > options.cache_bytes || options.cache_bytes == 0 && !shares.is_empty() {
        return Err(too_many(options, all));
    }
    Ok(())
}

fn all_shares(options: &GpuOptions) -> u64 {
    options.cache_shares.iter().fold(0, |all, (_, share)| all.saturating_add(*share))
}

fn too_many(options: &GpuOptions, needed: u64) -> GpuError {
    let (all, bytes) = (all_shares(options), options.cache_bytes);
    GpuError::CacheShares(format!(
        "the shares of tables in the cache come to {all} bytes, and the cache has {bytes}, some of which lead to its lines: give \
         GpuOptions::cache_bytes {needed} or more, or smaller shares"
    ))
}

/// Why a cache cannot be cut as it was asked for.
pub(crate) fn too_small(options: &GpuOptions, error: CacheTooSmall) -> GpuError {
    let CacheTooSmall { bytes, needed, owner } = error;
    match owner.and_then(|owner| options.cache_shares.get(owner as usize)) {
        Some((table, _)) => GpuError::CacheShareTooSmall { table: table.clone(), bytes, needed },
        // What lead to lines has no room beside the shares.
        None if !options.cache_shares.is_empty() => too_many(options, needed),
        None => GpuError::CacheTooSmall { bytes, needed },
    }
}

#[cfg(test)]
mod tests {
    use warprow_kernels::{CacheLines, CacheMap};

    use super::*;
    use crate::row_cache::shape_of;

    fn table(name: &str, stride: u32, cached: u64) -> Claiming<'_> {
        Claiming { name, stride, numbers: 10_000, cached, is_sound: true }
    }

    fn map(options: &GpuOptions, tables: &[Claiming<'_>]) -> Result<CacheMap, GpuError> {
        let claims = claims(options, tables)?;
        CacheMap::new(0, shape_of(options), &claims).map_err(|error| too_small(options, error))
    }

    fn cached(bytes: u64) -> GpuOptions {
        GpuOptions::default().with_cache_bytes(bytes).with_cache_batch_rows(100)
    }

    #[test]
    fn a_table_with_a_share_gets_its_bytes_and_the_others_the_rest() {
        let tables = [table("a", 64, 10_000), table("b", 64, 5000), table("c", 128, 9000)];
        let options = cached(1 << 20).with_table_cache("c", 300_000).with_table_cache("b", 100_000);
        let shared = map(&options, &tables).unwrap();
        let lines = |name: &str, stride| shared.lines_for(CacheLines { owner: owner_of(&options, name), stride });
        assert_eq!(
            (owner_of(&options, "a"), owner_of(&options, "b"), owner_of(&options, "c")),
            (None, Some(1), Some(0))
        );
        assert_eq!(lines("b", 64), Some(100_000 / (8 * 72) * 8));
        assert_eq!(lines("c", 128), Some(300_000 / (8 * 136) * 8));
        let rest = (1 << 20) - 400_000 - 58_500;
        assert!(lines("a", 64).unwrap().abs_diff(rest / 72) < 20, "{:?} of {}", lines("a", 64), rest / 72);
        // What other lengths would have of a table with a share stays the table's.
        assert_eq!(shared.lines_for(CacheLines::shared(128)), None);
        // A table whose order of rows is lost leaves its share free.
        let damaged = Claiming { is_sound: false, cached: 0, ..tables[2] };
        let without = map(&options, &[tables[0], tables[1], damaged]).unwrap();
        assert_eq!(without.lines_for(CacheLines { owner: Some(0), stride: 128 }), None);
        assert_eq!(without.lines_for(CacheLines { owner: Some(1), stride: 64 }), lines("b", 64));
    }

    #[test]
    fn shares_that_cannot_be_are_named() {
        let tables = [table("a", 64, 10_000), table("b", 512, 5000), table("c", 128, 0)];
        let refused = |options: GpuOptions| map(&options, &tables).unwrap_err();
        let unknown = refused(cached(1 << 20).with_table_cache("shop", 1000));
        assert!(
            matches!(&unknown, GpuError::Store(StoreError::NoSuchTable { table, known }) if table == "shop" && known.len() == 3),
            "{unknown:?}"
        );
        let told = |options: GpuOptions| {
            let refused = refused(options);
            assert!(matches!(refused, GpuError::CacheShares(_)), "{refused:?}");
            refused.to_string()
        };
        let twice = told(cached(1 << 20).with_table_cache("a", 100_000).with_table_cache("a", 100_000));
        assert!(twice.contains("\"a\" has two shares"), "{twice}");
        let none = told(cached(1 << 20).with_table_cache("c", 100_000));
        assert!(none.contains("\"c\"") && none.contains("rows on drives") && none.contains("or DRAM: leave"), "{none}");
        let none = told(cached(1 << 20).with_table_cache("c", 100_000).with_cached_dram());
        assert!(none.contains("rows outside GPU memory"), "{none}");
        let more = told(cached(1 << 20).with_table_cache("a", 1 << 20).with_table_cache("b", 1));
        assert!(more.contains("come to 1048577 bytes, and the cache has 1048576"), "{more}");
        let nothing = told(GpuOptions::default().with_table_cache("a", 0));
        assert!(nothing.contains("the cache has 0"), "{nothing}");
        // As many bytes as the cache has: what leads to the lines has no room.
        let all = told(cached(1 << 20).with_table_cache("a", 1 << 20));
        let (_, needed) = all.split_once("cache_bytes ").unwrap();
        let needed: u64 = needed.split(' ').next().unwrap().parse().unwrap();
        let enough = map(&cached(needed).with_table_cache("a", 1 << 20), &tables).unwrap();
        assert!(enough.lines_for(CacheLines { owner: Some(0), stride: 64 }).is_some(), "{needed}");
        assert!(enough.lines_for(CacheLines::shared(512)).is_none(), "{needed}");
        told(cached(needed - 1).with_table_cache("a", 1 << 20));
        let small = refused(cached(1 << 20).with_table_cache("b", 4000));
        let GpuError::CacheShareTooSmall { table, bytes: 4000, needed } = small else { panic!("{small:?}") };
        assert!(table == "b" && needed == 8 * 520, "{needed}");
        map(&cached(1 << 20).with_table_cache("b", needed), &tables).unwrap();
        // Without shares the cache is what is too small.
        let small = refused(cached(1000));
        assert!(matches!(small, GpuError::CacheTooSmall { bytes: 1000, .. }), "{small:?}");
    }
}
