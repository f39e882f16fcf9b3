//! Tier proposals: which rows belong in GPU memory, in DRAM and on drives.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_gpu::gpu_row_bytes;
use warprow_plan::trace::{Bags, FileQueries, QuerySource, QueryTrace, RecordedQueries};
use warprow_plan::{
    AlikeDrives, CacheComparison, GpuCacheComparison, GpuCosts, GroupRows, HostCosts, HotnessOrder, MemoryBudgets,
    ProposalError, ProposalFile, ProposalOptions, ProposalProgress, RowCounts, TableHotness, TableShape, allocate,
    compare_cache, compare_gpu_cache, curves, propose,
};
use warprow_traces::TraceSpec;

use crate::arrays::{Integers, dtype, slice};
use crate::error::{invalid, of_proposal};
use crate::interrupt::Interrupt;

/// A table that tiers are proposed for: `(name, rows, dim, dtype, index_bytes)`.
#[derive(FromPyObject)]
pub(crate) struct ShapeArgs(String, u64, u32, String, Option<u64>);

impl ShapeArgs {
    fn shape(self) -> PyResult<TableShape> {
        let Self(name, rows, dim, of, index_bytes) = self;
        Ok(TableShape { name, rows, dim, dtype: dtype(&of)?, index_bytes })
    }
}

/// What was looked up in some tables, query by query.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TraceArgs {
    tables: Vec<String>,
    /// As the command takes it; `None`: the ids are in memory.
    file: Option<String>,
    ids: Option<Integers>,
    /// Where each query ends.
    ends: Option<Integers>,
}

impl TraceArgs {
    /// The ids in memory.
    ///
    /// # Safety
    /// The addresses are right, and nobody writes there meanwhile.
    unsafe fn bags(&self) -> PyResult<Bags> {
        let (Some(ids), Some(ends)) = (&self.ids, &self.ends) else { return Ok(Bags::default()) };
        // SAFETY: the caller's promise.
        let (ids, ends) = unsafe { (ids.ids()?, ends.ids()?) };
        // An unsigned id past 2⁶³ is a key, by its bits.
        let all: Vec<i64> = (0..ids.len()).filter_map(|at| ids.get(at)).map(|id| id as i64).collect();
        let mut before = 0;
        let ends = (0..ends.len()).filter_map(|at| ends.get(at)).map(|end| {
            let is_next = (before..=all.len() as i128).contains(&end);
            before = end;
            u32::try_from(end).ok().filter(|_| is_next)
        });
        let ends = ends.collect::<Option<Vec<u32>>>();
        match ends {
            Some(ends) if before == all.len() as i128 => Ok(Bags { ids: all, ends }),
            _ => {
                let rule = "offsets begin with 0, never descend, and end with the number of ids, less than 2^32";
                Err(invalid("trace", format!("table {:?}: {rule}", self.tables.join(", "))))
            }
        }
    }

    fn source<'a>(&self, bags: &'a Bags) -> PyResult<Box<dyn QuerySource + 'a>> {
        let Some(file) = &self.file else { return Ok(Box::new(RecordedQueries::new(bags, 0..bags.ends.len()))) };
        let spec = file.parse::<TraceSpec>().map_err(|error| invalid("trace", format!("{file:?}: {error}")))?;
        let read = FileQueries::open(&spec).map_err(of_proposal)?;
        let slots = read.slots().count();
        if slots != self.tables.len() {
            let names: Vec<_> = read.slots().collect();
            let text = format!(
                "{file:?} has {slots} slots ({}), and {} tables were named for it: name one for each",
                names.join(", "),
                self.tables.len()
            );
            return Err(invalid("trace", text));
        }
        Ok(Box::new(read))
    }
}

/// Options of a proposal, by their names in Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ProposalArgs {
    hbm_bytes: u64,
    dram_bytes: u64,
    drives: String,
    drive_count: u32,
    drive_bytes: u64,
    lba: u32,
    emulated: bool,
    batch: u32,
    held_out: f64,
    group: String,
    memory: u64,
    allow_missing: bool,
    typical_host: bool,
    seed: u64,
    cache_bytes: u64,
    gpu_cache_bytes: u64,
}

