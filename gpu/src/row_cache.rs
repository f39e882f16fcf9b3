//! A cache of rows in GPU memory, as the host has it: its memory, whose numbers are whose, and sweeps. `docs/cache.md` has the protocol.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use warprow_gpu_queues::{DeviceMemory, Gpu, PinnedMemory};
use warprow_kernels::{CacheLines, CacheMap, CachePins, CacheShape, Kernels, abi};
use warprow_store::view::lock;

use crate::cache_shares::{Claiming, claims, owner_of, too_small};
use crate::error::GpuError;
use crate::launch::Stream;
use crate::options::{CacheAdmission, GpuOptions};
use crate::table::GpuTable;

/// Slots that may use a cache.
const SLOTS: u64 = 1024;
/// How long a kernel may take to begin while the GPU does other work.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// How long tables that are prepared wait for a sweep that frees numbers.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a cache in GPU memory has done since its executor was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCacheStatistics {
    /// Places for one row each.
    pub lines: u64,
    /// Lines that have a row.
    pub used: u64,
    /// Ids that were served from the cache, of look-ups that have ended, those of graphs among them.
    pub hits: u64,
    /// Ids that were served from drives, of the same look-ups; and from DRAM where such rows are cached, of look-ups that have begun.
    pub misses: u64,
    /// Rows that were given a line.
    pub admissions: u64,
    /// Lines that were taken from a row for another.
    pub evictions: u64,
    /// How long ago rows had been used when others took their lines: in launches that ask the cache, on average of all evictions, each
    /// counted as 2²⁰ at most. A use is noted once in `hold` launches. 0: no line was taken from a row yet.
    pub eviction_age: u64,
    /// Rows that found no line which could be given away: look-ups that have not ended may read all lines in which the
    /// row may lie.
    pub full: u64,
    /// Rows that the admission refused.
    pub refusals: u64,
    /// For how many launches a line is held that a launch has used.
    pub hold: u64,
    /// Rows that stay until they are let go: [`GpuExecutor::pin`](crate::GpuExecutor::pin).
    pub pinned: u64,
}

/// A cache in GPU memory.
#[derive(Debug)]
pub(crate) struct GpuCache {
    memory: DeviceMemory,
    pub(crate) state: Mutex<CacheState>,
    /// Held by who pins rows.
    pub(crate) pinning: Mutex<()>,
    pub(crate) kernels: Arc<Kernels>,
    /// Sweeps and pins follow each other on it.
    pub(crate) stream: Stream,
    /// What became of the latest sweep, and of which slot it tells.
    result: PinnedMemory,
}

#[derive(Debug)]
pub(crate) struct CacheState {
    pub map: CacheMap,
    pub pins: CachePins,
    /// Ranks to pin, and which were found; made when rows are pinned first.
    pub pin_room: Option<PinnedMemory>,
    /// Which slots' words are taken.
    slots: Vec<bool>,
    /// A sweep was launched of which nobody knows yet that it has ended.
    is_sweeping: bool,
}

/// A slot's word among the horizons of launches.
#[derive(Debug)]
pub(crate) struct CacheSlot {
    cache: Arc<GpuCache>,
    pub index: u32,
}

/// Numbers of a table's rows, for as long as look-ups may look for them.
#[derive(Debug)]
pub(crate) struct CachedRange {
    cache: Arc<GpuCache>,
    number: u32,
}

/// What is asked for.
pub(crate) fn shape_of(options: &GpuOptions) -> CacheShape {
    CacheShape {
        bytes: options.cache_bytes,
        batch_rows: options.cache_batch_rows,
        slots: SLOTS,
        counts: options.cache_admission == CacheAdmission::Sketch,
    }
}

/// Makes the cache that the options ask for, once, and gives each of the tables that have rows to cache numbers of its
/// own, which nobody else has.
pub(crate) fn give_ranges(
    made: &OnceLock<Arc<GpuCache>>,
    (gpu, kernels): (&Arc<Gpu>, &Arc<Kernels>),
    tables: &mut [GpuTable],
    options: &GpuOptions,
) -> Result<Vec<CachedRange>, GpuError> {
    if options.cache_bytes == 0 && options.cache_shares.is_empty() {
        return Ok(Vec::new());
    }
    for table in tables.iter_mut() {
        table.caches_dram = options.cached_dram;
        table.cache_owner = owner_of(options, &table.located.table().name);
    }
    let cache = match made.get() {
        Some(cache) => cache.clone(),
        None => {
            let cache = Arc::new(GpuCache::new(gpu, kernels, tables, options)?);
            made.get_or_init(|| cache).clone()
        }
    };
    let mut ranges = Vec::new();
    for table in tables.iter_mut().filter(|table| table.damage.is_none() && table.cacheable_rows() > 0) {
        if let Some(range) = cache.give(table.cache_lines(), table.cache_numbers())? {
            table.cached = range.number;
            ranges.push(range);
        }
    }
    Ok(ranges)
}

