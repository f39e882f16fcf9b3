"""Modules against torch's own, on the CPU and, where there is one, on a GPU. Every row is compared, bit for bit unless it is said otherwise."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
ROWS, DIM = 5000, 16

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def weights(rows: int = ROWS, dim: int = DIM, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def random_ids(count: int, seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    return torch.randint(0, rows, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def stored(store: warprow.Store) -> tuple[warprow.Store, torch.Tensor]:
    """A store with one table, and the table."""
    table = weights()
    store.load({"user": table}, hotness={"user": torch.arange(ROWS).flip(0)})
    return store, table


def attach(store: warprow.Store, device: str, **options: object) -> warprow.Executor:
    """With rows in every tier."""
    tier = ROWS // 4 * DIM * 4
    return store.attach(device, **{"dram_bytes": tier, "hbm_bytes": tier, **options})


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype and found.device == wanted.device
    assert torch.equal(found, wanted), (found, wanted)


def test_embedding_gives_torchs_rows(stored, device) -> None:
    store, table = stored
    ours = wt.Embedding(attach(store, device), "user", padding_idx=-1)
    plain = nn.Embedding(ROWS, DIM, padding_idx=-1, _weight=table).to(device)
    assert (ours.num_embeddings, ours.embedding_dim, ours.padding_idx) == (ROWS, DIM, ROWS - 1)
    for shape in ((7,), (), (0,), (3, 4), (2, 0), (2, 3, 5), (10_000,)):
        for dtype in (torch.int64, torch.int32):
            count = int(np.prod(shape))
            ids = random_ids(count, count).reshape(shape).to(device, dtype)
            same(ours(ids), plain(ids).detach())
    ids = random_ids(100).to(device)
    same(ours(ids[::3]), plain(ids[::3]).detach())
    out = torch.empty(100, DIM, device=device)
    assert ours(ids, out=out) is out
    same(out, plain(ids).detach())
    ours.check()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_embedding_bag_gives_torchs_bags(stored, device, mode, include_last_offset, padding_idx) -> None:
    store, table = stored
    options = {"mode": mode, "include_last_offset": include_last_offset, "padding_idx": padding_idx}
    ours = wt.EmbeddingBag(attach(store, device), "user", **options)
    plain = nn.EmbeddingBag(ROWS, DIM, _weight=table, **options).to(device)
    ids = random_ids(1000, rows=50).to(device)
    lengths = torch.randint(0, 9, (300,), generator=torch.Generator().manual_seed(1))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    offsets = offsets[offsets <= 1000]
    offsets = torch.cat([offsets, torch.tensor([1000])]) if include_last_offset else offsets
    offsets = offsets.to(device)
    for dtype in (torch.int64, torch.int32):
        found = ours(ids.to(dtype), offsets.to(dtype))
        torch.testing.assert_close(found, plain(ids.to(dtype), offsets.to(dtype)).detach(), rtol=1e-6, atol=1e-6)
    same(ours(ids.reshape(50, 20)), bags(table.to(device), ids.reshape(50, 20), mode, padding_idx))
    if mode == "sum":
        given = torch.rand(1000, generator=torch.Generator().manual_seed(2)).to(device)
        wanted = plain(ids, offsets, per_sample_weights=given).detach()
        torch.testing.assert_close(ours(ids, offsets, per_sample_weights=given), wanted, rtol=1e-6, atol=1e-6)
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    starts = torch.zeros(4, dtype=torch.int64, device=device)
    same(ours(empty, starts), torch.zeros(3 if include_last_offset else 4, DIM, device=device))
    ours.check()


def bags(table: torch.Tensor, ids: torch.Tensor, mode: str, padding_idx: int | None) -> torch.Tensor:
    """Sums in the order of the bag, row after row."""
    sums = torch.zeros(ids.shape[0], table.shape[1], device=table.device)
    for column in ids.T:
        counts = torch.ones_like(column, dtype=torch.bool) if padding_idx is None else column != padding_idx
        sums = torch.where(counts.unsqueeze(1), sums + table[column], sums)
    if mode == "mean":
        # A tensor: by a number, torch multiplies on CUDA.
        counts = torch.ones_like(ids, dtype=torch.bool) if padding_idx is None else ids != padding_idx
        sums = sums / counts.sum(1, keepdim=True).clamp(min=1)
    return sums


def test_both_devices_give_the_same_bits(stored) -> None:
    if len(DEVICES) == 1:
        pytest.skip("there is no GPU")
    store, _ = stored
    modules = [wt.EmbeddingBag(attach(store, device), "user", mode="mean") for device in DEVICES]
    ids = random_ids(9000).reshape(300, 30)
    same(modules[1](ids.cuda()).cpu(), modules[0](ids))


def test_halves(stored, device) -> None:
    store, table = stored
    ids = random_ids(100).to(device)
    ours = wt.Embedding(attach(store, device), "user")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        same(ours.to(dtype)(ids), table.to(device)[ids].to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensors_of_each_type_are_loaded(store, device, dtype) -> None:
    table = weights(300).to(dtype)
    store.load({"user": table.to(device)})
    ours = wt.Embedding(store.attach(device), "user", dtype=dtype)
    same(ours(torch.arange(300, device=device)), table.to(device))


def test_missing_ids(stored, device) -> None:
    store, table = stored
    ids = torch.tensor([1, ROWS, -7, 2], device=device)
    ours = wt.Embedding(attach(store, device), "user")
    if device == "cpu":
        with pytest.raises(warprow.MissingIds) as caught:
            ours(ids)
        assert list(caught.value.positions) == [1, 2]
    else:
        found = ours(ids)
        with pytest.raises(warprow.MissingIds) as caught:
            ours.check()
        assert caught.value.count == 2 and caught.value.id == ROWS and list(caught.value.positions) == [1]
        same(found[[0, 3]], table.to(device)[[1, 2]])
        assert not found[[1, 2]].any()
        ours(ids)
        torch.cuda.synchronize()
        with pytest.raises(IndexError):
            ours(ids)
    same(ours(ids[[0, 3]]), table.to(device)[[1, 2]])
    zeros = wt.Embedding(attach(store, device), "user", missing="zero")
    found = zeros(ids)
    zeros.check()
    assert not found[[1, 2]].any()
    same(found[[0, 3]], table.to(device)[[1, 2]])


def test_masks(stored, device) -> None:
    store, table = stored
    ours = wt.Embedding(attach(store, device), "user", on_failure="mask", missing="zero")
    rows, mask = ours(torch.tensor([[1, ROWS], [2, -1]], device=device))
    assert mask.dtype == torch.bool and mask.tolist() == [[True, False], [True, False]]
    same(rows[:, 0], table.to(device)[[1, 2]])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(ROWS, DIM)
        self.item = nn.EmbeddingBag(700, DIM, mode="sum")
        self.same = self.user
        self.small = nn.Embedding(5, 4)
        self.out = nn.Linear(2 * DIM, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.user(user), self.item(item, offsets)], dim=1)).sigmoid()


def batch(device: str, seed: int = 0, size: int = 200) -> tuple[torch.Tensor, ...]:
    user, item = random_ids(size, seed), random_ids(size * 3, seed + 1, 700)
    return user.to(device), item.to(device), torch.arange(0, size * 3, 3).to(device)


def test_replace_changes_nothing_that_a_model_says(store, device) -> None:
    torch.manual_seed(0)
    model = Model().to(device).eval()
    inputs = [batch(device, seed) for seed in range(3)]
    with torch.no_grad():
        wanted = [model(*it) for it in inputs]
    replaced = wt.replace(model, store, min_rows=100, dram_bytes=1 << 16, hbm_bytes=1 << 16)
    assert replaced is model and isinstance(model.user, wt.Embedding) and isinstance(model.item, wt.EmbeddingBag)
    assert model.same is model.user and isinstance(model.small, nn.Embedding)
    assert sorted(table.name for table in store.tables()) == ["item", "user"]
    with torch.no_grad():
        for it, prediction in zip(inputs, wanted, strict=True):
            same(model(*it), prediction)
    # Tables that are there are used as they are.
    generation = store.table("user").generation
    again = wt.replace(Model().to(device), store, min_rows=100)
    assert store.table("user").generation == generation
    same(again.user(inputs[0][0]), model.user(inputs[0][0]))


def test_replace_refuses_by_name(store) -> None:
    with pytest.raises(warprow.InvalidArgument, match="nothing to replace"):
        wt.replace(nn.Linear(2, 2), store)
    with pytest.raises(warprow.InvalidArgument, match="max_norm"):
        wt.replace(nn.Embedding(5, 4, max_norm=1.0), store)
    with pytest.raises(warprow.InvalidArgument, match="max"):
        wt.replace(nn.EmbeddingBag(5, 4, mode="max"), store)
    with pytest.raises(warprow.InvalidArgument, match="sparse"):
        wt.replace(nn.Embedding(5, 4, sparse=True), store)
    plain = nn.Embedding(5, 4)
    same(wt.replace(plain, store)(torch.arange(5)), plain.weight.detach())
    # One of the tables is there, with other rows or another shape: nothing is loaded, and the modules stay.
    for embedding in (nn.Embedding(5, 4), nn.Embedding(6, 4)):
        two = nn.ModuleDict({"embedding": embedding, "new": nn.Embedding(3, 4)})
        with pytest.raises(warprow.TableExists, match="'embedding' is there already") as caught:
            wt.replace(two, store)
        assert caught.value.table == "embedding" and "Store.load" in caught.value.remedy
        assert two["embedding"] is embedding and [it.name for it in store.tables()] == ["embedding"]


def test_compiled_without_a_break(store, device) -> None:
    torch.manual_seed(0)
    model = wt.replace(Model().to(device).eval(), store, min_rows=100)
    with torch.no_grad():
        inputs = [batch(device, seed, size) for seed, size in ((0, 200), (1, 200), (2, 300))]
        wanted = [model(*it) for it in inputs]
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for it, prediction in zip(inputs, wanted, strict=True):
            torch.testing.assert_close(compiled(*it), prediction)


def test_exported_and_found_by_another_process(address, tmp_path) -> None:
    torch.manual_seed(0)
    with warprow.format(address) as store:
        model = wt.replace(Model().eval(), store, min_rows=100)
        it = batch("cpu")
        with torch.no_grad():
            wanted = model(*it)
            exported = torch.export.export(model, it)
            same(exported.module()(*it), wanted)
        torch.export.save(exported, tmp_path / "model.pt2")
        torch.save((it, wanted), tmp_path / "wanted.pt")
    text = f"""
