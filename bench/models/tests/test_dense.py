"""The dense layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from models import dense
from models.dense.dcn import Cross
from models.dense.deepfm import deepfm_tables
from models.dense.dlrm import LowRankCross
from models.dense.hstu import Unit
from models.errors import Unavailable
from models.shapes import SHAPES
from models.tables import Tables

from .conftest import CPU, SEQUENCE, SHAPE


@pytest.mark.parametrize("model", ["dcn", "dlrm"])
def test_predictions_follow_every_input(model: str) -> None:
    layers = dense.make(model, SHAPE, 1)
    rows, numbers = torch.randn(8, SHAPE.width), torch.randn(8, SHAPE.dense)
    found = layers(rows, numbers)
    assert found.shape == (8,) and bool(((found > 0) & (found < 1)).all())
    assert torch.equal(found, dense.make(model, SHAPE, 1)(rows, numbers))
    assert not torch.equal(found, dense.make(model, SHAPE, 2)(rows, numbers))
    for table in range(len(SHAPE.rows)):
        other = rows.clone()
        other[3, table * SHAPE.dim] += 1
        changed = layers(other, numbers) != found
        assert changed.tolist() == [sample == 3 for sample in range(8)]
    assert not torch.equal(layers(rows, numbers + 1), found)


def test_attention_looks_back_alone() -> None:
    layers = dense.make("hstu", SEQUENCE, 1)
    rows, nothing = torch.randn(4, SEQUENCE.width), torch.empty(4, 0)
    found = layers(rows, nothing)
    assert found.shape == (4,) and bool(((found > 0) & (found < 1)).all())
    for place in range(SEQUENCE.positions):
        other = rows.clone()
        other[2, place * SEQUENCE.dim] += 1
        # The last place is told by all before it.
        assert (layers(other, nothing) != found).tolist() == [sample == 2 for sample in range(4)]
    unit, x = Unit(8, 2), torch.randn(1, 6, 8)
    later = x.clone()
    later[0, 4] += 1
    same = (unit(later) == unit(x)).all(2)[0]
    assert same.tolist() == [True] * 4 + [False] * 2
    # One head by hand.
    unit = Unit(4, 1)
    gate, value, query, key = F.silu(unit.into(unit.before(x[:, :, :4]))).chunk(4, dim=2)
    seen = torch.stack([sum((F.silu(query[0, at] @ key[0, to]) / 6 * value[0, to] for to in range(at + 1)), torch.zeros(4)) for at in range(6)])
    torch.testing.assert_close(unit(x[:, :, :4]), x[:, :, :4] + unit.out(unit.behind(seen[None]) * gate))


def test_cross_layers_are_as_published() -> None:
    layer, first, x = Cross(5), torch.randn(3, 5), torch.randn(3, 5)
    wanted = torch.stack([first[at] * torch.dot(x[at], layer.weight) + layer.bias + x[at] for at in range(3)])
    torch.testing.assert_close(layer(first, x), wanted)
    low = LowRankCross(5, 2)
    matrix = low.up.weight @ low.down.weight
    torch.testing.assert_close(low(first, x), first * (x @ matrix.T + low.up.bias) + x)


def test_layers_have_the_published_widths() -> None:
    def linear(model: nn.Module) -> list[tuple[int, int]]:
        return [(it.in_features, it.out_features) for it in model.modules() if isinstance(it, nn.Linear)]

    shape = SHAPES["criteo-mlperf"]
    dlrm = dense.make("dlrm", shape, 1)
    width = 27 * 128
    top = [(width, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)]
    assert linear(dlrm) == [(13, 512), (512, 256), (256, 128), *[(width, 512), (512, width)] * 3, *top]
    dcn = dense.make("dcn", shape, 1)
    assert linear(dcn) == [(26 * 128 + 13, 1024), (1024, 1024), (26 * 128 + 13 + 1024, 1)]
    assert sum(isinstance(it, Cross) for it in dcn.modules()) == 6


def test_deepfm_is_the_trained_one() -> None:
    try:
        shape = dense.deepfm_shape()
    except Unavailable as error:
        pytest.skip(str(error))
    assert (len(shape.rows), shape.dim) == (24, 41)
    tables = Tables(shape, CPU, 1, deepfm_tables())
    layers = dense.make("deepfm", shape, 1)
    random = torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randint(0, rows, (64,), generator=random) for rows in shape.rows], dim=1)
    rows = tables.on_device[ids + torch.tensor(tables.starts)].view(64, -1)
    found = layers(rows, torch.empty(64, 0))
    # A click is rare in Avazu's data, and not unheard of: a model whose weights were read wrongly says 0 or 1.
    assert 0.01 < float(found.mean()) < 0.6 and float(found.std()) > 0.001
