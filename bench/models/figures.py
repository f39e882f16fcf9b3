"""GDRec's experiments and one more, each as runs of the command: which arguments they have, and what GDRec published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHAPES = ("avazu", "criteo-kaggle", "criteo-tb")
_ON_DRIVES = "memory,ideal,reader,warprow"


@dataclass(frozen=True)
class Figure:
    """An experiment.

    Parameters
    ----------
    about : str
        What it measures.
    published : str
        What GDRec published of it, against HugeCTR whose SSD part was written anew on SPDK (HugeCTR-OPT).
    runs : mapping of str to list of str
        Arguments of each run.
    """

    about: str
    published: str
    runs: Mapping[str, list[str]]


def _each(shapes: tuple[str, ...], *arguments: str) -> dict[str, list[str]]:
    return {shape: ["--shape", shape, *arguments] for shape in shapes}


_ROWS = ["--shape", "one-table", "--alpha", "0", "--experiments", "embeddings", "--batch", "100,1000,10000,100000", "--history", "100000"]

_CACHED = ["--drives", "1,16", "--ways", "memory,warprow", "--cache", "0", "--cache", "512M"]

FIGURES = {
    "6": Figure(
        "uniform ids, all rows in DRAM",
        "1.5 to 3.6 times as fast",
        {"dram": [*_ROWS, "--dram", "1", "--drives", "1", "--ways", "memory,torch,uva,reader,warprow"]},
    ),
    "7": Figure(
        "uniform ids, all rows on drives",
        "1.2 to 2.0 times as fast, on one P5800X",
        {"drives": [*_ROWS, "--dram", "0", "--drives", "1,16", "--ways", _ON_DRIVES]},
    ),
    "8": Figure(
        "samples a second by size of batch, end to end and of the embeddings alone, 5% in DRAM",
        "Avazu 1.1 to 1.4, Criteo Kaggle 1.1 to 1.9, Criteo TB 1.3 to 1.9 times as fast end to end; "
        "the embeddings alone 1.1 to 2.1, 1.4 to 2.4, 1.4 to 2.7",
        _each(_SHAPES, "--batch", "256,1024,4096,16384,65536", "--experiments", "throughput,embeddings", "--clients", "1,2", "--ways", _ON_DRIVES),
    ),
    "9": Figure(
        "latency against throughput, 5% in DRAM",
        "of Criteo TB, at a median of 2 ms, 1.9 times as many samples a second; at 150,000 samples a second a median 74% lower",
        _each(_SHAPES, "--experiments", "latency", "--ways", _ON_DRIVES),
    ),
    "10": Figure(
        "samples a second by size of batch, all rows in DRAM",
        "Avazu 1.1 to 1.3, Criteo Kaggle 1.2 to 1.3 times as fast",
        _each(_SHAPES[:2], "--batch", "256,1024,4096,16384,65536", "--dram", "1", "--drives", "1", "--ways", "memory,torch,uva,reader,warprow"),
    ),
    "cache": Figure(
        "a cache of rows that were read from drives, with ids whose popularity stays and drifts",
        "nothing: rows stay where they were put",
        {"stays": [*_CACHED], "drifts": [*_CACHED, "--churn", "0.005"]},
    ),
}
