"""Latency against throughput: requests arrive whether or not the model is ready, and wait in a queue of bounded length."""

from __future__ import annotations

import collections
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from .. import compare
from ..errors import Overloaded
from ..pipeline import DenseLayers, Step
from ..ways import Way
from ..world import Answers
from .closed_loop import percentile


#: By how much a sleep may be longer than asked for.
_OVERSHOOT_S = 100e-6


class Queue:
    """Requests that wait, by their numbers; each is some samples.

    Parameters
    ----------
    most : int
        How many may wait.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: collections.deque[int] = collections.deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: int) -> None:
        """Adds a request, or raises `Overloaded`."""
        if len(self._waiting) >= self.most:
            raise Overloaded(f"request {request}: {self.most} requests wait already: send it again later, or to another server")
        self._waiting.append(request)

    def take(self, most: int, gap: int) -> list[int]:
        """The oldest requests that follow each other, at most so many; none behind a multiple of `gap` goes with those before it."""
        taken = [self._waiting.popleft()]
        while len(taken) < most and self._waiting and self._waiting[0] == taken[-1] + 1 and self._waiting[0] % gap != 0:
            taken.append(self._waiting.popleft())
        return taken


@dataclass(frozen=True)
class Offered:
    """What became of requests at one rate of arrivals."""

    way: str
    drives: str
    samples_per_request: int
    #: Samples a second that were offered, and that were answered.
    offered: float
    answered: float
    requests: int
    refused: int
    #: From a request's arrival until its predictions are in memory of the host.
    p50_us: float
    p99_us: float
    p999_us: float
    #: Requests of a batch, as a mean.
    batched: float
    compared: int
    largest_difference: float

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class Server:
    """Answers requests of one length by batches of whole requests: whatever waits when the last batch has ended, up to `most`.

    Parameters
    ----------
    each : int
        Samples of a request.
    sizes : list of int
        Requests of the batches for which there is a graph, ascending: a batch takes the smallest that holds it.
    """

    def __init__(self, way: Way, answers: Answers, layers: DenseLayers, each: int, sizes: list[int]) -> None:
        self.way, self.answers, self.each, self.sizes = way, answers, each, sizes
        self._lot = answers.lot
        shape, device = answers.tables.shape, answers.tables.device
        self._steps: dict[int, Step] = {}
        for size in sizes:
            beside = next(iter(self._steps.values()), None)
            self._steps[size] = Step(way, layers, shape, size * each, device, beside)
        self.requests = len(self._lot) // each

    def close(self) -> None:
        """Frees the graphs."""
        for step in self._steps.values():
            step.close()

    def answer(self, requests: list[int]) -> torch.Tensor:
        """Predictions of requests that follow each other in the lot, shape (requests, each)."""
        size = next(size for size in self.sizes if size >= len(requests))
        first, count = requests[0] * self.each, len(requests) * self.each
        return self._steps[size].run(self._lot, first, count).view(-1, self.each)

    def offer(self, rate: float, seconds: float, most_waiting: int, seed: int, drives: str) -> Offered:
        """Offers requests at random moments (a Poisson process) of `rate` samples a second, and compares all that are answered.

        A request that is refused is gone. Requests have numbers in order of arrival, and so have batches; where one was refused, a batch ends
        before the gap.
        """
        random = np.random.default_rng(seed)
        wanted = max(50, int(rate * seconds / self.each))
        arrivals = np.cumsum(random.exponential(self.each / rate, wanted))
        queue, taken_from = Queue(most_waiting), 0
        latencies: list[float] = []
        found: list[tuple[int, torch.Tensor]] = []
        refused = batches = 0
        largest_size = self.sizes[-1]
        began = time.perf_counter()
        last = began
        while taken_from < wanted or len(queue):
            now = time.perf_counter() - began
            while taken_from < wanted and arrivals[taken_from] <= now:
                try:
                    queue.put(taken_from)
                except Overloaded:
                    refused += 1
                taken_from += 1
            if not len(queue):
                # The last bit is waited for by looking at the clock, for sleep overshoots.
                ahead = arrivals[taken_from] - now if taken_from < wanted else 0.0
                if ahead > 4 * _OVERSHOOT_S:
                    time.sleep(ahead - 2 * _OVERSHOOT_S)
                continue
            requests = queue.take(largest_size, self.requests)
            # The lot's samples serve again when they are used up.
            predictions = self.answer([request % self.requests for request in requests]).clone()
            last = time.perf_counter()
            latencies += [last - began - arrivals[request] for request in requests]
            found.append((requests[0] % self.requests, predictions))
            batches += 1
        for step in self._steps.values():
            step.way.check()
        largest = self._compare(found)
        answered = len(latencies)
        return Offered(
            way=self.way.name,
            drives=drives,
            samples_per_request=self.each,
            offered=rate,
            answered=answered * self.each / (last - began),
            requests=wanted,
            refused=refused,
            p50_us=percentile(latencies, 0.5) * 1e6,
            p99_us=percentile(latencies, 0.99) * 1e6,
            p999_us=percentile(latencies, 0.999) * 1e6,
            batched=answered / batches,
            compared=answered * self.each,
            largest_difference=largest,
        )

    def _compare(self, found: list[tuple[int, torch.Tensor]]) -> float:
        wanted = self.answers.predictions.view(-1)
        largest = 0.0
        for first, predictions in found:
            at = first * self.each
            own = wanted[at : at + predictions.numel()].view(predictions.shape)
            largest = max(largest, compare.predictions_equal(self.way.name, predictions, own))
        return largest
