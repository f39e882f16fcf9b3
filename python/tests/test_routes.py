"""The ways of a batch's ids to ranks: what is sent, and what comes back where, compared with plain loops."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from warprow.torch._batches import _by_few_kernels, _one_by_one  # noqa: E402
from warprow.torch._routes import Bags, Chosen, Route, Router, joined, runs  # noqa: E402
from warprow.torch._shard_plan import shard_of  # noqa: E402

SEED = int(os.environ.get("WARPROW_SEED", "1"))


def batch(random: torch.Generator, rows: list[int], bags: int, longest: int) -> Bags:
    """Ids from -2 to two behind the last, often equal ones."""
    lengths = torch.randint(0, longest + 1, (len(rows) * bags,), generator=random)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = [
        torch.randint(-2, count + 2, (int(offsets[(at + 1) * bags] - offsets[at * bags]),), generator=random)
        for at, count in enumerate(rows)
    ]
    return Bags(torch.cat(ids), offsets, None, tuple(offsets[::bags].tolist()), bags)


def routes(rows: list[int | None], padding: list[int | None], local: bool) -> list[Route]:
    return [Route(count, pad, local and count is not None) for count, pad in zip(rows, padding, strict=True)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("bags", [0, 1, 5])
def test_offsets_of_all_features_by_few_kernels(bags: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(SEED)
    for wrong in (None, 0, -1):
        every = []
        for _ in range(4):
            lengths = torch.randint(0, 4, (bags,), generator=random)
            every.append(torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(dtype))
        counts = [int(own[-1]) for own in every]
        if wrong is not None:
            every[2][wrong] += 1
        found, wanted = _by_few_kernels(every, bags, counts), _one_by_one(every, counts)
        # On the CPU an end that is wrong is told before.
        assert torch.equal(found[1:], wanted[1:]) and found.dtype == dtype, (SEED, wrong)
        assert int(found[0]) == (0 if wrong is None else -1), (SEED, wrong)


def test_runs_and_parts() -> None:
    assert runs([]) == [] and runs([3]) == [(3, 4)] and runs([0, 1, 2, 4, 7, 8]) == [(0, 3), (4, 5), (7, 9)]
    part = torch.arange(3)
    assert joined([part], part) is part and joined([], part).shape == (0,) and joined([part, part], part).tolist() == [0, 1, 2, 0, 1, 2]


# Of tables with so many rows, numbers of ids take 32 bits, 64, or more; the last has keys.
@pytest.mark.parametrize("scale", [1, 1 << 40, 1 << 62, None])
@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("missing", ["error", "zero", "skip"])
def test_each_different_id_is_sent_once(scale: int | None, world: int, missing: str) -> None:
    random = torch.Generator().manual_seed(SEED)
    small = [40, 7, 300, 5]
    given = batch(random, small, 23, 6)
    rows: list[int | None] = [None if scale is None else count * scale for count in small] if scale != 1 << 62 else [scale] * 4
    members, padding = [0, 2, 3], [None, None, 3, None]
    router = Router(routes(rows, padding, True), [members], [], missing, world, torch.device("cpu"))
    # The second call finds what the first one knew of such a batch.
    for routed in (router.send(given), router.send(given)):
        (chosen,) = routed.chosen
        assert isinstance(chosen, Chosen) and chosen.counts.shape == (world, 3) and not bool(routed.wrong_offsets)
        sent = int(chosen.counts.sum())
        assert chosen.places.max() <= sent
        # By place the rank, the feature and the id that it stands for.
        ends = chosen.counts.reshape(-1).cumsum(0)
        seen, at = set(), 0
        for feature in members:
            for position in range(given.starts[feature], given.starts[feature + 1]):
                id_, place, count = int(given.ids[position]), int(chosen.places[at]), rows[feature]
                at += 1
                absent = count is not None and not 0 <= id_ < count
                if id_ == padding[feature] or (absent and missing == "skip"):
                    assert place == sent, (SEED, position)
                    continue
                if count is not None and scale != 1 << 62:
                    # Where one sort finds them, all that a table lacks on one side are one.
                    id_ = min(max(id_, -1), count)
                owner = int(shard_of(torch.tensor([id_]), world, keyed=count is None))
                which = int(torch.searchsorted(ends, torch.tensor(place), right=True))
                assert divmod(which, 3) == (owner, members.index(feature)), (SEED, position)
                assert int(chosen.ids[place]) == (id_ if count is None else id_ // world), (SEED, position)
                seen.add(place)
        assert at == len(chosen.places) and len(seen) == sent
        keys = [(int(torch.searchsorted(ends, torch.tensor(place), right=True)), int(chosen.ids[place])) for place in seen]
        assert len(set(keys)) == sent, "no id is sent twice"
        wanted = torch.zeros(len(given.ids), dtype=torch.bool)
        for feature, count in enumerate(rows):
            part = slice(given.starts[feature], given.starts[feature + 1])
            ids = given.ids[part]
            wanted[part] = False if count is None else ((ids < 0) | (ids >= count)) & (ids != (padding[feature] if padding[feature] is not None else 1 << 60))
        assert (routed.missing is not None) == (missing == "error")
        if routed.missing is not None:
            assert torch.equal(routed.missing, wanted)


@pytest.mark.parametrize("world", [1, 2, 5, 300])
def test_bags_are_divided_in_their_order(world: int) -> None:
    random = torch.Generator().manual_seed(SEED)
    rows = [40, 7, 300, 50]
    given = batch(random, rows, 11, 7)
    members = [0, 2, 3]
    router = Router(routes([40, 7, None, 50], [None, None, 3, None], False), [], members, "zero", world, torch.device("cpu"))
    divided = router.send(given).divided
    assert divided is not None
    sent: list[list[int]] = [[] for _ in range(world)]
    lengths = torch.zeros(world, len(members), given.bags, dtype=torch.int64)
    for which, feature in enumerate(members):
        for bag in range(given.bags):
            begin, end = given.offsets[feature * given.bags + bag : feature * given.bags + bag + 2].tolist()
            for position in range(begin, end):
                id_ = given.ids[position]
                if feature == 2 and int(id_) == 3:
                    continue
                owner = int(shard_of(id_.reshape(1), world, keyed=feature == 2))
                sent[owner].append(int(id_))
                lengths[owner, which, bag] += 1
    assert divided.ids[: len(sum(sent, []))].tolist() == sum(sent, [])
    assert torch.equal(divided.lengths, lengths.reshape(world, -1))
    assert torch.equal(divided.counts, lengths.sum(2))
    own = joined([given.ids[slice(*it)] for it in given.spans(members)], given.ids)
    assert torch.equal(own[divided.order[: len(sum(sent, []))]], divided.ids[: len(sum(sent, []))])


def test_offsets_that_lie_are_found_and_harm_nothing() -> None:
    random = torch.Generator().manual_seed(SEED)
    good = batch(random, [10, 20], 6, 4)
    router = Router(routes([10, 20], [None, None], False), [[0]], [1], "zero", 2, torch.device("cpu"))
    assert not bool(router.send(good).wrong_offsets)
    ends = good.offsets.clone()
    ends[-1] += 1
    between = good.offsets.clone()
    between[6] = (between[6] - 1).clamp(min=0) if int(between[6]) > int(between[5]) else between[6] + 1
    for offsets in (good.offsets.flip(0), good.offsets + 1, ends, between, good.offsets * 1000, -good.offsets - 1):
        assert bool(router.send(good._replace(offsets=offsets)).wrong_offsets), offsets