import torch, warprow.torch
it, wanted = torch.load({str(tmp_path / "wanted.pt")!r})
model = torch.export.load({str(tmp_path / "model.pt2")!r}).module()
with torch.no_grad():
    print(torch.equal(model(*it), wanted))
"""
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert found.stdout.split() == ["True"], found.stderr


def test_opcheck(stored, device) -> None:
    store, _ = stored
    ours = wt.Embedding(attach(store, device), "user")
    ids = random_ids(20).to(device)
    torch.library.opcheck(torch.ops.warprow.lookup, (ids, None, None, ours._lookup.text))
    masked = wt.Embedding(attach(store, device), "user", on_failure="mask")
    torch.library.opcheck(torch.ops.warprow.lookup_masked, (ids, None, None, masked._lookup.text))
    bag = wt.EmbeddingBag(attach(store, device), "user", mode="sum")
    offsets = torch.arange(0, 20, 2, device=device)
    given = torch.rand(20, device=device)
    torch.library.opcheck(torch.ops.warprow.lookup, (ids, offsets, None, bag._lookup.text))
    torch.library.opcheck(torch.ops.warprow.lookup, (ids, offsets, given, bag._weighted.text))


def test_state_dict_has_addresses_and_no_rows(stored) -> None:
    store, table = stored
    ours = wt.Embedding(attach(store, "cpu"), "user")
    state = ours.state_dict()
    assert list(state) == ["_extra_state"] and state["_extra_state"]["drives"] == list(store.addresses)
    ours.load_state_dict(state)
    with pytest.raises(warprow.InvalidArgument, match="other"):
        ours.load_state_dict({"_extra_state": {**state["_extra_state"], "tables": ["other"]}})
    with pytest.raises(RuntimeError, match="store"):
        ours.load_state_dict({"weight": table})


def test_a_pickle_has_shares_of_the_cache(stored) -> None:
    store, table = stored
    ours = wt.EmbeddingBag(store.attach("cpu", cache_bytes=1 << 20, cache_shares={"user": 1 << 19}), "user", mode="sum")
    again = pickle.loads(pickle.dumps(ours))
    assert again._lookup.spec.options.cache_shares == (("user", 1 << 19),)
    ids = torch.tensor([[5, 7]])
    same(again(ids), table[5:6] + table[7:8])


def test_state_dict_has_the_options_of_look_ups(stored, tmp_path) -> None:
    store, table = stored
    executor = store.attach("cpu", dram_bytes=4096, hbm_rows={"user": 9})
    ours = wt.EmbeddingBag(executor, "user", mode="sum", padding_idx=3, on_failure="nan", dtype=torch.float16, max_ids=64)
    torch.save(ours.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    options = state["_extra_state"]["options"]
    spec = ours._lookup.spec
    given = {"missing": "error", "on_failure": "nan", "mask": "found", "out": "f16", "max_ids": 64, "prefetch": 0, "has_last": False}
    assert {name: options[name] for name in given} == given
    of_tables = {name: [list(it) for it in getattr(spec.options, name)] for name in ("hbm_rows", "cache_shares")}
    assert options["executor"] == {**spec.options.__dict__, **of_tables}
    assert options["executor"]["dram_bytes"] == 4096 and options["executor"]["hbm_rows"] == [["user", 9]]
    assert (options["pooling"], options["weighted"], options["padding"]) == (["sum"], [False], [3])
    # Whatever a pickle says is there.
    assert {field.name for field in dataclasses.fields(spec)} - {"options", "features"} <= {*state["_extra_state"], *options}

    # Where and how a module serves is its own: device, type and sizes stay, and so do its rows.
    other = wt.EmbeddingBag(store, "user", mode="sum", padding_idx=3)
    other.load_state_dict(state)
    assert other._lookup.spec.out == "f32" and other._lookup.spec.max_ids is None
    ids = torch.tensor([[5, 3, 7]])
    same(other(ids), table[5:6] + table[7:8])

    # What decides the numbers is refused by name.
    for changed, word in (
        (wt.EmbeddingBag(store, "user", mode="mean", padding_idx=3), "pooling"),
        (wt.EmbeddingBag(store, "user", mode="sum"), "padding"),
        (wt.EmbeddingBag(store, "user", mode="sum", padding_idx=3, missing="zero"), "missing"),
    ):
        with pytest.raises(warprow.InvalidArgument, match=f"the checkpoint has {word} "):
            changed.load_state_dict(state)

    # Checkpoints that were made before have no options.
    old = {name: it for name, it in state["_extra_state"].items() if name != "options"}
    wt.EmbeddingBag(store, "user", mode="mean").load_state_dict({"_extra_state": old})
    for broken in ({}, None, {**old, "options": 1}):
        with pytest.raises(warprow.InvalidArgument, match="_extra_state"):
            other.load_state_dict({"_extra_state": broken})


def test_a_pickle_opens_the_store_in_another_process(address, tmp_path) -> None:
    table = weights(300)
    with warprow.format(address) as store:
        store.load({"user": table})
        ours = wt.Embedding(store, "user", padding_idx=2)
        data = pickle.dumps(ours)
        assert len(data) < 4000
        # In this process it is over the store that is open.
        same(pickle.loads(data)(torch.arange(300)), table)
        twin = copy.deepcopy(ours)
        assert twin.executor is ours.executor
        same(twin(torch.arange(300)), table)
    # Nor is one behind the module whose store was closed.
    with pytest.raises(warprow.Closed):
        ours(torch.arange(300))
    again = pickle.loads(data)
    same(again(torch.arange(300)), table)
    again.executor.store.close()
    (tmp_path / "module").write_bytes(data)
    text = f"""
