"""What calls of a store return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np

_T = TypeVar("_T")


def make(record: type[_T], described: Mapping[str, Any]) -> _T:
    """A record of what the native module describes, without what the record has no field for."""
    names = {field.name for field in fields(record)}  # type: ignore[arg-type]
    return record(**{name: value for name, value in described.items() if name in names})


@dataclass(frozen=True)
class Table:
    """A table of a store."""

    name: str
    #: Number of rows.
    rows: int
    #: Elements of a row.
    dim: int
    #: Type of the elements as stored: "f32", "f16", "bf16", "i8", "u8", "f8e4m3", "f8e5m2", "q8", "q4",
    #: "mxfp8", "f8e4m3s", "nvfp4".
    dtype: str
    #: Bytes of a row.
    row_bytes: int
    #: Whether rows are looked up by keys instead of ids from 0 on.
    keyed: bool
    #: Whether each row has a checksum.
    checksums: bool
    #: The model that it was loaded with.
    model: str
    #: The generation that it belongs to.
    generation: int


@dataclass(frozen=True)
class Generation:
    """The tables of one load."""

    id: int
    model: str
    #: Names of its tables.
    tables: list[str]
    #: Those that look-ups find by name.
    found: list[str]
    #: Whether it was ever switched to; false: it is on standby.
    shown: bool
    #: Bytes on the drives.
    bytes: int
    #: Executors and others of this process that read it.
    readers: int


@dataclass(frozen=True)
class DriveState:
    """How a drive does."""

    name: str
    #: Why it serves nothing; None: it serves.
    failure: str | None
    #: How often its controller was reset since the store was opened.
    resets: int


@dataclass(frozen=True)
class ChangedFile:
    """A file of an attached table that has changed since it was attached."""

    path: str
    #: What is seen of it.
    what: str


@dataclass(frozen=True)
class LoadReport:
    """What a load did."""

    #: The new generation.
    generation: int
    #: Bytes written to drives, without metadata.
    bytes: int
    #: Generations all of whose tables were replaced.
    superseded: list[int]
    seconds: float


@dataclass(frozen=True)
class RerankReport:
    """What `Store.rerank` did."""

    #: Rows that are listed now.
    listed: int
    #: Rows that were listed before; `None`: there was no list, or none that counts.
    before: int | None
    #: Rows that are listed now and were not before.
    added: int
    #: Ids that were given and that the table does not have.
    missing: int
    #: Ids that were given again.
    repeated: int


@dataclass(frozen=True)
class ExpireReport:
    """What `Store.expire` did, or would do."""

    #: Keys that the table had, with those that updates created.
    keys: int
    #: Keys that were last touched before the epoch.
    expired: int
    #: Keys that were removed; 0 of a dry run.
    removed: int
    #: Keys that stay because no file has them, or because updates created them and no compaction has come since.
    unknown: int
    #: Keys that stay because their rows were updated, and no compaction has come since.
    updated: int


@dataclass(frozen=True)
class WarmReport:
    """What `Executor.warm` did, by ids as they were given."""

    #: Ids that were given.
    ids: int
    #: Ids whose row the cache had when the id was looked at last.
    cached: int
    #: Ids whose row lies in GPU memory or DRAM anyway: of a tier, updated, or of a created key.
    in_memory: int
    #: Ids that the table does not have.
    missing: int
    #: Ids whose row found no place: all that come into question are pinned, or held for look-ups under way.
    left: int


@dataclass(frozen=True)
class RestoreReport:
    """What `Executor.warm_from` did."""

    #: What came of each table's list.
    tables: dict[str, WarmReport]
    #: Those of these tables of which another generation was saved, or whose files have changed since.
    older: list[str]
    #: Tables of the file that the executor does not have, or of which it caches nothing.
    unknown: list[str]


@dataclass(frozen=True)
class PinReport:
    """What `Executor.pin` did, by different rows."""

    #: Rows that are pinned now and were not before.
    pinned: int
    #: Rows that were pinned before.
    already: int
    #: Rows of tiers in GPU memory or DRAM, which stay there anyway.
    in_memory: int
    #: Different ids that the table does not have.
    missing: int
    #: Rows that found no place, because look-ups under way hold all that come into question: pin them again.
    left: int


@dataclass(frozen=True)
class VerifyReport:
    """What a check of a table found."""

    #: Whether nothing that could be checked is damaged.
    is_sound: bool
    rows: int
    bytes: int
    #: Whether the table has checksums, so that its rows could be compared.
    checked: bool
    #: Number of damaged rows.
    damaged: int
    #: Ranks of the first of them, at most 100.
    first_damaged: list[int]
    #: Why it is not known which row belongs to which id; None: it is.
    damaged_ranks: str | None
    #: Why keys cannot be relied on; None: they can.
    damaged_keys: str | None
    #: Rows that were read wrong once, and right when they were read again.
    transient: int


class Exported(NamedTuple):
    """All rows of a table."""

    #: Shape (rows, dim): by id, or in the order of `keys`.
    rows: np.ndarray[Any, Any]
    #: Shape (rows,): int64 or uint64; None: the table has ids.
    keys: np.ndarray[Any, Any] | None
