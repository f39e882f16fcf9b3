"""What all ways of a run share: the rows, the samples, and what the model with all rows in memory says of them."""

from __future__ import annotations

import sys
import time

import torch

from . import compare
from .dense.deepfm import deepfm_tables
from .errors import DatasetMismatch
from .ids import Samples, Source
from .pipeline import DenseLayers, Lot, Step
from .shapes import Shape
from .tables import Tables
from .ways import DeviceMemory


_BEGAN = time.monotonic()


def note(text: str) -> None:
    """Progress, on stderr, with the seconds since the program began."""
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {text}", file=sys.stderr, flush=True)


#: The latest tables, by what they were made of: runs of several figures that follow each other share them.
_TABLES: dict[tuple[Shape, torch.device, int], Tables] = {}


def make_tables(shape: Shape, device: torch.device, seed: int) -> Tables:
    """The rows of a shape: trained ones of the shape of DeepFM, else made. The latest tables are kept, and are not made again."""
    asked = (shape, device, seed)
    if asked not in _TABLES:
        # Before others are made, so that two shapes never take memory at once.
        _TABLES.clear()
        given = deepfm_tables() if shape.name == "deepfm-avazu" else None
        _TABLES[asked] = Tables(shape, device, seed, given)
    return _TABLES[asked]


class Answers:
    """What the model with all rows in memory says of samples, batch by batch.

    Parameters
    ----------
    tables : Tables
        All rows.
    layers : DenseLayers, optional
        The dense layers; without them there are no predictions, and only embeddings can be compared.
    samples : Samples
        All samples that are looked up.
    batch : int
        Samples of a batch: the dense layers' sums depend on it.
    """

    def __init__(self, tables: Tables, layers: DenseLayers | None, samples: Samples, batch: int) -> None:
        self.tables, self.layers, self.batch = tables, layers, batch
        self.lot = Lot(torch.from_numpy(samples.ids), torch.from_numpy(samples.dense), tables.device)
        self.batches = len(self.lot) // batch
        if self.batches == 0:
            raise DatasetMismatch(f"{len(self.lot)} samples are no batch of {batch}")
        step = Step(DeviceMemory(tables), layers, tables.shape, batch, tables.device)
        # It is asked later, for rows.
        self._way = step.way
        #: Shape (batches, batch), without dense layers (0, batch).
        self.predictions = torch.zeros(0, batch)
        if layers is not None:
            self.predictions = torch.stack([step.run(self.lot, at * batch).clone() for at in range(self.batches)])

    def check_rows(self, step: Step, at: int) -> None:
        """Looks a batch up and compares its embeddings."""
        step.run(self.lot, at * self.batch)
        step.way.check()
        self.compare_rows(step, at)

    def compare_rows(self, step: Step, at: int) -> None:
        """Compares the embeddings of the batch that `step` has looked up last, bit for bit."""
        self.compare_embeddings(step.way.name, step.embeddings, at)

    def compare_embeddings(self, who: str, embeddings: torch.Tensor, at: int) -> None:
        """Compares embeddings of a batch, bit for bit."""
        first = at * self.batch
        assert isinstance(self._way, DeviceMemory)
        wanted = self._way.embed(self.lot.ids[first : first + self.batch].to(self.tables.device))
        compare.rows_equal(who, embeddings, wanted, self.tables.shape.dim)


def draw(source: Source, shape: Shape, count: int) -> Samples:
    """So many samples, which fit the shape."""
    return source.next(count).check(shape)

