"""Hits of Warprow's cache in GPU memory, beside its static tier and PyTorch, for the ids that the rivals' programs read. Every row is compared.

    python bench/rivals/caches.py ids FOLDER                         # writes resident.ids, uniform.ids and power.ids
    python bench/rivals/caches.py hits FOLDER [--filled 0.06 0.75]   # prints a line of JSON for each kind of look-up
    python bench/rivals/caches.py shape ROWS SECONDS                 # NVE's published benchmark of one GPU
    python bench/rivals/caches.py table FILE                         # a table of lines of JSON of all programs

Of 6,291,456 rows of 512 B, 524,288 are resident, which the ids are drawn from: each alike, or by a power law of 1.05. *Filled 0.06* is a cache of
4 GiB that has these rows alone; *0.75* is one that all rows went through before. A time is the GPU's, between events before and behind a call whose
launches are all enqueued, in microseconds; the median of as many calls as there are batches of ids, each with ids of its own.

*shape*: 256 samples of 1,024 ids by a power law of 1.05, as they are, timed by the host's clock over 100 calls. The rows lie in DRAM; a tenth of them,
those that came most often in as many batches as fit into SECONDS, in GPU memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROWS, RESIDENT, DIM, BATCH = 6 << 20, 512 << 10, 128, 262_144
BATCHES, WARM_UP, ALPHA = 64, 10, 1.05
CACHE_BYTES = 4 << 30


def ranks_of(uniform, rows: int, alpha: float):
    """Ranks by a power law: the inverse of its distribution function, of reals from 1 to rows + 1."""
    power = 1 - alpha
    return (1 + uniform * ((rows + 1) ** power - 1)) ** (1 / power) - 1


def write_ids(folder: Path) -> None:
    generator = np.random.default_rng(24)
    each = ROWS // RESIDENT
    resident = (np.arange(RESIDENT) * each + generator.integers(0, each, RESIDENT)).astype(np.int32)
    generator.shuffle(resident)
    resident.tofile(folder / "resident.ids")
    resident[generator.integers(0, RESIDENT, BATCHES * BATCH)].tofile(folder / "uniform.ids")
    ranks = ranks_of(generator.random(BATCHES * BATCH), RESIDENT, ALPHA).astype(np.int64).clip(0, RESIDENT - 1)
    resident[ranks].tofile(folder / "power.ids")


def table_of(rows: int, device: str):
    """The rows' content, as harness.cuh has it: integers below 256."""
    import torch

    table = torch.empty(rows, DIM, device=device)
    elements = torch.arange(DIM, device=device) * 2246822519
    for first in range(0, rows, 1 << 18):
        ids = torch.arange(first, min(first + (1 << 18), rows), device=device)
        table[first : first + (1 << 18)] = (ids[:, None] * 2654435761 + elements & 0xFFFFFFFF) >> 24
    return table


