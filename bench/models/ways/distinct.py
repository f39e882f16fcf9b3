"""The different rows of a batch: the GPU finds them, the processor reads them, and the GPU puts them where they belong.

This is how HugeCTR's inference servers divide the work between processor and GPU, and what GDRec was compared with.
"""

from __future__ import annotations

import time
from abc import abstractmethod

import torch
import torch.nn.functional as F

from ..layout import IdLayout
from ..shapes import Shape
from .interface import HostWay


class DistinctRows(HostWay):
    """Ids go to the GPU, the different ones come back, their rows go there."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape, self.device = shape, device

    @abstractmethod
    def read(self, rows: torch.Tensor, into: torch.Tensor) -> None:
        """Reads rows: numbers of the tensor of all rows, ascending and different, in memory of the host, into `into` (rows, dim)."""

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        on_gpu, most = self.device.type == "cuda", batch * self.shape.ids
        self._rows = torch.empty(most, dtype=torch.int64, pin_memory=on_gpu)
        self._staging = torch.empty(most, self.shape.dim, pin_memory=on_gpu)
        self._on_device = torch.empty(most, self.shape.dim, device=self.device)
        #: Different rows of the latest batch, and seconds until they were read.
        self.different, self.read_s = 0, 0.0

    def embed_into(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        found = (ids.to(self.device, non_blocking=True) + self.layout.starts).view(-1)
        different, places = torch.unique(found, return_inverse=True)
        count = self.different = len(different)
        rows = self._rows[:count].copy_(different)
        began = time.perf_counter()
        self.read(rows, self._staging[:count])
        self.read_s = time.perf_counter() - began
        self._on_device[:count].copy_(self._staging[:count], non_blocking=True)
        # Places of rows that the batch does not have are never named.
        if self.layout.is_one_hot:
            torch.index_select(self._on_device, 0, places, out=out.view(len(places), -1))
        else:
            sums = F.embedding_bag(places, self._on_device, self.layout.bags, mode="sum", include_last_offset=True)
            out.view(sums.shape).copy_(sums)

    def counts(self) -> dict[str, int]:
        return {"different_rows": self.different}
