"""What only a GPU has: graphs, streams, the mode in which torch refuses to synchronise."""

from __future__ import annotations

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
    del graphs
    assert ours.forget_captures() == 3


def test_a_capture_without_a_plan_is_refused_and_goes_on(stored) -> None:  # noqa: F811
    store, table = stored
    ours = wt.Embedding(attach(store, "cuda"), "user")
    ids = random_ids(10).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(warprow.InvalidArgument, match="captured"):
            ours(ids)
    same(ours(ids), table.cuda()[ids])


def test_nothing_synchronises(stored) -> None:  # noqa: F811
    store, table = stored
    ours = wt.EmbeddingBag(attach(store, "cuda"), "user", mode="sum")
    rows = wt.Embedding(attach(store, "cuda"), "user", on_failure="nan")
    ids, offsets = random_ids(1000).cuda(), torch.arange(0, 1000, 10).cuda()
    given = torch.rand(1000).cuda()
    ours(ids, offsets), ours(ids, offsets, given), rows(ids)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            found = ours(ids, offsets)
            ours(ids, offsets, given)
            unpooled = rows(ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same(unpooled, table.cuda()[ids])
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
