"""Sharded collections for batches of one size: every row is that of a module that is not sharded, bit for bit, in CUDA graphs too where there
are GPUs; and what is wrong with a batch is told, never answered."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402
from warprow import Feature  # noqa: E402

import checkpoints  # noqa: E402
import ranks  # noqa: E402
import test_sharded as sharded  # noqa: E402

BAGS = 40
#: The last feature has one id in each bag.
FEATURES = [*sharded.FEATURES, Feature("one", "user", pooling="sum")]
WORLDS = [("cpu", 2), ("cpu", 3)] + [("cuda", world) for world in (1, 2) if world <= sharded.GPUS]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of all tables, which any number of processes can open."""
    path = tmp_path_factory.mktemp("tables") / "model.safetensors"
    checkpoints.write(path, {name: ("F32", sharded.table(name)) for name in sharded.TABLES})
    return f"attached:{path}"


def batch(seed: int, device: str, *, longest: int = 9, one_id: bool = False) -> dict[str, tuple[torch.Tensor, ...]]:
    """Batches of one size, whatever the seed: bags of 0 to `longest` ids in another order each time."""
    random = torch.Generator().manual_seed(seed)
    given: dict[str, tuple[torch.Tensor, ...]] = {}
    for feature in FEATURES:
        lengths = torch.arange(BAGS) % (longest + 1)
        lengths = lengths[torch.randperm(BAGS, generator=random)] if feature.name != "one" else torch.ones(BAGS, dtype=torch.int64)
        rows = 1 if one_id else sharded.TABLES[feature.table][0]
        count = int(lengths.sum())
        parts: tuple[torch.Tensor, ...] = (torch.randint(0, rows, (count,), generator=random), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))
        given[feature.name] = (*parts, torch.randn(count, generator=random)) if feature.weighted else parts
    return {name: tuple(it.to(device) for it in parts) for name, parts in given.items()}


def compare(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], where: object) -> int:
    assert list(found) == [feature.name for feature in FEATURES]
    for name in found:
        sharded.same(found[name], wanted[name], (where, name))
    return sum(rows.numel() for rows in found.values())


def all_nan(found: dict[str, torch.Tensor]) -> bool:
    return all(bool(rows.isnan().all()) for rows in found.values())


def _fixed(rank: int, world: int, folder: Path, address: str, kind: str) -> int:
    device = "cpu" if kind == "cpu" else f"cuda:{rank}"
    store = warprow.open(address, read_only=True)
    executor = store.attach(device, dram_bytes=20_000, **({} if kind == "cpu" else {"hbm_bytes": 20_000}))
    plain = wt.EmbeddingBagCollection(executor, FEATURES)
    collection = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=sharded.plan(world), on_failure="nan")
    first = batch(sharded.SEED * 100 + rank, device)
    fixed = collection.fixed_sizes(first, slack=2.0)
    assert "room for" in repr(fixed) and not list(fixed.parameters()) and min(fixed.room) > 0
    compared = 0
    for step in range(4):
        given = batch(sharded.SEED * 100 + 10 * step + rank, device)
        compared += compare(fixed(given if step % 2 else sharded.jagged(given)), plain(given), (rank, step))
    fixed.check()
    assert fixed.recover() is False
    if kind == "cuda":
        compared += _captured(rank, fixed, plain, device)
    # Ranks may have other sizes, and the collection itself goes on.
    other = collection.fixed_sizes(batch(7, device, longest=3 + rank), slack=2.0)
    given = batch(9, device, longest=3 + rank)
    compared += compare(other(given), plain(given), rank)
    compared += compare(collection(given), plain(given), rank)
    # Something is wrong on one rank: nothing of its batch is answered, and the others have what they asked for.
    many, kinds = batch(50 + rank, device), ("MissingIds", "InvalidArgument", "InvalidArgument")
    wrong = [dict(many) for _ in kinds]
    ids, offsets = many["user"][:2]
    wrong[0]["user"] = (torch.where(torch.arange(len(ids), device=device) == 5, 5000, ids), offsets)
    # A table that is placed whole, and offsets that descend; and such as end behind the ids.
    shop = many["shop"]
    wrong[1]["shop"] = (shop[0], shop[1].flip(0), shop[2])
    wrong[2]["user"] = (ids, offsets + 1)
    for at, (kind_of, bad) in enumerate(zip(kinds, wrong, strict=True)):
        found = fixed(bad if rank == world - 1 else many)
        if rank == world - 1:
            assert all_nan(found), (at, rank)
            sharded.raises(getattr(warprow, kind_of), "missing|offsets", fixed.check)
        else:
            compared += compare(found, plain(many), (at, rank))
            error = sharded.raises(warprow.RankFailed, f"rank {world - 1} of the group has failed with {kind_of}", fixed.check)
            assert (error.rank, error.kind) == (world - 1, kind_of)
        compared += compare(fixed(many), plain(many), (at, rank))
        fixed.check()
    # Room that one batch needed is too little for another.
    if world > 1:
        tight = collection.fixed_sizes(batch(3, device, one_id=True), slack=1.0)
        found = tight(many)
        assert all_nan(found)
        sharded.raises(warprow.InvalidArgument, "different ids, and there is room for", tight.check)
        few = batch(4, device, one_id=True)
        compared += compare(tight(few), plain(few), rank)
        tight.check()
    # Bags that all had one id keep that: a row is taken in the place of each.
    ones = [Feature("one", "user", pooling="sum"), Feature("item", "item", pooling="sum")]
    alone = wt.ShardedEmbeddingBagCollection(executor, ones, plan=sharded.plan(world), on_failure="nan")
    every = torch.arange(BAGS + 1, device=device)
    given = {"one": (many["one"][0], every), "item": (many["one"][0] % 700, every)}
    of_ones = alone.fixed_sizes(given)
    for name, rows in of_ones(given).items():
        sharded.same(rows, sharded.table({"one": "user", "item": "item"}[name]).to(device)[given[name][0]], (rank, name))
    of_ones.check()
    none = torch.cat([every[:1], every[:-2], every[-1:]])
    found = of_ones({**given, "one": (given["one"][0], none)})
    assert all(bool(rows.isnan().all()) for rows in found.values())
    sharded.raises(warprow.InvalidArgument, "offsets", of_ones.check)
    return compared


