"""Shapes, rows and ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.errors import DatasetMismatch
from models.ids import Drift, PowerLaw, Samples, Source, Trace, columns_of
from models.rows import fill
from models.shapes import MULTI_HOT, SHAPES, Shape, divisor_for

from .conftest import SHAPE


def test_shapes_are_as_published() -> None:
    # Tables, and ids in hundreds of millions: GDRec's table 2 has 22 and 0.5, 26 and 0.3, 26 and 9.
    found = {name: (len(shape.rows), round(sum(shape.rows) / 1e8, 1)) for name, shape in SHAPES.items()}
    assert found == {"avazu": (22, 0.5), "criteo-kaggle": (26, 0.3), "criteo-tb": (26, 8.8), "criteo-mlperf": (26, 2.0), "one-table": (1, 0.2), "sequence": (1, 0.4)}
    assert 4.0e9 < SHAPES["criteo-kaggle"].bytes < 4.5e9 and 4.4e11 < SHAPES["criteo-tb"].bytes < 4.7e11
    assert SHAPES["criteo-mlperf"].ids == sum(MULTI_HOT) == 214


def test_scaling_keeps_small_tables_and_meets_a_budget() -> None:
    for shape in SHAPES.values():
        divisor = divisor_for(shape, 1 << 28)
        scaled = shape.scaled(divisor)
        assert scaled.bytes <= 1 << 28 < shape.scaled(divisor - 1).bytes and scaled.divisor == divisor
        assert all(after == before for after, before in zip(scaled.rows, shape.rows, strict=True) if before <= 1000)
    with pytest.raises(DatasetMismatch, match="bytes are too few"):
        divisor_for(SHAPES["avazu"], 1000)


def test_sums_of_rows_are_exact_in_any_order() -> None:
    table = torch.empty(2000, 8)
    fill(table, 1, 2)
    again, other = torch.empty(2000, 8), torch.empty(2000, 8)
    fill(again, 1, 2)
    fill(other, 2, 2)
    assert torch.equal(table, again) and not torch.equal(table, other)
    assert len(torch.unique(table, dim=0)) == 2000
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(9))[:1000]
    wanted = table[order].double().sum(0).float()
    for number in range(5):
        total = torch.zeros(8)
        for row in table[order[torch.randperm(1000, generator=torch.Generator().manual_seed(number))]]:
            total += row
        assert torch.equal(total, wanted)


def test_a_power_law_is_one() -> None:
    shape = Shape("one", (1000,), 4, (1,), 0)
    for alpha in (0.0, 0.7, 1.0, 1.05, 1.4):
        ids = PowerLaw(shape, alpha, 1).next(400_000).ids
        assert ids.min() >= 0 and ids.max() < 1000
        counts = np.bincount(ids.reshape(-1), minlength=1000)
        # Reals from 1 to rows + 1, cut to whole ranks.
        edges = np.arange(1, 1002, dtype=float)
        whole = np.log(edges) if alpha == 1 else (edges ** (1 - alpha) - 1) / (1 - alpha)
        wanted = np.diff(whole) / whole[-1] * 400_000
        assert np.abs(counts[:20] - wanted[:20]).max() < 5 * np.sqrt(wanted[0])
    assert not np.array_equal(PowerLaw(shape, 1.05, 1).next(100).ids, PowerLaw(shape, 1.05, 2).next(100).ids)
    with pytest.raises(DatasetMismatch, match="exponent"):
        PowerLaw(shape, -1, 1)


def test_popular_ids_change_by_drift_alone() -> None:
    shape = Shape("one", (2000,), 4, (1,), 0)

    def hottest(source: Source) -> set[int]:
        counts = np.bincount(source.next(50_000).ids.reshape(-1), minlength=2000)
        return set(np.argsort(counts)[::-1][:50].tolist())

    for churn, least, most in ((0.0, 40, 50), (0.05, 5, 30)):
        source = Drift(shape, 1.2, 3, churn)
        first = hottest(source)
        source.next(40_000)
        assert least <= len(first & hottest(source)) <= most
    with pytest.raises(DatasetMismatch, match="churn"):
        Drift(shape, 1, 1, 2)


def test_samples_that_do_not_fit_are_named() -> None:
    good = PowerLaw(SHAPE, 1.05, 1).next(10).check(SHAPE)
    assert [columns.stop - columns.start for columns in columns_of(SHAPE)] == [1, 1, 3]
    bad = good.ids.copy()
    bad[4, 3] = 4000
    for samples, words in (
        (Samples(bad, good.dense), "sample 4 has id 4000 of table t02, which has 4000 rows"),
        (Samples(-good.ids - 1, good.dense), "sample 0 has id -"),
        (Samples(good.ids[:, :4], good.dense), "5 ids a sample"),
        (Samples(good.ids, good.dense[:, :2]), "dense features"),
        (Samples(good.ids.astype(np.int32), good.dense), "int64"),
    ):
        with pytest.raises(DatasetMismatch, match=words):
            samples.check(SHAPE)
    with pytest.raises(DatasetMismatch, match="one of each a table"):
        Shape("bad", (1, 2), 4, (1,), 0)
    for hot, dtype in ((2, "f16"), (1, "f8")):
        with pytest.raises(DatasetMismatch, match="give f32, or f16"):
            Shape("bad", (3,), 4, (hot,), 0, dtype=dtype)


def test_traces_come_from_files(tmp_path: Path) -> None:
    good = PowerLaw(SHAPE, 1.05, 1).next(10)
    np.savez(tmp_path / "a.npz", ids=good.ids.astype(np.int32), dense=good.dense)
    np.save(tmp_path / "b.npy", good.ids)
    for name in ("a.npz", "b.npy"):
        trace = Trace(SHAPE, tmp_path / name)
        both = np.concatenate([trace.next(7).ids, trace.next(7).ids])
        assert np.array_equal(both, np.concatenate([good.ids, good.ids[:4]]))
    assert np.array_equal(Trace(SHAPE, tmp_path / "a.npz").next(3).dense, good.dense[:3])
    (tmp_path / "c.npy").write_bytes(b"nothing")
    np.savez(tmp_path / "d.npz", other=good.ids)
    np.save(tmp_path / "e.npy", good.ids[:, :2])
    np.save(tmp_path / "f.npy", good.ids[:0])
    words = {"c.npy": "no .npy", "d.npz": "array `ids`", "e.npy": "5 ids a sample", "f.npy": "no samples", "g.npy": "no .npy"}
    for name, word in words.items():
        with pytest.raises(DatasetMismatch, match=word):
            Trace(SHAPE, tmp_path / name)
