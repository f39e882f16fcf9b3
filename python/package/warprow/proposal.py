"""Tier proposals: which rows belong in GPU memory, in DRAM and on drives, and what look-ups then cost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _arrays, _native, _options
from .errors import invalid, wrong_type
from .records import make

if TYPE_CHECKING:
    from .store import Store

@dataclass(frozen=True)
class TableShape:
    """The shape of a table that tiers are proposed for.

    Parameters
    ----------
    rows, dim : int
        Rows, and elements of a row.
    dtype : str
        The type to store, as of `Store.load`.
    keyed : bool
        Whether rows are looked up by keys: their index takes memory besides.
    """

    rows: int
    dim: int
    dtype: str = "f32"
    keyed: bool = False


@dataclass(frozen=True)
class TableTiers:
    """What is proposed for a table: its hottest rows lie in GPU memory, the next in DRAM, all others on drives alone."""

    name: str
    #: Rows of the table, elements of a row, their type, and bytes of a row.
    rows: int
    dim: int
    dtype: str
    row_bytes: int
    #: Rows in GPU memory.
    hbm_rows: int
    #: Rows in DRAM.
    dram_rows: int
    #: Rows that were looked up, as far as counted.
    seen_rows: int
    #: Bytes of the index of keys; None: the table has ids.
    index_bytes: int | None = None
    #: By how much the count of a row may be too low; 0: counting was exact.
    count_error: int = 0
    #: What sharing of LBAs by rows that are looked up together does; None: it was not tried.
    grouping: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Interval:
    """Where the share of ids in memory will be, for so many queries behind the trace."""

    queries: int
    #: For this share of traces that were not seen; and the share of traces for which it was so when that was measured.
    coverage: float
    measured: float
    low: float
    high: float


@dataclass(frozen=True)
class Expected:
    """What look-ups will do, by the part of the trace that nothing was learnt from."""

    #: Shares of ids whose rows are in GPU memory, in DRAM and on drives.
    hbm: float
    dram: float
    ssd: float
    #: Half of the first interval.
    error: float
    intervals: list[Interval]
    #: Of a look-up: ids, different rows on drives, read commands, bytes read.
    ids: float
    rows_ssd: float
    commands: float
    bytes: float
    #: Bytes read for each byte of a row that was asked for.
    amplification: float
    #: Of one slot, one look-up after another.
    lookups_per_second: float
    ids_per_second: float
    iops_per_drive: float
    #: The share of the time that is spent waiting for drives.
    waited: float
    #: What look-ups wait for: "drives", "host", "gpu" or "unknown".
    bound: str


@dataclass(frozen=True)
class CacheComparison:
    """What memory of one size finds as the cache of an executor on the CPU, and as memory for the rows that were hottest."""

    #: Bytes of memory.
    bytes: int
    #: Shares of the ids held out whose rows the cache has, and the hottest rows are.
    cache: float
    tier: float
    #: The same shares of the different rows of look-ups.
    cache_rows: float
    tier_rows: float
    #: Where the share of the hottest rows will be in the queries behind the trace; None: it is not known.
    interval: Interval | None
    #: Which is ahead by more than half of that interval: "cache", "tier" or "neither".
    ahead: str


@dataclass(frozen=True)
class GpuCacheComparison:
    """What GPU memory of one size finds as the cache of an executor on a GPU, and as memory for the rows that were hottest."""

    #: Bytes of GPU memory, and the least that an executor takes for a cache of these tables and look-ups.
    bytes: int
    least: int
    #: Shares of the ids held out whose rows the cache has: with `cache_admission="always"`, and with `"sketch"`.
    always: float
    sketch: float
    #: The share of these ids that the hottest rows are.
    tier: float
    #: The same shares of the different rows of look-ups.
    always_rows: float
    sketch_rows: float
    tier_rows: float
    #: Where the share of the hottest rows will be in the queries behind the trace; None: it is not known.
    interval: Interval | None
    #: Which is ahead by more than half of that interval, the better cache or the hottest rows: "cache", "tier" or "neither".
    ahead: str


class Proposal:
    """Which rows belong in which memory. `plan` makes one, `read` reads one from a file.

    >>> proposal = warprow.plan(store, {"user": ids}, dram_bytes=1 << 30)
    >>> store.load(tables, plan=proposal)
    >>> executor = store.attach(**proposal.attach_options())
    """

    def __init__(self, tables: list[TableTiers], shares: tuple[float, float, float], told: dict[str, Any]) -> None:
        #: What is proposed for each table.
        self.tables = tables
        #: Shares of ids whose rows are in GPU memory, in DRAM and on drives.
        self.shares = shares
        self.hbm_bytes: int = told["budgets"]["hbm"]
        self.dram_bytes: int = told["budgets"]["dram"]
        #: What look-ups will do; None of a proposal by counts.
        self.expected: Expected | None = None
        #: What other budgets would give, as `warprow plan --json` tells it.
        self.curve: list[dict[str, Any]] = told.get("curve", [])
        #: Queries and ids of the trace; None of a proposal by counts.
        self.trace: dict[str, int] | None = told.get("trace")
        #: How a cache compares with the hottest rows, where `plan` was asked for it; a file does not have it.
        self.cache: CacheComparison | None = None
        self.gpu_cache: GpuCacheComparison | None = None
        self._native: _native.Proposal | None = None

    @classmethod
    def _of(cls, native: _native.Proposal) -> Proposal:
        told = json.loads(native.json())
        tables = [make(TableTiers, table) for table in told["tables"]]
        expected = told["expected"]
        made = cls(tables, (expected["hbm"], expected["dram"], expected["ssd"]), told)
        intervals = [make(Interval, interval) for interval in expected["intervals"]]
        made.expected = make(Expected, {**expected, "intervals": intervals})
        cache, gpu_cache = json.loads(native.caches())
        made.cache = _compared(CacheComparison, cache)
        made.gpu_cache = _compared(GpuCacheComparison, gpu_cache)
        made._native = native
        return made

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Proposal:
        """Reads the file that `save`, or the command `warprow plan --out`, has written.

        Parameters
        ----------
        path : path
            The file.

        Raises
        ------
        FileError
            The file cannot be read, or is no proposal.
        """
        return cls._of(_native.read_proposal(os.fspath(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file, for `read` and for the command `warprow load --plan`. A file that exists is overwritten.

        Parameters
        ----------
        path : path
            The file.

        Raises
        ------
        InvalidArgument
            The proposal was made by counts.
        FileError
            The file cannot be written.
        """
        self._traced("it cannot be saved: load with hotness= and the same counts").save(os.fspath(path))

    def svg(self) -> str:
        """A picture of what other budgets would give.

        Raises
        ------
        InvalidArgument
            The proposal was made by counts.
        """
        return self._traced("it has no curve").svg()

    def table(self, name: str) -> TableTiers:
        """What is proposed for the table of that name.

        Parameters
        ----------
        name : str
            Its name.

        Raises
        ------
        InvalidArgument
            The proposal has no table of that name.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise invalid("name", f"there is no table {name!r} in the proposal; it has {', '.join(it.name for it in self.tables)}")

    def attach_options(self) -> dict[str, Any]:
        """Options of `Store.attach` with which an executor keeps these rows in memory, of tables that were loaded by the proposal."""
        indices = sum(table.index_bytes or 0 for table in self.tables)
        if self.hbm_bytes > 0:
            rows = {table.name: table.hbm_rows for table in self.tables}
            return {"hbm_bytes": max(self.hbm_bytes - indices, 0), "dram_bytes": self.dram_bytes, "hbm_rows": rows}
        return {"dram_bytes": max(self.dram_bytes - indices, 0)}

    def _traced(self, otherwise: str) -> _native.Proposal:
        if self._native is None:
            raise invalid("proposal", f"it was made by counts, not by a trace, and {otherwise}")
        return self._native

    def _of_table(self, name: str) -> _native.Proposal | None:
        """The native proposal, if it has a table of that name."""
        native = self._traced("no table can be loaded by it: load with hotness= and the same counts")
        return native if any(table.name == name for table in self.tables) else None

    def __repr__(self) -> str:
        hbm, dram, drives = (f"{share:.1%}" for share in self.shares)
        names = ", ".join(table.name for table in self.tables)
        return f"<warprow.Proposal for {names}: {hbm} of ids from GPU memory, {dram} from DRAM, {drives} from drives>"


def plan(
    tables: Store | Mapping[str, TableShape | tuple[int, int] | tuple[int, int, str]],
    trace: Mapping[str | tuple[str, ...], Any] | None = None,
    *,
    hotness: Mapping[str, Any] | None = None,
    hbm_bytes: int = 0,
    dram_bytes: int = 0,
    drives: str = "gen5-tlc",
    drive_count: int = 1,
    drive_bytes: int = 0,
    lba: int = 512,
    emulated: bool = False,
    batch: int = 4096,
    held_out: float = 0.2,
    group: str = "auto",
    memory: int = 2 << 30,
    allow_missing: bool = False,
    typical_host: bool = False,
    seed: int = 1,
    cache_bytes: int = 0,
    gpu_cache_bytes: int = 0,
    progress: Any = None,
) -> Proposal:
    """Proposes which rows of each table belong in GPU memory, in DRAM and on drives. It moves nothing.

    By a trace of past look-ups it also says what look-ups will cost, as `warprow plan` does: learnt from the first part of the trace, and
    tested on the rest. By counts of look-ups it says which rows belong where, and how many of these look-ups they get.

    Parameters
    ----------
    tables : Store, or mapping of str to TableShape or (rows, dim) or (rows, dim, dtype)
        The tables; of a store those that the trace, or the counts, are given of.
    trace : mapping of str or tuple of str to what was looked up there
        An array of ids, shape (queries,) or (queries, n); `(ids, offsets)` with offsets of shape (queries + 1,); or, for one table or a
        tuple of tables, a file of traces as `warprow plan --trace` takes it: one slot for each table, in their order. All have the same
        queries.
    hotness : mapping of str to array of integers
        In the place of a trace: by table how often each row was looked up.
    hbm_bytes, dram_bytes : int
        Memory for rows and indices of keys. With GPU memory, look-ups run on the GPU.
    drives : str
        What the drives are like: "none", "p5800x", "gen5-tlc" or "gen6".
    drive_count, drive_bytes, lba : int
        How many there are, bytes of each (0: as many as needed), and bytes of an LBA.
    emulated : bool
        Whether the drives are emulated by threads of this machine.
    batch : int
        Queries of a look-up.
    held_out : float
        The share of the trace, at its end, that the proposal is tested on: above 0, up to 0.5.
    group : str
        Whether rows that are looked up together share LBAs: "auto", "on", "off".
    memory : int
        Bytes for counting.
    allow_missing : bool
        Whether ids that a table lacks are counted rather than refused.
    typical_host : bool
        Whether to take a typical processor's costs rather than measure this one, which takes a second or two.
    seed : int
        Seed of what is drawn.
    cache_bytes, gpu_cache_bytes : int
        Of a trace, also compare a cache of so many bytes, of an executor on the CPU or on a GPU, with the hottest rows in as many bytes:
        `Proposal.cache`, `Proposal.gpu_cache`. 0: none.
    progress : callable or tqdm, optional
        Called with queries read and queries of the pass.

    Returns
    -------
    Proposal
        Rows of each table by tier, and, of a trace, what look-ups will cost.

    Raises
    ------
    InvalidArgument
        Both or neither of `trace` and `hotness` are given, they do not fit the tables, offsets descend, ids are missing from their table, an
        option is out of its range, or the budgets cannot hold the indices of keys.
    WrongType
        Ids, offsets or counts are no integers, or an argument is of another type than is named above.
    FileError
        A file of traces cannot be read.
    Closed, Forked
        Of a store, as `Store.tables`.
    KeyboardInterrupt
        Ctrl-C ended it.
    """
    from .store import _progress

    if (trace is None) == (hotness is None):
        raise invalid("trace", "give either a trace or hotness=")
    for argument, mapping in (("trace", trace), ("hotness", hotness)):
        if mapping is not None:
            _options.instance(argument, mapping, (Mapping,), "a mapping of tables to arrays")
    hbm_bytes, dram_bytes = _options.number("hbm_bytes", hbm_bytes), _options.number("dram_bytes", dram_bytes)
    drive_count, drive_bytes = _options.number("drive_count", drive_count, 0, 1 << 32), _options.number("drive_bytes", drive_bytes)
    lba, batch = _options.number("lba", lba, 0, 1 << 32), _options.number("batch", batch)
    memory, seed = _options.number("memory", memory), _options.number("seed", seed)
    held_out = _options.real("held_out", held_out)
    _options.text("drives", drives), _options.text("group", group)
    emulated, allow_missing = _options.flag("emulated", emulated), _options.flag("allow_missing", allow_missing)
    typical_host = _options.flag("typical_host", typical_host)
    cache_bytes, gpu_cache_bytes = _options.number("cache_bytes", cache_bytes), _options.number("gpu_cache_bytes", gpu_cache_bytes)
    for name, size in (("cache_bytes", cache_bytes), ("gpu_cache_bytes", gpu_cache_bytes)):
        if size > 0 and hotness is not None:
            raise invalid(name, "counts do not say in which order rows were looked up: give a trace")
    if cache_bytes > 0 and hbm_bytes > 0:
        text = "it is of an executor on the CPU, and hbm_bytes is for one on a GPU: leave hbm_bytes out, or give gpu_cache_bytes"
        raise invalid("cache_bytes", text)
    told = _progress(progress)
    if hotness is not None:
        return _by_counts(_shapes(tables, list(hotness)), hotness, hbm_bytes, dram_bytes)
    assert trace is not None
    names: list[str] = []
    held, traces = [], []
    for key, value in trace.items():
        own = [key] if isinstance(key, str) else list(key)
        names += own
        made, owners = _trace(own, value)
        traces.append(made)
        held.append(owners)
    shapes = _shapes(tables, names)
    args = {
        "hbm_bytes": hbm_bytes,
        "dram_bytes": dram_bytes,
        "drives": drives,
        "drive_count": drive_count,
        "drive_bytes": drive_bytes,
        "lba": lba,
        "emulated": emulated,
        "batch": batch,
        "held_out": held_out,
        "group": group,
        "memory": memory,
        "allow_missing": allow_missing,
        "typical_host": typical_host,
        "seed": seed,
        "cache_bytes": cache_bytes,
        "gpu_cache_bytes": gpu_cache_bytes,
    }
    proposed = _native.propose_tiers(shapes, traces, args, told)
    del held
    return Proposal._of(proposed)


def _compared(kind: Any, told: dict[str, Any] | None) -> Any:
    """A comparison as the native module tells it."""
    if told is None:
        return None
    interval = told["interval"]
    return make(kind, {**told, "interval": None if interval is None else make(Interval, interval)})


_Shape = tuple[str, int, int, str, "int | None"]


def _shapes(tables: Any, names: Sequence[str]) -> list[_Shape]:
    """The shapes of these tables, in this order."""
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid("trace", f"table {name!r} is given twice")
    from .store import Store

    if isinstance(tables, Store):
        known: dict[str, _Shape] = {
            it["name"]: (it["name"], it["rows"], it["dim"], it["dtype"], it["index_bytes"]) for it in tables._native.tables()
        }
    elif isinstance(tables, Mapping):
        known = {name: _shape(name, shape) for name, shape in tables.items()}
        for name in known:
            if name not in names:
                raise invalid("trace", f"there is none of table {name!r}")
    else:
        raise wrong_type("tables", f"a {type(tables).__name__}: give a store, or a mapping of names to shapes")
    for name in names:
        if name not in known:
            raise invalid("tables", f"there is no table {name!r}; there are {', '.join(known) or 'none'}")
    return [known[name] for name in names]


def _shape(name: str, given: Any) -> _Shape:
    shape = given if isinstance(given, TableShape) else TableShape(*given)
    if shape.rows < 1 or shape.dim < 1:
        raise invalid("tables", f"table {name!r} has {shape.rows} rows of {shape.dim} elements: give one of each at least")
    # About 19.4 bits a key.
    index = int(shape.rows * (3.4 + 16) / 8) if shape.keyed else None
    return (name, shape.rows, shape.dim, shape.dtype, index)


def _trace(names: list[str], value: Any) -> tuple[dict[str, Any], Any]:
    """A trace as the native module takes it, and what is to be held meanwhile."""
    if isinstance(value, str | os.PathLike):
        return {"tables": names, "file": os.fspath(value), "ids": None, "ends": None}, None
    np = _arrays.numpy()
    if len(names) != 1:
        raise invalid("trace", f"arrays are of one table each, not of {', '.join(names)}: give each its own")
    argument = f"trace[{names[0]!r}]"
    if isinstance(value, tuple) and len(value) == 2:
        ids, at = _arrays.integers(argument, value[0], dims=1)
        offsets, _ = _arrays.integers(argument, value[1], dims=1)
        if offsets.size == 0 or offsets[0] != 0:
            raise invalid("trace", f"table {names[0]!r}: offsets begin with 0 and end with the number of ids")
        ends = np.ascontiguousarray(offsets[1:], dtype=np.int64)
    else:
        ids, at = _arrays.integers(argument, value)
        if ids.ndim not in (1, 2):
            raise invalid("trace", f"table {names[0]!r}: {ids.ndim} dimensions: give (queries,) or (queries, ids of a query)")
        each = 1 if ids.ndim == 1 else ids.shape[1]
        ends = np.arange(1, ids.shape[0] + 1, dtype=np.int64) * each
    made = {"tables": names, "file": None, "ids": at, "ends": (_arrays.address_of(ends), ends.size, "i64")}
    return made, (ids, ends)


def _by_counts(shapes: list[_Shape], hotness: Mapping[str, Any], hbm_bytes: int, dram_bytes: int) -> Proposal:
    from .store import _counts

    counts = {name: _counts(value) for name, value in hotness.items()}
    for name, rows, *_ in shapes:
        if counts[name].size != rows:
            raise invalid("hotness", f"table {name!r} has {rows} rows, and {counts[name].size} counts were given")
    at = [(_arrays.address_of(counts[name]), counts[name].size) for name, *_ in shapes]
    told = _native.allocate_tiers(shapes, at, hbm_bytes, dram_bytes)
    tables = [make(TableTiers, table) for table in told]
    hbm, hot, every = (sum(table["lookups"][which] for table in told) for which in range(3))
    shares = (hbm / every, (hot - hbm) / every, (every - hot) / every) if every else (0.0, 0.0, 1.0)
    return Proposal(tables, shares, {"budgets": {"hbm": hbm_bytes, "dram": dram_bytes}})
