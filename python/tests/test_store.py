"""Stores: loading, looking up, updating, checking. Every row that is read is compared."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import warprow


def rows(count: int, dim: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(dtype)


def shifted(array: np.ndarray) -> np.ndarray:
    """The array at an address that is no multiple of the size of its elements."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    found = memory[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    assert not found.flags.aligned and found.flags.c_contiguous and found.flags.writeable
    return found


def test_every_row_comes_back(make_store) -> None:
    store = make_store(drives=2)
    tables = {"user": rows(3000, 16), "item": rows(500, 24, 1, np.float16), "byte": np.arange(4000, dtype=np.uint8).reshape(-1, 8)}
    report = store.load(tables)
    assert report.generation == store.table("user").generation and report.bytes >= sum(it.nbytes for it in tables.values())
    assert {it.name: (it.rows, it.dim) for it in store.tables()} == {name: it.shape for name, it in tables.items()}
    for name, wanted in tables.items():
        ids = np.random.default_rng(2).permutation(len(wanted))
        for type_ in (np.int64, np.int32, np.uint32, np.uint64):
            found = store.lookup(name, ids.astype(type_))
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted[ids])
        np.testing.assert_array_equal(store.export(name).rows, wanted)
    assert all(it.is_sound and it.checked for it in store.verify().values())


def test_shapes_outputs_and_masks(store: warprow.Store) -> None:
    wanted = rows(100, 8)
    store.load({"user": wanted})
    ids = np.array([[1, 2, 3], [99, 0, 1]])
    np.testing.assert_array_equal(store.lookup("user", ids), wanted[ids])
    np.testing.assert_array_equal(store.lookup("user", [5, 6]), wanted[[5, 6]])
    assert store.lookup("user", []).shape == (0, 8)
    assert store.lookup("user", np.int64(3)).shape == (8,)
    out = np.full((2, 3, 8), 7, dtype=np.float32)
    assert store.lookup("user", ids, out=out) is out
    np.testing.assert_array_equal(out, wanted[ids])
    # Every other id.
    np.testing.assert_array_equal(store.lookup("user", np.arange(100)[::2]), wanted[::2])
    found, mask = store.lookup("user", [1, 100, -1], missing="zero", mask=True)
    np.testing.assert_array_equal(found, [wanted[1], np.zeros(8), np.zeros(8)])
    assert mask.tolist() == [True, False, False]
    assert store.lookup("user", [3], dtype="f16").dtype == np.float16


def test_missing_ids_are_named(store: warprow.Store) -> None:
    store.load({"user": rows(10, 4)})
    with pytest.raises(IndexError) as caught:
        store.lookup("user", [1, 10, 2, -5])
    error = caught.value
    assert isinstance(error, warprow.MissingIds)
    assert list(error.positions) == [1, 3] and error.count == 2 and "position 1" in str(error)


