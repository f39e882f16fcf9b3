"""Stores: formatting, opening, loading, updating, checking."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _arrays, _native, _options, _sources
from ._spool import Spool
from .errors import NoSuchTable, StoreInUse, _make, invalid, wrong_type
from .executor import MISSING, Executor, Feature, Options, Plan, epoch_of, tables_of
from .proposal import Proposal
from .records import (
    ChangedFile,
    DriveState,
    ExpireReport,
    Exported,
    Generation,
    LoadReport,
    RerankReport,
    Table,
    VerifyReport,
    make,
)

if TYPE_CHECKING:
    from ._arrays import Array

#: How often an export is begun of a table that gets or loses rows meanwhile.
EXPORTS = 10
#: Which free chunks of each drive a load takes.
SPANS = ("packed", "whole")
#: Stores that are open in this process, by the addresses of their drives.
_OPEN: weakref.WeakValueDictionary[tuple[str, ...], Store] = weakref.WeakValueDictionary()


def _addresses(drives: str | Iterable[str]) -> tuple[str, ...]:
    wanted = 'addresses such as "emulated:PATH?size=4G"'
    given = (drives,) if isinstance(drives, str) else tuple(_options.several("drives", drives, str, wanted))
    if not given:
        raise invalid("drives", f"there are none: give {wanted}")
    return given


def _file_of(address: str) -> str:
    """The file or socket that an address names."""
    scheme, colon, rest = address.partition(":")
    return rest.split("?")[0].split(",")[0] if colon and scheme in ("emulated", "vfio-user") else ""


@contextmanager
def _naming_our_own(addresses: tuple[str, ...]) -> Iterator[None]:
    """Says of a drive in use by which address this process has it open: one file has many paths."""
    try:
        yield
    except StoreInUse as error:
        files = {os.path.realpath(_file_of(address)): address for address in addresses if _file_of(address)}
        ours = [
            f"{here!r} as {there!r}" if here != there else repr(here)
            for store in list(_OPEN.values())
            if not store.closed
            for there in store.addresses
            for here in [files.get(os.path.realpath(_file_of(there)))]
            if here is not None
        ]
        if not ours:
            raise
        text = f"{error}. This process opened {', '.join(ours)}: use that warprow.Store, or close() it"
        raise _make("StoreInUse", text, {}) from error


def format(  # noqa: A001
    drives: str | Iterable[str],
    *,
    lba: int | None = None,
    chunk_size: int | None = None,
    consent: str | None = None,
    timeout: float = 5.0,
    overlay_bytes: int | None = None,
) -> Store:
    """Formats drives, makes an empty store on them, and opens it. **What the drives hold is lost.**

    Blank emulated drives are formatted at once; their files are made if they are not there. For all other drives
    `ConsentNeeded` says what would be lost, and has a token.

    Parameters
    ----------
    drives : str or iterable of str
        Addresses: "emulated:PATH?size=4G", "0000:41:00.0", "vfio-user:SOCKET".
    lba : int, optional
        Bytes of an LBA: 512 or 4096. By default the size that the drive has.
    chunk_size : int, optional
        Bytes of a chunk: a power of two from 1 to 64 MiB.
    consent : str, optional
        The token of a `ConsentNeeded`.
    timeout : float
        The longest wait for a read or write, seconds.
    overlay_bytes : int, optional
        The most memory that updated rows may take.

    Returns
    -------
    Store
        Open, and without tables.

    Raises
    ------
    InvalidArgument
        There is no drive, or `lba`, `chunk_size`, `timeout` or `overlay_bytes` is out of its range.
    WrongType
        An address is no text, or another argument is of another type than is named above.
    AddressError
        A text is no drive's address, or an option behind its "?" is none.
    StoreInUse
        Another process, or this one, has a drive open; the message names the holder, and of this process the address.
    OpenError
        A drive cannot be opened, or cannot be formatted.
    ConsentNeeded
        The drives hold something: `token` stands for exactly what would be lost. Nothing was changed.
    DriveFailed
        A drive failed a command, or did not answer within `timeout` seconds.
    """
    addresses = _addresses(drives)
    lba, chunk_size = _options.maybe_number("lba", lba, 1, 1 << 32), _options.maybe_number("chunk_size", chunk_size, 1)
    _options.maybe_text("consent", consent)
    timeout, overlay_bytes = _options.seconds("timeout", timeout), _options.maybe_number("overlay_bytes", overlay_bytes)
    with _naming_our_own(addresses):
        native = _native.format(list(addresses), lba, chunk_size, consent, timeout, overlay_bytes)
    return Store(native, addresses, read_only=False)


def open(  # noqa: A001
    drives: str | Iterable[str],
    *,
    read_only: bool = False,
    degraded: bool = False,
    timeout: float = 5.0,
    overlay_bytes: int | None = None,
) -> Store:
    """Opens the store that lies on drives, given in any order.

    Parameters
    ----------
    drives : str or iterable of str
        Addresses, as of `format`; "attached:FILE" for tables in a file, which are read where they are.
    read_only : bool
        Whether changes are refused. A store of attached files is read-only in any case. Emulated drives, and attached files, can be
        open read-only in any number of processes at once.
    degraded : bool
        Whether to read what can be read if drives are missing.
    timeout : float
        The longest wait for a read or write, seconds.
    overlay_bytes : int, optional
        The most memory that updated rows may take.

    Returns
    -------
    Store
        Open.

    Raises
    ------
    InvalidArgument
        There is no drive, `timeout` is no number of seconds from 0 on, or `overlay_bytes` is negative.
    WrongType
        An address is no text, or another argument is of another type than is named above.
    AddressError
        A text is no drive's address, or an option behind its "?" is none.
    StoreInUse
        Another process, or this one, has a drive open, unless both only read an emulated one; or a drive with a rate has more readers than
        its `sharers=` says. The message names the holders.
    OpenError
        A drive cannot be opened, holds no store, or is one of several of which others are missing (`degraded=True` opens what is there).
    FileError
        An attached file or checkpoint cannot be read as tables.
    DriveFailed
        A drive failed a command, or did not answer within `timeout` seconds.
    """
    addresses = _addresses(drives)
    read_only, degraded = _options.flag("read_only", read_only), _options.flag("degraded", degraded)
    timeout, overlay_bytes = _options.seconds("timeout", timeout), _options.maybe_number("overlay_bytes", overlay_bytes)
    attached = any(address.startswith("attached:") for address in addresses)
    access = "degraded" if degraded else "read" if read_only or attached else "write"
    with _naming_our_own(addresses):
        native = _native.open(list(addresses), access, timeout, overlay_bytes)
    return Store(native, addresses, read_only=access != "write")


class Store:
    """An open store. `format` and `open` make one; leaving a `with` block closes it."""

    def __init__(self, native: _native.Store, addresses: tuple[str, ...], *, read_only: bool) -> None:
        self._native = native
        #: The addresses of the drives, as they were given.
        self.addresses = addresses
        #: Whether changes are refused.
        self.read_only = read_only
        # Executors keep their stores, and not the other way round.
        self._executors: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._shared_executors: weakref.WeakValueDictionary[tuple[str, Options], Executor] = weakref.WeakValueDictionary()
        # What `lookup` looks up with, and the generations that it reads.
        self._reader: Executor | None = None
        self._read: dict[str, int] = {}
        self._plans: dict[tuple[str, str, str], tuple[Plan, int]] = {}
        _OPEN[addresses] = self

    @property
    def closed(self) -> bool:
        """Whether the store was closed.

        Raises
        ------
        Forked
            This process was forked from the one that opened the store.
        """
        return not self._native.is_open()

    def close(self) -> None:
        """Closes the store and all its executors: the drives are free for others when this returns.

        Raises
        ------
        Forked
            This process was forked from the one that opened the store.
        """
        with self._lock:
            for executor in list(self._executors):
                executor.close()
            self._plans.clear()
            self._reader = None
            self._shared_executors.clear()
            self._native.close()

    def tables(self) -> list[Table]:
        """The tables that look-ups find.

        Raises
        ------
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return [make(Table, table) for table in self._native.tables()]

    def table(self, name: str) -> Table:
        """The table of that name.

        Parameters
        ----------
        name : str
            Its name in the store.

        Raises
        ------
        WrongType
            `name` is no text.
        NoSuchTable
            The store has no table of that name; `known` has the names that there are.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        _options.text("name", name)
        tables = self.tables()
        for table in tables:
            if table.name == name:
                return table
        known = [table.name for table in tables]
        text = f"there is no table {name!r}; the store has {', '.join(known) or 'no tables'}"
        raise _make("NoSuchTable", text, {"table": name, "known": known})

    def load(
        self,
        source: Mapping[str, Any] | str | os.PathLike[str] | _sources.ArrowStream | _sources.ArrowArray,
        *,
        model: str = "model",
        select: str | Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        hotness: Mapping[str, Any] | None = None,
        keys: str | Mapping[str, Any] | None = None,
        dtype: str | Mapping[str, str] | None = None,
        checksums: bool = True,
        replace: bool = False,
        standby: bool = False,
        plan: Proposal | str | os.PathLike[str] | None = None,
        span: str = "packed",
        memory: int = 1 << 30,
        progress: Any = None,
    ) -> LoadReport:
        """Loads tables, all as one generation: when this returns they are durable, and found by look-ups that begin later.

        Nobody writes to the arrays meanwhile. An exception, also one of `progress`, leaves the store as it was.

        Parameters
        ----------
        source : mapping of str to array or to iterator of arrays, arrow table, or path
            Arrays of shape (rows, dim): of NumPy, of torch on any device, or with `__dlpack__`. A state dict is such a mapping. An
            iterator gives such arrays one after another, blocks of the table's rows, which are spooled to a temporary file (in
            $TMPDIR): one block is in memory at a time. Or what has `__arrow_c_stream__`, such as a `pyarrow.Table` or a DataFrame of
            polars: each column of fixed-size lists is a table. Or the path of a file or folder with tables: safetensors, .npy, .npz
            and others (docs/formats.md).
        model : str
            What the model is called that the tables belong to.
        select : str or sequence of str, optional
            Globs: only entries of the source whose names match are loaded. Without, every entry has to be a table.
        names : mapping of str to str, optional
            What tables are called in the store, by their names in the source.
        hotness : mapping of str to array of integers, optional
            By the table's name in the store a count for each row: rows with high counts get a place in memory.
        keys : mapping of str to array of integers, or str, optional
            By the table's name in the store the key of each row, by which it is looked up, int64 or uint64. In an arrow table also the
            name of a column of integers; without a mapping, the column is that of all tables.
        dtype : str or mapping of str to str, optional
            The type to store; by default that of the source. Of any source: "f32", "f16", "bf16", "f8e4m3", "f8e5m2"; "q8" and "q4", bytes
            and halves of bytes of which each row has a scale and a bias. Where the source has rows of that type already: "i8", "u8",
            and with scales in each row "mxfp8", "f8e4m3s" and "nvfp4".
        checksums : bool
            Whether each row gets a checksum, 4 bytes, which `verify` and executors with `check_rows` compare.
        replace : bool
            Whether tables of the same names are replaced.
        standby : bool
            Whether look-ups find the tables only after `switch`.
        plan : Proposal or path, optional
            What `warprow.plan` proposed by a trace, or the file of that: rows get the order that it says, and executors keep as many of
            each table in memory as it says. Tables that it does not have are loaded as without it.
        span : str
            Which free chunks of each drive the tables get: "packed", the lowest; or "whole", some from all over the drive, evenly, for
            drives on which reads of rows that lie far apart go on side by side.
        memory : int
            Bytes of memory for rows that are put in order.
        progress : callable or tqdm, optional
            Called with bytes written and bytes in all; or an object with `total` and `update`.

        Returns
        -------
        LoadReport
            The number of the new generation, bytes written, and seconds.

        Raises
        ------
        InvalidArgument
            A table's shape is not (rows, dim), an array is of the wrong length, two tables would have one name, rows cannot be stored as `dtype`,
            `hotness`, `keys` or `plan` name a table that is not loaded, or `span` is another word.
        WrongType
            Elements are of no type that a table can have, or an argument is of another type than is named above.
        FileError
            A file of tables, or of a plan, cannot be read; the message names file and place.
        TableExists
            A table of that name is there, and neither `replace` nor `standby` is set.
        NoSpace
            The drives have too little room; `needed` and `free` are in bytes.
        ReadOnly
            The store was opened for reading.
        Busy
            Another load or update holds what this one needs.
        DriveFailed
            A drive failed, or did not answer in time.
        KeyboardInterrupt
            Ctrl-C ended the load. Whatever `progress` or an iterator of blocks raises is raised as well.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        patterns = _options.texts("select", select)
        _options.text("model", model)
        for argument, mapping in (("names", names), ("hotness", hotness), ("keys", None if isinstance(keys, str) else keys)):
            _options.mapping(argument, mapping, "tables' names to names" if argument == "names" else "tables' names to arrays of integers")
        for new in (names or {}).values():
            _options.text("names", new)
        _check_dtypes(dtype)
        checksums, replace, standby = (
            _options.flag(argument, value) for argument, value in (("checksums", checksums), ("replace", replace), ("standby", standby))
        )
        _options.choice("span", span, SPANS)
        memory = _options.number("memory", memory)
        if plan is not None:
            _options.instance("plan", plan, (Proposal, str, os.PathLike), "what warprow.plan returned, or the path of its file")
        told = _progress(progress)
        given = _sources.of(source, patterns, keys)
        tables = given.tables
        owners: list[Any] = [table.pop("owner", None) for table in tables]
        for table in tables:
            table["name"] = (names or {}).get(table["name"], table["name"])
        known = [table["name"] for table in tables]
        for name in known:
            if known.count(name) > 1:
                raise invalid("names", f"two tables would be called {name!r}: give each a name of its own")
        keys_of: Mapping[str, Any] = dict.fromkeys(known, keys) if isinstance(keys, str) else keys or {}
        for argument, mapping in (("hotness", hotness or {}), ("keys", keys_of)):
            for name in mapping:
                if name not in known:
                    raise invalid(argument, f"no table {name!r} is loaded; there are {', '.join(known)}")
        planned = None if plan is None else plan if isinstance(plan, Proposal) else Proposal.read(plan)
        for table in tables:
            name = table["name"]
            table["plan"] = None if planned is None else planned._of_table(name)
            if table["plan"] is not None and name in (hotness or {}):
                raise invalid("hotness", f"the plan has table {name!r} as well: give one of them")
            table["to"] = dtype.get(name) if isinstance(dtype, Mapping) else dtype
            table["checksums"], table["counts"], table["keys"] = checksums, None, None
            if hotness is not None and name in hotness:
                counts = _counts(hotness[name])
                owners.append(counts)
                table["counts"] = (_arrays.address_of(counts), counts.size)
            key = keys_of.get(name)
            if key is not None and not isinstance(key, str):
                numbers = _arrays.keys("keys", key)
                owners.append(numbers)
                table["keys"] = _key_args(numbers)
        with Spool() as spool:
            if given.read is not None:
                self._refuse_early(known, replace or standby)
                given.read(spool)
            for table in tables:
                key = keys_of.get(table["name"])
                if isinstance(key, str):
                    numbers = _arrays.keys("keys", given.key_columns[key])
                    owners.append(numbers)
                    table["keys"] = _key_args(numbers)
            owners.extend(table.pop("owner", None) for table in tables)
            report = self._native.load(tables, model, replace, standby, span, memory, told)
        del owners
        return make(LoadReport, report)

    def _refuse_early(self, names: Sequence[str], may_exist: bool) -> None:
        """Raises what the load would raise at its end, before a source is read that can be read once."""
        found = {table.name for table in self.tables()}
        if self.read_only:
            raise _make("ReadOnly", "the store was opened for reading: open it without read_only=True", {})
        for name in names:
            if name in found and not may_exist:
                text = f"table {name!r} exists already: choose another name, or load with replace=True or standby=True"
                raise _make("TableExists", text, {"table": name})

    def lookup(
        self,
        table: str,
        ids: Any,
        *,
        out: Array | None = None,
        dtype: str | None = None,
        missing: str = "error",
        mask: bool = False,
    ) -> Any:
        """Looks rows up on the CPU, in the tables as they are now.

        Parameters
        ----------
        table : str
            The table.
        ids : array of integers
            Of any shape; keys, where the table has keys.
        out : ndarray, optional
            Filled instead of a new array.
        dtype : str, optional
            Type of the output's elements: "f32", "f16", "i8", "u8". By default the table's, or "f32" where NumPy has no such type.
        missing : str
            Which row an id gets that the table lacks: "error" (`MissingIds` is raised), "default", "zero", "skip".
        mask : bool
            Whether to return a second array, of `ids`' shape: true if the row was found and read.

        Returns
        -------
        ndarray of shape ids.shape + (dim,), or two arrays

        Raises
        ------
        InvalidArgument
            `out` has another shape, or is not contiguous; `dtype` or `missing` has a value that is not named above.
        WrongType
            Ids are no integers, or `out` is no NumPy array of the output's type.
        NoSuchTable
            The store has no table of that name.
        MissingIds
            The table lacks ids, and `missing` is "error"; `positions` has all of them.
        RowsFailed
            Rows could not be read; `positions` has all of them, `drive` and `command` say of the first what failed.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        mask = _options.flag("mask", mask)
        array, _ = _arrays.integers("ids", ids)
        plan = self._plan_of(table, dtype, missing, array.size)
        rows = _arrays.output(out, (*array.shape, plan.width), plan.dtype)
        found = plan.lookup(array.reshape(-1), out=rows.reshape(-1, plan.width), mask=mask)
        return (rows, found[1].reshape(array.shape)) if mask else rows

    def _plan_of(self, table: str, dtype: str | None, missing: str, ids: int) -> Plan:
        _options.text("table", table), _options.maybe_text("dtype", dtype)
        _options.choice("missing", missing, MISSING)
        generation = self._native.generation_of(table)
        if generation is None:
            # Says which tables there are.
            self.table(table)
            raise NoSuchTable(f"there is no table {table!r}")
        with self._lock:
            executor = self._reader_of(table, generation)
            key = (table, dtype or "", missing)
            plan, planned = self._plans.get(key, (None, 0))
            if plan is not None:
                if ids <= planned:
                    return plan
                plan.close()
            size = max(1024, 1 << max(ids - 1, 0).bit_length())
            out = dtype or _arrays.output_dtype(self.table(table).dtype)
            features = [Feature(table, table)]
            plan = executor.plan(features, max_batch=size, max_ids=size, dtype=out, missing=missing)
            self._plans[key] = (plan, size)
            return plan

    def _reader_of(self, table: str, generation: int) -> Executor:
        """The executor of `lookup`: a new one where that before reads another generation of the table."""
        if self._reader is None or self._read.get(table) != generation:
            if self._reader is not None:
                self._reader.close()
                self._plans.clear()
            self._read = {table.name: table.generation for table in self.tables()}
            self._reader = Executor(self, "cpu", Options(), is_store_s=True)
            self._executors.add(self._reader)
        return self._reader

    def update(
        self, table: str, ids: Any, rows: Any, *, generation: int | None = None, create: bool = False
    ) -> int:
        """Gives rows other content. When this returns they are durable, and every look-up that begins later reads them.

        Parameters
        ----------
        table : str
            The table.
        ids : array of integers, shape (n,)
            Ids, or keys.
        rows : array, shape (n, dim)
            Of the type of the table.
        generation : int, optional
            The generation whose table is updated, which may be on standby.
        create : bool
            Whether keys that the table lacks, or that were removed, are created.

        Returns
        -------
        int
            The number of the update.

        Raises
        ------
        InvalidArgument
            `rows` has another shape than (n, dim), or there are no ids.
        WrongType
            Ids are no integers, or `rows` is of another type than the table.
        NoSuchTable, NoSuchGeneration
            There is none of that name, or number.
        NoSuchRow
            The table has no row of an id. Nothing was changed.
        NoSuchKey
            The table has no such key, and `create` is not set. Nothing was changed.
        NoSpace
            The drives have no room for the update's log, or updated rows would take more than `overlay_bytes`.
        ReadOnly
            The store was opened for reading.
        Busy
            Another writer holds the log, or an executor on a GPU was attached without `overlay_bytes`.
        StoreFailed
            An executor refuses updates for another reason, which the message names with the remedy.
        DriveFailed
            A drive failed, or did not answer in time: whether the update is durable is not known.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        np = _arrays.numpy()
        _options.text("table", table)
        generation, create = _options.maybe_number("generation", generation), _options.flag("create", create)
        array, _ = _arrays.integers("ids", ids, dims=1)
        if array.size == 0:
            raise invalid("ids", "there are none: give at least one, or leave the call out")
        if array.dtype.kind == "i" and not self.table(table).keyed and int(array.min()) < 0:
            text = f"table {table!r} has no row of id {int(array.min())}"
            raise _make("NoSuchRow", text, {"table": table, "ids": [int(array.min())]})
        array = np.ascontiguousarray(array.astype(np.int64 if array.dtype.kind == "i" else np.uint64))
        given = _arrays.rows("rows", rows)
        stored = self.table(table)
        if (given.rows, given.dim) != (array.size, stored.dim):
            raise invalid("rows", f"shape ({given.rows}, {given.dim}): give ({array.size}, {stored.dim})")
        if given.dtype != stored.dtype:
            raise wrong_type("rows", f"elements of type {given.dtype}: table {table!r} has {stored.dtype}")
        args = (_arrays.address_of(array), array.size)
        return self._native.update(table, args, (given.address, given.nbytes), generation, create)

    def remove(self, table: str, keys: Any, *, generation: int | None = None) -> int:
        """Removes keys with their rows. When this returns that is durable, and every look-up that begins later treats them as
        keys that the table never had. Keys that are not there are passed over.

        Parameters
        ----------
        table : str
            The table, which has keys that are stored.
        keys : array of integers, shape (n,)
            The keys.
        generation : int, optional
            The generation whose table it is, which may be on standby.

        Returns
        -------
        int
            How many of the keys were there.

        Raises
        ------
        InvalidArgument
            The table has no keys, or no key of it would be left. Nothing was changed.
        WrongType
            Keys are no integers.
        NoSuchTable, NoSuchGeneration
            There is none of that name, or number.
        NoSpace
            The drives have no room for the removal's log or for the compaction that would follow, or updated rows would take
            more than `overlay_bytes`.
        ReadOnly
            The store was opened for reading.
        Busy
            Another writer holds the log, or an executor on a GPU was attached without `overlay_bytes`.
        StoreFailed
            The table does not store its keys, or an executor refuses updates for another reason, which the message names with
            the remedy.
        DriveFailed
            A drive failed, or did not answer in time: whether the removal is durable is not known.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        np = _arrays.numpy()
        _options.text("table", table)
        generation = _options.maybe_number("generation", generation)
        array, _ = _arrays.integers("keys", keys, dims=1)
        array = np.ascontiguousarray(array.astype(np.int64 if array.dtype.kind == "i" else np.uint64))
        return self._native.remove(table, (_arrays.address_of(array), array.size), generation)

    def expire(
        self,
        table: str,
        touches: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        before: int,
        batch: int = 4096,
        dry_run: bool = False,
    ) -> ExpireReport:
        """Removes the keys of a table that were last touched before an epoch, as executors have saved it (`Executor.save_touches`).

        It removes in batches, as `remove` does, and may be called again after an error. Keys stay that no file has, and keys that were
        created or updated since the table was loaded or compacted.

        Parameters
        ----------
        table : str
            The table, which has keys that are stored.
        touches : path, or several
            Files of last touches; of several each key gets the latest epoch.
        before : int
            Keys that were last touched before this epoch are removed.
        batch : int
            Keys that are removed, and made durable, at once.
        dry_run : bool
            Whether keys are only counted, and none is removed.

        Returns
        -------
        ExpireReport
            How many keys the table had, and how many were removed or stay.

        Raises
        ------
        InvalidArgument
            The table has no keys, or no key of it would be left, or no file has the table; a file is something else, damaged, or cannot be
            read; `before` or `batch` is out of range. Nothing was changed.
        NoSuchTable
            There is none of that name.
        NoSpace
            As of `remove`. What was removed before is durable.
        ReadOnly
            The store was opened for reading, and keys would be removed.
        Busy, StoreFailed, DriveFailed
            As of `remove`.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        table = _options.text("table", table)
        batch, dry_run = _options.number("batch", batch, 1, 1 << 32), _options.flag("dry_run", dry_run)
        wanted = "a path, or several"
        several = _options.instance("touches", touches, (str, os.PathLike, Iterable), wanted)
        files = [several] if isinstance(several, str | os.PathLike) else list(several)
        if not files:
            raise invalid("touches", "there is none: give a file that Executor.save_touches has written")
        paths = [os.fspath(_options.instance("touches", file, (str, os.PathLike), wanted)) for file in files]
        return make(ExpireReport, self._native.expire(table, paths, epoch_of("before", before), batch, dry_run))

    def verify(self, table: str | None = None, *, progress: Any = None) -> dict[str, VerifyReport]:
        """Reads all rows of a table, or of all tables, and compares them with their checksums.

        Parameters
        ----------
        table : str, optional
            The table; by default all tables that look-ups find.
        progress : callable or tqdm, optional
            Called with rows read and rows in all, of each table.

        Returns
        -------
        dict of str to VerifyReport
            By table what was found. Damage is reported there, and raises nothing.

        Raises
        ------
        NoSuchTable
            The store has no table of that name.
        WrongType
            `progress` is neither a function nor a bar.
        DriveFailed
            A drive failed, or did not answer in time.
        KeyboardInterrupt
            Ctrl-C ended the check.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        told = _progress(progress)
        names = [_options.text("table", table)] if table is not None else [it.name for it in self.tables()]
        return {name: make(VerifyReport, self._native.verify(name, told)) for name in names}

    def generations(self) -> list[Generation]:
        """All generations, oldest first.

        Raises
        ------
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return [make(Generation, generation) for generation in self._native.generations()]

    def switch(self, generation: int, *, allow_vanishing: bool = False) -> None:
        """Makes names of tables mean those of a generation. Executors go on with what they read, until they `adopt`.

        Parameters
        ----------
        generation : int
            Its id.
        allow_vanishing : bool
            Whether tables may be found no more that the generation does not have.

        Raises
        ------
        NoSuchGeneration
            The store has no generation of that number.
        InvalidArgument
            The generation lacks tables that look-ups find now, and `allow_vanishing` is not set.
        ReadOnly
            The store was opened for reading.
        DriveFailed
            A drive failed, or did not answer in time.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        self._native.switch(_options.number("generation", generation), _options.flag("allow_vanishing", allow_vanishing))

    def drop(self, generation: int, *, allow_vanishing: bool = False) -> None:
        """Drops a generation. With `allow_vanishing`, also one whose tables look-ups find.

        Parameters
        ----------
        generation : int
            Its id.
        allow_vanishing : bool
            Whether its tables may be those that look-ups find.

        Raises
        ------
        NoSuchGeneration
            The store has no generation of that number.
        InvalidArgument
            Look-ups find tables of the generation, and `allow_vanishing` is not set.
        ReadOnly
            The store was opened for reading.
        Busy
            Executors read the generation.
        DriveFailed
            A drive failed, or did not answer in time.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        self._native.drop_generation(_options.number("generation", generation), _options.flag("allow_vanishing", allow_vanishing))

    def compact(self, generation: int) -> int:
        """Brings updated rows and created keys of a generation into its tables; returns how many chunks were written.

        Rows that stay as they are are compared with their checksums, where their table has them.

        Parameters
        ----------
        generation : int
            Its id.

        Returns
        -------
        int
            Chunks that were written.

        Raises
        ------
        Damaged
            A row that stays as it is does not match its checksum; `drive` has it. Nothing was changed.
        NoSuchGeneration
            The store has no generation of that number.
        NoSpace
            The drives have no room for the rows.
        ReadOnly
            The store was opened for reading.
        Busy
            Another writer holds the generation's log.
        DriveFailed
            A drive failed, or did not answer in time.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._native.compact(_options.number("generation", generation))

    def rerank(self, table: str, ids: Any | None) -> RerankReport:
        """Lists the rows of a table that executors keep in DRAM, in the place of its first rows.

        Nothing moves on a drive. Executors that are attached from now on read the list, and so do those that `prepare` and `adopt`.
        The list of an attached table is a file beside it, or in its checkpoint's folder.

        Parameters
        ----------
        table : str
            The table.
        ids : array of integers, shape (n,), or None
            Ids, or keys, the hottest row first. Those that the table lacks are left out. `None`: no list any more.

        Returns
        -------
        RerankReport
            How many rows are listed.

        Raises
        ------
        InvalidArgument
            `ids` has more dimensions than one.
        WrongType
            Ids are no integers.
        NoSuchTable
            The store has no table of that name.
        ReadOnly
            The store was opened for reading.
        Busy
            Another list of the table is being written.
        NoSpace
            The drives have no room for the list.
        DriveFailed
            A drive failed, or did not answer in time.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        _options.text("table", table)
        if ids is None:
            return make(RerankReport, self._native.rerank(table, None))
        array = _arrays.keys("ids", ids)
        return make(RerankReport, self._native.rerank(table, (_arrays.address_of(array), array.size)))

    def export(self, table: str) -> Exported:
        """All rows of a table, compared with their checksums; types that NumPy does not have become float32.

        Parameters
        ----------
        table : str
            The table.

        Returns
        -------
        Exported
            `rows` of shape (rows, dim), by id or in the order of `keys`, which are None where the table has ids.

        Raises
        ------
        NoSuchTable
            The store has no table of that name.
        InvalidArgument
            The table's rows have a type that cannot be exported.
        Damaged
            A row does not match its checksum.
        DriveFailed
            A drive failed, or did not answer in time.
        Busy
            Again and again keys were created or removed, or another generation was switched to, while the rows were read.
        KeyboardInterrupt
            Ctrl-C ended it.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        np = _arrays.numpy()
        _options.text("table", table)
        for _ in range(EXPORTS):
            shape = count, dim, dtype, signed = self._native.export_shape(table)
            rows = _arrays.output(None, (count, dim), dtype)
            keys = None if signed is None else np.empty(count, dtype=np.int64 if signed else np.uint64)
            at = None if keys is None else (_arrays.address_of(keys), keys.size)
            if self._native.export_to(table, shape, (_arrays.address_of(rows), rows.nbytes), at):
                return Exported(rows, keys)
        text = f"table {table!r} got or lost rows while it was exported, {EXPORTS} times: export it when nobody creates or removes keys"
        raise _make("Busy", text, {})

    def drives(self) -> list[DriveState]:
        """How each drive does.

        Raises
        ------
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return [make(DriveState, drive) for drive in self._native.drives()]

    def changed_files(self) -> list[ChangedFile]:
        """The files of attached tables that have changed since they were attached. None of a drive's rows is read any more once one has.

        A look-up tells of a change too (`RowsFailed`). On a GPU, rows of such files are zeros, so an engine that replays graphs asks
        between steps, beside `check`, and stops.

        Raises
        ------
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return [make(ChangedFile, changed) for changed in self._native.changed_files()]

    def retry_drives(self) -> list[DriveState]:
        """Tries every drive once more that was given up; returns how these do then.

        Raises
        ------
        DriveFailed
            A drive failed while it was tried.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return [make(DriveState, drive) for drive in self._native.retry_drives()]

    def inject_fault(self, fault: str, *, drive: int = 0, nth: int = 1, times: int | None = 1) -> None:
        """Has reads of an emulated drive fail, so that a program can be tried under a drive that fails.

        Parameters
        ----------
        fault : str
            "unreadable": the read ends with an error, Unrecovered Read Error. "unanswered": it is not carried out and never ends, so
            that it times out. "corrupt": it succeeds, with one wrong bit. "fatal": the drive's controller stops until it is reset.
        drive : int
            Which of `addresses`.
        nth : int
            The first read that is hit; 1 is the next.
        times : int, optional
            How many reads are hit; None: all until `clear_faults`.

        Raises
        ------
        InvalidArgument
            There is no such fault or drive, the drive is not emulated, or `nth` or `times` is less than 1.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        _options.choice("fault", fault, ("unreadable", "unanswered", "corrupt", "fatal"))
        nth, times = _options.number("nth", nth, 1), _options.maybe_number("times", times, 1)
        self._native.inject_fault(_options.number("drive", drive), fault, nth, times)

    def clear_faults(self) -> None:
        """Takes all faults back that `inject_fault` asked for.

        Raises
        ------
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        self._native.clear_faults()

    def free_bytes(self) -> int:
        """Bytes on the drives that no generation has.

        Raises
        ------
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._native.free_bytes()

    def attach(
        self,
        device: object = "cpu",
        *,
        dram_bytes: int = 0,
        hbm_bytes: int = 0,
        check_rows: bool = False,
        check_keys: bool = False,
        overlay_bytes: int = 0,
        adopting: bool = False,
        timeout: float | None = None,
        hbm_rows: Mapping[str, int] | Iterable[tuple[str, int]] | None = None,
        prefetch_multiprocessors: int | None = None,
        prefetch_priority: str = "high",
        cache_bytes: int = 0,
        cache_shares: Mapping[str, int] | Iterable[tuple[str, int]] | None = None,
        cache_batch_rows: int | None = None,
        cache_admission: float | str = "always",
        cache_dram: bool = False,
        peer_gpu: int | None = None,
        counter_bytes: int = 0,
        count_every: int | None = None,
        touch_epoch: int | None = None,
    ) -> Executor:
        """Attaches an executor, which keeps the hottest rows in memory and looks rows up.

        Parameters
        ----------
        device : str or torch.device
            "cpu", "cuda" or "cuda:N".
        dram_bytes : int
            Bytes of rows to keep in memory.
        hbm_bytes : int
            Bytes of rows to keep in GPU memory; the next hottest lie in memory.
        check_rows : bool
            Whether rows are compared with their checksums as they arrive from drives.
        check_keys : bool
            Whether keys are compared with the stored ones: no other key passes for one of the table's then.
        overlay_bytes : int
            On a GPU, bytes of GPU memory for rows that are updated; 0: the store takes no updates while the executor lives.
        adopting : bool
            On a GPU, whether plans can go over to other tables.
        timeout : float, optional
            The longest wait for a read, seconds; by default the store's.
        hbm_rows : mapping of str to int, optional
            On a GPU, how many rows of a table, its hottest, to keep in GPU memory, as far as `hbm_bytes` hold them. Tables that are not
            named share what is left.
        prefetch_multiprocessors : int, optional
            On a GPU, kernels that fetch rows ahead have at most as many threads at a time as fit on so many multiprocessors, so that a
            model's kernels keep the rest of the GPU; by default as many as are fastest.
        prefetch_priority : str
            On a GPU, "high": blocks of kernels that fetch rows ahead begin before those of other kernels that wait for a multiprocessor;
            "normal": as those of streams without a priority do.
        cache_bytes : int
            Bytes of memory, on a GPU of GPU memory, for rows that look-ups read from drives and later ones then find there; 0: no row
            is cached.
        cache_shares : mapping of str to int, optional
            How many of `cache_bytes` a table has to itself; tables that are not named share the rest. By default all tables share all.
        cache_batch_rows : int, optional
            On a GPU, how many different rows on drives a usual batch has; by default 262,144. Caches of many such batches hold lines
            for longer that a look-up has used.
        cache_admission : float or str
            On a GPU, which rows are cached that were read: "always", all; "sketch", those that were asked for more often lately than the
            row whose place they would take; or with which probability a row is.
        cache_dram : bool
            On a GPU, whether rows of `dram_bytes` are cached as those read from drives are.
        peer_gpu : int, optional
            On a GPU, the number of another, in whose memory the rows of `dram_bytes` lie, in the place of the host's; by default none.
        counter_bytes : int
            Bytes of memory for counts of what is looked up, for `Executor.popular`; 0: nothing is counted.
        count_every : int, optional
            Of so many ids one is counted, at random; by default 64.
        touch_epoch : int, optional
            The epoch, from 1 to 65,535, that look-ups note as that of the last touch of each key that they find, for `expire`: 2 bytes for
            each row of tables with keys, on a GPU as many of its memory too. `Executor.set_touch_epoch` gives a later one. By default
            none is noted.

        Returns
        -------
        Executor
            It holds memory and queue pairs until it is closed; closing the store closes it too.

        Raises
        ------
        InvalidArgument
            An option is out of the range that is named above, or `device` is none of these.
        WrongType
            An option is of another type than is named above.
        NoSuchTable
            `hbm_rows` or `cache_shares` names a table that the store does not have.
        Busy
            Drives have no queue pairs left, or another executor on the GPU has drives that cannot be shared.
        GpuError
            There is no GPU of that number, too little GPU memory, or no compiled kernels for this GPU and no NVRTC to compile them.
        RowsFailed, Damaged, DriveFailed
            Rows that belong in memory could not be read.
        Closed
            The store is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        options = self._attach_options(
            dram_bytes=dram_bytes,
            hbm_bytes=hbm_bytes,
            check_rows=check_rows,
            check_keys=check_keys,
            overlay_bytes=overlay_bytes,
            adopting=adopting,
            timeout=timeout,
            hbm_rows=hbm_rows,
            prefetch_multiprocessors=prefetch_multiprocessors,
            prefetch_priority=prefetch_priority,
            cache_bytes=cache_bytes,
            cache_shares=cache_shares,
            cache_batch_rows=cache_batch_rows,
            cache_admission=cache_admission,
            cache_dram=cache_dram,
            peer_gpu=peer_gpu,
            counter_bytes=counter_bytes,
            count_every=count_every,
            touch_epoch=touch_epoch,
        )
        executor = Executor(self, device, options)
        self._executors.add(executor)
        return executor

    def _attach_options(self, **given: Any) -> Options:
        """Options of `attach`, looked at; those that are not given have their defaults."""
        known = Options().__dict__
        for name in given:
            if name not in known:
                raise wrong_type(name, f"it is no option of Store.attach; they are {', '.join(known)}")
        of = {**known, **given}
        number, maybe = _options.number, _options.maybe_number
        return Options(
            dram_bytes=number("dram_bytes", of["dram_bytes"]),
            hbm_bytes=number("hbm_bytes", of["hbm_bytes"]),
            check_rows=_options.flag("check_rows", of["check_rows"]),
            check_keys=_options.flag("check_keys", of["check_keys"]),
            overlay_bytes=number("overlay_bytes", of["overlay_bytes"]),
            adopting=_options.flag("adopting", of["adopting"]),
            timeout=None if of["timeout"] is None else _options.seconds("timeout", of["timeout"]),
            hbm_rows=self._of_tables("hbm_rows", of["hbm_rows"], "rows"),
            prefetch_multiprocessors=maybe("prefetch_multiprocessors", of["prefetch_multiprocessors"], 1, 1 << 32),
            prefetch_priority=_options.choice("prefetch_priority", of["prefetch_priority"], ("high", "normal")),
            cache_bytes=number("cache_bytes", of["cache_bytes"]),
            cache_shares=self._of_tables("cache_shares", of["cache_shares"], "bytes"),
            cache_batch_rows=maybe("cache_batch_rows", of["cache_batch_rows"], 1),
            cache_admission=_admission(of["cache_admission"]),
            cache_dram=_options.flag("cache_dram", of["cache_dram"]),
            peer_gpu=maybe("peer_gpu", of["peer_gpu"], 0, 1 << 32),
            counter_bytes=number("counter_bytes", of["counter_bytes"]),
            count_every=maybe("count_every", of["count_every"], 1, 1 << 32),
            touch_epoch=None if of["touch_epoch"] is None else epoch_of("touch_epoch", of["touch_epoch"]),
        )

    def _of_tables(
        self, argument: str, given: Mapping[str, int] | Iterable[tuple[str, int]] | None, of: str
    ) -> tuple[tuple[str, int], ...]:
        wanted = f"a mapping of tables to numbers of {of}"
        try:
            of_tables = dict(given or ())
        except (TypeError, ValueError) as error:
            raise wrong_type(argument, f"{_options.told(given)}: give {wanted}") from error
        for name, count in of_tables.items():
            if not isinstance(name, str):
                raise wrong_type(argument, f"{_options.told(name)} in the place of a table's name: give {wanted}")
            self.table(name)
            of_tables[name] = _options.number(argument, count, -1 << 63)
            if of_tables[name] < 0:
                raise invalid(argument, f"{count} {of} of {name!r}: give a number from 0 on")
        return tuple(of_tables.items())

    def _shared(self, device: str, options: Options) -> Executor:
        """The executor of modules on a device: one for all with the same options, as long as tables stay as they are. A module that is
        made behind a load or a switch gets one that has the tables of now."""
        with self._lock:
            key = (device, options)
            executor = self._shared_executors.get(key)
            if executor is None or executor._tables != tables_of(self):
                executor = self._shared_executors[key] = self.attach(device, **options.__dict__)
            return executor

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        drives = ", ".join(self.addresses)
        if self.closed:
            return f"<warprow.Store on {drives}, closed>"
        tables = self.tables()
        named = ", ".join(f"{it.name} ({it.rows} x {it.dim} {it.dtype})" for it in tables[:5])
        more = f" and {len(tables) - 5} more" if len(tables) > 5 else ""
        return f"<warprow.Store on {drives}{', read-only' if self.read_only else ''}: {named or 'no tables'}{more}>"


