"""Sources of a load: mappings, files, arrow tables, as the native layer takes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from . import _arrays, _arrow, _native
from .errors import invalid, wrong_type

if TYPE_CHECKING:
    from ._arrays import Array
    from ._spool import Spool


class ArrowStream(Protocol):
    """What gives its columns as an arrow stream: tables and readers of pyarrow, DataFrames of polars, results of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A capsule with the stream."""


class ArrowArray(Protocol):
    """What gives its columns as one arrow array, as a record batch does."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Capsules with the schema and the array."""


@dataclass
class Source:
    """The tables of a source."""

    #: By table what the native layer takes: "name", "file", "memory", "shape", "dtype", and "owner", to be held meanwhile.
    tables: list[dict[str, Any]]
    #: Reads what can be read once, and completes `tables` and `key_columns`.
    read: Callable[[Spool], None] | None = None
    #: Integers of columns that `keys` names.
    key_columns: dict[str, Array] = field(default_factory=dict)


def of(source: Any, patterns: Sequence[str] | None, keys: str | Mapping[str, Any] | None) -> Source:
    """The tables of a source whose names match; nothing is read of iterators and streams yet."""
    named = [keys] if isinstance(keys, str) else [key for key in (keys or {}).values() if isinstance(key, str)]
    if not isinstance(source, Mapping) and _arrow.is_arrow(source):
        return _of_arrow(source, patterns, list(dict.fromkeys(named)))
    if named:
        raise invalid("keys", f"{named[0]!r} names a column, and the source is no arrow table: give an array of integers")
    return _of_mapping(source, patterns) if isinstance(source, Mapping) else _of_path(source, patterns)


def _matches(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def _none_matches(patterns: Sequence[str] | None, known: Iterable[str]) -> Exception:
    if patterns is None:
        return invalid("source", "it has no tables")
    return invalid("select", f"nothing matches {', '.join(patterns)}; there are {', '.join(known) or 'no entries'}")


def _of_mapping(source: Mapping[str, Any], patterns: Sequence[str] | None) -> Source:
    tables: list[dict[str, Any]] = []
    pending: list[tuple[dict[str, Any], str, Iterator[Any]]] = []
    for name, value in source.items():
        if not isinstance(name, str):
            raise wrong_type("source", f"a table is called {name!r}, a {type(name).__name__}: give names that are texts (str)")
        if not _matches(name, patterns):
            continue
        if isinstance(value, Iterator):
            tables.append({"name": name})
            pending.append((tables[-1], f"source[{name!r}]", value))
            continue
        try:
            rows = _arrays.rows(f"source[{name!r}]", value)
        except ValueError as error:
            if patterns is None:
                raise invalid("source", f"{error}; choose the entries that are tables, with select=") from error
            raise
        memory = (rows.address, rows.nbytes)
        shape = (rows.rows, rows.dim)
        tables.append({
            "name": name, "file": None, "memory": memory, "shape": shape, "dtype": rows.dtype, "owner": rows.owner,
        })
    if not tables:
        raise _none_matches(patterns, source)
    if not pending:
        return Source(tables)

    def read(spool: Spool) -> None:
        for table, argument, blocks in pending:
            spooled = spool.table(argument)
            for block in blocks:
                spooled.add(block)
                # It is let go of before the next one is made.
                del block
            table.update(spooled.finish())

    return Source(tables, read)


def _of_path(source: str | os.PathLike[str], patterns: Sequence[str] | None) -> Source:
    try:
        path = os.fspath(source)
    except TypeError:
        text = f"a {type(source).__name__}: give a mapping of names to arrays, such as a state dict, an arrow table, or a path"
        raise wrong_type("source", text) from None
    found, _ = _native.tables_in(path)
    tables: list[dict[str, Any]] = [
        {"name": name, "file": (path, name), "memory": (0, 0), "shape": (rows, dim), "dtype": dtype}
        for name, rows, dim, dtype, _ in found
        if _matches(name, patterns)
    ]
    if not tables:
        raise _none_matches(patterns, [name for name, *_ in found])
    return Source(tables)


def _of_arrow(source: Any, patterns: Sequence[str] | None, keys: Sequence[str]) -> Source:
    columns = _arrow.Columns(source)
    columns.check_keys(keys)
    names = [name for name in columns.names if name not in keys and _matches(name, patterns)]
    if not names:
        raise _none_matches(patterns, [name for name in columns.names if name not in keys])
    for name in names:
        try:
            columns.check_table(name)
        except ValueError as error:
            if patterns is None:
                raise invalid("source", f"{error}; choose the columns that are tables, with select=") from error
            raise
    found = Source([{"name": name} for name in names])
    by_name = dict(zip(names, found.tables, strict=True))

    def read(spool: Spool) -> None:
        columns.read(by_name, keys, found.key_columns, spool)

    found.read = read
    return found
