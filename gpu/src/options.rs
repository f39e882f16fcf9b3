//! How look-ups run on a GPU.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use warprow_gpu_queues::{DoorbellAccess, DriveWritable, MemoryPlacement};
use warprow_lookup::{CounterOptions, ReadMerging};

use crate::ablations::Ablations;

/// How look-ups run on a GPU.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Bytes of rows to keep in GPU memory: the hottest rows of all tables. There and in DRAM, rows are padded to a
    /// multiple of 16 B, or to lines of 128 B if that costs at most a third more; the padding counts.
    pub hbm_bytes: u64,
    /// Bytes of rows to keep in pinned DRAM: the hottest rows that are not in GPU memory.
    pub dram_bytes: u64,
    /// The number of a GPU in whose memory the rows of `dram_bytes` lie, in the place of DRAM: kernels read them there,
    /// over NVLink where there is one. While the executor is attached or adopts, the host's memory has these rows too.
    /// `None`: they lie in DRAM.
    pub peer_gpu: Option<u32>,
    /// How many rows of each named table to keep in GPU memory. If `hbm_bytes` hold fewer, all these numbers are cut in
    /// proportion. Tables that are not named share what is left of `hbm_bytes`, in proportion to what their hints ask
    /// for.
    pub hbm_rows: BTreeMap<String, u64>,
    /// How many queue pairs a slot has on every drive, each driven by a thread block of its own. While one of them
    /// takes no commands, which lasts until a look-up can start it anew, the others serve its rows. 0: two where GPUs
    /// play all drives, and one elsewhere, as measurements suggest (docs/gpu-drive.md).
    pub queue_sets: u32,
    /// The most commands in flight on each of these queue pairs; rounded down to batches of 256, but at least one
    /// batch.
    pub depth: u32,
    /// Which rows on drives share a read command: by default those of one LBA, and no others. Where rows of several
    /// LBAs share commands, each place in the landing area has room for the longest command, which takes up to 16 MiB a
    /// queue.
    pub merging: ReadMerging,
    /// How many thread blocks gather rows from DRAM; 0: as many as use the bus best.
    pub gatherers: u32,
    /// For plans without rows on drives: look-ups of up to so many ids read rows in DRAM where they lie; larger
    /// look-ups find their different rows first, and read these in the order of addresses. `None`: a number that
    /// depends on the size of the DRAM tier, with which look-ups are never slower than a plain gather, on an H200;
    /// where ids are uniform, a tenth of that number is faster. Look-ups of any number of ids read rows in another GPU's
    /// memory ([`peer_gpu`](Self::peer_gpu)) where they lie, by default. A number below 8,192 means 8,192.
    pub direct_ids: Option<u64>,
    /// Look-ups of up to so many ids are one kernel, rows on drives included, where a plan's rows are not pooled;
    /// 4,096 at most, on some GPUs fewer; 0: none are. `None`: 128, which benchmarks have shown to pay, and none with
    /// [`cache_bytes`](Self::cache_bytes), with which other numbers than 0 are refused: that kernel does not ask a cache.
    pub one_kernel_ids: Option<u64>,
    /// Kernels that fetch rows ahead have at most as many threads at a time as fit on so many multiprocessors, so that
    /// the kernels of a model keep the rest of the GPU; each drive's queue pairs need a quarter of a multiprocessor.
    /// The second half of a prefetch, which the model waits for, is not held to it. `None`: they have as many as are
    /// fastest.
    pub prefetch_multiprocessors: Option<u32>,
    /// How blocks of kernels that fetch rows ahead rank among those of other kernels that wait for multiprocessors.
    pub prefetch_priority: PrefetchPriority,
    /// The longest wait for a read; `None`: the time-out with which the store was opened.
    pub timeout: Option<Duration>,
    /// Whether sparse ids are compared with the keys that are stored beside the rows. These keys then lie in GPU
    /// memory, 8 B each. Otherwise one in 2⁸, 2¹⁶ or 2³² of the sparse ids that a table lacks gets the row of another
    /// key, by the length of the table's fingerprints.
    pub check_keys: bool,
    /// Whether rows of tables that have checksums are compared with them. Rows for GPU memory and DRAM are compared as
    /// they are read when the executor is attached. Rows on drives are compared as they arrive, which takes 4 B of GPU
    /// memory a row. Otherwise only the drive says whether a row is what was written.
    pub check_rows: bool,
    /// Whether plans can adopt other tables ([`GpuExecutor::adopt`](crate::GpuExecutor::adopt)), captured look-ups too.
    /// That costs look-ups of rows that all lie in memory about a microsecond, and GPU memory a description for each
    /// slot and ticket.
    pub adopting: bool,
    /// Bytes of GPU memory for rows that are updated while the executor is attached, or were updated before and are not
    /// yet compacted: [`Store::update`](warprow_store::Store::update) puts them there, with rows of keys that it
    /// creates, and captured look-ups see them too. Half of the bytes are for rows, each with 80 to 100 bytes beside
    /// it; when that half is full, the rows are copied to the other half, without those that were updated again since.
    /// 0: the store takes no updates while the executor lives. Otherwise look-ups of rows that all lie in memory take
    /// about two microseconds more. Once a row was updated, every look-up takes one more load for each id. Once a key
    /// was created, it takes another one for each sparse id that was not compared and found. And the executor's plans
    /// take the kernels that know every type of elements.
    pub overlay_bytes: u64,
    /// Who stores to the drives' doorbells: by default the GPU to those that are memory, and a host thread to
    /// registers.
    pub doorbells: DoorbellAccess,
    /// Which memory rings and landing areas of the queues lie in: by default GPU memory on drives that a GPU plays, and
    /// pinned memory on all others.
    pub queue_memory: MemoryPlacement,
    /// Memory of the executor's GPU for completion queues and landing areas of physical drives (placement A⁻), kept by a keeper:
    /// [`KeptGpuMemory`](crate::KeptGpuMemory). Unproven on a real GPU (docs/gpu-rings.md). It wants
    /// [`DoorbellAccess::Registers`](crate::DoorbellAccess::Registers), with which a drive that fails its ring test in this memory is an
    /// error; or [`DoorbellAccess::Best`](crate::DoorbellAccess::Best), with which such a drive gets placement B′. `None`: none.
    pub drive_memory: Option<Arc<dyn DriveWritable>>,
    /// Bytes of GPU memory for a cache: rows on drives that look-ups have read lie there, and later look-ups find them,
    /// until others take their places. It serves what no count foretells; rows that are known to be hot are better kept
    /// by `hbm_bytes`. Tables whose rows have equal lengths share lines, but for those that have `cache_shares`. 0: no row is
    /// cached, and look-ups pay nothing. docs/cache.md has what it costs.
    pub cache_bytes: u64,
    /// Tables, and how many of `cache_bytes` each has to itself, for lines and what leads to each: its rows take no place of others', and
    /// theirs none of its. All other tables share the rest, and have no lines where that is too little. The cache holds lines for as many
    /// launches as the fewest lines of a table or length allow, so a small share costs hits of all tables atomic operations.
    pub cache_shares: Vec<(String, u64)>,
    /// How many different rows on drives a usual batch has, by which the cache holds lines that were used lately: for
    /// as many launches as an eighth of its lines has batches, 64 at most. More launches cost fewer atomic operations,
    /// and some hits.
    pub cache_batch_rows: u64,
    /// Which rows are cached that were read from drives.
    pub cache_admission: CacheAdmission,
    /// Whether rows of `dram_bytes` are cached too. Look-ups then find different rows in DRAM first, whatever `direct_ids` says, read those
    /// that the cache lacks, and keep them as they keep rows from drives. That pays where few rows are asked for often, and costs where the
    /// cache has little of what is asked for (docs/cache.md).
    pub cached_dram: bool,
    /// How rows that are looked up are counted, for [`GpuExecutor::popular`](crate::GpuExecutor::popular): each look-up then has a kernel
    /// more, which leaves a sample of its ids, and a thread of the host counts them. `None`: they are not counted.
    pub counters: Option<CounterOptions>,
    /// The epoch, from 1 to 65,535, that look-ups note as that of the last touch of each key that they find in its table, until
    /// [`GpuExecutor::set_touch_epoch`](crate::GpuExecutor::set_touch_epoch) gives a later one: for
    /// [`GpuExecutor::last_touches`](crate::GpuExecutor::last_touches) and [`Store::expire`](warprow_store::Store::expire). That takes 2
    /// bytes of GPU memory, and 2 of the host's, for each row of a table whose keys are stored. `None`: nothing is noted.
    pub touch_epoch: Option<u16>,
    /// What look-ups do without, so that its worth can be measured: by default nothing.
    pub ablations: Ablations,
}