def _check_dtypes(given: Any) -> None:
    """Types to store, before a source is read."""
    of_tables = _options.mapping("dtype", given, "tables' names to types") if isinstance(given, Mapping) else {"": given}
    for wanted in (of_tables or {}).values():
        if wanted is not None and not isinstance(wanted, str):
            text = f"{_options.told(wanted)}: give a name such as \"f16\", or a mapping of tables' names to such names"
            raise wrong_type("dtype", text)
        if wanted is not None and wanted not in _arrays.STORED_DTYPES:
            raise invalid("dtype", f"{wanted!r} is no type of elements; they are {', '.join(_arrays.STORED_DTYPES)}")


def _admission(given: Any) -> float | str:
    wanted = '"always", "sketch", or a probability above 0 and up to 1'
    if isinstance(given, str):
        if given not in ("always", "sketch"):
            raise invalid("cache_admission", f"{given!r}: give {wanted}")
        return given
    chance = _options.real("cache_admission", given, wanted)
    if not 0 < chance <= 1:
        raise invalid("cache_admission", f"{given!r}: give {wanted}")
    return chance


def _counts(value: Any) -> Array:
    np = _arrays.numpy()
    array, _ = _arrays.integers("hotness", value, dims=1)
    if array.size and int(array.min()) < 0:
        raise invalid("hotness", "a count is negative")
    return np.ascontiguousarray(array, dtype=np.uint64)  # type: ignore[no-any-return]


def _key_args(numbers: Array) -> tuple[int, int, bool]:
    return _arrays.address_of(numbers), numbers.size, numbers.dtype.kind == "i"


def _progress(given: Any) -> Callable[[int, int], object] | None:
    if given is None:
        return None
    if hasattr(given, "update") and hasattr(given, "total"):
        told = [0]

        def update(done: int, total: int) -> None:
            given.total = total
            given.update(done - told[0])
            told[0] = done

        return update
    if not callable(given):
        raise wrong_type("progress", f"a {type(given).__name__}: give a function of two numbers, or a tqdm bar")
    return given  # type: ignore[no-any-return]
