"""Batches that are fetched ahead, in many threads and behind what they are of: rows, or an exception that says what to do, never anything else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_torch import DIM, ROWS, attach, device, random_ids, same, stored  # noqa: E402, F401

THREADS = 8
COUNT = 300


def all_at_once(work: Callable[[int], Any]) -> list[Any]:
    """What `work` returned or raised in each of eight threads that begin together."""
    found: list[Any] = [None] * THREADS
    barrier = threading.Barrier(THREADS)

    def run(nth: int) -> None:
        barrier.wait()
        try:
            found[nth] = work(nth)
        except Exception as error:
            found[nth] = error

    threads = [threading.Thread(target=run, args=(nth,)) for nth in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


class Kind:
    """A module, how it prefetches ids, and the rows that it has to give."""

    def __init__(self, name: str, store: warprow.Store, table: torch.Tensor, device: str, held: int) -> None:  # noqa: F811
        executor = attach(store, device)
        offsets = torch.arange(0, COUNT + 1, 3, device=device)
        if name == "rows":
            self.module: Any = wt.Embedding(executor, "user", prefetch=held)
            self.prefetch: Callable[[torch.Tensor], Any] = self.module.prefetch
            self.wanted: Callable[[torch.Tensor], torch.Tensor] = lambda ids: table[ids.cpu()].to(device)
        elif name == "ngrams":
            self.module = wt.NgramTable(executor, "user", heads=3, dtype=torch.float32, prefetch=held)
            self.prefetch = lambda ids: self.module.prefetch(ids.reshape(-1, 3))
            self.wanted = lambda ids: table[ids.cpu()].reshape(-1, 3 * DIM).to(device)
        else:
            features = [warprow.Feature("one", "user", pooling="sum"), warprow.Feature("two", "user", pooling="mean")]
            self.module = wt.EmbeddingBagCollection(executor, features, prefetch=held)
            self.prefetch = lambda ids: self.module.prefetch({"one": (ids, offsets), "two": (ids.flip(0), offsets)})
            self.wanted = lambda ids: self.sums(self.module({"one": (ids, offsets), "two": (ids.flip(0), offsets)}))

    def sums(self, found: Any) -> torch.Tensor:
        return torch.cat([found["one"], found["two"]], dim=1) if isinstance(found, dict) else found

    def lookup(self, ahead: Any) -> torch.Tensor:
        return self.sums(self.module.lookup(ahead))


KINDS = ["rows", "ngrams", "collection"]


@pytest.mark.parametrize("name", KINDS)
def test_one_of_eight_threads_gets_the_rows(stored, device, name: str) -> None:  # noqa: F811
    store, table = stored
    kind = Kind(name, store, table, device, held=1)
    for turn in range(40):
        ids = random_ids(COUNT, turn).to(device)
        wanted = kind.wanted(ids)
        ahead = kind.prefetch(ids)
        found = all_at_once(lambda _: kind.lookup(ahead))
        rows = [it for it in found if isinstance(it, torch.Tensor)]
        errors = [it for it in found if not isinstance(it, torch.Tensor)]
        assert len(rows) == 1 and len(errors) == THREADS - 1, found
        same(rows[0], wanted)
        for error in errors:
            assert type(error) is warprow.InvalidArgument and error.argument == "prefetched", error
            assert "prefetch again" in str(error)
    kind.module.check()


@pytest.mark.parametrize("name", KINDS)
def test_eight_threads_with_a_batch_each(stored, device, name: str) -> None:  # noqa: F811
    store, table = stored
    kind = Kind(name, store, table, device, held=THREADS)
    ids = [random_ids(COUNT, seed).to(device) for seed in range(THREADS)]
    wanted = [kind.wanted(it) for it in ids]

    def work(nth: int) -> torch.Tensor:
        for _ in range(20):
            found = kind.lookup(kind.prefetch(ids[nth]))
            same(found, wanted[nth])
        return found

    for found, rows in zip(all_at_once(work), wanted, strict=True):
        same(found, rows)
    kind.module.check()


@pytest.mark.parametrize("what", ["store", "executor"])
@pytest.mark.parametrize("name", KINDS)
def test_behind_what_was_closed(stored, device, name: str, what: str) -> None:  # noqa: F811
    store, table = stored
    kind = Kind(name, store, table, device, held=2)
    ids = random_ids(COUNT, 5).to(device)
    wanted = kind.wanted(ids)
    ahead, dropped = kind.prefetch(ids), kind.prefetch(ids)
    (store if what == "store" else kind.module.executor).close()
    try:
        same(kind.lookup(ahead), wanted)
    except warprow.Closed as error:
        assert "again" in str(error) or "anew" in str(error), error
    for _ in range(2):
        with pytest.raises((warprow.Closed, warprow.InvalidArgument)) as caught:
            kind.lookup(ahead)
        assert "again" in str(caught.value) or "anew" in str(caught.value)
    with pytest.raises(warprow.Closed):
        kind.prefetch(ids)
    del dropped


@pytest.mark.parametrize("name", KINDS)
def test_a_store_that_is_closed_under_eight_threads(stored, device, address, name: str) -> None:  # noqa: F811
    store, table = stored
    kind = Kind(name, store, table, device, held=THREADS)
    ids = [random_ids(COUNT, seed).to(device) for seed in range(THREADS)]
    wanted = [kind.wanted(it) for it in ids]

    def work(nth: int) -> int:
        turns = 0
        while True:
            if nth == 0 and turns == 10:
                store.close()
            try:
                same(kind.lookup(kind.prefetch(ids[nth])), wanted[nth])
            except warprow.Closed:
                return turns
            turns += 1

    found = all_at_once(work)
    assert all(isinstance(it, int) for it in found), found
    assert store.closed and found[0] >= 10
    # The drives are free for others.
    with warprow.open(store.addresses) as again:
        same(wt.Embedding(again, "user")(ids[0].cpu()), table[ids[0].cpu()])