/// How blocks of kernels that fetch rows ahead rank among those of other kernels that wait for multiprocessors. In CUDA
/// graphs it holds where they are instantiated to use the priorities of their nodes
/// (`CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`), as PyTorch does. What runs already is not interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PrefetchPriority {
    /// They begin before all that wait in streams of lower priority.
    #[default]
    High,
    /// They wait as the kernels of streams that were made without a priority do.
    Normal,
}

/// Which rows the cache of a GPU keeps that were read from drives, or from DRAM where such rows are cached.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub enum CacheAdmission {
    /// All of them.
    #[default]
    Always,
    /// Each time with this probability, from 0 to 1.
    Probability(f64),
    /// Those that were asked for more often lately than the row whose line they would get, by counters that take 8 B a
    /// line. Of the lines that can be given away, the row that was asked for least loses its own.
    Sketch,
}

impl Default for GpuOptions {
    /// All rows on drives, as many queue sets a slot as suit the drives, 768 commands in flight, rows of one LBA in one command, the store's
    /// time-out.
    fn default() -> Self {
        Self {
            hbm_bytes: 0,
            dram_bytes: 0,
            peer_gpu: None,
            hbm_rows: BTreeMap::new(),
            queue_sets: 0,
            depth: 768,
            merging: ReadMerging::Separate,
            gatherers: 0,
            direct_ids: None,
            one_kernel_ids: None,
            prefetch_multiprocessors: None,
            prefetch_priority: PrefetchPriority::High,
            timeout: None,
            check_keys: false,
            check_rows: false,
            adopting: false,
            overlay_bytes: 0,
            doorbells: DoorbellAccess::default(),
            queue_memory: MemoryPlacement::default(),
            drive_memory: None,
            cache_bytes: 0,
            cache_shares: Vec::new(),
            cache_batch_rows: 262_144,
            cache_admission: CacheAdmission::Always,
            cached_dram: false,
            counters: None,
            touch_epoch: None,
            ablations: Ablations::default(),
        }
    }
}

