"""Executors, which look rows up, and plans of look-ups into NumPy arrays."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from . import _arrays, _native, _options
from .errors import Closed, invalid, wrong_type
from .records import PinReport, RestoreReport, WarmReport, make

if TYPE_CHECKING:
    from ._arrays import Array
    from .store import Store


#: What an id gets that its table lacks; what becomes of rows that could not be read; what masks tell.
MISSING = ("error", "default", "zero", "skip")
ON_FAILURE = ("raise", "nan", "mask")
MASKS = ("found", "failed")


@dataclass(frozen=True)
class Feature:
    """A name under which ids of a table are looked up, and how the rows of a bag become one.

    Parameters
    ----------
    name : str
        The name by which errors call the feature.
    table : str
        The table.
    pooling : str
        "none": each id has an output row; "sum"; "mean".
    weighted : bool
        Whether each row is multiplied by its id's weight; with "sum" alone.
    padding : int, optional
        An id that stands for no row.

    Raises
    ------
    WrongType
        An argument is of another type than is named above.
    InvalidArgument
        `pooling` is none of these.
    """

    name: str
    table: str
    pooling: str = "none"
    weighted: bool = False
    padding: int | None = None

    def __post_init__(self) -> None:
        _options.text("name", self.name), _options.text("table", self.table)
        _options.choice("pooling", self.pooling, ("none", "sum", "mean"))
        _options.flag("weighted", self.weighted)
        # As a number of Python's, of which a text can be made.
        object.__setattr__(self, "padding", _options.maybe_number("padding", self.padding, -1 << 63))

    def _args(self) -> tuple[str, str, str, bool, int | None]:
        return (self.name, self.table, self.pooling, self.weighted, self.padding)


@dataclass(frozen=True)
class Options:
    """Options of an executor, as `Store.attach` takes them."""

    dram_bytes: int = 0
    hbm_bytes: int = 0
    check_rows: bool = False
    check_keys: bool = False
    overlay_bytes: int = 0
    adopting: bool = False
    timeout: float | None = None
    hbm_rows: tuple[tuple[str, int], ...] = ()
    prefetch_multiprocessors: int | None = None
    prefetch_priority: str = "high"
    cache_bytes: int = 0
    cache_shares: tuple[tuple[str, int], ...] = ()
    cache_batch_rows: int | None = None
    cache_admission: float | str = "always"
    cache_dram: bool = False
    peer_gpu: int | None = None
    counter_bytes: int = 0
    count_every: int | None = None
    touch_epoch: int | None = None


def epoch_of(argument: str, epoch: int) -> int:
    """An epoch of last touches, if it is one."""
    return _options.number(argument, epoch, 1, 65_536)


def device_name(device: object) -> tuple[str, int]:
    """A device's type, and its number: of "cpu", "cuda", "cuda:1", or whatever prints like that."""
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or not (index.isdigit() or index == ""):
        raise invalid("device", f'{str(device)!r}: give "cpu", "cuda" or "cuda:N"')
    return kind, int(index or 0)


def _path(given: str | os.PathLike[str]) -> str:
    path = os.fspath(_options.instance("path", given, (str, os.PathLike), "a path"))
    return _options.text("path", path)


class _Closing(Protocol):
    def close(self) -> None: ...


def tables_of(store: Store) -> dict[str, tuple[int, int, int]]:
    """Generation, rows and elements of each table that a store shows now."""
    return {table.name: (table.generation, table.rows, table.dim) for table in store.tables()}


