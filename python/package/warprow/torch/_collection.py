"""All features of a batch in one look-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import invalid, wrong_type
from ..executor import Executor, Feature
from ..store import Store
from ._module import StoredModule
from ._options import LookupOptions
from ._tensors import as_tensor


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
        features = list(features)
        if not features:
            raise invalid("features", "there are none")
        for feature in features:
            if feature.pooling not in ("sum", "mean"):
                raise invalid("features", f'feature {feature.name!r} is not pooled: give pooling="sum" or "mean"')
        names = [feature.name for feature in features]
        for name in names:
            if names.count(name) > 1:
                raise invalid("features", f"two features are called {name!r}: rename one")
        options = LookupOptions(missing, on_failure, mask, dtype, max_ids)
        super().__init__(executor, features, options, has_last=True)
        self.features = features
        self._weighted = any(feature.weighted for feature in features)

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
        ids, offsets, weights, counts = self._joined(batch)
        found = self._run(self._lookup, ids, offsets, weights, None)
        rows, mask = found if self._lookup.spec.on_failure == "mask" else (found, None)
        dims = [dim for _, dim in self._lookup.spec.shapes]
        names = [feature.name for feature in self.features]
        by_name = dict(zip(names, rows.split(dims, dim=1), strict=True))
        if mask is None:
            return by_name
        return by_name, dict(zip(names, mask.split(counts), strict=True))

    def _joined(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, list[int]]:
        names = [feature.name for feature in self.features]
        if isinstance(batch, Mapping):
            return self._of_mapping(batch, names)
        if not all(hasattr(batch, name) for name in ("keys", "values", "offsets")):
            text = f"a {type(batch).__name__}: give a mapping of features to (ids, offsets), or a KeyedJaggedTensor"
            raise wrong_type("batch", text)
        keys = list(batch.keys())
        if keys != names:
            raise invalid("batch", f"its keys are {keys}, the module's features {names}: permute() it")
        weights = batch.weights_or_none() if self._weighted else None
        if self._weighted and weights is None:
            raise invalid("batch", "a feature is weighted, and it has no weights")
        counts = batch.length_per_key() if self._lookup.spec.on_failure == "mask" else []
        return batch.values(), batch.offsets(), weights, counts

    def _of_mapping(
        self, batch: Mapping[str, Any], names: list[str]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, list[int]]:
        if set(batch) != set(names):
            raise invalid("batch", f"it has {sorted(batch)}, the module's features are {names}")
        ids, starts, weights, counts, bags = [], [], [], [], None
        before = 0
        for feature in self.features:
            given = batch[feature.name]
            if not isinstance(given, tuple) or len(given) != (3 if feature.weighted else 2):
                wanted = "(ids, offsets, weights)" if feature.weighted else "(ids, offsets)"
                raise invalid("batch", f"feature {feature.name!r}: give {wanted}")
            given = tuple(as_tensor(f"batch[{feature.name!r}]", it) for it in given)
            if given[0].dim() != 1 or given[1].dim() != 1 or given[1].shape[0] == 0:
                raise invalid("batch", f"feature {feature.name!r}: ids and offsets have one dimension, offsets B + 1 entries")
            if bags is not None and given[1].shape[0] - 1 != bags:
                text = f"feature {feature.name!r} has {given[1].shape[0] - 1} bags, the first feature {bags}"
                raise invalid("batch", text)
            bags = given[1].shape[0] - 1
            ids.append(given[0])
            starts.append(given[1][:-1] + before)
            counts.append(given[0].shape[0])
            before += given[0].shape[0]
            if self._weighted:
                ones = given[2] if feature.weighted else torch.ones_like(given[0], dtype=torch.float32)
                weights.append(ones)
        starts.append(torch.full_like(starts[0][:1], before) if bags else starts[0].new_full((1,), before))
        return torch.cat(ids), torch.cat(starts), torch.cat(weights) if self._weighted else None, counts

    def extra_repr(self) -> str:
        named = ", ".join(f"{it.name}: {it.pooling} of {it.table!r}" for it in self.features)
        return f"{named}, device={str(self.device)!r}"
