"""Threads of the processor read the different rows of a batch from DRAM and drives, by the host executor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import warprow

from ..layout import IdLayout
from ..shapes import Shape
from .distinct import DistinctRows, HotRows


class CpuReader(DistinctRows):
    """The GPU finds the different ids, threads look their rows up, and a copy brings them to the GPU.

    Parameters
    ----------
    store : warprow.Store
        Has the tables.
    dram_bytes : int
        Memory for rows.
    threads : int
        How many look up, each a part of the rows.
    hot : HotRows, optional
        Rows that lie in memory of the device.
    """

    def __init__(
        self, store: warprow.Store, shape: Shape, device: torch.device, dram_bytes: int, threads: int, hot: HotRows | None = None
    ) -> None:
        super().__init__(shape, device, hot)
        self.name = f"CPU reader ({threads} threads), copy"
        self.executor = store.attach("cpu", dram_bytes=dram_bytes)
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._plan: warprow.Plan | None = None
        starts = np.cumsum([0, *shape.rows])
        self._starts = starts

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        features = [warprow.Feature(name, name) for name in self.shape.names]
        most = -(-batch * self.shape.ids // self.threads)
        self._plan = self.executor.plan(features, max_batch=1, max_ids=most, slots=self.threads, dtype=self.shape.dtype)

    def read(self, rows: torch.Tensor, into: torch.Tensor) -> None:
        numbers, out = rows.numpy(), into.numpy()
        edges = np.searchsorted(numbers, self._starts)
        step = -(-len(numbers) // self.threads)

        def part(first: int) -> None:
            last = min(first + step, len(numbers))
            ends = edges.clip(first, last)
            own = numbers[first:last] - np.repeat(self._starts[:-1], np.diff(ends))
            assert self._plan is not None
            self._plan.lookup(own, offsets=ends - first, batch=1, out=out[first:last])

        for done in [self._pool.submit(part, first) for first in range(0, len(numbers), step)]:
            done.result()

    def close(self) -> None:
        self._pool.shutdown()
        self.executor.close()
