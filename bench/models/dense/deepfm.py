"""DeepFM with the weights of a model that was trained on Avazu's data, where they are there."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..errors import Unavailable
from ..shapes import Shape

#: The folder of test data; `WARPROW_DATA` names another.
FOLDER = Path(os.environ.get("WARPROW_DATA", Path(__file__).parents[4] / "shared" / "data"))
_TABLE = "embedding_layer.embedding_layer.embedding_layers."


def weights() -> dict[str, torch.Tensor]:
    """The trained tensors by name."""
    file = FOLDER / "deepfm-avazu" / "deepfm_avazu.safetensors"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Unavailable(f"DeepFM's trained weights are not there ({error}): name their folder by WARPROW_DATA") from error
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        first, last = (8 + length + at for at in entry["data_offsets"])
        found[name] = torch.from_numpy(np.frombuffer(data[first:last], np.float32).copy()).reshape(entry["shape"])
    return found


def deepfm_tables() -> list[torch.Tensor]:
    """Rows of each table: the 40 elements of the embedding, and behind them the weight of first order, so that a row has both."""
    state = weights()
    names = [name.split(".")[-2] for name in state if name.startswith(_TABLE)]
    return [torch.cat([state[f"{_TABLE}{name}.weight"], state[f"fm.lr_layer.{_TABLE}{name}.weight"]], dim=1) for name in names]


def deepfm_shape() -> Shape:
    """The shape of the trained model's tables."""
    tables = deepfm_tables()
    return Shape("deepfm-avazu", tuple(len(table) for table in tables), tables[0].shape[1], (1,) * len(tables), 0)


class DeepFM(nn.Module):
    """Weights of first order, a factorisation machine, and an MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        state = weights()
        self.tables, self.dim = len(shape.rows), shape.dim
        self.bias = nn.Parameter(state["fm.lr_layer.bias"])
        layers: list[nn.Module] = []
        for at in (0, 2, 4, 6):
            given = state[f"mlp.mlp.{at}.weight"]
            linear = nn.Linear(given.shape[1], given.shape[0])
            linear.weight, linear.bias = nn.Parameter(given), nn.Parameter(state[f"mlp.mlp.{at}.bias"])
            layers += [linear, nn.ReLU()]
        self.mlp = nn.Sequential(*layers[:-1])

    def forward(self, embeddings: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        rows = embeddings.view(-1, self.tables, self.dim)
        second, first = rows[:, :, :-1], rows[:, :, -1]
        squares = second.sum(1).square() - second.square().sum(1)
        machine = first.sum(1, keepdim=True) + self.bias + squares.sum(1, keepdim=True) / 2
        return torch.sigmoid(machine + self.mlp(second.flatten(1))).squeeze(1)
