"""Warprow: one look-up of all tables, by a GPU from DRAM and drives, or on the CPU where there is no GPU."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
import warprow
import warprow.torch
from typing_extensions import Self

from ..errors import Unavailable
from ..layout import IdLayout
from ..shapes import Shape
from .features import features_of
from .interface import DeviceWay, Way


class _Jagged:
    """What `EmbeddingBagCollection` takes without a copy: ids feature by feature, as a KeyedJaggedTensor of TorchRec's has them."""

    def __init__(self, keys: list[str], values: torch.Tensor, offsets: torch.Tensor) -> None:
        self._keys, self._values, self._offsets = keys, values, offsets

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> torch.Tensor:
        return self._values

    def offsets(self) -> torch.Tensor:
        return self._offsets


def has_cache() -> bool:
    """Whether this version of the package can keep rows that were read from drives."""
    return "cache_bytes" in inspect.signature(warprow.Store.attach).parameters


class WarprowModules(DeviceWay):
    """`warprow.torch.EmbeddingBagCollection` over a store.

    Parameters
    ----------
    store : warprow.Store
        Has the tables.
    attached : mapping
        How much memory rows may take, as `Store.attach` has it.
    most : int
        Samples of the largest batch.
    cache_bytes : int
        Memory (on a GPU, GPU memory) for rows that look-ups have read from drives.
    """

    def __init__(
        self, store: warprow.Store, shape: Shape, device: torch.device, attached: Mapping[str, Any], most: int, cache_bytes: int = 0
    ) -> None:
        self.name = "Warprow" + (f" with a cache of {cache_bytes >> 20} MiB" if cache_bytes else "")
        options = dict(attached)
        if cache_bytes:
            if not has_cache():
                raise Unavailable("this version of the package has no Store.attach(cache_bytes=): leave --cache out")
            options["cache_bytes"] = cache_bytes
        self.shape, self.device = shape, device
        self.executor = store.attach(str(device), **options)
        self._most_ids, self._features = most * shape.ids, features_of(shape)
        self._names = [feature.name for feature in self._features]
        self._collection: warprow.torch.EmbeddingBagCollection | None = None
        # Of all clients: a module takes queues of every drive, so those that come one after the other use one.
        self._free: list[warprow.torch.EmbeddingBagCollection] = []

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        # One module serves batches of all sizes, as in a server.
        self._owns = self._collection is None
        if not self._owns:
            return
        if self._free:
            self._collection = self._free.pop()
        else:
            self._collection = warprow.torch.EmbeddingBagCollection(self.executor, self._features, max_ids=self._most_ids)

    def release(self) -> None:
        if self._owns and self._collection is not None:
            self._free.append(self._collection)
        self._collection = None

    def of_another_model(self, shape: Shape) -> Self:
        """This way for a model whose tables lie in the same store, by the same executor."""
        made = copy.copy(self)
        made.shape, made._features, made._free = shape, features_of(shape), []
        made._names = [feature.name for feature in made._features]
        return made

    def fetching_ahead(self, layout: IdLayout, batch: int, ahead: int) -> Self:
        """This way for one client that fetches rows of so many batches ahead, by a module of its own."""
        made = copy.copy(self)
        Way.prepare(made, layout, batch)
        made._owns = False
        made._collection = warprow.torch.EmbeddingBagCollection(
            self.executor, self._features, max_ids=batch * self.shape.ids, prefetch=ahead + 1
        )
        return made

    def looking_up_ahead(self, layout: IdLayout, batch: int) -> Self:
        """This way for one client that looks batches up on several streams, by a module of its own."""
        made = copy.copy(self)
        Way.prepare(made, layout, batch)
        made._owns = False
        made._collection = warprow.torch.EmbeddingBagCollection(self.executor, self._features, max_ids=batch * self.shape.ids)
        return made

    def _jagged(self, by_feature: torch.Tensor) -> _Jagged:
        return _Jagged(self._names, by_feature, self.layout.feature_bags)

    def fetch(self, by_feature: torch.Tensor, behind: warprow.torch.Prefetched | None = None) -> warprow.torch.Prefetched:
        """Begins to fetch the rows of ids feature by feature, which lie on the device; behind those of another batch."""
        assert self._collection is not None
        return self._collection.prefetch(self._jagged(by_feature), behind=behind)

    def look_up_all(self, by_feature: torch.Tensor, out: torch.Tensor) -> None:
        """Embeddings of ids feature by feature, into a tensor (batch, tables * dim)."""
        assert self._collection is not None
        self._collection(self._jagged(by_feature), out=out)

    def look_up(self, fetched: Any, out: torch.Tensor) -> None:
        """Embeddings of what was fetched, into a tensor (batch, tables * dim)."""
        assert self._collection is not None
        self._collection.lookup(fetched, out=out)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        assert self._collection is not None
        by_feature = self._collection(self._jagged(ids.view(-1)[self.layout.by_feature]))
        # All outputs are views of one tensor, side by side.
        first: torch.Tensor = by_feature[self._names[0]]
        return first.as_strided((self.batch, self.shape.width), (self.shape.width, 1))

    def check(self) -> None:
        if self._collection is not None:
            self._collection.check()

    def counts(self) -> dict[str, int]:
        report = None if self._collection is None else self._collection.report()
        return {name: value for name, value in (report or {}).items() if isinstance(value, int)}

    def close(self) -> None:
        self._free.clear()
        self.executor.close()
