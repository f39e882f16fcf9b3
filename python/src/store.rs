//! Stores: opening, loading, updating, checking.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_formats::widen;
use warprow_layout::{ChunkSpread, DType, Ranks};
use warprow_store::{
    CreateDrive, Device, DriveAddress, ExpireOptions, FormatConsent, FormatProposal, FormatSettings, LastTouches,
    LbaChoice, LoadOptions, OpenOptions, RerankOptions, StoreAccess, StoreError, TableInfo, UpdateOptions,
};

use crate::arrays::{slice, slice_mut};
use crate::error::{invalid, of_store};
use crate::faults::DriveFaults;
use crate::features::AttachArgs;
use crate::gpu::Gpu;
use crate::held::Held;
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::load::load;
use crate::load_source::TableArgs;
use crate::report;

/// An open store.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct Store {
    store: Held<warprow_store::Store>,
    faults: DriveFaults,
}

impl Store {
    fn new((store, faults): (warprow_store::Store, DriveFaults)) -> Self {
        Self { store: Held::new("store", store), faults }
    }
}

fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout)
        .map_err(|_| invalid("timeout", format!("{timeout} is no number of seconds from 0 on")))
}

fn options(timeout: f64, overlay_bytes: Option<u64>) -> PyResult<OpenOptions> {
    let options = OpenOptions::default().with_timeout(seconds(timeout)?);
    Ok(overlay_bytes.into_iter().fold(options, OpenOptions::with_overlay_bytes))
}

fn devices(drives: &[String], create: CreateDrive, access: StoreAccess) -> Result<Vec<Device>, StoreError> {
    let mut devices = Vec::new();
    for drive in drives {
        let address = drive.parse::<DriveAddress>()?.for_access(access);
        devices.push(Device::open_beside(&devices, &address, create)?);
    }
    Ok(devices)
}

/// Opens the store on `drives`; `access` is "write", "read" or "degraded".
#[pyfunction]
pub(crate) fn open(
    py: Python<'_>,
    drives: Vec<String>,
    access: &str,
    timeout: f64,
    overlay_bytes: Option<u64>,
) -> PyResult<Store> {
    let options = options(timeout, overlay_bytes)?;
    let options = match access {
        "read" => options.with_read_only(),
        "degraded" => options.with_degraded(),
        _ => options,
    };
    let opened = py.detach(|| {
        let devices = devices(&drives, CreateDrive::Never, options.access)?;
        Ok((warprow_store::Store::open(&devices, &options)?, DriveFaults::new(&devices)))
    });
    opened.map(Store::new).map_err(of_store)
}

/// Formats `drives`, makes a store on them and opens it.
#[pyfunction]
pub(crate) fn format(
    py: Python<'_>,
    drives: Vec<String>,
    lba: Option<u32>,
    chunk_size: Option<u64>,
    consent: Option<String>,
    timeout: f64,
    overlay_bytes: Option<u64>,
) -> PyResult<Store> {
    let settings = FormatSettings::default().with_open(options(timeout, overlay_bytes)?);
    let settings = lba.into_iter().fold(settings, |settings, lba| settings.with_lba(LbaChoice::Bytes(lba)));
    let settings = chunk_size.into_iter().fold(settings, FormatSettings::with_chunk_size);
    let consent = consent.map_or(FormatConsent::None, FormatConsent::Token);
    let formatted = py.detach(|| {
        let devices = devices(&drives, CreateDrive::IfMissing, StoreAccess::ReadWrite)?;
        let store = FormatProposal::new(&devices, settings)?.run(&consent, &mut |_, _| {})?;
        Ok((store, DriveFaults::new(&devices)))
    });
    formatted.map(Store::new).map_err(of_store)
}

/// A list of descriptions.
fn list<'py, T>(
    py: Python<'py>,
    things: &[T],
    describe: fn(Python<'py>, &T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    things.iter().map(|thing| describe(py, thing)).collect()
}

