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


class EmbeddingBagCollection(StoredModule):
    """Bags of several tables, looked up together: the drives get all their reads at once.

    Parameters
    ----------
    executor : Executor or Store
        What looks rows up.
    features : sequence of Feature
        All pooled. Several may be over one table.
    missing, on_failure, mask, dtype, max_ids
        As of `Embedding`.
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
    ) -> None:
        features = check_features(features)
        options = LookupOptions(missing, on_failure, mask, dtype, max_ids)
        super().__init__(executor, features, options, has_last=True)
        self.features = features

    def forward(self, batch: Any) -> Any:
        """Bags of all features.

        Parameters
        ----------
        batch : mapping of str to tuple, or KeyedJaggedTensor
            By feature `(ids, offsets)`, or `(ids, offsets, weights)`, with offsets of shape (B + 1,). TorchRec's tensors are used
            without a copy if their keys are the features, in their order.

        Returns
        -------
        dict of str to Tensor
            By feature shape (B, dim): views of one tensor. With `on_failure="mask"` a second dict of bools, for each feature one for
            each of its ids.
        """
        masked = self._lookup.spec.on_failure == "mask"
        ids, offsets, weights, counts = joined(self.features, batch, counted=masked)
        found = self._run(self._lookup, ids, offsets, weights, None)
        rows, mask = found if masked else (found, None)
        dims = [dim for _, dim in self._lookup.spec.shapes]
        names = [feature.name for feature in self.features]
        by_name = dict(zip(names, rows.split(dims, dim=1), strict=True))
        if mask is None:
            return by_name
        return by_name, dict(zip(names, mask.split(counts), strict=True))

    def extra_repr(self) -> str:
        named = ", ".join(f"{it.name}: {it.pooling} of {it.table!r}" for it in self.features)
        return f"{named}, device={str(self.device)!r}"