def test_arrays_at_any_address_are_taken(store: warprow.Store) -> None:
    wanted, counts, keys = rows(50, 3), np.arange(50), np.arange(50) * 5 + 2
    store.load({"user": shifted(wanted)}, hotness={"user": shifted(counts)}, keys={"user": shifted(keys)})
    ids = shifted(keys[::-1].copy())
    np.testing.assert_array_equal(store.lookup("user", ids), wanted[::-1])
    assert store.update("user", ids[:2], shifted(wanted[:2])) > 0
    np.testing.assert_array_equal(store.lookup("user", ids[:2]), wanted[:2])
    with store.attach() as executor:
        plan = executor.plan([warprow.Feature("user", "user", pooling="sum", weighted=True)], max_batch=2, max_ids=4)
        found = plan.lookup(ids[2:5], offsets=shifted(np.array([0, 1])), weights=shifted(np.array([2, 1, 1], np.float32)))
    np.testing.assert_array_equal(found, [2 * wanted[47], wanted[46] + wanted[45]])
    assert store.remove("user", ids[:2]) == 2


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda s: s.lookup("nobody", [1]), warprow.NoSuchTable, "user"),
        (lambda s: s.lookup("user", [1.5]), warprow.WrongType, "ids"),
        (lambda s: s.lookup("user", ["a"]), warprow.WrongType, "ids"),
        (lambda s: s.lookup("user", [[1], [2, 3]]), warprow.WrongType, "ids: a list that NumPy cannot take"),
        (lambda s: s.lookup("user", np.ma.array([1, 2], mask=[False, True])), warprow.InvalidArgument, "masked"),
        (lambda s: s.lookup("user", [1], out=np.zeros((2, 4), np.float32)), warprow.InvalidArgument, "out"),
        (lambda s: s.lookup("user", [1], out=np.zeros((1, 4))), warprow.WrongType, "out"),
        (lambda s: s.lookup("user", [1, 2], out=np.zeros((4, 4), np.float32)[::2]), warprow.InvalidArgument, "contiguous"),
        (lambda s: s.lookup("user", [1], out=shifted(np.zeros((1, 4), np.float32))), warprow.InvalidArgument, "multiple of the 4 bytes"),
        (lambda s: s.lookup("user", (it := np.zeros(8, np.int64))[1:2], out=it.view(np.float32)[:4].reshape(1, 4)), warprow.InvalidArgument, "with ids"),
        (lambda s: s.lookup("user", [1], missing="perhaps"), warprow.InvalidArgument, "missing"),
        (lambda s: s.lookup("user", [1], dtype="f64"), warprow.InvalidArgument, "f64"),
        (lambda s: s.load({"user": rows(3, 4)}), warprow.TableExists, "replace"),
        (lambda s: s.load({}), warprow.InvalidArgument, "source"),
        (lambda s: s.load({5: rows(3, 4)}), warprow.WrongType, "a table is called 5"),
        (lambda s: s.load({"v": np.ma.masked_less(rows(3, 4), 0)}), warprow.InvalidArgument, "masked"),
        (lambda s: s.load({"v": np.zeros(3, np.float32)}), warprow.InvalidArgument, "two dimensions"),
        (lambda s: s.load({"v": np.zeros((3, 4))}), warprow.WrongType, "float64"),
        (lambda s: s.load({"v": np.zeros((0, 4), np.float32)}), warprow.InvalidArgument, "at least one row"),
        (lambda s: s.load(17), warprow.WrongType, "mapping"),
        (lambda s: s.load("/nobody.safetensors"), warprow.FileError, "nobody"),
        (lambda s: s.load({"v": rows(3, 4)}, hotness={"v": [1, 2]}), warprow.InvalidArgument, "counts"),
        (lambda s: s.load({"v": rows(3, 4)}, hotness={"w": [1, 2, 3]}), warprow.InvalidArgument, "'w'"),
        (lambda s: s.load({"v": rows(3, 4)}, keys={"v": [1, 2, 1]}), warprow.InvalidArgument, "twice"),
        (lambda s: s.load({"v": rows(3, 4)}, dtype="f64"), warprow.InvalidArgument, "f64"),
        (lambda s: s.load({"v": rows(3, 4)}, select="w*"), warprow.InvalidArgument, "select"),
        (lambda s: s.update("user", [10], rows(1, 4)), warprow.NoSuchRow, "10"),
        (lambda s: s.update("user", [-1], rows(1, 4)), warprow.NoSuchRow, "-1"),
        (lambda s: s.update("user", [1], rows(1, 5)), warprow.InvalidArgument, "rows"),
        (lambda s: s.update("user", [], rows(0, 4)), warprow.InvalidArgument, "ids: there are none"),
        (lambda s: s.update("user", [1], rows(1, 4, dtype=np.float16)), warprow.WrongType, "f32"),
        (lambda s: s.switch(99), warprow.NoSuchGeneration, "99"),
        (lambda s: s.attach("tpu"), warprow.InvalidArgument, "device"),
    ],
)
def test_what_cannot_be_is_refused_by_name(store: warprow.Store, call, error, word) -> None:
    wanted = rows(10, 4)
    store.load({"user": wanted})
    with pytest.raises(error) as caught:
        call(store)
    assert isinstance(caught.value, warprow.WarprowError) and word in str(caught.value), caught.value
    assert caught.value.remedy
    np.testing.assert_array_equal(store.lookup("user", np.arange(10)), wanted)
    assert [it.name for it in store.tables()] == ["user"]


def test_hot_rows_are_in_memory(store: warprow.Store) -> None:
    wanted, counts = rows(1000, 16), np.zeros(1000, np.int64)
    hot = np.random.default_rng(1).choice(1000, 100, replace=False)
    counts[hot] = np.arange(1, 101)
    store.load({"user": wanted}, hotness={"user": counts})
    with store.attach(dram_bytes=100 * 64) as executor:
        assert executor.tiers("user") == {"hbm": 0, "dram": 100, "drives": 900}
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=1000, max_ids=1000)
        np.testing.assert_array_equal(plan.lookup(hot), wanted[hot])
        report = plan.report()
        assert report is not None and (report["ids_dram"], report["ids_ssd"]) == (100, 0)
        np.testing.assert_array_equal(plan.lookup(np.arange(1000)), wanted)
        assert executor.metrics()["lookups"] == 2 and executor.metrics()["ids"] == 1100


