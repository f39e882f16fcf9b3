"""Options of modules for torch, of wrong types and out of their ranges: refused at once, by an exception that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_options import Cases, loaded, named, refused  # noqa: E402, F401

BAGS = [warprow.Feature("user", "user", pooling="sum")]
MODULES: dict[str, Callable[..., Any]] = {
    "Embedding": lambda s, **options: wt.Embedding(s, "user", **options),
    "EmbeddingBag": lambda s, **options: wt.EmbeddingBag(s, "user", **options),
    "NgramTable": lambda s, **options: wt.NgramTable(s, "user", **{"heads": 2, **options}),
    "EmbeddingBagCollection": lambda s, **options: wt.EmbeddingBagCollection(s, BAGS, **options),
}
#: Options that several modules take, a value of a wrong type, and one out of range.
OPTIONS = {
    "missing": (0, "nothing"),
    "on_failure": (True, "ignore"),
    "mask": (False, "all"),
    "dtype": ("float32", torch.float64),
    "max_ids": ("4", 0),
    "prefetch": ("1", -1),
    "padding_idx": ("0", 1000),
}


def taken(name: str, option: str) -> bool:
    if option == "padding_idx":
        return name in ("Embedding", "EmbeddingBag")
    return option != "max_ids" or name != "NgramTable"


def model() -> Any:
    return torch.nn.Sequential(torch.nn.Embedding(30, 4))


TYPES: Cases = [
    *(
        (option, lambda s, make=make, option=option, wrong=wrong: make(s, **{option: wrong}))
        for name, make in MODULES.items()
        for option, (wrong, _) in OPTIONS.items()
        if taken(name, option)
    ),
    ("table", lambda s: wt.Embedding(s, 3)),
    ("table", lambda s: wt.EmbeddingBag(s, None)),
    ("mode", lambda s: wt.EmbeddingBag(s, "user", mode=1)),
    ("include_last_offset", lambda s: wt.EmbeddingBag(s, "user", include_last_offset="no")),
    ("features", lambda s: wt.EmbeddingBagCollection(s, 3)),
    ("features", lambda s: wt.EmbeddingBagCollection(s, "user")),
    ("features", lambda s: wt.EmbeddingBagCollection(s, ["user"])),
    ("heads", lambda s: wt.NgramTable(s, "user", heads="2")),
    ("rows", lambda s: wt.NgramTable(s, "user", heads=2, rows="20")),
    ("max_tokens", lambda s: wt.NgramTable(s, "user", heads=2, max_tokens=1.5)),
    ("scales", lambda s: wt.NgramTable(s, "user", heads=2, scales=[1, 2])),
    ("hash", lambda s: wt.NgramIds(s, "ple")),
    ("heads", lambda s: wt.NgramIds(s, warprow.NgramHash("ple"), heads=3)),
    ("heads", lambda s: wt.NgramIds(s, warprow.NgramHash("ple"), heads=("0", "1"))),
    ("first_row", lambda s: wt.NgramIds(s, warprow.NgramHash("ple"), first_row="0")),
    ("model", lambda s: wt.replace([model()], s)),
    ("min_rows", lambda s: wt.replace(model(), s, min_rows="10")),
    ("select", lambda s: wt.replace(model(), s, select=7)),
    ("on_failure", lambda s: wt.replace(model(), s, on_failure=None)),
    ("model_name", lambda s: wt.replace(model(), s, model_name=7)),
    ("dram_bytes", lambda s: wt.replace(model(), s, dram_bytes="1G")),
    ("dram_byte", lambda s: wt.replace(model(), s, dram_byte=1)),
    ("patience", lambda s: wt.Embedding(s, "user").check("1")),
    ("world", lambda s: wt.plan_sharding(s, BAGS, "2")),
    ("tables", lambda s: wt.plan_sharding(["user"], BAGS, 2)),
    ("tables", lambda s: wt.plan_sharding({"user": (20, "16")}, BAGS, 2)),
    ("features", lambda s: wt.plan_sharding(s, ["user"], 2)),
    ("bag_lengths", lambda s: wt.plan_sharding(s, BAGS, 2, bag_lengths="3")),
    ("replicate_bytes", lambda s: wt.plan_sharding(s, BAGS, 2, replicate_bytes=None)),
    ("plan", lambda s: wt.ShardingPlan(1, ("user",)).check(["user"], 1)),
    ("plan", lambda s: wt.ShardingPlan(1, (wt.Placement("user", "whole", "0"),)).check(["user"], 1)),
    ("world", lambda s: wt.shard_of(torch.arange(3), "2")),
    ("keyed", lambda s: wt.shard_of(torch.arange(3), 2, keyed="no")),
    ("ids", lambda s: wt.shard_of(torch.rand(3), 2)),
]
VALUES: Cases = [
    *(
        (option, lambda s, make=make, option=option, wrong=wrong: make(s, **{option: wrong}))
        for name, make in MODULES.items()
        for option, (_, wrong) in OPTIONS.items()
        if taken(name, option)
    ),
    ("mode", lambda s: wt.EmbeddingBag(s, "user", mode="max")),
    ("heads", lambda s: wt.NgramTable(s, "user", heads=0)),
    ("heads", lambda s: wt.NgramIds(s, warprow.NgramHash("ple"), heads=(1, 2, 3))),
    ("min_rows", lambda s: wt.replace(model(), s, min_rows=-1)),
    ("device", lambda s: wt.replace(model(), s, device="tpu")),
    ("dram_bytes", lambda s: wt.replace(model(), s, dram_bytes=-1)),
    ("patience", lambda s: wt.Embedding(s, "user").check(float("inf"))),
    ("world", lambda s: wt.shard_of(torch.arange(3), 0)),
    ("world", lambda s: wt.plan_sharding(s, BAGS, 0)),
    ("bag_lengths", lambda s: wt.plan_sharding(s, BAGS, 2, bag_lengths={})),
]


@named(TYPES)
def test_types(loaded: warprow.Store, argument: str, call: Callable[[Any], object]) -> None:  # noqa: F811
    refused(warprow.WrongType, argument, lambda: call(loaded))
    assert [it.name for it in loaded.tables()] == ["user"]


@named(VALUES)
def test_values(loaded: warprow.Store, argument: str, call: Callable[[Any], object]) -> None:  # noqa: F811
    refused(warprow.InvalidArgument, argument, lambda: call(loaded))
    assert [it.name for it in loaded.tables()] == ["user"]


def test_numbers_of_numpy_are_numbers(loaded: warprow.Store) -> None:  # noqa: F811
    ours = wt.Embedding(loaded, "user", max_ids=np.int64(8), padding_idx=np.int32(-1), prefetch=np.uint8(1))
    assert ours(torch.arange(3)).tolist() == loaded.lookup("user", [0, 1, 2]).tolist() and ours.padding_idx == 19
    options = ours.state_dict()["_extra_state"]["options"]
    assert (options["max_ids"], options["prefetch"]) == (8, 1)
    named_by_tables = wt.replace(model(), loaded, hbm_rows={}, dram_bytes=np.int64(0))
    assert isinstance(named_by_tables[0], wt.Embedding)
