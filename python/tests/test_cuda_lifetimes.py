"""What outlives what on a GPU: ids that are freed at once, graphs that go while they run, modules that go before their graphs, and many
graphs of one module. And calls that come while another stream is captured."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
from torch import nn  # noqa: E402

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_collection import batch_of, loaded, make, same_bags, wanted_of  # noqa: E402, F401
from test_cuda import soon  # noqa: E402
from test_torch import DIM, ROWS, attach, random_ids, same, stored  # noqa: E402, F401

#: Ids of a batch: its look-up is under way when what follows it begins.
COUNT = 20_000


def wrong_ids() -> torch.Tensor:
    """Ids that no table has, which torch's allocator puts where a batch was that is freed."""
    return torch.full((COUNT,), -5, dtype=torch.int64, device="cuda")


def test_ids_are_freed_behind_the_call(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user", prefetch=1)
    sums = wt.EmbeddingBag(attach(store, "cuda"), "user", mode="sum")
    offsets = torch.arange(0, COUNT, 4, device="cuda")
    reused = 0
    for step in range(60):
        ids = random_ids(COUNT, step).cuda()
        wanted, where = table[ids], ids.data_ptr()
        torch.cuda.synchronize()
        if step % 3 == 0:
            found = ours(ids)
            del ids
            others = wrong_ids()
        elif step % 3 == 1:
            # What is fetched ahead holds its ids until the look-up.
            ahead = ours.prefetch(ids)
            del ids
            others = wrong_ids()
            assert others.data_ptr() != where
            found = ours.lookup(ahead)
        else:
            # Half the weights are of another type, so that the look-up reads a tensor that nobody else has.
            halves = torch.randint(-2, 3, (COUNT,), device="cuda").to(torch.float16)
            wanted = (table[ids] * halves[:, None]).reshape(-1, 4, DIM)
            wanted = wanted[:, 0] + wanted[:, 1] + wanted[:, 2] + wanted[:, 3]
            found = sums(ids, offsets.clone(), halves)
            del ids, halves
            others = wrong_ids()
        reused += others.data_ptr() == where
        same(found, wanted)
    # Otherwise the test shows nothing.
    assert reused > 10
    ours.check()
    sums.check()


def test_ids_that_another_stream_has_looked_up_are_freed_behind_it(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user", prefetch=1)
    side = torch.cuda.Stream()
    for step in range(30):
        ids = random_ids(COUNT, step).cuda()
        wanted = table[ids]
        ahead = ours.prefetch(ids)
        with torch.cuda.stream(side):
            found = ours.lookup(ahead)
        del ids, ahead
        others = [wrong_ids() for _ in range(3)]
        side.synchronize()
        same(found, wanted)
        del others
    ours.check()


def test_a_batch_that_is_forgotten_says_nothing(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user", prefetch=2)
    for step in range(40):
        ids = random_ids(COUNT, step).cuda()
        ahead = ours.prefetch(ids)
        del ahead, ids
        others = [wrong_ids() for _ in range(3)]
        ids = random_ids(COUNT, 100 + step).cuda()
        same(ours.lookup(ours.prefetch(ids)), table[ids])
        del others
    ours.check()


def test_a_program_that_is_ahead_of_the_gpu_waits(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(store.attach("cuda"), "user", prefetch=1)
    inputs = [random_ids(4000, seed).cuda() for seed in range(60)]
    # Eight look-ups of a slot are under way at most. No batch is held, so that none is refused.
    found = [ours.lookup(ours.prefetch(ids)) for ids in inputs]
    for ids, rows in zip(inputs, found, strict=True):
        same(rows, table[ids])
    ours.check()


def captured(module: nn.Module, ids: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(ids)
    return graph, out


def test_two_dozen_graphs_of_one_module(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user", max_ids=4096)
    inputs = [random_ids(100 + 37 * number, number).cuda() for number in range(24)]
    ours(inputs[0])
    torch.cuda.synchronize()
    graphs = [captured(ours, ids) for ids in inputs]
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()
    for turn in range(3):
        for number in order:
            (graph, out), ids = graphs[number], inputs[number]
            ids.copy_(random_ids(len(ids), 100 * turn + number).cuda())
            graph.replay()
            same(out, table[ids])
        ours.check()
    # Every other graph goes, while one of those that stay is under way; and as many are captured anew.
    inputs[1].copy_(random_ids(len(inputs[1]), 7).cuda())
    graphs[1][0].replay()
    for number in range(0, 24, 2):
        graphs[number] = captured(ours, inputs[number])
    gc.collect()
    same(graphs[1][1], table[inputs[1]])
    for number, ((graph, out), ids) in enumerate(zip(graphs, inputs, strict=True)):
        ids.copy_(random_ids(len(ids), 1000 + number).cuda())
        graph.replay()
        same(out, table[ids])
    # The one that meets a missing id says so, and no other.
    inputs[17][5] = ROWS
    graphs[17][0].replay()
    torch.cuda.synchronize()
    with pytest.raises(warprow.MissingIds) as caught:
        ours.check()
    assert (caught.value.id, caught.value.count) == (ROWS, 1)
    ours.check()
    native = ours._lookup.native
    del graphs, graph
    soon(lambda: not native.has_captures())


def test_a_graph_goes_while_it_runs(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    ours = wt.Embedding(attach(store, "cuda"), "user", prefetch=1)
    ids = random_ids(COUNT).cuda()
    ours(ids)
    ours.lookup(ours.prefetch(ids))
    native = ours._lookup.native
    for step in range(10):
        ids.copy_(random_ids(COUNT, step).cuda())
        wanted = table[ids]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ahead = ours.prefetch(ids) if step % 2 else None
            out = ours.lookup(ahead) if ahead is not None else ours(ids)
        graph.replay()
        del graph
        gc.collect()
        same(out, wanted)
        # What was fetched ahead in a graph, looked up there, and lives on, holds nothing of it.
        if step % 4 == 3:
            soon(lambda: not native.has_captures())
        ours.check()
    soon(lambda: not native.has_captures())


def test_a_module_goes_before_its_graph(stored) -> None:  # noqa: F811
    store, table = stored
    table = table.cuda()
    executor = attach(store, "cuda")
    ours = wt.Embedding(executor, "user")
    ids = random_ids(500).cuda()
    ours(ids)
    torch.cuda.synchronize()
    graph, out = captured(ours, ids)
    del ours
    gc.collect()
    for seed in range(5):
        ids.copy_(random_ids(500, seed).cuda())
        graph.replay()
        same(out, table[ids])


def test_both_halves_of_a_collection_in_a_graph(loaded) -> None:  # noqa: F811
    ours = make(loaded, "cuda", prefetch=1)
    given = batch_of(0, "cuda")
    same_bags(ours.lookup(ours.prefetch(given)), wanted_of(given))
    graph, out = torch.cuda.CUDAGraph(), torch.zeros(30, 40, device="cuda")
    with torch.cuda.graph(graph):
        plain = ours(given)
        found = ours.lookup(ours.prefetch(given), out=out)
    for seed in range(1, 8):
        for name, parts in batch_of(seed, "cuda").items():
            for place, value in zip(given[name], parts, strict=True):
                place.copy_(value)
        graph.replay()
        same_bags(found, wanted_of(given))
        same_bags(plain, wanted_of(given))
        same(torch.cat(list(found.values()), dim=1), out)
    ours.check()


def test_collections_synchronise_with_nothing(loaded) -> None:  # noqa: F811
    ours, given = make(loaded, "cuda", prefetch=1), batch_of(3, "cuda")
    out = torch.zeros(30, 40, device="cuda")
    ours.lookup(ours.prefetch(given))
    ours(given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            found = ours.lookup(ours.prefetch(given))
            ours(given, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same_bags(found, wanted_of(given))
    same(torch.cat(list(found.values()), dim=1), out)
    ours.check()


def test_data_parallel_copies_no_module(stored) -> None:  # noqa: F811
    store, table = stored
    model = nn.Sequential(wt.Embedding(attach(store, "cuda"), "user"), nn.Tanh()).cuda()
    ids = random_ids(64).cuda()
    # On one GPU it copies nothing.
    same(nn.DataParallel(model, device_ids=[0])(ids), table.cuda()[ids].tanh())
    with pytest.raises(warprow.WarprowError, match="DataParallel"):
        nn.parallel.replicate(model, [0])
    if torch.cuda.device_count() > 1:
        with pytest.raises(warprow.WarprowError, match="DataParallel"):
            nn.DataParallel(model, device_ids=[0, 1])(ids)
    same(model(ids), table.cuda()[ids].tanh())


@pytest.mark.parametrize("called", ["stream", "new stream", "new module", "prefetch"])
def test_a_call_while_another_stream_is_captured(address: str, called: str) -> None:
    # In a process of its own: torch goes on badly after a capture that could not be ended.
    text = f"called = {called!r}" + """
import sys, torch, warprow, warprow.torch
with warprow.format(sys.argv[1]) as store:
    table = torch.randn(1000, 16)
    store.load({"user": table})
    executor, table = store.attach("cuda", hbm_bytes=1 << 14), table.cuda()
    ours, cold = (warprow.torch.Embedding(executor, "user", prefetch=1) for _ in range(2))
    ids, others = torch.arange(100).cuda(), torch.arange(300, 400).cuda()
    warm, new = torch.cuda.Stream(), torch.cuda.Stream()
    rows = torch.zeros(100, 16, device="cuda")
    ours(ids)
    torch.cuda.synchronize()
    with torch.cuda.stream(warm):
        ours(others, out=rows)
        ours.lookup(ours.prefetch(others), out=rows)
    torch.cuda.synchronize()
    rows.zero_()
    torch.cuda.synchronize()
    module = cold if called == "new module" else ours
    graph, is_there = torch.cuda.CUDAGraph(), False
    try:
        with torch.cuda.graph(graph):
            found = ours(ids)
            try:
                with torch.cuda.stream(new if called == "new stream" else warm):
                    if called == "prefetch":
                        ours.lookup(ours.prefetch(others), out=rows)
                    else:
                        module(others, out=rows)
                is_there = True
            except warprow.WarprowError as error:
                print("refused:", type(error).__name__, error)
        ended = True
    except RuntimeError as error:
        ended = False
        print("not captured:", str(error).splitlines()[0])
    torch.cuda.synchronize()
    if is_there:
        assert torch.equal(rows, table[300:400]), "wrong rows beside a capture"
    if ended:
        for first in (0, 500):
            ids.copy_(torch.arange(first, first + 100))
            graph.replay()
            assert torch.equal(found, table[first:first + 100]), "wrong rows of the graph"
    for stream in (warm, new, torch.cuda.current_stream()):
        with torch.cuda.stream(stream):
            module(others, out=rows)
            torch.cuda.synchronize()
        assert torch.equal(rows, table[300:400]), "wrong rows behind a capture"
    module.check()
    # A stream that has looked up before needs nothing new.
    print("went on", is_there and ended)
"""
    found = subprocess.run([sys.executable, "-c", text, address], capture_output=True, text=True)
    assert found.returncode == 0 and "went on" in found.stdout, found.stdout + found.stderr
    if called == "stream":
        assert "went on True" in found.stdout, found.stdout
    print(found.stdout)
