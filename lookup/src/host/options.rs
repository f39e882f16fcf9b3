//! The options of the host executor.

use std::time::Duration;

use crate::merging::ReadMerging;
use crate::popularity::CounterOptions;

/// How the host executor runs look-ups: memory for rows, queue pairs, checks.
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
/// // Memory for 10 rows of 16 bytes; the other 90 rows lie in neighbouring LBAs, and one command reads them.
/// let options = HostOptions::default().with_dram_bytes(160).with_merging(ReadMerging::Neighbours);
/// let host = HostExecutor::attach(&store, options)?;
/// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// let ids: Vec<i64> = (0..100).collect();
/// let mut rows = vec![0.0f32; 400];
/// let report = plan.slot()?.lookup(&Batch::new(&ids, 100), &mut Output::new(OutputRows::F32(&mut rows), 4))?;
/// assert!(rows.iter().enumerate().all(|(at, &x)| x == at as f32));
/// assert_eq!((report.rows_dram, report.rows_ssd, report.commands), (10, 90, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostOptions {
    /// Bytes of rows to keep in DRAM: the hottest ranks of a table, or the rows that
    /// [`Store::rerank`](warprow_store::Store::rerank) listed. Tables share these bytes: first each table
    /// gets memory for the `hot_rows` that it was loaded with, or for its listed rows; what is left is shared in
    /// proportion to the bytes of the other rows.
    pub dram_bytes: u64,
    /// Bytes of memory for rows that drives have delivered, which later look-ups then find there: a cache, which follows
    /// what is looked up. What leads to the rows counts too, 70 bytes a row. All plans of the executor share it,
    /// and tables whose rows have equal lengths share their part of it, but for those that have `cache_shares`. 0: no cache.
    pub cache_bytes: u64,
    /// Tables, and how many of `cache_bytes` each has to itself: its rows take no place of others', and theirs none of its. All other
    /// tables share the rest.
    pub cache_shares: Vec<(String, u64)>,
    /// How rows that are looked up are counted, for [`HostExecutor::popular`](crate::HostExecutor::popular) and
    /// [`HostExecutor::start_reranker`](crate::HostExecutor::start_reranker). That takes a thread, which is idle where nothing is looked
    /// up. `None`: they are not counted.
    pub counters: Option<CounterOptions>,
    /// The epoch, from 1 to 65,535, that look-ups note as that of the last touch of each key that they find in its table, until
    /// [`HostExecutor::set_touch_epoch`](crate::HostExecutor::set_touch_epoch) gives a later one: for
    /// [`HostExecutor::last_touches`](crate::HostExecutor::last_touches) and [`Store::expire`](warprow_store::Store::expire). That takes 2
    /// bytes for each row of a table whose keys are stored. `None`: nothing is noted.
    pub touch_epoch: Option<u16>,
    /// Queue pairs that each slot has on every drive. The thread that looks up serves them all: this starts no threads.
    /// One queue pair reaches the bandwidth of a drive; a controller that serves each queue by a thread or a core of
    /// its own may gain from more.
    pub queue_pairs: u32,
    /// The most commands in flight on each queue pair.
    pub depth: u32,
    /// The longest wait for a read; `None`: the time-out that the store was opened with.
    pub timeout: Option<Duration>,
    /// Whether every row that is read from a drive is compared with its checksum, where the table has checksums. That
    /// takes four bytes of memory for each row of the table, and the time of a CRC32C for each row that is read.
    pub check_rows: bool,
    /// Whether every sparse id (key) is compared with the stored one, which takes eight bytes of memory for each row.
    /// An id that is no key of its table is then missing for certain. Without this, one such id in 2⁸, 2¹⁶ or 2³², by
    /// the length of the table's fingerprints, gets some row of the table. Plans for a table that does not store its
    /// keys are refused.
    pub check_keys: bool,
    /// Which rows on drives share a read command.
    pub merging: ReadMerging,
}

impl Default for HostOptions {
    /// No DRAM tier, no cache, no counts, no last touches, one queue pair for each slot and drive, 1,023 commands in flight, the store's time-out, no checks,
    /// neighbouring rows in one command.
    fn default() -> Self {
        let merging = ReadMerging::default();
        Self {
            dram_bytes: 0,
            cache_bytes: 0,
            cache_shares: Vec::new(),
            counters: None,
            touch_epoch: None,
            queue_pairs: 1,
            depth: 1023,
            timeout: None,
            check_rows: false,
            check_keys: false,
            merging,
        }
    }
}

impl HostOptions {
    /// The options with a DRAM tier of `dram_bytes` bytes.
    #[must_use]
    pub fn with_dram_bytes(self, dram_bytes: u64) -> Self {
        Self { dram_bytes, ..self }
    }

    /// The options with a cache of `cache_bytes` bytes for rows from drives.
    #[must_use]
    pub fn with_cache_bytes(self, cache_bytes: u64) -> Self {
        Self { cache_bytes, ..self }
    }

    /// The options with `bytes` bytes of the cache for rows of `table` alone. [`HostExecutor::attach`](crate::HostExecutor::attach)
    /// refuses shares that come to more than `cache_bytes`, of tables that are not there, have no rows on drives or another share, and
    /// such that have no room for 64 rows.
    #[must_use]
    pub fn with_table_cache(mut self, table: impl Into<String>, bytes: u64) -> Self {
        self.cache_shares.push((table.into(), bytes));
        self
    }

    /// The options with rows counted as `counters` says.
    #[must_use]
    pub fn with_counters(self, counters: CounterOptions) -> Self {
        Self { counters: Some(counters), ..self }
    }

    /// The options with last touches noted, at first as those of epoch `epoch`.
    #[must_use]
    pub fn with_touch_epoch(self, epoch: u16) -> Self {
        Self { touch_epoch: Some(epoch), ..self }
    }

    /// The options with `queue_pairs` queue pairs for each slot on each drive.
    #[must_use]
    pub fn with_queue_pairs(self, queue_pairs: u32) -> Self {
        Self { queue_pairs, ..self }
    }

    /// The options with at most `depth` commands in flight on each queue pair.
    #[must_use]
    pub fn with_depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// The options with `timeout` as the longest wait for a read.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// The options with every sparse id compared with the stored one.
    #[must_use]
    pub fn with_checked_keys(self) -> Self {
        Self { check_keys: true, ..self }
    }

    /// The options with `merging` as the rule which rows on drives share a read command.
    #[must_use]
    pub fn with_merging(self, merging: ReadMerging) -> Self {
        Self { merging, ..self }
    }

    /// The options with every row from a drive compared with its checksum, where the table has checksums.
    #[must_use]
    pub fn with_checked_rows(self) -> Self {
        Self { check_rows: true, ..self }
    }
}