impl GpuCache {
    fn new(
        gpu: &Arc<Gpu>,
        kernels: &Arc<Kernels>,
        tables: &[GpuTable],
        options: &GpuOptions,
    ) -> Result<Self, GpuError> {
        let claiming: Vec<Claiming<'_>> = tables
            .iter()
            .map(|table| Claiming {
                name: &table.located.table().name,
                stride: table.row_stride,
                // A list may come to tables that have none yet.
                numbers: table.located.table().rows + if table.caches_dram { table.dram_rows() } else { 0 },
                cached: table.cacheable_rows(),
                is_sound: table.damage.is_none(),
            })
            .collect();
        let claims = claims(options, &claiming)?;
        if claims.iter().all(|claim| claim.cached == 0) {
            return Err(GpuError::Unsupported(
                match options.cached_dram {
                    true => "all rows lie in GPU memory, and none is left for a cache: attach without GpuOptions::cache_bytes",
                    false => {
                        "a cache is for rows on drives, and all rows lie in GPU memory or DRAM: attach without \
                         GpuOptions::cache_bytes, or with GpuOptions::cached_dram"
                    }
                }
                .to_owned(),
            ));
        }
        let shape = shape_of(options);
        let place = |base| CacheMap::new(base, shape, &claims).map_err(|error| too_small(options, error));
        let memory = DeviceMemory::new(gpu, place(0)?.bytes())?;
        let map = place(memory.address())?;
        let (admission, chance) = match options.cache_admission {
            CacheAdmission::Always => (abi::cache_admission::ALWAYS, 0),
            CacheAdmission::Sketch => (abi::cache_admission::SKETCH, 0),
            CacheAdmission::Probability(chance) if (0.0..=1.0).contains(&chance) => {
                (abi::cache_admission::CHANCE, (chance * 4_294_967_296.0) as u64)
            }
            CacheAdmission::Probability(chance) => {
                let why = format!("a cache cannot admit rows with the probability {chance}: give one from 0 to 1");
                return Err(GpuError::Unsupported(why));
            }
        };
        let caches_dram = options.cached_dram.into();
        let header = abi::Cache { admission: admission.into(), chance, caches_dram, ..map.header() };
        memory.write(0, header.as_bytes())?;
        let state = Mutex::new(CacheState {
            map,
            pins: CachePins::default(),
            pin_room: None,
            slots: vec![false; SLOTS as usize],
            is_sweeping: false,
        });
        let (stream, result) = (Stream::new(gpu)?, PinnedMemory::allocate(gpu, 16)?);
        Ok(Self { memory, state, pinning: Mutex::default(), kernels: kernels.clone(), stream, result })
    }

    /// Where kernels find it.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Fails if the cache has fewer lines for a table than a batch of a plan may have rows of the table and of those that share them.
    pub(crate) fn check_room(&self, table: &GpuTable, rows: u64) -> Result<(), GpuError> {
        let (state, of) = (lock(&self.state), table.cache_lines());
        let lines = state.map.lines_for(of).unwrap_or(u64::MAX);
        if rows <= lines {
            return Ok(());
        }
        if of.owner.is_some() {
            let (bytes, needed) = (state.map.bytes_of(of), state.map.bytes_for(of, rows));
            return Err(GpuError::CacheShareTooSmall { table: table.located.table().name.clone(), bytes, needed });
        }
        let (bytes, own) = (self.memory.bytes(), state.map.own_bytes());
        let rest = u128::from(bytes.saturating_sub(own)) * u128::from(rows) / u128::from(lines.max(1));
        let needed = u64::try_from(rest).unwrap_or(u64::MAX).saturating_add(own);
        Err(GpuError::CacheTooSmall { bytes, needed })
    }

    /// A word for a slot.
    pub(crate) fn take_slot(self: &Arc<Self>) -> Result<CacheSlot, GpuError> {
        let mut state = lock(&self.state);
        let free = state.slots.iter().position(|taken| !taken);
        match free.and_then(|index| Some((index, state.slots.get_mut(index)?))) {
            Some((index, taken)) => {
                *taken = true;
                Ok(CacheSlot { cache: self.clone(), index: index as u32 })
            }
            None => Err(GpuError::Unsupported(format!(
                "{SLOTS} slots use the cache, as many as can: drop plans, or attach without GpuOptions::cache_bytes"
            ))),
        }
    }

    /// Numbers for so many rows of a table that has these lines; `None`: the cache has no such lines.
    fn give(self: &Arc<Self>, lines: CacheLines, rows: u64) -> Result<Option<CachedRange>, GpuError> {
        let given = |state: &mut CacheState| state.map.give(lines, rows);
        let mut state = lock(&self.state);
        if state.map.lines_for(lines).is_none() {
            return Ok(None);
        }
        self.let_retired_go(&mut state)?;
        let range = match given(&mut state) {
            Some(range) => range,
            None => {
                // Numbers of tables that nobody reads any more become free.
                self.sweep(&mut state, PATIENCE)?;
                let none = || GpuError::Unsupported("no numbers are left for the cache: adopt fewer tables".to_owned());
                given(&mut state).ok_or_else(none)?
            }
        };
        self.memory.write(state.map.range_from_base(range.number), range.range.as_bytes())?;
        Ok(Some(CachedRange { cache: self.clone(), number: range.number }))
    }

