//! Typed errors as Python exceptions. The classes are in `warprow/errors.py`, by the names of [`Kind`].

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use warprow_formats::FileError;
use warprow_gpu::GpuError;
use warprow_gpu_queues::GpuQueueError;
use warprow_layout::VolumeError;
use warprow_lookup::{InvalidBatch, LookupError, RowError};
use warprow_modules::{ModuleError, whole};
use warprow_plan::ProposalError;
use warprow_soft_controller::UriError;
use warprow_store::StoreError;

use crate::interrupt::take_raised;

/// What to do where a file was changed that a store has attached: no look-up finds its rows any more.
const ATTACH_AGAIN: &str =
    "Close the store, and open it again once nobody writes to the file. Store.changed_files() lists all that changed.";

/// What to do where updated rows would take more memory than they may.
const MAKE_ROOM: &str = "Store.compact(generation), and then Executor.adopt() of each executor, free memory of updated rows; \
                         warprow.open(..., overlay_bytes=...) allows more. One call of update needs room for all of its rows.";

/// The class of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AddressError,
    Busy,
    Closed,
    ConsentNeeded,
    ContextLost,
    Damaged,
    DriveFailed,
    FileError,
    Forked,
    GpuError,
    InvalidArgument,
    MissingIds,
    NoSpace,
    NoSuchGeneration,
    NoSuchKey,
    NoSuchRow,
    NoSuchTable,
    OpenError,
    ReadOnly,
    RowsFailed,
    RunsFailed,
    StoreFailed,
    StoreInUse,
    TableExists,
    WrongType,
}

static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// An exception of a class, with a text.
pub(crate) fn raise(kind: Kind, text: String) -> PyErr {
    raise_with(kind, text, |_| Ok(()))
}

/// An exception of a class, with a text and attributes.
pub(crate) fn raise_with(
    kind: Kind,
    text: String,
    attributes: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    Python::attach(|py| {
        let made = || {
            let details = PyDict::new(py);
            attributes(&details)?;
            let make = MAKE.get_or_try_init(py, || py.import("warprow.errors")?.getattr("_make").map(Bound::unbind))?;
            make.bind(py).call1((format!("{kind:?}"), &text, details))
        };
        made().map_or_else(|error| error, PyErr::from_value)
    })
}

/// An argument that cannot be, by its name.
pub(crate) fn invalid(argument: &str, text: impl Into<String>) -> PyErr {
    raise_with(Kind::InvalidArgument, text.into(), |details| details.set_item("argument", argument))
}

/// The exception of an error of the store.
pub(crate) fn of_store(error: StoreError) -> PyErr {
    let text = whole(&error);
    match error {
        StoreError::Address { .. } | StoreError::Property { .. } => raise(Kind::AddressError, text),
        StoreError::Emulated(
            UriError::Scheme { .. }
            | UriError::NoPath { .. }
            | UriError::Unknown { .. }
            | UriError::Twice { .. }
            | UriError::Value { .. }
            | UriError::Properties { .. },
        ) => raise(Kind::AddressError, text),
        StoreError::Emulated(UriError::InUse(_) | UriError::Mounted { .. } | UriError::Sharers { .. })
        | StoreError::Vfio(warprow_vfio::OpenError::InUse { .. } | warprow_vfio::OpenError::Busy { .. })
        | StoreError::VfioUser(warprow_vfio_user::OpenError::Busy { .. }) => raise(Kind::StoreInUse, text),
        StoreError::Emulated(_)
        | StoreError::Vfio(_)
        | StoreError::VfioUser(_)
        | StoreError::OpenedTwice { .. }
        | StoreError::OpenedForReading { .. }
        | StoreError::ImageLba { .. }
        | StoreError::Open(_) => raise(Kind::OpenError, text),
        StoreError::Attached(_) => raise(Kind::FileError, text),
        StoreError::Refused { token, .. } => {
            raise_with(Kind::ConsentNeeded, text, |details| details.set_item("token", token))
        }
        StoreError::NoSuchTable { table, known } => raise_with(Kind::NoSuchTable, text, |details| {
            details.set_item("table", table)?;
            details.set_item("known", known)
        }),
        StoreError::TableExists { table } => {
            raise_with(Kind::TableExists, text, |details| details.set_item("table", table))
        }
        StoreError::NoSuchRow { table, ids, .. } => raise_with(Kind::NoSuchRow, text, |details| {
            details.set_item("table", table)?;
            details.set_item("ids", ids)
        }),
        StoreError::NoSuchKey { table, keys } => {
            let keys: Vec<i128> = keys.iter().filter_map(|key| key.parse().ok()).collect();
            raise_with(Kind::NoSuchKey, text, |details| {
                details.set_item("table", table)?;
                details.set_item("ids", keys)
            })
        }
        StoreError::Driver(_) | StoreError::Drive(_) | StoreError::Function(_) | StoreError::NamespaceChanged(_) => {
            raise(Kind::DriveFailed, text)
        }
        StoreError::NoRoomToGrow { needed, free, chunk_size, .. }
        | StoreError::NoRoomToCreate { needed, free, chunk_size, .. } => no_space(text, needed, free, chunk_size),
        StoreError::Queues { .. }
        | StoreError::NoFreeSlot { .. }
        | StoreError::GpuBusy { .. }
        | StoreError::RerankBusy { .. } => raise(Kind::Busy, text),
        StoreError::Plan { .. } | StoreError::PlanOptions { .. } => invalid("features", text),
        StoreError::RowDamaged { table, drive, .. } => raise_with(Kind::Damaged, text, |details| {
            details.set_item("table", table)?;
            details.set_item("drive", drive)
        }),
        StoreError::ExecutorOptions { .. } => invalid("options", text),
        StoreError::UpdateRows { .. } => invalid("rows", text),
        StoreError::Keys { .. } | StoreError::NoKeyLeft { .. } => invalid("keys", text),
        StoreError::NotRemovable { .. } | StoreError::NoTouches { .. } => invalid("table", text),
        StoreError::TouchesFile { .. } => invalid("touches", text),
        StoreError::Volume(error) => of_volume(error, text),
        StoreError::OverlayFull { .. } => {
            raise_with(Kind::StoreFailed, text, |details| details.set_item("remedy", MAKE_ROOM))
        }
        _ => raise(Kind::StoreFailed, text),
    }
}

