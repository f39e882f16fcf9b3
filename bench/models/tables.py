"""All rows of a model's tables, one table behind the other in one tensor: on the device, and on the host."""

from __future__ import annotations

import torch

from . import rows
from .shapes import Shape


class Tables:
    """Rows of all tables.

    Parameters
    ----------
    shape : Shape
        Their shape.
    device : torch.device
        Where `on_device` lies.
    seed : int
        Of the contents, where `given` is None.
    given : list of Tensor, optional
        The rows of each table; without, they are made.
    """

    def __init__(self, shape: Shape, device: torch.device, seed: int, given: list[torch.Tensor] | None = None) -> None:
        self.shape, self.device = shape, device
        self.starts = [sum(shape.rows[:table]) for table in range(len(shape.rows))]
        every = sum(shape.rows)
        self.dtype = torch.float16 if shape.dtype == "f16" else torch.float32
        #: Shape (rows of all tables, dim).
        self.on_device = torch.empty(every, shape.dim, device=device, dtype=self.dtype)
        for table, (start, count) in enumerate(zip(self.starts, shape.rows, strict=True)):
            part = self.on_device[start : start + count]
            if given is None:
                rows.fill(part, table, seed)
            else:
                part.copy_(given[table])
        on_gpu = device.type == "cuda"
        #: All rows in memory of the host, which is pinned if there is a GPU.
        self.on_host = torch.empty(every, shape.dim, pin_memory=True, dtype=self.dtype).copy_(self.on_device) if on_gpu else self.on_device

    def by_name(self) -> dict[str, torch.Tensor]:
        """Of each table the rows in memory of the host."""
        parts = zip(self.shape.names, self.starts, self.shape.rows, strict=True)
        return {name: self.on_host[start : start + count] for name, start, count in parts}
