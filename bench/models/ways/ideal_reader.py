"""What a processor could do at best on such drives: rows come at the drives' rate and cost it no more than a copy within memory."""

from __future__ import annotations

import threading
import time

import numpy as np
import torch

from ..tables import Tables
from .distinct import DistinctRows, HotRows


class _Clock:
    """When the drives will have done what they were asked for."""

    def __init__(self) -> None:
        self._free, self._lock = 0.0, threading.Lock()

    def take(self, seconds: float) -> float:
        """Has the drives work so long, behind what they have to do; gives the moment at which that is done."""
        with self._lock:
            self._free = max(self._free, time.perf_counter()) + seconds
            return self._free


class IdealReader(DistinctRows):
    """No drives: all rows are gathered from DRAM by PyTorch's threads, and each batch takes at least as long as drives would for the rows
    that would lie there. Neither submission nor completion of commands costs anything, and no core plays a drive.

    Parameters
    ----------
    tables : Tables
        All rows.
    dram_rows : list of int
        Of each table how many of the first rows lie in DRAM.
    rate : float
        Rows a second of all drives.
    latency : float
        Seconds of one read.
    hot : HotRows, optional
        Rows that lie in memory of the device.
    """

    def __init__(self, tables: Tables, dram_rows: list[int], rate: float, latency: float, hot: HotRows | None = None) -> None:
        super().__init__(tables.shape, tables.device, hot)
        self.name = "ideal CPU reader, copy"
        self.tables, self.rate, self.latency = tables, rate, latency
        self._edges = np.cumsum([0, *tables.shape.rows])
        self._hot = np.array(tables.starts) + np.array(dram_rows)
        # Of all clients.
        self._drives = _Clock()

    def read(self, rows: torch.Tensor, into: torch.Tensor) -> None:
        numbers = rows.numpy()
        in_dram = np.searchsorted(numbers, self._hot) - np.searchsorted(numbers, self._edges[:-1])
        on_drives = len(numbers) - int(in_dram.sum())
        due = self._drives.take(on_drives / self.rate) + self.latency if on_drives else 0.0
        torch.index_select(self.tables.on_host, 0, rows, out=into)
        # Drives are polled, as Warprow's queues are.
        while time.perf_counter() < due:
            pass
