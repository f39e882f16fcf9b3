"""Samples of a data set into look-ups: how many a second, and how many without reading, or without looking up.

    python python/benchmarks/data_lookups.py [--samples 2000000] [--batch 8192 65536] [--formats raw norm parquet] [--device cuda] [--json FILE]

The samples have the shape of Criteo Kaggle (`warprow.data.generate`), whose rows are divided by `--scale`. Tables have rows of `--dim`
elements, all in memory of the device that looks up. A step reads a batch (a thread of the package's reads ahead), copies it to the device, and
looks all features up. The first batches of each line are compared with what the rows are, bit for bit, untimed. The median of `--rounds`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import warprow
import warprow.data
import warprow.torch


def content(table: int, ids: torch.Tensor, dim: int) -> torch.Tensor:
    """The rows of ids, computed."""
    numbers = ids.unsqueeze(1) * 7919 + torch.arange(dim, device=ids.device) * 104729 + table * 1299709
    return ((numbers * 2654435761) % 65521).float() * 2.0**-16 - 0.5


def rate(work: Callable[[], int], device: torch.device, rounds: int) -> float:
    """Samples a second, of the median round."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        samples = work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(samples / (time.perf_counter() - began))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[8192, 65536])
    parser.add_argument("--formats", nargs="+", default=["raw", "norm", "parquet"])
    parser.add_argument("--scale", type=int, default=50, help="by which the published rows are divided")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device, lines = torch.device(options.device), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = options.formats[0]
        rows = warprow.data.generate("criteo-kaggle", folder / f"samples.{first}", options.samples, to=first, scale=options.scale)
        shape: dict[str, Any] = {"labels": 1, "dense": 13, "hotness": [1] * 26, "features": list(rows)}
        told = {"raw": shape, "norm": {"features": list(rows)}}
        for other in options.formats[1:]:
            warprow.data.convert(folder / f"samples.{first}", folder / f"samples.{other}", format=first, to=other, **told.get(first, {}))
        size = sum(count * options.dim * 4 for count in rows.values())
        with warprow.format(f"emulated:rows,backing=ram,size={(2 * size // (64 << 20) + 2) * (64 << 20)}") as store:
            store.load({name: content(at, torch.arange(count), options.dim) for at, (name, count) in enumerate(rows.items())})
            memory = {"hbm_bytes": 2 * size} if device.type == "cuda" else {"dram_bytes": 2 * size}
            with store.attach(options.device, **memory) as executor:
                features = [warprow.Feature(name, name, pooling="sum") for name in rows]
                collection = warprow.torch.EmbeddingBagCollection(executor, features)
                for form in options.formats:
                    for batch in options.batch:
                        lines.append(measure(folder / f"samples.{form}", form, batch, told.get(form, {}), collection, device, options))
                        print(json.dumps(lines[-1]), flush=True)
                        if options.json:
                            options.json.write_text(json.dumps(lines, indent=1))
    print("| format | batch | read | read, copied | read, copied, looked up | copied, looked up |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        figures = " | ".join(f"{line[kind] / 1e6:.2f} M/s" for kind in ("read", "copied", "looked_up", "without_reading"))
        print(f"| {line['format']} | {line['batch']} | {figures} |")


def measure(
    path: Path, form: str, batch: int, told: dict[str, Any], collection: Any, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """Samples a second of a format."""

    def opened() -> warprow.data.DataReader:
        return warprow.data.open(path, format=form, batch=batch, torch=True, drop_last=True, **told)

    held = []
    with opened() as reader:
        for _, it in zip(range(4), reader):
            held.append(it)
            there = it.to(device)
            found = collection(there.jagged)
            for at, (name, (ids, _)) in enumerate(there.sparse.items()):
                if not torch.equal(found[name], content(at, ids, options.dim)):
                    raise SystemExit(f"{form}, batch {batch}: feature {name} is wrong")

    def each(step: Callable[[Any], object]) -> Callable[[], int]:
        def work() -> int:
            samples = 0
            with opened() as reader:
                for it in reader:
                    step(it)
                    samples += it.samples
            return samples

        return work

    def again() -> int:
        steps = max(1, options.samples // batch)
        for at in range(steps):
            collection(held[at % len(held)].to(device).jagged)
        return steps * batch

    line = {
        "format": form,
        "batch": batch,
        "read": rate(each(lambda it: None), device, options.rounds),
        "copied": rate(each(lambda it: it.to(device)), device, options.rounds),
        "looked_up": rate(each(lambda it: collection(it.to(device).jagged)), device, options.rounds),
        "without_reading": rate(again, device, options.rounds),
    }
    collection.check()
    return line


if __name__ == "__main__":
    main()
