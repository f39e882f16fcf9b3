"""`warprow.torch.NgramIds` against `warprow.NgramHash`, a sequence after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warprow

torch = pytest.importorskip("torch")
wt = pytest.importorskip("warprow.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture
def store(make_store: Any) -> Any:
    with make_store() as made:
        made.load({"t": torch.zeros(10, 8)})
        yield made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("model", ["ple", "engram-1", "engram-14"])
def test_ids_of_sequences(store: Any, device: str, dtype: torch.dtype, newest_first: bool, model: str) -> None:
    random = np.random.default_rng(8)
    hash = warprow.NgramHash(model)  # noqa: A001
    ours = wt.NgramIds(store.attach(device), hash)
    assert (ours.heads, ours.rows) == (hash.heads, (0, hash.rows)) and device in repr(ours)
    lengths = [5, 0, 1, 30, 2]
    tokens, before = random.integers(0, 90_000, sum(lengths)), random.integers(0, 90_000, (5, ours.history))
    # Of the third sequence one token alone is known, of the fourth none.
    before[2, :-1] = before[3] = -1
    starts = np.cumsum([0, *lengths])
    known = [history[history >= 0] for history in before]
    parts = [hash.ids(tokens[at : at + length], history=history) for at, length, history in zip(starts, lengths, known)]
    # Two tokens more, which belong to no sequence.
    given = torch.from_numpy(np.concatenate((tokens, [7, 8]))).to(dtype).to(device)
    kept = torch.from_numpy(np.ascontiguousarray(before[:, ::-1] if newest_first else before)).to(dtype).to(device)
    places = torch.from_numpy(starts).to(torch.int32).to(device)
    found = ours(given, starts=places, history=kept, newest_first=newest_first)
    assert found.dtype == torch.int64 and found.device.type == device
    np.testing.assert_array_equal(found.cpu().numpy()[:-2], np.concatenate(parts))
    assert (found[-2:] == -1).all()
    out = torch.zeros_like(found)
    assert ours(given, starts=places, history=kept, newest_first=newest_first, out=out) is out and torch.equal(out, found)
    # One sequence that begins a text, and nothing.
    np.testing.assert_array_equal(ours(given[:5]).cpu().numpy(), hash.ids(tokens[:5]))
    assert ours(given[:0]).shape == (0, hash.heads)


@pytest.mark.parametrize("device", DEVICES)
def test_ranks_have_heads_and_rows_of_their_own(store: Any, device: str) -> None:
    hash = warprow.NgramHash("ple")  # noqa: A001
    tokens = torch.arange(50, device=device)
    executor = store.attach(device)
    whole = wt.NgramIds(executor, hash)(tokens)
    first, _ = wt.NgramIds(executor, hash, heads=(6, 11)).rows
    rank = wt.NgramIds(executor, hash, heads=(6, 11), first_row=first)
    assert torch.equal(rank(tokens), whole[:, 6:11] - first)
    beyond = wt.NgramIds(executor, hash, heads=(15, 18))(tokens)
    assert torch.equal(beyond[:, 0], whole[:, 15]) and (beyond[:, 1:] == -1).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tokens_become_ids_in_a_graph(store: Any) -> None:
    hash = warprow.NgramHash("engram-1")  # noqa: A001
    ours = wt.NgramIds(store.attach("cuda"), hash)
    tokens = torch.zeros(40, dtype=torch.int32, device="cuda")
    starts = torch.zeros(2, dtype=torch.int32, device="cuda")
    ours(tokens, starts=starts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ours(tokens, starts=starts)
    for seed in range(5):
        random = np.random.default_rng(seed)
        count, given = int(random.integers(1, 40)), random.integers(0, 99_092, 40)
        tokens.copy_(torch.from_numpy(given)), starts.copy_(torch.tensor([0, count]))
        graph.replay()
        np.testing.assert_array_equal(found[:count].cpu().numpy(), hash.ids(given[:count]))
        assert (found[count:] == -1).all()


def test_what_cannot_be_hashed_is_named(store: Any) -> None:
    ours = wt.NgramIds(store, warprow.NgramHash("engram-1"))
    with pytest.raises(warprow.InvalidArgument, match="without end="):
        wt.NgramIds(store, warprow.NgramHash("engram-1", end=5))
    wt.NgramIds(store, warprow.NgramHash("ple", end=5))
    with pytest.raises(warprow.WrongType, match="give a warprow.NgramHash"):
        wt.NgramIds(store, "ple")
    with pytest.raises(warprow.InvalidArgument, match="heads"):
        wt.NgramIds(store, warprow.NgramHash("ple"), heads=(3, 3))
    with pytest.raises(warprow.InvalidArgument, match="rows before the first") as refused:
        wt.NgramIds(store, warprow.NgramHash("ple"), first_row=5)
    assert refused.value.argument == "first_row"
    tokens = torch.arange(4)
    for argument, given in (
        ("tokens", {"tokens": tokens[None]}),
        ("starts", {"starts": torch.zeros(0, dtype=torch.int32)}),
        ("tokens", {"starts": torch.tensor([0, 5], dtype=torch.int32)}),
        ("history", {"history": torch.zeros(2, 3, dtype=torch.int64)}),
        ("out", {"out": torch.zeros(4, 23, dtype=torch.int64)}),
    ):
        with pytest.raises(warprow.InvalidArgument) as caught:
            ours(**{"tokens": tokens, **given})
        assert caught.value.argument == argument
    for argument, given in (
        ("tokens", {"tokens": tokens.float()}),
        ("starts", {"starts": torch.tensor([0, 4])}),
        ("history", {"history": torch.zeros(1, 3, dtype=torch.int32)}),
        ("out", {"out": torch.zeros(4, 24)}),
    ):
        with pytest.raises(warprow.WrongType) as caught:
            ours(**{"tokens": tokens, **given})
        assert caught.value.argument == argument
