//! Rows that are updated while an executor reads tables: the overlays of its tables, once more in GPU memory, where its
//! look-ups find them. `cuda/overlay.cuh` has the protocol.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use warprow_gpu_queues::{DeviceMemory, Gpu, PinnedMemory};
use warprow_kernels::abi::{self, adopted};
use warprow_kernels::{Kernels, OverlayMap, StagedBatch, overlay_row_bytes};

use crate::error::GpuError;
use crate::launch::Stream;
use crate::reading_plan::{PlanStates, ReadingPlans};
use warprow_store::StoreError;
use warprow_store::view::lock;
use warprow_store::view::{CREATED, Follower, Overlay, OverlayEntry, OverlaySnapshot};

/// How long a launch may take to end while the GPU does other work.
const GRACE: Duration = Duration::from_secs(10);
/// How long look-ups are waited for that may read what is to be used again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most bytes of rows, and most rows, that a launch puts in; and where in pinned memory they lie with their records,
/// the entries and the result.
const ROWS: usize = 2 << 20;
const MOST: usize = 1 << 14;
const RECORDS_AT: usize = ROWS;
const ENTRIES_AT: usize = RECORDS_AT + MOST * 32;
const RESULT_AT: usize = ENTRIES_AT + MOST * 16;

/// The overlay of an executor: of all its tables, those before and those to come.
#[derive(Debug)]
pub(crate) struct GpuOverlay {
    gpu: Arc<Gpu>,
    kernels: Arc<Kernels>,
    /// Where look-ups find it.
    address: u64,
    /// The plans whose look-ups read it.
    plans: Arc<ReadingPlans>,
    inner: Mutex<Inner>,
    // Goes last: launches write to it.
    _memory: DeviceMemory,
}

#[derive(Debug)]
struct Inner {
    map: OverlayMap,
    stream: Stream,
    staging: PinnedMemory,
    /// Launches so far: their results ascend.
    launches: u64,
    /// Tables that were given numbers.
    tables: u32,
    following: Vec<Weak<Following>>,
    /// Set if rows that host executors show are not on the GPU: the next call puts all updated rows in anew.
    behind: bool,
    /// What launches may write to that have not ended in time.
    unended: Vec<PinnedMemory>,
}

/// Tables of one generation whose updates an executor follows, while this lives.
#[derive(Debug)]
pub(crate) struct Following {
    on: Arc<GpuOverlay>,
    overlay: Arc<Overlay>,
    /// By index in the generation: number in the overlay on the GPU, bytes of a row.
    tables: HashMap<u32, (u32, u32)>,
}