#[pymethods]
impl Store {
    /// Lets go of the drives, once nothing else holds them.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store.take()?;
        py.detach(|| drop(store));
        Ok(())
    }

    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let store = self.store.get()?;
        let tables = py.detach(|| store.tables());
        list(py, &tables, report::of_table)
    }

    fn generations<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let store = self.store.get()?;
        let generations = py.detach(|| store.generations());
        list(py, &generations, report::of_generation)
    }

    fn drives<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let store = self.store.get()?;
        let states = py.detach(|| store.drive_states());
        list(py, &states, report::of_drive)
    }

    fn changed_files<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let store = self.store.get()?;
        let changed = py.detach(|| store.changed_files());
        list(py, &changed, report::of_changed_file)
    }

    fn retry_drives<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let store = self.store.get()?;
        let states = py.detach(|| store.retry_drives());
        list(py, &states, report::of_drive)
    }

    /// Has reads of an emulated drive fail; `times` of `None`: all of them, from the `nth` on.
    fn inject_fault(&self, py: Python<'_>, drive: usize, fault: &str, nth: u64, times: Option<u64>) -> PyResult<()> {
        let _open = self.store.get()?;
        py.detach(|| self.faults.inject(drive, fault, nth, times))
    }

    fn clear_faults(&self) -> PyResult<()> {
        let _open = self.store.get()?;
        self.faults.clear();
        Ok(())
    }

    fn free_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let store = self.store.get()?;
        Ok(py.detach(|| store.free_bytes()))
    }

    /// The generation of a table that look-ups find; `None`: there is no such table.
    fn generation_of(&self, py: Python<'_>, table: &str) -> PyResult<Option<u64>> {
        let store = self.store.get()?;
        Ok(py.detach(|| store.table(table).map(|table| table.generation)))
    }

    #[allow(clippy::too_many_arguments, reason = "Python passes them by position")]
    fn load<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<TableArgs>,
        model: String,
        replace: bool,
        standby: bool,
        span: &str,
        memory: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let store = self.store.get()?;
        let mut options = LoadOptions::default().with_memory(memory);
        options.span = match span {
            "packed" => ChunkSpread::Packed,
            "whole" => ChunkSpread::Whole,
            _ => return Err(invalid("span", format!("{span:?}: give \"packed\" or \"whole\""))),
        };
        let options = if replace { options.with_replace() } else { options };
        let options = if standby { options.with_standby() } else { options };
        // SAFETY: the Python half holds the arrays until this returns, and says that nobody may write to them.
        let loaded = py.detach(|| unsafe { load(&store, &model, &tables, &options, progress) });
        report::of_load(py, &loaded?)
    }

    /// `ids`: address and number of u64; `rows`: address and bytes.
    fn update(
        &self,
        py: Python<'_>,
        table: &str,
        ids: (usize, usize),
        rows: (usize, usize),
        generation: Option<u64>,
        create: bool,
    ) -> PyResult<u64> {
        let store = self.store.get()?;
        let options = generation.into_iter().fold(UpdateOptions::default(), UpdateOptions::with_generation);
        let options = if create { options.with_created_keys() } else { options };
        // SAFETY: the Python half made both arrays for this call.
        let (ids, rows) = unsafe { (slice(ids.0, ids.1), slice(rows.0, rows.1)) };
        py.detach(|| store.update_with(table, ids, rows, &options)).map_err(of_store)
    }

    /// `keys`: address and number of u64.
    fn remove(&self, py: Python<'_>, table: &str, keys: (usize, usize), generation: Option<u64>) -> PyResult<u64> {
        let store = self.store.get()?;
        let options = generation.into_iter().fold(UpdateOptions::default(), UpdateOptions::with_generation);
        // SAFETY: the Python half made the array for this call.
        let keys = unsafe { slice(keys.0, keys.1) };
        py.detach(|| store.remove_with(table, keys, &options)).map_err(of_store)
    }

    /// Removes the keys that were last touched before an epoch, as files tell it.
    fn expire<'py>(
        &self,
        py: Python<'py>,
        table: &str,
        touches: Vec<PathBuf>,
        before: u16,
        batch: usize,
        dry_run: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let store = self.store.get()?;
        let done = py.detach(|| {
            let mut merged = LastTouches::default();
            for path in touches {
                let failed = |source| StoreError::TouchesFile { path: path.clone(), source };
                let absent = || failed(std::io::Error::from(std::io::ErrorKind::NotFound).into());
                merged.merge(&LastTouches::read(&path).map_err(failed)?.ok_or_else(absent)?);
            }
            match dry_run {
                true => store
                    .expired_keys(table, &merged, before)
                    .map(|found| (found.present, found.keys.len() as u64, 0, found.unknown, found.updated)),
                false => store
                    .expire(table, &merged, &ExpireOptions::before(before).with_batch(batch))
                    .map(|done| (done.present, done.removed, done.removed, done.unknown, done.updated)),
            }
        });
        let (keys, expired, removed, unknown, updated) = done.map_err(of_store)?;
        let report = PyDict::new(py);
        for (name, count) in
            [("keys", keys), ("expired", expired), ("removed", removed), ("unknown", unknown), ("updated", updated)]
        {
            report.set_item(name, count)?;
        }
        Ok(report)
    }

    fn verify<'py>(&self, py: Python<'py>, table: &str, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.store.get()?;
        let total = store.table(table).map_or(u64::MAX, |table| table.rows);
        let mut interrupt = Interrupt::new(progress);
        let verified = py.detach(|| store.verify(table, &mut |rows| interrupt.flow(rows, total)));
        let verified = verified.map_err(|error| match error {
            StoreError::Interrupted => interrupt.or(|| of_store(StoreError::Interrupted)),
            error => of_store(error),
        })?;
        report::of_verify(py, &verified)
    }

    fn switch(&self, py: Python<'_>, generation: u64, allow_vanishing: bool) -> PyResult<()> {
        let store = self.store.get()?;
        py.detach(|| store.switch(generation, allow_vanishing)).map_err(of_store)
    }

    fn drop_generation(&self, py: Python<'_>, generation: u64, allow_vanishing: bool) -> PyResult<()> {
        let store = self.store.get()?;
        py.detach(|| match allow_vanishing {
            true => store.drop_shown_generation(generation),
            false => store.drop_generation(generation),
        })
        .map_err(of_store)
    }

    fn compact(&self, py: Python<'_>, generation: u64) -> PyResult<usize> {
        let store = self.store.get()?;
        py.detach(|| store.compact(generation)).map_err(of_store)
    }

    /// `ids`: address and number of u64, the hottest row first; `None`: the table has no list any more.
    fn rerank<'py>(&self, py: Python<'py>, table: &str, ids: Option<(usize, usize)>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.store.get()?;
        let options = RerankOptions::new(table);
        // SAFETY: the Python half made the array for this call.
        let options = ids.into_iter().fold(options, |options, ids| options.with_ids(unsafe { slice(ids.0, ids.1) }));
        let report = py.detach(|| store.rerank(&options)).map_err(of_store)?;
        report::of_rerank(py, &report)
    }

    /// What [`export_to`](Self::export_to) would write: rows, elements of a row, and their type ("f32" for types that arrays do not
    /// have); and whether there are keys.
    fn export_shape(&self, py: Python<'_>, table: &str) -> PyResult<ExportShape> {
        let store = self.store.get()?;
        py.detach(|| shape_of_export(&store, table)).map_err(of_store)
    }

    /// Writes all rows to an array (address, bytes), by id; rows of a table with keys by rank, and their keys to another array
    /// (address, number of u64). Both were made for what [`export_shape`](Self::export_shape) said. False: the table has another shape by
    /// now, and the arrays mean nothing.
    fn export_to(
        &self,
        py: Python<'_>,
        table: &str,
        shape: ExportShape,
        rows: (usize, usize),
        keys: Option<(usize, usize)>,
    ) -> PyResult<bool> {
        let store = self.store.get()?;
        // SAFETY: the Python half made both arrays for this call, and nobody else has them.
        let (rows, keys) = unsafe { (slice_mut(rows.0, rows.1), keys.map(|(address, len)| slice_mut(address, len))) };
        let mut interrupt = Interrupt::new(None);
        let written = py.detach(|| export(&store, (table, &shape), rows, keys, &mut interrupt));
        written.map_err(|error| match error {
            StoreError::Interrupted => interrupt.or(|| of_store(StoreError::Interrupted)),
            error => of_store(error),
        })
    }

    fn attach_host(&self, py: Python<'_>, args: AttachArgs) -> PyResult<Host> {
        let store = self.store.get()?;
        Host::attach(py, &store, args)
    }

    fn attach_gpu(&self, py: Python<'_>, device: u32, args: AttachArgs) -> PyResult<Gpu> {
        let store = self.store.get()?;
        Gpu::attach(py, &store, device, args)
    }

    /// Whether it is open, in this process.
    fn is_open(&self) -> bool {
        self.store.get().is_ok()
    }
}