def test_a_cache_has_what_was_read(store: warprow.Store) -> None:
    table = rows(1000, 128)
    store.load({"user": table})
    ids = np.arange(0, 1000, 7)
    with store.attach(cache_bytes=1 << 20) as executor:
        assert "cache_bytes=1048576" in repr(executor) and "cache_admission" not in repr(executor)
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=len(ids), max_ids=len(ids))
        for found in (0, len(ids)):
            assert (plan.lookup(ids) == table[ids]).all()
            report = plan.report()
            assert report is not None
            assert (report["ids_cached"], report["rows_cached"], report["ids_ssd"]) == (found, found, len(ids) - found)
        statistics = executor.cache_statistics()
        assert statistics is not None and statistics["lines"] >= 1000
        assert (statistics["used"], statistics["admissions"], statistics["evictions"]) == (len(ids), len(ids), 0)
        assert (statistics["hits"], statistics["misses"]) == (len(ids), len(ids))
        assert statistics["eviction_age"] == 0
        metrics = executor.metrics()
        assert metrics["ids_cached"] == len(ids)
        assert {name: metrics[f"cache_{name}"] for name in statistics} == statistics
        executor.clear_cache()
        assert (plan.lookup(ids) == table[ids]).all()
        report = plan.report()
        assert report is not None and report["ids_cached"] == 0
    with store.attach() as executor:
        for call in (executor.warm, executor.pin, executor.unpin):
            with pytest.raises(warprow.InvalidArgument, match="an executor on the CPU"):
                call("user", ids)
        assert executor.cache_statistics() is None and not [name for name in executor.metrics() if name.startswith("cache_")]
        with pytest.raises(warprow.InvalidArgument, match="cache_bytes=") as caught:
            executor.clear_cache()
        assert caught.value.argument == "cache_bytes"


def test_a_table_has_a_share_of_the_cache(store: warprow.Store) -> None:
    tables = {"item": rows(1000, 128), "user": 2 * rows(1000, 128)}
    store.load(tables)
    ids = np.arange(1000)
    # Room for about 300 of the 2,000 rows, of which 220 are of one table.
    shares = {"item": 220 * 600}
    with store.attach(cache_bytes=300 * 600, cache_shares=shares) as executor:
        assert "cache_shares=" in repr(executor)
        plans = {name: executor.plan([warprow.Feature(name, name)], max_batch=1000, max_ids=1000) for name in tables}

        def cached(name: str, ids: np.ndarray) -> int:
            assert (plans[name].lookup(ids) == tables[name][ids]).all()
            report = plans[name].report()
            assert report is not None
            return int(report["ids_cached"])

        assert cached("item", ids[:200]) == 0
        for first in range(0, 3000, 40):
            cached("user", ids[first % 1000 : first % 1000 + 40])
        assert cached("item", ids[:200]) == 200
        statistics = executor.cache_statistics()
        assert statistics is not None and 250 < statistics["lines"] < 340
        assert statistics["evictions"] > 2000 and 0 < statistics["eviction_age"] < 1000
    for shares, words in (
        ({"item": 1 << 30}, "come to 1073741824 bytes, and the cache has 1048576"),
        ({"item": 1000}, "no room for 64 rows"),
    ):
        with pytest.raises(warprow.InvalidArgument, match=words):
            store.attach(cache_bytes=1 << 20, cache_shares=shares)
    with pytest.raises(warprow.InvalidArgument, match="\"item\".* all its rows lie in DRAM"):
        store.attach(cache_bytes=1 << 20, dram_bytes=1 << 30, cache_shares={"item": 1 << 19})
    with pytest.raises(warprow.InvalidArgument, match="the cache has 0"):
        store.attach(cache_shares={"item": 1 << 19})
    with pytest.raises(warprow.NoSuchTable, match="shop"):
        store.attach(cache_bytes=1 << 20, cache_shares={"shop": 1 << 19})


