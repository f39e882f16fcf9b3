"""A collection of bags that ranks look up for each other, in processes with a group of gloo, and of NCCL where there are GPUs. Every row is
compared with what a module that is not sharded gives, bit for bit where the order of sums is the same."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402
from warprow import Feature  # noqa: E402

import checkpoints  # noqa: E402
import ranks  # noqa: E402

#: By table rows and elements of a row; not all have one length.
TABLES = {"user": (5000, 16), "item": (700, 16), "shop": (90, 8), "tag": (300, 8), "tiny": (7, 16)}
FEATURES = [
    Feature("history", "item", pooling="mean", padding=0),
    Feature("user", "user", pooling="sum"),
    Feature("shop", "shop", pooling="sum", weighted=True),
    Feature("tags", "tag", pooling="sum", weighted=True),
    Feature("tiny", "tiny", pooling="mean"),
    Feature("liked", "item", pooling="sum"),
    Feature("seen", "shop", pooling="mean", padding=4),
]
SEED = int(os.environ.get("WARPROW_SEED", "1"))


def table(name: str) -> torch.Tensor:
    rows, dim = TABLES[name]
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(len(name)))


def plan(world: int, item: str = "rows", user: str = "rows") -> wt.ShardingPlan:
    """Every kind of placement."""
    placements = (
        wt.Placement("user", "rows", exchange=user),
        wt.Placement("item", "rows", exchange=item),
        wt.Placement("shop", "whole", world - 1),
        wt.Placement("tag", "rows", exchange=item),
        wt.Placement("tiny", "replicated"),
    )
    return wt.ShardingPlan(world, placements)


def batch(
    seed: int, bags: int, *, longest: int = 9, dtype: torch.dtype = torch.int64, device: str = "cpu"
) -> dict[str, tuple[torch.Tensor, ...]]:
    random = torch.Generator().manual_seed(seed)
    given: dict[str, tuple[torch.Tensor, ...]] = {}
    for feature in FEATURES:
        lengths = torch.randint(0, longest + 1, (bags,), generator=random)
        count = int(lengths.sum())
        ids = torch.randint(0, TABLES[feature.table][0], (count,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        given[feature.name] = (ids.to(dtype), offsets.to(dtype))
        if feature.weighted:
            given[feature.name] += (torch.randn(count, generator=random),)
    return {name: tuple(it.to(device) for it in parts) for name, parts in given.items()}


def jagged(given: dict[str, tuple[torch.Tensor, ...]]) -> Any:
    """The batch as TorchRec's class has it, as far as modules look at that."""
    ids = torch.cat([it[0] for it in given.values()])
    lengths = torch.cat([it[1].diff() for it in given.values()])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    weights = torch.cat([it[2] if len(it) == 3 else torch.full_like(it[0], 7, dtype=torch.float32) for it in given.values()])
    calls = {"keys": list(given), "values": ids, "offsets": offsets, "weights_or_none": weights}
    return SimpleNamespace(**{name: (lambda value=value: value) for name, value in calls.items()})


def partial_sums(given: dict[str, tuple[torch.Tensor, ...]], feature: Feature, world: int) -> torch.Tensor:
    """Bags of a feature whose ranks send sums: each rank's rows of a bag from +0 in their order, then these sums in the order of ranks."""
    rows, found = table(feature.table), []
    ids, offsets, *weights = given[feature.name]
    for begin, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        total, count = torch.zeros(rows.shape[1]), 0
        for rank in range(world):
            part, owned = torch.zeros(rows.shape[1]), 0
            for at in range(begin, end):
                id_ = int(ids[at])
                if id_ % world == rank and id_ != feature.padding:
                    part = part + (rows[id_] * weights[0][at] if weights else rows[id_])
                    owned += 1
            total, count = (total + part if owned else total), count + owned
        found.append(total / torch.tensor(float(max(count, 1))) if feature.pooling == "mean" else total)
    return torch.stack(found) if found else torch.zeros(0, rows.shape[1])


def same(found: torch.Tensor, wanted: torch.Tensor, where: object) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, where
    assert torch.equal(found, wanted), (where, found, wanted)


