"""Tier proposals, compared with what look-ups then find in memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import warprow

ROWS, DIM = 5000, 16
ROW_BYTES = DIM * 4


def clicks(queries: int = 2000, seed: int = 0) -> np.ndarray:
    """Two ids a query: one of a hundred hot rows that lie anywhere, and one of all rows."""
    random = np.random.default_rng(seed)
    hot = np.random.default_rng(99).permutation(ROWS)[:100]
    return np.stack([hot[random.integers(0, 100, queries)], random.integers(0, ROWS, queries)], axis=1)


def rows() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, DIM), dtype=np.float32)


OPTIONS = {"batch": 64, "typical_host": True}


def test_rows_lie_where_the_proposal_says(store: warprow.Store, tmp_path: Path) -> None:
    trace = clicks()
    told: list[tuple[int, int]] = []
    proposal = warprow.plan(
        {"user": (ROWS, DIM)}, {"user": trace}, dram_bytes=100 * ROW_BYTES, progress=lambda *it: told.append(it), **OPTIONS
    )
    user = proposal.table("user")
    assert (user.rows, user.dim, user.dtype, user.row_bytes, user.hbm_rows, user.dram_rows) == (ROWS, DIM, "f32", 64, 0, 100)
    assert user.seen_rows == len(np.unique(trace)) and user.count_error == 0
    assert proposal.trace is not None and proposal.trace["queries"] == 2000 and proposal.trace["ids"] == 4000
    expected = proposal.expected
    assert expected is not None and expected.hbm == 0 and 0.5 <= expected.dram < 0.55
    assert expected.dram + expected.ssd == pytest.approx(1) and expected.ids == pytest.approx(128, rel=0.1)
    assert expected.intervals[0].low <= expected.dram <= expected.intervals[0].high
    assert [point["bytes"] for point in proposal.curve] == sorted(point["bytes"] for point in proposal.curve)
    assert told and "50" in repr(proposal) or "51" in repr(proposal)
    assert "<svg" in proposal.svg()
    # What the command reads and writes is the same file.
    path = tmp_path / "plan.safetensors"
    proposal.save(path)
    again = warprow.Proposal.read(path)
    assert again.tables == proposal.tables and again.expected == expected
    store.load({"user": rows(), "other": rows()}, plan=path)
    with store.attach(**again.attach_options()) as executor:
        assert executor.tiers("user")["dram"] == 100 and executor.tiers("other")["dram"] == 0
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=8192, max_ids=8192)
        # Queries that the proposal has not seen.
        unseen = clicks(seed=7).reshape(-1)
        np.testing.assert_array_equal(plan.lookup(unseen), rows()[unseen])
        report = plan.report()
        assert report is not None
        assert abs(report["ids_dram"] / len(unseen) - expected.dram) < 0.03


def test_counts_say_the_same_of_tiers() -> None:
    trace = clicks()
    counts = np.bincount(trace.reshape(-1), minlength=ROWS)
    by_counts = warprow.plan({"user": (ROWS, DIM)}, hotness={"user": counts}, dram_bytes=100 * ROW_BYTES)
    assert by_counts.table("user").dram_rows == 100 and by_counts.expected is None and by_counts.trace is None
    share = np.sort(counts)[::-1][:100].sum() / counts.sum()
    assert by_counts.shares == pytest.approx((0, share, 1 - share))
    for call, word in (
        (lambda: by_counts.save("/nowhere"), "counts"),
        (by_counts.svg, "counts"),
        (lambda: by_counts.table("item"), "item"),
    ):
        with pytest.raises(warprow.InvalidArgument, match=word):
            call()


def test_memory_goes_to_the_rows_that_are_looked_up_most_of_all_tables() -> None:
    hot, cold = np.full(100, 9), np.arange(100)[::-1] // 25
    tables = {"hot": (100, 16), "cold": (100, 16, "f16")}
    budgets = {"hbm_bytes": 50 * 64, "dram_bytes": 50 * 64 + 25 * 32}
    proposal = warprow.plan(tables, hotness={"hot": hot, "cold": cold}, **budgets)
    found = {table.name: (table.hbm_rows, table.dram_rows) for table in proposal.tables}
    # 64 bytes for 9 look-ups each; of the others, 32 bytes for 3 look-ups and fewer.
    assert found == {"hot": (50, 50), "cold": (0, 25)}
    assert proposal.attach_options() == {**budgets, "hbm_rows": {"hot": 50, "cold": 0}}
    assert proposal.shares == pytest.approx((450 / 1050, 525 / 1050, 75 / 1050))


def test_an_executor_on_a_gpu_has_the_rows_that_are_proposed(store: warprow.Store) -> None:
    for rows_of, error in (({"item": 1}, warprow.NoSuchTable), ({"user": -1}, warprow.InvalidArgument)):
        store.load({"user": rows()}, replace=True)
        with pytest.raises(error, match="item|user"):
            store.attach("cpu", hbm_rows=rows_of)
    with pytest.raises(warprow.InvalidArgument, match="prefetch_multiprocessors"):
        store.attach("cpu", prefetch_multiprocessors=0)
    with pytest.raises(warprow.InvalidArgument, match="prefetch_priority.*highest.*normal"):
        store.attach("cpu", prefetch_priority="highest")
    if warprow._native.gpu_count() == 0:
        pytest.skip("there is no GPU")
    hot, cold = np.full(100, 9), np.arange(100)[::-1] // 25
    budgets = {"hbm_bytes": 60 * 64, "dram_bytes": 50 * 64}
    proposal = warprow.plan({"hot": (100, 16), "cold": (100, 16)}, hotness={"hot": hot, "cold": cold}, **budgets)
    tables = {name: np.random.default_rng(1).random((100, 16), dtype=np.float32) for name in ("hot", "cold")}
    store.load(tables, hotness={"hot": hot, "cold": cold})
    with store.attach("cuda", **proposal.attach_options()) as executor:
        # Without `hbm_rows` each table would have 30.
        assert [executor.tiers(table.name)["hbm"] for table in proposal.tables] == [60, 0]
        assert [table.hbm_rows for table in proposal.tables] == [60, 0]


def test_traces_of_several_tables(tmp_path: Path) -> None:
    user, item = clicks(500), np.random.default_rng(2).integers(0, 300, 1500)
    offsets = np.arange(0, 1501, 3)
    tables = {"user": (ROWS, DIM), "item": warprow.TableShape(300, 8, "f16")}
    budget = {"dram_bytes": 1 << 14}
    in_memory = warprow.plan(tables, {"user": user, "item": (item, offsets)}, **budget, **OPTIONS)
    np.save(tmp_path / "user.npy", user)
    of_file = warprow.plan(tables, {"user": f"npy:{tmp_path}/user.npy", "item": (item, offsets)}, **budget, **OPTIONS)
    assert in_memory.tables == of_file.tables and in_memory.expected == of_file.expected
    assert [it.name for it in in_memory.tables] == ["user", "item"]


def test_keys_are_planned_for(store: warprow.Store) -> None:
    keys = np.random.default_rng(5).choice(2**40, ROWS, replace=False)
    trace = keys[clicks()]
    store.load({"user": rows()}, keys={"user": keys})
    proposal = warprow.plan(store, {"user": trace}, dram_bytes=1 << 16, **OPTIONS)
    user = proposal.table("user")
    assert user.index_bytes is not None and 0 < user.dram_rows <= ((1 << 16) - user.index_bytes) // ROW_BYTES
    store.load({"user": rows()}, keys={"user": keys}, plan=proposal, replace=True)
    with store.attach(**proposal.attach_options()) as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=8192, max_ids=8192)
        np.testing.assert_array_equal(plan.lookup(trace.reshape(-1)), rows()[clicks().reshape(-1)])
        report = plan.report()
        assert report is not None and report["ids_dram"] >= 0.5 * trace.size
    # A proposal for tables that are not loaded yet.
    shape = {"user": warprow.TableShape(ROWS, DIM, keyed=True)}
    assert warprow.plan(shape, {"user": trace}, dram_bytes=1 << 16, **OPTIONS).table("user").index_bytes


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        (({"user": (10, 4)},), {}, "trace"),
        (({"user": (10, 4)}, {"user": [1] * 20}), {"hotness": {"user": [1] * 10}}, "hotness"),
        (({"user": (10, 4)}, {"user": [1] * 20, "item": [1] * 20}), {}, "item"),
        (({"user": (10, 4), "item": (10, 4)}, {"user": [1] * 20}), {}, "item"),
        (({"user": (10, 4)}, {"user": [1] * 5}), {}, "queries"),
        (({"user": (10, 4)}, {"user": [1] * 19 + [-1]}), {}, "allow_missing=True"),
        (({"user": (10, 4)}, {"user": [1] * 19 + [10]}), {}, "id 10, in query 19"),
        (({"user": (10, 4)}, {"user": [1.5] * 20}), {}, "float64"),
        (({"user": (10, 4)}, {"user": (np.arange(5), [0, 3, 2, 5])}), {}, "offsets"),
        (({"user": (10, 4)}, {"user": (np.arange(5), [1, 3, 5])}), {}, "offsets"),
        (({"user": (10, 4)}, {"user": np.ones((2, 2, 2), int)}), {}, "dimensions"),
        (({"user": (0, 4)}, {"user": [1] * 20}), {}, "rows"),
        (({"user": (10, 4, "f64")}, {"user": [1] * 20}), {}, "f64"),
        (({"user": (10, 4)}, {"user": [1] * 20}), {"drives": "floppy"}, "profiles"),
        (({"user": (10, 4)}, {"user": [1] * 20}), {"held_out": 0.9}, "held"),
        (({"user": (10, 4)}, {"user": [1] * 20}), {"group": "some"}, "some"),
        (({"user": (10, 4)}, {"user": [1] * 20}), {"dram_bytes": 1}, "DRAM"),
        (({"user": (10, 4)}, {"user": "/nowhere.npy"}), {}, "nowhere"),
        (({"user": (10, 4)}, {("user", "item"): [1] * 20}), {}, "item"),
        ((17, {"user": [1] * 20}), {}, "mapping"),
        (({"user": (10, 4)},), {"hotness": {"user": [1] * 9}}, "counts"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(arguments: tuple, options: dict, word: str) -> None:
    with pytest.raises(warprow.WarprowError, match=word) as caught:
        warprow.plan(*arguments, typical_host=True, **options)
    assert caught.value.remedy


def test_a_plan_of_another_table_is_refused(store: warprow.Store, tmp_path: Path) -> None:
    proposal = warprow.plan({"user": (10, 4)}, {"user": [1, 2] * 20}, typical_host=True)
    with pytest.raises(warprow.FileError, match="10 rows"):
        store.load({"user": rows()}, plan=proposal)
    with pytest.raises(warprow.InvalidArgument, match="hotness"):
        store.load({"user": rows()[:10]}, plan=proposal, hotness={"user": np.ones(10, int)})
    with pytest.raises(warprow.FileError, match="nowhere"):
        store.load({"user": rows()}, plan="/nowhere")
    np.save(tmp_path / "no.plan.npy", rows())
    with pytest.raises(warprow.FileError, match="plan"):
        store.load({"user": rows()}, plan=os.fspath(tmp_path / "no.plan.npy"))
    assert store.tables() == []


def test_what_progress_raises_ends_planning() -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        warprow.plan({"user": (ROWS, DIM)}, {"user": clicks()}, progress=fail, **OPTIONS)


def test_caches_are_compared_with_the_hottest_rows() -> None:
    # The hundred hot rows are others in each quarter: what was counted before says little of the rest.
    moving = np.concatenate([(clicks(500, seed) + seed * 1000) % ROWS for seed in range(4)])
    shapes, options = {"user": (ROWS, DIM)}, {"batch": 64, "held_out": 0.25, "typical_host": True}
    tier = 400 * ROW_BYTES
    proposal = warprow.plan(shapes, {"user": moving}, dram_bytes=tier, cache_bytes=tier, **options)
    assert proposal.expected is not None and proposal.cache is not None and proposal.gpu_cache is None
    cache = proposal.cache
    # The 400 rows that were looked up most in the first three quarters; of those that were looked up equally often any may be among them.
    counts = np.bincount(moving[:1500].ravel(), minlength=ROWS)
    last = np.sort(counts)[-400]
    surely, at_most = ((counts > last)[moving[1500:]].mean(), (counts >= last)[moving[1500:]].mean())
    assert cache.bytes == tier and surely <= cache.tier <= at_most and abs(cache.tier - proposal.expected.dram) < 0.01
    assert cache.cache > cache.tier + 0.1 and cache.cache_rows > cache.tier_rows
    assert cache.ahead in ("cache", "neither")
    on_gpu = warprow.plan(shapes, {"user": moving}, gpu_cache_bytes=1 << 20, **options)
    assert on_gpu.cache is None and on_gpu.gpu_cache is not None
    compared = on_gpu.gpu_cache
    hbm = warprow.plan(shapes, {"user": moving}, hbm_bytes=1 << 20, **options).expected
    assert hbm is not None and compared.tier == pytest.approx(hbm.hbm, abs=1e-12)
    # All rows fit: a cache lacks those that come for the first time, and those that come again in the same batch.
    flat = moving.ravel()
    _, first, at = np.unique(flat, return_index=True, return_inverse=True)
    ahead = (np.arange(flat.size) - first[at.ravel()])[3000:]
    least, most = ((ahead >= 128).mean(), (ahead > 0).mean())
    assert 0 < compared.least < 1 << 20 and compared.tier == 1
    assert least <= compared.always <= most and least <= compared.sketch <= most, (least, most)
    # A trace whose hot rows stay as they are.
    still = warprow.plan(shapes, {"user": clicks()}, cache_bytes=tier, **options).cache
    assert still is not None and still.tier > cache.tier + 0.1
    for wrong, argument, word in (
        ({"cache_bytes": 1000}, "cache_bytes", "bytes have enough"),
        ({"gpu_cache_bytes": compared.least - 1}, "gpu_cache_bytes", "bytes have enough"),
        ({"cache_bytes": -1}, "cache_bytes", "from 0 on"),
        ({"cache_bytes": tier, "hbm_bytes": tier}, "cache_bytes", "gpu_cache_bytes"),
    ):
        with pytest.raises(warprow.InvalidArgument, match=word) as raised:
            warprow.plan(shapes, {"user": moving}, **{**options, **wrong})
        assert raised.value.argument == argument
    with pytest.raises(warprow.InvalidArgument, match="give a trace"):
        warprow.plan(shapes, hotness={"user": np.ones(ROWS, np.uint64)}, cache_bytes=tier)