class Executor:
    """Looks rows of a store up, on the CPU or on a GPU. `Store.attach` makes one."""

    def __init__(self, store: Store, device: object, options: Options, *, is_store_s: bool = False) -> None:
        kind, index = device_name(device)
        # A store does not keep itself open by an executor of its own.
        self._store_ref: Callable[[], Store | None] = weakref.ref(store) if is_store_s else lambda: store
        self.options = options
        #: "cpu", or "cuda:" and a number.
        self.device = kind if kind == "cpu" else f"{kind}:{index}"
        self._plans: weakref.WeakSet[_Closing] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._native: _native.Host | _native.Gpu
        #: Generation, rows and elements of each table, as look-ups find them.
        self._tables = tables_of(store)
        if kind == "cpu":
            self._native = store._native.attach_host(options.__dict__)
        else:
            # A wheel may have the kernels compiled; without, NVRTC compiles them once.
            _native.use_kernels(Path(__file__).parent / "kernels")
            self._native = store._native.attach_gpu(index, options.__dict__)

    @property
    def store(self) -> Store:
        """The store.

        Raises
        ------
        Closed
            The store is closed.
        """
        store = self._store_ref()
        if store is None:
            raise Closed("the store is closed: open it again")
        return store

    def _is_closed(self) -> bool:
        store = self._store_ref()
        return store is None or store.closed

    @property
    def _host(self) -> _native.Host:
        if not isinstance(self._native, _native.Host):
            text = "an executor on a GPU fills tensors: use warprow.torch, or attach one on \"cpu\""
            raise invalid("executor", text)
        return self._native

    def on(self, device: object) -> Executor:
        """The executor with the same options on another device. It is attached once for a store.

        Parameters
        ----------
        device : str or torch.device
            "cpu", "cuda" or "cuda:N".

        Raises
        ------
        InvalidArgument
            `device` is none of these.
        Closed, Forked, Busy, GpuError, RowsFailed, Damaged, DriveFailed
            As `Store.attach`.
        """
        kind, index = device_name(device)
        name = kind if kind == "cpu" else f"{kind}:{index}"
        return self if name == self.device else self.store._shared(name, self.options)

    def plan(
        self,
        features: Sequence[Feature],
        *,
        max_batch: int,
        max_ids: int,
        dtype: str = "f32",
        slots: int = 1,
        missing: str = "error",
        on_failure: str = "raise",
        mask: str = "found",
    ) -> Plan:
        """Prepares look-ups into NumPy arrays: takes queue pairs, and allocates what look-ups need.

        Parameters
        ----------
        features : sequence of Feature
            All pooled, or none.
        max_batch : int
            The most bags of a feature in one look-up.
        max_ids : int
            The most ids in one look-up, over all features.
        dtype : str
            Type of the output's elements: "f32", "f16", or "i8" and "u8" where the tables have that type. That of tables whose rows
            have scales, such as "mxfp8", gives rows as they are, with their scales: bytes.
        slots : int
            How many look-ups can run at once.
        missing : str
            Which row an id gets that its table lacks: "error" (the look-up raises), "default", "zero", "skip".
        on_failure : str
            What becomes of rows that could not be read: "raise" (the look-up raises `RowsFailed`), "nan" (NaN in these rows, and in bags
            with one of them), or "mask" (zeros there, and each look-up returns a mask).
        mask : str
            What masks tell of each id: "found" (true: its row was found and read) or "failed" (true: its row could not be read).

        Returns
        -------
        Plan
            It holds its slots until it is closed.

        Raises
        ------
        InvalidArgument
            The executor is on a GPU; features are pooled and not pooled, or have one name, or do not go together; an option has a value that
            is not named above.
        WrongType
            `features` are none, or an option is of another type than is named above.
        NoSuchTable
            The store lacks a feature's table.
        Busy
            Drives have no queue pairs left for so many slots.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        features = _options.several("features", features, Feature, "a list of Feature")
        names = [feature.name for feature in features]
        for name in names:
            if names.count(name) > 1:
                raise invalid("features", f"two features are called {name!r}: rename one")
        options = {
            "max_batch": _options.number("max_batch", max_batch),
            "max_ids": _options.number("max_ids", max_ids),
            "dtype": _options.text("dtype", dtype),
            "slots": _options.number("slots", slots, 0, 1 << 32),
            "missing": _options.choice("missing", missing, MISSING),
            "on_failure": _options.choice("on_failure", on_failure, ON_FAILURE),
            "mask": _options.choice("mask", mask, MASKS),
        }
        native = self._host.plan([feature._args() for feature in features], options)
        made = Plan(self, native, features, masked=on_failure == "mask")
        self._plans.add(made)
        return made

    def metrics(self) -> dict[str, Any]:
        """Totals of all look-ups of an executor on the CPU: counts, and seconds in each stage. With a cache, also what
        `cache_statistics` says, on a GPU that alone, with "cache_" before each name.

        Raises
        ------
        InvalidArgument
            The executor is on a GPU and has no cache: modules have `report`.
        GpuError
            On a GPU: the counts cannot be read.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        cache = self._native.cache_statistics()
        is_cached_on_gpu = cache is not None and isinstance(self._native, _native.Gpu)
        totals: dict[str, Any] = {} if is_cached_on_gpu else self._host.metrics()
        return totals | {f"cache_{name}": count for name, count in (cache or {}).items()}

    def cache_statistics(self) -> dict[str, int] | None:
        """What the cache has done since the executor was attached; None: it has no cache.

        Rows that the cache has room for ("lines") and that it has ("used"), rows that were taken in ("admissions") and given up for
        others ("evictions"). "hits" and "misses" are on the CPU the different rows of batches that were looked for and found or not, on
        a GPU the ids that were served from the cache and from drives. "eviction_age" is how long ago rows that were given up had been
        used: on the CPU of the latest ones, in different rows of batches that were looked for since; on a GPU of all of them, on
        average, in look-ups.

        On a GPU also the rows that found no line, because look-ups under way may read all that come into question ("full"), those that
        the admission refused ("refusals"), for how many look-ups a line is held that one has used ("hold"), and rows that stay until
        they are let go ("pinned").

        Raises
        ------
        GpuError
            On a GPU: the counts cannot be read.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._native.cache_statistics()

    def clear_cache(self, *, patience: float = 10.0) -> None:
        """Empties the cache: its rows are read anew. Look-ups go on meanwhile.

        On a GPU this waits up to `patience` seconds for look-ups that may read the cache's rows. `Busy`: one did not end, such as a
        batch that was fetched ahead; the cache is as it was.

        Parameters
        ----------
        patience : float
            Seconds, on a GPU.

        Raises
        ------
        InvalidArgument
            The executor has no cache.
        Busy
            On a GPU a look-up did not end in time. The cache is as it was.
        GpuError
            On a GPU: CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        self._native.clear_cache(_options.seconds("patience", patience))

    @property
    def _gpu(self) -> _native.Gpu:
        if not isinstance(self._native, _native.Gpu):
            raise invalid("executor", 'the cache of an executor on the CPU fills itself: attach one on "cuda"')
        return self._native

    def warm(self, table: str, ids: Any) -> WarmReport:
        """Brings rows of a table into the cache of an executor on a GPU before they are looked up.

        Each row that has to be read gets a place, whatever the cache's admission says. Look-ups go on meanwhile. It takes a slot's queue
        pairs on each drive for as long as it runs. No stream may be being captured meanwhile.

        Parameters
        ----------
        table : str
            The table.
        ids : array of integers, shape (n,)
            Ids, or keys, the hottest first: where not all have room, the first are there at the end.

        Returns
        -------
        WarmReport
            How many ids the cache has now, and how many lie in memory anyway, are missing, or found no place.

        Raises
        ------
        InvalidArgument
            The executor is on the CPU, or has no cache; no row of the table is cached; `ids` is no such array.
        WrongType
            `ids` has elements of another type.
        NoSuchTable
            The store has no table of that name.
        RowsFailed
            Rows could not be read. What was brought in before stays.
        Busy
            Drives have no queue pairs left.
        GpuError
            CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        array = _arrays.keys("ids", ids)
        return make(WarmReport, self._gpu.warm(_options.text("table", table), (_arrays.address_of(array), array.size)))

    def pin(self, table: str, ids: Any) -> PinReport:
        """Brings rows into the cache as `warm` does, and has them stay there.

        They stay until `unpin`, `clear_cache`, or `adopt`: pin anew after that. A row that is updated is found updated. Of the 8 places in
        which a row may lie, 6 may be pinned. Up to 3% of the cache's lines it is unlikely that this is too few.

        Parameters
        ----------
        table : str
            The table.
        ids : array of integers, shape (n,)
            Ids, or keys.

        Returns
        -------
        PinReport
            How many rows are pinned now and were not before, and what became of the others.

        Raises
        ------
        InvalidArgument
            The executor is on the CPU, or has no cache; no row of the table is cached; `ids` is no such array; more rows would be pinned than
            their places allow: then nothing was changed.
        WrongType
            `ids` has elements of another type.
        NoSuchTable
            The store has no table of that name.
        RowsFailed
            Rows could not be read. What was pinned before stays.
        Busy
            Drives have no queue pairs left, or the GPU does not come to pinning rows.
        GpuError
            CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        array = _arrays.keys("ids", ids)
        return make(PinReport, self._gpu.pin(_options.text("table", table), (_arrays.address_of(array), array.size)))

    def unpin(self, table: str, ids: Any | None = None) -> int:
        """Lets rows go that `pin` keeps in the cache. They leave when others take their places.

        Parameters
        ----------
        table : str
            The table.
        ids : array of integers, shape (n,), optional
            Ids, or keys; without, all rows of the table.

        Returns
        -------
        int
            How many rows these were.

        Raises
        ------
        InvalidArgument
            The executor is on the CPU, or has no cache; no row of the table is cached; `ids` is no such array.
        WrongType
            `ids` has elements of another type.
        NoSuchTable
            The store has no table of that name.
        Busy
            The GPU does not come to it.
        GpuError
            CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        array = None if ids is None else _arrays.keys("ids", ids)
        return self._gpu.unpin(_options.text("table", table), None if array is None else (_arrays.address_of(array), array.size))

    def save_cache(self, path: str | os.PathLike[str]) -> int:
        """Writes to a file which rows the cache of an executor on a GPU has, by their ids, for `warm_from`.

        The file replaces one that is there, whole. Rows of tables whose keys are not stored are left out. Look-ups go on meanwhile. No
        stream may be being captured meanwhile.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        int
            How many rows were listed.

        Raises
        ------
        InvalidArgument
            The executor is on the CPU, or has no cache; the file cannot be written.
        GpuError
            CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._gpu.save_cache(_path(path))[0]

    def warm_from(self, path: str | os.PathLike[str]) -> RestoreReport:
        """Brings the rows into the cache that `save_cache` has listed, as `warm` does.

        A list of another generation of a table is taken all the same.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        RestoreReport
            What came of each table's list.

        Raises
        ------
        InvalidArgument
            The executor is on the CPU, or has no cache; the file is damaged, no such file, or of another store: then nothing was changed.
        RowsFailed
            Rows could not be read. What was brought in before stays.
        Busy
            Drives have no queue pairs left.
        GpuError
            CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        tables, unknown = self._gpu.warm_from(_path(path))
        older = [table for table, is_older, _ in tables if is_older]
        return RestoreReport({table: make(WarmReport, warmed) for table, _, warmed in tables}, older, unknown)

    def popular(self, table: str, most: int = 1000) -> tuple[Array, Array]:
        """The ids of a table that were looked up most, the most popular first, and how often each was counted.

        They are those that were drawn, one in `count_every`; counts are halved from time to time. On a GPU, padding ids and ids that the
        table lacks are counted too. `store.rerank(table, ids)` lists their rows for memory.

        Parameters
        ----------
        table : str
            The table.
        most : int
            How many ids, at most.

        Returns
        -------
        (array of int64 or uint64, array of uint64)
            Ids, or keys, of the type that the table's keys have; and counts.

        Raises
        ------
        InvalidArgument
            The executor counts nothing: `attach(counter_bytes=...)`; or `most` is negative.
        NoSuchTable
            The store has no table of that name.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        np = _arrays.numpy()
        _options.text("table", table)
        most = _options.number("most", most)
        *_, signed = self.store._native.export_shape(table)
        found = self._native.popular(table, most)
        if found is None:
            raise invalid("counter_bytes", f"{table!r} is not counted: attach the executor with counter_bytes")
        ids, counts = (np.array(column, dtype=np.uint64) for column in found)
        return ids if signed is False else ids.view(np.int64), counts

    def rerank_by_counts(self, *, bytes_per_second: int = 64 << 20, seconds: float = 60.0) -> dict[str, int]:
        """On the CPU: brings the rows that were looked up most to memory, in the place of those that were looked up least.

        Look-ups go on meanwhile. A thread that calls this from time to time has the memory follow what is looked up.

        Parameters
        ----------
        bytes_per_second : int
            Bytes a second that are read from drives and written to them, at most.
        seconds : float
            As many rows are exchanged at most as are read in so many seconds at that rate.

        Returns
        -------
        dict of str to int
            How many rows of which tables came to memory; empty: nothing was worth it.

        Raises
        ------
        InvalidArgument
            The executor counts nothing (`attach(counter_bytes=...)`), is on a GPU, or the rate is 0.
        Busy
            Beside a load, a compaction or another `rerank`; memory is as it was.
        ReadOnly
            The store was opened for reading.
        RowsFailed, Damaged, DriveFailed, StoreFailed, FileError
            Rows could not be read, or the list could not be written; memory is as it was.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        rate = _options.number("bytes_per_second", bytes_per_second, 1)
        return dict(self._host.rerank_by_counts(rate, _options.seconds("seconds", seconds)))

    @property
    def touch_epoch(self) -> int | None:
        """The epoch that look-ups note as that of the last touch of each key that they find; None: they note none.

        Raises
        ------
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._native.touch_epoch()

    def set_touch_epoch(self, epoch: int) -> None:
        """Has look-ups that begin from now on note another epoch, on a GPU those of CUDA graphs that were captured before too.

        Parameters
        ----------
        epoch : int
            The epoch, from the present one to 65,535.

        Raises
        ------
        InvalidArgument
            The epoch is lower than the present one, or look-ups note none (`attach(touch_epoch=...)`).
        GpuError
            CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        self._native.set_touch_epoch(epoch_of("epoch", epoch))

    def save_touches(self, path: str | os.PathLike[str]) -> None:
        """Writes to a file when each key was last touched, together with what the file has, for `Store.expire`.

        Each executor has a file of its own. After a crash the file is the one before, or the new one. On a GPU, look-ups that have not
        ended may be missing: wait for them first (`torch.cuda.synchronize()`).

        Parameters
        ----------
        path : path
            The file.

        Raises
        ------
        InvalidArgument
            Look-ups note no epochs (`attach(touch_epoch=...)`), or the file is something else, damaged, or cannot be read or written.
        GpuError
            CUDA failed; the file is as it was.
        RowsFailed, Damaged, DriveFailed, StoreFailed
            The tables' keys could not be read; the file is as it was.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        self._native.save_touches(os.fspath(path))

    def tiers(self, table: str) -> dict[str, int]:
        """How many rows of a table lie in GPU memory ("hbm"), in DRAM ("dram") and on drives alone ("drives").

        Parameters
        ----------
        table : str
            The table.

        Raises
        ------
        NoSuchTable
            The store has no table of that name.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        rows = self.store.table(table).rows
        if isinstance(self._native, _native.Host):
            hbm, dram = 0, self._native.dram_rows(table) or 0
        else:
            hbm, dram = self._native.tiers(table) or (0, 0)
        return {"hbm": hbm, "dram": dram, "drives": rows - hbm - dram}

    def adopt(self, generation: int | None = None, *, patience: float = 10.0) -> None:
        """Has all plans read the tables that the store shows now. With `generation`, fills the tiers for that generation first,
        which may be on standby, and switches the store to it.

        On a GPU the executor was attached with `adopting=True`.

        Parameters
        ----------
        generation : int, optional
            Its id.
        patience : float
            On a GPU, seconds to wait for look-ups that read the former tables.

        Raises
        ------
        InvalidArgument
            On a GPU the executor was attached without `adopting=True`; the tables do not have the shapes that plans were made for.
        NoSuchGeneration, NoSuchTable
            The store has no generation of that number, or it lacks a table of a plan.
        Busy
            A look-up did not end within `patience`, or a plan lacks room.
        GpuError
            On a GPU: too little memory for both generations' rows.
        RowsFailed, Damaged, DriveFailed
            Rows that belong in memory could not be read. Plans read the former tables.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        self._native.adopt(_options.maybe_number("generation", generation), _options.seconds("patience", patience))
        self._tables = tables_of(self.store)

    def close(self) -> None:
        """Gives queue pairs and memory back. Plans and modules of this executor raise `Closed` from then on.

        Raises
        ------
        Forked
            This process was forked from the one that opened the store.
        """
        for plan in list(self._plans):
            plan.close()
        self._native.close()
        store = self._store_ref()
        if store is not None:
            store._executors.discard(self)

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        usual = Options().__dict__
        options = [f"{name}={value!r}" for name, value in self.options.__dict__.items() if value != usual[name]]
        return f"<warprow.Executor on {self.device}{', ' if options else ''}{', '.join(options)}>"