    /// Empties all lines.
    pub(crate) fn clear(&self, patience: Duration) -> Result<(), GpuError> {
        self.sweep(&mut lock(&self.state), patience)
    }

    #[allow(unsafe_code, reason = "the kernel writes to the cache's words")]
    fn sweep(&self, state: &mut CacheState, patience: Duration) -> Result<(), GpuError> {
        let result = |word: usize| self.result.memory().load_u64(word * 8);
        if state.is_sweeping && result(0) == u64::from(abi::cache_swept::NOT) {
            return Err(GpuError::Busy("the GPU does not come to sweeping the cache: call it again"));
        }
        self.result.memory().store_u64(0, abi::cache_swept::NOT.into());
        let (words, word_count) = state.map.words();
        let sweep = abi::CacheSweep {
            cache: self.address(),
            words,
            word_count,
            timeout_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2),
            result: self.result.address(),
        };
        state.is_sweeping = true;
        // SAFETY: the addresses are those of this cache, whose memory is freed behind the stream's last work: see `drop`.
        unsafe { self.stream.sweep_cache(&self.kernels, &sweep)? };
        let (began, limit) = (Instant::now(), patience.saturating_add(GRACE));
        let mut turns = 0u32;
        while result(0) == u64::from(abi::cache_swept::NOT) {
            if began.elapsed() > limit {
                return Err(GpuError::Busy("the GPU does not come to sweeping the cache: call it again"));
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(512) {
                self.stream.check()?;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        state.is_sweeping = false;
        if result(0) == u64::from(abi::cache_swept::BUSY) {
            return Err(GpuError::CacheBusy { slot: result(1) });
        }
        state.map.swept();
        state.pins.swept();
        Ok(())
    }

    /// The rows that lines have, by the number of their range and that in the range: those that are pinned first, then those that were
    /// asked for most, where that is counted, then those that were used last.
    pub(crate) fn held_rows(&self) -> Result<Vec<(u32, u64)>, GpuError> {
        let state = lock(&self.state);
        let (words_at, count) = state.map.words();
        let mut words = vec![0; count as usize * 8];
        self.memory.read(words_at - self.address(), &mut words)?;
        let (counters_at, counter_bytes) = state.map.counters();
        let mut counters = vec![0; counter_bytes as usize];
        self.memory.read(counters_at, &mut counters)?;
        let words = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut rows: Vec<_> = (0..)
            .zip(words)
            .filter_map(|(index, word)| {
                let row = state.map.row_of(index, word)?;
                Some((std::cmp::Reverse(state.map.use_of(index, word, &counters)), row))
            })
            .collect();
        rows.sort_unstable();
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    /// What it has done so far.
    pub(crate) fn statistics(&self) -> Result<GpuCacheStatistics, GpuError> {
        let state = lock(&self.state);
        let mut header = [0; size_of::<abi::Cache>()];
        self.memory.read(0, &mut header)?;
        let word = |at: usize| header.get(at..at + 8).and_then(|it| it.try_into().ok()).map_or(0, u64::from_le_bytes);
        let admissions = word(std::mem::offset_of!(abi::Cache, admissions));
        let evictions = word(std::mem::offset_of!(abi::Cache, evictions));
        let swept = word(std::mem::offset_of!(abi::Cache, swept));
        Ok(GpuCacheStatistics {
            lines: state.map.lines(),
            used: admissions.saturating_sub(evictions).saturating_sub(swept),
            hits: word(std::mem::offset_of!(abi::Cache, hits)),
            misses: word(std::mem::offset_of!(abi::Cache, misses)),
            admissions,
            evictions,
            eviction_age: word(std::mem::offset_of!(abi::Cache, evicted_age)) / evictions.max(1),
            full: word(std::mem::offset_of!(abi::Cache, full)),
            refusals: word(std::mem::offset_of!(abi::Cache, refusals)),
            hold: state.map.hold(),
            pinned: state.pins.count(),
        })
    }
}

impl Drop for GpuCache {
    fn drop(&mut self) {
        // A sweep that nobody waited for may still write.
        if let Err(error) = self.stream.wait() {
            tracing::warn!(%error, "the stream on which a cache is swept");
        }
    }
}

impl Drop for CacheSlot {
    fn drop(&mut self) {
        if let Some(taken) = lock(&self.cache.state).slots.get_mut(self.index as usize) {
            *taken = false;
        }
    }
}

impl Drop for CachedRange {
    fn drop(&mut self) {
        lock(&self.cache.state).map.retire(self.number);
    }
}
