"""Embedding tables on NVMe drives.

`format` makes a store on drives, `open` opens one. `Store.load` loads tables, `Store.lookup` looks rows up into NumPy
arrays. `warprow.torch` has modules that stand in the place of `torch.nn.Embedding` and `torch.nn.EmbeddingBag`.

>>> import warprow
>>> store = warprow.format("emulated:example?backing=ram&size=64M")
>>> report = store.load({"user": rows})              # an array of shape (rows, dim)
>>> store.lookup("user", [3, 1, 4])                  # an array of shape (3, dim)
"""

from . import data, errors
from .errors import *  # noqa: F403
from .executor import Executor, Feature, Plan
from .ngram import NgramHash
from .proposal import CacheComparison, Expected, GpuCacheComparison, Interval, Proposal, TableShape, TableTiers, plan
from .records import (
    ChangedFile,
    DriveState,
    ExpireReport,
    Exported,
    Generation,
    LoadReport,
    PinReport,
    RerankReport,
    RestoreReport,
    Table,
    VerifyReport,
    WarmReport,
)
from .store import Store, format, open

__all__ = [
    "CacheComparison",
    "ChangedFile",
    "DriveState",
    "Executor",
    "Expected",
    "ExpireReport",
    "Exported",
    "Feature",
    "Generation",
    "GpuCacheComparison",
    "Interval",
    "LoadReport",
    "NgramHash",
    "PinReport",
    "Plan",
    "Proposal",
    "RerankReport",
    "RestoreReport",
    "Store",
    "Table",
    "TableShape",
    "TableTiers",
    "VerifyReport",
    "WarmReport",
    "data",
    "errors",
    "format",
    "open",
    "plan",
    *errors.__all__,
]