impl GpuOptions {
    /// Keeps up to so many bytes of rows in GPU memory.
    #[must_use]
    pub fn with_hbm_bytes(self, hbm_bytes: u64) -> Self {
        Self { hbm_bytes, ..self }
    }

    /// Keeps up to so many bytes of rows in DRAM.
    #[must_use]
    pub fn with_dram_bytes(self, dram_bytes: u64) -> Self {
        Self { dram_bytes, ..self }
    }

    /// Keeps the rows of `dram_bytes` in the memory of GPU number `peer`.
    #[must_use]
    pub fn with_peer_gpu(self, peer: u32) -> Self {
        Self { peer_gpu: Some(peer), ..self }
    }

    /// Keeps so many rows of a table in GPU memory, if `hbm_bytes` hold them.
    #[must_use]
    pub fn with_hbm_rows(mut self, table: impl Into<String>, rows: u64) -> Self {
        self.hbm_rows.insert(table.into(), rows);
        self
    }

    /// Gives each slot so many queue sets; 0: as many as suit the drives.
    #[must_use]
    pub fn with_queue_sets(self, queue_sets: u32) -> Self {
        Self { queue_sets, ..self }
    }

    /// Merges read commands as `merging` says.
    #[must_use]
    pub fn with_merging(self, merging: ReadMerging) -> Self {
        Self { merging, ..self }
    }

    /// Gathers rows from DRAM with so many thread blocks.
    #[must_use]
    pub fn with_gatherers(self, gatherers: u32) -> Self {
        Self { gatherers, ..self }
    }

    /// Reads rows in DRAM where they lie in look-ups of up to so many ids.
    #[must_use]
    pub fn with_direct_ids(self, ids: u64) -> Self {
        Self { direct_ids: Some(ids), ..self }
    }

    /// Does look-ups of up to so many ids by one kernel, rows on drives included; 0: none.
    #[must_use]
    pub fn with_one_kernel_ids(self, ids: u64) -> Self {
        Self { one_kernel_ids: Some(ids), ..self }
    }

