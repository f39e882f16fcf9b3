"""The exceptions of the package. Each mirrors a typed error of the store or of an executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AddressError",
    "Busy",
    "Closed",
    "ConsentNeeded",
    "ContextLost",
    "Damaged",
    "DriveFailed",
    "ExchangeFailed",
    "FileError",
    "Forked",
    "GpuError",
    "InvalidArgument",
    "MissingIds",
    "NoSpace",
    "NoSuchGeneration",
    "NoSuchKey",
    "NoSuchRow",
    "NoSuchTable",
    "OpenError",
    "RankFailed",
    "RanksDisagree",
    "ReadOnly",
    "RowsFailed",
    "RunsFailed",
    "StoreFailed",
    "StoreInUse",
    "TableExists",
    "WarprowError",
    "WrongType",
]


class WarprowError(Exception):
    """What every exception of this package is."""

    #: What to do about it.
    remedy: str = "The message says what to do."

    def __str__(self) -> str:
        # Of KeyError and OSError the text would be another.
        return str(self.args[0]) if self.args else ""


class InvalidArgument(WarprowError, ValueError):
    """An argument's shape, range, device or layout."""

    remedy = "Give the argument as the message says."
    #: The argument's name.
    argument: str = ""


class WrongType(WarprowError, TypeError):
    """An argument's type, or the type of its elements."""

    remedy = "Convert the argument to one of the types that the message names."
    #: The argument's name.
    argument: str = ""


class AddressError(WarprowError, ValueError):
    """An address that is no drive's."""

    remedy = 'Give "emulated:PATH?size=4G", "0000:41:00.0", "vfio-user:SOCKET" or "attached:FILE", with options as the message says.'


class OpenError(WarprowError, OSError):
    """A drive or store that cannot be opened."""

    remedy = "Look at the drives with `warprow doctor`, and give all drives of the store."


class StoreInUse(OpenError):
    """Other processes, or this one, hold a drive; readers share emulated drives, and keep writers out."""

    remedy = "Close the store where it is open, or open it with read_only=True there and here; the message names the holders."


class ConsentNeeded(WarprowError):
    """A format would destroy data. Nothing was changed."""

    remedy = "Pass consent=error.token to agree to exactly the loss that the message names."
    #: Stands for exactly this loss.
    token: str = ""


class NoSuchTable(WarprowError, LookupError):
    """A table that the store does not have."""

    remedy = "Use one of the names in `known`."
    #: The name asked for.
    table: str = ""
    #: The tables that there are.
    known: Sequence[str] = ()


class TableExists(WarprowError, ValueError):
    """A load of a table that is there already."""

    remedy = "Choose another name, or load with replace=True or standby=True."
    #: The table's name.
    table: str = ""


class NoSuchGeneration(WarprowError, LookupError):
    """A generation that the store does not have."""

    remedy = "Use an id that Store.generations() lists."
    #: The id asked for.
    generation: int = 0


class NoSuchRow(WarprowError, IndexError):
    """An update of ids that the table does not have. Nothing was changed."""

    remedy = "Tables of ids do not grow: load the table anew, with more rows."
    #: The table.
    table: str = ""
    #: The first such ids, at most ten.
    ids: Sequence[int] = ()


class NoSuchKey(WarprowError, LookupError):
    """An update of keys that the table does not have. Nothing was changed."""

    remedy = "Update with create=True, which creates them."
    #: The table.
    table: str = ""
    #: The first such keys, at most ten.
    ids: Sequence[int] = ()


class NoSpace(WarprowError, OSError):
    """Too little free room on the drives."""

    remedy = "Drop a generation, or add a drive."
    #: Bytes needed.
    needed: int = 0
    #: Bytes free.
    free: int = 0


class ReadOnly(WarprowError, OSError):
    """A change of a store that was opened for reading."""

    remedy = "Open the store without read_only=True. Files that are attached are never written: load them into a store on drives."


class FileError(WarprowError, ValueError):
    """A file of tables that cannot be read."""

    remedy = "Look at the file; docs/formats.md lists the formats."
    #: The file.
    path: object = None


class MissingIds(WarprowError, IndexError):
    """Ids that their table does not have."""

    remedy = 'Look at the ids, or choose missing="zero", "default" or "skip".'
    #: Their positions in the ids, ascending; on CUDA that of the first alone.
    positions: Sequence[int] = ()
    #: How many there are.
    count: int = 0
    #: The first of them, on CUDA.
    id: int | None = None


class RowsFailed(WarprowError, OSError):
    """Rows that could not be read. All other rows are valid."""

    remedy = (
        "Look up again: that starts the drive's queues anew. Store.drives() says how each drive does, "
        "and Store.retry_drives() tries one again that was given up."
    )
    #: Positions of the ids whose rows failed, ascending; empty on CUDA, where the mask has them.
    positions: Sequence[int] = ()
    #: How many ids got no row.
    count: int = 0
    #: The drive of the first failure, by its address or name.
    drive: str | None = None
    #: What the first failed command was, and how it failed. None: it is not known, or no command failed (a checksum did not match, or
    #: the drive failed as a whole): the message says what did.
    command: str | None = None


class RunsFailed(WarprowError):
    """Runs of a graph failed before its latest run, which did not. What was wrong with them is overwritten."""

    remedy = "Call check() after each replay: then it raises what was wrong with that."
    #: How many failed.
    count: int = 0


