"""Emulated drives with a real drive's timing: a GPU plays them, or threads of the host do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import warprow

from .errors import DatasetMismatch, Unavailable
from .ids import Samples, columns_of
from .shapes import Shape
from .tables import Tables

#: Reads of 512 B a second, seconds of one read, and bytes a second, of each timing (docs/soft-controller.md).
TIMINGS = {"p5800x": (5e6, 5e-6, 7.2e9), "gen5-tlc": (3.3e6, 60e-6, 14e9), "gen6": (10e6, 50e-6, 28e9)}
_NUMBERS = itertools.count()
_ROUND = 1 << 20


@dataclass(frozen=True)
class Drives:
    """Which drives.

    Parameters
    ----------
    count : int
        How many.
    timing : str
        Whose timing they have: a key of `TIMINGS`.
    player : int, optional
        The number of the GPU that plays them; without, each takes a thread of the host.
    linger : str, optional
        How long a GPU that plays them looks for commands behind the latest ("2ms"), as a drive of the market always does; without, 20 us.
    """

    count: int
    timing: str
    player: int | None = None
    linger: str | None = None

    def __post_init__(self) -> None:
        if self.timing not in TIMINGS:
            raise DatasetMismatch(f"there is no timing {self.timing!r}: there are {', '.join(TIMINGS)}")
        if not 1 <= self.count <= 64:
            raise DatasetMismatch(f"{self.count} drives: give 1 to 64")

    def rate(self, row_bytes: int) -> float:
        """Rows of so many bytes that all of them read in a second."""
        reads, _, bandwidth = TIMINGS[self.timing]
        return self.count * min(reads, bandwidth / row_bytes)

    @property
    def latency(self) -> float:
        """Seconds of one read."""
        return TIMINGS[self.timing][1]

    def __str__(self) -> str:
        threads = f"{self.count} threads play" if self.count > 1 else "a thread plays"
        lingering = "" if self.linger is None else f", awake for {self.linger}"
        return f"{self.count} {self.timing} that {threads if self.player is None else f'GPU {self.player} plays{lingering}'}"

    def addresses(self, bytes_in_all: int) -> list[str]:
        """Addresses of new drives in memory, with room for so many bytes of rows."""
        each = -(-int(bytes_in_all * 1.15 / self.count + (96 << 20)) // _ROUND) * _ROUND
        played = "" if self.player is None else f",gpu={self.player}"
        if played and self.linger is not None:
            played += f",linger={self.linger}"
        return [f"emulated:models-{next(_NUMBERS)},backing=ram,size={each},profile={self.timing}{played}" for _ in range(self.count)]


def propose(shape: Shape, history: Samples, dram_bytes: int, drives: Drives, batch: int, hbm_bytes: int = 0) -> warprow.Proposal:
    """Which rows belong in GPU memory and in DRAM, learnt from samples of the past alone."""
    return propose_all([(shape, history)], dram_bytes, drives, batch, hbm_bytes)


def propose_all(models: Sequence[tuple[Shape, Samples]], dram_bytes: int, drives: Drives, batch: int, hbm_bytes: int = 0) -> warprow.Proposal:
    """As `propose`, of the tables of several models, each with samples of its own past."""
    tables = {name: (rows, shape.dim, shape.dtype) for shape, _ in models for name, rows in zip(shape.names, shape.rows, strict=True)}
    trace: dict[str | tuple[str, ...], Any] = {
        name: history.ids[:, columns] for shape, history in models for name, columns in zip(shape.names, columns_of(shape), strict=True)
    }
    # Counts alone decide here: neither the host's speed nor the drives'.
    return warprow.plan(
        tables,
        trace,
        hbm_bytes=hbm_bytes,
        dram_bytes=dram_bytes,
        drives=drives.timing,
        drive_count=drives.count,
        batch=batch,
        typical_host=True,
        group="off",
    )


def stored(drives: Drives, tables: Tables, proposal: warprow.Proposal, note: Callable[[str], None]) -> warprow.Store:
    """A new store on new drives, with all tables in it, laid out as proposed."""
    return stored_in_turn(drives, [(tables.by_name(), proposal)], note)


def stored_in_turn(
    drives: Drives, loads: Sequence[tuple[Mapping[str, torch.Tensor], warprow.Proposal]], note: Callable[[str], None]
) -> warprow.Store:
    """A new store on new drives, with the tables of several loads in it. Those of one load share chunks, and each load has chunks of its own."""
    began = time.perf_counter()
    count = sum(table.nbytes for tables, _ in loads for table in tables.values())
    try:
        store = warprow.format(drives.addresses(count))
    except warprow.OpenError as error:
        raise Unavailable(f"{drives}: {error}") from error
    try:
        for tables, proposal in loads:
            store.load(tables, plan=proposal)
    except BaseException:
        store.close()
        raise
    note(f"loaded {count / 1e9:.2f} GB onto {drives} in {time.perf_counter() - began:.1f} s")
    return store