    /// Fetches rows ahead with no more threads than fit on so many multiprocessors.
    #[must_use]
    pub fn with_prefetch_multiprocessors(self, multiprocessors: u32) -> Self {
        Self { prefetch_multiprocessors: Some(multiprocessors), ..self }
    }

    /// Has kernels that fetch rows ahead rank among others as `priority` says.
    #[must_use]
    pub fn with_prefetch_priority(self, priority: PrefetchPriority) -> Self {
        Self { prefetch_priority: priority, ..self }
    }

    /// Waits no longer than `timeout` for a read.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Compares every sparse id with the stored key.
    #[must_use]
    pub fn with_checked_keys(self) -> Self {
        Self { check_keys: true, ..self }
    }

    /// Compares every row with its checksum.
    #[must_use]
    pub fn with_checked_rows(self) -> Self {
        Self { check_rows: true, ..self }
    }

    /// Makes plans that can adopt other tables.
    #[must_use]
    pub fn with_adopting(self) -> Self {
        Self { adopting: true, ..self }
    }

    /// Sets aside so many bytes of GPU memory for rows that are updated.
    #[must_use]
    pub fn with_overlay_bytes(self, overlay_bytes: u64) -> Self {
        Self { overlay_bytes, ..self }
    }

    /// Whether what look-ups read may change between them.
    pub(crate) fn replaces(&self) -> bool {
        self.adopting || self.overlay_bytes > 0
    }

    /// Has the doorbells stored to as `doorbells` says.
    #[must_use]
    pub fn with_doorbells(self, doorbells: DoorbellAccess) -> Self {
        Self { doorbells, ..self }
    }

    /// Puts rings and landing areas where `memory` says. Plans are refused where a drive does not reach that memory.
    #[must_use]
    pub fn with_queue_memory(self, memory: MemoryPlacement) -> Self {
        Self { queue_memory: memory, ..self }
    }

    /// Puts completion queues and landing areas of physical drives into this memory of the executor's GPU.
    #[must_use]
    pub fn with_drive_memory(self, memory: Arc<dyn DriveWritable>) -> Self {
        Self { drive_memory: Some(memory), ..self }
    }

    /// Sets aside so many bytes of GPU memory for a cache of rows that look-ups have read from drives.
    #[must_use]
    pub fn with_cache_bytes(self, cache_bytes: u64) -> Self {
        Self { cache_bytes, ..self }
    }

    /// Gives `table` so many bytes of the cache to itself. [`GpuExecutor::attach`](crate::GpuExecutor::attach) refuses shares that come to
    /// more than `cache_bytes`, of tables that are not there, of which no row may be cached or that have another share, and such that have
    /// no room for 8 rows; [`GpuExecutor::plan`](crate::GpuExecutor::plan) those that have fewer lines than a batch may have rows of the
    /// table.
    #[must_use]
    pub fn with_table_cache(mut self, table: impl Into<String>, bytes: u64) -> Self {
        self.cache_shares.push((table.into(), bytes));
        self
    }

    /// Has the cache hold lines for batches of so many different rows on drives.
    #[must_use]
    pub fn with_cache_batch_rows(self, cache_batch_rows: u64) -> Self {
        Self { cache_batch_rows, ..self }
    }

    /// Caches rows as `admission` says.
    #[must_use]
    pub fn with_cache_admission(self, admission: CacheAdmission) -> Self {
        Self { cache_admission: admission, ..self }
    }

    /// Has the cache keep rows from DRAM as it keeps those from drives.
    #[must_use]
    pub fn with_cached_dram(self) -> Self {
        Self { cached_dram: true, ..self }
    }

    /// Counts rows that are looked up as `counters` says.
    #[must_use]
    pub fn with_counters(self, counters: CounterOptions) -> Self {
        Self { counters: Some(counters), ..self }
    }

    /// Has last touches noted, at first as those of epoch `epoch`.
    #[must_use]
    pub fn with_touch_epoch(self, epoch: u16) -> Self {
        Self { touch_epoch: Some(epoch), ..self }
    }

    /// Has look-ups do without what `ablations` names, to measure its worth.
    #[must_use]
    pub fn with_ablations(self, ablations: Ablations) -> Self {
        Self { ablations, ..self }
    }
}
