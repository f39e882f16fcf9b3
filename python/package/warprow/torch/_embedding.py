"""Rows by ids."""

from __future__ import annotations

from typing import Any

import torch

from ..executor import Executor
from ..store import Store
from ._options import LookupOptions
from ._prefetched import Prefetched
from ._table_module import TableModule
from ._tensors import as_tensor


class Embedding(TableModule):
    """Rows of a table by ids, as `torch.nn.Embedding`.

    Parameters
    ----------
    executor : Executor or Store
        What looks rows up; of a store, an executor on the CPU without memory for rows.
    table : str
        The table.
    padding_idx : int, optional
        An id that stands for no row. Its row is given as it is stored.
    missing : str
        Which row an id gets that the table lacks: "error" (on the CPU the call raises `MissingIds`, on CUDA the next call or `check`),
        "default", "zero", "skip".
    on_failure : str
        What becomes of rows that could not be read: "raise" (on the CPU the call raises `RowsFailed`, on CUDA the next call or `check`),
        "nan" (NaN in these rows), or "mask" (zeros, and a second output).
    mask : str
        What the second output tells of each id: "found" (true: the row was found and read) or "failed" (true: it could not be read).
    dtype : torch.dtype
        Type of the output.
    max_ids : int, optional
        The most ids of one call; without, a module makes a larger plan when it meets a larger batch.
    prefetch : int
        How many batches can be held by `prefetch`.

    Raises
    ------
    InvalidArgument
        An option has a value that is not named above; `executor` is neither an executor nor a store.
    NoSuchTable
        The store has no table of that name.
    Closed
        The store or the executor is closed.
    Forked
        This process was forked from the one that opened the store.
    """

    def __init__(
        self,
        executor: Executor | Store,
        table: str,
        *,
        padding_idx: int | None = None,
        missing: str = "error",
        on_failure: str = "raise",
        mask: str = "found",
        dtype: torch.dtype = torch.float32,
        max_ids: int | None = None,
        prefetch: int = 0,
    ) -> None:
        options = LookupOptions(missing, on_failure, mask, dtype, max_ids, prefetch)
        super().__init__(executor, table, options, padding_idx=padding_idx)

    def forward(self, input: torch.Tensor, *, out: torch.Tensor | None = None) -> Any:  # noqa: A002
        """Rows of ids.

        Parameters
        ----------
        input : Tensor of int64 or int32
            Ids, of any shape. An array that has `__dlpack__` does as well.
        out : Tensor, optional
            Filled instead of a new tensor.

        Returns
        -------
        Tensor of shape input.shape + (embedding_dim,); with `on_failure="mask"` a second one of bools, of input's shape.

        Raises
        ------
        InvalidArgument
            `input` is on another device than the module; `out` has another shape or device, or is not contiguous; there are more ids than
            `max_ids`; a graph is being captured, and the module was not called before with so many ids.
        WrongType
            `input` has elements of another type; `out` is no tensor of the module's dtype.
        MissingIds
            The table lacks ids, and `missing` is "error": on the CPU of this call, on CUDA of a call before.
        RowsFailed
            Rows could not be read, and `on_failure` is "raise": on the CPU of this call, on CUDA of a call before. All other rows are right.
        Busy
            Other streams or threads have all slots, or eight look-ups of this stream are under way, for longer than a minute.
        GpuError
            On CUDA: too little memory for the module's plan, or another stream's capture does not allow what the call needs.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        if not isinstance(input, torch.Tensor):
            input = as_tensor("input", input)  # noqa: A001
        return self._run(self._lookup, input, None, None, out)

    def prefetch(self, input: torch.Tensor, *, behind: Prefetched | None = None) -> Prefetched:  # noqa: A002
        """Begins to fetch rows, for `lookup`: on a GPU behind those of a batch that is needed first, and was prefetched by any module.

        Parameters
        ----------
        input : Tensor of int64 or int32
            Ids, of any shape. On the CPU they are copied; on a GPU they are held until the look-up.
        behind : Prefetched, optional
            A batch that is needed first: on a GPU no row of this one is read before the rows of that one are there.

        Returns
        -------
        Prefetched
            Looked up once, by this module. Dropped, it is forgotten.

        Raises
        ------
        InvalidArgument
            What `forward` refuses of the batch; the module was made without `prefetch=`; `behind` is of another executor.
        WrongType
            As `forward`; `behind` is nothing that a `prefetch` returned.
        MissingIds
            On the CPU of this call, on CUDA of a call before: a table lacks ids, and `missing` is "error".
        RowsFailed
            On CUDA: rows of a call before could not be read, and `on_failure` is "raise". On the CPU `lookup` raises it.
        Busy
            As many batches are held as the module was made for.
        GpuError
            As `forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._begin(self._lookup, as_tensor("input", input), None, None, behind)

    def extra_repr(self) -> str:
        return self._shown()
