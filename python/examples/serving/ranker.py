"""The model: rows of two tables of a store, and a dense layer. The ASGI server and the Triton backend both call it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import warprow

from .requests import Answer, Refused, Sample

#: A table of users, a row a request; and a table of items, whose rows are added.
FEATURES = (
    warprow.Feature("user", "user", pooling="sum"),
    warprow.Feature("items", "item", pooling="sum"),
)


@dataclass(frozen=True)
class Version:
    """What belongs to one generation beside its rows in the store."""

    #: By table how many rows it has.
    rows: dict[str, int]
    #: float32, shape (width,): the dense layer, over both features side by side.
    weights: np.ndarray[Any, Any]
    bias: float

    def save(self, path: Path) -> None:
        """Writes it to a file, whole or not at all."""
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            rows: dict[str, Any] = {f"rows.{name}": rows for name, rows in self.rows.items()}
            np.savez(file, weights=self.weights, bias=self.bias, **rows)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> Version:
        """Reads what `save` wrote."""
        with np.load(path) as file:
            rows = {name[len("rows.") :]: int(file[name]) for name in file.files if name.startswith("rows.")}
            return cls(rows, file["weights"], float(file["bias"]))


class Ranker:
    """Scores samples. One thread calls `answer`; `publish` and `swap` may run in another meanwhile.

    Parameters
    ----------
    store : warprow.Store
        With tables "user" and "item".
    versions : Path
        A folder with a file `GENERATION.npz` for each generation (`Version.save`).
    max_batch, max_items : int
        The most samples of one call, and the most items of a sample.
    dram_bytes : int
        Bytes of the hottest rows to keep in memory.
    """

    def __init__(
        self, store: warprow.Store, versions: Path, *, max_batch: int = 256, max_items: int = 32, dram_bytes: int = 0
    ) -> None:
        self.store, self.max_batch, self.max_items = store, max_batch, max_items
        self._folder = versions
        self._publishing = threading.Lock()
        generation = store.table("user").generation
        self._versions = {generation: Version.read(self._path(generation))}
        # A row that arrives with a wrong bit counts as one that could not be read.
        self.executor = store.attach("cpu", dram_bytes=dram_bytes, check_rows=True)
        # A request with a wrong id, or with a row that could not be read, takes no other request of its batch with it.
        self._plan = self.executor.plan(
            FEATURES, max_batch=max_batch, max_ids=max_batch * (1 + max_items), missing="zero", on_failure="mask", mask="found"
        )

    def _path(self, generation: int) -> Path:
        return self._folder / f"{generation}.npz"

    @property
    def generation(self) -> int:
        """The generation that new look-ups read."""
        return self.store.table("user").generation

    def answer(self, samples: Sequence[Sample]) -> list[Answer | Refused]:
        """An answer for each sample, or why it gets none."""
        count = len(samples)
        ids = [sample.user for sample in samples]
        offsets = list(range(count))
        for sample in samples:
            offsets.append(len(ids))
            ids += sample.items
        offsets.append(len(ids))
        ends = np.asarray(offsets, dtype=np.int64)
        rows, found = self._plan.lookup(np.asarray(ids, dtype=np.int64), offsets=ends, batch=count)
        # One generation gave all rows of the batch, and its dense layer goes with them.
        report = self._plan.report()
        assert report is not None, "a look-up was made just now"
        generation = int(report["generation"])
        version = self._versions.get(generation)
        if version is None:
            text = f"generation {generation} has no dense layer: publish it through the server"
            return [Refused("store_failed", text) for _ in samples]
        scores = (rows @ version.weights + np.float32(version.bias)).tolist()
        answers: list[Answer | Refused] = [Answer(generation, score) for score in scores]
        if not found.all():
            lost = np.concatenate([[0], np.cumsum(~found)])
            in_bags = (lost[ends[1:]] - lost[ends[:-1]]).reshape(2, count).sum(axis=0)
            for at in np.flatnonzero(in_bags).tolist():
                answers[at] = _refusal(samples[at], version)
        return answers

    def swap(self, generation: int, version: Version) -> None:
        """Goes over to a generation that is in the store. Batches that are under way end with the generation they began with."""
        self._versions[generation] = version
        self.executor.adopt(generation)

    def publish(self, source: Path) -> int:
        """Loads a new generation beside the one that serves, and goes over to it.

        Parameters
        ----------
        source : Path
            A folder with `user.npy` and `item.npy`, which have the rows of the tables, and `dense.npz`, which has "weights" and "bias".

        Returns
        -------
        int
            The generation. Older ones stay in the store until `drop`.
        """
        with self._publishing:
            # The files are mapped, so that tables need not fit memory.
            tables = {name: np.load(source / f"{name}.npy", mmap_mode="r") for name in ("user", "item")}
            with np.load(source / "dense.npz") as dense:
                rows = {name: int(table.shape[0]) for name, table in tables.items()}
                version = Version(rows, dense["weights"], float(dense["bias"]))
            generation = self.store.load(tables, model="ranker", standby=True).generation
            version.save(self._path(generation))
            self.swap(generation, version)
            return generation

    def drop(self, generation: int) -> None:
        """Drops a generation that serves no more."""
        self.store.drop(generation)
        self._versions.pop(generation, None)
        self._path(generation).unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the executor's memory and queues back. The store stays open."""
        self.executor.close()


def _refusal(sample: Sample, version: Version) -> Refused:
    """Why a sample whose rows were not all found and read gets no answer."""
    for table, ids in (("user", [sample.user]), ("item", sample.items)):
        for id_ in ids:
            if not 0 <= id_ < version.rows[table]:
                return Refused("no_such_row", f"table {table!r} has no row of id {id_}: it has {version.rows[table]} rows")
    return Refused("rows_failed", "a row of the request could not be read: try again", retry_after=1)