class Plan:
    """Look-ups of a list of features into NumPy arrays. `Executor.plan` makes one."""

    def __init__(
        self, executor: Executor, native: _native.HostPlan, features: list[Feature], *, masked: bool = False
    ) -> None:
        # It is closed with the executor, and that with the store.
        self._executor = executor
        self._native = native
        self.features = features
        #: Elements of an output row: all features side by side if they are pooled, else the widest.
        self.width = native.width()
        self.dtype = native.dtype()
        #: Whether it was closed.
        self.is_closed = False
        self._masked = masked
        self._pooled = any(feature.pooling != "none" for feature in features)

    def columns(self) -> dict[str, slice]:
        """For each feature the elements of an output row that are its own.

        Raises
        ------
        Closed
            The plan is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        ranges = [slice(*ends) for ends in self._native.columns()]
        return {feature.name: columns for feature, columns in zip(self.features, ranges, strict=True)}

    def lookup(
        self,
        ids: Any,
        *,
        offsets: Any = None,
        weights: Any = None,
        batch: int | None = None,
        out: Array | None = None,
        mask: bool = False,
    ) -> Any:
        """Looks a batch up.

        Parameters
        ----------
        ids : array of integers, shape (n,)
            The ids of all bags, feature after feature.
        offsets : array of integers, shape (F * B,) or (F * B + 1,), optional
            Where each bag begins in `ids`. Without, all bags are of one length.
        weights : array of float32, shape (n,), optional
            One for each id, if a feature is weighted.
        batch : int, optional
            B, the number of bags of each feature. Without, it is told by the offsets, of a single feature by (B,) of them, or by
            bags of one id each.
        out : ndarray, optional
            Filled instead of a new array: shape (B, width) if pooled, else (n, width).
        mask : bool
            Whether to return a second array: a bool for each id, which says what the plan's `mask` says. A plan with
            `on_failure="mask"` returns it in any case.

        Returns
        -------
        ndarray, or two

        Raises
        ------
        InvalidArgument
            Shapes do not go together, offsets descend or do not begin with 0, the batch is larger than the plan, or `out` is not contiguous.
        WrongType
            Ids or offsets are no integers, weights are not float32, or `out` is of another type than the plan's output.
        MissingIds
            Tables lack ids, and the plan's `missing` is "error"; `positions` has all of them.
        RowsFailed
            Rows could not be read, and the plan's `on_failure` is "raise"; `positions` has all of them.
        Busy
            Other threads have all slots for longer than a minute.
        Closed
            The plan is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        np = _arrays.numpy()
        mask, batch = _options.flag("mask", mask), _options.maybe_number("batch", batch)
        held, ids_args = _arrays.integers("ids", ids, dims=1)
        offsets_held, offsets_args, bags = None, None, held.size // max(len(self.features), 1)
        if offsets is not None:
            offsets_held, offsets_args = _arrays.integers("offsets", offsets, dims=1)
            bags = offsets_held.size // max(len(self.features), 1)
        bags = bags if batch is None else batch
        weights_held, weights_at = None, None
        if weights is not None:
            weights_held = _arrays.as_array("weights", weights)
            if weights_held.dtype != np.float32:
                raise wrong_type("weights", f"elements of type {weights_held.dtype}: give float32")
            if weights_held.shape != held.shape:
                raise invalid("weights", f"shape {weights_held.shape}, where there are {held.size} ids")
            weights_held = _arrays.aligned(np.ascontiguousarray(weights_held))
            weights_at = _arrays.address_of(weights_held)
        shape = (bags if self._pooled else held.size, self.width)
        rows = _arrays.output(out, shape, self.dtype)
        if out is not None:
            _arrays.check_apart(rows, ids=held, offsets=offsets_held, weights=weights_held)
        found = np.empty(held.size, dtype=np.bool_) if mask or self._masked else None
        at = None if found is None else _arrays.address_of(found)
        args = (ids_args, offsets_args, weights_at, bags)
        self._native.lookup(args, (_arrays.address_of(rows), rows.size, at))
        del offsets_held, weights_held
        return rows if found is None else (rows, found)

    def report(self) -> dict[str, Any] | None:
        """Counts and seconds of the latest look-up that succeeded; None: there was none.

        Raises
        ------
        Closed
            The plan is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._native.report()

    def close(self) -> None:
        """Gives queue pairs and memory back.

        Raises
        ------
        Forked
            This process was forked from the one that opened the store.
        """
        self.is_closed = True
        self._native.close()

    def __repr__(self) -> str:
        names = ", ".join(feature.name for feature in self.features)
        return f"<warprow.Plan of {names}: rows of {self.width} {self.dtype}>"
