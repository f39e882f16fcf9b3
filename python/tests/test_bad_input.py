"""What cannot be, given to modules of every kind: each an exception that names the argument and the remedy, and no wrong row behind it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_torch import DIM, ROWS, attach, device, random_ids, same, stored  # noqa: E402, F401

COUNT = 12


@pytest.fixture
def kit(stored, device) -> SimpleNamespace:  # noqa: F811
    """Modules of every kind over one table, and a batch."""
    store, table = stored
    executor = attach(store, device)
    features = [warprow.Feature("one", "user", pooling="sum"), warprow.Feature("two", "user", pooling="sum", weighted=True)]
    return SimpleNamespace(
        store=store,
        table=table.to(device),
        device=device,
        executor=executor,
        rows=wt.Embedding(executor, "user", prefetch=1),
        bags=wt.EmbeddingBag(executor, "user", mode="sum", prefetch=1),
        means=wt.EmbeddingBag(executor, "user", prefetch=1),
        both=wt.EmbeddingBagCollection(executor, features, prefetch=1),
        ids=random_ids(COUNT).to(device),
        offsets=torch.tensor([0, 4, 9], device=device),
        ends=torch.tensor([0, 4, 9, COUNT], device=device),
        factors=torch.rand(COUNT, generator=torch.Generator().manual_seed(3)).to(device),
        other="meta" if device == "cpu" else "cpu",
    )


def batch(k: Any, **changed: Any) -> dict[str, Any]:
    return {"one": (k.ids, k.ends), "two": (k.ids, k.ends, k.factors)} | changed


def over(k: Any, ids: torch.Tensor) -> object:
    """A look-up whose ids lie in its output."""
    out = torch.zeros(COUNT, DIM, device=k.device)
    there = out.view(torch.int64).reshape(-1)[-COUNT:]
    there.copy_(ids)
    return k.rows(there, out=out)


#: A call that is refused at once on every device, its class, and the argument that it names.
CALLS: list[tuple[str, Callable[[Any], object], type[warprow.WarprowError], str]] = [
    ("type of ids", lambda k: k.rows(k.ids.float()), warprow.WrongType, "input"),
    ("type of ids of bags", lambda k: k.bags(k.ids.bool(), k.offsets), warprow.WrongType, "input"),
    ("type of ids of a collection", lambda k: k.both(batch(k, one=(k.ids.half(), k.ends))), warprow.WrongType, "input"),
    ("type of offsets", lambda k: k.bags(k.ids, k.offsets.float()), warprow.WrongType, "offsets"),
    ("type of weights", lambda k: k.bags(k.ids, k.offsets, k.ids), warprow.WrongType, "per_sample_weights"),
    ("type of out", lambda k: k.rows(k.ids, out=torch.empty(COUNT, DIM, device=k.device).half()), warprow.WrongType, "out"),
    ("weights of a feature without", lambda k: k.both(batch(k, one=(k.ids, k.ends, k.factors))), warprow.InvalidArgument, "batch"),
    ("out over the ids", lambda k: over(k, k.ids), warprow.InvalidArgument, "out"),
    ("no tensor", lambda k: k.rows("12"), warprow.WrongType, "input"),
    ("no batch", lambda k: k.both(k.ids), warprow.WrongType, "batch"),
    ("device of ids", lambda k: k.rows(k.ids.to(k.other)), warprow.InvalidArgument, "input"),
    ("device of offsets", lambda k: k.bags(k.ids, k.offsets.to(k.other)), warprow.InvalidArgument, "offsets"),
    ("device of weights", lambda k: k.bags(k.ids, k.offsets, k.factors.to(k.other)), warprow.InvalidArgument, "per_sample_weights"),
    ("device of out", lambda k: k.rows(k.ids, out=torch.empty(COUNT, DIM, device=k.other)), warprow.InvalidArgument, "out"),
    ("shape of ids", lambda k: k.bags(k.ids.reshape(1, 3, 4)), warprow.InvalidArgument, "input"),
    ("shape of offsets", lambda k: k.bags(k.ids, k.offsets[None]), warprow.InvalidArgument, "offsets"),
    ("no offsets", lambda k: k.bags(k.ids), warprow.InvalidArgument, "offsets"),
    ("shape of weights", lambda k: k.bags(k.ids, k.offsets, k.factors[1:]), warprow.InvalidArgument, "per_sample_weights"),
    ("weights of means", lambda k: k.means(k.ids, k.offsets, k.factors), warprow.InvalidArgument, "per_sample_weights"),
    ("shape of out", lambda k: k.rows(k.ids, out=torch.empty(COUNT, DIM + 1, device=k.device)), warprow.InvalidArgument, "out"),
    ("out not contiguous", lambda k: k.rows(k.ids, out=torch.empty(DIM, COUNT, device=k.device).T), warprow.InvalidArgument, "out"),
    ("out of a prefetch", lambda k: k.rows.lookup(k.rows.prefetch(k.ids), out=torch.empty(DIM, device=k.device)), warprow.InvalidArgument, "out"),
    ("a feature too few", lambda k: k.both({"one": (k.ids, k.ends)}), warprow.InvalidArgument, "batch"),
    ("a feature without weights", lambda k: k.both(batch(k, two=(k.ids, k.ends))), warprow.InvalidArgument, "batch"),
    ("bags of two numbers", lambda k: k.both(batch(k, one=(k.ids, k.ends[[0, 3]]))), warprow.InvalidArgument, "batch"),
    ("a model without embeddings", lambda k: wt.replace(torch.nn.Linear(2, 2), k.store), warprow.InvalidArgument, "model"),
    ("two tables of one name", lambda k: k.store.load({"a": k.table, "b": k.table}, names={"b": "a"}), warprow.InvalidArgument, "names"),
    ("two features of one name", lambda k: wt.EmbeddingBagCollection(k.executor, [warprow.Feature("a", "user", pooling="sum")] * 2), warprow.InvalidArgument, "features"),
]


@pytest.mark.parametrize(("call", "kind", "argument"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_what_cannot_be_names_its_argument(kit, call, kind, argument) -> None:
    with pytest.raises(kind) as caught:
        call(kit)
    error = caught.value
    assert type(error) is kind and error.argument == argument and argument in str(error), (error.argument, str(error))
    assert error.remedy and len(str(error)) > len(argument) + 8
    # The error's traceback holds what the call was given.
    del error, caught
    goes_on(kit)


def goes_on(kit: Any) -> None:
    """Whether rows are right behind what was refused, and nothing of it is held."""
    kit.rows.check(), kit.bags.check(), kit.both.check()
    same(kit.rows(kit.ids), kit.table[kit.ids])
    same(kit.rows.lookup(kit.rows.prefetch(kit.ids)), kit.table[kit.ids])
    same(kit.bags(kit.ids, kit.offsets, kit.factors), kit.both(batch(kit))["two"])
    kit.rows.check(), kit.bags.check(), kit.both.check()


#: Values, which a GPU tells of by the next call or `check`: ids and offsets of a call, the class, and a word of its message.
VALUES: list[tuple[str, Callable[[Any], object], type[warprow.WarprowError]]] = [
    ("a negative id", lambda k: k.rows(torch.where(k.ids == k.ids[3], -1, k.ids)), warprow.MissingIds),
    ("an id too large", lambda k: k.bags(torch.where(k.ids == k.ids[3], ROWS, k.ids), k.offsets), warprow.MissingIds),
    ("an id too large by far", lambda k: k.rows(torch.where(k.ids == k.ids[3], 1 << 62, k.ids)), warprow.MissingIds),
    ("offsets that descend", lambda k: k.bags(k.ids, k.offsets.flip(0)), warprow.InvalidArgument),
    ("offsets past the ids", lambda k: k.bags(k.ids, k.offsets + torch.tensor([0, 0, 1 << 40], device=k.device)), warprow.InvalidArgument),
    ("offsets that do not begin with 0", lambda k: k.bags(k.ids, k.offsets + 1), warprow.InvalidArgument),
    ("ends of a feature", lambda k: k.both(batch(k, one=(k.ids, k.ends - torch.tensor([0, 0, 0, 1], device=k.device)))), warprow.InvalidArgument),
]


@pytest.mark.parametrize(("call", "kind"), [case[1:] for case in VALUES], ids=[case[0] for case in VALUES])
def test_values_that_cannot_be_are_told(kit, call, kind) -> None:
    goes_on(kit)
    with pytest.raises(kind) as caught:
        call(kit)
        for module in (kit.rows, kit.bags, kit.both):
            module.check()
    assert caught.value.remedy
    if kind is warprow.MissingIds:
        assert caught.value.count == (kit.ids == kit.ids[3]).sum() and list(caught.value.positions)[0] == (kit.ids == kit.ids[3]).nonzero()[0]
    else:
        assert caught.value.argument == "offsets"
    goes_on(kit)


def test_what_is_not_contiguous_is_taken(kit) -> None:
    ids, offsets, factors = (torch.stack([it, it.flip(0)], dim=1)[:, 0] for it in (kit.ids, kit.offsets, kit.factors))
    assert not ids.is_contiguous() and not offsets.is_contiguous() and not factors.is_contiguous()
    same(kit.rows(ids), kit.table[kit.ids])
    same(kit.rows(kit.ids.reshape(3, 4).T), kit.table[kit.ids.reshape(3, 4).T])
    same(kit.rows.lookup(kit.rows.prefetch(ids)), kit.table[kit.ids])
    same(kit.bags(ids, offsets, factors), kit.bags(kit.ids, kit.offsets, kit.factors))
    ends = torch.stack([kit.ends, kit.ends], dim=1)[:, 1]
    same(kit.both({"one": (ids, ends), "two": (ids, ends, factors)})["two"], kit.both(batch(kit))["two"])
    goes_on(kit)


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor at an address that is no multiple of the size of its elements, as a tensor over bytes of a file may lie."""
    found = torch.frombuffer(bytearray(1) + bytearray(tensor.numpy().tobytes()), dtype=tensor.dtype, offset=1).reshape(tensor.shape)
    assert found.is_contiguous() and found.data_ptr() % found.element_size() and torch.equal(found, tensor)
    return found


