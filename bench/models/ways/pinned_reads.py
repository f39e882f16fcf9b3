"""A kernel that reads rows from pinned memory of the host (plain UVA), or from the memory of a second GPU, each id by itself."""

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
        #: All rows, where the kernel reads them.
        self._rows = tables.on_host

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        self._bags = batch * len(self.tables.shape.features)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        dim = self.tables.shape.dim
        found = (ids + self.layout.starts).view(-1)
        out = torch.empty(self.batch, self.tables.shape.width, device=ids.device)
        lanes = 1 << (dim - 1).bit_length()
        self._sum_bags[(self._bags,)](self._rows, found, self.layout.bags, out, dim, lanes, num_warps=1)
        return out


class PeerReads(PinnedReads):
    """The kernel of `PinnedReads`, with all rows in the memory of a second GPU: what a tier in peer memory could give."""

    name = "plain reads of a second GPU's memory"

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        if torch.cuda.device_count() < 2 or not torch.cuda.can_device_access_peer(0, 1):
            raise Unavailable("reads of a second GPU's memory need two GPUs that reach each other's")
        self._rows = tables.on_device.to("cuda:1")
        # A copy back makes torch switch on what the kernel needs: this GPU's access to that memory.
        self._rows[:1].to(tables.device)
        torch.cuda.synchronize(1)
