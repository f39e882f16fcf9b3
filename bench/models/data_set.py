"""Samples of a data set that `warprow.data` reads: Parquet, text, archives of NumPy, HugeCTR's formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import warprow
import warprow.data

from .errors import DatasetMismatch
from .ids import Samples, Source
from .shapes import Shape

#: Samples that are read at a time.
_PIECE = 4096


class DataSet(Source):
    """Reads a data set from its begin to its end, and again.

    Parameters
    ----------
    shape : Shape
        What each sample has.
    path : str
        A file or folder whose format `warprow.data.open` can tell.
    is_folded : bool
        Whether ids are taken modulo the rows of their tables; else one that its table lacks is refused.
    """

    def __init__(self, shape: Shape, path: str, is_folded: bool) -> None:
        self.shape, self.path, self.is_folded = shape, path, is_folded
        self.name = f"data set {Path(path).name}"
        self._pieces = self._read()
        self._left = Samples(np.empty((0, shape.ids), np.int64), np.empty((0, shape.dense), np.float32))

    def _read(self) -> Iterator[Samples]:
        try:
            with warprow.data.open(self.path, batch=_PIECE) as reader:
                for batch in reader:
                    yield self._piece(batch)
        except warprow.WarprowError as error:
            raise DatasetMismatch(f"{self.path}: {error}") from error

    def _piece(self, batch: warprow.data.Batch) -> Samples:
        features = self.shape.features
        counts = np.diff(batch.offsets).reshape(-1, batch.samples)
        if len(counts) != len(features):
            raise DatasetMismatch(f"{self.path} has {len(counts)} sparse features, the model {self.shape.name} {len(features)}: choose another model")
        for number, (_, hot) in enumerate(features):
            if (counts[number] != hot).any():
                sample = int(np.argmax(counts[number] != hot))
                told = f"sample {batch.first + sample} has {counts[number, sample]} ids of feature {number}"
                raise DatasetMismatch(f"{self.path}: {told}, where the model {self.shape.name} has {hot}: choose another model")
        starts = np.array(batch.offsets[:: batch.samples])
        parts = [batch.ids[first:last].reshape(batch.samples, -1) for first, last in zip(starts[:-1], starts[1:], strict=True)]
        if self.is_folded:
            parts = [ids % self.shape.rows[table] for ids, (table, _) in zip(parts, features, strict=True)]
        # A copy: the reader uses its memory again.
        return Samples(np.concatenate(parts, axis=1), np.array(batch.dense))

    def next(self, count: int) -> Samples:
        lots, have, fresh = [self._left], len(self._left.ids), False
        while have < count:
            piece = next(self._pieces, None)
            if piece is None:
                if fresh:
                    raise DatasetMismatch(f"{self.path} has no samples")
                self._pieces, fresh = self._read(), True
                continue
            lots.append(piece)
            have, fresh = have + len(piece.ids), False
        ids, dense = np.concatenate([lot.ids for lot in lots]), np.concatenate([lot.dense for lot in lots])
        self._left = Samples(ids[count:], dense[count:])
        return Samples(ids[:count], dense[:count])