import pickle, torch
module = pickle.load(open({str(tmp_path / "module")!r}, "rb"))
print(module.padding_idx, module(torch.arange(300)).double().sum().item())
"""
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert found.stdout.split() == ["2", str(table.double().sum().item())], found.stderr


def test_what_training_asks_for_is_refused_by_name(stored) -> None:
    store, _ = stored
    ours = wt.EmbeddingBag(store, "user", mode="sum")
    with pytest.raises(AttributeError, match="store"):
        ours.weight
    with pytest.raises(warprow.WarprowError, match="gradient"):
        ours.requires_grad_(True)
    ids, given = random_ids(4).reshape(2, 2), torch.rand(2, 2, requires_grad=True)
    with pytest.raises(warprow.InvalidArgument, match="gradient"):
        ours(ids, per_sample_weights=given)
    assert not ours(ids, per_sample_weights=given.detach()).requires_grad
    with pytest.raises(warprow.WarprowError, match="DataParallel"):
        ours._replicate_for_data_parallel()
    assert list(ours.parameters()) == []


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda m, ids: m(ids.reshape(2, 2).float()), warprow.WrongType, "input"),
        (lambda m, ids: m(ids.reshape(2, 2).short()), warprow.WrongType, "input"),
        (lambda m, ids: m(ids.reshape(1, 2, 2), ids[:1]), warprow.InvalidArgument, "dimensions"),
        (lambda m, ids: m(ids), warprow.InvalidArgument, "offsets"),
        (lambda m, ids: m(ids.reshape(2, 2), ids[:1]), warprow.InvalidArgument, "offsets"),
        (lambda m, ids: m(ids, torch.tensor([0.0], device=ids.device)), warprow.WrongType, "offsets"),
        (lambda m, ids: m(ids, torch.zeros(1, 1, dtype=torch.int64, device=ids.device)), warprow.InvalidArgument, "offsets"),
        (lambda m, ids: m(ids.reshape(2, 2), None, torch.ones(4, device=ids.device)), warprow.InvalidArgument, "weights"),
        (lambda m, ids: m(ids.reshape(2, 2), None, ids.reshape(2, 2)), warprow.WrongType, "weights"),
        (lambda m, ids: m(ids.reshape(2, 2), out=torch.empty(3, DIM, device=ids.device)), warprow.InvalidArgument, "out"),
        (lambda m, ids: m(ids.reshape(2, 2), out=torch.empty(2, DIM, device=ids.device).half()), warprow.WrongType, "out"),
        (lambda m, ids: m.to("meta"), warprow.InvalidArgument, "meta"),
    ],
)
def test_bad_input_is_refused_by_name(stored, device, call, error, word) -> None:
    store, table = stored
    ours = wt.EmbeddingBag(attach(store, device), "user", mode="sum")
    ids = random_ids(4).to(device)
    with pytest.raises(error, match=word):
        call(ours, ids)
    same(ours(ids.reshape(4, 1)), table.to(device)[ids])


def test_modules_that_cannot_be(stored) -> None:
    store, _ = stored
    for make, word in (
        (lambda: wt.Embedding(store, "nobody"), "nobody"),
        (lambda: wt.EmbeddingBag(store, "user", mode="max"), "max"),
        (lambda: wt.Embedding(store, "user", padding_idx=ROWS), "padding_idx"),
        (lambda: wt.Embedding(store, "user", missing="never"), "missing"),
        (lambda: wt.Embedding(store, "user", on_failure="ignore"), "on_failure"),
        (lambda: wt.Embedding(store, "user", max_ids=0), "max_ids"),
        (lambda: wt.Embedding(store, "user", dtype=torch.float64), "float64"),
        (lambda: wt.Embedding("user", "user"), "executor"),
        (lambda: wt.EmbeddingBagCollection(store, []), "features"),
        (lambda: wt.EmbeddingBagCollection(store, [warprow.Feature("a", "user")]), "pooled"),
        (lambda: wt.EmbeddingBagCollection(store, [warprow.Feature("a", "user", pooling="sum")] * 2), "two features"),
    ):
        with pytest.raises(warprow.WarprowError, match=word):
            make()


def test_offsets_that_descend(stored, device) -> None:
    store, _ = stored
    ours = wt.EmbeddingBag(attach(store, device), "user", mode="sum")
    ids, offsets = random_ids(4).to(device), torch.tensor([0, 3, 1], device=device)
    with pytest.raises(warprow.InvalidArgument):
        ours(ids, offsets)
        ours.check()
    ours(ids, torch.tensor([0, 1, 3], device=device))
    ours.check()


def test_a_closed_store(stored, device) -> None:
    store, _ = stored
    ours = wt.Embedding(attach(store, device), "user")
    ours(random_ids(4).to(device))
    store.close()
    with pytest.raises(warprow.Closed):
        ours(random_ids(4).to(device))


def test_collections_look_all_features_up_at_once(store, device) -> None:
    user, item = weights(), weights(300, 8, 1)
    store.load({"user": user, "item": item})
    features = [
        warprow.Feature("clicks", "user", pooling="sum"),
        warprow.Feature("seen", "item", pooling="mean"),
        warprow.Feature("bought", "user", pooling="sum", weighted=True),
    ]
    ours = wt.EmbeddingBagCollection(attach(store, device), features)
    offsets = torch.tensor([0, 2, 2, 6], device=device)
    it = {
        "clicks": (random_ids(6).to(device), offsets),
        "seen": (random_ids(6, 1, 300).to(device), offsets),
        "bought": (random_ids(6, 2).to(device), offsets, torch.rand(6, device=device)),
    }
    found = ours(it)
    assert list(found) == ["clicks", "seen", "bought"]
    for feature, table in zip(features, (user, item, user), strict=True):
        given = it[feature.name]
        plain = nn.EmbeddingBag(*table.shape, mode=feature.pooling, include_last_offset=True, _weight=table).to(device)
        weight = {"per_sample_weights": given[2]} if feature.weighted else {}
        wanted = plain(given[0], given[1], **weight).detach()
        torch.testing.assert_close(found[feature.name], wanted, rtol=1e-6, atol=1e-6)

    class Jagged:
        """As TorchRec's KeyedJaggedTensor, as far as it is used."""

        def keys(self):
            return ["clicks", "seen", "bought"]

        def values(self):
            return torch.cat([it[name][0] for name in self.keys()])

        def offsets(self):
            return torch.cat([offsets[:-1], offsets[:-1] + 6, offsets + 12])

        def weights_or_none(self):
            return torch.cat([torch.ones(12, device=device), it["bought"][2]])

    for name, rows in ours(Jagged()).items():
        same(rows, found[name])
    with pytest.raises(warprow.InvalidArgument, match="bags"):
        ours({**it, "seen": (it["seen"][0], offsets[:2])})
    with pytest.raises(warprow.InvalidArgument, match="features"):
        ours({"clicks": it["clicks"]})
    ours.check()
    # A bag of one feature never has ids of another.
    for wrong in (offsets + 1, offsets.clamp(max=5), offsets.clamp(min=1)):
        with pytest.raises(warprow.InvalidArgument, match="offsets"):
            ours({**it, "seen": (it["seen"][0], wrong)})
            ours.check()
    same(ours(it)["seen"], found["seen"])
    ours.check()


