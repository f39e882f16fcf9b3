"""Samples a second of one client that hands in batches ahead, so that rows are fetched while the dense layers run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import compare
from ..ahead_step import AheadStep, ahead_step
from ..costs import Meter
from ..pipeline import DenseLayers
from ..schedule import Schedule
from ..ways import WarprowModules
from ..world import Answers
from .closed_loop import ENERGY_S, WARM, Measured, percentile

#: The most bytes of embeddings that are kept to be compared.
_MOST_BYTES = 16 << 30
#: Rows of all batches that are under way are fetched at once.
PREFETCH = Schedule("prefetch")


@dataclass
class Run:
    """What a run of batches ahead has left."""

    #: Of each batch when it was handed in, and when it had been answered, in seconds of `time.perf_counter`.
    starts: list[float]
    ends: list[float]
    #: Predictions by number of the batch; without dense layers, none.
    found: list[tuple[int, torch.Tensor]]
    #: Commands to drives, of the batches of which the step could say them.
    commands: list[int]


def measure_ahead(
    way: WarprowModules,
    drives: str,
    answers: Answers,
    layers: DenseLayers | None,
    limit_s: float,
    meter: Meter,
    ahead: int,
    schedule: Schedule = PREFETCH,
) -> Measured:
    """As `closed_loop.measure`, with so many batches fetched ahead of the one that is answered. A batch's time begins when it is handed in."""
    shape, batch, device = answers.tables.shape, answers.batch, answers.tables.device
    step = ahead_step(way, layers, shape, batch, device, ahead, schedule)
    try:
        return _measured(step, f"{way.name}, {ahead} ahead by {schedule}", drives, answers, limit_s, meter)
    finally:
        step.close()


def run_batches(step: AheadStep, answers: Answers, numbers: Sequence[int], outputs: list[torch.Tensor], limit_s: float) -> Run:
    """Answers batches by their numbers, until there are none or the time is over."""
    batch, ahead = answers.batch, step.ahead
    run = Run([], [], [], [])

    def start(at: int) -> None:
        run.starts.append(time.perf_counter())
        step.start(answers.lot, numbers[at] * batch, outputs[at] if outputs else None)

    def answered(at: int, number: int) -> None:
        predictions = step.wait(number)
        run.ends.append(time.perf_counter())
        if step.layers is not None:
            run.found.append((numbers[at], predictions.clone()))
        run.commands.append(step.way.counts().get("commands", 0))

    began = time.perf_counter()
    under_way: list[tuple[int, int]] = []
    for at in range(min(ahead, len(numbers))):
        start(at)
    for at in range(len(numbers)):
        late = time.perf_counter() > began + limit_s
        if at + ahead < len(numbers) and not late:
            start(at + ahead)
        if at >= len(run.starts):
            break
        under_way.append((at, step.finish()))
        # The one before is waited for only now, so that the device has the next when it has answered it.
        if len(under_way) > 1:
            answered(*under_way.pop(0))
    for it in under_way:
        answered(*it)
    return run


def prepared(step: AheadStep, answers: Answers, share: float = 1) -> tuple[Sequence[int], list[torch.Tensor]]:
    """Warms up. Returns the batches to be measured, and without dense layers a tensor for the embeddings of each.

    Embeddings are compared when time has been taken, and until then each batch keeps its own: as many as there is room for, of which `share`
    is the caller's.
    """
    batch, device, width = answers.batch, answers.tables.device, answers.tables.shape.width
    first = min(WARM, answers.batches - 1)
    numbers = range(first, answers.batches)
    outputs = []
    if step.layers is None:
        numbers = numbers[: max(1, int(_MOST_BYTES * share) // (4 * batch * width))]
        # Memory that was given back may hold the embeddings of a measurement before: nothing of it passes for an answer.
        outputs = [torch.full((batch, width), math.nan, device=device) for _ in numbers]
    # So that every stream and every slot has had one.
    for at in range(first + step.ahead):
        step.start(answers.lot, at % answers.batches * batch)
        step.wait(step.finish())
    step.way.check()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return numbers, outputs


def _measured(step: AheadStep, name: str, drives: str, answers: Answers, limit_s: float, meter: Meter) -> Measured:
    batch, has_layers = answers.batch, step.layers is not None
    numbers, outputs = prepared(step, answers)
    before = meter.read()
    run = run_batches(step, answers, numbers, outputs, limit_s)
    spent = meter.read().since(before)
    step.way.check()
    largest = 0.0
    if has_layers:
        wanted = answers.predictions[[at for at, _ in run.found]]
        largest = compare.predictions_equal(name, torch.stack([it for _, it in run.found]), wanted)
    else:
        for at in range(len(run.ends)):
            answers.compare_embeddings(name, outputs[at], numbers[at])
    whole, times = run.ends[-1] - run.starts[0], [end - start for start, end in zip(run.starts, run.ends, strict=True)]
    samples = len(times) * batch
    millions = samples / 1e6
    # Commands of the batches that were measured, not of the latest alone.
    counts = step.way.counts()
    if any(run.commands):
        counts["commands"] = round(statistics.mean(run.commands))
    return Measured(
        way=name,
        drives=drives,
        batch=batch,
        clients=1,
        what="model" if has_layers else "embeddings",
        batches=len(times),
        samples_per_second=samples / whole,
        p50_us=statistics.median(times) * 1e6,
        p99_us=percentile(times, 0.99) * 1e6,
        cpu_s=spent.cpu_s / millions if has_layers else None,
        drives_cpu_s=spent.drives_s / millions if has_layers else None,
        joules=spent.joules / millions if has_layers and spent.joules is not None and whole >= ENERGY_S else None,
        compared=samples,
        largest_difference=largest,
        counts=counts,
    )
