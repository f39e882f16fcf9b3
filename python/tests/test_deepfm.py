"""A trained click-through model: its predictions with its embeddings in a store are the plain model's, eager, captured and compiled."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

import warprow.torch as wt  # noqa: E402

FOLDER = Path(os.environ.get("WARPROW_DATA", Path(__file__).parents[3] / "shared" / "data"))
FILE = FOLDER / "deepfm-avazu" / "deepfm_avazu.safetensors"
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} is not there (WARPROW_DATA names its folder)")


def tensors() -> dict[str, torch.Tensor]:
    data = FILE.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        first, last = (8 + length + at for at in entry["data_offsets"])
        found[name] = torch.from_numpy(np.frombuffer(data[first:last], np.float32).copy()).reshape(entry["shape"])
    return found


class DeepFM(nn.Module):
    """As FuxiCTR has it: embeddings, first-order weights, factorisation machine, MLP."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        names = [name.split(".")[-2] for name in state if name.startswith("embedding_layer.")]
        table = "embedding_layer.embedding_layer.embedding_layers."
        weight = {name: state[f"{table}{name}.weight"] for name in names}
        first = {name: state[f"fm.lr_layer.{table}{name}.weight"] for name in names}
        self.rows = [len(weight[name]) for name in names]
        self.second = nn.ModuleDict({name: nn.Embedding(*weight[name].shape, _weight=weight[name]) for name in names})
        self.first = nn.ModuleDict({name: nn.Embedding(*first[name].shape, _weight=first[name]) for name in names})
        self.bias = nn.Parameter(state["fm.lr_layer.bias"])
        layers = []
        for at in (0, 2, 4, 6):
            given = state[f"mlp.mlp.{at}.weight"]
            linear = nn.Linear(given.shape[1], given.shape[0])
            linear.weight, linear.bias = nn.Parameter(given), nn.Parameter(state[f"mlp.mlp.{at}.bias"])
            layers += [linear, nn.ReLU()]
        self.mlp = nn.Sequential(*layers[:-1])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        second = torch.stack([module(ids[:, at]) for at, module in enumerate(self.second.values())], dim=1)
        first = torch.stack([module(ids[:, at]) for at, module in enumerate(self.first.values())], dim=1)
        squares = second.sum(1).square() - second.square().sum(1)
        fm = first.sum(1) + self.bias + squares.sum(1, keepdim=True) / 2
        return torch.sigmoid(fm + self.mlp(second.flatten(1)))


def clicks(model: DeepFM, count: int, seed: int, device: str) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, rows, (count,), generator=random) for rows in model.rows], dim=1).to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_predictions_are_those_of_the_plain_model(store, device: str) -> None:
    model = DeepFM(tensors()).to(device).eval()
    inputs = [clicks(model, 256, seed, device) for seed in range(4)]
    with torch.no_grad():
        wanted = [model(ids) for ids in inputs]
        assert all(0 < it.mean() < 1 for it in wanted)
        wt.replace(model, store, min_rows=40, hbm_bytes=1 << 18, dram_bytes=1 << 17)
        replaced = [module for module in model.modules() if isinstance(module, wt.Embedding)]
        assert len(replaced) == 2 * sum(rows >= 40 for rows in model.rows)
        for ids, prediction in zip(inputs, wanted, strict=True):
            assert torch.equal(model(ids), prediction)
        if device == "cuda":
            place = inputs[0].clone()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(place)
            for ids, prediction in zip(inputs, wanted, strict=True):
                place.copy_(ids)
                graph.replay()
                assert torch.equal(out, prediction)
        compiled = torch.compile(model, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        for ids, prediction in zip(inputs, wanted, strict=True):
            torch.testing.assert_close(compiled(ids), prediction, rtol=1e-5, atol=1e-6)
        for module in replaced:
            module.check()