def test_rows_are_fetched_ahead(stored, device) -> None:
    store, table = stored
    ours = wt.Embedding(attach(store, device), "user", prefetch=2)
    batches = [random_ids(300, seed).to(device) for seed in range(6)]
    ahead = ours.prefetch(batches[0])
    for step, ids in enumerate(batches):
        following = ours.prefetch(batches[step + 1]) if step + 1 < len(batches) else None
        same(ours.lookup(ahead), table.to(device)[ids])
        ahead = following
    held = [ours.prefetch(batches[0]), ours.prefetch(batches[1])]
    with pytest.raises(warprow.Busy):
        ours.prefetch(batches[2])
    same(ours(batches[3]), table.to(device)[batches[3]])
    del held[0]
    same(ours.lookup(held[0]), table.to(device)[batches[1]])
    with pytest.raises(warprow.InvalidArgument, match="already"):
        ours.lookup(held[0])
    with pytest.raises(warprow.InvalidArgument, match="prefetch"):
        wt.Embedding(attach(store, device), "user").prefetch(batches[0])
    ours.check()


def test_threads_share_a_module(stored, device) -> None:
    store, table = stored
    table = table.to(device)
    ours = wt.Embedding(attach(store, device), "user")
    failures = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream() if device == "cuda" else None
        for step in range(20):
            ids = random_ids(200, seed * 100 + step).to(device)
            if stream is None:
                found = ours(ids)
            else:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    found = ours(ids)
                stream.synchronize()
            if not torch.equal(found, table[ids]):
                failures.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours.check()
    assert failures == []


