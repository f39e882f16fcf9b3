"""What modules over one table have in common."""

from __future__ import annotations

from .. import _options as arguments
from ..errors import invalid
from ..executor import Executor, Feature
from ..store import Store
from ._module import StoredModule
from ._options import LookupOptions


def _padding_of(padding_idx: int | None, rows: int, keyed: bool) -> int | None:
    """A padding id, counted from the end if it is negative, as torch has it."""
    if padding_idx is None or keyed:
        return padding_idx
    if not -rows <= padding_idx < rows:
        raise invalid("padding_idx", f"{padding_idx}: the table has {rows} rows")
    return padding_idx % rows


class TableModule(StoredModule):
    """A module over one table, with the attributes of torch's modules."""

    def __init__(
        self,
        executor: Executor | Store,
        table: str,
        options: LookupOptions,
        *,
        pooling: str = "none",
        padding_idx: int | None = None,
        has_last: bool = False,
    ) -> None:
        arguments.text("table", table)
        padding_idx = arguments.maybe_number("padding_idx", padding_idx, -1 << 63)
        store = executor if isinstance(executor, Store) else getattr(executor, "store", None)
        info = store.table(table) if store is not None else None
        padding = None if info is None else _padding_of(padding_idx, info.rows, info.keyed)
        super().__init__(executor, [Feature(table, table, pooling=pooling, padding=padding)], options, has_last=has_last)
        #: Rows of the table, and elements of a row.
        self.num_embeddings, self.embedding_dim = self._lookup.spec.shapes[0]
        self.padding_idx = padding

    def _shown(self, between: str = "") -> str:
        """What `extra_repr` of all of them says."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        table = self._lookup.spec.features[0].table
        return f"{self.num_embeddings}, {self.embedding_dim}{between}{padding}, table={table!r}, device={str(self.device)!r}"
