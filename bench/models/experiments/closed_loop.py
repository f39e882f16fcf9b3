"""One batch after the other: samples a second, and how long a batch takes from its ids in memory of the host to its predictions there."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .. import compare
from ..costs import Meter
from ..errors import DatasetMismatch
from ..pipeline import DenseLayers, Step
from ..ways import Way
from ..world import Answers

#: Seconds of a measurement from which on the GPU's counter of energy, which moves in steps, says something.
ENERGY_S = 0.2
#: Batches that warm up, and of which every row is compared.
WARM = 3


@dataclass(frozen=True)
class Measured:
    """A way, measured."""

    way: str
    drives: str
    batch: int
    #: How many ask at once, each for one batch after the other.
    clients: int
    #: "model", or "embeddings": a step then ends when they lie in memory of the device.
    what: str
    batches: int
    samples_per_second: float
    p50_us: float
    p99_us: float
    #: Of a million samples: processor seconds, those of threads that play drives apart, and joules of the GPU (of runs that are long enough).
    cpu_s: float | None
    drives_cpu_s: float | None
    joules: float | None
    #: Samples whose predictions were compared; the largest difference: 0, bit for bit.
    compared: int
    largest_difference: float
    counts: dict[str, int]

    @property
    def reads_per_second(self) -> float | None:
        """Commands to drives a second, if each batch had as many as the latest. None: nobody counts them."""
        commands = self.counts.get("commands")
        return None if commands is None else commands * self.samples_per_second / self.batch

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "reads_per_second": self.reads_per_second}


def percentile(values: list[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class _Client:
    """Asks for batches one after the other, and keeps what it was told."""

    def __init__(self, step: Step, answers: Answers) -> None:
        self.step, self.answers = step, answers
        self.times: list[float] = []
        #: When the last of them had been answered.
        self.ended = 0.0
        #: By number of the batch.
        self.predictions: list[tuple[int, torch.Tensor]] = []

    def run(self, numbers: Iterator[int], until: float) -> None:
        """Takes numbers of batches until there are none, or until a moment."""
        batch, layers = self.answers.batch, self.step.layers
        with torch.inference_mode():
            for at in numbers:
                start = time.perf_counter()
                predictions = self.step.run(self.answers.lot, at * batch)
                now = self.ended = time.perf_counter()
                self.times.append(now - start)
                if layers is None:
                    # Rows that were not read are told as that, and not as wrong ones.
                    self.step.way.check()
                    self.answers.compare_rows(self.step, at)
                self.predictions.append((at, predictions.clone()))
                if now > until:
                    break


class _Numbers:
    """Numbers that several threads take, each once."""

    def __init__(self, first: int, last: int) -> None:
        self._numbers, self._lock = iter(range(first, last)), threading.Lock()

    def __iter__(self) -> _Numbers:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._numbers)


def measure(
    way: Way, drives: str, answers: Answers, layers: DenseLayers | None, limit_s: float, meter: Meter, clients: int = 1
) -> Measured:
    """Measures a way on fresh batches until they are used up or `limit_s` seconds are over.

    All predictions are compared when time has been taken; without dense layers all embeddings are, between one batch and the next. Several
    clients share the batches, each with a thread of its own.
    """
    shape, batch = answers.tables.shape, answers.batch
    if layers is None and clients > 1:
        raise DatasetMismatch(f"embeddings alone are compared between batches, which {clients} clients would not wait for: give one client")
    asking = [_Client(Step(way, layers, shape, batch, answers.tables.device), answers) for _ in range(clients)]
    try:
        return _measured(way.name, drives, asking, limit_s, meter)
    finally:
        for client in asking:
            client.step.close()


def _measured(name: str, drives: str, asking: list[_Client], limit_s: float, meter: Meter) -> Measured:
    answers, layers, clients = asking[0].answers, asking[0].step.layers, len(asking)
    batch = answers.batch
    warm = min(WARM, answers.batches)
    for client in asking:
        for at in range(warm):
            answers.check_rows(client.step, at)
    numbers = _Numbers(min(warm, answers.batches - 1), answers.batches)
    before = meter.read()
    began = time.perf_counter()
    if clients == 1:
        asking[0].run(numbers, began + limit_s)
        spent = meter.read().since(before)
    else:
        with ThreadPoolExecutor(clients) as pool:
            for done in [pool.submit(client.run, numbers, began + limit_s) for client in asking]:
                done.result()
            # Before the clients' threads end, which do not count then.
            spent = meter.read().since(before)
    whole = max(client.ended for client in asking) - began
    for client in asking:
        client.step.way.check()
    kept = [it for client in asking for it in client.predictions]
    times = [it for client in asking for it in client.times]
    largest = 0.0
    if layers is not None:
        wanted = answers.predictions[[at for at, _ in kept]]
        largest = compare.predictions_equal(name, torch.stack([it for _, it in kept]), wanted)
    samples = len(kept) * batch
    millions = samples / 1e6
    # What comparisons of embeddings cost lies between the batches.
    has_costs = layers is not None
    return Measured(
        way=name,
        drives=drives,
        batch=batch,
        clients=clients,
        what="model" if has_costs else "embeddings",
        batches=len(kept),
        samples_per_second=samples / (sum(times) if clients == 1 else whole),
        p50_us=statistics.median(times) * 1e6,
        p99_us=percentile(times, 0.99) * 1e6,
        cpu_s=spent.cpu_s / millions if has_costs else None,
        drives_cpu_s=spent.drives_s / millions if has_costs else None,
        joules=spent.joules / millions if has_costs and spent.joules is not None and whole >= ENERGY_S else None,
        compared=samples,
        largest_difference=largest,
        counts=asking[0].step.way.counts(),
    )
