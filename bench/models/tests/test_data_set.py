"""Samples of data sets in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import warprow.data

from models.data_set import DataSet
from models.errors import DatasetMismatch
from models.shapes import SHAPES

KAGGLE = SHAPES["criteo-kaggle"].scaled(2000)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Five thousand samples."""
    path = str(tmp_path / "kaggle.npz")
    warprow.data.generate("criteo-kaggle", path, 5000, to="npz", scale=500)
    return path


def test_samples_come_in_their_order_and_again(file: str) -> None:
    with warprow.data.open(file, batch=5000) as reader:
        (whole,) = reader
        wanted, dense = np.array(whole.ids).reshape(26, 5000).T, np.array(whole.dense)
    rows = np.array(KAGGLE.rows)
    source = DataSet(KAGGLE, file, is_folded=True)
    found = [source.next(count).check(KAGGLE) for count in (100, 4800, 1300)]
    order = np.arange(6200) % 5000
    np.testing.assert_array_equal(np.concatenate([it.ids for it in found]), (wanted % rows)[order])
    np.testing.assert_array_equal(np.concatenate([it.dense for it in found]), dense[order])


def test_what_does_not_fit_is_named(file: str) -> None:
    with pytest.raises(DatasetMismatch, match="has id .* of table t.., which has"):
        DataSet(KAGGLE, file, is_folded=False).next(5000).check(KAGGLE)
    with pytest.raises(DatasetMismatch, match="26 sparse features, the model avazu 22"):
        DataSet(SHAPES["avazu"], file, is_folded=True).next(1)
    with pytest.raises(DatasetMismatch, match="sample 0 has 1 ids of feature 0, where the model criteo-mlperf has 3"):
        DataSet(SHAPES["criteo-mlperf"], file, is_folded=True).next(1)
    with pytest.raises(DatasetMismatch, match="nowhere"):
        DataSet(KAGGLE, "/nowhere.npz", is_folded=True).next(1)
