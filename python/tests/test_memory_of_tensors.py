"""Arrays and tensors whose memory does not have what they say: each is read as torch reads it, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warprow

torch = pytest.importorskip("torch", reason="torch is not installed")
wt = pytest.importorskip("warprow.torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from test_torch import same  # noqa: E402

ROWS = torch.randn(50, 8, generator=torch.Generator().manual_seed(5))
IDS, OTHERS = torch.tensor([3, 4]), torch.tensor([9, 7, 3, 1])


class Wrapper(torch.Tensor):
    """A tensor that keeps another one, and has no memory."""

    kept: torch.Tensor

    @staticmethod
    def __new__(cls, kept: torch.Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, kept.shape, dtype=kept.dtype, device=kept.device)
        made.kept = kept
        return made

    @classmethod
    def __torch_dispatch__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(*[it.kept if isinstance(it, Wrapper) else it for it in args], **(kwargs or {}))


def fake(tensor: torch.Tensor) -> torch.Tensor:
    return FakeTensorMode().from_tensor(tensor)


def emptied(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def emptied_view(tensor: torch.Tensor) -> torch.Tensor:
    """Behind the first elements of a storage: its address is not 0."""
    view = torch.cat([tensor, tensor])[len(tensor) :]
    view.untyped_storage().resize_(0)
    return view


def cut(tensor: torch.Tensor) -> torch.Tensor:
    """With a storage that lacks the last element."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(tensor.nbytes - tensor.element_size())
    return tensor


def cut_column(tensor: torch.Tensor) -> torch.Tensor:
    """Not contiguous, so that torch would copy it."""
    column = torch.stack([tensor, tensor], dim=1)[:, 1]
    column.untyped_storage().resize_(tensor.nbytes)
    return column


SMALLER = [emptied, emptied_view, cut, cut_column]


@pytest.fixture
def loaded(store: warprow.Store) -> warprow.Store:
    store.load({"user": ROWS})
    return store


def test_outputs_in_another_byte_order_are_refused(loaded) -> None:
    plan = loaded.attach("cpu").plan([warprow.Feature("f", "user")], max_batch=4, max_ids=4)
    out = np.zeros((2, 8), np.dtype("f4").newbyteorder())
    for call in (lambda: loaded.lookup("user", IDS, out=out), lambda: plan.lookup(IDS.numpy(), out=out)):
        with pytest.raises(warprow.WrongType, match="out.*byte order: give float32"):
            call()
    assert (out == 0).all()


def test_negated_tensors_are_read_as_torch_reads_them(loaded) -> None:
    negated = torch._neg_view(ROWS)
    assert negated.is_contiguous() and negated.is_neg()
    loaded.load({"whole": negated, "blocks": iter([negated[:20], negated[20:]])})
    loaded.update("user", torch._neg_view(-torch.arange(50)), negated)
    for table in ("whole", "blocks", "user"):
        same(torch.from_numpy(loaded.export(table).rows), -ROWS)
    bags = wt.EmbeddingBag(loaded, "user", mode="sum", prefetch=1)
    batch = (torch._neg_view(-IDS), torch.tensor([0, 1]), torch._neg_view(torch.ones(2)))
    out = torch.empty(2, 8)
    for found in (bags(*batch), bags(*batch, out=out), bags.lookup(bags.prefetch(*batch))):
        same(found, ROWS[IDS])


@pytest.mark.parametrize("make", [fake, Wrapper, emptied, emptied_view, cut, torch._neg_view, lambda it: it.requires_grad_()])
def test_outputs_whose_memory_is_not_theirs_are_refused(loaded, make) -> None:
    rows, table = wt.Embedding(loaded, "user", prefetch=1), wt.NgramTable(loaded, "user", heads=1, dtype=torch.float32)
    held = rows.prefetch(IDS)
    ids = wt.NgramIds(loaded.attach("cpu"), warprow.NgramHash("ple"))
    calls = [
        lambda: rows(IDS, out=make(torch.zeros(2, 8))),
        lambda: rows.lookup(held, out=make(torch.zeros(2, 8))),
        lambda: table(IDS[:, None], out=make(torch.zeros(2, 8))),
    ]
    if make in (fake, Wrapper, emptied, emptied_view, cut, torch._neg_view):
        calls.append(lambda: ids(IDS, out=make(torch.zeros(2, ids.heads, dtype=torch.int64))))
    for call in calls:
        with pytest.raises((warprow.WrongType, warprow.InvalidArgument), match="out.*: give") as caught:
            call()
        assert caught.value.argument == "out"
    same(rows.lookup(held), ROWS[IDS])