class Damaged(WarprowError, OSError):
    """A row, or what says where a table's rows are, does not match its checksum."""

    remedy = "Load the table again; Store.verify() says how many rows are damaged."
    #: The table.
    table: str = ""
    #: The drive, where one is known.
    drive: str | None = None


class DriveFailed(WarprowError, OSError):
    """A drive that failed something else than a look-up."""

    remedy = "Look at the drive: Store.drives() says how each drive does."


class Busy(WarprowError):
    """What the call needs is in use: slots, tickets, queue pairs, or a log that another writer holds."""

    remedy = "Wait until others have ended, or plan with more slots."


class Closed(WarprowError, ValueError):
    """A call on a store, an executor or a plan that is closed."""

    remedy = "Open the store again."


class Forked(WarprowError, RuntimeError):
    """A call in a child that `fork` made after the store was opened."""

    remedy = "Open the store in the child, or start the child by spawn."
    #: The process that opened the store.
    pid: int = 0


class GpuError(WarprowError, RuntimeError):
    """CUDA, its driver, its memory, or the kernels."""

    remedy = "The message says what is lacking."


class ContextLost(GpuError):
    """The CUDA context is lost, because a kernel of this process failed."""

    remedy = "Start a new process: a lost context does not come back."


class RanksDisagree(WarprowError, ValueError):
    """Ranks that would look up for each other have other tables, features, plans or options. Every rank raises it."""

    remedy = "Give all ranks the same arguments and the same store; the message names the rank that differs."
    #: The first rank that differs from rank 0, or that could not take part.
    rank: int = 0
    #: What differs.
    what: str = ""


class RankFailed(WarprowError, RuntimeError):
    """Another rank could not do its part of a look-up. That rank raises what befell it; the group can go on."""

    remedy = "Look at the error that the rank raised."
    #: The rank.
    rank: int = 0
    #: The name of the class of what it raises.
    kind: str = ""


class ExchangeFailed(WarprowError, RuntimeError):
    """Ranks could not reach each other: one has died, or did not answer within the time-out of the process group."""

    remedy = "Start all ranks anew, with a new process group: this one is of no use any more."
    #: The ranks on this machine whose processes have ended; empty: none has, or it is not known.
    ranks: Sequence[int] = ()


class StoreFailed(WarprowError):
    """Everything else that a store reports."""


_CLASSES: dict[str, type[WarprowError]] = {
    name: found for name, found in list(globals().items()) if isinstance(found, type) and issubclass(found, WarprowError)
}


#: What errors of Rust call a thing, and what it is called here.
_NAMES = {
    "retry it (Controller::retry)": "retry it (Store.retry_drives)",
    "GpuOptions::with_overlay_bytes": "overlay_bytes=",
    "GpuOptions::overlay_bytes": "overlay_bytes=",
    "GpuOptions::with_adopting": "adopting=True",
    "GpuOptions::with_cache_bytes": "cache_bytes=",
    "GpuOptions::cache_bytes": "cache_bytes=",
    "GpuOptions::with_table_cache": "cache_shares=",
    "GpuOptions::cached_dram": "cache_dram=",
    "GpuOptions::with_hbm_rows": "hbm_rows=",
    "GpuOptions::one_kernel_ids": "one_kernel_ids",
    "choose Pooling::Sum, or leave the weights": 'give pooling="sum", or leave weighted=True out',
    "choose FailedRows::Zeros": 'choose on_failure="raise" or "mask"',
    "HostOptions::with_counters": "counter_bytes=",
    "CounterOptions::every": "count_every",
    "HostOptions::touch_epoch": "touch_epoch=",
    "GpuOptions::touch_epoch": "touch_epoch=",
    "plan with PlanOptions::with_adopt_room": "attach it with adopting=True",
    "plan with PlanOptions::with_prefetch": "make the module with prefetch=",
    "are listed by Controller::active_namespaces": "are listed by `warprow devices`",
    "as ControllerOptions::host_memory_limit allows": "within its limit",
    "ask the drive for fewer queues (ControllerOptions::queue_pairs)": "use a drive with fewer queues",
    "call QueuePair::recreate (BlockIo::recover)": "look up again, which makes it anew",
    "call QueuePair::recreate": "look up again, which makes it anew",
    "drop them, have their owners call QueuePair::leave,": "close the executors that have them,",
}


def _named(text: str) -> str:
    """A text of Rust's with the names that things have in Python."""
    if "::" in text:
        for rust, python in _NAMES.items():
            text = text.replace(rust, python)
    return text


def _make(kind: str, text: str, details: dict[str, Any]) -> WarprowError:
    """An exception of the class `kind`, with attributes. The native module calls this."""
    error = _CLASSES.get(kind, StoreFailed)(_named(text))
    for name, value in details.items():
        setattr(error, name, value)
    return error


def invalid(argument: str, text: str) -> InvalidArgument:
    """That an argument cannot be as it is."""
    error = InvalidArgument(f"{argument}: {text}")
    error.argument = argument
    return error


def wrong_type(argument: str, text: str) -> WrongType:
    """That an argument, or what it holds, is of the wrong type."""
    error = WrongType(f"{argument}: {text}")
    error.argument = argument
    return error
