"""The different rows of a batch: the GPU finds them, the processor reads them, and the GPU puts them where they belong.

This is how HugeCTR's inference servers divide the work between processor and GPU, and what GDRec was compared with.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
import torch.nn.functional as F

from ..ids import Samples
from ..layout import IdLayout
from ..shapes import Shape
from ..tables import Tables
from .interface import HostWay


class HotRows:
    """Rows that lie in memory of the device besides, as in HugeCTR's GPU cache: those that samples of the past asked for most.

    Parameters
    ----------
    tables : Tables
        All rows.
    history : Samples
        The past.
    count : int
        How many rows.
    """

    def __init__(self, tables: Tables, history: Samples, count: int) -> None:
        every = torch.from_numpy(history.ids + np.repeat(tables.starts, [hot * tables.shape.positions for hot in tables.shape.hot])).view(-1)
        rows, counts = torch.unique(every, return_counts=True)
        hottest = rows[torch.argsort(counts, descending=True, stable=True)[:count]]
        #: Their numbers in the tensor of all rows, ascending.
        self.numbers = hottest.sort().values.to(tables.device)
        self.rows = tables.on_device[self.numbers]

    def find(self, different: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of rows: the place of each in `rows`, where it is there, and whether it is."""
        places = torch.searchsorted(self.numbers, different).clamp_(max=len(self.numbers) - 1)
        return places, self.numbers[places] == different


class DistinctRows(HostWay):
    """Ids go to the GPU, the different ones come back, their rows go there.

    Parameters
    ----------
    hot : HotRows, optional
        Rows that need not be read.
    """

    def __init__(self, shape: Shape, device: torch.device, hot: HotRows | None = None) -> None:
        self.shape, self.device, self.hot = shape, device, hot
        self._dtype = torch.float16 if shape.dtype == "f16" else torch.float32

    @abstractmethod
    def read(self, rows: torch.Tensor, into: torch.Tensor) -> None:
        """Reads rows: numbers of the tensor of all rows, ascending and different, in memory of the host, into `into` (rows, dim)."""

    def prepare(self, layout: IdLayout, batch: int) -> None:
        super().prepare(layout, batch)
        on_gpu, most = self.device.type == "cuda", batch * self.shape.ids
        self._rows = torch.empty(most, dtype=torch.int64, pin_memory=on_gpu)
        self._staging = torch.empty(most, self.shape.dim, pin_memory=on_gpu, dtype=self._dtype)
        self._on_device = torch.empty(most, self.shape.dim, device=self.device, dtype=self._dtype)
        #: Of the latest batch.
        self.different, self.cached = 0, 0

    def embed_into(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        found = (ids.to(self.device, non_blocking=True) + self.layout.starts).view(-1)
        different, places = torch.unique(found, return_inverse=True)
        self.different = len(different)
        if self.hot is None:
            rows = self._read(different)
        else:
            hot_places, is_hot = self.hot.find(different)
            read = self._read(different[~is_hot])
            self.cached = self.different - len(read)
            rows = torch.empty(self.different, self.shape.dim, device=self.device, dtype=self._dtype)
            rows[is_hot] = self.hot.rows[hot_places[is_hot]]
            rows[~is_hot] = read
        if self._dtype != out.dtype:
            out.view(len(places), -1).copy_(rows[places])
        elif self.layout.is_one_hot:
            torch.index_select(rows, 0, places, out=out.view(len(places), -1))
        else:
            sums = F.embedding_bag(places, rows, self.layout.bags, mode="sum", include_last_offset=True)
            out.view(sums.shape).copy_(sums)

    def _read(self, numbers: torch.Tensor) -> torch.Tensor:
        """Rows that the processor reads, on the device."""
        count = len(numbers)
        self.read(self._rows[:count].copy_(numbers), self._staging[:count])
        return self._on_device[:count].copy_(self._staging[:count], non_blocking=True)

    def counts(self) -> dict[str, int]:
        return {"different_rows": self.different, "cached_rows": self.cached}