def test_memory_follows_what_is_looked_up(store: warprow.Store) -> None:
    table = rows(1000, 16)
    store.load({"user": table})
    hot = np.arange(500, 600)
    with store.attach(dram_bytes=100 * 64, counter_bytes=1 << 20, count_every=1) as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=1000, max_ids=1000)
        for _ in range(5):
            np.testing.assert_array_equal(plan.lookup(hot), table[hot])
        ids, counts = executor.popular("user")
        assert ids.dtype == np.int64 and sorted(ids.tolist()) == hot.tolist() and (counts == 5).all()
        assert [len(column) for column in executor.popular("user", 3)] == [3, 3]
        assert executor.rerank_by_counts() == {"user": 100}
        np.testing.assert_array_equal(plan.lookup(hot), table[hot])
        report = plan.report()
        assert report is not None and (report["ids_dram"], report["ids_ssd"]) == (100, 0)
        np.testing.assert_array_equal(plan.lookup(np.arange(1000)), table)
        assert executor.rerank_by_counts() == {}
        with pytest.raises(warprow.InvalidArgument, match="most"):
            executor.popular("user", -1)
        with pytest.raises(warprow.InvalidArgument, match="bytes_per_second"):
            executor.rerank_by_counts(bytes_per_second=0)
        with pytest.raises(warprow.WarprowError, match="absent"):
            executor.popular("absent")
    with store.attach() as executor:
        with pytest.raises(warprow.InvalidArgument, match="counter_bytes"):
            executor.popular("user")
        with pytest.raises(warprow.InvalidArgument, match="counter_bytes="):
            executor.rerank_by_counts()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"counter_bytes": -1}, "counter_bytes"),
        ({"counter_bytes": 100}, "12288"),
        ({"counter_bytes": 1 << 20, "count_every": 0}, "count_every"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"cache_bytes": 1 << 64}, "cache_bytes"),
        ({"cache_bytes": 100}, "no room"),
        ({"cache_batch_rows": 0}, "cache_batch_rows"),
        ({"cache_admission": "sometimes"}, "cache_admission"),
        ({"cache_admission": 0.0}, "cache_admission"),
        ({"cache_admission": 1.5}, "cache_admission"),
        ({"cache_admission": float("nan")}, "cache_admission"),
        ({"cache_bytes": 1 << 20, "cache_dram": True}, "cache_dram"),
    ],
)
def test_caches_that_cannot_be_are_refused_by_name(store: warprow.Store, options, word: str) -> None:
    store.load({"user": rows(1000, 128)})
    with pytest.raises(warprow.InvalidArgument, match=word):
        store.attach(**options)
    store.attach(cache_bytes=1 << 20, cache_batch_rows=100, cache_admission=1).close()
    store.attach(cache_bytes=1 << 20, cache_admission="sketch").close()


@pytest.mark.parametrize("signed", [True, False])
def test_keys_lead_to_their_rows(store: warprow.Store, signed: bool) -> None:
    wanted = rows(300, 4)
    keys = np.random.default_rng(3).choice(2**40, 300, replace=False).astype(np.int64 if signed else np.uint64)
    if signed:
        keys = keys - 2**39
    store.load({"user": wanted}, keys={"user": keys})
    assert store.table("user").keyed
    shuffled = np.random.default_rng(4).permutation(300)
    np.testing.assert_array_equal(store.lookup("user", keys[shuffled]), wanted[shuffled])
    exported = store.export("user")
    assert exported.keys is not None
    by_key = dict(zip(exported.keys.tolist(), exported.rows, strict=True))
    for key, row in zip(keys.tolist(), wanted, strict=True):
        np.testing.assert_array_equal(by_key[key], row)
    with pytest.raises(warprow.NoSuchKey):
        store.update("user", [5], rows(1, 4, 9))
    new = rows(1, 4, 9)
    store.update("user", [5], new, create=True)
    np.testing.assert_array_equal(store.lookup("user", [5]), new)
    store.compact(store.table("user").generation)
    np.testing.assert_array_equal(store.lookup("user", [5]), new)
    assert len(store.export("user").rows) == 301