impl GpuOverlay {
    /// Of `bytes` of GPU memory, for rows of `row_bytes` or more.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        kernels: Arc<Kernels>,
        bytes: u64,
        row_bytes: u32,
        plans: Arc<ReadingPlans>,
    ) -> Result<Self, GpuError> {
        let memory = DeviceMemory::new(gpu, bytes)?;
        let map = OverlayMap::new(memory.address(), bytes, row_bytes).ok_or_else(|| {
            GpuError::Unsupported(format!(
                "an overlay of {bytes} bytes has no room for a row: give GpuOptions::overlay_bytes more"
            ))
        })?;
        memory.write(map.header_at() - memory.address(), map.header().as_bytes())?;
        let inner = Inner {
            stream: Stream::new(gpu)?,
            staging: PinnedMemory::allocate(gpu, RESULT_AT as u64 + 8)?,
            launches: 0,
            tables: 0,
            following: Vec::new(),
            behind: false,
            unended: Vec::new(),
            map,
        };
        let address = inner.map.header_at();
        let gpu = gpu.clone();
        Ok(Self { gpu, kernels, address, plans, inner: Mutex::new(inner), _memory: memory })
    }

    /// Where look-ups find it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Follows the updates of tables of one generation: index there and bytes of a row. What was updated before is
    /// there when it returns. Their numbers, in order.
    pub(crate) fn follow(
        self: &Arc<Self>,
        overlay: &Arc<Overlay>,
        tables: &[(u32, u32)],
    ) -> Result<(Arc<Following>, Vec<u32>), GpuError> {
        overlay.follow(|snapshot| {
            let mut inner = lock(&self.inner);
            let first = inner.tables + 1;
            inner.tables += tables.len() as u32;
            let numbers: Vec<u32> = (first..).take(tables.len()).collect();
            let numbered = tables.iter().zip(&numbers).map(|(&(index, bytes), &number)| (index, (number, bytes)));
            let following =
                Arc::new(Following { on: self.clone(), overlay: overlay.clone(), tables: numbered.collect() });
            inner.following.retain(|weak| weak.strong_count() > 0);
            let rows: Vec<(u32, u64, &[u8])> = match snapshot {
                Some(snapshot) => following.rows(snapshot).collect(),
                None => Vec::new(),
            };
            let bytes = rows.iter().map(|(.., row)| overlay_row_bytes(row.len() as u32)).sum();
            self.make_room(&mut inner, rows.len(), bytes)?;
            inner.following.push(Arc::downgrade(&following));
            if !rows.is_empty() {
                self.put(&mut inner, &rows).inspect_err(|_| inner.behind = true)?;
            }
            Ok((following.clone(), following as Arc<dyn Follower>, numbers))
        })
    }

    /// Sees to it that so many rows more have room.
    fn make_room(&self, inner: &mut Inner, more: usize, bytes: u64) -> Result<(), GpuError> {
        if !inner.behind && inner.map.has_room(more, bytes) {
            return Ok(());
        }
        let mut records = more;
        let mut live = bytes;
        for following in inner.following.iter().filter_map(Weak::upgrade) {
            if let Some(snapshot) = following.overlay.snapshot() {
                for (.., row) in following.rows(&snapshot) {
                    (records, live) = (records + 1, live + overlay_row_bytes(row.len() as u32));
                }
            }
        }
        let (most, bound) = inner.map.capacity();
        // It takes time: not for a little each time.
        let worth = inner.behind || (records <= most - most / 8 && live <= bound - bound / 8);
        if records > most || live > bound || !worth {
            let bytes = records as u64 * 32 + live;
            let bound = most as u64 * 32 + bound;
            return Err(StoreError::GpuOverlayFull { bytes, bound }.into());
        }
        self.rebuild(inner)
    }

    /// Puts the latest row of each that is followed into the other side, and shows that.
    fn rebuild(&self, inner: &mut Inner) -> Result<(), GpuError> {
        // Whatever comes between, look-ups go on with the side that they read.
        inner.behind = true;
        self.wait(inner)?;
        self.wait_for_readers(inner)?;
        inner.map.turn();
        inner.following.retain(|weak| weak.strong_count() > 0);
        let following: Vec<Arc<Following>> = inner.following.iter().filter_map(Weak::upgrade).collect();
        let snapshots: Vec<_> = following.iter().map(|following| following.overlay.snapshot()).collect();
        let rows = following.iter().zip(&snapshots).filter_map(|(it, snapshot)| Some(it.rows(snapshot.as_ref()?)));
        let rows: Vec<(u32, u64, &[u8])> = rows.flatten().collect();
        self.put(inner, &rows)?;
        inner.behind = false;
        Ok(())
    }

    /// Waits until each state was seen without a launch: those that come later read what is published now.
    fn wait_for_readers(&self, inner: &mut Inner) -> Result<(), GpuError> {
        let plans: Vec<_> = lock(&self.plans).iter().filter_map(Weak::upgrade).collect();
        for PlanStates { address, stride, place, count } in plans.iter().flat_map(|plan| plan.states()) {
            let results = PinnedMemory::allocate(&self.gpu, u64::from(count) * 4)?;
            let wait = abi::Adoption {
                states: address,
                stride,
                place,
                results: results.address(),
                timeout_ns: PATIENCE.as_nanos() as u64,
                ..abi::Adoption::default()
            };
            #[allow(unsafe_code, reason = "the kernel takes the leases of the plan's states")]
            // SAFETY: the states are a plan's, which is held, and as many; no description is written; the results are
            // kept until they say that it has ended.
            unsafe {
                inner.stream.adopt(&self.kernels, &wait, count)?;
            }
            let of =
                |what: u32| (0..count as usize).filter(|state| results.memory().load_u32(state * 4) == what).count();
            let ended = until(&inner.stream, PATIENCE + GRACE, || of(adopted::NOT) == 0);
            let busy = of(adopted::BUSY);
            if let Err(error) = ended {
                inner.unended.push(results);
                return Err(error);
            }
            if busy > 0 {
                return Err(GpuError::Busy(
                    "look-ups do not end that may read the updated rows whose memory is to be used again",
                ));
            }
        }
        inner.unended.clear();
        Ok(())
    }

    /// Waits for the latest launch.
    fn wait(&self, inner: &Inner) -> Result<(), GpuError> {
        until(&inner.stream, GRACE, || inner.staging.memory().load_u64(RESULT_AT) >= inner.launches)
    }

    /// Puts rows in, and shows all of them at once. What has no room is an error, and what was put in before it is not
    /// shown.
    fn put(&self, inner: &mut Inner, rows: &[(u32, u64, &[u8])]) -> Result<(), GpuError> {
        let mut left = rows;
        loop {
            self.wait(inner)?;
            let memory = inner.staging.memory();
            let mut put = inner.map.begin();
            let mut taken = 0;
            for &(table, row, bytes) in left.iter().take(MOST) {
                let at = put.rows_bytes as usize;
                if at as u64 + overlay_row_bytes(bytes.len() as u32) > ROWS as u64 {
                    break;
                }
                if !inner.map.put(&mut put, table, row, bytes.len() as u32) {
                    return Err(GpuError::Busy("updated rows have no room in GPU memory: compact their generation"));
                }
                memory.write(at, bytes);
                taken += 1;
            }
            if taken == 0 && !left.is_empty() {
                return Err(GpuError::Unsupported("a row is too long for the overlay on the GPU".to_owned()));
            }
            for (number, record) in put.records.iter().enumerate() {
                memory.write(RECORDS_AT + number * 32, record.as_bytes());
            }
            for (number, entry) in put.entries.iter().enumerate() {
                memory.store_words(ENTRIES_AT + number * 16, *entry);
            }
            left = left.get(taken..).unwrap_or_default();
            let base = inner.staging.address();
            let staged = StagedBatch {
                rows: base,
                records: base + RECORDS_AT as u64,
                entries: base + ENTRIES_AT as u64,
                result: base + RESULT_AT as u64,
                number: inner.launches + 1,
            };
            let update = inner.map.update(&put, staged, left.is_empty());
            #[allow(unsafe_code, reason = "the kernel writes to the overlay")]
            // SAFETY: the overlay's memory is this one's, and the map gives each place of it once, while launches may
            // read it; what is put in stays as it is until the launch has ended, which everybody waits for who writes
            // there.
            unsafe {
                inner.stream.update(&self.kernels, &update)?;
            }
            inner.launches += 1;
            if left.is_empty() {
                inner.map.showing();
                return self.wait(inner);
            }
        }
    }
}