def _captured(rank: int, fixed: Any, plain: Any, device: str) -> int:
    """Steps in a graph, exchanges included, of batches that are copied to its inputs."""
    inputs = batch(1, device)
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        fixed(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = fixed(inputs)
    compared = 0
    for step in range(6):
        given = batch(1000 + 10 * step + rank, device)
        for name, parts in given.items():
            for own, part in zip(inputs[name], parts, strict=True):
                own.copy_(part)
        graph.replay()
        torch.cuda.synchronize()
        compared += compare(found, plain(given), (rank, step, "graph"))
        fixed.check()
    # A table lacks an id of one rank's batch.
    torch.distributed.barrier()
    if rank == 0:
        inputs["user"][0][3] = -5
    graph.replay()
    torch.cuda.synchronize()
    if rank == 0:
        assert all_nan(found)
        sharded.raises(warprow.MissingIds, "missing", fixed.check)
    else:
        sharded.raises(warprow.RankFailed, "rank 0", fixed.check)
    return compared


def _dying(rank: int, world: int, folder: Path, address: str) -> str:
    """A rank dies, and the graph of the other waits for it."""
    device = f"cuda:{rank}"
    executor = warprow.open(address, read_only=True).attach(device, hbm_bytes=1 << 20)
    bags = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=sharded.plan(world), on_failure="nan")
    inputs = batch(rank, device)
    fixed = bags.fixed_sizes(inputs)
    fixed(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        fixed(inputs)
    graph.replay()
    fixed.check()
    torch.distributed.barrier()
    torch.cuda.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # (Rank 1 is alive for a moment yet.)
    graph.replay()
    error = sharded.raises(warprow.ExchangeFailed, "rank 1 of this machine has died", lambda: fixed.check(30.0))
    assert error.ranks == (1,)
    return str(error)


@pytest.mark.skipif(sharded.GPUS < 2, reason="there are no two GPUs")
def test_a_rank_that_dies_while_graphs_run(checkpoint: str, tmp_path: Path) -> None:
    found = ranks.run(2, tmp_path, _dying, checkpoint, backend="nccl", dying=1)
    assert "a step did not end" in found[0]


@pytest.mark.parametrize(("kind", "world"), WORLDS)
def test_every_row_is_that_of_a_module_that_is_not_sharded(checkpoint: str, tmp_path: Path, kind: str, world: int) -> None:
    compared = ranks.run(world, tmp_path, _fixed, checkpoint, kind, backend=sharded.backend(kind))
    assert all(it > 10_000 for it in compared)


def _refused(rank: int, world: int, folder: Path, address: str) -> None:
    executor = warprow.open(address, read_only=True).attach("cpu")
    given = batch(rank, "cpu")

    def made(**options: Any) -> Any:
        return wt.ShardedEmbeddingBagCollection(executor, FEATURES, **{"plan": sharded.plan(world), "on_failure": "nan", **options})

    bags = made()
    for word, call in (
        ("slack: 0.5", lambda: bags.fixed_sizes(given, slack=0.5)),
        ("on_failure: ranks would get zeros", lambda: made(on_failure="raise").fixed_sizes(given)),
        ("'item' exchanges sums", lambda: made(plan=sharded.plan(world, item="sums")).fixed_sizes(given)),
        ("no bags", lambda: bags.fixed_sizes({name: (parts[0][:0], parts[1][:1], *(it[:0] for it in parts[2:])) for name, parts in given.items()})),
    ):
        sharded.raises(warprow.InvalidArgument, word, call)
    # One rank alone cannot take part: the others are told which.
    if rank == 1:
        sharded.raises(warprow.InvalidArgument, "slack", lambda: bags.fixed_sizes(given, slack=0.0))
    else:
        assert sharded.raises(warprow.RanksDisagree, "rank 1 could not fix its sizes", lambda: bags.fixed_sizes(given)).rank == 1
    for slack, kind in (("a", warprow.WrongType), (None, warprow.WrongType), (1e308, warprow.InvalidArgument), (float("nan"), warprow.InvalidArgument)):
        sharded.raises(kind, "slack: ", lambda slack=slack: bags.fixed_sizes(given, slack=slack))
    # Room would have another size on each rank.
    error = sharded.raises(warprow.RanksDisagree, "rank 1 has slack=1.6, rank 0 has 1.0", lambda: bags.fixed_sizes(given, slack=(1.0, 1.6)[rank]))
    assert (error.rank, error.what) == (1, "slack")
    fixed = bags.fixed_sizes(given)
    # Refused before anything is exchanged, so that other ranks need not call.
    for word, wrong in (
        ("sizes were fixed", {**given, "user": (given["user"][0][1:], given["user"][1])}),
        ("sizes were fixed", sharded.jagged(batch(1, "cpu", longest=4))),
        ("it has", {name: it for name, it in given.items() if name != "user"}),
        ("feature 'shop': give", {**given, "shop": given["shop"][:2]}),
        ("KeyedJaggedTensor", 7),
    ):
        sharded.raises(warprow.InvalidArgument, word, lambda wrong=wrong: fixed(wrong))
    found = fixed(given)
    compare(found, wt.EmbeddingBagCollection(executor, FEATURES)(given), rank)
    # All tables replicated: nothing is exchanged, and nothing has to be fixed.
    everywhere = wt.ShardingPlan(world, tuple(wt.Placement(name, "replicated") for name in sharded.TABLES))
    compare(made(plan=everywhere, on_failure="raise").fixed_sizes(given)(given), found, rank)


def test_what_cannot_be_is_refused(checkpoint: str, tmp_path: Path) -> None:
    ranks.run(2, tmp_path, _refused, checkpoint)


def _midway(rank: int, world: int, folder: Path, address: str) -> int:
    """Look-ups of one rank fail behind the exchange of ids: all ranks leave the step together, and go on with the next."""
    executor = warprow.open(address, read_only=True).attach("cpu")
    plain = wt.EmbeddingBagCollection(executor, FEATURES)
    bags = wt.ShardedEmbeddingBagCollection(executor, FEATURES, plan=sharded.plan(world), on_failure="nan")
    given = batch(rank, "cpu")
    fixed = bags.fixed_sizes(given)
    began, compared = time.monotonic(), 0

    def broken(*_: object) -> None:
        raise warprow.Busy("no slot is free")

    for failing in range(world):
        for owner, stage in ((bags, "_look_up_kept"), (fixed, "_rows_of"), (fixed, "_sums_of")):
            if rank == failing:
                setattr(owner, stage, broken)
                sharded.raises(warprow.Busy, "no slot is free", lambda: fixed(given))
                delattr(owner, stage)
            else:
                error = sharded.raises(warprow.RankFailed, f"rank {failing} of the group has failed with Busy", lambda: fixed(given))
                assert (error.rank, error.kind) == (failing, "Busy")
            compared += compare(fixed(given), plain(given), (rank, failing, stage))
            fixed.check()
    # Everything fails that rank 1 looks up.
    if rank == 1:
        executor.close()
    for _ in range(2):
        if rank == 1:
            sharded.raises(warprow.Closed, "closed", lambda: fixed(given))
        else:
            assert sharded.raises(warprow.RankFailed, "rank 1", lambda: fixed(given)).kind == "Closed"
    # Nobody has waited for the time-out of the group.
    assert time.monotonic() - began < 60
    return compared


def test_a_step_that_fails_in_its_midst_ends_on_all_ranks(checkpoint: str, tmp_path: Path) -> None:
    assert all(it > 10_000 for it in ranks.run(2, tmp_path, _midway, checkpoint))