fn no_space(text: String, needed: u64, free: u64, chunk_size: u64) -> PyErr {
    raise_with(Kind::NoSpace, text, |details| {
        details.set_item("needed", needed.saturating_mul(chunk_size))?;
        details.set_item("free", free.saturating_mul(chunk_size))
    })
}

fn of_volume(error: VolumeError, text: String) -> PyErr {
    match error {
        VolumeError::ReadOnly { .. } => raise(Kind::ReadOnly, text),
        VolumeError::NoSpace { needed, free, chunk_size, .. }
        | VolumeError::NoLogSpace { needed, free, chunk_size, .. } => no_space(text, needed, free, chunk_size),
        VolumeError::NoSuchGeneration { id } => {
            raise_with(Kind::NoSuchGeneration, text, |details| details.set_item("generation", id))
        }
        VolumeError::InvalidTable { .. } | VolumeError::InvalidGeneration { .. } => invalid("source", text),
        VolumeError::Drive(_) => raise(Kind::DriveFailed, text),
        VolumeError::Busy | VolumeError::Rewriting { .. } | VolumeError::LogBusy { .. } => raise(Kind::Busy, text),
        _ => raise(Kind::StoreFailed, text),
    }
}

/// The exception of a file of tables that cannot be read.
pub(crate) fn of_file(error: FileError) -> PyErr {
    let (path, remedy) = (error.file.clone(), error.remedy.clone());
    let text = format!("{}: {}; {remedy}", path.display(), error.message());
    raise_with(Kind::FileError, text, |details| {
        details.set_item("remedy", remedy)?;
        details.set_item("path", path)
    })
}

/// The exception of a tier proposal that cannot be made.
pub(crate) fn of_proposal(error: ProposalError) -> PyErr {
    // What the command calls its options.
    let options = [("--allow-missing", "allow_missing=True"), ("--typical-host", "typical_host=True")];
    let remedy = options.iter().fold(error.remedy().to_owned(), |text, (from, to)| text.replace(from, to));
    let text = format!("{error}: {remedy}");
    let argument = match &error {
        ProposalError::Option { option: "gpu-cache", .. } => "gpu_cache_bytes".to_owned(),
        ProposalError::Option { option, .. } => option.replace('-', "_"),
        ProposalError::NoTables | ProposalError::Table { .. } => "tables".to_owned(),
        ProposalError::Index { budget, .. } | ProposalError::Budget { budget, .. } => {
            if *budget == "DRAM" { "dram_bytes" } else { "hbm_bytes" }.to_owned()
        }
        ProposalError::Drives { .. } => "drives".to_owned(),
        ProposalError::Timing(_) => "typical_host".to_owned(),
        _ => "trace".to_owned(),
    };
    match error {
        ProposalError::Trace(error) => of_file(error),
        ProposalError::File { path, .. } => raise_with(Kind::FileError, text, |details| {
            details.set_item("remedy", remedy)?;
            details.set_item("path", path)
        }),
        _ => raise_with(Kind::InvalidArgument, text, |details| {
            details.set_item("remedy", remedy)?;
            details.set_item("argument", argument)
        }),
    }
}

/// The argument of a module or a plan that does not fit.
fn argument_of_batch(invalid: &InvalidBatch) -> &'static str {
    match invalid {
        InvalidBatch::OffsetCount { .. } | InvalidBatch::Offset { .. } | InvalidBatch::Uneven { .. } => "offsets",
        InvalidBatch::Weights { .. } | InvalidBatch::WeightCount { .. } => "weights",
        InvalidBatch::OutputType { .. }
        | InvalidBatch::Stride { .. }
        | InvalidBatch::OutputLength { .. }
        | InvalidBatch::OutputBuffer(_) => "out",
        _ => "input",
    }
}

