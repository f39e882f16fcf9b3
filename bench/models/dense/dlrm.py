"""DLRM-DCNv2 with MLPerf's layers: a bottom MLP, three cross layers of low rank, a top MLP."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from ..errors import DatasetMismatch
from ..shapes import Shape

BOTTOM, TOP = (512, 256, 128), (1024, 1024, 512, 256, 1)
LAYERS, RANK = 3, 512


def _mlp(first: int, *widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them and behind the last."""
    pairs = itertools.pairwise((first, *widths))
    return nn.Sequential(*(module for pair in pairs for module in (nn.Linear(*pair), nn.ReLU())))


class LowRankCross(nn.Module):
    """A cross layer: x0 * (W (V x) + b) + x, with W and V of low rank."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width)

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        crossed: torch.Tensor = self.up(self.down(x))
        return first * crossed + x


class DLRM(nn.Module):
    """DLRM-DCNv2. The bottom MLP ends in as many elements as rows have."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if shape.dense == 0:
            raise DatasetMismatch(f"DLRM needs dense features, and {shape.name} has none: take a Criteo shape")
        self.bottom = _mlp(shape.dense, *BOTTOM[:-1], shape.dim)
        width = shape.width + shape.dim
        self.cross = nn.ModuleList(LowRankCross(width, min(RANK, width)) for _ in range(LAYERS))
        # No ReLU behind the last layer.
        self.top = _mlp(width, *TOP)[:-1]

    def forward(self, embeddings: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        first = torch.cat([self.bottom(dense), embeddings], dim=1)
        x = first
        for layer in self.cross:
            x = layer(first, x)
        made: torch.Tensor = self.top(x)
        return torch.sigmoid(made).squeeze(1)
