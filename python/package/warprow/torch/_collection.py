"""All features of a batch in one look-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..executor import Executor, Feature
from ..store import Store
from ._batches import check_features, joined
from ._module import StoredModule
from ._options import LookupOptions
from ._prefetched import Prefetched


class EmbeddingBagCollection(StoredModule):
    """Bags of several tables, looked up together: the drives get all their reads at once.

    Parameters
    ----------
    executor : Executor or Store
        What looks rows up.
    features : sequence of Feature
        All pooled. Several may be over one table.
    missing, on_failure, mask, dtype, max_ids, prefetch
        As of `Embedding`.

    Raises
    ------
    InvalidArgument
        An option has a value that is not named above; there are no features, one is not pooled, or two have one name; `executor` is
        neither an executor nor a store.
    NoSuchTable
        The store lacks a feature's table.
    Closed
        The store is closed.
    Forked
        Another process opened the store, and this one was forked from it.
    """

    def __init__(
        self,
        executor: Executor | Store,
        features: Sequence[Feature],
        *,
        missing: str = "error",
        on_failure: str = "raise",
        mask: str = "found",
        dtype: torch.dtype = torch.float32,
        max_ids: int | None = None,
        prefetch: int = 0,
    ) -> None:
        features = check_features(features)
        options = LookupOptions(missing, on_failure, mask, dtype, max_ids, prefetch)
        super().__init__(executor, features, options, has_last=True)
        self.features = features

    def forward(self, batch: Any, *, out: torch.Tensor | None = None) -> Any:
        """Bags of all features.

        Parameters
        ----------
        batch : mapping of str to tuple, or KeyedJaggedTensor
            By feature `(ids, offsets)`, or `(ids, offsets, weights)`, with offsets of shape (B + 1,). TorchRec's tensors are used
            without a copy if their keys are the features, in their order.
        out : Tensor, optional
            Filled instead of a new tensor: contiguous, of shape (B, width), where width is the sum of the features' dims, and of the
            module's dtype and device. What is returned are views of it.

        Returns
        -------
        dict of str to Tensor
            By feature shape (B, dim): views of one tensor. With `on_failure="mask"` a second dict of bools, for each feature one for
            each of its ids.

        Raises
        ------
        InvalidArgument
            The batch has other features than the module, features with different numbers of bags, offsets that do not go from 0 to the
            number of ids or that descend (on CUDA the next call or `check` tells of values), or no weights for a weighted feature;
            `out` has another shape or device; weights require a gradient.
        WrongType
            Ids or offsets are not of int64 or int32, weights are not of floats, or `out` has another dtype.
        MissingIds, RowsFailed
            As `Embedding.forward`.
        Busy, Closed, Forked, GpuError
            As `Embedding.forward`.
        """
        ids, offsets, weights, counts = joined(self.features, batch, counted=self._lookup.masked)
        return self._by_feature(self._run(self._lookup, ids, offsets, weights, out), counts)

    def prefetch(self, batch: Any, *, behind: Prefetched | None = None) -> Prefetched:
        """Begins to fetch the rows of all features of a batch, for `lookup`: on a GPU behind those of a batch that is needed first, and was
        prefetched by any module.

        Parameters
        ----------
        batch : mapping of str to tuple, or KeyedJaggedTensor
            As `forward` takes it. On a GPU its tensors are held until the look-up; on the CPU they are copied.
        behind : Prefetched, optional
            A batch that is needed first: on a GPU no row of this one is read before the rows of that one are there.

        Returns
        -------
        Prefetched
            Looked up once, by this module. Dropped, it is forgotten.

        Raises
        ------
        InvalidArgument
            What `forward` refuses of a batch; the module was made without `prefetch=`; `behind` is of another executor.
        WrongType
            As `forward`; `behind` is nothing that a `prefetch` returned.
        MissingIds
            On the CPU: ids are missing from their table, and `missing` is "error".
        Busy
            As many batches are held as the module was made for.
        RowsFailed, Closed, Forked, GpuError
            As `Embedding.forward`.
        """
        ids, offsets, weights, counts = joined(self.features, batch, counted=self._lookup.masked)
        made = self._begin(self._lookup, ids, offsets, weights, behind)
        made._counts = counts
        return made

    def lookup(self, prefetched: Prefetched, *, out: torch.Tensor | None = None) -> Any:
        """What `forward` would have given for a batch when it was prefetched.

        Parameters
        ----------
        prefetched : Prefetched
            What `prefetch` of this module returned.
        out : Tensor, optional
            As `forward` takes it.

        Returns
        -------
        dict of str to Tensor
            As `forward` returns it; with `on_failure="mask"` two.

        Raises
        ------
        InvalidArgument
            Another module made `prefetched`, or it was looked up already; one half is in a capture and the other is not; `out` has
            another shape or device.
        WrongType
            `prefetched` is something else; `out` has another dtype.
        RowsFailed, Busy, Closed, Forked, GpuError
            As `Embedding.forward`.
        """
        found = super().lookup(prefetched, out=out)
        return self._by_feature(found, prefetched._counts)

    def _by_feature(self, found: Any, counts: list[int]) -> Any:
        """Columns of rows, and spans of a mask, by the names of features."""
        rows, mask = found if self._lookup.masked else (found, None)
        dims = [dim for _, dim in self._lookup.spec.shapes]
        names = [feature.name for feature in self.features]
        by_name = dict(zip(names, rows.split(dims, dim=1), strict=True))
        if mask is None:
            return by_name
        return by_name, dict(zip(names, mask.split(counts), strict=True))

    def extra_repr(self) -> str:
        named = ", ".join(f"{it.name}: {it.pooling} of {it.table!r}" for it in self.features)
        return f"{named}, device={str(self.device)!r}"