def raises(kind: type[Exception], word: str, call: Any) -> Any:
    with pytest.raises(kind, match=word) as caught:
        call()
    return caught.value


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of all tables, which any number of processes can open."""
    path = tmp_path_factory.mktemp("tables") / "model.safetensors"
    checkpoints.write(path, {name: ("F32", table(name)) for name in TABLES})
    return f"attached:{path}"


def _attached(rank: int, world: int, folder: Path, address: str, kind: str) -> int:
    device = "cpu" if kind == "cpu" else f"cuda:{rank}"
    store = warprow.open(address, read_only=True)
    executor = store.attach(device, dram_bytes=20_000, **({} if kind == "cpu" else {"hbm_bytes": 20_000}))
    compared = 0
    plain = wt.EmbeddingBagCollection(executor, FEATURES)
    for item, user in (("rows", "rows"), ("sums", "rows"), ("rows", "sums"), ("sums", "sums")):
        sharded = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world, item, user))
        assert f"rank {rank} of {world}" in repr(sharded) and not list(sharded.parameters())
        # Batches of other sizes on each rank, some empty, some without an id.
        for step, (bags, longest) in enumerate(((40, 9), (3 * rank, 5), (1, 30), (0, 3), (17, 0), (64, 1))):
            given = batch(SEED * 1000 + 10 * step + rank, bags, longest=longest, dtype=torch.int32 if step == 5 else torch.int64, device=device)
            wanted, found = plain(given), sharded(given if step % 2 else jagged(given))
            assert list(found) == [feature.name for feature in FEATURES]
            for feature in FEATURES:
                where = (SEED, world, rank, item, user, step, feature.name)
                sums = {"item": item, "tag": item, "user": user}.get(feature.table) == "sums"
                if sums:
                    on_host = {name: tuple(part.cpu() for part in parts) for name, parts in given.items()}
                    same(found[feature.name].cpu(), partial_sums(on_host, feature, world), where)
                    torch.testing.assert_close(found[feature.name], wanted[feature.name], rtol=1e-5, atol=1e-5)
                else:
                    same(found[feature.name], wanted[feature.name], where)
                compared += found[feature.name].numel()
            # Again: the same bits.
            again = sharded(given)
            assert all(torch.equal(again[name], found[name]) for name in found)
        assert set(sharded.reports()) == {"served", "replicated"}
        sharded.check()
        assert sharded.recover() is False
    halves = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world), dtype=torch.bfloat16)
    plain = wt.EmbeddingBagCollection(executor, FEATURES, dtype=torch.bfloat16)
    given = batch(7 + rank, 30, device=device)
    wanted = plain(given)
    for name, rows in halves(given).items():
        same(rows, wanted[name], name)
    assert halves.to(device) is halves
    raises(warprow.InvalidArgument, "dtype=torch.float32", halves.float)
    # One bag, whose ids go to different ranks; and one id for all features.
    few = {"user": (torch.arange(8, device=device), torch.tensor([0, 8], device=device))}
    user = [Feature("user", "user", pooling="sum")]
    for exchange in ("rows", "sums"):
        placed = wt.ShardingPlan(world, (wt.Placement("user", "rows", exchange=exchange),))
        found = wt.ShardedEmbeddingBagCollection(executor, user, plan=placed)(few)["user"]
        wanted = partial_sums({"user": (torch.arange(8), torch.tensor([0, 8]))}, user[0], world if exchange == "sums" else 1)
        same(found.cpu(), wanted, (rank, exchange))
    alike = {feature.name: (torch.tensor([3]), torch.tensor([0, 1]), torch.tensor([2.5]))[: 3 if feature.weighted else 2] for feature in FEATURES}
    alike = {name: tuple(it.to(device) for it in parts) for name, parts in alike.items()}
    wanted = wt.EmbeddingBagCollection(executor, FEATURES)(alike)
    for name, rows in wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world))(alike).items():
        same(rows, wanted[name], name)
    # An id is sent once, however often a batch has it.
    alone = [Feature("user", "user", pooling="sum")]
    once = wt.ShardedEmbeddingBagCollection(executor, alone, plan=wt.ShardingPlan(world, (wt.Placement("user", "rows"),)))
    repeated = torch.tensor([3, 3 + world], device=device).repeat(500)
    same(once({"user": (repeated, torch.arange(1001, device=device))})["user"], table("user").to(device)[repeated], rank)
    once.check()
    if rank == 3 % world:
        assert once.reports()["served"]["ids"] == 2 * world
    # A padding id need not be one of the table's.
    padded = [Feature("user", "user", pooling="mean", padding=-1)]
    holes = {"user": (torch.tensor([-1, 5, 7, -1, -1], device=device), torch.tensor([0, 3, 4, 5], device=device))}
    wanted = wt.EmbeddingBagCollection(executor, padded)(holes)["user"]
    for exchange in ("rows", "sums"):
        placed = wt.ShardingPlan(world, (wt.Placement("user", "rows", exchange=exchange),))
        found = wt.ShardedEmbeddingBagCollection(executor, padded, plan=placed)(holes)["user"]
        if exchange == "rows":
            same(found, wanted, (rank, exchange))
        torch.testing.assert_close(found, wanted)
    # Without a plan: the store's sizes, bags of one id.
    default = wt.ShardedEmbeddingBagCollection(executor, FEATURES)
    wanted = wt.EmbeddingBagCollection(executor, FEATURES)(given)
    for name, rows in default(given).items():
        same(rows, wanted[name], name)
    return compared


#: Devices and numbers of ranks: on a machine with GPUs NCCL as well, with one GPU for each rank.
GPUS = torch.cuda.device_count() if torch.cuda.is_available() and torch.distributed.is_nccl_available() else 0
WORLDS = [("cpu", 1), ("cpu", 2), ("cpu", 4)] + [("cuda", world) for world in (1, 2) if world <= GPUS]


def backend(kind: str) -> str:
    return "gloo" if kind == "cpu" else "nccl"


@pytest.mark.parametrize(("kind", "world"), WORLDS)
def test_every_row_is_that_of_a_module_that_is_not_sharded(checkpoint: str, tmp_path: Path, kind: str, world: int) -> None:
    compared = ranks.run(world, tmp_path, _attached, checkpoint, kind, backend=backend(kind))
    print(f"seed {SEED}: {sum(compared)} elements compared by {world} ranks")
    assert all(it > 30_000 for it in compared)


def _fetched_ahead(rank: int, world: int, folder: Path, address: str, kind: str) -> int:
    device = "cpu" if kind == "cpu" else f"cuda:{rank}"
    executor = warprow.open(address).attach(device, dram_bytes=20_000, **({} if kind == "cpu" else {"hbm_bytes": 20_000}))
    plain, compared = wt.EmbeddingBagCollection(executor, FEATURES), 0
    tiny = wt.ShardingPlan(world, tuple(wt.Placement(name, "replicated") for name in TABLES))
    for placed in (plan(world), tiny):
        ours = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=placed, prefetch=2)
        # Batches of other sizes on each rank, some without a bag, some without an id.
        batches = [
            batch(SEED * 2000 + 10 * step + rank, bags, longest=longest, device=device)
            for step, (bags, longest) in enumerate(((40, 9), (3 * rank, 5), (1, 30), (0, 3), (17, 0), (64, 1)))
        ]

        def look_up(ahead: wt.Prefetched, step: int) -> int:
            wanted, found = plain(batches[step]), ours.lookup(ahead)
            assert list(found) == [feature.name for feature in FEATURES]
            for name, rows in wanted.items():
                same(found[name], rows, (SEED, world, rank, step, name))
            return sum(rows.numel() for rows in wanted.values())

        ahead = ours.prefetch(batches[0])
        for step in range(len(batches)):
            following = ours.prefetch(jagged(batches[step + 1])) if step + 1 < len(batches) else None
            compared += look_up(ahead, step)
            ahead = following
        # Two at once, and a whole look-up between their halves.
        held = [ours.prefetch(batches[0]), ours.prefetch(batches[1])]
        for name, rows in ours(batches[2]).items():
            same(rows, plain(batches[2])[name], (rank, name))
        compared += look_up(held[1], 1) + look_up(held[0], 0)
        raises(warprow.InvalidArgument, "already", lambda: ours.lookup(held[0]))
        assert "looked up" in repr(held[0])
        # What all ranks drop is forgotten.
        held = [ours.prefetch(batches[0]), ours.prefetch(batches[1])]
        del held
        held = [ours.prefetch(batches[0]), ours.prefetch(batches[5])]
        compared += look_up(held[0], 0) + look_up(held[1], 5)
        raises(warprow.WrongType, "prefetched: a dict", lambda: ours.lookup(batches[0]))
        other = wt.EmbeddingBagCollection(executor, FEATURES, prefetch=1)
        raises(warprow.InvalidArgument, "another module", lambda: ours.lookup(other.prefetch(batches[0])))
        ahead = ours.prefetch(batches[0])
        raises(warprow.InvalidArgument, "another module", lambda: other.lookup(ahead))
        compared += look_up(ahead, 0)
        bare = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=placed)
        raises(warprow.InvalidArgument, "prefetch=", lambda: bare.prefetch(batches[0]))
        ours.check()
        if placed is tiny:
            continue
        # A third is too much for every rank; the group goes on.
        held = [ours.prefetch(batches[0]) for _ in range(3)]
        raises((warprow.Busy, warprow.RankFailed), "prefetched|has failed", lambda: ours.lookup(held[2]))
        compared += look_up(held[0], 0) + look_up(held[1], 0)
        # A batch that one rank cannot have is refused on all.
        wrong = {**batches[0], "user": (torch.full((1,), 9999, device=device), torch.tensor([0] + [1] * 40, device=device))} if rank == 0 else batches[0]
        kind_of = warprow.MissingIds if rank == 0 else warprow.RankFailed
        raises(kind_of, "missing" if rank == 0 else "rank 0", lambda: ours.prefetch(wrong))
        compared += look_up(ours.prefetch(batches[0]), 0)
        ours.check()
    return compared


@pytest.mark.parametrize(("kind", "world"), WORLDS)
def test_batches_are_fetched_ahead(checkpoint: str, tmp_path: Path, kind: str, world: int) -> None:
    compared = ranks.run(world, tmp_path, _fetched_ahead, checkpoint, kind, backend=backend(kind))
    assert all(it > 30_000 for it in compared), compared


@pytest.mark.parametrize(("kind", "world"), [it for it in WORLDS if it[1] == 2])
def test_ranks_share_an_emulated_drive(tmp_path: Path, kind: str, world: int) -> None:
    path = tmp_path / "shared.drive"
    with warprow.format(f"emulated:{path}?size=64M") as store:
        store.load({name: table(name).numpy() for name in TABLES})
    before = path.read_bytes()
    # Each rank has one part in so many of the drive's rate.
    address = f"emulated:{path}?profile=gen6&sharers={world}"
    compared = ranks.run(world, tmp_path / "ranks", _attached, address, kind, backend=backend(kind))
    assert all(it > 30_000 for it in compared)
    assert path.read_bytes() == before, "a rank has written"


def _owned(rank: int, world: int, folder: Path) -> None:
    """Each rank formats drives of its own, and loads its rows alone."""
    keys = torch.randperm(4000, generator=torch.Generator().manual_seed(5))[:500] * 8 - 9000
    owner = wt.shard_of(keys, world, keyed=True)
    assert set(owner.tolist()) == set(range(world))
    mine = owner == rank
    keyed_rows = torch.randn(500, 16, generator=torch.Generator().manual_seed(6))
    with warprow.format(f"emulated:{folder}/{rank}.drive?size=32M") as store:
        tables = {name: table(name)[rank::world] for name in ("user", "item", "tag")}
        tables["tiny"] = table("tiny")
        tables["sparse"] = keyed_rows[mine]
        if rank == world - 1:
            tables["shop"] = table("shop")
        if rank == 1:
            # Generations of stores of their own have numbers of their own.
            store.load({"other": table("tiny")})
        store.load(tables, keys={"sparse": keys[mine].numpy()})
        features = [*FEATURES, Feature("sparse", "sparse", pooling="sum")]
        placed = wt.ShardingPlan(world, (*plan(world).placements, wt.Placement("sparse", "rows")))
        given = batch(rank, 50)
        chosen = torch.randint(0, 500, (120,), generator=torch.Generator().manual_seed(rank))
        given["sparse"] = (keys[chosen], torch.arange(0, 121, 3)[:41].repeat_interleave(torch.tensor([1] * 40 + [11])))
        sharded = wt.ShardedEmbeddingBagCollection(store, features, plan=placed, stores="own", missing="zero")
        # An id and a key that are nowhere, on one rank: zeros.
        ids, offsets = given["user"]
        ids = ids.clone()
        ids[:4] = torch.tensor([TABLES["user"][0], -1, -7, 1 << 40])
        given["user"] = (ids, offsets)
        found = sharded(given)
        whole = {name: table(name) for name in TABLES}
        for feature in FEATURES:
            same(found[feature.name], reference(given[feature.name], whole[feature.table], feature), (rank, feature.name))
        wanted = keyed_rows[chosen].reshape(40, 3, 16)
        wanted = wanted[:, 0] + wanted[:, 1] + wanted[:, 2]
        same(found["sparse"], torch.cat([wanted, torch.zeros(10, 16)]), rank)
        # Missing ids are an error of the rank whose batch has them; a missing key is one of the rank that looks it up.
        strict = wt.ShardedEmbeddingBagCollection(store, features, plan=placed, stores="own")
        if rank == 0:
            error = raises(warprow.MissingIds, "4 of ", lambda: strict(given))
            before = len(given["history"][0])
            assert list(error.positions) == [before, before + 1, before + 2, before + 3] and error.id == TABLES["user"][0]
        else:
            ids[:4] = 1
            error = raises(warprow.RankFailed, "rank 0 of the group has failed with MissingIds", lambda: strict(given))
            assert (error.rank, error.kind) == (0, "MissingIds")
        ids[:4] = 1
        given["sparse"] = (torch.full((120,), 10**15 + 1), given["sparse"][1])
        nowhere = int(wt.shard_of(given["sparse"][0], world, keyed=True)[0])
        error = raises((warprow.MissingIds, warprow.RankFailed), "missing|MissingIds", lambda: strict(given))
        assert isinstance(error, warprow.MissingIds) == (rank == nowhere)
        # The group goes on.
        given["sparse"] = (keys[chosen], given["sparse"][1])
        same(strict(given)["sparse"], found["sparse"], rank)


def reference(given: tuple[torch.Tensor, ...], rows: torch.Tensor, feature: Feature) -> torch.Tensor:
    """Bags as they should be: from +0, in the order of the bag, products before sums. Missing ids are zeros, and count."""
    ids, offsets, *weights = given
    padded = torch.cat([rows, torch.zeros(1, rows.shape[1])])
    found = []
    for begin, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        total, count = torch.zeros(rows.shape[1]), 0
        for at in range(begin, end):
            id_ = int(ids[at])
            if id_ == feature.padding:
                continue
            count += 1
            row = padded[id_ if 0 <= id_ < len(rows) else len(rows)]
            total = total + (row * weights[0][at] if weights else row)
        found.append(total / torch.tensor(float(max(count, 1))) if feature.pooling == "mean" else total)
    return torch.stack(found)


def test_ranks_with_drives_of_their_own(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _owned)


def _missing(rank: int, world: int, folder: Path, address: str) -> None:
    executor = warprow.open(address).attach()
    for missing in ("zero", "skip", "default"):
        options: dict[str, Any] = {"missing": missing}
        sharded = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world), **options)
        plain = wt.EmbeddingBagCollection(executor, FEATURES, **options)
        given = batch(rank, 30)
        for name in given:
            given[name][0][::3] = torch.tensor(-1 - rank)
            given[name][0][1::5] = 1 << 33
        wanted = plain(given)
        for name, rows in sharded(given).items():
            same(rows, wanted[name], (missing, name))


def test_missing_ids(checkpoint: str, tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _missing, checkpoint)


def _refusals(rank: int, world: int, folder: Path, address: str) -> None:
    store = warprow.open(address)
    executor = store.attach()
    sharded = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world))
    good = batch(rank, 5)
    wanted = wt.EmbeddingBagCollection(executor, FEATURES)(good)

    def fine() -> None:
        for name, rows in sharded(good).items():
            same(rows, wanted[name], name)

    def with_(name: str, *value: Any) -> dict[str, Any]:
        return {**good, name: value}

    ids, offsets = good["user"]
    wrong: list[tuple[Any, type[Exception], str]] = [
        (3, warprow.WrongType, "batch: a int"),
        ({"user": good["user"]}, warprow.InvalidArgument, "batch: it has"),
        (with_("user", ids), warprow.InvalidArgument, "'user': give"),
        (with_("user", ids.float(), offsets), warprow.WrongType, "torch.float32"),
        (with_("user", ids, offsets[:-1]), warprow.InvalidArgument, "bags"),
        (with_("user", ids, offsets.flip(0)), warprow.InvalidArgument, "offsets"),
        (with_("user", ids, offsets + 1), warprow.InvalidArgument, "offsets"),
        (with_("shop", *good["shop"][:2], good["shop"][2][:-1]), warprow.InvalidArgument, "per_sample_weights"),
        (with_("shop", *good["shop"][:2], good["shop"][2].clone().requires_grad_()), warprow.InvalidArgument, "gradient"),
        (with_("user", ids + 5000, offsets), warprow.MissingIds, "missing from their tables"),
        (with_("user", ids - 5000, offsets), warprow.MissingIds, "missing from their tables"),
        (with_("tiny", good["tiny"][0] + 7, good["tiny"][1]), warprow.MissingIds, "missing from their tables"),
    ]
    for at, (given, kind, word) in enumerate(wrong):
        # Each rank's turn to be wrong: it raises what is wrong, and the others which rank it was.
        for turn in range(world):
            if turn == rank:
                raises(kind, word, lambda given=given: sharded(given))
            else:
                error = raises(warprow.RankFailed, f"rank {turn} ", lambda: sharded(good))
                assert (error.rank, error.kind) == (turn, kind.__name__), (at, error)
    fine()

    # Options that differ, or that no rank can have.
    def make(**options: Any) -> Any:
        return wt.ShardedEmbeddingBagCollection(
            options.pop("executor", executor), options.pop("features", FEATURES), **{"plan": plan(world), **options}
        )

    def differs(word: str, what: str, **options: Any) -> None:
        error = raises(warprow.RanksDisagree, word, lambda: make(**(options if rank == 1 else {})))
        assert (error.rank, error.what) == (1, what), error

    differs("rank 1 has options missing='zero', rank 0 has 'error'", "options", missing="zero")
    differs("rank 1 has options dtype='torch.float16'", "options", dtype=torch.float16)
    differs("rank 1 has features", "features", features=FEATURES[:-1])
    differs("rank 1 has plan", "plan", plan=plan(world, "sums"))
    for word, options in (
        ("on_failure", {"on_failure": "mask"}),
        ("on_failure", {"on_failure": "maybe"}),
        ("stores", {"stores": "some"}),
        ("plan: with stores", {"stores": "own", "plan": None}),
        ("plan: it is for 3 ranks", {"plan": plan(3)}),
        ("features: there are none", {"features": []}),
        ("'none' is|not pooled", {"features": [Feature("a", "user")]}),
        ("there is no table 'nothing'|plan: it says nothing of table 'nothing'", {"features": [Feature("a", "nothing", pooling="sum")]}),
    ):
        kind: type[Exception] = warprow.InvalidArgument
        if rank == 1:
            raises(kind, word, lambda options=options: make(**options))
        else:
            error = raises(warprow.RanksDisagree, "rank 1 could not take part: InvalidArgument", make)
            assert (error.rank, error.what) == (1, "error")
    fine()


def test_bad_input_is_told_on_all_ranks(checkpoint: str, tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _refusals, checkpoint)


def _other_stores(rank: int, world: int, folder: Path) -> None:
    """Rank 1 has other stores than rank 0, in one way after the other."""
    feature = [Feature("user", "user", pooling="sum")]
    placed = wt.ShardingPlan(world, (wt.Placement("user", "rows"),))

    def store(name: str, rows: torch.Tensor, **load: Any) -> warprow.Store:
        made = warprow.format(f"emulated:{folder}/{name}{rank}.drive?size=16M")
        made.load({"user": rows}, **load)
        return made

    rows, other = table("user"), table("user")
    other[-1, 3] += 1
    variants: list[tuple[str, str, dict[str, Any]]] = [
        ("rows 4999 of table 'user', rank 0 has 5000", "rows", {"rows": rows[:-1]}),
        ("dim 8", "dim", {"rows": rows[:, :8].contiguous()}),
        ("dtype f16", "dtype", {"rows": rows.half()}),
        ("keyed True", "keyed", {"rows": rows, "keys": {"user": np.arange(5000)}}),
        ("other rows in table 'user' than rank 0: have both open the same files", "content", {"rows": other}),
    ]
    for at, (word, what, made) in enumerate(variants):
        with store(f"v{at}-", **(made if rank == 1 else {"rows": rows})) as ours:
            error = raises(
                warprow.RanksDisagree, word, lambda ours=ours: wt.ShardedEmbeddingBagCollection(ours, feature, plan=placed)
            )
            assert (error.rank, error.what) == (1, what)
    with store("g", rows) as ours:
        if rank == 1:
            ours.load({"user": rows}, replace=True)
        error = raises(
            warprow.RanksDisagree, "generation 1 of table 'user', rank 0 has 0", lambda: wt.ShardedEmbeddingBagCollection(ours, feature, plan=placed)
        )
        assert (error.rank, error.what) == (1, "generation")
    # Stores of their own: rank 0 has a row too few, rank 1 not its table.
    with store("o", rows[rank::world][:-1] if rank == 0 else rows[rank::world]) as ours:
        error = raises(
            warprow.RanksDisagree,
            r"rank 0 has 2499 rows of table 'user', where 4999 rows among 2 ranks make 2500: load rows\[0::2\] there",
            lambda: wt.ShardedEmbeddingBagCollection(ours, feature, plan=placed, stores="own"),
        )
        assert error.what == "rows"
        alone = wt.ShardingPlan(world, (wt.Placement("item", "whole", 1),))
        error = raises(
            warprow.RanksDisagree,
            "rank 1 lacks table 'item', which the plan places there",
            lambda: wt.ShardedEmbeddingBagCollection(ours, [Feature("i", "item", pooling="sum")], plan=alone, stores="own"),
        )
        assert (error.rank, error.what) == (1, "tables")


def _equal_parts(rank: int, world: int, folder: Path) -> None:
    """Both ranks have the whole table, then both the part of rank 0; and parts that are equal because all rows are."""
    feature = [Feature("user", "user", pooling="sum")]
    placed = wt.ShardingPlan(world, (wt.Placement("user", "rows"),))
    rows = table("user")
    for at, loaded in enumerate((rows, rows[0::world], torch.ones(50, 16))):
        with warprow.format(f"emulated:{folder}/{at}-{rank}.drive?size=16M") as store:
            store.load({"user": loaded})
            if at == 2:
                ours = wt.ShardedEmbeddingBagCollection(store, feature, plan=placed, stores="own")
                same(ours({"user": (torch.arange(90), torch.arange(91))})["user"], torch.ones(90, 16), rank)
                continue
            error = raises(
                warprow.RanksDisagree,
                r"rank 1 has the rows of table 'user' that rank 0 has: load rows\[1::2\] there",
                lambda store=store: wt.ShardedEmbeddingBagCollection(store, feature, plan=placed, stores="own"),
            )
            assert (error.rank, error.what) == (1, "content")


def test_equal_parts_on_two_ranks_are_refused(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _equal_parts)


def _other_calls(rank: int, world: int, folder: Path, address: str) -> None:
    """Ranks make different calls. All are told, and the next call works."""
    executor = warprow.open(address, read_only=True).attach("cpu")
    bags, other = (wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world), on_failure="nan", prefetch=2) for _ in range(2))
    given = batch(rank, 20)
    wanted = wt.EmbeddingBagCollection(executor, FEATURES)(given)

    def right(found: dict[str, torch.Tensor]) -> None:
        for name, rows in wanted.items():
            same(found[name], rows, (rank, name))

    def refused(words: str, *calls: Any) -> None:
        error = raises(warprow.RanksDisagree, words, calls[rank])
        assert (error.rank, error.what) == (1, "call")
        right(bags(given))

    fixed, second = bags.fixed_sizes(given), bags.fixed_sizes(given)
    refused("rank 1 calls prefetch, where rank 0 calls forward", lambda: bags(given), lambda: bags.prefetch(given))
    refused("rank 1 calls forward, where rank 0 calls a step of fixed sizes", lambda: fixed(given), lambda: bags(given))
    refused("a step of fixed sizes of number 2", lambda: fixed(given), lambda: second(given))
    refused("rank 1 calls forward of another collection", lambda: bags(given), lambda: other(given))
    refused("rank 1 calls fixed_sizes", lambda: bags(given), lambda: bags.fixed_sizes(given))
    held = [bags.prefetch(given), bags.prefetch(given)]
    refused("rank 1 calls lookup of number 2, where rank 0 calls lookup of number 1", lambda: bags.lookup(held[0]), lambda: bags.lookup(held[1]))
    # A batch that was refused can be looked up yet.
    for ahead in held:
        right(bags.lookup(ahead))
    right(fixed(given))
    # On a GPU calls are not compared beforehand: the first exchange of a step tells forward from prefetch.
    bags._exchange.call = lambda *_: None  # type: ignore[method-assign]
    refused("rank 1 calls prefetch, where rank 0 calls forward", lambda: bags(given), lambda: bags.prefetch(given))


def test_other_calls_on_each_rank_are_refused(checkpoint: str, tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _other_calls, checkpoint)


def _threads(rank: int, world: int, folder: Path, address: str) -> None:
    """Threads of each rank call one collection, each with batches of its own."""
    executor = warprow.open(address, read_only=True).attach("cpu")
    bags = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world))
    plain = wt.EmbeddingBagCollection(executor, FEATURES)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(15):
                given = batch(100 * number + 10 * step + rank, 20 + 7 * number)
                found, wanted = bags(given), plain(given)
                for name, rows in wanted.items():
                    same(found[name], rows, (rank, number, step, name))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


def test_threads_call_one_collection(checkpoint: str, tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _threads, checkpoint)


def test_ranks_that_disagree_about_the_store_are_refused(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _other_stores)


def _failing_drive(rank: int, world: int, folder: Path) -> None:
    store = warprow.open(f"emulated:{folder}/{rank}.drive", timeout=0.5)
    executor = store.attach(check_rows=True)
    feature = [Feature("user", "user", pooling="sum")]
    placed = wt.ShardingPlan(world, (wt.Placement("user", "rows"),))
    strict = wt.ShardedEmbeddingBagCollection(executor, feature, plan=placed, prefetch=1)
    lenient = wt.ShardedEmbeddingBagCollection(executor, feature, plan=placed, on_failure="nan")
    rows = table("user")
    ids = torch.arange(rank, 400 + rank)
    given = {"user": (ids, torch.arange(401))}
    for sharded in (strict, lenient):
        same(sharded(given)["user"], rows[ids], rank)
    for fault in ("unreadable", "unanswered"):
        if rank == 1:
            store.inject_fault(fault, times=None)
            error = raises(warprow.RowsFailed, "rows", lambda: strict(given))
            assert list(error.positions) == []
            raises(warprow.RowsFailed, "rows", lambda: strict.lookup(strict.prefetch(given)))
        else:
            error = raises(warprow.RankFailed, "rank 1 of the group has failed with RowsFailed", lambda: strict(given))
            assert (error.rank, error.kind) == (1, "RowsFailed")
            raises(warprow.RankFailed, "rank 1", lambda: strict.lookup(strict.prefetch(given)))
        found = lenient(given)["user"]
        odd = ids % 2 == 1
        assert found[odd].isnan().all()
        same(found[~odd], rows[ids][~odd], (rank, fault))
        store.clear_faults()
        store.retry_drives()
        # Both ranks have their drives back before the group goes on.
        torch.distributed.barrier()
        same(strict(given)["user"], rows[ids], (rank, fault))
        torch.distributed.barrier()
    # One wrong bit in each read of both ranks: a row that it hits is NaN, and no row is wrong.
    store.inject_fault("corrupt", times=None)
    torch.distributed.barrier()
    found = lenient(given)["user"]
    whole = ~found.isnan().any(dim=1)
    same(found[whole], rows[ids][whole], rank)
    torch.distributed.barrier()
    store.clear_faults()
    if rank == 1:
        store.close()
        raises(warprow.Closed, "closed", lambda: strict(given))
    else:
        error = raises(warprow.RankFailed, "Closed", lambda: strict(given))
        assert (error.rank, error.kind) == (1, "Closed")


def test_a_drive_that_fails(tmp_path: Path) -> None:
    with warprow.format(f"emulated:{tmp_path}/0.drive?size=16M") as store:
        store.load({"user": table("user")})
    # Emulated drives have one owner each: ranks open equal copies.
    for path in list(tmp_path.glob("0.drive*")):
        shutil.copy(path, path.with_name(path.name.replace("0.drive", "1.drive", 1)))
    ranks.run(2, tmp_path, _failing_drive)


def _dying(rank: int, world: int, folder: Path, address: str) -> str:
    executor = warprow.open(address).attach()
    sharded = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world))
    given = batch(rank, 10)
    if rank == 1:
        # In the midst of a batch, while the others go on.
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

    def load() -> None:
        until = time.monotonic() + 50
        while time.monotonic() < until:
            sharded(given)

    began = time.monotonic()
    error = raises(warprow.ExchangeFailed, "1.* of this machine ha(s|ve) died", load)
    assert 1 in error.ranks and time.monotonic() - began < 20
    # Nothing is tried any more.
    again = raises(warprow.ExchangeFailed, "died", lambda: sharded(given))
    assert again.ranks == error.ranks
    return str(again.remedy)


def _late(rank: int, world: int, folder: Path, address: str) -> None:
    executor = warprow.open(address).attach()
    impatient = torch.distributed.new_group(timeout=timedelta(seconds=3))
    torch.distributed.barrier()
    sharded = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=plan(world), group=impatient)
    if rank == 0:
        late = raises(warprow.ExchangeFailed, "within the time-out", lambda: sharded(batch(rank, 10)))
        assert late.ranks == ()
    # Rank 1 is alive, and makes no call. The other group is whole.
    torch.distributed.barrier()


def test_a_rank_that_dies_or_does_not_come(checkpoint: str, tmp_path: Path) -> None:
    found = ranks.run(3, tmp_path / "dies", _dying, checkpoint, timeout=60.0, dying=1)
    assert found[1] is None and "new process group" in found[0] and "new process group" in found[2]
    ranks.run(2, tmp_path / "late", _late, checkpoint)


def _on_gpus(rank: int, world: int, folder: Path) -> None:
    """What a GPU tells later than the CPU does."""
    store = warprow.open(f"emulated:{folder}/{rank}.drive", timeout=0.5)
    executor = store.attach(f"cuda:{rank}")
    feature = [Feature("user", "user", pooling="sum")]
    strict = wt.ShardedEmbeddingBagCollection(executor, feature, plan=wt.ShardingPlan(world, (wt.Placement("user", "rows"),)))
    rows, ids = table("user").cuda(), torch.arange(rank, 400 + rank, device="cuda")
    given = {"user": (ids, torch.arange(401, device="cuda"))}
    same(strict(given)["user"], rows[ids], rank)
    # Ids and offsets that are wrong are told at once.
    for wrong, kind in (((ids + 5000, given["user"][1]), "MissingIds"), ((ids, given["user"][1].flip(0)), "InvalidArgument")):
        if rank == 0:
            raises(getattr(warprow, kind), "missing|offsets", lambda wrong=wrong: strict({"user": wrong}))
        else:
            assert raises(warprow.RankFailed, kind, lambda: strict(given)).kind == kind
    same(strict(given)["user"], rows[ids], rank)
    # Rows that could not be read: by check() on the rank that has the drive.
    store_of_zero = store if rank == 0 else None
    if store_of_zero is not None:
        store_of_zero.inject_fault("unreadable", times=None)
    torch.distributed.barrier()
    strict(given)
    torch.cuda.synchronize()
    if store_of_zero is not None:
        raises(warprow.RowsFailed, "no row", strict.check)
        store_of_zero.clear_faults()
        store_of_zero.retry_drives()
    torch.distributed.barrier()
    strict.recover()
    same(strict(given)["user"], rows[ids], rank)
    strict.check()
    # Without check(): by its next call, and on the others by the one after that, or by their check().
    torch.distributed.barrier()
    if store_of_zero is not None:
        store_of_zero.inject_fault("unreadable", times=None)
    torch.distributed.barrier()
    strict(given)
    torch.cuda.synchronize()
    if store_of_zero is not None:
        store_of_zero.clear_faults()
        store_of_zero.retry_drives()
        raises(warprow.RowsFailed, "no row", lambda: strict(given))
    else:
        strict(given)
        assert raises(warprow.RankFailed, "rank 0 of the group has failed with RowsFailed", strict.check).rank == 0
    torch.distributed.barrier()
    same(strict(given)["user"], rows[ids], rank)
    strict.check()


@pytest.mark.skipif(GPUS == 0, reason="there is no GPU")
def test_errors_on_gpus(tmp_path: Path) -> None:
    world = min(GPUS, 2)
    with warprow.format(f"emulated:{tmp_path}/0.drive?size=16M") as store:
        store.load({"user": table("user")})
    for path in list(tmp_path.glob("0.drive*")):
        shutil.copy(path, path.with_name(path.name.replace("0.drive", "1.drive", 1)))
    ranks.run(world, tmp_path, _on_gpus, backend="nccl")


def test_no_group_is_told(checkpoint: str) -> None:
    with warprow.open(checkpoint) as store:
        raises(warprow.InvalidArgument, "group: there is no process group", lambda: wt.ShardedEmbeddingBagCollection(store, FEATURES))


def test_the_planner() -> None:
    tables = {"huge": (10**8, 512), "big": (10**6, 512), "bag": (10**6, 256), "bag2": (10**6, 256), "bag3": (10**6, 256), "small": (100, 512)}
    features = [Feature(name, name, pooling="sum") for name in tables]
    lengths = {"huge": 20.0, "big": 1.0, "bag": 4.0, "bag2": 3.0, "bag3": 2.0, "small": 5.0}
    plan_ = wt.plan_sharding(tables, features, 2, bag_lengths=lengths)
    kinds = {it.table: (it.kind, it.owner, it.exchange) for it in plan_.placements}
    assert kinds == {
        # It is more than half of what is looked up, and its bags are long: two sums in the place of twenty rows.
        "huge": ("rows", None, "sums"),
        # A bag of one row costs the same wherever it is looked up.
        "big": ("rows", None, "rows"),
        # The costliest first, each where the least is yet.
        "bag": ("whole", 0, "rows"),
        "bag2": ("whole", 1, "rows"),
        "bag3": ("whole", 1, "rows"),
        "small": ("replicated", None, "rows"),
    }
    assert plan_ == wt.plan_sharding(dict(reversed(tables.items())), features, 2, bag_lengths=lengths)
    alone = wt.plan_sharding(tables, features, 1)
    assert {it.kind for it in alone.placements} == {"replicated"}
    # Bags of three rows among two ranks: a sum of each in the place of three rows is a saving of a third. Of two rows it is none.
    for length, world, exchange in ((3.0, 2, "sums"), (2.0, 2, "rows"), (20.0, 16, "rows"), (22.0, 16, "sums")):
        alone = wt.plan_sharding({"a": (10**6, 4)}, [Feature("a", "a", pooling="sum")], world, bag_lengths=length)
        assert alone.of("a").exchange == exchange, (length, world)
    for word, call in (
        ("world", lambda: wt.plan_sharding(tables, features, 0)),
        ("'huge' has nan", lambda: wt.plan_sharding(tables, features, 2, bag_lengths=float("nan"))),
        ("'big' has None", lambda: wt.plan_sharding(tables, features, 2, bag_lengths={"huge": 1.0})),
        ("over table 'x'", lambda: wt.plan_sharding(tables, [Feature("x", "x", pooling="sum")], 2)),
        ("placed twice", lambda: wt.ShardingPlan(2, (wt.Placement("a", "rows"),) * 2).check([], 2)),
        ("placed 'row'", lambda: wt.ShardingPlan(2, (wt.Placement("a", "row"),)).check([], 2)),
        ("exchanges 'all'", lambda: wt.ShardingPlan(2, (wt.Placement("a", "rows", exchange="all"),)).check([], 2)),
        ("'whole' with owner 2", lambda: wt.ShardingPlan(2, (wt.Placement("a", "whole", 2),)).check([], 2)),
        ("'whole' with owner None", lambda: wt.ShardingPlan(2, (wt.Placement("a", "whole"),)).check([], 2)),
        ("'rows' with owner 1", lambda: wt.ShardingPlan(2, (wt.Placement("a", "rows", 1),)).check([], 2)),
        ("nothing of table 'b'", lambda: wt.ShardingPlan(2, (wt.Placement("a", "rows"),)).check(["b"], 2)),
    ):
        raises(warprow.InvalidArgument, word, call)


def test_the_rank_of_an_id() -> None:
    ids = torch.tensor([0, 1, 5, -1, -4, 1 << 62])
    assert wt.shard_of(ids, 4).tolist() == [0, 1, 1, 3, 0, 0]
    # Keys with a pattern are spread, negative ones too; the rank of a key is the same everywhere.
    for step in (1, 4, 1 << 20, 1 << 40):
        counts = torch.bincount(wt.shard_of(torch.arange(-4096, 4096) * step, 4, keyed=True), minlength=4)
        assert counts.sum() == 8192 and counts.min() > 1850, (step, counts)
    assert wt.shard_of(torch.tensor([0, 1, -1, 1 << 40]), 7, keyed=True).tolist() == [_murmur(it) % 7 for it in (0, 1, -1, 1 << 40)]
    assert wt.shard_of(np.arange(5), 2).tolist() == [0, 1, 0, 1, 0]


def _murmur(number: int) -> int:
    mask = (1 << 64) - 1
    number &= mask
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ (number >> 33)) * factor & mask
    return (number ^ (number >> 33)) & ((1 << 63) - 1)
