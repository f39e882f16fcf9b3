"""How fast data sets become batches, against NumPy and pyarrow in one run. Every value of every batch is compared, untimed.

    python python/benchmarks/data.py [--samples 2000000] [--batch 8192] [--rounds 5] [--folder DIR] [--json FILE]

The samples have the shape of Criteo: a label, 13 dense features, an id of each of 26 sparse features, by a power law (`warprow.data.generate`).
Each contender gives batches of the same arrays: labels, dense features, and all ids, feature by feature, as int64. NumPy reads Raw by
`fromfile` into a structured array; Norm likewise, which only works because each sample has one id of each feature, and compares no sums; it
loads an archive whole. pyarrow reads Parquet by `ParquetFile.iter_batches`, with its own threads. Files lie in the page cache. A figure is the
median of rounds, in which contenders take turns; a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import warprow.data

LABELS, DENSE, FEATURES = 1, 13, 26
Arrays = tuple[Any, Any, Any]


def ours(path: Path, batch: int, **args: Any) -> Iterator[Arrays]:
    with warprow.data.open(path, batch=batch, **args) as reader:
        for it in reader:
            yield it.labels, it.dense, it.ids


def by_fromfile(path: Path, batch: int, row: Any, skip: int) -> Iterator[Arrays]:
    with path.open("rb") as file:
        file.seek(skip)
        while (rows := np.fromfile(file, row, batch)).size:
            ids = rows["lists"]["id"] if "lists" in row.names else rows["ids"]
            labels, dense = (np.ascontiguousarray(rows[name]) for name in ("labels", "dense"))
            yield labels, dense, ids.T.astype(np.int64).reshape(-1)


def raw_by_numpy(path: Path, batch: int) -> Iterator[Arrays]:
    row = np.dtype([("labels", "<f4", LABELS), ("dense", "<f4", DENSE), ("ids", "<u4", FEATURES)])
    return by_fromfile(path, batch, row, 0)


def norm_by_numpy(path: Path, batch: int) -> Iterator[Arrays]:
    lists = np.dtype([("count", "<i4"), ("id", "<u4")])
    fields = [("length", "<i4"), ("labels", "<f4", LABELS), ("dense", "<f4", DENSE), ("lists", lists, FEATURES), ("sum", "i1")]
    return by_fromfile(path, batch, np.dtype(fields), 69)


def npz_by_numpy(path: Path, batch: int) -> Iterator[Arrays]:
    with np.load(path) as archive:
        arrays = dict(archive)
    features = [it for it in arrays.items() if it[0] not in ("labels", "dense")]
    for begin in range(0, len(arrays["labels"]), batch):
        part = slice(begin, begin + batch)
        yield arrays["labels"][part], arrays["dense"][part], np.concatenate([ids[part] for _, ids in features])


def parquet_by_pyarrow(path: Path, batch: int) -> Iterator[Arrays]:
    import pyarrow.parquet

    for it in pyarrow.parquet.ParquetFile(path).iter_batches(batch):
        columns = [column.to_numpy() for column in it.columns]
        dense = np.stack(columns[LABELS : LABELS + DENSE], axis=1)
        yield columns[0].reshape(-1, 1), dense, np.concatenate(columns[LABELS + DENSE :])


def seconds(batches: Callable[[], Iterator[Arrays]], samples: int) -> float:
    began = time.perf_counter()
    seen = sum(len(labels) for labels, _, _ in batches())
    took = time.perf_counter() - began
    assert seen == samples, f"{seen} samples, not {samples}"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files are written [a temporary folder]")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        import pyarrow  # noqa: F401

        has_pyarrow = True
    except ImportError:
        has_pyarrow = False
        print("skipped: pyarrow is not installed, so Parquet has no rival")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run(Path(folder), args, has_pyarrow)


def run(folder: Path, args: argparse.Namespace, has_pyarrow: bool) -> None:
    print(f"seed {args.seed}, {args.samples:,} samples, batches of {args.batch:,}, {len(os.sched_getaffinity(0))} cores")
    results = []
    raw = {"format": "raw", "labels": LABELS, "dense": DENSE, "hotness": [1] * FEATURES}
    contenders: list[tuple[str, dict[str, Any], str, Callable[[Path, int], Iterator[Arrays]] | None]] = [
        ("raw", raw, "numpy.fromfile", raw_by_numpy),
        ("norm", {}, "numpy.fromfile, one id a list, no sums", norm_by_numpy),
        ("parquet", {}, "pyarrow", parquet_by_pyarrow if has_pyarrow else None),
        ("npz", {}, "numpy.load", npz_by_numpy),
    ]
    for to, given, name, rival in contenders:
        path = folder / f"data.{to}"
        warprow.data.generate("criteo-terabyte", path, args.samples, to=to, seed=args.seed)
        size = path.stat().st_size
        mine = lambda: ours(path, args.batch, **given)  # noqa: E731
        other = None if rival is None else (lambda: rival(path, args.batch))  # noqa: B023
        if other is not None:
            for one, two in zip(mine(), other(), strict=True):
                for left, right in zip(one, two, strict=True):
                    assert np.array_equal(left, right), f"{to}: a batch differs from what {name} reads"
        rounds = [(seconds(mine, args.samples), seconds(other, args.samples) if other else None) for _ in range(args.rounds)]
        ours_rate = args.samples / statistics.median(took for took, _ in rounds)
        result: dict[str, Any] = {"format": to, "bytes": size, "samples_per_second": ours_rate}
        text = f"{to:>8}: {ours_rate / 1e6:6.2f} M samples/s, {ours_rate * size / args.samples / 1e9:5.2f} GB/s"
        if other:
            rate = args.samples / statistics.median(took for _, took in rounds if took)
            ratio = statistics.median(took / mine_took for mine_took, took in rounds if took)
            result |= {"rival": name, "rival_samples_per_second": rate, "ratio": ratio}
            text += f"; {name}: {rate / 1e6:6.2f} M samples/s; ratio {ratio:.2f}"
        print(text)
        results.append(result)
        path.unlink()
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
