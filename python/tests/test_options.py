"""Options of wrong types and out of their ranges: refused at once, by an exception that names the argument, what came and what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warprow
import warprow.data

Cases = list[tuple[str, Callable[[Any], object]]]
ROWS = np.arange(80, dtype=np.float32).reshape(20, 4)


class Unread:
    """An iterator of blocks that nobody may begin to read."""

    def __iter__(self) -> Unread:
        return self

    def __next__(self) -> Any:
        raise AssertionError("the source was read before the options were looked at")


Iterator.register(Unread)


@pytest.fixture
def loaded(store: warprow.Store) -> warprow.Store:
    store.load({"user": ROWS})
    return store


def load(**options: Any) -> Callable[[Any], object]:
    return lambda s: s.load({"more": Unread()}, **options)


#: Calls with an argument of a wrong type, and its name.
TYPES: Cases = [
    ("drives", lambda s: warprow.open(7)),
    ("drives", lambda s: warprow.format([b"emulated:x"])),
    ("read_only", lambda s: warprow.open(s.addresses, read_only="no")),
    ("read_only", lambda s: warprow.open(s.addresses, read_only=0)),
    ("degraded", lambda s: warprow.open(s.addresses, degraded=None)),
    ("timeout", lambda s: warprow.open(s.addresses, timeout="5")),
    ("timeout", lambda s: warprow.format(s.addresses, timeout=None)),
    ("timeout", lambda s: warprow.open(s.addresses, timeout=True)),
    ("overlay_bytes", lambda s: warprow.open(s.addresses, overlay_bytes=1e6)),
    ("lba", lambda s: warprow.format(s.addresses, lba="512")),
    ("chunk_size", lambda s: warprow.format(s.addresses, chunk_size=[1 << 20])),
    ("consent", lambda s: warprow.format(s.addresses, consent=12)),
    ("name", lambda s: s.table(3)),
    ("model", load(model=3)),
    ("select", load(select=3)),
    ("select", load(select=["more", 3])),
    ("names", load(names=["a"])),
    ("names", load(names={"more": 7})),
    ("hotness", load(hotness=[1, 2, 3])),
    ("keys", load(keys=[1, 2, 3])),
    ("dtype", load(dtype=np.float16)),
    ("dtype", load(dtype={"more": 16})),
    ("checksums", load(checksums="no")),
    ("replace", load(replace=1)),
    ("standby", load(standby="later")),
    ("plan", load(plan={"more": 3})),
    ("span", load(span=1)),
    ("memory", load(memory="1G")),
    ("progress", load(progress=True)),
    ("table", lambda s: s.lookup(7, [1])),
    ("dtype", lambda s: s.lookup("user", [1], dtype=np.float32)),
    ("missing", lambda s: s.lookup("user", [1], missing=None)),
    ("mask", lambda s: s.lookup("user", [1], mask="yes")),
    ("table", lambda s: s.update(None, [1], ROWS[:1])),
    ("generation", lambda s: s.update("user", [1], ROWS[:1], generation="1")),
    ("create", lambda s: s.update("user", [1], ROWS[:1], create="no")),
    ("table", lambda s: s.remove(1, [1])),
    ("table", lambda s: s.verify(1)),
    ("generation", lambda s: s.switch("0")),
    ("allow_vanishing", lambda s: s.switch(0, allow_vanishing="no")),
    ("generation", lambda s: s.drop(0.0)),
    ("generation", lambda s: s.compact(None)),
    ("table", lambda s: s.rerank(1, [1])),
    ("table", lambda s: s.export(1)),
    ("fault", lambda s: s.inject_fault(3)),
    ("drive", lambda s: s.inject_fault("corrupt", drive="0")),
    ("nth", lambda s: s.inject_fault("corrupt", nth=1.5)),
    ("times", lambda s: s.inject_fault("corrupt", times="all")),
    *((name, lambda s, name=name: s.attach(**{name: "many"})) for name in (
        "dram_bytes", "hbm_bytes", "check_rows", "check_keys", "overlay_bytes", "adopting", "timeout", "hbm_rows",
        "prefetch_multiprocessors", "cache_bytes", "cache_shares", "cache_batch_rows", "cache_dram", "peer_gpu",
        "counter_bytes", "count_every",
    )),
    ("check_rows", lambda s: s.attach(check_rows=2)),
    ("hbm_rows", lambda s: s.attach(hbm_rows={"user": "all"})),
    ("hbm_rows", lambda s: s.attach(hbm_rows={7: 3})),
    ("cache_shares", lambda s: s.attach(cache_bytes=1 << 20, cache_shares={"user": "half"})),
    ("cache_shares", lambda s: s.attach(cache_bytes=1 << 20, cache_shares={7: 3})),
    ("prefetch_priority", lambda s: s.attach(prefetch_priority=1)),
    ("cache_admission", lambda s: s.attach(cache_admission=None)),
    ("name", lambda s: warprow.Feature(1, "user")),
    ("table", lambda s: warprow.Feature("user", None)),
    ("pooling", lambda s: warprow.Feature("user", "user", pooling=None)),
    ("weighted", lambda s: warprow.Feature("user", "user", weighted="no")),
    ("padding", lambda s: warprow.Feature("user", "user", padding="0")),
    ("features", lambda s: s.attach().plan("user", max_batch=1, max_ids=1)),
    ("features", lambda s: s.attach().plan(["user"], max_batch=1, max_ids=1)),
    ("max_batch", lambda s: plan(s, max_batch="1")),
    ("max_ids", lambda s: plan(s, max_ids=1.0)),
    ("dtype", lambda s: plan(s, dtype=np.float32)),
    ("slots", lambda s: plan(s, slots=None)),
    ("missing", lambda s: plan(s, missing=0)),
    ("on_failure", lambda s: plan(s, on_failure=True)),
    ("mask", lambda s: plan(s, mask=True)),
    ("batch", lambda s: plan(s).lookup([1], batch="1")),
    ("mask", lambda s: plan(s).lookup([1], mask="yes")),
    ("patience", lambda s: s.attach(cache_bytes=1 << 20).clear_cache(patience="10")),
    ("patience", lambda s: s.attach().adopt(patience=None)),
    ("generation", lambda s: s.attach().adopt("0")),
    ("most", lambda s: s.attach(counter_bytes=1 << 16).popular("user", "ten")),
    ("table", lambda s: s.attach(counter_bytes=1 << 16).popular(3)),
    ("bytes_per_second", lambda s: s.attach(counter_bytes=1 << 16).rerank_by_counts(bytes_per_second="1M")),
    ("seconds", lambda s: s.attach(counter_bytes=1 << 16).rerank_by_counts(seconds="60")),
    ("trace", lambda s: warprow.plan(s, [1, 2])),
    ("hotness", lambda s: warprow.plan(s, hotness=[1])),
    ("dram_bytes", lambda s: warprow.plan(s, hotness={"user": np.ones(20, np.int64)}, dram_bytes="1G")),
    ("emulated", lambda s: warprow.plan(s, hotness={"user": np.ones(20, np.int64)}, emulated="no")),
    ("held_out", lambda s: warprow.plan(s, hotness={"user": np.ones(20, np.int64)}, held_out="0.2")),
    ("model", lambda s: warprow.NgramHash(3)),
    ("end", lambda s: warprow.NgramHash("ple", end="3")),
    ("paths", lambda s: warprow.data.open(7)),
    ("batch", lambda s: warprow.data.open("x.csv", batch="64")),
    ("hex", lambda s: warprow.data.open("x.csv", hex="no")),
    ("hotness", lambda s: warprow.data.open("x.raw", hotness=["2"])),
    ("features", lambda s: warprow.data.open("x.csv", features="ab")),
    ("samples", lambda s: warprow.data.generate("avazu", "x.csv", "9")),
    ("sums", lambda s: warprow.data.generate("avazu", "x.csv", 9, sums="no")),
]
#: Calls with an argument of the right type and out of its range.
VALUES: Cases = [
    ("drives", lambda s: warprow.open([])),
    ("timeout", lambda s: warprow.open(s.addresses, timeout=-1)),
    ("timeout", lambda s: warprow.open(s.addresses, timeout=float("nan"))),
    ("timeout", lambda s: warprow.open(s.addresses, timeout=float("inf"))),
    ("overlay_bytes", lambda s: warprow.open(s.addresses, overlay_bytes=-1)),
    ("span", load(span="narrow")),
    ("memory", load(memory=-1)),
    ("dtype", load(dtype="float16")),
    ("dtype", load(dtype={"more": "f64"})),
    ("missing", lambda s: s.lookup("user", [1], missing="nothing")),
    ("generation", lambda s: s.switch(-1)),
    ("fault", lambda s: s.inject_fault("late")),
    ("drive", lambda s: s.inject_fault("corrupt", drive=-1)),
    ("dram_bytes", lambda s: s.attach(dram_bytes=-1)),
    ("dram_bytes", lambda s: s.attach(dram_bytes=1 << 64)),
    ("timeout", lambda s: s.attach(timeout=-0.5)),
    ("hbm_rows", lambda s: s.attach(hbm_rows={"user": -1})),
    ("cache_shares", lambda s: s.attach(cache_shares={"user": -1})),
    ("cache_shares", lambda s: s.attach("cuda", cache_bytes=1 << 20, cache_shares={"user": -1})),
    ("cache_admission", lambda s: s.attach(cache_admission="never")),
    ("cache_admission", lambda s: s.attach(cache_admission=1.5)),
    ("pooling", lambda s: warprow.Feature("user", "user", pooling="max")),
    ("slots", lambda s: plan(s, slots=-1)),
    ("patience", lambda s: s.attach(cache_bytes=1 << 20).clear_cache(patience=float("inf"))),
    ("patience", lambda s: s.attach().adopt(patience=-1)),
]


def plan(store: warprow.Store, **options: Any) -> warprow.Plan:
    return store.attach().plan([warprow.Feature("user", "user")], **{"max_batch": 4, "max_ids": 4, **options})


def named(cases: Cases) -> Any:
    return pytest.mark.parametrize(("argument", "call"), cases, ids=[f"{nth}-{argument}" for nth, (argument, _) in enumerate(cases)])


def refused(kind: type[warprow.WarprowError], argument: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind) as caught:
        call()
    error: Any = caught.value
    assert type(error) is kind and error.argument == argument and error.remedy
    assert str(error).startswith(f"{argument}: ") and len(str(error)) > len(argument) + 12, str(error)


@named(TYPES)
def test_types(loaded: warprow.Store, argument: str, call: Callable[[Any], object]) -> None:
    refused(warprow.WrongType, argument, lambda: call(loaded))
    assert (loaded.lookup("user", np.arange(20)) == ROWS).all() and [it.name for it in loaded.tables()] == ["user"]


@named(VALUES)
def test_values(loaded: warprow.Store, argument: str, call: Callable[[Any], object]) -> None:
    refused(warprow.InvalidArgument, argument, lambda: call(loaded))
    assert (loaded.lookup("user", np.arange(20)) == ROWS).all()


def test_numbers_of_numpy_are_numbers(address: str) -> None:
    with warprow.format(address, timeout=np.float32(4), chunk_size=np.int64(1 << 20), overlay_bytes=np.uint32(1 << 20)) as store:
        store.load({"user": ROWS}, checksums=np.bool_(True), memory=np.int64(1 << 20))
        executor = store.attach(dram_bytes=np.int32(64), check_rows=np.bool_(True), timeout=np.float64(3))
        made = executor.plan([warprow.Feature("user", "user", padding=np.int64(3))], max_batch=np.int64(4), max_ids=np.int16(4))
        assert (made.lookup([5, 7]) == ROWS[[5, 7]]).all()
        assert executor.options.dram_bytes == 64 and type(executor.options.dram_bytes) is int
        assert type(made.features[0].padding) is int


def test_every_type_that_can_be_stored_is_told(store: warprow.Store) -> None:
    store.load({"user": ROWS})
    # What the store itself knows.
    with pytest.raises(warprow.InvalidArgument) as caught:
        plan(store, dtype="none")
    known = str(caught.value).split("they are ")[1].split(", ")
    assert sorted(known) == sorted(warprow._arrays.STORED_DTYPES)
    page = Path(__file__).parents[2] / "docs" / "python.md"
    for name in known:
        assert f'"{name}"' in str(warprow.Store.load.__doc__), name
        if page.is_file():
            assert f'`"{name}"`' in page.read_text(), name
    wide = np.linspace(-1, 1, 20 * 32, dtype=np.float32).reshape(20, 32)
    for name in known:
        if name in warprow._arrays.MADE_DTYPES:
            store.load({name: wide}, dtype=name)
            assert store.table(name).dtype == name
            assert np.abs(store.lookup(name, np.arange(20), dtype="f32") - wide).max() < 0.15, name
        else:
            with pytest.raises(warprow.InvalidArgument, match=f"rows of f32 cannot be stored as {name}: leave dtype out"):
                store.load({name: wide}, dtype=name)