def test_tensors_at_any_address_are_taken(kit) -> None:
    if kit.device != "cpu":
        pytest.skip("torch makes no such tensor in a GPU's memory")
    ids, offsets, factors = shifted(kit.ids), shifted(kit.offsets), shifted(kit.factors)
    same(kit.rows(ids), kit.table[kit.ids])
    same(kit.rows.lookup(kit.rows.prefetch(ids)), kit.table[kit.ids])
    same(kit.bags(ids, offsets, factors), kit.bags(kit.ids, kit.offsets, kit.factors))
    ends = shifted(kit.ends)
    same(kit.both({"one": (ids, ends), "two": (ids, ends, factors)})["two"], kit.both(batch(kit))["two"])
    with pytest.raises(warprow.InvalidArgument, match="multiple of the 4 bytes"):
        kit.rows(kit.ids, out=shifted(torch.zeros(COUNT, DIM)))
    goes_on(kit)


def test_an_output_that_does_not_fit_leaves_the_batch_held(kit) -> None:
    wide = torch.empty(3, 2 * DIM, device=kit.device)
    for ahead, module, wanted in (
        (kit.rows.prefetch(kit.ids), kit.rows, kit.table[kit.ids]),
        (kit.both.prefetch(batch(kit)), kit.both, torch.cat(list(kit.both(batch(kit)).values()), dim=1)),
    ):
        for wrong in (torch.empty(7, DIM, device=kit.device), "out"):
            with pytest.raises(warprow.WarprowError, match="out"):
                module.lookup(ahead, out=wrong)
        found = module.lookup(ahead, out=torch.empty_like(wanted) if module is kit.rows else wide)
        same(found if module is kit.rows else wide, wanted)
    goes_on(kit)


