//! The host executor.

use std::sync::Arc;

use warprow_layout::Drive;
use warprow_store::{ReadCurve, Store, StoreError};

use super::attached::Attached;
use super::current::Hosting;
use super::options::HostOptions;
use super::plan::Plan;
use super::row_cache::CacheStatistics;
use crate::feature::{Feature, PlanOptions};
use crate::merging::ReadMerging;
use crate::popularity::PopularRow;
use crate::prepare::ReadPacer;
use crate::report::LookupMetrics;

/// The host executor: looks up rows of a store's tables on the host. It reads the tables as they were when it was
/// attached to the store, or as it last [adopted](HostExecutor::adopt) them. The executor pins these tables: when
/// others replace them in the store, they stay readable until the last executor, plan and look-up that use them are
/// gone. Clones are the same executor.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // 100 rows of 16 bytes stay in memory.
/// let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(1600))?;
/// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// let mut rows = [0.0f32; 8];
/// let report = plan.slot()?.lookup(&Batch::new(&[3i64, 999], 2), &mut Output::new(OutputRows::F32(&mut rows), 4))?;
/// assert_eq!(rows, [12.0, 13.0, 14.0, 15.0, 3996.0, 3997.0, 3998.0, 3999.0]);
/// assert_eq!((report.rows_dram, report.rows_ssd), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct HostExecutor {
    pub(crate) inner: Arc<Hosting>,
}

impl HostExecutor {
    /// Attaches an executor to `store`: fills the DRAM tier with the hottest rows. Permutations are read when a plan
    /// first needs their tables.
    pub fn attach(store: &Store, options: HostOptions) -> Result<Self, StoreError> {
        let out_of_range = |reason: &str| StoreError::ExecutorOptions { reason: reason.to_owned() };
        if options.queue_pairs == 0 || options.queue_pairs > 128 {
            return Err(out_of_range("a slot has 1 to 128 queue pairs on each drive"));
        }
        if options.depth == 0 {
            return Err(out_of_range("a depth of 0 reads nothing"));
        }
        let store = store.view();
        let (tables, mut curves) = (store.tables(), options.merging.given(store.drives().len())?);
        if options.merging == ReadMerging::Measured {
            store.watch()?;
            let timeout = options.timeout.unwrap_or(store.timeout());
            store.measure_reads(&tables, options.depth, timeout, &mut curves);
        }
        let attached = Attached::new(&store, tables, options, curves, None, &mut ReadPacer::unpaced())?;
        Ok(Self { inner: Arc::new(Hosting::new(attached)) })
    }

    /// The store whose rows this executor looks up.
    pub fn store(&self) -> Store {
        self.inner.current().store.store()
    }

    /// Totals over all look-ups of this host and its clones since it was attached.
    pub fn metrics(&self) -> LookupMetrics {
        let attached = self.inner.current();
        let drives = attached.store.store().drive_states();
        let drives_failed = drives.iter().filter(|drive| drive.failure.is_some()).count() as u64;
        LookupMetrics { drives_failed, ..attached.totals.snapshot() }
    }
}

impl HostExecutor {
    /// Prepares look-ups of `features`: reads their tables' permutations, takes queue pairs and allocates everything
    /// that look-ups of its slots will need.
    pub fn plan(&self, features: &[Feature], options: PlanOptions) -> Result<Plan, StoreError> {
        Plan::new(&self.inner, features, options)
    }

    /// Each drive by name, with the read curve that decides which of its rows share a command; `None`: rows of
    /// neighbouring LBAs share one, without a curve.
    pub fn read_curves(&self) -> Vec<(String, Option<ReadCurve>)> {
        let attached = self.inner.current();
        let members = attached.store.drives().iter().zip(&attached.curves);
        members.filter_map(|(member, curve)| Some((member.as_ref()?.name().to_owned(), curve.clone()))).collect()
    }

    /// What the cache of rows from drives has done. `None`: there is none
    /// ([`HostOptions::cache_bytes`](crate::HostOptions::cache_bytes)).
    pub fn cache_statistics(&self) -> Option<CacheStatistics> {
        self.inner.current().cache.as_ref().map(|cache| cache.statistics())
    }

    /// Gives up all rows of the cache, if there is one. Look-ups go on meanwhile, and fill it again.
    pub fn clear_cache(&self) {
        if let Some(cache) = &self.inner.current().cache {
            cache.clear();
        }
    }

    /// The rows of `table` that were looked up most, as far as they were counted, the most popular first, at most `most` of them:
    /// for [`Store::rerank`] with their ids. `None`: no such table is counted
    /// ([`HostOptions::counters`](crate::HostOptions::counters)).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // Of so few look-ups each id is counted; usually one in 64 is.
    /// let options = HostOptions::default().with_counters(CounterOptions::new(1 << 20).with_every(1));
    /// let host = HostExecutor::attach(&store, options)?;
    /// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
    /// let mut rows = [0.0f32; 12];
    /// plan.slot()?.lookup(&Batch::new(&[900i64, 7, 900], 3), &mut Output::new(OutputRows::F32(&mut rows), 4))?;
    /// let popular = host.popular("user", 10).ok_or("not counted")?;
    /// assert_eq!((popular[0].id, popular[0].count, popular.len()), (900, 2, 2));
    /// let ids: Vec<u64> = popular.iter().map(|row| row.id).collect();
    /// store.rerank(&RerankOptions::new("user").with_ids(&ids))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn popular(&self, table: &str, most: usize) -> Option<Vec<PopularRow>> {
        self.inner.current().counters.as_ref()?.popular(table, most)
    }

    /// How many rows of `table` lie in the DRAM tier: its first ranks, or those that
    /// [`Store::rerank`] listed. `None`: there is no such table.
    pub fn hot_rows(&self, table: &str) -> Option<u64> {
        let attached = self.inner.current();
        attached.tables.iter().find(|it| it.located.table().name == table).map(|table| table.hot_rows)
    }
}