/// The exception of a look-up on the host.
pub(crate) fn of_lookup(error: LookupError) -> PyErr {
    let text = whole(&error);
    match error {
        LookupError::Invalid(invalid_batch) => invalid(argument_of_batch(&invalid_batch), text),
        LookupError::MissingIds { positions, .. } => raise_with(Kind::MissingIds, text, |details| {
            details.set_item("count", positions.len())?;
            details.set_item("positions", positions)
        }),
        LookupError::RowsFailed { positions, source, .. } => raise_with(Kind::RowsFailed, text, |details| {
            details.set_item("count", positions.len())?;
            details.set_item("positions", positions)?;
            match &source {
                RowError::Drive(error) => {
                    details.set_item("drive", error.function())?;
                    details.set_item("command", error.command())
                }
                RowError::FileChanged(changed) => {
                    details.set_item("drive", changed.file.display().to_string())?;
                    details.set_item("remedy", ATTACH_AGAIN)
                }
                RowError::Checksum { drive, .. } => details.set_item("drive", drive),
                RowError::MemberMissing { drives } => details.set_item("drive", drives.join(", ")),
                _ => Ok(()),
            }
        }),
        LookupError::SlotHoldsBatch => raise(Kind::Busy, text),
        LookupError::NamespaceChanged(_) => raise(Kind::DriveFailed, text),
        _ => invalid("input", text),
    }
}

/// The exception of a module's look-up.
pub(crate) fn of_module(error: ModuleError) -> PyErr {
    let text = error.whole();
    match error {
        ModuleError::Invalid { argument, .. } => {
            raise_with(Kind::InvalidArgument, text, |details| details.set_item("argument", argument))
        }
        ModuleError::WrongType { argument, .. } => {
            raise_with(Kind::WrongType, text, |details| details.set_item("argument", argument))
        }
        ModuleError::Store(error) => of_store(*error),
        ModuleError::Lookup(error) => of_lookup(*error),
        ModuleError::Gpu(error) => of_gpu(*error),
        ModuleError::Busy(_) => raise(Kind::Busy, text),
        ModuleError::Closed => raise(Kind::Closed, text),
        ModuleError::Forked(pid) => raise_with(Kind::Forked, text, |details| details.set_item("pid", pid)),
        ModuleError::Interrupted | ModuleError::Maker(_) => {
            take_raised().unwrap_or_else(|| raise(Kind::StoreFailed, text))
        }
        ModuleError::Text(_) => invalid("spec", text),
        _ => raise(Kind::StoreFailed, text),
    }
}

/// The argument of a module that the GPU executor means.
fn argument_of(what: &str) -> &str {
    match what {
        "the batch" => "input",
        "the weights" => "per_sample_weights",
        "the offsets" => "offsets",
        "the output" => "out",
        other => other,
    }
}

/// The exception of a look-up on a GPU.
pub(crate) fn of_gpu(error: GpuError) -> PyErr {
    let text = whole(&error);
    match error {
        GpuError::Store(error) => of_store(error),
        GpuError::Driver(_) | GpuError::RingTest(_) => raise(Kind::DriveFailed, text),
        GpuError::Gpu(GpuQueueError::ContextLost { .. }) => raise(Kind::ContextLost, text),
        GpuError::Unsupported(_) | GpuError::Unfit(_) => invalid("features", text),
        GpuError::Invalid { what, .. } => invalid(argument_of(what), text),
        GpuError::Flawed(what, _) => invalid(if what.contains("offsets") { "offsets" } else { "input" }, text),
        GpuError::NoFreeSlot { .. } | GpuError::SlotHoldsBatch | GpuError::Busy(_) => raise(Kind::Busy, text),
        GpuError::RowsFailed { failed, first, .. } => raise_with(Kind::RowsFailed, text, |details| {
            details.set_item("count", failed)?;
            match first {
                Some(fault) => {
                    details.set_item("drive", &fault.drive)?;
                    details.set_item("command", fault.failed())
                }
                None => Ok(()),
            }
        }),
        GpuError::MissingIds { missing, first, .. } => raise_with(Kind::MissingIds, text, |details| {
            details.set_item("count", missing)?;
            details.set_item("positions", [first.position])?;
            details.set_item("id", first.id)
        }),
        GpuError::RunsFailed { failures, .. } => {
            raise_with(Kind::RunsFailed, text, |details| details.set_item("count", failures))
        }
        GpuError::TableDamaged { table, .. } => {
            raise_with(Kind::Damaged, text, |details| details.set_item("table", table))
        }
        GpuError::CacheTooSmall { .. } | GpuError::NoCache => invalid("cache_bytes", text),
        GpuError::CacheShares(_) | GpuError::CacheShareTooSmall { .. } => invalid("cache_shares", text),
        GpuError::CachePinsFull { .. } => invalid("ids", text),
        GpuError::CacheFile { .. } => invalid("path", text),
        GpuError::CacheBusy { .. } => raise(Kind::Busy, text),
        _ => raise(Kind::GpuError, text),
    }
}

/// The exception of an executor that has no cache.
pub(crate) fn no_cache() -> PyErr {
    of_gpu(GpuError::NoCache)
}
