"""What only a GPU has: graphs, streams, the mode in which torch refuses to synchronise."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_torch import DIM, ROWS, Model, attach, batch, random_ids, same, stored  # noqa: E402, F401


def test_captured_once_and_replayed_with_other_ids(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user")
    sizes = [64, 200, 1000]
    graphs, inputs, outputs = [], [], []
    for size in sizes:
        inputs.append(random_ids(size).cuda())
        ours(inputs[-1])
    torch.cuda.synchronize()
    for ids in inputs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs.append(ours(ids))
        graphs.append(graph)
    for seed in range(10):
        for graph, ids, out in zip(graphs, inputs, outputs, strict=True):
            ids.copy_(random_ids(len(ids), seed).cuda())
            graph.replay()
            same(out, table[ids])
            same(ours(ids.flip(0)), table[ids.flip(0)])
    ours.check()
    inputs[0][3] = ROWS + 5
    graphs[0].replay()
    torch.cuda.synchronize()
    with pytest.raises(warprow.MissingIds) as caught:
        ours.check()
    assert caught.value.id == ROWS + 5
    ours.check()
    assert ours.recover() is False
    # What captures hold goes with their graphs, and by itself.
    plan = ours._lookup.native
    assert plan.has_captures()
    del graphs, graph
    soon(lambda: not plan.has_captures())
    same(ours(inputs[1]), table[inputs[1]])
    ours.check()


def soon(is_so: Callable[[], bool]) -> None:
    """Waits until something is so that another thread does."""
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.01)


@pytest.mark.parametrize("admission", ["always", "sketch"])
def test_a_cache_in_gpu_memory_has_what_was_read(stored, admission: str) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    executor = store.attach("cuda", cache_bytes=8 << 20, cache_batch_rows=100, cache_admission=admission)
    ours = wt.Embedding(executor, "user")
    ids = torch.arange(0, 300, 3).cuda()
    graph = torch.cuda.CUDAGraph()
    same(ours(ids), table[ids])
    torch.cuda.synchronize()
    ours.check()
    with torch.cuda.graph(graph):
        out = ours(ids)
    # Of rows that want one line at once one gets it; a later look-up has the others kept.
    for _ in range(20):
        graph.replay()
        same(ours(ids), table[ids])
        same(out, table[ids])
    ours.check()
    report = ours.report()
    stages = [report[f"{stage}_seconds"] for stage in ("prepare", "fetch", "expand")]
    assert min(stages) >= 0 and abs(sum(stages) - report["seconds"]) < 1e-9
    assert report["ids_cached"] == len(ids) and report["ids_ssd"] == 0
    statistics = executor.cache_statistics()
    assert statistics["used"] == statistics["admissions"] == len(ids) and statistics["evictions"] == 0
    assert statistics["lines"] > 1000 and statistics["hold"] > 0 and statistics["refusals"] == 0
    # A look-up by the module, 20 by it and 20 by the graph.
    assert statistics["hits"] + statistics["misses"] == 41 * len(ids) and statistics["eviction_age"] == 0
    assert statistics["misses"] >= len(ids) and statistics["hits"] > 0
    assert executor.metrics() == {f"cache_{name}": count for name, count in statistics.items()}
    executor.clear_cache()
    assert executor.cache_statistics()["used"] == 0
    ids.copy_(torch.arange(300, 400))
    graph.replay()
    same(out, table[ids])
    ours.check()


def test_rows_are_warm_and_stay(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    executor = store.attach("cuda", cache_bytes=1 << 20)
    ours = warprow.torch.Embedding(executor, "user", dtype=torch.float32, max_ids=1000)
    warm = executor.warm("user", np.arange(100))
    assert (warm.ids, warm.cached, warm.missing, warm.left) == (100, 100, 0, 0)
    ids = torch.arange(100).cuda()
    same(ours(ids), table[ids])
    ours.check()
    assert ours.report()["ids_cached"] == 100
    pinned = executor.pin("user", [1, 2, 3, 3, 1 << 40])
    assert (pinned.pinned, pinned.already, pinned.missing, pinned.left) == (3, 0, 1, 0)
    assert executor.pin("user", [2, 3]).already == 2
    assert executor.cache_statistics()["pinned"] == 3
    assert executor.unpin("user", [3]) == 1 and executor.unpin("user") == 2
    with pytest.raises(warprow.InvalidArgument, match="hbm_rows=") as caught:
        store.attach("cuda", cache_bytes=1 << 17).pin("user", np.arange(len(table)))
    assert caught.value.argument == "ids"
    with pytest.raises(warprow.InvalidArgument, match="has no cache"):
        store.attach("cuda").warm("user", [1])


def test_what_is_cached_is_there_after_a_restart(stored, tmp_path) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    path = tmp_path / "rows"
    with store.attach("cuda", cache_bytes=1 << 20) as executor:
        executor.warm("user", np.arange(50))
        assert executor.save_cache(path) == 50
    with store.attach("cuda", cache_bytes=1 << 20) as executor:
        restored = executor.warm_from(path)
        assert restored.tables["user"].cached == 50 and restored.older == [] and restored.unknown == []
        ours = warprow.torch.Embedding(executor, "user", dtype=torch.float32, max_ids=1000)
        ids = torch.arange(50).cuda()
        same(ours(ids), table[ids])
        ours.check()
        assert ours.report()["ids_cached"] == 50
        path.write_bytes(b"nonsense")
        with pytest.raises(warprow.InvalidArgument, match="no list of a cache's rows") as caught:
            executor.warm_from(path)
        assert caught.value.argument == "path"


def test_keys_expire_that_no_look_up_on_a_gpu_has_touched(address: str, tmp_path) -> None:
    wanted = np.random.default_rng(3).standard_normal((300, 4), dtype=np.float32)
    keys = np.arange(300, dtype=np.int64) * 1000 - 7000
    path = tmp_path / "gpu.touches"
    with warprow.format(address) as store:
        store.load({"user": wanted}, keys={"user": keys})
        executor = store.attach("cuda", touch_epoch=3, hbm_bytes=100 * 16, overlay_bytes=1 << 20, adopting=True)
        assert executor.touch_epoch == 3
        ours = wt.Embedding(executor, "user", max_ids=300, missing="zero")
        ids = torch.from_numpy(keys[:50]).cuda()
        ours(ids)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = ours(ids)
        # A graph that was captured before the epoch was raised notes the epoch of its replay.
        executor.set_touch_epoch(5)
        ids.copy_(torch.from_numpy(keys[30:80]))
        graph.replay()
        torch.cuda.synchronize()
        same(out, torch.from_numpy(wanted[30:80]).cuda())
        ours.check()
        executor.save_touches(path)
        assert store.expire("user", path, before=5, dry_run=True).expired == 250
        with pytest.raises(warprow.InvalidArgument, match="epochs do not go back"):
            executor.set_touch_epoch(4)
        done = store.expire("user", path, before=5)
        assert (done.keys, done.expired, done.removed) == (300, 250, 250)
        graph.replay()
        torch.cuda.synchronize()
        same(out, torch.from_numpy(wanted[30:80]).cuda())
        ids.copy_(torch.from_numpy(keys[:50]))
        graph.replay()
        torch.cuda.synchronize()
        left = torch.from_numpy(np.where(np.arange(50)[:, None] >= 30, wanted[:50], 0)).cuda()
        same(out, left)
        executor.close()
        with store.attach("cuda", overlay_bytes=1 << 20) as executor:
            assert executor.touch_epoch is None
            with pytest.raises(warprow.InvalidArgument, match="touch_epoch="):
                executor.save_touches(path)


def test_caches_that_cannot_be_are_named(stored) -> None:  # noqa: F811
    store, _ = stored
    with pytest.raises(warprow.InvalidArgument, match="cache_bytes=") as caught:
        store.attach("cuda", cache_bytes=1000)
    assert caught.value.argument == "cache_bytes"
    for shares, words in (({"user": 100}, "give cache_shares="), ({"user": 1 << 30}, "give cache_bytes=")):
        with pytest.raises(warprow.InvalidArgument, match=words) as caught:
            store.attach("cuda", cache_bytes=1 << 20, cache_shares=shares)
        assert caught.value.argument == "cache_shares"
    with pytest.raises(warprow.NoSuchTable, match="shop"):
        store.attach("cuda", cache_bytes=1 << 20, cache_shares={"shop": 1000})
    executor = store.attach("cuda")
    assert executor.cache_statistics() is None
    with pytest.raises(warprow.InvalidArgument, match="has no cache"):
        executor.clear_cache()


@pytest.fixture
def failing(address: str) -> Iterator[tuple[warprow.Store, torch.Tensor, torch.Tensor]]:
    """A store whose drive has to answer in 0.4 s, its table on the GPU, and ids whose rows are read by a command each."""
    table = torch.randn(1000, 128, generator=torch.Generator().manual_seed(0))
    with warprow.format(address, timeout=0.4) as store:
        store.load({"user": table})
        yield store, table.cuda(), torch.arange(0, 1000, 30).cuda()


@pytest.mark.parametrize("on_failure", ["raise", "nan", "mask"])
def test_rows_that_failed(failing, on_failure: str) -> None:
    store, table, ids = failing
    ours = wt.Embedding(store.attach("cuda"), "user", on_failure=on_failure, mask="failed", missing="zero")
    ours(ids)
    ours.check()
    ids[2] = 1005
    store.inject_fault("unreadable", nth=4)
    found = ours(ids)
    if on_failure == "raise":
        with pytest.raises(warprow.RowsFailed) as caught:
            ours.check()
        assert caught.value.count == 1 and caught.value.drive == store.drives()[0].name and caught.value.command
    else:
        ours.check()
        assert (ours.report()["failed"], ours.report()["missing"]) == (1, 1)
    if on_failure == "mask":
        found, told = found
        hit = told
    else:
        hit = (found.isnan() if on_failure == "nan" else found == 0).all(1)
        hit[2] = False
    assert hit.sum() == 1
    wanted = table[ids.clamp(max=999)]
    wanted[2] = 0
    wanted[hit] = float("nan") if on_failure == "nan" else 0
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    ids[2] = 60
    found = ours(ids)
    same(found[0] if on_failure == "mask" else found, table[ids])
    ours.check()


def test_a_next_call_raises_what_befell_the_one_before(failing) -> None:
    store, table, ids = failing
    ours = wt.Embedding(store.attach("cuda"), "user")
    ours(ids)
    # The fault is for the second one.
    ours.check()
    store.inject_fault("unreadable")
    ours(ids)
    torch.cuda.synchronize()
    with pytest.raises(warprow.RowsFailed):
        ours(ids)
    same(ours(ids), table[ids])
    ours.check()


def test_runs_of_a_graph_that_failed_and_queues_that_are_brought_back(failing) -> None:
    store, table, ids = failing
    ours = wt.Embedding(store.attach("cuda"), "user")
    ours(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ours(ids)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    run()
    same(out, table[ids])
    ours.check()
    for fault in ("unreadable", "unanswered"):
        store.inject_fault(fault, nth=3)
        run()
        with pytest.raises(warprow.RowsFailed) as caught:
            ours.check()
        assert caught.value.count >= 1
        # Each run is told once.
        ours.check()
        # A queue whose command was not answered takes no commands until it is started anew; a status costs it nothing.
        assert ours.recover() is (fault == "unanswered")
        assert ours.recover() is False
        run()
        same(out, table[ids])
        ours.check()
    # A run that is overwritten was counted.
    store.inject_fault("unreadable", nth=3)
    run()
    run()
    same(out, table[ids])
    with pytest.raises(warprow.RunsFailed) as caught:
        ours.check()
    assert caught.value.count == 1
    ours.check()
    # What befell a graph that is gone by then is told as well.
    store.inject_fault("unreadable", nth=3)
    run()
    plan = ours._lookup.native
    del graph
    gc.collect()
    time.sleep(1)
    assert plan.has_captures()
    with pytest.raises(warprow.RowsFailed):
        ours.check()
    soon(lambda: not plan.has_captures())
    ours.check()


def test_both_halves_in_a_graph(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user", prefetch=2)
    inputs = [random_ids(300, seed).cuda() for seed in range(2)]
    same(ours.lookup(ours.prefetch(inputs[0])), table[inputs[0]])
    graphs, outputs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ahead = [ours.prefetch(ids) for ids in inputs]
            with pytest.raises(warprow.Busy):
                ours.prefetch(inputs[0])
            between = ours(inputs[1].flip(0))
            outs = [ours.lookup(it) for it in ahead]
            # A slot fetches ahead again in one capture.
            outs.append(ours.lookup(ours.prefetch(inputs[0])))
        graphs.append(graph)
        outputs.append((outs, between))
    for seed in range(10):
        for at, ids in enumerate(inputs):
            ids.copy_(random_ids(300, 2 * seed + at).cuda())
        graphs[seed % 2].replay()
        outs, between = outputs[seed % 2]
        for out, ids in zip(outs, [*inputs, inputs[0]], strict=True):
            same(out, table[ids])
        same(between, table[inputs[1].flip(0)])
        # Outside of graphs as many can be held as before.
        held = [ours.prefetch(ids) for ids in inputs]
        for it, ids in zip(held, inputs, strict=True):
            same(ours.lookup(it), table[ids])
    ours.check()


def test_halves_that_do_not_belong_together(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user", prefetch=1)
    ids = random_ids(100).cuda()
    ours(ids)
    ahead = ours.prefetch(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(warprow.InvalidArgument, match="capture"):
            ours.lookup(ahead)
        out = ours(ids)
    graph.replay()
    same(out, table[ids])
    same(ours.lookup(ours.prefetch(ids)), table[ids])
    ours.check()


def test_a_capture_that_ends_without_its_lookup_is_refused(address: str) -> None:
    # In a process of its own: torch goes on badly after a capture that could not be ended.
    text = """
