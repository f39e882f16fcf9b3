"""Hierarchical sequential transduction units (Zhai et al., 2024): what somebody did, in order, tells whether the last item is taken up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import DatasetMismatch
from ..shapes import Shape


class Unit(nn.Module):
    """Attention whose weights are SiLU of the products, each place with those up to it, and a gate."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.into, self.out = nn.Linear(dim, 4 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, places, dim = x.shape
        gate, *parts = F.silu(self.into(self.before(x))).chunk(4, dim=2)
        value, query, key = (it.view(batch, places, self.heads, -1).transpose(1, 2) for it in parts)
        weights = F.silu(query @ key.transpose(2, 3)).tril() / places
        seen = (weights @ value).transpose(1, 2).reshape(batch, places, dim)
        made: torch.Tensor = x + self.out(self.behind(seen) * gate)
        return made


class HSTU(nn.Module):
    """Two units of four heads over a sequence of rows of one table, and a layer over the last place."""

    def __init__(self, shape: Shape, units: int = 2, heads: int = 4) -> None:
        super().__init__()
        if len(shape.rows) != 1 or shape.positions == 1 or shape.dim % heads:
            raise DatasetMismatch(f"HSTU needs sequences of one table, of rows of a multiple of {heads} elements, not {shape.name}: take --shape sequence")
        self.places, self.dim = shape.positions, shape.dim
        self.position = nn.Parameter(torch.randn(shape.positions, shape.dim) / shape.dim**0.5)
        self.units = nn.Sequential(*(Unit(shape.dim, heads) for _ in range(units)))
        self.last = nn.Linear(shape.dim, 1)

    def forward(self, embeddings: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        x = self.units(embeddings.view(-1, self.places, self.dim) + self.position)
        return torch.sigmoid(self.last(x[:, -1])).squeeze(1)