impl ProposalArgs {
    fn budgets(&self) -> MemoryBudgets {
        MemoryBudgets { hbm: self.hbm_bytes, dram: self.dram_bytes }
    }

    fn options(self, tables: &[TableShape]) -> PyResult<ProposalOptions> {
        let group = match &*self.group {
            "auto" => GroupRows::Auto,
            "on" => GroupRows::On,
            "off" => GroupRows::Off,
            other => return Err(invalid("group", format!("{other:?}: give auto, on or off"))),
        };
        let row_bytes = tables.iter().filter_map(|shape| shape.dtype.row_bytes(shape.dim)).max().unwrap_or(4);
        let costs = match self.typical_host || self.hbm_bytes > 0 {
            true => HostCosts::default(),
            false => HostCosts::measure(row_bytes.next_multiple_of(4), self.emulated).map_err(of_proposal)?,
        };
        Ok(ProposalOptions {
            budgets: self.budgets(),
            drives: AlikeDrives {
                count: self.drive_count,
                profile: self.drives,
                bytes: self.drive_bytes,
                lba: self.lba,
                emulated: self.emulated,
            },
            batch: self.batch,
            held_out: self.held_out,
            memory: self.memory,
            group,
            allow_missing: self.allow_missing,
            costs,
            gpu: GpuCosts::default(),
            seed: self.seed,
        })
    }
}

/// A tier proposal that was made by a trace.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct Proposal {
    pub(crate) file: ProposalFile,
    /// How caches compare with tiers, where that was asked for.
    cache: Option<CacheComparison>,
    gpu_cache: Option<GpuCacheComparison>,
}

#[pymethods]
impl Proposal {
    /// What goes to which tier, as JSON.
    fn json(&self) -> PyResult<String> {
        serde_json::to_string(&self.file.tiers).map_err(|error| invalid("proposal", error.to_string()))
    }

    /// How caches compare with tiers, as JSON.
    fn caches(&self) -> PyResult<String> {
        serde_json::to_string(&(self.cache, self.gpu_cache)).map_err(|error| invalid("proposal", error.to_string()))
    }

    /// A picture of what other budgets would give.
    fn svg(&self, py: Python<'_>) -> String {
        py.detach(|| curves(&self.file.tiers))
    }

    /// Writes the file that `load` takes.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(py.detach(|| std::fs::write(path, self.file.bytes()))?)
    }
}

/// Reads a proposal from its file.
#[pyfunction]
pub(crate) fn read_proposal(py: Python<'_>, path: PathBuf) -> PyResult<Proposal> {
    let file = py.detach(|| ProposalFile::read(&path)).map_err(of_proposal)?;
    Ok(Proposal { file, cache: None, gpu_cache: None })
}

/// Proposes tiers by traces.
#[pyfunction]
pub(crate) fn propose_tiers(
    py: Python<'_>,
    shapes: Vec<ShapeArgs>,
    traces: Vec<TraceArgs>,
    args: ProposalArgs,
    progress: Option<Py<PyAny>>,
) -> PyResult<Proposal> {
    let shapes = shapes.into_iter().map(ShapeArgs::shape).collect::<PyResult<Vec<_>>>()?;
    let mut interrupt = Interrupt::new(progress);
    py.detach(|| {
        // SAFETY: the Python half holds the arrays until this returns, and says that nobody may write to them.
        let bags = traces.iter().map(|it| unsafe { it.bags() }).collect::<PyResult<Vec<_>>>()?;
        let sources = traces.iter().zip(&bags).map(|(it, bags)| Ok((it.tables.clone(), it.source(bags)?)));
        let mut trace = QueryTrace::new(sources.collect::<PyResult<_>>()?).map_err(of_proposal)?;
        let (cache_bytes, gpu_cache_bytes) = (args.cache_bytes, args.gpu_cache_bytes);
        let options = args.options(&shapes)?;
        let mut work = || {
            let watch = &mut |it: ProposalProgress| interrupt.flow(it.done, it.total);
            let proposed = propose(&shapes, &mut trace, &options, watch).map_err(|error| (error, "trace"))?;
            let cache = match cache_bytes {
                0 => Ok(None),
                bytes => compare_cache(&shapes, &mut trace, &options, bytes, watch).map(Some),
            };
            let cache = cache.map_err(|error| (error, "cache_bytes"))?;
            let gpu_cache = match gpu_cache_bytes {
                0 => Ok(None),
                bytes => compare_gpu_cache(&shapes, &mut trace, &options, bytes, watch).map(Some),
            };
            let gpu_cache = gpu_cache.map_err(|error| (error, "gpu_cache_bytes"))?;
            let file = ProposalFile::encode(&proposed).and_then(|bytes| ProposalFile::decode("of this process", bytes));
            Ok(Proposal { file: file.map_err(|error| (error, "trace"))?, cache, gpu_cache })
        };
        let proposed: Result<Proposal, (ProposalError, &str)> = work();
        proposed.map_err(|(error, argument)| match error {
            ProposalError::Stopped => interrupt.or(|| of_proposal(ProposalError::Stopped)),
            ProposalError::CacheTooSmall { .. } => invalid(argument, format!("{error}: {}", error.remedy())),
            error => of_proposal(error),
        })
    })
}

