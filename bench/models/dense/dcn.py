"""Deep and cross network (Wang et al., 2017), as GDRec's experiments have it."""

from __future__ import annotations

import torch
from torch import nn

from ..shapes import Shape


class Cross(nn.Module):
    """A cross layer: x0 (x · w) + b + x, with w a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return first * (x @ self.weight).unsqueeze(1) + self.bias + x


class DCN(nn.Module):
    """Six cross layers beside an MLP of 1,024 and 1,024, and a last layer over both."""

    def __init__(self, shape: Shape, layers: int = 6, hidden: int = 1024) -> None:
        super().__init__()
        width = shape.width + shape.dense
        self.cross = nn.ModuleList(Cross(width) for _ in range(layers))
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.last = nn.Linear(width + hidden, 1)

    def forward(self, embeddings: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        first = torch.cat([embeddings, dense], dim=1)
        x = first
        for layer in self.cross:
            x = layer(first, x)
        return torch.sigmoid(self.last(torch.cat([x, self.mlp(first)], dim=1))).squeeze(1)
