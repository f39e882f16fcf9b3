"""A kernel that reads rows from pinned memory of the host, each id by itself (plain UVA)."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import Unavailable
from ..layout import IdLayout
from ..tables import Tables
from .interface import DeviceWay


def _kernel() -> Any:
    try:
        from .sum_bags import sum_bags
    except ImportError as error:
        raise Unavailable("reads of pinned memory need Triton: pip install triton") from error
    return sum_bags


class PinnedReads(DeviceWay):
    """A Triton kernel of one program a bag."""

    name = "plain UVA"

    def __init__(self, tables: Tables) -> None:
        if tables.device.type != "cuda":
            raise Unavailable("reads of pinned memory need a GPU")
        self.tables = tables
        self._sum_bags = _kernel()

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        self._bags = batch * len(self.tables.shape.features)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        dim = self.tables.shape.dim
        found = (ids + self.layout.starts).view(-1)
        out = torch.empty(self.batch, self.tables.shape.width, device=ids.device)
        lanes = 1 << (dim - 1).bit_length()
        self._sum_bags[(self._bags,)](self.tables.on_host, found, self.layout.bags, out, dim, lanes, num_warps=1)
        return out
