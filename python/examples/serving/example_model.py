"""A small model whose scores are known: every row says to which generation and update it belongs.

    python -m serving.example_model FOLDER       # makes FOLDER/ranker.drive, FOLDER/versions, and FOLDER/next to be published
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import warprow

from .ranker import Version
from .requests import Sample

ROWS = {"user": 20_000, "item": 5_000}
DIM = 8
#: What one update adds to each element of a row.
STEP = 64
#: The most updates of a row: all sums are integers below 2^24 then, which float32 holds exactly, in any order.
MAX_UPDATES = 250


@dataclass(frozen=True)
class ExampleModel:
    """Version number `seed` of the model. All values are small integers, so that scores are exact."""

    seed: int

    def rows(self, table: str, ids: Any, updates: int = 0) -> np.ndarray[Any, Any]:
        """The rows of ids after so many updates."""
        numbers = np.asarray(ids, dtype=np.int64)[..., None] * 31 + np.arange(DIM) * 7 + self.seed * 13 + (5 if table == "item" else 0)
        rows: np.ndarray[Any, Any] = (numbers % STEP + STEP * updates).astype(np.float32)
        return rows

    @property
    def weights(self) -> np.ndarray[Any, Any]:
        """The dense layer. The part of each table adds up to something else than 0."""
        return ((np.arange(2 * DIM) + self.seed) % 3 + 1).astype(np.float32)

    @property
    def bias(self) -> float:
        """The bias of the dense layer."""
        return float(1000 * self.seed)

    def version(self) -> Version:
        """What the server keeps beside the rows."""
        return Version(ROWS, self.weights, self.bias)

    def score(self, sample: Sample, updates_of_user: int = 0) -> float:
        """The score of a sample, computed from nothing but the sample."""
        user = self.rows("user", [sample.user], updates_of_user).sum(axis=0, dtype=np.float64)
        items = self.rows("item", sample.items).sum(axis=0, dtype=np.float64)
        return float(np.concatenate([user, items]) @ self.weights.astype(np.float64)) + self.bias

    def tables(self) -> dict[str, np.ndarray[Any, Any]]:
        """All rows."""
        return {table: self.rows(table, np.arange(rows)) for table, rows in ROWS.items()}

    def write(self, folder: Path) -> None:
        """Writes what `Ranker.publish` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        for table, rows in self.tables().items():
            np.save(folder / f"{table}.npy", rows)
        np.savez(folder / "dense.npz", weights=self.weights, bias=self.bias)

    def load(self, store: warprow.Store, versions: Path, *, standby: bool = False) -> int:
        """Loads it into a store, with what the server keeps beside the rows; returns its generation."""
        versions.mkdir(parents=True, exist_ok=True)
        # High ids are hot, so that a part of the requests is answered by memory.
        hotness = {table: np.arange(rows) for table, rows in ROWS.items()}
        generation = store.load(self.tables(), model="ranker", hotness=hotness, standby=standby).generation
        self.version().save(versions / f"{generation}.npz")
        return generation


def main() -> None:
    """Makes a store with the first version of the model, and the files of the second."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with warprow.format(f"emulated:{folder}/ranker.drive?size=64M") as store:
        ExampleModel(1).load(store, folder / "versions")
    ExampleModel(2).write(folder / "next")
    print(f'{{"user": 7, "items": [3, 1]}} scores {ExampleModel(1).score(Sample(7, [3, 1]))}, and {ExampleModel(2).score(Sample(7, [3, 1]))} next')


if __name__ == "__main__":
    main()
