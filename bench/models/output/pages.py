"""The tables and pictures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..experiments.closed_loop import Measured
from ..experiments.open_loop import Offered
from .markdown import table
from .picture import line_chart


def write(setup: Mapping[str, Any], measured: Sequence[Measured], offered: Sequence[Offered]) -> tuple[str, dict[str, str]]:
    """Tables in Markdown, and pictures by the names of their files."""
    what = f"{setup['model']}, {setup['shape']} with rows divided by {setup['divisor']} ({setup['bytes'] / 1e9:.2f} GB)"
    parts = [f"{what}; {setup['ids']}; {setup['dram_share']:.0%} of the bytes in DRAM, {setup['hbm_share']:.0%} in GPU memory; {setup['device']}, torch {setup['torch']}, seed {setup['seed']}"]
    pictures = {}
    for kind, title in (("model", "End to end"), ("embeddings", "Embeddings alone")):
        own = [it for it in measured if it.what == kind]
        if own:
            parts += [f"## {title}", _closed(own)]
            lines = _lines(own, lambda it: (it.batch, it.samples_per_second))
            pictures[f"{kind}.svg"] = line_chart(f"{title}: {what}", "samples of a batch", "samples a second", lines)
    if offered:
        parts += ["## Latency against throughput", _open(offered)]
        lines = _lines(offered, lambda it: (it.answered, it.p99_us))
        pictures["latency.svg"] = line_chart(f"Latency: {what}", "samples a second, answered", "p99, microseconds", lines)
    return "\n\n".join(parts) + "\n", pictures


def _lines(found: Sequence[Any], place: Any) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for it in found:
        lines.setdefault(it.way if it.drives == "none" else f"{it.way}, {it.drives}", []).append(place(it))
    return lines


def _same(difference: float) -> str:
    return "bit for bit" if difference == 0 else f"within {difference:.1g}"


def _closed(found: Sequence[Measured]) -> str:
    bound = {(it.batch, it.clients): it.samples_per_second for it in found if it.drives == "none" and it.way.startswith("all rows")}
    head = ["way", "drives", "batch", "at once", "samples/s", "of the bound", "p50 µs", "p99 µs", "drives' reads/s", "CPU s/M", "drives' CPU s/M", "J/M", "compared"]
    lines = [
        [
            it.way,
            it.drives,
            it.batch,
            it.clients,
            it.samples_per_second,
            f"{it.samples_per_second / bound[it.batch, it.clients]:.0%}" if (it.batch, it.clients) in bound else None,
            it.p50_us,
            it.p99_us,
            it.reads_per_second,
            it.cpu_s,
            it.drives_cpu_s,
            it.joules,
            f"{it.compared:,}, {_same(it.largest_difference)}",
        ]
        for it in found
    ]
    return table(head, lines)


def _open(found: Sequence[Offered]) -> str:
    head = ["way", "drives", "offered/s", "answered/s", "p50 µs", "p99 µs", "p99.9 µs", "requests", "refused", "a batch", "compared"]
    lines = [
        [
            it.way,
            it.drives,
            float(it.offered),
            it.answered,
            it.p50_us,
            it.p99_us,
            it.p999_us,
            it.requests,
            it.refused,
            it.batched,
            f"{it.compared:,}, {_same(it.largest_difference)}",
        ]
        for it in found
    ]
    return table(head, lines)
