"""Latency against offered load, with arrivals that do not wait for answers; beyond saturation the server refuses.

    python -m serving.overload

Each batch is made to take `--batch-ms`, as a larger dense network would, so that the model is the limit and not the process that sends.
A latency is from the moment at which a request was due to its answer, also if the process was late to send it. Every score is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import warprow

from .app import App
from .client import Lifespan, call
from .example_model import ROWS, ExampleModel
from .ranker import Ranker
from .requests import Answer, Refused, Sample


class SlowRanker(Ranker):
    """A ranker whose batches take at least so many seconds."""

    batch_seconds = 0.0

    def answer(self, samples: Sequence[Sample]) -> list[Answer | Refused]:
        """As of `Ranker`."""
        until = time.perf_counter() + self.batch_seconds
        answers = super().answer(samples)
        time.sleep(max(0.0, until - time.perf_counter()))
        return answers


async def offer(app: App, rate: float, seconds: float, seed: int) -> tuple[Counter[str], list[float]]:
    """Sends requests at a rate, a second, at random moments; returns how they ended, and the latencies of those that got a score."""
    drawn, model = random.Random(seed), ExampleModel(1)
    results: Counter[str] = Counter()
    latencies: list[float] = []

    async def one(due: float, sample: Sample) -> None:
        body = b'{"user": %d, "items": %s}' % (sample.user, str(sample.items).encode())
        response = await call(app, "POST", "/score", body)
        if response.status == 200:
            if response.json()["score"] != model.score(sample):
                raise AssertionError(f"seed {seed}: {sample} got {response.json()}")
            results["ok"] += 1
            latencies.append(time.perf_counter() - due)
        else:
            if response.status not in (503, 504) or (response.status == 503 and "retry-after" not in response.headers):
                raise AssertionError(f"seed {seed}: {sample} got {response}")
            results[response.json()["error"]] += 1

    tasks, due, end = [], time.perf_counter(), time.perf_counter() + seconds
    while due < end:
        due += drawn.expovariate(rate)
        left = due - time.perf_counter()
        if left > 0:
            await asyncio.sleep(left)
        sample = Sample(drawn.randrange(ROWS["user"]), [drawn.randrange(ROWS["item"])])
        tasks.append(asyncio.create_task(one(due, sample)))
        if left <= 0 and len(tasks) % 16 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return results, sorted(latencies)


async def run(folder: Path, batch_seconds: float, seconds: float, loads: Sequence[float], seed: int) -> None:
    """Prints a line for each load."""
    with warprow.format(f"emulated:{folder}/a.drive?size=64M") as store:
        ExampleModel(1).load(store, folder / "versions")
        ranker = SlowRanker(store, folder / "versions", max_batch=16)
        ranker.batch_seconds = batch_seconds
        app = App(ranker, queue_limit=64)
        capacity = ranker.max_batch / batch_seconds
        print(f"at most {ranker.max_batch} requests a batch of {1000 * batch_seconds:.1f} ms: {capacity:.0f}/s; a queue of 64; seed {seed}")
        print("| offered, of the most | requests | scores | refused | p50 | p99 | largest |\n|---|---|---|---|---|---|---|")
        async with Lifespan(app):
            for load in loads:
                results, latencies = await offer(app, load * capacity, seconds, seed)
                ok, total = results["ok"], sum(results.values())
                marks = [latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100], latencies[-1]]
                shown = " | ".join(f"{1000 * mark:.1f} ms" for mark in marks)
                refused = ", ".join(f"{count} {kind}" for kind, count in sorted(results.items()) if kind != "ok") or "0"
                print(f"| {load:g} | {total} | {ok} ({ok / seconds:.0f}/s) | {refused} | {shown} |")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m serving.overload", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch-ms", type=float, default=10.0, help="the least time of a batch (default: 10)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each load is offered (default: 3)")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.1, 0.5, 0.9, 1.5, 3.0], help="of what the model can do")
    parser.add_argument("--seed", type=int, default=1, help="what moments and ids are drawn from (default: 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder), options.batch_ms / 1000, options.seconds, options.loads, options.seed))


if __name__ == "__main__":
    main()