def drive(name: str, rows: int) -> str:
    """The address of a drive in memory with room for so many rows."""
    return f"emulated:{name},backing=ram,size={(rows * DIM * 5 >> 20) + 256 << 20}"


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Clock:
    """Times of calls for ids that lie in one tensor."""

    def __init__(self, batches: dict, table) -> None:
        import torch

        self.batches, self.table = batches, table
        self.ids = torch.empty(BATCH, dtype=torch.int64, device="cuda")
        self.out = {bag: torch.empty(BATCH // bag, DIM, device="cuda") for bag in (1, 32, 1024)}

    def measure(self, who: str, filled: str, ids: str, what: str, bag: int, call: Callable[[], object]) -> None:
        import torch

        times, wrong = [], 0
        from_, to = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        out = self.out[bag]
        for turn, batch in enumerate(self.batches[ids]):
            self.ids.copy_(batch)
            out.fill_(float("nan"))
            torch.cuda.synchronize()
            torch.cuda._sleep(900_000)
            from_.record()
            call()
            to.record()
            torch.cuda.synchronize()
            if turn >= WARM_UP:
                times.append(from_.elapsed_time(to) * 1e3)
            truth = self.table[self.ids]
            wrong += int((out != (truth if bag == 1 else truth.view(-1, bag, DIM).sum(1))).sum())
        times.sort()
        found = {"us": round(statistics.median(times), 1), "p5": round(times[len(times) // 20], 1), "p95": round(times[len(times) * 19 // 20], 1), "wrong": wrong}
        say(who=who, filled=filled, ids=ids, what=what, bag=bag, **found)

    def both(self, who: str, filled: str, ids: str, what: str, bag: int, call: Callable[[], object]) -> None:
        """As a call, and as a graph."""
        import torch

        self.ids.copy_(self.batches[ids][0])
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        self.measure(who, filled, ids, what, bag, call)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        self.measure(who, filled, ids, f"{what}, graph", bag, graph.replay)
        del graph


def modules_of(executor, clock: Clock, missing: str) -> dict[int, Callable[[], object]]:
    """Look-ups by the ids of a bag; 1: rows as they are."""
    import warprow.torch

    rows = warprow.torch.Embedding(executor, "t", missing=missing, max_ids=BATCH)
    sums = warprow.torch.EmbeddingBag(executor, "t", mode="sum", missing=missing, max_ids=BATCH)
    calls = {bag: lambda bag=bag: sums(clock.ids.view(-1, bag), out=clock.out[bag]) for bag in (32, 1024)}
    return {1: lambda: rows(clock.ids, out=clock.out[1]), **calls}


def measure_modules(executor, clock: Clock, who: str, filled: str) -> None:
    """All look-ups, by modules that report missing ids, and by modules to which these are rows of zeros."""
    for missing in ("error", "zero"):
        calls = modules_of(executor, clock, missing)
        for ids in clock.batches:
            for bag, call in calls.items():
                clock.both(f"{who}, missing={missing}", filled, ids, "rows" if bag == 1 else "sums", bag, call)
        del calls, call


def warm(executor, clock: Clock, passes: list) -> None:
    """Looks ids up, until the cache has their rows."""
    import torch

    call = modules_of(executor, clock, "error")[1]
    for ids in passes:
        for part in ids.split(BATCH):
            clock.ids.copy_(part)
            call()
            torch.cuda.synchronize()


def hits(folder: Path, loads: list[str]) -> None:
    import torch
    import torch.nn.functional as F

    import warprow

    table = table_of(ROWS, "cuda")
    batches = {name: torch.from_numpy(np.fromfile(folder / f"{name}.ids", np.int32)).cuda().to(torch.int64).view(-1, BATCH) for name in ("uniform", "power")}
    resident = torch.from_numpy(np.fromfile(folder / "resident.ids", np.int32)).cuda().to(torch.int64)
    clock = Clock(batches, table)
    began = time.perf_counter()
    with torch.inference_mode(), warprow.format(drive("rivals", ROWS)) as store:
        store.load({"t": table.cpu().numpy()})
        say(loaded_s=round(time.perf_counter() - began, 1))
        for filled in loads:
            for admission in ("always", "sketch") if filled == "0.06" else ("always",):
                began = time.perf_counter()
                with store.attach("cuda", cache_bytes=CACHE_BYTES, cache_admission=admission) as executor:
                    everything = [torch.arange(ROWS, device="cuda")] if filled == "0.75" else []
                    warm(executor, clock, [*everything, resident, resident, resident])
                    who = "Warprow's cache" if admission == "always" else "Warprow's cache, sketch"
                    say(who=who, filled=filled, warmed_s=round(time.perf_counter() - began, 1), statistics=str(executor.cache_statistics()))
                    measure_modules(executor, clock, who, filled)
                    say(who=who, filled=filled, statistics=str(executor.cache_statistics()))
        with store.attach("cuda", hbm_bytes=2 * ROWS * DIM * 4) as executor:
            say(who="Warprow's static tier", tiers=str(executor.tiers("t")))
            measure_modules(executor, clock, "Warprow's static tier", "all")

        def torch_rows() -> None:
            torch.index_select(table, 0, clock.ids, out=clock.out[1])

        for ids in batches:
            clock.both("PyTorch", "all", ids, "index_select", 1, torch_rows)
            for bag in (32, 1024):
                clock.both("PyTorch", "all", ids, "embedding_bag", bag, lambda bag=bag: clock.out[bag].copy_(F.embedding_bag(clock.ids.view(-1, bag), table, mode="sum")))


def shape(rows: int, seconds: float) -> None:
    import torch

    import warprow
    import warprow.torch

    def draw():
        uniform = torch.rand(BATCH, device="cuda", dtype=torch.float64)
        ranks = ranks_of(uniform, rows, ALPHA).to(torch.int64).clamp(0, rows - 1)
        return ranks * 0x9E3779B1 + 12345 & rows - 1

    torch.manual_seed(24)
    table = table_of(rows, "cuda")
    counts = torch.zeros(rows, dtype=torch.int32, device="cuda")
    ones = torch.ones(BATCH, dtype=torch.int32, device="cuda")
    began, learnt = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            counts.index_add_(0, draw(), ones)
        learnt += 100
        torch.cuda.synchronize()
    steps = [draw() for _ in range(100)]
    began = time.perf_counter()
    with torch.inference_mode(), warprow.format(drive("shape", rows)) as store:
        store.load({"t": table.cpu().numpy()}, hotness={"t": counts.cpu().numpy()})
        with store.attach("cuda", hbm_bytes=rows // 10 * DIM * 4, dram_bytes=rows * DIM * 4) as executor:
            tiers = executor.tiers("t")
            module = warprow.torch.Embedding(executor, "t", max_ids=BATCH)
            say(who="Warprow's tiers", loaded_s=round(time.perf_counter() - began, 1), tiers=str(tiers))
            hottest = counts.argsort(descending=True)[: rows // 10]
            held = torch.zeros(rows, dtype=torch.bool, device="cuda")
            held[hottest] = True
            share = float(torch.stack([held[ids].float().mean() for ids in steps]).mean())
            out = torch.empty(BATCH, DIM, device="cuda")
            for turn in range(3):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for ids in steps:
                    module(ids, out=out)
                torch.cuda.synchronize()
                taken = time.perf_counter() - began
                wrong = int((out != table[steps[-1]]).sum())
                rate = len(steps) * BATCH / taken / 1e6
                say(who="Warprow's tiers", what="shape", rows=rows, learnt=learnt, hits=round(share, 4), us=round(taken / len(steps) * 1e6, 1), M_ids_s=round(rate, 1), wrong=wrong)
            module.check()
            del module


def print_table(file: Path) -> None:
    """A line for each contender, a column for each kind of look-up: microseconds of a call, and of its graph."""
    kinds = [(bag, ids) for bag in (1, 32, 1024) for ids in ("uniform", "power")]
    times: dict[str, dict] = {}
    compared = wrong = 0
    for line in file.read_text().splitlines():
        found = json.loads(line)
        if "bag" not in found:
            print(line)
            continue
        compared += 1
        wrong += found["wrong"]
        who = f"{found['who']}, {found['filled']}"
        time_of = f"{found['us']:.1f}" + (f" ({found['wrong']} WRONG)" if found["wrong"] else "")
        times.setdefault(who, {}).setdefault((found["bag"], found["ids"]), []).append(time_of)
    kinds = [kind for kind in kinds if any(kind in of for of in times.values())]
    print("| microseconds: calls; graphs |", " | ".join(f"{'rows' if bag == 1 else f'sums of {bag:,}'}, {ids}" for bag, ids in kinds), "|")
    print("|---" * (len(kinds) + 1) + "|")
    for who, of in times.items():
        print(f"| {who} |", " | ".join("; ".join(of.get(kind, [])) for kind in kinds), "|")
    print(f"{compared} measurements, {wrong} elements wrong")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = arguments.add_subparsers(dest="command", required=True)
    commands.add_parser("ids").add_argument("folder", type=Path)
    of_hits = commands.add_parser("hits")
    of_hits.add_argument("folder", type=Path)
    of_hits.add_argument("--filled", nargs="+", choices=["0.06", "0.75"], default=["0.06", "0.75"])
    commands.add_parser("table").add_argument("file", type=Path)
    of_shape = commands.add_parser("shape")
    of_shape.add_argument("rows", type=int)
    of_shape.add_argument("seconds", type=float)
    given = arguments.parse_args()
    if given.command == "ids":
        write_ids(given.folder)
    elif given.command == "hits":
        hits(given.folder, given.filled)
    elif given.command == "table":
        print_table(given.file)
    else:
        shape(given.rows, given.seconds)


if __name__ == "__main__":
    main()