@pytest.mark.parametrize("make", [fake, Wrapper, *SMALLER])
def test_tensors_without_memory_are_refused(loaded, make) -> None:
    rows, bags = wt.Embedding(loaded, "user", prefetch=1, on_failure="mask"), wt.EmbeddingBag(loaded, "user", mode="sum", prefetch=1)
    offsets = torch.tensor([0, 1])
    calls = [
        lambda: rows.prefetch(make(IDS)),
        lambda: bags.prefetch(IDS, make(offsets)),
        lambda: bags.prefetch(IDS, offsets, make(torch.ones(2))),
    ]
    if make is not Wrapper:
        # What a wrapper detaches to has memory.
        calls.append(lambda: loaded.update("user", IDS, make(ROWS[:2])))
    if make in SMALLER:
        plain, plan = wt.Embedding(loaded, "user"), loaded.attach("cpu").plan(
            [warprow.Feature("f", "user", pooling="sum", weighted=True)], max_batch=2, max_ids=2
        )
        calls += [
            lambda: rows(make(IDS)),
            lambda: plain(make(IDS)),
            lambda: plain(make(IDS.int())),
            lambda: plain(make(IDS), out=torch.empty(2, 8)),
            lambda: bags(make(IDS), offsets),
            lambda: bags(IDS, make(offsets)),
            lambda: bags(IDS, offsets, make(torch.ones(2))),
            lambda: bags(IDS, offsets, make(torch.ones(2, dtype=torch.float16))),
            lambda: bags(IDS, offsets, make(torch.ones(2)), out=torch.empty(2, 8)),
            lambda: loaded.lookup("user", make(IDS)),
            lambda: loaded.update("user", make(IDS), ROWS[:2]),
            lambda: loaded.load({"other": make(ROWS)}),
            lambda: loaded.load({"other": ROWS}, keys={"other": make(torch.arange(50))}),
            lambda: plan.lookup(IDS, offsets=offsets, weights=make(torch.ones(2))),
        ]
    for call in calls:
        with pytest.raises(warprow.WrongType, match="memory.*: give"):
            call()
    same(torch.from_numpy(loaded.export("user").rows), ROWS)


def test_traces_have_the_operator(loaded) -> None:
    rows, bags = wt.Embedding(loaded, "user", prefetch=1), wt.EmbeddingBag(loaded, "user", mode="sum")
    same(torch.jit.trace(rows, (IDS,))(OTHERS), ROWS[OTHERS])
    offsets = torch.tensor([0, 1, 3])
    same(torch.jit.trace(bags, (IDS, torch.tensor([0])))(OTHERS, offsets), bags(OTHERS, offsets))
    both = wt.EmbeddingBagCollection(loaded, [warprow.Feature(name, "user", pooling="sum") for name in "ab"])

    def call(ids: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([0, 1, 2])
        return torch.stack([*both({"a": (ids, ends), "b": (ids.flip(0), ends)}).values()])

    same(torch.jit.trace(call, (IDS,))(OTHERS[:2]), call(OTHERS[:2]))
    with pytest.raises(warprow.WarprowError, match="torch.jit.trace.*torch.export"):
        torch.jit.trace(lambda ids: rows.lookup(rows.prefetch(ids)), (IDS,))
    hashed = wt.NgramIds(loaded.attach("cpu"), warprow.NgramHash("ple"))
    with pytest.raises(warprow.WarprowError, match="torch.jit.trace.*torch.export"):
        torch.jit.trace(lambda tokens: hashed(tokens), (IDS,))


def test_functions_of_torch_func(loaded) -> None:
    rows = wt.Embedding(loaded, "user")
    same(torch.func.functionalize(rows)(IDS), ROWS[IDS])


def test_autograd_is_told_of_outputs(loaded) -> None:
    rows = wt.Embedding(loaded, "user", prefetch=1)
    for call in (lambda out: rows(IDS, out=out), lambda out: rows.lookup(rows.prefetch(IDS), out=out)):
        out, factor = torch.zeros(2, 8), torch.ones(2, 8, requires_grad=True)
        product = (out * factor).sum()
        call(out)
        same(out, ROWS[IDS])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    with torch.inference_mode():
        same(rows(IDS, out=torch.zeros(2, 8)), ROWS[IDS])
