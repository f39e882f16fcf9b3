"""Two models on the same drives: their tables on the same chunks, or on chunks of their own; looked up one at a time, and both at once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from ..ahead_step import AheadStep, ahead_step
from ..drives import Drives, propose, propose_all, stored_in_turn
from ..ids import Samples, Source
from ..schedule import Schedule
from ..shapes import Shape
from ..tables import Tables
from ..ways import WarprowModules
from ..world import Answers, draw
from .ahead import Run, prepared, run_batches
from .closed_loop import Measured, percentile


@dataclass(frozen=True)
class Model:
    """A model whose tables lie beside those of another one."""

    tables: Tables
    history: Samples
    answers: Answers


def two_models(shape: Shape, source: Source, device: torch.device, seed: int, history: int, batch: int, batches: int) -> list[Model]:
    """Models of one shape with rows, ids and a past of their own."""
    made = []
    for number, prefix in enumerate(("a-", "b-")):
        own = replace(shape, prefix=prefix)
        tables = Tables(own, device, seed + number)
        past = draw(source, own, history)
        made.append(Model(tables, past, Answers(tables, None, draw(source, own, batch * batches), batch)))
    return made


def measure_two_models(
    models: list[Model], drives: Drives, dram_bytes: int, limit_s: float, ahead: int, schedule: Schedule, note: Callable[[str], None]
) -> Iterator[Measured]:
    """Embeddings alone, of each placement: of either model by itself, and of both at once.

    Tables of one load share chunks: stripe unit by stripe unit they lie on all chunks of the load. Tables of two loads have chunks of their
    own, the second's behind the first's. `dram_bytes` is that of both models together. Every embedding is compared.
    """
    batch, pasts = models[0].answers.batch, [(it.tables.shape, it.history) for it in models]
    together = [({name: rows for it in models for name, rows in it.tables.by_name().items()}, propose_all(pasts, dram_bytes, drives, batch))]
    apart = [(it.tables.by_name(), propose(*past, dram_bytes // 2, drives, batch)) for it, past in zip(models, pasts, strict=True)]
    for placement, loads in (("on the same chunks", together), ("on chunks of their own", apart)):
        with stored_in_turn(drives, loads, note) as store:
            shape, device = models[0].tables.shape, models[0].tables.device
            with WarprowModules(store, shape, device, {"dram_bytes": dram_bytes}, batch) as way:
                assert isinstance(way, WarprowModules)
                ways = [way, way.of_another_model(models[1].tables.shape)]
                steps = [ahead_step(own, None, it.tables.shape, batch, device, ahead, schedule) for own, it in zip(ways, models, strict=True)]
                try:
                    for asked in ([0], [1], [0, 1]):
                        who = "both models" if len(asked) == 2 else f"model {'ab'[asked[0]]} alone"
                        name = f"{way.name}, {ahead} ahead by {schedule}, two models {placement}: {who}"
                        yield _measured(name, str(drives), [(steps[at], models[at].answers) for at in asked], limit_s)
                finally:
                    for step in steps:
                        step.close()


def _measured(name: str, drives: str, asking: list[tuple[AheadStep, Answers]], limit_s: float) -> Measured:
    batch = asking[0][1].batch
    plans = [prepared(step, answers, 1 / len(asking)) for step, answers in asking]

    def ask(at: int) -> Run:
        # A thread of its own has a mode of its own.
        with torch.inference_mode():
            return run_batches(*asking[at], *plans[at], limit_s)

    with ThreadPoolExecutor(len(asking)) as pool:
        runs = [done.result() for done in [pool.submit(ask, at) for at in range(len(asking))]]
    for (step, answers), run, (numbers, outputs) in zip(asking, runs, plans, strict=True):
        step.way.check()
        for at in range(len(run.ends)):
            answers.compare_embeddings(name, outputs[at], numbers[at])
    whole = max(run.ends[-1] for run in runs) - min(run.starts[0] for run in runs)
    times = [end - start for run in runs for start, end in zip(run.starts, run.ends, strict=True)]
    samples = len(times) * batch
    return Measured(
        way=name,
        drives=drives,
        batch=batch,
        clients=len(asking),
        what="embeddings",
        batches=len(times),
        samples_per_second=samples / whole,
        p50_us=statistics.median(times) * 1e6,
        p99_us=percentile(times, 0.99) * 1e6,
        cpu_s=None,
        drives_cpu_s=None,
        joules=None,
        compared=samples,
        largest_difference=0.0,
        counts={"commands": round(statistics.mean(it for run in runs for it in run.commands))},
    )