import sys, torch, warprow, warprow.torch
with warprow.format(sys.argv[1]) as store:
    table = torch.randn(1000, 16)
    store.load({"user": table})
    ours = warprow.torch.Embedding(store.attach("cuda"), "user", prefetch=1)
    ids = torch.arange(100).cuda()
    ours.lookup(ours.prefetch(ids))
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ahead = ours.prefetch(ids)
        print("nothing was raised")
    except RuntimeError as error:
        print("refused" if "unjoined" in str(error).lower() else error)
    del ahead
    print(torch.equal(ours(ids).cpu(), table[:100]))
"""
    found = subprocess.run([sys.executable, "-c", text, address], capture_output=True, text=True)
    assert found.stdout.split() == ["refused", "True"], found.stdout + found.stderr


def test_a_capture_without_a_plan_is_refused_and_goes_on(stored) -> None:  # noqa: F811
    store, table = stored
    ours = wt.Embedding(attach(store, "cuda"), "user")
    ids = random_ids(10).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(warprow.InvalidArgument, match="captured"):
            ours(ids)
    same(ours(ids), table.cuda()[ids])


def test_prefetches_within_a_budget_and_one_behind_another(make_store) -> None:
    table = torch.randn(1000, 128, generator=torch.Generator().manual_seed(0))
    with make_store(2) as store:
        store.load({"user": table})
        for budget in (None, 2):
            executor = store.attach("cuda", prefetch_multiprocessors=budget)
            modules = [wt.Embedding(executor, "user", prefetch=1) for _ in range(2)]
            inputs = [torch.randint(0, 1000, (300,), device="cuda") for _ in modules]
            for module, ids in zip(modules, inputs):
                same(module(ids), table.cuda()[ids])
            # The first one's rows are needed first.
            first = modules[0].prefetch(inputs[0])
            other = modules[1].prefetch(inputs[1], behind=first)
            found = [module.lookup(ahead) for module, ahead in zip(modules, (first, other))]
            for module, ids, rows in zip(modules, inputs, found):
                module.check()
                same(rows, table.cuda()[ids])


def test_nothing_synchronises(stored) -> None:  # noqa: F811
    store, table = stored
    ours = wt.EmbeddingBag(attach(store, "cuda"), "user", mode="sum")
    rows = wt.Embedding(attach(store, "cuda"), "user", on_failure="nan")
    ids, offsets = random_ids(1000).cuda(), torch.arange(0, 1000, 10).cuda()
    given = torch.rand(1000).cuda()
    features = [warprow.Feature(name, "user", pooling="sum") for name in ("a", "b")]
    both = wt.EmbeddingBagCollection(attach(store, "cuda"), features)
    ends = torch.arange(0, 1001, 10).cuda()
    bags = {"a": (ids, ends), "b": (ids.flip(0), ends)}
    both(bags)
    ours(ids, offsets), ours(ids, offsets, given), rows(ids)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            found = ours(ids, offsets)
            ours(ids, offsets, given)
            unpooled = rows(ids)
            # The first time that features have so many ids.
            of_both = both({"a": (ids, ends), "b": (ids[:990], ends.clamp(max=990))})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same(unpooled, table.cuda()[ids])
    assert torch.equal(of_both["a"], found) and not of_both["b"][-1].any()
    torch.testing.assert_close(found, table.cuda()[ids].reshape(100, 10, DIM).sum(1), rtol=1e-5, atol=1e-5)
    ours.check()


def test_the_output_is_all_that_is_allocated(stored) -> None:  # noqa: F811
    store, _ = stored
    ours = wt.Embedding(attach(store, "cuda"), "user")
    ids = random_ids(1024).cuda()
    ours(ids)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    found = ours(ids)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == 1
    assert found.shape == (1024, DIM)


def test_more_streams_than_slots(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user")
    found = []
    for seed in range(30):
        stream = torch.cuda.Stream()
        ids = random_ids(500, seed).cuda()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append((ids, ours(ids)))
    torch.cuda.synchronize()
    for ids, rows in found:
        same(rows, table[ids])
    ours.check()


def test_a_model_moves_to_the_gpu(stored) -> None:  # noqa: F811
    store, table = stored
    ours = wt.Embedding(attach(store, "cpu"), "user")
    ids = random_ids(100)
    same(ours(ids), table[ids])
    ours.to("cuda")
    assert ours.device == torch.device("cuda:0")
    same(ours(ids.cuda()), table.cuda()[ids.cuda()])
    with pytest.raises(warprow.InvalidArgument, match="cpu"):
        ours(ids)
    same(ours.cpu()(ids), table[ids])


def test_a_captured_model_says_the_same(store) -> None:
    torch.manual_seed(0)
    model = wt.replace(Model().cuda().eval(), store, min_rows=100, hbm_bytes=1 << 16, dram_bytes=1 << 16)
    with torch.no_grad():
        inputs = batch("cuda")
        wanted = [model(*batch("cuda", seed)) for seed in range(5)]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(*inputs)
        for seed in range(5):
            for place, value in zip(inputs, batch("cuda", seed), strict=True):
                place.copy_(value)
            graph.replay()
            same(out, wanted[seed])


@pytest.mark.parametrize("peer", range(min(torch.cuda.device_count(), 2)))
def test_rows_in_another_gpus_memory(stored, peer: int) -> None:  # noqa: F811
    # With one GPU, in a place of its own memory that it reads as it would read another's.
    store, table = stored
    table = table.cuda()
    half = ROWS // 2 * DIM * 4
    for options in ({"dram_bytes": 2 * half}, {"dram_bytes": half}, {"hbm_bytes": half // 2, "dram_bytes": half // 2}):
        with store.attach("cuda", peer_gpu=peer, check_rows=True, **options) as executor:
            assert 0 < executor.tiers("user")["dram"] <= options["dram_bytes"] // (DIM * 4)
            ours = wt.Embedding(executor, "user")
            ids = torch.arange(ROWS).cuda()
            same(ours(ids), table)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = ours(ids)
            ids.copy_(ids.flip(0).clone())
            graph.replay()
            same(out, table.flip(0))
            ours.check()
            assert ours.report()["ids_dram"] > 0
    with pytest.raises(warprow.WarprowError, match="99"):
        store.attach("cuda", dram_bytes=half, peer_gpu=99)
    with pytest.raises(warprow.InvalidArgument, match="peer_gpu"):
        store.attach("cuda", dram_bytes=half, peer_gpu=-1)
