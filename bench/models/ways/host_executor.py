"""The host executor, and a copy of all embeddings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import warprow

from ..layout import IdLayout
from ..shapes import Shape
from .features import features_of
from .interface import HostWay


class HostExecutor(HostWay):
    """Threads look up a part of the batch each, which the executor deduplicates itself, and a copy brings all embeddings to the device."""

    def __init__(self, store: warprow.Store, shape: Shape, device: torch.device, dram_bytes: int, threads: int) -> None:
        self.name = f"host executor ({threads} threads), copy"
        self.shape, self.device, self.threads = shape, device, threads
        self.executor = store.attach("cpu", dram_bytes=dram_bytes)
        self._pool = ThreadPoolExecutor(threads)
        self._plan: warprow.Plan | None = None

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        self._step = -(-batch // self.threads)
        most = self._step * self.shape.ids
        self._plan = self.executor.plan(features_of(self.shape), max_batch=self._step, max_ids=most, slots=self.threads)
        self._staging = torch.empty(batch, self.shape.width, pin_memory=self.device.type == "cuda")
        self._hot = [hot for _, hot in self.shape.features]
        self._ends = np.cumsum(self._hot)

    def embed_into(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        numbers, staging = ids.numpy(), self._staging.numpy()

        def part(first: int) -> None:
            own = numbers[first : first + self._step]
            by_feature = [own[:, end - hot : end].reshape(-1) for end, hot in zip(self._ends, self._hot, strict=True)]
            counts = np.repeat(self._hot, len(own))
            offsets = np.concatenate([[0], np.cumsum(counts)])
            assert self._plan is not None
            rows = staging[first : first + self._step]
            self._plan.lookup(np.concatenate(by_feature), offsets=offsets, batch=len(own), out=rows)

        for done in [self._pool.submit(part, first) for first in range(0, len(numbers), self._step)]:
            done.result()
        out.copy_(self._staging, non_blocking=True)

    def close(self) -> None:
        self._pool.shutdown()
        self.executor.close()