def test_removed_keys_are_as_if_they_never_were(store: warprow.Store) -> None:
    wanted = rows(300, 4)
    keys = np.arange(300, dtype=np.int64) * 1000 - 7000
    store.load({"user": wanted, "dense": wanted}, keys={"user": keys})
    gone = np.arange(300) % 3 == 1
    with store.attach() as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=300, max_ids=300, missing="zero")
        np.testing.assert_array_equal(plan.lookup(keys), wanted)
        assert store.remove("user", np.append(keys[gone], [1, 2])) == 100
        left = np.where(gone[:, None], 0, wanted)
        np.testing.assert_array_equal(plan.lookup(keys), left)
    assert store.remove("user", keys[gone]) == 0
    for compacted in [False, True]:
        np.testing.assert_array_equal(store.lookup("user", keys[~gone]), wanted[~gone])
        exported = store.export("user")
        assert exported.keys is not None and exported.keys.tolist() == keys[~gone].tolist()
        np.testing.assert_array_equal(exported.rows, wanted[~gone])
        if not compacted:
            store.compact(store.table("user").generation)
    with pytest.raises(warprow.NoSuchKey):
        store.update("user", keys[gone][:1], rows(1, 4, 9))
    new = rows(1, 4, 9)
    store.update("user", keys[gone][:1], new, create=True)
    np.testing.assert_array_equal(store.lookup("user", keys[gone][:1]), new)
    with pytest.raises(warprow.InvalidArgument, match="no keys"):
        store.remove("dense", [1])
    with pytest.raises(warprow.InvalidArgument, match="would be left"):
        store.remove("user", keys)
    with pytest.raises(warprow.NoSuchTable):
        store.remove("nobody", [1])


def test_keys_expire_by_last_touch(store: warprow.Store, tmp_path: Path) -> None:
    wanted = rows(300, 4)
    keys = np.arange(300, dtype=np.int64) * 1000 - 7000
    store.load({"user": wanted, "dense": wanted}, keys={"user": keys})
    files = [tmp_path / "a.touches", str(tmp_path / "b.touches")]
    for number, file in enumerate(files):
        with store.attach(touch_epoch=3, dram_bytes=100 * 16, cache_bytes=1 << 16) as executor:
            plan = executor.plan([warprow.Feature("user", "user")], max_batch=300, max_ids=300, missing="zero")
            plan.lookup(keys[:50])
            assert executor.touch_epoch == 3
            executor.set_touch_epoch(5 + number)
            plan.lookup(np.append(keys[100 * number : 100 * number + 100], [1, 2]))
            executor.save_touches(file)
            with pytest.raises(warprow.InvalidArgument, match="epochs do not go back"):
                executor.set_touch_epoch(4)
            with pytest.raises(warprow.InvalidArgument, match="65535"):
                executor.set_touch_epoch(0)
    # A file goes on with what it has.
    with store.attach(touch_epoch=7) as executor:
        executor.plan([warprow.Feature("user", "user")], max_batch=300, max_ids=300).lookup(keys[200:210])
        executor.save_touches(files[0])
    planned = store.expire("user", files, before=6, dry_run=True)
    assert planned == warprow.ExpireReport(keys=300, expired=190, removed=0, unknown=0, updated=0)
    assert store.expire("user", files[0], before=6, dry_run=True).expired == 290
    done = store.expire("user", files, before=6, batch=64)
    assert done == warprow.ExpireReport(keys=300, expired=190, removed=190, unknown=0, updated=0)
    left = np.arange(300)
    left = left[(left >= 100) & (left < 210)]
    for compacted in [False, True]:
        exported = store.export("user")
        assert exported.keys is not None and exported.keys.tolist() == keys[left].tolist()
        np.testing.assert_array_equal(exported.rows, wanted[left])
        if not compacted:
            store.compact(store.table("user").generation)
    assert store.expire("user", files, before=6) == warprow.ExpireReport(110, 0, 0, 0, 0)
    (tmp_path / "text").write_bytes(b"no touches")
    for call, argument, word in (
        (lambda: store.expire("user", files, before=9), "keys", "would be left"),
        (lambda: store.expire("dense", files, before=6), "table", "no keys"),
        (lambda: store.expire("user", tmp_path / "nobody", before=6), "touches", "nobody"),
        (lambda: store.expire("user", tmp_path / "text", before=6), "touches", "no record of last touches"),
        (lambda: store.expire("user", [], before=6), "touches", "save_touches"),
        (lambda: store.expire("user", files, before=0), "before", "65535"),
        (lambda: store.expire("user", files, before=6, batch=0), "batch", "from 1 to"),
        (lambda: store.attach(touch_epoch=70_000), "touch_epoch", "65535"),
        (lambda: store.attach("cuda", touch_epoch=0), "touch_epoch", "65535"),
    ):
        with pytest.raises(warprow.InvalidArgument, match=word) as raised:
            call()
        assert raised.value.argument == argument
    with store.attach() as executor:
        assert executor.touch_epoch is None
        with pytest.raises(warprow.InvalidArgument, match="touch_epoch="):
            executor.save_touches(files[0])


