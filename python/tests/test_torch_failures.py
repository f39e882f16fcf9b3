"""Modules over drives that fail, on the CPU. Every row that is served is compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

ROWS, DIM = 1000, 128
#: Each is read by a command of its own.
IDS = torch.arange(0, ROWS, 30)[:32]


@pytest.fixture
def stored(address: str) -> Iterator[tuple[warprow.Store, torch.Tensor]]:
    """A store with one table, and the table."""
    table = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
    with warprow.format(address, timeout=0.4) as store:
        store.load({"user": table})
        yield store, table


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("prefetched", [False, True])
@pytest.mark.parametrize("fault", ["unreadable", "unanswered"])
def test_a_call_raises_for_rows_that_failed(stored, fault: str, prefetched: bool) -> None:
    store, table = stored
    ours = wt.Embedding(store, "user", prefetch=1)

    def call() -> torch.Tensor:
        return ours.lookup(ours.prefetch(IDS)) if prefetched else ours(IDS)

    store.inject_fault(fault, nth=2)
    with pytest.raises(warprow.RowsFailed) as caught:
        call()
    assert caught.value.count == len(caught.value.positions) > 0 and caught.value.drive == store.drives()[0].name
    same(call(), table[IDS])
    ours.check()
    assert ours.recover() is False


@pytest.mark.parametrize("prefetched", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_that_failed_are_nan(stored, dtype: torch.dtype, prefetched: bool) -> None:
    store, table = stored
    ours = wt.Embedding(store, "user", on_failure="nan", missing="zero", padding_idx=0, dtype=dtype, prefetch=1)
    ids = IDS.clone()
    ids[3] = ROWS + 7
    store.inject_fault("unreadable", nth=5)
    found = ours.lookup(ours.prefetch(ids)) if prefetched else ours(ids)
    (failed,) = found.isnan().all(1).nonzero().flatten().tolist()
    wanted = table[ids.clamp(max=ROWS - 1)].to(dtype)
    # Neither the padding nor the missing id counts as failed.
    wanted[3], wanted[failed] = 0, float("nan")
    same(found, wanted)
    report = ours.report()
    assert report is not None and (report["failed"], report["missing"]) == (1, 1)


@pytest.mark.parametrize("mask", ["found", "failed"])
def test_rows_that_failed_are_masked(stored, mask: str) -> None:
    store, table = stored
    ours = wt.Embedding(store, "user", on_failure="mask", mask=mask, missing="zero")
    ids = IDS.clone()
    ids[3] = ROWS + 7
    store.inject_fault("unreadable", nth=5)
    found, told = ours(ids.reshape(4, 8))
    assert told.dtype == torch.bool and told.shape == (4, 8)
    found, told = found.reshape(32, DIM), told.flatten()
    missing = torch.arange(32) == 3
    (failed,) = (told if mask == "failed" else ~told & ~missing).nonzero().flatten().tolist()
    wanted = table[ids.clamp(max=ROWS - 1)]
    wanted[failed] = wanted[3] = 0
    same(found, wanted)
    assert told[3].item() is False
    found, told = ours(IDS)
    same(found, table[IDS])
    assert told.all() if mask == "found" else not told.any()


@pytest.mark.parametrize("on_failure", ["nan", "mask"])
def test_bags_of_several_tables(stored, on_failure: str) -> None:
    store, table = stored
    store.load({"item": table * 2})
    features = [warprow.Feature("clicks", "user", pooling="sum"), warprow.Feature("seen", "item", pooling="mean")]
    ours = wt.EmbeddingBagCollection(store, features, on_failure=on_failure, mask="failed")
    offsets = torch.arange(0, 33, 4)
    batch = {"clicks": (IDS, offsets), "seen": (IDS, offsets)}
    plain = ours(batch)
    plain = plain[0] if on_failure == "mask" else plain
    store.inject_fault("unreadable", nth=11)
    found = ours(batch)
    if on_failure == "mask":
        found, masks = found
        hit = {name: told.view(8, 4).any(1) for name, told in masks.items()}
        assert sum(told.sum().item() for told in masks.values()) == 1
    else:
        hit = {name: rows.isnan().any(1) for name, rows in found.items()}
    # One bag of one feature is hit, in the columns of that feature alone.
    assert sum(told.sum().item() for told in hit.values()) == 1
    for name, rows in found.items():
        wanted = plain[name].clone()
        wanted[hit[name]] = float("nan") if on_failure == "nan" else 0
        same(rows, wanted)


def test_nan_needs_a_type_that_has_it(stored) -> None:
    store, _ = stored
    store.load({"bytes": torch.ones(10, 8, dtype=torch.int8)})
    with pytest.raises(warprow.InvalidArgument, match="NaN"):
        wt.Embedding(store, "bytes", on_failure="nan", dtype=torch.int8)
    with pytest.raises(warprow.InvalidArgument, match="mask"):
        wt.Embedding(store, "bytes", on_failure="mask", mask="perhaps")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_modules_mark_failures_too(stored) -> None:
    store, table = stored
    ours = wt.Embedding(store, "user", on_failure="nan")
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    same(compiled(IDS), table[IDS])
    store.inject_fault("unreadable", nth=5)
    found = compiled(IDS)
    (failed,) = found.isnan().all(1).nonzero().flatten().tolist()
    wanted = table[IDS]
    wanted[failed] = float("nan")
    same(found, wanted)
