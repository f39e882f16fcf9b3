"""Arrow tables as sources of a load, by pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from . import _arrays
from .errors import WarprowError, invalid, wrong_type

if TYPE_CHECKING:
    from ._arrays import Array
    from ._spool import Spool

#: Types of elements, by the names that arrow gives them.
_ELEMENTS = ("float", "halffloat", "int8", "uint8")


def is_arrow(source: Any) -> bool:
    """Whether a source gives its columns by arrow's interface for C."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def _pyarrow(source: Any) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        text = f"source is an arrow table (a {type(source).__name__}), and pyarrow is not installed: pip install 'warprow[arrow]'"
        raise WarprowError(text) from error
    if not hasattr(pyarrow.RecordBatchReader, "from_stream"):
        text = f"pyarrow {pyarrow.__version__} is too old for arrow tables: pip install 'pyarrow>=15'"
        raise WarprowError(text)
    return pyarrow


class Columns:
    """The columns of an arrow table. Those of a stream are read once."""

    def __init__(self, source: Any) -> None:
        self._pa = pa = _pyarrow(source)
        #: A table in memory, or None: record batches come from `_reader`.
        self._table: Any = None
        self._reader: Any = None
        if isinstance(source, pa.Table):
            self._table = source
        elif isinstance(source, pa.RecordBatch):
            self._table = pa.Table.from_batches([source])
        else:
            try:
                if hasattr(source, "__arrow_c_stream__"):
                    self._reader = pa.RecordBatchReader.from_stream(source)
                else:
                    self._table = pa.Table.from_batches([pa.record_batch(source)])
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
                text = f"a {type(source).__name__} that is no arrow table ({error}): give a table, whose columns have names"
                raise wrong_type("source", text) from error
        self._schema = self._reader.schema if self._table is None else self._table.schema
        self.names: list[str] = list(self._schema.names)
        for name in self.names:
            if self.names.count(name) > 1:
                raise invalid("source", f"it has two columns called {name!r}: rename one of them")

    def check_keys(self, names: Sequence[str]) -> None:
        """Raises unless there are columns of integers with these names."""
        for name in names:
            if name not in self.names:
                raise invalid("keys", f"there is no column {name!r}; there are {', '.join(self.names) or 'no columns'}")
            kind = self._schema.field(name).type
            if not self._pa.types.is_integer(kind):
                raise wrong_type("keys", f"column {name!r} has elements of type {kind}: keys are integers")

    def check_table(self, name: str) -> None:
        """Raises unless the column of that name is a table: its type says so."""
        kind, types = self._schema.field(name).type, self._pa.types
        if not types.is_fixed_size_list(kind):
            if types.is_list(kind) or types.is_large_list(kind):
                cast = "cast it to lists of one size, such as pyarrow.list_(pyarrow.float32(), 64)"
                raise invalid("source", f"column {name!r} has lists of any size: {cast}")
            raise invalid("source", f"column {name!r} has the type {kind}: a table is a column of fixed-size lists of floats")
        if str(kind.value_type) not in _ELEMENTS:
            text = f"column {name!r} has elements of type {kind.value_type}: cast them to one of {', '.join(_ELEMENTS)}"
            raise wrong_type("source", text)
        if kind.list_size == 0:
            raise invalid("source", f"column {name!r} has lists of no element: a table has at least one row of one element")

    def read(
        self, tables: Mapping[str, dict[str, Any]], keys: Sequence[str], found: dict[str, Array], spool: Spool
    ) -> None:
        """Completes `tables` by the columns of their names, and `found` by the columns of keys.

        A column that lies in one piece is used where it is. Others are spooled, a piece at a time.
        """
        if self._table is not None:
            for name, table in tables.items():
                self._take(name, iter(self._table.column(name).chunks), table, spool)
            pieces = {key: [_integers(key, it) for it in self._table.column(key).chunks] for key in keys}
        else:
            pieces = self._read_batches(tables, keys, spool)
        np = _arrays.numpy()
        for key, parts in pieces.items():
            found[key] = parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _take(self, name: str, chunks: Iterator[Any], table: dict[str, Any], spool: Spool) -> None:
        pieces = (_rows(name, chunk) for chunk in chunks if len(chunk))
        first, second = next(pieces, None), next(pieces, None)
        if first is None:
            raise invalid("source", f"column {name!r} has no rows: a table has at least one")
        if second is None:
            table.update(_in_memory(name, first))
            return
        spooled = spool.table(f"source[{name!r}]")
        for piece in chain((first, second), pieces):
            spooled.add(piece)
        table.update(spooled.finish())

    def _read_batches(
        self, tables: Mapping[str, dict[str, Any]], keys: Sequence[str], spool: Spool
    ) -> dict[str, list[Array]]:
        batches = (batch for batch in self._reader if batch.num_rows)
        first, second = next(batches, None), next(batches, None)
        if first is None:
            raise invalid("source", "its stream has no rows: a table has at least one; a stream is read once")
        pieces: dict[str, list[Array]] = {key: [] for key in keys}
        if second is None:
            for name, table in tables.items():
                table.update(_in_memory(name, _rows(name, first.column(name))))
            return {key: [_integers(key, first.column(key))] for key in keys}
        spooled = {name: spool.table(f"source[{name!r}]") for name in tables}
        waiting = chain((first, second), batches)
        # A batch is let go of before the next one is read.
        del first, second
        for batch in waiting:
            for name, table_file in spooled.items():
                table_file.add(_rows(name, batch.column(name)))
            for key in keys:
                # A copy, so that the batch can go.
                pieces[key].append(_integers(key, batch.column(key)).copy())
            del batch
        for name, table_file in spooled.items():
            tables[name].update(table_file.finish())
        return pieces


def _in_memory(name: str, array: Array) -> dict[str, Any]:
    rows = _arrays.rows(f"source[{name!r}]", array)
    return {
        "file": None, "memory": (rows.address, rows.nbytes), "shape": (rows.rows, rows.dim), "dtype": rows.dtype,
        "owner": rows.owner,
    }


def _rows(name: str, chunk: Any) -> Array:
    """The rows of a piece of a column, where they are."""
    if chunk.null_count:
        text = f"column {name!r} has {chunk.null_count} rows that are null: drop them, or fill them"
        raise invalid("source", text)
    # The elements of this slice alone, not of the whole column.
    elements = chunk.flatten()
    if elements.null_count:
        text = f"column {name!r} has {elements.null_count} elements that are null: fill them, or drop their rows"
        raise invalid("source", text)
    array: Array = elements.to_numpy(zero_copy_only=True).reshape(len(chunk), chunk.type.list_size)
    return array


def _integers(name: str, chunk: Any) -> Array:
    if chunk.null_count:
        raise invalid("keys", f"column {name!r} has {chunk.null_count} nulls: each row has a key")
    array: Array = chunk.to_numpy(zero_copy_only=True)
    return array
