"""Sums and means of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .. import _options as arguments
from ..errors import invalid
from ..executor import Executor
from ..store import Store
from ._lookup import Lookup
from ._options import LookupOptions
from ._prefetched import Prefetched
from ._table_module import TableModule
from ._tensors import as_tensor


class EmbeddingBag(TableModule):
    """Sums or means of bags of rows, as `torch.nn.EmbeddingBag`. Sums are in float32 from +0, in the order of the bag.

    Parameters
    ----------
    executor : Executor or Store
        What looks rows up; of a store, an executor on the CPU without memory for rows.
    table : str
        The table.
    mode : str
        "mean" or "sum". ("max" is not there.)
    include_last_offset : bool
        Whether offsets have an entry past the last bag, the number of ids.
    padding_idx : int, optional
        An id that adds nothing to a sum, and does not count for a mean.
    missing, on_failure, mask, dtype, max_ids, prefetch
        As of `Embedding`.

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
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        missing: str = "error",
        on_failure: str = "raise",
        mask: str = "found",
        dtype: torch.dtype = torch.float32,
        max_ids: int | None = None,
        prefetch: int = 0,
    ) -> None:
        include_last_offset = arguments.flag("include_last_offset", include_last_offset)
        if arguments.text("mode", mode) not in ("sum", "mean"):
            text = f'{mode!r}: give "sum" or "mean"; for a maximum, look rows up by Embedding and reduce them'
            raise invalid("mode", text)
        options = LookupOptions(missing, on_failure, mask, dtype, max_ids, prefetch)
        super().__init__(executor, table, options, pooling=mode, padding_idx=padding_idx, has_last=include_last_offset)
        self.mode, self.include_last_offset = mode, include_last_offset
        # It makes a plan of its own when weights are given.
        self._weighted = self._with_weights()

    def _lookup_of(self, weights: torch.Tensor | None) -> Lookup:
        if weights is None:
            return self._lookup
        if self._weighted is None:
            raise invalid("per_sample_weights", f'mode is "{self.mode}": weights go with mode="sum" alone')
        return self._weighted

    def _with_weights(self) -> Lookup | None:
        if self.mode != "sum":
            return None
        spec = self._lookup.spec
        features = tuple(replace(feature, weighted=True) for feature in spec.features)
        return Lookup(replace(spec, features=features), self._lookup.executor)

    def _lookups(self) -> list[Lookup]:
        return [self._lookup] if self._weighted is None else [self._lookup, self._weighted]

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._weighted = self._with_weights()

    def _bags(self, ids: torch.Tensor, offsets: torch.Tensor | None) -> None:
        if ids.dim() == 2:
            if offsets is not None:
                raise invalid("offsets", "input has two dimensions, a bag in each row: leave offsets away")
        elif ids.dim() == 1:
            if offsets is None:
                raise invalid("offsets", "input has one dimension: say where bags begin")
            if self.include_last_offset and offsets.dim() == 1 and offsets.shape[0] == 0:
                raise invalid("offsets", "include_last_offset is set: give at least one")
        else:
            raise invalid("input", f"{ids.dim()} dimensions: give one or two")

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> Any:
        """Sums or means of bags.

        Parameters
        ----------
        input : Tensor of int64 or int32
            Shape (B, n): B bags of n ids; or (n,), with offsets. Arrays that have `__dlpack__` do as well, here and below.
        offsets : Tensor of int64 or int32, optional
            Shape (B,), or (B + 1,) with include_last_offset: where each bag begins. The first is 0, none is less than the one before.
        per_sample_weights : Tensor, optional
            Of input's shape; with mode="sum".
        out : Tensor, optional
            Filled instead of a new tensor.

        Returns
        -------
        Tensor of shape (B, embedding_dim); with `on_failure="mask"` a second one of bools, of input's shape.

        Raises
        ------
        InvalidArgument
            Shapes do not go together, or a tensor is on another device than the module; offsets descend, or do not begin with 0 (on CUDA the next
            call or `check` tells); there are weights, and mode is "mean"; weights require a gradient; `out` has another shape or device; there
            are more ids than `max_ids`; a graph is being captured, and the module was not called before with so many ids.
        WrongType
            Ids or offsets have elements of another type than is named above, weights are no floats, or `out` is no tensor of the module's dtype.
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
        input, offsets, per_sample_weights = _tensors(input, offsets, per_sample_weights)  # noqa: A001
        self._bags(input, offsets)
        return self._run(self._lookup_of(per_sample_weights), input, offsets, per_sample_weights, out)

    def prefetch(
        self,
        input: torch.Tensor,  # noqa: A002
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> Prefetched:
        """Begins to fetch rows, for `lookup`.

        Parameters
        ----------
        input, offsets, per_sample_weights
            As `forward` takes them. On the CPU they are copied; on a GPU they are held until the look-up.

        Returns
        -------
        Prefetched
            Looked up once, by this module. Dropped, it is forgotten.

        Raises
        ------
        InvalidArgument
            What `forward` refuses of the batch; the module was made without `prefetch=`.
        WrongType
            As `forward`.
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
        input, offsets, per_sample_weights = _tensors(input, offsets, per_sample_weights)  # noqa: A001
        self._bags(input, offsets)
        return self._begin(self._lookup_of(per_sample_weights), input, offsets, per_sample_weights)

    def extra_repr(self) -> str:
        return self._shown(f", mode={self.mode!r}")


def _tensors(
    ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    if not isinstance(ids, torch.Tensor):
        ids = as_tensor("input", ids)
    if offsets is not None and not isinstance(offsets, torch.Tensor):
        offsets = as_tensor("offsets", offsets)
    if weights is not None and not isinstance(weights, torch.Tensor):
        weights = as_tensor("per_sample_weights", weights)
    return ids, offsets, weights
