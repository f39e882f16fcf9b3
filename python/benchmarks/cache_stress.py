"""Look-ups beside a cache that is always full, while rows are updated, tables replaced and the cache emptied: every row of every look-up is compared.

    CUDA_MODULE_LOADING=EAGER python python/benchmarks/cache_stress.py [--ids 1e9] [--admission always sketch] [--player 1]
    python python/benchmarks/cache_stress.py --device cpu --ids 1e7

Two tables lie on two emulated drives, one with ids and one with sparse keys. Two modules look rows up on two streams at once, on a GPU by graphs that are
replayed. Ids follow a power law whose hottest ids change all the time. Another thread meanwhile updates rows, removes all rows from the cache, and
loads both tables anew, and has the executor go over to them. Each row tells its version in its first element, and all others follow from id and version.
A row is wrong if its elements are not those of its id and the version that it tells, or if that version is older than the one that was there when the
look-up began, or newer than the one that was being written when it ended. The program ends with an error if a row was wrong, or if nothing of what it
is to meet has happened.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

import torch

import warprow
import warprow.torch as wt

DIM = 128
MASK = 0xFFFFFF
FACTOR, STEP, OF_VERSION = 2654435761, 97, 40503
VERSIONS_OF_GENERATION = 1000
KEY_FACTOR, KEY_OFFSET = 7_000_003, 11


def content(ids: torch.Tensor, versions: torch.Tensor) -> torch.Tensor:
    """The rows of ids at these versions, f32 of shape (n, DIM)."""
    numbers = ids.unsqueeze(1) * FACTOR + versions.unsqueeze(1) * OF_VERSION + torch.arange(DIM, device=ids.device) * STEP
    rows = (numbers & MASK).float()
    rows[:, 0] = versions.float()
    return rows


def comparer(device: str):
    """A function that adds up in `wrong` how many rows are wrong."""
    if device == "cpu":

        def compare(rows, ids, least, most, wrong) -> None:
            versions = rows[:, 0].long()
            bad = (versions < least[ids]) | (versions > most[ids])
            bad |= (rows != content(ids, versions)).any(dim=1)
            wrong += bad.sum()

        return compare

    import triton
    import triton.language as tl

    @triton.jit
    def kernel(rows, ids, least, most, wrong, DIM: tl.constexpr, FACTOR: tl.constexpr, STEP: tl.constexpr, OF_VERSION: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        id = tl.load(ids + at)
        version = tl.load(rows + at * DIM).to(tl.int64)
        bad = (version < tl.load(least + at)) | (version > tl.load(most + id))
        element = tl.arange(0, DIM)
        found = tl.load(rows + at[:, None] * DIM + element[None, :])
        number = ((id * FACTOR + version * OF_VERSION)[:, None] + element[None, :] * STEP) & MASK
        expected = tl.where(element[None, :] == 0, version[:, None], number).to(tl.float32)
        differs = tl.sum((found != expected).to(tl.int32), axis=1) > 0
        tl.atomic_add(wrong, tl.sum((bad | differs).to(tl.int64), axis=0))

    def compare(rows, ids, least, most, wrong) -> None:
        kernel[(ids.numel() // 16,)](rows, ids, least, most, wrong, DIM, FACTOR, STEP, OF_VERSION, MASK, 16)

    return compare


class Side:
    """One of the two tables: a module that looks its rows up, and what is known of their versions."""

    def __init__(self, executor, name: str, options, keyed: bool) -> None:
        self.name, self.keyed, self.device = name, keyed, options.device
        self.batch = options.batch
        # Of each row: the version that every look-up that begins now reads at least, and the latest that may be read.
        self.least = torch.zeros(options.rows, dtype=torch.int64, device=self.device)
        self.most = torch.zeros_like(self.least)
        self.wrong = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.module = wt.Embedding(executor, name, max_ids=self.batch)
        self.ids = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        self.asked = self.keys(self.ids)
        self.least_before = torch.zeros_like(self.ids)
        self.random = torch.Generator(device=self.device).manual_seed(options.seed + keyed)
        self.graph = None
        self.stream = torch.cuda.Stream() if self.device != "cpu" else None

    def keys(self, ids: torch.Tensor) -> torch.Tensor:
        return ids * KEY_FACTOR + KEY_OFFSET if self.keyed else ids

    def capture(self) -> None:
        with torch.cuda.stream(self.stream):
            self.module(self.asked)
        self.stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.out = self.module(self.asked)

    def step(self, rows: int, offset: int, compare) -> None:
        """One look-up, whose hottest ids begin at `offset`, and the comparison behind it."""
        ranks = (torch.rand(self.batch, generator=self.random, device=self.device, dtype=torch.float64) ** 4 * rows).long()
        torch.remainder((ranks + offset) * 7919, rows, out=self.ids)
        self.asked.copy_(self.keys(self.ids))
        self.least_before.copy_(self.least[self.ids])
        if self.graph is None:
            before = self.least.clone()
            compare(self.module(self.asked), self.ids, before, self.most, self.wrong)
        else:
            self.graph.replay()
            compare(self.out, self.ids, self.least_before, self.most, self.wrong)


class Changes(threading.Thread):
    """Updates rows, replaces tables and empties the cache, in a thread of its own, until it is told to stop."""

    def __init__(self, store, executor, sides: list[Side], options) -> None:
        super().__init__(name="changes", daemon=True)
        self.store, self.executor, self.sides, self.options = store, executor, sides, options
        self.stopped = threading.Event()
        self.error: BaseException | None = None
        self.updates = self.rows_updated = self.generations = self.cleared = self.turns = 0

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.turn()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def turn(self) -> None:
        self.turns += 1
        if self.turns % self.options.turns_of_generation == 0:
            return self.replace()
        if self.turns % 7 == 0:
            try:
                self.executor.clear_cache()
                self.cleared += 1
            except warprow.Busy:
                pass
        side = self.sides[self.turns % 2]
        random = torch.Generator().manual_seed(self.options.seed + 1000 + self.turns)
        ids = torch.randint(self.options.rows, (self.options.updated,), generator=random).unique()
        there = ids.to(side.device)
        versions = side.most[there] + 1
        side.most[there] = versions
        self.settle(side)
        self.store.update(side.name, side.keys(ids), content(ids, versions.cpu()))
        side.least[there] = versions
        self.settle(side)
        self.updates += 1
        self.rows_updated += len(ids)
        time.sleep(self.options.pause)

    def replace(self) -> None:
        """Loads both tables as a new generation, all rows at a new version, and has the executor read them."""
        version = (self.generations + 1) * VERSIONS_OF_GENERATION
        old = [generation.id for generation in self.store.generations()]
        self.store.load(tables(self.sides, self.options.rows, version), keys=keys_of(self.sides, self.options.rows), replace=True, standby=True)
        new = [generation.id for generation in self.store.generations() if generation.id not in old]
        for side in self.sides:
            side.most.fill_(version)
            self.settle(side)
        self.executor.adopt(new[0])
        for side in self.sides:
            side.least.fill_(version)
            self.settle(side)
        for generation in old:
            self.store.drop(generation)
        self.generations += 1

    def settle(self, side: Side) -> None:
        if side.device != "cpu":
            torch.cuda.current_stream().synchronize()


def tables(sides: list[Side], rows: int, version: int) -> dict[str, torch.Tensor]:
    ids = torch.arange(rows)
    return {side.name: content(ids, torch.full_like(ids, version)) for side in sides}


def keys_of(sides: list[Side], rows: int) -> dict[str, torch.Tensor]:
    return {side.name: side.keys(torch.arange(rows)) for side in sides if side.keyed}


def stress(options, admission: str) -> dict[str, object]:
    on_gpu = options.device != "cpu"
    played = f"&gpu={options.player}" if on_gpu else ""
    address = f"backing=ram&size={options.drive_bytes}{played}"
    compare = comparer(options.device)
    ids = torch.arange(options.rows)
    first = {"plain": content(ids, torch.zeros_like(ids)), "keyed": content(ids, torch.zeros_like(ids))}
    with warprow.format([f"emulated:stress-{at}?{address}" for at in range(2)]) as store:
        store.load(first, keys={"keyed": ids * KEY_FACTOR + KEY_OFFSET})
        of_gpu = {"cache_admission": admission, "overlay_bytes": 1 << 30, "adopting": True, "cache_batch_rows": options.cache_batch_rows} if on_gpu else {}
        with store.attach(options.device, cache_bytes=options.cache_bytes, timeout=20.0, **of_gpu) as executor:
            sides = [Side(executor, "plain", options, False), Side(executor, "keyed", options, True)]
            if on_gpu:
                for side in sides:
                    side.capture()
            changes = Changes(store, executor, sides, options)
            changes.start()
            looked_up, cached, read, turn, began, shown = 0, 0, 0, 0, time.monotonic(), time.monotonic()
            while looked_up < options.ids and changes.error is None:
                for side in sides:
                    offset = looked_up // options.drift
                    if on_gpu:
                        with torch.cuda.stream(side.stream):
                            side.step(options.rows, offset, compare)
                    else:
                        side.step(options.rows, offset, compare)
                    looked_up += side.batch
                turn += 1
                if turn % 8 == 0:
                    for side in sides:
                        if on_gpu:
                            side.stream.synchronize()
                        side.module.check()
                        report = side.module.report() or {}
                        cached += report.get("ids_cached", 0)
                        read += report.get("rows_ssd", 0)
                if time.monotonic() - shown > 5:
                    shown = time.monotonic()
                    wrong = sum(int(side.wrong) for side in sides)
                    print(
                        f"  {looked_up / 1e6:.0f} M ids, {wrong} wrong; {changes.updates} updates, {changes.generations} generations",
                        file=sys.stderr, flush=True,
                    )
            changes.stopped.set()
            changes.join(120)
            if on_gpu:
                torch.cuda.synchronize()
            seconds = time.monotonic() - began
            for side in sides:
                side.module.check()
                if side.graph is not None:
                    side.graph.reset()
            if changes.error is not None:
                raise changes.error
            return {
                "admission": admission if on_gpu else "s3-fifo", "ids": looked_up, "wrong": sum(int(side.wrong) for side in sides),
                "seconds": round(seconds, 1), "updates": changes.updates, "rows_updated": changes.rows_updated,
                "generations": changes.generations, "cleared": changes.cleared,
                "ids_cached": cached, "rows_read": read,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--player", type=int, default=0, help="the number of the GPU that plays the drives")
    parser.add_argument("--ids", type=float, default=1e9, help="ids of each run")
    parser.add_argument("--batch", type=int, default=262_144, help="ids of a look-up, a multiple of 16")
    parser.add_argument("--rows", type=int, default=400_000, help="rows of each table")
    parser.add_argument("--cache-bytes", type=int, default=160 << 20)
    parser.add_argument("--cache-batch-rows", type=int, default=16_384)
    parser.add_argument("--drive-bytes", default="2G")
    parser.add_argument("--admission", nargs="+", default=["always", "sketch"])
    parser.add_argument("--updated", type=int, default=2000, help="rows of an update")
    parser.add_argument("--turns-of-generation", type=int, default=40, help="both tables are replaced in each such turn, and rows updated in the others")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two updates")
    parser.add_argument("--drift", type=int, default=4096, help="after so many ids the hottest id is the next one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = []
    print(f"seed {options.seed}, {options.device}")
    print("| admission | ids | wrong | seconds | updates | rows updated | generations | cleared | of every eighth pair of look-ups: ids cached | rows read |")
    print("|---" * 10 + "|")
    for admission in options.admission if options.device != "cpu" else ["s3-fifo"]:
        line = stress(options, admission)
        lines.append(line)
        print("| " + " | ".join(str(value) for value in line.values()) + " |", flush=True)
        if options.json:
            options.json.write_text(json.dumps(lines, indent=1))
        missing = [name for name in ("updates", "generations", "cleared", "ids_cached", "rows_read") if not line[name]]
        if line["wrong"] or missing:
            sys.exit(f"{line['wrong']} rows were wrong; never happened: {missing}")


if __name__ == "__main__":
    main()