def test_types_are_converted(store: warprow.Store) -> None:
    wanted = rows(64, 8)
    store.load({"half": wanted, "brain": wanted}, dtype={"half": "f16", "brain": "bf16"})
    assert [it.dtype for it in store.tables()] == ["f16", "bf16"] or {it.name: it.dtype for it in store.tables()} == {
        "half": "f16",
        "brain": "bf16",
    }
    np.testing.assert_array_equal(store.lookup("half", np.arange(64)), wanted.astype(np.float16))
    brain = store.lookup("brain", np.arange(64))
    assert brain.dtype == np.float32
    np.testing.assert_allclose(brain, wanted, rtol=2**-8)
    assert not (brain.view(np.uint32) & 0xFFFF).any()


def test_updates_switches_and_generations(store: warprow.Store) -> None:
    old, new = rows(200, 8), rows(200, 8, 5)
    first = store.load({"user": old}).generation
    changed = old.copy()
    changed[[3, 150]] = rows(2, 8, 6)
    store.update("user", [3, 150], changed[[3, 150]])
    np.testing.assert_array_equal(store.lookup("user", np.arange(200)), changed)
    np.testing.assert_array_equal(store.export("user").rows, changed)
    second = store.load({"user": new}, standby=True).generation
    np.testing.assert_array_equal(store.lookup("user", np.arange(200)), changed)
    with store.attach() as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=200, max_ids=200)
        np.testing.assert_array_equal(plan.lookup(np.arange(200)), changed)
        store.switch(second)
        np.testing.assert_array_equal(plan.lookup(np.arange(200)), changed)
        executor.adopt()
        np.testing.assert_array_equal(plan.lookup(np.arange(200)), new)
    np.testing.assert_array_equal(store.lookup("user", np.arange(200)), new)
    assert [(it.id, bool(it.found)) for it in store.generations()] == [(first, False), (second, True)]
    with store.attach() as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=200, max_ids=200)
        # With a generation, `adopt` switches the store as well.
        for generation, wanted in ((first, changed), (second, new)):
            executor.adopt(generation)
            np.testing.assert_array_equal(plan.lookup(np.arange(200)), wanted)
            assert store.table("user").generation == generation
        with pytest.raises(warprow.NoSuchGeneration):
            executor.adopt(99)
        np.testing.assert_array_equal(plan.lookup(np.arange(200)), new)
    store.drop(first)
    assert [it.id for it in store.generations()] == [second]


def safetensors(path, tensors: dict[str, np.ndarray]) -> None:
    header, at, body = {}, 0, b""
    for name, tensor in tensors.items():
        body += tensor.tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, len(body)]}
        at = len(body)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def test_files_are_loaded_and_attached(store: warprow.Store, tmp_path) -> None:
    tables = {"emb.user": rows(50, 8), "emb.item": rows(70, 8, 1), "mlp.bias": rows(1, 9)[0]}
    path = tmp_path / "model.safetensors"
    safetensors(path, tables)
    store.load(path, select="emb.*", names={"emb.user": "user"})
    assert sorted(it.name for it in store.tables()) == ["emb.item", "user"]
    np.testing.assert_array_equal(store.lookup("user", np.arange(50)), tables["emb.user"])
    np.testing.assert_array_equal(store.lookup("emb.item", np.arange(70)), tables["emb.item"])
    np.save(tmp_path / "items.npy", tables["emb.item"])
    store.load(tmp_path / "items.npy")
    np.testing.assert_array_equal(store.lookup("items", np.arange(70)), tables["emb.item"])
    with warprow.open(f"attached:{path}") as attached:
        assert attached.read_only
        np.testing.assert_array_equal(attached.lookup("emb.user", np.arange(50)), tables["emb.user"])
        with pytest.raises(warprow.ReadOnly):
            attached.load({"v": rows(3, 4)})