impl Drop for GpuOverlay {
    fn drop(&mut self) {
        let inner = lock(&self.inner);
        if inner.staging.memory().load_u64(RESULT_AT) < inner.launches || !inner.unended.is_empty() {
            // What launches use goes after they have ended.
            let _ = self.gpu.synchronize();
        }
    }
}

/// Waits for what a launch on the stream stores.
fn until(stream: &Stream, limit: Duration, mut is_there: impl FnMut() -> bool) -> Result<(), GpuError> {
    let began = Instant::now();
    let mut turns = 0u32;
    while !is_there() {
        turns = turns.saturating_add(1);
        if turns < 4096 {
            std::hint::spin_loop();
            continue;
        }
        if turns.is_multiple_of(512) {
            stream.check()?;
            if began.elapsed() > limit && !is_there() {
                return Err(GpuError::Busy("the GPU does not come to taking updated rows in time"));
            }
        }
        std::thread::sleep(Duration::from_micros(10));
    }
    Ok(())
}

impl Following {
    /// The updated rows of its tables, and those of created keys: number of the table, row or key, content. Keys that were removed
    /// have none.
    fn rows<'a>(&'a self, snapshot: &'a OverlaySnapshot) -> impl Iterator<Item = (u32, u64, &'a [u8])> {
        let created = if snapshot.creates() { Some(CREATED) } else { None };
        let kinds = [Some(0), created].into_iter().flatten();
        let tables = self.tables.iter().flat_map(move |table| kinds.clone().map(move |kind| (table, kind)));
        tables.flat_map(|((&index, &(number, _)), kind)| {
            let removed = snapshot.removed(index | kind).map(|row| (row, &[][..]));
            snapshot.rows(index | kind).chain(removed).map(move |(row, bytes)| (placed(number, kind), row, bytes))
        })
    }
}

/// The number of a table on the GPU, as records of its rows have it, or, where `table` is of created keys, as those of
/// keys have it.
fn placed(number: u32, table: u32) -> u32 {
    if table & CREATED == 0 { number } else { number | abi::TABLE_CREATED }
}

impl Follower for Following {
    fn make_room(&self, table: u32, rows: usize) -> Result<(), StoreError> {
        let Some(&(_, row_bytes)) = self.tables.get(&table) else { return Ok(()) };
        let made = self.on.make_room(&mut lock(&self.on.inner), rows, rows as u64 * overlay_row_bytes(row_bytes));
        made.map_err(|error| match error {
            GpuError::Store(error) => error,
            error => StoreError::GpuBusy { why: error.to_string() },
        })
    }

    fn publish(&self, entries: &[OverlayEntry], rows: &[u8]) -> Result<(), String> {
        let mut inner = lock(&self.on.inner);
        let put = match inner.behind {
            // Hosts have them already.
            true => self.on.rebuild(&mut inner),
            false => {
                let row = |entry: &OverlayEntry| {
                    let &(number, _) = self.tables.get(&(entry.table & !CREATED))?;
                    Some((placed(number, entry.table), entry.key, rows.get(entry.begin..entry.begin + entry.bytes)?))
                };
                let rows: Vec<(u32, u64, &[u8])> = entries.iter().filter_map(row).collect();
                let bytes = rows.iter().map(|(.., row)| overlay_row_bytes(row.len() as u32)).sum();
                match inner.map.has_room(rows.len(), bytes) {
                    _ if rows.is_empty() => Ok(()),
                    true => self.on.put(&mut inner, &rows),
                    // Another generation's were put in since room was made.
                    false => self.on.rebuild(&mut inner),
                }
            }
        };
        put.map_err(|error| {
            inner.behind = true;
            error.to_string()
        })
    }
}
