"""Ids of samples: by a power law, by one whose popular ids change, or from a file. A batch has them sample by sample."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .errors import DatasetMismatch
from .shapes import Shape

_Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Samples on the host.

    Parameters
    ----------
    ids : array of int64, shape (samples, shape.ids)
        Of each sample the ids of all tables, table after table; each counts from 0 in its own table.
    dense : array of float32, shape (samples, shape.dense)
        The other features.
    """

    ids: _Ids
    dense: npt.NDArray[np.float32]

    def check(self, shape: Shape) -> Samples:
        """Refuses samples that do not fit a shape, and names the first id that its table lacks."""
        if self.ids.ndim != 2 or self.ids.shape[1] != shape.ids:
            wanted = f"{shape.ids} ids a sample ({len(shape.rows)} tables)"
            raise DatasetMismatch(f"the ids have shape {self.ids.shape}, the model {shape.name} {wanted}: choose another model or data set")
        if self.ids.dtype != np.int64:
            raise DatasetMismatch(f"the ids are of type {self.ids.dtype}: give int64")
        if self.dense.shape != (len(self.ids), shape.dense):
            text = f"the dense features have shape {self.dense.shape}, where ({len(self.ids)}, {shape.dense}) is wanted"
            raise DatasetMismatch(f"{text}: the model {shape.name} has {shape.dense} a sample")
        for name, rows, columns in zip(shape.names, shape.rows, columns_of(shape), strict=True):
            own = self.ids[:, columns]
            bad = (own < 0) | (own >= rows)
            if bad.any():
                sample, _ = np.argwhere(bad)[0]
                wrong = int(own[bad][0])
                text = f"sample {sample} has id {wrong} of table {name}, which has {rows} rows"
                raise DatasetMismatch(f"{text}: scale the model less (--bytes), or take the data set modulo its rows")
        return self


def columns_of(shape: Shape) -> list[slice]:
    """For each table the columns of `Samples.ids` that are its own."""
    own = [hot * shape.positions for hot in shape.hot]
    return [slice(end - count, end) for count, end in zip(own, itertools.accumulate(own), strict=True)]


class Source(ABC):
    """Gives samples, one lot after another, never the same twice but for a file that is read again from its begin."""

    #: What tables and pictures call it.
    name: str

    @abstractmethod
    def next(self, count: int) -> Samples:
        """The next `count` samples."""


class PowerLaw(Source):
    """Of each table the k-th most popular id is drawn with a probability that falls as k^-alpha; ids are numbered by popularity."""

    def __init__(self, shape: Shape, alpha: float, seed: int) -> None:
        if not alpha >= 0:
            raise DatasetMismatch(f"an exponent of {alpha}: give 0 (uniform) or more")
        self.shape, self.alpha = shape, alpha
        self.name = "uniform" if alpha == 0 else f"power law, exponent {alpha}"
        self._random = np.random.default_rng(seed)

    def _ranks(self, rows: int, count: int) -> _Ids:
        uniform = self._random.random(count)
        if self.alpha == 0:
            reals = uniform * rows
        elif self.alpha == 1:
            reals = (rows + 1) ** uniform - 1
        else:
            # The inverse of the distribution function of reals from 1 to rows + 1.
            power = 1 - self.alpha
            reals = (1 + uniform * ((rows + 1) ** power - 1)) ** (1 / power) - 1
        return reals.astype(np.int64).clip(0, rows - 1)

    def _ids_of(self, table: int, ranks: _Ids) -> _Ids:
        return ranks

    def next(self, count: int) -> Samples:
        ids = np.empty((count, self.shape.ids), np.int64)
        for table, (rows, columns) in enumerate(zip(self.shape.rows, columns_of(self.shape), strict=True)):
            hot = columns.stop - columns.start
            ids[:, columns] = self._ids_of(table, self._ranks(rows, count * hot)).reshape(count, hot)
        return Samples(ids, self._random.standard_normal((count, self.shape.dense), dtype=np.float32))


class Drift(PowerLaw):
    """A power law whose popular ids change: after each 4,096 samples, some of a table's ids, drawn at random, change places.

    Parameters
    ----------
    churn : float
        The share of ids that do. So that share of the popularity moves each time, to ids that are mostly hardly known.
    """

    #: Samples between two changes.
    STEP = 4096

    def __init__(self, shape: Shape, alpha: float, seed: int, churn: float) -> None:
        super().__init__(shape, alpha, seed)
        if not 0 <= churn <= 1:
            raise DatasetMismatch(f"a churn of {churn}: give a share from 0 to 1")
        self.name, self._churn = f"{self.name}, {churn:g} of ids change places each {self.STEP} samples", churn
        #: Of each table the ids by rank.
        self._ids = [np.arange(rows) for rows in shape.rows]
        self._left = self.STEP

    def _ids_of(self, table: int, ranks: _Ids) -> _Ids:
        return self._ids[table][ranks]

    def _change(self) -> None:
        for ids in self._ids:
            ranks = np.unique(self._random.integers(0, len(ids), round(self._churn * len(ids))))
            ids[ranks] = ids[self._random.permutation(ranks)]

    def next(self, count: int) -> Samples:
        lots = []
        while count:
            if self._left == 0:
                self._change()
                self._left = self.STEP
            own = min(count, self._left)
            lots.append(super().next(own))
            count, self._left = count - own, self._left - own
        return Samples(np.concatenate([lot.ids for lot in lots]), np.concatenate([lot.dense for lot in lots]))


class Trace(Source):
    """Samples of a file: .npz with arrays `ids` and `dense`, or .npy of ids alone (dense features are then zeros)."""

    def __init__(self, shape: Shape, path: str | Path) -> None:
        self.name = f"trace {Path(path).name}"
        try:
            loaded = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DatasetMismatch(f"{path} is no .npy or .npz file ({error}): give one with ids of shape (samples, {shape.ids})") from error
        if isinstance(loaded, np.ndarray):
            ids, dense = loaded, None
        else:
            if "ids" not in loaded:
                raise DatasetMismatch(f"{path} has {', '.join(loaded.files) or 'nothing'}: it needs an array `ids`")
            ids, dense = loaded["ids"], loaded["dense"] if "dense" in loaded else None
        if ids.ndim == 2 and ids.dtype.kind in "iu":
            ids = ids.astype(np.int64)
        zeros = np.zeros((len(ids), shape.dense), np.float32)
        self._samples = Samples(ids, zeros if dense is None else dense.astype(np.float32)).check(shape)
        if len(ids) == 0:
            raise DatasetMismatch(f"{path} has no samples")
        self._at = 0

    def next(self, count: int) -> Samples:
        at = (self._at + np.arange(count)) % len(self._samples.ids)
        self._at = int((self._at + count) % len(self._samples.ids))
        return Samples(self._samples.ids[at], self._samples.dense[at])