/// How many rows of each table belong in which memory, by a count for each row (address and number of u64, for each table).
#[pyfunction]
pub(crate) fn allocate_tiers<'py>(
    py: Python<'py>,
    shapes: Vec<ShapeArgs>,
    counts: Vec<(usize, usize)>,
    hbm_bytes: u64,
    dram_bytes: u64,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let shapes = shapes.into_iter().map(ShapeArgs::shape).collect::<PyResult<Vec<_>>>()?;
    let on_gpu = hbm_bytes > 0;
    let (orders, row_bytes, tiers) = py.detach(|| {
        let order = |&(address, len): &(usize, usize)| {
            // SAFETY: the Python half holds the counts until this returns.
            let counts: &[u64] = unsafe { slice(address, len) };
            HotnessOrder::new(RowCounts::Exact(
                counts.iter().map(|&count| u32::try_from(count).unwrap_or(u32::MAX)).collect(),
            ))
        };
        let orders: Vec<_> = counts.iter().map(order).collect();
        let row_bytes: Vec<_> =
            shapes.iter().map(|shape| shape.dtype.row_bytes(shape.dim).unwrap_or(u32::MAX)).collect();
        let in_memory = |&bytes: &u32| u64::from(if on_gpu { gpu_row_bytes(bytes) } else { bytes });
        let hotness: Vec<_> =
            orders.iter().zip(&row_bytes).map(|(order, bytes)| TableHotness::new(order, in_memory(bytes))).collect();
        let indices = shapes.iter().filter_map(|shape| shape.index_bytes).fold(0, u64::saturating_add);
        let (hbm, dram) = if on_gpu { (indices, 0) } else { (0, indices) };
        let budgets = MemoryBudgets { hbm: hbm_bytes.saturating_sub(hbm), dram: dram_bytes.saturating_sub(dram) };
        let tiers = allocate(&hotness, budgets);
        (orders, row_bytes, tiers)
    });
    let mut told = Vec::new();
    for (number, (shape, order)) in shapes.iter().zip(&orders).enumerate() {
        let at = |rows: &[u64]| rows.get(number).copied().unwrap_or(0);
        let (hbm, hot) = (at(&tiers.hbm), at(&tiers.hot));
        // Look-ups of rows of lower ranks.
        let below = |rank: u64| {
            let mut begin = 0;
            let counted = order.classes().iter().map(|class| {
                let rows = class.end.min(rank).saturating_sub(begin);
                begin = class.end;
                rows * u64::from(class.count)
            });
            counted.sum::<u64>()
        };
        let dict = PyDict::new(py);
        dict.set_item("name", &shape.name)?;
        dict.set_item("rows", shape.rows)?;
        dict.set_item("dim", shape.dim)?;
        dict.set_item("dtype", shape.dtype.name())?;
        dict.set_item("row_bytes", row_bytes.get(number))?;
        dict.set_item("index_bytes", shape.index_bytes)?;
        dict.set_item("hbm_rows", hbm)?;
        dict.set_item("dram_rows", hot - hbm)?;
        dict.set_item("seen_rows", order.seen())?;
        dict.set_item("lookups", (below(hbm), below(hot), below(u64::MAX)))?;
        told.push(dict);
    }
    Ok(told)
}
