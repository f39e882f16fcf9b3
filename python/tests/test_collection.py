"""Collections of bags: batches fetched ahead, outputs that the caller has, and TorchRec's tensors, on the CPU and, where there is one, a GPU."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_torch import ROWS, attach, bags, device, random_ids, same, weights  # noqa: E402, F401

#: A table of each feature, its mode, and whether its ids have weights.
FEATURES = (("clicks", "user", "sum", False), ("seen", "item", "mean", False), ("bought", "user", "sum", True))
TABLES = {"user": weights(), "item": weights(300, 8, 1)}
WIDTHS = {"user": 16, "item": 8}
#: Bags of each feature, and ids of a bag.
BAGS, BAG = 30, 5

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def make(store: warprow.Store, on: str, **options: Any) -> wt.EmbeddingBagCollection:
    features = [warprow.Feature(name, table, pooling=mode, weighted=heavy) for name, table, mode, heavy in FEATURES]
    return wt.EmbeddingBagCollection(attach(store, on), features, **options)


def batch_of(seed: int, on: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """A batch of bags of one length, and halves as weights, whose products with rows are exact."""
    made = {}
    for number, (name, table, _, heavy) in enumerate(FEATURES):
        ids = random_ids(BAGS * BAG, 10 * seed + number, len(TABLES[table]))
        factors = (torch.randint(-3, 4, (BAGS * BAG,), generator=torch.Generator().manual_seed(seed)) / 2,) if heavy else ()
        made[name] = tuple(it.to(on) for it in (ids, torch.arange(0, BAGS * BAG + 1, BAG), *factors))
    return made


def wanted_of(batch: dict[str, tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
    """What a collection has to give, bit for bit: rows are added in the order of the bag."""
    found = {}
    for name, table, mode, heavy in FEATURES:
        ids = batch[name][0]
        rows = TABLES[table].to(ids.device)
        if heavy:
            factors = batch[name][2].reshape(BAGS, BAG, 1)
            sums = torch.zeros(BAGS, rows.shape[1], device=ids.device)
            for at in range(BAG):
                sums = sums + rows[ids.reshape(BAGS, BAG)[:, at]] * factors[:, at]
            found[name] = sums
        else:
            found[name] = bags(rows, ids.reshape(BAGS, BAG), mode, None)
    return found


def same_bags(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, rows in wanted.items():
        same(found[name], rows)


@pytest.fixture
def loaded(store: warprow.Store) -> warprow.Store:
    store.load(TABLES, hotness={"user": torch.arange(ROWS).flip(0)})
    return store


def test_batches_are_fetched_ahead(loaded, device) -> None:  # noqa: F811
    ours = make(loaded, device, prefetch=2)
    batches = [batch_of(seed, device) for seed in range(6)]
    ahead = ours.prefetch(batches[0])
    for step, given in enumerate(batches):
        following = ours.prefetch(batches[step + 1]) if step + 1 < len(batches) else None
        same_bags(ours.lookup(ahead), wanted_of(given))
        ahead = following
    # Two are held, in whichever order they are looked up; a third is refused, and a plain call goes on.
    held = [ours.prefetch(batches[0]), ours.prefetch(batches[1])]
    with pytest.raises(warprow.Busy):
        ours.prefetch(batches[2])
    same_bags(ours(batches[3]), wanted_of(batches[3]))
    same_bags(ours.lookup(held[1]), wanted_of(batches[1]))
    same_bags(ours.lookup(held[0]), wanted_of(batches[0]))
    # One that nobody looks up is forgotten.
    dropped = ours.prefetch(batches[4])
    assert "450 ids" in repr(dropped)
    del dropped
    gc.collect()
    held = [ours.prefetch(batches[0]), ours.prefetch(batches[1])]
    for number, it in enumerate(held):
        same_bags(ours.lookup(it), wanted_of(batches[number]))
    ours.check()


def test_batches_that_are_fetched_behind_others(loaded, device) -> None:  # noqa: F811
    ours, other = make(loaded, device, prefetch=3), make(loaded, device, prefetch=1)
    batches = [batch_of(seed, device) for seed in range(12)]
    # At most two fetch at a time, and three are held.
    held: list[Any] = []
    for step, given in enumerate(batches):
        held.append(ours.prefetch(given, behind=held[-2] if len(held) > 1 else None))
        if len(held) == 3:
            same_bags(ours.lookup(held.pop(0)), wanted_of(batches[step - 2]))
    # Of another module; and of one that was looked up, behind which there is nothing to wait for.
    of_other = other.prefetch(batches[0], behind=held[-1])
    for at, ahead in zip((-2, -1), held, strict=True):
        same_bags(ours.lookup(ahead), wanted_of(batches[at]))
    same_bags(ours.lookup(ours.prefetch(batches[3], behind=held[0])), wanted_of(batches[3]))
    same_bags(other.lookup(of_other), wanted_of(batches[0]))
    with pytest.raises(warprow.WrongType, match="behind"):
        ours.prefetch(batches[0], behind=batches[1])
    for module in (ours, other):
        module.check()



def test_tickets_are_used_once_and_by_their_module(loaded, device) -> None:  # noqa: F811
    ours, other = make(loaded, device, prefetch=1), make(loaded, device, prefetch=1)
    given = batch_of(0, device)
    ahead = ours.prefetch(given)
    with pytest.raises(warprow.InvalidArgument, match="another module"):
        other.lookup(ahead)
    same_bags(ours.lookup(ahead), wanted_of(given))
    with pytest.raises(warprow.InvalidArgument, match="already"):
        ours.lookup(ahead)
    with pytest.raises(warprow.InvalidArgument, match="prefetch="):
        make(loaded, device).prefetch(given)
    for module in (ours, wt.Embedding(attach(loaded, device), "user"), wt.NgramTable(attach(loaded, device), "user", heads=2)):
        with pytest.raises(warprow.WrongType, match="prefetched: a dict") as caught:
            module.lookup(given)
        assert caught.value.argument == "prefetched"
    for wrong, error, word in (
        ({"clicks": given["clicks"]}, warprow.InvalidArgument, "features"),
        ({**given, "seen": given["seen"][:1]}, warprow.InvalidArgument, "seen"),
        ({**given, "seen": (given["seen"][0].float(), given["seen"][1])}, warprow.WrongType, "elements of type"),
        ([1], warprow.WrongType, "batch: a list"),
    ):
        with pytest.raises(error, match=word):
            ours.prefetch(wrong)
    # What was refused holds no place.
    same_bags(ours.lookup(ours.prefetch(given)), wanted_of(given))
    ours.check()


def test_an_output_of_the_callers_is_filled(loaded, device) -> None:  # noqa: F811
    ours = make(loaded, device, prefetch=1)
    width = sum(WIDTHS[table] for _, table, _, _ in FEATURES)
    out = torch.full((BAGS, width), float("nan"), device=device)
    for seed in range(3):
        given = batch_of(seed, device)
        found = ours(given, out=out) if seed != 1 else ours.lookup(ours.prefetch(given), out=out)
        same_bags(found, wanted_of(given))
        same(torch.cat(list(found.values()), dim=1), out)
        assert all(rows.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() for rows in found.values())
        out.fill_(float("nan"))
    given = batch_of(0, device)
    for wrong, error in (
        (torch.empty(BAGS + 1, width, device=device), warprow.InvalidArgument),
        (torch.empty(BAGS, width - 1, device=device), warprow.InvalidArgument),
        (torch.empty(width, BAGS, device=device).T, warprow.InvalidArgument),
        (torch.empty(BAGS, width, device="meta"), warprow.InvalidArgument),
        (torch.empty(BAGS, width, device=device).half(), warprow.WrongType),
        (np.empty((BAGS, width), dtype=np.float32), warprow.WrongType),
    ):
        with pytest.raises(error, match="out") as caught:
            ours(given, out=wrong)
        assert caught.value.argument == "out"
    ours.check()


@pytest.mark.parametrize("prefetched", [False, True])
def test_masks_of_features(loaded, device, prefetched: bool) -> None:  # noqa: F811
    ours = make(loaded, device, on_failure="mask", missing="zero", prefetch=1)
    given = batch_of(0, device)
    wanted = wanted_of(given)["clicks"]
    given["seen"][0][[3, 8]] = 300
    given["bought"][0][0] = -1
    rows, masks = ours.lookup(ours.prefetch(given)) if prefetched else ours(given)
    for name, at in (("clicks", []), ("seen", [3, 8]), ("bought", [0])):
        assert torch.nonzero(~masks[name]).reshape(-1).tolist() == at
        assert masks[name].shape == (BAGS * BAG,)
    same(rows["clicks"], wanted)


def test_values_of_a_batch_that_is_fetched_ahead(loaded, device) -> None:  # noqa: F811
    ours = make(loaded, device, prefetch=1)
    given = batch_of(0, device)
    ours(given)
    ours.check()
    given["seen"][0][7] = 300
    with pytest.raises(warprow.MissingIds) as caught:
        ours.lookup(ours.prefetch(given))
        ours.check()
    assert caught.value.count == 1 and list(caught.value.positions) == [BAGS * BAG + 7]
    given["seen"][0][7] = 299
    with pytest.raises(warprow.InvalidArgument, match="offsets"):
        ours.lookup(ours.prefetch({**given, "seen": (given["seen"][0], given["seen"][1] + 1)}))
        ours.check()
    same_bags(ours.lookup(ours.prefetch(given)), wanted_of(given))
    ours.check()


def test_a_batch_without_ids(loaded, device) -> None:  # noqa: F811
    ours = make(loaded, device, prefetch=1)
    none, ends = torch.zeros(0, dtype=torch.int64, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    empty = {"clicks": (none, ends), "seen": (none, ends), "bought": (none, ends, none.float())}
    for found in (ours(empty), ours.lookup(ours.prefetch(empty))):
        assert {name: tuple(rows.shape) for name, rows in found.items()} == {"clicks": (3, 16), "seen": (3, 8), "bought": (3, 16)}
        assert not any(rows.any() for rows in found.values())
    # Nor one without bags.
    empty = {"clicks": (none, ends[:1]), "seen": (none, ends[:1]), "bought": (none, ends[:1], none.float())}
    for found in (ours(empty), ours.lookup(ours.prefetch(empty))):
        assert {tuple(rows.shape) for rows in found.values()} == {(0, 16), (0, 8)}
    ours.check()


def test_rows_of_the_moment_of_the_prefetch(loaded) -> None:
    ours, given = make(loaded, "cpu", prefetch=1), batch_of(0, "cpu")
    before = {name: rows.clone() for name, rows in ours(given).items()}
    ahead = ours.prefetch(given)
    # The ids were copied, and an update that comes later is not seen.
    ids = given["clicks"][0].clone()
    given["clicks"][0].fill_(1)
    loaded.update("user", ids[:1], np.full((1, 16), 9, dtype=np.float32))
    same_bags(ours.lookup(ahead), before)
    given["clicks"][0].copy_(ids)
    assert not torch.equal(ours(given)["clicks"], before["clicks"])
