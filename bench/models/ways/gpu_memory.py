"""All rows in memory of the device: the bound, and what every prediction is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..tables import Tables
from .interface import DeviceWay


class DeviceMemory(DeviceWay):
    """`F.embedding`, and `F.embedding_bag` where samples have several ids of a table."""

    name = "all rows in GPU memory"

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        if tables.device.type == "cpu":
            self.name = "all rows in memory"

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        found = ids + self.layout.starts
        table = self.tables.on_device
        if self.layout.is_one_hot:
            return F.embedding(found, table).float().view(self.batch, -1)
        return F.embedding_bag(found.view(-1), table, self.layout.bags, mode="sum", include_last_offset=True).view(self.batch, -1)