def test_plans_pool(store: warprow.Store) -> None:
    user, item = rows(100, 4), rows(60, 6, 1)
    store.load({"user": user, "item": item})
    features = [
        warprow.Feature("clicks", "user", pooling="sum", weighted=True),
        warprow.Feature("seen", "item", pooling="mean", padding=0),
    ]
    with store.attach(dram_bytes=1000) as executor:
        plan = executor.plan(features, max_batch=10, max_ids=50)
        assert plan.width == 10 and plan.columns() == {"clicks": slice(0, 4), "seen": slice(4, 10)}
        # Two bags of each feature.
        ids, offsets = [1, 2, 3, 0, 5, 0], [0, 2, 3, 5]
        weights = np.array([0.5, 2, 1, 1, 1, 1], np.float32)
        found = plan.lookup(ids, offsets=offsets, weights=weights)
        clicks = [user[1] * np.float32(0.5) + user[2] * np.float32(2), user[3]]
        np.testing.assert_array_equal(found[:, :4], clicks)
        np.testing.assert_array_equal(found[:, 4:], [item[5], np.zeros(6)])
        with pytest.raises(warprow.InvalidArgument, match="ascend|smaller|before|rule|offsets"):
            plan.lookup(ids, offsets=[0, 3, 2, 5], weights=weights)
        with pytest.raises(warprow.InvalidArgument, match="weight"):
            plan.lookup(ids, offsets=offsets)


def test_a_store_is_closed_and_opened_again(address: str) -> None:
    wanted = rows(50, 8)
    with warprow.format(address) as store:
        store.load({"user": wanted})
        executor = store.attach()
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=50, max_ids=50)
        with pytest.raises(warprow.StoreInUse):
            warprow.open(address)
        assert "user (50 x 8 f32)" in repr(store)
    assert store.closed and "closed" in repr(store)
    for call in (store.tables, lambda: plan.lookup([1]), executor.metrics, lambda: store.lookup("user", [1])):
        with pytest.raises(warprow.Closed):
            call()
    store.close()
    with warprow.open(address, read_only=True) as again:
        np.testing.assert_array_equal(again.lookup("user", np.arange(50)), wanted)
        with pytest.raises(warprow.ReadOnly):
            again.update("user", [1], wanted[:1])


def test_a_format_asks_before_it_destroys(address: str) -> None:
    with warprow.format(address) as store:
        store.load({"user": rows(50, 8)})
    with pytest.raises(warprow.ConsentNeeded) as caught:
        warprow.format(address)
    assert "user" in str(caught.value) and caught.value.token
    with pytest.raises(warprow.ConsentNeeded):
        warprow.format(address, consent="no")
    with warprow.format(address, consent=caught.value.token) as store:
        assert store.tables() == []


@pytest.mark.parametrize(
    ("drives", "error"),
    [
        ("nothing", warprow.AddressError),
        ("emulated:", warprow.AddressError),
        ("emulated:a.drive?size=0", warprow.AddressError),
        ("emulated:a.drive?size=1G&size=2G", warprow.AddressError),
        ("emulated:a.drive?sise=64M", warprow.AddressError),
        ("emulated:a.drive?latency=20us", warprow.AddressError),
        ("emulated:/nowhere/at/all", warprow.OpenError),
        ("0000:ff:1f.7", warprow.OpenError),
        ([], warprow.InvalidArgument),
        (5, TypeError),
        ([5], warprow.WrongType),
    ],
)
def test_addresses_that_are_none(drives, error) -> None:
    with pytest.raises(error):
        warprow.open(drives)


def test_updates_without_room_say_what_makes_room(address) -> None:
    wanted = rows(100, 4)
    with warprow.format(address, overlay_bytes=1000) as store:
        store.load({"user": wanted})
        with pytest.raises(warprow.StoreFailed, match="1000 are allowed") as caught:
            store.update("user", np.arange(100), wanted + 1)
        assert "Store.compact" in caught.value.remedy and "overlay_bytes" in caught.value.remedy
        np.testing.assert_array_equal(store.lookup("user", np.arange(100)), wanted)


def test_what_features_of_a_plan_cannot_be_is_told_in_words_of_python(store: warprow.Store) -> None:
    store.load({"user": rows(10, 4)})
    features = [warprow.Feature("a", "user", pooling="sum"), warprow.Feature("a", "user", pooling="mean")]
    with store.attach() as executor:
        # Columns are told by name.
        with pytest.raises(warprow.InvalidArgument, match="two features are called 'a'"):
            executor.plan(features, max_batch=1, max_ids=4)
        with pytest.raises(warprow.InvalidArgument, match='give pooling="sum", or leave weighted=True out'):
            executor.plan([warprow.Feature("a", "user", pooling="mean", weighted=True)], max_batch=1, max_ids=4)


