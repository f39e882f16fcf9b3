"""Modules over tables that are loaded anew: each reads the rows that it was made for, or says that they are gone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import warprow

torch = pytest.importorskip("torch")

import warprow.torch as wt  # noqa: E402

ROWS = np.arange(80, dtype=np.float32).reshape(10, 8)
IDS = torch.tensor([1, 2])


@pytest.fixture
def store(tmp_path):
    with warprow.format(f"emulated:{tmp_path}/a.drive?size=64M") as store:
        store.load({"a": ROWS})
        yield store


def same(found, rows: np.ndarray) -> None:
    assert np.array_equal(found.numpy(), rows[IDS.numpy()])


def test_modules_made_behind_a_load_read_the_tables_of_now(store) -> None:
    first = wt.Embedding(store, "a")
    same(first(IDS), ROWS)
    store.load({"b": -ROWS})
    same(wt.Embedding(store, "b")(IDS), -ROWS)
    for rows in (ROWS * 5, ROWS[:, :4] - 1, np.concatenate([ROWS, ROWS], 1) + 1):
        store.load({"a": rows}, replace=True)
        same(wt.Embedding(store, "a")(IDS), rows)
        # One that was made before reads what it was made for.
        same(first(IDS), ROWS)


def test_an_executor_says_which_tables_it_lacks(store) -> None:
    executor = store.attach("cpu")
    store.load({"b": -ROWS})
    with pytest.raises(warprow.InvalidArgument, match='attached before table .b. was there'):
        wt.Embedding(executor, "b")
    with pytest.raises(warprow.NoSuchTable):
        wt.Embedding(executor, "c")
    narrow = ROWS[:, :4] - 1
    store.load({"a": narrow}, replace=True)
    # The executor has the tables from when it was attached.
    same(wt.Embedding(executor, "a")(IDS), ROWS)
    executor.adopt()
    same(wt.Embedding(executor, "b")(IDS), -ROWS)
    same(wt.Embedding(executor, "a")(IDS), narrow)


@pytest.mark.parametrize("rows", [ROWS[:, :4], ROWS[:2], np.concatenate([ROWS, ROWS], 1)], ids=["narrower", "fewer", "wider"])
def test_saved_modules_refuse_tables_of_another_shape(store, tmp_path, rows: np.ndarray) -> None:
    module = wt.Embedding(store, "a")
    saved, exported = pickle.dumps(module), torch.export.export(module, (IDS,))
    torch.export.save(exported, tmp_path / "a.pt2")
    address = store.addresses
    store.load({"a": np.ascontiguousarray(rows)}, replace=True)
    del module, exported
    store.close()
    with warprow.open(address, read_only=True) as again:
        with pytest.raises(warprow.InvalidArgument, match="made for 10 rows of 8 elements of table .a."):
            pickle.loads(saved)(IDS)
        with pytest.raises(warprow.InvalidArgument, match="made for 10 rows of 8 elements of table .a."):
            torch.export.load(tmp_path / "a.pt2").module()(IDS)
        count = min(2, len(rows))
        assert np.array_equal(wt.Embedding(again, "a")(torch.arange(count)).numpy(), rows[:count])