/// A table by its name.
fn table_of(store: &warprow_store::Store, table: &str) -> Result<TableInfo, StoreError> {
    let known = || store.tables().into_iter().map(|it| it.name).collect();
    store.table(table).ok_or_else(|| StoreError::NoSuchTable { table: table.to_owned(), known: known() })
}

/// The type that rows are exported as.
fn exported(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::F16 | DType::I8 | DType::U8 => dtype,
        _ => DType::F32,
    }
}

/// Rows, elements of a row, and their type, of what is exported; and of a table with keys whether these are signed.
type ExportShape = (u64, u32, String, Option<bool>);

fn shape_of_export(store: &warprow_store::Store, table: &str) -> Result<ExportShape, StoreError> {
    let info = table_of(store, table)?;
    let (created, removed) = match info.keys {
        Some(_) => (store.created(table)?.len() as u64, store.removed_ranks(table)?.len() as u64),
        None => (0, 0),
    };
    let signed = info.keys.map(|keys| keys.kind == warprow_store::KeyKind::I64);
    Ok((info.rows + created - removed, info.dim, exported(info.dtype).name().to_owned(), signed))
}

/// Whether the arrays have all rows of the table, each once: not if it changes its shape or its generation meanwhile.
fn export(
    store: &warprow_store::Store,
    (table, shape): (&str, &ExportShape),
    rows: &mut [u8],
    keys: Option<&mut [u64]>,
    interrupt: &mut Interrupt,
) -> Result<bool, StoreError> {
    let (generation, _) = store.generation(table)?;
    if shape_of_export(store, table)? != *shape {
        return Ok(false);
    }
    let info = table_of(store, table)?;
    let to = exported(info.dtype);
    let row_bytes = to.row_bytes(info.dim).unwrap_or(1) as usize;
    let ids = match info.keys {
        None => store.ranks(table)?.as_ref().map(Ranks::inverse),
        Some(_) => None,
    };
    let removed = if info.keys.is_some() { store.removed_ranks(table)? } else { Vec::new() };
    let mut wide = vec![0.0f32; info.dim as usize];
    let (mut done, mut has_no_place, mut interrupted) = (0, false, false);
    let mut put = |rank: u64, row: &[u8]| {
        let Err(before) = removed.binary_search(&rank) else { return ControlFlow::Continue(()) };
        let id = ids.as_ref().map_or(Some(rank), |ids| ids.get(rank)).unwrap_or(rank) as usize - before;
        let Some(place) = rows.get_mut(id * row_bytes..(id + 1) * row_bytes) else {
            has_no_place = true;
            return ControlFlow::Break(());
        };
        if to == info.dtype {
            place.copy_from_slice(row);
        } else {
            widen(info.dtype, row, &mut wide);
            place.chunks_exact_mut(4).zip(&wide).for_each(|(place, x)| place.copy_from_slice(&x.to_le_bytes()));
        }
        done += 1;
        interrupted |= done % 4096 == 0 && interrupt.flow(done, u64::MAX).is_break();
        if interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    // It is no error of the scan where `put` stops it.
    store.scan_checked(table, &mut put)?;
    if let Some(keys) = keys {
        let created = store.created(table)?;
        let stored = store.keys(table)?.unwrap_or_default();
        let left = (0..).zip(stored).filter(|(rank, _)| removed.binary_search(rank).is_err()).map(|(_, key)| key);
        let all = left.chain(created.iter().map(|(key, _)| *key));
        keys.iter_mut().zip(all).for_each(|(place, key)| *place = key);
        let _ = (info.rows..).zip(&created).try_for_each(|(rank, (_, row))| put(rank, row));
    }
    if interrupted {
        return Err(StoreError::Interrupted);
    }
    // A switch leads to another generation. A compaction may put rows of keys at other ranks, in another version of this one.
    let (now, _) = store.generation(table)?;
    let is_the_same = if info.keys.is_some() { Arc::ptr_eq(&now, &generation) } else { now.id == generation.id };
    Ok(is_the_same && !has_no_place && done == shape.0)
}