def test_drives_that_a_gpu_plays(tmp_path) -> None:
    played = [f"emulated:{tmp_path}/{number}.drive,size=64M,gpu=0" for number in range(2)]
    if warprow._native.gpu_count() == 0:
        # The program knows such drives, and lacks the GPU alone.
        with pytest.raises(warprow.OpenError, match="driver|GPU 0"):
            warprow.format(played)
        assert not list(tmp_path.glob("*.drive"))
        return
    with warprow.format(played) as store:
        wanted = rows(3000, 128)
        store.load({"user": wanted})
        np.testing.assert_array_equal(store.lookup("user", np.arange(3000)), wanted)


def test_progress_and_what_ends_a_load(store: warprow.Store) -> None:
    wanted = rows(40_000, 64)
    told: list[tuple[int, int]] = []
    store.load({"user": wanted}, progress=lambda done, total: told.append((done, total)))
    assert told and told[-1][0] == told[-1][1] and told == sorted(told)

    class Bar:
        total, at = None, 0

        def update(self, by: int) -> None:
            self.at += by

    bar = Bar()
    store.load({"second": wanted}, progress=bar)
    assert bar.at == bar.total

    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.load({"third": wanted}, progress=fail)
    assert sorted(it.name for it in store.tables()) == ["second", "user"]
    np.testing.assert_array_equal(store.lookup("user", np.arange(0, 40_000, 100)), wanted[::100])


def test_ctrl_c_ends_a_load(store: warprow.Store) -> None:
    wanted = rows(100_000, 64)

    def interrupt(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt):
        store.load({"user": wanted}, progress=interrupt)
    assert store.tables() == []


def test_threads_look_up_at_once(store: warprow.Store) -> None:
    wanted = rows(2000, 16)
    store.load({"user": wanted})
    failures: list[object] = []
    with store.attach() as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=100, max_ids=100, slots=2)

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(30):
                ids = random.integers(0, 2000, 100)
                if not np.array_equal(plan.lookup(ids), wanted[ids]):
                    failures.append(ids)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_fork_is_refused_by_name(store: warprow.Store) -> None:
    wanted = rows(50, 8)
    store.load({"user": wanted})
    store.lookup("user", [1])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = "nothing was raised"
        try:
            store.lookup("user", [1])
        except warprow.Forked as error:
            text = f"Forked {error.pid == os.getppid()}"
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000).decode() == "Forked True"
    np.testing.assert_array_equal(store.lookup("user", np.arange(50)), wanted)


def test_importing_the_package_imports_neither_numpy_nor_torch() -> None:
    text = "import sys, warprow; print('numpy' in sys.modules, 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_opens_and_closes_leave_nothing(address: str) -> None:
    with warprow.format(address) as store:
        store.load({"user": rows(50, 8)})

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    counts = []
    for _ in range(30):
        with warprow.open(address) as store:
            store.lookup("user", [1, 2])
        counts.append(held())
    assert counts[-1] == counts[4]


def test_listed_rows_lie_in_dram(store: warprow.Store) -> None:
    wanted = rows(1000, 16)
    store.load({"user": wanted})
    listed = np.arange(500, 700)
    report = store.rerank("user", listed)
    assert report == warprow.RerankReport(listed=200, before=None, added=200, missing=0, repeated=0)
    report = store.rerank("user", [900, 500, 900, -1, 1000])
    assert report == warprow.RerankReport(listed=2, before=200, added=1, missing=2, repeated=1)
    store.rerank("user", listed.astype(np.uint32))
    with store.attach(dram_bytes=200 * 64) as executor:
        assert executor.tiers("user") == {"hbm": 0, "dram": 200, "drives": 800}
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=1000, max_ids=1000)
        np.testing.assert_array_equal(plan.lookup(np.arange(1000)), wanted)
        np.testing.assert_array_equal(plan.lookup(listed), wanted[listed])
        report = plan.report()
        assert report is not None and (report["ids_dram"], report["ids_ssd"]) == (200, 0)
        # The executor goes over to another list when it adopts.
        store.rerank("user", np.arange(100))
        np.testing.assert_array_equal(plan.lookup(listed), wanted[listed])
        executor.adopt()
        np.testing.assert_array_equal(plan.lookup(np.arange(1000)), wanted)
        np.testing.assert_array_equal(plan.lookup(np.arange(100)), wanted[:100])
        report = plan.report()
        assert report is not None and (report["ids_dram"], report["ids_ssd"]) == (100, 0)
    assert store.rerank("user", None).before == 100
    assert len(store.generations()) == 1
    with pytest.raises(warprow.NoSuchTable):
        store.rerank("item", [1])
    with pytest.raises(warprow.WrongType, match="ids"):
        store.rerank("user", [1.5])