def test_a_fork_is_refused_by_name(stored) -> None:
    store, _ = stored
    ours = wt.Embedding(store, "user")
    ours(random_ids(4))
    read, write = os.pipe()
    if os.fork() == 0:
        text = "nothing was raised"
        try:
            ours(random_ids(4))
        except warprow.Forked:
            text = "Forked"
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.wait()
    assert os.read(read, 1000).decode() == "Forked"


class Foreign:
    """An array of another library: it has DLPack's two methods, and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: object) -> object:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


def test_arrays_of_other_libraries(stored, device) -> None:
    store, wanted = stored
    ids, offsets, factors = random_ids(40, 3), torch.tensor([0, 7, 7, 30]), torch.rand(40)
    given, starts, scales = (Foreign(it.to(device)) for it in (ids, offsets, factors))
    with store.attach(device) as executor:
        rows = wt.Embedding(executor, "user", prefetch=1)
        assert torch.equal(rows(given).cpu(), wanted[ids])
        assert torch.equal(rows.lookup(rows.prefetch(given)).cpu(), wanted[ids])
        # What a module returns goes the other way.
        assert torch.equal(torch.from_dlpack(rows(given)).cpu(), wanted[ids])
        bags = wt.EmbeddingBag(executor, "user", mode="sum", prefetch=1)
        plain = bags(ids.to(device), offsets.to(device), factors.to(device))
        assert plain.abs().sum() > 0
        assert torch.equal(bags(given, starts, scales), plain)
        assert torch.equal(bags.lookup(bags.prefetch(given, starts, scales)), plain)
        feature = warprow.Feature("clicks", "user", pooling="sum", weighted=True)
        ends = Foreign(torch.tensor([0, 7, 7, 30, 40], device=device))
        collection = wt.EmbeddingBagCollection(executor, [feature])
        assert torch.equal(collection({"clicks": (given, ends, scales)})["clicks"], plain)
        if device == "cpu":
            assert torch.equal(rows(ids.numpy()), wanted[ids])
        for call, argument in (
            (lambda: rows([1, 2]), "input: a list"),
            (lambda: rows.prefetch([1, 2]), "input: a list"),
            (lambda: bags(given, [0, 2]), "offsets: a list"),
            (lambda: bags(given, starts, [1.0]), "per_sample_weights: a list"),
            (lambda: collection({"clicks": (given, [0, 40], scales)}), r"batch\['clicks'\]: a list"),
            (lambda: rows(np.arange(3).astype(">i8")), "input: a ndarray that torch cannot take"),
            (lambda: rows(Foreign(torch.rand(3, device=device))), "input: elements of type torch.float32"),
        ):
            with pytest.raises(warprow.WrongType, match=argument):
                call()


def test_symbolic_traces_have_the_operator(stored, device) -> None:
    store, wanted = stored

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = wt.Embedding(store.attach(device), "user")

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.rows(ids) + 1

    graph, ids = torch.fx.symbolic_trace(Model()), random_ids(40, 5)
    assert "warprow.lookup" in graph.code
    assert torch.equal(graph(ids.to(device)).cpu(), wanted[ids] + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_blocks_of_tensors_are_loaded(store, device, dtype) -> None:
    wanted = weights(300).to(dtype)
    store.load({"user": (block.to(device) for block in wanted.split(70))})
    assert store.table("user").rows == 300
    module = wt.Embedding(store.attach(device), "user")
    assert torch.equal(module(torch.arange(300, device=device)).cpu(), wanted.to(torch.float32))
