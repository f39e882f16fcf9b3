"""Many requests under updates, swaps and a failing drive, each answer compared with what its generation must give.

    python -m serving.soak --requests 100000     # some seconds; --requests 10000000 for a long one
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import threading
import time
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import warprow

from .app import App
from .client import Lifespan, Response, call
from .example_model import MAX_UPDATES, ROWS, STEP, DIM, ExampleModel
from .ranker import Ranker
from .requests import Sample

#: Users whose rows are updated.
LIVE = 64
_HEADERS = {"x-deadline-ms": "10000"}


@dataclass
class _Generation:
    """A generation, and what is known of its updates."""

    model: ExampleModel
    #: By user and by item what a row adds to a score, before updates.
    parts: dict[str, list[float]]
    #: What one update of a user's row adds to a score.
    step: float
    #: By live user how many updates have begun.
    begun: list[int] = field(default_factory=lambda: [0] * LIVE)
    #: By live user the ticks at which updates were durable.
    durable: list[list[int]] = field(default_factory=lambda: [[] for _ in range(LIVE)])

    @classmethod
    def of(cls, model: ExampleModel) -> _Generation:
        user, item = np.split(model.weights.astype(np.float64), 2)
        parts = {
            "user": (model.rows("user", np.arange(ROWS["user"])) @ user).tolist(),
            "item": (model.rows("item", np.arange(ROWS["item"])) @ item).tolist(),
        }
        return cls(model, parts, STEP * float(user.sum()))


class Soak:
    """A store, its server, and everything that is done to them.

    Parameters
    ----------
    folder : Path
        Where drive and versions lie.
    requests : int
        How many requests are sent at least; more, if swaps are not over by then.
    seed : int
        What ids, updates and times are drawn from.
    clients : int
        Requests under way at a time.
    swaps : int
        Generations that are gone over to, spread over the requests.
    faults : int
        Spells during which the drive fails every read, spread over the requests.
    """

    def __init__(self, folder: Path, *, requests: int, seed: int = 1, clients: int = 256, swaps: int = 6, faults: int = 3) -> None:
        self.requests, self.seed, self.clients, self.swaps, self.faults = requests, seed, clients, swaps, faults
        self.store = warprow.format(f"emulated:{folder}/soak.drive?size=64M", timeout=1.0)
        self._versions = folder / "versions"
        model = ExampleModel(1)
        generation = model.load(self.store, self._versions)
        self._generations = {generation: _Generation.of(model)}
        #: The latest generation of which look-ups are known to begin with it, and the latest that they may begin with.
        self._shown = self._upcoming = generation
        self._published, self._next_seed = [generation], 2
        memory = ROWS["user"] * DIM * 4 // 2
        self.ranker = Ranker(self.store, self._versions, dram_bytes=memory)
        self.app = App(self.ranker, queue_limit=max(clients, 1), deadline=10.0)
        self._tick = 0
        self._failing = 0
        self._spells = 0
        self._sent = 0
        #: Whether all swaps and spells are over.
        self._changed = False
        self.results: Counter[str] = Counter()
        self.by_generation: Counter[int] = Counter()
        self.updated_answers = self.updates = self.swapped = 0
        self.seconds: list[float] = []

    async def run(self) -> dict[str, Any]:
        """Sends all requests. Raises `AssertionError` at the first answer that is not what its generation must give."""
        stop = threading.Event()
        began = time.perf_counter()
        async with Lifespan(self.app):
            updates = asyncio.create_task(asyncio.to_thread(self._update, stop))
            changes = asyncio.create_task(self._change())
            clients = [asyncio.create_task(self._client(number)) for number in range(self.clients)]
            try:
                await asyncio.gather(*clients)
                await changes
            finally:
                stop.set()
                changes.cancel()
                for client in clients:
                    client.cancel()
                await updates
            metrics = (await call(self.app, "GET", "/metrics")).body.decode()
        seconds = time.perf_counter() - began
        told = {f'warprow_server_requests_total{{result="{result}"}} {count:.9g}' for result, count in self.results.items()}
        missing = told - set(metrics.splitlines())
        assert not missing, f"the metrics lack {missing}"
        self.store.close()
        self.seconds.sort()
        return {
            "seed": self.seed,
            "requests": self._sent,
            "results": dict(self.results),
            "by_generation": {str(generation): count for generation, count in sorted(self.by_generation.items())},
            "answers_with_an_updated_row": self.updated_answers,
            "updates": self.updates,
            "swaps": self.swapped,
            "spells_of_a_failing_drive": self._spells,
            "seconds": round(seconds, 2),
            "p50_ms": round(1000 * self.seconds[len(self.seconds) // 2], 3),
            "p99_ms": round(1000 * self.seconds[len(self.seconds) * 99 // 100], 3),
        }

    async def _client(self, number: int) -> None:
        drawn = random.Random(f"{self.seed} {number}")
        while self._sent < self.requests or not self._changed:
            self._sent += 1
            # Every other request has a user whose row is updated. Low ids lie on the drive, high ones in memory.
            user = drawn.randrange(LIVE) if drawn.random() < 0.5 else drawn.randrange(ROWS["user"])
            sample = Sample(user, [drawn.randrange(ROWS["item"]) for _ in range(drawn.randrange(5))])
            body = b'{"user": %d, "items": %s}' % (user, str(sample.items).encode())
            tick, shown, spells, began = self._tick, self._shown, self._spells, time.perf_counter()
            may_fail = self._failing > 0
            response = await call(self.app, "POST", "/score", body, _HEADERS)
            self.seconds.append(time.perf_counter() - began)
            self._compare(sample, response, tick, shown, may_fail or self._spells != spells)

    def _compare(self, sample: Sample, response: Response, tick: int, shown: int, may_fail: bool) -> None:
        given = response.json()
        where = f"seed {self.seed}: {sample} got {response.status} {given}"
        if response.status != 200:
            # A refusal is typed, and there is none without a cause.
            assert given["error"] == "rows_failed" and response.status == 503 and may_fail, where
            assert int(response.headers["retry-after"]) >= 1, where
            self.results["rows_failed"] += 1
            return
        self.results["ok"] += 1
        generation = given["generation"]
        assert shown <= generation <= self._upcoming, f"{where}, where generation {shown} was shown before it was sent"
        known = self._generations[generation]
        plain = known.parts["user"][sample.user] + sum(known.parts["item"][item] for item in sample.items) + known.model.bias
        updates, rest = divmod(given["score"] - plain, known.step)
        least, most = 0, 0
        if sample.user < LIVE:
            least, most = bisect_right(known.durable[sample.user], tick), known.begun[sample.user]
        assert rest == 0 and least <= updates <= most, f"{where}: expected {plain} and {least} to {most} updates of {known.step}"
        self.by_generation[generation] += 1
        self.updated_answers += updates > 0

    def _update(self, stop: threading.Event) -> None:
        """Updates rows of users as long as requests are sent."""
        drawn = random.Random(f"{self.seed} updates")
        while not stop.wait(0.002):
            generation = self._shown
            known, user = self._generations[generation], drawn.randrange(LIVE)
            if known.begun[user] >= MAX_UPDATES:
                continue
            known.begun[user] += 1
            rows = known.model.rows("user", [user], known.begun[user])
            self.store.update("user", [user], rows, generation=generation)
            self._tick += 1
            known.durable[user].append(self._tick)
            self.updates += 1

    async def _change(self) -> None:
        """Swaps generations and fails the drive, at shares of the requests."""
        events = [((at + 1) / (self.swaps + 1), self._swap) for at in range(self.swaps)]
        events += [((at + 0.5) / (self.faults + 1), self._fail) for at in range(self.faults)]
        for share, event in sorted(events, key=lambda it: it[0]):
            while self._sent < share * self.requests:
                await asyncio.sleep(0.001)
            await event()
        # The last generation answers requests, too.
        last = self._sent + 4 * self.clients
        while self._sent < last:
            await asyncio.sleep(0.001)
        self._changed = True

    async def _swap(self) -> None:
        model = ExampleModel(self._next_seed)
        self._next_seed += 1
        generation = await asyncio.to_thread(model.load, self.store, self._versions, standby=True)
        self._generations[generation] = _Generation.of(model)
        self._upcoming = generation
        await asyncio.to_thread(self.ranker.swap, generation, model.version())
        self._shown = generation
        self.swapped += 1
        self._published.append(generation)
        # The one before serves requests that were under way, and the updater may be in the middle of a row of it.
        for old in self._published[:-2]:
            self._published.remove(old)
            await asyncio.to_thread(self.ranker.drop, old)

    async def _fail(self) -> None:
        self._failing += 1
        self._spells += 1
        self.store.inject_fault("unreadable", times=None)
        await asyncio.sleep(0.02)
        self.store.clear_faults()
        self.store.retry_drives()
        # Batches that began before may still be under way: they had their faults.
        await asyncio.sleep(0.05)
        self._spells += 1
        self._failing -= 1


def run(folder: Path, **options: Any) -> dict[str, Any]:
    """Runs a soak, and returns its counts."""
    return asyncio.run(Soak(folder, **options).run())


def _run_in_folder(options: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), **options)


def run_processes(processes: int, **options: Any) -> list[dict[str, Any]]:
    """Runs soaks in processes of their own, each with a store of its own and the next seed; each sends its part of the requests."""
    each = -(-options["requests"] // processes)
    parts = [{**options, "requests": each, "seed": options["seed"] + at} for at in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_run_in_folder, parts))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m serving.soak", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000, help="how many requests are sent at least (default: 100000)")
    parser.add_argument("--seed", type=int, default=1, help="what ids, updates and times are drawn from (default: 1)")
    parser.add_argument("--clients", type=int, default=256, help="requests under way at a time (default: 256)")
    parser.add_argument("--swaps", type=int, default=6, help="generations that are gone over to (default: 6)")
    parser.add_argument("--faults", type=int, default=3, help="spells during which the drive fails every read (default: 3)")
    parser.add_argument("--processes", type=int, default=1, help="servers, each in a process with a store of its own (default: 1)")
    options = vars(parser.parse_args())
    processes = options.pop("processes")
    if processes == 1:
        print(json.dumps(_run_in_folder(options), indent=2))
        return
    found = run_processes(processes, **options)
    for counts in found:
        print(json.dumps(counts))
    results: Counter[str] = sum((Counter(counts["results"]) for counts in found), Counter())
    summed = {name: sum(counts[name] for counts in found) for name in ("requests", "answers_with_an_updated_row", "updates", "swaps")}
    print(json.dumps({**summed, "results": results, "seconds": max(counts["seconds"] for counts in found)}, indent=2))


if __name__ == "__main__":
    main()
