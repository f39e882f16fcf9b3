"""The ways that a run compares, one after the other, with the drives that each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import warprow

from .drives import Drives, propose, stored
from .errors import DatasetMismatch, Unavailable
from .ids import Samples
from .tables import Tables
from .ways import CpuReader, DeviceMemory, HostExecutor, HotRows, IdealReader, PeerReads, PinnedReads, RocksDb, TorchCpu, WarprowModules, Way
from .world import note

#: By name, what each is.
WAYS = {
    "memory": "all rows in memory of the device: the bound, and what predictions are compared with",
    "torch": "PyTorch on the CPU, and a copy",
    "uva": "a Triton kernel that reads pinned memory",
    "peer": "that kernel on rows in the memory of a second GPU",
    "rocksdb": "RocksDB's files in the page cache, different rows alone, and a copy; of up to 4 million rows",
    "ideal": "CPU threads on drives that cost nothing but their time, different rows alone, and a copy",
    "reader": "CPU threads on timed drives, different rows alone, and a copy: what HugeCTR does",
    "host": "the host executor on timed drives, and a copy of all embeddings",
    "warprow": "Warprow's modules on timed drives",
}


@dataclass(frozen=True)
class Ground:
    """What the contenders have.

    Parameters
    ----------
    tables : Tables
        All rows.
    history : Samples
        Samples of the past, by which rows get their places.
    dram_bytes : int
        Memory of the host for rows, of the ways that have drives.
    hbm_bytes : int
        Memory of the GPU for rows, of Warprow and of the readers on the processor.
    batch : int
        Samples of the largest batch.
    threads : int
        Threads of the ways in which the processor looks up.
    caches : sequence of int
        Bytes of Warprow's caches, one after the other; 0: none.
    ahead_multiprocessors : int, optional
        Room on the GPU for Warprow's kernels that fetch rows ahead.
    """

    tables: Tables
    history: Samples
    dram_bytes: int
    hbm_bytes: int
    batch: int
    threads: int
    caches: Sequence[int]
    ahead_multiprocessors: int | None = None


def choose(names: Sequence[str]) -> list[str]:
    """Ways by name, in the order in which they are measured."""
    for name in names:
        if name not in WAYS:
            raise DatasetMismatch(f"there is no way {name!r}: there are {', '.join(WAYS)}")
    return [name for name in WAYS if name in names]


def _opened(make: Callable[[], Way]) -> Iterator[Way]:
    """A way, closed behind its use; none, and a line that says why, where this machine lacks something."""
    try:
        way = make()
    except Unavailable as error:
        note(f"skipped: {error}")
        return
    with way:
        yield way


def contenders(ground: Ground, names: Sequence[str], drives: Sequence[Drives]) -> Iterator[tuple[str, Way]]:
    """Each way with what it says of its drives; a way is closed when the next is asked for.

    `drives` are Warprow's. The ways in which the processor reads have as many, which threads play.
    """
    tables, shape, device = ground.tables, ground.tables.shape, ground.tables.device
    in_memory: dict[str, Callable[[], Way]] = {
        "memory": lambda: DeviceMemory(tables),
        "torch": lambda: TorchCpu(tables),
        "uva": lambda: PinnedReads(tables),
        "peer": lambda: PeerReads(tables),
        "rocksdb": lambda: RocksDb(tables, note),
    }
    for name in names:
        if name in in_memory:
            for way in _opened(in_memory[name]):
                yield "none", way
    on_drives = [name for name in names if name not in in_memory]
    if not on_drives:
        return
    in_gpu = ground.hbm_bytes // shape.row_bytes
    hot = HotRows(tables, ground.history, in_gpu) if in_gpu else None
    for own in drives:
        proposal = propose(shape, ground.history, ground.dram_bytes, own, ground.batch, ground.hbm_bytes)
        if "ideal" in on_drives:
            # Ids are numbered by popularity.
            in_memory_rows = [tiers.hbm_rows + tiers.dram_rows for tiers in proposal.tables]
            for way in _opened(lambda: IdealReader(tables, in_memory_rows, own.rate(shape.row_bytes), own.latency, hot)):
                yield f"{own.count} {own.timing}, time alone", way
        by_host = [name for name in on_drives if name in ("reader", "host")]
        has_warprow = "warprow" in on_drives
        by_threads = replace(own, player=None)
        if by_host or (has_warprow and own.player is None):
            for store in _stored(by_threads, tables, proposal):
                if "reader" in by_host:
                    # Rows in DRAM are the hottest on the host, some of which lie in GPU memory as well.
                    dram_bytes = ground.dram_bytes + ground.hbm_bytes
                    for way in _opened(lambda: CpuReader(store, shape, device, dram_bytes, ground.threads, hot)):
                        yield str(by_threads), way
                if "host" in by_host:
                    for way in _opened(lambda: HostExecutor(store, shape, device, ground.dram_bytes, ground.threads)):
                        yield str(by_threads), way
                if has_warprow and own.player is None:
                    yield from _warprow(ground, store, by_threads, proposal)
        if has_warprow and own.player is not None:
            for store in _stored(own, tables, proposal):
                yield from _warprow(ground, store, own, proposal)


def _stored(drives: Drives, tables: Tables, proposal: warprow.Proposal) -> Iterator[warprow.Store]:
    try:
        store = stored(drives, tables, proposal, note)
    except Unavailable as error:
        note(f"skipped: {error}")
        return
    with store:
        yield store


def _warprow(
    ground: Ground, store: warprow.Store, drives: Drives, proposal: warprow.Proposal
) -> Iterator[tuple[str, Way]]:
    tables = ground.tables
    options = proposal.attach_options()
    if ground.ahead_multiprocessors is not None:
        options["prefetch_multiprocessors"] = ground.ahead_multiprocessors
    for cache in ground.caches:
        for way in _opened(lambda: WarprowModules(store, tables.shape, tables.device, options, ground.batch, cache)):
            yield str(drives), way
