"""PyTorch on the processor, and a copy."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..layout import IdLayout
from ..tables import Tables
from .interface import HostWay


class TorchCpu(HostWay):
    """`index_select` into pinned memory, or `F.embedding_bag` on the CPU, and a copy to the device."""

    name = "PyTorch on the CPU, copy"

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        on_gpu = self.tables.device.type == "cuda"
        self._staging = torch.empty(batch, self.tables.shape.width, pin_memory=on_gpu, dtype=self.tables.dtype)
        self._starts, self._ends = layout.starts.cpu(), layout.bags.cpu()

    def embed_into(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        found = (ids + self._starts).view(-1)
        if self.layout.is_one_hot:
            torch.index_select(self.tables.on_host, 0, found, out=self._staging.view(len(found), -1))
            # f16 crosses the bus as it is.
            out.copy_(self._staging.to(out.device, non_blocking=True) if out.dtype != self._staging.dtype else self._staging, non_blocking=True)
        else:
            sums = F.embedding_bag(found, self.tables.on_host, self._ends, mode="sum", include_last_offset=True)
            self._staging.view(sums.shape).copy_(sums)
            out.copy_(self._staging, non_blocking=True)
