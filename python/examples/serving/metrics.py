"""Counts of the server, and the text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

#: What `Executor.metrics` says at this moment, where all else adds up.
_GAUGES = {"drives_failed", "cache_lines", "cache_used", "cache_pinned", "cache_hold", "cache_eviction_age"}


class Histogram:
    """How many values were at most so large."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, text: str) -> Iterable[str]:
        """The lines of it."""
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip([*self.bounds, None], self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if bound is None else f"{bound:g}"}"}} {total}'
        yield f"{name}_sum {self.sum:.9g}"
        yield f"{name}_count {total}"


class Metrics:
    """What a server counts."""

    def __init__(self) -> None:
        #: Requests by how they ended: "ok", or the kind of a refusal.
        self.requests: Counter[str] = Counter()
        self.swaps = 0
        self.seconds = Histogram([0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5])
        self.batch_sizes = Histogram([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
        self.batch_seconds = Histogram([0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5])

    def add_batch(self, size: int, seconds: float) -> None:
        """Counts a batch."""
        self.batch_sizes.add(size)
        self.batch_seconds.add(seconds)

    def text(self, *, queue: int, limit: int, generation: int, lookups: Mapping[str, float], drives: Mapping[str, bool]) -> str:
        """All counts in Prometheus' text format.

        Parameters
        ----------
        queue, limit : int
            Requests that wait, and the most that may.
        generation : int
            The generation that new look-ups read.
        lookups : mapping of str to number
            What `Executor.metrics` returns.
        drives : mapping of str to bool
            By name whether a drive serves.
        """
        lines: list[str] = []

        def add(name: str, kind: str, text: str, values: Mapping[str, float]) -> None:
            lines.extend([f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
            lines.extend(f"{name}{labels} {value:.9g}" for labels, value in values.items())

        ended = {f'{{result="{result}"}}': float(count) for result, count in sorted(self.requests.items())}
        add("warprow_server_requests_total", "counter", "Requests by how they ended.", ended)
        add("warprow_server_swaps_total", "counter", "Generations that the server went over to.", {"": self.swaps})
        add("warprow_server_queue_requests", "gauge", "Requests that wait.", {"": queue})
        add("warprow_server_queue_limit", "gauge", "The most requests that may wait.", {"": limit})
        add("warprow_server_generation", "gauge", "The generation that new look-ups read.", {"": generation})
        serving = {f'{{drive="{_escaped(name)}"}}': float(serves) for name, serves in drives.items()}
        add("warprow_drive_serves", "gauge", "1: the drive serves. 0: it was given up.", serving)
        for name, value in lookups.items():
            if name in _GAUGES:
                add(f"warprow_{name}", "gauge", f"{name} of Executor.metrics, now.", {"": value})
            elif name.startswith("cache_"):
                add(f"warprow_{name}_total", "counter", f"{name} of Executor.metrics.", {"": value})
            else:
                add(f"warprow_lookup_{name}_total", "counter", f"{name} of Executor.metrics.", {"": value})
        lines.extend(self.seconds.lines("warprow_server_request_seconds", "From a request's arrival to its score."))
        lines.extend(self.batch_sizes.lines("warprow_server_batch_requests", "Requests of a batch."))
        lines.extend(self.batch_seconds.lines("warprow_server_batch_seconds", "Look-up and dense layer of a batch."))
        return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
