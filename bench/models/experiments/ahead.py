"""Samples a second of one client that hands in batches ahead, so that rows are fetched while the dense layers run."""

from __future__ import annotations

import statistics
import time

import torch

from .. import compare
from ..ahead_step import AheadStep
from ..costs import Meter
from ..pipeline import DenseLayers
from ..ways import WarprowModules
from ..world import Answers
from .closed_loop import ENERGY_S, WARM, Measured, percentile

#: The most bytes of embeddings that are kept to be compared.
_MOST_BYTES = 16 << 30


def measure_ahead(
    way: WarprowModules, drives: str, answers: Answers, layers: DenseLayers | None, limit_s: float, meter: Meter, ahead: int
) -> Measured:
    """As `closed_loop.measure`, with so many batches fetched ahead of the one that is answered. A batch's time begins when it is handed in."""
    shape, batch, device = answers.tables.shape, answers.batch, answers.tables.device
    step = AheadStep(way, layers, shape, batch, device, ahead)
    try:
        return _measured(step, way, drives, answers, limit_s, meter)
    finally:
        step.close()


def _measured(step: AheadStep, way: WarprowModules, drives: str, answers: Answers, limit_s: float, meter: Meter) -> Measured:
    batch, ahead, device = answers.batch, step.ahead, answers.tables.device
    width = answers.tables.shape.width
    first = min(WARM, answers.batches - 1)
    numbers = range(first, answers.batches)
    has_layers = step.layers is not None
    # Without dense layers embeddings are compared when time has been taken, and until then each batch keeps its own.
    kept = numbers if has_layers else numbers[: max(1, _MOST_BYTES // (4 * batch * width))]
    outputs = [] if has_layers else [torch.empty(batch, width, device=device) for _ in kept]
    for at in range(first):
        step.start(answers.lot, at * batch)
        step.wait(step.finish())
    step.way.check()
    if device.type == "cuda":
        torch.cuda.synchronize()
    starts: list[float] = []
    times: list[float] = []
    found: list[tuple[int, torch.Tensor]] = []
    before = meter.read()
    began = ended = time.perf_counter()

    def start(at: int) -> None:
        starts.append(time.perf_counter())
        step.start(answers.lot, kept[at] * batch)

    def answered(at: int, number: int) -> None:
        nonlocal ended
        predictions = step.wait(number)
        ended = time.perf_counter()
        times.append(ended - starts[at])
        if has_layers:
            found.append((kept[at], predictions.clone()))

    under_way: list[tuple[int, int]] = []
    for at in range(min(ahead, len(kept))):
        start(at)
    done = 0
    for at in range(len(kept)):
        late = time.perf_counter() > began + limit_s
        if at + ahead < len(kept) and not late:
            start(at + ahead)
        if at >= len(starts):
            break
        under_way.append((at, step.finish(None if has_layers else outputs[at])))
        # The one before is waited for only now, so that the device has the next when it has answered it.
        if len(under_way) > 1:
            answered(*under_way.pop(0))
        done = at + 1
    for it in under_way:
        answered(*it)
    whole = ended - began
    spent = meter.read().since(before)
    step.way.check()
    largest = 0.0
    if has_layers:
        wanted = answers.predictions[[at for at, _ in found]]
        largest = compare.predictions_equal(way.name, torch.stack([it for _, it in found]), wanted)
    else:
        for at in range(done):
            answers.compare_embeddings(way.name, outputs[at], kept[at])
    samples = done * batch
    millions = samples / 1e6
    return Measured(
        way=f"{way.name}, {ahead} ahead",
        drives=drives,
        batch=batch,
        clients=1,
        what="model" if has_layers else "embeddings",
        batches=done,
        samples_per_second=samples / whole,
        p50_us=statistics.median(times) * 1e6,
        p99_us=percentile(times, 0.99) * 1e6,
        cpu_s=spent.cpu_s / millions if has_layers else None,
        drives_cpu_s=spent.drives_s / millions if has_layers else None,
        joules=spent.joules / millions if has_layers and spent.joules is not None and whole >= ENERGY_S else None,
        compared=samples,
        largest_difference=largest,
        counts=step.way.counts(),
    )