def test_batches_without_ids(kit) -> None:
    none = kit.ids[:0]
    same(kit.rows(none), kit.table[:0])
    same(kit.rows(none.reshape(3, 0)), torch.zeros(3, 0, DIM, device=kit.device))
    same(kit.bags(none.reshape(5, 0)), torch.zeros(5, DIM, device=kit.device))
    same(kit.bags(none, kit.offsets * 0), torch.zeros(3, DIM, device=kit.device))
    same(kit.bags(none, kit.offsets[:0]), torch.zeros(0, DIM, device=kit.device))
    same(kit.rows.lookup(kit.rows.prefetch(none)), kit.table[:0])
    goes_on(kit)


def test_a_store_in_use_and_a_closed_one(kit) -> None:
    with pytest.raises(warprow.StoreInUse) as caught:
        warprow.open(kit.store.addresses, read_only=True)
    assert kit.store.addresses[0].split(":")[1].split("?")[0] in str(caught.value) and caught.value.remedy
    goes_on(kit)
    ahead = kit.rows.prefetch(kit.ids)
    kit.store.close()
    for call in (
        lambda: kit.rows(kit.ids),
        lambda: kit.bags(kit.ids, kit.offsets),
        lambda: kit.both(batch(kit)),
        lambda: kit.rows.prefetch(kit.ids),
        lambda: wt.Embedding(kit.store, "user"),
        lambda: kit.store.lookup("user", [1]),
    ):
        with pytest.raises(warprow.Closed) as closed:
            call()
        assert "open" in str(closed.value) and closed.value.remedy
    # A batch that was fetched ahead before has its rows, or says so.
    try:
        same(kit.rows.lookup(ahead), kit.table[kit.ids])
    except warprow.Closed:
        pass
